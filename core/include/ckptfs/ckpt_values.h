/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_values - what values the tensors of a checkpoint have, whatever its format and layout.
 *
 *	struct ckpt_values_scan s = { .each = show };
 *	if (ckpt_values_scan(c, &s, &e))
 *		errx(2, "%s", e.msg);
 *	if (s.total.nan) ...
 *
 * Tensors are read as they are shown: after casts, recipes and renaming. Worker threads stream them in
 * blocks of some MiB; memory depends neither on the checkpoint's size nor on a tensor's. Counts and extremes
 * are exact. Sums are added up exactly and rounded at the end, so results depend neither on the number
 * of threads nor on how the checkpoint is cut.
 *
 * Threads: one call from any; the callbacks come from the caller's own.
 */
#ifndef CKPTFS_CKPT_VALUES_H
#define CKPTFS_CKPT_VALUES_H

#include "ckpt.h"
#include "ckpt_numbers.h"

CKPT_BEGIN

/*
 * A histogram: bin i has counts[i] elements, from edges[i] on and below edges[i + 1]. Counts are exact,
 * and do not depend on the number of threads. NaN, infinities and magnitudes of 2^128 and more are in
 * no bin.
 *
 *	linear       bins of one width, a power of two, at multiples of it: the smallest with which at most
 *	             `bins` hold all elements, but at least 2^-7 of the power of two below the largest
 *	             magnitude
 *	logarithmic  a bin for each power of two, of either sign, from the largest down, and one in the
 *	             middle, from -2^k to 2^k, with zero and what is smaller than all others
 */
struct ckpt_hist {
	size_t n;	     /* bins; 0: nothing was counted */
	const double *edges; /* n + 1 */
	const uint64_t *counts;
};
#define CKPT_HIST_MIN 3
#define CKPT_HIST_MAX 256

struct ckpt_values_item {
	const char *fqn; /* fqn_len bytes, followed by a NUL; of a group its name; borrowed */
	size_t fqn_len;
	const char *dtype; /* of a group NULL, and no shape */
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes, tensors; /* tensors: 1, or of a group how many */
	const char *fault;	 /* why it could not be read, or NULL; values are 0 then */
	struct ckpt_values values;
	/* NULL where none were asked for, and where there are no real numbers. */
	const struct ckpt_hist *linear, *logarithmic;
};

enum ckpt_values_by {
	CKPT_VALUES_TENSOR, /* an item for each tensor */
	CKPT_VALUES_LAYER, /* for each prefix of FQNs up to the first number in them: "model.layers.3" */
	CKPT_VALUES_ROLE, /* for each FQN with '*' for numbers: "model.layers.*.mlp.up_proj.weight" */
	/* for each rank that wrote data files, as their names tell: "rank 3", and .tensors are chunks */
	CKPT_VALUES_RANK,
};

struct ckpt_values_scan {
	const char *const *globs; /* FQNs to look at, NULL-terminated; NULL or none: all */
	bool model;		  /* the model's tensors under the names of hf/, instead of all */
	enum ckpt_values_by by;	  /* items of groups come when all tensors have been read */
	unsigned jobs; /* worker threads, at most CKPT_VALUES_MAX_JOBS; 0: one per CPU, at most 4 */
	/* In natural order of the FQNs; a non-zero return stops and is returned. */
	int (*each)(void *arg, const struct ckpt_values_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Filled in: */
	uint64_t tensors, failed; /* failed: of them could not be read */
	uint64_t bytes;
	struct ckpt_values total; /* over all that were read; first_* mean nothing */

	/*
	 * A file that keeps what has been read, tensor by tensor, so that the same call, of another
	 * process, goes on after an interruption: each is called for all items again. NULL: none. It is
	 * removed when all tensors have been read. EEXIST: it is something else, or of something else.
	 * resume_key, or NULL, is anything that the values depend on besides the checkpoint: options.
	 */
	const char *resume, *resume_key;

	unsigned bins; /* of histograms, CKPT_HIST_MIN to CKPT_HIST_MAX; 0: no histograms */
};
#define CKPT_VALUES_MAX_JOBS 64

/* 0 also when tensors could not be read. Of a run: -EISDIR. ENOTSUP: by rank, and no names tell. */
CKPT_API int ckpt_values_scan_sized(struct ckpt *c, struct ckpt_values_scan *s, size_t size,
				    struct ckpt_err *e);
static inline int ckpt_values_scan(struct ckpt *c, struct ckpt_values_scan *s, struct ckpt_err *e)
{
	return ckpt_values_scan_sized(c, s, sizeof(*s), e);
}

/*
 * How tensors change from one checkpoint of a run to the next. Of each tensor that matches there is a
 * row for every complete checkpoint, in natural order of the names and, within a tensor, of the
 * checkpoints. All rows come at the end.
 *
 * Up to 16 checkpoints are open at a time, and of each tensor a block of each is read. Every checkpoint
 * is read once but for every 15th, which also is the one before the next 15.
 */
struct ckpt_series_item {
	const char *fqn; /* fqn_len bytes, followed by a NUL; borrowed, as is everything */
	size_t fqn_len;
	const char *checkpoint;
	const char *dtype; /* NULL where it has no such tensor, and then there is a fault */
	size_t n_dims;
	const uint64_t *shape;
	const char *fault; /* why there is nothing else, or NULL */
	struct ckpt_values values;
	/* Since the checkpoint before, if that has the tensor too, in the same shape and in a dtype that
	 * can be compared: */
	bool compared;
	bool other_shape; /* not compared because the one before has another shape or kind of dtype */
	uint64_t changed; /* elements whose bytes differ; between two dtypes, whose values do */
	/* The L2 norm of the difference, divided by that of the tensor before, over elements that are
	 * finite in both: 0 where they are equal, infinite where only the divisor is 0. NaN where the
	 * bytes are no numbers by themselves. */
	double relative;
};
struct ckpt_series {
	const char *const *globs; /* NULL-terminated; NULL or none: all tensors */
	bool model;
	unsigned jobs; /* as in struct ckpt_values_scan */
	/* Opens a checkpoint of the run, which is then closed by ckpt_close; NULL: without options. */
	int (*open)(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e);
	int (*each)(void *arg, const struct ckpt_series_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes, about; may be NULL */
	void *arg;
	/* Filled in: */
	uint64_t checkpoints, incomplete; /* incomplete: were left out */
	uint64_t tensors, failed;	  /* failed: rows of what is there but cannot be read */
};
#define CKPT_SERIES_MAX_ROWS (1 << 20)
/* E2BIG: more rows than that. Of a checkpoint: -EINVAL. */
CKPT_API int ckpt_series_sized(struct ckpt *run, struct ckpt_series *s, size_t size,
			       struct ckpt_err *e);
static inline int ckpt_series(struct ckpt *run, struct ckpt_series *s, struct ckpt_err *e)
{
	return ckpt_series_sized(run, s, sizeof(*s), e);
}

/*
 * Is every value fit to go on with? What is not is a fault:
 *
 *	rule "nan", "inf"   a tensor has such elements
 *	     "zero"         all elements are 0
 *	     "constant"     all elements are equal, and not 0
 *	     "max_abs"      a finite element is larger than that
 *	     "unreadable"   the tensor cannot be read
 *
 * Biases, norms and counters often are constant. "zero" and "constant" are therefore for tensors of
 * floating-point types that have at least two dimensions and more than one element. Complex elements
 * are not held against max_abs.
 */
struct ckpt_values_check {
	const char *const *globs; /* FQNs to look at, as in struct ckpt_values_scan */
	/* FQNs that a rule does not apply to, NULL-terminated; NULL: it applies to all. */
	const char *const *allow_nan, *const *allow_inf, *const *allow_zero, *const *allow_constant;
	double max_abs; /* 0: any */
	unsigned jobs;	/* as in struct ckpt_values_scan */
	void (*fault)(void *arg, const struct ckpt_fault *f);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Filled in: */
	uint64_t faults, tensors, bytes;
};
/* 0 also when there are faults. Of a run: -EISDIR. */
CKPT_API int ckpt_values_check_sized(struct ckpt *c, struct ckpt_values_check *k, size_t size,
				     struct ckpt_err *e);
static inline int ckpt_values_check(struct ckpt *c, struct ckpt_values_check *k, struct ckpt_err *e)
{
	return ckpt_values_check_sized(c, k, sizeof(*k), e);
}

/*
 * Elements of tensor i of the tree, or of the model, as text. Only what is shown is read.
 *
 *	CKPT_TEXT_NUMPY  as NumPy prints an array with its default options: of more than 1000 elements
 *	                 the first and last three along each dimension. bfloat16 and float8, which NumPy
 *	                 lacks, as float32.
 *	CKPT_TEXT_BITS   the same with elements in hexadecimal; for packed and quantised types, too
 *	CKPT_TEXT_JSON   nested lists of all elements; NaN and infinities are strings
 *
 * Dimensions k for which s->drop[k] is set, which have one element, are left out of the text's shape, as
 * an index does in NumPy. More than CKPT_TEXT_MAX elements to show are refused (E2BIG). *ret is the
 * caller's, free() it.
 */
enum ckpt_text_form { CKPT_TEXT_NUMPY, CKPT_TEXT_BITS, CKPT_TEXT_JSON };
#define CKPT_TEXT_MAX 1000000
struct ckpt_text {
	enum ckpt_text_form form;
	bool model;			     /* i is the number of a tensor of the model */
	const uint64_t *start, *stop, *step; /* as of struct ckpt_slice */
	const bool *drop;		     /* NULL: none */
};
CKPT_API int ckpt_text_sized(struct ckpt *c, uint64_t i, const struct ckpt_text *s, size_t size,
			     char **ret, size_t *ret_len, struct ckpt_err *e);
static inline int ckpt_text(struct ckpt *c, uint64_t i, const struct ckpt_text *s, char **ret,
			    size_t *ret_len, struct ckpt_err *e)
{
	return ckpt_text_sized(c, i, s, sizeof(*s), ret, ret_len, e);
}

CKPT_END

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_values - statistics of the values of a checkpoint's tensors, whatever its format and layout.
 *
 *	struct ckpt_values_scan s = { .each = show };
 *	if (ckpt_values_scan(c, &s, &e))
 *		errx(2, "%s", e.msg);
 *	if (s.total.nan) ...
 *
 * Tensors are read as they are shown: after casts, recipes and renaming. Worker threads stream them
 * in blocks of a few MiB; memory depends neither on the checkpoint's size nor on a tensor's. Counts
 * and extremes are exact. Sums are accumulated exactly and rounded at the end, so results depend
 * neither on the number of threads nor on how the checkpoint is split.
 *
 * Threads: call it from any thread; callbacks run on the calling thread.
 */
#ifndef CKPTFS_CKPT_VALUES_H
#define CKPTFS_CKPT_VALUES_H

#include "ckpt.h"
#include "ckpt_numbers.h"

CKPT_BEGIN

/*
 * A histogram: bin i counts the elements from edges[i], inclusive, to edges[i + 1], exclusive.
 * Counts are exact and do not depend on the number of threads. NaN, infinities and magnitudes of
 * 2^128 and more are in no bin.
 *
 *	linear       bins whose width is a power of two and whose edges are multiples of it: the
 *	             smallest width with which at most `bins` bins hold all elements, but at least
 *	             2^-7 of the power of two below the largest magnitude
 *	logarithmic  a bin for each power of two, of either sign, from the largest down, and one in
 *	             the middle, from -2^k to 2^k, for zero and all smaller magnitudes
 */
struct ckpt_hist {
	size_t n;	     /* number of bins; 0: nothing was counted */
	const double *edges; /* n + 1 numbers */
	const uint64_t *counts;
};
#define CKPT_HIST_MIN 3
#define CKPT_HIST_MAX 256

struct ckpt_values_item {
	const char *fqn; /* fqn_len bytes, NUL-terminated; for a group, its name; borrowed */
	size_t fqn_len;
	const char *dtype; /* for a group: NULL, and no shape */
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes, tensors; /* tensors: 1, or the number in the group */
	const char *fault;	 /* why the tensor could not be read, or NULL; values are 0 then */
	struct ckpt_values values;
	/* NULL if none were requested, and for elements that are not real numbers. */
	const struct ckpt_hist *linear, *logarithmic;
};

enum ckpt_values_by {
	CKPT_VALUES_TENSOR, /* an item for each tensor */
	CKPT_VALUES_LAYER,  /* for each prefix of FQNs up to their first number: "model.layers.3" */
	/* for each FQN with numbers replaced by '*': "model.layers.*.mlp.up_proj.weight" */
	CKPT_VALUES_ROLE,
	/*
	 * for each rank that wrote data files, according to their names: "rank 3"; .tensors counts
	 * chunks
	 */
	CKPT_VALUES_RANK,
};

struct ckpt_values_scan {
	const char *const *globs; /* which FQNs to read, NULL-terminated; NULL or empty: all */
	bool model; /* read the model's tensors, under the names of hf/, instead of all tensors */
	enum ckpt_values_by by; /* items of groups are reported after all tensors have been read */
	unsigned jobs; /* worker threads, at most CKPT_VALUES_MAX_JOBS; 0: one per CPU, at most 4 */
	/* Called in natural order of the FQNs; a non-zero return stops and is returned. */
	int (*each)(void *arg, const struct ckpt_values_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Results: */
	uint64_t tensors, failed; /* failed: tensors that could not be read */
	uint64_t bytes;
	/* over all tensors that were read; its first_* members are meaningless */
	struct ckpt_values total;

	/*
	 * A file that records the results tensor by tensor, so that the same call, in another
	 * process, continues after an interruption; `each` is called for all items again. NULL:
	 * none. The file is removed when all tensors have been read. EEXIST: the file is something
	 * else, or belongs to another scan. resume_key, or NULL, is whatever else the values depend
	 * on besides the checkpoint: options.
	 */
	const char *resume, *resume_key;

	unsigned bins; /* bins of a histogram, CKPT_HIST_MIN to CKPT_HIST_MAX; 0: no histograms */
};
#define CKPT_VALUES_MAX_JOBS 64

/*
 * Returns 0 also if tensors could not be read. For a run: -EISDIR. ENOTSUP: by rank, but the file
 * names do not identify ranks.
 */
CKPT_API int ckpt_values_scan_sized(struct ckpt *c, struct ckpt_values_scan *s, size_t size,
				    struct ckpt_err *e);
static inline int ckpt_values_scan(struct ckpt *c, struct ckpt_values_scan *s, struct ckpt_err *e)
{
	return ckpt_values_scan_sized(c, s, sizeof(*s), e);
}

/*
 * How tensors change from one checkpoint of a run to the next. There is a row for each matching
 * tensor and complete checkpoint, in natural order of the tensors' names and, within a tensor, of
 * the checkpoints. All rows are reported at the end.
 *
 * Up to 16 checkpoints are open at a time; for each tensor, a block is read from each of them.
 * Every checkpoint is read once, except that every 15th is read again as the predecessor of the
 * next 15.
 */
struct ckpt_series_item {
	const char *fqn; /* fqn_len bytes, NUL-terminated; borrowed, like all pointers here */
	size_t fqn_len;
	const char *checkpoint;
	const char *dtype; /* NULL if the checkpoint has no such tensor; fault is set then */
	size_t n_dims;
	const uint64_t *shape;
	const char *fault; /* why all other members are empty, or NULL */
	struct ckpt_values values;
	/*
	 * Relative to the previous checkpoint, if that has the tensor too, with the same shape and
	 * a dtype that can be compared:
	 */
	bool compared;
	/* not compared, because the previous one has a different shape or kind of dtype */
	bool other_shape;
	uint64_t changed; /* elements whose bytes differ; between two dtypes: whose values differ */
	/*
	 * The L2 norm of the difference, divided by that of the previous tensor, over elements that
	 * are finite in both: 0 if they are equal, infinite if only the divisor is 0. NaN if the
	 * bytes are not numbers by themselves.
	 */
	double relative;
};
struct ckpt_series {
	const char *const *globs; /* NULL-terminated; NULL or none: all tensors */
	bool model;
	unsigned jobs; /* as in struct ckpt_values_scan */
	/*
	 * Opens a checkpoint of the run; the callee closes it with ckpt_close. NULL: open without
	 * options.
	 */
	int (*open)(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e);
	int (*each)(void *arg, const struct ckpt_series_item *item);
	/* bytes, approximately; may be NULL */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	/* Results: */
	uint64_t checkpoints, incomplete; /* incomplete: checkpoints that were skipped */
	uint64_t tensors, failed; /* failed: rows of tensors that exist but cannot be read */
};
#define CKPT_SERIES_MAX_ROWS (1 << 20)
/* E2BIG: more than CKPT_SERIES_MAX_ROWS rows, or more than 256 MiB of names and shapes. For a
 * checkpoint: -EINVAL. */
CKPT_API int ckpt_series_sized(struct ckpt *run, struct ckpt_series *s, size_t size,
			       struct ckpt_err *e);
static inline int ckpt_series(struct ckpt *run, struct ckpt_series *s, struct ckpt_err *e)
{
	return ckpt_series_sized(run, s, sizeof(*s), e);
}

/*
 * Are all values fit for further use? Each violation of a rule is a fault:
 *
 *	rule "nan", "inf"   a tensor has such elements
 *	     "zero"         all elements are 0
 *	     "constant"     all elements are equal, and not 0
 *	     "max_abs"      the magnitude of a finite element exceeds max_abs
 *	     "unreadable"   the tensor cannot be read
 *
 * Biases, norms and counters are often constant, so "zero" and "constant" apply only to tensors of
 * floating-point types that have at least two dimensions and more than one element. Complex
 * elements are not compared with max_abs.
 */
struct ckpt_values_check {
	const char *const *globs; /* which FQNs to check, as in struct ckpt_values_scan */
	/* FQNs exempt from a rule, NULL-terminated; NULL: the rule applies to all. */
	const char *const *allow_nan, *const *allow_inf, *const *allow_zero, *const *allow_constant;
	double max_abs; /* 0: no limit; EINVAL if it is below 0 or NaN */
	unsigned jobs;	/* as in struct ckpt_values_scan */
	void (*fault)(void *arg, const struct ckpt_fault *f);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Results; tensors and bytes do not include what is unreadable. */
	uint64_t faults, tensors, bytes;
};
/* Returns 0 also if there are faults. For a run: -EISDIR. */
CKPT_API int ckpt_values_check_sized(struct ckpt *c, struct ckpt_values_check *k, size_t size,
				     struct ckpt_err *e);
static inline int ckpt_values_check(struct ckpt *c, struct ckpt_values_check *k, struct ckpt_err *e)
{
	return ckpt_values_check_sized(c, k, sizeof(*k), e);
}

/*
 * Elements of tensor i of the tree, or of the model, as text. Only the elements shown are read.
 *
 *	CKPT_TEXT_NUMPY  as NumPy prints an array with its default options: if there are more than
 *	                 1000 elements, only the first and last three along each dimension. bfloat16
 *	                 and float8, which NumPy lacks, are printed as float32.
 *	CKPT_TEXT_BITS   the same with elements in hexadecimal; also for packed and quantised types
 *	CKPT_TEXT_JSON   nested lists of all elements; NaN and infinities are strings
 *
 * Dimensions k for which s->drop[k] is set must have one element; they are left out of the text's
 * shape, as an integer index does in NumPy. Showing more than CKPT_TEXT_MAX elements fails (E2BIG).
 * The caller frees *ret with free().
 */
enum ckpt_text_form { CKPT_TEXT_NUMPY, CKPT_TEXT_BITS, CKPT_TEXT_JSON };
#define CKPT_TEXT_MAX 1000000
struct ckpt_text {
	enum ckpt_text_form form;
	bool model;			     /* i is the number of a model tensor */
	const uint64_t *start, *stop, *step; /* as in struct ckpt_slice */
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

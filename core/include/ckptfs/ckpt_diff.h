/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_diff - two checkpoints compared name by name, whatever their formats and layouts.
 *
 *	struct ckpt_diff d = { .values = true, .each = show };
 *	if (ckpt_diff(a, b, &d, &e))
 *		errx(2, "%s", e.msg);
 *	if (d.counts[CKPT_DIFF_EQUAL] < d.names) ...
 *
 * Tensors are compared as they are read: whole, in C order, little-endian. Objects are compared by
 * their stored bytes after undoing transforms and, if these differ, by the values they encode,
 * because pickles of different protocols, inside a torch.save archive or not, may hold equal
 * values. No pickle is executed; sets, tensors inside objects, and objects larger than 16 MiB are
 * not compared by value. Worker threads stream both sides in blocks of a few MiB, so memory does
 * not grow with the checkpoints. The result does not depend on the number of threads.
 *
 * Threads: call it from any thread; callbacks run on the calling thread.
 */
#ifndef CKPTFS_CKPT_DIFF_H
#define CKPTFS_CKPT_DIFF_H

#include "ckpt.h"

CKPT_BEGIN

enum ckpt_diff_result {
	CKPT_DIFF_EQUAL,
	CKPT_DIFF_ONLY_A,
	CKPT_DIFF_ONLY_B,
	CKPT_DIFF_KIND,	  /* a tensor in one, an object in the other */
	CKPT_DIFF_SHAPE,  /* the shapes differ, and perhaps the dtypes */
	CKPT_DIFF_DTYPE,  /* only the dtypes differ */
	CKPT_DIFF_BYTES,  /* the bytes; for objects, the values too, or they cannot be compared by
                            value */
	CKPT_DIFF_FAILED, /* not compared: one of them cannot be read */
	CKPT_DIFF_RESULTS
};

struct ckpt_diff_side {
	const char *dtype; /* NULL for an object, and where the name does not exist */
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes; /* of the tensor, or of the object as stored */
};

/*
 * Where a tensor changed, and in which direction. It is seen as a matrix whose columns are its last
 * dimension; rows and columns are cut into parts whose lengths differ by at most one, the longer
 * ones first.
 */
struct ckpt_diff_heat {
	size_t rows, columns;
	/*
	 * In row-major order, for each cell: the difference B - A with the largest magnitude among
	 * its elements; NaN if one of them changed and is not finite in A or in B.
	 */
	const float *cells;
};

struct ckpt_diff_values {
	uint64_t elements;
	/* Elements whose bytes differ. If the dtypes differ: elements whose values differ; any NaN
	 * then equals any NaN, and 0 equals -0. */
	uint64_t changed;
	bool numeric; /* the members below are known: not for packed, quantised and bits types, nor
                         for a real and a complex tensor */
	uint64_t nan_a, nan_b; /* elements that are NaN */
	uint64_t infinite;     /* changed elements that are infinite on one side or both, not NaN */
	uint64_t finite;       /* elements finite on both sides, over which max_abs, mean_abs and l2
                                  are computed; these are 0 if there are none */
	double max_abs, mean_abs; /* absolute difference; infinite if too large for a double */
	double l2;		  /* the L2 norm of the difference */
	double norm_a;		  /* if requested: the L2 norm of A, over its finite elements */
	/* NULL: not requested, no change, no elements, or not real numbers */
	const struct ckpt_diff_heat *heat;
};

/* Pointers are borrowed and valid during the call. */
struct ckpt_diff_item {
	const char *fqn;
	size_t fqn_len;
	enum ckpt_diff_result result;
	struct ckpt_diff_side a, b;
	uint64_t first; /* BYTES: the first element that differs; for objects: the first byte */
	const struct ckpt_diff_values *values; /* if they were compared, else NULL */
	/* FAILED: a sentence. BYTES: why two objects could not be compared by value, or NULL. */
	const char *fault;
	bool fault_in_b;
};

struct ckpt_diff {
	const char *const *globs; /* which FQNs to compare, NULL-terminated; NULL or empty: all */
	/* Compare only the models' tensors, under the names they have there: for example the model
	 * in a training checkpoint with the same model on its own. */
	bool model;
	/* Compare all elements, also of tensors whose dtypes differ. Otherwise a tensor is read up
	 * to its first difference. */
	bool values;
	unsigned jobs; /* worker threads, at most CKPT_DIFF_MAX_JOBS; 0: one per CPU, at most 4 */
	/* Called for every name, in natural order, equal ones included. A non-zero return stops and
	 * is returned. */
	int (*each)(void *arg, const struct ckpt_diff_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes of both; may be NULL */
	void *arg;
	uint64_t names, counts[CKPT_DIFF_RESULTS]; /* filled in */
	bool norms; /* with `values`: also compute norm_a; reads nothing more */
	/* With `values`: heat of at most this many rows and columns; 0: none. */
	unsigned heat;
};
#define CKPT_DIFF_MAX_JOBS 64
#define CKPT_DIFF_MAX_HEAT 64

/* Returns 0 also if they differ or some could not be compared. Open both with allow_missing.
 * ENOENT: `model` is set and one of them has no model. EINVAL: `heat` is too large. */
CKPT_API int ckpt_diff_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_diff(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, struct ckpt_err *e)
{
	return ckpt_diff_sized(a, b, d, sizeof(*d), e);
}

CKPT_END

#endif

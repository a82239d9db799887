/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_diff - two checkpoints compared name by name, whatever their formats and layouts.
 *
 *	struct ckpt_diff d = { .values = true, .each = show };
 *	if (ckpt_diff(a, b, &d, &e))
 *		errx(2, "%s", e.msg);
 *	if (d.counts[CKPT_DIFF_EQUAL] < d.names) ...
 *
 * Tensors are compared as they are read: whole, in C order, little-endian; objects by their stored
 * bytes after undoing transforms, and where these differ, by the values that are in them: a pickle
 * of another protocol, in an archive of torch.save or not, may have the same. Nothing is executed
 * for that; sets, tensors in objects, and what is larger than 16 MiB are not compared so. Both sides
 * are streamed by worker threads in blocks of some MiB; memory depends on neither checkpoint's size.
 * What is reported does not depend on the threads.
 *
 * Threads: one call from any; the callbacks come from the caller's own.
 */
#ifndef CKPTFS_CKPT_DIFF_H
#define CKPTFS_CKPT_DIFF_H

#include "ckpt.h"

CKPT_BEGIN

enum ckpt_diff_result {
	CKPT_DIFF_EQUAL,
	CKPT_DIFF_ONLY_A,
	CKPT_DIFF_ONLY_B,
	CKPT_DIFF_KIND,	 /* a tensor in one, an object in the other */
	CKPT_DIFF_SHAPE, /* the shapes differ, the dtypes perhaps too */
	CKPT_DIFF_DTYPE, /* the dtypes alone */
	CKPT_DIFF_BYTES, /* the bytes; of two objects, the values too, or they cannot be compared */
	CKPT_DIFF_FAILED, /* not compared: one of them cannot be read */
	CKPT_DIFF_RESULTS
};

struct ckpt_diff_side {
	const char *dtype; /* NULL of an object, and where there is none of that name */
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes; /* of the tensor, or of the object as stored */
};

struct ckpt_diff_values {
	uint64_t elements;
	/* Elements whose bytes differ. Of tensors of two dtypes: whose values do, where a NaN equals
	 * every NaN and 0 equals -0. */
	uint64_t changed;
	bool numeric; /* what follows is known: not of packed, quantised and bits types, nor of a
	                 real and a complex tensor */
	uint64_t nan_a, nan_b; /* elements that are NaN */
	uint64_t infinite;     /* changed elements that are infinite on one side or both, not NaN */
	uint64_t finite;       /* elements that are finite on both sides; the next two are over them
	                          and 0 when there are none */
	double max_abs, mean_abs; /* absolute difference; infinite where it is beyond double */
};

/* Borrowed; valid during the call. */
struct ckpt_diff_item {
	const char *fqn;
	size_t fqn_len;
	enum ckpt_diff_result result;
	struct ckpt_diff_side a, b;
	uint64_t first; /* of BYTES: the first element that differs; of objects: the first byte */
	const struct ckpt_diff_values *values; /* where they were compared, else NULL */
	/* Of FAILED: a sentence. Of BYTES: why two objects could not be compared by value, or NULL. */
	const char *fault;
	bool fault_in_b;
};

struct ckpt_diff {
	const char *const *globs; /* of FQNs to compare, NULL-terminated; NULL or empty: all */
	/* The tensors of the models under the names they have there, and nothing else: a model in a
	 * training checkpoint and the same one on its own. */
	bool model;
	/* Compare all elements, also of tensors that have only the shape in common. Otherwise a
	 * tensor is read up to its first difference. */
	bool values;
	unsigned jobs; /* worker threads, at most CKPT_DIFF_MAX_JOBS; 0: one per CPU, at most 4 */
	/* Every name in natural order, equal ones too. A non-zero return stops and is returned. */
	int (*each)(void *arg, const struct ckpt_diff_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes of both; may be NULL */
	void *arg;
	uint64_t names, counts[CKPT_DIFF_RESULTS]; /* filled in */
};
#define CKPT_DIFF_MAX_JOBS 64

/* 0 also when they differ, and when some could not be compared. Open both with allow_missing.
 * ENOENT: model, and one of them has none. */
CKPT_API int ckpt_diff_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, size_t size,
			     struct ckpt_err *e);
static inline int ckpt_diff(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, struct ckpt_err *e)
{
	return ckpt_diff_sized(a, b, d, sizeof(*d), e);
}

CKPT_END

#endif

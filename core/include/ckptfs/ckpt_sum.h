/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_sum - hashes of tensors that depend neither on a checkpoint's format nor on how it is split.
 *
 *	struct ckpt_sum s = { .each = show };
 *	if (ckpt_sum(c, &s, &e))
 *		errx(2, "%s", e.msg);
 *
 * The hash covers a tensor's bytes as a reader gets them: all elements in C order, little-endian,
 * after casts, recipes and renaming. It equals hashlib.sha256(t.numpy().tobytes()) in Python. It
 * does not cover the dtype and the shape, so compare those as well.
 *
 * Each tensor is hashed by one thread; several tensors are hashed at a time.
 *
 * Threads: call it from any thread; callbacks run on the calling thread.
 */
#ifndef CKPTFS_CKPT_SUM_H
#define CKPTFS_CKPT_SUM_H

#include "ckpt.h"

CKPT_BEGIN

enum ckpt_sum_kind {
	CKPT_SUM_SHA256,
	CKPT_SUM_XXH, /* XXH3, 128 bits: faster, but no protection against forgery */
};
#define CKPT_SUM_HEX 65 /* the digits of the longest hash, and a NUL */

struct ckpt_sum_item {
	const char *fqn; /* fqn_len bytes, NUL-terminated; borrowed */
	size_t fqn_len;
	const char *dtype;
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes;
	const char *fault; /* why the tensor could not be read, or NULL; hex is "" then */
	const char *hex;
};

struct ckpt_sum {
	enum ckpt_sum_kind kind;
	const char *const *globs; /* which FQNs to hash, NULL-terminated; NULL or empty: all */
	bool model; /* hash the model's tensors, under the names of hf/, instead of all tensors */
	unsigned jobs; /* worker threads, at most CKPT_SUM_MAX_JOBS; 0: one per CPU, at most 4 */
	/* Called in natural order of the FQNs; a non-zero return stops and is returned. */
	int (*each)(void *arg, const struct ckpt_sum_item *item);
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *arg;
	/* Results: */
	uint64_t tensors, failed, bytes; /* failed: tensors that could not be read */
};
#define CKPT_SUM_MAX_JOBS 64

/* Returns 0 also if tensors could not be read. For a run: -EISDIR. */
CKPT_API int ckpt_sum_sized(struct ckpt *c, struct ckpt_sum *s, size_t size, struct ckpt_err *e);
static inline int ckpt_sum(struct ckpt *c, struct ckpt_sum *s, struct ckpt_err *e)
{
	return ckpt_sum_sized(c, s, sizeof(*s), e);
}

CKPT_END

#endif

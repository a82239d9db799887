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

struct ckpt_values_item {
	const char *fqn; /* fqn_len bytes, followed by a NUL; of a group its name; borrowed */
	size_t fqn_len;
	const char *dtype; /* of a group NULL, and no shape */
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes, tensors; /* tensors: 1, or of a group how many */
	const char *fault;	 /* why it could not be read, or NULL; values are 0 then */
	struct ckpt_values values;
};

enum ckpt_values_by {
	CKPT_VALUES_TENSOR, /* an item for each tensor */
	CKPT_VALUES_LAYER, /* for each prefix of FQNs up to the first number in them: "model.layers.3" */
	CKPT_VALUES_ROLE, /* for each FQN with '*' for numbers: "model.layers.*.mlp.up_proj.weight" */
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
};
#define CKPT_VALUES_MAX_JOBS 64

/* 0 also when tensors could not be read. Of a run: -EISDIR. */
CKPT_API int ckpt_values_scan_sized(struct ckpt *c, struct ckpt_values_scan *s, size_t size,
				    struct ckpt_err *e);
static inline int ckpt_values_scan(struct ckpt *c, struct ckpt_values_scan *s, struct ckpt_err *e)
{
	return ckpt_values_scan_sized(c, s, sizeof(*s), e);
}

CKPT_END

#endif

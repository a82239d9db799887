/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlay_sparse - elements of an overlay that take the place of single ones, as trainers publish
 * what a step has changed: for a tensor, indices into its elements in row-major order, which
 * ascend, and as many values.
 *
 *	NAME.idx, NAME.val	  TRL's: int32, or uint16 or uint32 distances (its encodings raw and
 *				  gap_delta)
 *	NAME.indices, NAME.values int32 or int64
 *	sparse_update_manifest.json  of prime-rl, which says what the tensors beside it are for
 *
 * Sources: huggingface/trl, trl/experimental/async_grpo/delta_codec.py and delta_engine.py;
 * PrimeIntellect-ai/prime-rl, src/prime_rl/utils/sparse_update.py, version 1.
 *
 * Private to core/ckpt/computed.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_OVERLAY_SPARSE_H
#define CKPT_OVERLAY_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct computed_new;
struct digest;
struct engine;

struct overlay_sparse {
	uint32_t to;		  /* catalog number of the tensor that is changed */
	uint32_t indices, values; /* numbers in the other checkpoint */
	bool gaps;		  /* indices may be distances */
	uint64_t step;		  /* as in struct patch */
};

/* Finds them; the caller frees *ret. part: one for each tensor of the other checkpoint, set for
 * those that are indices or values. Adds a manifest to *d. */
int overlay_sparse_find(const struct engine *eng, const struct engine *other,
			struct overlay_sparse **ret, size_t *ret_n, bool *part, struct digest *d,
			struct ckpt_err *e);
/* Leaves *ret as it is if there are no pairs. */
int overlay_sparse_describe(struct engine *eng, const struct engine *other,
			    const struct overlay_sparse *s, struct computed_new *ret,
			    struct ckpt_err *e);

#endif

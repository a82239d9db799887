/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata - comparing, copying and measuring the plain values of ckpt_plan.h.
 *
 * Threads: pure.
 */
#ifndef SAVE_METADATA_H
#define SAVE_METADATA_H

#include <ckptfs/ckpt_plan.h>

#include <stdbool.h>
#include <stdint.h>

struct arena;

/* Over name and offset, without the hint. */
bool meta_index_equal(const struct ckpt_meta_index *a, const struct ckpt_meta_index *b);
uint64_t meta_index_hash(const struct ckpt_meta_index *x);
bool tensor_props_equal(const struct ckpt_tensor_props *a, const struct ckpt_tensor_props *b);

/* Same items, hints included, and same paths, each in the same order? */
bool save_plan_equal(const struct ckpt_save_plan *a, const struct ckpt_save_plan *b);
/* A copy that borrows nothing: names, numbers and paths are in the arena. */
int save_plan_copy(const struct ckpt_save_plan *p, struct arena *a, struct ckpt_save_plan *ret,
		   struct ckpt_err *e);

/*
 * Bytes that a tensor takes: the whole tensor of a write item (the weight that torch and Megatron
 * balance with), or its chunk. Fails where that is beyond 63 bits.
 */
int write_item_tensor_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);
int write_item_chunk_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);

#endif

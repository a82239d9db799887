/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata - compares, copies and measures the plain values of ckpt_plan.h.
 *
 * Threads: pure.
 */
#ifndef SAVE_METADATA_H
#define SAVE_METADATA_H

#include <ckptfs/ckpt_plan.h>

#include <stdbool.h>
#include <stdint.h>

struct arena;

/* By name and offset, ignoring the hint. */
bool meta_index_equal(const struct ckpt_meta_index *a, const struct ckpt_meta_index *b);
uint64_t meta_index_hash(const struct ckpt_meta_index *x);
bool tensor_props_equal(const struct ckpt_tensor_props *a, const struct ckpt_tensor_props *b);

/* Same items, including hints, and same paths, each in the same order? */
bool save_plan_equal(const struct ckpt_save_plan *a, const struct ckpt_save_plan *b);
/* A copy that borrows nothing: names, numbers and paths are in the arena. */
int save_plan_copy(const struct ckpt_save_plan *p, struct arena *a, struct ckpt_save_plan *ret,
		   struct ckpt_err *e);

/*
 * Size in bytes of a write item: of the whole tensor (the weight by which torch and Megatron
 * balance), or of its chunk. Fails if it does not fit 63 bits.
 */
int write_item_tensor_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);
int write_item_chunk_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);

#endif

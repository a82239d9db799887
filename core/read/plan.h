/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - from a byte range of a virtual tensor to strided copies out of items. Pure.
 *
 * The bytes of an element are the innermost dimension, so ranges that begin or end inside an
 * element need no special case: the range becomes boxes (box_of_range), each box is intersected
 * with the pieces, and the part that a piece takes from its source with the source's chunks
 * (chunkmap_find); each intersection is one strided move. A range of whole elements gives runs of
 * whole elements.
 *
 * Threads: pure; a struct plan belongs to one thread and is reused from call to call.
 */
#ifndef READ_PLAN_H
#define READ_PLAN_H

#include "format/item.h"
#include "model/chunkmap.h"
#include "tensor/vtensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strides in bytes; in the destination they may be negative, modulo 2^64, like dst. */
struct copy_dim {
	uint64_t count, src_stride, dst_stride;
};

/*
 * For every index of the dimensions (outermost first): `run` bytes from src in the chunk's decoded
 * item to dst in the destination. The runs of all copies cover the range, each byte once, unless
 * chunks overlap; then the later copy wins.
 */
struct copy {
	uint64_t src, dst;
	uint32_t piece, chunk;
	uint32_t dim, n_dims; /* dims[dim .. dim+n_dims) of the plan */
	uint64_t run;
};

struct plan {
	struct copy *copies;
	struct copy_dim *dims;
	size_t n, cap, n_dims, cap_dims;
	size_t max; /* copies, 0: any number; then plan_read gives up */
};

static inline uint8_t *copy_to(uint8_t *to, uint64_t dst)
{
	return to + (int64_t)dst;
}

/* The stored tensor behind a piece; payloads[i] and locs[i] belong to chunk i, and all are filled
 * in.
 */
struct plan_source {
	const struct chunkmap *map;
	const struct payload *payloads;
	const struct chunk_loc *locs;
};

/*
 * Plans bytes [off, off+len) of v before any cast, which must be inside it; sources[i] is the
 * source of piece i. If strides is NULL the destination is a reply of len bytes; otherwise element
 * x goes to sum(x[d] * strides[d]) bytes, over the dimensions of v->shape, and elements must not
 * overlap. 0, -ENOMEM, or 1: there are more copies than the plan may have.
 */
int plan_read(const struct vtensor *v, const struct plan_source *sources, uint64_t off,
	      uint64_t len, const int64_t *strides, struct plan *ret);
void plan_release(struct plan *p);

/*
 * Is byte i of the reply at *ret_off + i of file *ret_file, for all i? Items that need decoding
 * have no such position and must not occur here.
 */
bool plan_in_place(const struct plan *p, const struct plan_source *sources, uint32_t *ret_file,
		   uint64_t *ret_off);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - from a byte range of a tensor to strided copies out of its items. Pure.
 *
 * The bytes of an element are the innermost dimension, so ranges that begin or end inside an
 * element need no special case: the range becomes boxes (box_of_range), each box is intersected
 * with the chunks (chunkmap_find), each intersection is one strided move. A range of whole
 * elements gives runs of whole elements.
 *
 * Threads: pure; a struct plan belongs to one thread and is reused from call to call.
 */
#ifndef READ_PLAN_H
#define READ_PLAN_H

#include "format/item.h"
#include "model/chunkmap.h"

#include <stddef.h>
#include <stdint.h>

struct copy_dim {
	uint64_t count, src_stride, dst_stride; /* strides in bytes */
};

/*
 * For every index of the dimensions (outermost first): `run` bytes from src in the chunk's
 * decoded item to dst in the reply. The runs of all copies cover the range; each byte once,
 * unless chunks overlap, when the later copy is right.
 */
struct copy {
	uint64_t src, dst;
	uint32_t chunk;
	uint32_t dim, n_dims; /* dims[dim .. dim+n_dims) of the plan */
	uint64_t run;
};

struct plan {
	struct copy *copies;
	struct copy_dim *dims;
	size_t n, cap, n_dims, cap_dims;
};

/*
 * payloads[i] is chunk i's; all are filled in. The range lies inside the tensor. 0 or -ENOMEM.
 */
int plan_read(const struct chunkmap *m, uint32_t element_size, const struct payload *payloads,
	      uint64_t off, uint64_t len, struct plan *ret);
void plan_release(struct plan *p);

#endif

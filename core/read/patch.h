/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patch - a tensor some of whose elements are replaced by others: pairs of an index into the
 * elements in row-major order and a value. As a derived tensor.
 *
 * The indices ascend, so that a part of the tensor needs a part of the pairs: the first reader goes
 * through all of them once, checks that, and notes every PATCH_STEPth.
 *
 * Threads: see derived.h.
 */
#ifndef READ_PATCH_H
#define READ_PATCH_H

#include "read/derived.h"

#include <stdatomic.h>

enum { PATCH_STEP = 4096 };

/* What is found out by the first reader; zeroed before. */
struct patch_seen {
	atomic_int state;
	_Atomic uint64_t bad;	  /* number of the first index that does not ascend or is outside */
	_Atomic uint64_t least[]; /* of each PATCH_STEPth pair: what its index can be at least */
};

struct patch {
	enum ckpt_dtype dtype; /* of the result and of input 0; input 2 can be cast to it */
	uint8_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	uint64_t elements; /* of the tensor */
	uint64_t pairs;	   /* the length of inputs 1 and 2, which have one dimension; not 0 */
	/*
	 * Input 1 has indices if it is int32 or int64; if it is uint16 or uint32, the distance of each
	 * to the one before, less one, where -1 is before the first.
	 */
	struct patch_seen *seen;
	const char *name; /* of input 1, and where it is: for messages */
};

/* Its bytes. pairs: at most UINT64_MAX / 8 */
static inline uint64_t patch_seen_size(uint64_t pairs)
{
	return sizeof(struct patch_seen) + (pairs / PATCH_STEP + 1) * sizeof(uint64_t);
}

/* For derived.run; how is a struct patch. Inputs: the tensor, indices, values. */
derived_fn patch_run;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patch - a tensor some of whose elements are replaced by others: pairs of an index into the
 * elements in row-major order and a value. As a derived tensor.
 *
 * The indices ascend, so that a part of the tensor needs a part of the pairs: the first reader goes
 * through all of them, checks that, and notes a lower bound of every step-th. Others wait for it.
 *
 * Threads: see derived.h.
 */
#ifndef READ_PATCH_H
#define READ_PATCH_H

#include "read/derived.h"

#include <pthread.h>

enum { PATCH_TILE = 4096 }; /* pairs that are read at once */

/* What the first reader finds out. */
struct patch_seen {
	pthread_mutex_t lock; /* of what follows; `least` does not change once the state is known */
	pthread_cond_t known;
	int state;	  /* 0 at first */
	uint64_t bad;	  /* number of the first index that does not ascend or is outside */
	uint64_t least[]; /* of every step-th pair: a lower bound of its index */
};

struct patch {
	enum ckpt_dtype dtype; /* of the result and of input 0; input 2 can be cast to it */
	uint8_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	uint64_t elements; /* of the tensor */
	uint64_t pairs;	   /* the length of inputs 1 and 2, which have one dimension; not 0 */
	uint64_t step;	   /* a multiple of PATCH_TILE */
	/*
	 * If input 1 is int32 or int64, it has indices; if it is uint16 or uint32, the distance of
	 * each from the one before, less one; the first counts from -1.
	 */
	struct patch_seen *seen; /* PATCH_SEEN at first, and room for the numbers */
	const char *name;	 /* of input 1, and where it is: for messages */
};

#define PATCH_SEEN \
	(struct patch_seen) \
	{ \
		.lock = PTHREAD_MUTEX_INITIALIZER, .known = PTHREAD_COND_INITIALIZER \
	}

static inline uint64_t patch_seen_size(uint64_t pairs, uint64_t step)
{
	return sizeof(struct patch_seen) + (pairs / step + 1) * sizeof(uint64_t);
}

/* For derived.run; how is a struct patch. Inputs: the tensor, indices, values. */
derived_fn patch_run;

#endif

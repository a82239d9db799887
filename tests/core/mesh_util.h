/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_util - the local tensors of a mesh's ranks, in memory of an arena. */
#ifndef TESTS_MESH_UTIL_H
#define TESTS_MESH_UTIL_H

#include "base/arena.h"
#include <ckptfs/ckpt_state.h>

#include <stdbool.h>
#include <string.h>

/* False: ckpt_sharding_box refuses. */
static inline bool mesh_tensor(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims,
			       const uint64_t *shape, uint8_t dtype, void *data, struct arena *a,
			       struct ckpt_local_tensor *ret)
{
	uint64_t *dims = arena_array(a, 3 * n_dims, sizeof(*dims));
	struct ckpt_shard *shard = arena_array(a, 1, sizeof(*shard));
	struct ckpt_err e;

	if (!dims || !shard || ckpt_sharding_box(s, rank, n_dims, shape, dims, dims + n_dims, &e))
		return false;
	memcpy(dims + 2 * n_dims, shape, n_dims * sizeof(*dims));
	*shard = (struct ckpt_shard){ .off = dims, .len = dims + n_dims, .data = data };
	*ret = (struct ckpt_local_tensor){ .kind = CKPT_LOCAL_BOX,
					   .n_dims = (uint8_t)n_dims,
					   .props = { .dtype = dtype },
					   .shape = dims + 2 * n_dims,
					   .shards = shard,
					   .n_shards = 1 };
	return true;
}

#endif

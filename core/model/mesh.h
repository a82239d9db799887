/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh - how a tensor is spread over ranks.
 *
 * ckpt_tensor.h says what meshes and placements are.
 *
 * Threads: pure.
 */
#ifndef MODEL_MESH_H
#define MODEL_MESH_H

#include <ckptfs/ckpt_tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ranks of the mesh. False: no axis, one of length 0, more than either limit. */
bool mesh_size(size_t n_axes, const uint64_t *mesh, uint64_t *ret);
/* Where rank, which is below the mesh's size, lies: n_axes coordinates. */
void mesh_coords(size_t n_axes, const uint64_t *mesh, uint64_t rank, uint64_t *ret);

/*
 * Make [*off, *off + *len) its part number `part` of `parts`. An empty part begins where the range
 * ends. False, and nothing changed: CKPT_SPLIT_EVEN, and parts does not divide *len.
 */
bool split_part(enum ckpt_split how, uint64_t parts, uint64_t part, uint64_t *off, uint64_t *len);

/* Is the placement's dimension one of n_dims? Then its number, counted from the start, or n_dims.
 */
size_t placement_dim(const struct ckpt_placement *p, size_t n_dims);

/*
 * The box that a rank holds of a tensor; it may be empty in some dimensions. False: a placement's
 * dimension is none of the tensor's, or a CKPT_SPLIT_EVEN does not divide.
 */
bool shard_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims, const uint64_t *shape,
	       uint64_t *ret_off, uint64_t *ret_len);

/*
 * Of the ranks that hold copies of one box, is this the lowest? (It is at 0 on all axes that no
 * placement names.)
 */
bool shard_is_first(const struct ckpt_sharding *s, uint64_t rank);

/*
 * Who holds the box (off, len) of a tensor: call visit for every rank that shard_is_first and whose
 * box meets it. off and len are what both have, local_off is where that lies in the rank's own
 * tensor; the arrays are lent for the call. Ranks come in the order of the placements. Stops at a
 * non-zero return and returns it; -EINVAL when it comes to a box that shard_box refuses.
 */
typedef int shard_visit_fn(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
			   const uint64_t *local_off);
int shard_find(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
	       const uint64_t *off, const uint64_t *len, shard_visit_fn *visit, void *arg);

#endif

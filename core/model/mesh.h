/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh - how a tensor is spread over ranks.
 *
 * ckpt_tensor.h explains meshes and placements.
 *
 * Threads: pure.
 */
#ifndef MODEL_MESH_H
#define MODEL_MESH_H

#include <ckptfs/ckpt_tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of ranks of the mesh. False: no axis, an axis of length 0, or beyond either limit. */
bool mesh_size(size_t n_axes, const uint64_t *mesh, uint64_t *ret);
/* The coordinates (n_axes numbers) of a rank that is below the mesh's size. */
void mesh_coords(size_t n_axes, const uint64_t *mesh, uint64_t rank, uint64_t *ret);

/*
 * Replaces [*off, *off + *len) by its part number `part` of `parts`. An empty part begins at the
 * end of the range. False, and nothing changed: CKPT_SPLIT_EVEN, and parts does not divide *len.
 */
bool split_part(enum ckpt_split how, uint64_t parts, uint64_t part, uint64_t *off, uint64_t *len);

/* The placement's dimension, counted from the start; n_dims if it is not one of n_dims. */
size_t placement_dim(const struct ckpt_placement *p, size_t n_dims);

/*
 * The box of a tensor that a rank holds; it may be empty in some dimensions. False: a placement's
 * dimension does not exist, or a CKPT_SPLIT_EVEN does not divide.
 */
bool shard_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims, const uint64_t *shape,
	       uint64_t *ret_off, uint64_t *ret_len);

/*
 * Finds the holders of the box (off, len) of a tensor: calls visit for every rank whose box
 * intersects it; of the ranks that hold copies of one box, only for the lowest, whose coordinate is
 * 0 on every axis that no placement names. off and len are the intersection, local_off its position
 * in the rank's own tensor; the arrays are valid during the call. Ranks come in the order of the
 * placements. Stops at a non-zero return and returns it; -EINVAL at a box that shard_box refuses.
 */
typedef int shard_visit_fn(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
			   const uint64_t *local_off);
int shard_find(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
	       const uint64_t *off, const uint64_t *len, shard_visit_fn *visit, void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh - how a tensor is spread over ranks.
 *
 * A mesh is an array of ranks in row-major order: in a mesh of 2 x 4, rank 6 is at (1, 2). A rank
 * is a position in the mesh here; files that number their ranks differently (rank_list) translate
 * before and after.
 *
 * A sharding says which mesh axes split which dimensions of a tensor. The placements are applied
 * one after another, each to what the one before left of its dimension; axes that no placement
 * names hold copies. DTensor's [Shard(0), Replicate(), Shard(1)] on a mesh of three axes is
 *
 *	{ .axis = 0, .dim = 0, .how = SPLIT_CEIL }, { .axis = 2, .dim = 1, .how = SPLIT_CEIL }
 *
 * and HyperParallel's tensor_map entry (1, 0) of dimension d on a mesh of two axes, numbered from
 * the right, is { .axis = 0, .dim = d }, { .axis = 1, .dim = d }.
 *
 * Threads: pure.
 */
#ifndef MODEL_MESH_H
#define MODEL_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MESH_MAX_RANKS 1000000u
#define MESH_MAX_AXES  64

/* Ranks of the mesh. False: no axis, one of length 0, more than either limit. */
bool mesh_size(size_t n_axes, const uint64_t *mesh, uint64_t *ret);
/* Where rank, which is below the mesh's size, lies: n_axes coordinates. */
void mesh_coords(size_t n_axes, const uint64_t *mesh, uint64_t rank, uint64_t *ret);

enum split {
	SPLIT_CEIL, /* ceil(len / parts) each, the last ones short or empty: torch.chunk, DTensor */
	SPLIT_BALANCED, /* floor(len / parts) each, the first len % parts ones one longer */
	SPLIT_EVEN,	/* parts must divide len */
};

/*
 * Make [*off, *off + *len) its part number `part` of `parts`. An empty part begins where the range
 * ends. False, and nothing changed: SPLIT_EVEN, and parts does not divide *len.
 */
bool split_part(enum split how, uint64_t parts, uint64_t part, uint64_t *off, uint64_t *len);

struct placement {
	uint8_t axis; /* of the mesh, from the left */
	int8_t dim;   /* of the tensor; from the end where negative, as in torch */
	uint8_t how;  /* enum split */
};

/* No axis may be named twice, so n <= n_axes <= MESH_MAX_AXES. */
struct sharding {
	const uint64_t *mesh;
	const struct placement *placements;
	uint8_t n_axes, n;
};

/* Is the placement's dimension one of n_dims? Then its number, counted from the start, or n_dims. */
size_t placement_dim(const struct placement *p, size_t n_dims);

/*
 * The box that a rank holds of a tensor; it may be empty in some dimensions. False: a placement's
 * dimension is none of the tensor's, or a SPLIT_EVEN does not divide.
 */
bool shard_box(const struct sharding *s, uint64_t rank, size_t n_dims, const uint64_t *shape,
	       uint64_t *ret_off, uint64_t *ret_len);

/*
 * Of the ranks that hold copies of one box, is this the lowest? (It is at 0 on all axes that no
 * placement names.)
 */
bool shard_is_first(const struct sharding *s, uint64_t rank);

/*
 * Who holds the box (off, len) of a tensor: call visit for every rank that shard_is_first and whose
 * box meets it. off and len are what both have, local_off is where that lies in the rank's own
 * tensor; the arrays are lent for the call. Ranks come in the order of the placements. Stops at a
 * non-zero return and returns it; -EINVAL when it comes to a box that shard_box refuses.
 */
typedef int shard_visit_fn(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
			   const uint64_t *local_off);
int shard_find(const struct sharding *s, size_t n_dims, const uint64_t *shape, const uint64_t *off,
	       const uint64_t *len, shard_visit_fn *visit, void *arg);

#endif

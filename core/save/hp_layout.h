/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hp_layout - HyperParallel's layouts: a mesh, what of a tensor each of its axes cuts, and which
 * ranks are where. Mesh axes are counted from the right there; mesh.h counts positions instead of
 * ranks, and these functions translate.
 *
 * Threads: pure.
 */
#ifndef SAVE_HP_LAYOUT_H
#define SAVE_HP_LAYOUT_H

#include "model/mesh.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct hp_layout {
	const uint64_t *mesh; /* mesh_shape */
	uint8_t n_axes, n_dims;
	/* tensor_map: for each of n_dims dimensions the mesh axes, counted from the right, that cut
	 * it, the coarsest first; none for a replicated one (-1 in files). */
	const struct hp_map {
		const uint8_t *axes;
		uint8_t n;
	} * map;
	const uint64_t *ranks; /* rank_list: who is at each position of the mesh */
	size_t n_ranks;
};

/*
 * The same as a sharding with even splits; placements are written to room[CKPT_MESH_MAX_AXES], the
 * mesh is borrowed. `name` is what messages call the layout ("to_layout"). EINVAL with
 * HyperParallel's text where the rank list does not fit the mesh.
 */
int hp_layout_sharding(const struct hp_layout *l, const char *name,
		       struct ckpt_placement room[static CKPT_MESH_MAX_AXES],
		       struct ckpt_sharding *ret, struct ckpt_err *e);

/* The rank's position in the mesh; false: it is none of the layout's. */
bool hp_layout_position(const struct hp_layout *l, uint64_t rank, uint64_t *ret);

/*
 * Which parts of which ranks' tensors make up rank to_rank's tensor in another layout. visit gets
 * source ranks, each box's elements once: in the whole tensor (off, len), and where they begin in
 * the source's own. Either layout may be NULL, not both: rank 0 has the tensor alone. A non-zero
 * return of visit stops and is returned; else errors are EINVAL with HyperParallel's texts.
 */
int hp_reshard(const struct hp_layout *from, const struct hp_layout *to, size_t n_dims,
	       const uint64_t *shape, uint64_t to_rank, shard_visit_fn *visit, void *arg,
	       struct ckpt_err *e);

#endif

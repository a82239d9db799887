/* SPDX-License-Identifier: Apache-2.0 */
/* HyperParallel's layouts; described in ckpt_state.h. */

#include "base/err.h"
#include "base/text.h"
#include "model/mesh.h"
#include "save/checkpointable.h"

#include <inttypes.h>

int ckpt_hp_layout_sharding(const struct ckpt_hp_layout *l, const char *name,
			    struct ckpt_placement *room, struct ckpt_sharding *ret,
			    struct ckpt_err *e)
{
	uint64_t devices, used = 0;
	uint8_t n = 0;

	if (!mesh_size(l->n_axes, l->mesh, &devices))
		return err_set(e, EINVAL, "Layout %s: %s is not a mesh", name,
			       TUPLE_TEXT(l->mesh, l->n_axes));
	if (l->n_ranks != devices)
		return err_set(e, EINVAL,
			       "Layout %s rank_list size (%zu) must match device count (%" PRIu64
			       ")",
			       name, l->n_ranks, devices);
	if (l->n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL,
			       "Layout %s: tensor_map of %u dimensions, the maximum is %d", name,
			       l->n_dims, CKPT_MAX_DIMS);
	for (size_t d = 0; d < l->n_dims; d++)
		for (size_t i = 0; i < l->map[d].n; i++) {
			uint8_t axis = l->map[d].axes[i];

			if (axis >= l->n_axes || used >> axis & 1)
				return err_set(
					e, EINVAL,
					"Layout %s: tensor_map names axis %u of a mesh of %u%s",
					name, axis, l->n_axes, axis < l->n_axes ? " twice" : "");
			used |= 1ull << axis;
			room[n++] = (struct ckpt_placement){ (uint8_t)(l->n_axes - 1 - axis),
							     (int8_t)d, CKPT_SPLIT_EVEN };
		}
	*ret = (struct ckpt_sharding){ l->mesh, room, l->n_axes, n };
	return 0;
}

bool ckpt_hp_layout_position(const struct ckpt_hp_layout *l, uint64_t rank, uint64_t *ret)
{
	for (size_t i = 0; i < l->n_ranks; i++)
		if (l->ranks[i] == rank) {
			*ret = i;
			return true;
		}
	return false;
}

struct translate {
	const uint64_t *ranks;
	ckpt_hp_visit_fn *visit;
	void *arg;
};

static int visit_rank(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		      const uint64_t *local_off)
{
	const struct translate *t = arg;

	return t->visit(t->arg, t->ranks[rank], off, len, local_off);
}

static int check_dims(const struct ckpt_hp_layout *l, const char *name, size_t n_dims,
		      struct ckpt_err *e)
{
	if (l->n_dims == n_dims)
		return 0;
	return err_set(e, EINVAL, "Layout %s: tensor_map of %u dimensions for a tensor of %zu",
		       name, l->n_dims, n_dims);
}

int ckpt_hp_layout_box(const struct ckpt_hp_layout *l, uint64_t rank, const uint64_t *shape,
		       uint64_t *ret_off, uint64_t *ret_len, struct ckpt_err *e)
{
	struct ckpt_placement room[CKPT_MESH_MAX_AXES];
	struct ckpt_sharding s;
	uint64_t at;
	int rc = ckpt_hp_layout_sharding(l, "layout", room, &s, e);

	if (rc)
		return rc;
	if (!ckpt_hp_layout_position(l, rank, &at))
		return 1;
	return ckpt_sharding_box(&s, at, l->n_dims, shape, ret_off, ret_len, e);
}

int ckpt_hp_reshard(const struct ckpt_hp_layout *from, const struct ckpt_hp_layout *to,
		    size_t n_dims, const uint64_t *shape, uint64_t to_rank, ckpt_hp_visit_fn *visit,
		    void *arg, struct ckpt_err *e)
{
	static const uint64_t one[] = { 1 }, rank_zero[] = { 0 };
	static const struct ckpt_hp_map whole[CKPT_MAX_DIMS];
	const struct ckpt_hp_layout alone = { one, 1, (uint8_t)n_dims, whole, rank_zero, 1 };
	struct ckpt_placement from_room[CKPT_MESH_MAX_AXES], to_room[CKPT_MESH_MAX_AXES];
	struct ckpt_sharding source, target;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], at;
	struct translate t = { from ? from->ranks : rank_zero, visit, arg };
	int rc;

	if (!from && !to)
		return err_set(e, EINVAL, "`from_layout` and `to_layout` cannot both be None.");
	if (n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL, "%zu dimensions, the maximum is %d", n_dims,
			       CKPT_MAX_DIMS);
	from = from ? from : &alone;
	to = to ? to : &alone;
	rc = ckpt_hp_layout_sharding(from, "from_layout", from_room, &source, e);
	if (!rc)
		rc = ckpt_hp_layout_sharding(to, "to_layout", to_room, &target, e);
	if (!rc)
		rc = check_dims(from, "from_layout", n_dims, e);
	if (!rc)
		rc = check_dims(to, "to_layout", n_dims, e);
	if (rc)
		return rc;
	if (!ckpt_hp_layout_position(to, to_rank, &at))
		return err_set(e, EINVAL, "Input to_rank_id is not in to_rank_list.");
	/* Splits are even: if one rank can have its part, all ranks can. */
	if (!shard_box(&source, 0, n_dims, shape, off, len))
		return sharding_refused(&source, n_dims, shape, e);
	if (!shard_box(&target, at, n_dims, shape, off, len))
		return sharding_refused(&target, n_dims, shape, e);
	return shard_find(&source, n_dims, shape, off, len, visit_rank, &t);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "model/mesh.h"

#include "base/checked.h"
#include "model/box.h"

#include <errno.h>

bool mesh_size(size_t n_axes, const uint64_t *mesh, uint64_t *ret)
{
	uint64_t size = 1;

	if (!n_axes || n_axes > CKPT_MESH_MAX_AXES)
		return false;
	for (size_t i = 0; i < n_axes; i++)
		if (!mesh[i] || mesh[i] > CKPT_MESH_MAX_RANKS ||
		    (size *= mesh[i]) > CKPT_MESH_MAX_RANKS)
			return false;
	*ret = size;
	return true;
}

void mesh_coords(size_t n_axes, const uint64_t *mesh, uint64_t rank, uint64_t *ret)
{
	for (size_t i = n_axes; i-- > 0; rank /= mesh[i])
		ret[i] = rank % mesh[i];
}

bool split_part(enum ckpt_split how, uint64_t parts, uint64_t part, uint64_t *off, uint64_t *len)
{
	uint64_t each = *len / parts, more = *len % parts, start, end;

	if (how == CKPT_SPLIT_EVEN && more)
		return false;
	if (how == CKPT_SPLIT_BALANCED) {
		start = part * each + min_u64(part, more);
		end = start + each + (part < more);
	} else {
		each += more > 0;
		/* Wraps only if the part begins after the end. */
		if (ckd_mul(&start, part, each) || start > *len)
			start = *len;
		end = start + min_u64(each, *len - start);
	}
	*off += start;
	*len = end - start;
	return true;
}

size_t placement_dim(const struct ckpt_placement *p, size_t n_dims)
{
	size_t back = (size_t) - (int)p->dim;

	if (p->dim >= 0)
		return (size_t)p->dim < n_dims ? (size_t)p->dim : n_dims;
	return back <= n_dims ? n_dims - back : n_dims;
}

bool shard_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims, const uint64_t *shape,
	       uint64_t *ret_off, uint64_t *ret_len)
{
	uint64_t at[CKPT_MESH_MAX_AXES];

	mesh_coords(s->n_axes, s->mesh, rank, at);
	for (size_t d = 0; d < n_dims; d++) {
		ret_off[d] = 0;
		ret_len[d] = shape[d];
	}
	for (size_t i = 0; i < s->n; i++) {
		const struct ckpt_placement *p = &s->placements[i];
		size_t d = placement_dim(p, n_dims);

		if (d == n_dims || !split_part((enum ckpt_split)p->how, s->mesh[p->axis],
					       at[p->axis], &ret_off[d], &ret_len[d]))
			return false;
	}
	return true;
}

struct find {
	const struct ckpt_sharding *s;
	size_t n_dims;
	const uint64_t *want_off, *want_len;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS]; /* what the placements so far have left */
	uint64_t stride[CKPT_MESH_MAX_AXES];
	shard_visit_fn *visit;
	void *arg;
};

static int found(struct find *f, uint64_t rank)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], local[CKPT_MAX_DIMS];

	if (!box_intersect(f->n_dims, f->off, f->len, f->want_off, f->want_len, off, len))
		return 0;
	for (size_t d = 0; d < f->n_dims; d++)
		local[d] = off[d] - f->off[d];
	return f->visit(f->arg, rank, off, len, local);
}

/* Placement i and the following ones, skipping parts that the wanted box does not reach. */
static int find_from(struct find *f, size_t i, uint64_t rank)
{
	const struct ckpt_placement *p = &f->s->placements[i];
	size_t d = i < f->s->n ? placement_dim(p, f->n_dims) : 0;
	uint64_t off, len, hit_off, hit_len;
	int rc = 0;

	if (i == f->s->n)
		return found(f, rank);
	if (d == f->n_dims)
		return -EINVAL;
	off = f->off[d];
	len = f->len[d];
	for (uint64_t k = 0; k < f->s->mesh[p->axis] && !rc; k++) {
		f->off[d] = off;
		f->len[d] = len;
		if (!split_part((enum ckpt_split)p->how, f->s->mesh[p->axis], k, &f->off[d],
				&f->len[d]))
			rc = -EINVAL;
		else if (box_intersect(1, &f->off[d], &f->len[d], &f->want_off[d], &f->want_len[d],
				       &hit_off, &hit_len))
			rc = find_from(f, i + 1, rank + k * f->stride[p->axis]);
	}
	f->off[d] = off;
	f->len[d] = len;
	return rc;
}

int shard_find(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
	       const uint64_t *off, const uint64_t *len, shard_visit_fn *visit, void *arg)
{
	struct find f = { .s = s,
			  .n_dims = n_dims,
			  .want_off = off,
			  .want_len = len,
			  .visit = visit,
			  .arg = arg };
	uint64_t stride = 1;

	for (size_t d = 0; d < n_dims; d++)
		f.len[d] = shape[d];
	for (size_t i = s->n_axes; i-- > 0; stride *= s->mesh[i])
		f.stride[i] = stride;
	return find_from(&f, 0, 0);
}

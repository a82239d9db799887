/* SPDX-License-Identifier: Apache-2.0 */
#include "save/checkpointable.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/mesh.h"

#include <inttypes.h>
#include <string.h>

static bool same_dims(const uint64_t *a, const uint64_t *b, size_t n)
{
	return !n || !memcmp(a, b, n * sizeof(*a));
}

static int check_count(const struct ckpt_local_tensor *t, const char *name, struct ckpt_err *e)
{
	static const char *const kinds[] = { "a whole tensor", "a box", "shards" };

	if (t->kind > CKPT_LOCAL_SHARDS)
		return err_set(e, EINVAL, "'%s': kind %u is not a kind of local tensor", name,
			       t->kind);
	if (t->kind == CKPT_LOCAL_WHOLE ? t->n_shards != 1
					: t->kind == CKPT_LOCAL_BOX && t->n_shards > 1)
		return err_set(e, EINVAL, "'%s': %s has %zu shards", name, kinds[t->kind],
			       t->n_shards);
	return 0;
}

int local_tensor_check(const struct ckpt_local_tensor *t, const char *fqn, size_t fqn_len,
		       struct ckpt_err *e)
{
	const char *name = FQN_TEXT(fqn, fqn_len);
	int rc = check_count(t, name, e);
	uint64_t volume;

	if (rc)
		return rc;
	if (t->n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL, "'%s': %u dimensions, the maximum is %d", name, t->n_dims,
			       CKPT_MAX_DIMS);
	if (t->props.dtype == CKPT_DTYPE_NONE || t->props.dtype >= CKPT_DTYPE_COUNT)
		return err_set(e, EINVAL, "'%s': unknown dtype %u", name, t->props.dtype);
	if (!box_volume(t->n_dims, t->shape, &volume))
		return err_set(e, EINVAL, "'%s': shape %s has more than 2^63 - 1 elements", name,
			       TUPLE_TEXT(t->shape, t->n_dims));
	for (size_t i = 0; i < t->n_shards; i++) {
		const struct ckpt_shard *s = &t->shards[i];

		if (!box_inside(t->n_dims, s->off, s->len, t->shape) ||
		    (t->kind == CKPT_LOCAL_WHOLE && !same_dims(s->len, t->shape, t->n_dims)))
			return err_set(e, EINVAL, "'%s': shard at %s of %s in a tensor of %s", name,
				       TUPLE_TEXT(s->off, t->n_dims), TUPLE_TEXT(s->len, t->n_dims),
				       TUPLE_TEXT(t->shape, t->n_dims));
	}
	return 0;
}

void local_tensor_write_items(const struct ckpt_local_tensor *t, const char *fqn, uint32_t fqn_len,
			      struct ckpt_write_item *ret)
{
	for (size_t i = 0; i < t->n_shards; i++)
		ret[i] = (struct ckpt_write_item){
			.index = { .fqn = fqn,
				   .fqn_len = fqn_len,
				   .offset = t->shards[i].off,
				   .n_dims = t->n_dims,
				   .has_offset = true,
				   .hint = t->kind == CKPT_LOCAL_SHARDS ? (int32_t)i
									: CKPT_META_NO_HINT },
			.chunk = { .off = t->shards[i].off, .len = t->shards[i].len },
			.size = t->shape,
			.props = t->props,
			.type = t->kind == CKPT_LOCAL_WHOLE ? CKPT_WRITE_TENSOR : CKPT_WRITE_SHARD,
		};
}

static bool is_at(const struct ckpt_local_tensor *t, size_t i, const struct ckpt_meta_index *x)
{
	return x->n_dims == t->n_dims && same_dims(t->shards[i].off, x->offset, x->n_dims);
}

int local_tensor_shard(const struct ckpt_local_tensor *t, const struct ckpt_meta_index *x,
		       size_t *ret, struct ckpt_err *e)
{
	size_t i = t->kind == CKPT_LOCAL_BOX || x->hint < 0 ? 0 : (size_t)x->hint;

	if (!x->has_offset && t->kind == CKPT_LOCAL_SHARDS)
		return err_set(e, ENOENT,
			       "Cannot lookup %s for a LocalShardsContainer without an offset",
			       FQN_TEXT(x->fqn, x->fqn_len));
	if (t->n_shards &&
	    (t->kind == CKPT_LOCAL_BOX || (t->kind == CKPT_LOCAL_WHOLE && !x->has_offset)))
		i = 0;
	else if (i >= t->n_shards || !is_at(t, i, x))
		for (i = 0; i < t->n_shards && !is_at(t, i, x);)
			i++;
	if (i < t->n_shards) {
		*ret = i;
		return 0;
	}
	if (t->kind == CKPT_LOCAL_WHOLE)
		return err_set(e, ENOENT,
			       "FQN: '%s' is not a ShardedTensor, can't find by offset: '%s'",
			       FQN_TEXT(x->fqn, x->fqn_len), SIZE_TEXT(x->offset, x->n_dims));
	return err_set(e, ENOENT, "Could not find shard at '%s' for FQN: '%s'",
		       SIZE_TEXT(x->offset, x->n_dims), FQN_TEXT(x->fqn, x->fqn_len));
}

/* ---- meshes ---- */

/* HyperParallel multiplies all mesh axes of a dimension, and the product must divide the
 * dimension. */
int sharding_refused(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
		     struct ckpt_err *e)
{
	for (size_t d = 0; d < n_dims; d++) {
		uint64_t parts = 1;

		for (size_t i = 0; i < s->n; i++)
			if (s->placements[i].how == CKPT_SPLIT_EVEN &&
			    placement_dim(&s->placements[i], n_dims) == d)
				parts *= s->mesh[s->placements[i].axis];
		if (shape[d] % parts)
			return err_set(e, EINVAL,
				       "Shape can not divided along dimension %zu by %" PRIu64
				       " dev.",
				       d, parts);
	}
	return err_set(e, EINVAL, "a placement names a dimension that a tensor of %s lacks",
		       TUPLE_TEXT(shape, n_dims));
}

/* Placements may come from a faulty program, or from a newer one. */
static int check_placements(const struct ckpt_sharding *s, struct ckpt_err *e)
{
	uint64_t seen = 0; /* a bit for each axis; mesh_size accepts no more than 64 */

	if (s->n > s->n_axes)
		return err_set(e, EINVAL, "%u placements are too many for a mesh of %s", s->n,
			       TUPLE_TEXT(s->mesh, s->n_axes));
	for (size_t i = 0; i < s->n; i++) {
		const struct ckpt_placement *p = &s->placements[i];

		if (p->axis >= s->n_axes)
			return err_set(e, EINVAL,
				       "a placement names an axis that a mesh of %s lacks",
				       TUPLE_TEXT(s->mesh, s->n_axes));
		if (seen >> p->axis & 1)
			return err_set(e, EINVAL, "two placements name axis %u", p->axis);
		if (p->how > CKPT_SPLIT_EVEN)
			return err_set(e, EINVAL, "a placement has the unknown split %u", p->how);
		seen |= UINT64_C(1) << p->axis;
	}
	return 0;
}

int ckpt_sharding_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims,
		      const uint64_t *shape, uint64_t *ret_off, uint64_t *ret_len,
		      struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], ranks;
	int rc;

	if (n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL, "%zu dimensions, the maximum is %d", n_dims,
			       CKPT_MAX_DIMS);
	if (!mesh_size(s->n_axes, s->mesh, &ranks) || rank >= ranks)
		return err_set(e, EINVAL, "rank %" PRIu64 " is not in a mesh of %s", rank,
			       TUPLE_TEXT(s->mesh, s->n_axes));
	rc = check_placements(s, e);
	if (rc)
		return rc;
	if (!shard_box(s, rank, n_dims, shape, off, len))
		return sharding_refused(s, n_dims, shape, e);
	/* An empty box is after the last element, as in torch: if it began between others, its
	 * offset, which identifies a chunk, would equal that of a non-empty one. */
	for (size_t d = 0; d < n_dims; d++) {
		ret_off[d] = len[d] ? off[d] : shape[d];
		ret_len[d] = len[d];
	}
	return 0;
}

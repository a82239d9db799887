/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron's ShardedTensor and ShardedObject; texts and order of checks follow its mapping.py. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save/checkpointable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool ckpt_replica_is_main(const struct ckpt_replica_id *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->ids[i])
			return false;
	return true;
}

/* ---- Python's repr ---- */

enum { REPR_MAX = 1024 }; /* more than fits a message */

static void add_tuple(struct buf *b, const uint64_t *v, size_t n)
{
	buf_str(b, "(");
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%s%" PRIu64, i ? ", " : "", v[i]);
	buf_str(b, n == 1 ? ",)" : ")");
}

static void add_replica(struct buf *b, const struct ckpt_replica_id *r)
{
	if (!r->is_tuple) {
		buf_printf(b, "%" PRId64, r->n ? r->ids[0] : 0);
		return;
	}
	buf_str(b, "(");
	for (size_t i = 0; i < r->n; i++)
		buf_printf(b, "%s%" PRId64, i ? ", " : "", r->ids[i]);
	buf_str(b, r->n == 1 ? ",)" : ")");
}

static void add_tensor(struct buf *b, const struct ckpt_sharded_tensor *s)
{
	const char *dtype = s->dtype < CKPT_DTYPE_COUNT ? dtype_info(s->dtype)->name : NULL;

	buf_printf(b, "ShardedTensor(key='%s', dtype=torch.%s, local_shape=",
		   FQN_TEXT(s->key, s->key_len), dtype ? dtype : "unknown");
	add_tuple(b, s->local_shape, s->n_local);
	buf_str(b, ", global_shape=");
	add_tuple(b, s->global_shape, s->n_global);
	buf_str(b, ", global_offset=");
	add_tuple(b, s->global_offset, s->n_offset);
	buf_str(b, ", axis_fragmentations=");
	if (s->axis_fragmentations)
		add_tuple(b, s->axis_fragmentations, s->n_global);
	else
		buf_str(b, "None");
	buf_str(b, ", replica_id=");
	add_replica(b, &s->replica);
	buf_printf(b,
		   ", prepend_axis_num=%u, allow_shape_mismatch=%s, flattened_range=", s->n_prepend,
		   s->allow_shape_mismatch ? "True" : "False");
	if (s->flattened_range)
		buf_printf(b, "slice(%" PRIu64 ", %" PRIu64 ", None))", s->flattened_range[0],
			   s->flattened_range[1]);
	else
		buf_str(b, "None)");
}

/* "WHAT for ShardedTensor(...)END" */
static int refuse(struct ckpt_err *e, const struct ckpt_sharded_tensor *s, const char *what,
		  const char *end)
{
	struct buf b = BUF_INIT(REPR_MAX);

	add_tensor(&b, s);
	(void)err_set(e, EINVAL, "%s for %s%s", what, b.data ? b.data : "ShardedTensor", end);
	buf_release(&b);
	return -EINVAL;
}

/* ---- ShardedTensor ---- */

static int check_grid(const struct ckpt_sharded_tensor *s, struct ckpt_err *e)
{
	char what[96];

	for (size_t i = 0; s->axis_fragmentations && i < s->n_local; i++) {
		uint64_t off = s->global_offset[s->n_prepend + i], len = s->local_shape[i];

		if (!len || off % len == 0)
			continue;
		(void)snprintf(what, sizeof(what),
			       "Global offset (%" PRIu64
			       ") must be divisible by local shape (%" PRIu64 ")",
			       off, len);
		return refuse(e, s, what, ".");
	}
	return 0;
}

int ckpt_sharded_tensor_check(const struct ckpt_sharded_tensor *s, struct ckpt_err *e)
{
	const struct ckpt_array *d = s->data;
	int rc;

	if (d && d->dtype != s->dtype)
		return refuse(e, s, "Data dtype should match `dtype` attribute", "");
	if (d && !s->flattened_range &&
	    (d->n_dims != s->n_local || !dims_equal(d->n_dims, d->shape, s->local_shape)))
		return refuse(e, s, "Data shape should match `local_shape` attribute", "");
	if (s->n_global != s->n_offset)
		return refuse(e, s,
			      "Global offset dimensions should be equal to global shape dimensions",
			      "");
	if (s->n_local + s->n_prepend != s->n_global)
		return refuse(e, s,
			      "Local shape together with `prepend_axis_num` dimensions should be "
			      "equal to global shape dimensions",
			      "");
	rc = check_grid(s, e);
	if (rc)
		return rc;
	if (s->flattened_range)
		return err_set(e, EINVAL, "ShardedTensor.flattened_range is not supported.");
	return 0;
}

static int refuse_offsets(const struct ckpt_rank_offsets_args *args, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(REPR_MAX);

	buf_str(&b, "(");
	for (size_t i = 0; i < args->n_offsets; i++)
		buf_printf(&b, "%s(%" PRId64 ", %" PRId64 ", %" PRId64 ")", i ? ", " : "",
			   args->offsets[i].axis, args->offsets[i].rank, args->offsets[i].fragm);
	buf_str(&b, args->n_offsets == 1 ? ",)" : ")");
	(void)err_set(e, EINVAL, "Invalid rank offsets: %s for key %s.", b.data ? b.data : "",
		      FQN_TEXT(args->key, args->key_len));
	buf_release(&b);
	return -EINVAL;
}

/* dims: global shape, global offset, fragmentations, n numbers each. */
static int apply_offsets(const struct ckpt_rank_offsets_args *args, size_t n, uint64_t *dims,
			 struct ckpt_err *e)
{
	for (size_t i = 0; i < n; i++) {
		dims[i] = i < args->n_prepend ? 1 : args->data->shape[i - args->n_prepend];
		dims[n + i] = 0;
		dims[2 * n + i] = 1;
	}
	for (size_t i = 0; i < args->n_offsets; i++) {
		const struct ckpt_rank_offset *o = &args->offsets[i];
		size_t axis = (size_t)o->axis;
		uint64_t local;

		if (o->axis < 0 || o->rank < 0 || o->fragm < 1 || o->rank >= o->fragm)
			return refuse_offsets(args, e);
		if (axis >= n)
			return err_set(e, EINVAL, "axis %zu of %zu in rank offsets for key %s",
				       axis, n, FQN_TEXT(args->key, args->key_len));
		local = axis < args->n_prepend ? 1 : args->data->shape[axis - args->n_prepend];
		if (ckd_mul(&dims[axis], local, (uint64_t)o->fragm) || dims[axis] > INT64_MAX)
			return err_set(e, EINVAL,
				       "axis %zu for key %s is longer than 2^63 - 1 elements", axis,
				       FQN_TEXT(args->key, args->key_len));
		dims[n + axis] = (uint64_t)o->rank * local;
		dims[2 * n + axis] = (uint64_t)o->fragm;
	}
	return 0;
}

static int check_dims(const struct ckpt_rank_offsets_args *args, size_t n, struct ckpt_err *e)
{
	if (n <= CKPT_MAX_DIMS)
		return 0;
	return err_set(e, EINVAL, "%zu dimensions for key %s, the maximum is %d", n,
		       FQN_TEXT(args->key, args->key_len), CKPT_MAX_DIMS);
}

int ckpt_rank_offsets_box(const struct ckpt_rank_offsets *r, uint64_t *ret_shape, uint64_t *ret_off,
			  uint64_t *ret_len, struct ckpt_err *e)
{
	const struct ckpt_array local = { .n_dims = r->n_local, .shape = r->local_shape };
	const struct ckpt_rank_offsets_args args = { .key = r->fqn,
						     .key_len = r->fqn_len,
						     .data = &local,
						     .offsets = r->offsets,
						     .n_offsets = r->n_offsets,
						     .n_prepend = r->n_prepend };
	size_t n = (size_t)r->n_local + r->n_prepend;
	uint64_t dims[3 * CKPT_MAX_DIMS];
	int rc = check_dims(&args, n, e);

	if (!rc)
		rc = apply_offsets(&args, n, dims, e);
	for (size_t i = 0; !rc && i < n; i++) {
		ret_shape[i] = dims[i];
		ret_off[i] = dims[n + i];
		ret_len[i] = i < r->n_prepend ? 1 : r->local_shape[i - r->n_prepend];
	}
	return rc;
}

int ckpt_sharded_tensor_from_rank_offsets(const struct ckpt_rank_offsets_args *args, uint64_t *room,
					  struct ckpt_sharded_tensor *ret, struct ckpt_err *e)
{
	size_t n = (size_t)args->data->n_dims + args->n_prepend;
	struct ckpt_sharded_tensor s;
	int rc = check_dims(args, n, e);

	if (!rc)
		rc = apply_offsets(args, n, room, e);
	if (rc)
		return rc;
	s = (struct ckpt_sharded_tensor){
		.key = args->key,
		.key_len = args->key_len,
		.data = args->data,
		.dtype = args->data->dtype,
		.n_local = args->data->n_dims,
		.n_global = (uint8_t)n,
		.n_offset = (uint8_t)n,
		.n_prepend = args->n_prepend,
		.local_shape = args->data->shape,
		.global_shape = room,
		.global_offset = room + n,
		.axis_fragmentations = room + 2 * n,
		.replica = args->replica,
		.allow_shape_mismatch = args->allow_shape_mismatch,
	};
	rc = ckpt_sharded_tensor_check(&s, e);
	if (!rc)
		*ret = s;
	return rc;
}

int ckpt_sharded_tensor_cell(const struct ckpt_sharded_tensor *s, uint64_t *ret, struct ckpt_err *e)
{
	uint64_t cell[CKPT_MAX_DIMS];
	int rc = ckpt_sharded_tensor_check(s, e);

	if (rc)
		return rc;
	if (!s->axis_fragmentations)
		return refuse(e, s, "No regular grid", "");
	for (size_t i = 0; i < s->n_global; i++) {
		uint64_t len = i < s->n_prepend ? 1 : s->local_shape[i - s->n_prepend];

		if (!len)
			return refuse(e, s, "No cell of an empty axis", "");
		cell[i] = s->global_offset[i] / len;
	}
	if (s->n_global)
		memcpy(ret, cell, s->n_global * sizeof(*ret));
	return 0;
}

/* The box of one shard: prepended axes have length 1. */
static int shard_of(const struct ckpt_sharded_tensor *s, struct arena *a, struct ckpt_shard *ret,
		    struct ckpt_err *e)
{
	uint64_t *len;
	int rc = ckpt_sharded_tensor_check(s, e);

	if (rc)
		return rc;
	/* Megatron would make a chunk whose offset and sizes differ in length. */
	if (s->n_prepend && !s->axis_fragmentations)
		return refuse(e, s, "Prepended axes need a regular grid", "");
	len = arena_array(a, s->n_global, sizeof(*len));
	if (!len)
		return err_set(e, ENOMEM, "box of a sharded tensor: out of memory");
	for (size_t i = 0; i < s->n_global; i++)
		len[i] = i < s->n_prepend ? 1 : s->local_shape[i - s->n_prepend];
	*ret = (struct ckpt_shard){ .off = s->global_offset,
				    .len = len,
				    .data = s->data ? s->data->data : NULL };
	return 0;
}

static bool same_tensor(const struct ckpt_sharded_tensor *a, const struct ckpt_sharded_tensor *b)
{
	return a->dtype == b->dtype && a->n_global == b->n_global &&
	       dims_equal(a->n_global, a->global_shape, b->global_shape);
}

/* Counts the main replica of a shard in its cell of the grid, which the first shard determines. */
static int count_cell(const struct ckpt_sharded_tensor *first, const struct ckpt_sharded_tensor *s,
		      uint8_t *main_replicas, struct ckpt_err *e)
{
	uint64_t cell[CKPT_MAX_DIMS], at = 0;
	int rc;

	if (!ckpt_replica_is_main(&s->replica))
		return 0;
	rc = ckpt_sharded_tensor_cell(s, cell, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < s->n_global; i++) {
		if (cell[i] >= first->axis_fragmentations[i])
			return refuse(e, s, "Invalid access pattern", "");
		at = at * first->axis_fragmentations[i] + cell[i];
	}
	return main_replicas[at]++ ? refuse(e, s, "Invalid access pattern", "") : 0;
}

static int check_cells(const struct ckpt_sharded_tensor *shards, size_t n, struct ckpt_err *e)
{
	autofree uint8_t *main_replicas = NULL;
	uint64_t cells;

	/* With more cells than shards some cell has none. */
	if (!box_volume(shards->n_global, shards->axis_fragmentations, &cells) || cells > n)
		return refuse(e, shards, "Invalid access pattern", "");
	main_replicas = calloc(cells + 1, 1);
	if (!main_replicas)
		return err_set(e, ENOMEM, "grid of %" PRIu64 " cells: out of memory", cells);
	for (size_t i = 0; i < n; i++) {
		int rc = count_cell(shards, &shards[i], main_replicas, e);

		if (rc)
			return rc;
	}
	return memchr(main_replicas, 0, cells) ? refuse(e, shards, "Invalid access pattern", "")
					       : 0;
}

int ckpt_sharded_tensors_check(const struct ckpt_sharded_tensor *shards, size_t n,
			       struct ckpt_err *e)
{
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_sharded_tensor *s = &shards[i];
		int rc = ckpt_sharded_tensor_check(s, e);

		if (rc)
			return rc;
		if (!same_tensor(shards, s) ||
		    !s->axis_fragmentations != !shards->axis_fragmentations ||
		    (s->axis_fragmentations &&
		     (s->n_local != shards->n_local ||
		      !dims_equal(s->n_local, s->local_shape, shards->local_shape))))
			return refuse(e, s, "Shards of one tensor differ", "");
	}
	return n && shards->axis_fragmentations ? check_cells(shards, n, e) : 0;
}

int local_tensor_from_sharded(const struct ckpt_sharded_tensor *shards, size_t n, struct arena *a,
			      struct ckpt_local_tensor *ret, struct ckpt_err *e)
{
	struct ckpt_shard *out = arena_array(a, n, sizeof(*out));
	struct ckpt_local_tensor t;
	int rc;

	if (!out)
		return err_set(e, ENOMEM, "%zu shards: out of memory", n);
	if (!n)
		return err_set(e, EINVAL, "a container of shards must hold one at least");
	for (size_t i = 0; i < n; i++) {
		rc = shard_of(&shards[i], a, &out[i], e);
		if (rc)
			return rc;
		if (!same_tensor(&shards[0], &shards[i]))
			return refuse(e, &shards[i], "Shards of one tensor differ", "");
	}
	t = (struct ckpt_local_tensor){ .kind = n == 1 ? CKPT_LOCAL_BOX : CKPT_LOCAL_SHARDS,
					.n_dims = shards[0].n_global,
					.props = { .dtype = shards[0].dtype },
					.shape = shards[0].global_shape,
					.shards = out,
					.n_shards = n,
					.allow_shape_mismatch = shards[0].allow_shape_mismatch };
	rc = local_tensor_check(&t, shards[0].key, shards[0].key_len, e);
	if (!rc)
		*ret = t;
	return rc;
}

/* ---- ShardedObject ---- */

int sharded_object_name(const struct ckpt_sharded_object *o, struct buf *b, struct ckpt_err *e)
{
	if (o->n_offset != o->n_shape)
		return err_set(e, EINVAL,
			       "Global offset dimensions should be equal to global shape "
			       "dimensions for ShardedObject(key='%s')",
			       FQN_TEXT(o->key, o->key_len));
	buf_add(b, o->key, o->key_len);
	buf_str(b, "/shard_");
	for (size_t i = 0; i < o->n_offset; i++) {
		buf_str(b, i ? "." : "");
		buf_u64(b, o->offset[i]);
	}
	buf_str(b, "_");
	for (size_t i = 0; i < o->n_shape; i++) {
		buf_str(b, i ? "." : "");
		buf_u64(b, o->shape[i]);
	}
	return buf_check(b, e, "an object's name is too long");
}

static int by_offset(const void *ap, const void *bp)
{
	const struct ckpt_sharded_object *const *a = ap, *const *b = bp;

	return box_compare_off((*a)->n_offset, (*a)->offset, (*b)->offset);
}

int ckpt_sharded_objects_check(const struct ckpt_sharded_object *objects, size_t n,
			       struct ckpt_err *e)
{
	autofree const struct ckpt_sharded_object **list = calloc(n + 1, sizeof(*list));
	size_t count = 0;
	uint64_t want;

	if (!list)
		return err_set(e, ENOMEM, "%zu objects: out of memory", n);
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_sharded_object *o = &objects[i];

		if (o->n_offset != o->n_shape || o->n_shape != objects->n_shape ||
		    !dims_equal(o->n_shape, o->shape, objects->shape))
			return err_set(e, EINVAL, "ShardedObject(key='%s') is of several shapes",
				       FQN_TEXT(o->key, o->key_len));
		if (ckpt_replica_is_main(&o->replica))
			list[count++] = o;
	}
	qsort(list, count, sizeof(*list), by_offset);
	for (size_t i = 1; i < count; i++)
		if (!by_offset(&list[i - 1], &list[i]))
			return err_set(e, EINVAL, "Duplicate ShardedObject keys: ['%s' at %s]",
				       FQN_TEXT(list[i]->key, list[i]->key_len),
				       TUPLE_TEXT(list[i]->offset, list[i]->n_offset));
	if (!n)
		return 0;
	if (!box_volume(objects->n_shape, objects->shape, &want))
		want = INT64_MAX;
	if (want != count)
		return err_set(e, EINVAL,
			       "Invalid access pattern: %" PRId64 " ShardedObject are missing.",
			       (int64_t)(want - count));
	return 0;
}

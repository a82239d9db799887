/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process holds of a tensor, compared with what Megatron's own classes answered
 * (tests/data/megatron/planner_golden.json) and, for meshes, with a naive owner of elements.
 *
 * Some of the golden lists have no counterpart in C, where the compiler checks types and nobody can
 * compute with a local_tensor: err_not_checkpointable, err_from_sh_ten_type, err_op,
 * err_op_container. In Megatron, err_empty_container and err_shape_mismatch are assertions without
 * a text.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "golden_util.h"
#include "mesh_util.h"
#include "model/box.h"
#include "model/mesh.h"
#include "rng.h"
#include "save/checkpointable.h"
#include "suites.h"

#define GOLDEN "megatron/planner_golden.json"

static struct arena arena = ARENA_INIT(1 << 20);
#define ROOM arena_array(&arena, 3 * CKPT_MAX_DIMS, sizeof(uint64_t))

/* ---- ShardedTensor ---- */

START_TEST(rank_offsets_are_those_of_megatron)
{
	json_t *all = golden_load(GOLDEN), *row, *o;
	size_t i, k;

	json_array_foreach(json_object_get(all, "from_rank_offsets"), i, row)
	{
		uint64_t shape[8], cell[16];
		struct ckpt_rank_offset offsets[8];
		struct ckpt_array data = { .dtype = CKPT_DTYPE_F32, .shape = shape };
		struct ckpt_rank_offsets_args args = { .key = "k", .key_len = 1, .data = &data };
		struct ckpt_sharded_tensor s;
		struct ckpt_err e = { 0 };

		data.n_dims = (uint8_t)golden_numbers(json_object_get(row, "local_shape"), shape);
		args.n_prepend = (uint8_t)json_integer_value(json_object_get(row, "prepend"));
		args.offsets = offsets;
		json_array_foreach(json_object_get(row, "rank_offsets"), k, o)
		{
			uint64_t v[3];

			ck_assert_uint_eq(golden_numbers(o, v), 3);
			offsets[args.n_offsets++] =
				(struct ckpt_rank_offset){ (int64_t)v[0], (int64_t)v[1],
							   (int64_t)v[2] };
		}
		ck_assert_msg(!ckpt_sharded_tensor_from_rank_offsets(&args, ROOM, &s, &e), "%s",
			      e.msg);
		golden_check_numbers(json_object_get(row, "global_shape"), s.global_shape,
				     s.n_global);
		golden_check_numbers(json_object_get(row, "global_offset"), s.global_offset,
				     s.n_offset);
		golden_check_numbers(json_object_get(row, "axis_fragmentations"),
				     s.axis_fragmentations, s.n_global);
		ck_assert(!ckpt_sharded_tensor_cell(&s, cell, &e));
		golden_check_numbers(json_object_get(row, "chunk_offset"), cell, s.n_global);
	}
	ck_assert_uint_eq(i, 40);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

static const uint64_t two[] = { 2 }, three[] = { 3 }, ten[] = { 10 }, zero[] = { 0 }, one[] = { 1 },
		      five[] = { 5 }, two_two[] = { 2, 2 }, zero_zero[] = { 0, 0 },
		      one_one[] = { 1, 1 };
static const struct ckpt_array pair = { .dtype = CKPT_DTYPE_F32, .n_dims = 1, .shape = two };

/* A tensor with local shape (2); the rest is given. */
#define SHARDED(type, n, global, offset, fragm, ...) \
	{ \
		.key = "k", .key_len = 1, .data = &pair, .dtype = (type), .n_local = 1, \
		.n_global = (n), .n_offset = (n), .local_shape = two, .global_shape = (global), \
		.global_offset = (offset), .axis_fragmentations = (fragm), __VA_ARGS__ \
	}

static const struct {
	const char *name;
	struct ckpt_sharded_tensor s;
} broken[] = {
	{ "dtype", SHARDED(CKPT_DTYPE_F16, 1, two, zero, one) },
	{ "shape",
	  { .key = "k",
	    .key_len = 1,
	    .data = &pair,
	    .dtype = CKPT_DTYPE_F32,
	    .n_local = 1,
	    .n_global = 1,
	    .n_offset = 1,
	    .local_shape = three,
	    .global_shape = three,
	    .global_offset = zero,
	    .axis_fragmentations = one } },
	{ "ndim", SHARDED(CKPT_DTYPE_F32, 2, two_two, zero_zero, one_one) },
	{ "indivisible_regular", SHARDED(CKPT_DTYPE_F32, 1, ten, three, five) },
	{ "flattened", SHARDED(CKPT_DTYPE_F32, 1, two, zero, one, .flattened_range = zero_zero) },
};

START_LOOP_TEST(invariants_are_those_of_megatron, ARRAY_LEN(broken))
{
	json_t *all = golden_load(GOLDEN);
	const char *want = golden_text(json_object_get(all, "errors"), broken[_i].name);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sharded_tensor_check(&broken[_i].s, &e), -EINVAL);
	/* The golden texts were cut at 300 characters. */
	ck_assert_msg(strlen(want) == 300 ? !strncmp(e.msg, want, 300) : !strcmp(e.msg, want),
		      "%s\n%s", e.msg, want);
	json_decref(all);
}
END_TEST

START_TEST(offset_and_shape_of_other_lengths_are_refused)
{
	struct ckpt_sharded_tensor s = SHARDED(CKPT_DTYPE_F32, 1, two, zero_zero, one);
	struct ckpt_err e = { 0 };

	s.n_offset = 2;
	ck_assert_int_eq(ckpt_sharded_tensor_check(&s, &e), -EINVAL);
	ck_assert_ptr_eq(strstr(e.msg, "Global offset dimensions should be equal to global shape "
				       "dimensions for ShardedTensor(key='k', "),
			 e.msg);
}
END_TEST

START_TEST(irregular_shards_may_lie_anywhere)
{
	struct ckpt_sharded_tensor s = SHARDED(CKPT_DTYPE_F32, 1, ten, three, NULL);
	uint64_t cell = 7;
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_sharded_tensor_check(&s, &e)); /* errors.irregular_ok is null */
	ck_assert_int_eq(ckpt_sharded_tensor_cell(&s, &cell, &e), -EINVAL);
	ck_assert_uint_eq(cell, 7);
	ck_assert_str_eq(e.msg, "No regular grid for ShardedTensor(key='k', dtype=torch.float32, "
				"local_shape=(2,), global_shape=(10,), global_offset=(3,), "
				"axis_fragmentations=None, replica_id=0, prepend_axis_num=0, "
				"allow_shape_mismatch=False, flattened_range=None)");
}
END_TEST

START_TEST(tuples_of_replicas_are_shown_as_tuples)
{
	static const int64_t ids[] = { 0, -1 };
	struct ckpt_sharded_tensor s =
		SHARDED(CKPT_DTYPE_BF16, 1, two, zero, one, .replica = { ids, 2, true });
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sharded_tensor_check(&s, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "replica_id=(0, -1), "));
}
END_TEST

static const struct {
	struct ckpt_rank_offset o;
	const char *golden, *text;
} bad_offsets[] = {
	{ { -1, 0, 1 }, "bad_axis", NULL },
	{ { 0, 2, 2 }, "off_ge_fragm", NULL },
	{ { 0, -1, 2 }, NULL, "Invalid rank offsets: ((0, -1, 2),) for key k." },
	{ { 0, 0, 0 }, NULL, "Invalid rank offsets: ((0, 0, 0),) for key k." },
	{ { 1, 0, 1 }, NULL, "axis 1 of 1 in rank offsets for key k" },
	{ { 0, 0, INT64_MAX }, NULL, "axis 0 for key k is longer than 2^63 - 1 elements" },
};

START_LOOP_TEST(impossible_rank_offsets_are_refused, ARRAY_LEN(bad_offsets))
{
	json_t *all = golden_load(GOLDEN);
	struct ckpt_rank_offsets_args args = { .key = "k",
					       .key_len = 1,
					       .data = &pair,
					       .offsets = &bad_offsets[_i].o,
					       .n_offsets = 1 };
	struct ckpt_rank_offsets r = { .fqn = "k",
				       .fqn_len = 1,
				       .n_local = 1,
				       .local_shape = pair.shape,
				       .offsets = &bad_offsets[_i].o,
				       .n_offsets = 1 };
	struct ckpt_sharded_tensor s = { 0 };
	uint64_t shape = 42, off = 42, len = 42;
	struct ckpt_err e = { 0 };
	const char *want;

	ck_assert_int_eq(ckpt_sharded_tensor_from_rank_offsets(&args, ROOM, &s, &e), -EINVAL);
	want = bad_offsets[_i].golden
		       ? golden_text(json_object_get(all, "errors"), bad_offsets[_i].golden)
		       : bad_offsets[_i].text;
	ck_assert_str_eq(e.msg, want);
	e.msg[0] = 0;
	ck_assert_int_eq(ckpt_rank_offsets_box(&r, &shape, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, want);
	ck_assert(shape == 42 && off == 42 && len == 42);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

START_TEST(too_many_axes_are_refused)
{
	struct ckpt_rank_offsets_args args = {
		.key = "k", .key_len = 1, .data = &pair, .n_prepend = CKPT_MAX_DIMS
	};
	struct ckpt_rank_offsets r = { .fqn = "k", .fqn_len = 1, .n_prepend = CKPT_MAX_DIMS + 1 };
	struct ckpt_sharded_tensor s;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sharded_tensor_from_rank_offsets(&args, ROOM, &s, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "65 dimensions for key k, the maximum is 64");
	e.msg[0] = 0;
	ck_assert_int_eq(ckpt_rank_offsets_box(&r, NULL, NULL, NULL, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "65 dimensions for key k, the maximum is 64");
}
END_TEST

START_TEST(the_main_replica_is_the_one_of_zeros)
{
	json_t *all = golden_load(GOLDEN), *row;
	size_t i;

	json_array_foreach(json_object_get(all, "is_main_replica"), i, row)
	{
		const json_t *id = json_array_get(row, 0);
		int64_t ids[4] = { json_integer_value(id) };
		struct ckpt_replica_id r = { ids, 1, json_is_array(id) };

		if (r.is_tuple)
			r.n = golden_numbers(id, (uint64_t *)ids);
		ck_assert_int_eq(ckpt_replica_is_main(&r), json_is_true(json_array_get(row, 1)));
	}
	ck_assert_uint_eq(i, 5);
	ck_assert(ckpt_replica_is_main(&(struct ckpt_replica_id){ 0 }));
	json_decref(all);
}
END_TEST

/* A grid of 2 x 3 cells of (2, 2) and a copy of each cell: all are shards of one tensor. */
struct grid {
	struct ckpt_sharded_tensor s[12];
	struct ckpt_array data;
	uint64_t shape[2];
};

static void make_grid(struct grid *g)
{
	static const int64_t main_ids[] = { 0, 0 }, copy_ids[] = { 0, 1 };

	*g = (struct grid){ .shape = { 2, 2 } };
	g->data = (struct ckpt_array){ .dtype = CKPT_DTYPE_F32, .n_dims = 2, .shape = g->shape };
	for (int64_t i = 0; i < 12; i++) {
		const struct ckpt_rank_offset o[] = { { 0, i / 2 / 3, 2 }, { 1, i / 2 % 3, 3 } };
		struct ckpt_rank_offsets_args args = { .key = "k",
						       .key_len = 1,
						       .data = &g->data,
						       .offsets = o,
						       .n_offsets = 2,
						       .replica = { i % 2 ? copy_ids : main_ids, 2,
								    true } };
		struct ckpt_err e = { 0 };

		ck_assert(!ckpt_sharded_tensor_from_rank_offsets(&args, ROOM, &g->s[i], &e));
	}
}

static void check_grid(const struct ckpt_sharded_tensor *s, size_t n, const char *text)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sharded_tensors_check(s, n, &e), text ? -EINVAL : 0);
	ck_assert_msg(!text || !strncmp(e.msg, text, strlen(text)), "%s", e.msg);
}

START_TEST(every_cell_has_one_main_replica)
{
	static const char invalid[] = "Invalid access pattern for ShardedTensor(key='k', ";
	static const char differ[] = "Shards of one tensor differ for ShardedTensor(key='k', ";
	const uint64_t beyond[] = { 4, 0 };
	struct grid g;

	make_grid(&g);
	check_grid(g.s, 12, NULL);
	check_grid(g.s, 11, NULL); /* the last is a copy */
	check_grid(g.s, 10, invalid);
	check_grid(g.s, 5, invalid);
	check_grid(g.s, 0, NULL);
	g.s[7].replica = g.s[6].replica;
	check_grid(g.s, 12, invalid);
	make_grid(&g);
	g.s[4].global_offset = beyond;
	check_grid(g.s, 12, invalid);
	make_grid(&g);
	g.s[4].axis_fragmentations = NULL;
	check_grid(g.s, 12, differ);
	for (size_t i = 0; i < 12; i++) /* no grid: no cells to count */
		g.s[i].axis_fragmentations = NULL;
	check_grid(g.s, 3, NULL);
	g.s[2].dtype = CKPT_DTYPE_F16;
	g.s[2].data = NULL;
	check_grid(g.s, 3, differ);
	arena_release(&arena);
}
END_TEST

/* ---- what the planner asks ---- */

struct holding {
	float values[2][2];
	uint64_t offsets[2];
	struct ckpt_array data[2];
	struct ckpt_sharded_tensor s[2];
	struct ckpt_local_tensor t;
};

/* Holds n shards of two elements each, of a tensor of ten; the values are 1, 2, ... at the
 * offsets. */
static void hold(struct holding *h, size_t n, uint64_t first, uint64_t second, float value)
{
	struct ckpt_err e = { 0 };

	*h = (struct holding){ .offsets = { first, second } };
	for (size_t i = 0; i < n; i++) {
		h->values[i][0] = value + 2 * (float)i;
		h->values[i][1] = h->values[i][0] + 1;
		h->data[i] = pair;
		h->data[i].data = h->values[i];
		h->s[i] = (struct ckpt_sharded_tensor)SHARDED(CKPT_DTYPE_F32, 1, ten,
							      &h->offsets[i], NULL);
		h->s[i].data = &h->data[i];
	}
	ck_assert_msg(!local_tensor_from_sharded(h->s, n, &arena, &h->t, &e), "%s", e.msg);
}

static void check_items(const json_t *want, const struct ckpt_local_tensor *t)
{
	struct ckpt_write_item items[2];

	ck_assert_uint_eq(json_array_size(want), t->n_shards);
	local_tensor_write_items(t, "k", 1, items);
	for (size_t i = 0; i < t->n_shards; i++) {
		const json_t *w = json_array_get(want, i), *chunk = json_object_get(w, "chunk"),
			     *hint = json_object_get(w, "index");
		const struct ckpt_write_item *item = &items[i];

		ck_assert_str_eq(json_string_value(json_object_get(w, "fqn")), item->index.fqn);
		ck_assert_str_eq(json_string_value(json_object_get(w, "type")), "SHARD");
		ck_assert_int_eq(item->type, CKPT_WRITE_SHARD);
		ck_assert_int_eq(item->index.hint,
				 json_is_null(hint) ? CKPT_META_NO_HINT : json_integer_value(hint));
		ck_assert(item->index.has_offset);
		golden_check_numbers(json_object_get(w, "offset"), item->index.offset, 1);
		golden_check_numbers(json_array_get(chunk, 0), item->chunk.off, 1);
		golden_check_numbers(json_array_get(chunk, 1), item->chunk.len, 1);
		golden_check_numbers(json_object_get(w, "size"), item->size, 1);
	}
}

static void check_chunks(const json_t *want, const struct ckpt_local_tensor *t)
{
	ck_assert_uint_eq(json_array_size(want), t->n_shards);
	for (size_t i = 0; i < t->n_shards; i++) {
		golden_check_numbers(json_array_get(json_array_get(want, i), 0), t->shards[i].off,
				     1);
		golden_check_numbers(json_array_get(json_array_get(want, i), 1), t->shards[i].len,
				     1);
	}
}

static void check_found(const json_t *want, const struct ckpt_local_tensor *t, uint64_t offset,
			int32_t hint)
{
	struct ckpt_meta_index x = { "k", &offset, 1, hint, 1, true };
	struct ckpt_err e = { 0 };
	size_t at = 99;

	ck_assert_msg(!local_tensor_shard(t, &x, &at, &e), "%s", e.msg);
	for (size_t i = 0; i < 2; i++)
		ck_assert_double_eq(json_real_value(json_array_get(want, i)),
				    ((const float *)t->shards[at].data)[i]);
}

static void check_not_found(const char *want, const struct ckpt_local_tensor *t,
			    const struct ckpt_meta_index *x)
{
	struct ckpt_err e = { 0 };
	size_t at = 99;

	ck_assert_int_eq(local_tensor_shard(t, x, &at, &e), -ENOENT);
	ck_assert_str_eq(e.msg, want);
	ck_assert_uint_eq(at, 99);
}

START_TEST(one_shard_answers_as_megatron_does)
{
	json_t *all = golden_load(GOLDEN), *want = json_object_get(all, "checkpointable");
	struct holding h;

	hold(&h, 1, 3, 0, 3);
	ck_assert_int_eq(h.t.kind, CKPT_LOCAL_BOX);
	check_items(json_object_get(want, "single_write"), &h.t);
	check_chunks(json_object_get(want, "single_chunks"), &h.t);
	golden_check_numbers(json_object_get(want, "single_wrapper_shape"), h.t.shape, 1);
	check_found(json_object_get(want, "single_get_any_index"), &h.t, 3, CKPT_META_NO_HINT);
	check_found(json_object_get(want, "single_get_any_index"), &h.t, 8, 5);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

START_TEST(a_container_answers_as_megatron_does)
{
	json_t *all = golden_load(GOLDEN), *want = json_object_get(all, "checkpointable");
	struct ckpt_meta_index nowhere = { "k", (const uint64_t[]){ 6 }, 1, CKPT_META_NO_HINT, 1,
					   true };
	struct ckpt_meta_index whole = { .fqn = "k", .fqn_len = 1, .hint = 0 };
	struct holding h;

	hold(&h, 2, 5, 7, 5);
	ck_assert_int_eq(h.t.kind, CKPT_LOCAL_SHARDS);
	check_items(json_object_get(want, "container_write"), &h.t);
	check_chunks(json_object_get(want, "container_chunks"), &h.t);
	golden_check_numbers(json_object_get(want, "container_wrapper_shape"), h.t.shape, 1);
	check_found(json_object_get(want, "get_by_hint"), &h.t, 7, 1);
	check_found(json_object_get(want, "get_wrong_hint_falls_back"), &h.t, 7, 0);
	check_found(json_object_get(want, "get_hint_out_of_range"), &h.t, 5, 9);
	check_not_found(golden_text(want, "err_no_offset"), &h.t, &whole);
	check_not_found(golden_text(want, "err_missing"), &h.t, &nowhere);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

START_TEST(what_makes_no_container_is_refused)
{
	struct ckpt_sharded_tensor s[] = { SHARDED(CKPT_DTYPE_F32, 1, two, zero, one),
					   SHARDED(CKPT_DTYPE_F32, 1, ten, zero, one) };
	struct ckpt_sharded_tensor changed = SHARDED(CKPT_DTYPE_F32, 1, three, zero, one);
	struct ckpt_sharded_tensor prepended =
		SHARDED(CKPT_DTYPE_F32, 2, two_two, zero_zero, NULL, .n_prepend = 1);
	struct ckpt_sharded_tensor outside = SHARDED(CKPT_DTYPE_F32, 1, two, two, one);
	struct ckpt_local_tensor t = { .n_shards = 42 };
	struct ckpt_err e = { 0 };

	changed.local_shape = three;
	ck_assert_int_eq(local_tensor_from_sharded(s, 0, &arena, &t, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "a container of shards must hold one at least");
	ck_assert_int_eq(local_tensor_from_sharded(s, 2, &arena, &t, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "Shards of one tensor differ for "));
	ck_assert_int_eq(local_tensor_from_sharded(&changed, 1, &arena, &t, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "Data shape should match `local_shape`"));
	ck_assert_int_eq(local_tensor_from_sharded(&prepended, 1, &arena, &t, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "Prepended axes need a regular grid for "));
	ck_assert_int_eq(local_tensor_from_sharded(&outside, 1, &arena, &t, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'k': shard at (2,) of (2,) in a tensor of (2,)");
	ck_assert_uint_eq(t.n_shards, 42);
	arena_release(&arena);
}
END_TEST

START_TEST(prepended_axes_are_one_long)
{
	static const struct ckpt_rank_offset layer = { 0, 3, 4 };
	struct ckpt_rank_offsets_args args = { .key = "k",
					       .key_len = 1,
					       .data = &pair,
					       .offsets = &layer,
					       .n_offsets = 1,
					       .n_prepend = 1,
					       .allow_shape_mismatch = true };
	struct ckpt_rank_offsets r = { .n_local = 1,
				       .local_shape = pair.shape,
				       .offsets = &layer,
				       .n_offsets = 1,
				       .n_prepend = 1 };
	uint64_t shape[2], off[2], len[2];
	struct ckpt_sharded_tensor s;
	struct ckpt_local_tensor t;
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_sharded_tensor_from_rank_offsets(&args, ROOM, &s, &e));
	ck_assert(!local_tensor_from_sharded(&s, 1, &arena, &t, &e));
	ck_assert_uint_eq(t.n_dims, 2);
	ck_assert(box_equal(2, t.shards[0].off, t.shards[0].len, (const uint64_t[]){ 3, 0 },
			    (const uint64_t[]){ 1, 2 }));
	ck_assert(t.allow_shape_mismatch);
	ck_assert(!ckpt_rank_offsets_box(&r, shape, off, len, &e));
	ck_assert(box_equal(2, off, len, t.shards[0].off, t.shards[0].len));
	ck_assert(!memcmp(shape, (const uint64_t[]){ 4, 2 }, sizeof(shape)));
	ck_assert(!memcmp(shape, t.shape, sizeof(shape)));
	arena_release(&arena);
}
END_TEST

START_TEST(a_plain_tensor_is_found_as_a_whole_or_at_zero)
{
	const struct ckpt_shard s = { zero, ten, NULL };
	const struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_WHOLE,
					     .n_dims = 1,
					     .shape = ten,
					     .props = { .dtype = CKPT_DTYPE_I8 },
					     .shards = &s,
					     .n_shards = 1 };
	struct ckpt_meta_index at_zero = { "k", zero, 1, 4, 1, true };
	struct ckpt_meta_index at_one = { "k", one, 1, CKPT_META_NO_HINT, 1, true };
	struct ckpt_meta_index whole = { .fqn = "k", .fqn_len = 1, .hint = 3 };
	struct ckpt_write_item item;
	struct ckpt_err e = { 0 };
	size_t i = 99;

	ck_assert(!local_tensor_shard(&t, &at_zero, &i, &e) && i == 0);
	ck_assert(!local_tensor_shard(&t, &whole, &i, &e) && i == 0);
	i = 99;
	check_not_found("FQN: 'k' is not a ShardedTensor, can't find by offset: 'torch.Size([1])'",
			&t, &at_one);
	local_tensor_write_items(&t, "k", 1, &item);
	ck_assert_int_eq(item.type, CKPT_WRITE_TENSOR);
}
END_TEST

static const struct {
	struct ckpt_local_tensor t;
	const char *text;
} bad_tensors[] = {
	{ { .kind = 3 }, "'w': kind 3 is not a kind of local tensor" },
	{ { .kind = CKPT_LOCAL_WHOLE, .n_shards = 2 }, "'w': a whole tensor has 2 shards" },
	{ { .kind = CKPT_LOCAL_BOX, .n_shards = 2 }, "'w': a box has 2 shards" },
	{ { .kind = CKPT_LOCAL_BOX, .n_dims = 65 }, "'w': 65 dimensions, the maximum is 64" },
	{ { .kind = CKPT_LOCAL_BOX }, "'w': unknown dtype 0" },
	{ { .kind = CKPT_LOCAL_BOX, .props = { .dtype = 250 } }, "'w': unknown dtype 250" },
	{ { .kind = CKPT_LOCAL_BOX,
	    .props = { .dtype = CKPT_DTYPE_U8 },
	    .n_dims = 2,
	    .shape = (const uint64_t[]){ 1ull << 32, 1ull << 31 } },
	  "'w': shape (4294967296, 2147483648) has more than 2^63 - 1 elements" },
	{ { .kind = CKPT_LOCAL_WHOLE,
	    .props = { .dtype = CKPT_DTYPE_U8 },
	    .n_dims = 1,
	    .shape = ten,
	    .shards = &(const struct ckpt_shard){ zero, five, NULL },
	    .n_shards = 1 },
	  "'w': shard at (0,) of (5,) in a tensor of (10,)" },
};

START_LOOP_TEST(impossible_tensors_are_refused, ARRAY_LEN(bad_tensors))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(local_tensor_check(&bad_tensors[_i].t, "w", 1, &e), -EINVAL);
	ck_assert_str_eq(e.msg, bad_tensors[_i].text);
}
END_TEST

/* ---- meshes ---- */

START_TEST(every_element_has_its_owner_on_the_mesh)
{
	struct rng r = rng_new();

	for (int round = 0; round < 300; round++) {
		uint64_t mesh[2] = { 1 + rng_below(&r, 3), 1 + rng_below(&r, 4) };
		uint64_t shape[2] = { rng_below(&r, 7), rng_below(&r, 7) };
		struct ckpt_placement p[2] = { { 0, (int8_t)rng_below(&r, 2), CKPT_SPLIT_CEIL },
					       { 1, (int8_t)(rng_below(&r, 2) - 2),
						 CKPT_SPLIT_BALANCED } };
		struct ckpt_sharding s = { mesh, p, 2, (uint8_t)rng_below(&r, 3) };
		uint8_t owners[49] = { 0 };
		uint64_t copies = 1, at[2];

		for (size_t i = s.n; i < 2; i++)
			copies *= mesh[i];
		for (uint64_t rank = 0; rank < mesh[0] * mesh[1]; rank++) {
			struct ckpt_local_tensor t;
			struct ckpt_err e = { 0 };

			REQUIRE(mesh_tensor(&s, rank, 2, shape, CKPT_DTYPE_BF16, NULL, &arena, &t));
			REQUIRE(!local_tensor_check(&t, "t", 1, &e));
			REQUIRE(t.n_shards == 1 && t.kind == CKPT_LOCAL_BOX && t.n_dims == 2);
			for (at[0] = 0; at[0] < t.shards[0].len[0]; at[0]++)
				for (at[1] = 0; at[1] < t.shards[0].len[1]; at[1]++)
					owners[(t.shards[0].off[0] + at[0]) * 7 +
					       t.shards[0].off[1] + at[1]]++;
		}
		for (uint64_t i = 0; i < 49; i++)
			REQUIRE(owners[i] == (i / 7 < shape[0] && i % 7 < shape[1] ? copies : 0));
	}
	arena_release(&arena);
}
END_TEST

/* With two thirds of an element for each rank: (0, 2) has nothing of [0, 2), and (1, 0) begins at
 * 2. */
START_TEST(a_box_without_elements_takes_nobodys_place)
{
	const uint64_t mesh[] = { 2, 3 }, shape[] = { 4 };
	const struct ckpt_placement p[] = { { 0, 0, CKPT_SPLIT_CEIL }, { 1, 0, CKPT_SPLIT_CEIL } };
	const struct ckpt_sharding s = { mesh, p, 2, 2 };
	static const uint64_t want[] = { 0, 1, 4, 2, 3, 4 };

	for (uint64_t rank = 0; rank < 6; rank++) {
		uint64_t off, len;
		struct ckpt_err e;

		ck_assert(!ckpt_sharding_box(&s, rank, 1, shape, &off, &len, &e));
		ck_assert_uint_eq(off, want[rank]);
		ck_assert_uint_eq(len, rank % 3 < 2);
	}
}
END_TEST

START_TEST(what_a_mesh_does_not_divide_is_refused)
{
	json_t *all = golden_load("hyperparallel/planner_golden.json");
	const uint64_t mesh[] = { 2 };
	struct ckpt_placement p = { 0, 0, CKPT_SPLIT_EVEN };
	struct ckpt_sharding s = { mesh, &p, 1, 1 };
	uint64_t off = 42, len = 42;
	struct ckpt_err e;

	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, three, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, golden_text(json_object_get(all, "errors"), "indivisible"));
	p.dim = 1;
	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, three, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "a placement names a dimension that a tensor of (3,) lacks");
	p.axis = 1;
	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, three, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "a placement names an axis that a mesh of (2,) lacks");
	ck_assert_int_eq(ckpt_sharding_box(&s, 2, 1, three, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "rank 2 is not in a mesh of (2,)");
	ck_assert_int_eq(ckpt_sharding_box(&s, 0, CKPT_MAX_DIMS + 1, NULL, &off, &len, &e),
			 -EINVAL);
	ck_assert_str_eq(e.msg, "65 dimensions, the maximum is 64");
	ck_assert(off == 42 && len == 42);
	json_decref(all);
}
END_TEST

START_TEST(placements_that_cannot_be_are_refused)
{
	const uint64_t mesh[] = { 2, 2 }, shape[] = { 8 };
	struct ckpt_placement p[] = { { 1, 0, CKPT_SPLIT_CEIL }, { 1, 0, CKPT_SPLIT_CEIL } };
	struct ckpt_sharding s = { mesh, p, 2, 2 };
	uint64_t off = 42, len = 42;
	struct ckpt_err e;

	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, shape, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "two placements name axis 1");
	p[1] = (struct ckpt_placement){ 0, 0, CKPT_SPLIT_EVEN + 1 };
	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, shape, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "a placement has the unknown split 3");
	s.n = 3; /* one of them is not there */
	ck_assert_int_eq(ckpt_sharding_box(&s, 0, 1, shape, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "3 placements are too many for a mesh of (2, 2)");
	ck_assert(off == 42 && len == 42);
}
END_TEST

/* ---- ShardedObject ---- */

START_TEST(names_of_objects_are_those_of_megatron)
{
	json_t *all = golden_load(GOLDEN), *want = json_object_get(all, "objects");
	const struct ckpt_sharded_object o[] = {
		{ "a.b",
		  3,
		  2,
		  2,
		  (const uint64_t[]){ 1, 2 },
		  (const uint64_t[]){ 2, 3 },
		  { 0 },
		  { 0 } },
		{ "k", 1, 1, 1, zero, (const uint64_t[]){ 4 }, { 0 }, { 0 } },
		{ "k", 1, 1, 2, zero, two_two, { 0 }, { 0 } },
	};
	struct buf b = BUF_INIT(100);
	struct ckpt_err e = { 0 };

	ck_assert(!sharded_object_name(&o[0], &b, &e));
	ck_assert_str_eq(b.data, json_string_value(json_object_get(want, "unique_key")));
	b.len = 0;
	ck_assert(!sharded_object_name(&o[1], &b, &e));
	ck_assert_str_eq(b.data, json_string_value(json_object_get(want, "one_d")));
	ck_assert_int_eq(sharded_object_name(&o[2], &b, &e), -EINVAL);
	ck_assert_str_eq(e.msg, golden_text(want, "err_dims"));
	buf_release(&b);
	json_decref(all);
}
END_TEST

START_TEST(objects_are_there_once_each)
{
	static const uint64_t shape[] = { 2, 2 },
			      offs[4][2] = { { 1, 1 }, { 0, 0 }, { 1, 0 }, { 0, 1 } };
	static const int64_t copy = 1;
	struct ckpt_sharded_object o[5];
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 5; i++)
		o[i] = (struct ckpt_sharded_object){ "rng",	  3,	 2,	2,
						     offs[i % 4], shape, { 0 }, { 0 } };
	ck_assert(!ckpt_sharded_objects_check(o, 4, &e));
	ck_assert(!ckpt_sharded_objects_check(o, 0, &e));
	ck_assert_int_eq(ckpt_sharded_objects_check(o, 5, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "Duplicate ShardedObject keys: ['rng' at (1, 1)]");
	o[4].replica = (struct ckpt_replica_id){ &copy, 1, false };
	ck_assert(!ckpt_sharded_objects_check(o, 5, &e));
	ck_assert_int_eq(ckpt_sharded_objects_check(o, 1, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "Invalid access pattern: 3 ShardedObject are missing.");
	o[1].shape = ten;
	o[1].n_shape = 1;
	ck_assert_int_eq(ckpt_sharded_objects_check(o, 4, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "ShardedObject(key='rng') is of several shapes");
}
END_TEST

/* ---- state dicts of both ---- */

START_TEST(a_dict_has_the_main_replicas_and_joins_shards_of_one_key)
{
	static const int64_t copy = 1;
	static const uint64_t far[] = { 6 };
	float values[2] = { 1, 2 };
	const struct ckpt_array a = { values, CKPT_DTYPE_F32, 1, two };
	struct ckpt_sharded_tensor s[4];
	struct ckpt_sharded_object o[2] = {
		{ "rng", 3, 1, 1, zero, one, { 0 }, { .data = "x", .len = 1 } },
		{ "rng", 3, 1, 1, zero, one, { &copy, 1, false }, { .data = "y", .len = 1 } },
	};
	struct ckpt_sharded_dict *d = NULL;
	const struct ckpt_state_entry *x;
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 4; i++) {
		s[i] = (struct ckpt_sharded_tensor)SHARDED(CKPT_DTYPE_F32, 1, ten, zero, NULL);
		s[i].data = &a;
	}
	s[1].key = "other";
	s[1].key_len = 5;
	s[2].global_offset = far;
	s[3].replica = (struct ckpt_replica_id){ &copy, 1, false };
	ck_assert(!ckpt_sharded_dict_new(s, 4, o, 2, CKPT_SHARDED_SAVE, &d, &e));
	x = ckpt_sharded_dict(d)->entries;
	ck_assert_uint_eq(ckpt_sharded_dict(d)->count, 3);
	ck_assert(!memcmp(x[0].fqn, "k", x[0].fqn_len) && x[0].tensor->n_shards == 2);
	ck_assert_int_eq(x[0].tensor->kind, CKPT_LOCAL_SHARDS);
	ck_assert_uint_eq(x[0].tensor->shards[1].off[0], 6);
	ck_assert_ptr_eq(x[0].tensor->shards[1].data, values);
	ck_assert(!memcmp(x[1].fqn, "other", x[1].fqn_len) && x[1].tensor->n_shards == 1);
	ck_assert(!x[2].tensor && x[2].fqn_len == 13);
	ck_assert(!memcmp(x[2].fqn, "rng/shard_0_1", 13) && x[2].bytes.len == 1);
	ckpt_sharded_dict_free(d);
	ck_assert(!ckpt_sharded_dict_new(s, 4, o, 2, CKPT_SHARDED_LOAD, &d, &e));
	ck_assert_uint_eq(ckpt_sharded_dict(d)->count, 4);
	ck_assert_uint_eq(ckpt_sharded_dict(d)->entries[0].tensor->n_shards, 3);
	ckpt_sharded_dict_free(d);
	ckpt_sharded_dict_free(NULL);
}
END_TEST

START_TEST(a_dict_refuses_what_megatron_refuses)
{
	struct ckpt_sharded_tensor s = SHARDED(CKPT_DTYPE_F16, 1, ten, zero, NULL);
	const struct ckpt_sharded_object o = { "k", 1, 1, 2, zero, two_two, { 0 }, { 0 } };
	struct ckpt_sharded_dict *d = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_sharded_dict_new(&s, 1, NULL, 0, CKPT_SHARDED_LOAD, &d, &e), -EINVAL);
	ck_assert_ptr_eq(strstr(e.msg, "Data dtype should match `dtype` attribute for "), e.msg);
	s.data = NULL;
	ck_assert_int_eq(ckpt_sharded_dict_new(&s, 1, NULL, 0, CKPT_SHARDED_SAVE, &d, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'k': a sharded tensor to be saved has no data");
	ck_assert_int_eq(ckpt_sharded_dict_new(NULL, 0, &o, 1, CKPT_SHARDED_SAVE, &d, &e), -EINVAL);
	ck_assert_ptr_eq(strstr(e.msg, "Global offset dimensions should be equal"), e.msg);
	ck_assert_ptr_null(d);
}
END_TEST

START_TEST(a_dict_without_memory_is_none)
{
	struct ckpt_sharded_tensor s = SHARDED(CKPT_DTYPE_F32, 1, ten, zero, NULL);
	const struct ckpt_sharded_object o = { "k", 1, 1, 1, zero, one, { 0 }, { 0 } };
	size_t failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_sharded_dict *d = NULL;
		struct ckpt_err e = { 0 };
		int rc = ckpt_sharded_dict_new(&s, 1, &o, 1, CKPT_SHARDED_SAVE, &d, &e);

		(void)fault_off();
		ck_assert(rc ? rc == -ENOMEM && !d : d != NULL);
		failed += rc != 0;
		ckpt_sharded_dict_free(d);
	}
	ck_assert_uint_gt(failed, 2);
}
END_TEST

SUITE(checkpointable)

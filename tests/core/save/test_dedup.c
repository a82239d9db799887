/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank writes what, compared with what HyperParallel's own functions answered
 * (planner_golden.json) and with a naive version of torch's rule.
 */
#include "base/arena.h"
#include "base/err.h"
#include "golden_util.h"
#include "model/box.h"
#include "model/dtype.h"
#include "plan_util.h"
#include "save/dedup.h"
#include "save/merge.h"
#include "suites.h"

#define HP_GOLDEN "hyperparallel/planner_golden.json"

static struct arena arena = ARENA_INIT(1 << 28);

static const uint64_t *keep(const json_t *list)
{
	uint64_t *v = arena_array(&arena, json_array_size(list), sizeof(*v));

	(void)golden_numbers(list, v);
	return v;
}

/* ---- copies ---- */

/* An item of the golden size. HyperParallel counts 2 for float16, and all sizes are even. */
static struct ckpt_write_item golden_item(const json_t *j)
{
	const char *fqn = json_string_value(json_object_get(j, "fqn"));
	struct ckpt_write_item w = {
		.index = { .fqn = fqn, .fqn_len = (uint32_t)strlen(fqn), .hint = CKPT_META_NO_HINT }
	};
	uint64_t *len;

	if (!strcmp(json_string_value(json_object_get(j, "type")), "byte_io"))
		return w;
	len = arena_array(&arena, 1, sizeof(*len));
	*len = (uint64_t)json_integer_value(json_object_get(j, "storage_size")) / 2;
	w.type = CKPT_WRITE_TENSOR;
	w.index.offset = keep(json_object_get(j, "offset"));
	w.index.n_dims = 1;
	w.index.has_offset = true;
	w.chunk = (struct ckpt_chunk_meta){ w.index.offset, len };
	w.size = len;
	w.props.dtype = CKPT_DTYPE_F16;
	return w;
}

static size_t golden_plans(const json_t *list, struct ckpt_save_plan *plans)
{
	const json_t *plan, *item;
	size_t p, i;

	json_array_foreach(list, p, plan)
	{
		struct ckpt_write_item *items =
			arena_array(&arena, json_array_size(plan), sizeof(*items));

		json_array_foreach(plan, i, item) items[i] = golden_item(item);
		plans[p] = (struct ckpt_save_plan){ .items = items, .n_items = i };
	}
	return p;
}

static void check_kept(const json_t *want, const struct ckpt_save_plan *got)
{
	const json_t *plan, *name;
	size_t p, i;

	json_array_foreach(want, p, plan)
	{
		ck_assert_uint_eq(got[p].n_items, json_array_size(plan));
		json_array_foreach(plan, i, name)
			ck_assert_str_eq(got[p].items[i].index.fqn, json_string_value(name));
	}
}

START_TEST(copies_are_shared_out_as_in_hyperparallel)
{
	json_t *all = golden_load(HP_GOLDEN), *row, *plan, *item;
	struct merge_rules rules = { .dedup = true,
				     .rule = DEDUP_HYPERPARALLEL,
				     .same_props = true };
	size_t i, p, k;

	json_array_foreach(json_object_get(all, "dedup"), i, row)
	{
		struct ckpt_save_plan plans[8], got[8];
		struct ckpt_metadata md;
		struct ckpt_err e = { 0 };
		size_t n = golden_plans(json_object_get(row, "plans"), plans);

		rules.to_lowest_rank = true;
		ck_assert_msg(!merge_plans(plans, n, &rules, &arena, got, &md, &e), "%s", e.msg);
		check_kept(json_object_get(row, "kept_min_rank"), got);
		rules.to_lowest_rank = false;
		ck_assert(!merge_plans(plans, n, &rules, &arena, got, &md, &e));
		check_kept(json_object_get(row, "kept_balanced"), got);
		json_array_foreach(json_object_get(row, "global_index"), p, plan)
			json_array_foreach(plan, k, item)
		{
			const json_t *hint = json_object_get(item, "index");
			const struct ckpt_meta_index *x = &got[p].items[k].index;

			ck_assert_str_eq(json_string_value(json_object_get(item, "fqn")), x->fqn);
			golden_check_numbers(json_object_get(item, "offset"), x->offset, x->n_dims);
			ck_assert_int_eq(x->hint, json_is_null(hint) ? CKPT_META_NO_HINT
								     : json_integer_value(hint));
		}
		ck_assert_uint_eq(p, n);
	}
	ck_assert_uint_eq(i, 26);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

static const struct {
	const char *dtype;
	unsigned a, b;
} weights[] = {
	{ "torch.int32", 4, 4 },     { "torch.int64", 8, 8 },  { "torch.bfloat16", 2, 2 },
	{ "torch.float16", 2, 2 },   { "Float64", 8, 8 },      { "torch.int8", 4, 1 },
	{ "torch.int16", 4, 2 },     { "torch.bool", 4, 1 },   { "UInt8", 4, 1 },
	{ "torch.uint16", 4, 2 },    { "torch.uint64", 8, 8 }, { "torch.float8_e4m3fn", 4, 4 },
	{ "torch.complex64", 4, 4 }, { "unknown", 4, 4 },
};

START_TEST(element_sizes_are_hyperparallels_guesses)
{
	for (size_t i = 0; i < ARRAY_LEN(weights); i++) {
		const char *s = weights[i].dtype;

		ck_assert_uint_eq(hp_element_weight(DEDUP_HYPERPARALLEL, s, strlen(s)),
				  weights[i].a);
		ck_assert_uint_eq(hp_element_weight(DEDUP_HYPERPARALLEL_B, s, strlen(s)),
				  weights[i].b);
	}
}
END_TEST

/* What the rules say, without any table: O(items^2). */
static void naive_dedup(const struct ckpt_save_plan *plans, size_t n, bool lowest, bool *keep_item)
{
	uint64_t load[8] = { 0 };

	for (size_t p = 0, k = 0; p < n; p++)
		for (size_t i = 0; i < plans[p].n_items; i++, k++) {
			const struct ckpt_write_item *w = &plans[p].items[i];
			uint64_t bytes = 0;
			size_t best = SIZE_MAX, at = 0;

			for (size_t q = 0; q < n; q++)
				for (size_t j = 0; j < plans[q].n_items; j++, at++) {
					if (!meta_index_equal(&plans[q].items[j].index, &w->index))
						continue;
					if (at < k) /* done when it first appeared */
						goto next;
					if (best == SIZE_MAX || (!lowest && load[q] < load[best]))
						best = q;
				}
			if (w->type != CKPT_WRITE_BYTE_IO) {
				REQUIRE(box_volume(w->index.n_dims, w->size, &bytes));
				bytes *= dtype_info(w->props.dtype)->size;
			}
			load[best] += bytes ? bytes : 1;
			at = 0;
			for (size_t q = 0; q < n; q++)
				for (size_t j = 0; j < plans[q].n_items; j++, at++)
					if (meta_index_equal(&plans[q].items[j].index, &w->index))
						keep_item[at] = q == best;
		next:;
		}
}

START_TEST(copies_are_shared_out_by_torchs_rule)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h" };
	static const uint64_t sizes[8] = { 0, 1, 2, 7, 7, 100, 30, 5 };
	static const uint64_t offsets[2] = { 0, 1 };
	struct rng r = rng_new();

	for (int round = 0; round < 400; round++) {
		struct ckpt_write_item items[6][16];
		struct ckpt_save_plan plans[6];
		bool want[96], got[96], lowest = rng_chance(&r, 30);
		size_t n = 1 + rng_below(&r, 6), total = 0;
		struct ckpt_err e = { 0 };

		for (size_t p = 0; p < n; p++) {
			size_t count = 0;

			for (size_t i = 0; i < 16; i++) {
				struct ckpt_write_item w =
					whole(names[i / 2], 1, &sizes[i / 2], CKPT_DTYPE_F32);

				if (rng_chance(&r, 50))
					continue;
				w.index.offset = &offsets[i % 2];
				if (i >= 14)
					w.type = CKPT_WRITE_BYTE_IO;
				items[p][count++] = w;
			}
			plans[p] = (struct ckpt_save_plan){ .items = items[p], .n_items = count };
			total += count;
		}
		naive_dedup(plans, n, lowest, want);
		REQUIRE(!dedup_plans(plans, n, DEDUP_DCP, lowest, got, &e));
		REQUIRE(!memcmp(want, got, total));
	}
}
END_TEST

START_TEST(newer_hyperparallel_gives_the_largest_away_first)
{
	static const uint64_t sizes[] = { 1, 2, 100, 101 };
	struct ckpt_write_item own = whole("own", 1, &sizes[0], CKPT_DTYPE_I8);
	struct ckpt_write_item a[] = { whole("s", 1, &sizes[1], CKPT_DTYPE_I8),
				       whole("m", 1, &sizes[2], CKPT_DTYPE_I8),
				       whole("l", 1, &sizes[3], CKPT_DTYPE_I8), own };
	const struct ckpt_save_plan plans[] = { { .items = a, .n_items = 4 },
						{ .items = a, .n_items = 3 } };
	/* A: own 4 -> 0; s -> 1; m -> 0; l -> 1. B: own 1 -> 0; l -> 1; m -> 0; s -> 1 (101 to
	 * 101). */
	static const bool want_a[] = { false, true, false, true, true, false, true };
	static const bool want_b[] = { true, true, false, true, false, false, true };
	static const bool want_lowest[] = { true, true, true, true, false, false, false };
	bool got[7];
	struct ckpt_err e = { 0 };

	ck_assert(!dedup_plans(plans, 2, DEDUP_HYPERPARALLEL, false, got, &e));
	ck_assert_mem_eq(got, want_a, sizeof(got));
	ck_assert(!dedup_plans(plans, 2, DEDUP_HYPERPARALLEL_B, false, got, &e));
	ck_assert_mem_eq(got, want_b, sizeof(got));
	ck_assert(!dedup_plans(plans, 2, DEDUP_HYPERPARALLEL_B, true, got, &e));
	ck_assert_mem_eq(got, want_lowest, sizeof(got));
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
	static const uint64_t huge[] = { 1ull << 62 };
	struct ckpt_write_item w = whole("w", 1, huge, CKPT_DTYPE_F32);
	struct ckpt_save_plan plan = { .items = &w, .n_items = 1 };
	bool got;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(dedup_plans(&plan, 1, DEDUP_DCP, false, &got, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': more than 2^63 - 1 bytes");
}
END_TEST

START_TEST(shards_at_one_place_must_be_of_one_size)
{
	static const uint64_t size[] = { 4 }, none[] = { 0 }, half[] = { 2 };
	struct ckpt_write_item a = whole("w", 1, size, CKPT_DTYPE_F32), b = a;
	const struct ckpt_save_plan plans[] = { { .items = &a, .n_items = 1 },
						{ .items = &b, .n_items = 1 } };
	bool got[2];
	struct ckpt_err e = { 0 };

	a.chunk.len = half;
	b.chunk.len = none;
	ck_assert(!dedup_plans(plans, 2, DEDUP_DCP, false, got, &e)); /* whole tensors may differ */
	a.type = CKPT_WRITE_SHARD; /* one would be dropped, with what only it has */
	ck_assert_int_eq(dedup_plans(plans, 2, DEDUP_HYPERPARALLEL, false, got, &e), -EINVAL);
	b.type = CKPT_WRITE_SHARD;
	ck_assert_int_eq(dedup_plans(plans, 2, DEDUP_DCP, false, got, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': the shards at (0,) are of (2,) and (0,)");
}
END_TEST

SUITE(dedup)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of all ranks merged into one, and what is wrong with some plans. HyperParallel's messages
 * are those in its planner_golden.json.
 */
#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "golden_util.h"
#include "plan_util.h"
#include "save/merge.h"
#include "suites.h"

static struct arena arena = ARENA_INIT(1 << 28);

static const uint64_t zero[2], two[] = { 2, 2 }, three[] = { 3, 3 }, four[] = { 4, 4 };

START_TEST(properties_that_differ_are_refused_as_in_hyperparallel)
{
	json_t *all = golden_load("hyperparallel/planner_golden.json");
	const char *want = golden_text(json_object_get(all, "errors"), "props_differ");
	struct ckpt_write_item a = whole("a", 1, two, CKPT_DTYPE_F32),
			       b = whole("a", 1, two, CKPT_DTYPE_F16),
			       c = whole("a", 1, three, CKPT_DTYPE_F32);
	struct ckpt_save_plan plans[] = { { .items = &a, .n_items = 1 },
					  { .items = &b, .n_items = 1 } },
			      got[2];
	struct merge_rules rules = { .rule = DEDUP_HYPERPARALLEL, .same_props = true };
	struct ckpt_metadata md = { .n_entries = 42 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(merge_plans(plans, 2, &rules, &arena, got, &md, &e), -EINVAL);
	ck_assert_str_eq(e.msg, want);
	plans[1].items = &c;
	ck_assert_int_eq(merge_plans(plans, 2, &rules, &arena, got, &md, &e), -EINVAL);
	ck_assert_str_eq(e.msg, want);
	ck_assert_uint_eq(md.n_entries, 42);
	plans[1].items = &a; /* copies that were not shared out are all listed */
	ck_assert(!merge_plans(plans, 2, &rules, &arena, got, &md, &e));
	ck_assert_uint_eq(md.entries[0].tensor.n_chunks, 2);
	ck_assert_int_eq(got[1].items[0].index.hint, 1);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

START_TEST(what_is_wrong_with_chunks_is_said_as_torch_says_it)
{
	static const uint64_t at[] = { 2, 0 }, half[] = { 2, 4 }, low[] = { 1, 2 };
	struct ckpt_chunk_meta chunks[] = { { zero, half }, { at, half }, { low, low } };
	struct ckpt_meta_entry t = {
		.fqn = "w",
		.fqn_len = 1,
		.is_tensor = true,
		.tensor = { .n_dims = 2, .size = four, .chunks = chunks, .n_chunks = 2 }
	};
	const struct ckpt_metadata md = { .entries = &t, .n_entries = 1 };
	struct ckpt_err e = { 0 };

	ck_assert(!metadata_validate(&md, true, &e));
	t.tensor.n_chunks = 3;
	ck_assert_int_eq(metadata_validate(&md, false, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "key:w has overlapping chunks: torch.Size([2, 4]) at "
				"torch.Size([0, 0]), torch.Size([1, 2]) at torch.Size([1, 2])");
	t.tensor.n_chunks = 1;
	ck_assert(!metadata_validate(&md, false, &e));
	ck_assert_int_eq(metadata_validate(&md, true, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "key:w invalid fill tensor-volume: 16 chunks-volume: 8");
	chunks[0].off = three;
	ck_assert_int_eq(metadata_validate(&md, false, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "key:w has out of bounds chunk: tensor-size:torch.Size([4, 4]) "
				"chunk: torch.Size([2, 4]) at torch.Size([3, 3])");
}
END_TEST

START_TEST(overlaps_are_those_that_elements_have)
{
	struct rng r = rng_new();

	for (int round = 0; round < 500; round++) {
		uint64_t shape[2] = { 1 + rng_below(&r, 8), 1 + rng_below(&r, 8) }, boxes[12][4];
		struct ckpt_chunk_meta chunks[12];
		struct ckpt_meta_entry t = { .fqn = "w",
					     .fqn_len = 1,
					     .is_tensor = true,
					     .tensor = { .n_dims = 2,
							 .size = shape,
							 .chunks = chunks,
							 .n_chunks = rng_below(&r, 7) } };
		const struct ckpt_metadata md = { .entries = &t, .n_entries = 1 };
		uint8_t times[64] = { 0 };
		bool overlap = false, hole = false;
		struct ckpt_err e = { 0 };

		for (size_t i = 0; i < t.tensor.n_chunks; i++) {
			random_box(&r, 2, shape, boxes[i]);
			chunks[i] = (struct ckpt_chunk_meta){ boxes[i], boxes[i] + 2 };
			for (uint64_t y = 0; y < boxes[i][2]; y++)
				for (uint64_t x = 0; x < boxes[i][3]; x++)
					overlap |= times[(boxes[i][0] + y) * 8 + boxes[i][1] + x]++;
		}
		for (uint64_t i = 0; i < 64; i++)
			hole |= i / 8 < shape[0] && i % 8 < shape[1] && !times[i];
		REQUIRE(!metadata_validate(&md, false, &e) == !overlap);
		REQUIRE(!metadata_validate(&md, true, &e) == (!overlap && !hole));
	}
}
END_TEST

static const struct {
	struct ckpt_write_item second;
	bool same_props;
	const char *text;
} conflicts[] = {
	{ { .index = { .fqn = "w", .fqn_len = 1 }, .type = CKPT_WRITE_BYTE_IO },
	  false,
	  "'w' is a tensor, on rank 1 it is bytes" },
	{ { .index = { "w", zero, 1, CKPT_META_NO_HINT, 2, true },
	    .size = four,
	    .chunk = { two, two },
	    .props = { .dtype = CKPT_DTYPE_F32 },
	    .type = CKPT_WRITE_TENSOR },
	  false,
	  "'w' is not sharded, and rank 1 has one more" },
	{ { .index = { "w", two, 1, CKPT_META_NO_HINT, 1, true },
	    .size = four,
	    .chunk = { two, two },
	    .props = { .dtype = CKPT_DTYPE_F32 },
	    .type = CKPT_WRITE_SHARD },
	  false,
	  "'w' has 2 dimensions, on rank 1 it has 1" },
	{ { .index = { "w", two, 1, CKPT_META_NO_HINT, 2, false }, .type = CKPT_WRITE_SHARD },
	  false,
	  "'w': 2 dimensions, dtype 0, no offset" },
	{ { .index = { .fqn = "w", .fqn_len = 1 }, .type = 9 },
	  false,
	  "'w': write item of type 9" },
	{ { .index = { "w", two, 1, CKPT_META_NO_HINT, 2, true },
	    .size = four,
	    .chunk = { three, two },
	    .props = { .dtype = CKPT_DTYPE_F32 },
	    .type = CKPT_WRITE_SHARD },
	  false,
	  "Failed to validate global plan: key:w has out of bounds chunk: "
	  "tensor-size:torch.Size([4, 4]) chunk: torch.Size([2, 2]) at torch.Size([3, 3])" },
};

START_LOOP_TEST(plans_that_do_not_fit_together_are_refused, ARRAY_LEN(conflicts))
{
	struct ckpt_write_item first = whole("w", 2, four, CKPT_DTYPE_F32);
	struct ckpt_save_plan plans[] = { { .items = &first, .n_items = 1 },
					  { .items = &conflicts[_i].second, .n_items = 1 } },
			      got[2];
	struct merge_rules rules = { .validate = true };
	struct ckpt_metadata md = { .n_entries = 42 };
	struct ckpt_err e = { 0 };

	first.type = CKPT_WRITE_SHARD;
	ck_assert_int_lt(merge_plans(plans, 2, &rules, &arena, got, &md, &e), 0);
	ck_assert_str_eq(e.msg, conflicts[_i].text);
	ck_assert_uint_eq(md.n_entries, 42);
	arena_release(&arena);
}
END_TEST

/* An empty chunk begins where one with elements does; whoever looked for one of them could get the
 * other. */
START_TEST(what_begins_at_one_place_is_of_one_size)
{
	static const uint64_t at[] = { 2, 0 }, half[] = { 2, 4 }, none[] = { 0, 4 };
	struct ckpt_write_item items[] = { whole("w", 2, four, CKPT_DTYPE_F32),
					   whole("w", 2, four, CKPT_DTYPE_F32),
					   whole("w", 2, four, CKPT_DTYPE_F32) };
	const struct ckpt_save_plan plans[] = { { .items = items, .n_items = 2 },
						{ .items = items + 2, .n_items = 1 } };
	const struct merge_rules all = { 0 }, megatron = { .validate = true };
	struct ckpt_save_plan got[2];
	struct ckpt_metadata md = { .n_entries = 42 };
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 3; i++) {
		items[i].type = CKPT_WRITE_SHARD;
		items[i].chunk = (struct ckpt_chunk_meta){ i ? at : zero, i == 1 ? none : half };
		items[i].index.offset = items[i].chunk.off;
	}
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(merge_plans(plans, 2, i ? &all : &megatron, &arena, got, &md, &e),
				 -EINVAL);
		ck_assert_str_eq(e.msg, "'w': the shards at (2, 0) are of (0, 4) and (2, 4)");
		ck_assert_uint_eq(md.n_entries, 42);
	}
	items[1].chunk.len = half;
	ck_assert(!merge_plans(plans, 2, &all, &arena, got, &md, &e));
	ck_assert_uint_eq(md.entries[0].tensor.n_chunks, 3);
	arena_release(&arena);
}
END_TEST

SUITE(merge)

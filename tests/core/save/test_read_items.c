/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read items, compared with what HyperParallel's own function answered (planner_golden.json) and
 * with what follows from every pair of boxes.
 */
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "golden_util.h"
#include "model/box.h"
#include "plan_util.h"
#include "save/checkpointable.h"
#include "save/read_items.h"
#include "suites.h"

static struct arena arena = ARENA_INIT(1 << 28);

static const uint64_t *keep(const json_t *list)
{
	uint64_t *v = arena_array(&arena, json_array_size(list), sizeof(*v));

	(void)golden_numbers(list, v);
	return v;
}

/* [[offsets, sizes], ...] */
static size_t golden_boxes(const json_t *list, struct ckpt_chunk_meta *chunks,
			   struct ckpt_shard *shards)
{
	const json_t *box;
	size_t i;

	json_array_foreach(list, i, box)
	{
		const uint64_t *off = keep(json_array_get(box, 0)),
			       *len = keep(json_array_get(box, 1));

		if (chunks)
			chunks[i] = (struct ckpt_chunk_meta){ off, len };
		else
			shards[i] = (struct ckpt_shard){ off, len, NULL };
	}
	return i;
}

static void check_index(const json_t *want, const struct ckpt_meta_index *got)
{
	ck_assert_str_eq(json_string_value(json_object_get(want, "fqn")), got->fqn);
	golden_check_numbers(json_object_get(want, "offset"), got->offset, got->n_dims);
	ck_assert_int_eq(json_integer_value(json_object_get(want, "index")), got->hint);
}

START_TEST(read_items_are_those_of_hyperparallel)
{
	json_t *all = golden_load("hyperparallel/planner_golden.json"), *row, *j;
	size_t i, k;

	json_array_foreach(json_object_get(all, "read_items"), i, row)
	{
		struct ckpt_chunk_meta chunks[16];
		struct ckpt_shard shards[16];
		struct ckpt_tensor_meta saved = { .n_dims = 2,
						  .size = keep(json_object_get(row, "shape")),
						  .chunks = chunks };
		struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_SHARDS,
					       .n_dims = 2,
					       .shape = saved.size,
					       .shards = shards };
		struct read_list l CLEANUP(read_list_release) = { .a = &arena };
		struct ckpt_err e = { 0 };

		saved.n_chunks = golden_boxes(json_object_get(row, "saved"), chunks, NULL);
		t.n_shards = golden_boxes(json_object_get(row, "local"), NULL, shards);
		ck_assert(!read_list_add_tensor(&l, "t", 1, &saved, &t, &e));
		ck_assert_uint_eq(l.count, json_array_size(json_object_get(row, "items")));
		json_array_foreach(json_object_get(row, "items"), k, j)
		{
			const struct ckpt_read_item *r = &l.items[k];

			check_index(json_object_get(j, "dest"), &r->dest);
			check_index(json_object_get(j, "storage"), &r->storage);
			golden_check_numbers(json_object_get(j, "dest_offsets"), r->dest_off, 2);
			golden_check_numbers(json_object_get(j, "storage_offsets"), r->storage_off,
					     2);
			golden_check_numbers(json_object_get(j, "lengths"), r->len, 2);
			ck_assert_int_eq(r->type, CKPT_READ_TENSOR);
		}
	}
	ck_assert_uint_eq(i, 40);
	json_decref(all);
	arena_release(&arena);
}
END_TEST

START_TEST(many_chunks_give_the_pairs_that_few_give)
{
	struct rng r = rng_new();

	for (int round = 0; round < 150; round++) {
		size_t n = 1 + rng_below(&r, 3), n_chunks = rng_below(&r, 60), at = 0;
		size_t n_shards = rng_below(&r, 12);
		uint64_t shape[3], boxes[72][6];
		struct ckpt_chunk_meta chunks[60];
		struct ckpt_shard shards[12];
		struct ckpt_tensor_meta saved = {
			.n_dims = (uint8_t)n, .size = shape, .chunks = chunks, .n_chunks = n_chunks
		};
		struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_SHARDS,
					       .n_dims = (uint8_t)n,
					       .shape = shape,
					       .shards = shards,
					       .n_shards = n_shards };
		struct read_list l CLEANUP(read_list_release) = { .a = &arena };
		struct ckpt_err e = { 0 };

		for (size_t d = 0; d < n; d++)
			shape[d] = 1 + rng_below(&r, 12);
		for (size_t i = 0; i < n_chunks + n_shards; i++)
			random_box(&r, n, shape, boxes[i]);
		for (size_t i = 0; i < n_chunks; i++)
			chunks[i] = (struct ckpt_chunk_meta){ boxes[i], boxes[i] + n };
		for (size_t i = 0; i < n_shards; i++)
			shards[i] = (struct ckpt_shard){ boxes[n_chunks + i],
							 boxes[n_chunks + i] + n, NULL };
		REQUIRE(!read_list_add_tensor(&l, "t", 1, &saved, &t, &e));
		for (size_t s = 0; s < n_shards; s++)
			for (size_t c = 0; c < n_chunks; c++) {
				uint64_t off[3], len[3];
				const struct ckpt_read_item *item;

				if (!box_intersect(n, shards[s].off, shards[s].len, chunks[c].off,
						   chunks[c].len, off, len))
					continue;
				REQUIRE(at < l.count);
				item = &l.items[at++];
				REQUIRE(item->dest.hint == (int32_t)s);
				REQUIRE(item->storage.hint == (int32_t)c);
				for (size_t d = 0; d < n; d++) {
					REQUIRE(item->dest_off[d] == off[d] - shards[s].off[d]);
					REQUIRE(item->storage_off[d] == off[d] - chunks[c].off[d]);
					REQUIRE(item->len[d] == len[d]);
				}
			}
		REQUIRE(at == l.count);
	}
	arena_release(&arena);
}
END_TEST

START_TEST(damaged_chunk_lists_are_refused)
{
	static const uint64_t zero[2], two[] = { 2, 2 }, four[] = { 4, 4 };
	static const uint64_t far[] = { UINT64_MAX, 3 };
	struct ckpt_chunk_meta chunks[64];
	struct ckpt_shard shards[2] = { { zero, two, NULL }, { two, two, NULL } };
	struct ckpt_tensor_meta saved = {
		.n_dims = 2, .size = four, .chunks = chunks, .n_chunks = 64
	};
	struct ckpt_local_tensor t = {
		.kind = CKPT_LOCAL_SHARDS, .n_dims = 2, .shape = four, .shards = shards
	};
	struct read_list l CLEANUP(read_list_release) = { .a = &arena };
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 64; i++)
		chunks[i] = (struct ckpt_chunk_meta){ zero, two };
	chunks[40].off = far;
	for (t.n_shards = 1; t.n_shards <= 2; t.n_shards++) {
		ck_assert_int_eq(read_list_add_tensor(&l, "t", 1, &saved, &t, &e), -ERR_CORRUPT);
		ck_assert_str_eq(e.msg,
				 "key:t has out of bounds chunk: tensor-size:torch.Size([4, 4])"
				 " chunk: torch.Size([2, 2]) at "
				 "torch.Size([18446744073709551615, 3])");
	}
	t.n_dims = 1;
	ck_assert_int_eq(read_list_add_tensor(&l, "t", 1, &saved, &t, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'t': 1 dimensions, saved with 2");
	ck_assert_uint_eq(l.count, 0);
	arena_release(&arena);
}
END_TEST

SUITE(read_items)

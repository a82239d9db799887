/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "save/metadata.h"
#include "suites.h"

#include <string.h>

static uint64_t off[] = { 1, 2 }, len[] = { 2, 2 }, size[] = { 4, 4 };

START_TEST(an_index_is_its_name_and_offset)
{
	static const uint64_t same[] = { 1, 2 }, other[] = { 1, 3 };
	const struct ckpt_meta_index x = { "w", off, 1, 7, 2, true };
	const struct ckpt_meta_index rows[] = {
		{ "w", same, 1, CKPT_META_NO_HINT, 2, true }, /* the hint does not count */
		{ "v", same, 1, 7, 2, true },
		{ "ww", same, 2, 7, 2, true },
		{ "w", other, 1, 7, 2, true },
		{ "w", same, 1, 7, 1, true },
		{ "w", NULL, 1, 7, 0, true },  /* a tensor of one element */
		{ "w", NULL, 1, 7, 0, false }, /* bytes */
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(meta_index_equal(&x, &rows[i]), i == 0);
		ck_assert_int_eq(meta_index_hash(&x) == meta_index_hash(&rows[i]), i == 0);
	}
	ck_assert(!meta_index_equal(&rows[5], &rows[6]));
	ck_assert(meta_index_hash(&rows[5]) != meta_index_hash(&rows[6]));
}
END_TEST

/* A plan with memory of its own, so that each part can be changed. */
struct sample {
	struct ckpt_write_item items[2];
	struct ckpt_fqn_path path;
	struct ckpt_path_step steps[2];
	struct ckpt_save_plan plan;
	uint64_t off[2], len[2], size[2];
};

static void make_sample(struct sample *s)
{
	*s = (struct sample){ .off = { 1, 2 }, .len = { 2, 2 }, .size = { 4, 4 } };
	s->items[0] = (struct ckpt_write_item){ .index = { "w", s->off, 1, 3, 2, true },
						.chunk = { s->off, s->len },
						.size = s->size,
						.props = { .dtype = CKPT_DTYPE_F32 },
						.type = CKPT_WRITE_SHARD };
	s->items[1] = (struct ckpt_write_item){ .index = { .fqn = "b", .fqn_len = 1 } };
	s->steps[0] = (struct ckpt_path_step){ "m", 1, 0 };
	s->steps[1] = (struct ckpt_path_step){ NULL, 0, 9 };
	s->path = (struct ckpt_fqn_path){ "m.9", s->steps, 3, 2 };
	s->plan = (struct ckpt_save_plan){
		.items = s->items, .n_items = 2, .paths = &s->path, .n_paths = 1
	};
}

START_TEST(plans_are_equal_when_all_of_them_is)
{
	enum { CHANGES = 16 };

	for (int change = 0; change <= CHANGES; change++) {
		struct sample a, b;

		make_sample(&a);
		make_sample(&b);
		switch (change) {
		case 1:
			b.items[0].index.hint = 4;
			break;
		case 2:
			b.off[1] = 1;
			break;
		case 3:
			b.len[1] = 1;
			break;
		case 4:
			b.size[0] = 5;
			break;
		case 5:
			b.items[0].props.dtype = CKPT_DTYPE_F16;
			break;
		case 6:
			b.items[0].props.requires_grad = true;
			break;
		case 7:
			b.items[0].props.pin_memory = true;
			break;
		case 8:
			b.items[0].props.memory_format = CKPT_MEMORY_PRESERVE;
			break;
		case 9:
			b.items[0].type = CKPT_WRITE_TENSOR;
			break;
		case 10:
			b.items[1].index.fqn = "c";
			break;
		case 11:
			b.plan.n_items = 1;
			break;
		case 12:
			b.plan.n_paths = 0;
			break;
		case 13:
			b.path.n_steps = 1;
			break;
		case 14:
			b.steps[0].key = "n";
			break;
		case 15:
			b.steps[1].position = 8;
			break;
		case CHANGES:
			b.plan.unchanged = true;
			break;
		default:
			break;
		}
		ck_assert_msg(save_plan_equal(&a.plan, &b.plan) == !change, "change %d", change);
		ck_assert_msg(save_plan_equal(&b.plan, &a.plan) == !change, "change %d", change);
	}
}
END_TEST

START_TEST(a_copy_borrows_nothing)
{
	struct arena a = ARENA_INIT(1 << 20), small = ARENA_INIT(64);
	char name[] = "w", key[] = "m", whole_name[] = "m.9";
	struct sample s, same;
	struct ckpt_save_plan copy = { .n_items = 42 };
	struct ckpt_err e = { 0 };

	make_sample(&s);
	make_sample(&same);
	s.items[0].index.fqn = name;
	s.steps[0].key = key;
	s.path.fqn = whole_name;
	ck_assert_int_eq(save_plan_copy(&s.plan, &small, &copy, &e), -ENOMEM);
	ck_assert_str_eq(e.msg, "copy a plan of 2 items: out of memory");
	ck_assert_uint_eq(copy.n_items, 42);
	ck_assert(!save_plan_copy(&s.plan, &a, &copy, &e));
	memset(&s, 0xff, sizeof(s));
	name[0] = key[0] = whole_name[0] = '?';
	ck_assert(save_plan_equal(&copy, &same.plan));
	arena_release(&a);
	arena_release(&small);
}
END_TEST

START_TEST(sizes_are_of_the_tensor_or_the_chunk)
{
	static const uint64_t huge[] = { 1ull << 40, 1ull << 22 };
	struct ckpt_write_item w = { .index = { "w", off, 1, 0, 2, true },
				     .chunk = { off, len },
				     .size = size,
				     .props = { .dtype = CKPT_DTYPE_C128 },
				     .type = CKPT_WRITE_SHARD };
	uint64_t bytes = 0;
	struct ckpt_err e = { 0 };

	ck_assert(!write_item_tensor_bytes(&w, &bytes, &e));
	ck_assert_uint_eq(bytes, 256);
	ck_assert(!write_item_chunk_bytes(&w, &bytes, &e));
	ck_assert_uint_eq(bytes, 64);
	w.size = huge;
	ck_assert_int_eq(write_item_tensor_bytes(&w, &bytes, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': more than 2^63 - 1 bytes");
	ck_assert_uint_eq(bytes, 64);
}
END_TEST

SUITE(metadata)

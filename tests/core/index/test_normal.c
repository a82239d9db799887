/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "index/catalog_build.h"
#include "index/catalog_normal.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

enum { MAX = 400 };

/* A list of chunks. The file of a chunk is its position, which shows which one was kept. */
struct list {
	struct tensor_chunks t;
	uint64_t shape[CKPT_MAX_DIMS];
	uint64_t boxes[MAX * 8];
	struct chunk_loc locs[MAX];
};

static void list_init(struct list *l, size_t n, const uint64_t *shape)
{
	l->t = (struct tensor_chunks){ .fqn = "w",
				       .fqn_len = 1,
				       .dtype = CKPT_DTYPE_F32,
				       .n_dims = n,
				       .shape = l->shape,
				       .boxes = l->boxes,
				       .locs = l->locs };
	memcpy(l->shape, shape, n * sizeof(*shape));
}

static void list_add(struct list *l, const uint64_t *off, const uint64_t *len)
{
	uint32_t i = l->t.count++;
	size_t n = l->t.n_dims;

	REQUIRE(i < MAX);
	memcpy(l->boxes + i * 2 * n, off, n * sizeof(*off));
	memcpy(l->boxes + i * 2 * n + n, len, n * sizeof(*len));
	l->locs[i] = (struct chunk_loc){ .file = i, .offset = 100 * (uint64_t)i, .length = 10 };
}

static void list_add2(struct list *l, uint64_t o0, uint64_t o1, uint64_t l0, uint64_t l1)
{
	list_add(l, (const uint64_t[]){ o0, o1 }, (const uint64_t[]){ l0, l1 });
}

#define SHAPE(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}

START_TEST(a_grid_in_any_order_is_put_into_cell_order)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes = 0;

	list_init(&l, 2, SHAPE(5, 4));
	list_add2(&l, 3, 2, 2, 2);
	list_add2(&l, 0, 0, 3, 2);
	list_add2(&l, 3, 0, 2, 2);
	list_add2(&l, 0, 2, 3, 2);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(bytes, 80);
	ck_assert(r.is_grid);
	ck_assert_uint_eq(r.grid[0], 2);
	ck_assert_uint_eq(r.grid[1], 2);
	ck_assert_uint_eq(r.count, 4);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	ck_assert_str_eq(r.fault, "");
	ck_assert_uint_eq(r.locs[0].file, 1);
	ck_assert_uint_eq(r.locs[1].file, 3);
	ck_assert_uint_eq(r.locs[2].file, 2);
	ck_assert_uint_eq(r.locs[3].file, 0);
	ck_assert_uint_eq(r.boxes[4 * 3], 3);
	normal_release(&r);
}
END_TEST

START_TEST(empty_chunks_and_replicas_go_and_the_first_replica_stays)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 1, SHAPE(4));
	list_add(&l, SHAPE(4), SHAPE(0)); /* from a rank that has nothing */
	list_add(&l, SHAPE(2), SHAPE(2));
	list_add(&l, SHAPE(0), SHAPE(2));
	list_add(&l, SHAPE(2), SHAPE(2));
	list_add(&l, SHAPE(0), SHAPE(2));
	list_add(&l, SHAPE(0), SHAPE(0));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(r.count, 2);
	ck_assert_uint_eq(r.locs[0].file, 2);
	ck_assert_uint_eq(r.locs[1].file, 1);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	normal_release(&r);
}
END_TEST

/* Empty chunks are dropped before anything else, so they may lie anywhere and need not be
 * stored. */
START_TEST(empty_chunks_are_never_wrong)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 2, SHAPE(2, 2));
	list_add2(&l, 0, 0, 2, 2);
	list_add2(&l, 99, 0, 0, 2);
	list_add2(&l, 0, UINT64_MAX, 7, 0);
	l.locs[1].file = CATALOG_NO_FILE;
	l.locs[2].offset = UINT64_MAX;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(r.count, 1);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	normal_release(&r);
}
END_TEST

START_TEST(what_is_no_grid_stays_in_listing_order)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 2, SHAPE(3, 3)); /* a pinwheel */
	list_add2(&l, 2, 1, 1, 2);
	list_add2(&l, 0, 0, 1, 2);
	list_add2(&l, 1, 1, 1, 1);
	list_add2(&l, 1, 0, 2, 1);
	list_add2(&l, 0, 2, 2, 1);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert(!r.is_grid);
	ck_assert_uint_eq(r.count, 5);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_eq(r.locs[i].file, i);
	ck_assert_mem_eq(r.boxes, l.boxes, 5 * 4 * sizeof(uint64_t));
	normal_release(&r);
}
END_TEST

START_TEST(overlaps_are_told_and_kept_in_listing_order)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 1, SHAPE(6));
	list_add(&l, SHAPE(3), SHAPE(3));
	list_add(&l, SHAPE(0), SHAPE(4));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_OVERLAPPING);
	ck_assert_str_eq(r.fault, "chunks at [3] and [0] overlap; the one listed later is read");
	ck_assert_uint_eq(r.locs[0].file, 0);
	ck_assert_uint_eq(r.locs[1].file, 1);
	normal_release(&r);
	l.t.apart = true;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_INCOMPLETE);
	ck_assert_str_eq(r.fault,
			 "chunks at [3] and [0] overlap: are the ranks' files from one save?");
	normal_release(&r);
}
END_TEST

START_TEST(holes_are_told)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 2, SHAPE(4, 4));
	list_add2(&l, 0, 0, 2, 4);
	list_add2(&l, 2, 0, 2, 2);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_INCOMPLETE);
	ck_assert_str_eq(r.fault, "no chunk holds the elements at [2,2] of size [2,2]");
	l.t.count = 0;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_INCOMPLETE);
	ck_assert_str_eq(r.fault, "no chunk holds the elements at [0,0] of size [4,4]");
	ck_assert_uint_eq(r.count, 0);
	normal_release(&r);
}
END_TEST

START_TEST(chunks_stored_nowhere_are_told)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	list_init(&l, 2, SHAPE(4, 4));
	list_add2(&l, 0, 0, 2, 4);
	list_add2(&l, 2, 0, 2, 2);
	list_add2(&l, 2, 2, 2, 2);
	l.locs[1].file = l.locs[2].file = CATALOG_NO_FILE;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_INCOMPLETE);
	ck_assert_str_eq(r.fault,
			 "2 of its chunks are listed but stored nowhere, first the one at [2,0] of "
			 "size [2,2]");
	ck_assert_uint_eq(r.count, 1);
	/* With a replica that is stored, the tensor is whole again. */
	list_add2(&l, 2, 0, 2, 4);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	ck_assert_str_eq(r.fault, "");
	normal_release(&r);
}
END_TEST

START_TEST(numbers_and_empty_tensors_are_complete)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes = 42;

	list_init(&l, 0, SHAPE(0));
	list_add(&l, SHAPE(0), SHAPE(0));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(bytes, 4);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	ck_assert_uint_eq(r.count, 1);
	list_add(&l, SHAPE(0), SHAPE(0)); /* every rank has the same scalar */
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(r.count, 1);
	l.t.count = 0;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_INCOMPLETE);

	list_init(&l, 2, SHAPE(0, 7));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_uint_eq(bytes, 0);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	ck_assert_uint_eq(r.count, 0);
	list_add2(&l, 0, 0, 0, 7);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	ck_assert_int_eq(r.state, TENSOR_COMPLETE);
	ck_assert_uint_eq(r.count, 0);
	normal_release(&r);
}
END_TEST

START_TEST(a_chunk_outside_the_shape_is_refused)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes = 42;

	list_init(&l, 2, SHAPE(4, 4));
	l.t.fqn = "model.w";
	l.t.fqn_len = 7;
	list_add2(&l, 0, 0, 4, 4);
	list_add2(&l, 2, 3, 2, 2);
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -EBADMSG);
	ck_assert_str_eq(
		e.msg,
		"tensor 'model.w': chunk at [2,3] of size [2,2] lies outside its shape [4,4]");
	l.t.count = 1;
	list_add2(&l, UINT64_MAX, 0, 2, 2); /* their sum wraps */
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -EBADMSG);
	ck_assert_str_eq(
		e.msg,
		"tensor 'model.w': chunk at [18446744073709551615,0] of size [2,2] lies outside "
		"its shape [4,4]");
	ck_assert_uint_eq(bytes, 42);
	normal_release(&r);
}
END_TEST

START_TEST(impossible_numbers_are_refused)
{
	struct normal r = { 0 };
	struct list l;
	struct ckpt_err e = { 0 };
	uint64_t bytes = 42, shape[65];

	list_init(&l, 2, SHAPE((uint64_t)1 << 31, (uint64_t)1 << 31));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "tensor 'w' is larger than 2^63 bytes");
	list_init(&l, 2, SHAPE((uint64_t)1 << 32, (uint64_t)1 << 32));
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -EBADMSG);
	for (size_t d = 0; d < 65; d++)
		shape[d] = 1;
	list_init(&l, 2, SHAPE(1, 1));
	l.t.n_dims = 65;
	l.t.shape = shape;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -ENOTSUP);
	ck_assert_str_eq(e.msg, "tensor 'w' has 65 dimensions");
	list_init(&l, 1, SHAPE(1));
	list_add(&l, SHAPE(0), SHAPE(1));
	l.locs[0].offset = INT64_MAX - 5;
	l.locs[0].length = 6;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "tensor 'w': item at offset 9223372036854775802 of length 6");
	l.locs[0].length = 5;
	ck_assert_int_eq(normal_make(&r, &l.t, &bytes, &e), 0);
	normal_release(&r);
}
END_TEST

/* Count for every element how many chunks hold it. */
static enum tensor_state judge(const struct list *l)
{
	enum tensor_state state = TENSOR_COMPLETE;
	uint64_t idx[CKPT_MAX_DIMS] = { 0 };
	size_t n = l->t.n_dims;

	do {
		const uint64_t *seen = NULL;
		bool twice = false;

		for (uint32_t i = 0; i < l->t.count; i++) {
			const uint64_t *b = l->boxes + i * 2 * n;
			bool in = l->locs[i].file != CATALOG_NO_FILE;

			for (size_t d = 0; d < n; d++)
				in &= idx[d] >= b[d] && idx[d] - b[d] < b[n + d];
			if (!in)
				continue;
			twice |= seen && !box_equal(n, seen, seen + n, b, b + n);
			seen = b;
		}
		if (!seen)
			return TENSOR_INCOMPLETE;
		if (twice)
			state = TENSOR_OVERLAPPING;
	} while (next_index(n, l->shape, idx));
	return state;
}

START_TEST(the_verdict_is_that_of_counting_elements)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { .max_dims = 4, .max_elements = 60, .element = 1 };
	struct normal normal = { 0 };
	unsigned states[3] = { 0 };
	static struct list l;

	for (int i = 0; i < 4000; i++) {
		struct scene s;
		struct ckpt_err e = { 0 };
		uint64_t bytes;

		o.tiling = (enum scene_tiling)rng_below(&r, 3);
		scene_make(&s, &c, &o);
		list_init(&l, s.n, s.shape);
		for (uint32_t k = 0; k < s.count; k++) {
			const uint64_t *b = s.boxes + k * 2 * s.n;

			if (rng_chance(&r, 3))
				continue; /* a hole */
			list_add(&l, b, b + s.n);
			if (rng_chance(&r, 3))
				l.locs[l.t.count - 1].file = CATALOG_NO_FILE;
			if (rng_chance(&r, 10))
				list_add(&l, b, b + s.n); /* a replica */
		}
		REQUIRE(normal_make(&normal, &l.t, &bytes, &e) == 0);
		REQUIRE(bytes == s.bytes * 4);
		if (s.bytes) {
			enum tensor_state want = judge(&l);

			REQUIRE(normal.state == want);
			REQUIRE((normal.fault[0] != 0) == (want != TENSOR_COMPLETE));
			states[want]++;
		}
		for (uint32_t k = 0; k < normal.count; k++) { /* boxes and items stay together */
			uint32_t from = normal.locs[k].file;
			size_t row = 2 * s.n * sizeof(uint64_t);

			REQUIRE(from < l.t.count && normal.locs[k].offset == 100u * from);
			REQUIRE(!memcmp(normal.boxes + k * 2 * s.n, l.boxes + from * 2 * s.n, row));
			REQUIRE(normal.is_grid || !k || normal.locs[k - 1].file < from);
		}
		scene_release(&s);
	}
	normal_release(&normal);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_gt(states[i], 100);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	struct list l;
	unsigned failed = 0;

	list_init(&l, 2, SHAPE(3, 3));
	list_add2(&l, 2, 1, 1, 2);
	list_add2(&l, 0, 0, 1, 2);
	list_add2(&l, 1, 1, 1, 1);
	list_add2(&l, 1, 0, 2, 1);
	list_add2(&l, 0, 2, 2, 1);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct normal r = { 0 };
		struct ckpt_err e = { 0 };
		uint64_t bytes;
		int rc = normal_make(&r, &l.t, &bytes, &e);

		(void)fault_off();
		/* If there is no memory to prove that a tensor is complete, it counts as
		 * incomplete. */
		ck_assert(rc == -ENOMEM ||
			  (!rc && r.state == (fault_hit() ? TENSOR_INCOMPLETE : TENSOR_COMPLETE)));
		ck_assert_int_eq(e.code, -rc);
		failed += rc != 0;
		normal_release(&r);
	}
	ck_assert_uint_ge(failed, 4);
}
END_TEST

SUITE(normal, .seconds = 60)

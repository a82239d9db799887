/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "box_util.h"
#include "fault.h"
#include "model/box.h"
#include "rng.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

enum { DIMS = 4, MAX_BOXES = 64, MAX_ELEMENTS = 6 * 6 * 6 * 6 };

struct tiling {
	size_t n, count;
	uint64_t shape[DIMS];
	uint64_t boxes[2 * DIMS * (MAX_BOXES + 1)];
};

static uint64_t *row(struct tiling *t, size_t i)
{
	return t->boxes + 2 * t->n * i;
}

/* Cut the box in two at random, and its halves again; leaves are added to the tiling. */
static void cut(struct rng *r, struct tiling *t, const uint64_t *off, const uint64_t *len,
		unsigned depth)
{
	uint64_t o[DIMS], l[DIMS];
	size_t d = t->n ? rng_below(r, t->n) : 0;

	if (!t->n || len[d] == 1 || depth == 5 || t->count > MAX_BOXES - 8 || rng_chance(r, 10)) {
		memcpy(row(t, t->count), off, t->n * sizeof(*off));
		memcpy(row(t, t->count++) + t->n, len, t->n * sizeof(*len));
		return;
	}
	memcpy(o, off, sizeof(o));
	memcpy(l, len, sizeof(l));
	l[d] = 1 + rng_below(r, len[d] - 1);
	cut(r, t, o, l, depth + 1);
	o[d] += l[d];
	l[d] = len[d] - l[d];
	cut(r, t, o, l, depth + 1);
}

static void make_tiling(struct rng *r, struct tiling *t)
{
	const uint64_t zero[DIMS] = { 0 };

	memset(t, 0, sizeof(*t));
	t->n = rng_below(r, DIMS + 1);
	for (size_t d = 0; d < t->n; d++)
		t->shape[d] = 1 + rng_below(r, 6);
	cut(r, t, zero, t->shape, 0);
	for (size_t i = t->count; i > 1; i--) { /* any order */
		size_t j = rng_below(r, i);
		uint64_t other[2 * DIMS];

		memcpy(other, row(t, i - 1), 2 * t->n * sizeof(*other));
		memmove(row(t, i - 1), row(t, j), 2 * t->n * sizeof(*other));
		memcpy(row(t, j), other, 2 * t->n * sizeof(*other));
	}
}

/* How often a box of the tiling covers element v. */
static unsigned painted(const struct tiling *t, const uint64_t *v)
{
	unsigned layers = 0;

	for (size_t i = 0; i < t->count; i++) {
		const uint64_t *b = t->boxes + 2 * t->n * i;
		bool in = true;

		for (size_t d = 0; d < t->n; d++)
			in &= v[d] >= b[d] && v[d] < b[d] + b[t->n + d];
		layers += in;
	}
	return layers;
}

static enum boxes_verdict cover(size_t n, const uint64_t *shape, const uint64_t *boxes,
				size_t count, uint64_t *off, uint64_t *len, size_t *pair)
{
	uint64_t work = BOXES_MAX_WORK;

	return boxes_cover(n, shape, boxes, count, &work, off, len, pair);
}

static void check(const struct tiling *t)
{
	uint64_t off[DIMS] = { 0 }, len[DIMS] = { 0 }, v[DIMS] = { 0 };
	enum boxes_verdict want = BOXES_COVER, got;
	size_t pair[2] = { SIZE_MAX, SIZE_MAX };
	bool hole = false, overlap = false;

	do {
		unsigned layers = painted(t, v);

		hole |= !layers;
		overlap |= layers > 1;
	} while (next_element(t->n, t->shape, v));
	want = hole ? BOXES_HOLE : overlap ? BOXES_OVERLAP : BOXES_COVER;
	got = cover(t->n, t->shape, t->boxes, t->count, off, len, pair);
	REQUIRE(got == want);
	if (got == BOXES_HOLE) {
		uint64_t volume = 0;

		REQUIRE(box_inside(t->n, off, len, t->shape));
		REQUIRE(box_volume(t->n, len, &volume));
		REQUIRE(volume > 0);
		do {
			for (size_t d = 0; d < t->n; d++)
				v[d] += off[d];
			REQUIRE(painted(t, v) == 0);
			for (size_t d = 0; d < t->n; d++)
				v[d] -= off[d];
		} while (next_element(t->n, len, v));
	}
	if (got == BOXES_OVERLAP) {
		const uint64_t *a = t->boxes + 2 * t->n * pair[0],
			       *b = t->boxes + 2 * t->n * pair[1];

		REQUIRE(pair[0] < pair[1]);
		REQUIRE(pair[1] < t->count);
		REQUIRE(box_intersect(t->n, a, a + t->n, b, b + t->n, off, len));
	}
}

START_TEST(random_tilings_cover)
{
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		struct tiling t;

		make_tiling(&r, &t);
		check(&t);
	}
}
END_TEST

START_TEST(a_missing_box_is_a_hole)
{
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		struct tiling t;

		make_tiling(&r, &t);
		t.count--;
		memmove(row(&t, rng_below(&r, t.count + 1)), row(&t, t.count),
			2 * t.n * sizeof(*t.boxes));
		check(&t);
	}
}
END_TEST

START_TEST(a_box_listed_twice_overlaps)
{
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		struct tiling t;

		make_tiling(&r, &t);
		memcpy(row(&t, t.count), row(&t, rng_below(&r, t.count)),
		       2 * t.n * sizeof(*t.boxes));
		t.count++;
		check(&t);
	}
}
END_TEST

/* Moved, stretched or replaced boxes: holes and overlaps in all combinations. */
START_TEST(disturbed_tilings_get_the_right_verdict)
{
	struct rng r = rng_new();

	for (int i = 0; i < 10000; i++) {
		struct tiling t;

		make_tiling(&r, &t);
		for (size_t times = 1 + rng_below(&r, 4); times && t.n; times--) {
			uint64_t *b = row(&t, rng_below(&r, t.count));
			size_t d = rng_below(&r, t.n);

			b[d] = rng_below(&r, t.shape[d]);
			b[t.n + d] = 1 + rng_below(&r, t.shape[d] - b[d]);
		}
		check(&t);
	}
}
END_TEST

START_TEST(few_cases_have_no_boxes_or_no_elements)
{
	uint64_t off[2], len[2];
	size_t pair[2] = { 7, 7 };

	/* an empty tensor needs no chunk; any other does */
	ck_assert_int_eq(cover(2, (const uint64_t[]){ 3, 0 }, NULL, 0, off, len, pair),
			 BOXES_COVER);
	ck_assert_int_eq(cover(2, (const uint64_t[]){ 3, 4 }, NULL, 0, off, len, pair), BOXES_HOLE);
	ck_assert(!off[0] && !off[1] && len[0] == 3 && len[1] == 4);
	/* a number has one element */
	ck_assert_int_eq(cover(0, len, off, 0, off, len, pair), BOXES_HOLE);
	ck_assert_int_eq(cover(0, len, off, 1, off, len, pair), BOXES_COVER);
	ck_assert_uint_eq(pair[0], 7);
	ck_assert_int_eq(cover(0, len, off, 2, off, len, pair), BOXES_OVERLAP);
	ck_assert(pair[0] == 0 && pair[1] == 1);
}
END_TEST

START_TEST(sizes_that_do_not_fit_are_unknown)
{
	const uint64_t big = (uint64_t)1 << 40;
	uint64_t off[2], len[2];
	size_t pair[2];

	ck_assert_int_eq(cover(2, (const uint64_t[]){ big, big },
			       (const uint64_t[]){ 0, 0, big, big }, 1, off, len, pair),
			 BOXES_UNKNOWN);
}
END_TEST

START_TEST(out_of_memory_is_unknown)
{
	static const uint64_t shape[] = { 4, 4 }, boxes[] = { 0, 0, 2, 4, 1, 0, 3, 4 };
	int unknown = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		uint64_t off[2], len[2];
		size_t pair[2];
		enum boxes_verdict v = cover(2, shape, boxes, 2, off, len, pair);

		(void)fault_off();
		unknown += v == BOXES_UNKNOWN;
		REQUIRE(v == BOXES_UNKNOWN || v == BOXES_OVERLAP);
	}
	ck_assert_int_eq(unknown, 4);
}
END_TEST

START_TEST(a_large_sharding_is_quick)
{
	enum { SIDE = 300 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * SIDE * SIDE), off[2], len[2];
	const uint64_t shape[] = { SIDE * 7, SIDE * 11 };
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) {
		boxes[4 * i] = i / SIDE * 7;
		boxes[4 * i + 1] = i % SIDE * 11;
		boxes[4 * i + 2] = 7;
		boxes[4 * i + 3] = 11;
	}
	ck_assert_int_eq(cover(2, shape, boxes, (size_t)SIDE * SIDE, off, len, pair), BOXES_COVER);
	boxes[4 * (SIDE * SIDE / 2) + 3] = 10;
	ck_assert_int_eq(cover(2, shape, boxes, (size_t)SIDE * SIDE, off, len, pair), BOXES_HOLE);
	ck_assert_uint_eq(len[0], 7);
	ck_assert_uint_eq(len[1], 1);
	free(boxes);
}
END_TEST

/* Boxes made to be slow still get an answer, or UNKNOWN, in bounded time. */
START_LONG_TEST(crosses_everywhere_do_not_run_away)
{
	enum { COUNT = 20000 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * COUNT), off[2], len[2];
	const uint64_t shape[] = { 3 * COUNT, 3 * COUNT };
	size_t pair[2];

	if (!rng_turn(0, 3)) { /* each goes through all of the work that is allowed */
		free(boxes);
		return;
	}
	ck_assert_ptr_nonnull(boxes);
	for (uint64_t i = 0; i < COUNT; i++) {
		boxes[4 * i] = i % 2 ? 0 : i;
		boxes[4 * i + 1] = i % 2 ? i : 0;
		boxes[4 * i + 2] = i % 2 ? shape[0] : 1;
		boxes[4 * i + 3] = i % 2 ? 1 : shape[1];
	}
	ck_assert_int_ne(cover(2, shape, boxes, COUNT, off, len, pair), BOXES_COVER);
	free(boxes);
}
END_TEST

/* All boxes reach the far end of dimension 0; along dimension 1 no two overlap. */
START_TEST(boxes_that_one_dimension_separates_cost_nothing)
{
	enum { COUNT = 20000 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * COUNT), off[2], len[2];
	const uint64_t shape[] = { COUNT, COUNT };
	uint64_t work = 1;
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	for (uint64_t i = 0; i < COUNT; i++) {
		boxes[4 * i] = boxes[4 * i + 1] = i;
		boxes[4 * i + 2] = COUNT - i;
		boxes[4 * i + 3] = 1;
	}
	ck_assert_int_eq(boxes_cover(2, shape, boxes, COUNT, &work, off, len, pair), BOXES_HOLE);
	boxes[0] = boxes[1] = 0;
	for (uint64_t i = 0; i < COUNT; i++) {
		boxes[4 * i] = 0;
		boxes[4 * i + 2] = COUNT;
	}
	work = 1;
	ck_assert_int_eq(boxes_cover(2, shape, boxes, COUNT, &work, off, len, pair), BOXES_COVER);
	ck_assert_uint_eq(work, 1);
	free(boxes);
}
END_TEST

/*
 * Half of the boxes are rows, the others, beside them, columns: no dimension separates them, and
 * all of a half have to be compared with each other.
 */
static void rows_beside_columns(size_t n, uint64_t side, uint64_t *boxes, uint64_t *shape)
{
	for (size_t d = 0; d < n; d++)
		shape[d] = d == 0 ? 2 * side : d == n - 1 ? side : 1;
	for (uint64_t i = 0; i < 2 * side; i++) {
		uint64_t *off = boxes + i * 2 * n, *len = off + n;

		for (size_t d = 0; d < n; d++) {
			off[d] = 0;
			len[d] = 1;
		}
		off[0] = i < side ? 0 : i;
		len[0] = i < side ? side : 1;
		off[n - 1] = i < side ? i : 0;
		len[n - 1] = i < side ? 1 : side;
	}
}

START_LONG_TEST(tensors_share_the_work_and_dimensions_count)
{
	enum { SIDE = 2000 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 2 * 64 * 2 * SIDE), off[64], len[64], shape[64];
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	for (size_t n = 2; n <= 64; n += 31) {
		if (!rng_turn(n / 31, 3))
			continue;
		uint64_t work = BOXES_MAX_WORK, before = work, each = 0, done = 0;
		/* All pairs within one half, in every dimension, for whichever half takes
		 * longer. */
		const uint64_t pairs = SIDE * (SIDE - 1) / 2;

		rows_beside_columns(n, SIDE, boxes, shape);
		while (boxes_cover(n, shape, boxes, 2 * (size_t)SIDE, &work, off, len, pair) ==
		       BOXES_COVER) {
			REQUIRE(!each || before - work == each);
			each = before - work;
			before = work;
			REQUIRE(++done < 1000);
		}
		ck_assert_uint_ge(each, pairs * n);
		ck_assert_uint_eq(done, BOXES_MAX_WORK / each);
		ck_assert_uint_eq(work, 0);
		ck_assert_int_eq(
			boxes_cover(n, shape, boxes, 2 * (size_t)SIDE, &work, off, len, pair),
			BOXES_UNKNOWN);
	}
	free(boxes);
}
END_TEST

/* 316 rows, each cut in its own way: as irregular as anything that anybody has saved. */
START_TEST(irregular_shardings_take_a_small_part_of_the_work)
{
	enum { ROWS = 316, COUNT = ROWS * ROWS };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * COUNT), off[2], len[2];
	const uint64_t shape[] = { 4 * ROWS, 16 * ROWS };
	uint64_t work = BOXES_MAX_WORK;
	struct rng r = rng_new();
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	for (size_t row = 0, i = 0; row < ROWS; row++)
		for (uint64_t k = 0, at = 0; k < ROWS; k++, i++) {
			uint64_t end = k + 1 == ROWS ? shape[1] : 16 * k + 8 + rng_below(&r, 16);

			memcpy(boxes + 4 * i, (uint64_t[]){ 4 * row, at, 4, end - at },
			       4 * sizeof(*boxes));
			at = end;
		}
	ck_assert_int_eq(boxes_cover(2, shape, boxes, COUNT, &work, off, len, pair), BOXES_COVER);
	ck_assert_uint_le(BOXES_MAX_WORK - work, BOXES_MAX_WORK / 8);
	free(boxes);
}
END_TEST

START_LONG_TEST(too_many_boxes_side_by_side_are_unknown)
{
	enum { COUNT = 40000 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * COUNT), off[2], len[2], shape[2];
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	rows_beside_columns(2, COUNT / 2, boxes, shape);
	ck_assert_int_eq(cover(2, shape, boxes, COUNT, off, len, pair), BOXES_UNKNOWN);
	free(boxes);
}
END_TEST

START_LONG_TEST(a_hole_among_too_many_pieces_is_not_named)
{
	enum { COUNT = 20000 };
	uint64_t *boxes = malloc(sizeof(*boxes) * 4 * COUNT), off[2] = { 7, 7 }, len[2];
	const uint64_t shape[] = { 3 * COUNT, 3 * COUNT };
	size_t pair[2];

	ck_assert_ptr_nonnull(boxes);
	for (uint64_t i = 0; i < COUNT; i++) {
		boxes[4 * i] = 3 * i + 1;
		boxes[4 * i + 1] = 3 * (i * 7919 % COUNT) + 1;
		boxes[4 * i + 2] = boxes[4 * i + 3] = 1;
	}
	ck_assert_int_eq(cover(2, shape, boxes, COUNT, off, len, pair), BOXES_HOLE);
	ck_assert(!off[0] && !off[1] && len[0] == shape[0] && len[1] == shape[1]);
	free(boxes);
}
END_TEST

/* Each box cuts all that those before it have left into some 20 pieces. */
START_TEST(boxes_of_many_dimensions_do_not_eat_all_memory)
{
	enum { N = 15, COUNT = 7 };
	uint64_t boxes[COUNT * 2 * N], shape[N], off[N], len[N];
	size_t pair[2];

	for (size_t d = 0; d < N; d++)
		shape[d] = 18; /* 18^15 < 2^63 */
	for (size_t i = 0; i < COUNT; i++)
		for (size_t d = 0; d < N; d++) {
			boxes[i * 2 * N + d] = d ? 8 - i : i;
			boxes[i * 2 * N + N + d] = d ? 2 + 2 * i : 18 - i;
		}
	ck_assert_int_eq(cover(N, shape, boxes, COUNT, off, len, pair), BOXES_UNKNOWN);
}
END_TEST

SUITE(box_cover, .seconds = 60)

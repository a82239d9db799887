/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "box_util.h"
#include "model/box.h"
#include "rng.h"
#include "suites.h"

#include <string.h>

enum { DIMS = 4, SIDE = 5 }; /* for random boxes, small enough to look at every element */

static uint64_t linear(size_t n, const uint64_t *shape, const uint64_t *v)
{
	uint64_t r = 0;

	for (size_t d = 0; d < n; d++)
		r = r * shape[d] + v[d];
	return r;
}

/* ---- single boxes ---- */

START_TEST(intersection_is_what_both_contain)
{
	const uint64_t shape[DIMS] = { SIDE, SIDE, SIDE, SIDE };
	struct rng r = rng_new();

	for (int i = 0; i < 20000; i++) {
		uint64_t a[2 * DIMS], b[2 * DIMS], got[2 * DIMS], v[DIMS] = { 0 };
		size_t n = rng_below(&r, DIMS + 1);
		bool hit, any = false;

		for (size_t d = 0; d < n; d++) {
			a[d] = rng_below(&r, SIDE);
			a[n + d] = rng_below(&r, SIDE - a[d] + 1);
			b[d] = rng_below(&r, SIDE);
			b[n + d] = rng_below(&r, SIDE - b[d] + 1);
		}
		hit = box_intersect(n, a, a + n, b, b + n, got, got + n);
		do {
			bool both = contains(n, a, a + n, v) && contains(n, b, b + n, v);

			any |= both;
			if (hit && both != contains(n, got, got + n, v))
				ck_abort_msg("round %d: wrong element", i);
		} while (next_element(n, shape, v));
		REQUIRE(hit == any);
		if (!hit)
			continue;
		/* The same, with the result written over one of the inputs. */
		if (rng_chance(&r, 50)) {
			REQUIRE(box_intersect(n, a, a + n, b, b + n, a, a + n));
			REQUIRE(box_equal(n, a, a + n, got, got + n));
		} else {
			REQUIRE(box_intersect(n, a, a + n, b, b + n, b, b + n));
			REQUIRE(box_equal(n, b, b + n, got, got + n));
		}
	}
}
END_TEST

START_TEST(volume_is_the_product_or_too_big)
{
	const uint64_t big = (uint64_t)1 << 32;
	uint64_t v = 42;

	ck_assert(box_volume(0, NULL, &v));
	ck_assert_uint_eq(v, 1);
	ck_assert(box_volume(3, (const uint64_t[]){ 2, 3, 7 }, &v));
	ck_assert_uint_eq(v, 42);
	ck_assert(box_volume(2, (const uint64_t[]){ INT64_MAX, 1 }, &v));
	ck_assert_uint_eq(v, INT64_MAX);
	ck_assert(!box_volume(1, (const uint64_t[]){ (uint64_t)INT64_MAX + 1 }, &v));
	ck_assert(!box_volume(2, (const uint64_t[]){ big, big }, &v));
	ck_assert(!box_volume(3, (const uint64_t[]){ big, big, 2 }, &v)); /* wraps to 0 */
	ck_assert_uint_eq(v, INT64_MAX);
	ck_assert(box_volume(4, (const uint64_t[]){ big, big, big, 0 }, &v));
	ck_assert_uint_eq(v, 0);
}
END_TEST

START_TEST(inside_does_not_wrap)
{
	const uint64_t shape[] = { 4, UINT64_MAX };

	ck_assert(box_inside(0, NULL, NULL, NULL));
	ck_assert(box_inside(2, (const uint64_t[]){ 0, 0 }, shape, shape));
	ck_assert(box_inside(2, (const uint64_t[]){ 4, 1 }, (const uint64_t[]){ 0, 7 }, shape));
	ck_assert(!box_inside(2, (const uint64_t[]){ 3, 0 }, (const uint64_t[]){ 2, 1 }, shape));
	ck_assert(!box_inside(2, (const uint64_t[]){ 5, 0 }, (const uint64_t[]){ 0, 0 }, shape));
	ck_assert(!box_inside(2, (const uint64_t[]){ 0, 2 }, (const uint64_t[]){ 1, UINT64_MAX },
			      shape));
	ck_assert(!box_inside(2, (const uint64_t[]){ UINT64_MAX, 0 }, (const uint64_t[]){ 2, 1 },
			      shape));
}
END_TEST

START_TEST(equality_looks_at_offsets_and_lengths)
{
	const uint64_t a[] = { 1, 2 }, b[] = { 1, 3 };

	ck_assert(box_equal(2, a, b, a, b));
	ck_assert(!box_equal(2, a, b, b, b));
	ck_assert(!box_equal(2, a, a, a, b));
	ck_assert(box_equal(1, a, a, b, b)); /* the second numbers are not looked at */
}
END_TEST

START_TEST(offsets_compare_row_major)
{
	ck_assert_int_eq(box_compare_off(0, NULL, NULL), 0);
	ck_assert_int_eq(box_compare_off(2, (const uint64_t[]){ 1, 2 }, (const uint64_t[]){ 1, 2 }),
			 0);
	ck_assert_int_lt(box_compare_off(2, (const uint64_t[]){ 1, 9 }, (const uint64_t[]){ 2, 0 }),
			 0);
	ck_assert_int_gt(box_compare_off(2, (const uint64_t[]){ 1, 9 }, (const uint64_t[]){ 1, 8 }),
			 0);
	ck_assert_int_lt(
		box_compare_off(1, (const uint64_t[]){ 0 }, (const uint64_t[]){ UINT64_MAX }), 0);
}
END_TEST

/* ---- runs of elements ---- */

struct range {
	size_t n, boxes;
	uint64_t shape[DIMS], first, count;
	uint64_t done;	/* elements emitted so far */
	int stop_after; /* boxes, -1 never */
};

/* Every element of the box must be the next one of the range. */
static int check_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct range *g = arg;
	uint64_t v[DIMS] = { 0 }, at[DIMS] = { 0 };

	REQUIRE(pos == g->done);
	REQUIRE(box_inside(g->n, off, len, g->shape));
	do {
		for (size_t d = 0; d < g->n; d++)
			at[d] = off[d] + v[d];
		REQUIRE(linear(g->n, g->shape, at) == g->first + g->done);
		g->done++;
	} while (next_element(g->n, len, v));
	g->boxes++;
	return g->stop_after == (int)g->boxes ? 77 : 0;
}

static void check_range(size_t n, const uint64_t *shape, uint64_t first, uint64_t count)
{
	struct range g = { .n = n, .first = first, .count = count, .stop_after = -1 };

	memcpy(g.shape, shape, n * sizeof(*shape));
	REQUIRE(box_of_range(n, shape, first, count, check_box, &g) == 0);
	REQUIRE(g.done == count);
	REQUIRE(g.boxes <= (n ? 2 * n - 1 : 1));
}

static const struct {
	size_t n;
	uint64_t shape[DIMS];
} range_rows[] = {
	{ 0, { 0 } },	    { 1, { 1 } },	   { 1, { 9 } },	  { 2, { 3, 4 } },
	{ 2, { 1, 7 } },    { 2, { 7, 1 } },	   { 3, { 3, 4, 2 } },	  { 3, { 1, 5, 1 } },
	{ 3, { 4, 1, 4 } }, { 4, { 2, 3, 2, 3 } }, { 4, { 3, 1, 1, 5 } }, { 4, { 2, 2, 2, 2 } },
};

START_LOOP_TEST(every_range_of_a_shape_becomes_runs_in_order, ARRAY_LEN(range_rows))
{
	const uint64_t *shape = range_rows[_i].shape;
	size_t n = range_rows[_i].n;
	uint64_t volume = 0;

	REQUIRE(box_volume(n, shape, &volume));
	for (uint64_t first = 0; first < volume; first++)
		for (uint64_t count = 0; count <= volume - first; count++)
			check_range(n, shape, first, count);
}
END_TEST

START_TEST(ranges_of_random_shapes_become_runs_in_order)
{
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		uint64_t shape[DIMS] = { 0 }, volume = 0, first;
		size_t n = 1 + rng_below(&r, DIMS);

		for (size_t d = 0; d < n; d++)
			shape[d] = 1 + rng_below(&r, 7);
		REQUIRE(box_volume(n, shape, &volume));
		first = rng_below(&r, volume);
		check_range(n, shape, first, rng_below(&r, volume - first + 1));
	}
}
END_TEST

START_TEST(range_stops_where_emit_says_so)
{
	struct range g = { .n = 2, .shape = { 3, 4 }, .first = 1, .stop_after = 2 };

	ck_assert_int_eq(box_of_range(2, g.shape, 1, 11, check_box, &g), 77);
	ck_assert_uint_eq(g.boxes, 2);
	ck_assert_uint_eq(g.done, 11); /* a part of row 0, then rows 1 and 2 */
}
END_TEST

struct big_range {
	size_t n, boxes;
	const uint64_t *shape;
	uint64_t next;
};

/* A box is a single run if it is whole in all dimensions behind the first that is longer than 1. */
static int check_big_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct big_range *g = arg;
	uint64_t volume = 0;
	size_t d = 0;

	while (d < g->n && len[d] == 1)
		d++;
	for (d++; d < g->n; d++)
		ck_assert(!off[d] && len[d] == g->shape[d]);
	ck_assert(box_inside(g->n, off, len, g->shape));
	ck_assert(box_volume(g->n, len, &volume));
	ck_assert_uint_gt(volume, 0);
	ck_assert_uint_eq(linear(g->n, g->shape, off), g->next);
	ck_assert_uint_eq(linear(g->n, g->shape, off), pos + 5);
	g->next += volume;
	g->boxes++;
	return 0;
}

START_TEST(ranges_of_tensors_near_2_to_the_63_do_not_wrap)
{
	const uint64_t shape[] = { (uint64_t)1 << 20, 1, (uint64_t)1 << 21, 3,
				   ((uint64_t)1 << 20) - 1 };
	struct big_range g = { .n = 5, .shape = shape, .next = 5 };
	uint64_t volume = 0;

	ck_assert(box_volume(5, shape, &volume));
	ck_assert_int_eq(box_of_range(5, shape, 5, volume - 12, check_big_box, &g), 0);
	ck_assert_uint_eq(g.next, volume - 7);
	ck_assert_uint_le(g.boxes, 9);
}
END_TEST

/* ---- grids ---- */

struct grid {
	size_t n, count;
	uint64_t shape[DIMS], counts[DIMS], starts[DIMS * SIDE];
	uint64_t boxes[2 * DIMS * 625];
};

/* Cuts every dimension at random; the cells are in order. */
static void make_grid(struct rng *r, struct grid *g)
{
	uint64_t cell[DIMS] = { 0 };
	size_t at = 0;

	g->n = rng_below(r, DIMS + 1);
	g->count = 0;
	for (size_t d = 0; d < g->n; d++) {
		uint64_t end = 0;

		g->counts[d] = 1 + rng_below(r, SIDE);
		for (uint64_t k = 0; k < g->counts[d]; k++) {
			g->starts[at++] = end;
			end += 1 + rng_below(r, 3);
		}
		g->shape[d] = end;
	}
	do {
		uint64_t *box = g->boxes + 2 * g->n * g->count++;
		const uint64_t *starts = g->starts;

		for (size_t d = 0; d < g->n; d++) {
			bool last = cell[d] + 1 == g->counts[d];

			box[d] = starts[cell[d]];
			box[g->n + d] = (last ? g->shape[d] : starts[cell[d] + 1]) - box[d];
			starts += g->counts[d];
		}
	} while (next_element(g->n, g->counts, cell));
}

START_TEST(grids_are_found_with_their_cuts)
{
	struct rng r = rng_new();

	for (int i = 0; i < 2000; i++) {
		static struct grid g;
		uint64_t counts[DIMS], starts[DIMS + 625];
		size_t n_starts = 0;

		make_grid(&r, &g);
		for (size_t d = 0; d < g.n; d++)
			n_starts += g.counts[d];
		REQUIRE(boxes_grid(g.n, g.shape, g.boxes, g.count, counts, starts));
		REQUIRE(!memcmp(counts, g.counts, g.n * sizeof(*counts)));
		REQUIRE(!memcmp(starts, g.starts, n_starts * sizeof(*starts)));
	}
}
END_TEST

START_TEST(anything_else_is_no_grid)
{
	struct rng r = rng_new();

	for (int i = 0; i < 4000; i++) {
		static struct grid g;
		uint64_t counts[DIMS], starts[DIMS + 626];
		uint64_t *box, other[2 * DIMS];
		size_t k, j, row;

		make_grid(&r, &g);
		if (!g.n || g.count < 2)
			continue;
		row = 2 * g.n;
		k = rng_below(&r, g.count);
		j = (k + 1 + rng_below(&r, g.count - 1)) % g.count;
		box = g.boxes + k * row;
		switch (rng_below(&r, 5)) {
		case 0: /* one is missing */
			memmove(box, box + row, (g.count - k - 1) * row * sizeof(*box));
			g.count--;
			break;
		case 1: /* two change places */
			memcpy(other, box, row * sizeof(*box));
			memcpy(box, g.boxes + j * row, row * sizeof(*box));
			memcpy(g.boxes + j * row, other, row * sizeof(*box));
			break;
		case 2: /* one replaces another */
			memcpy(box, g.boxes + j * row, row * sizeof(*box));
			break;
		case 3: { /* one is shorter */
			size_t d = rng_below(&r, g.n);

			if (box[g.n + d] == 1)
				continue;
			box[g.n + d]--;
			break;
		}
		default: { /* the tensor is longer */
			size_t d = rng_below(&r, g.n);

			g.shape[d]++;
			break;
		}
		}
		REQUIRE(!boxes_grid(g.n, g.shape, g.boxes, g.count, counts, starts));
	}
}
END_TEST

START_TEST(degenerate_grids)
{
	uint64_t counts[2], starts[8];

	/* no dimensions: one box is a grid of one cell, two are none */
	ck_assert(boxes_grid(0, NULL, NULL, 1, counts, starts));
	ck_assert(!boxes_grid(0, NULL, NULL, 2, counts, starts));
	ck_assert(!boxes_grid(1, (const uint64_t[]){ 4 }, NULL, 0, counts, starts));
	ck_assert(!boxes_grid(2, (const uint64_t[]){ 4, 0 }, NULL, 0, counts, starts));
	/* a brick wall: tiles, but no grid */
	ck_assert(!boxes_grid(2, (const uint64_t[]){ 2, 4 },
			      (const uint64_t[]){ 0, 0, 1, 2, 0, 2, 1, 2, 1, 0, 1, 1, 1, 1, 1, 3 },
			      4, counts, starts));
	/* its offsets fill a grid, its lengths overlap */
	ck_assert(!boxes_grid(1, (const uint64_t[]){ 4 }, (const uint64_t[]){ 0, 3, 2, 2 }, 2,
			      counts, starts));
}
END_TEST

SUITE(box, .seconds = 60)

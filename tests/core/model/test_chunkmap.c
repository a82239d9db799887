/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "fault.h"
#include "model/box.h"
#include "model/chunkmap.h"
#include "rng.h"
#include "suites.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 4, SIDE = 8, MAX_BOXES = 300 };

struct chunks {
	size_t n;
	uint32_t count;
	uint64_t shape[DIMS];
	uint64_t boxes[2 * DIMS * MAX_BOXES];
};

struct walk {
	const struct chunks *c;
	const uint64_t *off, *len; /* the query */
	uint32_t next;		   /* chunks must come in order: none before this one */
	uint32_t hits;
	uint32_t stop_after;
};

/* The next chunk, in listing order, that the query touches. */
static uint32_t next_hit(const struct walk *w, uint32_t from, uint64_t *off, uint64_t *len)
{
	size_t n = w->c->n;

	for (; from < w->c->count; from++) {
		const uint64_t *b = w->c->boxes + (size_t)from * 2 * n;

		if (box_intersect(n, b, b + n, w->off, w->len, off, len))
			break;
	}
	return from;
}

static int check_hit(void *arg, uint32_t chunk, const uint64_t *chunk_off,
		     const uint64_t *chunk_len, const uint64_t *off, const uint64_t *len)
{
	struct walk *w = arg;
	uint64_t want_off[DIMS], want_len[DIMS];
	uint32_t want = next_hit(w, w->next, want_off, want_len);
	const uint64_t *b = w->c->boxes + (size_t)want * 2 * w->c->n;

	REQUIRE(chunk == want);
	REQUIRE(box_equal(w->c->n, chunk_off, chunk_len, b, b + w->c->n));
	REQUIRE(box_equal(w->c->n, off, len, want_off, want_len));
	w->next = want + 1;
	return ++w->hits == w->stop_after ? 55 : 0;
}

static void check_query(const struct chunks *c, const struct chunkmap *m, const uint64_t *off,
			const uint64_t *len)
{
	struct walk w = { .c = c, .off = off, .len = len };
	uint64_t o[DIMS], l[DIMS];

	REQUIRE(chunkmap_find(m, off, len, check_hit, &w) == 0);
	REQUIRE(next_hit(&w, w.next, o, l) == c->count); /* none is left out */
	if (w.hits > 1) {
		struct walk half = { .c = c, .off = off, .len = len, .stop_after = w.hits / 2 };

		REQUIRE(chunkmap_find(m, off, len, check_hit, &half) == 55);
		REQUIRE(half.hits == w.hits / 2);
	}
}

/* want_grid: 0 no, 1 yes, -1 either */
static void check(struct rng *r, const struct chunks *c, int want_grid)
{
	struct chunkmap *m = chunkmap_new(c->n, c->shape, c->boxes, c->count);
	uint64_t off[DIMS] = { 0 }, len[DIMS];

	REQUIRE(m);
	REQUIRE(m->n_dims == c->n);
	REQUIRE(m->count == c->count);
	REQUIRE(!memcmp(m->shape, c->shape, c->n * sizeof(*c->shape)));
	if (want_grid >= 0)
		REQUIRE(!!m->counts == want_grid);
	for (uint32_t i = 0; i < c->count; i++) {
		const uint64_t *b = c->boxes + (size_t)i * 2 * c->n;

		m->locs[i] =
			(struct chunk_loc){ .offset = i, .length = i, .file = i, .encoding = i };
		chunkmap_box(m, i, off, len);
		REQUIRE(box_equal(c->n, off, len, b, b + c->n));
	}
	memset(off, 0, sizeof(off));
	check_query(c, m, off, c->shape);
	for (int i = 0; i < 30; i++) {
		for (size_t d = 0; d < c->n; d++) {
			off[d] = rng_below(r, c->shape[d]);
			len[d] = 1 + rng_below(r, rng_chance(r, 30) ? 1 : c->shape[d] - off[d]);
		}
		check_query(c, m, off, len);
	}
	for (uint32_t i = 0; i < c->count; i++)
		REQUIRE(m->locs[i].file == i);
	free(m);
}

/* A grid in row-major order. Where step[d] > 0, cells have that length, and the last one has the
 * rest. */
static void make_grid(struct rng *r, struct chunks *c, bool even)
{
	uint64_t starts[DIMS][SIDE + 1], counts[DIMS], cell[DIMS] = { 0 };

	memset(c, 0, sizeof(*c));
	c->n = rng_below(r, DIMS + 1);
	for (size_t d = 0; d < c->n; d++) {
		uint64_t step = 1 + rng_below(r, 4), end = 0;

		counts[d] = 1 + rng_below(r, 4);
		for (uint64_t k = 0; k < counts[d]; k++) {
			starts[d][k] = end;
			end += !even		   ? 1 + rng_below(r, 4)
			       : k + 1 < counts[d] ? step
						   : 1 + rng_below(r, step);
		}
		starts[d][counts[d]] = c->shape[d] = end;
	}
	for (;;) {
		uint64_t *b = c->boxes + (size_t)c->count++ * 2 * c->n;
		size_t d = c->n;

		for (size_t k = 0; k < c->n; k++) {
			b[k] = starts[k][cell[k]];
			b[c->n + k] = starts[k][cell[k] + 1] - b[k];
		}
		while (d-- > 0) {
			if (++cell[d] < counts[d])
				break;
			cell[d] = 0;
		}
		if (d == SIZE_MAX)
			return;
	}
}

START_TEST(even_grids_are_searched_right)
{
	struct rng r = rng_new();

	for (int i = 0; i < 1000; i++) {
		struct chunks c;

		make_grid(&r, &c, true);
		check(&r, &c, 1);
	}
}
END_TEST

START_TEST(uneven_grids_are_searched_right)
{
	struct rng r = rng_new();

	for (int i = 0; i < 1000; i++) {
		struct chunks c;

		make_grid(&r, &c, false);
		check(&r, &c, 1);
	}
}
END_TEST

START_TEST(even_grids_divide_and_uneven_ones_search)
{
	const uint64_t even[] = { 0, 4, 4, 4, 8, 2 }, uneven[] = { 0, 2, 2, 4, 6, 4 };
	const uint64_t longer[] = { 0, 4, 4, 6 }, shape[] = { 10 };
	struct chunkmap *m = chunkmap_new(1, shape, even, 3);

	ck_assert_uint_eq(m->steps[0], 4);
	free(m);
	m = chunkmap_new(1, shape, uneven, 3);
	ck_assert_uint_eq(m->steps[0], 0);
	free(m);
	m = chunkmap_new(1, shape, longer, 2); /* 9 / 4 would be cell 2 */
	ck_assert_uint_eq(m->steps[0], 0);
	free(m);
}
END_TEST

START_TEST(random_boxes_come_in_listing_order)
{
	struct rng r = rng_new();

	for (int i = 0; i < 1000; i++) {
		struct chunks c = { .n = rng_below(&r, DIMS + 1) };

		c.count = (uint32_t)rng_below(&r, rng_chance(&r, 20) ? MAX_BOXES : 20);
		for (size_t d = 0; d < c.n; d++)
			c.shape[d] = 1 + rng_below(&r, SIDE);
		for (size_t k = 0; k < c.count; k++) {
			uint64_t *b = c.boxes + k * 2 * c.n;

			for (size_t d = 0; d < c.n; d++) {
				b[d] = rng_below(&r, c.shape[d]);
				b[c.n + d] = 1 + rng_below(&r, c.shape[d] - b[d]);
			}
		}
		check(&r, &c, -1);
	}
}
END_TEST

START_TEST(grids_listed_in_another_order_are_searched_too)
{
	struct rng r = rng_new();

	for (int i = 0; i < 1000; i++) {
		struct chunks c;
		uint64_t other[2 * DIMS];
		size_t row, k;

		make_grid(&r, &c, i % 2);
		if (c.count < 2)
			continue;
		row = 2 * c.n;
		k = 1 + rng_below(&r, c.count - 1);
		memcpy(other, c.boxes, row * sizeof(*other));
		memcpy(c.boxes, c.boxes + k * row, row * sizeof(*other));
		memcpy(c.boxes + k * row, other, row * sizeof(*other));
		check(&r, &c, 0);
	}
}
END_TEST

/* Replicated chunks: one box, many times. More hits than find() keeps on the stack. */
START_TEST(many_equal_boxes_all_come_in_order)
{
	struct rng r = rng_new();
	struct chunks c = { .n = 1, .count = MAX_BOXES, .shape = { 5 } };

	for (size_t i = 0; i < c.count; i++)
		c.boxes[2 * i + 1] = 5;
	check(&r, &c, 0);
}
END_TEST

START_TEST(numbers_have_one_chunk_or_several_copies)
{
	struct rng r = rng_new();
	struct chunks c = { .n = 0, .count = 1 };

	check(&r, &c, 1);
	c.count = 3;
	check(&r, &c, 0);
	c.count = 0;
	check(&r, &c, 0);
}
END_TEST

START_TEST(offsets_near_2_to_the_63_do_not_wrap)
{
	const uint64_t top = INT64_MAX;
	struct chunks c = {
		.n = 1, .count = 2, .shape = { top }, .boxes = { top - 5, 5, 0, top - 5 }
	};
	struct chunkmap *m = chunkmap_new(1, c.shape, c.boxes, 2);

	ck_assert_ptr_nonnull(m);
	check_query(&c, m, (const uint64_t[]){ top - 1 }, (const uint64_t[]){ 1 });
	check_query(&c, m, (const uint64_t[]){ top - 6 }, (const uint64_t[]){ 2 });
	check_query(&c, m, (const uint64_t[]){ 0 }, c.shape);
	free(m);
}
END_TEST

static int count_hit(void *arg, uint32_t chunk, const uint64_t *chunk_off,
		     const uint64_t *chunk_len, const uint64_t *off, const uint64_t *len)
{
	(void)chunk;
	(void)chunk_off;
	(void)chunk_len;
	(void)off;
	(void)len;
	++*(uint32_t *)arg;
	return 0;
}

START_TEST(out_of_memory_is_no_map_or_an_error)
{
	static const uint64_t off[] = { 0 }, shape[] = { 5 };
	static uint64_t boxes[2 * MAX_BOXES];
	int failed = 0;

	for (size_t i = 0; i < MAX_BOXES; i++)
		boxes[2 * i + 1] = 5;
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct chunkmap *m = chunkmap_new(1, shape, boxes, MAX_BOXES);
		uint32_t hits = 0;
		int rc = m ? chunkmap_find(m, off, shape, count_hit, &hits) : 0;

		(void)fault_off();
		failed += !m || rc;
		REQUIRE(!m || (rc ? rc == -ENOMEM && !hits : hits == MAX_BOXES));
		free(m);
	}
	ck_assert_int_ge(failed, 4);
}
END_TEST

START_TEST(a_map_says_how_large_it_is)
{
	struct rng r = rng_new();
	struct chunks c;
	struct chunkmap *m;

	make_grid(&r, &c, true);
	m = chunkmap_new(c.n, c.shape, c.boxes, c.count);
	ck_assert_uint_ge(m->bytes, sizeof(*m) + c.count * sizeof(struct chunk_loc));
	ck_assert_uint_le(m->bytes, sizeof(*m) + c.count * (sizeof(struct chunk_loc) + 8) + 1000);
	free(m);
}
END_TEST

SUITE(chunkmap, .seconds = 60)

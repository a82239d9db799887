/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tile.h"

#include "base/checked.h"
#include "rng.h"
#include "suites.h"

#include <string.h>

static uint64_t random_length(struct rng *r)
{
	switch (rng_below(r, 4)) {
	case 0:
		return 1;
	case 1:
		return TILE_SIDE * (1 + rng_below(r, 9)) - 1 + rng_below(r, 3);
	case 2:
		return ((uint64_t)TILE_SIDE << rng_below(r, 4)) - 1 + rng_below(r, 3);
	default:
		return 1 + rng_below(r, 5000);
	}
}

static bool is_same(const struct tile *a, const struct tile *b)
{
	return a->slice == b->slice && a->level == b->level && a->row == b->row && a->col == b->col;
}

/* Numbers count the tiles in order, each once; tiles beside the matrix have none. */
START_LOOP_TEST(every_number_is_one_tile, 40)
{
	struct rng r = rng_new();
	const uint64_t shape[] = { 1 + rng_below(&r, 3), 1 + rng_below(&r, 3), random_length(&r),
				   random_length(&r) };
	struct tile_matrix m;
	uint64_t n, found, at = 0;
	struct tile t, beside;

	(void)_i;
	REQUIRE(tile_matrix(4, shape, &m));
	ck_assert_uint_eq(m.slices, shape[0] * shape[1]);
	REQUIRE(tile_count(&m, &n));
	for (uint64_t slice = 0; slice < m.slices; slice++)
		for (unsigned level = 0;; level++) {
			uint64_t high = (((m.rows - 1) >> level) / TILE_SIDE) + 1,
				 wide = (((m.cols - 1) >> level) / TILE_SIDE) + 1;

			for (uint64_t k = 0; k < high * wide; k++, at++) {
				const struct tile want = { slice, k / wide, k % wide, level };

				REQUIRE(at < n);
				tile_at(&m, at, &t);
				REQUIRE(is_same(&t, &want));
				REQUIRE(tile_number(&m, &t, &found) && found == at);
			}
			beside = (struct tile){ slice, high, 0, level };
			REQUIRE(!tile_number(&m, &beside, &found));
			beside = (struct tile){ slice, 0, wide, level };
			REQUIRE(!tile_number(&m, &beside, &found));
			beside = (struct tile){ slice, 0, 0, level + 1 };
			if (high * wide == 1) {
				REQUIRE(!tile_number(&m, &beside, &found));
				break;
			}
		}
	ck_assert_uint_eq(at, n);
	beside = (struct tile){ m.slices, 0, 0, 0 };
	ck_assert(!tile_number(&m, &beside, &found));
}
END_TEST

/* Each sample lies in its cell, and cells follow each other without gaps. */
START_LOOP_TEST(spans_divide_a_dimension, 60)
{
	struct rng r = rng_new();
	uint64_t n = rng_chance(&r, 20) ? rng_u64(&r) >> (1 + rng_below(&r, 60))
					: random_length(&r),
		 cells = 0;
	unsigned level = (unsigned)rng_below(&r, 12);
	struct tile_span s;
	uint64_t tiles;

	(void)_i;
	n += !n;
	tiles = ((n - 1) >> level) / TILE_SIDE + 1;
	for (uint64_t k = 0; k < min_u64(tiles, 50); k++) {
		uint64_t at = tiles <= 50 ? k : rng_below(&r, tiles);

		tile_span(n, level, at, &s);
		REQUIRE(s.first == (at * TILE_SIDE) << level);
		REQUIRE(s.cells && s.cells <= TILE_SIDE);
		REQUIRE(s.samples <= (uint64_t)TILE_SIDE * TILE_SAMPLES);
		REQUIRE(s.each * s.step == (uint64_t)1 << level && s.each <= TILE_SAMPLES);
		/* The last sample exists and lies in the last cell. */
		REQUIRE(s.first + (s.samples - 1) * s.step < n);
		REQUIRE((s.samples - 1) / s.each == s.cells - 1);
		/* The next sample would lie in another tile, or there is none. */
		REQUIRE(s.samples == (uint64_t)s.cells * s.each ||
			s.first + s.samples * s.step >= n);
		REQUIRE(at + 1 == tiles || s.cells == TILE_SIDE);
		cells += s.cells;
	}
	if (tiles <= 50)
		ck_assert_uint_eq(cells, ((n - 1) >> level) + 1);
}
END_TEST

START_TEST(shapes_of_any_numbers)
{
	static const uint64_t big = (uint64_t)1 << 62;
	const struct {
		size_t n;
		uint64_t shape[3];
		bool matrix;
	} rows[] = {
		{ 0, { 0 }, true },
		{ 1, { 0 }, false },
		{ 2, { 5, 0 }, false },
		{ 1, { big }, true },
		{ 2, { big, 1 }, true },
		{ 3, { big, 1, 1 }, true },
		{ 2, { big, 2 }, false },
		{ 3, { 1 << 21, 1 << 21, 1 << 20 }, true },
		{ 3, { UINT64_MAX, UINT64_MAX, UINT64_MAX }, false },
		{ 1, { INT64_MAX }, true },
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct tile_matrix m;
		struct tile t, none = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT32_MAX };
		struct tile_span s;
		uint64_t n, found;

		ck_assert_msg(tile_matrix(rows[i].n, rows[i].shape, &m) == rows[i].matrix, "%zu",
			      i);
		if (!rows[i].matrix)
			continue;
		ck_assert(!tile_number(&m, &none, &found));
		none.slice = 0;
		ck_assert(!tile_number(&m, &none, &found));
		none.level = 0;
		ck_assert(!tile_number(&m, &none, &found));
		ck_assert(tile_count(&m, &n) && n > 0);
		tile_at(&m, n - 1, &t);
		ck_assert(tile_number(&m, &t, &found) && found == n - 1);
		ck_assert(!t.row && !t.col && t.slice == m.slices - 1);
		tile_span(m.rows, t.level, 0, &s);
		ck_assert_uint_le(s.samples, TILE_SIDE * TILE_SAMPLES);
		tile_span(m.cols, t.level, 0, &s);
		ck_assert_uint_le(s.samples, TILE_SIDE * TILE_SAMPLES);
	}
}
END_TEST

SUITE(tile, .seconds = 60)

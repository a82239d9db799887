/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/delta.h"
#include "codec/heat.h"
#include "rng.h"
#include "suites.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 20000 };

static float *cells[2], want[HEAT_MAX_CELLS];
static double *a, *b;

static void setup(void)
{
	for (size_t i = 0; i < 2; i++)
		cells[i] = calloc(HEAT_MAX_CELLS, sizeof(float));
	a = calloc(MAX_ELEMENTS, sizeof(*a));
	b = calloc(MAX_ELEMENTS, sizeof(*b));
	ck_assert(cells[0] && cells[1] && a && b);
}

static void teardown(void)
{
	free(cells[0]);
	free(cells[1]);
	free(a);
	free(b);
}

/* Where parts begin, counted out. */
static size_t naive_part(uint64_t n, uint64_t parts, uint64_t i)
{
	size_t part = 0;

	for (uint64_t end = 0; part < parts; part++) {
		end += n / parts + (part < n % parts);
		if (i < end)
			break;
	}
	return part;
}

/* How many parts there are: as few elements in each as possible, but not more than `side` parts. */
static uint64_t naive_parts(uint64_t n, unsigned side)
{
	uint64_t size = 1;

	while (n > size * side)
		size++;
	return (n + size - 1) / size;
}

static void naive(uint64_t rows, uint64_t columns, unsigned side)
{
	uint64_t r = naive_parts(rows, side), c = naive_parts(columns, side);

	memset(want, 0, sizeof(want));
	for (uint64_t i = 0; i < rows * columns; i++) {
		float *to = &want[naive_part(rows, r, i / columns) * c +
				  naive_part(columns, c, i % columns)];
		float x = (float)fmax(fmin(b[i] - a[i], (double)FLT_MAX), -(double)FLT_MAX);

		if (isnan(*to) || (isnan(a[i]) && isnan(b[i])) || a[i] == b[i])
			continue;
		if (!isfinite(a[i]) || !isfinite(b[i]))
			*to = NAN;
		else if (fabsf(x) > fabsf(*to) || (fabsf(x) == fabsf(*to) && x > 0))
			*to = x;
	}
}

static void expect(size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (cells[0][i] != want[i] && !(isnan(cells[0][i]) && isnan(want[i])))
			ck_abort_msg("cell %zu: %a, not %a", i, (double)cells[0][i],
				     (double)want[i]);
}

static double any(struct rng *r, unsigned wild)
{
	static const double odd[] = { NAN, INFINITY, -INFINITY, DBL_MAX, -DBL_MAX, 0 };

	return rng_chance(r, wild) ? odd[rng_below(r, ARRAY_LEN(odd))]
				   : (double)((int)rng_below(r, 9) - 4);
}

START_LOOP_TEST(cells_have_the_largest_changes, 60)
{
	struct rng r = rng_new();
	uint64_t columns = 1 + rng_below(&r, _i % 3 ? 300 : 8), rows = 1, shape[4] = { 0 };
	size_t n_dims = 1 + rng_below(&r, 4), n;
	unsigned side = 1 + (unsigned)rng_below(&r, HEAT_MAX_SIDE), wild = _i % 2 ? 1 : 0;
	struct heat h;

	for (size_t d = 0; d + 1 < n_dims; d++) {
		shape[d] = 1 + rng_below(&r, MAX_ELEMENTS / columns / rows);
		rows *= shape[d];
	}
	shape[n_dims - 1] = columns;
	n = (size_t)(rows * columns);
	for (size_t i = 0; i < n; i++) {
		a[i] = any(&r, wild);
		b[i] = rng_chance(&r, 50) ? a[i] : any(&r, wild);
	}
	ck_assert(heat_init(&h, shape, n_dims, side));
	naive(rows, columns, side);
	/* Each block is added to one of two tables, as two threads would do. */
	for (size_t at = 0; at < n;) {
		size_t len = 1 + rng_below(&r, n - at);

		heat_add(&h, cells[rng_below(&r, 2)], at, a + at, b + at, len);
		at += len;
	}
	heat_merge(cells[0], cells[1], heat_cells(&h));
	expect(heat_cells(&h));
}
END_TEST

START_TEST(what_changed_is_never_0)
{
	const uint64_t shape[] = { 1, 3 };
	struct heat h;

	ck_assert(heat_init(&h, shape, 2, 3));
	heat_add(&h, cells[0], 0, (const double[]){ 0, 0, 0 },
		 (const double[]){ 1e-50, -1e-50, 1e300 }, 3);
	ck_assert(cells[0][0] == FLT_TRUE_MIN && cells[0][1] == -FLT_TRUE_MIN);
	ck_assert(cells[0][2] == FLT_MAX);
}
END_TEST

START_TEST(nothing_has_no_cells)
{
	const uint64_t empty[] = { 3, 0, 2 }, huge[] = { 1ULL << 40, 1ULL << 40 },
		       wide[] = { 1ULL << 62, 2 };
	struct heat h;

	ck_assert(!heat_init(&h, empty, 3, 8) && !heat_init(&h, huge, 2, 8));
	ck_assert(heat_init(&h, NULL, 0, 8) && heat_cells(&h) == 1);
	ck_assert(heat_init(&h, wide, 2, 64) && heat_cells(&h) == 128);
	/* The last elements of the largest tensor that there can be. */
	heat_add(&h, cells[0], ((uint64_t)1 << 63) - 3, (const double[]){ 0, 0, 0 },
		 (const double[]){ 1, 2, 3 }, 3);
	ck_assert(cells[0][125] == 0 && cells[0][126] == 2 && cells[0][127] == 3);
}
END_TEST

/* Blocks of elements as they are stored, in tiles. */
START_TEST(stored_elements_are_decoded)
{
	const uint64_t shape[] = { 700, 3 };
	static float x[2100];
	static uint16_t y[2100]; /* bfloat16 */
	struct rng r = rng_new();
	struct delta d = { 0 }, plain = { 0 };
	struct heat h;

	for (size_t i = 0; i < ARRAY_LEN(x); i++) {
		uint32_t bits;

		x[i] = (float)rng_below(&r, 100);
		memcpy(&bits, &x[i], sizeof(bits));
		y[i] = (uint16_t)((bits >> 16) + (rng_chance(&r, 3) ? 1 : 0));
		bits = (uint32_t)y[i] << 16;
		a[i] = (double)x[i];
		memcpy(&x[i], &bits, sizeof(bits));
		b[i] = (double)x[i];
		x[i] = (float)a[i];
	}
	ck_assert(heat_init(&h, shape, 2, 64));
	naive(700, 3, 64);
	delta_add_heat(&d, CKPT_DTYPE_F32, x, CKPT_DTYPE_BF16, y, 1001, &h, cells[0], 0);
	delta_add_heat(&d, CKPT_DTYPE_F32, x + 1001, CKPT_DTYPE_BF16, y + 1001, 1099, &h, cells[0],
		       1001);
	expect(heat_cells(&h));
	delta_add(&plain, CKPT_DTYPE_F32, x, CKPT_DTYPE_BF16, y, 1001);
	delta_add(&plain, CKPT_DTYPE_F32, x + 1001, CKPT_DTYPE_BF16, y + 1001, 1099);
	ck_assert(!memcmp(&d, &plain, sizeof(d)));
}
END_TEST

START_TEST(large_integers_are_told_apart)
{
	const int64_t x[] = { ((int64_t)1 << 60) + 1, 5 }, y[] = { (int64_t)1 << 60, 5 };
	const uint64_t shape[] = { 2 };
	struct delta d = { 0 };
	struct heat h;

	ck_assert(heat_init(&h, shape, 1, 4));
	delta_add_heat(&d, CKPT_DTYPE_I64, x, CKPT_DTYPE_I64, y, 2, &h, cells[0], 0);
	ck_assert(cells[0][0] == -1 && cells[0][1] == 0);
}
END_TEST

SUITE(heat, .setup = setup, .teardown = teardown)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/hist.h"
#include "codec/values.h"
#include "rng.h"
#include "suites.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 600 };

static uint32_t *counts;
static struct hist_entry *entries;
static struct hist *total;

static void setup(void)
{
	counts = calloc(HIST_KEYS, sizeof(*counts));
	entries = calloc(HIST_KEYS, sizeof(*entries));
	total = calloc(1, sizeof(*total));
	ck_assert(counts && entries && total);
}

static void teardown(void)
{
	free(counts);
	free(entries);
	free(total);
}

/* In two blocks. */
static void count(enum ckpt_dtype t, const void *p, size_t n)
{
	size_t half = n / 3, size = dtype_info(t)->size;

	hist_init(total);
	hist_count(counts, t, p, half);
	hist_add(total, entries, hist_take(counts, entries));
	hist_count(counts, t, (const char *)p + half * size, n - half);
	hist_add(total, entries, hist_take(counts, entries));
}

static void assert_edges(const struct hist_bins *b, size_t n, const double *edges)
{
	ck_assert_uint_eq(b->n + 1, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_double_eq(b->edges[i], edges[i]);
}

START_TEST(edges_are_round_numbers)
{
	const float v[] = { -1.5f, -1, 0, 0.25f, 0.3f, 3 };
	const double four[] = { -2, 0, 2, 4 }, eight[] = { -2, -1, 0, 1, 2, 3, 4 },
		     octaves[] = { -2, -1, -0.5, -0.25, 0.25, 0.5, 1, 2, 4 };
	struct hist_bins b;

	count(CKPT_DTYPE_F32, v, ARRAY_LEN(v));
	hist_linear(total, 4, &b);
	assert_edges(&b, ARRAY_LEN(four), four);
	ck_assert_uint_eq(b.counts[0], 2);
	ck_assert_uint_eq(b.counts[1], 3);
	ck_assert_uint_eq(b.counts[2], 1);
	hist_linear(total, 8, &b);
	assert_edges(&b, ARRAY_LEN(eight), eight);
	ck_assert_uint_eq(b.counts[1], 1); /* -1: the lower edge belongs to a bin */
	hist_log(total, 64, &b);
	assert_edges(&b, ARRAY_LEN(octaves), octaves);
	ck_assert_uint_eq(b.counts[3], 1);
	hist_log(total, 5, &b); /* small values are in the middle */
	assert_edges(&b, 5, (const double[]){ -2, -1, 1, 2, 4 });
}
END_TEST

START_TEST(nothing_and_zeros)
{
	const float zeros[] = { 0, -0.0f, 0 }, none[] = { NAN, INFINITY, -INFINITY };
	struct hist_bins b;

	count(CKPT_DTYPE_F32, none, 3);
	hist_linear(total, 8, &b);
	ck_assert_uint_eq(b.n, 0);
	hist_log(total, 8, &b);
	ck_assert_uint_eq(b.n, 0);
	count(CKPT_DTYPE_F32, zeros, 3);
	hist_linear(total, 8, &b);
	ck_assert_uint_eq(b.n, 1);
	ck_assert_double_eq(b.edges[0], 0);
	ck_assert_uint_eq(b.counts[0], 3);
	hist_log(total, 8, &b);
	ck_assert_uint_eq(b.n, 1);
	ck_assert_uint_eq(b.counts[0], 3);
}
END_TEST

START_TEST(extremes_have_keys)
{
	const double v[] = { -DBL_MAX,	   -0x1.fffffffffffffp127, -DBL_TRUE_MIN,
			     DBL_TRUE_MIN, 0x1.fffffffffffffp127,  0x1p128 };
	const int64_t whole[] = { INT64_MIN, INT64_MAX, INT64_MIN + 1, 0 };
	struct hist_bins b;

	count(CKPT_DTYPE_F64, v, ARRAY_LEN(v));
	hist_linear(total, 3, &b);
	ck_assert_uint_eq(b.n, 2);
	ck_assert_double_eq(b.edges[0], -0x1p128);
	ck_assert_uint_eq(b.counts[0], 2);
	ck_assert_uint_eq(b.counts[1], 2);
	hist_log(total, 256, &b);
	ck_assert_double_eq(b.edges[0], -0x1p128);
	count(CKPT_DTYPE_I64, whole, ARRAY_LEN(whole));
	hist_linear(total, 2, &b);
	ck_assert_uint_eq(b.n, 2);
	ck_assert_double_eq(b.edges[0], -0x1p63);
	ck_assert_double_eq(b.edges[2], 0x1p63);
	ck_assert_uint_eq(b.counts[0], 2);
	ck_assert_uint_eq(b.counts[1], 2);
}
END_TEST

/* ---- against comparing each element with the edges ---- */

static void assert_counts(const struct hist_bins *b, const double *v, const double *rest, size_t n,
			  size_t max)
{
	uint64_t *wanted = calloc(HIST_MAX_BINS, sizeof(*wanted));

	ck_assert_ptr_nonnull(wanted);
	ck_assert_uint_le(b->n, max);
	for (size_t i = 0; i < b->n; i++)
		ck_assert_double_lt(b->edges[i], b->edges[i + 1]);
	for (size_t i = 0; i < n; i++) {
		size_t at = 0;

		if (!(fabs(v[i]) < 0x1p128))
			continue;
		/* Edges are doubles; `rest` is what a double loses of the value, and decides if
		 * v[i] is at an edge. */
		while (at < b->n &&
		       (v[i] > b->edges[at + 1] || (v[i] == b->edges[at + 1] && rest[i] >= 0)))
			at++;
		ck_assert_uint_lt(at, b->n);
		ck_assert(v[i] > b->edges[at] || (v[i] == b->edges[at] && rest[i] >= 0));
		wanted[at]++;
	}
	for (size_t i = 0; i < b->n; i++)
		ck_assert_uint_eq(b->counts[i], wanted[i]);
	/* Bins at both ends are needed. */
	if (b->n)
		ck_assert(b->counts[0] || b->n == 1 || b->edges[0] == -b->edges[1]);
	free(wanted);
}

static void fill(struct rng *r, enum ckpt_dtype t, uint8_t *p, size_t n)
{
	size_t size = dtype_info(t)->size;
	uint64_t how = rng_below(r, 4);

	for (size_t i = 0; i < n * size; i++)
		p[i] = (uint8_t)rng_u64(r);
	if (!how)
		memset(p, 0, n * size / 2);
	for (size_t i = 0; t == CKPT_DTYPE_F32 && how == 1 && i < n; i++) {
		float v = (float)rng_below(r, 1000) / 500 - 1;

		memcpy(p + 4 * i, &v, 4);
	}
	for (size_t i = 0; t == CKPT_DTYPE_F64 && how == 2 && i < n; i++) {
		double v = ldexp((double)(int64_t)rng_u64(r), -140 - (int)rng_below(r, 60));

		memcpy(p + 8 * i, &v, 8);
	}
}

START_TEST(every_element_is_in_its_bin)
{
	enum { MIN = 3 };
	uint8_t *p = malloc((size_t)MAX_ELEMENTS * 16);
	double *v = calloc((size_t)MAX_ELEMENTS, sizeof(*v)),
	       *rest = calloc((size_t)MAX_ELEMENTS, sizeof(*rest));
	struct rng r = rng_new();

	ck_assert(p && v && rest);
	for (size_t round = 0; round < 6; round++)
		for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
			size_t n = rng_below(&r, MAX_ELEMENTS),
			       max = MIN + rng_below(&r, HIST_MAX_BINS - 2);
			struct hist_bins b;

			if (!hist_known(t))
				continue;
			fill(&r, t, p, n);
			memset(rest, 0, MAX_ELEMENTS * sizeof(*rest));
			(void)values_decode(t, p, n, v, rest);
			count(t, p, n);
			hist_linear(total, max, &b);
			for (size_t i = 1; i < b.n; i++)
				ck_assert_double_eq(b.edges[i] - b.edges[i - 1],
						    b.edges[1] - b.edges[0]);
			assert_counts(&b, v, rest, n, max);
			hist_log(total, max, &b);
			assert_counts(&b, v, rest, n, max);
		}
	free(rest);
	free(v);
	free(p);
}
END_TEST

SUITE(hist, .setup = setup, .teardown = teardown)

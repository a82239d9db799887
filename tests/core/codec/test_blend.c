/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted sums and products of matrices, compared with the same one element at a time. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "codec/blend.h"
#include "codec/blend_internal.h"
#include "rng.h"
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 300 };

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Any bits, or a number of the usual size: sums of the others are mostly infinite. */
static float draw(struct rng *r)
{
	static const float some[] = { 0,	  -0.0F,	   1,	    -1, 0x1p-149F,
				      -0x1p-126F, 0x1.fffffep127F, INFINITY };

	if (rng_chance(r, 5))
		return float_of((uint32_t)rng_u64(r));
	if (rng_chance(r, 20))
		return some[rng_below(r, ARRAY_LEN(some))];
	return ldexpf((float)(int32_t)rng_u64(r), -31);
}

/* The same bits, or both no number. */
static void check_f32(const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(isnan(want[i]) ? isnan(got[i]) != 0
					     : !memcmp(&got[i], &want[i], sizeof(*got)),
			      "element %zu of %zu: %a, not %a", i, n, (double)got[i],
			      (double)want[i]);
}

START_LOOP_TEST(a_sum_is_fused_and_the_same_on_every_cpu, 200)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	float x[MOST], acc[2][MOST], want[MOST], weight = draw(&r);
	size_t n = rng_below(&r, MOST + 1);

	for (size_t i = 0; i < MOST; i++) {
		x[i] = draw(&r);
		acc[0][i] = acc[1][i] = want[i] = draw(&r);
	}
	for (size_t i = 0; i < n; i++)
		want[i] = fmaf(weight, x[i], want[i]);
	blend_add(acc[0], x, weight, n);
	blend_add_portable(acc[1], x, weight, n);
	check_f32(acc[0], want, MOST); /* and nothing behind them has changed */
	check_f32(acc[1], want, MOST);
}
END_TEST

START_LOOP_TEST(a_sum_of_doubles_is_fused, 50)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	double x[MOST], acc[2][MOST], want[MOST], weight = (double)draw(&r) / 3;
	size_t n = rng_below(&r, MOST + 1);

	for (size_t i = 0; i < MOST; i++) {
		x[i] = (double)draw(&r) / 7;
		acc[0][i] = acc[1][i] = want[i] = (double)draw(&r) / 11;
	}
	for (size_t i = 0; i < n; i++)
		want[i] = fma(weight, x[i], want[i]);
	blend_add_f64(acc[0], x, weight, n);
	blend_add_f64_portable(acc[1], x, weight, n);
	for (size_t k = 0; k < 2; k++)
		for (size_t i = 0; i < MOST; i++)
			ck_assert(isnan(want[i]) ? isnan(acc[k][i]) != 0
						 : !memcmp(&acc[k][i], &want[i], sizeof(want[i])));
}
END_TEST

/* volatile: no compiler may fuse it or change its order. */
static float naive(const struct blend_product *p, size_t i, size_t j)
{
	volatile float sum = 0, one;

	for (size_t k = 0; k < p->rank; k++) {
		one = p->b[i * p->b_stride + k] * p->a[k * p->a_stride + j];
		sum = sum + one;
	}
	one = sum * p->scale;
	return one;
}

START_LOOP_TEST(a_product_has_its_order_of_operations, 100)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct blend_product p = { .rows = 1 + rng_below(&r, 7),
				   .rank = rng_below(&r, 20),
				   .columns = 1 + rng_below(&r, 90),
				   .scale = draw(&r) };
	size_t n = p.rows * p.columns;
	autofree float *a = NULL, *b = NULL, *out = calloc(3 * n, sizeof(*out));

	p.a_stride = p.columns + rng_below(&r, 3);
	p.b_stride = p.rank + rng_below(&r, 3);
	a = malloc((p.rank * p.a_stride + 1) * sizeof(*a));
	b = malloc((p.rows * p.b_stride + 1) * sizeof(*b));
	REQUIRE(a && b && out);
	for (size_t i = 0; i < p.rank * p.a_stride; i++)
		a[i] = draw(&r);
	for (size_t i = 0; i < p.rows * p.b_stride; i++)
		b[i] = draw(&r);
	p.a = a;
	p.b = b;
	for (size_t i = 0; i < n; i++)
		out[i] = naive(&p, i / p.columns, i % p.columns);
	blend_product(&p, out + n);
	blend_product_portable(&p, out + 2 * n);
	check_f32(out + n, out, n);
	check_f32(out + 2 * n, out, n);
}
END_TEST

SUITE(blend)

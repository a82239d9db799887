/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted sums and products of matrices, compared with computing them one element at a time. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "codec/blend.h"
#include "codec/blend_internal.h"
#include "codec/cast_internal.h"
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

/* Any bits, or a number of ordinary size: sums of the former are mostly infinite. */
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

/* Each is the same bits, or NaN in both. */
static void check_f32(const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(isnan(want[i]) ? isnan(got[i]) != 0
					     : !memcmp(&got[i], &want[i], sizeof(*got)),
			      "element %zu of %zu: %a, not %a", i, n, (double)got[i],
			      (double)want[i]);
}

static const enum ckpt_dtype DTYPES[] = { CKPT_DTYPE_F32, CKPT_DTYPE_F16, CKPT_DTYPE_BF16,
					  CKPT_DTYPE_F64 };

/* Stores x as an element of that dtype, at an odd address; returns the value that it then has. */
static float stored_as(enum ckpt_dtype dtype, float x, uint8_t *to)
{
	double wide = (double)x;

	if (dtype == CKPT_DTYPE_F64)
		memcpy(to, &wide, sizeof(wide));
	else
		cast_run_portable(CKPT_DTYPE_F32, dtype, &x, to, 1);
	cast_run_portable(dtype, CKPT_DTYPE_F32, to, &x, 1);
	return x;
}

START_LOOP_TEST(a_sum_is_fused_and_the_same_on_every_cpu, 200)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	enum ckpt_dtype dtype = DTYPES[_i % ARRAY_LEN(DTYPES)];
	float acc[2][MOST], want[MOST], weight = draw(&r);
	size_t n = rng_below(&r, MOST + 1), size = dtype_info(dtype)->size;
	uint8_t x[MOST * sizeof(double) + 1];

	for (size_t i = 0; i < MOST; i++) {
		float one = stored_as(dtype, draw(&r), x + 1 + i * size);

		acc[0][i] = acc[1][i] = want[i] = draw(&r);
		if (i < n)
			want[i] = fmaf(weight, one, want[i]);
	}
	blend_add(acc[0], dtype, x + 1, weight, n);
	blend_add_portable(acc[1], dtype, x + 1, weight, n);
	check_f32(acc[0], want, MOST); /* and nothing behind them has changed */
	check_f32(acc[1], want, MOST);
}
END_TEST

START_LOOP_TEST(a_sum_of_doubles_is_fused, 80)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	enum ckpt_dtype dtype = DTYPES[_i % ARRAY_LEN(DTYPES)];
	double acc[2][MOST], want[MOST], weight = (double)draw(&r) / 3;
	size_t n = rng_below(&r, MOST + 1), size = dtype_info(dtype)->size;
	uint8_t x[MOST * sizeof(double) + 1];

	for (size_t i = 0; i < MOST; i++) {
		double one = (double)draw(&r) / 7;

		acc[0][i] = acc[1][i] = want[i] = (double)draw(&r) / 11;
		if (dtype == CKPT_DTYPE_F64)
			memcpy(x + 1 + i * size, &one, sizeof(one));
		else
			one = (double)stored_as(dtype, (float)one, x + 1 + i * size);
		if (i < n)
			want[i] = fma(weight, one, want[i]);
	}
	blend_add_f64(acc[0], dtype, x + 1, weight, n);
	blend_add_f64_portable(acc[1], dtype, x + 1, weight, n);
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

static void check_element(enum ckpt_dtype dtype, const uint8_t *got, const uint8_t *want)
{
	float x[2];

	cast_run_portable(dtype, CKPT_DTYPE_F32, got, &x[0], 1);
	cast_run_portable(dtype, CKPT_DTYPE_F32, want, &x[1], 1);
	check_f32(&x[0], &x[1], 1);
}

START_LOOP_TEST(a_product_has_its_order_of_operations, 100)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct blend_product p = { .rows = 1 + rng_below(&r, 7),
				   .rank = rng_below(&r, _i % 10 ? 20 : 300),
				   .columns = 1 + rng_below(&r, 90),
				   .scale = draw(&r),
				   .dtype = DTYPES[_i % 3] };
	size_t n, size = dtype_info(p.dtype)->size;
	autofree float *a = NULL, *b = NULL;
	autofree uint8_t *w = NULL, *want = NULL, *got = NULL;

	p.a_stride = p.columns + rng_below(&r, 3);
	p.b_stride = p.rank + rng_below(&r, 3);
	p.w_stride = p.columns + rng_below(&r, 3);
	n = p.rows * p.w_stride;
	a = malloc((p.rank * p.a_stride + 1) * sizeof(*a));
	b = malloc((p.rows * p.b_stride + 1) * sizeof(*b));
	w = malloc(n * size + 1);
	want = malloc(n * size + 1);
	got = malloc(n * size + 1);
	REQUIRE(a && b && w && want && got);
	for (size_t i = 0; i < p.rank * p.a_stride; i++)
		a[i] = draw(&r);
	for (size_t i = 0; i < p.rows * p.b_stride; i++)
		b[i] = draw(&r);
	p.a = a;
	p.b = b;
	for (size_t i = 0; i < n; i++) {
		volatile float sum = stored_as(p.dtype, draw(&r), w + 1 + i * size);

		if (i % p.w_stride < p.columns) { /* what is between the rows stays */
			sum = sum + naive(&p, i / p.w_stride, i % p.w_stride);
			(void)stored_as(p.dtype, sum, want + 1 + i * size);
		} else {
			memcpy(want + 1 + i * size, w + 1 + i * size, size);
		}
	}
	for (int portable = 0; portable < 2; portable++) {
		memcpy(got + 1, w + 1, n * size);
		(portable ? blend_product_portable : blend_product)(&p, got + 1);
		for (size_t i = 0; i < n; i++)
			check_element(p.dtype, got + 1 + i * size, want + 1 + i * size);
	}
}
END_TEST

SUITE(blend)

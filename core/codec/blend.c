/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As in cast.c, the loops are compiled once for any CPU and once for those with AVX2 and FMA.
 */
#include "codec/blend_internal.h"

#include "codec/floats.h"

#include <math.h>

INLINE void add(float *restrict acc, const float *restrict x, float weight, size_t n)
{
	for (size_t i = 0; i < n; i++)
		acc[i] = fmaf(weight, x[i], acc[i]);
}

INLINE void add_f64(double *restrict acc, const double *restrict x, double weight, size_t n)
{
	for (size_t i = 0; i < n; i++)
		acc[i] = fma(weight, x[i], acc[i]);
}

/* A tile of the result stays in registers while k runs: two rows share what is loaded of `a`. */
enum { TILE = 32 };

INLINE void tile(const struct blend_product *p, size_t i, size_t rows, size_t j, size_t width,
		 float *out)
{
	float sum[2][TILE] = { { 0 } };

	for (size_t k = 0; k < p->rank; k++)
		for (size_t r = 0; r < rows; r++) {
			const float *a = p->a + k * p->a_stride + j;
			float b = p->b[(i + r) * p->b_stride + k];

			for (size_t x = 0; x < width; x++)
				sum[r][x] += b * a[x];
		}
	for (size_t r = 0; r < rows; r++)
		for (size_t x = 0; x < width; x++)
			out[(i + r) * p->columns + j + x] = sum[r][x] * p->scale;
}

INLINE void rows_of(const struct blend_product *p, size_t i, size_t rows, float *out)
{
	size_t j = 0;

	for (; j + TILE <= p->columns; j += TILE)
		tile(p, i, rows, j, TILE, out);
	if (j < p->columns)
		tile(p, i, rows, j, p->columns - j, out);
}

INLINE void product(const struct blend_product *p, float *out)
{
	size_t i = 0;

	for (; i + 2 <= p->rows; i += 2)
		rows_of(p, i, 2, out);
	if (i < p->rows)
		rows_of(p, i, 1, out);
}

void blend_add_portable(float *acc, const float *x, float weight, size_t n)
{
	add(acc, x, weight, n);
}

void blend_add_f64_portable(double *acc, const double *x, double weight, size_t n)
{
	add_f64(acc, x, weight, n);
}

void blend_product_portable(const struct blend_product *p, float *out)
{
	product(p, out);
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static void add_avx2(float *acc, const float *x, float weight, size_t n)
{
	add(acc, x, weight, n);
}

AVX2 static void add_f64_avx2(double *acc, const double *x, double weight, size_t n)
{
	add_f64(acc, x, weight, n);
}

AVX2 static void product_avx2(const struct blend_product *p, float *out)
{
	product(p, out);
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

void blend_add(float *acc, const float *x, float weight, size_t n)
{
#ifdef __x86_64__
	if (has_avx2()) {
		add_avx2(acc, x, weight, n);
		return;
	}
#endif
	blend_add_portable(acc, x, weight, n);
}

void blend_add_f64(double *acc, const double *x, double weight, size_t n)
{
#ifdef __x86_64__
	if (has_avx2()) {
		add_f64_avx2(acc, x, weight, n);
		return;
	}
#endif
	blend_add_f64_portable(acc, x, weight, n);
}

void blend_product(const struct blend_product *p, float *out)
{
#ifdef __x86_64__
	if (has_avx2()) {
		product_avx2(p, out);
		return;
	}
#endif
	blend_product_portable(p, out);
}

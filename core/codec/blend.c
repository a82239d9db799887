/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As in cast.c, the loops are compiled once for any CPU and once for those with AVX2 and FMA.
 */
#include "codec/blend_internal.h"

#include "codec/floats.h"

#include <math.h>
#include <string.h>

INLINE void add(float *restrict acc, enum ckpt_dtype dtype, const uint8_t *restrict x, float weight,
		size_t n)
{
	for (size_t i = 0; i < n; i++)
		acc[i] = fmaf(weight, f32_of_bits(load_as_f32(dtype, x, i)), acc[i]);
}

INLINE void add_any(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n)
{
	if (dtype == CKPT_DTYPE_F64)
		add(acc, CKPT_DTYPE_F64, x, weight, n);
	else if (dtype == CKPT_DTYPE_F32)
		add(acc, CKPT_DTYPE_F32, x, weight, n);
	else if (dtype == CKPT_DTYPE_F16)
		add(acc, CKPT_DTYPE_F16, x, weight, n);
	else
		add(acc, CKPT_DTYPE_BF16, x, weight, n);
}

INLINE void add_f64(double *restrict acc, enum ckpt_dtype dtype, const uint8_t *restrict x,
		    double weight, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double one = 0;

		if (dtype == CKPT_DTYPE_F64)
			one = f64_of_bits(load_le64(x + 8 * i));
		else
			one = (double)f32_of_bits(load_as_f32(dtype, x, i));
		acc[i] = fma(weight, one, acc[i]);
	}
}

/* A tile of the result stays in registers while k runs: two rows share what is loaded of `a`. */
enum { TILE = 32, PACKED = 128 };

INLINE void add_scaled(enum ckpt_dtype dtype, uint8_t *restrict w, const float *restrict x,
		       float scale, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float sum = f32_of_bits(load_as_f32(dtype, w, i)) + x[i] * scale;

		store_f32_as(dtype, bits_of_f32(sum), w, i, BF16_NAN);
	}
}

/* a: its columns from j on, `stride` apart. */
INLINE void tile(const struct blend_product *p, const float *a, size_t stride, size_t i,
		 size_t rows, size_t j, size_t width, enum ckpt_dtype dtype, uint8_t *w)
{
	const size_t size = dtype == CKPT_DTYPE_F32 ? 4 : 2;
	float sum[2][TILE];

	for (size_t r = 0; r < rows; r++)
		for (size_t x = 0; x < width; x++)
			sum[r][x] = 0;
	for (size_t k = 0; k < p->rank; k++)
		for (size_t r = 0; r < rows; r++) {
			float b = p->b[(i + r) * p->b_stride + k];

			for (size_t x = 0; x < width; x++)
				sum[r][x] += b * a[k * stride + x];
		}
	for (size_t r = 0; r < rows; r++)
		add_scaled(dtype, w + ((i + r) * p->w_stride + j) * size, sum[r], p->scale, width);
}

/* All rows of some columns, whose part of `a` is packed: its rows are often apart by a power of
 * two, so that few of them fit the CPU's first cache at once. */
INLINE void columns_of(const struct blend_product *p, size_t j, size_t width, enum ckpt_dtype dtype,
		       uint8_t *w)
{
	float packed[PACKED * TILE];
	const float *a = p->a + j;
	size_t stride = p->a_stride, i = 0;

	if (p->rank <= PACKED) {
		for (size_t k = 0; k < p->rank; k++)
			memcpy(packed + k * TILE, a + k * stride, width * sizeof(*packed));
		a = packed;
		stride = TILE;
	}
	for (; i + 2 <= p->rows; i += 2)
		tile(p, a, stride, i, 2, j, width, dtype, w);
	if (i < p->rows)
		tile(p, a, stride, i, 1, j, width, dtype, w);
}

INLINE void product(const struct blend_product *p, enum ckpt_dtype dtype, uint8_t *w)
{
	size_t j = 0;

	for (; j + TILE <= p->columns; j += TILE)
		columns_of(p, j, TILE, dtype, w);
	if (j < p->columns)
		columns_of(p, j, p->columns - j, dtype, w);
}

INLINE void product_any(const struct blend_product *p, void *w)
{
	if (p->dtype == CKPT_DTYPE_F32)
		product(p, CKPT_DTYPE_F32, w);
	else if (p->dtype == CKPT_DTYPE_F16)
		product(p, CKPT_DTYPE_F16, w);
	else
		product(p, CKPT_DTYPE_BF16, w);
}

void blend_add_portable(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n)
{
	add_any(acc, dtype, x, weight, n);
}

void blend_add_f64_portable(double *acc, enum ckpt_dtype dtype, const void *x, double weight,
			    size_t n)
{
	add_f64(acc, dtype, x, weight, n);
}

void blend_product_portable(const struct blend_product *p, void *w)
{
	product_any(p, w);
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static void add_avx2(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n)
{
	add_any(acc, dtype, x, weight, n);
}

AVX2 static void add_f64_avx2(double *acc, enum ckpt_dtype dtype, const void *x, double weight,
			      size_t n)
{
	add_f64(acc, dtype, x, weight, n);
}

AVX2 static void product_avx2(const struct blend_product *p, void *w)
{
	product_any(p, w);
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

void blend_add(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n)
{
#ifdef __x86_64__
	if (has_avx2()) {
		add_avx2(acc, dtype, x, weight, n);
		return;
	}
#endif
	blend_add_portable(acc, dtype, x, weight, n);
}

void blend_add_f64(double *acc, enum ckpt_dtype dtype, const void *x, double weight, size_t n)
{
#ifdef __x86_64__
	if (has_avx2()) {
		add_f64_avx2(acc, dtype, x, weight, n);
		return;
	}
#endif
	blend_add_f64_portable(acc, dtype, x, weight, n);
}

void blend_product(const struct blend_product *p, void *w)
{
#ifdef __x86_64__
	if (has_avx2()) {
		product_avx2(p, w);
		return;
	}
#endif
	blend_product_portable(p, w);
}

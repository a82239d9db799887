/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As in cast.c, the loops have no branches, and are compiled once for any CPU and once for those
 * with AVX2.
 */
#include "codec/fp8_internal.h"

#include "codec/floats.h"

/* As integers, magnitudes have the order of the numbers, and NaNs are the largest. */
INLINE float amax(float most, const float *x, size_t n)
{
	int32_t max = (int32_t)bits_of_f32(most);

	for (size_t i = 0; i < n; i++) {
		int32_t a = (int32_t)(bits_of_f32(x[i]) & 0x7fffffff);

		max = a > max ? a : max;
	}
	return f32_of_bits((uint32_t)max);
}

INLINE uint8_t code_of(uint32_t u)
{
	const int32_t most = (int32_t)bits_of_f32(FP8_MAX);
	int32_t a = (int32_t)(u & 0x7fffffff), m = a > most ? most : a;
	uint32_t normal = ((uint32_t)m - ((127u - 7) << 23) + 0x7ffff + (m >> 20 & 1)) >> 20;
	/* The lowest bit of 2^14 has the weight of a subnormal code's: the addition rounds. */
	uint32_t subnormal = bits_of_f32(f32_of_bits((uint32_t)m) + 0x1p14f) - bits_of_f32(0x1p14f);
	uint32_t r = pick(m < 0x3c800000, subnormal, normal); /* 2^-6 */

	r = pick(a > 0x7f800000, 0x7f, r);
	return (uint8_t)(r | (u >> 24 & 0x80));
}

INLINE void divide(enum ckpt_dtype dtype, const float *restrict x, float scale,
		   uint8_t *restrict codes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t u = bits_of_f32(x[i] / scale);

		if (dtype == CKPT_DTYPE_BF16)
			u = (uint32_t)f32_to_bf16(u, 0x7fc0) << 16;
		else if (dtype == CKPT_DTYPE_F16)
			u = f16_to_f32(f32_to_f16(u));
		codes[i] = code_of(u);
	}
}

INLINE void divide_as(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes, size_t n)
{
	if (dtype == CKPT_DTYPE_BF16)
		divide(CKPT_DTYPE_BF16, x, scale, codes, n);
	else if (dtype == CKPT_DTYPE_F16)
		divide(CKPT_DTYPE_F16, x, scale, codes, n);
	else
		divide(CKPT_DTYPE_F32, x, scale, codes, n);
}

INLINE void multiply(const float *restrict x, float scale, uint8_t *restrict codes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		codes[i] = code_of(bits_of_f32(x[i] * scale));
}

/* The NaN is torch's (codes.c). */
INLINE float value_of(uint8_t code)
{
	int32_t a = code & 0x7f;
	uint32_t normal = ((uint32_t)a << 20) + ((127u - 7) << 23);
	uint32_t subnormal = bits_of_f32((float)a * 0x1p-9f);
	uint32_t r = pick(a < 8, subnormal, pick(a < 0x7f, normal, 0x7ff00000));

	return f32_of_bits(r | (uint32_t)(code & 0x80) << 24);
}

INLINE void scale_codes(const uint8_t *restrict codes, float scale, float *restrict x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = value_of(codes[i]) * scale;
}

float fp8_amax_portable(float most, const float *x, size_t n)
{
	return amax(most, x, n);
}

void fp8_divide_portable(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes,
			 size_t n)
{
	divide_as(dtype, x, scale, codes, n);
}

void fp8_multiply_portable(const float *x, float scale, uint8_t *codes, size_t n)
{
	multiply(x, scale, codes, n);
}

void fp8_scale_portable(const uint8_t *codes, float scale, float *x, size_t n)
{
	scale_codes(codes, scale, x, n);
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))

AVX2 static float amax_avx2(float most, const float *x, size_t n)
{
	return amax(most, x, n);
}

AVX2 static void divide_avx2(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes,
			     size_t n)
{
	divide_as(dtype, x, scale, codes, n);
}

AVX2 static void multiply_avx2(const float *x, float scale, uint8_t *codes, size_t n)
{
	multiply(x, scale, codes, n);
}

AVX2 static void scale_avx2(const uint8_t *codes, float scale, float *x, size_t n)
{
	scale_codes(codes, scale, x, n);
}
#endif

float fp8_amax(float most, const float *x, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2"))
		return amax_avx2(most, x, n);
#endif
	return fp8_amax_portable(most, x, n);
}

void fp8_divide(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		divide_avx2(dtype, x, scale, codes, n);
		return;
	}
#endif
	fp8_divide_portable(dtype, x, scale, codes, n);
}

void fp8_multiply(const float *x, float scale, uint8_t *codes, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		multiply_avx2(x, scale, codes, n);
		return;
	}
#endif
	fp8_multiply_portable(x, scale, codes, n);
}

void fp8_scale(const uint8_t *codes, float scale, float *x, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		scale_avx2(codes, scale, x, n);
		return;
	}
#endif
	fp8_scale_portable(codes, scale, x, n);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Branchless loops, compiled once for any CPU and once for those with AVX2, as in cast.c. */
#include "codec/q8_0.h"

#include "base/bytes.h"
#include "codec/cast.h"
#include "codec/q8_0_internal.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float load_f32(const uint8_t *p)
{
	uint32_t u = load_le32(p);
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/*
 * Rounds halves away from zero. The integer part of 2x determines the result, and nothing is added
 * to a product, which a compiler could fuse. For finite elements |x| never exceeds 127.01.
 */
INLINE int8_t rounded(float x)
{
	float twice = x * 2;
	int32_t t = fabsf(twice) < 256 ? (int32_t)twice : 0; /* NaN, too large */
	int32_t sign = t < 0 ? -1 : 1;

	return (int8_t)((t * sign + 1) / 2 * sign);
}

/* Compares as ggml does: a NaN is taken, and dropped again at the next element. */
static float max_of_odd(const float *x)
{
	float max = 0;

	for (int i = 0; i < Q8_0_ELEMENTS; i++) {
		float a = fabsf(x[i]);

		max = max > a ? max : a;
	}
	return max;
}

INLINE void block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	float x[Q8_0_ELEMENTS], max, d, inverse;
	int32_t most = 0; /* as numbers, the bits sort like the floats */
	uint32_t bits;

	for (int i = 0; i < Q8_0_ELEMENTS; i++) {
		int32_t a = (int32_t)(load_le32(src + 4 * i) & 0x7fffffff);

		x[i] = load_f32(src + 4 * i);
		most = most > a ? most : a;
	}
	memcpy(&max, &most, sizeof(max));
	if (most > 0x7f800000)
		max = max_of_odd(x);
	d = max / 127;
	inverse = d != 0 ? 1 / d : 0;
	memcpy(&bits, &d, sizeof(bits));
	bits = htole32(bits);
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F16, &bits, dst, 1);
	for (int i = 0; i < Q8_0_ELEMENTS; i++)
		dst[2 + i] = (uint8_t)rounded(x[i] * inverse);
}

INLINE void run(const uint8_t *src, uint8_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		block(src + i * 4 * Q8_0_ELEMENTS, dst + i * Q8_0_BYTES);
}

void q8_0_run_portable(const void *src, void *dst, size_t n)
{
	run(src, dst, n);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void run_avx2(const void *src, void *dst, size_t n)
{
	run(src, dst, n);
}
#endif

void q8_0_run(const void *src, void *dst, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		run_avx2(src, dst, n);
		return;
	}
#endif
	q8_0_run_portable(src, dst, n);
}

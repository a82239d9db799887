/* SPDX-License-Identifier: Apache-2.0 */
/* The types of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, MXFP4. Loops without branches, as in q8_0.c. */
#include "codec/blocks_internal.h"

#include <float.h>
#include <math.h>

enum { N = 32, HALF = 16 };

struct values {
	float x[N];
	uint32_t most; /* the bits of the largest magnitude, which sort like the floats */
};

INLINE void load(const uint8_t *restrict src, struct values *v)
{
	int32_t most = 0;

	for (int i = 0; i < N; i++) {
		int32_t a = (int32_t)(load_le32(src + 4 * i) & 0x7fffffff);

		v->x[i] = f32_of_bits(load_le32(src + 4 * i));
		most = most > a ? most : a;
	}
	v->most = (uint32_t)most;
}

INLINE bool is_finite(const struct values *v)
{
	return v->most < 0x7f800000;
}

/* A block that is not a number: the first of its bytes say so, the rest are 0. */
INLINE void spoil(uint8_t *dst, size_t bytes)
{
	memset(dst, 0, bytes);
	store_f16(dst, NAN);
}

/* The element of the largest magnitude; if there are several, the first. */
INLINE float extreme(const struct values *v)
{
	int32_t plus = N, minus = N;

	if (!v->most)
		return 0;
	for (int i = 0; i < N; i++) {
		uint32_t u = bits_of_f32(v->x[i]);
		int32_t p = u == v->most ? i : N, m = u == (v->most | 0x80000000) ? i : N;

		plus = plus < p ? plus : p;
		minus = minus < m ? minus : m;
	}
	return f32_of_bits(v->most | (minus < plus ? 0x80000000 : 0));
}

/* If several zeros are the smallest, the first of them. */
INLINE void range(const struct values *v, float *ret_min, float *ret_max)
{
	float min = FLT_MAX, max = -FLT_MAX;

	for (int i = 0; i < N; i++) {
		min = v->x[i] < min ? v->x[i] : min;
		max = v->x[i] > max ? v->x[i] : max;
	}
	for (int i = 0; min == 0 && i < N; i++)
		if (v->x[i] == 0) {
			min = v->x[i];
			break;
		}
	*ret_min = min;
	*ret_max = max;
}

/* Towards zero; 0 if scales so small that they have no inverse have made it infinite, or a NaN. */
INLINE uint8_t code(float x, uint8_t most)
{
	int32_t t = fabsf(x) < 128 ? (int32_t)x : 0;

	return (uint8_t)(t < most ? t : most);
}

INLINE void pack(const uint8_t codes[N], uint8_t *restrict dst)
{
	for (int i = 0; i < HALF; i++)
		dst[i] = (uint8_t)((codes[i] & 15) | codes[i + HALF] << 4);
}

INLINE void pack_5(const uint8_t codes[N], uint8_t *restrict dst)
{
	uint32_t high = 0;

	for (int i = 0; i < N; i++)
		high |= (uint32_t)(codes[i] >> 4) << i;
	high = htole32(high);
	memcpy(dst, &high, sizeof(high));
	pack(codes, dst + sizeof(high));
}

/* Element = d * (code - zero); most: the largest code. */
INLINE void symmetric(const struct values *v, float zero, uint8_t most, float *ret_d,
		      uint8_t codes[N])
{
	float d = extreme(v) / -zero, inverse = d != 0 ? 1 / d : 0;

	for (int i = 0; i < N; i++)
		codes[i] = code(v->x[i] * inverse + (zero + 0.5f), most);
	*ret_d = d;
}

/* Element = d * code + min */
INLINE void affine(const struct values *v, uint8_t most, float *ret_d, float *ret_min,
		   uint8_t codes[N])
{
	float min, max, d, inverse;

	range(v, &min, &max);
	d = (max - min) / most;
	inverse = d != 0 ? 1 / d : 0;
	for (int i = 0; i < N; i++)
		codes[i] = code((v->x[i] - min) * inverse + 0.5f, most);
	*ret_d = d;
	*ret_min = min;
}

INLINE void q4_0_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	struct values v;
	uint8_t codes[N];
	float d;

	load(src, &v);
	if (!is_finite(&v)) {
		spoil(dst, 18);
		return;
	}
	symmetric(&v, 8, 15, &d, codes);
	store_f16(dst, d);
	pack(codes, dst + 2);
}

INLINE void q5_0_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	struct values v;
	uint8_t codes[N];
	float d;

	load(src, &v);
	if (!is_finite(&v)) {
		spoil(dst, 22);
		return;
	}
	symmetric(&v, 16, 31, &d, codes);
	store_f16(dst, d);
	pack_5(codes, dst + 2);
}

INLINE void q4_1_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	struct values v;
	uint8_t codes[N];
	float d, min;

	load(src, &v);
	if (!is_finite(&v)) {
		spoil(dst, 20);
		return;
	}
	affine(&v, 15, &d, &min, codes);
	store_f16(dst, d);
	store_f16(dst + 2, min);
	pack(codes, dst + 4);
}

INLINE void q5_1_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	struct values v;
	uint8_t codes[N];
	float d, min;

	load(src, &v);
	if (!is_finite(&v)) {
		spoil(dst, 24);
		return;
	}
	affine(&v, 31, &d, &min, codes);
	store_f16(dst, d);
	store_f16(dst + 2, min);
	pack_5(codes, dst + 4);
}

/*
 * The exponent of the block: its largest magnitude becomes 4 to 8 times the power of two.
 * log2f rounds, so just below a power of two it may return the next exponent; ggml's bytes have
 * that. Below 2^-125 they have the exponent modulo 256, which is harmless: all codes are 0 then.
 */
INLINE uint8_t exponent(uint32_t most)
{
	int32_t e = (int32_t)(most >> 23) - 127;

	if (!most)
		return 0;
	if (e == -127 || (most & 0x7fff00) == 0x7fff00) /* a subnormal, or close to the next */
		e = (int32_t)floorf(log2f(f32_of_bits(most)));
	return (uint8_t)(e - 2 + 127);
}

INLINE void mxfp4_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	static const float twice[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
	struct values v;
	uint8_t codes[N];
	float d;

	load(src, &v);
	if (!is_finite(&v)) {
		memset(dst, 0, 17);
		*dst = 0xff;
		return;
	}
	*dst = exponent(v.most);
	d = half_power(*dst);
	for (int i = 0; i < N; i++) {
		float x = fabsf(v.x[i]), best = x;
		int32_t at = 0;

		for (int k = 1; k < 8; k++) {
			float error = fabsf(twice[k] * d - x);
			bool less = error < best;

			at = less ? k : at;
			best = less ? error : best;
		}
		codes[i] = (uint8_t)(at | (v.x[i] < 0 && at ? 8 : 0));
	}
	pack(codes, dst + 1);
}

DEFINE_ENCODER(q4_0, N, 18)
DEFINE_ENCODER(q4_1, N, 20)
DEFINE_ENCODER(q5_0, N, 22)
DEFINE_ENCODER(q5_1, N, 24)
DEFINE_ENCODER(mxfp4, N, 17)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floats - conversions between floating-point types, one element at a time and without a branch, so
 * that loops over them become vector instructions. Private to core/codec.
 */
#ifndef CODEC_FLOATS_H
#define CODEC_FLOATS_H

#include "base/bytes.h"
#include "model/dtype.h"

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* yes ? a : b; gcc turns that expression into a branch if a or b is costly. */
INLINE uint32_t pick(bool yes, uint32_t a, uint32_t b)
{
	return b ^ ((a ^ b) & -(uint32_t)yes);
}

INLINE float f32_of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

INLINE uint32_t bits_of_f32(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

INLINE double f64_of_bits(uint64_t u)
{
	double d;

	memcpy(&d, &u, sizeof(d));
	return d;
}

/* x86-64 and AArch64 keep a NaN's sign and upper payload bits here, and make it quiet. */
INLINE uint32_t f64_to_f32(uint64_t u)
{
	return bits_of_f32((float)f64_of_bits(u));
}

INLINE uint32_t f16_to_f32(uint16_t h)
{
	int32_t a = h & 0x7fff; /* signed, because SSE2 has only signed compares */
	uint32_t moved = (uint32_t)a << 13;
	uint32_t normal = moved + ((127u - 15) << 23);
	uint32_t subnormal = bits_of_f32((float)a * 0x1p-24f);
	uint32_t special = moved | 0x7f800000 | (uint32_t)(a > 0x7c00) << 22;
	uint32_t r = pick(a < 0x400, subnormal, pick(a < 0x7c00, normal, special));

	return r | (uint32_t)(h & 0x8000) << 16;
}

INLINE uint16_t f32_to_f16(uint32_t u)
{
	int32_t a = (int32_t)(u & 0x7fffffff);
	uint32_t normal = ((uint32_t)a - ((127u - 15) << 23) + 0xfff + (a >> 13 & 1)) >> 13;
	/* The lowest bit of 0.5f has the weight of a subnormal float16's: the addition rounds. */
	uint32_t subnormal = bits_of_f32(f32_of_bits((uint32_t)a) + 0.5f) - bits_of_f32(0.5f);
	uint32_t nan = 0x7e00 | (a >> 13 & 0x3ff);
	uint32_t r = pick(a < 0x38800000, subnormal, normal); /* 2^-14 */

	r = pick(a < 0x47800000, r, 0x7c00); /* 2^16 */
	r = pick(a > 0x7f800000, nan, r);
	return (uint16_t)(r | (u >> 16 & 0x8000));
}

INLINE uint16_t f32_to_bf16(uint32_t u, uint16_t nan)
{
	uint32_t r = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return (uint16_t)pick((int32_t)(u & 0x7fffffff) > 0x7f800000, nan, r);
}

/* Element i of float64, float32, float16 or bfloat16, as float32. */
INLINE uint32_t load_as_f32(enum ckpt_dtype from, const uint8_t *src, size_t i)
{
	switch (from) {
	case CKPT_DTYPE_F64:
		return f64_to_f32(load_le64(src + 8 * i));
	case CKPT_DTYPE_F16:
		return f16_to_f32(load_le16(src + 2 * i));
	case CKPT_DTYPE_BF16:
		return (uint32_t)load_le16(src + 2 * i) << 16;
	default:
		return load_le32(src + 4 * i);
	}
}

/* Makes element i of float32, float16 or bfloat16. nan: what a NaN becomes as bfloat16. */
INLINE void store_f32_as(enum ckpt_dtype to, uint32_t u, uint8_t *dst, size_t i, uint16_t nan)
{
	if (to == CKPT_DTYPE_F32) {
		u = htole32(u);
		memcpy(dst + 4 * i, &u, 4);
	} else {
		uint16_t h = htole16(to == CKPT_DTYPE_F16 ? f32_to_f16(u) : f32_to_bf16(u, nan));

		memcpy(dst + 2 * i, &h, 2);
	}
}

/* What any NaN of float32 becomes as bfloat16 in torch. */
#define BF16_NAN 0xffff

#endif

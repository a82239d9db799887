/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function below handles one element, without a branch. With constant `from` and `to`,
 * everything that depends on them folds away, and compilers turn what remains of loop() into vector
 * instructions (at -O3; see the Makefile). run() holds one such loop for each pair of types, and is
 * compiled once for any CPU and once for those with AVX2.
 */
#include "codec/cast.h"

#include "base/bytes.h"
#include "codec/cast_internal.h"

#include <endian.h>
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

/* x86-64 and AArch64 keep a NaN's sign and upper payload bits here, and make it quiet. */
INLINE uint32_t f64_to_f32(uint64_t u)
{
	double d;

	memcpy(&d, &u, sizeof(d));
	return bits_of_f32((float)d);
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

/* Element i, as float32. */
INLINE uint32_t load(enum ckpt_dtype from, const uint8_t *src, size_t i)
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

INLINE void loop(enum ckpt_dtype from, enum ckpt_dtype to, const uint8_t *restrict src,
		 uint8_t *restrict dst, size_t n)
{
	uint16_t nan = from == CKPT_DTYPE_F16 ? 0x7fc0 : 0xffff; /* the bfloat16 NaN */

	for (size_t i = 0; i < n; i++) {
		uint32_t u = load(from, src, i);

		if (to == CKPT_DTYPE_F32) {
			u = htole32(u);
			memcpy(dst + 4 * i, &u, 4);
		} else {
			uint16_t h =
				htole16(to == CKPT_DTYPE_F16 ? f32_to_f16(u) : f32_to_bf16(u, nan));

			memcpy(dst + 2 * i, &h, 2);
		}
	}
}

INLINE void run_from(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
	if (to == from)
		memcpy(dst, src, n * dtype_info(from)->size);
	else if (to == CKPT_DTYPE_F32)
		loop(from, CKPT_DTYPE_F32, src, dst, n);
	else if (to == CKPT_DTYPE_F16)
		loop(from, CKPT_DTYPE_F16, src, dst, n);
	else
		loop(from, CKPT_DTYPE_BF16, src, dst, n);
}

INLINE void run(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
	if (from == CKPT_DTYPE_F64)
		run_from(CKPT_DTYPE_F64, to, src, dst, n);
	else if (from == CKPT_DTYPE_F32)
		run_from(CKPT_DTYPE_F32, to, src, dst, n);
	else if (from == CKPT_DTYPE_F16)
		run_from(CKPT_DTYPE_F16, to, src, dst, n);
	else
		run_from(CKPT_DTYPE_BF16, to, src, dst, n);
}

void cast_run_portable(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst,
		       size_t n)
{
	run(from, to, src, dst, n);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void run_avx2(enum ckpt_dtype from, enum ckpt_dtype to,
						     const void *src, void *dst, size_t n)
{
	run(from, to, src, dst, n);
}
#endif

void cast_run(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		run_avx2(from, to, src, dst, n);
		return;
	}
#endif
	cast_run_portable(from, to, src, dst, n);
}

bool cast_possible(enum ckpt_dtype from, enum ckpt_dtype to)
{
	bool is_target = to == CKPT_DTYPE_F32 || to == CKPT_DTYPE_F16 || to == CKPT_DTYPE_BF16;

	return is_target && (from == CKPT_DTYPE_F64 || from == CKPT_DTYPE_F32 ||
			     from == CKPT_DTYPE_F16 || from == CKPT_DTYPE_BF16);
}

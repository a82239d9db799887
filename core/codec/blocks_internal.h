/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks_internal - the encoders in the table of blocks.c, and what they share. Private to
 * core/codec.
 *
 * All are loops that are compiled once for any CPU and once for those with AVX2, as in cast.c.
 */
#ifndef CODEC_BLOCKS_INTERNAL_H
#define CODEC_BLOCKS_INTERNAL_H

#include "base/bytes.h"
#include "codec/blocks.h"
#include "codec/floats.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define DECLARE_ENCODER(name) block_encode_fn name##_encode, name##_encode_portable

DECLARE_ENCODER(q4_0);
DECLARE_ENCODER(q4_1);
DECLARE_ENCODER(q5_0);
DECLARE_ENCODER(q5_1);
DECLARE_ENCODER(mxfp4);
DECLARE_ENCODER(q4_k);
DECLARE_ENCODER(q5_k);
DECLARE_ENCODER(q6_k);

/* Defines name_encode and name_encode_portable: loops over name_block(src, dst). */
#define LOOP_OVER(name, elements, size) \
	INLINE void name##_run(const uint8_t *src, uint8_t *dst, size_t n) \
	{ \
		for (size_t i = 0; i < n; i++) \
			name##_block(src + i * 4 * (elements), dst + i * (size)); \
	} \
	void name##_encode_portable(const void *src, void *dst, size_t n) \
	{ \
		name##_run(src, dst, n); \
	}
#ifdef __x86_64__
#define DEFINE_ENCODER(name, elements, size) \
	LOOP_OVER(name, elements, size) \
	__attribute__((target("avx2"))) static void name##_avx2(const uint8_t *src, uint8_t *dst, \
								size_t n) \
	{ \
		name##_run(src, dst, n); \
	} \
	void name##_encode(const void *src, void *dst, size_t n) \
	{ \
		if (__builtin_cpu_supports("avx2")) \
			name##_avx2(src, dst, n); \
		else \
			name##_encode_portable(src, dst, n); \
	}
#else
#define DEFINE_ENCODER(name, elements, size) \
	LOOP_OVER(name, elements, size) \
	void name##_encode(const void *src, void *dst, size_t n) \
	{ \
		name##_encode_portable(src, dst, n); \
	}
#endif

/* Stores a float as float16. */
INLINE void store_f16(uint8_t *dst, float f)
{
	uint16_t h = htole16(f32_to_f16(bits_of_f32(f)));

	memcpy(dst, &h, sizeof(h));
}

INLINE float load_f16(const uint8_t *p)
{
	return f32_of_bits(f16_to_f32(load_le16(p)));
}

/* Half of 2^(e - 127), because codes stand for twice their values. */
INLINE float half_power(uint8_t e)
{
	return f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif

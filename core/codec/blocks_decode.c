/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/blocks_decode.h"

#include "base/checked.h"
#include "codec/blocks_grids.h"
#include "codec/blocks_internal.h"

#include <math.h>

/* Defines name_decode: a loop over name_values(src, dst). */
#define DEFINE_DECODER(name, elements, size) \
	static void name##_decode(const void *src, float *dst, size_t n) \
	{ \
		const uint8_t *p = src; \
\
		for (size_t i = 0; i < n; i++) \
			name##_values(p + i * (size), dst + i * (elements)); \
	}

static const int8_t iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
				       1,    13,   25,	38,  53,  69,  89,  113 };
/* Twice the values of e2m1; scales are halved. */
static const int8_t e2m1_twice[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* ---- 32 elements ---- */

INLINE void q4_0_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)((p[2 + i] & 15) - 8) * d;
		y[i + 16] = (float)((p[2 + i] >> 4) - 8) * d;
	}
}

INLINE void q4_1_values(const uint8_t *p, float *y)
{
	float d = load_f16(p), m = load_f16(p + 2);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)(p[4 + i] & 15) * d + m;
		y[i + 16] = (float)(p[4 + i] >> 4) * d + m;
	}
}

/* The fifth bit of element i. */
INLINE int fifth(uint32_t high, int i)
{
	return (int)(high >> i & 1) << 4;
}

INLINE void q5_0_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);
	uint32_t high = load_le32(p + 2);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)(((p[6 + i] & 15) | fifth(high, i)) - 16) * d;
		y[i + 16] = (float)((p[6 + i] >> 4 | fifth(high, i + 16)) - 16) * d;
	}
}

INLINE void q5_1_values(const uint8_t *p, float *y)
{
	float d = load_f16(p), m = load_f16(p + 2);
	uint32_t high = load_le32(p + 4);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)((p[8 + i] & 15) | fifth(high, i)) * d + m;
		y[i + 16] = (float)(p[8 + i] >> 4 | fifth(high, i + 16)) * d + m;
	}
}

INLINE void q8_0_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int i = 0; i < 32; i++)
		y[i] = (float)(int8_t)p[2 + i] * d;
}

INLINE void iq4_nl_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int i = 0; i < 16; i++) {
		y[i] = d * (float)iq4_values[p[2 + i] & 15];
		y[i + 16] = d * (float)iq4_values[p[2 + i] >> 4];
	}
}

INLINE void mxfp4_values(const uint8_t *p, float *y)
{
	float d = half_power(*p);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)e2m1_twice[p[1 + i] & 15] * d;
		y[i + 16] = (float)e2m1_twice[p[1 + i] >> 4] * d;
	}
}

/* Half of an e4m3 without a sign. e4m3's NaN counts as 0. */
INLINE float half_ue4m3(uint8_t x)
{
	int exponent = x >> 3 & 15, mantissa = x & 7;

	if (x == 0 || x == 0x7f)
		return 0;
	if (!exponent)
		return ldexpf((float)mantissa, -10);
	return ldexpf(1 + (float)mantissa / 8, exponent - 8);
}

INLINE void nvfp4_values(const uint8_t *p, float *y)
{
	for (int s = 0; s < 4; s++) {
		float d = half_ue4m3(p[s]);

		for (int i = 0; i < 8; i++) {
			y[16 * s + i] = (float)e2m1_twice[p[4 + 8 * s + i] & 15] * d;
			y[16 * s + i + 8] = (float)e2m1_twice[p[4 + 8 * s + i] >> 4] * d;
		}
	}
}

/* ---- 256 elements ---- */

INLINE void q2_k_values(const uint8_t *p, float *y)
{
	float d = load_f16(p + 80), min = load_f16(p + 82);

	for (int k = 0; k < 16; k++) {
		float scale = d * (float)(p[k] & 15), less = min * (float)(p[k] >> 4);
		const uint8_t *q = p + 16 + 32 * (k / 8) + 16 * (k % 2);

		for (int i = 0; i < 16; i++)
			y[16 * k + i] = scale * (float)(q[i] >> 2 * (k / 2 % 4) & 3) - less;
	}
}

INLINE void q3_k_values(const uint8_t *p, float *y)
{
	const uint8_t *scales = p + 96;
	float d = load_f16(p + 108);

	for (int k = 0; k < 16; k++) {
		int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4;
		int high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
		float scale = d * (float)((low | high << 4) - 32);
		const uint8_t *q = p + 32 + 32 * (k / 8) + 16 * (k % 2), *h = p + 16 * (k % 2);

		for (int i = 0; i < 16; i++) {
			int code = q[i] >> 2 * (k / 2 % 4) & 3;

			y[16 * k + i] = scale * (float)(code - (h[i] >> k / 2 & 1 ? 0 : 4));
		}
	}
}

/* Scale and minimum k of Q4_K and Q5_K. */
INLINE void scale_min(const uint8_t *p, int k, int *ret_scale, int *ret_min)
{
	*ret_scale = k < 4 ? p[k] & 63 : (p[k + 4] & 15) | p[k - 4] >> 6 << 4;
	*ret_min = k < 4 ? p[k + 4] & 63 : p[k + 4] >> 4 | p[k] >> 6 << 4;
}

INLINE void q4_k_values(const uint8_t *p, float *y)
{
	float d = load_f16(p), min = load_f16(p + 2);

	for (int k = 0; k < 8; k++) {
		const uint8_t *q = p + 16 + 32 * (k / 2);
		int s, m;

		scale_min(p + 4, k, &s, &m);
		for (int i = 0; i < 32; i++)
			y[32 * k + i] =
				d * (float)s * (float)(q[i] >> 4 * (k % 2) & 15) - min * (float)m;
	}
}

INLINE void q5_k_values(const uint8_t *p, float *y)
{
	float d = load_f16(p), min = load_f16(p + 2);

	for (int k = 0; k < 8; k++) {
		const uint8_t *q = p + 48 + 32 * (k / 2), *h = p + 16;
		int s, m;

		scale_min(p + 4, k, &s, &m);
		for (int i = 0; i < 32; i++)
			y[32 * k + i] = d * (float)s *
						(float)((q[i] >> 4 * (k % 2) & 15) +
							((h[i] >> k & 1) << 4)) -
					min * (float)m;
	}
}

INLINE void q6_k_values(const uint8_t *p, float *y)
{
	float d = load_f16(p + 208);

	for (int i = 0; i < 256; i++) {
		int half = i / 128, row = i % 128;
		int low = p[64 * half + row % 64] >> 4 * (row / 64) & 15;
		int high = p[128 + 32 * half + row % 32] >> 2 * (row / 32) & 3;

		y[i] = d * (float)(int8_t)p[192 + i / 16] * (float)((low | high << 4) - 32);
	}
}

INLINE void q8_k_values(const uint8_t *p, float *y)
{
	float d = f32_of_bits(load_le32(p));

	for (int i = 0; i < 256; i++)
		y[i] = d * (float)(int8_t)p[4 + i];
}

INLINE void iq4_xs_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);
	uint16_t high = load_le16(p + 2);

	for (int k = 0; k < 8; k++) {
		int s = (p[4 + k / 2] >> 4 * (k % 2) & 15) | (high >> 2 * k & 3) << 4;
		float scale = d * (float)(s - 32);
		const uint8_t *q = p + 8 + 16 * k;

		for (int i = 0; i < 16; i++) {
			y[32 * k + i] = scale * (float)iq4_values[q[i] & 15];
			y[32 * k + i + 16] = scale * (float)iq4_values[q[i] >> 4];
		}
	}
}

/* Digit n of a number in base 3 that is stored as a fraction of 256. */
INLINE int trit(uint8_t q, int n)
{
	static const uint8_t powers[5] = { 1, 3, 9, 27, 81 };

	return ((uint8_t)(q * powers[n]) * 3 >> 8) - 1;
}

INLINE void tq1_0_values(const uint8_t *p, float *y)
{
	float d = load_f16(p + 52);

	for (int n = 0; n < 5; n++) {
		for (int i = 0; i < 32; i++)
			y[32 * n + i] = (float)trit(p[i], n) * d;
		for (int i = 0; i < 16; i++)
			y[160 + 16 * n + i] = (float)trit(p[32 + i], n) * d;
	}
	for (int n = 0; n < 4; n++)
		for (int i = 0; i < 4; i++)
			y[240 + 4 * n + i] = (float)trit(p[48 + i], n) * d;
}

INLINE void tq2_0_values(const uint8_t *p, float *y)
{
	float d = load_f16(p + 64);

	for (int i = 0; i < 256; i++)
		y[i] = (float)((p[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) - 1) * d;
}

/* ---- vectors ---- */

static const int8_t iq2_values[4] = { 8, 25, 43, 0 };
static const int8_t iq3_xxs_steps[8] = { 4, 12, 20, 28, 36, 44, 52, 62 };
static const int8_t iq3_s_steps[8] = { 1, 3, 5, 7, 9, 11, 13, 15 };

/* Eight signs: of the last one only the parity is stored. */
INLINE uint8_t signs_of(uint32_t code)
{
	return (uint8_t)(code | (uint32_t)__builtin_parity(code) << 7);
}

/* n elements, whose codes have `bits`. */
INLINE void put_vector(uint16_t codes, int bits, int n, const int8_t *values, uint32_t signs,
		       float scale, float *y)
{
	for (int i = 0; i < n; i++) {
		float x = scale * (float)values[codes >> bits * i & (bits == 2 ? 3 : 7)];

		y[i] = signs >> i & 1 ? -x : x;
	}
}

INLINE int nibble_of(const uint8_t *p, int i)
{
	return p[i / 2] >> 4 * (i % 2) & 15;
}

INLINE void iq2_xxs_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 32; k++) {
		const uint8_t *group = p + 2 + 8 * (k / 4);
		uint32_t rest = load_le32(group + 4);

		put_vector(grid_iq2_xxs[group[k % 4]], 2, 8, iq2_values,
			   signs_of(rest >> 7 * (k % 4) & 127),
			   d * (0.5f + (float)(rest >> 28)) * 0.25f, y + 8 * k);
	}
}

INLINE void iq2_xs_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 32; k++) {
		uint16_t q = load_le16(p + 2 + 2 * k);

		put_vector(grid_iq2_xs[q & 511], 2, 8, iq2_values, signs_of(q >> 9),
			   d * (0.5f + (float)nibble_of(p + 66, k / 2)) * 0.25f, y + 8 * k);
	}
}

INLINE void iq2_s_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 32; k++) {
		int at = p[2 + k] | (p[66 + k / 4] >> 2 * (k % 4) & 3) << 8;

		put_vector(grid_iq2_s[at], 2, 8, iq2_values, p[34 + k],
			   d * (0.5f + (float)nibble_of(p + 74, k / 2)) * 0.25f, y + 8 * k);
	}
}

INLINE void iq3_xxs_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 64; k++) {
		uint32_t rest = load_le32(p + 66 + 4 * (k / 8));
		uint8_t signs = signs_of(rest >> 7 * (k / 2 % 4) & 127);

		put_vector(grid_iq3_xxs[p[2 + k]], 4, 4, iq3_xxs_steps,
			   (uint32_t)signs >> 4 * (k % 2), d * (0.5f + (float)(rest >> 28)) * 0.5f,
			   y + 4 * k);
	}
}

INLINE void iq3_s_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 64; k++) {
		int at = p[2 + k] | (p[66 + k / 8] >> k % 8 & 1) << 8;

		put_vector(grid_iq3_s[at], 4, 4, iq3_s_steps,
			   (uint32_t)p[74 + k / 2] >> 4 * (k % 2),
			   d * (float)(1 + 2 * nibble_of(p + 106, k / 8)), y + 4 * k);
	}
}

/* Elements are -1, 0 or 1, plus or minus an eighth. */
INLINE void put_iq1(int at, float scale, bool less, float *y)
{
	float delta = less ? -0.125f : 0.125f;

	for (int i = 0; i < 8; i++)
		y[i] = scale * ((float)((grid_iq1[at] >> 2 * i & 3) - 1) + delta);
}

INLINE void iq1_s_values(const uint8_t *p, float *y)
{
	float d = load_f16(p);

	for (int k = 0; k < 32; k++) {
		uint16_t h = load_le16(p + 34 + 2 * (k / 4));

		put_iq1(p[2 + k] | (h >> 3 * (k % 4) & 7) << 8, d * (float)(2 * (h >> 12 & 7) + 1),
			h & 0x8000, y + 8 * k);
	}
}

/* The scale of the block is in the highest bits of those of its parts. */
INLINE void iq1_m_values(const uint8_t *p, float *y)
{
	uint16_t bits = 0;
	float d;

	for (int i = 0; i < 4; i++)
		bits |= (uint16_t)(load_le16(p + 48 + 2 * i) >> 12 << 4 * i);
	d = f32_of_bits(f16_to_f32(bits));
	for (int k = 0; k < 32; k++) {
		int h = nibble_of(p + 32, k),
		    s = load_le16(p + 48 + 2 * (k / 8)) >> 3 * (k / 2 % 4);

		put_iq1(p[k] | (h & 7) << 8, d * (float)(2 * (s & 7) + 1), h & 8, y + 8 * k);
	}
}

DEFINE_DECODER(q4_0, 32, 18)
DEFINE_DECODER(q4_1, 32, 20)
DEFINE_DECODER(q5_0, 32, 22)
DEFINE_DECODER(q5_1, 32, 24)
DEFINE_DECODER(q8_0, 32, 34)
DEFINE_DECODER(iq4_nl, 32, 18)
DEFINE_DECODER(mxfp4, 32, 17)
DEFINE_DECODER(nvfp4, 64, 36)
DEFINE_DECODER(q2_k, 256, 84)
DEFINE_DECODER(q3_k, 256, 110)
DEFINE_DECODER(q4_k, 256, 144)
DEFINE_DECODER(q5_k, 256, 176)
DEFINE_DECODER(q6_k, 256, 210)
DEFINE_DECODER(q8_k, 256, 292)
DEFINE_DECODER(iq4_xs, 256, 136)
DEFINE_DECODER(tq1_0, 256, 54)
DEFINE_DECODER(tq2_0, 256, 66)
DEFINE_DECODER(iq1_s, 256, 50)
DEFINE_DECODER(iq1_m, 256, 56)
DEFINE_DECODER(iq2_xxs, 256, 66)
DEFINE_DECODER(iq2_xs, 256, 74)
DEFINE_DECODER(iq2_s, 256, 82)
DEFINE_DECODER(iq3_xxs, 256, 98)
DEFINE_DECODER(iq3_s, 256, 110)

static const struct {
	enum ggml_type type;
	block_decode_fn *decode;
} decoders[] = {
	{ GGML_Q4_0, q4_0_decode },	  { GGML_Q4_1, q4_1_decode },
	{ GGML_Q5_0, q5_0_decode },	  { GGML_Q5_1, q5_1_decode },
	{ GGML_Q8_0, q8_0_decode },	  { GGML_Q2_K, q2_k_decode },
	{ GGML_Q3_K, q3_k_decode },	  { GGML_Q4_K, q4_k_decode },
	{ GGML_Q5_K, q5_k_decode },	  { GGML_Q6_K, q6_k_decode },
	{ GGML_Q8_K, q8_k_decode },	  { GGML_IQ4_NL, iq4_nl_decode },
	{ GGML_IQ4_XS, iq4_xs_decode },	  { GGML_TQ1_0, tq1_0_decode },
	{ GGML_TQ2_0, tq2_0_decode },	  { GGML_IQ1_S, iq1_s_decode },
	{ GGML_IQ1_M, iq1_m_decode },	  { GGML_IQ2_XXS, iq2_xxs_decode },
	{ GGML_IQ2_XS, iq2_xs_decode },	  { GGML_IQ2_S, iq2_s_decode },
	{ GGML_IQ3_XXS, iq3_xxs_decode }, { GGML_IQ3_S, iq3_s_decode },
	{ GGML_MXFP4, mxfp4_decode },	  { GGML_NVFP4, nvfp4_decode },
};

block_decode_fn *block_decoder(enum ggml_type type)
{
	for (size_t i = 0; i < ARRAY_LEN(decoders); i++)
		if (decoders[i].type == type)
			return decoders[i].decode;
	return NULL;
}

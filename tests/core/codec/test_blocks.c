/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's blocks, compared with plain loops over one sub-block at a time, and with ggml's
 * own bytes. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/crc32c.h"
#include "codec/blocks.h"
#include "codec/blocks_decode.h"
#include "codec/cast.h"
#include "rng.h"
#include "suites.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SUPER = 256, MOST_BYTES = 272 };

static const enum ggml_type all[] = { GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1, GGML_Q8_0,
				      GGML_Q4_K, GGML_Q5_K, GGML_Q6_K, GGML_MXFP4 };

/* ---- plain loops ---- */

static void to_f16(float f, uint8_t *out)
{
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F16, &f, out, 1);
}

static float of_f16(const uint8_t *p)
{
	float f;

	cast_run(CKPT_DTYPE_F16, CKPT_DTYPE_F32, p, &f, 1);
	return f;
}

static int nearest(float x)
{
	float y = x + 12582912.f;
	int i;

	memcpy(&i, &y, sizeof(i));
	return (i & 0x7fffff) - 0x400000;
}

static int within(int x, int least, int most)
{
	return x < least ? least : x > most ? most : x;
}

static int cut(float x)
{
	return fabsf(x) < 128 ? (int)x : 0;
}

static void plain_32(enum ggml_type type, const float *x, uint8_t *out)
{
	bool affine = type == GGML_Q4_1 || type == GGML_Q5_1;
	bool five = type == GGML_Q5_0 || type == GGML_Q5_1;
	int most = five ? 31 : 15, codes[32];
	float min = FLT_MAX, max = -FLT_MAX, extreme = 0, d, inverse;
	uint32_t high = 0;

	for (int i = 0; i < 32; i++) {
		if (x[i] < min)
			min = x[i];
		if (x[i] > max)
			max = x[i];
		if (fabsf(x[i]) > fabsf(extreme))
			extreme = x[i];
	}
	if (affine)
		d = (max - min) / (float)most;
	else
		d = extreme / (five ? -16.f : -8.f);
	inverse = d != 0 ? 1 / d : 0;
	to_f16(d, out);
	out += 2;
	if (affine) {
		to_f16(min, out);
		out += 2;
	}
	for (int i = 0; i < 32; i++) {
		float y = affine ? (x[i] - min) * inverse : x[i] * inverse;
		float half = affine ? 0.5f : five ? 16.5f : 8.5f;

		y = y + half;
		codes[i] = cut(y) < most ? cut(y) : most;
		high |= (uint32_t)(codes[i] >> 4) << i;
	}
	if (five)
		for (int i = 0; i < 4; i++)
			*out++ = (uint8_t)(high >> 8 * i);
	for (int i = 0; i < 16; i++)
		*out++ = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

static void plain_q8_0(const float *x, uint8_t *out)
{
	float most = 0, d, inverse;

	for (int i = 0; i < 32; i++)
		most = fmaxf(most, fabsf(x[i]));
	d = most / 127;
	inverse = d != 0 ? 1 / d : 0;
	to_f16(d, out);
	for (int i = 0; i < 32; i++) {
		float y = x[i] * inverse;

		out[2 + i] = (uint8_t)(fabsf(y) < 128 ? (int)roundf(y) : 0);
	}
}

static void plain_mxfp4(const float *x, uint8_t *out)
{
	static const float twice[] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
	int codes[32], e = 0;
	float most = 0;

	for (int i = 0; i < 32; i++)
		most = fmaxf(most, fabsf(x[i]));
	if (most > 0)
		e = ((int)floorf(log2f(most)) + 125) & 255;
	for (int i = 0; i < 32; i++) {
		float best = INFINITY;

		for (int k = 0; k < 16; k++) {
			float error = fabsf(twice[k] * ldexpf(1, e - 128) - x[i]);

			if (error < best) {
				best = error;
				codes[i] = k;
			}
		}
	}
	*out = (uint8_t)e;
	for (int i = 0; i < 16; i++)
		out[1 + i] = (uint8_t)(codes[i] | codes[i + 16] << 4);
}

/* Returns the scale. */
static float search_affine(const float *x, int most, float first, int tries, int *codes,
			   float *ret_min)
{
	float w[32], squares = 0, min = x[0], max = x[0], sw = 0, swx = 0, scale, best = 0;

	for (int i = 0; i < 32; i++)
		squares = i ? squares + x[i] * x[i] : x[i] * x[i];
	for (int i = 0; i < 32; i++)
		w[i] = sqrtf(squares / 32) + fabsf(x[i]);
	for (int i = 0; i < 32; i++) {
		min = x[i] < min ? x[i] : min;
		max = x[i] > max ? x[i] : max;
		sw = i ? sw + w[i] : w[i];
		swx = i ? swx + w[i] * x[i] : w[i] * x[i];
	}
	if (min > 0)
		min = 0;
	memset(codes, 0, 32 * sizeof(*codes));
	*ret_min = -min;
	if (max == min)
		return 0;
	scale = 1 / ((float)most / (max - min));
	for (int i = 0; i < 32; i++) {
		float diff;

		codes[i] = within(nearest((float)most / (max - min) * (x[i] - min)), 0, most);
		diff = scale * (float)codes[i] + min - x[i];
		best += w[i] * (diff * diff);
	}
	for (int k = 0; k <= tries; k++) {
		float inverse = (first + 0.1f * (float)k + (float)most) / (max - min);
		float l = 0, l2 = 0, xl = 0, det, s, m, error = 0;
		int tried[32];

		for (int i = 0; i < 32; i++) {
			tried[i] = within(nearest(inverse * (x[i] - min)), 0, most);
			l += w[i] * (float)tried[i];
			l2 += w[i] * (float)tried[i] * (float)tried[i];
			xl += w[i] * (float)tried[i] * x[i];
		}
		det = sw * l2 - l * l;
		if (!(det > 0))
			continue;
		s = (sw * xl - swx * l) / det;
		m = (l2 * swx - l * xl) / det;
		if (m > 0) {
			m = 0;
			s = xl / l2;
		}
		for (int i = 0; i < 32; i++) {
			float diff = s * (float)tried[i] + m - x[i];

			error += w[i] * (diff * diff);
		}
		if (error < best) {
			memcpy(codes, tried, sizeof(tried));
			best = error;
			scale = s;
			min = m;
		}
	}
	*ret_min = -min;
	return scale;
}

static void plain_affine(bool five, const float *x, uint8_t *out)
{
	int most = five ? 31 : 15, codes[8][32], s[8], m[8];
	float scale[8], min[8], max_scale = 0, max_min = 0;
	uint8_t *low = out + (five ? 48 : 16);

	memset(out, 0, five ? 176 : 144);
	for (int b = 0; b < 8; b++) {
		scale[b] = search_affine(x + 32 * b, most, five ? -0.5f : -1.f, five ? 15 : 20,
					 codes[b], &min[b]);
		max_scale = scale[b] > max_scale ? scale[b] : max_scale;
		max_min = min[b] > max_min ? min[b] : max_min;
	}
	to_f16(max_scale / 63, out);
	to_f16(max_min / 63, out + 2);
	for (int b = 0; b < 8; b++) {
		float to_s = max_scale > 0 ? 63 / max_scale : 0;
		float to_m = max_min > 0 ? 63 / max_min : 0;

		s[b] = within(nearest(to_s * scale[b]) & 255, 0, 63);
		m[b] = within(nearest(to_m * min[b]) & 255, 0, 63);
		out[4 + b % 4] |= (uint8_t)(b < 4 ? s[b] : s[b] >> 4 << 6);
		out[8 + b % 4] |= (uint8_t)(b < 4 ? m[b] : m[b] >> 4 << 6);
		if (b >= 4)
			out[8 + b] = (uint8_t)((s[b] & 15) | (m[b] & 15) << 4);
	}
	for (int b = 0; b < 8; b++) {
		float d = of_f16(out) * (float)s[b], dm = of_f16(out + 2) * (float)m[b];

		for (int i = 0; i < 32; i++) {
			int code = codes[b][i];

			if (d != 0)
				code = within(nearest((x[32 * b + i] + dm) / d), 0, most);
			low[b / 2 * 32 + i] |= (uint8_t)((code & 15) << (b % 2 ? 4 : 0));
			if (five)
				out[16 + i] |= (uint8_t)(code >> 4 << b);
		}
	}
}

static float search_linear(const float *x, int *codes)
{
	float extreme = 0, scale = 0, best = 0;

	memset(codes, 0, 16 * sizeof(*codes));
	for (int i = 0; i < 16; i++)
		if (fabsf(x[i]) > fabsf(extreme))
			extreme = x[i];
	if (fabsf(extreme) < 1e-15f)
		return 0;
	for (int k = 0; k < 19; k++) {
		static const int order[19] = { 0, -9, -8, -7, -6, -5, -4, -3, -2, -1,
					       1, 2,  3,  4,  5,  6,  7,  8,  9 };
		float inverse = -(32 + 0.1f * (float)order[k]) / extreme, xl = 0, l2 = 0;
		int tried[16];

		if (!k)
			inverse = -32 / extreme;
		for (int i = 0; i < 16; i++) {
			float w = x[i] * x[i];

			tried[i] = within(nearest(inverse * x[i]), -32, 31);
			xl += w * x[i] * (float)tried[i];
			l2 += w * (float)tried[i] * (float)tried[i];
		}
		if (!k || (l2 > 0 && xl * xl > best * l2)) {
			scale = l2 != 0 ? xl / l2 : 0;
			best = scale * xl;
			for (int i = 0; i < 16; i++)
				codes[i] = tried[i] + 32;
		}
	}
	return scale;
}

static void plain_q6_k(const float *x, uint8_t *out)
{
	int codes[SUPER];
	float scale[16], extreme = 0, inverse;

	memset(out, 0, 210);
	for (int b = 0; b < 16; b++) {
		scale[b] = search_linear(x + 16 * b, codes + 16 * b);
		if (fabsf(scale[b]) > fabsf(extreme))
			extreme = scale[b];
	}
	if (fabsf(extreme) < 1e-15f)
		return;
	inverse = -128 / extreme;
	to_f16(1 / inverse, out + 208);
	for (int b = 0; b < 16; b++) {
		int s = nearest(inverse * scale[b]);
		float d;

		out[192 + b] = (uint8_t)(s < 127 ? s : 127);
		d = of_f16(out + 208) * (float)(int8_t)out[192 + b];
		for (int i = 16 * b; d != 0 && i < 16 * b + 16; i++)
			codes[i] = within(nearest(x[i] / d), -32, 31) + 32;
	}
	for (int i = 0; i < SUPER; i++) {
		int row = i % 128;

		out[i / 128 * 64 + row % 64] |= (uint8_t)((codes[i] & 15) << (row < 64 ? 0 : 4));
		out[128 + i / 128 * 32 + row % 32] |= (uint8_t)(codes[i] >> 4 << 2 * (row / 32));
	}
}

static void plain(enum ggml_type type, const float *x, uint8_t *out)
{
	if (type == GGML_Q4_K || type == GGML_Q5_K)
		plain_affine(type == GGML_Q5_K, x, out);
	else if (type == GGML_Q6_K)
		plain_q6_k(x, out);
	else if (type == GGML_Q8_0)
		plain_q8_0(x, out);
	else if (type == GGML_MXFP4)
		plain_mxfp4(x, out);
	else
		plain_32(type, x, out);
}

/* ---- comparisons ---- */

/* Every type encodes 256 finite elements as the plain loops do. */
static void check(const float *x)
{
	for (size_t t = 0; t < ARRAY_LEN(all); t++) {
		const struct block_type *b = block_type(all[t]);
		size_t n = SUPER / b->elements, bytes = n * b->bytes;
		uint8_t want[MOST_BYTES], have[MOST_BYTES + 1];

		for (size_t i = 0; i < n; i++)
			plain(all[t], x + i * b->elements, want + i * b->bytes);
		b->encode(x, have + 1, n); /* at an odd address */
		ck_assert_msg(!memcmp(have + 1, want, bytes), "type %d", (int)all[t]);
		b->portable(x, have, n);
		ck_assert_msg(!memcmp(have, want, bytes), "type %d, portable", (int)all[t]);
	}
}

static float any(struct rng *r)
{
	return (float)rng_below(r, 1 << 24) / (1 << 23) - 1;
}

/* Elements of many kinds: sub-blocks of one sign, equal ones, zeros of both signs, outliers, scales
 * that are far apart, or too small for float16. */
static void draw(struct rng *r, float *x)
{
	float scale = ldexpf(1, (int)rng_below(r, 60) - 45);
	uint64_t kind = rng_below(r, 12);

	if (kind == 0)
		scale = ldexpf(1, (int)rng_below(r, 60) - 149);
	if (kind == 1)
		scale = ldexpf(1, (int)rng_below(r, 100) + 27);
	for (int i = 0; i < SUPER; i++) {
		float v = any(r) * scale;

		if (kind == 2)
			v = fabsf(v);
		else if (kind == 3)
			v = -fabsf(v);
		else if (kind == 4)
			v = i / 32 % 2 ? scale : -scale;
		else if (kind == 5)
			v = rng_chance(r, 10) ? v : 0;
		else if (kind == 6)
			v = rng_chance(r, 50) ? 0.0f : -0.0f;
		else if (kind == 7)
			v = rng_chance(r, 2) ? v * 1e4f : v;
		else if (kind == 8)
			v = i / 16 % 3 ? v : 0;
		else if (kind == 9)
			v = rintf(v / scale * 3) * scale;
		else if (kind == 10)
			v = i / 32 % 2 ? v : v * 1e-18f;
		x[i] = v;
	}
}

START_TEST(blocks_are_what_plain_loops_make)
{
	struct rng r = rng_new();
	float x[SUPER];

	for (int round = 0; round < 400; round++) {
		draw(&r, x);
		check(x);
	}
}
END_TEST

/* With exponents of all sizes, sums overflow and quotients mean nothing. */
START_TEST(any_finite_bits_are_what_plain_loops_make)
{
	struct rng r = rng_new();

	for (int round = 0; round < 400; round++) {
		float x[SUPER];

		for (int i = 0; i < SUPER; i++)
			do
				x[i] = rng_float_bits(&r);
			while (!isfinite(x[i]));
		check(x);
	}
}
END_TEST

/* For numbers just below a power of two, log2f rounds up. */
START_TEST(powers_of_two_and_their_neighbours)
{
	for (int e = -148; e < 128; e++) {
		float x[SUPER] = { 0 };

		for (int k = 0; k < 8; k++) {
			uint32_t u;

			x[32 * k] = ldexpf(1, e);
			memcpy(&u, &x[32 * k], sizeof(u));
			u -= (uint32_t)k * (k < 4 ? 1 : 60) % u;
			memcpy(&x[32 * k], &u, sizeof(u));
		}
		check(x);
	}
}
END_TEST

/* The other blocks are not touched. */
START_TEST(what_is_not_finite_spoils_its_block)
{
	static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY };
	struct rng r = rng_new();

	for (size_t t = 0; t < ARRAY_LEN(all); t++)
		for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
			const struct block_type *b = block_type(all[t]);
			uint8_t have[3 * MOST_BYTES], want[3 * MOST_BYTES];
			float x[3 * SUPER];
			size_t at = b->elements + rng_below(&r, b->elements), nan = 0;

			for (int i = 0; i < 3 * SUPER; i++)
				x[i] = any(&r);
			b->encode(x, want, 3);
			x[at] = odd[k];
			b->encode(x, have, 3);
			ck_assert_mem_eq(have, want, b->bytes);
			ck_assert_mem_eq(have + 2 * b->bytes, want + 2 * b->bytes, b->bytes);
			b->portable(x, want, 3);
			ck_assert_mem_eq(have, want, 3 * b->bytes);
			if (all[t] == GGML_Q8_0)
				continue;
			if (all[t] == GGML_Q6_K)
				nan = 208;
			if (all[t] == GGML_MXFP4)
				ck_assert_uint_eq(have[b->bytes], 0xff);
			else
				ck_assert(isnan(of_f16(have + b->bytes + nan)));
		}
}
END_TEST

/* ---- ggml's bytes ---- */

/*
 * CRC-32C of the bytes of libggml-base 0.27.0 (Debian, amd64) for the elements below, which are
 * computed without rounding, as tests/torch/blocks.py computes them.
 */
static const struct {
	enum ggml_type type;
	uint32_t crc;
} golden[] = {
	{ GGML_Q4_0, 0xbd5bab24 }, { GGML_Q4_1, 0x06013294 }, { GGML_Q5_0, 0x20cbdf66 },
	{ GGML_Q5_1, 0xc8ef6bdf }, { GGML_Q8_0, 0x05ef3cb2 }, { GGML_Q4_K, 0x42ea53fc },
	{ GGML_Q5_K, 0xc1af411f }, { GGML_Q6_K, 0x90a2ec2b }, { GGML_MXFP4, 0x1bb99c73 },
};

enum { GOLDEN = 64 * SUPER };

START_TEST(bytes_are_ggmls)
{
	static float x[GOLDEN];
	static uint8_t out[GOLDEN / 32 * 34];
	uint32_t state = 1;

	for (int i = 0; i < GOLDEN; i++) {
		state = state * 1664525 + 1013904223;
		x[i] = ldexpf((float)((int32_t)(state >> 8) - (1 << 23)),
			      -23 - i / SUPER % 16 - i / 16 % 5 * (i / SUPER / 16));
	}
	for (size_t t = 0; t < ARRAY_LEN(golden); t++) {
		const struct block_type *b = block_type(golden[t].type);
		size_t n = GOLDEN / b->elements;

		b->encode(x, out, n);
		ck_assert_msg(crc32c(0, out, n * b->bytes) == golden[t].crc, "type %d: 0x%08x",
			      (int)b->type, crc32c(0, out, n * b->bytes));
	}
}
END_TEST

/* ---- values ---- */

enum { BLOCKS = 64, MOST_BLOCK = 292 };

/* CRC-32C of the float32 elements that libggml decodes from the bytes below. */
static const struct {
	enum ggml_type type;
	uint32_t crc;
} golden_values[] = {
	{ GGML_Q4_0, 0x2797387f },   { GGML_Q4_1, 0x72d15f4b },	   { GGML_Q5_0, 0xbc3082ce },
	{ GGML_Q5_1, 0x746c7656 },   { GGML_Q8_0, 0xbed2658c },	   { GGML_Q2_K, 0xf676c06b },
	{ GGML_Q3_K, 0xe4b30678 },   { GGML_Q4_K, 0x147e5caa },	   { GGML_Q5_K, 0x496ace79 },
	{ GGML_Q6_K, 0x217d746c },   { GGML_Q8_K, 0x6188f04d },	   { GGML_IQ2_XXS, 0x0240cbb1 },
	{ GGML_IQ2_XS, 0xba082fb4 }, { GGML_IQ3_XXS, 0x432929fa }, { GGML_IQ1_S, 0xce40857f },
	{ GGML_IQ4_NL, 0x17f9a993 }, { GGML_IQ3_S, 0x0c17911a },   { GGML_IQ2_S, 0xff78e4cb },
	{ GGML_IQ4_XS, 0xf6b7a570 }, { GGML_IQ1_M, 0x09385b44 },   { GGML_TQ1_0, 0x77f3fdc0 },
	{ GGML_TQ2_0, 0x001aec8f },  { GGML_MXFP4, 0xfbb49644 },   { GGML_NVFP4, 0x61b1a683 },
};

START_TEST(values_are_ggmls)
{
	static uint8_t raw[1 + BLOCKS * MOST_BLOCK];
	static float y[BLOCKS * SUPER];
	uint32_t state = 1;

	for (int i = 0; i < BLOCKS * MOST_BLOCK; i++) {
		state = state * 1664525 + 1013904223;
		raw[1 + i] = state >> 24 & 0xbf;
	}
	for (size_t t = 0; t < ARRAY_LEN(golden_values); t++) {
		const struct ggml_info *b = ggml_info(golden_values[t].type);
		uint32_t crc;

		block_decoder(golden_values[t].type)(raw + 1, y, BLOCKS);
		crc = crc32c(0, y, BLOCKS * b->elements * sizeof(*y));
		ck_assert_msg(crc == golden_values[t].crc, "%s: 0x%08x", b->name, crc);
	}
	for (unsigned i = 0; i < 64; i++) {
		const struct ggml_info *b = ggml_info(i);
		bool known = i != GGML_Q8_1 && i != GGML_Q1_0 && i != GGML_Q2_0;

		if (b && !b->dtype)
			ck_assert_msg(!block_decoder(i) != known, "%s", b->name);
		if (block_type(i))
			ck_assert_uint_eq(block_type(i)->bytes, b->bytes);
	}
}
END_TEST

/* An element is no further from its value than a step of its block. */
START_TEST(values_are_near_what_was_encoded)
{
	static const float most[] = { .13F, .07F, .07F, .035F, .0045F, .15F, .09F, .05F, .26F };
	struct rng r = rng_new();

	for (int round = 0; round < 50; round++) {
		float x[SUPER], y[SUPER], largest = 0;
		uint8_t raw[MOST_BYTES];

		for (int i = 0; i < SUPER; i++) {
			x[i] = any(&r);
			largest = fmaxf(largest, fabsf(x[i]));
		}
		for (size_t t = 0; t < ARRAY_LEN(all); t++) {
			const struct block_type *b = block_type(all[t]);

			b->encode(x, raw, SUPER / b->elements);
			block_decoder(all[t])(raw, y, SUPER / b->elements);
			for (int i = 0; i < SUPER; i++)
				ck_assert_msg(fabsf(x[i] - y[i]) <= most[t] * largest,
					      "type %d: %g %g", (int)all[t], (double)x[i],
					      (double)y[i]);
		}
	}
}
END_TEST

SUITE(blocks)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The types of 256 elements: Q4_K, Q5_K, Q6_K.
 *
 * A block has sub-blocks, each with a scale of its own, which is found by trying about 20 and
 * summing up the errors of each. The order of the sums within a sub-block determines the bits of
 * the result, but sub-blocks do not depend on each other. So a vector has one element of each of 8
 * sub-blocks, and every sum is made in the same order as by a program that takes one at a time.
 */
#include "codec/blocks_internal.h"

#include <math.h>

enum { BLOCK = 256, LANES = 8, LENGTH = 32, LENGTH_6 = 16 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t ilanes __attribute__((vector_size(4 * LANES)));

/* yes: the result of a comparison */
INLINE lanes choose(ilanes yes, lanes a, lanes b)
{
	return (lanes)(((ilanes)a & yes) | ((ilanes)b & ~yes));
}

/* yes ? 0 : x */
INLINE lanes unless(ilanes yes, lanes x)
{
	return (lanes)((ilanes)x & ~yes);
}

INLINE lanes magnitude(lanes x)
{
	return (lanes)((ilanes)x & 0x7fffffff);
}

INLINE lanes root(lanes x)
{
	for (int k = 0; k < LANES; k++)
		x[k] = sqrtf(x[k]);
	return x;
}

/* To nearest, ties to even; with ggml's result for what is too large. */
INLINE ilanes nearest(lanes x)
{
	return ((ilanes)(x + 12582912.0f) & 0x7fffff) - 0x400000;
}

INLINE int32_t nearest_one(float x)
{
	return (int32_t)(bits_of_f32(x + 12582912.0f) & 0x7fffff) - 0x400000;
}

/* Lane by lane, which gcc compiles to two instructions; with masks, as in choose(), there are
 * six. */
INLINE ilanes clamp(ilanes x, int32_t least, int32_t most)
{
	for (int k = 0; k < LANES; k++)
		x[k] = x[k] > least ? x[k] : least;
	for (int k = 0; k < LANES; k++)
		x[k] = x[k] < most ? x[k] : most;
	return x;
}

INLINE lanes to_float(ilanes x)
{
	return __builtin_convertvector(x, lanes);
}

/* Sub-block k becomes lane k. False: an element is not finite. */
INLINE bool load(const uint8_t *restrict src, int length, lanes *x)
{
	int32_t most = 0;

	for (int i = 0; i < LANES * length; i++) {
		int32_t a = (int32_t)(load_le32(src + 4 * i) & 0x7fffffff);

		most = most > a ? most : a;
	}
	for (int i = 0; i < length; i++)
		for (int k = 0; k < LANES; k++)
			x[i][k] = f32_of_bits(load_le32(src + 4 * (k * length + i)));
	return most < 0x7f800000;
}

/* ---- Q4_K and Q5_K: element = scale * code - min ---- */

struct search {
	int most;	   /* largest code */
	float first, step; /* added to it when scales are tried */
	int tries;
};

struct affine {
	lanes scale, min; /* as found; min is subtracted */
	/* The codes of that scale are those of (x - from) * inverse. */
	lanes inverse, from;
	ilanes flat; /* all elements are the same, or only positive zeros remain: codes are 0 */
};

/* What is known of the elements before any scale is tried. */
struct sums {
	lanes min, max, w, wx;
};

INLINE void summarise(const lanes *x, lanes *weight, struct sums *s)
{
	lanes squares = x[0] * x[0], mean;

	for (int i = 1; i < LENGTH; i++)
		squares += x[i] * x[i];
	mean = root(squares / (float)LENGTH);
	for (int i = 0; i < LENGTH; i++)
		weight[i] = mean + magnitude(x[i]);
	*s = (struct sums){ x[0], x[0], weight[0], weight[0] * x[0] };
	for (int i = 1; i < LENGTH; i++) {
		s->min = choose(x[i] < s->min, x[i], s->min);
		s->max = choose(x[i] > s->max, x[i], s->max);
		s->w += weight[i];
		s->wx += weight[i] * x[i];
	}
	s->min = unless(s->min > 0, s->min);
}

INLINE lanes error_of(const lanes *x, const lanes *weight, const lanes *codes, lanes scale,
		      lanes min)
{
	lanes sum = { 0 };

	for (int i = 0; i < LENGTH; i++) {
		lanes diff = scale * codes[i] + min - x[i];

		sum += weight[i] * (diff * diff);
	}
	return sum;
}

INLINE void find_affine(const lanes *x, struct search how, struct affine *ret)
{
	lanes weight[LENGTH], codes[LENGTH], min, best;
	struct sums s;

	summarise(x, weight, &s);
	min = s.min;
	ret->flat = s.max == min;
	ret->inverse = (float)how.most / (s.max - min);
	ret->from = min;
	ret->scale = 1.0f / ret->inverse;
	for (int i = 0; i < LENGTH; i++)
		codes[i] = to_float(clamp(nearest(ret->inverse * (x[i] - min)), 0, how.most));
	best = error_of(x, weight, codes, ret->scale, min);
	for (int try = 0; try <= how.tries; try++) {
		lanes inverse =
			(how.first + how.step * (float)try + (float)how.most) / (s.max - min);
		lanes l = { 0 }, l2 = { 0 }, xl = { 0 }, det, scale, offset, error;
		ilanes positive, better;

		for (int i = 0; i < LENGTH; i++) {
			lanes code = to_float(clamp(nearest(inverse * (x[i] - min)), 0, how.most));
			lanes wl = weight[i] * code;

			codes[i] = code;
			l += wl;
			l2 += wl * code;
			xl += wl * x[i];
		}
		det = s.w * l2 - l * l;
		scale = (s.w * xl - s.wx * l) / det;
		offset = (l2 * s.wx - l * xl) / det;
		positive = offset > 0;
		offset = unless(positive, offset);
		scale = choose(positive, xl / l2, scale);
		error = error_of(x, weight, codes, scale, offset);
		better = (det > 0) & (error < best);
		best = choose(better, error, best);
		ret->scale = choose(better, scale, ret->scale);
		ret->inverse = choose(better, inverse, ret->inverse);
		ret->from = choose(better, min, ret->from);
		min = choose(better, offset, min);
	}
	ret->scale = unless(ret->flat, ret->scale);
	ret->min = -min;
}

INLINE float largest(lanes x)
{
	float max = 0;

	for (int k = 0; k < LANES; k++)
		max = x[k] > max ? x[k] : max;
	return max;
}

/* As multiples of the largest: 6 bits each, of which the upper two of the last four are
 * elsewhere. */
INLINE void put_scales(const struct affine *a, float max_scale, float max_min,
		       uint8_t *restrict dst)
{
	float scale = max_scale > 0 ? 63 / max_scale : 0, min = max_min > 0 ? 63 / max_min : 0;
	uint8_t s[LANES], m[LANES];

	for (int k = 0; k < LANES; k++) {
		s[k] = (uint8_t)nearest_one(scale * a->scale[k]);
		m[k] = (uint8_t)nearest_one(min * a->min[k]);
		s[k] = s[k] < 63 ? s[k] : 63;
		m[k] = m[k] < 63 ? m[k] : 63;
	}
	for (int k = 0; k < 4; k++) {
		dst[k] = (uint8_t)(s[k] | (s[k + 4] >> 4) << 6);
		dst[k + 4] = (uint8_t)(m[k] | (m[k + 4] >> 4) << 6);
		dst[k + 8] = (uint8_t)((s[k + 4] & 15) | m[k + 4] << 4);
	}
}

INLINE void get_scales(const uint8_t *p, lanes *scale, lanes *min)
{
	for (int k = 0; k < 4; k++) {
		(*scale)[k] = (float)(p[k] & 63);
		(*min)[k] = (float)(p[k + 4] & 63);
		(*scale)[k + 4] = (float)((p[k + 8] & 15) | p[k] >> 6 << 4);
		(*min)[k + 4] = (float)(p[k + 8] >> 4 | p[k + 4] >> 6 << 4);
	}
}

/* Writes d, dmin and the scales, and returns the codes that fit these best. */
INLINE void encode_affine(const lanes *x, struct search how, uint8_t *restrict dst, ilanes *codes)
{
	lanes d, min = { 0 }, scale = { 0 };
	struct affine a;
	float max_scale, max_min;
	ilanes none;

	find_affine(x, how, &a);
	max_scale = largest(a.scale);
	max_min = largest(a.min);
	store_f16(dst, max_scale / 63);
	store_f16(dst + 2, max_min / 63);
	put_scales(&a, max_scale, max_min, dst + 4);
	get_scales(dst + 4, &scale, &min);
	d = load_f16(dst) * scale;
	min = load_f16(dst + 2) * min;
	none = d == 0;
	for (int i = 0; i < LENGTH; i++) {
		ilanes fit = clamp(nearest((x[i] + min) / d), 0, how.most);
		ilanes found = clamp(nearest(a.inverse * (x[i] - a.from)), 0, how.most);

		codes[i] = (fit & ~none) | (found & ~a.flat & none);
	}
}

INLINE void q4_k_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	lanes x[LENGTH];
	ilanes codes[LENGTH];

	if (!load(src, LENGTH, x)) {
		memset(dst, 0, 144);
		store_f16(dst, NAN);
		return;
	}
	encode_affine(x, (struct search){ 15, -1, 0.1f, 20 }, dst, codes);
	for (int k = 0; k < LANES; k += 2)
		for (int i = 0; i < LENGTH; i++)
			dst[16 + k * 16 + i] = (uint8_t)(codes[i][k] | codes[i][k + 1] << 4);
}

INLINE void q5_k_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	lanes x[LENGTH];
	ilanes codes[LENGTH];

	if (!load(src, LENGTH, x)) {
		memset(dst, 0, 176);
		store_f16(dst, NAN);
		return;
	}
	encode_affine(x, (struct search){ 31, -0.5f, 0.1f, 15 }, dst, codes);
	for (int i = 0; i < LENGTH; i++) {
		dst[16 + i] = 0;
		for (int k = 0; k < LANES; k++)
			dst[16 + i] |= (uint8_t)(codes[i][k] >> 4 << k);
	}
	for (int k = 0; k < LANES; k += 2)
		for (int i = 0; i < LENGTH; i++)
			dst[48 + k * 16 + i] = (uint8_t)((codes[i][k] & 15) | codes[i][k + 1] << 4);
}

/* ---- Q6_K: element = scale * (code - 32) ---- */

#define TOO_SMALL 1e-15f /* ggml: GROUP_MAX_EPS */

struct linear {
	lanes scale, inverse; /* its codes are those of x * inverse */
	ilanes small;	      /* no scale: codes are 0 */
};

INLINE ilanes code_6(lanes x)
{
	return clamp(nearest(x), -32, 31);
}

INLINE void find_linear(const lanes *x, struct linear *ret)
{
	lanes most = { 0 }, extreme = { 0 }, best = { 0 };

	for (int i = 0; i < LENGTH_6; i++) {
		lanes a = magnitude(x[i]);
		ilanes more = a > most;

		most = choose(more, a, most);
		extreme = choose(more, x[i], extreme);
	}
	ret->small = most < TOO_SMALL;
	for (int try = -10; try <= 9; try++) { /* -10 stands for 0, which comes first */
		lanes inverse = -(32 + 0.1f * (float)(try > -10 ? try : 0)) / extreme;
		lanes xl = { 0 }, l2 = { 0 }, scale;
		ilanes better;

		if (!try)
			continue;
		for (int i = 0; i < LENGTH_6; i++) {
			lanes l = to_float(code_6(inverse * x[i])), w = x[i] * x[i];

			xl += w * x[i] * l;
			l2 += w * l * l;
		}
		scale = xl / l2;
		if (try == -10) {
			ret->scale = (lanes)((ilanes)scale & (l2 != 0));
			ret->inverse = inverse;
			best = ret->scale * xl;
			continue;
		}
		better = (l2 > 0) & (xl * xl > best * l2);
		best = choose(better, scale * xl, best);
		ret->scale = choose(better, scale, ret->scale);
		ret->inverse = choose(better, inverse, ret->inverse);
	}
	ret->scale = unless(ret->small, ret->scale);
}

/* The scale of the largest magnitude; if there are several, the first. */
INLINE float extreme_scale(const struct linear *a)
{
	float extreme = 0;

	for (int k = 0; k < 2 * LANES; k++) {
		float s = a[k / LANES].scale[k % LANES];

		extreme = fabsf(s) > fabsf(extreme) ? s : extreme;
	}
	return extreme;
}

/* codes: those of sub-block k in lane k % 8 of half k / 8 */
INLINE void pack_6(const ilanes codes[2][LENGTH_6], uint8_t *restrict dst)
{
	uint8_t c[BLOCK];

	for (int i = 0; i < BLOCK; i++)
		c[i] = (uint8_t)codes[i / 128][i % LENGTH_6][i / LENGTH_6 % LANES];
	for (int half = 0; half < 2; half++)
		for (int i = 0; i < 32; i++) {
			const uint8_t *p = c + 128 * half + i;

			dst[64 * half + i] = (uint8_t)((p[0] & 15) | p[64] << 4);
			dst[64 * half + 32 + i] = (uint8_t)((p[32] & 15) | p[96] << 4);
			dst[128 + 32 * half + i] = (uint8_t)(p[0] >> 4 | p[32] >> 4 << 2 |
							     p[64] >> 4 << 4 | p[96] >> 4 << 6);
		}
}

INLINE void q6_k_block(const uint8_t *restrict src, uint8_t *restrict dst)
{
	lanes x[2][LENGTH_6];
	ilanes codes[2][LENGTH_6];
	struct linear a[2];
	float extreme, inverse;
	bool finite = true;

	for (int h = 0; h < 2; h++)
		finite &= load(src + 512 * h, LENGTH_6, x[h]);
	memset(dst, 0, 210);
	if (!finite) {
		store_f16(dst + 208, NAN);
		return;
	}
	for (int h = 0; h < 2; h++)
		find_linear(x[h], &a[h]);
	extreme = extreme_scale(a);
	if (fabsf(extreme) < TOO_SMALL)
		return;
	inverse = -128 / extreme;
	store_f16(dst + 208, 1 / inverse);
	for (int h = 0; h < 2; h++) {
		lanes d = { 0 };
		ilanes none;

		for (int k = 0; k < LANES; k++) {
			int32_t s = nearest_one(inverse * a[h].scale[k]);
			int8_t byte = (int8_t)(s < 127 ? s : 127);

			dst[192 + LANES * h + k] = (uint8_t)byte;
			d[k] = load_f16(dst + 208) * (float)byte;
		}
		none = d == 0;
		for (int i = 0; i < LENGTH_6; i++) {
			ilanes fit = code_6(x[h][i] / d) + 32;
			ilanes found = code_6(a[h].inverse * x[h][i]) + 32;

			codes[h][i] = (fit & ~none) | (found & ~a[h].small & none);
		}
	}
	pack_6((const ilanes(*)[LENGTH_6])codes, dst);
}

DEFINE_ENCODER(q4_k, BLOCK, 144)
DEFINE_ENCODER(q5_k, BLOCK, 176)
DEFINE_ENCODER(q6_k, BLOCK, 210)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/arith.h"
#include "codec/arith_internal.h"
#include "codec/cast.h"
#include "rng.h"
#include "suites.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/*
 * The same, computed in double and then rounded. Since 53 bits are at least two more than twice
 * float's 24, rounding twice gives the same as rounding once (Figueroa 1995).
 */
static float naive_f32(struct arith a, float x)
{
	double d = (double)x, c = (double)a.number;

	return (float)(a.op == ARITH_TIMES ? d * c : a.op == ARITH_OVER ? d / c : d + c);
}

static uint64_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static float float_of(uint64_t bits)
{
	uint32_t u = (uint32_t)bits;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static float widen(enum ckpt_dtype t, uint64_t bits)
{
	uint8_t out[4];

	cast_run(t, CKPT_DTYPE_F32, &bits, out, 1);
	return float_of((uint64_t)out[0] | (uint64_t)out[1] << 8 | (uint64_t)out[2] << 16 |
			(uint64_t)out[3] << 24);
}

/* What a NaN becomes; 0 if u is not a NaN. */
static uint64_t naive_nan(enum ckpt_dtype t, uint64_t u)
{
	switch (t) {
	case CKPT_DTYPE_F16:
		return (u & 0x7fff) > 0x7c00 ? u | 0x200 : 0;
	case CKPT_DTYPE_BF16:
		return (u & 0x7fff) > 0x7f80 ? (u & 0x8000) | 0x7fc0 : 0;
	case CKPT_DTYPE_F32:
		return (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : 0;
	default:
		return (u & INT64_MAX) > 0x7ff0000000000000 ? u | 0x8000000000000 : 0;
	}
}

static uint64_t naive(enum ckpt_dtype t, struct arith a, uint64_t u)
{
	uint64_t nan = naive_nan(t, u), r = 0;
	float f;

	if (nan)
		return nan;
	if (t == CKPT_DTYPE_F64) {
		double d, c = (double)a.number;

		memcpy(&d, &u, sizeof(d));
		d = a.op == ARITH_TIMES ? d * c : a.op == ARITH_OVER ? d / c : d + c;
		memcpy(&r, &d, sizeof(r));
		return r;
	}
	f = naive_f32(a, widen(t, u));
	if (t == CKPT_DTYPE_F32)
		return bits_of(f);
	cast_run(CKPT_DTYPE_F32, t, &f, &r, 1); /* a number: rounded as torch and NumPy do */
	return r;
}

static const enum ckpt_dtype types[] = { CKPT_DTYPE_F64, CKPT_DTYPE_F32, CKPT_DTYPE_F16,
					 CKPT_DTYPE_BF16 };

typedef void run_fn(enum ckpt_dtype t, struct arith a, void *elements, size_t n);
static run_fn *const runs[] = { arith_run, arith_run_portable };

enum { BATCH = 4096 };

struct batch {
	enum ckpt_dtype type;
	struct arith arith;
	size_t n;
	uint64_t bits[BATCH];
};

static void batch_check(struct batch *b)
{
	size_t size = dtype_info(b->type)->size;
	uint8_t p[8 * BATCH];

	for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
		for (size_t i = 0; i < b->n; i++)
			memcpy(p + i * size, &b->bits[i], size);
		runs[r](b->type, b->arith, p, b->n);
		for (size_t i = 0; i < b->n; i++) {
			uint64_t want = naive(b->type, b->arith, b->bits[i]), got = 0;

			memcpy(&got, p + i * size, size);
			if (got != want)
				ck_abort_msg("%s 0x%" PRIx64 ", operation %d with %a: 0x%" PRIx64
					     ", not 0x%" PRIx64,
					     dtype_info(b->type)->name, b->bits[i], b->arith.op,
					     (double)b->arith.number, got, want);
		}
	}
	b->n = 0;
}

static void batch_add(struct batch *b, uint64_t bits)
{
	size_t size = dtype_info(b->type)->size;

	b->bits[b->n++] = size < 8 ? bits & ((UINT64_C(1) << 8 * size) - 1) : bits;
	if (b->n == BATCH)
		batch_check(b);
}

/* The numbers that recipes have, and some that make results overflow, vanish or become
 * subnormal. */
static struct arith draw(struct rng *r)
{
	static const float some[] = {
		1,	   -1,	      2,	0.5F, 8,     11.313708F,      45.25F,  45.254834F,
		0x1p-126F, 0x1p-149F, 0x1p126F, -3,   1e30F, 0x1.fffffep127F, 0x1p-14F
	};
	float f = some[rng_below(r, ARRAY_LEN(some))];

	if (rng_chance(r, 50))
		f = sqrtf((float)(1 + rng_below(r, 20000)));
	else if (rng_chance(r, 50))
		do
			f = float_of(rng_u64(r));
		while (!isfinite(f) || f == 0);
	return (struct arith){ (uint8_t)(ARITH_TIMES + rng_below(r, 3)), f };
}

START_TEST(floats_of_16_to_64_bits_are_computed_with)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE; t < CKPT_DTYPE_COUNT; t++) {
		bool want = false;

		for (size_t i = 0; i < ARRAY_LEN(types); i++)
			want |= t == types[i];
		REQUIRE(arith_possible(t) == want);
	}
}
END_TEST

START_TEST(well_known_results)
{
	static const struct {
		enum ckpt_dtype t;
		struct arith a;
		uint64_t bits, want;
	} c[] = {
		{ CKPT_DTYPE_BF16, { ARITH_PLUS, -1 }, 0x3f80, 0x0000 },
		{ CKPT_DTYPE_BF16, { ARITH_PLUS, -1 }, 0x3f81, 0x3c00 }, /* 1 + 2^-7 */
		{ CKPT_DTYPE_BF16, { ARITH_PLUS, 1 }, 0x3c00, 0x3f81 },
		{ CKPT_DTYPE_BF16, { ARITH_PLUS, 1 }, 0x3b80, 0x3f80 }, /* halfway: to even */
		{ CKPT_DTYPE_BF16, { ARITH_TIMES, 0x1.6a09e6p3F }, 0x3f80, 0x4135 },
		{ CKPT_DTYPE_BF16, { ARITH_OVER, 45.25F }, 0x4235, 0x3f80 },
		{ CKPT_DTYPE_BF16, { ARITH_TIMES, 2 }, 0x7f7f, 0x7f80 },
		{ CKPT_DTYPE_BF16, { ARITH_TIMES, 2 }, 0x7f81, 0x7fc0 },
		{ CKPT_DTYPE_BF16, { ARITH_TIMES, 2 }, 0xffff, 0xffc0 },
		{ CKPT_DTYPE_F16, { ARITH_TIMES, 8 }, 0x3555, 0x4155 },
		{ CKPT_DTYPE_F16, { ARITH_OVER, 2 }, 0x0001, 0x0000 }, /* halfway: to even */
		{ CKPT_DTYPE_F16, { ARITH_OVER, 2 }, 0x0003, 0x0002 },
		{ CKPT_DTYPE_F16, { ARITH_PLUS, 65000 }, 0x7bff, 0x7c00 },
		{ CKPT_DTYPE_F16, { ARITH_PLUS, 1 }, 0xfc01, 0xfe01 },
		{ CKPT_DTYPE_F32, { ARITH_OVER, 3 }, 0x3f800000, 0x3eaaaaab },
		{ CKPT_DTYPE_F32, { ARITH_PLUS, 1 }, 0x7f800001, 0x7fc00001 },
		{ CKPT_DTYPE_F64, { ARITH_OVER, 3 }, 0x3ff0000000000000, 0x3fd5555555555555 },
		{ CKPT_DTYPE_F64, { ARITH_NONE, 0 }, 0x7ff0000000000001, 0x7ff0000000000001 },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
			uint64_t u = c[i].bits;

			runs[r](c[i].t, c[i].a, &u, 1);
			ck_assert_uint_eq(u, c[i].want);
		}
}
END_TEST

/* What torch 2.14.1 computes on a CPU with AVX-512; AVX2 gives the same. All 2^32 have been
 * compared once. */
START_TEST(minus_exp_is_that_of_torch)
{
	static const struct {
		enum ckpt_dtype t;
		uint64_t bits, want;
	} c[] = {
		{ CKPT_DTYPE_F32, 0x00000000, 0xbf800000 },
		{ CKPT_DTYPE_F32, 0x80000000, 0xbf800000 },
		{ CKPT_DTYPE_F32, 0x3f800000, 0xc02df854 },
		{ CKPT_DTYPE_F32, 0x40317218, 0xc1800000 }, /* ln 16 */
		{ CKPT_DTYPE_F32, 0xbfd8cbd0, 0xbe3c3f16 }, /* nearer: 0xbe3c3f17 */
		{ CKPT_DTYPE_F32, 0x40075ce4, 0xc104a3a8 },
		{ CKPT_DTYPE_F32, 0xc0a497a0, 0xbbbf45bf },
		{ CKPT_DTYPE_F32, 0xbe36a940, 0xbf562d05 },
		{ CKPT_DTYPE_F32, 0x3f29d0f0, 0xbff87ba9 },
		{ CKPT_DTYPE_F32, 0xc1133333, 0xb8d3e520 },
		{ CKPT_DTYPE_F32, 0x42b17217, 0xff7fff84 }, /* almost too large */
		{ CKPT_DTYPE_F32, 0x42b175c3, 0xff800000 },
		{ CKPT_DTYPE_F32, 0x42c90000, 0xff800000 },
		{ CKPT_DTYPE_F32, 0xc2af0000, 0x806cb2bc }, /* subnormal */
		{ CKPT_DTYPE_F32, 0xc2cfcccd, 0x80000001 },
		{ CKPT_DTYPE_F32, 0xc2d10000, 0x80000000 },
		{ CKPT_DTYPE_F32, 0x7f800000, 0xff800000 },
		{ CKPT_DTYPE_F32, 0xff800000, 0x80000000 },
		{ CKPT_DTYPE_F32, 0x7f800001, 0xffc00001 },
		{ CKPT_DTYPE_F32, 0xffc00000, 0x7fc00000 },
		{ CKPT_DTYPE_F16, 0x0000, 0xbc00 },
		{ CKPT_DTYPE_F16, 0x3c00, 0xc170 },
		{ CKPT_DTYPE_F16, 0xbf12, 0xb177 },
		{ CKPT_DTYPE_F16, 0xc500, 0x9ee6 },
		{ CKPT_DTYPE_F16, 0x4bff, 0xfc00 },
		{ CKPT_DTYPE_F16, 0x7c01, 0xfe01 },
		{ CKPT_DTYPE_BF16, 0x3f80, 0xc02e },
		{ CKPT_DTYPE_BF16, 0x4180, 0xcb08 },
		{ CKPT_DTYPE_BF16, 0xbf12, 0xbf11 },
		{ CKPT_DTYPE_F64, 0x0000000000000000, 0xbff0000000000000 },
		{ CKPT_DTYPE_F64, 0x7ff0000000000000, 0xfff0000000000000 },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
			uint64_t u = c[i].bits;

			runs[r](c[i].t, (struct arith){ ARITH_MINUS_EXP, 0 }, &u, 1);
			ck_assert_msg(u == c[i].want, "0x%" PRIx64 ": 0x%" PRIx64, c[i].bits, u);
		}
}
END_TEST

/* The result may be either of the two numbers next to the exact one. */
START_TEST(minus_exp_is_off_by_less_than_a_step)
{
	const struct arith a = { ARITH_MINUS_EXP, 0 };
	struct rng r = rng_new();

	for (unsigned i = 0; i < rng_rounds(2000000, 100000); i++) {
		float x = (float)(int32_t)rng_u64(&r) * 0x1.5p-25F, got = x;
		double want = -exp((double)x);

		arith_run(CKPT_DTYPE_F32, a, &got, 1);
		if (want > -0x1p127 && want < -0x1p-126)
			ck_assert_msg((double)nextafterf(got, -INFINITY) < want &&
					      want < (double)nextafterf(got, 0),
				      "%a: %a", (double)x, (double)got);
	}
}
END_TEST

START_TEST(every_number_of_16_bits)
{
	static struct batch b;
	struct rng r = rng_new();

	for (unsigned i = 0; i < rng_rounds(60, 12); i++)
		for (size_t t = 2; t < ARRAY_LEN(types); t++) {
			b.type = types[t];
			b.arith = draw(&r);
			for (uint32_t u = 0; u <= UINT16_MAX; u++)
				batch_add(&b, u);
			batch_check(&b);
		}
}
END_TEST

START_TEST(random_bits)
{
	static struct batch b;
	struct rng r = rng_new();

	for (unsigned i = 0; i < rng_rounds(200, 40); i++)
		for (size_t t = 0; t < 2; t++) {
			b.type = types[t];
			b.arith = draw(&r);
			for (int k = 0; k < BATCH - 1; k++) {
				uint64_t u = rng_u64(&r);

				/* Infinity and NaNs, or numbers near that of the operation. */
				if (rng_chance(&r, 10))
					u |= t ? 0x7f800000 : 0x7ff0000000000000;
				else if (t && rng_chance(&r, 30))
					u = bits_of(b.arith.number) + u % 9 - 4;
				batch_add(&b, u);
			}
			batch_check(&b);
		}
}
END_TEST

START_TEST(any_length_at_any_address_and_nothing_beside_it)
{
	enum { MOST = 70, MARGIN = 64 };
	uint8_t before[8 * MOST + 2 * MARGIN], p[sizeof(before)];
	struct rng r = rng_new();

	for (size_t n = 0; n <= MOST; n++) {
		for (size_t i = 0; i < ARRAY_LEN(types) * ARRAY_LEN(runs); i++) {
			enum ckpt_dtype t = types[i % ARRAY_LEN(types)];
			size_t size = dtype_info(t)->size, at = MARGIN - rng_below(&r, 8);
			struct arith a = draw(&r);

			for (size_t k = 0; k < sizeof(p); k++)
				before[k] = p[k] = (uint8_t)rng_u64(&r);
			runs[i / ARRAY_LEN(types)](t, a, p + at, n);
			REQUIRE(!memcmp(p, before, at));
			REQUIRE(!memcmp(p + at + n * size, before + at + n * size,
					sizeof(p) - at - n * size));
			for (size_t k = 0; k < n; k++) {
				uint64_t u = 0, got = 0;

				memcpy(&u, before + at + k * size, size);
				memcpy(&got, p + at + k * size, size);
				REQUIRE(naive(t, a, u) == got);
			}
		}
	}
}
END_TEST

SUITE(arith, .seconds = 60)

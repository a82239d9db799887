/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every pattern of the small floats, and many of the others, compared with a second definition:
 * sums of powers of two, without bit tricks.
 */
#include "base/checked.h"
#include "codec/values.h"
#include "rng.h"
#include "suites.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

/* ---- floats by definition ---- */

struct layout {
	enum ckpt_dtype dtype;
	int exp, man, bias;
	enum { IEEE, FN, FNUZ, UNSIGNED_POWER, FINITE, INTEGER } kind;
};

static const struct layout layouts[] = {
	{ CKPT_DTYPE_F16, 5, 10, 15, IEEE },
	{ CKPT_DTYPE_BF16, 8, 7, 127, IEEE },
	{ CKPT_DTYPE_F8_E5M2, 5, 2, 15, IEEE },
	{ CKPT_DTYPE_F8_E4M3FN, 4, 3, 7, FN },
	{ CKPT_DTYPE_F8_E4M3FNUZ, 4, 3, 8, FNUZ },
	{ CKPT_DTYPE_F8_E5M2FNUZ, 5, 2, 16, FNUZ },
	{ CKPT_DTYPE_F8_E8M0FNU, 8, 0, 127, UNSIGNED_POWER },
	{ CKPT_DTYPE_F8_E3M4, 3, 4, 3, IEEE },
	{ CKPT_DTYPE_F8_E4M3B11FNUZ, 4, 3, 11, FNUZ },
	{ CKPT_DTYPE_F4_E2M1FN, 2, 1, 1, FINITE },
	{ CKPT_DTYPE_I4, 0, 3, 0, INTEGER },
	{ CKPT_DTYPE_I2, 0, 1, 0, INTEGER },
};

static double naive(const struct layout *l, unsigned u)
{
	int sign = (int)(u >> (l->exp + l->man)) & 1, e = (int)(u >> l->man) % (1 << l->exp);
	int m = (int)u % (1 << l->man), all = (1 << l->exp) - 1;
	double v = 0;

	if (l->kind == INTEGER) /* two's complement: the sign bit counts negative */
		return m - (sign << l->man);
	if (l->kind == UNSIGNED_POWER)
		return u == 255 ? (double)NAN : pow(2, (int)u - 127);
	if (l->kind == IEEE && e == all)
		return m ? (double)NAN : sign ? -(double)INFINITY : (double)INFINITY;
	if (l->kind == FN && e == all && m == (1 << l->man) - 1)
		return (double)NAN;
	if (l->kind == FNUZ && sign && !e && !m)
		return (double)NAN;
	for (int k = 1; k <= l->man; k++) /* 0.5, 0.25, ... */
		if (m & 1 << (l->man - k))
			v += pow(2, -k);
	v = e ? (1 + v) * pow(2, e - l->bias) : v * pow(2, 1 - l->bias);
	return sign ? -v : v;
}

START_LOOP_TEST(every_pattern_of_small_floats_has_its_value, ARRAY_LEN(layouts))
{
	const struct layout *l = &layouts[_i];
	size_t size = dtype_info(l->dtype)->size, n = size == 1 ? 256 : 65536;
	static uint8_t bytes[2 * 65536];
	static double got[65536], rest[1];

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < size; k++)
			bytes[i * size + k] = (uint8_t)(i >> 8 * k);
	ck_assert(!values_decode(l->dtype, bytes, n, got, rest));
	for (size_t i = 0; i < n; i++)
		if (!same(got[i], naive(l, (unsigned)i)))
			ck_abort_msg("%s %#zx is %a, not %a", dtype_info(l->dtype)->name, i, got[i],
				     naive(l, (unsigned)i));
}
END_TEST

/* From the tables in the papers that define the formats. */
static const struct {
	enum ckpt_dtype dtype;
	unsigned bits;
	double value;
} known[] = {
	{ CKPT_DTYPE_F8_E4M3FN, 0x7e, 448 },
	{ CKPT_DTYPE_F8_E4M3FN, 0x01, 0x1p-9 },
	{ CKPT_DTYPE_F8_E4M3FN, 0x08, 0x1p-6 },
	{ CKPT_DTYPE_F8_E5M2, 0x7b, 57344 },
	{ CKPT_DTYPE_F8_E5M2, 0x01, 0x1p-16 },
	{ CKPT_DTYPE_F8_E5M2, 0xfc, -(double)INFINITY },
	{ CKPT_DTYPE_F8_E4M3FNUZ, 0x7f, 240 },
	{ CKPT_DTYPE_F8_E4M3FNUZ, 0x01, 0x1p-10 },
	{ CKPT_DTYPE_F8_E5M2FNUZ, 0x7f, 57344 },
	{ CKPT_DTYPE_F8_E5M2FNUZ, 0x01, 0x1p-17 },
	{ CKPT_DTYPE_F8_E8M0FNU, 0x00, 0x1p-127 },
	{ CKPT_DTYPE_F8_E8M0FNU, 0xfe, 0x1p127 },
	{ CKPT_DTYPE_F8_E3M4, 0x6f, 15.5 },
	{ CKPT_DTYPE_F8_E3M4, 0x01, 0x1p-6 },
	{ CKPT_DTYPE_F8_E3M4, 0xf0, -(double)INFINITY },
	{ CKPT_DTYPE_F8_E4M3B11FNUZ, 0x7f, 30 },
	{ CKPT_DTYPE_F8_E4M3B11FNUZ, 0x01, 0x1p-13 },
	{ CKPT_DTYPE_F4_E2M1FN, 0x07, 6 },
	{ CKPT_DTYPE_F4_E2M1FN, 0x09, -0.5 },
	{ CKPT_DTYPE_I4, 0xf8, -8 },
	{ CKPT_DTYPE_I4, 0x17, 7 },
	{ CKPT_DTYPE_I2, 0xfe, -2 },
	{ CKPT_DTYPE_I2, 0x01, 1 },
	{ CKPT_DTYPE_F16, 0x7bff, 65504 },
	{ CKPT_DTYPE_F16, 0x0001, 0x1p-24 },
	{ CKPT_DTYPE_F16, 0x8000, -0.0 },
	{ CKPT_DTYPE_BF16, 0x3f80, 1 },
	{ CKPT_DTYPE_BF16, 0xff80, -(double)INFINITY },
};

START_LOOP_TEST(known_values_are_right, ARRAY_LEN(known))
{
	uint8_t b[2] = { (uint8_t)known[_i].bits, (uint8_t)(known[_i].bits >> 8) };
	double got, rest;

	ck_assert(!values_decode(known[_i].dtype, b, 1, &got, &rest));
	ck_assert_msg(same(got, known[_i].value), "%a", got);
}
END_TEST

/* ---- wider ones ---- */

/* A number of that dtype, as printed by C and read back. */
static double by_text(enum ckpt_dtype t, uint64_t bits)
{
	char text[64];
	float f;
	double d;

	switch (t) {
	case CKPT_DTYPE_F64:
		memcpy(&d, &bits, 8);
		return d;
	case CKPT_DTYPE_F32:
		memcpy(&f, &(uint32_t){ (uint32_t)bits }, 4);
		return (double)f;
	case CKPT_DTYPE_I64:
		(void)snprintf(text, sizeof(text), "%" PRId64, (int64_t)bits);
		break;
	case CKPT_DTYPE_I32:
		(void)snprintf(text, sizeof(text), "%" PRId32, (int32_t)bits);
		break;
	case CKPT_DTYPE_I16:
		(void)snprintf(text, sizeof(text), "%" PRId16, (int16_t)bits);
		break;
	case CKPT_DTYPE_I8:
		(void)snprintf(text, sizeof(text), "%" PRId8, (int8_t)bits);
		break;
	case CKPT_DTYPE_BOOL:
		return bits & 255 ? 1 : 0;
	default:
		bits &= UINT64_MAX >> (64 - 8 * dtype_info(t)->size);
		(void)snprintf(text, sizeof(text), "%" PRIu64, bits);
	}
	return strtod(text, NULL);
}

static const enum ckpt_dtype wide[] = { CKPT_DTYPE_F64, CKPT_DTYPE_F32, CKPT_DTYPE_I64,
					CKPT_DTYPE_I32, CKPT_DTYPE_I16, CKPT_DTYPE_I8,
					CKPT_DTYPE_U64, CKPT_DTYPE_U32, CKPT_DTYPE_U16,
					CKPT_DTYPE_U8,	CKPT_DTYPE_BOOL };

/* The top bits are all alike, so that small numbers are as likely as large ones. */
static uint64_t any_bits(struct rng *r)
{
	uint64_t v = rng_u64(r) >> rng_below(r, 64);

	return rng_chance(r, 30) ? ~v : v;
}

START_LOOP_TEST(any_pattern_of_wide_types_has_its_value, ARRAY_LEN(wide))
{
	enum ckpt_dtype t = wide[_i];
	size_t size = dtype_info(t)->size;
	struct rng r = rng_new();
	uint8_t bytes[8 * 100 + 1];
	double got[100], rest[100];
	uint64_t bits[100];

	for (int round = 0; round < 200; round++) {
		size_t n = rng_below(&r, 101), skew = rng_below(&r, 2);

		for (size_t i = 0; i < n; i++) {
			bits[i] = any_bits(&r);
			for (size_t k = 0; k < size; k++)
				bytes[skew + i * size + k] = (uint8_t)(bits[i] >> 8 * k);
		}
		ck_assert_int_eq(values_decode(t, bytes + skew, n, got, rest),
				 t == CKPT_DTYPE_I64 || t == CKPT_DTYPE_U64);
		for (size_t i = 0; i < n; i++)
			REQUIRE(same(got[i], by_text(t, bits[i])));
	}
}
END_TEST

/* Integers next to 2^53, 2^63, 2^64 and random ones are stored and come back exactly. */
START_TEST(integers_of_64_bits_lose_nothing)
{
	static const uint64_t edges[] = { 0, (uint64_t)1 << 53, (uint64_t)1 << 63, UINT64_MAX };
	struct rng r = rng_new();

	for (int i = 0; i < 10000; i++) {
		uint64_t v = i < 400 ? edges[i % 4] + (uint64_t)(i / 4) - 50 : any_bits(&r);
		uint8_t b[8];
		double got, rest;

		for (size_t k = 0; k < 8; k++)
			b[k] = (uint8_t)(v >> 8 * k);
		REQUIRE(values_decode(CKPT_DTYPE_U64, b, 1, &got, &rest));
		REQUIRE((__int128)got + (__int128)rest == (__int128)v);
		REQUIRE(values_decode(CKPT_DTYPE_I64, b, 1, &got, &rest));
		REQUIRE((__int128)got + (__int128)rest == (__int128)(int64_t)v);
	}
}
END_TEST

START_TEST(a_complex_element_is_two_numbers)
{
	static const uint8_t c32[] = { 0x00, 0x3c, 0x00, 0xc0 },
			     bc32[] = { 0x80, 0x3f, 0x00, 0xc0 };
	float c64[] = { 1.5f, -2 };
	double c128[] = { 0x1p-1000, -0.0 }, got[2], rest[2];

	ck_assert(!values_decode(CKPT_DTYPE_C32, c32, 2, got, rest) && got[0] == 1 && got[1] == -2);
	ck_assert(!values_decode(CKPT_DTYPE_BC32, bc32, 2, got, rest) && got[0] == 1 &&
		  got[1] == -2);
	ck_assert(!values_decode(CKPT_DTYPE_C64, c64, 2, got, rest) && got[0] == 1.5 &&
		  got[1] == -2);
	ck_assert(!values_decode(CKPT_DTYPE_C128, c128, 2, got, rest) && got[0] == 0x1p-1000 &&
		  same(got[1], -0.0));
	for (enum ckpt_dtype t = 0; t < CKPT_DTYPE_COUNT; t++)
		ck_assert_uint_eq(values_numbers(t),
				  strstr(dtype_info(t)->name, "complex") ? 2 : 1);
}
END_TEST

START_TEST(packed_and_quantised_types_have_no_values)
{
	for (enum ckpt_dtype t = 0; t < CKPT_DTYPE_COUNT; t++) {
		const char *name = dtype_info(t)->name;
		bool opaque = t == CKPT_DTYPE_NONE || !strncmp(name, "q", 1) ||
			      !strncmp(name, "bits", 4) || strstr(name, "_x2");

		ck_assert_msg(values_known(t) == !opaque, "%s", name);
	}
	ck_assert(!values_known(CKPT_DTYPE_COUNT));
}
END_TEST

SUITE(values)

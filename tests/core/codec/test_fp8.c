/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of float8_e4m3fn, each compared with the nearest of all values. */
#include "base/checked.h"
#include "codec/cast.h"
#include "codec/codes.h"
#include "codec/fp8_internal.h"
#include "rng.h"
#include "suites.h"

#include <math.h>
#include <string.h>

/* The nearest code that is even in a tie. */
static uint8_t naive(float x)
{
	float values[256], size = fabsf(x);
	uint8_t sign = signbit(x) ? 0x80 : 0;
	int best = 0;

	if (isnan(x))
		return 0x7f;
	codes_values(CODES_E4M3, values);
	for (int c = 1; c < 0x7f; c++) {
		double better = fabs((double)values[best] - (double)size),
		       now = fabs((double)values[c] - (double)size);

		if (isinf(size) || now < better || (now == better && !(c & 1)))
			best = c;
	}
	return (uint8_t)(sign | best);
}

static bool same(uint8_t have, uint8_t want)
{
	return have == want || ((want & 0x7f) == 0x7f && (have & 0x7f) == 0x7f);
}

static void check(const float *x, size_t n)
{
	uint8_t one[64], other[64];

	REQUIRE(n <= sizeof(one));
	fp8_multiply(x, 1, one, n);
	fp8_multiply_portable(x, 1, other, n);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(same(one[i], naive(x[i])) && same(other[i], one[i]),
			      "%a: %02x and %02x, not %02x", (double)x[i], one[i], other[i],
			      naive(x[i]));
}

/* All codes, the midpoints between neighbours, and the floats next to these. */
START_TEST(ties_go_to_the_even_code)
{
	float values[256];

	codes_values(CODES_E4M3, values);
	for (int c = 0; c < 0x7e; c++) {
		float middle = (values[c] + values[c + 1]) / 2;
		float x[12] = { values[c],
				middle,
				nextafterf(middle, 0),
				nextafterf(middle, 1000),
				nextafterf(values[c], 1000),
				nextafterf(values[c + 1], 0) };

		for (int i = 0; i < 6; i++)
			x[6 + i] = -x[i];
		check(x, 12);
	}
}
END_TEST

START_TEST(any_float_has_the_nearest_code)
{
	struct rng r = rng_new();

	for (int round = 0; round < 2000; round++) {
		float x[37];

		for (size_t i = 0; i < ARRAY_LEN(x); i++)
			x[i] = rng_chance(&r, 50) ? rng_float_bits(&r)
						  : ldexpf((float)rng_below(&r, 1 << 12),
							   -(int)rng_below(&r, 24));
		check(x, ARRAY_LEN(x));
	}
}
END_TEST

START_TEST(quotients_are_rounded_to_the_dtype_first)
{
	static const enum ckpt_dtype dtypes[] = { CKPT_DTYPE_F32, CKPT_DTYPE_F16, CKPT_DTYPE_BF16 };
	struct rng r = rng_new();

	for (int round = 0; round < 2000; round++) {
		enum ckpt_dtype dtype = dtypes[round % 3];
		float x[33], scale = ldexpf(1 + (float)rng_below(&r, 256) / 256,
					    (int)rng_below(&r, 20) - 10);
		uint8_t have[33], other[33], raw[4];

		for (size_t i = 0; i < ARRAY_LEN(x); i++)
			x[i] = ldexpf((float)rng_below(&r, 1 << 20) - (1 << 19),
				      (int)rng_below(&r, 20) - 24);
		fp8_divide(dtype, x, scale, have, ARRAY_LEN(x));
		fp8_divide_portable(dtype, x, scale, other, ARRAY_LEN(x));
		for (size_t i = 0; i < ARRAY_LEN(x); i++) {
			float q = x[i] / scale;

			cast_run(CKPT_DTYPE_F32, dtype, &q, raw, 1);
			cast_run(dtype, CKPT_DTYPE_F32, raw, &q, 1);
			ck_assert(same(have[i], naive(q)) && other[i] == have[i]);
		}
	}
}
END_TEST

START_TEST(the_largest_magnitude_is_found_and_nan_is_larger)
{
	struct rng r = rng_new();

	for (int round = 0; round < 2000; round++) {
		float x[40], most = (float)rng_below(&r, 3), want = most;
		size_t n = rng_below(&r, 40);
		bool nan = false;

		for (size_t i = 0; i < n; i++) {
			x[i] = rng_chance(&r, 99) ? (float)rng_below(&r, 2000) - 1000
						  : rng_float_bits(&r);
			nan |= isnan(x[i]);
			want = fmaxf(want, fabsf(x[i]));
		}
		ck_assert(isnan(fp8_amax(most, x, n)) == nan);
		ck_assert(isnan(fp8_amax_portable(most, x, n)) == nan);
		ck_assert(nan ||
			  (fp8_amax(most, x, n) == want && fp8_amax_portable(most, x, n) == want));
	}
}
END_TEST

START_TEST(codes_have_their_values_times_the_scale)
{
	struct rng r = rng_new();
	float values[256];

	codes_values(CODES_E4M3, values);
	for (int round = 0; round < 300; round++) {
		float scale = round ? ldexpf(1 + (float)rng_below(&r, 256) / 256,
					     (int)rng_below(&r, 200) - 100)
				    : 1;
		size_t from = round ? rng_below(&r, 256) : 0, n = 256 - from;
		uint8_t codes[256];
		float x[2][256];

		for (size_t i = 0; i < n; i++)
			codes[i] = (uint8_t)(from + i);
		fp8_scale(codes, scale, x[0], n);
		fp8_scale_portable(codes, scale, x[1], n);
		for (size_t i = 0; i < n; i++) {
			float want = values[from + i] * scale;

			ck_assert(!memcmp(&x[0][i], &want, sizeof(want)));
			ck_assert(!memcmp(&x[1][i], &want, sizeof(want)));
		}
	}
}
END_TEST

SUITE(fp8)

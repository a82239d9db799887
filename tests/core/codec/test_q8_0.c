/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "codec/cast.h"
#include "codec/q8_0.h"
#include "codec/q8_0_internal.h"
#include "rng.h"
#include "suites.h"

#include <math.h>
#include <string.h>

enum { N = Q8_0_ELEMENTS };

/* ggml's quantize_row_q8_0_ref, word for word. */
static void naive(const float *x, uint8_t *out)
{
	float amax = 0.0f, d, id;

	for (int i = 0; i < N; i++)
		amax = amax > fabsf(x[i]) ? amax : fabsf(x[i]);
	d = amax / 127;
	id = d != 0 ? 1.0f / d : 0.0f;
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F16, &d, out, 1);
	for (int i = 0; i < N; i++) {
		float y = x[i] * id;

		out[2 + i] = (uint8_t)(fabsf(y) < 128 ? (int)roundf(y) : 0);
	}
}

static void check(const float *x)
{
	uint8_t want[Q8_0_BYTES], have[Q8_0_BYTES + 1];

	naive(x, want);
	q8_0_run(x, have + 1, 1); /* at an odd address */
	REQUIRE(!memcmp(have + 1, want, sizeof(want)));
	q8_0_run_portable(x, have, 1);
	REQUIRE(!memcmp(have, want, sizeof(want)));
}

START_TEST(random_blocks_are_as_ggml_makes_them)
{
	struct rng r = rng_new();

	for (int round = 0; round < 20000; round++) {
		float x[N], scale = ldexpf(1, (int)rng_below(&r, 240) - 120);

		for (int i = 0; i < N; i++)
			x[i] = ((float)rng_below(&r, 1 << 24) / (1 << 23) - 1) * scale;
		check(x);
	}
}
END_TEST

START_TEST(any_bits_are_as_ggml_makes_them)
{
	struct rng r = rng_new();

	for (int round = 0; round < 20000; round++) {
		float x[N];

		for (int i = 0; i < N; i++) {
			x[i] = rng_float_bits(&r);
			if (rng_chance(&r, 50)) /* not exponents of all sizes */
				x[i] = ldexpf((float)rng_below(&r, 1 << 24) - (1 << 23), -23);
		}
		check(x);
	}
}
END_TEST

/* With a maximum of 127 the scale is 1, so the values themselves are rounded. */
START_TEST(halves_go_away_from_zero)
{
	static const float halves[] = { 0.5f,		-0.5f, 1.5f,	-1.5f,	     126.5f,
					0x1.fffffep-2f, 2.5f,  -126.5f, 0.49999997f, -0.49999997f };
	static const int8_t want[] = { 1, -1, 2, -2, 127, 0, 3, -127, 0, 0 };
	float x[N] = { 127 };
	uint8_t out[Q8_0_BYTES];

	memcpy(x + 1, halves, sizeof(halves));
	q8_0_run(x, out, 1);
	for (size_t i = 0; i < sizeof(want); i++)
		ck_assert_int_eq((int8_t)out[3 + i], want[i]);
	ck_assert_int_eq(load_le16(out), 0x3c00);
}
END_TEST

START_TEST(zeros_infinities_and_nan_are_bytes_too)
{
	const float odd[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 1e-40f, 3e38f };
	float x[N] = { 0 };

	check(x);
	for (int i = 0; i < 8; i++)
		for (int at = 0; at < N; at += 31) {
			memset(x, 0, sizeof(x));
			x[5] = 1e-41f;
			x[at] = odd[i];
			check(x);
		}
}
END_TEST

SUITE(q8_0)

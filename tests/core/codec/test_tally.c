/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/tally.h"
#include "codec/values.h"
#include "rng.h"
#include "suites.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 40000 };

#if LDBL_MANT_DIG < 113 && defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 real;
#else
typedef long double real;
#endif

static struct tally_work *work;

static void setup(void)
{
	work = tally_work_new();
	ck_assert_ptr_nonnull(work);
}

static void teardown(void)
{
	tally_work_free(work);
}

static struct ckpt_values values_of(enum ckpt_dtype t, const void *p, size_t n)
{
	struct tally tally = TALLY_INIT;
	struct ckpt_values v;

	tally_add(&tally, work, t, p, n, 0);
	tally_values(&tally, &v);
	return v;
}

/* The two may differ by that share of the second. */
static void assert_near(double a, double b, double share)
{
	if (!(fabs(a - b) <= fabs(b) * share) && memcmp(&a, &b, sizeof(a)) != 0)
		ck_abort_msg("%.17g instead of %.17g", a, b);
}

/* ---- what is known ---- */

START_TEST(nothing_is_lost)
{
	const double v[] = { 1e308, 0x1p-1074, -1e308, 3, 0x1p-1074, 1e308, -1e308 };
	struct ckpt_values s = values_of(CKPT_DTYPE_F64, v, 7);

	ck_assert_double_eq(s.sum[0], 3);
	ck_assert_double_eq(s.mean[0], 3.0 / 7);
	ck_assert_double_eq(s.min, -1e308);
	ck_assert_double_eq(s.max, 1e308);
	ck_assert_uint_eq(s.subnormal, 2);
	s = values_of(CKPT_DTYPE_F64, v + 1, 1);
	ck_assert_double_eq(s.sum[0], 0x1p-1074);
	ck_assert_double_eq(s.norm, 0x1p-1074);
	ck_assert_double_eq(s.std, 0);
}
END_TEST

START_TEST(what_is_too_large_for_a_double)
{
	const double v[] = { DBL_MAX, DBL_MAX, DBL_MAX, DBL_MAX };
	struct ckpt_values s = values_of(CKPT_DTYPE_F64, v, 4);

	ck_assert_double_infinite(s.sum[0]);
	ck_assert_double_eq(s.mean[0], DBL_MAX);
	ck_assert_double_infinite(s.norm);
	ck_assert_double_eq(s.std, 0);
	s = values_of(CKPT_DTYPE_F64, (double[]){ DBL_MAX, -DBL_MAX }, 2);
	ck_assert_double_eq(s.sum[0], 0);
	ck_assert_double_eq(s.std, DBL_MAX);
}
END_TEST

START_TEST(a_small_spread_about_a_large_mean)
{
	double v[1000];
	struct ckpt_values s;

	for (size_t i = 0; i < 1000; i++)
		v[i] = 1e15 + (i % 2 ? 0.5 : -0.5);
	s = values_of(CKPT_DTYPE_F64, v, 1000);
	ck_assert_double_eq(s.mean[0], 1e15);
	ck_assert_double_eq(s.std, 0.5);
}
END_TEST

START_TEST(integers_of_64_bits)
{
	const int64_t i[] = { INT64_MIN, INT64_MAX, 0, -1, INT64_MAX - 1 };
	const uint64_t u[] = { UINT64_MAX, UINT64_MAX - 1, 7 };
	struct ckpt_values s = values_of(CKPT_DTYPE_I64, i, 5);

	ck_assert(s.min == -0x1p63 && s.min_rest == 0);
	ck_assert(s.max == 0x1p63 && s.max_rest == -1);
	ck_assert_uint_eq(s.zero, 1);
	ck_assert_uint_eq(s.first_zero, 2);
	ck_assert_double_eq(s.sum[0], (double)(INT64_MAX - 3));
	s = values_of(CKPT_DTYPE_U64, u, 3);
	ck_assert(s.min == 7 && s.max == 0x1p64 && s.max_rest == -1);
	ck_assert_double_eq(s.norm, sqrt(2) * 0x1p64);
}
END_TEST

START_TEST(what_is_no_number)
{
	const float v[] = { 1, NAN, -(float)INFINITY, 0, -0.0f, (float)INFINITY, 0x1p-140f, NAN };
	struct ckpt_values s = values_of(CKPT_DTYPE_F32, v, 8);

	ck_assert_uint_eq(s.elements, 8);
	ck_assert_uint_eq(s.finite, 4);
	ck_assert_uint_eq(s.nan, 2);
	ck_assert_uint_eq(s.infinite, 2);
	ck_assert_uint_eq(s.zero, 2);
	ck_assert_uint_eq(s.subnormal, 1);
	ck_assert_uint_eq(s.first_nan, 1);
	ck_assert_uint_eq(s.first_infinite, 2);
	ck_assert_uint_eq(s.first_zero, 3);
	ck_assert_double_eq(s.min, 0);
	ck_assert_double_eq(s.max, 1);
	s = values_of(CKPT_DTYPE_F32, v + 1, 1);
	ck_assert_uint_eq(s.finite, 0);
	ck_assert_double_eq(s.mean[0], 0);
	ck_assert_uint_eq(s.first_zero, UINT64_MAX);
}
END_TEST

START_TEST(complex_numbers)
{
	const float v[] = { 3, 4, NAN, 0, 1, (float)INFINITY, 0, 0, -3, -4 };
	struct ckpt_values s = values_of(CKPT_DTYPE_C64, v, 5);

	ck_assert(s.is_complex);
	ck_assert_uint_eq(s.elements, 5);
	ck_assert_uint_eq(s.nan, 1);
	ck_assert_uint_eq(s.infinite, 1);
	ck_assert_uint_eq(s.zero, 1);
	ck_assert_uint_eq(s.finite, 3);
	ck_assert_double_eq(s.sum[0], 0);
	ck_assert_double_eq(s.sum[1], 0);
	ck_assert_double_eq(s.norm, sqrt(50));
	assert_near(s.std, sqrt(50.0 / 3), 0x1p-51);
}
END_TEST

/* ---- against a simple way ---- */

static void naive(enum ckpt_dtype t, const uint8_t *p, size_t n, struct ckpt_values *s)
{
	size_t parts = values_numbers(t), size = dtype_info(t)->size;
	real sum[2] = { 0 }, squares = 0;

	*s = (struct ckpt_values){ .elements = n,
				   .first_nan = UINT64_MAX,
				   .first_infinite = UINT64_MAX,
				   .first_zero = UINT64_MAX };
	for (size_t i = n; i-- > 0;) {
		double v[2] = { 0 }, rest[2] = { 0 };
		bool nan, infinite;

		(void)values_decode(t, p + i * size, parts, v, rest);
		nan = isnan(v[0]) || isnan(v[1]);
		infinite = !nan && (isinf(v[0]) || isinf(v[1]));
		if (nan)
			s->first_nan = i;
		if (infinite)
			s->first_infinite = i;
		s->nan += nan;
		s->infinite += infinite;
		if (nan || infinite)
			continue;
		if (v[0] == 0 && v[1] == 0) {
			s->zero++;
			s->first_zero = i;
		}
		if (!s->finite || v[0] < s->min || (v[0] == s->min && rest[0] < s->min_rest)) {
			s->min = v[0];
			s->min_rest = rest[0];
		}
		if (!s->finite || v[0] > s->max || (v[0] == s->max && rest[0] > s->max_rest)) {
			s->max = v[0];
			s->max_rest = rest[0];
		}
		s->finite++;
		for (size_t k = 0; k < 2; k++) {
			real x = (real)v[k] + (real)rest[k];

			sum[k] += x;
			squares += x * x;
		}
	}
	if (!s->finite)
		return;
	s->norm = sqrt((double)squares);
	for (size_t k = 0; k < 2; k++) {
		s->sum[k] = (double)sum[k];
		s->mean[k] = (double)(sum[k] / (real)s->finite);
		squares -= sum[k] * sum[k] / (real)s->finite;
	}
	s->std = squares > 0 ? sqrt((double)(squares / (real)s->finite)) : 0;
}

/* Elements of a dtype: random bytes, for wide floats small numbers with a few NaNs. */
static void fill(struct rng *r, enum ckpt_dtype t, uint8_t *p, size_t n)
{
	size_t unit = dtype_info(t)->unit ? dtype_info(t)->unit : 1;
	size_t bytes = n * dtype_info(t)->size;
	bool sparse = rng_below(r, 3) == 0;

	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)rng_u64(r);
	if (t == CKPT_DTYPE_F64 || t == CKPT_DTYPE_C128 || t == CKPT_DTYPE_F32 ||
	    t == CKPT_DTYPE_C64 || t == CKPT_DTYPE_BF16 || t == CKPT_DTYPE_BC32)
		for (size_t i = 0; i < bytes;
		     i += unit) { /* exponents that 113 bits have room for */
			p[i + unit - 1] = (uint8_t)((p[i + unit - 1] & 0x80) | 0x3e);
			if (rng_below(r, 1000) == 0)
				memset(p + i, 0xff, unit);
		}
	for (size_t i = 0; sparse && i < bytes; i += unit)
		if (rng_below(r, 2))
			memset(p + i, 0, unit);
}

START_FEW_TEST(as_a_simple_way_has_it, CKPT_DTYPE_COUNT - 1, 6)
{
	enum ckpt_dtype t = (enum ckpt_dtype)(CKPT_DTYPE_NONE + 1 + _i);
	struct rng r = rng_new();
	uint8_t *p;

	if (!values_known(t))
		return;
	p = malloc((size_t)MAX_ELEMENTS * 16);
	for (size_t round = 0; round < 12; round++) {
		size_t n = round < 4 ? round + 1 : rng_below(&r, MAX_ELEMENTS) + 1;
		struct ckpt_values a, b;

		fill(&r, t, p, n);
		a = values_of(t, p, n);
		naive(t, p, n, &b);
		ck_assert_uint_eq(a.elements, b.elements);
		ck_assert_uint_eq(a.finite, b.finite);
		ck_assert_uint_eq(a.nan, b.nan);
		ck_assert_uint_eq(a.infinite, b.infinite);
		ck_assert_uint_eq(a.zero, b.zero);
		ck_assert_uint_eq(a.first_nan, b.first_nan);
		ck_assert_uint_eq(a.first_infinite, b.first_infinite);
		ck_assert_uint_eq(a.first_zero, b.first_zero);
		if (!a.is_complex) {
			ck_assert(a.min == b.min && a.min_rest == b.min_rest);
			ck_assert(a.max == b.max && a.max_rest == b.max_rest);
		}
		for (size_t k = 0; k < 2; k++) {
			assert_near(a.sum[k], b.sum[k], 0x1p-52);
			assert_near(a.mean[k], b.mean[k], 0x1p-52);
		}
		assert_near(a.norm, b.norm, 0x1p-51);
		/* The error of the simple way is itself proportional to the norm. */
		REQUIRE(fabs(a.std - b.std) <= b.norm * 0x1p-50 + b.std * 0x1p-40);
	}
	free(p);
}
END_TEST

/* Blocks of any size, added and merged in any order, give the same bits. */
START_TEST(order_does_not_matter)
{
	static const enum ckpt_dtype types[] = { CKPT_DTYPE_F64, CKPT_DTYPE_F32, CKPT_DTYPE_BF16,
						 CKPT_DTYPE_I64, CKPT_DTYPE_C64, CKPT_DTYPE_U8 };
	struct rng r = rng_new();
	uint8_t *p = malloc((size_t)MAX_ELEMENTS * 16);

	for (size_t round = 0; round < 30; round++) {
		enum ckpt_dtype t = types[round % ARRAY_LEN(types)];
		size_t size = dtype_info(t)->size, n = rng_below(&r, MAX_ELEMENTS) + 1;
		struct tally parts[2] = { TALLY_INIT, TALLY_INIT };
		struct ckpt_values a, b;

		for (size_t i = 0; i < n * size; i++) /* of any magnitude */
			p[i] = (uint8_t)rng_u64(&r);
		a = values_of(t, p, n);
		for (size_t end = n; end;) {
			size_t k = rng_below(&r, end) + 1;

			end -= k;
			tally_add(&parts[rng_below(&r, 2)], work, t, p + end * size, k, end);
		}
		tally_merge(&parts[1], &parts[0]);
		tally_values(&parts[1], &b);
		ck_assert_mem_eq(&a.elements, &b.elements,
				 sizeof(a) - offsetof(struct ckpt_values, elements));
	}
	free(p);
}
END_TEST

SUITE(tally, .setup = setup, .teardown = teardown, .seconds = 30)

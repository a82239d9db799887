/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/delta.h"
#include "codec/values.h"
#include "rng.h"
#include "suites.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MAX_ELEMENTS = 3000 };

/* Holds every number of every dtype. x86's long double would do as well, but not under valgrind,
 * where it is a double. */
#if LDBL_MANT_DIG < 113 && defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 real;
#else
typedef long double real;
#endif

static real number(enum ckpt_dtype t, const uint8_t *p)
{
	double v, rest = 0;

	(void)values_decode(t, p, 1, &v, &rest);
	return (real)v + (real)rest;
}

static void naive(struct delta *d, enum ckpt_dtype ta, const uint8_t *a, enum ckpt_dtype tb,
		  const uint8_t *b, size_t n)
{
	size_t size_a = dtype_info(ta)->size, size_b = dtype_info(tb)->size;
	real sum = 0;

	*d = (struct delta){ .elements = n };
	for (size_t i = 0; i < n; i++, a += size_a, b += size_b) {
		real x[2] = { 0 }, y[2] = { 0 };
		double far;
		bool nan_x = false, nan_y = false, finite = true, changed;

		for (size_t k = 0; k < values_numbers(ta); k++) {
			x[k] = number(ta, a + k * dtype_info(ta)->unit);
			y[k] = number(tb, b + k * dtype_info(tb)->unit);
			nan_x |= isnan((double)x[k]);
			nan_y |= isnan((double)y[k]);
			finite &= isfinite((double)x[k]) && isfinite((double)y[k]);
		}
		changed = ta == tb	   ? memcmp(a, b, size_a) != 0
			  : nan_x && nan_y ? false
					   : x[0] != y[0] || x[1] != y[1];
		d->changed += changed;
		d->nan_a += nan_x;
		d->nan_b += nan_y;
		d->infinite += changed && !nan_x && !nan_y && !finite;
		if (!finite)
			continue;
		far = hypot((double)(x[0] - y[0]), (double)(x[1] - y[1]));
		d->finite++;
		sum += far;
		d->max = fmax(d->max, far);
	}
	d->sum = (double)sum;
}

static void expect_same(const struct delta *got, const struct delta *want, const char *what)
{
	if (got->elements != want->elements || got->changed != want->changed ||
	    got->nan_a != want->nan_a || got->nan_b != want->nan_b ||
	    got->infinite != want->infinite || got->finite != want->finite)
		ck_abort_msg("%s: counts are wrong", what);
	if (!(fabs(got->max - want->max) <= 1e-15 * want->max) && got->max != want->max)
		ck_abort_msg("%s: max %a, not %a", what, got->max, want->max);
	if (!(fabs(got->sum - want->sum) <= 1e-11 * want->sum) && got->sum != want->sum)
		ck_abort_msg("%s: sum %a, not %a", what, got->sum, want->sum);
}

/* Elements like weights, and now and then any bits, which are NaN or infinite often enough. */
static void fill(struct rng *r, enum ckpt_dtype t, uint8_t *p, size_t n, unsigned wild)
{
	size_t size = dtype_info(t)->size, unit = dtype_info(t)->unit;

	for (size_t i = 0; i < n * size; i += unit) {
		double v = (double)(int64_t)rng_u64(r) * 0x1p-63;
		uint64_t bits = rng_u64(r);

		if (rng_chance(r, 2))
			bits = rng_chance(r, 50) ? 0 : UINT64_MAX << rng_below(r, 64);
		else if (unit == 8 && !dtype_info(t)->is_integer && !rng_chance(r, wild))
			memcpy(&bits, &v, 8);
		else if (unit < 8 && !rng_chance(r, wild))
			bits &= ~((uint64_t)1 << (8 * unit - 2)); /* of the exponent */
		memcpy(p + i, &bits, unit);
	}
}

static void change(struct rng *r, uint8_t *b, size_t n, size_t size, unsigned percent)
{
	for (size_t i = 0; i < n; i++)
		if (rng_chance(r, percent))
			b[i * size + rng_below(r, size)] ^= (uint8_t)(1 << rng_below(r, 8));
}

START_LOOP_TEST(one_dtype_against_itself, CKPT_DTYPE_COUNT - 1)
{
	enum ckpt_dtype t = (enum ckpt_dtype)(CKPT_DTYPE_NONE + 1 + _i);
	size_t size = dtype_info(t)->size;
	struct rng r = rng_new();
	static uint8_t a[16 * MAX_ELEMENTS], b[16 * MAX_ELEMENTS];

	for (int round = 0; round < 25; round++) {
		size_t n = rng_below(&r, MAX_ELEMENTS + 1), cut = rng_below(&r, n + 1);
		struct delta got = { 0 }, more = { 0 }, want;

		fill(&r, t, a, n, round % 3 ? 0 : 20);
		memcpy(b, a, n * size);
		change(&r, b, n, size, (unsigned)(round % 4) * 10);
		if (values_known(t))
			naive(&want, t, a, t, b, n);
		else
			for (size_t i = (want = (struct delta){ .elements = n }, 0); i < n; i++)
				want.changed += memcmp(a + i * size, b + i * size, size) != 0;
		delta_add(&got, t, a, t, b, cut);
		delta_add(&more, t, a + cut * size, t, b + cut * size, n - cut);
		delta_merge(&got, &more);
		expect_same(&got, &want, dtype_info(t)->name);
	}
}
END_TEST

START_LOOP_TEST(two_dtypes_by_value, CKPT_DTYPE_COUNT - 1)
{
	enum ckpt_dtype ta = (enum ckpt_dtype)(CKPT_DTYPE_NONE + 1 + _i);
	struct rng r = rng_new();
	static uint8_t a[16 * MAX_ELEMENTS], b[16 * MAX_ELEMENTS];

	for (enum ckpt_dtype tb = CKPT_DTYPE_NONE + 1; tb < CKPT_DTYPE_COUNT; tb++) {
		bool known = values_known(ta) && values_known(tb);
		size_t n = rng_below(&r, MAX_ELEMENTS + 1);
		struct delta got = { 0 }, want;

		ck_assert(delta_numeric(ta, tb) ==
			  (known && values_numbers(ta) == values_numbers(tb)));
		if (!delta_numeric(ta, tb))
			continue;
		fill(&r, ta, a, n, 5);
		fill(&r, tb, b, n, 5);
		/* Some are equal on both sides: 0 and 1 are these bytes in all integer types. */
		for (size_t i = 0; i < n; i += 3) {
			memset(a + i * dtype_info(ta)->size, 0, dtype_info(ta)->size);
			memset(b + i * dtype_info(tb)->size, 0, dtype_info(tb)->size);
			a[i * dtype_info(ta)->size] = b[i * dtype_info(tb)->size] = i & 1;
		}
		naive(&want, ta, a, tb, b, n);
		delta_add(&got, ta, a, tb, b, n);
		expect_same(&got, &want, dtype_info(tb)->name);
	}
}
END_TEST

/* Converted to double, these would be equal. */
START_TEST(large_integers_are_told_apart)
{
	int64_t a = ((int64_t)1 << 60) + 1, b = (int64_t)1 << 60;
	uint64_t u = (uint64_t)1 << 60;
	double f = 0x1p60;
	struct delta d = { 0 };

	delta_add(&d, CKPT_DTYPE_I64, &a, CKPT_DTYPE_I64, &b, 1);
	ck_assert(d.changed == 1 && d.max == 1);
	d = (struct delta){ 0 };
	delta_add(&d, CKPT_DTYPE_I64, &a, CKPT_DTYPE_U64, &u, 1);
	delta_add(&d, CKPT_DTYPE_F64, &f, CKPT_DTYPE_I64, &a, 1);
	ck_assert(d.changed == 2 && d.max == 1 && d.sum == 2);
	d = (struct delta){ 0 };
	delta_add(&d, CKPT_DTYPE_F64, &f, CKPT_DTYPE_I64, &b, 1);
	delta_add(&d, CKPT_DTYPE_I64, &b, CKPT_DTYPE_U64, &u, 1);
	ck_assert(d.changed == 0 && d.finite == 2);
}
END_TEST

START_TEST(special_values_count_as_the_header_says)
{
	const float nan_1 = NAN, nan_2 = -NAN, inf = INFINITY;
	const float a[] = { nan_1, nan_1, 1, inf, inf, -inf, 0.0f, nan_1 };
	const float b[] = { nan_1, nan_2, nan_1, inf, 1, inf, -0.0f, inf };
	double wide[ARRAY_LEN(b)];
	struct delta d = { 0 };

	delta_add(&d, CKPT_DTYPE_F32, a, CKPT_DTYPE_F32, b, ARRAY_LEN(a));
	ck_assert_uint_eq(d.changed, 6);
	ck_assert(d.nan_a == 3 && d.nan_b == 3);
	ck_assert_uint_eq(d.infinite, 2);
	ck_assert(d.finite == 1 && d.max == 0 && d.sum == 0);
	for (size_t i = 0; i < ARRAY_LEN(b); i++)
		wide[i] = (double)b[i];
	d = (struct delta){ 0 };
	delta_add(&d, CKPT_DTYPE_F32, a, CKPT_DTYPE_F64, wide, ARRAY_LEN(a));
	ck_assert_uint_eq(d.changed, 4);
	ck_assert(d.nan_a == 3 && d.nan_b == 3 && d.infinite == 2 && d.finite == 1);
}
END_TEST

START_TEST(a_difference_beyond_double_is_infinite)
{
	double a[600], b[600];
	struct delta d = { 0 };

	for (size_t i = 0; i < 600; i++)
		a[i] = b[i] = 1;
	a[3] = DBL_MAX;
	b[3] = -DBL_MAX;
	delta_add(&d, CKPT_DTYPE_F64, a, CKPT_DTYPE_F64, b, 600);
	ck_assert(d.changed == 1 && d.infinite == 0 && d.finite == 600 && isinf(d.max));
}
END_TEST

/* The squares of these overflow a double, or vanish. */
START_TEST(norms_of_extreme_changes)
{
	static const double sizes[] = { 1e300, 1e-300, 1e-50, 1e-160, 1e150, 3 };
	static double a[MAX_ELEMENTS], b[MAX_ELEMENTS];

	for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
		double want = sizes[k] * sqrt((double)MAX_ELEMENTS), got;
		struct delta d = { 0 }, more = { 0 };

		for (size_t i = 0; i < MAX_ELEMENTS; i++)
			b[i] = i % 2 ? sizes[k] : -sizes[k];
		delta_add(&d, CKPT_DTYPE_F64, a, CKPT_DTYPE_F64, b, 1001);
		delta_add(&more, CKPT_DTYPE_F64, a + 1001, CKPT_DTYPE_F64, b + 1001,
			  MAX_ELEMENTS - 1001);
		delta_merge(&d, &more);
		got = delta_norm(&d);
		if (!(fabs(got - want) <= 1e-12 * want))
			ck_abort_msg("%g: %a, not %a", sizes[k], got, want);
		ck_assert_uint_eq(d.changed, MAX_ELEMENTS);
	}
}
END_TEST

SUITE(delta, .seconds = 30)

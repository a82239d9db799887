/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "codec/cast.h"
#include "codec/cast_internal.h"
#include "rng.h"
#include "suites.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same by definition: values are m * 2^e, rounding is integer division ---- */

struct shape {
	int exponent, mantissa; /* bits */
};

static struct shape shape_of(enum ckpt_dtype t)
{
	switch (t) {
	case CKPT_DTYPE_F64:
		return (struct shape){ 11, 52 };
	case CKPT_DTYPE_F32:
		return (struct shape){ 8, 23 };
	case CKPT_DTYPE_F16:
		return (struct shape){ 5, 10 };
	default:
		return (struct shape){ 8, 7 };
	}
}

static uint64_t infinity_of(struct shape s)
{
	return ((UINT64_C(1) << s.exponent) - 1) << s.mantissa;
}

static uint64_t sign_of(struct shape s)
{
	return UINT64_C(1) << (s.exponent + s.mantissa);
}

/* The exponent of the last bit of a subnormal number. */
static int lowest(struct shape s)
{
	return 2 - (1 << (s.exponent - 1)) - s.mantissa;
}

/* m / 2^shift, ties to even. */
static uint64_t divide(uint64_t m, int shift)
{
	uint64_t q, rest, half;

	if (shift > 60) /* m has at most 53 bits */
		return 0;
	q = m >> shift;
	rest = m - (q << shift);
	half = (UINT64_C(1) << shift) / 2;
	return q + (shift && (rest > half || (rest == half && q % 2)));
}

/* A finite number without its sign. */
static uint64_t naive_finite(struct shape from, struct shape to, uint64_t bits)
{
	uint64_t exponent = bits >> from.mantissa, m = bits & ((UINT64_C(1) << from.mantissa) - 1);
	int e = lowest(from), last;

	if (exponent) {
		m |= UINT64_C(1) << from.mantissa;
		e += (int)exponent - 1;
	}
	if (!m)
		return 0;
	last = e + 63 - __builtin_clzll(m) - to.mantissa;
	if (last < lowest(to))
		last = lowest(to);
	m = last > e ? divide(m, last - e) : m << (e - last);
	/* The leading bit of m, if it has one, adds one to the exponent. */
	m += (uint64_t)(last - lowest(to)) << to.mantissa;
	return m < infinity_of(to) ? m : infinity_of(to);
}

static uint64_t naive_nan(enum ckpt_dtype from, enum ckpt_dtype to, uint64_t bits)
{
	struct shape f = shape_of(from), t = shape_of(to);
	uint64_t payload = bits & ((UINT64_C(1) << f.mantissa) - 1), r = infinity_of(t);

	if (to == CKPT_DTYPE_BF16)
		return from == CKPT_DTYPE_F16 ? 0x7fc0 : 0xffff;
	if (f.mantissa > t.mantissa)
		r |= payload >> (f.mantissa - t.mantissa);
	else
		r |= payload << (t.mantissa - f.mantissa);
	if (from != CKPT_DTYPE_BF16 || to != CKPT_DTYPE_F32)
		r |= UINT64_C(1) << (t.mantissa - 1);
	return r | (bits & sign_of(f) ? sign_of(t) : 0);
}

static uint64_t naive(enum ckpt_dtype from, enum ckpt_dtype to, uint64_t bits)
{
	struct shape f = shape_of(from), t = shape_of(to), single = shape_of(CKPT_DTYPE_F32);
	uint64_t magnitude = bits & ~sign_of(f);

	if (from == to)
		return bits;
	if (magnitude > infinity_of(f))
		return naive_nan(from, to, bits);
	if (magnitude == infinity_of(f))
		magnitude = infinity_of(t);
	else if (from == CKPT_DTYPE_F64) /* twice */
		magnitude = naive_finite(single, t, naive_finite(f, single, magnitude));
	else
		magnitude = naive_finite(f, t, magnitude);
	return magnitude | (bits & sign_of(f) ? sign_of(t) : 0);
}

/* ---- comparison ---- */

static const enum ckpt_dtype sources[] = { CKPT_DTYPE_F64, CKPT_DTYPE_F32, CKPT_DTYPE_F16,
					   CKPT_DTYPE_BF16 };
static const enum ckpt_dtype targets[] = { CKPT_DTYPE_F32, CKPT_DTYPE_F16, CKPT_DTYPE_BF16 };

typedef void run_fn(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n);
static run_fn *const runs[] = { cast_run, cast_run_portable };

static uint64_t element(enum ckpt_dtype t, const uint8_t *p, size_t i)
{
	size_t size = dtype_info(t)->size;
	uint64_t u = 0;

	for (size_t b = size; b-- > 0;)
		u = u << 8 | p[i * size + b];
	return u;
}

static void set_element(enum ckpt_dtype t, uint8_t *p, size_t i, uint64_t u)
{
	size_t size = dtype_info(t)->size;

	for (size_t b = 0; b < size; b++)
		p[i * size + b] = (uint8_t)(u >> 8 * b);
}

static void compare(enum ckpt_dtype from, enum ckpt_dtype to, const uint8_t *src,
		    const uint8_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t u = element(from, src, i);
		uint64_t want = naive(from, to, u), got = element(to, dst, i);

		if (got != want)
			ck_abort_msg("%s 0x%" PRIx64 " to %s: 0x%" PRIx64 ", not 0x%" PRIx64,
				     dtype_info(from)->name, u, dtype_info(to)->name, got, want);
	}
}

enum { BATCH = 4096 };

/* Elements of one type, which are collected and then cast to every other type in every way. */
struct batch {
	enum ckpt_dtype from;
	size_t n;
	uint8_t src[8 * BATCH], dst[4 * BATCH];
};

static void batch_check(struct batch *b)
{
	for (size_t t = 0; t < ARRAY_LEN(targets); t++) {
		for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
			runs[r](b->from, targets[t], b->src, b->dst, b->n);
			compare(b->from, targets[t], b->src, b->dst, b->n);
		}
	}
	b->n = 0;
}

static void batch_add(struct batch *b, uint64_t bits)
{
	set_element(b->from, b->src, b->n++, bits);
	if (b->n == BATCH)
		batch_check(b);
}

/* Adds u and its neighbours, each also with the other sign. */
static void batch_add_around(struct batch *b, uint64_t u)
{
	for (uint64_t d = 0; d < 5; d++) {
		batch_add(b, u + d - 2);
		batch_add(b, (u + d - 2) ^ sign_of(shape_of(b->from)));
	}
}

/* ---- tests ---- */

START_TEST(sources_and_targets_are_floats_of_at_most_64_and_32_bits)
{
	for (enum ckpt_dtype from = CKPT_DTYPE_NONE; from < CKPT_DTYPE_COUNT; from++) {
		for (enum ckpt_dtype to = CKPT_DTYPE_NONE; to < CKPT_DTYPE_COUNT; to++) {
			bool want = false;

			for (size_t s = 0; s < ARRAY_LEN(sources); s++)
				for (size_t t = 0; t < ARRAY_LEN(targets); t++)
					want |= from == sources[s] && to == targets[t];
			REQUIRE(cast_possible(from, to) == want);
		}
	}
}
END_TEST

START_TEST(well_known_numbers)
{
	static const struct {
		enum ckpt_dtype from, to;
		uint64_t bits, want;
	} c[] = {
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x3f800000, 0x3f80 }, /* 1 */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x3f808000,
		  0x3f80 }, /* halfway: to even, down */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x3f818000, 0x3f82 }, /* halfway: to even, up */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x7f7fffff, 0x7f80 }, /* FLT_MAX: infinity */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x80000001, 0x8000 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16, 0x7fc00000, 0xffff },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0x3f800000, 0x3c00 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0x477fefff,
		  0x7bff }, /* just below 65520: 65504 */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0x477ff000, 0x7c00 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0x33000000,
		  0x0000 }, /* 2^-25: half of the smallest */
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0x33000001, 0x0001 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16, 0xff802000, 0xfe01 },
		{ CKPT_DTYPE_F16, CKPT_DTYPE_F32, 0x0001, 0x33800000 }, /* 2^-24 */
		{ CKPT_DTYPE_F16, CKPT_DTYPE_F32, 0xfc00, 0xff800000 },
		{ CKPT_DTYPE_F16, CKPT_DTYPE_F32, 0x7c01, 0x7fc02000 },
		{ CKPT_DTYPE_F16, CKPT_DTYPE_BF16, 0x3555, 0x3eab }, /* a third */
		{ CKPT_DTYPE_F16, CKPT_DTYPE_BF16, 0xfe00, 0x7fc0 },
		{ CKPT_DTYPE_BF16, CKPT_DTYPE_F32, 0x7f81, 0x7f810000 }, /* stays signalling */
		{ CKPT_DTYPE_BF16, CKPT_DTYPE_F16, 0x7f81, 0x7e08 },
		{ CKPT_DTYPE_F64, CKPT_DTYPE_F32, 0x3fb999999999999a, 0x3dcccccd }, /* 0.1 */
		{ CKPT_DTYPE_F64, CKPT_DTYPE_F32, 0x36a0000000000001, 0x00000001 },
		{ CKPT_DTYPE_F64, CKPT_DTYPE_F32, 0xfff0000020000000, 0xffc00001 },
		/* A little above halfway; but the cast goes by way of float32, which loses that. */
		{ CKPT_DTYPE_F64, CKPT_DTYPE_BF16, 0x3ff0100000000001, 0x3f80 },
		{ CKPT_DTYPE_F64, CKPT_DTYPE_F16, 0x3ff0020000000001, 0x3c00 },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		ck_assert_uint_eq(naive(c[i].from, c[i].to, c[i].bits), c[i].want);
		for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
			uint8_t src[8], dst[4];

			set_element(c[i].from, src, 0, c[i].bits);
			runs[r](c[i].from, c[i].to, src, dst, 1);
			ck_assert_uint_eq(element(c[i].to, dst, 0), c[i].want);
		}
	}
}
END_TEST

START_TEST(every_number_of_16_bits)
{
	static struct batch b;

	for (size_t s = 2; s < ARRAY_LEN(sources); s++) {
		b.from = sources[s];
		for (uint32_t u = 0; u <= UINT16_MAX; u++)
			batch_add(&b, u);
		batch_check(&b);
	}
}
END_TEST

static double value(enum ckpt_dtype from, uint64_t bits)
{
	uint32_t u = (uint32_t)naive(from, CKPT_DTYPE_F32, bits);
	float f;

	memcpy(&f, &u, sizeof(f));
	return (double)f;
}

static void add_value_around(struct batch *b32, struct batch *b64, double d)
{
	float f = (float)d;
	uint64_t u64;
	uint32_t u32;

	REQUIRE((double)f == d);
	memcpy(&u32, &f, sizeof(u32));
	memcpy(&u64, &d, sizeof(u64));
	batch_add_around(b32, u32);
	batch_add_around(b64, u64);
}

START_LONG_TEST(around_every_number_of_16_bits_and_every_halfway_point)
{
	static struct batch b32 = { .from = CKPT_DTYPE_F32 }, b64 = { .from = CKPT_DTYPE_F64 };

	for (size_t t = 1; t < ARRAY_LEN(targets); t++) {
		uint64_t infinity = infinity_of(shape_of(targets[t]));
		double step = 0;

		for (uint64_t h = 0; h < infinity; h++) {
			double x = value(targets[t], h);

			if (h + 1 < infinity) /* beyond the largest, the step is the last one */
				step = value(targets[t], h + 1) - x;
			add_value_around(&b32, &b64, x);
			add_value_around(&b32, &b64, x + step / 2);
		}
		batch_add_around(&b32, 0x7f800000);
		batch_add_around(&b64, 0x7ff0000000000000);
	}
	batch_check(&b32);
	batch_check(&b64);
}
END_TEST

START_TEST(random_bits)
{
	static struct batch b;
	struct rng r = rng_new();

	for (size_t s = 0; s < 2; s++) {
		b.from = sources[s];
		for (int i = 0; i < 1000000; i++)
			batch_add(&b, rng_u64(&r));
		batch_check(&b);
	}
}
END_TEST

/* Doubles in the range of the narrower types, or nearly: most random bits are outside it. */
START_TEST(random_doubles_in_range)
{
	static struct batch b = { .from = CKPT_DTYPE_F64 };
	struct rng r = rng_new();

	for (unsigned i = 0; i < rng_rounds(200000, 40000); i++) {
		uint64_t u = naive(CKPT_DTYPE_F32, CKPT_DTYPE_F64, (uint32_t)rng_u64(&r));

		if (rng_chance(&r, 50)) /* about the size of float16 */
			u = (u & 0x800fffffe0000000) | (0x3f1 - 16 + rng_below(&r, 40)) << 52;
		batch_add_around(&b, u);
		batch_add_around(&b, u + (1 << 28)); /* halfway to the next float32 */
	}
	batch_check(&b);
}
END_TEST

START_TEST(any_length_at_any_address_and_nothing_beside_it)
{
	enum { MOST = 70, MARGIN = 64 };
	uint8_t src[8 * MOST + 8], dst[4 * MOST + 2 * MARGIN];
	struct rng r = rng_new();

	for (size_t i = 0; i < sizeof(src); i++)
		src[i] = (uint8_t)rng_u64(&r);
	for (size_t n = 0; n <= MOST; n++) {
		for (size_t i = 0; i < 4 * 3 * ARRAY_LEN(runs); i++) {
			enum ckpt_dtype from = sources[i % 4], to = targets[i / 4 % 3];
			const uint8_t *in = src + rng_below(&r, 8);
			uint8_t *out = dst + MARGIN - rng_below(&r, 8);
			size_t len = n * dtype_info(to)->size;

			memset(dst, 0xa5, sizeof(dst));
			runs[i / 12](from, to, in, out, n);
			compare(from, to, in, out, n);
			for (uint8_t *p = dst; p < dst + sizeof(dst); p++)
				REQUIRE((p >= out && p < out + len) || *p == 0xa5);
		}
	}
}
END_TEST

SUITE(cast, .seconds = 60)

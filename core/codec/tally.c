/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements become doubles (float32 elements are used as they are, for speed). Doubles are sorted by
 * sign and exponent into bins, in which mantissas and their squares are summed as integers.
 * Elements of one or two bytes have so few values that counting each value first is faster. A
 * block's bins are then added to the sums.
 */
#include "codec/tally.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "codec/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	BINS = 4096, /* sign and exponent of a double */
	SIGN = 2048,
	SPECIAL = 2047, /* the exponent of NaN and infinity */
	MANTISSA = 52,
	SUM_UNIT = 1074,     /* bit 0 of the sum is 2^-SUM_UNIT */
	SQUARES_UNIT = 2148, /* the same for the sum of squares */
	STEP = 512,	     /* numbers decoded at once */
	FEW = 256,	     /* for this many numbers, scanning all bins would take longer */
	KINDS = 1 << 16,
	MANY = KINDS / 4, /* for this many elements, scanning all values pays off */

	/* float32: bins of 64 bits, which have room for FLOAT_ROOM elements. */
	FLOAT_BINS = 512,
	FLOAT_MANTISSA = 23,
	FLOAT_COUNT = 44, /* position of the number of elements, above the sum of mantissas */
	FLOAT_ROOM = 1 << 16,
	/* sets of bins, used in turn, because a CPU stalls on a location it has just written */
	LANES = 4,
};

typedef unsigned __int128 wide;

struct bin {
	uint64_t n;
	wide sum, squares; /* of mantissas */
};

struct float_bin {
	uint64_t sum, squares;
};

struct tally_work {
	struct float_bin floats[LANES][FLOAT_BINS];
	struct bin bins[BINS];
	uint32_t kinds[KINDS];
	double values[STEP], rests[STEP];
};

struct tally_work *tally_work_new(void)
{
	return calloc(1, sizeof(struct tally_work));
}

void tally_work_free(struct tally_work *w)
{
	free(w);
}

/* ---- sums ---- */

/* Adds v << bit to the integer of n words, or subtracts it. */
static void add_wide(uint64_t *words, size_t n, unsigned bit, wide v, bool less)
{
	size_t k = bit / 64;
	unsigned shift = bit % 64;
	uint64_t parts[3] = { (uint64_t)(v << shift), (uint64_t)((v << shift) >> 64),
			      shift ? (uint64_t)(v >> (128 - shift)) : 0 };
	bool carry = false;

	for (size_t i = 0; k + i < n && (i < 3 || carry); i++) {
		uint64_t part = i < 3 ? parts[i] : 0, before = words[k + i];
		uint64_t by = part + carry;

		words[k + i] = less ? before - by : before + by;
		/*
		 * If `by` is 0 with a carry, part + carry is 2^64: the word is unchanged, and the
		 * carry remains.
		 */
		carry = (carry && !by) || (less ? before < by : words[k + i] < before);
	}
}

static void add_words(uint64_t *to, const uint64_t *from, size_t n)
{
	bool carry = false;

	for (size_t i = 0; i < n; i++) {
		uint64_t by = from[i] + carry;

		to[i] += by;
		carry = (carry && !by) || to[i] < by;
	}
}

/* Adds a mantissa, or the sum of several, of a bin. */
static void add_mantissas(struct tally *t, size_t part, unsigned bin, wide sum, wide squares)
{
	unsigned exp = bin % SIGN;
	unsigned unit = exp ? exp - 1 : 0; /* the mantissa counts multiples of 2^(unit - 1074) */

	add_wide(t->sum[part], TALLY_SUM_WORDS, unit, sum, bin & SIGN);
	add_wide(t->squares, TALLY_SQUARES_WORDS, 2 * unit, squares, false);
}

static void empty_bins(struct tally *t, struct tally_work *w, size_t part)
{
	for (unsigned i = 0; i < BINS; i++) {
		struct bin *b = &w->bins[i];

		if (!b->n)
			continue;
		if (i % SIGN != SPECIAL)
			add_mantissas(t, part, i, b->sum, b->squares);
		*b = (struct bin){ 0 };
	}
}

/* ---- numbers ---- */

static inline uint64_t bits_of(double v)
{
	uint64_t u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

static inline unsigned bin_of(uint64_t bits)
{
	return (unsigned)(bits >> MANTISSA);
}

static inline uint64_t mantissa_of(uint64_t bits)
{
	uint64_t implied = (uint64_t)(bin_of(bits) % SIGN != 0) << MANTISSA;

	return (bits & ((UINT64_C(1) << MANTISSA) - 1)) | implied;
}

static inline void add_to_bin(struct tally_work *w, double v, uint64_t times)
{
	uint64_t bits = bits_of(v), m = mantissa_of(bits);
	struct bin *b = &w->bins[bin_of(bits)];

	b->n += times;
	b->sum += (wide)m * times;
	b->squares += (wide)m * m * times;
}

/* Updates the extremes with a finite number. */
static inline void extend(struct tally *t, double v, double rest)
{
	if (v < t->min || (v == t->min && rest < t->min_rest)) {
		t->min = v;
		t->min_rest = rest;
	}
	if (v > t->max || (v == t->max && rest > t->max_rest)) {
		t->max = v;
		t->max_rest = rest;
	}
}

/* The smallest normal magnitude; 0: the type has no subnormal numbers. */
static double least_normal(enum ckpt_dtype t)
{
	switch (t) {
	case CKPT_DTYPE_F64:
	case CKPT_DTYPE_C128:
		return 0x1p-1022;
	case CKPT_DTYPE_F32:
	case CKPT_DTYPE_C64:
	case CKPT_DTYPE_BF16:
	case CKPT_DTYPE_BC32:
		return 0x1p-126;
	case CKPT_DTYPE_F16:
	case CKPT_DTYPE_C32:
	case CKPT_DTYPE_F8_E5M2:
		return 0x1p-14;
	case CKPT_DTYPE_F8_E5M2FNUZ:
		return 0x1p-15;
	case CKPT_DTYPE_F8_E4M3FN:
		return 0x1p-6;
	case CKPT_DTYPE_F8_E4M3FNUZ:
		return 0x1p-7;
	case CKPT_DTYPE_F8_E3M4:
		return 0x1p-2;
	case CKPT_DTYPE_F8_E4M3B11FNUZ:
		return 0x1p-10;
	case CKPT_DTYPE_F4_E2M1FN:
		return 1;
	default:
		return 0;
	}
}

static void note_first(uint64_t *first, uint64_t at)
{
	*first = min_u64(*first, at);
}

/* An element of one or two numbers that needs closer inspection. Returns whether it is finite. */
static bool classify(struct tally *t, const double *v, size_t parts, double least, uint64_t at,
		     uint64_t times)
{
	bool nan = false, infinite = false, zero = true, subnormal = false;

	for (size_t k = 0; k < parts; k++) {
		nan |= isnan(v[k]) != 0;
		infinite |= isinf(v[k]) != 0;
		zero &= v[k] == 0;
		subnormal |= v[k] != 0 && fabs(v[k]) < least;
	}
	infinite &= !nan;
	t->nan += nan ? times : 0;
	t->infinite += infinite ? times : 0;
	t->zero += zero ? times : 0;
	t->subnormal += subnormal && !nan && !infinite ? times : 0;
	if (at == UINT64_MAX)
		return !nan && !infinite;
	if (nan)
		note_first(&t->first_nan, at);
	if (infinite)
		note_first(&t->first_infinite, at);
	if (zero)
		note_first(&t->first_zero, at);
	return !nan && !infinite;
}

static bool is_odd(double v, double least)
{
	return !(fabs(v) >= least && fabs(v) <= 0x1.fffffffffffffp+1023) || v == 0;
}

/* ---- blocks ---- */

/* Adds real numbers that a double can hold. */
static void add_values(struct tally *t, struct tally_work *w, const double *v, size_t n,
		       double least, uint64_t at)
{
	double min = t->min, max = t->max;
	bool odd = false;

	for (size_t i = 0; i < n; i++)
		odd |= is_odd(v[i], least);
	if (odd) { /* rare, except for zeros */
		for (size_t i = 0; i < n; i++)
			if (!is_odd(v[i], least) || classify(t, &v[i], 1, least, at + i, 1)) {
				extend(t, v[i], 0);
				add_to_bin(w, v[i], 1);
			}
		return;
	}
	for (size_t i = 0; i < n; i++) {
		min = v[i] < min ? v[i] : min;
		max = v[i] > max ? v[i] : max;
		add_to_bin(w, v[i], 1);
	}
	t->min = min;
	t->max = max;
}

/* At most FLOAT_ROOM elements are in the bins. */
static void empty_floats(struct tally_work *w)
{
	const uint64_t mask = (UINT64_C(1) << FLOAT_COUNT) - 1;
	const unsigned shift = MANTISSA - FLOAT_MANTISSA;

	for (unsigned lane = 0; lane < LANES; lane++)
		for (unsigned i = 0; i < FLOAT_BINS; i++) {
			struct float_bin *f = &w->floats[lane][i];
			/*
			 * There are no zeros and no subnormal numbers here, so only the bias
			 * differs from a double's.
			 */
			unsigned bin = (i & 256 ? SIGN : 0) + (i & 255) + 1023 - 127;

			if (!f->sum)
				continue;
			w->bins[bin].n += f->sum >> FLOAT_COUNT;
			w->bins[bin].sum += (wide)(f->sum & mask) << shift;
			w->bins[bin].squares += (wide)f->squares << 2 * shift;
			*f = (struct float_bin){ 0 };
		}
}

/* The bits of a float32 as an integer with the same order. */
static inline int32_t order_of(uint32_t u)
{
	return (int32_t)(u ^ (u >> 31 ? 0x7fffffffu : 0));
}

static inline double value_of(int32_t order)
{
	uint32_t u = (uint32_t)order ^ (order < 0 ? 0x7fffffffu : 0);
	float f;

	memcpy(&f, &u, sizeof(f));
	return (double)f;
}

/* Are all of STEP float32 normal? If so, *min and *max become the integers of the extremes. */
static bool all_normal(const uint8_t *p, int32_t *min, int32_t *max)
{
	int32_t low = *min, high = *max, odd = 0;

	for (size_t i = 0; i < STEP; i++) {
		uint32_t u = load_le32(p + 4 * i);
		int32_t order = order_of(u);

		/* True for exponents 0 and 255, shifted so that one comparison suffices. */
		odd |= (u & 0x7fffffff) - 0x00800000 >= 0x7f000000;
		low = order < low ? order : low;
		high = order > high ? order : high;
	}
	if (odd)
		return false;
	*min = low;
	*max = high;
	return true;
}

static void add_floats(struct tally *t, struct tally_work *w, const uint8_t *p, size_t n,
		       double least, uint64_t at)
{
	int32_t min = INT32_MAX, max = INT32_MIN;
	size_t room = FLOAT_ROOM;

	for (size_t k; n; n -= k, p += 4 * k, at += k) {
		k = min_u64(n, STEP);
		if (k < STEP || !all_normal(p, &min, &max)) {
			(void)values_decode(CKPT_DTYPE_F32, p, k, w->values, w->rests);
			add_values(t, w, w->values, k, least, at);
			continue;
		}
		if (room < STEP) {
			empty_floats(w);
			room = FLOAT_ROOM;
		}
		room -= STEP;
		for (size_t i = 0; i < STEP; i++) {
			uint32_t u = load_le32(p + 4 * i);
			uint64_t m = (u & 0x7fffff) | 0x800000;
			struct float_bin *f = &w->floats[i % LANES][u >> FLOAT_MANTISSA];

			f->sum += m | UINT64_C(1) << FLOAT_COUNT;
			f->squares += m * m;
		}
	}
	empty_floats(w);
	if (min <= max) {
		extend(t, value_of(min), 0);
		extend(t, value_of(max), 0);
	}
}

/* A complex element counts if both parts are finite. It has no order. */
static void add_complex(struct tally *t, const double *v, size_t n, double least, uint64_t at)
{
	for (size_t i = 0; i < n; i += 2) {
		if (!classify(t, v + i, 2, least, at + i / 2, 1))
			continue;
		for (size_t k = 0; k < 2; k++) {
			uint64_t bits = bits_of(v[i + k]), m = mantissa_of(bits);

			add_mantissas(t, k, bin_of(bits), m, (wide)m * m);
		}
	}
}

/* 64-bit integers: the value is a double and a rest. */
static void add_integers(struct tally *t, enum ckpt_dtype type, const uint8_t *p, size_t n,
			 const double *v, const double *rest, uint64_t at)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t u = load_le64(p + 8 * i);
		bool less = type == CKPT_DTYPE_I64 && u >> 63;

		u = less ? -u : u;
		if (!u) {
			t->zero++;
			note_first(&t->first_zero, at + i);
		}
		extend(t, v[i], rest[i]);
		add_wide(t->sum[0], TALLY_SUM_WORDS, SUM_UNIT, u, less);
		add_wide(t->squares, TALLY_SQUARES_WORDS, SQUARES_UNIT, (wide)u * u, false);
	}
}

/* The number of the first element with this value. */
static uint64_t find_kind(const uint8_t *p, size_t n, size_t size, unsigned kind)
{
	size_t i = 0;

	while (i < n && (size == 1 ? p[i] : load_le16(p + 2 * i)) != kind)
		i++;
	return i;
}

static void count_kinds(struct tally_work *w, const uint8_t *p, size_t n, size_t size)
{
	if (size == 1)
		for (size_t i = 0; i < n; i++)
			w->kinds[p[i]]++;
	else
		for (size_t i = 0; i < n; i++)
			w->kinds[load_le16(p + 2 * i)]++;
}

/* Many elements with few different values: each value times its count. */
static void add_kinds(struct tally *t, struct tally_work *w, enum ckpt_dtype type, const uint8_t *p,
		      size_t n, uint64_t at)
{
	size_t size = dtype_info(type)->size, kinds = size == 1 ? 256 : KINDS;
	double least = least_normal(type);

	count_kinds(w, p, n, size);
	for (unsigned kind = 0; kind < kinds; kind++) {
		uint8_t bytes[2] = { (uint8_t)kind, (uint8_t)(kind >> 8) };
		uint32_t times = w->kinds[kind];
		uint64_t first = UINT64_MAX;
		double v, none = 0;

		if (!times)
			continue;
		w->kinds[kind] = 0;
		(void)values_decode(type, bytes, 1, &v, &none);
		if (!isfinite(v) || v == 0)
			first = at + find_kind(p, n, size, kind);
		if (is_odd(v, least) && !classify(t, &v, 1, least, first, times))
			continue;
		extend(t, v, 0);
		add_to_bin(w, v, times);
	}
}

void tally_add(struct tally *t, struct tally_work *w, enum ckpt_dtype type, const void *from,
	       size_t n, uint64_t at)
{
	size_t parts = values_numbers(type), size = dtype_info(type)->size;
	double least = least_normal(type);
	const uint8_t *p = from;

	t->elements += n;
	t->is_complex = parts == 2;
	if (size <= 2 && n >= (size == 1 ? FEW : MANY)) {
		add_kinds(t, w, type, p, n, at);
		empty_bins(t, w, 0);
		return;
	}
	if (type == CKPT_DTYPE_F32) {
		add_floats(t, w, p, n, least, at);
		empty_bins(t, w, 0);
		return;
	}
	for (size_t k; n; n -= k, p += k * size, at += k) {
		k = min_u64(n, STEP / parts);
		if (values_decode(type, p, k * parts, w->values, w->rests))
			add_integers(t, type, p, k, w->values, w->rests, at);
		else if (parts == 2)
			add_complex(t, w->values, 2 * k, least, at);
		else
			add_values(t, w, w->values, k, least, at);
	}
	empty_bins(t, w, 0);
}

void tally_merge(struct tally *to, const struct tally *from)
{
	to->elements += from->elements;
	to->nan += from->nan;
	to->infinite += from->infinite;
	to->zero += from->zero;
	to->subnormal += from->subnormal;
	note_first(&to->first_nan, from->first_nan);
	note_first(&to->first_infinite, from->first_infinite);
	note_first(&to->first_zero, from->first_zero);
	to->is_complex |= from->is_complex;
	if (from->min <= from->max) {
		extend(to, from->min, from->min_rest);
		extend(to, from->max, from->max_rest);
	}
	for (size_t k = 0; k < 2; k++)
		add_words(to->sum[k], from->sum[k], TALLY_SUM_WORDS);
	add_words(to->squares, from->squares, TALLY_SQUARES_WORDS);
}

/* ---- results ---- */

enum {
	SPREAD_WORDS = 2 * TALLY_SUM_WORDS
}; /* for the square of a sum, and n times the sum of squares */

static bool is_negative(const uint64_t *words, size_t n)
{
	return words[n - 1] >> 63;
}

static void negate(uint64_t *words, size_t n)
{
	bool carry = true;

	for (size_t i = 0; i < n; i++) {
		words[i] = ~words[i] + carry;
		carry = carry && !words[i];
	}
}

/* ret += a * by */
static void add_product(uint64_t *ret, const uint64_t *a, size_t n, uint64_t by)
{
	uint64_t carry = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		wide v = (wide)a[i] * by + ret[i] + carry;

		ret[i] = (uint64_t)v;
		carry = (uint64_t)(v >> 64);
	}
	for (; carry; i++) {
		ret[i] += carry;
		carry = ret[i] < carry;
	}
}

/*
 * words / 2^unit = (hi + lo) * 2^exp, to within 2^-100 of it; hi is the nearest double, 0.5 <= |hi|
 * <= 1.
 */
struct precise {
	double hi, lo;
	int exp;
};

static struct precise precise(const uint64_t *words, size_t n, int unit)
{
	uint64_t w[SPREAD_WORDS], top, next;
	bool negative = is_negative(words, n), more = false;
	struct precise r = { 0 };
	size_t i = n;
	unsigned shift;

	memcpy(w, words, n * sizeof(*w));
	if (negative)
		negate(w, n);
	while (i && !w[i - 1])
		i--;
	if (!i)
		return r;
	/* Take the 128 highest bits; the last one is also set if any lower bit is. */
	shift = (unsigned)__builtin_clzll(w[i - 1]);
	top = w[i - 1] << shift;
	next = i > 1 ? w[i - 2] : 0;
	if (shift) {
		top |= next >> (64 - shift);
		next = next << shift | (i > 2 ? w[i - 3] >> (64 - shift) : 0);
		more = i > 2 && w[i - 3] << shift;
	} else {
		more = i > 2 && w[i - 3];
	}
	for (size_t k = 0; k + 3 < i; k++)
		more |= w[k] != 0;
	/* 64 bits and a remainder, rounded to the 53 bits of a double: 1 << 11 is its last bit. */
	r.exp = (int)i * 64 - (int)shift - unit;
	r.hi = ldexp((double)(top >> 11), -53);
	r.lo = ldexp((double)(top & 0x7ff), -64) + ldexp((double)(next | more), -128);
	if (r.lo > 0x1p-54 || (r.lo == 0x1p-54 && ((next | more) || (top >> 11 & 1)))) {
		r.hi += 0x1p-53;
		r.lo -= 0x1p-53;
	}
	r.hi = negative ? -r.hi : r.hi;
	r.lo = negative ? -r.lo : r.lo;
	return r;
}

/* sqrt(a) / by */
static double root(struct precise a, double by)
{
	bool odd = a.exp % 2 != 0;

	return ldexp(sqrt(odd ? 2 * a.hi : a.hi) / by, (a.exp - odd) / 2);
}

/* a / by */
static double divided(struct precise a, double by)
{
	double q = a.hi / by;

	return ldexp(q + (fma(-q, by, a.hi) + a.lo) / by, a.exp);
}

/*
 * n times the sum of squares minus the square of the sum: n^2 times the variance. Never negative.
 */
static struct precise spread(const struct tally *t, uint64_t n)
{
	uint64_t words[SPREAD_WORDS] = { 0 }, square[SPREAD_WORDS] = { 0 };

	add_product(words, t->squares, TALLY_SQUARES_WORDS, n);
	for (size_t k = 0; k < 2; k++) {
		uint64_t sum[TALLY_SUM_WORDS];

		memcpy(sum, t->sum[k], sizeof(sum));
		if (is_negative(sum, TALLY_SUM_WORDS))
			negate(sum, TALLY_SUM_WORDS);
		for (size_t i = 0; i < TALLY_SUM_WORDS; i++)
			if (sum[i])
				add_product(square + i, sum, TALLY_SUM_WORDS, sum[i]);
	}
	negate(square, SPREAD_WORDS);
	add_words(words, square, SPREAD_WORDS);
	return precise(words, SPREAD_WORDS, SQUARES_UNIT);
}

void tally_values(const struct tally *t, struct ckpt_values *ret)
{
	uint64_t finite = t->elements - t->nan - t->infinite;

	*ret = (struct ckpt_values){ .known = true,
				     .is_complex = t->is_complex,
				     .elements = t->elements,
				     .finite = finite,
				     .nan = t->nan,
				     .infinite = t->infinite,
				     .zero = t->zero,
				     .subnormal = t->subnormal,
				     .first_nan = t->first_nan,
				     .first_infinite = t->first_infinite,
				     .first_zero = t->first_zero };
	if (!finite)
		return;
	if (!t->is_complex) {
		ret->min = t->min;
		ret->min_rest = t->min_rest;
		ret->max = t->max;
		ret->max_rest = t->max_rest;
	}
	for (size_t k = 0; k < 2; k++) {
		struct precise sum = precise(t->sum[k], TALLY_SUM_WORDS, SUM_UNIT);

		ret->sum[k] = ldexp(sum.hi, sum.exp);
		ret->mean[k] = divided(sum, (double)finite);
	}
	ret->norm = root(precise(t->squares, TALLY_SQUARES_WORDS, SQUARES_UNIT), 1);
	ret->std = root(spread(t, finite), (double)finite);
}

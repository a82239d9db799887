/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key of x >= 0 is its float32 pattern without the 16 lowest bits: 0 to 0x7f7f. For x < 0 it is
 * that of -x, rounded up instead of down, and negated: -0x7f80 to -1. Keys are ordered like the
 * numbers. In an array they begin at ZERO.
 */
#include "codec/hist.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "codec/values.h"

#include <math.h>
#include <string.h>

enum {
	ZERO = HIST_KEYS / 2,
	MANTISSA = 7, /* bits in a key */
	INFINITE = 0x7f80,
	LEAST = -133, /* the exponent of the smallest cut above 0 */
	STEP = 512,   /* numbers decoded at once */
};

bool hist_known(enum ckpt_dtype t)
{
	return values_known(t) && values_numbers(t) == 1;
}

/* The lower end of a key's interval. */
static double low_of(int key)
{
	uint32_t u = (uint32_t)(key < 0 ? -key : key) << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	if ((u >> 16) == INFINITE) /* the lower end of the first negative key */
		return -0x1p128;
	return key < 0 ? -(double)f : (double)f;
}

/* ---- counting ---- */

static void count_key(uint32_t *counts, bool negative, uint32_t magnitude, bool more)
{
	int key = negative ? -(int)(magnitude + more) : (int)magnitude;

	if (magnitude < INFINITE)
		counts[ZERO + key]++;
}

static void count_floats(uint32_t *counts, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t u = load_le32(p + 4 * i), magnitude = u & 0x7fffffff;
		int32_t order = (int32_t)magnitude;

		order = u >> 31 ? -order : order;
		if (magnitude < (uint32_t)INFINITE << 16)
			counts[ZERO + (order >> 16)]++; /* rounds down */
	}
}

static void count_bfloats(uint32_t *counts, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned u = load_le16(p + 2 * i);

		count_key(counts, u >> 15, u & 0x7fff, false);
	}
}

static void count_double(uint32_t *counts, double v)
{
	enum { CUT = 52 - MANTISSA, BIAS = (1023 - 127) << MANTISSA };
	uint64_t bits, magnitude;
	double scaled;

	memcpy(&bits, &v, sizeof(bits));
	magnitude = bits & ~(UINT64_C(1) << 63);
	if (magnitude >> CUT >=
	    BIAS + (1 << MANTISSA)) { /* a normal float32, or too large for one */
		uint64_t key = (magnitude >> CUT) - BIAS;

		count_key(counts, bits >> 63, (uint32_t)min_u64(key, INFINITE),
			  magnitude & ((UINT64_C(1) << CUT) - 1));
		return;
	}
	scaled = ldexp(fabs(v), -LEAST);
	count_key(counts, v < 0, (uint32_t)scaled, scaled != floor(scaled));
}

/* Uses all digits, some of which a double might have lost. */
static void count_integers(uint32_t *counts, enum ckpt_dtype t, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t u = load_le64(p + 8 * i);
		bool negative = t == CKPT_DTYPE_I64 && u >> 63;
		unsigned bits;

		u = negative ? -u : u;
		bits = u ? 64 - (unsigned)__builtin_clzll(u) : 0;
		if (bits > 53) { /* of the lowest bits, keep only whether any are set */
			unsigned rest = bits - 53;
			bool lost = u & ((UINT64_C(1) << rest) - 1);

			u = (u >> rest | lost) << rest;
		}
		count_double(counts, negative ? -(double)u : (double)u);
	}
}

void hist_count(uint32_t *counts, enum ckpt_dtype t, const void *from, size_t n)
{
	size_t size = dtype_info(t)->size;
	const uint8_t *p = from;
	double v[STEP], rest[STEP];

	if (t == CKPT_DTYPE_F32) {
		count_floats(counts, p, n);
	} else if (t == CKPT_DTYPE_BF16) {
		count_bfloats(counts, p, n);
	} else if (t == CKPT_DTYPE_I64 || t == CKPT_DTYPE_U64) {
		count_integers(counts, t, p, n);
	} else {
		for (size_t k; n; n -= k, p += k * size) {
			k = min_u64(n, STEP);
			(void)values_decode(t, p, k, v, rest);
			for (size_t i = 0; i < k; i++)
				count_double(counts, v[i]);
		}
	}
}

size_t hist_take(uint32_t *counts, struct hist_entry *ret)
{
	enum { LOOK = 16 }; /* keys examined at once, most of which have no count */
	size_t n = 0;

	for (unsigned from = 0; from < HIST_KEYS; from += LOOK) {
		uint32_t any = 0;

		for (unsigned i = 0; i < LOOK; i++)
			any |= counts[from + i];
		for (unsigned i = 0; any && i < LOOK; i++) {
			if (counts[from + i])
				ret[n++] = (struct hist_entry){ counts[from + i],
								(uint16_t)(from + i) };
			counts[from + i] = 0;
		}
	}
	return n;
}

void hist_init(struct hist *h)
{
	if (h->first <= h->last)
		memset(h->counts + h->first, 0, (h->last - h->first + 1) * sizeof(*h->counts));
	h->first = HIST_KEYS;
	h->last = 0;
}

void hist_add_key(struct hist *h, unsigned key, uint64_t n)
{
	h->counts[key] += n;
	h->first = key < h->first ? key : h->first;
	h->last = key > h->last ? key : h->last;
}

void hist_add(struct hist *h, const struct hist_entry *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hist_add_key(h, v[i].key, v[i].count);
}

void hist_merge(struct hist *to, const struct hist *from)
{
	for (unsigned key = from->first; key <= from->last; key++)
		if (from->counts[key])
			hist_add_key(to, key, from->counts[key]);
}

/* ---- bins ---- */

/*
 * The exponent of the power of two at or below the numbers of such a key; subnormal keys are alike.
 */
static int exponent_of(int magnitude)
{
	int exp = magnitude >> MANTISSA;

	return (exp ? exp : 1) - 127;
}

void hist_linear(const struct hist *h, size_t max, struct hist_bins *ret)
{
	int first = (int)h->first - ZERO, last = (int)h->last - ZERO, unit;
	double low;

	memset(ret, 0, sizeof(*ret));
	if (first > last)
		return;
	/*
	 * Distance between cuts at the greatest magnitude. A negative key's magnitude is that of
	 * the key above.
	 */
	unit = exponent_of(-first - 1 > last ? -first - 1 : last) - MANTISSA;
	while (floor(ldexp(low_of(last), -unit)) - floor(ldexp(low_of(first), -unit)) >=
	       (double)max)
		unit++;
	low = floor(ldexp(low_of(first), -unit));
	for (int key = first; key <= last; key++) {
		size_t at;

		if (!h->counts[ZERO + key])
			continue;
		at = (size_t)(floor(ldexp(low_of(key), -unit)) - low);
		ret->counts[at] += h->counts[ZERO + key];
		ret->n = at + 1;
	}
	for (size_t i = 0; i <= ret->n; i++)
		ret->edges[i] = ldexp(low + (double)i, unit);
}

/*
 * The power of two whose bin a key belongs to: a positive one begins at 2^k, a negative one ends at
 * -2^k.
 */
static int octave_of(int key)
{
	int magnitude = key < 0 ? -key - 1 : key;

	for (int exp = LEAST; exp < -126;
	     exp++) /* subnormal: a power has 1 << (exp - LEAST) keys */
		if (magnitude < 1 << (exp - LEAST + 1))
			return magnitude ? exp : LEAST - 1;
	return exponent_of(magnitude);
}

void hist_log(const struct hist *h, size_t max, struct hist_bins *ret)
{
	int first = (int)h->first - ZERO, last = (int)h->last - ZERO, least = 128;
	int below = LEAST - 1, above = LEAST - 1, from;
	size_t sides, middle;

	memset(ret, 0, sizeof(*ret));
	if (first > last)
		return;
	for (int key = first; key <= last; key++) {
		int octave = h->counts[ZERO + key] ? octave_of(key) : LEAST - 1;

		if (octave < LEAST)
			continue;
		least = octave < least ? octave : least;
		if (key < 0)
			below = octave > below ? octave : below;
		else
			above = octave > above ? octave : above;
	}
	least = least == 128 ? LEAST : least; /* only zeros and the smallest magnitudes */
	sides = (size_t)(below >= LEAST) + (above >= LEAST);
	from = (below > above ? below : above) + 1 - (int)((max - 1) / (sides ? sides : 1));
	from = from > least ? from : least;
	/* The middle bin is [-2^from, 2^from); count the bins on each side. */
	middle = below >= from ? (size_t)(below + 1 - from) : 0;
	ret->n = middle + 1 + (above >= from ? (size_t)(above + 1 - from) : 0);
	for (size_t i = 0; i <= ret->n; i++)
		ret->edges[i] = i <= middle ? -ldexp(1, from + (int)(middle - i))
					    : ldexp(1, from + (int)(i - middle - 1));
	for (int key = first; key <= last; key++) {
		int octave;
		size_t away;

		if (!h->counts[ZERO + key])
			continue;
		octave = octave_of(key);
		away = octave >= from ? (size_t)(octave - from + 1) : 0;
		ret->counts[key < 0 ? middle - away : middle + away] += h->counts[ZERO + key];
	}
}

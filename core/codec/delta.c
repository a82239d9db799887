/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of elements that fit the innermost cache are decoded to doubles and compared: tiles without
 * NaN and infinity by vectors, the others one by one. The order of all sums depends only on the
 * blocks that the caller passes, not on the machine's vector length.
 */
#include "codec/delta.h"

#include "base/checked.h"
#include "codec/heat.h"
#include "codec/values.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { TILE = 512 /* numbers */, LANES = 2 };

/* Squares of doubles between these, and their sums, are exact enough as doubles. */
#define LARGE 0x1p450
#define SMALL 0x1p-450

typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));
typedef int64_t mask __attribute__((vector_size(LANES * sizeof(int64_t))));

/* One side of a tile. */
struct numbers {
	union {
		lanes lanes[TILE / LANES];
		double v[TILE];
	};
	double rest[TILE];
	bool has_rest;
};

bool delta_numeric(enum ckpt_dtype a, enum ckpt_dtype b)
{
	return values_known(a) && values_known(b) && values_numbers(a) == values_numbers(b);
}

/* ---- bytes ---- */

/* Counts the elements of a tile whose bytes differ. */
#define COUNT_CHANGED(name, type) \
	static unsigned name(const uint8_t *restrict a, const uint8_t *restrict b, size_t n) \
	{ \
		unsigned changed = 0; \
\
		for (; n >= 16; n -= 16, a += 16 * sizeof(type), b += 16 * sizeof(type)) { \
			type x[16], y[16]; \
\
			memcpy(x, a, sizeof(x)); \
			memcpy(y, b, sizeof(y)); \
			for (size_t i = 0; i < 16; i++) \
				changed += x[i] != y[i]; \
		} \
		for (size_t i = 0; i < n * sizeof(type); i += sizeof(type)) \
			changed += memcmp(a + i, b + i, sizeof(type)) != 0; \
		return changed; \
	}

COUNT_CHANGED(changed_1, uint8_t)
COUNT_CHANGED(changed_2, uint16_t)
COUNT_CHANGED(changed_4, uint32_t)
COUNT_CHANGED(changed_8, uint64_t)
COUNT_CHANGED(changed_16, unsigned __int128)

static unsigned changed_bytes(const uint8_t *a, const uint8_t *b, size_t n, size_t size)
{
	switch (size) {
	case 1:
		return changed_1(a, b, n);
	case 2:
		return changed_2(a, b, n);
	case 4:
		return changed_4(a, b, n);
	case 8:
		return changed_8(a, b, n);
	default:
		return changed_16(a, b, n);
	}
}

/* ---- numbers ---- */

/* Neumaier's sum. */
static void add_squares(struct delta *d, double squares)
{
	double sum = d->squares + squares;

	d->squares_rest +=
		d->squares >= squares ? (d->squares - sum) + squares : (squares - sum) + d->squares;
	d->squares = sum;
}

static void add_square(struct delta *d, double x)
{
	if (x > LARGE)
		d->large += (x * 0x1p-600) * (x * 0x1p-600);
	else if (x < SMALL)
		d->small += (x * 0x1p600) * (x * 0x1p600);
	else
		add_squares(d, x * x);
}

double delta_norm(const struct delta *d)
{
	double squares = d->squares + d->squares_rest;

	if (d->large > 0)
		return sqrt(d->large + squares * 0x1p-600 * 0x1p-600) * 0x1p600;
	if (d->small > 0 && squares < 0x1p-900)
		return sqrt(d->small + squares * 0x1p600 * 0x1p600) * 0x1p-600;
	return sqrt(squares);
}

/*
 * A whole tile of reals. False, and nothing is counted, if an element is not finite (or a
 * difference exceeds double, or add_square has to treat large or small ones separately).
 */
static bool add_finite(struct delta *d, const struct numbers *a, const struct numbers *b,
		       unsigned *unequal)
{
	lanes sum = { 0 }, squares = { 0 }, max = { 0 }, limit = (lanes){ 0 } + DBL_MAX;
	mask ok = { -1, -1 }, equal = { 0 };

	for (size_t i = 0; i < TILE / LANES; i++) {
		lanes x = a->lanes[i] - b->lanes[i];
		mask greater;

		x = (lanes)((mask)x & INT64_MAX); /* drops the sign */
		ok &= x <= limit;
		sum += x;
		squares += x * x;
		greater = x > max;
		max = (lanes)(((mask)x & greater) | ((mask)max & ~greater));
		equal -= x == 0;
	}
	if (!(ok[0] & ok[1]))
		return false;
	for (size_t i = 0; i < LANES; i++)
		if (max[i] > LARGE || (max[i] > 0 && max[i] < SMALL))
			return false;
	for (size_t i = 0; i < LANES; i++) {
		d->sum += sum[i];
		add_squares(d, squares[i]);
		d->max = max[i] > d->max ? max[i] : d->max;
	}
	d->finite += TILE;
	*unequal = (unsigned)(TILE - (equal[0] + equal[1]));
	return true;
}

/* The element of `parts` numbers that begins at number i. Returns whether the values differ. */
static bool add_one(struct delta *d, const struct numbers *a, const struct numbers *b, size_t i,
		    size_t parts)
{
	bool nan_a = false, nan_b = false, finite = true, equal = true;
	double x = 0;

	for (size_t k = i; k < i + parts; k++) {
		double va = a->v[k], vb = b->v[k];
		double ra = a->has_rest ? a->rest[k] : 0;
		double rb = b->has_rest ? b->rest[k] : 0;

		nan_a |= isnan(va);
		nan_b |= isnan(vb);
		finite &= isfinite(va) && isfinite(vb);
		equal &= va == vb && ra == rb;
		x = k > i ? hypot(x, va - vb) : fabs((va - vb) + (ra - rb));
	}
	d->nan_a += nan_a;
	d->nan_b += nan_b;
	if (finite) {
		d->finite++;
		d->sum += x;
		add_square(d, x);
		d->max = x > d->max ? x : d->max;
	}
	equal |= nan_a && nan_b;
	d->infinite += !equal && !finite && !nan_a && !nan_b;
	return !equal;
}

/* Values of n elements; returns how many are unequal. */
static unsigned add_numbers(struct delta *d, const struct numbers *a, const struct numbers *b,
			    size_t n, size_t parts)
{
	unsigned unequal = 0;

	if (parts == 1 && n == TILE && !a->has_rest && !b->has_rest &&
	    add_finite(d, a, b, &unequal))
		return unequal;
	for (size_t i = 0; i < n; i++)
		unequal += add_one(d, a, b, i * parts, parts);
	return unequal;
}

static void decode(enum ckpt_dtype t, const uint8_t *from, size_t n, struct numbers *ret)
{
	ret->has_rest = values_decode(t, from, n, ret->v, ret->rest);
}

/* Where changes are noted; heat is NULL: nowhere. */
struct place {
	const struct heat *heat;
	float *cells;
	uint64_t at;
};

/* Subtracts the whole numbers: the doubles of two 64-bit integers may be equal though these are
 * not. */
static void join_rest(struct numbers *x, const struct numbers *y, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double a = x->has_rest ? x->rest[i] : 0, b = y->has_rest ? y->rest[i] : 0;

		x->v[i] = (x->v[i] - y->v[i]) + (a - b);
	}
}

static void add_heat(const struct place *p, struct numbers *a, struct numbers *b, size_t n)
{
	static const double zeros[TILE];

	if (a->has_rest || b->has_rest) {
		join_rest(b, a, n);
		heat_add(p->heat, p->cells, p->at, zeros, b->v, n);
	} else {
		heat_add(p->heat, p->cells, p->at, a->v, b->v, n);
	}
}

static void add_tile(struct delta *d, enum ckpt_dtype a_type, const uint8_t *a,
		     enum ckpt_dtype b_type, const uint8_t *b, size_t n, const struct place *p)
{
	size_t parts = values_numbers(a_type), size = dtype_info(a_type)->size;
	bool same_type = a_type == b_type, same = same_type && !memcmp(a, b, n * size);
	struct numbers x, y;
	unsigned unequal;

	if (same_type && !same)
		d->changed += changed_bytes(a, b, n, size);
	if (!delta_numeric(a_type, b_type))
		return;
	if (same && dtype_info(a_type)->is_integer) {
		d->finite += n;
		return;
	}
	decode(a_type, a, n * parts, &x);
	if (!same)
		decode(b_type, b, n * parts, &y);
	unequal = add_numbers(d, &x, same ? &x : &y, n, parts);
	if (!same_type)
		d->changed += unequal;
	if (p->heat && !same)
		add_heat(p, &x, &y, n);
}

static void add(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
		const void *b, size_t n, struct place p)
{
	size_t a_size = dtype_info(a_type)->size, b_size = dtype_info(b_type)->size;
	size_t step = TILE / values_numbers(a_type);
	const uint8_t *pa = a, *pb = b;

	d->elements += n;
	for (size_t i = 0; i < n; i += step, p.at += step)
		add_tile(d, a_type, pa + i * a_size, b_type, pb + i * b_size,
			 (size_t)min_u64(n - i, step), &p);
}

void delta_add(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
	       const void *b, size_t n)
{
	add(d, a_type, a, b_type, b, n, (struct place){ 0 });
}

void delta_add_heat(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
		    const void *b, size_t n, const struct heat *h, float *cells, uint64_t at)
{
	add(d, a_type, a, b_type, b, n, (struct place){ h, cells, at });
}

void delta_merge(struct delta *to, const struct delta *from)
{
	to->elements += from->elements;
	to->changed += from->changed;
	to->nan_a += from->nan_a;
	to->nan_b += from->nan_b;
	to->infinite += from->infinite;
	to->finite += from->finite;
	to->sum += from->sum;
	add_squares(to, from->squares);
	to->squares_rest += from->squares_rest;
	to->large += from->large;
	to->small += from->small;
	to->max = from->max > to->max ? from->max : to->max;
}

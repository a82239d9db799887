/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta - how much the elements of two blocks differ.
 *
 *	struct delta d = {0};
 *	delta_add(&d, CKPT_DTYPE_F32, a, CKPT_DTYPE_F32, b, n);    // block by block
 *	mean = d.finite ? d.sum / d.finite : NAN;
 *
 * Threads: pure.
 */
#ifndef CODEC_DELTA_H
#define CODEC_DELTA_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct delta {
	uint64_t elements;
	/* With one dtype: their bytes differ. With two: their values do; all NaNs are then equal,
	 * and so are 0 and -0. */
	uint64_t changed;
	uint64_t nan_a, nan_b; /* elements that are NaN, or have a NaN part */
	uint64_t infinite; /* changed elements without NaN that are infinite on one or both sides */
	uint64_t finite;   /* pairs of finite elements, over which max and sum are taken */
	double max, sum;   /* absolute differences; for complex elements the modulus */
	/*
	 * The sum of the squared differences, and its rounding error: together they are within
	 * 2^-40 of the exact sum.
	 */
	double squares, squares_rest;
	/* Squares that a double cannot hold: sums of those of x 2^-600, and of x 2^600. */
	double large, small;
};

/* Can they be compared by value: numbers of known meaning, both real or both complex? */
bool delta_numeric(enum ckpt_dtype a, enum ckpt_dtype b);

/* n elements on each side. If they are not numeric, a == b, and only `changed` is counted. */
void delta_add(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
	       const void *b, size_t n);
/*
 * The same for elements from number `at` on, whose changes are also added to cells (heat.h).
 * Requires numeric types that are not complex.
 */
struct heat;
void delta_add_heat(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
		    const void *b, size_t n, const struct heat *h, float *cells, uint64_t at);
double delta_norm(const struct delta *d); /* the square root of the sum of all squares */
void delta_merge(struct delta *to, const struct delta *from);

#endif

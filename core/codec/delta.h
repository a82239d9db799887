/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delta - how far apart the elements of two blocks are.
 *
 *	struct delta d = {0};
 *	delta_add(&d, CKPT_DTYPE_F32, a, CKPT_DTYPE_F32, b, n);    // block after block
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
	uint64_t nan_a, nan_b; /* elements that are NaN, or have a part that is */
	uint64_t infinite;     /* changed ones without NaN, infinite on one or both sides */
	uint64_t finite;       /* pairs of finite elements, over which max and sum are taken */
	double max, sum;       /* absolute differences; of complex elements the modulus */
	/* Of their squares the sum, and what rounding took from it: the sum of both is off by 2^-40 of
	 * it at most, or infinite. */
	double squares, squares_rest;
};

/* Can they be compared by value: numbers of known meaning, both real or both complex? */
bool delta_numeric(enum ckpt_dtype a, enum ckpt_dtype b);

/* n elements on each side. If they are not numeric, a == b, and only `changed` is counted. */
void delta_add(struct delta *d, enum ckpt_dtype a_type, const void *a, enum ckpt_dtype b_type,
	       const void *b, size_t n);
double delta_squares(const struct delta *d);
void delta_merge(struct delta *to, const struct delta *from);

#endif

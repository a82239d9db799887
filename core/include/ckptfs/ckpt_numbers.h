/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_numbers - statistics of elements, as ckpt_values.h reports them.
 */
#ifndef CKPTFS_CKPT_NUMBERS_H
#define CKPTFS_CKPT_NUMBERS_H

#include "ckpt_base.h"

#include <stdbool.h>
#include <stdint.h>

CKPT_BEGIN

/* NaN and infinities are counted and left out of all else. */
struct ckpt_values {
	bool known;	 /* false: bytes of a dtype that are no numbers by themselves; all else 0 */
	bool is_complex; /* a complex element is NaN, or infinite, when a part is; it has no min, max */
	uint64_t elements, finite, nan, infinite, zero, subnormal;
	/* Numbers, in row-major order, of the first elements that are so; UINT64_MAX: none. */
	uint64_t first_nan, first_infinite, first_zero;
	/* Where finite > 0: */
	double min,
		min_rest; /* the number is the sum of both; of integers of 64 bits the rest may not be 0 */
	double max, max_rest;
	double sum[2], mean[2]; /* real part, imaginary part */
	double std;  /* of the population, as NumPy's; of complex elements the root of the mean
				   squared distance from the mean */
	double norm; /* L2 */
};

CKPT_END

#endif

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

/* NaN and infinities are counted, and excluded from all other members. */
struct ckpt_values {
	/* false: the dtype's bytes are not numbers by themselves; all other members are 0 */
	bool known;
	/*
	 * a complex element is NaN if one of its parts is, else infinite if one is; there are no
	 * min and max
	 */
	bool is_complex;
	uint64_t elements, finite, nan, infinite, zero, subnormal;
	/* Indices, in row-major order, of the first such elements; UINT64_MAX: there is none. */
	uint64_t first_nan, first_infinite, first_zero;
	/*
	 * Valid if finite > 0. The minimum is min + min_rest, the maximum max + max_rest; the rests
	 * are 0 except for 64-bit integers.
	 */
	double min, min_rest;
	double max, max_rest;
	double sum[2], mean[2]; /* real part, imaginary part */
	/*
	 * of the population, as in NumPy; for complex elements: root of the mean squared distance
	 * from the mean
	 */
	double std;
	double norm; /* L2 */
};

CKPT_END

#endif

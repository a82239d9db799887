/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally - statistics of elements: counts, extremes, and exact sums.
 *
 *	struct tally t = TALLY_INIT;
 *	struct tally_work *w = tally_work_new();		// one per thread
 *	tally_add(&t, w, CKPT_DTYPE_F32, block, n, 0);		// block by block, in any order
 *	tally_merge(&t, &of_another_thread);
 *	tally_values(&t, &result);
 *
 * A sum is an integer: a multiple of the smallest double (for squares, of its square), with room
 * for 2^64 of the greatest. Adding to it loses nothing, so the result does not depend on the order,
 * on the blocks or on the number of threads. It is rounded once, at the end.
 *
 * The variance is computed from the exact sums too, so it is accurate even for a small spread about
 * a large mean. The sum is the double nearest to the exact one; mean, norm and std are within 1
 * ulp.
 *
 * NaN and infinities are counted, and excluded from everything else.
 *
 * Threads: a tally and a work belong to one thread at a time.
 */
#ifndef CODEC_TALLY_H
#define CODEC_TALLY_H

#include "model/dtype.h"
#include <ckptfs/ckpt_numbers.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TALLY_SUM_WORDS = 35,	  /* bit 0 is 2^-1074; 2^1024 * 2^64 and a sign */
	TALLY_SQUARES_WORDS = 67, /* bit 0 is 2^-2148; 2^2048 * 2^64 */
	TALLY_MAX_BLOCK = 1 << 21 /* elements whose squares fit the bins */
};

struct tally {
	uint64_t elements, nan, infinite, zero, subnormal;
	uint64_t first_nan, first_infinite, first_zero; /* UINT64_MAX: none */
	bool is_complex;
	/* Finite elements: the extremes are value + rest. min > max: there are none. */
	double min, min_rest, max, max_rest;
	uint64_t sum[2][TALLY_SUM_WORDS]; /* real parts, imaginary parts; two's complement */
	uint64_t squares[TALLY_SQUARES_WORDS];
};
#define TALLY_INIT \
	{ \
		.first_nan = UINT64_MAX, .first_infinite = UINT64_MAX, .first_zero = UINT64_MAX, \
		.min = (double)INFINITY, .max = -(double)INFINITY \
	}

struct tally_work;
struct tally_work *tally_work_new(void); /* NULL: out of memory */
void tally_work_free(struct tally_work *w);

/*
 * Adds n <= TALLY_MAX_BLOCK elements of the tensor, from number `at` on; values_known(type) must
 * hold.
 */
void tally_add(struct tally *t, struct tally_work *w, enum ckpt_dtype type, const void *from,
	       size_t n, uint64_t at);
/* The tallies may be of one tensor or of several; for several, first_* are meaningless. */
void tally_merge(struct tally *to, const struct tally *from);
void tally_values(const struct tally *t, struct ckpt_values *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arith - one operation with a number on every element, bit for bit as NumPy does it.
 *
 *	struct arith a = { ARITH_TIMES, sqrtf(128) };
 *
 *	if (arith_possible(CKPT_DTYPE_BF16))
 *		arith_run(CKPT_DTYPE_BF16, a, elements, n);
 *
 * The element becomes float32, the operation is one of float32, and the result is rounded to the
 * element's type: to nearest, ties to even; what is too large becomes infinity. That is what
 * (x.astype("float32") * numpy.float32(c)).astype(x.dtype) is, and what x * c is where c is a
 * Python number that the type holds exactly. float64 stays float64 throughout, as in NumPy.
 *
 * NaNs stay NaNs, with their sign. Those of float16, float32 and float64 keep their payload and
 * become quiet; bfloat16 has 0x7fc0 and 0xffc0 only, as ml_dtypes makes it (and not torch: see
 * cast.h).
 *
 * ARITH_MINUS_EXP is -torch.exp(x), NaNs with the other sign, as torch computes it on CPUs with
 * AVX2: not the nearest float32 but one of the two around the result (in about one of ten cases the
 * one further away), and the same on every CPU here. Without AVX2 torch calls the C library, whose
 * results differ as often. For float64 it is minus that library's exp.
 *
 * Threads: pure.
 */
#ifndef CODEC_ARITH_H
#define CODEC_ARITH_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arith_op { ARITH_NONE, ARITH_TIMES, ARITH_OVER, ARITH_PLUS, ARITH_MINUS_EXP };

struct arith {
	uint8_t op;   /* enum arith_op */
	float number; /* finite, not 0; but 0 for ARITH_MINUS_EXP, which has none */
};

/* float16, bfloat16, float32, float64 */
bool arith_possible(enum ckpt_dtype type);
bool arith_equal(struct arith a, struct arith b);
/* In place: n elements, little-endian, no alignment needed. ARITH_NONE changes nothing. Requires
 * arith_possible. */
void arith_run(enum ckpt_dtype type, struct arith a, void *elements, size_t n);

#endif

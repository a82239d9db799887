/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values - elements of every numeric dtype as doubles.
 *
 * Exact for all of them. A 64-bit integer becomes a sum of two doubles: the nearest one and its
 * error. A complex element is two numbers, real part first. bool is 0, or 1 for any other byte.
 *
 * Formats: IEEE 754 binary16/32/64; bfloat16 (the upper half of binary32); "FP8 Formats for Deep
 * Learning" (arXiv 2209.05433) for e4m3fn and e5m2; the fnuz types as in LLVM's APFloat (Graphcore,
 * AMD): bias one greater, 0x80 the only NaN, no infinities, no -0; e8m0fnu of the OCP Microscaling
 * specification 1.0: a power of two, 0xff NaN, no zero. From ml_dtypes: e3m4, in the manner of IEEE
 * 754, bias 3; e4m3b11fnuz, as the other fnuz types, bias 11; and e2m1fn (OCP), int4 and int2,
 * which are in the low bits of a byte whose other bits are ignored.
 *
 * Threads: pure.
 */
#ifndef CODEC_VALUES_H
#define CODEC_VALUES_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * False for packed, quantised and bits types, whose bytes are not numbers, or not without a scale.
 */
bool values_known(enum ckpt_dtype t);
/* Numbers per element: 1, or 2 for complex types. */
size_t values_numbers(enum ckpt_dtype t);

/*
 * n numbers at `from` (stored little-endian, aligned or not), as doubles. Returns whether *rest was
 * written too, as for 64-bit integers: number i is then exactly ret[i] + rest[i], and two numbers
 * are equal if both parts are. Requires values_known(t); nothing may overlap.
 */
bool values_decode(enum ckpt_dtype t, const void *from, size_t n, double *ret, double *rest);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values - elements of every numeric dtype as doubles.
 *
 * Exact for all of them. A 64-bit integer is a sum of two doubles: the nearest one, and what that
 * is off by. A complex element is two numbers, real part first. bool is 0, or 1 for any other byte.
 *
 * Formats: IEEE 754 binary16/32/64; bfloat16 (the upper half of binary32); "FP8 Formats for Deep
 * Learning" (arXiv 2209.05433) for e4m3fn and e5m2; the fnuz ones as GraphCore, AMD and LLVM's
 * APFloat have them: bias one greater, 0x80 the only NaN, no infinities, no -0; e8m0fnu of the OCP
 * Microscaling specification 1.0: a power of two, 0xff NaN, no zero.
 *
 * Threads: pure.
 */
#ifndef CODEC_VALUES_H
#define CODEC_VALUES_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* Not packed, quantised and bits types: their bytes are no numbers, or none without a scale. */
bool values_known(enum ckpt_dtype t);
/* Of an element: 1, 2 for complex. */
size_t values_numbers(enum ckpt_dtype t);

/*
 * n numbers at `from` (stored little-endian, aligned or not), as doubles. Returns whether *rest was
 * written too, which is so for 64-bit integers: number i is then exactly ret[i] + rest[i], and
 * two numbers are equal when both parts are. values_known(t) holds; nothing overlaps.
 */
bool values_decode(enum ckpt_dtype t, const void *from, size_t n, double *ret, double *rest);

#endif

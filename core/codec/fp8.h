/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8 - codes of float8_e4m3fn for weights, bit for bit as the programs that quantise them compute,
 * and back.
 *
 * A number between -448 and 448 gets the nearest code, ties to even; numbers beyond get that of
 * -448 or 448, and NaN 0x7f or 0xff.
 *
 * Threads: pure.
 */
#ifndef CODEC_FP8_H
#define CODEC_FP8_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

#define FP8_MAX 448.0f

/* The largest of `most`, which is not negative, and all magnitudes; NaN if one of them is NaN. */
float fp8_amax(float most, const float *x, size_t n);
/* Codes of x / scale, where the quotient is first rounded to dtype (float32, float16 or
 * bfloat16). */
void fp8_divide(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes, size_t n);
/* Codes of x * scale, in float32. */
void fp8_multiply(const float *x, float scale, uint8_t *codes, size_t n);
/* x[i] = the value of codes[i] (codes.h) * scale */
void fp8_scale(const uint8_t *codes, float scale, float *x, size_t n);

#endif

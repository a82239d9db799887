/* SPDX-License-Identifier: Apache-2.0 */
/*
 * q8_0 - ggml's Q8_0, bit for bit as quantize_row_q8_0_ref in ggml-quants.c makes it.
 *
 * A block is 32 elements: a float16 scale d, then 32 signed bytes q, and an element is d * q. d =
 * max |x| / 127 in float32, q = x * (1 / d) rounded half away from zero, with d before it is
 * rounded to float16. A NaN or an infinity in a block makes quotients that do not fit a byte; ggml
 * leaves the result undefined, here it is 0.
 *
 * Threads: pure.
 */
#ifndef CODEC_Q8_0_H
#define CODEC_Q8_0_H

#include <stddef.h>

enum { Q8_0_ELEMENTS = 32, Q8_0_BYTES = 34 };

/* n blocks from n * 32 little-endian float32; no alignment needed, no overlap allowed. */
void q8_0_run(const void *src, void *dst, size_t n);

#endif

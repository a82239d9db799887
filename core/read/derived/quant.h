/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant - weights as codes of float8_e4m3fn and scales, as derived tensors.
 *
 *	maxima   m, the largest magnitude of each row or block, in float32; NaN if one is
 *	         input 0: the weight, a matrix in float32, float16 or bfloat16, the dtype D
 *	scales   input 0: the maxima
 *	codes    input 0: the weight; input 1: the maxima
 *
 * By rows, as compressed-tensors: the scale, [rows, 1], is D(m / 448), or the epsilon of D if that
 * is 0; the code is e4m3(D(w / scale)).
 *
 * By blocks of 128 x 128, of which the last of a row or column may be smaller, as Fp8Quantize of
 * transformers: s = (1 / m) * 448, or 1 unless m > 0; the code is e4m3(w * s), and the scale 1 / s,
 * all in float32.
 *
 * tests/torch/quantise.py compares the bytes.
 *
 * Threads: see derived.h.
 */
#ifndef READ_QUANT_H
#define READ_QUANT_H

#include "read/derived.h"

enum { QUANTISE_BLOCK = 128 };

struct quantise {
	enum quantise_by { QUANTISE_ROWS, QUANTISE_BLOCKS } by;
	enum ckpt_dtype dtype; /* of the weight */
	uint64_t rows, columns;
};

enum ckpt_dtype quantise_scale_dtype(const struct quantise *q);
/* The shape of the scales, and of the maxima. */
void quantise_scale_shape(const struct quantise *q, uint64_t ret[static 2]);
/* For derived.shift of both, whose elements have `size` bytes: those that are computed at once need
 * 512 KiB of a bfloat16 weight, or one row. */
uint8_t quantise_scale_shift(const struct quantise *q, size_t size);

/* For derived.run; how is a struct quantise, and the weight is not empty. */
derived_fn quantise_maxima_run, quantise_scales_run, quantise_codes_run;

#endif

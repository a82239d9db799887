/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks_decode - the float32 that ggml's blocks stand for, bit for bit as its dequantize_row_*,
 * except that a NaN may be another one. All types that GGUF files have are known, except Q8_1,
 * which is for activations only, Q1_0 and Q2_0.
 *
 * Source: ggml/src/ggml-quants.c (0.27).
 * Threads: pure.
 */
#ifndef CODEC_BLOCKS_DECODE_H
#define CODEC_BLOCKS_DECODE_H

#include "model/ggml.h"

#include <stddef.h>

/* n blocks to float32; src needs no alignment. */
typedef void block_decode_fn(const void *src, float *dst, size_t n);

/* NULL: the type does not consist of blocks, or is not known here. */
block_decode_fn *block_decoder(enum ggml_type type);

#endif

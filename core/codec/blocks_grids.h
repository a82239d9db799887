/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks_grids - the vectors that the codes of ggml's types IQ1, IQ2 and IQ3 stand for.
 *
 * A vector has 8 elements of 2 bits, or 4 elements of 4 bits, lowest first; an element is the index
 * of one of the values below. Private to core/codec.
 *
 * Source: ggml/src/ggml-common.h (0.27, MIT licence), in the form of gguf-py/gguf/quants.py.
 * Threads: const tables.
 */
#ifndef CODEC_BLOCKS_GRIDS_H
#define CODEC_BLOCKS_GRIDS_H

#include <stdint.h>

extern const uint16_t grid_iq2_xxs[256]; /* 8: 8, 25, 43 */
extern const uint16_t grid_iq2_xs[512];	 /* likewise */
extern const uint16_t grid_iq2_s[1024];	 /* likewise */
extern const uint16_t grid_iq3_xxs[256]; /* 4: 4, 12, 20, 28, 36, 44, 52, 62 */
extern const uint16_t grid_iq3_s[512];	 /* 4: 1, 3, 5 ... 15 */
extern const uint16_t grid_iq1[2048];	 /* 8: -1, 0, 1 */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mxfp4_blocks - gpt-oss's MXFP4 codes and scales as blocks of ggml's type of that name.
 *
 * Of codes [E, R, G, 16] and scales [E, R, G] it makes bytes [E, R, G * 17]: a scale, then the
 * nibbles of 32 elements, which are in another order. Nothing is computed: what comes out has the
 * same codes and scales.
 *
 * Threads: see derived.h.
 */
#ifndef READ_MXFP4_BLOCKS_H
#define READ_MXFP4_BLOCKS_H

#include "read/derived.h"

enum { MXFP4_ELEMENTS = 32, MXFP4_BYTES = 17 };

/* For derived.run; how is not used. Inputs: codes, scales. */
derived_fn mxfp4_blocks_run;

#endif

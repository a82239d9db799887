/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequant_flat - weights whose codes have scales for blocks of the flattened tensor, as derived
 * tensors: bitsandbytes' nf4 and fp4, and the states that torchao's optimizers have in 8 and 4 bits
 * (torchao/optim/quant_utils.py: dequant_with_qmap, and subclass_fp8.py).
 *
 * Element i of the flattened weight is, in float32,
 *
 *	y = map[code(i)] * absmax[i / block]
 *
 * rounded once more to the dtype of the derived tensor, to nearest, ties to even. Nested scales are
 * codes too: absmax[k] = nested_map[code(k)] * nested_absmax[k / nested_block] + offset, each
 * operation rounded to float32. This is what the kernels for CUDA compute; those for the CPU round
 * map and absmax to the dtype first (bitsandbytes/backends/default/ops.py), so their results differ
 * by up to two units in the last place of a bfloat16.
 *
 * Threads: see derived.h.
 */
#ifndef READ_DEQUANT_FLAT_H
#define READ_DEQUANT_FLAT_H

#include "model/dtype.h"
#include "read/derived.h"

#include <stdbool.h>

enum flat_codes {
	FLAT_NIBBLES, /* uint8, two codes in each, the first in the high bits; 16 values */
	FLAT_BYTES,   /* uint8 of the weight's shape, 256 values */
	FLAT_FLOAT8, /* float8_e4m3fn of the weight's shape, which have values of their own: no map */
};

struct dequant_flat {
	enum ckpt_dtype dtype; /* of the result: float32, float16 or bfloat16 */
	enum flat_codes codes;
	uint8_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	uint64_t block;	       /* elements with one absmax, at least 1 */
	uint64_t nested_block; /* absmaxes with one nested absmax; 0: absmax is float32 */
	float offset;
};

enum {
	FLAT_CODES,
	FLAT_ABSMAX,	    /* float32; uint8 if nested */
	FLAT_MAP,	    /* float32 [16] or [256] */
	FLAT_NESTED_ABSMAX, /* float32 */
	FLAT_NESTED_MAP,    /* float32 [256] */
};

/* For derived.run; how is a struct dequant_flat. */
derived_fn dequant_flat_run;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_values - the values of a tensor of ggml's blocks, as a derived tensor.
 *
 * Input 0 is uint8, [..., bytes of a row]; the result has the same dimensions with elements in
 * place of bytes. Values are ggml's in float32, rounded once more to the dtype of the result, to
 * nearest, ties to even.
 *
 * Threads: see derived.h.
 */
#ifndef READ_BLOCK_VALUES_H
#define READ_BLOCK_VALUES_H

#include "codec/blocks_decode.h"
#include "model/dtype.h"
#include "read/derived.h"

struct block_values {
	const struct ggml_info *type;
	block_decode_fn *decode;
	enum ckpt_dtype dtype; /* float32, float16 or bfloat16 */
	size_t n_dims;	       /* at least 1 */
};

/* For derived.run; how is a struct block_values. */
derived_fn block_values_run;

#endif

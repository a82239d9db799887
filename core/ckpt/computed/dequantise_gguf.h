/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantise_gguf - the option dequantize= for a GGUF: which of its tensors are blocks, and the
 * derived tensors that have their values.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_DEQUANTISE_GGUF_H
#define CKPT_DEQUANTISE_GGUF_H

#include "ckpt/computed/dequantise.h"
#include "model/ggml.h"

/* Reads the object GGUF_TYPES: a type for each of the catalog's tensors, which the caller frees;
 * *ret_blocks are of blocks. */
int gguf_types(const struct catalog *c, const struct ggml_info ***ret, size_t *ret_blocks,
	       struct ckpt_err *e);

/* The type of the largest tensor that is float32, float16 or bfloat16; types: as from
 * gguf_types. */
enum ckpt_dtype gguf_elements(const struct catalog *c, const struct ggml_info *const *types);

/* Like dequantise. A GGUF without tensors of blocks stays as it is. */
int dequantise_gguf(struct catalog *c, enum ckpt_dtype dtype, struct dequantised *ret,
		    struct ckpt_err *e);

#endif

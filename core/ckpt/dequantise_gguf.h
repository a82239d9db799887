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

#include "ckpt/dequantise.h"
#include "model/ggml.h"

/* Reads the object GGUF_TYPES: a type for each of the catalog's tensors, which the caller frees;
 * *ret_blocks are of blocks. */
int gguf_types(const struct catalog *c, const struct ggml_info ***ret, size_t *ret_blocks,
	       struct ckpt_err *e);

/* Like dequantise. A GGUF without tensors of blocks stays as it is. */
int dequantise_gguf(struct catalog *c, enum ckpt_dtype dtype, struct dequantised *ret,
		    struct ckpt_err *e);

#endif

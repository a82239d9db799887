/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_types - the object that says how a GGUF stores its tensors.
 *
 * Tensors of blocks are shown as uint8, [..., rows, bytes of a row], as gguf-py has them. The
 * object GGUF_TYPES is JSON, with ggml's name of the type of every tensor: {"blk.0.attn_q.weight":
 * "Q4_K"}. Code that computes values reads it.
 */
#ifndef FORMAT_GGUF_GGUF_TYPES_H
#define FORMAT_GGUF_GGUF_TYPES_H

#define GGUF_TYPES "gguf.tensor_types"

#endif

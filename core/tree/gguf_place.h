/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_place - the tensors of a GGUF, out of those of the model.
 *
 *	model.embed_tokens.weight             token_embd.weight
 *	...self_attn.q_proj.weight            blk.N.attn_q.weight: for llama the rows of each head
 *	                                      take turns, as its way to rotate wants them
 *	...experts.E.w1.weight                blk.N.ffn_gate_exps.weight: all experts, stacked
 *	transformer.h.N.attn.c_attn.weight    blk.N.attn_qkv.weight: transposed
 *
 * and so on; norms, biases and routers are float32. Every tensor must have the shape that
 * config.json says, there must be all that llama.cpp wants, and none that it has no place for.
 *
 * The head is left out where it is made of the same stored elements as the embeddings, which then
 * are the head. Where both are stored they may differ, whatever config.json says, so both are
 * there.
 *
 * Sources: gguf-py/gguf/tensor_mapping.py, conversion/{base,llama,qwen,gpt2}.py of llama.cpp.
 * Private to core/tree. Threads: pure.
 */
#ifndef TREE_GGUF_PLACE_H
#define TREE_GGUF_PLACE_H

#include "gguf/gguf_write.h"

struct ckpt_err;
struct gguf_config;
struct view;
struct vtensor;

struct gguf_tensors {
	struct gguf_tensor *t;
	struct vtensor **v; /* NULL: the factors in the configuration */
	size_t n, cap_t, cap_v;
};

/* type: of matrices. *ret is to be released in any case. */
int gguf_place(const struct view *v, const struct gguf_config *c, enum ggml_type type,
	       struct gguf_tensors *ret, struct ckpt_err *e);
void gguf_tensors_release(struct gguf_tensors *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_place - makes the tensors of a GGUF from those of the model.
 *
 *	model.embed_tokens.weight             token_embd.weight
 *	...self_attn.q_proj.weight            blk.N.attn_q.weight: for llama the rows of each head
 *	                                      are interleaved, as its way to rotate requires
 *	...experts.E.w1.weight                blk.N.ffn_gate_exps.weight: all experts, stacked
 *	transformer.h.N.attn.c_attn.weight    blk.N.attn_qkv.weight: transposed
 *	...linear_attn.in_proj_qkvz.weight    blk.N.attn_qkv.weight, attn_gate.weight: queries,
 *	                                      keys and values of all heads, and their gates
 *	...linear_attn.A_log                  blk.N.ssm_a: minus e to the power of it
 *	...self_attn.kv_b_proj.weight         blk.N.attn_k_b.weight, attn_v_b.weight: by head, the
 *	                                      first transposed
 *
 * and so on; norms, biases and routers are float32. Every tensor must have the shape that
 * config.json specifies, no tensor that llama.cpp requires may be missing, and none may be left
 * over.
 *
 * The head is left out if it is made of the same stored elements as the embeddings, which llama.cpp
 * then uses as the head. If both are stored they may differ, whatever config.json says, so both are
 * included.
 *
 * Sources: gguf-py/gguf/tensor_mapping.py, conversion/ of llama.cpp.
 * Threads: pure.
 */
#ifndef TREE_GGUF_PLACE_H
#define TREE_GGUF_PLACE_H

#include "gguf/gguf_write.h"

struct ckpt_err;
struct gguf_config;
struct gguf_mix;
struct view;
struct vtensor;

struct gguf_tensors {
	struct gguf_tensor *t;
	struct vtensor **v; /* NULL: of factors[i] of the configuration */
	size_t n, cap_t, cap_v;
};

/* mix, plain: see gguf_mix_choose. The caller releases *ret, also after a failure. */
int gguf_place(const struct view *v, const struct gguf_config *c, const struct gguf_mix *mix,
	       enum ggml_type plain, struct gguf_tensors *ret, struct ckpt_err *e);
/* What gguf/ would have of a view's model, all in float32, whether there is a tokenizer or not. The
 * caller releases both, also after a failure. */
int view_gguf_tensors(const struct view *v, struct gguf_config *ret_config,
		      struct gguf_tensors *ret, struct ckpt_err *e);
void gguf_tensors_release(struct gguf_tensors *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict - one sentence on whether each face shows what programs that load it need.
 *
 *	hf: complete for LlamaForCausalLM (config.json from assets)
 *	hf: not loadable as LlamaForCausalLM: 20 tensors missing (model.embed_tokens.weight, ...)
 *	gguf: absent: no config.json beside the checkpoint or in assets=
 *
 * config.json and the table of tensor/arch.h tell which tensors a model needs. A model that they do
 * not cover is "not checked", never "complete". If tensors have other names, the built-in recipes
 * are tried on them.
 *
 * Private to core/ckpt. Threads: any.
 */
#ifndef CKPT_VERDICT_H
#define CKPT_VERDICT_H

struct ckpt_err;
struct engine;

/* Fails with the sentence if hf/ cannot be loaded. */
int verdict_refuse(struct engine *eng, struct ckpt_err *e);

#endif

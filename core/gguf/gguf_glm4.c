/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GLM-4, and the mixture of experts GLM-4.5. The layers that predict further tokens are left out,
 * as by the converter's --no-mtp.
 *
 * Sources: conversion/glm.py, src/models/glm4{,-moe}.cpp of llama.cpp; modeling_glm4{,_moe}.py of
 * transformers 5.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

void gguf_glm4_check(struct gguf_config *c, struct config_in *r)
{
	c->eps = config_number(r, "rms_norm_eps");
	gguf_silu_check(r);
	gguf_rope_check(c, r);
	if (c->a.kind == KIND_GLM4_MOE)
		gguf_routed_check(c, r);
}

void gguf_glm4_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	if (c->a.kind == KIND_GLM4_MOE)
		gguf_routed_put(c, k);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt-oss. Every second layer sees all positions, in llama.cpp whatever a file says.
 *
 * Sources: conversion/gpt_oss.py and src/models/openai-moe.cpp of llama.cpp; modeling_gpt_oss.py of
 * transformers 5, whose experts have the constants 1.702 and 7.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>

static bool alternates(const struct gguf_config *c, const struct config_in *r)
{
	struct jval types = config_get(r, "layer_types");
	size_t i = 0;

	if (!types.d)
		return true;
	for (struct jiter all = jiter(types); jiter_next(&all); i++)
		if (!jval_is_str(all.v, i % 2 ? "full_attention" : "sliding_attention"))
			return false;
	return i == c->a.layers;
}

void gguf_gpt_oss_check(struct gguf_config *c, struct config_in *r)
{
	c->eps = config_number(r, "rms_norm_eps");
	c->window = config_count(r, "sliding_window");
	c->experts_used = config_count(r, "num_experts_per_tok");
	gguf_silu_check(r);
	config_must(r, c->experts_used <= c->a.experts, "more experts per token than there are");
	config_must(r, c->a.attention_bias, "'attention_bias' is false");
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	config_must(r, config_number_or(r, "swiglu_limit", 7) == 7,
		    "a 'swiglu_limit' other than 7");
	config_must(r, alternates(c, r),
		    "another order of sliding-window layers than that of the published models");
	/* What transformers assumes if there is neither has changed. */
	config_must(r, config_get(r, "rope_parameters").d || config_get(r, "rope_scaling").d,
		    "neither 'rope_parameters' nor 'rope_scaling'");
	gguf_rope_check(c, r);
}

void gguf_gpt_oss_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	gguf_u32(k, ".attention.sliding_window", (uint32_t)c->window);
	gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
	gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
	gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->a.ffn);
}

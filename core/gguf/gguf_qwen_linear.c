/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3-Next, and Qwen 3.5 without images: most layers have linear attention (gated DeltaNet), the
 * others a gate after attention. The layers that predict further tokens are left out, as by the
 * converter's --no-mtp.
 *
 * Sources: conversion/qwen.py, src/models/{qwen3next,qwen35,qwen35moe}.cpp of llama.cpp;
 * modeling_qwen3_{next,5,5_moe}.py of transformers 5.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>

enum { MAX_HEADS = 1024 }; /* of linear attention: their rows are placed one head after the other */

/* llama.cpp refuses a model that lacks layers of either kind. */
static bool is_mixed(const struct arch *a)
{
	uint64_t full = 0;

	for (uint64_t i = 0; a->full && i < a->layers; i++)
		full += a->full[i];
	return full && full < a->layers;
}

static void check_experts(struct gguf_config *c, struct config_in *r)
{
	config_must(r, !c->a.dense, "layers without experts among those that have some");
	c->experts_used = config_count(r, "num_experts_per_tok");
	config_must(r, c->experts_used <= c->a.experts, "more experts per token than there are");
	/* llama.cpp always does this. Qwen 3.5 has no such setting. */
	config_must(r, c->a.kind != KIND_QWEN3_NEXT || config_flag(r, "norm_topk_prob", true),
		    "'norm_topk_prob' is not true");
}

/* The default of transformers' class. */
static const uint32_t usual_sections[GGUF_SECTIONS] = { 11, 11, 10, 0 };

void gguf_qwen_linear_check(struct gguf_config *c, struct config_in *r)
{
	const struct arch_linear *l = &c->a.linear;

	c->eps = config_number(r, "rms_norm_eps");
	gguf_silu_check(r);
	config_must(r, !c->a.attention_bias, "'attention_bias' is true");
	/* llama.cpp has one size for both. */
	config_must(r, l->k_dim == l->v_dim,
		    "a 'linear_value_head_dim' other than 'linear_key_head_dim'");
	config_must(r, l->v_heads <= MAX_HEADS, "more than 1024 heads of linear attention");
	config_must(r, l->kernel > 1, "a 'linear_conv_kernel_dim' of 1");
	config_must(r, is_mixed(&c->a), "layers that all have linear attention, or none");
	config_must(r, c->a.layers <= 512,
		    "more than 512 layers"); /* llama.cpp's LLAMA_MAX_LAYERS */
	if (c->a.kind & KIND_EXPERTS)
		check_experts(c, r);
	gguf_rope_check(c, r);
	if (c->a.kind != KIND_QWEN3_NEXT)
		gguf_sections_check(c->rotated / 2, usual_sections, r);
}

static void put_linear(const struct gguf_config *c, struct gguf_keys *k)
{
	const struct arch_linear *l = &c->a.linear;
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e };

	gguf_u32(k, ".ssm.conv_kernel", (uint32_t)l->kernel);
	gguf_u32(k, ".ssm.state_size", (uint32_t)l->k_dim);
	gguf_u32(k, ".ssm.group_count", (uint32_t)l->k_heads);
	gguf_u32(k, ".ssm.time_step_rank", (uint32_t)l->v_heads);
	gguf_u32(k, ".ssm.inner_size", (uint32_t)(l->v_dim * l->v_heads));
	gguf_u32(k, ".full_attention_interval",
		 (uint32_t)config_count_or(&all, "full_attention_interval", 4));
	if (!config_get(&all, "layer_types").d)
		return;
	gguf_array(k, ".attention.recurrent_layers", GGUF_BOOL, c->a.layers);
	for (uint64_t i = 0; i < c->a.layers; i++)
		gguf_item_bool(k, !c->a.full[i]);
}

void gguf_qwen_linear_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	put_linear(c, k);
	if (c->a.kind & KIND_EXPERTS) {
		gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
		gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
		gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->a.expert_ffn);
		gguf_u32(k, ".expert_shared_feed_forward_length", (uint32_t)c->a.shared_ffn);
	}
	if (c->a.kind != KIND_QWEN3_NEXT)
		gguf_sections_put(c, usual_sections, k);
}

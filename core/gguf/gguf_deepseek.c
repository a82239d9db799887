/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek-V2 and V3, and the experts that GLM-4.5 has from them. Layers that predict further
 * tokens are left out.
 *
 * Attention is written in its absorbed form: the matrix that expands keys from their latents is
 * applied to the queries, so that all heads share one key of latents and rotated elements.
 *
 * Sources: conversion/deepseek.py, src/models/deepseek2.cpp and build_moe_ffn in
 * src/llama-graph.cpp of llama.cpp; modeling_deepseek_v{2,3}.py of transformers 5; DeepSeek's own
 * modeling_deepseek.py, whose scale of attention with yarn is in transformers for V3 only.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>
#include <string.h>

enum { SOFTMAX = 1, SIGMOID = 2 }; /* llama.cpp's llama_expert_gating_func_type */

/* ---- experts ---- */

static const char *scores(const struct gguf_config *c)
{
	return c->a.kind == KIND_DEEPSEEK_V2 ? "softmax" : "sigmoid";
}

/* llama.cpp ranks groups by the sum of their two best experts, as V3 does but V2 does not. */
static void check_groups(struct gguf_config *c, struct config_in *r)
{
	const char *method = config_text(r, "topk_method", NULL);

	if (c->a.kind == KIND_DEEPSEEK_V2) {
		config_must(r, !method || !strcmp(method, "greedy"),
			    "a 'topk_method' other than greedy");
		c->groups = config_count_or(r, "n_group", 1);
		c->groups_used = config_count_or(r, "topk_group", 1);
		config_must(r, c->groups == 1, "groups of experts with 'topk_method' greedy");
	} else {
		config_must(r, !method || !strcmp(method, "noaux_tc"),
			    "a 'topk_method' other than noaux_tc");
		c->groups = config_count(r, "n_group");
		c->groups_used = config_count(r, "topk_group");
	}
	config_must(r, c->a.experts % c->groups == 0,
		    "a number of experts that is not a multiple of 'n_group'");
	config_must(r, c->groups == 1 ? c->groups_used == 1 : c->groups_used < c->groups,
		    "a 'topk_group' that is not less than 'n_group'");
}

void gguf_routed_check(struct gguf_config *c, struct config_in *r)
{
	const char *score = config_text(r, "scoring_func", scores(c));

	c->experts_used = config_count(r, "num_experts_per_tok");
	c->experts_scale = config_number(r, "routed_scaling_factor");
	c->experts_norm = config_flag(r, "norm_topk_prob", c->a.kind != KIND_DEEPSEEK_V2);
	(void)config_count(r, "n_shared_experts");
	config_must(r, c->experts_used <= c->a.experts, "more experts per token than there are");
	config_must(r, !strcmp(score, scores(c)), "this 'scoring_func'");
	config_must(r, config_count_or(r, "moe_layer_freq", 1) == 1,
		    "a 'moe_layer_freq' other than 1");
	config_must(r, c->a.kind != KIND_DEEPSEEK_V2 || !c->experts_norm,
		    "'norm_topk_prob' is true");
	check_groups(c, r);
}

void gguf_routed_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e };

	gguf_u32(k, ".leading_dense_block_count", (uint32_t)c->a.first_experts);
	gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
	gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
	gguf_u32(k, ".expert_shared_count", (uint32_t)config_count(&all, "n_shared_experts"));
	gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->a.expert_ffn);
	gguf_u32(k, ".expert_gating_func", c->a.kind == KIND_DEEPSEEK_V2 ? SOFTMAX : SIGMOID);
	gguf_f32(k, ".expert_weights_scale", c->experts_scale);
	if (c->experts_norm || c->a.kind == KIND_GLM4_MOE)
		gguf_bool(k, ".expert_weights_norm", c->experts_norm);
	gguf_u32(k, ".expert_group_count", (uint32_t)c->groups);
	gguf_u32(k, ".expert_group_used_count", (uint32_t)c->groups_used);
}

/* ---- attention ---- */

/* llama.cpp has one number for what is two in yarn: they must be equal. */
static double log_of_scale(struct config_in *rope)
{
	double all;

	if (strcmp(gguf_rope_type(rope), "yarn") != 0)
		return config_number_or(rope, "mscale_all_dim", 0);
	all = config_number(rope, "mscale_all_dim");
	config_must(rope, config_number(rope, "mscale") == all,
		    "an 'mscale' other than 'mscale_all_dim'");
	config_must(rope,
		    !config_get(rope, "attention_factor").d && !config_get(rope, "attn_factor").d,
		    "an 'attention_factor' beside 'mscale'");
	return all;
}

/*
 * From these numbers llama.cpp infers whether queries are made from latents, as keys and values
 * are: those of DeepSeek-V2-Lite, GigaChat3 and Kanana-2 are not.
 */
static bool is_lite(const struct arch *a)
{
	return a->layers == 26 || a->layers == 27 || (a->layers == 48 && a->vocab == 128256);
}

void gguf_deepseek_check(struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	c->eps = config_number(r, "rms_norm_eps");
	gguf_silu_check(r);
	config_must(r, !c->a.attention_bias, "'attention_bias' is true");
	config_must(r, config_flag(r, "rope_interleave", true), "'rope_interleave' is false");
	config_must(r, is_lite(&c->a) == !c->a.q_lora,
		    c->a.q_lora ? "a 'q_lora_rank' in a model of 26 or 27 layers"
				: "no 'q_lora_rank' in a model of other than 26 or 27 layers");
	config_must(r, c->a.rope_dim % 2 == 0, "an odd number of elements to rotate");
	gguf_rope_check(c, r);
	c->rotated = c->a.rope_dim;
	(void)log_of_scale(&rope);
	gguf_routed_check(c, r);
}

void gguf_deepseek_put(const struct gguf_config *c, struct gguf_keys *k)
{
	const struct arch *a = &c->a;
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e }, rope = gguf_rope_of(&all);
	double scale = log_of_scale(&rope);

	gguf_u32(k, ".attention.head_count_kv", 1);
	gguf_f32(k, ".attention.layer_norm_rms_epsilon", c->eps);
	if (a->q_lora)
		gguf_u32(k, ".attention.q_lora_rank", (uint32_t)a->q_lora);
	gguf_u32(k, ".attention.kv_lora_rank", (uint32_t)a->kv_lora);
	gguf_u32(k, ".attention.key_length", (uint32_t)(a->kv_lora + a->rope_dim));
	gguf_u32(k, ".attention.value_length", (uint32_t)a->kv_lora);
	gguf_u32(k, ".attention.key_length_mla", (uint32_t)(a->nope_dim + a->rope_dim));
	gguf_u32(k, ".attention.value_length_mla", (uint32_t)a->v_dim);
	gguf_rope_put(c, k);
	if (scale != 0)
		gguf_f32(k, ".rope.scaling.yarn_log_multiplier", 0.1 * scale);
	gguf_routed_put(c, k);
}

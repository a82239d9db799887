/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models that are Llama with a difference: Granite has multipliers, Command R layers whose halves
 * are side by side, SmolLM3 layers that do not rotate, OLMo 2 and 3 norms after the matrices, and
 * OLMo 3 sliding-window layers.
 *
 * Sources: conversion/{granite,command_r,llama,olmo}.py and
 * src/models/{granite,granite-moe,command-r,smollm3,olmo2}.cpp of llama.cpp;
 * modeling_{granite,granitemoe,cohere,smollm3,olmo2,olmo3}.py of transformers 5.
 */
#include "base/checked.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>
#include <string.h>

static void check_decoder(struct gguf_config *c, struct config_in *r)
{
	c->eps = config_number(r, "rms_norm_eps");
	gguf_silu_check(r);
	config_must(r, c->a.head_dim * c->a.heads == c->a.hidden,
		    "a 'head_dim' that is not 'hidden_size' divided by the number of heads");
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	gguf_rope_check(c, r);
}

/* ---- Granite ---- */

static const struct {
	const char *from, *key;
} multipliers[] = {
	{ "attention_multiplier", ".attention.scale" },
	{ "embedding_multiplier", ".embedding_scale" },
	{ "residual_multiplier", ".residual_scale" },
	{ "logits_scaling", ".logit_scale" },
};

void gguf_granite_check(struct gguf_config *c, struct config_in *r)
{
	check_decoder(c, r);
	for (size_t i = 0; i < ARRAY_LEN(multipliers); i++)
		(void)config_number_or(r, multipliers[i].from, 1);
}

void gguf_granite_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e };

	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	for (size_t i = 0; i < ARRAY_LEN(multipliers); i++)
		gguf_f32(k, multipliers[i].key, config_number_or(&all, multipliers[i].from, 1));
}

void gguf_granite_moe_check(struct gguf_config *c, struct config_in *r)
{
	gguf_granite_check(c, r);
	c->experts_used = config_count(r, "num_experts_per_tok");
	config_must(r, c->experts_used <= c->a.experts, "more experts per token than there are");
}

void gguf_granite_moe_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_granite_put(c, k);
	gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
	gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
}

/* ---- Command R ---- */

enum { COHERE_NORMED = 64 }; /* layers of Command R+ */

void gguf_cohere_check(struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	c->eps = config_number(r, "layer_norm_eps");
	gguf_silu_check(r);
	config_must(r, c->a.head_dim * c->a.heads == c->a.hidden,
		    "a 'head_dim' that is not 'hidden_size' divided by the number of heads");
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	config_must(r, !c->a.attention_bias, "'attention_bias' is true");
	config_must(r, c->a.tied, "'tie_word_embeddings' is false");
	/* llama.cpp infers from the number of layers whether queries and keys are normalised. */
	config_must(r, c->a.qk_norm == (c->a.layers >= COHERE_NORMED),
		    c->a.qk_norm ? "'use_qk_norm' in fewer than 64 layers"
				 : "64 layers or more without 'use_qk_norm'");
	(void)config_number_or(r, "logit_scale", 0.0625);
	config_must(r, !strcmp(gguf_rope_type(&rope), "default"), "scaled rotary embeddings");
	gguf_rope_check(c, r);
}

void gguf_cohere_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e };

	gguf_u32(k, ".attention.head_count_kv", (uint32_t)c->a.kv_heads);
	gguf_f32(k, ".attention.layer_norm_epsilon", c->eps);
	gguf_rope_put(c, k);
	gguf_str(k, ".rope.scaling.type", "none", 4);
	gguf_f32(k, ".logit_scale", config_number_or(&all, "logit_scale", 0.0625));
}

/* ---- SmolLM3 ---- */

enum { NO_ROPE_STEP = 4 }; /* in llama.cpp, whatever a file says */

static bool rotates_as_published(const struct gguf_config *c, struct config_in *r)
{
	struct jval layers = config_get(r, "no_rope_layers");
	int64_t rotated;
	size_t n = 0;

	if (!layers.d)
		return config_count_or(r, "no_rope_layer_interval", NO_ROPE_STEP) == NO_ROPE_STEP;
	for (struct jiter i = jiter(layers); jiter_next(&i); n++)
		if (!jval_int(i.v, &rotated) || rotated != ((n + 1) % NO_ROPE_STEP != 0))
			return false;
	return n == c->a.layers;
}

void gguf_smollm3_check(struct gguf_config *c, struct config_in *r)
{
	check_decoder(c, r);
	config_must(r, rotates_as_published(c, r),
		    "another order of layers without rotary embeddings than that of SmolLM3-3B");
	config_must(r, !config_flag(r, "use_sliding_window", false),
		    "'use_sliding_window' is true");
}

void gguf_smollm3_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
}

/* ---- OLMo ---- */

/* Does the layer see a window? */
static bool has_window(const struct config_in *r, uint64_t layer)
{
	struct jval types = config_get(r, "layer_types");

	return types.d ? jval_is_str(jval_at(types, layer), "sliding_attention")
		       : (layer + 1) % 4 != 0;
}

void gguf_olmo2_check(struct gguf_config *c, struct config_in *r)
{
	struct jval types = config_get(r, "layer_types");
	struct config_in rope = gguf_rope_of(r);

	check_decoder(c, r);
	config_must(r, !c->a.attention_bias, "'attention_bias' is true");
	/* llama.cpp requires a separate head. */
	config_must(r, !c->a.tied, "'tie_word_embeddings' is true");
	c->window = config_count_or(r, "sliding_window", 0);
	/* llama.cpp scales those of the other layers only, transformers 5 those of all. */
	config_must(r, !c->window || !strcmp(gguf_rope_type(&rope), "default"),
		    "scaled rotary embeddings beside sliding-window layers");
	config_must(r, !types.d || jval_size(types) == c->a.layers,
		    "'layer_types' for another number of layers");
	config_must(r, c->a.layers <= 512,
		    "more than 512 layers"); /* llama.cpp's LLAMA_MAX_LAYERS */
}

void gguf_olmo2_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e };

	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	if (!c->window)
		return;
	gguf_u32(k, ".attention.sliding_window", (uint32_t)c->window);
	gguf_array(k, ".attention.sliding_window_pattern", GGUF_BOOL, c->a.layers);
	for (uint64_t i = 0; i < c->a.layers; i++)
		gguf_item_bool(k, has_window(&all, i));
}

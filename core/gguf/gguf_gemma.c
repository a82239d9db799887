/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma. In most layers of Gemma 2 and 3 attention sees a window of positions: in llama.cpp every
 * second layer sees all (Gemma 3: every sixth), whatever a file says.
 *
 * Sources: conversion/gemma.py and src/models/gemma{2,3}.cpp of llama.cpp;
 * configuration_gemma{2,3}.py and modeling_gemma{2,3}.py of transformers 5.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>
#include <string.h>

static const char full[] = "full_attention", sliding[] = "sliding_attention";

static uint64_t period(const struct gguf_config *c)
{
	return c->a.kind == KIND_GEMMA2 ? 2 : 6;
}

/* Are the layers that see everything those of llama.cpp? */
static bool has_its_layers(const struct gguf_config *c, const struct config_in *r)
{
	struct jval types = config_get(r, "layer_types");
	struct jval pattern = config_get(r, "sliding_window_pattern");
	uint64_t n = period(c);
	size_t i = 0;

	if (!types.d)
		return !pattern.d || (jval_u64(pattern, &n) && n == period(c));
	for (struct jiter all = jiter(types); jiter_next(&all); i++)
		if (!jval_is_str(all.v, (i + 1) % n ? sliding : full))
			return false;
	return i == c->a.layers;
}

/* Newer files have rope_parameters for both kinds of layers, older ones rope_scaling for those that
 * see everything. */
static struct config_in rope_of(struct config_in *r, const char *kind)
{
	struct jval all = config_object(r, "rope_parameters");
	struct config_in in = { .from = all, .whole = r };
	struct jval one = config_object(&in, kind);

	if (!one.d && kind == full)
		one = all.d ? all : config_object(r, "rope_scaling");
	return (struct config_in){ .from = one, .whole = r };
}

static const char *rope_type(struct config_in *rope)
{
	return config_text(rope, "rope_type", config_text(rope, "type", "default"));
}

static void check_rope(struct gguf_config *c, struct config_in *r)
{
	bool gemma2 = c->a.kind == KIND_GEMMA2;
	struct config_in rope = rope_of(r, full), local = rope_of(r, sliding);
	const char *type = rope_type(&rope);

	c->theta = config_number_or(&rope, "rope_theta",
				    config_number_or(r, "rope_theta", gemma2 ? 1e4 : 1e6));
	c->local_theta = config_number_or(&local, "rope_theta",
					  config_number_or(r, "rope_local_base_freq", 1e4));
	if (!strcmp(type, "linear") && !gemma2)
		(void)config_number(&rope, "factor");
	else
		config_must(&rope, !strcmp(type, "default"),
			    "these rotary embeddings of a Gemma model");
	config_must(&local, !strcmp(rope_type(&local), "default"),
		    "scaled rotary embeddings in sliding-window layers");
	/* llama.cpp does not read it. */
	config_must(&rope, !gemma2 || c->theta == 1e4, "a 'rope_theta' other than 10000");
}

/* Queries are divided by its root. llama.cpp recognises the largest models by their layers. */
static uint64_t scalar_of(const struct gguf_config *c)
{
	bool largest = c->a.layers == (c->a.kind == KIND_GEMMA2 ? 46 : 62);

	return largest ? c->a.hidden / c->a.heads : c->a.head_dim;
}

static void check_caps(struct gguf_config *c, struct config_in *r)
{
	bool head = config_get(r, "final_logit_softcapping").d;

	if (c->a.kind == KIND_GEMMA2) {
		c->attention_cap = config_number(r, "attn_logit_softcapping");
		head = true;
	} else {
		config_must(r, !config_get(r, "attn_logit_softcapping").d,
			    "'attn_logit_softcapping' of a Gemma 3 model");
	}
	if (head)
		c->head_cap = config_number(r, "final_logit_softcapping");
}

static void check_all(struct gguf_config *c, struct config_in *r)
{
	const char *act = config_text(r, "hidden_activation",
				      config_text(r, "hidden_act", "gelu_pytorch_tanh"));

	c->eps = c->a.kind == KIND_GEMMA3 ? config_number_or(r, "rms_norm_eps", 1e-6)
					  : config_number(r, "rms_norm_eps");
	config_must(r, !strcmp(act, "gelu_pytorch_tanh"),
		    "a 'hidden_activation' other than gelu_pytorch_tanh");
	config_must(r, !c->a.attention_bias, "'attention_bias' is true");
	config_must(r, c->a.kind == KIND_GEMMA3 || c->a.tied, "'tie_word_embeddings' is false");
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	config_must(r, !config_flag(r, "use_bidirectional_attention", false),
		    "'use_bidirectional_attention' is true");
}

void gguf_gemma1_check(struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	check_all(c, r);
	c->theta = config_number_or(&rope, "rope_theta", config_number_or(r, "rope_theta", 1e4));
	config_must(&rope, !strcmp(gguf_rope_type(&rope), "default"),
		    "these rotary embeddings of a Gemma model");
	/* llama.cpp does not read it. */
	config_must(&rope, c->theta == 1e4, "a 'rope_theta' other than 10000");
}

void gguf_gemma1_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
}

void gguf_gemma_check(struct gguf_config *c, struct config_in *r)
{
	double scalar = c->a.kind == KIND_GEMMA3 ? config_number_or(r, "query_pre_attn_scalar", 256)
						 : config_number(r, "query_pre_attn_scalar");

	check_all(c, r);
	c->window = config_count(r, "sliding_window");
	config_must(r, has_its_layers(c, r),
		    "another order of sliding-window layers than that of the published models");
	config_must(r, scalar == (double)scalar_of(c),
		    "a 'query_pre_attn_scalar' other than that of the published models");
	check_caps(c, r);
	check_rope(c, r);
}

void gguf_gemma_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e }, rope = rope_of(&all, full);

	gguf_u32(k, ".attention.head_count_kv", (uint32_t)c->a.kv_heads);
	gguf_f32(k, ".attention.layer_norm_rms_epsilon", c->eps);
	gguf_u32(k, ".attention.key_length", (uint32_t)c->a.head_dim);
	gguf_u32(k, ".attention.value_length", (uint32_t)c->a.head_dim);
	gguf_u32(k, ".attention.sliding_window", (uint32_t)c->window);
	if (c->attention_cap != 0)
		gguf_f32(k, ".attn_logit_softcapping", c->attention_cap);
	if (c->head_cap != 0)
		gguf_f32(k, ".final_logit_softcapping", c->head_cap);
	if (c->a.kind == KIND_GEMMA2)
		return;
	gguf_f32(k, ".rope.freq_base", c->theta);
	gguf_f32(k, ".rope.freq_base_swa", c->local_theta);
	if (!strcmp(rope_type(&rope), "linear")) {
		gguf_str(k, ".rope.scaling.type", "linear", 6);
		gguf_f32(k, ".rope.scaling.factor", config_number(&rope, "factor"));
	}
}

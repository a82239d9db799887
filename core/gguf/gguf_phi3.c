/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Phi-3, Phi-4 and Phi-4-mini. llama.cpp ignores the window of Phi-3-mini, and chooses between the
 * factors for short and for long contexts when it opens a context, not by the length of a text.
 *
 * Sources: conversion/phi.py and src/models/phi3.cpp of llama.cpp; configuration_phi3.py and
 * modeling_rope_utils.py of transformers 5.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <math.h>
#include <string.h>

/* "su" is what the first Phi-3 had; transformers calls it "longrope". */
static bool is_long(struct config_in *rope)
{
	const char *type = gguf_rope_type(rope);

	return !strcmp(type, "longrope") || !strcmp(type, "su");
}

static uint64_t original(struct config_in *all, struct config_in *rope)
{
	return config_count_or(rope, "original_max_position_embeddings",
			       config_count_or(all, "original_max_position_embeddings", 4096));
}

static void read_factors(struct gguf_config *c, struct config_in *rope, const char *key,
			 const char *name, struct gguf_factors *ret)
{
	struct jval v = config_get(rope, key);
	double x;

	ret->name = name;
	if (jval_size(v) != c->rotated / 2 || c->rotated / 2 > GGUF_MAX_ROPE) {
		config_wrong(rope, key, "does not have a factor for each pair that is rotated");
		return;
	}
	for (struct jiter i = jiter(v); jiter_next(&i);) {
		if (!config_is_float(i.v, &x) || !((float)x > 0)) {
			config_wrong(rope, key, "has numbers that are not positive");
			return;
		}
		ret->v[ret->n++] = (float)x;
	}
}

void gguf_phi3_check(struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);
	double part;

	c->eps = config_number(r, "rms_norm_eps");
	if (config_get(r, "sliding_window").d)
		c->window = config_whole(r, "sliding_window");
	gguf_silu_check(r);
	part = gguf_rope_partial(r, &rope, 1);
	c->theta = config_number_or(&rope, "rope_theta",
				    config_number_or(r, "rope_theta", c->a.family->theta));
	c->rotated = (uint64_t)((double)c->a.hidden * part) / c->a.heads;
	config_must(&rope,
		    c->rotated && c->rotated % 2 == 0 &&
			    c->rotated == (uint64_t)((double)c->a.head_dim * part),
		    "this 'partial_rotary_factor'");
	if (is_long(&rope)) {
		config_must(&rope, !config_get(&rope, "attention_factor").d,
			    "an 'attention_factor' of longrope");
		read_factors(c, &rope, "long_factor", "rope_factors_long.weight", &c->factors[0]);
		read_factors(c, &rope, "short_factor", "rope_factors_short.weight", &c->factors[1]);
		config_must(&rope, original(r, &rope) > 1,
			    "longrope with an original length of one position");
	} else {
		config_must(&rope, !strcmp(gguf_rope_type(&rope), "default"),
			    "these rotary embeddings of a Phi-3 model");
	}
	config_must(r, c->a.head_dim * c->a.heads == c->a.hidden, "a 'head_dim' of a Phi-3 model");
}

void gguf_phi3_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e }, rope = gguf_rope_of(&all);
	uint64_t old = original(&all, &rope);
	double scale = (double)c->a.positions / (double)old;

	gguf_attention_put(c, k);
	gguf_f32(k, ".rope.freq_base", c->theta);
	gguf_u32(k, ".rope.dimension_count", (uint32_t)c->rotated);
	gguf_u32(k, ".rope.scaling.original_context_length", (uint32_t)old);
	gguf_u32(k, ".attention.sliding_window", (uint32_t)c->window);
	if (c->factors[0].n)
		gguf_f32(k, ".rope.scaling.attn_factor",
			 scale > 1 ? sqrt(1 + log(scale) / log((double)old)) : 1);
}

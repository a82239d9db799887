/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ministral 3: Llama with yarn, whose queries grow with the logarithm of their position.
 *
 * Sources: conversion/mistral3.py of llama.cpp; modeling_ministral3.py and modeling_rope_utils.py
 * of transformers 5.
 */
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <string.h>

bool gguf_is_ministral3(const struct gguf_config *c)
{
	return !strcmp(c->a.family->type, "ministral3");
}

void gguf_ministral3_check(struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	config_must(&rope, !strcmp(gguf_rope_type(&rope), "yarn"),
		    "a Ministral 3 whose rotary embeddings are not of type yarn");
	(void)config_number(&rope, "llama_4_scaling_beta");
	/*
	 * In transformers, equal ones cancel out; llama.cpp is known to agree for the published
	 * ones.
	 */
	config_must(&rope,
		    config_number(&rope, "mscale") == 1 &&
			    config_number(&rope, "mscale_all_dim") == 1,
		    "'mscale' and 'mscale_all_dim' of a Ministral 3 other than 1");
}

void gguf_ministral3_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e }, rope = gguf_rope_of(&all);

	gguf_f32(k, ".rope.scaling.yarn_log_multiplier", config_number(&rope, "mscale_all_dim"));
	gguf_f32(k, ".attention.temperature_scale", config_number(&rope, "llama_4_scaling_beta"));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary embeddings in sections, of Qwen 3.5 and Qwen3-VL: pairs of a head's elements are rotated
 * by time, height and width, which are all equal for a text, and by nothing. And the other settings
 * of Qwen3-VL's text model.
 *
 * Sources: conversion/{base,qwen3vl}.py, src/models/{qwen35,qwen3vl}.cpp and ggml_mrope_cache_init
 * of llama.cpp; modeling_qwen3_{5,vl}.py and configuration_qwen3_vl.py of transformers 5.
 */
#include "base/checked.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <stdbool.h>

static struct jval sections_of(struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	return config_get(&rope, "mrope_section");
}

static bool section(struct jval all, const uint32_t *usual, size_t i, uint32_t *ret)
{
	struct jval v = jval_at(all, i);
	int64_t n = 0;

	*ret = usual ? usual[i] : 0;
	if (!all.d)
		return usual;
	if (v.d && (!jval_int(v, &n) || n < 0 || n > INT32_MAX))
		return false;
	*ret = (uint32_t)n;
	return true;
}

/*
 * Pair i belongs to section i % 3 as long as that has pairs left; llama.cpp does not rotate those
 * left over, and starts again after the last section. transformers rotates all of them.
 */
void gguf_sections_check(uint64_t pairs, const uint32_t *usual, struct config_in *r)
{
	struct jval all = sections_of(r);
	uint64_t sum = 0;
	uint32_t n[GGUF_SECTIONS] = { 0 };
	bool fine = !all.d || (jval_is(all, J_ARRAY) && jval_size(all) <= GGUF_SECTIONS);

	for (size_t i = 0; fine && i < GGUF_SECTIONS; i++) {
		fine = section(all, usual, i, &n[i]);
		sum += fine ? n[i] : 0;
	}
	pairs = min_u64(pairs, sum);
	fine &= pairs > 0;
	for (size_t i = 0; fine && i < 3 && i < pairs; i++)
		fine = (pairs - i + 2) / 3 <= n[i];
	config_must(r, fine, all.d ? "this 'mrope_section'" : "no 'mrope_section'");
}

void gguf_sections_put(const struct gguf_config *c, const uint32_t *usual, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in in = { .from = c->text, .e = &e };
	struct jval all = sections_of(&in);
	uint32_t n;

	gguf_array(k, ".rope.dimension_sections", GGUF_I32, GGUF_SECTIONS);
	for (size_t i = 0; i < GGUF_SECTIONS; i++) {
		(void)section(all, usual, i, &n);
		gguf_item_i32(k, (int32_t)n);
	}
}

/* ---- Qwen3-VL ---- */

void gguf_qwen3_vl_check(const struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = gguf_rope_of(r);

	/* Its default has changed, and without sections the converter's file cannot be loaded. */
	if (!config_get(&rope, "rope_theta").d)
		(void)config_number(r, "rope_theta");
	gguf_sections_check(c->a.head_dim / 2, NULL, r);
}

/* Pictures are added to the first layers, a part to each: how many there are. */
void gguf_qwen3_vl_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct jval vision = jval_get(jdoc_root(&c->json), "vision_config");
	struct jval layers = jval_given(jval_get(vision, "deepstack_visual_indexes"));

	gguf_sections_put(c, NULL, k);
	/* The default of transformers' class is 8, 16 and 24. */
	gguf_u32(k, ".n_deepstack_layers", layers.d ? (uint32_t)jval_size(layers) : 3);
}

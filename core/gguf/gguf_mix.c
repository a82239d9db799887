/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_mix.h"

#include "gguf/gguf_write.h"
#include "tensor/arch.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const struct gguf_mix gguf_mixes[GGUF_N_MIXES] = {
	{ "f32", GGML_F32, 0, MIX_EVEN },	{ "f16", GGML_F16, 1, MIX_EVEN },
	{ "bf16", GGML_BF16, 32, MIX_EVEN },	{ "q8_0", GGML_Q8_0, 7, MIX_EVEN },
	{ "q4_0", GGML_Q4_0, 2, MIX_EVEN },	{ "q4_1", GGML_Q4_1, 3, MIX_EVEN },
	{ "q5_0", GGML_Q5_0, 8, MIX_EVEN },	{ "q5_1", GGML_Q5_1, 9, MIX_EVEN },
	{ "q4_k_s", GGML_Q4_K, 14, MIX_SMALL }, { "q4_k_m", GGML_Q4_K, 15, MIX_MEDIUM },
	{ "q5_k_s", GGML_Q5_K, 16, MIX_EVEN },	{ "q5_k_m", GGML_Q5_K, 17, MIX_MEDIUM },
	{ "q6_k", GGML_Q6_K, 18, MIX_EVEN },	{ "mxfp4", GGML_MXFP4, 38, MIX_EVEN },
};

const struct gguf_mix *gguf_mix_of(enum ggml_type elements)
{
	const struct gguf_mix *m = gguf_mixes;

	while (m->base != elements)
		m++;
	return m;
}

struct choosing {
	const struct gguf_mix *m;
	const struct arch *a;
	bool tied; /* there is no output.weight */
};

static bool has(const struct gguf_tensor *t, const char *part)
{
	return strstr(t->name, part);
}

/* The first and last eighth of the layers, and every third between. */
static bool more_bits(uint64_t layer, uint64_t layers)
{
	return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* Is it what llama.cpp takes for a 70B? 8 heads share its values, so they are small. */
static bool is_70b(const struct arch *a)
{
	const char *name = a->gguf;

	if (a->layers != 80)
		return false;
	return !strcmp(name, "qwen2") || (!strcmp(name, "llama") && a->heads != a->kv_heads);
}

static enum ggml_type of_values(const struct choosing *c, uint64_t layer)
{
	enum ggml_type type = c->m->base;

	if (c->m->rule == MIX_MEDIUM && more_bits(layer, c->a->layers))
		type = GGML_Q6_K;
	else if (c->m->rule == MIX_SMALL && layer < 4)
		type = GGML_Q5_K;
	if (type == GGML_Q4_K && is_70b(c->a))
		type = GGML_Q5_K;
	return c->a->experts == 8 ? GGML_Q8_0 : type;
}

static enum ggml_type of_way_down(const struct choosing *c, uint64_t layer)
{
	if (c->m->rule == MIX_MEDIUM && more_bits(layer, c->a->layers))
		return GGML_Q6_K;
	return c->m->rule == MIX_SMALL && layer < c->a->layers / 8 ? GGML_Q5_K : c->m->base;
}

static enum ggml_type of_head(const struct choosing *c, const struct gguf_tensor *t)
{
	uint64_t columns = t->shape[t->n_dims - 1];

	if (c->m->base == GGML_MXFP4 || c->m->base == GGML_Q8_0)
		return GGML_Q8_0;
	return columns % block_type(c->m->base)->elements ? GGML_Q8_0 : GGML_Q6_K;
}

/* The type before the length of rows is considered. */
static enum ggml_type wanted(const struct choosing *c, const struct gguf_tensor *t)
{
	uint64_t layer = 0;

	if (!strcmp(t->name, "output.weight") || (c->tied && !strcmp(t->name, "token_embd.weight")))
		return of_head(c, t);
	if (c->m->base == GGML_MXFP4) /* experts only */
		return t->n_dims == 3 && t->shape[0] > 1 ? GGML_MXFP4 : GGML_Q8_0;
	if (!strncmp(t->name, "blk.", 4))
		layer = strtoull(t->name + 4, NULL, 10);
	if (has(t, "attn_v.weight") || has(t, "attn_qkv.weight"))
		return of_values(c, layer);
	if (has(t, "attn_k.weight"))
		return c->a->experts == 8 ? GGML_Q8_0 : c->m->base;
	if (has(t, "ffn_down"))
		return of_way_down(c, layer);
	if (has(t, "attn_output.weight") && c->a->experts == 8 && c->m->base == GGML_Q4_K)
		return GGML_Q5_K;
	return c->m->base;
}

/* A type whose blocks fill rows of that many elements. */
static enum ggml_type fitting(enum ggml_type type, uint64_t columns)
{
	if (columns % block_type(type)->elements == 0)
		return type;
	type = type == GGML_Q4_K ? GGML_Q5_0 : type == GGML_Q5_K ? GGML_Q5_1 : GGML_Q8_0;
	return columns % block_type(type)->elements ? GGML_F16 : type;
}

/* As llama.cpp counts dimensions: the outermost ones are left out if they are 1. */
static bool is_vector(const struct gguf_tensor *t)
{
	for (size_t d = 0; d + 1 < t->n_dims; d++)
		if (t->shape[d] != 1)
			return false;
	return true;
}

void gguf_mix_choose(const struct gguf_mix *m, const struct arch *a, enum ggml_type plain,
		     struct gguf_tensor *t, size_t n)
{
	struct choosing c = { m, a, true };

	for (size_t i = 0; i < n; i++)
		c.tied &= strcmp(t[i].name, "output.weight") != 0;
	for (size_t i = 0; i < n; i++) {
		enum ggml_type type = m->base;

		if (t[i].type == GGML_F32)
			continue;
		if (block_type(type) && is_vector(&t[i]))
			type = plain;
		else if (block_type(type))
			type = fitting(wanted(&c, &t[i]), t[i].shape[t[i].n_dims - 1]);
		t[i].type = (uint8_t)type;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embeddings, and how they are scaled. */
#include "gguf/gguf_rope.h"
#include "base/checked.h"
#include "base/err.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <math.h>
#include <string.h>

struct config_in gguf_rope_of(struct config_in *r)
{
	struct jval v = config_object(r, "rope_parameters");

	if (!v.d)
		v = config_object(r, "rope_scaling");
	return (struct config_in){ .from = v, .whole = r };
}

const char *gguf_rope_type(struct config_in *r)
{
	return config_text(r, "rope_type", config_text(r, "type", "default"));
}

/*
 * What the frequencies of heads of 2 n elements are divided by.
 *
 * In float32, with the operations that torch performs for the converter, in their order: a number
 * over a tensor is the number times its reciprocal.
 */
static void llama3_factors(const struct gguf_llama3 *s, float theta, float *v, size_t n)
{
	float low_wave = (float)(s->old / (double)s->low);
	float high_wave = (float)(s->old / (double)s->high);

	for (size_t i = 0; i < n; i++) {
		float freq = 1 / powf(theta, (float)(2 * i) / (float)(2 * n));
		float wave = 1 / freq * (float)(2 * M_PI);
		float smooth = (1 / wave * (float)s->old - s->low) / (s->high - s->low);

		v[i] = wave < high_wave	 ? 1
		       : wave > low_wave ? s->factor
					 : 1 / ((1 - smooth) / s->factor + smooth);
	}
}

bool gguf_llama3_find(float theta, const float *v, size_t n, struct gguf_llama3 *ret)
{
	float made[GGUF_MAX_ROPE];

	*ret = (struct gguf_llama3){ .low = 1, .high = 4, .old = 8192 };
	for (size_t i = 0; i < n; i++)
		ret->factor = fmaxf(ret->factor, v[i]); /* slow ones are divided by all of it */
	llama3_factors(ret, theta, made, n);
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(v[i] - made[i]) <= 1e-5F * made[i])) /* powf may be another library's */
			return false;
	return true;
}

static void read_llama3(struct gguf_config *c, struct config_in *r)
{
	const struct gguf_llama3 s = {
		.factor = (float)config_number_or(r, "factor", 8),
		.low = (float)config_number_or(r, "low_freq_factor", 1),
		.high = (float)config_number_or(r, "high_freq_factor", 4),
		.old = config_number_or(r, "original_max_position_embeddings", 8192),
	};
	struct gguf_factors *f = &c->factors[0];

	if (c->a.head_dim % 2 || c->a.head_dim / 2 > GGUF_MAX_ROPE || !(s.low < s.high)) {
		config_unsupported(r, "these 'llama3' rotary embeddings");
		return;
	}
	f->name = "rope_freqs.weight";
	f->n = c->a.head_dim / 2;
	llama3_factors(&s, (float)c->theta, f->v, f->n);
	for (size_t i = 0; i < f->n; i++)
		if (!isfinite(f->v[i]) || !(f->v[i] > 0))
			config_wrong(r, "factor", "gives a frequency that does not fit a float32");
}

static const struct {
	const char *from, *key;
} yarn[] = {
	{ "extrapolation_factor", ".rope.scaling.yarn_ext_factor" },
	{ "attention_factor", ".rope.scaling.yarn_attn_factor" },
	{ "attn_factor", ".rope.scaling.yarn_attn_factor" },
	{ "beta_fast", ".rope.scaling.yarn_beta_fast" },
	{ "beta_slow", ".rope.scaling.yarn_beta_slow" },
};

static void read_yarn(const struct gguf_config *c, struct config_in *r)
{
	(void)config_count(r, "original_max_position_embeddings");
	for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
		(void)config_number_or(r, yarn[i].from, 1);
	/* llama.cpp always does. gpt-oss is published like that. */
	config_must(r, config_flag(r, "truncate", true) || c->a.kind == KIND_GPT_OSS,
		    "'truncate' is false");
	/* transformers does not read it. */
	config_must(r, config_number_or(r, "extrapolation_factor", 1) == 1,
		    "an 'extrapolation_factor' other than 1");
	if (c->a.kind & KIND_LATENT)
		return;
	/* llama.cpp multiplies its own by it, and knows 'mscale' of DeepSeek and Ministral only. */
	config_must(r, !config_get(r, "attention_factor").d && !config_get(r, "attn_factor").d,
		    "an 'attention_factor' of yarn");
	config_must(r,
		    !config_get(r, "mscale").d || !config_get(r, "mscale_all_dim").d ||
			    gguf_is_ministral3(c),
		    "'mscale' and 'mscale_all_dim'");
}

double gguf_rope_partial(struct config_in *r, struct config_in *rope, double otherwise)
{
	double x = config_number_or(rope, "partial_rotary_factor",
				    config_number_or(r, "partial_rotary_factor", otherwise));

	config_must(rope, x <= 1, "a 'partial_rotary_factor' of more than 1");
	return x <= 1 ? x : 1; /* so that products with it still fit an integer */
}

void gguf_rope_check(struct gguf_config *c, struct config_in *r)
{
	bool partial = c->a.kind & (KIND_GLM4 | KIND_GLM4_MOE | KIND_LINEAR);
	struct config_in rope = gguf_rope_of(r);
	const char *type = gguf_rope_type(&rope);
	double part;

	c->theta = config_number_or(&rope, "rope_theta",
				    config_number_or(r, "rope_theta", c->a.family->theta));
	if (!strcmp(type, "llama3") && c->a.kind & (KIND_LLAMA | KIND_MIXTRAL))
		read_llama3(c, &rope);
	else if (!strcmp(type, "linear") || !strcmp(type, "yarn"))
		(void)config_number(&rope, "factor");
	else if (strcmp(type, "default") != 0 && !r->rc)
		r->rc = err_set(r->e, ERR_UNSUPPORTED,
				"config.json: rotary embeddings of type '%.60s' are not supported",
				type);
	if (!strcmp(type, "yarn"))
		read_yarn(c, &rope);
	part = gguf_rope_partial(r, &rope, c->a.kind & KIND_LINEAR ? 0.25 : partial ? 0.5 : 1);
	config_must(&rope, partial || part == 1, "partial rotary embeddings");
	if (partial)
		c->rotated = (uint64_t)((double)c->a.head_dim * part);
	else if (c->a.kind & (KIND_LLAMAS | KIND_MIXTRAL | KIND_GRANITE_MOE))
		c->rotated = c->a.head_dim;
	config_must(&rope, c->rotated % 2 == 0, "an odd number of elements to rotate");
	config_must(&rope, !partial || c->rotated, "no elements to rotate");
}

void gguf_rope_put(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { .from = c->text, .e = &e }, r = gguf_rope_of(&all);
	const char *type = gguf_rope_type(&r);
	double x;

	gguf_f32(k, ".rope.freq_base", c->theta);
	if (c->rotated)
		gguf_u32(k, ".rope.dimension_count", (uint32_t)c->rotated);
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
		return;
	gguf_str(k, ".rope.scaling.type", type, strlen(type));
	gguf_f32(k, ".rope.scaling.factor", config_number(&r, "factor"));
	if (!strcmp(type, "linear"))
		return;
	gguf_u32(k, ".rope.scaling.original_context_length",
		 (uint32_t)config_count(&r, "original_max_position_embeddings"));
	if (jval_is_bool(config_get(&r, "truncate")))
		gguf_bool(k, ".rope.scaling.yarn_truncate",
			  jval_is(config_get(&r, "truncate"), J_TRUE));
	for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
		if (jval_number(config_get(&r, yarn[i].from), &x) &&
		    (strcmp(yarn[i].from, "attn_factor") != 0 ||
		     !config_get(&r, "attention_factor").d))
			gguf_f32(k, yarn[i].key, x);
}

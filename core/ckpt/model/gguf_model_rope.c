/* SPDX-License-Identifier: Apache-2.0 */
/* rope_scaling of config.json: from keys, or from tensors with factors. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/computed/peek.h"
#include "ckpt/model/gguf_model_internal.h"
#include "codec/cast.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_rope.h"
#include "index/catalog_query.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A tensor with a factor for each pair of elements that is rotated: how many; 0: there is none, or
 * none that can be used. */
static size_t factors_of(struct gguf_reading *r, const char *name, float v[GGUF_MAX_ROPE])
{
	const struct catalog_tensor *t = gguf_tensor_of(r, name);
	uint8_t raw[4 * GGUF_MAX_ROPE];
	struct ckpt_err why = { 0 };
	int rc;

	if (!t)
		return 0;
	if (t->dtype != CKPT_DTYPE_F32 || t->n_dims != 1 || t->shape[0] > GGUF_MAX_ROPE ||
	    gguf_rotated(r) / 2 != t->shape[0]) {
		gguf_no_config(r, "'%s' has shape %s (%s)", name, TUPLE_TEXT(t->shape, t->n_dims),
			       dtype_info((enum ckpt_dtype)t->dtype)->name);
		return 0;
	}
	rc = r->peek->read(r->peek->arg, (uint32_t)(t - r->t), raw, 4 * t->shape[0], &why);
	*r->no_memory |= rc == -ENOMEM;
	if (rc) {
		gguf_no_config(r, "'%s' cannot be read%s%.150s", name, *why.msg ? ": " : "",
			       why.msg);
		return 0;
	}
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F32, raw, v, t->shape[0]);
	return t->shape[0];
}

static void put_llama3(struct gguf_reading *r)
{
	float v[GGUF_MAX_ROPE];
	size_t n = factors_of(r, "rope_freqs.weight", v);
	struct gguf_llama3 s;
	double theta = 10000;

	if (!n)
		return;
	(void)gguf_number_of(r, ".rope.freq_base", &theta);
	if (!gguf_llama3_find((float)theta, v, n, &s)) {
		gguf_no_config(r,
			       "the factors of 'rope_freqs.weight' are not those of Llama 3, so "
			       "rope_scaling cannot be told; name the model's own config.json with "
			       "assets=");
		return;
	}
	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", "llama3");
	gguf_put_number(r, "factor", (double)s.factor);
	gguf_put_number(r, "low_freq_factor", (double)s.low);
	gguf_put_number(r, "high_freq_factor", (double)s.high);
	json_u64(&r->j, "original_max_position_embeddings", (uint64_t)s.old);
	json_close(&r->j);
}

static void put_factors(struct gguf_reading *r, const char *to, const char *name)
{
	float v[GGUF_MAX_ROPE];
	size_t n = factors_of(r, name, v);

	json_open_line(&r->j, to, '[');
	for (size_t i = 0; i < n; i++) {
		char text[40];

		if (!isfinite(v[i]) || !(v[i] > 0)) {
			gguf_no_config(r, "'%s' has numbers that are not positive", name);
			break;
		}
		(void)snprintf(text, sizeof(text), "%.9g", (double)v[i]);
		json_raw_n(&r->j, NULL, text, strlen(text));
	}
	json_close(&r->j);
	if (!n)
		gguf_no_config(r, "the GGUF has no tensor '%s'", name);
}

/* Phi-3's. The factor of attention follows from the lengths, in transformers too. */
static void put_longrope(struct gguf_reading *r)
{
	double now = 0, old = 0, factor = 0, usual;

	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", "longrope");
	put_factors(r, "long_factor", "rope_factors_long.weight");
	put_factors(r, "short_factor", "rope_factors_short.weight");
	json_close(&r->j);
	(void)gguf_number_of(r, ".context_length", &now);
	(void)gguf_number_of(r, ".rope.scaling.original_context_length", &old);
	if (!(old > 1) || !gguf_number_of(r, ".rope.scaling.attn_factor", &factor)) {
		gguf_no_config(
			r,
			"the GGUF has no usable keys '%s.rope.scaling.original_context_length' "
			"and '%s.rope.scaling.attn_factor'",
			r->arch, r->arch);
		return;
	}
	usual = now > old ? sqrt(1 + log(now / old) / log(old)) : 1;
	if (!(fabs(factor - usual) <= 1e-6 * usual))
		gguf_no_config(
			r,
			"the key '%s.rope.scaling.attn_factor' is %g, but for a context of %g "
			"extended from %g it should be %g",
			r->arch, factor, now, old, usual);
}

void gguf_put_scaling(struct gguf_reading *r)
{
	char type[GGUF_KEY_CAP] = "none";
	bool llama3 = gguf_tensor_of(r, "rope_freqs.weight");
	bool longrope = gguf_tensor_of(r, "rope_factors_long.weight") ||
			gguf_tensor_of(r, "rope_factors_short.weight") ||
			gguf_key_of(r, ".rope.scaling.attn_factor");
	bool keys = gguf_key_of(r, ".rope.scaling.type") &&
		    (!gguf_text_of(r, ".rope.scaling.type", type) || strcmp(type, "none") != 0);
	double scale;

	if (llama3 + longrope + keys > 1) {
		gguf_no_config(r, "the GGUF scales rotary embeddings in two ways");
		return;
	}
	if (llama3)
		put_llama3(r);
	if (longrope)
		put_longrope(r);
	if (!keys)
		return;
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0) {
		gguf_no_config(r, "rotary embeddings of type '%s' are not supported", type);
		return;
	}
	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", type);
	gguf_need(r, "factor", ".rope.scaling.factor");
	if (!strcmp(type, "yarn")) {
		gguf_need(r, "original_max_position_embeddings",
			  ".rope.scaling.original_context_length");
		(void)gguf_copy(r, "extrapolation_factor", ".rope.scaling.yarn_ext_factor");
		(void)gguf_copy(r, "attention_factor", ".rope.scaling.yarn_attn_factor");
		(void)gguf_copy(r, "beta_fast", ".rope.scaling.yarn_beta_fast");
		(void)gguf_copy(r, "beta_slow", ".rope.scaling.yarn_beta_slow");
		if (gguf_number_of(r, ".rope.scaling.yarn_log_multiplier", &scale)) {
			gguf_put_number(r, "mscale", 10 * scale);
			gguf_put_number(r, "mscale_all_dim", 10 * scale);
		}
	}
	json_close(&r->j);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_config.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* "model_max_length": 1000000000000000019884624838656 is what transformers writes for none. */
enum { FLAGS = JDOC_BIG };

static int take_json(const char *file, int rc, const struct jdoc *d, const struct ckpt_err *why,
		     struct ckpt_err *e)
{
	if (rc)
		return err_set(e, why->code == ERR_CORRUPT ? EINVAL : why->code,
			       "%s, line %zu: %.120s", file, d->line, why->msg);
	return jval_is(jdoc_root(d), J_OBJECT) ? 0
					       : err_set(e, EINVAL, "%s is not an object", file);
}

int gguf_json(const char *file, const char *text, size_t len, struct jdoc *ret, struct ckpt_err *e)
{
	struct ckpt_err why;

	return take_json(file, jdoc_parse_copy(ret, text, len, FLAGS, &why), ret, &why, e);
}

int gguf_json_in(const char *file, char *text, size_t len, struct jdoc *ret, struct ckpt_err *e)
{
	struct ckpt_err why;

	return take_json(file, jdoc_parse(ret, text, len, FLAGS, &why), ret, &why, e);
}

/* ---- rotary embeddings ---- */

/* Newer files have all in rope_parameters, older ones theta beside rope_scaling. */
static struct config_in rope_of(const struct config_in *r)
{
	struct jval v = config_get(r, "rope_parameters");

	return (struct config_in){ v.d ? v : config_get(r, "rope_scaling"), r->e, r->rc };
}

static const char *rope_type(struct config_in *r)
{
	return config_text(r, "rope_type", config_text(r, "type", "default"));
}

/*
 * The factors that frequencies are divided by, in float32 and in the order of operations that the
 * converter has torch do them: a number over a tensor is the number times its reciprocal.
 */
static void read_llama3(struct gguf_config *c, struct config_in *r)
{
	float factor = (float)config_number_or(r, "factor", 8);
	float low = (float)config_number_or(r, "low_freq_factor", 1);
	float high = (float)config_number_or(r, "high_freq_factor", 4);
	double old = config_number_or(r, "original_max_position_embeddings", 8192);
	float low_wave = (float)(old / (double)low), high_wave = (float)(old / (double)high);

	if (c->a.head_dim % 2 || c->a.head_dim / 2 > GGUF_MAX_ROPE || !(low < high)) {
		config_unsupported(r, "these 'llama3' rotary embeddings");
		return;
	}
	c->n_rope = c->a.head_dim / 2;
	for (size_t i = 0; i < c->n_rope; i++) {
		float freq = 1 / powf((float)c->theta, (float)(2 * i) / (float)c->a.head_dim);
		float wave = 1 / freq * (float)(2 * M_PI);
		float smooth = (1 / wave * (float)old - low) / (high - low);

		c->rope[i] = wave < high_wave  ? 1
			     : wave > low_wave ? factor
					       : 1 / ((1 - smooth) / factor + smooth);
		if (!isfinite(c->rope[i]) || !(c->rope[i] > 0))
			config_wrong(r, "factor", "gives a frequency that does not fit a float32");
	}
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

static void read_yarn(struct config_in *r)
{
	double x;

	(void)config_count(r, "original_max_position_embeddings");
	for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
		if (jval_number(config_get(r, yarn[i].from), &x) && !isfinite((float)x))
			config_wrong(r, yarn[i].from, "is not a number that fits a float32");
}

static void read_rope(struct gguf_config *c, struct config_in *r)
{
	struct config_in rope = rope_of(r);
	const char *type = rope_type(&rope);

	c->theta = config_number_or(&rope, "rope_theta",
				    config_number_or(r, "rope_theta", c->a.family->theta));
	if (!strcmp(type, "llama3") && c->a.kind & (KIND_LLAMA | KIND_MIXTRAL))
		read_llama3(c, &rope);
	else if (!strcmp(type, "linear") || !strcmp(type, "yarn"))
		(void)config_number(&rope, "factor");
	else if (strcmp(type, "default") != 0 && !rope.rc)
		rope.rc = err_set(
			r->e, ERR_UNSUPPORTED,
			"config.json: rotary embeddings of type '%.60s' are not supported", type);
	if (!strcmp(type, "yarn"))
		read_yarn(&rope);
	config_must(&rope,
		    config_number_or(&rope, "partial_rotary_factor", 1) == 1 &&
			    config_number_or(r, "partial_rotary_factor", 1) == 1,
		    "partial rotary embeddings");
	if (!r->rc)
		r->rc = rope.rc;
}

static void put_rope(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct config_in all = { jdoc_root(&c->json), &e, 0 }, r = rope_of(&all);
	const char *type = rope_type(&r);
	double x;

	gguf_f32(k, ".rope.freq_base", c->theta);
	if (c->a.kind & (KIND_LLAMA | KIND_MIXTRAL))
		gguf_u32(k, ".rope.dimension_count", (uint32_t)c->a.head_dim);
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

/* ---- the rest ---- */

static void check_gpt2(struct gguf_config *c, struct config_in *r)
{
	const char *act = config_text(r, "activation_function", "gelu_new");

	c->eps = config_number(r, "layer_norm_epsilon");
	config_must(r, !strcmp(act, "gelu_new") || !strcmp(act, "gelu_pytorch_tanh"),
		    "an 'activation_function' other than gelu_new");
	config_must(r, config_flag(r, "scale_attn_weights", true), "'scale_attn_weights' is false");
	config_must(r, !config_flag(r, "scale_attn_by_inverse_layer_idx", false),
		    "'scale_attn_by_inverse_layer_idx' is true");
	config_must(r, !config_flag(r, "add_cross_attention", false),
		    "'add_cross_attention' is true");
}

static void check_experts(struct gguf_config *c, struct config_in *r)
{
	bool norm = config_flag(r, "norm_topk_prob", false);

	if (c->a.kind != KIND_MIXTRAL) {
		config_must(r, !c->a.dense, "layers without experts among those that have some");
		/* What llama.cpp does without being asked. */
		config_must(r, norm == (c->a.kind == KIND_QWEN3_MOE),
			    norm ? "'norm_topk_prob' is true" : "'norm_topk_prob' is not true");
	}
	c->experts_used = config_count(r, "num_experts_per_tok");
}

static void check_decoder(struct gguf_config *c, struct config_in *r)
{
	const char *act = config_text(r, "hidden_act", "silu");

	c->eps = config_number(r, "rms_norm_eps");
	config_must(r, !strcmp(act, "silu") || !strcmp(act, "swish"),
		    "a 'hidden_act' other than silu");
	if (c->a.kind & KIND_EXPERTS)
		check_experts(c, r);
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	read_rope(c, r);
}

int gguf_config_read(const char *text, size_t len, struct gguf_config *ret, struct ckpt_err *e)
{
	struct config_in r = { { 0 }, e, 0 };
	int rc;

	*ret = (struct gguf_config){ 0 };
	rc = gguf_json("config.json", text, len, &ret->json, e);
	if (rc)
		return rc;
	r.from = jdoc_root(&ret->json);
	rc = arch_read(&r, &ret->a);
	if (rc)
		return rc;
	ret->arch = ret->a.family->gguf;
	if (!ret->arch)
		return err_set(e, ERR_UNSUPPORTED, "config.json: gguf/ does not know '%s'",
			       ret->a.family->class);
	config_must(&r, !config_get(&r, "quantization_config").d, "quantised weights");
	if (ret->a.kind == KIND_GPT2)
		check_gpt2(ret, &r);
	else if (ret->a.kind & (KIND_GEMMA2 | KIND_GEMMA3))
		gguf_gemma_check(ret, &r);
	else
		check_decoder(ret, &r);
	return r.rc;
}

void gguf_config_release(struct gguf_config *c)
{
	arch_release(&c->a);
	jdoc_release(&c->json);
}

static void put_llama_like(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".attention.head_count_kv", (uint32_t)c->a.kv_heads);
	gguf_f32(k, ".attention.layer_norm_rms_epsilon", c->eps);
	gguf_u32(k, ".attention.key_length", (uint32_t)c->a.head_dim);
	gguf_u32(k, ".attention.value_length", (uint32_t)c->a.head_dim);
	put_rope(c, k);
	if (c->a.experts) {
		gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
		gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
	}
	if (c->a.kind & (KIND_QWEN2_MOE | KIND_QWEN3_MOE))
		gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->a.expert_ffn);
	if (c->a.shared_ffn)
		gguf_u32(k, ".expert_shared_feed_forward_length", (uint32_t)c->a.shared_ffn);
}

void gguf_config_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".block_count", (uint32_t)c->a.layers);
	gguf_u32(k, ".context_length", (uint32_t)c->a.positions);
	gguf_u32(k, ".embedding_length", (uint32_t)c->a.hidden);
	gguf_u32(k, ".feed_forward_length", (uint32_t)c->a.ffn);
	gguf_u32(k, ".attention.head_count", (uint32_t)c->a.heads);
	gguf_u32(k, ".vocab_size", (uint32_t)c->a.vocab);
	if (c->a.kind == KIND_GPT2)
		gguf_f32(k, ".attention.layer_norm_epsilon", c->eps);
	else if (c->a.kind & (KIND_GEMMA2 | KIND_GEMMA3))
		gguf_gemma_put(c, k);
	else
		put_llama_like(c, k);
}

/* ---- generation_config.json ---- */

int gguf_sampling_put(const char *text, size_t len, struct gguf_keys *k, struct ckpt_err *e)
{
	static const struct {
		const char *from, *key;
		bool whole;
	} known[] = {
		{ "top_k", "general.sampling.top_k", true },
		{ "top_p", "general.sampling.top_p", false },
		{ "min_p", "general.sampling.min_p", false },
		{ "temperature", "general.sampling.temp", false },
		{ "repetition_penalty", "general.sampling.penalty_repeat", false },
	};
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	int rc = gguf_json("generation_config.json", text, len, &d, e);

	for (size_t i = 0; !rc && i < ARRAY_LEN(known); i++) {
		struct jval v = jval_get(jdoc_root(&d), known[i].from);
		int64_t n;
		double x;

		if (known[i].whole && jval_int(v, &n) && n >= 0 && n <= INT32_MAX)
			gguf_i32(k, known[i].key, (int32_t)n);
		else if (!known[i].whole && config_is_float(v, &x))
			gguf_f32(k, known[i].key, x);
		else if (!known[i].whole && jval_number(v, &x))
			rc = err_set(e, EINVAL,
				     "generation_config.json: '%s' is not a number that fits a "
				     "float32",
				     known[i].from);
	}
	return rc;
}

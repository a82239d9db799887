/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_config.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "gguf/gguf_config_internal.h"
#include "gguf/gguf_write.h"
#include "tensor/config_values.h"

#include <errno.h>
#include <string.h>

/* transformers writes "model_max_length": 1000000000000000019884624838656 for none, and
 * "time_step_limit": [0.0, Infinity]. */
enum { FLAGS = JDOC_BIG | JDOC_PYTHON };

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

/* ---- families without a file of their own ---- */

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
		/* llama.cpp does this, whatever a file says. */
		config_must(r, norm == (c->a.kind == KIND_QWEN3_MOE),
			    norm ? "'norm_topk_prob' is true" : "'norm_topk_prob' is not true");
	}
	c->experts_used = config_count(r, "num_experts_per_tok");
}

void gguf_silu_check(struct config_in *r)
{
	const char *act = config_text(r, "hidden_act", "silu");

	config_must(r, !strcmp(act, "silu") || !strcmp(act, "swish"),
		    "a 'hidden_act' other than silu");
}

static bool is_qwen3_vl(const struct gguf_config *c)
{
	return c->a.whole && !strcmp(c->a.whole->text, "qwen3_vl_text");
}

static void check_decoder(struct gguf_config *c, struct config_in *r)
{
	c->eps = config_number(r, "rms_norm_eps");
	gguf_silu_check(r);
	if (c->a.kind & KIND_EXPERTS)
		check_experts(c, r);
	config_must(r, c->a.head_dim % 2 == 0, "heads of an odd size");
	gguf_rope_check(c, r);
	if (is_qwen3_vl(c))
		gguf_qwen3_vl_check(c, r);
	if (gguf_is_ministral3(c))
		gguf_ministral3_check(r);
}

static void put_gpt2(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_f32(k, ".attention.layer_norm_epsilon", c->eps);
}

static void put_decoder(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_attention_put(c, k);
	gguf_rope_put(c, k);
	if (is_qwen3_vl(c))
		gguf_qwen3_vl_put(c, k);
	if (gguf_is_ministral3(c))
		gguf_ministral3_put(c, k);
	if (c->a.experts) {
		gguf_u32(k, ".expert_count", (uint32_t)c->a.experts);
		gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
	}
	if (c->a.kind & (KIND_QWEN2_MOE | KIND_QWEN3_MOE))
		gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->a.expert_ffn);
	if (c->a.shared_ffn)
		gguf_u32(k, ".expert_shared_feed_forward_length", (uint32_t)c->a.shared_ffn);
}

/* ---- all ---- */

static const struct family {
	unsigned kinds;
	void (*check)(struct gguf_config *c, struct config_in *r);
	void (*put)(const struct gguf_config *c, struct gguf_keys *k);
} families[] = {
	{ KIND_GPT2, check_gpt2, put_gpt2 },
	{ KIND_GEMMA, gguf_gemma1_check, gguf_gemma1_put },
	{ KIND_GRANITE, gguf_granite_check, gguf_granite_put },
	{ KIND_GRANITE_MOE, gguf_granite_moe_check, gguf_granite_moe_put },
	{ KIND_COHERE, gguf_cohere_check, gguf_cohere_put },
	{ KIND_SMOLLM3, gguf_smollm3_check, gguf_smollm3_put },
	{ KIND_OLMO2, gguf_olmo2_check, gguf_olmo2_put },
	{ KIND_GEMMA2 | KIND_GEMMA3, gguf_gemma_check, gguf_gemma_put },
	{ KIND_PHI3, gguf_phi3_check, gguf_phi3_put },
	{ KIND_GLM4 | KIND_GLM4_MOE, gguf_glm4_check, gguf_glm4_put },
	{ KIND_LINEAR, gguf_qwen_linear_check, gguf_qwen_linear_put },
	{ KIND_GPT_OSS, gguf_gpt_oss_check, gguf_gpt_oss_put },
	{ KIND_DEEPSEEK_V2 | KIND_DEEPSEEK_V3, gguf_deepseek_check, gguf_deepseek_put },
	{ ~0u, check_decoder, put_decoder },
};

static const struct family *family_of(enum arch_kind kind)
{
	const struct family *f = families;

	while (!(f->kinds & kind))
		f++;
	return f;
}

int gguf_config_read(const char *text, size_t len, struct gguf_config *ret, struct ckpt_err *e)
{
	struct config_in r = { .e = e }, root = r;
	int rc;

	*ret = (struct gguf_config){ 0 };
	rc = gguf_json("config.json", text, len, &ret->json, e);
	if (rc)
		return rc;
	root.from = r.from = jdoc_root(&ret->json);
	rc = arch_read(&r, &ret->a);
	if (rc)
		return rc;
	ret->text = r.from;
	ret->arch = ret->a.gguf;
	if (!ret->arch)
		return err_set(e, ERR_UNSUPPORTED, "config.json: gguf/ does not support '%s'",
			       arch_class(&ret->a));
	config_must(&r, !config_get(&root, "quantization_config").d, "quantised weights");
	config_must(&r, !config_get(&r, "quantization_config").d, "quantised weights");
	family_of(ret->a.kind)->check(ret, &r);
	return r.rc;
}

void gguf_config_release(struct gguf_config *c)
{
	arch_release(&c->a);
	jdoc_release(&c->json);
}

void gguf_attention_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".attention.head_count_kv", (uint32_t)c->a.kv_heads);
	gguf_f32(k, ".attention.layer_norm_rms_epsilon", c->eps);
	gguf_u32(k, ".attention.key_length", (uint32_t)c->a.head_dim);
	gguf_u32(k, ".attention.value_length", (uint32_t)c->a.head_dim);
}

void gguf_config_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".block_count", (uint32_t)c->a.layers);
	gguf_u32(k, ".context_length", (uint32_t)c->a.positions);
	gguf_u32(k, ".embedding_length", (uint32_t)c->a.hidden);
	if (c->a.ffn)
		gguf_u32(k, ".feed_forward_length", (uint32_t)c->a.ffn);
	gguf_u32(k, ".attention.head_count", (uint32_t)c->a.heads);
	gguf_u32(k, ".vocab_size", (uint32_t)c->a.vocab);
	family_of(c->a.kind)->put(c, k);
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

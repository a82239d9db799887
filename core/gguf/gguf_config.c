/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_config.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "gguf/gguf_write.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const struct family {
	const char *class, *type, *arch;
	enum gguf_kind kind;
	double theta; /* of rotary embeddings where the file has none */
	bool tied;
} families[] = {
	{ "LlamaForCausalLM", "llama", "llama", KIND_LLAMA, 1e4, false },
	{ "MistralForCausalLM", "mistral", "llama", KIND_LLAMA, 1e4, false },
	{ "MixtralForCausalLM", "mixtral", "llama", KIND_MIXTRAL, 1e6, false },
	{ "Qwen2ForCausalLM", "qwen2", "qwen2", KIND_QWEN2, 1e4, false },
	{ "Qwen3ForCausalLM", "qwen3", "qwen3", KIND_QWEN3, 1e4, false },
	{ "Qwen2MoeForCausalLM", "qwen2_moe", "qwen2moe", KIND_QWEN2_MOE, 1e4, false },
	{ "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", KIND_QWEN3_MOE, 1e4, false },
	{ "GPT2LMHeadModel", "gpt2", "gpt2", KIND_GPT2, 0, true },
};

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

/* ---- single values; the first that is wrong sticks ---- */

struct reading {
	struct jval from;
	struct ckpt_err *e;
	int rc;
};

/* No value for null. */
static struct jval get(const struct reading *r, const char *key)
{
	return jval_given(jval_get(r->from, key));
}

static void wrong(struct reading *r, const char *key, const char *what)
{
	if (!r->rc)
		r->rc = err_set(r->e, EINVAL, "config.json: '%s' %s", key, what);
}

static void missing(struct reading *r, const char *key)
{
	if (!r->rc)
		r->rc = err_set(r->e, EINVAL, "config.json has no '%s'", key);
}

/* A whole number that llama.cpp has room for, not 0. */
static uint64_t count_or(struct reading *r, const char *key, uint64_t otherwise)
{
	struct jval v = get(r, key);
	int64_t n;

	if (!v.d)
		return otherwise;
	if (!jval_int(v, &n) || n <= 0 || n > INT32_MAX) {
		wrong(r, key, "is not a number from 1 to 2147483647");
		return 1;
	}
	return (uint64_t)n;
}

static uint64_t count(struct reading *r, const char *key)
{
	uint64_t v = count_or(r, key, 0);

	if (!v)
		missing(r, key);
	return v ? v : 1;
}

/* A number that float32 has, which is what llama.cpp reads. */
static bool is_float(struct jval v, double *ret)
{
	return jval_number(v, ret) && isfinite((float)*ret);
}

/* A number above 0. */
static double number_or(struct reading *r, const char *key, double otherwise)
{
	struct jval v = get(r, key);
	double x;

	if (!v.d)
		return otherwise;
	if (!is_float(v, &x) || !((float)x > 0)) {
		wrong(r, key, "is not a number above 0 that fits a float32");
		return 1;
	}
	return x;
}

static double number(struct reading *r, const char *key)
{
	double v = number_or(r, key, 0);

	if (v == 0)
		missing(r, key);
	return v;
}

static bool flag_or(struct reading *r, const char *key, bool otherwise)
{
	struct jval v = get(r, key);

	if (v.d && !jval_is_bool(v))
		wrong(r, key, "is neither true nor false");
	return v.d ? jval_is(v, J_TRUE) : otherwise;
}

static const char *text_or(struct reading *r, const char *key, const char *otherwise)
{
	struct jval v = get(r, key);

	if (v.d && !jval_is(v, J_STRING)) {
		wrong(r, key, "is not a string");
		return otherwise;
	}
	return v.d ? jval_str(v) : otherwise;
}

static void unsupported(struct reading *r, const char *what)
{
	if (!r->rc)
		r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: not supported: %s", what);
}

static void must_be(struct reading *r, bool ok, const char *what)
{
	if (!ok)
		unsupported(r, what);
}

/* ---- which model it is ---- */

static const struct family *find_family(struct reading *r)
{
	const char *class = jval_str(jval_at(get(r, "architectures"), 0));
	const char *type = text_or(r, "model_type", NULL);

	for (size_t i = 0; i < ARRAY_LEN(families); i++)
		if (class ? !strcmp(class, families[i].class)
			  : type && !strcmp(type, families[i].type))
			return &families[i];
	if (!r->rc && !class && !type)
		r->rc = err_set(r->e, EINVAL,
				"config.json has no 'architectures' and no 'model_type'");
	if (!r->rc)
		r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: %s '%.80s' is not supported",
				class ? "architecture" : "model_type", class ? class : type);
	return NULL;
}

/* ---- rotary embeddings ---- */

/* Newer files have all in rope_parameters, older ones theta beside rope_scaling. */
static struct reading rope_of(const struct reading *r)
{
	struct jval v = get(r, "rope_parameters");

	return (struct reading){ v.d ? v : get(r, "rope_scaling"), r->e, r->rc };
}

static const char *rope_type(struct reading *r)
{
	return text_or(r, "rope_type", text_or(r, "type", "default"));
}

/*
 * The factors that frequencies are divided by, in float32 and in the order of operations that the
 * converter has torch do them: a number over a tensor is the number times its reciprocal.
 */
static void read_llama3(struct gguf_config *c, struct reading *r)
{
	float factor = (float)number_or(r, "factor", 8);
	float low = (float)number_or(r, "low_freq_factor", 1);
	float high = (float)number_or(r, "high_freq_factor", 4);
	double old = number_or(r, "original_max_position_embeddings", 8192);
	float low_wave = (float)(old / (double)low), high_wave = (float)(old / (double)high);

	if (c->head_dim % 2 || c->head_dim / 2 > GGUF_MAX_ROPE || !(low < high)) {
		unsupported(r, "these 'llama3' rotary embeddings");
		return;
	}
	c->n_rope = c->head_dim / 2;
	for (size_t i = 0; i < c->n_rope; i++) {
		float freq = 1 / powf((float)c->theta, (float)(2 * i) / (float)c->head_dim);
		float wave = 1 / freq * (float)(2 * M_PI);
		float smooth = (1 / wave * (float)old - low) / (high - low);

		c->rope[i] = wave < high_wave  ? 1
			     : wave > low_wave ? factor
					       : 1 / ((1 - smooth) / factor + smooth);
		if (!isfinite(c->rope[i]) || !(c->rope[i] > 0))
			wrong(r, "factor", "gives a frequency that does not fit a float32");
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

static void read_yarn(struct reading *r)
{
	double x;

	(void)count(r, "original_max_position_embeddings");
	for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
		if (jval_number(get(r, yarn[i].from), &x) && !isfinite((float)x))
			wrong(r, yarn[i].from, "is not a number that fits a float32");
}

static void read_rope(struct gguf_config *c, const struct family *f, struct reading *r)
{
	struct reading rope = rope_of(r);
	const char *type = rope_type(&rope);

	c->theta = number_or(&rope, "rope_theta", number_or(r, "rope_theta", f->theta));
	if (!strcmp(type, "llama3") && f->kind & (KIND_LLAMA | KIND_MIXTRAL))
		read_llama3(c, &rope);
	else if (!strcmp(type, "linear") || !strcmp(type, "yarn"))
		(void)number(&rope, "factor");
	else if (strcmp(type, "default") != 0 && !rope.rc)
		rope.rc = err_set(
			r->e, ERR_UNSUPPORTED,
			"config.json: rotary embeddings of type '%.60s' are not supported", type);
	if (!strcmp(type, "yarn"))
		read_yarn(&rope);
	must_be(&rope,
		number_or(&rope, "partial_rotary_factor", 1) == 1 &&
			number_or(r, "partial_rotary_factor", 1) == 1,
		"partial rotary embeddings");
	if (!r->rc)
		r->rc = rope.rc;
}

static void put_rope(const struct gguf_config *c, struct gguf_keys *k)
{
	struct ckpt_err e;
	struct reading all = { jdoc_root(&c->json), &e, 0 }, r = rope_of(&all);
	const char *type = rope_type(&r);
	double x;

	gguf_f32(k, ".rope.freq_base", c->theta);
	if (c->kind & (KIND_LLAMA | KIND_MIXTRAL))
		gguf_u32(k, ".rope.dimension_count", (uint32_t)c->head_dim);
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
		return;
	gguf_str(k, ".rope.scaling.type", type, strlen(type));
	gguf_f32(k, ".rope.scaling.factor", number(&r, "factor"));
	if (!strcmp(type, "linear"))
		return;
	gguf_u32(k, ".rope.scaling.original_context_length",
		 (uint32_t)count(&r, "original_max_position_embeddings"));
	if (jval_is_bool(get(&r, "truncate")))
		gguf_bool(k, ".rope.scaling.yarn_truncate", jval_is(get(&r, "truncate"), J_TRUE));
	for (size_t i = 0; i < ARRAY_LEN(yarn); i++)
		if (jval_number(get(&r, yarn[i].from), &x) &&
		    (strcmp(yarn[i].from, "attn_factor") != 0 || !get(&r, "attention_factor").d))
			gguf_f32(k, yarn[i].key, x);
}

/* ---- the rest ---- */

static void read_gpt2(struct gguf_config *c, struct reading *r)
{
	const char *act = text_or(r, "activation_function", "gelu_new");

	c->layers = count(r, "n_layer");
	c->positions = count_or(r, "n_positions", 0);
	if (!c->positions)
		c->positions = count(r, "n_ctx");
	c->hidden = count(r, "n_embd");
	c->heads = c->kv_heads = count(r, "n_head");
	c->ffn = count_or(r, "n_inner", 4 * c->hidden);
	c->eps = number(r, "layer_norm_epsilon");
	must_be(r, !strcmp(act, "gelu_new") || !strcmp(act, "gelu_pytorch_tanh"),
		"an 'activation_function' other than gelu_new");
	must_be(r, flag_or(r, "scale_attn_weights", true), "'scale_attn_weights' is false");
	must_be(r, !flag_or(r, "scale_attn_by_inverse_layer_idx", false),
		"'scale_attn_by_inverse_layer_idx' is true");
	must_be(r, !flag_or(r, "add_cross_attention", false), "'add_cross_attention' is true");
}

static void read_experts(struct gguf_config *c, struct reading *r)
{
	bool norm = flag_or(r, "norm_topk_prob", false);

	if (c->kind == KIND_MIXTRAL) {
		c->experts = count(r, "num_local_experts");
		c->expert_ffn = c->ffn;
	} else {
		const char *key =
			get(r, "num_local_experts").d ? "num_local_experts" : "num_experts";

		c->experts = count(r, key);
		c->expert_ffn = count(r, "moe_intermediate_size");
		must_be(r,
			count_or(r, "decoder_sparse_step", 1) == 1 &&
				!jval_size(get(r, "mlp_only_layers")),
			"layers without experts among those that have some");
		/* What llama.cpp does without being asked. */
		must_be(r, norm == (c->kind == KIND_QWEN3_MOE),
			norm ? "'norm_topk_prob' is true" : "'norm_topk_prob' is not true");
	}
	if (c->kind == KIND_QWEN2_MOE)
		c->shared_ffn = count(r, "shared_expert_intermediate_size");
	c->experts_used = count(r, "num_experts_per_tok");
}

static void read_llama_like(struct gguf_config *c, struct reading *r)
{
	const char *act = text_or(r, "hidden_act", "silu");

	c->layers = count(r, "num_hidden_layers");
	c->positions = count(r, "max_position_embeddings");
	c->hidden = count(r, "hidden_size");
	c->heads = count(r, "num_attention_heads");
	c->kv_heads = c->kind == KIND_LLAMA ? count_or(r, "num_key_value_heads", c->heads)
					    : count(r, "num_key_value_heads");
	c->ffn = count(r, "intermediate_size");
	c->eps = number(r, "rms_norm_eps");
	must_be(r, !strcmp(act, "silu") || !strcmp(act, "swish"), "a 'hidden_act' other than silu");
	if (c->kind & KIND_EXPERTS)
		read_experts(c, r);
}

/* c->heads, c->hidden are there; everything else about heads follows. */
static void read_heads(struct gguf_config *c, struct reading *r)
{
	if (c->kind & (KIND_QWEN3 | KIND_QWEN3_MOE)) {
		c->head_dim = count(r, "head_dim");
	} else {
		must_be(r, get(r, "head_dim").d || c->hidden % c->heads == 0,
			"'hidden_size' is not a multiple of the number of heads");
		c->head_dim = count_or(r, "head_dim", c->hidden / c->heads);
	}
	must_be(r, c->heads % c->kv_heads == 0,
		"the number of heads is not a multiple of 'num_key_value_heads'");
	must_be(r, c->kind == KIND_GPT2 || c->head_dim % 2 == 0, "heads of an odd size");
}

int gguf_config_read(const char *text, size_t len, struct gguf_config *ret, struct ckpt_err *e)
{
	struct reading r = { { 0 }, e, 0 };
	const struct family *f;
	int rc;

	*ret = (struct gguf_config){ 0 };
	rc = gguf_json("config.json", text, len, &ret->json, e);
	if (rc)
		return rc;
	r.from = jdoc_root(&ret->json);
	f = find_family(&r);
	if (!f)
		return r.rc;
	ret->kind = f->kind;
	ret->arch = f->arch;
	must_be(&r, !get(&r, "quantization_config").d, "quantised weights");
	ret->vocab = count(&r, "vocab_size");
	ret->tied = flag_or(&r, "tie_word_embeddings", f->tied);
	if (f->kind == KIND_GPT2)
		read_gpt2(ret, &r);
	else
		read_llama_like(ret, &r);
	read_heads(ret, &r);
	if (f->kind != KIND_GPT2)
		read_rope(ret, f, &r);
	return r.rc;
}

void gguf_config_release(struct gguf_config *c)
{
	jdoc_release(&c->json);
}

static void put_llama_like(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".attention.head_count_kv", (uint32_t)c->kv_heads);
	gguf_f32(k, ".attention.layer_norm_rms_epsilon", c->eps);
	gguf_u32(k, ".attention.key_length", (uint32_t)c->head_dim);
	gguf_u32(k, ".attention.value_length", (uint32_t)c->head_dim);
	put_rope(c, k);
	if (c->experts) {
		gguf_u32(k, ".expert_count", (uint32_t)c->experts);
		gguf_u32(k, ".expert_used_count", (uint32_t)c->experts_used);
	}
	if (c->kind & (KIND_QWEN2_MOE | KIND_QWEN3_MOE))
		gguf_u32(k, ".expert_feed_forward_length", (uint32_t)c->expert_ffn);
	if (c->shared_ffn)
		gguf_u32(k, ".expert_shared_feed_forward_length", (uint32_t)c->shared_ffn);
}

void gguf_config_put(const struct gguf_config *c, struct gguf_keys *k)
{
	gguf_u32(k, ".block_count", (uint32_t)c->layers);
	gguf_u32(k, ".context_length", (uint32_t)c->positions);
	gguf_u32(k, ".embedding_length", (uint32_t)c->hidden);
	gguf_u32(k, ".feed_forward_length", (uint32_t)c->ffn);
	gguf_u32(k, ".attention.head_count", (uint32_t)c->heads);
	gguf_u32(k, ".vocab_size", (uint32_t)c->vocab);
	if (c->kind == KIND_GPT2)
		gguf_f32(k, ".attention.layer_norm_epsilon", c->eps);
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
		else if (!known[i].whole && is_float(v, &x))
			gguf_f32(k, known[i].key, x);
		else if (!known[i].whole && jval_number(v, &x))
			rc = err_set(e, EINVAL,
				     "generation_config.json: '%s' is not a number that fits a "
				     "float32",
				     known[i].from);
	}
	return rc;
}

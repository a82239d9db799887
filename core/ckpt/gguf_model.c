/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/gguf_model.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_out.h"
#include "base/text.h"
#include "ckpt/computed/peek.h"
#include "ckpt/gguf_recipe.h"
#include "codec/cast.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_rope.h"
#include "index/catalog_query.h"
#include "tensor/arch.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXT ((size_t)1 << 20) /* of the recipe, and of config.json */

enum {
	KEY_CAP = 120,
	MAX_LATENT_HEADS = 1024, /* the recipe names each */
	MAX_FURTHER = 100,	 /* likewise */
};

#define GEMMAS (KIND_GEMMA | KIND_GEMMA2 | KIND_GEMMA3)

/* The input, and what is made from it. */
struct reading {
	const struct catalog *c;
	const struct catalog_object *o;
	const struct catalog_tensor *t;
	size_t n_objects;
	char arch[KEY_CAP]; /* general.architecture */
	struct json_out j;
	struct gguf_model *ret;
	const struct peek *peek;
	bool *no_memory;
	bool failed;	  /* neither names nor a config.json can be made */
	uint64_t further; /* layers after the others that predict further tokens; left out */
};

/* The first reason counts. */
__attribute__((format(printf, 2, 3))) static void no_config(struct reading *r, const char *fmt, ...)
{
	va_list ap;

	if (*r->ret->why)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(r->ret->why, sizeof(r->ret->why), fmt, ap);
	va_end(ap);
}

/* ---- keys and tensors ---- */

/* The value of a key, JSON; NULL: there is none, or it is too large. A key that begins with a dot
 * is one of the architecture. */
static const struct catalog_object *key_of(const struct reading *r, const char *key)
{
	char name[2 * KEY_CAP];
	int64_t at;

	(void)snprintf(name, sizeof(name), "%s%s", *key == '.' ? r->arch : "", key);
	at = catalog_find_object(r->c, name, strlen(name));
	return at >= 0 && r->o[at].text ? &r->o[at] : NULL;
}

static bool parse(const struct reading *r, const struct catalog_object *o, struct jdoc *ret)
{
	struct ckpt_err why;
	int rc =
		o ? jdoc_parse_copy(ret, o->text, o->text_len, JDOC_ANY | JDOC_BIG, &why) : -ENOENT;

	*r->no_memory |= rc == -ENOMEM;
	return !rc;
}

static bool count_of(const struct reading *r, const char *key, uint64_t *ret)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return parse(r, key_of(r, key), &d) && jval_u64(jdoc_root(&d), ret);
}

static bool number_of(const struct reading *r, const char *key, double *ret)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return parse(r, key_of(r, key), &d) && jval_number(jdoc_root(&d), ret);
}

static bool flag_of(const struct reading *r, const char *key)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return parse(r, key_of(r, key), &d) && jval_is(jdoc_root(&d), J_TRUE);
}

static bool text_of(const struct reading *r, const char *key, char out[KEY_CAP])
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	const char *s = parse(r, key_of(r, key), &d) ? jval_str(jdoc_root(&d)) : NULL;

	if (!s || strlen(s) >= KEY_CAP)
		return false;
	memcpy(out, s, strlen(s) + 1);
	return true;
}

static const struct catalog_tensor *tensor_of(const struct reading *r, const char *name)
{
	int64_t at = catalog_find_tensor(r->c, name, strlen(name));

	return at < 0 ? NULL : &r->t[at];
}

/* ---- config.json ---- */

/*
 * Copies a number as it is written; false: there is no such key. If it is not a number, that is the
 * reason.
 */
static bool copy(struct reading *r, const char *to, const char *key)
{
	const struct catalog_object *o = key_of(r, key);
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	size_t len = o ? o->text_len : 0;
	double x;

	if (!o)
		return false;
	while (len && (o->text[len - 1] == '\n' || o->text[len - 1] == ' '))
		len--;
	if (!parse(r, o, &d) || !jval_number(jdoc_root(&d), &x) || !isfinite(x)) {
		no_config(r, "the key '%s%s' is not a number", *key == '.' ? r->arch : "", key);
		return false;
	}
	json_raw_n(&r->j, to, o->text, len);
	return true;
}

static void put_number(struct reading *r, const char *to, double x)
{
	char text[40];

	(void)snprintf(text, sizeof(text), "%.8g", x);
	json_raw_n(&r->j, to, text, strlen(text));
}

static void need(struct reading *r, const char *to, const char *key)
{
	if (copy(r, to, key))
		return;
	no_config(r, "the GGUF has no key '%s%s'", *key == '.' ? r->arch : "", key);
	r->failed = true;
}

/* Keys of an architecture that are taken into account; others may mean anything. */
static const char *const known[] = {
	"block_count",
	"context_length",
	"embedding_length",
	"feed_forward_length",
	"vocab_size",
	"attention.head_count",
	"attention.head_count_kv",
	"attention.key_length",
	"attention.value_length",
	"attention.layer_norm_epsilon",
	"attention.layer_norm_rms_epsilon",
	"rope.freq_base",
	"rope.dimension_count",
	"rope.scaling.type",
	"rope.scaling.factor",
	"rope.scaling.original_context_length",
	"rope.scaling.yarn_ext_factor",
	"rope.scaling.yarn_attn_factor",
	"rope.scaling.yarn_beta_fast",
	"rope.scaling.yarn_beta_slow",
	"expert_count",
	"expert_used_count",
	"expert_feed_forward_length",
	"expert_shared_feed_forward_length",
};

/* Those of Granite, and their names in its config.json. */
static const struct {
	const char *key, *to;
} multipliers[] = {
	{ "attention.scale", "attention_multiplier" },
	{ "embedding_scale", "embedding_multiplier" },
	{ "residual_scale", "residual_multiplier" },
	{ "logit_scale", "logits_scaling" },
};

/* Those of some families only. */
static const struct {
	unsigned kinds;
	const char *key;
} of_families[] = {
	{ KIND_PHI3, "rope.scaling.attn_factor" },
	{ KIND_PHI3 | KIND_GEMMA2 | KIND_GEMMA3 | KIND_OLMO2, "attention.sliding_window" },
	{ KIND_OLMO2, "attention.sliding_window_pattern" },
	{ KIND_GEMMA2, "attn_logit_softcapping" },
	{ KIND_GEMMA2 | KIND_GEMMA3, "final_logit_softcapping" },
	{ KIND_GEMMA3, "rope.freq_base_swa" },
	{ KIND_ROUTED | KIND_GLM4, "nextn_predict_layers" },
	{ KIND_ROUTED, "leading_dense_block_count" },
	{ KIND_ROUTED, "expert_shared_count" },
	{ KIND_ROUTED, "expert_gating_func" },
	{ KIND_ROUTED, "expert_weights_scale" },
	{ KIND_ROUTED, "expert_weights_norm" },
	{ KIND_ROUTED, "expert_group_count" },
	{ KIND_ROUTED, "expert_group_used_count" },
	{ KIND_LATENT, "attention.q_lora_rank" },
	{ KIND_LATENT, "attention.kv_lora_rank" },
	{ KIND_LATENT, "attention.key_length_mla" },
	{ KIND_LATENT, "attention.value_length_mla" },
	{ KIND_LATENT, "rope.scaling.yarn_log_multiplier" },
};

static void check_keys(struct reading *r, enum arch_kind kind)
{
	size_t prefix = strlen(r->arch) + 1;

	for (size_t i = 0; i < r->n_objects; i++) {
		const struct catalog_object *o = &r->o[i];
		bool is_known = false;

		if (o->fqn_len <= prefix || o->fqn[prefix - 1] != '.' ||
		    !bytes_begin(o->fqn, o->fqn_len, r->arch))
			continue;
		for (size_t k = 0; k < ARRAY_LEN(known); k++)
			is_known |= bytes_are(o->fqn + prefix, o->fqn_len - prefix, known[k]);
		for (size_t k = 0; k < ARRAY_LEN(of_families); k++)
			is_known |=
				of_families[k].kinds & kind &&
				bytes_are(o->fqn + prefix, o->fqn_len - prefix, of_families[k].key);
		for (size_t k = 0; kind == KIND_GRANITE && k < ARRAY_LEN(multipliers); k++)
			is_known |=
				bytes_are(o->fqn + prefix, o->fqn_len - prefix, multipliers[k].key);
		if (!is_known)
			no_config(r, "the key '%s' has no known counterpart in a config.json",
				  FQN_TEXT(o->fqn, o->fqn_len));
	}
}

static uint64_t head_dim_of(const struct reading *r)
{
	uint64_t hidden = 0, heads = 0, dim;

	(void)count_of(r, ".embedding_length", &hidden);
	(void)count_of(r, ".attention.head_count", &heads);
	dim = heads ? hidden / heads : 0;
	(void)count_of(r, ".attention.key_length", &dim);
	return dim;
}

/* Elements of a head that are rotated: all, if no key says how many. */
static uint64_t rotated_of(const struct reading *r)
{
	uint64_t n = head_dim_of(r);

	(void)count_of(r, ".rope.dimension_count", &n);
	return n;
}

/* A tensor with a factor for each pair of elements that is rotated: how many; 0: there is none, or
 * none that can be used. */
static size_t factors_of(struct reading *r, const char *name, float v[GGUF_MAX_ROPE])
{
	const struct catalog_tensor *t = tensor_of(r, name);
	uint8_t raw[4 * GGUF_MAX_ROPE];
	struct ckpt_err why = { 0 };
	int rc;

	if (!t)
		return 0;
	if (t->dtype != CKPT_DTYPE_F32 || t->n_dims != 1 || t->shape[0] > GGUF_MAX_ROPE ||
	    rotated_of(r) / 2 != t->shape[0]) {
		no_config(r, "'%s' has shape %s (%s)", name, TUPLE_TEXT(t->shape, t->n_dims),
			  dtype_info((enum ckpt_dtype)t->dtype)->name);
		return 0;
	}
	rc = r->peek->read(r->peek->arg, (uint32_t)(t - r->t), raw, 4 * t->shape[0], &why);
	*r->no_memory |= rc == -ENOMEM;
	if (rc) {
		no_config(r, "'%s' cannot be read%s%.150s", name, *why.msg ? ": " : "", why.msg);
		return 0;
	}
	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F32, raw, v, t->shape[0]);
	return t->shape[0];
}

static void put_llama3(struct reading *r)
{
	float v[GGUF_MAX_ROPE];
	size_t n = factors_of(r, "rope_freqs.weight", v);
	struct gguf_llama3 s;
	double theta = 10000;

	if (!n)
		return;
	(void)number_of(r, ".rope.freq_base", &theta);
	if (!gguf_llama3_find((float)theta, v, n, &s)) {
		no_config(r, "the factors of 'rope_freqs.weight' are not those of Llama 3, so "
			     "rope_scaling cannot be told; name the model's own config.json with "
			     "assets=");
		return;
	}
	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", "llama3");
	put_number(r, "factor", (double)s.factor);
	put_number(r, "low_freq_factor", (double)s.low);
	put_number(r, "high_freq_factor", (double)s.high);
	json_u64(&r->j, "original_max_position_embeddings", (uint64_t)s.old);
	json_close(&r->j);
}

static void put_factors(struct reading *r, const char *to, const char *name)
{
	float v[GGUF_MAX_ROPE];
	size_t n = factors_of(r, name, v);

	json_open_line(&r->j, to, '[');
	for (size_t i = 0; i < n; i++) {
		char text[40];

		if (!isfinite(v[i]) || !(v[i] > 0)) {
			no_config(r, "'%s' has numbers that are not positive", name);
			break;
		}
		(void)snprintf(text, sizeof(text), "%.9g", (double)v[i]);
		json_raw_n(&r->j, NULL, text, strlen(text));
	}
	json_close(&r->j);
	if (!n)
		no_config(r, "the GGUF has no tensor '%s'", name);
}

/* Phi-3's. The factor of attention follows from the lengths, in transformers too. */
static void put_longrope(struct reading *r)
{
	double now = 0, old = 0, factor = 0, usual;

	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", "longrope");
	put_factors(r, "long_factor", "rope_factors_long.weight");
	put_factors(r, "short_factor", "rope_factors_short.weight");
	json_close(&r->j);
	(void)number_of(r, ".context_length", &now);
	(void)number_of(r, ".rope.scaling.original_context_length", &old);
	if (!(old > 1) || !number_of(r, ".rope.scaling.attn_factor", &factor)) {
		no_config(r,
			  "the GGUF has no usable keys '%s.rope.scaling.original_context_length' "
			  "and '%s.rope.scaling.attn_factor'",
			  r->arch, r->arch);
		return;
	}
	usual = now > old ? sqrt(1 + log(now / old) / log(old)) : 1;
	if (!(fabs(factor - usual) <= 1e-6 * usual))
		no_config(r,
			  "the key '%s.rope.scaling.attn_factor' is %g, but for a context of %g "
			  "extended from %g it should be %g",
			  r->arch, factor, now, old, usual);
}

static void put_scaling(struct reading *r)
{
	char type[KEY_CAP] = "none";
	bool llama3 = tensor_of(r, "rope_freqs.weight");
	bool longrope = tensor_of(r, "rope_factors_long.weight") ||
			tensor_of(r, "rope_factors_short.weight") ||
			key_of(r, ".rope.scaling.attn_factor");
	bool keys = key_of(r, ".rope.scaling.type") &&
		    (!text_of(r, ".rope.scaling.type", type) || strcmp(type, "none") != 0);
	double scale;

	if (llama3 + longrope + keys > 1) {
		no_config(r, "the GGUF scales rotary embeddings in two ways");
		return;
	}
	if (llama3)
		put_llama3(r);
	if (longrope)
		put_longrope(r);
	if (!keys)
		return;
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0) {
		no_config(r, "rotary embeddings of type '%s' are not supported", type);
		return;
	}
	json_open(&r->j, "rope_scaling", '{');
	json_str(&r->j, "rope_type", type);
	need(r, "factor", ".rope.scaling.factor");
	if (!strcmp(type, "yarn")) {
		need(r, "original_max_position_embeddings",
		     ".rope.scaling.original_context_length");
		(void)copy(r, "extrapolation_factor", ".rope.scaling.yarn_ext_factor");
		(void)copy(r, "attention_factor", ".rope.scaling.yarn_attn_factor");
		(void)copy(r, "beta_fast", ".rope.scaling.yarn_beta_fast");
		(void)copy(r, "beta_slow", ".rope.scaling.yarn_beta_slow");
		if (number_of(r, ".rope.scaling.yarn_log_multiplier", &scale)) {
			put_number(r, "mscale", 10 * scale);
			put_number(r, "mscale_all_dim", 10 * scale);
		}
	}
	json_close(&r->j);
}

static void put_experts(struct reading *r, enum arch_kind kind)
{
	need(r, kind == KIND_MIXTRAL ? "num_local_experts" : "num_experts", ".expert_count");
	need(r, "num_experts_per_tok", ".expert_used_count");
	if (kind == KIND_MIXTRAL)
		return;
	need(r, "moe_intermediate_size", ".expert_feed_forward_length");
	if (kind == KIND_QWEN2_MOE)
		need(r, "shared_expert_intermediate_size", ".expert_shared_feed_forward_length");
	json_bool(&r->j, "norm_topk_prob", kind == KIND_QWEN3_MOE); /* as llama.cpp computes */
}

/* Experts as DeepSeek has them. */
static void put_routed(struct reading *r, enum arch_kind kind)
{
	bool v2 = kind == KIND_DEEPSEEK_V2;

	need(r, "n_routed_experts", ".expert_count");
	need(r, "num_experts_per_tok", ".expert_used_count");
	need(r, "n_shared_experts", ".expert_shared_count");
	need(r, "moe_intermediate_size", ".expert_feed_forward_length");
	need(r, "first_k_dense_replace", ".leading_dense_block_count");
	need(r, "routed_scaling_factor", ".expert_weights_scale");
	need(r, "n_group", ".expert_group_count");
	need(r, "topk_group", ".expert_group_used_count");
	json_bool(&r->j, "norm_topk_prob", flag_of(r, ".expert_weights_norm"));
	json_str(&r->j, "scoring_func", v2 ? "softmax" : "sigmoid");
	json_str(&r->j, "topk_method", v2 ? "greedy" : "noaux_tc");
}

/* DeepSeek's: all heads share a key of latents and rotated elements. */
static void put_latent(struct reading *r)
{
	uint64_t keys = 0, rotated = 0, heads = 0;

	if (count_of(r, ".attention.head_count", &heads) && heads > MAX_LATENT_HEADS) {
		no_config(r, "%llu heads are more than %d", (unsigned long long)heads,
			  MAX_LATENT_HEADS);
		r->failed = true;
	}
	need(r, "num_attention_heads", ".attention.head_count");
	need(r, "num_key_value_heads", ".attention.head_count");
	if (!copy(r, "q_lora_rank", ".attention.q_lora_rank"))
		json_raw(&r->j, "q_lora_rank", "null");
	need(r, "kv_lora_rank", ".attention.kv_lora_rank");
	need(r, "qk_rope_head_dim", ".rope.dimension_count");
	need(r, "v_head_dim", ".attention.value_length_mla");
	if (count_of(r, ".attention.key_length_mla", &keys) &&
	    count_of(r, ".rope.dimension_count", &rotated) && keys > rotated) {
		json_u64(&r->j, "qk_nope_head_dim", keys - rotated);
	} else {
		no_config(r, "the GGUF has an unknown form of latent attention");
		r->failed = true;
	}
}

/* Head sizes: one for keys and values, and all of it is rotated, except in some families. */
static void put_heads(struct reading *r, enum arch_kind kind)
{
	bool partial = kind & (KIND_PHI3 | KIND_GLM4 | KIND_GLM4_MOE);
	uint64_t dim = head_dim_of(r), rotated = rotated_of(r), values = dim;

	need(r, "num_attention_heads", ".attention.head_count");
	if (!copy(r, "num_key_value_heads", ".attention.head_count_kv"))
		(void)copy(r, "num_key_value_heads", ".attention.head_count");
	(void)count_of(r, ".attention.value_length", &values);
	json_u64(&r->j, "head_dim", dim);
	if (partial && dim && rotated < dim)
		put_number(r, "partial_rotary_factor", (double)rotated / (double)dim);
	else if (partial)
		json_raw(&r->j, "partial_rotary_factor", "1.0");
	if (values != dim || (partial ? rotated > dim : rotated != dim))
		no_config(r, "keys of %llu, of which %llu are rotated, and values of %llu",
			  (unsigned long long)dim, (unsigned long long)rotated,
			  (unsigned long long)values);
}

/* Without one, llama.cpp does not always compute as transformers does. */
static void put_multipliers(struct reading *r)
{
	char key[KEY_CAP];

	for (size_t i = 0; i < ARRAY_LEN(multipliers); i++) {
		(void)snprintf(key, sizeof(key), ".%s", multipliers[i].key);
		if (!copy(r, multipliers[i].to, key))
			no_config(r, "the GGUF has no key '%s%s'", r->arch, key);
	}
}

/* Which layers see a window follows from the class. */
static void put_gemma(struct reading *r, enum arch_kind kind)
{
	uint64_t layers = 0, hidden = 0, heads = 0, dim = 0;
	bool largest;

	if (kind == KIND_GEMMA)
		return;
	(void)count_of(r, ".block_count", &layers);
	(void)count_of(r, ".embedding_length", &hidden);
	(void)count_of(r, ".attention.head_count", &heads);
	(void)count_of(r, ".attention.key_length", &dim);
	largest = heads && layers == (kind == KIND_GEMMA2 ? 46 : 62); /* as llama.cpp knows them */
	json_u64(&r->j, "query_pre_attn_scalar", largest ? hidden / heads : dim);
	need(r, "sliding_window", ".attention.sliding_window");
	if (kind == KIND_GEMMA2)
		need(r, "attn_logit_softcapping", ".attn_logit_softcapping");
	(void)copy(r, "final_logit_softcapping", ".final_logit_softcapping");
	if (kind == KIND_GEMMA3 && !copy(r, "rope_local_base_freq", ".rope.freq_base_swa"))
		json_raw(&r->j, "rope_local_base_freq", "10000.0"); /* llama.cpp's default */
}

static void put_layers(struct reading *r)
{
	uint64_t all = 0;

	(void)count_of(r, ".nextn_predict_layers", &r->further);
	if (!r->further) {
		need(r, "num_hidden_layers", ".block_count");
	} else if (count_of(r, ".block_count", &all) && r->further < all &&
		   r->further <= MAX_FURTHER) {
		json_u64(&r->j, "num_hidden_layers", all - r->further);
	} else {
		no_config(r, "%llu layers predict further tokens, of %llu",
			  (unsigned long long)r->further, (unsigned long long)all);
		r->failed = true;
	}
}

/* OLMo 3: true for layers that see a window. */
static void put_windows(struct reading *r)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	if (!copy(r, "sliding_window", ".attention.sliding_window"))
		return;
	if (!parse(r, key_of(r, ".attention.sliding_window_pattern"), &d)) {
		no_config(r, "the GGUF does not say which layers have a sliding window");
		return;
	}
	json_open_line(&r->j, "layer_types", '[');
	for (struct jiter i = jiter(jdoc_root(&d)); jiter_next(&i);)
		json_str(&r->j, NULL,
			 jval_is(i.v, J_TRUE) ? "sliding_attention" : "full_attention");
	json_close(&r->j);
}

static void put_decoder(struct reading *r, enum arch_kind kind)
{
	uint64_t window = 0;

	need(r, "hidden_size", ".embedding_length");
	need(r, "intermediate_size", ".feed_forward_length");
	put_layers(r);
	if (kind & KIND_LATENT)
		put_latent(r);
	else
		put_heads(r, kind);
	need(r, "max_position_embeddings", ".context_length");
	need(r, "rms_norm_eps", ".attention.layer_norm_rms_epsilon");
	if (kind & GEMMAS)
		json_str(&r->j, "hidden_activation", "gelu_pytorch_tanh");
	else
		json_str(&r->j, "hidden_act", "silu");
	if (!copy(r, "rope_theta", ".rope.freq_base"))
		json_raw(&r->j, "rope_theta", "10000.0"); /* llama.cpp's default */
	put_scaling(r);
	if (kind & GEMMAS)
		put_gemma(r, kind);
	if (kind == KIND_OLMO2)
		put_windows(r);
	if (kind == KIND_PHI3) {
		if (count_of(r, ".attention.sliding_window", &window) && window)
			json_u64(&r->j, "sliding_window", window);
		(void)copy(r, "original_max_position_embeddings",
			   ".rope.scaling.original_context_length");
	}
	if (kind == KIND_GRANITE)
		put_multipliers(r);
	if (kind & (KIND_LLAMAS | KIND_QWEN3 | KIND_QWEN3_MOE | KIND_GLM4 | KIND_GLM4_MOE))
		json_bool(&r->j, "attention_bias", tensor_of(r, "blk.0.attn_q.bias"));
	if (kind == KIND_GLM4_MOE)
		json_bool(&r->j, "use_qk_norm", tensor_of(r, "blk.0.attn_q_norm.weight"));
	if (kind & KIND_LLAMAS)
		json_bool(&r->j, "mlp_bias", tensor_of(r, "blk.0.ffn_gate.bias"));
	if (kind & KIND_ROUTED)
		put_routed(r, kind);
	else if (kind & KIND_EXPERTS)
		put_experts(r, kind);
}

static void put_gpt2(struct reading *r)
{
	need(r, "n_layer", ".block_count");
	need(r, "n_positions", ".context_length");
	need(r, "n_embd", ".embedding_length");
	need(r, "n_head", ".attention.head_count");
	need(r, "n_inner", ".feed_forward_length");
	need(r, "layer_norm_epsilon", ".attention.layer_norm_epsilon");
	json_str(&r->j, "activation_function", "gelu_new");
}

static const struct {
	const char *gguf;
	bool experts;
	const char *class, *type;
	enum arch_kind kind;
} models[] = {
	{ "llama", false, "LlamaForCausalLM", "llama", KIND_LLAMA },
	{ "llama", true, "MixtralForCausalLM", "mixtral", KIND_MIXTRAL },
	{ "mistral3", false, "MistralForCausalLM", "mistral", KIND_LLAMA },
	{ "qwen2", false, "Qwen2ForCausalLM", "qwen2", KIND_QWEN2 },
	{ "qwen3", false, "Qwen3ForCausalLM", "qwen3", KIND_QWEN3 },
	{ "qwen2moe", true, "Qwen2MoeForCausalLM", "qwen2_moe", KIND_QWEN2_MOE },
	{ "qwen3moe", true, "Qwen3MoeForCausalLM", "qwen3_moe", KIND_QWEN3_MOE },
	{ "granite", false, "GraniteForCausalLM", "granite", KIND_GRANITE },
	{ "smollm3", false, "SmolLM3ForCausalLM", "smollm3", KIND_SMOLLM3 },
	{ "olmo2", false, "Olmo2ForCausalLM", "olmo2", KIND_OLMO2 },
	{ "olmo2", false, "Olmo3ForCausalLM", "olmo3", KIND_OLMO2 },
	{ "gemma", false, "GemmaForCausalLM", "gemma", KIND_GEMMA },
	{ "gemma2", false, "Gemma2ForCausalLM", "gemma2", KIND_GEMMA2 },
	{ "gemma3", false, "Gemma3ForCausalLM", "gemma3_text", KIND_GEMMA3 },
	{ "phi3", false, "Phi3ForCausalLM", "phi3", KIND_PHI3 },
	{ "glm4", false, "Glm4ForCausalLM", "glm4", KIND_GLM4 },
	{ "glm4moe", true, "Glm4MoeForCausalLM", "glm4_moe", KIND_GLM4_MOE },
	{ "deepseek2", true, "DeepseekV2ForCausalLM", "deepseek_v2", KIND_DEEPSEEK_V2 },
	{ "deepseek2", true, "DeepseekV3ForCausalLM", "deepseek_v3", KIND_DEEPSEEK_V3 },
	{ "gpt2", false, "GPT2LMHeadModel", "gpt2", KIND_GPT2 },
};

/*
 * llama.cpp has one name for two classes: DeepSeek's score experts by a softmax or a sigmoid, and
 * only the newer one of OLMo's has windows.
 */
static bool is_model(const struct reading *r, size_t i, bool experts)
{
	uint64_t score = 0;

	if (strcmp(models[i].gguf, r->arch) != 0 || models[i].experts != experts)
		return false;
	if (models[i].kind == KIND_OLMO2)
		return !key_of(r, ".attention.sliding_window") == !strcmp(models[i].type, "olmo2");
	(void)count_of(r, ".expert_gating_func", &score);
	return models[i].kind & KIND_ROUTED ? score == (models[i].kind == KIND_DEEPSEEK_V2 ? 1 : 2)
					    : true;
}

/* Says why none of the models is this one. */
static void no_model(struct reading *r, bool experts)
{
	bool with_these = false, with_others = false;

	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		if (strcmp(models[i].gguf, r->arch) != 0)
			continue;
		with_these |= models[i].experts == experts;
		with_others |= models[i].experts != experts;
	}
	if (with_these)
		no_config(r,
			  "the key '%s.expert_gating_func' does not have a value that is known for "
			  "this architecture",
			  r->arch);
	else if (with_others)
		no_config(r,
			  experts ? "the key '%s.expert_count' is not 0, but this architecture is "
				    "supported only without experts"
				  : "the key '%s.expert_count' is 0, no number, or missing, but "
				    "this architecture is supported only with experts",
			  r->arch);
	else
		no_config(r, "llama.cpp's architecture '%s' is not supported", r->arch);
}

static void put_config(struct reading *r, const char *dtype)
{
	const struct catalog_tensor *embeddings = tensor_of(r, "token_embd.weight");
	uint64_t experts = 0;
	size_t i = 0;

	if (!text_of(r, "general.architecture", r->arch)) {
		no_config(r, "the GGUF has no key 'general.architecture'");
		r->failed = true;
		return;
	}
	(void)count_of(r, ".expert_count", &experts);
	while (i < ARRAY_LEN(models) && !is_model(r, i, experts > 0))
		i++;
	if (i == ARRAY_LEN(models))
		no_model(r, experts > 0);
	else if (!embeddings || embeddings->n_dims != 2)
		no_config(r, "the GGUF of architecture '%s' has no token_embd.weight", r->arch);
	if (*r->ret->why) {
		r->failed = true;
		return;
	}
	json_open(&r->j, NULL, '{');
	json_open_line(&r->j, "architectures", '[');
	json_str(&r->j, NULL, models[i].class);
	json_close(&r->j);
	json_str(&r->j, "model_type", models[i].type);
	json_u64(&r->j, "vocab_size", embeddings->shape[0]);
	if (models[i].kind == KIND_GPT2)
		put_gpt2(r);
	else
		put_decoder(r, models[i].kind);
	if (!strcmp(models[i].type, "mistral")) /* without one, it would be 4096 */
		json_raw(&r->j, "sliding_window", "null");
	json_bool(&r->j, "tie_word_embeddings", !tensor_of(r, "output.weight"));
	(void)copy(r, "bos_token_id", "tokenizer.ggml.bos_token_id");
	(void)copy(r, "eos_token_id", "tokenizer.ggml.eos_token_id");
	(void)copy(r, "pad_token_id", "tokenizer.ggml.padding_token_id");
	json_str(&r->j, "torch_dtype", dtype);
	json_close(&r->j);
	check_keys(r, models[i].kind);
}

static int make_recipe(struct reading *r, struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };
	int rc = gguf_recipe_make(&r->ret->config, r->further, &r->ret->recipe, &why);

	if (rc == -ENOMEM)
		return err_nomem(e);
	if (rc) {
		no_config(r, "%s", why.msg);
		r->failed = true;
	}
	return 0;
}

int gguf_model_read(const struct catalog *c, const char *dtype, const struct peek *peek,
		    struct gguf_model *ret, struct ckpt_err *e)
{
	bool no_memory = false;
	struct reading r = { .c = c, .ret = ret, .peek = peek, .no_memory = &no_memory };
	int rc = 0;

	*ret = (struct gguf_model){ .config = BUF_INIT(MAX_TEXT), .recipe = BUF_INIT(MAX_TEXT) };
	r.o = catalog_objects(c, &r.n_objects);
	r.t = catalog_tensors(c, NULL);
	r.j.to = &ret->config;
	if (!dtype) {
		no_config(&r,
			  "the weights are quantised blocks; dequantize=bf16, fp16 or fp32 gives "
			  "them Hugging Face's names and a config.json");
		return 0;
	}
	put_config(&r, dtype);
	buf_str(&ret->config, "\n");
	if (ret->config.err || no_memory)
		return err_nomem(e);
	if (!r.failed)
		rc = make_recipe(&r, e);
	if (r.failed || *ret->why)
		buf_release(&ret->config);
	if (ret->recipe.err)
		return err_nomem(e);
	return rc;
}

void gguf_model_release(struct gguf_model *m)
{
	buf_release(&m->config);
	buf_release(&m->recipe);
}

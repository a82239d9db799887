/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors a config.json asks for, and whether a checkpoint has them. The expected shapes of a
 * few weights are written down here; tests/torch/arch.sh takes those of all weights from
 * transformers.
 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "suites.h"
#include "tensor/arch_check.h"
#include "tensor/config_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 4096 };

/* Tensors of a model, as few as a test needs. */
struct set {
	struct {
		char name[ARCH_NAME_CAP];
		uint64_t shape[3];
		size_t n_dims;
		bool gone, odd;
	} v[MAX];
	size_t n;
};

static bool get(const void *arg, size_t i, struct arch_tensor *ret)
{
	const struct set *s = arg;

	*ret = (struct arch_tensor){ s->v[i].name, strlen(s->v[i].name), s->v[i].n_dims,
				     s->v[i].shape, !s->v[i].odd };
	return !s->v[i].gone;
}

static int64_t find(const void *arg, const char *name, size_t len)
{
	const struct set *s = arg;

	for (size_t i = 0; i < s->n; i++)
		if (strlen(s->v[i].name) == len && !memcmp(s->v[i].name, name, len))
			return (int64_t)i;
	return -1;
}

static struct set set;
static struct jdoc json;
static struct arch arch;

static int read_arch(const char *config, struct ckpt_err *e)
{
	struct config_in r = { .e = e };

	jdoc_release(&json);
	ck_assert_int_eq(jdoc_parse_copy(&json, config, strlen(config), 0, e), 0);
	r.from = jdoc_root(&json);
	arch_release(&arch);
	return arch_read(&r, &arch);
}

static void add(const struct arch_weight *w, const struct arch_prefix *prefix, uint64_t layer,
		uint64_t expert)
{
	REQUIRE(set.n < MAX);
	arch_name(&arch, w, prefix, layer, expert, set.v[set.n].name);
	arch_shape(&arch, w, set.v[set.n].shape);
	set.v[set.n].n_dims = w->n_dims;
	set.v[set.n].gone = set.v[set.n].odd = false;
	set.n++;
}

/* Adds all weights that the model must have, in one style or the other. */
static void fill(const struct arch_prefix *prefix, bool fused)
{
	set.n = 0;
	for (size_t i = 0; i < arch_n_weights; i++) {
		const struct arch_weight *w = &arch_weights[i];
		bool of_layer = w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT;
		uint64_t layers = of_layer ? arch.layers : 1;

		if (w->style != ARCH_ALWAYS &&
		    fused != (w->style == ARCH_FUSED || w->style == ARCH_FUSED_ROUTER))
			continue;
		for (uint64_t n = 0; n < layers; n++)
			if (arch_needs(&arch, w, n) == ARCH_MUST)
				for (uint64_t x = 0;
				     x < (w->scope == ARCH_EXPERT ? arch.experts : 1); x++)
					add(w, prefix, n, x);
	}
}

static struct arch_report check(void)
{
	const struct arch_tensors t = { set.n, get, find, &set };
	struct arch_report r;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(arch_check(&arch, &t, &r, &e), 0);
	return r;
}

static size_t at(const char *name)
{
	int64_t i = find(&set, name, strlen(name));

	ck_assert_msg(i >= 0, "%s", name);
	return (size_t)i;
}

static void teardown(void)
{
	jdoc_release(&json);
	arch_release(&arch);
}

#define DECODER(class, more) \
	"{\"architectures\": [\"" class "\"], \"vocab_size\": 48, \"hidden_size\": 32, " \
					"\"intermediate_size\": 40, \"num_hidden_layers\": 3, " \
					"\"num_attention_heads\": 4, " \
					"\"num_key_value_heads\": 2, " \
					"\"max_position_embeddings\": 64" more "}"
#define EXPERTS ", \"num_experts\": 4, \"moe_intermediate_size\": 24"
#define LATENT \
	", \"n_routed_experts\": 4, \"moe_intermediate_size\": 24, \"n_shared_experts\": 2, " \
	"\"first_k_dense_replace\": 1, \"kv_lora_rank\": 10, \"qk_nope_head_dim\": 8, " \
	"\"qk_rope_head_dim\": 4, \"v_head_dim\": 6"
#define LINEAR \
	", \"head_dim\": 16, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, " \
	"\"linear_key_head_dim\": 8, \"linear_value_head_dim\": 12, " \
	"\"linear_conv_kernel_dim\": 4"
#define SHARED EXPERTS ", \"shared_expert_intermediate_size\": 20"
#define GPT2 \
	"{\"model_type\": \"gpt2\", \"vocab_size\": 48, \"n_embd\": 32, \"n_layer\": 3, " \
	"\"n_head\": 4, \"n_positions\": 64}"

/* A model that contains a text model, which has no class of its own. */
#define WHOLE(class, outer, type, more) \
	"{\"architectures\": [\"" class "\"]" outer ", \"vocab_size\": 7, \"text_config\": {" type \
					"\"vocab_size\": 48, \"hidden_size\": 32, " \
					"\"intermediate_size\": 40, " \
					"\"num_hidden_layers\": 3, \"num_attention_heads\": 4, " \
					"\"num_key_value_heads\": 2, " \
					"\"max_position_embeddings\": 64" more "}}"
#define GEMMA3_WHOLE(outer, type, more) WHOLE("Gemma3ForConditionalGeneration", outer, type, more)

/* tensors: how many a model of three layers has. Then one of them, and its shape. */
static const struct {
	const char *config;
	size_t tensors, fused; /* 0: there are no experts to be fused */
	const char *name;
	uint64_t shape[3];
} models[] = {
	{ DECODER("LlamaForCausalLM", ""),
	  3 + 3 * 9,
	  0,
	  "model.layers.2.self_attn.k_proj.weight",
	  { 16, 32 } },
	{ DECODER("LlamaForCausalLM", ", \"head_dim\": 6"),
	  3 + 3 * 9,
	  0,
	  "model.layers.0.self_attn.o_proj.weight",
	  { 32, 24 } },
	{ DECODER("LlamaForCausalLM", ", \"attention_bias\": true, \"mlp_bias\": true"),
	  3 + 3 * 16,
	  0,
	  "model.layers.0.mlp.gate_proj.bias",
	  { 40 } },
	{ DECODER("LlamaForCausalLM", ", \"tie_word_embeddings\": true"),
	  2 + 3 * 9,
	  0,
	  "model.norm.weight",
	  { 32 } },
	{ DECODER("MistralForCausalLM", ""), 3 + 3 * 9, 0, "lm_head.weight", { 48, 32 } },
	{ DECODER("SmolLM3ForCausalLM", ""), 2 + 3 * 9, 0, "model.norm.weight", { 32 } },
	{ DECODER("GraniteForCausalLM", ""), 3 + 3 * 9, 0, "lm_head.weight", { 48, 32 } },
	{ DECODER("GraniteMoeForCausalLM", ", \"num_local_experts\": 4"),
	  3 + 3 * 9,
	  0,
	  "model.layers.1.block_sparse_moe.input_linear.weight",
	  { 4, 80, 32 } },
	{ DECODER("CohereForCausalLM", ""), 2 + 3 * 8, 0, "model.norm.weight", { 32 } },
	{ DECODER("CohereForCausalLM", ", \"use_qk_norm\": true, \"tie_word_embeddings\": false"),
	  3 + 3 * 10,
	  0,
	  "model.layers.1.self_attn.k_norm.weight",
	  { 2, 8 } },
	{ DECODER("MixtralForCausalLM", ", \"num_local_experts\": 4"),
	  3 + 3 * 19,
	  3 + 3 * 9,
	  "model.layers.1.block_sparse_moe.experts.3.w2.weight",
	  { 32, 40 } },
	{ DECODER("Qwen2ForCausalLM", ""),
	  3 + 3 * 12,
	  0,
	  "model.layers.0.self_attn.q_proj.bias",
	  { 32 } },
	{ DECODER("Qwen3ForCausalLM", ", \"head_dim\": 16"),
	  3 + 3 * 11,
	  0,
	  "model.layers.0.self_attn.k_norm.weight",
	  { 16 } },
	{ DECODER("Qwen2MoeForCausalLM", EXPERTS ", \"shared_expert_intermediate_size\": 20"),
	  3 + 3 * 26,
	  3 + 3 * 16,
	  "model.layers.0.mlp.shared_expert_gate.weight",
	  { 1, 32 } },
	{ DECODER("Qwen3MoeForCausalLM", EXPERTS ", \"head_dim\": 16"),
	  3 + 3 * 21,
	  3 + 3 * 11,
	  "model.layers.0.mlp.experts.0.gate_proj.weight",
	  { 24, 32 } },
	/* Layer 1 has experts because of its number; layers 0 and 2 have none. */
	{ DECODER("Qwen3MoeForCausalLM", EXPERTS ", \"head_dim\": 16, \"decoder_sparse_step\": 2, "
						 "\"mlp_only_layers\": [2, 99]"),
	  3 + 21 + 2 * 11,
	  3 + 3 * 11,
	  "model.layers.2.mlp.gate_proj.weight",
	  { 40, 32 } },
	{ GPT2, 4 + 3 * 12, 0, "transformer.h.0.attn.c_attn.weight", { 32, 96 } },
	{ DECODER("GemmaForCausalLM", ", \"head_dim\": 16"),
	  2 + 3 * 9,
	  0,
	  "model.embed_tokens.weight",
	  { 48, 32 } },
	{ DECODER("Gemma2ForCausalLM", ", \"head_dim\": 16"),
	  2 + 3 * 11,
	  0,
	  "model.layers.0.pre_feedforward_layernorm.weight",
	  { 32 } },
	{ DECODER("Gemma3ForCausalLM", ", \"head_dim\": 16"),
	  2 + 3 * 13,
	  0,
	  "model.layers.0.self_attn.q_norm.weight",
	  { 16 } },
	{ DECODER("Phi3ForCausalLM", ""),
	  3 + 3 * 6,
	  0,
	  "model.layers.0.self_attn.qkv_proj.weight",
	  { 64, 32 } },
	{ DECODER("Olmo2ForCausalLM", ""),
	  3 + 3 * 11,
	  0,
	  "model.layers.0.self_attn.k_norm.weight",
	  { 16 } },
	{ DECODER("Olmo3ForCausalLM", ""),
	  3 + 3 * 11,
	  0,
	  "model.layers.0.post_feedforward_layernorm.weight",
	  { 32 } },
	{ DECODER("DeepseekV3ForCausalLM", LATENT ", \"q_lora_rank\": 12"),
	  3 + 3 * 9 + 3 + 2 * (5 + 12),
	  3 + 3 * 9 + 3 + 2 * (5 + 2),
	  "model.layers.0.self_attn.kv_b_proj.weight",
	  { 56, 10 } },
	{ DECODER("DeepseekV3ForCausalLM", LATENT ", \"q_lora_rank\": null"),
	  3 + 3 * 7 + 3 + 2 * (5 + 12),
	  3 + 3 * 7 + 3 + 2 * (5 + 2),
	  "model.layers.1.mlp.shared_experts.up_proj.weight",
	  { 48, 32 } },
	{ DECODER("GptOssForCausalLM", ", \"num_local_experts\": 4, \"head_dim\": 16"),
	  3 + 3 * 17,
	  0,
	  "model.layers.0.mlp.experts.gate_up_proj",
	  { 4, 32, 80 } },
	/* All three layers are linear; then the second is not; then the third, by the interval. */
	{ DECODER("Qwen3NextForCausalLM", LINEAR SHARED),
	  3 + 3 * 26,
	  3 + 3 * 16,
	  "model.layers.2.linear_attn.in_proj_qkvz.weight",
	  { 128, 32 } },
	{ DECODER("Qwen3NextForCausalLM",
		  LINEAR SHARED ", \"layer_types\": [\"linear_attention\", \"full_attention\", "
				"\"linear_attention\"], \"full_attention_interval\": 3, "
				"\"mlp_only_layers\": [0], \"attention_bias\": true"),
	  3 + 12 + 29 + 26,
	  3 + 12 + 19 + 16,
	  "model.layers.1.self_attn.q_proj.bias",
	  { 128 } },
	{ DECODER("Qwen3_5ForCausalLM", LINEAR ", \"full_attention_interval\": 3"),
	  3 + 2 * 14 + 11,
	  0,
	  "model.layers.1.linear_attn.conv1d.weight",
	  { 80, 1, 4 } },
	{ DECODER("Qwen3_5MoeForCausalLM", LINEAR SHARED ", \"full_attention_interval\": 3"),
	  3 + 2 * 28 + 25,
	  3 + 2 * 18 + 15,
	  "model.layers.2.self_attn.q_proj.weight",
	  { 128, 32 } },
	{ GEMMA3_WHOLE("", "", ", \"head_dim\": 16, \"tie_word_embeddings\": false"),
	  2 + 3 * 13,
	  0,
	  "model.language_model.layers.2.self_attn.q_norm.weight",
	  { 16 } },
	{ WHOLE("Mistral3ForConditionalGeneration", ", \"tie_word_embeddings\": false", "",
		", \"tie_word_embeddings\": true"),
	  3 + 3 * 9,
	  0,
	  "lm_head.weight",
	  { 48, 32 } },
	{ WHOLE("Qwen3VLForConditionalGeneration", "", "\"model_type\": \"qwen3_vl_text\", ",
		", \"head_dim\": 16"),
	  3 + 3 * 11,
	  0,
	  "model.language_model.layers.0.self_attn.k_norm.weight",
	  { 16 } },
	{ WHOLE("Qwen3_5ForConditionalGeneration", "", "",
		LINEAR ", \"full_attention_interval\": 3"),
	  3 + 2 * 14 + 11,
	  0,
	  "model.language_model.layers.1.linear_attn.conv1d.weight",
	  { 80, 1, 4 } },
	{ WHOLE("Qwen3_5MoeForConditionalGeneration", "", "",
		LINEAR SHARED ", \"full_attention_interval\": 3"),
	  3 + 2 * 28 + 25,
	  3 + 2 * 18 + 15,
	  "model.language_model.norm.weight",
	  { 32 } },
};

START_LOOP_TEST(each_family_has_what_transformers_says, ARRAY_LEN(models))
{
	struct ckpt_err e = { 0 };
	struct arch_report r;
	size_t i;

	ck_assert_msg(!read_arch(models[_i].config, &e), "%s", e.msg);
	fill(arch_prefix(&arch, 0), false);
	ck_assert_uint_eq(set.n, models[_i].tensors);
	i = at(models[_i].name);
	ck_assert_mem_eq(set.v[i].shape, models[_i].shape, sizeof(models[_i].shape));
	r = check();
	ck_assert(arch_is_complete(&r));
	ck_assert_uint_eq(r.needed, set.n);
	ck_assert(!r.bare);
	if (!models[_i].fused)
		return;
	fill(arch_prefix(&arch, 0), true);
	ck_assert_uint_eq(set.n, models[_i].fused);
	r = check();
	ck_assert(arch_is_complete(&r));
	ck_assert_uint_eq(r.needed, set.n);
}
END_TEST

START_LOOP_TEST(each_tensor_that_is_missing_renamed_or_reshaped_is_named, ARRAY_LEN(models))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(read_arch(models[_i].config, &e), 0);
	fill(arch_prefix(&arch, 0), false);
	for (size_t i = 0; i < set.n; i++) {
		char name[ARCH_NAME_CAP];
		struct arch_report r;

		memcpy(name, set.v[i].name, sizeof(name));
		set.v[i].gone = true;
		r = check();
		REQUIRE(r.missing == 1 && !r.unexpected && !r.misshapen);
		ck_assert_str_eq(r.missing_names[0], name);
		set.v[i].gone = false;

		(void)stpcpy(set.v[i].name, "x.weight");
		r = check();
		REQUIRE(r.missing == 1 && r.unexpected == 1 && r.unexpected_at[0] == i);
		ck_assert_str_eq(r.missing_names[0], name);
		memcpy(set.v[i].name, name, sizeof(name));

		set.v[i].shape[0]++;
		r = check();
		REQUIRE(!r.missing && !r.unexpected && r.misshapen == 1 && r.misshapen_at == i);
		REQUIRE(r.should_be[0] == set.v[i].shape[0] - 1);
		set.v[i].shape[0]--;

		set.v[i].odd = true;
		r = check();
		REQUIRE(r.no_weights == 1 && r.no_weight_at == i && !arch_is_complete(&r));
		set.v[i].odd = false;
	}
}
END_TEST

START_TEST(names_without_the_prefix_are_those_of_the_model_inside)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(GPT2, &e), 0);
	fill(arch_prefix(&arch, 1), false);
	r = check();
	ck_assert(arch_is_complete(&r) && r.bare);
	(void)stpcpy(set.v[at("ln_f.bias")].name, "transformer.ln_f.bias");
	r = check();
	ck_assert_uint_eq(r.missing, 1);
	ck_assert_str_eq(r.missing_names[0], "ln_f.bias");
}
END_TEST

START_TEST(a_padded_vocabulary_is_recognised)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(models[0].config, &e), 0);
	fill(arch_prefix(&arch, 0), false);
	set.v[at("lm_head.weight")].shape[0] = 64;
	set.v[at("model.embed_tokens.weight")].shape[0] = 64;
	r = check();
	ck_assert_uint_eq(r.misshapen, 2);
	ck_assert_uint_eq(r.padded, 64);
	set.v[at("lm_head.weight")].shape[0] = 40; /* fewer rows are not padding */
	set.v[at("model.embed_tokens.weight")].shape[0] = 48;
	ck_assert_uint_eq(check().padded, 0);
}
END_TEST

START_TEST(a_tied_head_may_be_there_and_another_must)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(models[0].config, &e), 0);
	fill(arch_prefix(&arch, 0), false);
	ck_assert_int_eq(
		read_arch(DECODER("LlamaForCausalLM", ", \"tie_word_embeddings\": true"), &e), 0);
	r = check();
	ck_assert(arch_is_complete(&r));
	ck_assert_uint_eq(r.needed, set.n - 1);
}
END_TEST

START_TEST(biases_that_config_json_does_not_mention_are_unexpected)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(DECODER("LlamaForCausalLM", ", \"attention_bias\": true"), &e),
			 0);
	fill(arch_prefix(&arch, 0), false);
	ck_assert_int_eq(read_arch(models[0].config, &e), 0);
	r = check();
	ck_assert_uint_eq(r.unexpected, 12);
	ck_assert_uint_eq(r.missing, 0);
}
END_TEST

START_TEST(both_styles_at_once_are_too_many)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(
		read_arch(DECODER("Qwen3MoeForCausalLM", EXPERTS ", \"head_dim\": 16"), &e), 0);
	fill(arch_prefix(&arch, 0), false);
	(void)stpcpy(set.v[set.n].name, "model.layers.0.mlp.experts.gate_up_proj");
	set.v[set.n].n_dims = 3;
	set.n++;
	r = check();
	ck_assert_uint_eq(r.unexpected, 1);
	ck_assert_uint_eq(r.unexpected_at[0], set.n - 1);
	ck_assert_uint_eq(r.missing, 0);
}
END_TEST

static const char *const near_misses[] = {
	"model.layers.3.input_layernorm.weight",
	"model.layers.00.input_layernorm.weight",
	"model.layers..input_layernorm.weight",
	"model.layers.0.input_layernorm.weight ",
	"model.layers.0.input_layernorm",
	"model.layers.18446744073709551616.input_layernorm.weight",
	"layers.0.input_layernorm.weight",
	"model.layers.0.norm.weight",
	"model.lm_head.weight",
	"model.layers.0.mlp.experts.4.gate_proj.weight",
	"model.layers.0.mlp.experts.01.gate_proj.weight",
	"model.layers.0.mlp.experts.{}.gate_proj.weight",
	"",
};

START_LOOP_TEST(names_that_are_nearly_those_of_the_model_are_not, ARRAY_LEN(near_misses))
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(
		read_arch(DECODER("Qwen3MoeForCausalLM", EXPERTS ", \"head_dim\": 16"), &e), 0);
	fill(arch_prefix(&arch, 0), false);
	(void)stpcpy(set.v[set.n].name, near_misses[_i]);
	set.v[set.n].n_dims = 1;
	set.n++;
	r = check();
	ck_assert_uint_eq(r.unexpected, 1);
	ck_assert_uint_eq(r.missing, 0);
}
END_TEST

START_TEST(what_training_leaves_behind_is_ignored)
{
	static const char *const left[] = { "model.layers.0.self_attn.rotary_emb.inv_freq",
					    "transformer.h.0.attn.bias",
					    "transformer.h.0.attn.masked_bias" };
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(models[0].config, &e), 0);
	fill(arch_prefix(&arch, 0), false);
	for (size_t i = 0; i < ARRAY_LEN(left); i++)
		(void)stpcpy(set.v[set.n++].name, left[i]);
	r = check();
	ck_assert(arch_is_complete(&r));
}
END_TEST

#define GLM(layers, more) \
	"{\"model_type\": \"glm4_moe\", \"vocab_size\": 48, \"hidden_size\": 32, " \
	"\"intermediate_size\": 40, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
	"\"max_position_embeddings\": 64, \"n_routed_experts\": 4, \"moe_intermediate_size\": " \
	"24, " \
	"\"n_shared_experts\": 2, \"first_k_dense_replace\": 1, " \
	"\"num_hidden_layers\": " #layers more "}"

static const struct {
	const char *config, *name;
	bool ignored;
} further[] = {
	{ GLM(46, ""), "model.layers.46.eh_proj.weight", true },
	{ GLM(92, ""), "model.layers.92.self_attn.q_proj.weight", true },
	{ GLM(46, ", \"num_nextn_predict_layers\": 0"), "model.layers.46.eh_proj.weight", false },
	{ GLM(46, ""), "model.layers.92.eh_proj.weight", false },
	{ GLM(5, ""), "model.layers.5.eh_proj.weight", false },
	{ GLM(5, ", \"num_nextn_predict_layers\": 2"), "model.layers.6.enorm.weight", true },
	{ GLM(5, ", \"num_nextn_predict_layers\": 2"), "model.layers.7.enorm.weight", false },
	{ GLM(5, ", \"num_nextn_predict_layers\": 2"), "model.layers.4.enorm.weight", false },
	{ GLM(5, ", \"num_nextn_predict_layers\": 2"), "model.layers.5", false },
	{ GLM(5, ", \"num_nextn_predict_layers\": 2"), "model.layers.4294967301.x", false },
	{ DECODER("DeepseekV3ForCausalLM",
		  LATENT ", \"q_lora_rank\": 12, \"num_nextn_predict_layers\": 1"),
	  "model.layers.3.eh_proj.weight", true },
	{ DECODER("DeepseekV3ForCausalLM", LATENT ", \"q_lora_rank\": 12"),
	  "model.layers.3.eh_proj.weight", false },
	{ DECODER("LlamaForCausalLM", ", \"num_nextn_predict_layers\": 1"),
	  "model.layers.3.eh_proj.weight", false },
	{ DECODER("Qwen3NextForCausalLM", LINEAR SHARED), "mtp.layers.0.mlp.gate.weight", true },
	{ DECODER("Qwen3NextForCausalLM", LINEAR SHARED), "model.mtp.fc.weight", false },
	{ DECODER("LlamaForCausalLM", ""), "mtp.fc.weight", false },
};

START_LOOP_TEST(layers_that_predict_further_tokens_are_ignored, ARRAY_LEN(further))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(read_arch(further[_i].config, &e), 0);
	ck_assert_int_eq(arch_ignores(&arch, further[_i].name, strlen(further[_i].name)),
			 further[_i].ignored);
}
END_TEST

/* What a config only claims costs neither memory nor time. */
START_TEST(a_config_that_asks_for_too_much_costs_nothing)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(
		read_arch("{\"model_type\": \"qwen3_moe\", \"vocab_size\": 2147483647, "
			  "\"hidden_size\": 2147483647, \"intermediate_size\": 2147483647, "
			  "\"num_hidden_layers\": 65536, "
			  "\"num_attention_heads\": 2147483647, "
			  "\"num_key_value_heads\": 2147483647, \"head_dim\": 2147483647, "
			  "\"max_position_embeddings\": 1, \"num_experts\": 2147483647, "
			  "\"moe_intermediate_size\": 2147483647}",
			  &e),
		0);
	set.n = 0;
	r = check();
	ck_assert_uint_eq(r.missing, r.needed);
	ck_assert_uint_eq(r.needed, 3 + 65536ull * (9 + 3 * 2147483647ull));
	ck_assert_str_eq(r.missing_names[0], "model.embed_tokens.weight");
	ck_assert_int_eq(read_arch("{\"model_type\": \"gpt2\", \"vocab_size\": 1, \"n_embd\": 1, "
				   "\"n_head\": 1, \"n_positions\": 1, \"n_layer\": 65537}",
				   &e),
			 -ERR_UNSUPPORTED);
	ck_assert_str_eq(e.msg, "config.json: not supported: more than 65536 layers");
}
END_TEST

static const struct {
	const char *config, *message;
} bad[] = {
	{ "{}", "config.json has no 'architectures' and no 'model_type'" },
	{ "{\"model_type\": \"bert\"}", "config.json: model_type 'bert' is not supported" },
	{ DECODER("DeepseekV3ForCausalLM", LATENT), "config.json has no 'q_lora_rank'" },
	{ DECODER("DeepseekV3ForCausalLM", ""), "config.json has no 'n_routed_experts'" },
	{ DECODER("Gemma2ForCausalLM", ""), "config.json has no 'head_dim'" },
	{ DECODER("LlamaForCausalLM", ", \"attention_bias\": 1"),
	  "config.json: 'attention_bias' is neither true nor false" },
	{ DECODER("Qwen3MoeForCausalLM", EXPERTS ", \"head_dim\": 16, \"decoder_sparse_step\": 0"),
	  "config.json: 'decoder_sparse_step' is not a number from 1 to 2147483647" },
	{ DECODER("Gemma3ForConditionalGeneration", ""), "config.json has no 'text_config'" },
	{ DECODER("Gemma3ForConditionalGeneration", ", \"text_config\": null"),
	  "config.json has no 'text_config'" },
	{ DECODER("Gemma3ForConditionalGeneration", ", \"text_config\": [{}]"),
	  "config.json: 'text_config' is not an object" },
	{ DECODER("Gemma3ForConditionalGeneration", ", \"text_config\": \"\""),
	  "config.json: 'text_config' is not an object" },
	{ DECODER("Gemma3ForConditionalGeneration", ", \"text_config\": {}"),
	  "config.json has no 'text_config.num_hidden_layers'" },
	{ GEMMA3_WHOLE("", "\"text_config\": {}, ", ""),
	  "config.json: 'text_config.text_config' is in another text_config" },
	{ GEMMA3_WHOLE("", "\"model_type\": \"gemma3\", ", ""),
	  "config.json: a Gemma3ForConditionalGeneration whose text_config is of 'gemma3' is not "
	  "supported" },
	{ GEMMA3_WHOLE("", "\"model_type\": \"llama\", ", ""),
	  "config.json: a Gemma3ForConditionalGeneration whose text_config is of 'llama' is not "
	  "supported" },
	{ GEMMA3_WHOLE("", "\"model_type\": 3, ", ""),
	  "config.json: 'text_config.model_type' is not a string" },
	{ GEMMA3_WHOLE("", "\"architectures\": [\"Gemma2ForCausalLM\"], ", ""),
	  "config.json: a Gemma3ForConditionalGeneration whose text_config is of "
	  "'Gemma2ForCausalLM' is not supported" },
	{ WHOLE("Qwen3VLForConditionalGeneration", "",
		"\"architectures\": [\"Qwen3ForCausalLM\"], ", ", \"head_dim\": 16"),
	  "config.json: a Qwen3VLForConditionalGeneration whose text_config is of "
	  "'Qwen3ForCausalLM' is not supported" },
	{ WHOLE("Mistral3ForConditionalGeneration", "", "\"model_type\": \"mistral4\", ", ""),
	  "config.json: a Mistral3ForConditionalGeneration whose text_config is of 'mistral4' is "
	  "not supported" },
	{ WHOLE("Qwen3VLMoeForConditionalGeneration", "", "", ""),
	  "config.json: architecture 'Qwen3VLMoeForConditionalGeneration' is not supported" },
};

START_LOOP_TEST(what_does_not_say_enough_is_an_error, ARRAY_LEN(bad))
{
	struct ckpt_err e = { 0 };

	ck_assert_int_lt(read_arch(bad[_i].config, &e), 0);
	ck_assert_str_eq(e.msg, bad[_i].message);
}
END_TEST

/* ---- a text model in a whole ---- */

static void add_other(const char *name)
{
	(void)snprintf(set.v[set.n].name, sizeof(set.v[set.n].name), "%s", name);
	set.v[set.n].n_dims = 1;
	set.v[set.n].shape[0] = 5;
	set.v[set.n].gone = set.v[set.n].odd = false;
	set.n++;
}

static const struct {
	const char *embeddings, *head;
	bool mixed; /* the head's prefix belongs to another way */
} ways[] = {
	{ "model.language_model.embed_tokens.weight", "lm_head.weight", false },
	{ "language_model.model.embed_tokens.weight", "language_model.lm_head.weight", false },
	{ "language_model.model.embed_tokens.weight", "lm_head.weight", false },
	{ "language_model.embed_tokens.weight", "lm_head.weight", false },
	{ "model.language_model.embed_tokens.weight", "language_model.lm_head.weight", true },
	{ "language_model.embed_tokens.weight", "language_model.lm_head.weight", true },
};

/* Any release's names will do, whether there is a head or it is tied. */
START_LOOP_TEST(a_text_model_in_a_whole_has_one_of_several_prefixes, ARRAY_LEN(ways))
{
	struct ckpt_err e = { 0 };
	struct arch_report r;
	struct arch_prefix p = { .most = "" };
	char most[40];
	int len = (int)(strlen(ways[_i].embeddings) - strlen("embed_tokens.weight"));

	(void)snprintf(most, sizeof(most), "%.*s", len, ways[_i].embeddings);
	p = (struct arch_prefix){ most, *ways[_i].head == 'l' && ways[_i].head[1] == 'm'
						? ""
						: "language_model." };
	for (int tied = 0; tied < 2; tied++) {
		ck_assert_int_eq(read_arch(tied ? GEMMA3_WHOLE("", "", ", \"head_dim\": 16")
						: GEMMA3_WHOLE(", \"tie_word_embeddings\": false",
							       "", ", \"head_dim\": 16"),
					   &e),
				 0);
		fill(&p, false);
		(void)at(ways[_i].embeddings);
		ck_assert_int_eq(find(&set, ways[_i].head, strlen(ways[_i].head)) < 0, tied);
		add_other("model.vision_tower.layers.0.self_attn.q_proj.weight");
		add_other("vision_tower.norm.weight");
		add_other("multi_modal_projector.embed_tokens.weight");
		r = check();
		ck_assert_uint_eq(r.others, 3);
		ck_assert_int_eq(arch_is_complete(&r), tied || !ways[_i].mixed);
		ck_assert_uint_eq(r.unexpected, !tied && ways[_i].mixed);
		ck_assert(!r.bare);
		/* The prefix is found without the embeddings, too. */
		set.v[at(ways[_i].embeddings)] = set.v[set.n - 1];
		set.n--;
		r = check();
		ck_assert_str_eq(r.missing_names[0], ways[_i].embeddings);
		ck_assert_uint_eq(r.missing, 1 + (!tied && ways[_i].mixed));
	}
}
END_TEST

/* Names that begin like those of another part. */
START_TEST(other_parts_begin_with_their_names)
{
	struct ckpt_err e = { 0 };
	struct arch_report r;

	ck_assert_int_eq(read_arch(GEMMA3_WHOLE("", "", ", \"head_dim\": 16"), &e), 0);
	fill(arch_prefix(&arch, 0), false);
	add_other("language_model.vision_tower.norm.weight");
	add_other("model.model.vision_tower.norm.weight");
	add_other("vision_towers.norm.weight");
	add_other("model.visual.norm.weight");
	add_other("model.embed_tokens.weight");
	add_other("model.");
	r = check();
	ck_assert_uint_eq(r.others, 0);
	ck_assert_uint_eq(r.unexpected, 6);
	ck_assert_int_eq(read_arch(DECODER("LlamaForCausalLM", ""), &e), 0);
	ck_assert(!arch_is_other(&arch, "vision_tower.x", 14));
}
END_TEST

/* gemma-3-4b-it is published with nothing more than this. */
START_TEST(gemma_3_is_what_its_class_has_as_defaults)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(
		read_arch("{\"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 2560, "
			  "\"intermediate_size\": 10240, \"model_type\": \"gemma3_text\", "
			  "\"num_hidden_layers\": 34, \"sliding_window\": 1024}}",
			  &e),
		0);
	ck_assert_str_eq(arch_class(&arch), "Gemma3ForConditionalGeneration");
	ck_assert_str_eq(arch.family->class, "Gemma3ForCausalLM");
	ck_assert(arch.tied && arch.vocab == 262208 && arch.positions == 131072);
	ck_assert(arch.heads == 8 && arch.kv_heads == 4 && arch.head_dim == 256);
}
END_TEST

static const struct {
	const char *config, *name;
} called[] = {
	{ WHOLE("Mistral3ForConditionalGeneration", "", "", ""), "mistral3" },
	{ WHOLE("Mistral3ForConditionalGeneration", "",
		"\"architectures\": [\"Mistral3ForConditionalGeneration\"], ", ""),
	  "mistral3" },
	{ WHOLE("Mistral3ForConditionalGeneration", "",
		"\"architectures\": [\"MistralForCausalLM\"], ", ""),
	  "llama" },
	{ WHOLE("Mistral3ForConditionalGeneration", "", "\"architectures\": null, ", ""),
	  "mistral3" },
	{ GEMMA3_WHOLE("", "", ""), "gemma3" },
	{ WHOLE("Qwen3VLForConditionalGeneration", "", "", ", \"head_dim\": 16"), "qwen3vl" },
	{ WHOLE("Mistral3ForConditionalGeneration", "", "\"model_type\": \"ministral3\", ", ""),
	  "mistral3" },
	{ WHOLE("Mistral3ForConditionalGeneration", "",
		"\"model_type\": \"ministral3\", \"architectures\": [\"Ministral3ForCausalLM\"], ",
		""),
	  "mistral3" },
	{ DECODER("Ministral3ForCausalLM", ""), "mistral3" },
	{ DECODER("MistralForCausalLM", ""), "llama" },
};

/* As get_model_architecture of llama.cpp's converter has it. */
START_LOOP_TEST(llama_cpp_s_name_follows_the_class_of_the_text_model, ARRAY_LEN(called))
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!read_arch(called[_i].config, &e), "%s", e.msg);
	ck_assert_str_eq(arch.gguf, called[_i].name);
}
END_TEST

SUITE(arch, .teardown = teardown)

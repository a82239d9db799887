/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The config.json and the recipe made from a GGUF's keys, key by key. If something is missing, odd
 * or unknown, there is neither, and this is the reason given. tests/torch/gguf_source.sh compares
 * what transformers loads.
 */
#include "ckpt/model/gguf_model.h"

#include "base/checked.h"
#include "base/err.h"
#include "ckpt/computed/peek.h"
#include "dir_util.h"
#include "format/format.h"
#include "gguf_text.h"
#include "index/catalog_query.h"
#include "scan_util.h"
#include "suites.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBEDDINGS "token_embd.weight F32 16x8"
#define HEADS \
	"general.architecture \"%\"; .block_count 1; .context_length 64; .embedding_length 8; " \
	".feed_forward_length 12; .attention.head_count 2; .attention.head_count_kv 1; " \
	".attention.layer_norm_rms_epsilon 1e-5; "
#define EXPERTS ".expert_count 4; .expert_used_count 2; .expert_feed_forward_length 6; "
#define ROUTED \
	EXPERTS ".expert_shared_count 1; .leading_dense_block_count 1; .expert_weights_scale " \
		"2.5; " \
		".expert_group_count 1; .expert_group_used_count 1; .expert_weights_norm true; "
#define LATENT \
	".attention.kv_lora_rank 4; .attention.key_length_mla 6; .attention.value_length_mla 4; " \
	".rope.dimension_count 2; "
#define GRANITE \
	".attention.scale 0.5; .embedding_scale 12.0; .residual_scale 0.25; .logit_scale 4.0; "
#define PHI3 \
	".rope.scaling.original_context_length 16; .rope.scaling.attn_factor 1.2247449; " \
	".rope.dimension_count 4; "
#define LONG   EMBEDDINGS "; rope_factors_long.weight F32 2; rope_factors_short.weight F32 2"
#define SCALED ".attention.key_length 8; .attention.value_length 8; .rope.freq_base 500000.0; "
#define FREQS  EMBEDDINGS "; rope_freqs.weight F32 4"

static const struct base {
	const char *arch, *keys, *tensors;
} llama = { "llama", HEADS, EMBEDDINGS }, mixtral = { "llama", HEADS EXPERTS, EMBEDDINGS },
  qwen2moe = { "qwen2moe", HEADS EXPERTS ".expert_shared_feed_forward_length 12", EMBEDDINGS },
  qwen3moe = { "qwen3moe", HEADS EXPERTS, EMBEDDINGS },
  mistral3 = { "mistral3", HEADS, EMBEDDINGS }, granite = { "granite", HEADS GRANITE, EMBEDDINGS },
  gemma = { "gemma", HEADS ".attention.key_length 4", EMBEDDINGS },
  gemma2 = { "gemma2",
	     HEADS
	     ".attention.key_length 4; .attention.sliding_window 32; .attn_logit_softcapping 50.0",
	     EMBEDDINGS },
  gemma3 = { "gemma3", HEADS ".attention.key_length 4; .attention.sliding_window 32", EMBEDDINGS },
  olmo2 = { "olmo2", HEADS, EMBEDDINGS },
  olmo3 = { "olmo2",
	    HEADS ".attention.sliding_window 32; .attention.sliding_window_pattern [true,false]",
	    EMBEDDINGS },
  phi3 = { "phi3", HEADS PHI3, LONG },
  glm4 = { "glm4", HEADS ".rope.dimension_count 2", EMBEDDINGS },
  glm4moe = { "glm4moe", HEADS ROUTED ".expert_gating_func 2; .rope.dimension_count 2",
	      EMBEDDINGS },
  deepseek2 = { "deepseek2", HEADS ROUTED LATENT ".expert_gating_func 1", EMBEDDINGS },
  deepseek3 = { "deepseek2", HEADS ROUTED LATENT ".expert_gating_func 2", EMBEDDINGS },
  llama3 = { "llama", HEADS SCALED, FREQS };

/* ---- the factors of rotary embeddings ---- */

enum factors { TWO, LLAMA3, ONES, NOT_QUITE, NANS, ZERO, INFINITE, FAILS, MISSING, NO_MEMORY };

static int read_factors(void *arg, uint32_t i, void *buf, size_t len, struct ckpt_err *e)
{
	static const float values[][4] = {
		[TWO] = { 1, 2.5F },
		[LLAMA3] = { 1, 1, 2.6945297F, 8 }, /* of a theta of 500000 */
		[ONES] = { 1, 1, 1, 1 },
		[NOT_QUITE] = { 1, 1, 2.7F, 8 },
		[NANS] = { 1, 1, NAN, 8 },
		[ZERO] = { 1, 0 },
		[INFINITE] = { INFINITY, 1 },
	};
	enum factors f = *(const enum factors *)arg;

	(void)i;
	if (f == FAILS || f == NO_MEMORY)
		return err_set(e, f == FAILS ? EIO : ENOMEM, "the disk is gone");
	if (f == MISSING)
		return 1;
	REQUIRE(len <= sizeof(values[f]));
	memcpy(buf, values[f], len);
	return 0;
}

/* ---- a row: keys that are changed, and the result ---- */

static const struct row {
	const struct base *base;
	const char *changes;
	const char *tensors; /* NULL: those of the base */
	enum factors factors;
	const char *why; /* "": there is a config.json */
	const char *has; /* texts in it, with bars between them */
	const char *lacks;
	bool recipe; /* there is a recipe, even if there is no config.json */
} rows[] = {
	/* What every model has. */
	{ &llama, "", NULL, TWO, "",
	  "\"LlamaForCausalLM\"|\"rope_theta\": 10000.0|\"tie_word_embeddings\": true",
	  "rope_scaling", true },
	{ &llama, "", EMBEDDINGS "; output.weight F32 16x8", TWO, "",
	  "\"tie_word_embeddings\": false|\"head_dim\": 4|\"num_key_value_heads\": 1", "", true },
	{ &llama, "", EMBEDDINGS "; blk.0.attn_q.bias F32 8; blk.0.ffn_gate.bias F32 12", TWO, "",
	  "\"attention_bias\": true|\"mlp_bias\": true", "", true },
	{ &llama, ".attention.head_count_kv -", NULL, TWO, "", "\"num_key_value_heads\": 2", "",
	  true },
	{ &llama,
	  "tokenizer.ggml.bos_token_id 1; tokenizer.ggml.eos_token_id 2; "
	  "tokenizer.ggml.padding_token_id 3",
	  NULL, TWO, "", "\"bos_token_id\": 1|\"eos_token_id\": 2|\"pad_token_id\": 3", "", true },
	/* transformers would have a window of 4096; llama.cpp has none. */
	{ &mistral3, "", NULL, TWO, "", "\"MistralForCausalLM\"|\"sliding_window\": null", "",
	  true },
	{ &llama, "", NULL, TWO, "", "", "sliding_window", true },
	{ &llama, "general.architecture -", NULL, TWO, "no key 'general.architecture'", "", "",
	  false },
	{ &llama, "general.architecture 7", NULL, TWO, "no key 'general.architecture'", "", "",
	  false },
	{ &llama,
	  "general.architecture "
	  "\"0123456789012345678901234567890123456789012345678901234567890123456789"
	  "01234567890123456789012345678901234567890123456789\"",
	  NULL, TWO, "no key 'general.architecture'", "", "", false },
	{ &llama, "general.architecture \"mamba\"", NULL, TWO,
	  "llama.cpp's architecture 'mamba' is not supported", "", "", false },
	{ &llama, "", "output.weight F32 16x8", TWO,
	  "the GGUF of architecture 'llama' has no token_embd.weight", "", "", false },
	{ &llama, "", "token_embd.weight F32 128", TWO,
	  "the GGUF of architecture 'llama' has no token_embd.weight", "", "", false },
	{ &llama, ".embedding_length -", NULL, TWO, "no key 'llama.embedding_length'", "", "",
	  false },
	{ &llama, ".embedding_length \"8\"", NULL, TWO, "'llama.embedding_length' is not a number",
	  "", "", false },
	{ &llama, ".attention.layer_norm_rms_epsilon nan", NULL, TWO,
	  "'llama.attention.layer_norm_rms_epsilon' is not a number", "", "", false },
	{ &llama, "tokenizer.ggml.bos_token_id true", NULL, TWO,
	  "the key 'tokenizer.ggml.bos_token_id' is not a number", "", "", true },
	{ &llama, ".attention.head_count -", NULL, TWO, "no key 'llama.attention.head_count'", "",
	  "", false },
	{ &llama, ".attention.value_length 8", NULL, TWO,
	  "keys of 4, of which 4 are rotated, and values of 8", "", "", true },
	{ &llama, ".rope.dimension_count 2", NULL, TWO,
	  "keys of 4, of which 2 are rotated, and values of 4", "", "", true },
	{ &llama, ".attention.key_length 3; .attention.value_length 3", NULL, TWO,
	  "heads of an odd size", "", "", false },
	{ &llama, ".attention.scale 0.5", NULL, TWO,
	  "the key 'llama.attention.scale' has no known counterpart in a config.json", "", "",
	  true },
	{ &llama, "llamas.size 1; llama 1; lama.x.y 1; llama_x.y 2", NULL, TWO, "", "\"llama\"", "",
	  true },

	/* How rotary embeddings are scaled. */
	{ &llama, ".rope.scaling.type \"none\"", NULL, TWO, "", "\"llama\"", "rope_scaling", true },
	{ &llama, ".rope.scaling.type 3", NULL, TWO,
	  "rotary embeddings of type 'none' are not supported", "", "", true },
	{ &llama, ".rope.scaling.type \"dynamic\"", NULL, TWO,
	  "rotary embeddings of type 'dynamic' are not supported", "", "", true },
	{ &llama, ".rope.scaling.type \"linear\"; .rope.scaling.factor 4.0", NULL, TWO, "",
	  "\"rope_type\": \"linear\"|\"factor\": 4", "original_max", true },
	{ &llama, ".rope.scaling.type \"linear\"", NULL, TWO, "no key 'llama.rope.scaling.factor'",
	  "", "", false },
	{ &llama,
	  ".rope.scaling.type \"yarn\"; .rope.scaling.factor 4.0; "
	  ".rope.scaling.original_context_length 16; .rope.scaling.yarn_beta_fast 30.0; "
	  ".rope.scaling.yarn_beta_slow 2.0",
	  NULL, TWO, "",
	  "\"original_max_position_embeddings\": 16|\"beta_fast\": 30|\"beta_slow\": 2",
	  "attention_factor", true },
	{ &llama,
	  ".rope.scaling.type \"yarn\"; .rope.scaling.factor 4.0; "
	  ".rope.scaling.original_context_length 16; .rope.scaling.yarn_ext_factor 0.5; "
	  ".rope.scaling.yarn_attn_factor 1.5",
	  NULL, TWO, "", "\"extrapolation_factor\": 0.5|\"attention_factor\": 1.5|\"yarn\"",
	  "beta_", true },
	{ &llama, ".rope.scaling.type \"yarn\"; .rope.scaling.factor 4.0", NULL, TWO,
	  "no key 'llama.rope.scaling.original_context_length'", "", "", false },
	{ &llama, ".rope.scaling.type \"linear\"; .rope.scaling.factor 4.0", FREQS, TWO,
	  "the GGUF scales rotary embeddings in two ways", "", "", true },

	/* Llama 3's. */
	{ &llama3, "", NULL, LLAMA3, "",
	  "\"rope_type\": \"llama3\"|\"factor\": 8|\"original_max_position_embeddings\": 8192", "",
	  true },
	{ &llama3, ".rope.freq_base -", NULL, ONES, "",
	  "\"factor\": 1,|\"low_freq_factor\": 1|\"high_freq_factor\": 4", "", true },
	{ &llama3, "", NULL, NOT_QUITE,
	  "the factors of 'rope_freqs.weight' are not those of Llama 3", "", "", true },
	{ &llama3, "", NULL, NANS, "the factors of 'rope_freqs.weight' are not those of Llama 3",
	  "", "", true },
	{ &llama3, "", NULL, FAILS, "'rope_freqs.weight' cannot be read: the disk is gone", "", "",
	  true },
	{ &llama3, "", NULL, MISSING, "'rope_freqs.weight' cannot be read", "", "", true },
	{ &llama3, "", EMBEDDINGS "; rope_freqs.weight F16 4", LLAMA3,
	  "'rope_freqs.weight' has shape (4,) (float16)", "", "", true },
	{ &llama3, "", EMBEDDINGS "; rope_freqs.weight F32 2x2", LLAMA3,
	  "'rope_freqs.weight' has shape (2, 2) (float32)", "", "", true },
	{ &llama3, "", EMBEDDINGS "; rope_freqs.weight F32 5", LLAMA3,
	  "'rope_freqs.weight' has shape (5,) (float32)", "", "", true },
	{ &llama3, "", EMBEDDINGS "; rope_freqs.weight F32 100000", LLAMA3,
	  "'rope_freqs.weight' has shape (100000,) (float32)", "", "", true },

	/* Phi-3's. */
	{ &phi3, "", NULL, TWO, "",
	  "\"rope_type\": \"longrope\"|\"long_factor\": [1, "
	  "2.5]|\"original_max_position_embeddings\": 16",
	  "sliding_window", true },
	{ &phi3, ".attention.sliding_window 32", NULL, TWO, "", "\"sliding_window\": 32", "",
	  true },
	{ &phi3, ".attention.sliding_window 0", NULL, TWO, "", "\"phi3\"", "sliding_window", true },
	{ &phi3, "", NULL, ZERO, "'rope_factors_long.weight' has numbers that are not positive", "",
	  "", true },
	{ &phi3, "", NULL, INFINITE, "'rope_factors_long.weight' has numbers that are not positive",
	  "", "", true },
	{ &phi3, "", EMBEDDINGS "; rope_factors_long.weight F32 2", TWO,
	  "the GGUF has no tensor 'rope_factors_short.weight'", "", "", true },
	{ &phi3, "", EMBEDDINGS "; rope_factors_short.weight F32 2", TWO,
	  "the GGUF has no tensor 'rope_factors_long.weight'", "", "", true },
	{ &phi3, "", EMBEDDINGS, TWO, "the GGUF has no tensor 'rope_factors_long.weight'", "", "",
	  true },
	{ &phi3, ".rope.scaling.original_context_length -", NULL, TWO,
	  "no usable keys 'phi3.rope.scaling.original_context_length'", "", "", true },
	{ &phi3, ".rope.scaling.original_context_length 1", NULL, TWO,
	  "no usable keys 'phi3.rope.scaling.original_context_length'", "", "", true },
	{ &phi3, ".rope.scaling.attn_factor -", NULL, TWO, "and 'phi3.rope.scaling.attn_factor'",
	  "", "", true },
	{ &phi3, ".rope.scaling.attn_factor 1.5", NULL, TWO,
	  "'phi3.rope.scaling.attn_factor' is 1.5, but for a context of 64 extended from 16 it "
	  "should be 1.22474",
	  "", "", true },
	{ &phi3, ".context_length 8; .rope.scaling.attn_factor 1.0", NULL, TWO, "",
	  "\"max_position_embeddings\": 8", "", true },
	{ &phi3, ".rope.scaling.type \"yarn\"", NULL, TWO,
	  "the GGUF scales rotary embeddings in two ways", "", "", true },
	{ &phi3, ".rope.dimension_count 6", EMBEDDINGS, TWO, "keys of 4, of which 6 are rotated",
	  "", "", true },

	/* Experts. */
	{ &mixtral, "", NULL, TWO, "",
	  "\"MixtralForCausalLM\"|\"num_local_experts\": 4|\"num_experts_per_tok\": 2",
	  "norm_topk_prob", true },
	{ &qwen2moe, "", NULL, TWO, "",
	  "\"shared_expert_intermediate_size\": 12|\"moe_intermediate_size\": "
	  "6|\"norm_topk_prob\": false",
	  "", true },
	{ &qwen2moe, ".expert_shared_feed_forward_length -", NULL, TWO,
	  "no key 'qwen2moe.expert_shared_feed_forward_length'", "", "", false },
	{ &qwen3moe, "", NULL, TWO, "", "\"num_experts\": 4|\"norm_topk_prob\": true",
	  "shared_expert", true },
	{ &qwen3moe, ".expert_count -", NULL, TWO,
	  "the key 'qwen3moe.expert_count' is 0, no number, or missing, but this architecture is "
	  "supported only with experts",
	  "", "", false },
	{ &qwen3moe, ".expert_count 0", NULL, TWO, "the key 'qwen3moe.expert_count' is 0", "", "",
	  false },
	{ &granite, ".expert_count 4", NULL, TWO,
	  "the key 'granite.expert_count' is not 0, but this architecture is supported only "
	  "without experts",
	  "", "", false },
	{ &glm4moe, ".nextn_predict_layers 1; .block_count 2",
	  EMBEDDINGS "; blk.0.attn_q_norm.weight F32 4", TWO, "",
	  "\"num_hidden_layers\": 1|\"use_qk_norm\": true|\"partial_rotary_factor\": 0.5", "",
	  true },
	{ &glm4moe, ".expert_gating_func 1", NULL, TWO,
	  "the key 'glm4moe.expert_gating_func' does not have a value that is known", "", "",
	  false },
	{ &glm4moe, ".nextn_predict_layers 1", NULL, TWO, "1 layers predict further tokens, of 1",
	  "", "", false },
	{ &glm4moe, ".nextn_predict_layers 101; .block_count 200", NULL, TWO,
	  "101 layers predict further tokens, of 200", "", "", false },
	{ &glm4moe, ".nextn_predict_layers 1; .block_count -", NULL, TWO,
	  "1 layers predict further tokens, of 0", "", "", false },
	{ &glm4moe, ".expert_weights_norm false", NULL, TWO, "", "\"norm_topk_prob\": false", "",
	  true },
	{ &glm4moe, ".expert_weights_norm -", NULL, TWO, "", "\"norm_topk_prob\": false", "",
	  true },
	{ &glm4, "", NULL, TWO, "", "\"Glm4ForCausalLM\"|\"partial_rotary_factor\": 0.5", "",
	  true },
	{ &glm4, ".rope.dimension_count -", NULL, TWO, "", "\"partial_rotary_factor\": 1.0", "",
	  true },

	/* Latent attention. */
	{ &deepseek2, "", NULL, TWO, "",
	  "\"deepseek_v2\"|\"scoring_func\": \"softmax\"|\"topk_method\": \"greedy\"", "", true },
	{ &deepseek3, ".attention.q_lora_rank 4", NULL, TWO, "",
	  "\"deepseek_v3\"|\"q_lora_rank\": 4|\"qk_nope_head_dim\": 4", "", true },
	{ &deepseek3,
	  ".rope.scaling.type \"yarn\"; .rope.scaling.factor 4.0; "
	  ".rope.scaling.original_context_length 16; .rope.scaling.yarn_log_multiplier 0.1",
	  NULL, TWO, "", "\"q_lora_rank\": null|\"mscale\": 1,|\"mscale_all_dim\": 1", "", true },
	{ &deepseek3, ".attention.head_count 1025", NULL, TWO, "1025 heads are more than 1024", "",
	  "", false },
	{ &deepseek3, ".attention.key_length_mla 2", NULL, TWO,
	  "the GGUF has an unknown form of latent attention", "", "", false },
	{ &deepseek3, ".attention.key_length_mla -", NULL, TWO,
	  "the GGUF has an unknown form of latent attention", "", "", false },
	{ &deepseek3, ".rope.dimension_count -", NULL, TWO,
	  "no key 'deepseek2.rope.dimension_count'", "", "", false },
	{ &deepseek3, ".expert_gating_func 3", NULL, TWO,
	  "the key 'deepseek2.expert_gating_func' does not have a value that is known", "", "",
	  false },

	/* Keys of one family. */
	{ &granite, "", NULL, TWO, "",
	  "\"attention_multiplier\": 0.5|\"residual_multiplier\": 0.25|\"logits_scaling\": 4", "",
	  true },
	{ &granite, ".logit_scale -", NULL, TWO, "no key 'granite.logit_scale'", "", "", true },
	{ &gemma, "", NULL, TWO, "",
	  "\"hidden_activation\": \"gelu_pytorch_tanh\"|\"GemmaForCausalLM\"",
	  "query_pre_attn_scalar", true },
	{ &gemma2, ".final_logit_softcapping 30.0", NULL, TWO, "",
	  "\"query_pre_attn_scalar\": 4|\"attn_logit_softcapping\": "
	  "50|\"final_logit_softcapping\": 30",
	  "rope_local", true },
	{ &gemma2, ".block_count 46; .embedding_length 16", "token_embd.weight F32 16x16", TWO, "",
	  "\"query_pre_attn_scalar\": 8", "", true },
	{ &gemma2, ".attn_logit_softcapping -", NULL, TWO, "no key 'gemma2.attn_logit_softcapping'",
	  "", "", false },
	{ &gemma2, ".attention.sliding_window -", NULL, TWO,
	  "no key 'gemma2.attention.sliding_window'", "", "", false },
	{ &gemma3, "", NULL, TWO, "",
	  "\"rope_local_base_freq\": 10000.0|\"query_pre_attn_scalar\": 4", "softcapping", true },
	{ &gemma3, ".rope.freq_base_swa 20000.0; .block_count 62; .embedding_length 16",
	  "token_embd.weight F32 16x16", TWO, "",
	  "\"rope_local_base_freq\": 20000|\"query_pre_attn_scalar\": 8", "", true },
	{ &olmo2, "", NULL, TWO, "", "\"Olmo2ForCausalLM\"", "layer_types", true },
	{ &olmo3, "", NULL, TWO, "",
	  "\"Olmo3ForCausalLM\"|[\"sliding_attention\", \"full_attention\"]", "", true },
	{ &olmo3, ".attention.sliding_window_pattern -", NULL, TWO,
	  "the GGUF does not say which layers have a sliding window", "", "", true },
	{ &olmo3, ".attention.sliding_window true", NULL, TWO,
	  "'olmo2.attention.sliding_window' is not a number", "", "", true },
};

static int read_model(const struct row *x, const char *dtype, struct gguf_model *m,
		      struct ckpt_err *e)
{
	enum factors factors = x->factors;
	struct peek peek = { read_factors, &factors };
	struct catalog *c = NULL;
	char keys[2000];
	const char *mark = strchr(x->base->keys, '%');
	int rc;

	(void)snprintf(keys, sizeof(keys), "%.*s%s%s", (int)(mark - x->base->keys), x->base->keys,
		       x->base->arch, mark + 1);
	gguf_put(dir_fd, "m.gguf", x->base->arch, keys, x->changes,
		 x->tensors ? x->tensors : x->base->tensors);
	ck_assert_msg(!scan_dir(dir_fd, &(struct scan_opts){ 0 }, &c, e), "%s", e->msg);
	rc = gguf_model_read(c, dtype, &peek, m, e);
	catalog_close(c);
	return rc;
}

static void must_have(const char *config, const char *texts)
{
	char *copy = strdup(texts), *at = copy, *one;

	REQUIRE(copy);
	while ((one = strsep(&at, "|")))
		ck_assert_msg(strstr(config, one) != NULL, "no %s in %s", one, config);
	free(copy);
}

START_LOOP_TEST(a_config_is_made_if_every_key_is_known, ARRAY_LEN(rows))
{
	const struct row *x = &rows[_i];
	struct ckpt_err e = { 0 };
	struct gguf_model m;

	ck_assert_msg(!read_model(x, "bfloat16", &m, &e), "%s", e.msg);
	buf_add(&m.config, "", 1);
	ck_assert_msg(*x->why ? strstr(m.why, x->why) != NULL : !*m.why, "'%s'", m.why);
	ck_assert_int_eq(m.config.len > 1, !*x->why);
	if (!*x->why)
		must_have((char *)m.config.data, "\"torch_dtype\": \"bfloat16\"");
	must_have((char *)m.config.data, x->has);
	ck_assert_msg(!*x->lacks || !strstr((char *)m.config.data, x->lacks), "%s in %s", x->lacks,
		      (char *)m.config.data);
	ck_assert_int_eq(m.recipe.len > 0, x->recipe);
	gguf_model_release(&m);
}
END_TEST

START_TEST(blocks_have_no_config)
{
	struct ckpt_err e = { 0 };
	struct gguf_model m;

	ck_assert_int_eq(read_model(&rows[0], NULL, &m, &e), 0);
	ck_assert_msg(strstr(m.why, "dequantize=bf16, fp16 or fp32") != NULL, "%s", m.why);
	ck_assert_uint_eq(m.config.len + m.recipe.len, 0);
	gguf_model_release(&m);
}
END_TEST

START_TEST(what_there_is_no_memory_for_is_an_error)
{
	struct row x = { .base = &llama3, .changes = "", .factors = NO_MEMORY };
	struct ckpt_err e = { 0 };
	struct gguf_model m;

	ck_assert_int_eq(read_model(&x, "bfloat16", &m, &e), -ENOMEM);
	gguf_model_release(&m);
}
END_TEST

SUITE(gguf_model, .setup = dir_setup, .teardown = dir_teardown)

/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a GGUF made from config.json and tokenizer.json, and the header that holds them. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "fault.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_mix.h"
#include "gguf/gguf_tokens.h"
#include "gguf_util.h"
#include "suites.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the head ---- */

START_TEST(the_head_is_padded_and_tensors_are_a_page_apart)
{
	struct gguf_keys k = GGUF_KEYS_INIT("x");
	struct gguf_tensor t[] = {
		{ .name = "a", .shape = { 3, 5 }, .n_dims = 2, .bytes = 60 },
		{ .name = "bc", .shape = { 7 }, .n_dims = 1, .type = 30, .bytes = 14 }
	};
	struct buf head = BUF_INIT(GGUF_MAX_HEADER);
	struct ckpt_err e = { 0 };
	struct cursor c;

	gguf_u32(&k, ".y", 7);
	gguf_bool(&k, "z", true);
	ck_assert_int_eq(gguf_header(&k, t, 2, &head, &e), 0);
	ck_assert_uint_eq(head.len % GGUF_ALIGN, 0);
	c = cursor_of(head.data, head.len);
	ck_assert_mem_eq(cursor_take(&c, 4), "GGUF", 4);
	ck_assert_uint_eq(cursor_le32(&c), 3);
	ck_assert_uint_eq(cursor_le64(&c), 2);
	ck_assert_uint_eq(cursor_le64(&c), 2);
	ck_assert_uint_eq(cursor_le64(&c), 3);
	ck_assert_mem_eq(cursor_take(&c, 3), "x.y", 3);
	(void)cursor_take(&c, 4 + 4 + 8 + 1 + 4 + 1); /* values, and z */
	ck_assert_uint_eq(cursor_le64(&c), 1);
	ck_assert_mem_eq(cursor_take(&c, 1), "a", 1);
	ck_assert_uint_eq(cursor_le32(&c), 2);
	ck_assert_uint_eq(cursor_le64(&c), 5); /* the innermost first */
	ck_assert_uint_eq(cursor_le64(&c), 3);
	ck_assert_uint_eq(cursor_le32(&c), 0);
	ck_assert_uint_eq(cursor_le64(&c), 0);
	(void)cursor_take(&c, 8 + 2 + 4 + 8);
	ck_assert_uint_eq(cursor_le32(&c), 30);
	ck_assert_uint_eq(cursor_le64(&c), 64);
	while (c.p < c.end)
		ck_assert_uint_eq(*c.p++, 0);
	ck_assert_uint_eq(gguf_padding(60), 4);
	ck_assert_uint_eq(gguf_padding(64), 0);
	buf_release(&head);
	buf_release(&k.text);
}
END_TEST

START_TEST(sizes_that_add_up_to_too_much_are_an_error)
{
	struct gguf_keys k = GGUF_KEYS_INIT("x");
	struct gguf_tensor t[] = { { .name = "a", .bytes = UINT64_MAX - 5000 },
				   { .name = "b", .bytes = 5000 } };
	struct buf head = BUF_INIT(GGUF_MAX_HEADER);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(gguf_header(&k, t, 2, &head, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the header of a GGUF is larger than 268435456 bytes");
	buf_release(&head);
	buf_release(&k.text);
}
END_TEST

/* ---- config.json ---- */

static int read_config(const char *text, struct gguf_config *c, struct ckpt_err *e)
{
	return gguf_config_read(text, strlen(text), c, e);
}

/* The small configuration with these members added, or a larger one for kinds of models that need
 * it. */
static void fill_config(char text[static 1000], const char *more)
{
	static const char one_layer[] = "\"num_hidden_layers\": 1";
	static const char two_heads[] = "\"num_attention_heads\": 2";

	(void)snprintf(text, 1000, SMALL_CONFIG, more);
	if (strstr(more, "linear_")) /* the fourth layer is of the other kind */
		strstr(text, one_layer)[sizeof(one_layer) - 2] = '4';
	if (strstr(more, "\"Glm")) /* half of four elements of a head */
		strstr(text, two_heads)[sizeof(two_heads) - 2] = '1';
}

#define NO_FLOAT(key) "config.json: '" key "' is not a number greater than 0 that fits a float32"
#define YARN \
	", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, " \
	"\"original_max_position_embeddings\": 16"

#define GEMMA(n) \
	", \"architectures\": [\"Gemma" n "ForCausalLM\"], \"num_key_value_heads\": 1, " \
	"\"head_dim\": 2, \"query_pre_attn_scalar\": 2, \"sliding_window\": 8"
#define CAPS ", \"attn_logit_softcapping\": 50, \"final_logit_softcapping\": 30"

#define PHI3 ", \"architectures\": [\"Phi3ForCausalLM\"]"
#define PHI3_LONG(long_factor, more) \
	PHI3 ", \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [" long_factor \
	     "], \"short_factor\": [1]" more "}"
#define ROUTED(name, heads) \
	", \"architectures\": [\"" name "ForCausalLM\"], \"num_key_value_heads\": " heads \
	", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 3, " \
	"\"moe_intermediate_size\": 5, \"first_k_dense_replace\": 1, " \
	"\"routed_scaling_factor\": 1.5"
#define GLM_MOE ROUTED("Glm4Moe", "1") ", \"n_group\": 1, \"topk_group\": 1"
#define LATENT \
	", \"kv_lora_rank\": 6, \"qk_rope_head_dim\": 2, \"qk_nope_head_dim\": 3, " \
	"\"v_head_dim\": 7"
#define V2 ROUTED("DeepseekV2", "2") LATENT ", \"q_lora_rank\": 9"
#define V3 \
	ROUTED("DeepseekV3", "2") LATENT ", \"q_lora_rank\": 9, \"n_group\": 4, \"topk_group\": 2"
#define V3_YARN(more) \
	V3 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, " \
	   "\"original_max_position_embeddings\": 8" more "}"
/* An eighth of 16 elements of a head are rotated. */
#define LINEAR_OF(name, v_heads, more) \
	", \"architectures\": [\"" name "ForCausalLM\"], \"num_key_value_heads\": 1, " \
	"\"head_dim\": 16, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": " v_heads \
	", \"linear_key_head_dim\": 3, \"partial_rotary_factor\": 0.125, " more
#define CONV "\"linear_value_head_dim\": 3, \"linear_conv_kernel_dim\": 4"
#define QWEN_EXPERTS \
	", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 5, " \
	"\"shared_expert_intermediate_size\": 7"
#define NEXT	    LINEAR_OF("Qwen3Next", "4", CONV) QWEN_EXPERTS
#define QWEN35	    LINEAR_OF("Qwen3_5", "4", CONV)
#define SECTIONS(n) QWEN35 ", \"rope_parameters\": {\"mrope_section\": " n "}"
#define OSS_BARE \
	", \"architectures\": [\"GptOssForCausalLM\"], \"num_key_value_heads\": 1, " \
	"\"head_dim\": 2, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, " \
	"\"sliding_window\": 8"
#define OSS		  OSS_BARE ", \"rope_parameters\": {}"
#define KIND(name)	  ", \"architectures\": [\"" name "ForCausalLM\"]"
#define COHERE		  KIND("Cohere") ", \"layer_norm_eps\": 1e-5"
#define GRANITE_MOE	  KIND("GraniteMoe") ", \"num_local_experts\": 4"
#define UNSUPPORTED(what) "config.json: not supported: " what
#define OTHER_ORDER \
	UNSUPPORTED("another order of sliding-window layers than that of the published models")

/* A member of the small configuration in place of its own, or more of them. */
static const struct {
	const char *more, *message;
} bad_configs[] = {
	{ "x", "config.json, line 1: '}' expected near 'x'" },
	{ ", \"num_hidden_layers\": 1",
	  "config.json, line 1: duplicate object key near '\"num_hidden_layers\"'" },
	{ ", \"architectures\": [\"LlamaForSequenceClassification\"]",
	  "config.json: architecture 'LlamaForSequenceClassification' is not supported" },
	{ ", \"architectures\": [\"Qwen3ForCausalLM\"], \"num_key_value_heads\": 2",
	  "config.json has no 'head_dim'" },
	{ ", \"architectures\": [\"Qwen2ForCausalLM\"]",
	  "config.json has no 'num_key_value_heads'" },
	{ ", \"architectures\": [\"GPT2LMHeadModel\"]", "config.json has no 'n_layer'" },
	{ ", \"architectures\": [\"MixtralForCausalLM\"], \"num_key_value_heads\": 2",
	  "config.json has no 'num_local_experts'" },
	{ ", \"hidden_act\": \"gelu\"",
	  "config.json: not supported: a 'hidden_act' other than silu" },
	{ ", \"quantization_config\": {}", "config.json: not supported: quantised weights" },
	{ ", \"head_dim\": 3", "config.json: not supported: heads of an odd size" },
	{ ", \"head_dim\": 0", "config.json: 'head_dim' is not a number from 1 to 2147483647" },
	{ ", \"head_dim\": \"2\"", "config.json: 'head_dim' is not a number from 1 to 2147483647" },
	{ ", \"head_dim\": 2147483648",
	  "config.json: 'head_dim' is not a number from 1 to 2147483647" },
	{ ", \"num_key_value_heads\": 3", "config.json: not supported: the number of heads is not "
					  "a multiple of 'num_key_value_heads'" },
	{ ", \"tie_word_embeddings\": 1",
	  "config.json: 'tie_word_embeddings' is neither true nor false" },
	{ ", \"rope_theta\": -1", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 0", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 1e308", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 3.5e38", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 1e-60", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 1000000000000000000000000000000000000000", NO_FLOAT("rope_theta") },
	{ ", \"rope_theta\": 1e999", "config.json, line 1: too big number near '1e999'" },
	{ ", \"rope_theta\": NaN",
	  "config.json: 'rope_theta' is not a number greater than 0 that fits a float32" },
	{ ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e39}", NO_FLOAT("factor") },
	{ ", \"rope_scaling\": {\"type\": \"llama3\", \"low_freq_factor\": 1e300}",
	  NO_FLOAT("low_freq_factor") },
	{ ", \"head_dim\": 1024, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 1e-44}",
	  "config.json: 'factor' gives a frequency that does not fit a float32" },
	{ YARN ", \"extrapolation_factor\": 1e39}", NO_FLOAT("extrapolation_factor") },
	{ YARN ", \"extrapolation_factor\": 0.5}",
	  UNSUPPORTED("an 'extrapolation_factor' other than 1") },
	{ YARN ", \"attention_factor\": -1e39}", NO_FLOAT("attention_factor") },
	{ YARN ", \"attention_factor\": \"1\"}", NO_FLOAT("attention_factor") },
	{ YARN ", \"attn_factor\": 1e39}", NO_FLOAT("attn_factor") },
	{ YARN ", \"beta_fast\": 1e39}", NO_FLOAT("beta_fast") },
	{ YARN ", \"beta_fast\": \"32\"}", NO_FLOAT("beta_fast") },
	{ YARN ", \"beta_slow\": 0}", NO_FLOAT("beta_slow") },
	{ YARN ", \"truncate\": false}", UNSUPPORTED("'truncate' is false") },
	{ YARN ", \"truncate\": 1}", "config.json: 'truncate' is neither true nor false" },
	{ YARN ", \"attention_factor\": 1}", UNSUPPORTED("an 'attention_factor' of yarn") },
	{ YARN ", \"attn_factor\": 1}", UNSUPPORTED("an 'attention_factor' of yarn") },
	{ YARN ", \"mscale\": 1, \"mscale_all_dim\": 1}",
	  UNSUPPORTED("'mscale' and 'mscale_all_dim'") },
	{ ", \"rope_scaling\": \"linear\"", "config.json: 'rope_scaling' is not an object" },
	{ ", \"rope_parameters\": [1], \"rope_scaling\": {}",
	  "config.json: 'rope_parameters' is not an object" },
	{ ", \"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 1, \"n_positions\": 8, "
	  "\"n_embd\": 4, \"n_head\": 2, \"layer_norm_epsilon\": 1e39",
	  NO_FLOAT("layer_norm_epsilon") },
	{ ", \"partial_rotary_factor\": 0.5",
	  "config.json: not supported: partial rotary embeddings" },
	{ ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
	  "config.json: rotary embeddings of type 'dynamic' are not supported" },
	{ ", \"rope_scaling\": {\"type\": \"linear\"}", "config.json has no 'factor'" },
	{ ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2}",
	  "config.json has no 'original_max_position_embeddings'" },
	{ KIND("Qwen3Moe") ", \"num_key_value_heads\": 1, \"head_dim\": 2, \"norm_topk_prob\": "
			   "true, \"mlp_only_layers\": [0]" QWEN_EXPERTS,
	  UNSUPPORTED("layers without experts among those that have some") },
	{ GEMMA("2"), "config.json has no 'attn_logit_softcapping'" },
	{ GEMMA("3") CAPS,
	  "config.json: not supported: 'attn_logit_softcapping' of a Gemma 3 model" },
	{ GEMMA("2") CAPS ", \"tie_word_embeddings\": false",
	  "config.json: not supported: 'tie_word_embeddings' is false" },
	{ GEMMA("2") CAPS ", \"rope_theta\": 5e4",
	  "config.json: not supported: a 'rope_theta' other than 10000" },
	{ GEMMA("2") CAPS ", \"attention_bias\": true",
	  "config.json: not supported: 'attention_bias' is true" },
	{ GEMMA("3") ", \"layer_types\": [\"full_attention\"]",
	  "config.json: not supported: another order of sliding-window layers than that of the "
	  "published models" },
	{ GEMMA("3") ", \"layer_types\": [\"sliding_attention\", \"sliding_attention\"]",
	  "config.json: not supported: another order of sliding-window layers than that of the "
	  "published models" },
	{ GEMMA("3") ", \"sliding_window_pattern\": 2",
	  "config.json: not supported: another order of sliding-window layers than that of the "
	  "published models" },
	{ GEMMA("3") ", \"hidden_activation\": \"gelu\"",
	  "config.json: not supported: a 'hidden_activation' other than gelu_pytorch_tanh" },
	{ GEMMA("3") ", \"use_bidirectional_attention\": true",
	  "config.json: not supported: 'use_bidirectional_attention' is true" },
	{ GEMMA("3") ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}",
	  "config.json: not supported: these rotary embeddings of a Gemma model" },
	{ GEMMA("3") ", \"rope_parameters\": {\"full_attention\": 1}",
	  "config.json: 'full_attention' is not an object" },
	{ GEMMA("3") ", \"rope_scaling\": 8", "config.json: 'rope_scaling' is not an object" },
	{ GEMMA("3") ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"linear\"}}",
	  "config.json: not supported: scaled rotary embeddings in sliding-window layers" },
	{ ", \"architectures\": [\"Gemma3ForCausalLM\"], \"num_key_value_heads\": 1, "
	  "\"head_dim\": 2, \"query_pre_attn_scalar\": 3, \"sliding_window\": 8",
	  "config.json: not supported: a 'query_pre_attn_scalar' other than that of the published "
	  "models" },
	{ PHI3 ", \"rope_scaling\": {\"type\": \"yarn\", \"long_factor\": [1]}",
	  UNSUPPORTED("these rotary embeddings of a Phi-3 model") },
	{ PHI3 ", \"sliding_window\": -1",
	  "config.json: 'sliding_window' is not a number from 1 to 2147483647" },
	{ PHI3 ", \"partial_rotary_factor\": 0.75", UNSUPPORTED("this 'partial_rotary_factor'") },
	{ PHI3_LONG("1, 2", ""),
	  "config.json: 'long_factor' does not have a factor for each pair that is rotated" },
	{ PHI3_LONG("0", ""), "config.json: 'long_factor' has numbers that are not positive" },
	{ PHI3_LONG("1e39", ""), "config.json: 'long_factor' has numbers that are not positive" },
	{ PHI3_LONG("1", ", \"attention_factor\": 1"),
	  UNSUPPORTED("an 'attention_factor' of longrope") },
	{ PHI3_LONG("1", ", \"original_max_position_embeddings\": 1"),
	  UNSUPPORTED("longrope with an original length of one position") },
	{ GLM_MOE ", \"scoring_func\": \"softmax\", \"partial_rotary_factor\": 1",
	  UNSUPPORTED("this 'scoring_func'") },
	{ GLM_MOE ", \"partial_rotary_factor\": 1.5",
	  UNSUPPORTED("a 'partial_rotary_factor' of more than 1") },
	{ V2 ", \"topk_method\": \"group_limited_greedy\"",
	  UNSUPPORTED("a 'topk_method' other than greedy") },
	{ V2 ", \"topk_method\": \"greedy\", \"n_group\": 2",
	  UNSUPPORTED("groups of experts with 'topk_method' greedy") },
	{ V2 ", \"topk_method\": \"greedy\", \"norm_topk_prob\": true",
	  UNSUPPORTED("'norm_topk_prob' is true") },
	{ V3 ", \"rope_interleave\": false", UNSUPPORTED("'rope_interleave' is false") },
	{ V3 ", \"attention_bias\": true", UNSUPPORTED("'attention_bias' is true") },
	{ V3 ", \"moe_layer_freq\": 2", UNSUPPORTED("a 'moe_layer_freq' other than 1") },
	{ ROUTED("DeepseekV3", "2") LATENT ", \"q_lora_rank\": null",
	  UNSUPPORTED("no 'q_lora_rank' in a model of other than 26 or 27 layers") },
	{ ROUTED("DeepseekV3", "2") LATENT ", \"q_lora_rank\": 9, \"n_group\": 4, "
					   "\"topk_group\": 4",
	  UNSUPPORTED("a 'topk_group' that is not less than 'n_group'") },
	{ ROUTED("DeepseekV3", "2") LATENT ", \"q_lora_rank\": 9, \"n_group\": 3, "
					   "\"topk_group\": 2",
	  UNSUPPORTED("a number of experts that is not a multiple of 'n_group'") },
	{ V3_YARN(""), "config.json has no 'mscale_all_dim'" },
	{ V3_YARN(", \"mscale\": 1, \"mscale_all_dim\": 0.5"),
	  UNSUPPORTED("an 'mscale' other than 'mscale_all_dim'") },
	{ V3_YARN(", \"mscale\": 1, \"mscale_all_dim\": 1, \"attention_factor\": 2"),
	  UNSUPPORTED("an 'attention_factor' beside 'mscale'") },
	{ KIND("Gemma") ", \"head_dim\": 2, \"num_key_value_heads\": 1, \"rope_theta\": 5",
	  UNSUPPORTED("a 'rope_theta' other than 10000") },
	{ KIND("Gemma") ", \"head_dim\": 2, \"num_key_value_heads\": 1, \"hidden_act\": \"gelu\"",
	  UNSUPPORTED("a 'hidden_activation' other than gelu_pytorch_tanh") },
	{ COHERE ", \"attention_bias\": true", UNSUPPORTED("'attention_bias' is true") },
	{ COHERE ", \"tie_word_embeddings\": false",
	  UNSUPPORTED("'tie_word_embeddings' is false") },
	{ COHERE ", \"logit_scale\": 0", NO_FLOAT("logit_scale") },
	{ COHERE ", \"head_dim\": 4",
	  UNSUPPORTED("a 'head_dim' that is not 'hidden_size' divided by the number of heads") },
	{ COHERE ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
	  UNSUPPORTED("scaled rotary embeddings") },
	{ COHERE ", \"use_qk_norm\": true", UNSUPPORTED("'use_qk_norm' in fewer than 64 layers") },
	{ KIND("Cohere"), "config.json has no 'layer_norm_eps'" },
	{ GRANITE_MOE ", \"num_experts_per_tok\": 5",
	  UNSUPPORTED("more experts per token than there are") },
	{ KIND("Granite") ", \"residual_multiplier\": 0", NO_FLOAT("residual_multiplier") },
	{ KIND("Granite") ", \"head_dim\": 4",
	  UNSUPPORTED("a 'head_dim' that is not 'hidden_size' divided by the number of heads") },
	{ KIND("SmolLM3") ", \"no_rope_layers\": [0]",
	  UNSUPPORTED(
		  "another order of layers without rotary embeddings than that of SmolLM3-3B") },
	{ KIND("SmolLM3") ", \"no_rope_layers\": [1, 1]",
	  UNSUPPORTED(
		  "another order of layers without rotary embeddings than that of SmolLM3-3B") },
	{ KIND("SmolLM3") ", \"no_rope_layer_interval\": 2",
	  UNSUPPORTED(
		  "another order of layers without rotary embeddings than that of SmolLM3-3B") },
	{ KIND("SmolLM3") ", \"use_sliding_window\": true",
	  UNSUPPORTED("'use_sliding_window' is true") },
	{ KIND("Olmo2") ", \"tie_word_embeddings\": true",
	  UNSUPPORTED("'tie_word_embeddings' is true") },
	{ KIND("Olmo3") ", \"sliding_window\": 8" YARN "}",
	  UNSUPPORTED("scaled rotary embeddings beside sliding-window layers") },
	{ KIND("Olmo3") ", \"sliding_window\": 8, \"layer_types\": []",
	  UNSUPPORTED("'layer_types' for another number of layers") },
	{ NEXT ", \"attention_bias\": true", UNSUPPORTED("'attention_bias' is true") },
	{ NEXT ", \"norm_topk_prob\": false", UNSUPPORTED("'norm_topk_prob' is not true") },
	{ NEXT ", \"mlp_only_layers\": [0]",
	  UNSUPPORTED("layers without experts among those that have some") },
	{ NEXT ", \"full_attention_interval\": 5",
	  UNSUPPORTED("layers that all have linear attention, or none") },
	{ QWEN35 ", \"full_attention_interval\": 1",
	  UNSUPPORTED("layers that all have linear attention, or none") },
	{ NEXT ", \"layer_types\": [\"sliding_attention\", \"full_attention\", "
	       "\"linear_attention\", \"full_attention\"]",
	  UNSUPPORTED("a layer that is neither full_attention nor linear_attention") },
	{ NEXT ", \"layer_types\": [\"full_attention\", \"full_attention\"]",
	  UNSUPPORTED("'layer_types' for another number of layers") },
	{ NEXT ", \"full_attention_interval\": 0",
	  "config.json: 'full_attention_interval' is not a number from 1 to 2147483647" },
	{ LINEAR_OF("Qwen3Next", "5", CONV) QWEN_EXPERTS,
	  UNSUPPORTED("a 'linear_num_value_heads' that is not a multiple of "
		      "'linear_num_key_heads'") },
	{ LINEAR_OF("Qwen3_5", "1026", CONV),
	  UNSUPPORTED("more than 1024 heads of linear attention") },
	{ LINEAR_OF("Qwen3_5", "4", "\"linear_value_head_dim\": 2, \"linear_conv_kernel_dim\": 4"),
	  UNSUPPORTED("a 'linear_value_head_dim' other than 'linear_key_head_dim'") },
	{ LINEAR_OF("Qwen3_5", "4", "\"linear_value_head_dim\": 3, \"linear_conv_kernel_dim\": 1"),
	  UNSUPPORTED("a 'linear_conv_kernel_dim' of 1") },
	{ LINEAR_OF("Qwen3_5Moe", "4", CONV) ", \"num_experts\": 4",
	  "config.json has no 'moe_intermediate_size'" },
	{ QWEN35 ", \"rope_parameters\": {\"partial_rotary_factor\": 0.05}",
	  UNSUPPORTED("no elements to rotate") },
	{ SECTIONS("1"), UNSUPPORTED("this 'mrope_section'") },
	{ SECTIONS("[]"), UNSUPPORTED("this 'mrope_section'") },
	{ SECTIONS("[0, 1, 1]"), UNSUPPORTED("this 'mrope_section'") },
	{ SECTIONS("[1, 1, -1]"), UNSUPPORTED("this 'mrope_section'") },
	{ SECTIONS("[1, 1, 1, 1, 1]"), UNSUPPORTED("this 'mrope_section'") },
	{ SECTIONS("[2, 0, 1], \"partial_rotary_factor\": 0.25"),
	  UNSUPPORTED("this 'mrope_section'") },
	{ OSS_BARE, UNSUPPORTED("neither 'rope_parameters' nor 'rope_scaling'") },
	{ OSS ", \"swiglu_limit\": 8", UNSUPPORTED("a 'swiglu_limit' other than 7") },
	{ OSS ", \"attention_bias\": false", UNSUPPORTED("'attention_bias' is false") },
	{ OSS ", \"layer_types\": [\"full_attention\"]", OTHER_ORDER },
	{ OSS ", \"layer_types\": []", OTHER_ORDER },
};

START_TEST(families_have_keys_of_their_own)
{
	static const struct {
		const char *more, *key;
		uint32_t want;
	} want[] = {
		{ PHI3, "phi3.rope.dimension_count", 2 },
		{ PHI3 ", \"sliding_window\": 7", "phi3.attention.sliding_window", 7 },
		{ PHI3, "phi3.attention.sliding_window", 0 },
		{ PHI3, "phi3.rope.scaling.original_context_length", 4096 },
		{ GLM_MOE, "glm4moe.expert_gating_func", 2 },
		{ GLM_MOE, "glm4moe.rope.dimension_count", 2 },
		{ GLM_MOE, "glm4moe.expert_shared_count", 3 },
		{ GLM_MOE, "glm4moe.leading_dense_block_count", 1 },
		{ V2 ", \"topk_method\": \"greedy\"", "deepseek2.expert_gating_func", 1 },
		{ V3, "deepseek2.expert_gating_func", 2 },
		{ V3, "deepseek2.expert_group_used_count", 2 },
		{ V3, "deepseek2.attention.head_count_kv", 1 },
		{ V3, "deepseek2.attention.key_length", 8 },
		{ V3, "deepseek2.attention.value_length", 6 },
		{ V3, "deepseek2.attention.key_length_mla", 5 },
		{ V3, "deepseek2.attention.value_length_mla", 7 },
		{ V3, "deepseek2.rope.dimension_count", 2 },
		{ KIND("Granite"), "granite.rope.dimension_count", 2 },
		{ KIND("SmolLM3") ", \"no_rope_layers\": [1]", "smollm3.rope.dimension_count", 2 },
		{ GRANITE_MOE ", \"num_experts_per_tok\": 2", "granitemoe.expert_used_count", 2 },
		{ GRANITE_MOE ", \"num_experts_per_tok\": 2", "granitemoe.expert_count", 4 },
		{ GRANITE_MOE ", \"num_experts_per_tok\": 2", "granitemoe.feed_forward_length", 6 },
		{ COHERE, "command-r.context_length", 16 },
		{ COHERE ", \"model_max_length\": 64", "command-r.context_length", 64 },
		{ KIND("Olmo3") ", \"sliding_window\": 8", "olmo2.attention.sliding_window", 8 },
		{ GEMMA("2") CAPS ", \"sliding_window_pattern\": 2",
		  "gemma2.attention.sliding_window", 8 },
		{ GEMMA("3") ", \"sliding_window_pattern\": 6", "gemma3.attention.sliding_window",
		  8 },
		{ OSS, "gpt-oss.attention.sliding_window", 8 },
		{ OSS, "gpt-oss.expert_count", 4 },
		{ OSS, "gpt-oss.expert_used_count", 2 },
		{ OSS, "gpt-oss.expert_feed_forward_length", 6 },
		{ NEXT, "qwen3next.rope.dimension_count", 2 },
		{ NEXT, "qwen3next.attention.key_length", 16 },
		{ NEXT, "qwen3next.ssm.conv_kernel", 4 },
		{ NEXT, "qwen3next.ssm.state_size", 3 },
		{ NEXT, "qwen3next.ssm.group_count", 2 },
		{ NEXT, "qwen3next.ssm.time_step_rank", 4 },
		{ NEXT, "qwen3next.ssm.inner_size", 12 },
		{ NEXT, "qwen3next.full_attention_interval", 4 },
		{ NEXT ", \"full_attention_interval\": 3", "qwen3next.full_attention_interval", 3 },
		{ NEXT, "qwen3next.expert_count", 4 },
		{ NEXT, "qwen3next.expert_used_count", 2 },
		{ NEXT, "qwen3next.expert_feed_forward_length", 5 },
		{ NEXT, "qwen3next.expert_shared_feed_forward_length", 7 },
		{ QWEN35, "qwen35.ssm.inner_size", 12 },
		{ LINEAR_OF("Qwen3_5Moe", "4", CONV) QWEN_EXPERTS, "qwen35moe.expert_count", 4 },
	};

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		char text[1000], arch[20];
		struct gguf_keys k = GGUF_KEYS_INIT(arch);
		struct gguf_config c;
		struct ckpt_err e = { 0 };
		struct cursor v;

		(void)snprintf(arch, sizeof(arch), "%.*s", (int)strcspn(want[i].key, "."),
			       want[i].key);
		fill_config(text, want[i].more);
		ck_assert_msg(!read_config(text, &c, &e), "%s: %s", want[i].key, e.msg);
		ck_assert_str_eq(c.arch, arch);
		gguf_config_put(&c, &k);
		REQUIRE(gguf_keys_fine(&k));
		v = gguf_value(&k, want[i].key, GGUF_U32);
		ck_assert_msg(cursor_le32(&v) == want[i].want && !v.bad, "%s", want[i].key);
		buf_release(&k.text);
		gguf_config_release(&c);
	}
}
END_TEST

/* These defaults are those of transformers; llama.cpp's own, for files without a key, differ. */
START_TEST(what_is_not_said_is_the_default_of_the_class)
{
	static const struct {
		const char *more, *key;
		uint8_t norm; /* 0, 1; 2: it has no key */
		float theta;
	} want[] = {
		{ V3, "deepseek2", 1, 1e4F },
		{ V3 ", \"norm_topk_prob\": false", "deepseek2", 2, 1e4F },
		{ V2, "deepseek2", 2, 1e4F },
		{ GLM_MOE, "glm4moe", 1, 1e4F },
		{ GLM_MOE ", \"norm_topk_prob\": false", "glm4moe", 0, 1e4F },
		{ KIND("SmolLM3"), "smollm3", 2, 2e6F },
		{ KIND("Granite"), "granite", 2, 1e4F },
		{ COHERE, "command-r", 2, 5e5F },
		{ OSS, "gpt-oss", 2, 1.5e5F },
	};

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct gguf_keys k = GGUF_KEYS_INIT(want[i].key);
		char text[1000], norm[60], theta[60];
		struct gguf_config c;
		struct ckpt_err e = { 0 };
		struct cursor v;
		uint32_t bits;
		float f;

		fill_config(text, want[i].more);
		(void)snprintf(norm, sizeof(norm), "%s.expert_weights_norm", want[i].key);
		(void)snprintf(theta, sizeof(theta), "%s.rope.freq_base", want[i].key);
		ck_assert_msg(!read_config(text, &c, &e), "%s: %s", want[i].key, e.msg);
		gguf_config_put(&c, &k);
		v = gguf_value(&k, norm, GGUF_BOOL);
		ck_assert_msg(v.bad ? want[i].norm == 2 : *v.p == want[i].norm, "%zu", i);
		v = gguf_value(&k, theta, GGUF_F32);
		bits = cursor_le32(&v);
		memcpy(&f, &bits, sizeof(f));
		ck_assert_msg(!v.bad && f == want[i].theta, "%s: %g", theta, (double)f);
		buf_release(&k.text);
		gguf_config_release(&c);
	}
}
END_TEST

/* Each family reads these on its own. */
START_TEST(each_family_has_an_epsilon_and_an_activation)
{
	static const struct {
		const char *more, *key, *act;
	} of[] = {
		{ "", "llama", "hidden_act" },
		{ PHI3, "phi3", "hidden_act" },
		{ GLM_MOE, "glm4moe", "hidden_act" },
		{ KIND("Glm4") ", \"num_key_value_heads\": 1, \"head_dim\": 4", "glm4",
		  "hidden_act" },
		{ V2 ", \"topk_method\": \"greedy\"", "deepseek2", "hidden_act" },
		{ V3, "deepseek2", "hidden_act" },
		{ KIND("Granite"), "granite", "hidden_act" },
		{ GRANITE_MOE ", \"num_experts_per_tok\": 2", "granitemoe", "hidden_act" },
		{ KIND("SmolLM3"), "smollm3", "hidden_act" },
		{ KIND("Olmo2"), "olmo2", "hidden_act" },
		{ KIND("Olmo3") ", \"sliding_window\": 8", "olmo2", "hidden_act" },
		{ OSS, "gpt-oss", "hidden_act" },
		{ NEXT, "qwen3next", "hidden_act" },
		{ QWEN35, "qwen35", "hidden_act" },
		{ GEMMA("2") CAPS, "gemma2", "hidden_activation" },
		{ COHERE, "command-r", "hidden_act" },
	};

	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct gguf_keys k = GGUF_KEYS_INIT(of[i].key);
		char text[1000], other[1200], key[60];
		struct gguf_config c;
		struct ckpt_err e = { 0 };
		struct cursor v;
		uint32_t bits;
		float f;

		fill_config(text, of[i].more);
		ck_assert_msg(!read_config(text, &c, &e), "%s: %s", of[i].key, e.msg);
		gguf_config_put(&c, &k);
		(void)snprintf(key, sizeof(key), "%s.attention.layer_norm_%sepsilon", of[i].key,
			       !strcmp(of[i].key, "command-r") ? "" : "rms_");
		v = gguf_value(&k, key, GGUF_F32);
		bits = cursor_le32(&v);
		memcpy(&f, &bits, sizeof(f));
		ck_assert_msg(!v.bad && f == 1e-5F, "%s: %g", key, (double)f);
		buf_release(&k.text);
		gguf_config_release(&c);
		(void)snprintf(other, sizeof(other), "%s, \"%s\": \"relu\"", of[i].more, of[i].act);
		fill_config(text, other);
		ck_assert_int_eq(read_config(text, &c, &e), -ERR_UNSUPPORTED);
		ck_assert_msg(strstr(e.msg, of[i].act) && strstr(e.msg, "other than"), "%s: %s",
			      of[i].key, e.msg);
		gguf_config_release(&c);
	}
}
END_TEST

static struct cursor array_of(const struct gguf_keys *k, const char *key, uint32_t type, uint64_t n)
{
	struct cursor v = gguf_value(k, key, GGUF_ARRAY);

	ck_assert_uint_eq(cursor_le32(&v), type);
	ck_assert_uint_eq(cursor_le64(&v), n);
	ck_assert(!v.bad);
	return v;
}

#define LAYERS(a, b, c, d) \
	", \"layer_types\": [\"" a "_attention\", \"" b "_attention\", \"" c "_attention\", \"" d \
	"_attention\"]"

START_TEST(layers_of_linear_attention_are_listed_if_config_json_lists_them)
{
	static const struct {
		const char *more;
		uint8_t want[4];
		bool listed;
	} c[] = {
		{ QWEN35 LAYERS("full", "linear", "linear", "full"), { 0, 1, 1, 0 }, true },
		{ QWEN35 LAYERS("linear", "linear", "full", "linear"), { 1, 1, 0, 1 }, true },
		{ QWEN35, { 0 }, false },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		struct gguf_keys k = GGUF_KEYS_INIT("qwen35");
		struct gguf_config config;
		struct ckpt_err e = { 0 };
		char text[1000];
		struct cursor v;

		fill_config(text, c[i].more);
		ck_assert_msg(!read_config(text, &config, &e), "%s", e.msg);
		gguf_config_put(&config, &k);
		if (c[i].listed) {
			v = array_of(&k, "qwen35.attention.recurrent_layers", GGUF_BOOL, 4);
			ck_assert_mem_eq(v.p, c[i].want, 4);
		} else {
			v = gguf_value(&k, "qwen35.attention.recurrent_layers", GGUF_ARRAY);
			ck_assert(v.bad);
		}
		buf_release(&k.text);
		gguf_config_release(&config);
	}
}
END_TEST

START_TEST(qwen35_rotates_in_sections)
{
	static const struct {
		const char *more;
		uint32_t want[4];
	} c[] = {
		{ QWEN35, { 11, 11, 10, 0 } },
		{ SECTIONS("[1, 0, 0]"), { 1, 0, 0, 0 } },
		{ SECTIONS("[2, 1, 1], \"partial_rotary_factor\": 0.5"), { 2, 1, 1, 0 } },
		{ SECTIONS("[5, 6, 7, 8]"), { 5, 6, 7, 8 } },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		struct gguf_keys k = GGUF_KEYS_INIT("qwen35");
		struct gguf_config config;
		struct ckpt_err e = { 0 };
		char text[1000];
		struct cursor v;

		fill_config(text, c[i].more);
		ck_assert_msg(!read_config(text, &config, &e), "%zu: %s", i, e.msg);
		gguf_config_put(&config, &k);
		v = array_of(&k, "qwen35.rope.dimension_sections", GGUF_I32, 4);
		for (size_t n = 0; n < 4; n++)
			ck_assert_uint_eq(cursor_le32(&v), c[i].want[n]);
		buf_release(&k.text);
		gguf_config_release(&config);
	}
}
END_TEST

/* A model that contains a text model. */
#define WHOLE(class, outer, more) \
	"{\"architectures\": [\"" class "ForConditionalGeneration\"], \"hidden_size\": 99" outer \
					", \"text_config\": {\"num_hidden_layers\": 1, " \
					"\"hidden_size\": 4, " \
					"\"vocab_size\": 8, \"intermediate_size\": 6, " \
					"\"rms_norm_eps\": 1e-5, " \
					"\"max_position_embeddings\": 16, " \
					"\"num_attention_heads\": 2, " \
					"\"num_key_value_heads\": 1, \"head_dim\": 2" more "}}"
#define QWEN3_VL(vision, rope) \
	WHOLE("Qwen3VL", vision, ", \"rope_scaling\": {\"mrope_interleaved\": true" rope "}")
#define VL_SECTIONS ", \"mrope_section\": [1, 0, 0]}, \"rope_theta\": 5e6, \"x\": {\"y\": 1"

#define MINISTRAL(rope) \
	WHOLE("Mistral3", "", \
	      ", \"model_type\": \"ministral3\", \"rope_parameters\": {\"rope_theta\": 1e6, " \
	      "\"original_max_position_embeddings\": 8, \"factor\": 2" rope "}")
#define LOGARITHM ", \"llama_4_scaling_beta\": 0.5"
#define SCALES	  ", \"mscale\": 1, \"mscale_all_dim\": 1.0"

START_TEST(numbers_are_those_of_text_config)
{
	static const struct {
		const char *config, *key;
		uint32_t type, want; /* of a float, its bits */
	} c[] = {
		{ WHOLE("Mistral3", "", ""), "mistral3.embedding_length", GGUF_U32, 4 },
		{ WHOLE("Mistral3", ", \"rope_theta\": 1", ", \"rope_theta\": 2"),
		  "mistral3.rope.freq_base", GGUF_F32, 0x40000000 },
		{ WHOLE("Mistral3", "",
			", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}"),
		  "mistral3.rope.scaling.factor", GGUF_F32, 0x40800000 },
		{ WHOLE("Gemma3", ", \"sliding_window\": 9",
			", \"sliding_window\": 8, \"query_pre_attn_scalar\": 2"),
		  "gemma3.attention.sliding_window", GGUF_U32, 8 },
		{ WHOLE("Gemma3", ", \"rope_scaling\": 5",
			", \"sliding_window\": 8, \"query_pre_attn_scalar\": 2, "
			"\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}"),
		  "gemma3.rope.scaling.factor", GGUF_F32, 0x41000000 },
		{ MINISTRAL(", \"type\": \"yarn\"" LOGARITHM SCALES),
		  "mistral3.attention.temperature_scale", GGUF_F32, 0x3f000000 },
		{ MINISTRAL(", \"rope_type\": \"yarn\"" LOGARITHM SCALES),
		  "mistral3.rope.scaling.yarn_log_multiplier", GGUF_F32, 0x3f800000 },
		{ QWEN3_VL("", VL_SECTIONS), "qwen3vl.n_deepstack_layers", GGUF_U32, 3 },
		{ QWEN3_VL(", \"vision_config\": {\"deepstack_visual_indexes\": [5, 11]}",
			   VL_SECTIONS),
		  "qwen3vl.n_deepstack_layers", GGUF_U32, 2 },
		{ QWEN3_VL(", \"vision_config\": {\"deepstack_visual_indexes\": []}", VL_SECTIONS),
		  "qwen3vl.n_deepstack_layers", GGUF_U32, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		struct gguf_config config;
		struct ckpt_err e = { 0 };
		struct gguf_keys k;
		struct cursor v;

		ck_assert_msg(!read_config(c[i].config, &config, &e), "%zu: %s", i, e.msg);
		k = (struct gguf_keys)GGUF_KEYS_INIT(config.arch);
		gguf_config_put(&config, &k);
		REQUIRE(gguf_keys_fine(&k));
		v = gguf_value(&k, c[i].key, c[i].type);
		ck_assert_msg(cursor_le32(&v) == c[i].want && !v.bad, "%s", c[i].key);
		if (!strcmp(config.arch, "qwen3vl")) {
			v = array_of(&k, "qwen3vl.rope.dimension_sections", GGUF_I32, 4);
			for (size_t n = 0; n < 4; n++)
				ck_assert_uint_eq(cursor_le32(&v), n == 0);
		}
		buf_release(&k.text);
		gguf_config_release(&config);
	}
}
END_TEST

START_TEST(a_text_config_that_is_not_known_is_refused)
{
	static const struct {
		const char *config, *message;
	} c[] = {
		{ WHOLE("Mistral3", ", \"quantization_config\": {}", ""),
		  "config.json: not supported: quantised weights" },
		{ WHOLE("Mistral3", "", ", \"quantization_config\": {}"),
		  "config.json: not supported: quantised weights" },
		{ WHOLE("Mistral3", "", ", \"hidden_act\": 1"),
		  "config.json: 'text_config.hidden_act' is not a string" },
		{ WHOLE("Gemma3", ", \"sliding_window\": 8", ", \"query_pre_attn_scalar\": 2"),
		  "config.json has no 'text_config.sliding_window'" },
		{ WHOLE("Gemma3", "", ", \"sliding_window\": 8"),
		  "config.json: not supported: a 'query_pre_attn_scalar' other than that of the "
		  "published models" },
		{ MINISTRAL(", \"type\": \"linear\"" LOGARITHM SCALES),
		  "config.json: not supported: a Ministral 3 whose rotary embeddings are not of "
		  "type yarn" },
		{ MINISTRAL(", \"type\": \"yarn\"" SCALES),
		  "config.json has no 'llama_4_scaling_beta'" },
		{ MINISTRAL(", \"type\": \"yarn\"" LOGARITHM), "config.json has no 'mscale'" },
		{ MINISTRAL(", \"type\": \"yarn\", \"mscale\": 2, \"mscale_all_dim\": 2" LOGARITHM),
		  "config.json: not supported: 'mscale' and 'mscale_all_dim' of a Ministral 3 "
		  "other "
		  "than 1" },
		{ WHOLE("Mistral3", "",
			", \"rope_parameters\": {\"type\": \"yarn\", \"factor\": 2, "
			"\"original_max_position_embeddings\": 8" SCALES "}"),
		  "config.json: not supported: 'mscale' and 'mscale_all_dim'" },
		{ QWEN3_VL("", ", \"rope_theta\": 5e6"),
		  "config.json: not supported: no 'mrope_section'" },
		{ QWEN3_VL("", ", \"rope_theta\": 5e6, \"mrope_section\": [0, 1, 0]"),
		  "config.json: not supported: this 'mrope_section'" },
		{ QWEN3_VL("", ", \"mrope_section\": [1, 0, 0]"),
		  "config.json has no 'text_config.rope_theta'" },
		{ "{\"model_type\": \"gemma3\", \"text_config\": 7}",
		  "config.json: 'text_config' is not an object" },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		struct gguf_config config;
		struct ckpt_err e = { 0 };

		ck_assert_int_lt(read_config(c[i].config, &config, &e), 0);
		ck_assert_str_eq(e.msg, c[i].message);
		gguf_config_release(&config);
	}
}
END_TEST

START_TEST(longrope_has_two_lists_of_factors)
{
	struct gguf_keys k = GGUF_KEYS_INIT("phi3");
	struct gguf_config c;
	struct ckpt_err e = { 0 };
	char text[1000];
	struct cursor v;
	uint32_t bits;
	float f;

	(void)snprintf(text, sizeof(text), SMALL_CONFIG,
		       PHI3_LONG("2.5", ", \"original_max_position_embeddings\": 4"));
	ck_assert_msg(!read_config(text, &c, &e), "%s", e.msg);
	gguf_config_put(&c, &k);
	ck_assert_str_eq(c.factors[0].name, "rope_factors_long.weight");
	ck_assert_str_eq(c.factors[1].name, "rope_factors_short.weight");
	REQUIRE(c.factors[0].n == 1 && c.factors[1].n == 1);
	REQUIRE(c.factors[0].v[0] == 2.5F && c.factors[1].v[0] == 1);
	v = gguf_value(&k, "phi3.rope.scaling.attn_factor", GGUF_F32);
	bits = cursor_le32(&v);
	memcpy(&f, &bits, sizeof(f));
	ck_assert_msg(!v.bad && f == 1.41421356F, "%g", (double)f); /* 4 times 4 positions */
	buf_release(&k.text);
	gguf_config_release(&c);
}
END_TEST

START_TEST(gemma_has_windows_and_caps)
{
	static const struct {
		const char *more, *key;
		float want;
	} want[] = {
		{ GEMMA("2") CAPS, "gemma2.attn_logit_softcapping", 50 },
		{ GEMMA("2") CAPS, "gemma2.final_logit_softcapping", 30 },
		{ GEMMA("3"), "gemma3.rope.freq_base", 1e6F },
		{ GEMMA("3"), "gemma3.rope.freq_base_swa", 1e4F },
		{ GEMMA("3") ", \"rope_theta\": 5, \"rope_local_base_freq\": 7",
		  "gemma3.rope.freq_base", 5 },
		{ GEMMA("3") ", \"rope_theta\": 5, \"rope_local_base_freq\": 7",
		  "gemma3.rope.freq_base_swa", 7 },
		{ GEMMA("3") ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}",
		  "gemma3.rope.scaling.factor", 8 },
	};

	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		char text[1000], arch[] = "gemma2";
		struct gguf_keys k = GGUF_KEYS_INIT(arch);
		struct gguf_config c;
		struct ckpt_err e = { 0 };
		struct cursor v;
		uint32_t bits;
		float f;

		arch[5] = want[i].key[5];
		(void)snprintf(text, sizeof(text), SMALL_CONFIG, want[i].more);
		ck_assert_msg(!read_config(text, &c, &e), "%s", e.msg);
		gguf_config_put(&c, &k);
		REQUIRE(gguf_keys_fine(&k));
		v = gguf_value(&k, want[i].key, GGUF_F32);
		bits = cursor_le32(&v);
		memcpy(&f, &bits, sizeof(f));
		ck_assert_msg(!v.bad && f == want[i].want, "%s: %g", want[i].key, (double)f);
		buf_release(&k.text);
		gguf_config_release(&c);
	}
}
END_TEST

START_LOOP_TEST(what_is_not_known_is_said, ARRAY_LEN(bad_configs))
{
	struct gguf_config c;
	struct ckpt_err e = { 0 };
	char text[1000];

	fill_config(text, bad_configs[_i].more);
	ck_assert_int_lt(read_config(text, &c, &e), 0);
	ck_assert_str_eq(e.msg, bad_configs[_i].message);
	gguf_config_release(&c);
}
END_TEST

START_TEST(an_epsilon_is_a_float32_above_0)
{
	static const char *const wrong[] = {
		"1e308", "1e39", "-1e-5", "0", "1e-60", "\"1\"", "[]"
	};
	static const char before[] = "1e-5";

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		char text[1000], other[1000];
		struct gguf_config c;
		struct ckpt_err e = { 0 };
		const char *at;

		(void)snprintf(text, sizeof(text), SMALL_CONFIG, "");
		at = strstr(text, before);
		REQUIRE(at);
		(void)snprintf(other, sizeof(other), "%.*s%s%s", (int)(at - text), text, wrong[i],
			       at + strlen(before));
		ck_assert_int_eq(read_config(other, &c, &e), -EINVAL);
		ck_assert_str_eq(e.msg, NO_FLOAT("rms_norm_eps"));
		gguf_config_release(&c);
	}
}
END_TEST

START_TEST(a_small_configuration_becomes_keys)
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct gguf_config c;
	struct ckpt_err e = { 0 };
	char text[1000];

	(void)snprintf(text, sizeof(text), SMALL_CONFIG,
		       ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}");
	ck_assert_msg(!read_config(text, &c, &e), "%s", e.msg);
	ck_assert_int_eq(c.a.kind, KIND_LLAMA);
	ck_assert_str_eq(c.arch, "llama");
	gguf_config_put(&c, &k);
	REQUIRE(gguf_keys_fine(&k));
	static const struct {
		const char *key;
		uint32_t want;
	} want[] = { { "llama.block_count", 1 },
		     { "llama.context_length", 16 },
		     { "llama.embedding_length", 4 },
		     { "llama.feed_forward_length", 6 },
		     { "llama.attention.head_count", 2 },
		     { "llama.attention.head_count_kv", 2 }, /* not given: all heads */
		     { "llama.attention.key_length", 2 },
		     { "llama.rope.dimension_count", 2 },
		     { "llama.vocab_size", 8 } };
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		struct cursor v = gguf_value(&k, want[i].key, GGUF_U32);

		ck_assert_msg(cursor_le32(&v) == want[i].want && !v.bad, "%s", want[i].key);
	}
	struct cursor theta = gguf_value(&k, "llama.rope.freq_base", GGUF_F32);
	struct cursor factor = gguf_value(&k, "llama.rope.scaling.factor", GGUF_F32);
	ck_assert_uint_eq(cursor_le32(&theta), 0x461c4000); /* 10000, transformers' default */
	ck_assert_uint_eq(cursor_le32(&factor), 0x40800000);
	gguf_config_release(&c);
	buf_release(&k.text);
}
END_TEST

START_TEST(sampling_is_taken_from_the_generation_config)
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };
	const char *text =
		"{\"top_k\": 20, \"temperature\": 0.5, \"top_p\": null, \"min_p\": \"x\"}";
	struct cursor top_k, temp;

	ck_assert_int_eq(gguf_sampling_put(text, strlen(text), &k, &e), 0);
	top_k = gguf_value(&k, "general.sampling.top_k", GGUF_I32);
	temp = gguf_value(&k, "general.sampling.temp", GGUF_F32);
	ck_assert_uint_eq(cursor_le32(&top_k), 20);
	ck_assert_uint_eq(cursor_le32(&temp), 0x3f000000);
	ck_assert_uint_eq(k.n, 2);
	text = "{\"temperature\": 1e39}";
	ck_assert_int_eq(gguf_sampling_put(text, strlen(text), &k, &e), -EINVAL);
	ck_assert_str_eq(
		e.msg, "generation_config.json: 'temperature' is not a number that fits a float32");
	buf_release(&k.text);
}
END_TEST

/* ---- tokenizer.json ---- */

#define BYTES  "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}"
#define VOCAB  "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4}"
#define MERGES "\"merges\": [\"a b\", [\"ab\", \"c\"]]"
#define MODEL  "\"model\": {\"type\": \"BPE\", " VOCAB ", " MERGES "}"
#define ADDED \
	"\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true}, {\"id\": 6, " \
	"\"content\": \"x\xe2\x96\x81y\"}]"
#define BYTE_LEVEL "{" BYTES ", " MODEL ", " ADDED "}"

static int put_tokens(const char *tokenizer, const char *config, struct gguf_keys *k,
		      struct ckpt_err *e)
{
	autofree char *copy = strdup(tokenizer);
	struct gguf_token_files f = { .tokenizer = copy, .tokenizer_len = strlen(tokenizer) };
	struct gguf_config c;
	char text[1000];
	int rc;

	(void)snprintf(text, sizeof(text), SMALL_CONFIG, "");
	REQUIRE(!read_config(text, &c, e));
	if (config)
		f.config = (struct gguf_file){ config, strlen(config) };
	rc = gguf_tokens_put(&f, &c, k, e);
	gguf_config_release(&c);
	return rc;
}

static bool is_str(struct cursor *c, const char *want)
{
	uint64_t n = cursor_le64(c);
	const uint8_t *s = cursor_take(c, n);

	return s && n == strlen(want) && !memcmp(s, want, n);
}

/* The value of a string key. */
static bool has_str(const struct gguf_keys *k, const char *key, const char *want)
{
	struct cursor c = gguf_value(k, key, GGUF_STR);

	return is_str(&c, want);
}

START_TEST(bytes_as_characters_become_gpt2)
{
	static const char *const tokens[] = { "a", "b", "c", "ab", "abc", "<s>", "x y", "[PAD7]" };
	static const uint32_t types[] = { 1, 1, 1, 1, 1, 3, 4, 5 };
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };
	struct cursor c, bos;

	ck_assert_msg(!put_tokens(BYTE_LEVEL,
				  "{\"chat_template\": \"T\", \"add_bos_token\": true, "
				  "\"model_max_length\": 1000000000000000019884624838656}",
				  &k, &e),
		      "%s", e.msg);
	REQUIRE(gguf_keys_fine(&k));
	REQUIRE(has_str(&k, "tokenizer.ggml.model", "gpt2"));
	REQUIRE(has_str(&k, "tokenizer.ggml.pre", "gpt-2"));
	REQUIRE(has_str(&k, "tokenizer.chat_template", "T"));
	c = gguf_value(&k, "tokenizer.ggml.tokens", GGUF_ARRAY);
	REQUIRE(cursor_le32(&c) == GGUF_STR && cursor_le64(&c) == SMALL_VOCAB);
	for (size_t i = 0; i < SMALL_VOCAB; i++)
		ck_assert_msg(is_str(&c, tokens[i]), "%s", tokens[i]);
	c = gguf_value(&k, "tokenizer.ggml.token_type", GGUF_ARRAY);
	REQUIRE(cursor_le32(&c) == GGUF_I32 && cursor_le64(&c) == SMALL_VOCAB);
	for (size_t i = 0; i < SMALL_VOCAB; i++)
		ck_assert_uint_eq(cursor_le32(&c), types[i]);
	c = gguf_value(&k, "tokenizer.ggml.merges", GGUF_ARRAY);
	REQUIRE(cursor_le32(&c) == GGUF_STR && cursor_le64(&c) == 2);
	REQUIRE(is_str(&c, "a b") && is_str(&c, "ab c") && c.p == c.end);
	bos = gguf_value(&k, "tokenizer.ggml.bos_token_id", GGUF_U32); /* as config.json says */
	ck_assert_uint_eq(cursor_le32(&bos), 5);
	c = gguf_value(&k, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
	ck_assert_uint_eq(*cursor_take(&c, 1), 1);
	buf_release(&k.text);
}
END_TEST

#define SPLIT(regex, more) \
	"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", " \
	"\"pattern\": {\"Regex\": \"" regex \
	"\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", " \
	"\"add_prefix_space\": false, \"use_regex\": false}]}, \"model\": {\"type\": \"BPE\"" more \
	", " VOCAB ", " MERGES "}}"
#define LLAMA3(digits) \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" digits \
	"| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define STEPS(steps, regex, more) \
	"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" steps \
	", {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": " regex \
	"}]}, \"model\": {\"type\": \"BPE\"" more ", " VOCAB ", " MERGES "}}"
#define STEP(regex, how) \
	"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": " how "}"
#define SINGLE_DIGITS "{\"type\": \"Digits\", \"individual_digits\": true}"
#define REMOVED	      "\"Removed\", \"invert\": true"
#define ISOLATED      "\"Isolated\""
#define UPPER	      "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER	      "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED(digits, end) \
	"[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" end \
	"|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" end "|\\\\p{N}" digits \
	"| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define O200K	CASED("{1,3}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
#define NUMBERS STEP("\\\\p{N}{1,3}", ISOLATED)
#define CJK	STEP("[一-龥぀-ゟ゠-ヿ]+", ISOLATED)
/* r, n: line ends, as characters or as escapes */
#define DEEPSEEK(r, n) \
	STEP("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^" r n \
	     "\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[" r n \
	     "]*|\\\\s*[" r n "]+|\\\\s+(?!\\\\S)|\\\\s+", \
	     ISOLATED)

static const struct {
	const char *tokenizer, *pre;
} splits[] = {
	{ BYTE_LEVEL, "gpt-2" },
	{ SPLIT(LLAMA3("{1,3}"), ", \"ignore_merges\": true"), "llama-bpe" },
	{ SPLIT(LLAMA3("{1,3}"), ""), "smaug-bpe" },
	{ SPLIT(LLAMA3(""), ""), "qwen2" },
	{ STEPS(STEP(LLAMA3("{1,3}"), REMOVED), "false", ""), "smaug-bpe" },
	{ SPLIT(O200K, ""), "gpt-4o" },
	{ SPLIT(CASED("", ""), ", \"ignore_merges\": true"), "tekken" },
	/* Only one of the two, llama.cpp or the tokenizer, ignores merges here. That makes no
	 * difference: all tokens are what merges make. */
	{ SPLIT(CASED("", ""), ""), "tekken" },
	{ SPLIT(O200K, ", \"ignore_merges\": true"), "gpt-4o" },
	{ STEPS(NUMBERS ", " CJK ", " DEEPSEEK("\\r", "\\n"), "false", ""), "deepseek-v3" },
	{ STEPS(NUMBERS ", " CJK ", " DEEPSEEK("\\\\r", "\\\\n"), "false", ""), "deepseek-v3" },
	{ STEPS(SINGLE_DIGITS, "true", ""), "smollm" },
};

START_LOOP_TEST(the_way_to_split_follows_from_the_definition, ARRAY_LEN(splits))
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };

	ck_assert_msg(!put_tokens(splits[_i].tokenizer, NULL, &k, &e), "%s", e.msg);
	REQUIRE(has_str(&k, "tokenizer.ggml.pre", splits[_i].pre));
	buf_release(&k.text);
}
END_TEST

#define OUT_OF_RANGE \
	"tokenizer.json: the number of a token is not below 8, the vocab_size of config.json"
#define NO_TOKEN "involves text that is not a token"
#define MERGING(merges) \
	"{" BYTES ", \"model\": {\"type\": \"BPE\", " VOCAB ", \"merges\": [" merges "]}}"
#define UNKNOWN(what) "tokenizer.json: " what " is not supported"
#define WOULD_NOT(what) \
	"tokenizer.json: llama.cpp would not build '" what \
	"' from these merges, so its tokens may differ"

static const struct {
	const char *tokenizer, *config, *message;
} bad_tokenizers[] = {
	{ "[]", NULL, "tokenizer.json is not an object" },
	{ "{}", NULL, UNKNOWN("a model other than BPE") },
	{ "{\"model\": {\"type\": \"Unigram\"}}", NULL, UNKNOWN("a model other than BPE") },
	{ "{" MODEL "}", NULL, UNKNOWN("the pre-tokenizer") },
	{ "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}, " MODEL "}",
	  NULL, UNKNOWN("the pre-tokenizer") },
	{ "{" BYTES ", \"normalizer\": {\"type\": \"NFKC\"}, " MODEL "}", NULL,
	  UNKNOWN("the normalizer") },
	{ SPLIT("\\\\w+", ""), NULL,
	  "tokenizer.json: llama.cpp is not known to split text by '\\w+'" },
	{ STEPS(NUMBERS ", " CJK, "false", ""), NULL,
	  "tokenizer.json: llama.cpp is not known to split text by '\\p{N}{1,3}' and more" },
	{ STEPS(STEP("\\\\p{N}", REMOVED), "true", ""), NULL,
	  "tokenizer.json: llama.cpp is not known to split text by '\\p{N}'" },
	{ STEPS(SINGLE_DIGITS ", " SINGLE_DIGITS ", " SINGLE_DIGITS ", " SINGLE_DIGITS, "true", ""),
	  NULL, UNKNOWN("the pre-tokenizer") },
	{ STEPS("{\"type\": \"Digits\"}", "true", ""), NULL, UNKNOWN("the pre-tokenizer") },
	{ "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
	  "{\"type\": \"BPE\", \"ignore_merges\": true, " VOCAB ", \"merges\": [\"a b\"]}}",
	  NULL, WOULD_NOT("abc") },
	/* "b c" is the first merge, so an a never meets a b. */
	{ "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
	  "{\"type\": \"BPE\", \"ignore_merges\": true, \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, "
	  "\"ab\": 3, \"abc\": 4, \"bc\": 5}, \"merges\": [\"b c\", \"a b\", \"ab c\"]}}",
	  NULL, WOULD_NOT("abc") },
	{ "{" BYTES ", \"model\": {\"type\": \"BPE\"}}", NULL,
	  "tokenizer.json: no 'vocab' or no 'merges'" },
	{ "{" BYTES ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 8}, \"merges\": []}}",
	  NULL, OUT_OF_RANGE },
	{ "{" BYTES ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
	  NULL, OUT_OF_RANGE },
	{ "{" BYTES ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0.0}, \"merges\": []}}",
	  NULL, OUT_OF_RANGE },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 8, \"content\": \"<s>\"}]}", NULL,
	  OUT_OF_RANGE },
	{ BYTE_LEVEL, "{\"added_tokens_decoder\": {\"8\": {\"content\": \"<s>\"}}}", OUT_OF_RANGE },
	{ "{" BYTES ", \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", NULL,
	  "tokenizer.json: there is no token in 'vocab'" },
	/* Two numbers for one text, two texts for one number. */
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 5, \"content\": \"abc\"}]}", NULL,
	  "tokenizer.json: tokens 4 and 5 would both be 'abc'" },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 6, \"content\": \"x\"}, {\"id\": 5, "
	  "\"content\": \"x\"}]}",
	  NULL, "tokenizer.json: tokens 5 and 6 would both be 'x'" },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 5, \"content\": \"[PAD7]\"}]}", NULL,
	  "tokenizer.json: tokens 5 and 7 would both be '[PAD7]'" },
	{ "{" BYTES ", " MODEL
	  ", \"added_tokens\": [{\"id\": 5, \"content\": \"x y\", \"special\": "
	  "true}, {\"id\": 6, \"content\": \"x\xe2\x96\x81y\"}]}",
	  NULL, "tokenizer.json: tokens 5 and 6 would both be 'x y'" },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 5, \"content\": \" \xe2\x96\x81\"}, "
	  "{\"id\": 6, \"content\": \"\xe2\x96\x81 \"}]}",
	  NULL, "tokenizer.json: tokens 5 and 6 would both be '\xe2\x96\x81 '" },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 4, \"content\": \"x\"}]}", NULL,
	  "tokenizer.json: token 4 is 'x' among those added, elsewhere 'abc'" },
	/* Merges that llama.cpp would not read as they are. */
	{ MERGING("\"a b\", \"ab d\""), NULL, "tokenizer.json: merge 1 " NO_TOKEN },
	{ MERGING("\"x b\""), NULL, "tokenizer.json: merge 0 " NO_TOKEN },
	{ MERGING("\"b a\""), NULL, "tokenizer.json: merge 0 " NO_TOKEN },
	{ MERGING("[\"b\", \"c\"]"), NULL, "tokenizer.json: merge 0 " NO_TOKEN },
	{ MERGING("\"a b\", \"ab c\", [\"a\", \"b\"]"), NULL,
	  "tokenizer.json: merge 2 appears a second time" },
	{ MERGING("\"ab\""), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ MERGING("\"a b c\""), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ MERGING("\" ab\""), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ MERGING("\"ab \""), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ MERGING("[\"a\", \"b\", \"c\"]"), NULL,
	  "tokenizer.json: merge 0 is not a pair of tokens" },
	{ MERGING("[\"a\", 1]"), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ "{" BYTES
	  ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}",
	  NULL, "tokenizer.json: two tokens have the number 1" },
	{ MERGING("3"), NULL, "tokenizer.json: merge 0 is not a pair of tokens" },
	{ "{" BYTES ", " MODEL ", \"added_tokens\": [{\"id\": 5}]}", NULL,
	  "tokenizer.json: an added token has no 'content'" },
	{ "{" BYTES ", " MODEL ", \"post_processor\": {\"type\": \"BertProcessing\"}}", NULL,
	  UNKNOWN("the post-processor") },
	{ "{" BYTES ", " MODEL ", " ADDED
	  ", \"post_processor\": {\"type\": \"TemplateProcessing\", "
	  "\"single\": [{\"SpecialToken\": {\"id\": \"abc\"}}, {\"Sequence\": {\"id\": \"A\"}}]}}",
	  NULL, UNKNOWN("a post-processor that adds tokens other than bos_token and eos_token") },
	{ BYTE_LEVEL, "{\"eos_token\": \"</s>\"}",
	  "tokenizer_config.json: the eos_token '</s>' is not in tokenizer.json" },
	{ BYTE_LEVEL,
	  "{\"chat_template\": [{\"name\": \"a b\", \"template\": \"x\"}, "
	  "{\"name\": \"a-b\", \"template\": \"y\"}]}",
	  "two chat templates would be called 'tokenizer.chat_template.a_b'" },
	{ BYTE_LEVEL, "{\"add_eos_token\": true}",
	  "tokenizer.json: texts begin or end with a token that does not exist" },
	{ BYTE_LEVEL, "{\"added_tokens_decoder\": {\"5\": {\"content\": \"<t>\"}}}",
	  "tokenizer_config.json: token 5 is '<t>' among those added, elsewhere '<s>'" },
	{ BYTE_LEVEL, "{\"added_tokens_decoder\": {\"5x\": {\"content\": \"<s>\"}}}",
	  "tokenizer.json: an added token's number is invalid" },
	{ "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, " VOCAB ", " MERGES
	  "}, \"normalizer\": {\"type\": \"NFC\"}}",
	  NULL, UNKNOWN("the normalizer") },
	{ "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, " VOCAB ", " MERGES
	  "}, \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
	  "\"content\": "
	  "\"\xe2\x96\x81\"}}",
	  NULL, "tokenizer.json has no token for the byte 00" },
};

START_TEST(chat_templates_have_names)
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct buf many = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	ck_assert_msg(
		!put_tokens(BYTE_LEVEL,
			    "{\"chat_template\": [{\"name\": \"default\", \"template\": \"x\"}, "
			    "{\"name\": \"tool use\", \"template\": \"y\"}, {\"name\": 1}]}",
			    &k, &e),
		"%s", e.msg);
	REQUIRE(gguf_keys_fine(&k));
	REQUIRE(has_str(&k, "tokenizer.chat_template", "x"));
	REQUIRE(has_str(&k, "tokenizer.chat_template.tool_use", "y"));
	buf_release(&k.text);

	buf_str(&many, "{\"chat_template\": [");
	for (unsigned i = 0; i < 5000; i++)
		buf_printf(&many, "%s{\"name\": \"t%u\", \"template\": \"\"}", i ? ", " : "", i);
	buf_str(&many, "]}");
	buf_add(&many, "", 1);
	REQUIRE(!many.err);
	k = (struct gguf_keys)GGUF_KEYS_INIT("llama");
	ck_assert_int_eq(put_tokens(BYTE_LEVEL, many.data, &k, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "100 chat templates or more");
	buf_release(&many);
	buf_release(&k.text);
}
END_TEST

START_LOOP_TEST(tokenizers_that_are_not_known_are_named, ARRAY_LEN(bad_tokenizers))
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };

	ck_assert_int_lt(
		put_tokens(bad_tokenizers[_i].tokenizer, bad_tokenizers[_i].config, &k, &e), 0);
	ck_assert_str_eq(e.msg, bad_tokenizers[_i].message);
	buf_release(&k.text);
}
END_TEST

/* ---- scores ---- */

/* Bytes, then tokens of single letters, then these; merges as JSON. */
static int put_pieces(const char *pieces, const char *merges, struct gguf_keys *k,
		      struct ckpt_err *e)
{
	struct buf b = BUF_INIT(1 << 20);
	struct gguf_config c = { .a = { .kind = KIND_LLAMA, .vocab = 300 }, .arch = "llama" };
	struct gguf_token_files f = { 0 };
	unsigned id = 256;
	int rc;

	buf_str(&b, "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {");
	for (unsigned i = 0; i < 256; i++)
		buf_printf(&b, "\"<0x%02X>\": %u, ", i, i);
	for (char letter = 'a'; letter <= 'f'; letter++)
		buf_printf(&b, "\"%c\": %u, ", letter, id++);
	for (const char *p = pieces; *p; p += strcspn(p, " ") + !!p[strcspn(p, " ")])
		buf_printf(&b, "%s\"%.*s\": %u", p == pieces ? "" : ", ", (int)strcspn(p, " "), p,
			   id++);
	buf_printf(&b,
		   "}, \"merges\": [%s]}, \"normalizer\": {\"type\": \"Replace\", \"pattern\": "
		   "{\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}}",
		   merges);
	REQUIRE(!b.err);
	f.tokenizer = b.data;
	f.tokenizer_len = b.len;
	rc = gguf_tokens_put(&f, &c, k, e);
	buf_release(&b);
	return rc;
}

static float score(const struct gguf_keys *k, size_t i)
{
	struct cursor c = gguf_value(k, "tokenizer.ggml.scores", GGUF_ARRAY);
	uint32_t u;
	float f;

	(void)cursor_take(&c, 12 + 4 * i);
	u = cursor_le32(&c);
	REQUIRE(!c.bad);
	memcpy(&f, &u, sizeof(f));
	return f;
}

START_TEST(scores_are_the_order_of_merges)
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };

	ck_assert_msg(!put_pieces("ab cd abcd", "\"a b\", \"c d\", \"ab cd\"", &k, &e), "%s",
		      e.msg);
	REQUIRE(has_str(&k, "tokenizer.ggml.model", "llama"));
	REQUIRE(has_str(&k, "tokenizer.ggml.pre", "default"));
	ck_assert(score(&k, 262) == 0 && score(&k, 263) == -1 && score(&k, 264) == -2);
	ck_assert(score(&k, 256) == -3); /* nothing makes it */
	buf_release(&k.text);
}
END_TEST

static const struct {
	const char *pieces, *merges, *doubt; /* token, or NULL */
} vocabularies[] = {
	/* All pairs that make a token are merges, as SentencePiece would list them. */
	{ "ab bc abc", "\"a b\", \"b c\", \"a bc\", \"ab c\"", NULL },
	/* llama.cpp would join ab and c, which is not a merge. */
	{ "ab bc abc", "\"a b\", \"b c\", \"a bc\"", "abc" },
	/* bc comes first, and abc is only made of it: ab + c never meet. */
	{ "bc ab abc", "\"b c\", \"a b\", \"a bc\"", NULL },
	/* The merge that counts comes behind another's: the orders differ. */
	{ "ab bc abc de", "\"a b\", \"b c\", \"a bc\", \"d e\", \"ab c\"", "abc" },
	/* A token that consists of two others but that no merge makes. */
	{ "ab cd abcd", "\"a b\", \"c d\"", "abcd" },
	/* A token that merges never reach, while llama.cpp does. */
	{ "ab abf", "\"a b\"", "abf" },
};

START_LOOP_TEST(merges_that_scores_cannot_follow_are_refused, ARRAY_LEN(vocabularies))
{
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct ckpt_err e = { 0 };
	char want[200];
	int rc = put_pieces(vocabularies[_i].pieces, vocabularies[_i].merges, &k, &e);

	ck_assert_msg(rc == (vocabularies[_i].doubt ? -ERR_UNSUPPORTED : 0), "%d: %s", rc, e.msg);
	(void)snprintf(want, sizeof(want),
		       "tokenizer.json: llama.cpp would not build '%s' from these merges, so its "
		       "tokens may differ",
		       vocabularies[_i].doubt ? vocabularies[_i].doubt : "");
	if (rc)
		ck_assert_str_eq(e.msg, want);
	buf_release(&k.text);
}
END_TEST

/* ---- without memory ---- */

START_LOOP_TEST(without_memory_it_says_so, ARRAY_LEN(splits))
{
	const char *tokenizer = splits[_i % ARRAY_LEN(splits)].tokenizer;
	autofree char *copy = malloc(strlen(tokenizer) + 1);

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct gguf_keys k = GGUF_KEYS_INIT("llama");
		struct gguf_token_files f = { .tokenizer = copy,
					      .tokenizer_len = strlen(tokenizer) };
		struct gguf_config c = { .a = { .kind = KIND_LLAMA, .vocab = SMALL_VOCAB },
					 .arch = "llama" };
		struct buf head = BUF_INIT(GGUF_MAX_HEADER);
		struct ckpt_err e = { 0 };
		int rc;

		memcpy(copy, tokenizer, strlen(tokenizer)); /* it gets changed */
		rc = gguf_tokens_put(&f, &c, &k, &e);
		if (!rc)
			rc = gguf_header(&k, NULL, 0, &head, &e);
		(void)fault_off();
		REQUIRE(rc == (fault_hit() ? -ENOMEM : 0) && e.code == -rc);
		buf_release(&head);
		buf_release(&k.text);
	}
}
END_TEST

/* ---- types of tensors ---- */

/* The model of a GGUF with the given layers, and the type of one of its tensors. */
struct mix_case {
	const char *mix;
	struct arch a;
	const char *tensor;
	uint64_t rows, columns, experts; /* experts: 0 for a matrix */
	enum ggml_type want;
};

#define LLAMA(n, ...) \
	{ \
		.gguf = "llama", .layers = (n), .heads = 8, __VA_ARGS__ \
	}
#define SHARED(n)      LLAMA(n, .kv_heads = 2)
#define ITS_OWN(n)     LLAMA(n, .kv_heads = 8)
#define EXPERTS(n, of) LLAMA(n, .kv_heads = 2, .experts = (of))

/* What llama-quantize of llama.cpp 0.7.0 chose for models of these shapes. */
static const struct mix_case mixes[] = {
	{ "f16", SHARED(16), "blk.0.attn_v.weight", 8, 256, 0, GGML_F16 },
	{ "f16", SHARED(16), "blk.0.attn_v.weight", 1, 255, 0, GGML_F16 },
	{ "q4_0", SHARED(16), "blk.0.ffn_down.weight", 8, 256, 0, GGML_Q4_0 },
	{ "q4_0", SHARED(16), "output.weight", 8, 256, 0, GGML_Q6_K },
	{ "q4_0", SHARED(16), "output.weight", 8, 96, 0, GGML_Q8_0 },
	{ "q4_0", SHARED(16), "output.weight", 8, 48, 0, GGML_F16 },
	{ "q4_0", SHARED(16), "token_embd.weight", 8, 256, 0, GGML_Q6_K },
	{ "q8_0", SHARED(16), "token_embd.weight", 8, 256, 0, GGML_Q8_0 },
	{ "q8_0", SHARED(16), "blk.0.attn_q.weight", 8, 40, 0, GGML_F16 },
	{ "q8_0", SHARED(16), "blk.0.attn_q.weight", 1, 64, 0, GGML_BF16 },
	{ "q4_k_s", SHARED(16), "blk.3.attn_v.weight", 8, 256, 0, GGML_Q5_K },
	{ "q4_k_s", SHARED(16), "blk.4.attn_v.weight", 8, 256, 0, GGML_Q4_K },
	{ "q4_k_s", SHARED(16), "blk.1.ffn_down.weight", 8, 256, 0, GGML_Q5_K },
	{ "q4_k_s", SHARED(16), "blk.2.ffn_down.weight", 8, 256, 0, GGML_Q4_K },
	{ "q4_k_s", SHARED(16), "blk.2.ffn_down.weight", 8, 288, 0, GGML_Q5_0 },
	{ "q4_k_m", SHARED(16), "blk.1.attn_v.weight", 8, 256, 0, GGML_Q6_K },
	{ "q4_k_m", SHARED(16), "blk.2.attn_v.weight", 8, 256, 0, GGML_Q4_K },
	{ "q4_k_m", SHARED(16), "blk.4.attn_qkv.weight", 8, 256, 0, GGML_Q6_K },
	{ "q4_k_m", SHARED(16), "blk.13.ffn_down.weight", 8, 256, 0, GGML_Q6_K },
	{ "q4_k_m", SHARED(16), "blk.12.ffn_down.weight", 8, 256, 0, GGML_Q4_K },
	{ "q4_k_m", SHARED(16), "blk.14.ffn_down.weight", 8, 288, 0, GGML_Q8_0 },
	{ "q4_k_m", SHARED(16), "blk.14.ffn_up.weight", 8, 256, 0, GGML_Q4_K },
	{ "q5_k_s", SHARED(16), "blk.0.attn_v.weight", 8, 256, 0, GGML_Q5_K },
	{ "q5_k_m", SHARED(16), "blk.0.attn_v.weight", 8, 256, 0, GGML_Q6_K },
	{ "q5_k_m", SHARED(16), "blk.2.attn_v.weight", 8, 96, 0, GGML_Q5_1 },
	{ "q6_k", SHARED(16), "blk.2.attn_v.weight", 8, 96, 0, GGML_Q8_0 },
	{ "q4_k_m", SHARED(80), "blk.11.attn_v.weight", 8, 256, 0, GGML_Q5_K },
	{ "q4_k_m", SHARED(80), "blk.12.attn_v.weight", 8, 256, 0, GGML_Q6_K },
	{ "q4_k_m", ITS_OWN(80), "blk.11.attn_v.weight", 8, 256, 0, GGML_Q4_K },
	{ "q4_k_s",
	  { .gguf = "qwen2", .layers = 80, .heads = 8, .kv_heads = 8 },
	  "blk.11.attn_v.weight",
	  8,
	  256,
	  0,
	  GGML_Q5_K },
	{ "q4_k_m", EXPERTS(9, 8), "blk.2.attn_v.weight", 8, 256, 0, GGML_Q8_0 },
	{ "q4_0", EXPERTS(9, 8), "blk.2.attn_k.weight", 8, 256, 0, GGML_Q8_0 },
	{ "q4_0", EXPERTS(9, 8), "blk.2.attn_output.weight", 8, 256, 0, GGML_Q4_0 },
	{ "q4_k_s", EXPERTS(9, 8), "blk.8.attn_output.weight", 8, 256, 0, GGML_Q5_K },
	{ "q5_k_m", EXPERTS(9, 8), "blk.8.attn_output.weight", 8, 256, 0, GGML_Q5_K },
	{ "q4_k_m", EXPERTS(10, 3), "blk.9.ffn_down_exps.weight", 8, 256, 3, GGML_Q6_K },
	{ "q4_k_m", EXPERTS(10, 3), "blk.2.attn_k.weight", 8, 256, 0, GGML_Q4_K },
	{ "mxfp4", EXPERTS(10, 3), "blk.9.ffn_down_exps.weight", 8, 256, 3, GGML_MXFP4 },
	{ "mxfp4", EXPERTS(10, 3), "blk.9.ffn_down_exps.weight", 8, 40, 3, GGML_F16 },
	{ "mxfp4", EXPERTS(10, 3), "blk.9.attn_k.weight", 8, 256, 0, GGML_Q8_0 },
};

START_TEST(types_are_those_of_llama_quantize)
{
	for (size_t i = 0; i < ARRAY_LEN(mixes); i++) {
		const struct mix_case *c = &mixes[i];
		struct gguf_tensor t[2] = {
			{ .n_dims = 2, .shape = { c->rows, c->columns } },
			{ .name = "blk.0.attn_norm.weight", .n_dims = 1, .shape = { c->columns } }
		};
		size_t m = 0;

		if (c->experts)
			t[0] = (struct gguf_tensor){ .n_dims = 3,
						     .shape = { c->experts, c->rows, c->columns } };
		(void)snprintf(t[0].name, sizeof(t[0].name), "%s", c->tensor);
		t[0].type = GGML_F16;
		while (strcmp(gguf_mixes[m].name, c->mix) != 0)
			m++;
		gguf_mix_choose(&gguf_mixes[m], &c->a, GGML_BF16, t, 2);
		ck_assert_msg(t[0].type == c->want, "%s %s: %d", c->mix, c->tensor, t[0].type);
		ck_assert_int_eq(t[1].type, GGML_F32);
	}
}
END_TEST

/* The embeddings have the head's type only if they are the head. */
START_TEST(a_head_leaves_the_embeddings_alone)
{
	const struct arch a = SHARED(2);
	struct gguf_tensor t[] = {
		{ .name = "token_embd.weight", .n_dims = 2, .shape = { 8, 256 }, .type = GGML_F16 },
		{ .name = "output.weight", .n_dims = 2, .shape = { 8, 256 }, .type = GGML_F16 },
	};

	for (size_t m = 0; m < GGUF_N_MIXES; m++) {
		enum ggml_type head =
			block_type(gguf_mixes[m].base) ? GGML_Q6_K : gguf_mixes[m].base;

		if (gguf_mixes[m].base == GGML_Q8_0 || gguf_mixes[m].base == GGML_MXFP4)
			head = GGML_Q8_0;
		t[0].type = t[1].type = GGML_F16;
		gguf_mix_choose(&gguf_mixes[m], &a, GGML_F16, t, 2);
		ck_assert_int_eq(t[1].type, head);
		ck_assert_int_eq(t[0].type,
				 gguf_mixes[m].base == GGML_MXFP4 ? GGML_Q8_0 : gguf_mixes[m].base);
	}
}
END_TEST

SUITE(gguf)

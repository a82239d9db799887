/* SPDX-License-Identifier: Apache-2.0 */
/* Members of config.json, by the kind of architecture. */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/model/gguf_model_internal.h"

#include <stdio.h>
#include <string.h>

enum {
	MAX_LATENT_HEADS = 1024, /* the recipe names each */
	MAX_FURTHER = 100,	 /* likewise */
};

#define GEMMAS (KIND_GEMMA | KIND_GEMMA2 | KIND_GEMMA3)

static void put_experts(struct gguf_reading *r, enum arch_kind kind)
{
	gguf_need(r, kind == KIND_MIXTRAL ? "num_local_experts" : "num_experts", ".expert_count");
	gguf_need(r, "num_experts_per_tok", ".expert_used_count");
	if (kind == KIND_MIXTRAL)
		return;
	gguf_need(r, "moe_intermediate_size", ".expert_feed_forward_length");
	if (kind == KIND_QWEN2_MOE)
		gguf_need(r, "shared_expert_intermediate_size",
			  ".expert_shared_feed_forward_length");
	json_bool(&r->j, "norm_topk_prob", kind == KIND_QWEN3_MOE); /* as llama.cpp computes */
}

/* Experts as DeepSeek has them. */
static void put_routed(struct gguf_reading *r, enum arch_kind kind)
{
	bool v2 = kind == KIND_DEEPSEEK_V2;

	gguf_need(r, "n_routed_experts", ".expert_count");
	gguf_need(r, "num_experts_per_tok", ".expert_used_count");
	gguf_need(r, "n_shared_experts", ".expert_shared_count");
	gguf_need(r, "moe_intermediate_size", ".expert_feed_forward_length");
	gguf_need(r, "first_k_dense_replace", ".leading_dense_block_count");
	gguf_need(r, "routed_scaling_factor", ".expert_weights_scale");
	gguf_need(r, "n_group", ".expert_group_count");
	gguf_need(r, "topk_group", ".expert_group_used_count");
	json_bool(&r->j, "norm_topk_prob", gguf_flag_of(r, ".expert_weights_norm"));
	json_str(&r->j, "scoring_func", v2 ? "softmax" : "sigmoid");
	json_str(&r->j, "topk_method", v2 ? "greedy" : "noaux_tc");
}

/* DeepSeek's: all heads share a key of latents and rotated elements. */
static void put_latent(struct gguf_reading *r)
{
	uint64_t keys = 0, rotated = 0, heads = 0;

	if (gguf_count_of(r, ".attention.head_count", &heads) && heads > MAX_LATENT_HEADS) {
		gguf_no_config(r, "%llu heads are more than %d", (unsigned long long)heads,
			       MAX_LATENT_HEADS);
		r->failed = true;
	}
	gguf_need(r, "num_attention_heads", ".attention.head_count");
	gguf_need(r, "num_key_value_heads", ".attention.head_count");
	if (!gguf_copy(r, "q_lora_rank", ".attention.q_lora_rank"))
		json_raw(&r->j, "q_lora_rank", "null");
	gguf_need(r, "kv_lora_rank", ".attention.kv_lora_rank");
	gguf_need(r, "qk_rope_head_dim", ".rope.dimension_count");
	gguf_need(r, "v_head_dim", ".attention.value_length_mla");
	if (gguf_count_of(r, ".attention.key_length_mla", &keys) &&
	    gguf_count_of(r, ".rope.dimension_count", &rotated) && keys > rotated) {
		json_u64(&r->j, "qk_nope_head_dim", keys - rotated);
	} else {
		gguf_no_config(r, "the GGUF has an unknown form of latent attention");
		r->failed = true;
	}
}

/* Head sizes: one for keys and values, and all of it is rotated, except in some families. */
static void put_heads(struct gguf_reading *r, enum arch_kind kind)
{
	bool partial = kind & (KIND_PHI3 | KIND_GLM4 | KIND_GLM4_MOE);
	uint64_t dim = gguf_head_dim(r), rotated = gguf_rotated(r), values = dim;

	gguf_need(r, "num_attention_heads", ".attention.head_count");
	if (!gguf_copy(r, "num_key_value_heads", ".attention.head_count_kv"))
		(void)gguf_copy(r, "num_key_value_heads", ".attention.head_count");
	(void)gguf_count_of(r, ".attention.value_length", &values);
	json_u64(&r->j, "head_dim", dim);
	if (partial && dim && rotated < dim)
		gguf_put_number(r, "partial_rotary_factor", (double)rotated / (double)dim);
	else if (partial)
		json_raw(&r->j, "partial_rotary_factor", "1.0");
	if (values != dim || (partial ? rotated > dim : rotated != dim))
		gguf_no_config(r, "keys of %llu, of which %llu are rotated, and values of %llu",
			       (unsigned long long)dim, (unsigned long long)rotated,
			       (unsigned long long)values);
}

/* Which layers see a window follows from the class. */
static void put_gemma(struct gguf_reading *r, enum arch_kind kind)
{
	uint64_t layers = 0, hidden = 0, heads = 0, dim = 0;
	bool largest;

	if (kind == KIND_GEMMA)
		return;
	(void)gguf_count_of(r, ".block_count", &layers);
	(void)gguf_count_of(r, ".embedding_length", &hidden);
	(void)gguf_count_of(r, ".attention.head_count", &heads);
	(void)gguf_count_of(r, ".attention.key_length", &dim);
	largest = heads && layers == (kind == KIND_GEMMA2 ? 46 : 62); /* as llama.cpp knows them */
	json_u64(&r->j, "query_pre_attn_scalar", largest ? hidden / heads : dim);
	gguf_need(r, "sliding_window", ".attention.sliding_window");
	if (kind == KIND_GEMMA2)
		gguf_need(r, "attn_logit_softcapping", ".attn_logit_softcapping");
	(void)gguf_copy(r, "final_logit_softcapping", ".final_logit_softcapping");
	if (kind == KIND_GEMMA3 && !gguf_copy(r, "rope_local_base_freq", ".rope.freq_base_swa"))
		json_raw(&r->j, "rope_local_base_freq", "10000.0"); /* llama.cpp's default */
}

static void put_layers(struct gguf_reading *r)
{
	uint64_t all = 0;

	(void)gguf_count_of(r, ".nextn_predict_layers", &r->further);
	if (!r->further) {
		gguf_need(r, "num_hidden_layers", ".block_count");
	} else if (gguf_count_of(r, ".block_count", &all) && r->further < all &&
		   r->further <= MAX_FURTHER) {
		json_u64(&r->j, "num_hidden_layers", all - r->further);
	} else {
		gguf_no_config(r, "%llu layers predict further tokens, of %llu",
			       (unsigned long long)r->further, (unsigned long long)all);
		r->failed = true;
	}
}

/* OLMo 3: true for layers that see a window. */
static void put_windows(struct gguf_reading *r)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	if (!gguf_copy(r, "sliding_window", ".attention.sliding_window"))
		return;
	if (!gguf_key_parse(r, gguf_key_of(r, ".attention.sliding_window_pattern"), &d)) {
		gguf_no_config(r, "the GGUF does not say which layers have a sliding window");
		return;
	}
	json_open_line(&r->j, "layer_types", '[');
	for (struct jiter i = jiter(jdoc_root(&d)); jiter_next(&i);)
		json_str(&r->j, NULL,
			 jval_is(i.v, J_TRUE) ? "sliding_attention" : "full_attention");
	json_close(&r->j);
}

void gguf_put_decoder(struct gguf_reading *r, enum arch_kind kind)
{
	uint64_t window = 0;

	gguf_need(r, "hidden_size", ".embedding_length");
	gguf_need(r, "intermediate_size", ".feed_forward_length");
	put_layers(r);
	if (kind & KIND_LATENT)
		put_latent(r);
	else
		put_heads(r, kind);
	gguf_need(r, "max_position_embeddings", ".context_length");
	gguf_need(r, "rms_norm_eps", ".attention.layer_norm_rms_epsilon");
	if (kind & GEMMAS)
		json_str(&r->j, "hidden_activation", "gelu_pytorch_tanh");
	else
		json_str(&r->j, "hidden_act", "silu");
	if (!gguf_copy(r, "rope_theta", ".rope.freq_base"))
		json_raw(&r->j, "rope_theta", "10000.0"); /* llama.cpp's default */
	gguf_put_scaling(r);
	if (kind & GEMMAS)
		put_gemma(r, kind);
	if (kind == KIND_OLMO2)
		put_windows(r);
	if (kind == KIND_PHI3) {
		if (gguf_count_of(r, ".attention.sliding_window", &window) && window)
			json_u64(&r->j, "sliding_window", window);
		(void)gguf_copy(r, "original_max_position_embeddings",
				".rope.scaling.original_context_length");
	}
	if (kind == KIND_GRANITE)
		gguf_put_multipliers(r);
	if (kind & (KIND_LLAMAS | KIND_QWEN3 | KIND_QWEN3_MOE | KIND_GLM4 | KIND_GLM4_MOE))
		json_bool(&r->j, "attention_bias", gguf_tensor_of(r, "blk.0.attn_q.bias"));
	if (kind == KIND_GLM4_MOE)
		json_bool(&r->j, "use_qk_norm", gguf_tensor_of(r, "blk.0.attn_q_norm.weight"));
	if (kind & KIND_LLAMAS)
		json_bool(&r->j, "mlp_bias", gguf_tensor_of(r, "blk.0.ffn_gate.bias"));
	if (kind & KIND_ROUTED)
		put_routed(r, kind);
	else if (kind & KIND_EXPERTS)
		put_experts(r, kind);
}

void gguf_put_gpt2(struct gguf_reading *r)
{
	gguf_need(r, "n_layer", ".block_count");
	gguf_need(r, "n_positions", ".context_length");
	gguf_need(r, "n_embd", ".embedding_length");
	gguf_need(r, "n_head", ".attention.head_count");
	gguf_need(r, "n_inner", ".feed_forward_length");
	gguf_need(r, "layer_norm_epsilon", ".attention.layer_norm_epsilon");
	json_str(&r->j, "activation_function", "gelu_new");
}

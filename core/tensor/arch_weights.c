/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of all families, and their names. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/text.h"
#include "tensor/arch.h"

#include <stdio.h>
#include <string.h>

/* Lengths of axes. All but the products are below 2^31. */
enum size {
	NO,
	ONE,
	HIDDEN,
	VOCAB,
	POSITIONS,
	HEADS,
	HEAD,
	QUERY,
	KEY,
	QKV,
	QKV3,
	FFN,
	FFN2,
	EXPERTS,
	EXPERT_FFN,
	EXPERT_FFN2,
	SHARED,
	Q_LORA,
	Q_LATENT,
	KV_LORA,
	KV_A,
	KV_B,
	V_LATENT,
	KEY_HEADS,
	QUERY_GATE, /* queries, and as many numbers by which their results are multiplied */
	LINEAR_MIXED,
	LINEAR_QKV,
	LINEAR_V,
	LINEAR_HEADS,
	LINEAR_HEADS2,
	LINEAR_HEAD,
	LINEAR_KERNEL,
};

/* When a model has the weight. */
enum when {
	ALWAYS,
	BIAS,
	MLP_BIAS,
	DENSE,
	SPARSE,
	LORA,
	NO_LORA,
	LORA_BIAS,
	QK_NORM,
	UNTIED,
	RECURRENT, /* layers with linear attention; only the others have weights below self_attn. */
};

#define GPT2	 KIND_GPT2
#define MOE2	 KIND_QWEN2_MOE
#define SHARES	 KIND_GATED_SHARED
#define NEXT	 KIND_QWEN3_NEXT
#define QWEN35	 (KIND_QWEN35 | KIND_QWEN35_MOE)
#define DEEPSEEK KIND_LATENT
#define OSS	 KIND_GPT_OSS
#define GLM	 (KIND_GLM4 | KIND_GLM4_MOE)
#define GEMMA23	 (KIND_GEMMA2 | KIND_GEMMA3)
#define COHERE	 KIND_COHERE
#define ALL	 (~(uint32_t)KIND_GPT2)
/* normalises queries and keys of each head */
#define NORMED (KIND_QWEN3 | KIND_QWEN3_MOE | KIND_GEMMA3 | KIND_LINEAR)
/* Experts are fused, as transformers 5 has them in memory, or split, as it saves them. */
#define SPLITS (SHARES | KIND_QWEN3_MOE | KIND_ROUTED)
#define FUSES  (SPLITS | KIND_MIXTRAL)
/* Families with separate queries, keys and values. */
#define PLAIN (ALL & ~(uint32_t)(KIND_PHI3 | DEEPSEEK))
/* Families with a gate in a separate matrix, in layers with a plain MLP. */
#define GATED (PLAIN & ~(uint32_t)(KIND_MIXTRAL | OSS | KIND_GLM4))

/* NAME, GGUF, KINDS, SCOPE, WHEN, followed by the shape. */
#define W(n, g, k, s, w, ...) \
	{ \
		.name = (n), .gguf = (g), .kinds = (k), .scope = ARCH_##s, .when = (w), \
		__VA_ARGS__ \
	}
#define D1(a)	    .n_dims = 1, .shape = { a }
#define D2(a, b)    .n_dims = 2, .shape = { a, b }
#define D3(a, b, c) .n_dims = 3, .shape = { a, b, c }

const struct arch_weight arch_weights[] = {
	W("embed_tokens.weight", "token_embd.weight", ALL, ONCE, ALWAYS, D2(VOCAB, HIDDEN)),
	W("norm.weight", "output_norm.weight", ALL, ONCE, ALWAYS, D1(HIDDEN)),
	W("wte.weight", "token_embd.weight", GPT2, ONCE, ALWAYS, D2(VOCAB, HIDDEN)),
	W("wpe.weight", "position_embd.weight", GPT2, ONCE, ALWAYS, D2(POSITIONS, HIDDEN),
	  .precise = true),
	W("ln_f.weight", "output_norm.weight", GPT2, ONCE, ALWAYS, D1(HIDDEN)),
	W("ln_f.bias", "output_norm.bias", GPT2, ONCE, ALWAYS, D1(HIDDEN)),
	W("lm_head.weight", "output.weight", ALL | GPT2, TOP, UNTIED, D2(VOCAB, HIDDEN)),

	W("input_layernorm.weight", "attn_norm.weight", ALL & ~(uint32_t)KIND_OLMO2, LAYER, ALWAYS,
	  D1(HIDDEN)),
	W("post_attention_layernorm.weight", "ffn_norm.weight",
	  ALL & ~(uint32_t)(GEMMA23 | OSS | KIND_GLM4_MOE | KIND_OLMO2 | KIND_LINEAR | COHERE),
	  LAYER, ALWAYS, D1(HIDDEN)),
	W("post_attention_layernorm.weight", "post_attention_norm.weight",
	  GEMMA23 | OSS | KIND_GLM4_MOE | KIND_OLMO2 | KIND_LINEAR, LAYER, ALWAYS, D1(HIDDEN)),
	W("post_self_attn_layernorm.weight", "post_attention_norm.weight", KIND_GLM4, LAYER, ALWAYS,
	  D1(HIDDEN)),
	W("post_mlp_layernorm.weight", "post_ffw_norm.weight", KIND_GLM4, LAYER, ALWAYS,
	  D1(HIDDEN)),
	W("pre_feedforward_layernorm.weight", "ffn_norm.weight", GEMMA23, LAYER, ALWAYS,
	  D1(HIDDEN)),
	W("post_feedforward_layernorm.weight", "post_ffw_norm.weight", GEMMA23 | KIND_OLMO2, LAYER,
	  ALWAYS, D1(HIDDEN)),

	W("self_attn.q_proj.weight", "attn_q.weight", PLAIN & ~(uint32_t)KIND_LINEAR, LAYER, ALWAYS,
	  D2(QUERY, HIDDEN), .turn = ARCH_QUERIES),
	W("self_attn.q_proj.bias", "attn_q.bias", PLAIN & ~(uint32_t)KIND_LINEAR, LAYER, BIAS,
	  D1(QUERY), .turn = ARCH_QUERIES),
	W("self_attn.q_proj.weight", "attn_q.weight", KIND_LINEAR, LAYER, ALWAYS,
	  D2(QUERY_GATE, HIDDEN)),
	W("self_attn.q_proj.bias", "attn_q.bias", KIND_LINEAR, LAYER, BIAS, D1(QUERY_GATE)),
	W("self_attn.k_proj.weight", "attn_k.weight", PLAIN, LAYER, ALWAYS, D2(KEY, HIDDEN),
	  .turn = ARCH_KEYS),
	W("self_attn.k_proj.bias", "attn_k.bias", PLAIN, LAYER, BIAS, D1(KEY), .turn = ARCH_KEYS),
	W("self_attn.v_proj.weight", "attn_v.weight", PLAIN, LAYER, ALWAYS, D2(KEY, HIDDEN)),
	W("self_attn.v_proj.bias", "attn_v.bias", PLAIN, LAYER, BIAS, D1(KEY)),
	W("self_attn.qkv_proj.weight", "attn_qkv.weight", KIND_PHI3, LAYER, ALWAYS,
	  D2(QKV, HIDDEN)),
	W("self_attn.o_proj.weight", "attn_output.weight", ALL & ~(uint32_t)DEEPSEEK, LAYER, ALWAYS,
	  D2(HIDDEN, QUERY)),
	W("self_attn.o_proj.bias", "attn_output.bias", KIND_LLAMAS | KIND_GRANITE_MOE | OSS, LAYER,
	  BIAS, D1(HIDDEN)),
	W("self_attn.o_proj.bias", NULL,
	  ALL & ~(uint32_t)(KIND_LLAMAS | KIND_GRANITE_MOE | KIND_QWEN2 | MOE2 | KIND_PHI3 | OSS |
			    GLM),
	  LAYER, BIAS, D1(HIDDEN)),
	W("self_attn.q_norm.weight", "attn_q_norm.weight", NORMED, LAYER, ALWAYS, D1(HEAD)),
	W("self_attn.k_norm.weight", "attn_k_norm.weight", NORMED, LAYER, ALWAYS, D1(HEAD)),
	W("self_attn.q_norm.weight", "attn_q_norm.weight", KIND_GLM4_MOE, LAYER, QK_NORM, D1(HEAD)),
	W("self_attn.k_norm.weight", "attn_k_norm.weight", KIND_GLM4_MOE, LAYER, QK_NORM, D1(HEAD)),
	W("self_attn.q_norm.weight", "attn_q_norm.weight", COHERE, LAYER, QK_NORM, D2(HEADS, HEAD),
	  .precise = true),
	W("self_attn.k_norm.weight", "attn_k_norm.weight", COHERE, LAYER, QK_NORM,
	  D2(KEY_HEADS, HEAD), .precise = true),
	W("self_attn.q_norm.weight", "attn_q_norm.weight", KIND_OLMO2, LAYER, ALWAYS, D1(QUERY)),
	W("self_attn.k_norm.weight", "attn_k_norm.weight", KIND_OLMO2, LAYER, ALWAYS, D1(KEY)),
	W("self_attn.sinks", "attn_sinks.weight", OSS, LAYER, ALWAYS, D1(HEADS)),

	W("self_attn.q_proj.weight", "attn_q.weight", DEEPSEEK, LAYER, NO_LORA,
	  D2(Q_LATENT, HIDDEN)),
	W("self_attn.q_a_proj.weight", "attn_q_a.weight", DEEPSEEK, LAYER, LORA,
	  D2(Q_LORA, HIDDEN)),
	W("self_attn.q_a_proj.bias", NULL, DEEPSEEK, LAYER, LORA_BIAS, D1(Q_LORA)),
	W("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", DEEPSEEK, LAYER, LORA,
	  D1(Q_LORA)),
	W("self_attn.q_b_proj.weight", "attn_q_b.weight", DEEPSEEK, LAYER, LORA,
	  D2(Q_LATENT, Q_LORA)),
	W("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", DEEPSEEK, LAYER, ALWAYS,
	  D2(KV_A, HIDDEN)),
	W("self_attn.kv_a_proj_with_mqa.bias", NULL, DEEPSEEK, LAYER, BIAS, D1(KV_A)),
	W("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", DEEPSEEK, LAYER, ALWAYS,
	  D1(KV_LORA)),
	W("self_attn.kv_b_proj.weight", "attn_k_b.weight", DEEPSEEK, LAYER, ALWAYS,
	  D2(KV_B, KV_LORA), .turn = ARCH_LATENT, .second = "attn_v_b.weight"),
	W("self_attn.o_proj.weight", "attn_output.weight", DEEPSEEK, LAYER, ALWAYS,
	  D2(HIDDEN, V_LATENT)),

	W("linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", NEXT, LAYER, RECURRENT,
	  D2(LINEAR_MIXED, HIDDEN), .turn = ARCH_MIXED, .second = "attn_gate.weight"),
	W("linear_attn.in_proj_ba.weight", "ssm_ba.weight", NEXT, LAYER, RECURRENT,
	  D2(LINEAR_HEADS2, HIDDEN)),
	W("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", QWEN35, LAYER, RECURRENT,
	  D2(LINEAR_QKV, HIDDEN), .turn = ARCH_QKV_ROWS),
	W("linear_attn.in_proj_z.weight", "attn_gate.weight", QWEN35, LAYER, RECURRENT,
	  D2(LINEAR_V, HIDDEN), .turn = ARCH_V_ROWS),
	W("linear_attn.in_proj_b.weight", "ssm_beta.weight", QWEN35, LAYER, RECURRENT,
	  D2(LINEAR_HEADS, HIDDEN), .turn = ARCH_V_ROWS),
	W("linear_attn.in_proj_a.weight", "ssm_alpha.weight", QWEN35, LAYER, RECURRENT,
	  D2(LINEAR_HEADS, HIDDEN), .turn = ARCH_V_ROWS),
	W("linear_attn.conv1d.weight", "ssm_conv1d.weight", KIND_LINEAR, LAYER, RECURRENT,
	  D3(LINEAR_QKV, ONE, LINEAR_KERNEL), .turn = ARCH_KERNEL, .precise = true),
	W("linear_attn.A_log", "ssm_a", KIND_LINEAR, LAYER, RECURRENT, D1(LINEAR_HEADS),
	  .turn = ARCH_DECAY),
	W("linear_attn.dt_bias", "ssm_dt.bias", KIND_LINEAR, LAYER, RECURRENT, D1(LINEAR_HEADS),
	  .turn = ARCH_V_ROWS),
	W("linear_attn.norm.weight", "ssm_norm.weight", KIND_LINEAR, LAYER, RECURRENT,
	  D1(LINEAR_HEAD)),
	W("linear_attn.out_proj.weight", "ssm_out.weight", KIND_LINEAR, LAYER, RECURRENT,
	  D2(HIDDEN, LINEAR_V), .turn = ARCH_V_COLUMNS),

	W("mlp.gate_proj.weight", "ffn_gate.weight", GATED | DEEPSEEK, LAYER, DENSE,
	  D2(FFN, HIDDEN)),
	W("mlp.gate_proj.bias", "ffn_gate.bias", KIND_LLAMAS, LAYER, MLP_BIAS, D1(FFN)),
	W("mlp.up_proj.weight", "ffn_up.weight", GATED | DEEPSEEK, LAYER, DENSE, D2(FFN, HIDDEN)),
	W("mlp.up_proj.bias", "ffn_up.bias", KIND_LLAMAS, LAYER, MLP_BIAS, D1(FFN)),
	W("mlp.down_proj.weight", "ffn_down.weight", GATED | DEEPSEEK | KIND_PHI3 | KIND_GLM4,
	  LAYER, DENSE, D2(HIDDEN, FFN)),
	W("mlp.down_proj.bias", "ffn_down.bias", KIND_LLAMAS, LAYER, MLP_BIAS, D1(HIDDEN)),
	W("mlp.gate_up_proj.weight", "ffn_up.weight", KIND_PHI3 | KIND_GLM4, LAYER, ALWAYS,
	  D2(FFN2, HIDDEN)),

	W("mlp.gate.weight", "ffn_gate_inp.weight", SPLITS, LAYER, SPARSE, D2(EXPERTS, HIDDEN),
	  .precise = true),
	W("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", KIND_MIXTRAL, LAYER, SPARSE,
	  D2(EXPERTS, HIDDEN), .style = ARCH_SPLIT_ROUTER, .precise = true),
	W("mlp.gate.weight", "ffn_gate_inp.weight", KIND_MIXTRAL, LAYER, SPARSE,
	  D2(EXPERTS, HIDDEN), .style = ARCH_FUSED_ROUTER, .precise = true),
	W("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", KIND_DEEPSEEK_V3 | KIND_GLM4_MOE,
	  LAYER, SPARSE, D1(EXPERTS)),
	W("mlp.experts.gate_up_proj", NULL, FUSES, LAYER, SPARSE, D3(EXPERTS, EXPERT_FFN2, HIDDEN),
	  .style = ARCH_FUSED),
	W("mlp.experts.down_proj", NULL, FUSES, LAYER, SPARSE, D3(EXPERTS, HIDDEN, EXPERT_FFN),
	  .style = ARCH_FUSED),
	W("mlp.experts.{}.gate_proj.weight", "ffn_gate_exps.weight", SPLITS, EXPERT, SPARSE,
	  D2(EXPERT_FFN, HIDDEN), .style = ARCH_SPLIT, .turn = ARCH_GATE),
	W("mlp.experts.{}.up_proj.weight", "ffn_up_exps.weight", SPLITS, EXPERT, SPARSE,
	  D2(EXPERT_FFN, HIDDEN), .style = ARCH_SPLIT, .turn = ARCH_UP),
	W("mlp.experts.{}.down_proj.weight", "ffn_down_exps.weight", SPLITS, EXPERT, SPARSE,
	  D2(HIDDEN, EXPERT_FFN), .style = ARCH_SPLIT, .turn = ARCH_DOWN),
	W("block_sparse_moe.experts.{}.w1.weight", "ffn_gate_exps.weight", KIND_MIXTRAL, EXPERT,
	  SPARSE, D2(EXPERT_FFN, HIDDEN), .style = ARCH_SPLIT, .turn = ARCH_GATE),
	W("block_sparse_moe.experts.{}.w3.weight", "ffn_up_exps.weight", KIND_MIXTRAL, EXPERT,
	  SPARSE, D2(EXPERT_FFN, HIDDEN), .style = ARCH_SPLIT, .turn = ARCH_UP),
	W("block_sparse_moe.experts.{}.w2.weight", "ffn_down_exps.weight", KIND_MIXTRAL, EXPERT,
	  SPARSE, D2(HIDDEN, EXPERT_FFN), .style = ARCH_SPLIT, .turn = ARCH_DOWN),
	W("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight", KIND_GRANITE_MOE, LAYER,
	  SPARSE, D2(EXPERTS, HIDDEN), .precise = true),
	W("block_sparse_moe.input_linear.weight", "ffn_gate_exps.weight", KIND_GRANITE_MOE, LAYER,
	  SPARSE, D3(EXPERTS, EXPERT_FFN2, HIDDEN), .turn = ARCH_HALVES,
	  .second = "ffn_up_exps.weight"),
	W("block_sparse_moe.output_linear.weight", "ffn_down_exps.weight", KIND_GRANITE_MOE, LAYER,
	  SPARSE, D3(EXPERTS, HIDDEN, EXPERT_FFN)),
	W("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", SHARES, LAYER, SPARSE,
	  D2(SHARED, HIDDEN)),
	W("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", SHARES, LAYER, SPARSE,
	  D2(SHARED, HIDDEN)),
	W("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", SHARES, LAYER, SPARSE,
	  D2(HIDDEN, SHARED)),
	W("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", SHARES, LAYER, SPARSE,
	  D2(ONE, HIDDEN), .precise = true),
	W("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight", KIND_ROUTED, LAYER,
	  SPARSE, D2(SHARED, HIDDEN)),
	W("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight", KIND_ROUTED, LAYER, SPARSE,
	  D2(SHARED, HIDDEN)),
	W("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight", KIND_ROUTED, LAYER,
	  SPARSE, D2(HIDDEN, SHARED)),
	W("mlp.router.weight", "ffn_gate_inp.weight", OSS, LAYER, SPARSE, D2(EXPERTS, HIDDEN),
	  .precise = true),
	W("mlp.router.bias", "ffn_gate_inp.bias", OSS, LAYER, SPARSE, D1(EXPERTS)),
	W("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", OSS, LAYER, SPARSE,
	  D3(EXPERTS, HIDDEN, EXPERT_FFN2), .turn = ARCH_PAIRS, .second = "ffn_up_exps.weight"),
	W("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", OSS, LAYER, SPARSE,
	  D2(EXPERTS, EXPERT_FFN2), .turn = ARCH_PAIRS, .second = "ffn_up_exps.bias",
	  .precise = true),
	W("mlp.experts.down_proj", "ffn_down_exps.weight", OSS, LAYER, SPARSE,
	  D3(EXPERTS, EXPERT_FFN, HIDDEN), .turn = ARCH_TURNED),
	W("mlp.experts.down_proj_bias", "ffn_down_exps.bias", OSS, LAYER, SPARSE,
	  D2(EXPERTS, HIDDEN), .precise = true),

	W("ln_1.weight", "attn_norm.weight", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
	W("ln_1.bias", "attn_norm.bias", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
	W("ln_2.weight", "ffn_norm.weight", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
	W("ln_2.bias", "ffn_norm.bias", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
	W("attn.c_attn.weight", "attn_qkv.weight", GPT2, LAYER, ALWAYS, D2(HIDDEN, QKV3),
	  .turn = ARCH_TURNED),
	W("attn.c_attn.bias", "attn_qkv.bias", GPT2, LAYER, ALWAYS, D1(QKV3)),
	W("attn.c_proj.weight", "attn_output.weight", GPT2, LAYER, ALWAYS, D2(HIDDEN, HIDDEN),
	  .turn = ARCH_TURNED),
	W("attn.c_proj.bias", "attn_output.bias", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
	W("mlp.c_fc.weight", "ffn_up.weight", GPT2, LAYER, ALWAYS, D2(HIDDEN, FFN),
	  .turn = ARCH_TURNED),
	W("mlp.c_fc.bias", "ffn_up.bias", GPT2, LAYER, ALWAYS, D1(FFN)),
	W("mlp.c_proj.weight", "ffn_down.weight", GPT2, LAYER, ALWAYS, D2(FFN, HIDDEN),
	  .turn = ARCH_TURNED),
	W("mlp.c_proj.bias", "ffn_down.bias", GPT2, LAYER, ALWAYS, D1(HIDDEN)),
};
const size_t arch_n_weights = ARRAY_LEN(arch_weights);
_Static_assert(ARRAY_LEN(arch_weights) <= ARCH_MAX_WEIGHTS, "a row has a number of eight bits");

static uint64_t size_of_linear(const struct arch_linear *l, enum size s)
{
	uint64_t keys = l->k_heads * l->k_dim, values = l->v_heads * l->v_dim; /* below 2^62 */

	switch (s) {
	case LINEAR_MIXED:
		return 2 * keys + 2 * values;
	case LINEAR_QKV:
		return 2 * keys + values;
	case LINEAR_V:
		return values;
	case LINEAR_HEADS:
		return l->v_heads;
	case LINEAR_HEADS2:
		return 2 * l->v_heads;
	case LINEAR_HEAD:
		return l->v_dim;
	case LINEAR_KERNEL:
		return l->kernel;
	default:
		return 0;
	}
}

static uint64_t size_of(const struct arch *a, enum size s)
{
	switch (s) {
	case NO:
		return 0;
	case ONE:
		return 1;
	case HIDDEN:
		return a->hidden;
	case VOCAB:
		return a->vocab;
	case POSITIONS:
		return a->positions;
	case HEADS:
		return a->heads;
	case HEAD:
		return a->head_dim;
	case QUERY:
		return a->heads * a->head_dim; /* cannot overflow: below 2^62 */
	case KEY:
		return a->kv_heads * a->head_dim;
	case QKV:
		return (a->heads + 2 * a->kv_heads) * a->head_dim;
	case QKV3:
		return 3 * a->hidden;
	case FFN:
		return a->ffn;
	case FFN2:
		return 2 * a->ffn;
	case EXPERTS:
		return a->experts;
	case EXPERT_FFN:
		return a->expert_ffn;
	case EXPERT_FFN2:
		return 2 * a->expert_ffn;
	case SHARED:
		return a->shared_ffn;
	case Q_LORA:
		return a->q_lora;
	case Q_LATENT:
		return a->heads * (a->nope_dim + a->rope_dim);
	case KV_LORA:
		return a->kv_lora;
	case KV_A:
		return a->kv_lora + a->rope_dim;
	case KV_B:
		return a->heads * (a->nope_dim + a->v_dim);
	case V_LATENT:
		return a->heads * a->v_dim;
	case KEY_HEADS:
		return a->kv_heads;
	case QUERY_GATE:
		return 2 * a->heads * a->head_dim;
	default:
		return size_of_linear(&a->linear, s);
	}
}

void arch_shape(const struct arch *a, const struct arch_weight *w, uint64_t ret[static 3])
{
	for (size_t i = 0; i < ARRAY_LEN(w->shape); i++)
		ret[i] = size_of(a, w->shape[i]);
}

/* Does the layer have linear attention? */
static bool is_linear(const struct arch *a, uint64_t layer)
{
	return a->full && layer < a->layers && !a->full[layer];
}

enum arch_need arch_needs(const struct arch *a, const struct arch_weight *w, uint64_t layer)
{
	bool has = true;

	if (!(w->kinds & a->kind))
		return ARCH_NONE;
	if (is_linear(a, layer) && !strncmp(w->name, "self_attn.", 10))
		return ARCH_NONE;
	switch ((enum when)w->when) {
	case UNTIED:
		return a->tied ? ARCH_MAY : ARCH_MUST;
	case BIAS:
		has = a->attention_bias;
		break;
	case MLP_BIAS:
		has = a->mlp_bias;
		break;
	case DENSE:
		has = !arch_has_experts(a, layer);
		break;
	case SPARSE:
		has = arch_has_experts(a, layer);
		break;
	case LORA:
		has = a->q_lora;
		break;
	case LORA_BIAS:
		has = a->q_lora && a->attention_bias;
		break;
	case QK_NORM:
		has = a->qk_norm;
		break;
	case NO_LORA:
		has = !a->q_lora;
		break;
	case RECURRENT:
		has = is_linear(a, layer);
		break;
	case ALWAYS:
		break;
	}
	return has ? ARCH_MUST : ARCH_NONE;
}

bool arch_rotates(const struct arch *a, const struct arch_weight *w)
{
	return (w->turn == ARCH_QUERIES || w->turn == ARCH_KEYS) &&
	       a->kind & (KIND_LLAMAS | KIND_MIXTRAL | KIND_GRANITE_MOE);
}

bool arch_adds_one(const struct arch *a, const struct arch_weight *w)
{
	return a->kind & (KIND_GEMMA | KIND_GEMMA2 | KIND_GEMMA3 | KIND_LINEAR) &&
	       bytes_end(w->name, strlen(w->name), "norm.weight") &&
	       strcmp(w->name, "linear_attn.norm.weight") != 0;
}

const struct arch_prefix *arch_prefix(const struct arch *a, size_t i)
{
	static const struct arch_prefix gpt2[] = { { "transformer.", "" }, { "", "" } },
					plain[] = { { "model.", "" }, { "", "" } },
					part[] = { { "model.language_model.", "" },
						   { "language_model.model.", "language_model." },
						   { "language_model.model.", "" },
						   { "language_model.", "" } };

	if (a->whole)
		return i < ARRAY_LEN(part) ? &part[i] : NULL;
	return i < ARRAY_LEN(plain) ? a->kind == KIND_GPT2 ? &gpt2[i] : &plain[i] : NULL;
}

typedef int64_t find_fn(const void *arg, const char *name, size_t len);

static bool has(find_fn *find, const void *arg, const char *prefix, const char *name)
{
	char both[ARCH_NAME_CAP];

	(void)stpcpy(stpcpy(both, prefix), name);
	return find(arg, both, strlen(both)) >= 0;
}

const struct arch_prefix *arch_find_prefix(const struct arch *a, find_fn *find, const void *arg)
{
	const char *embeddings = a->kind == KIND_GPT2 ? "wte.weight" : "embed_tokens.weight";
	const struct arch_prefix *p, *found = NULL;

	for (size_t i = 0; (p = arch_prefix(a, i)); i++) {
		if (!has(find, arg, p->most, embeddings) &&
		    !(a->whole && has(find, arg, p->most, "norm.weight")))
			continue;
		if (has(find, arg, p->head, "lm_head.weight"))
			return p;
		found = found ? found : p;
	}
	return found ? found : arch_prefix(a, 0);
}

const char *arch_layers(const struct arch *a)
{
	return a->kind == KIND_GPT2 ? "h." : "layers.";
}

void arch_name(const struct arch *a, const struct arch_weight *w, const struct arch_prefix *prefix,
	       uint64_t layer, uint64_t expert, char out[static ARCH_NAME_CAP])
{
	const char *brace = w->scope == ARCH_EXPERT ? strchr(w->name, '{') : NULL;
	char number[24] = "", in[24] = "";

	if (w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT)
		(void)snprintf(number, sizeof(number), "%s%llu.", arch_layers(a),
			       (unsigned long long)layer);
	if (brace)
		(void)snprintf(in, sizeof(in), "%llu", (unsigned long long)expert);
	(void)snprintf(out, ARCH_NAME_CAP, "%s%s%.*s%s%s",
		       w->scope == ARCH_TOP ? prefix->head : prefix->most, number,
		       (int)(brace ? brace - w->name : (long)strlen(w->name)), w->name, in,
		       brace ? brace + strlen("{}") : "");
}

static bool is_further(const struct arch *a, const char *name, size_t len)
{
	const char *s = name, *end = name + len;
	uint64_t layer = 0;

	if (!bytes_begin(name, len, "model.layers."))
		return false;
	for (s += strlen("model.layers."); s < end && *s >= '0' && *s <= '9' && layer < 1u << 31;)
		layer = layer * 10 + (uint64_t)(*s++ - '0');
	return s < end && *s == '.' && layer >= a->layers && layer - a->layers < a->further;
}

bool arch_is_other(const struct arch *a, const char *name, size_t len)
{
	static const char model[] = "model.";
	size_t skip = bytes_begin(name, len, model) ? strlen(model) : 0;
	bool other = false;

	for (size_t i = 0; a->whole && i < ARRAY_LEN(a->whole->others); i++)
		other |= a->whole->others[i] &&
			 bytes_begin(name + skip, len - skip, a->whole->others[i]);
	return other;
}

bool arch_ignores(const struct arch *a, const char *name, size_t len)
{
	static const char *const left[] = { "*.attention.masked_bias", "*.attention.bias",
					    "*.attn.masked_bias",      "*.attn.bias",
					    "*.rotary_emb.inv_freq",   NULL };
	uint64_t steps = UINT64_MAX; /* unlimited, because these globs are built in */

	if (a->kind & KIND_LINEAR && bytes_begin(name, len, "mtp."))
		return true;
	return is_further(a, name, len) || text_glob_any(left, name, len, &steps);
}

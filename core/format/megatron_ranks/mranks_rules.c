/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which dimension Megatron-LM splits between tensor-parallel ranks, by the names of the modules
 * that hold a tensor: ColumnParallelLinear and VocabParallelEmbedding dimension 0,
 * RowParallelLinear dimension 1, all others none (megatron/core/tensor_parallel/layers.py, and the
 * modules of megatron/model, megatron/legacy/model and megatron/core of v1.0 to core_v0.20).
 */
#include "base/checked.h"
#include "base/text.h"
#include "format/megatron_ranks/mranks.h"

#include <string.h>

/* The first that fits counts. */
static const struct {
	const char *glob;
	enum mr_rule rule;
} rules[] = {
	{ "*.experts.weight1", MR_GROUPED_1 },
	{ "*.experts.weight2", MR_GROUPED_2 },
	/* one of several experts, as Transformer Engine's GroupedLinear numbers them */
	{ "*.experts.linear_fc1.{weight,bias}[0-9]*", MR_GATED },
	{ "*.experts.linear_fc2.weight[0-9]*", MR_ROW },
	{ "*.experts.linear_fc2.bias[0-9]*", MR_COPY },
	{ "{word_embeddings,*.word_embeddings}.weight", MR_VOCAB },
	{ "{word_embeddings_for_head,*.word_embeddings_for_head}.weight", MR_VOCAB },
	{ "{output_layer,*.output_layer}.{weight,bias}", MR_VOCAB },
	{ "{lm_head,*.lm_head}.bias", MR_VOCAB },
	/* megatron.model and megatron.legacy.model */
	{ "*.query_key_value.{weight,bias}", MR_QKV },
	{ "*.key_value.{weight,bias}", MR_KV },
	{ "*.query.{weight,bias}", MR_COLUMN },
	{ "*attention.dense.weight", MR_ROW },
	{ "*attention.dense.bias", MR_COPY },
	{ "*.dense_h_to_4h.{weight,bias}", MR_GATED },
	{ "*.dense_4h_to_h.weight", MR_ROW },
	{ "*.dense_4h_to_h.bias", MR_COPY },
	/* the same with Transformer Engine's TransformerLayer */
	{ "*.{layernorm_qkv,layernorm_query,qkv}.{weight,bias}", MR_COLUMN },
	{ "*attention.proj.weight", MR_ROW },
	{ "*attention.proj.bias", MR_COPY },
	{ "*.fc1_{weight,bias}", MR_GATED },
	{ "*.fc2_weight", MR_ROW },
	{ "*.fc2_bias", MR_COPY },
	/* megatron.core */
	{ "*.{linear_qkv,linear_q,linear_kv}.{weight,bias}", MR_COLUMN },
	{ "*.{linear_q_proj,linear_q_up_proj,linear_kv_up_proj}.{weight,bias}", MR_COLUMN },
	{ "*.{linear_q_down_proj,linear_kv_down_proj}.weight", MR_EITHER },
	{ "*.linear_proj.weight", MR_ROW },
	{ "*.linear_proj.bias", MR_COPY },
	{ "*.linear_fc1.{weight,bias}", MR_GATED },
	{ "*.linear_fc2.weight", MR_ROW },
	{ "*.linear_fc2.bias", MR_COPY },
	{ "*.eh_proj.weight", MR_COLUMN },
	{ "*.router.*", MR_COPY },
	{ "*.shared_experts.gate_weight", MR_COPY },
	{ "{position,tokentype,*.position,*.tokentype}_embeddings.weight", MR_COPY },
	/* megatron.core.ssm */
	{ "*.mixer.{in_proj.weight,conv1d[._]{weight,bias}}", MR_MAMBA },
	{ "*.mixer.{A_log,D,dt_bias,norm.weight}", MR_COLUMN },
	{ "*.mixer.out_proj.weight", MR_ROW },
	{ "*.mixer.in_proj.layer_norm_{weight,bias}", MR_COPY },
	{ "*.mixer.*", MR_UNKNOWN },
	/* gated delta nets (Qwen3-Next), whose in_proj and conv1d have sections of other sizes */
	{ "*.self_attention.{A_log,dt_bias}", MR_COLUMN },
	{ "*.self_attention.out_proj.weight", MR_ROW },
	{ "*.self_attention.out_proj.bias", MR_COPY },
	{ "*{norm,ln_f}.{weight,bias}", MR_COPY },
	{ "*layer_norm_{weight,bias}", MR_COPY },
};

enum mr_rule mr_rule_of(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(rules); i++)
		if (text_glob(rules[i].glob, name, len))
			return rules[i].rule;
	return MR_UNKNOWN;
}

bool mr_is_expert(const char *name)
{
	return strstr(name, ".experts.") || strstr(name, ".local_experts.");
}

static bool number_at(const char *name, const char *at, char after, struct mr_number *ret)
{
	const char *end = at;

	if (!text_take_number(&end, 6, &ret->value) || *end != after)
		return false;
	ret->at = (uint32_t)(at - name);
	ret->len = (uint32_t)(end - at);
	return true;
}

/* The number after the word, at the beginning of the name or of a part of it. */
static bool number_after(const char *name, const char *word, struct mr_number *ret)
{
	for (const char *s = strstr(name, word); s; s = strstr(s + 1, word))
		if ((s == name || s[-1] == '.') && number_at(name, s + strlen(word), '.', ret))
			return true;
	return false;
}

bool mr_layer_in(const char *name, struct mr_number *ret)
{
	return number_after(name, "layers.", ret);
}

bool mr_expert_in(const char *name, struct mr_number *ret)
{
	const char *s = name + strlen(name);

	if (number_after(name, "local_experts.", ret))
		return true;
	if (!text_glob("*.experts.linear_fc[12].{weight,bias}[0-9]*", name, strlen(name)))
		return false;
	while (s > name && s[-1] >= '0' && s[-1] <= '9')
		s--;
	return number_at(name, s, 0, ret);
}

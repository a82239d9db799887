/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the dimensions of a model from its config.json; arch_weights.c lists the weights. */
#include "tensor/arch.h"

#include "base/checked.h"
#include "base/err.h"
#include "tensor/config_values.h"

#include <stdlib.h>
#include <string.h>

static const struct arch_family families[] = {
	{ "LlamaForCausalLM", "llama", "llama", KIND_LLAMA, 1e4, false },
	{ "MistralForCausalLM", "mistral", "llama", KIND_LLAMA, 1e4, false },
	{ "Ministral3ForCausalLM", "ministral3", "mistral3", KIND_LLAMA, 1e4, false },
	{ "MixtralForCausalLM", "mixtral", "llama", KIND_MIXTRAL, 1e6, false },
	{ "Qwen2ForCausalLM", "qwen2", "qwen2", KIND_QWEN2, 1e4, false },
	{ "Qwen3ForCausalLM", "qwen3", "qwen3", KIND_QWEN3, 1e4, false },
	{ "Qwen2MoeForCausalLM", "qwen2_moe", "qwen2moe", KIND_QWEN2_MOE, 1e4, false },
	{ "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", KIND_QWEN3_MOE, 1e4, false },
	{ "GPT2LMHeadModel", "gpt2", "gpt2", KIND_GPT2, 0, true },
	{ "GraniteForCausalLM", "granite", "granite", KIND_GRANITE, 1e4, false },
	{ "GraniteMoeForCausalLM", "granitemoe", "granitemoe", KIND_GRANITE_MOE, 1e4, false },
	{ "CohereForCausalLM", "cohere", "command-r", KIND_COHERE, 5e5, true },
	{ "SmolLM3ForCausalLM", "smollm3", "smollm3", KIND_SMOLLM3, 2e6, true },
	{ "GemmaForCausalLM", "gemma", "gemma", KIND_GEMMA, 1e4, true },
	{ "Gemma2ForCausalLM", "gemma2", "gemma2", KIND_GEMMA2, 1e4, true },
	{ "Gemma3ForCausalLM", "gemma3_text", "gemma3", KIND_GEMMA3, 1e4, true },
	{ "Phi3ForCausalLM", "phi3", "phi3", KIND_PHI3, 1e4, false },
	{ "Olmo2ForCausalLM", "olmo2", "olmo2", KIND_OLMO2, 1e4, false },
	{ "Olmo3ForCausalLM", "olmo3", "olmo2", KIND_OLMO2, 1e4, false },
	{ "DeepseekV2ForCausalLM", "deepseek_v2", "deepseek2", KIND_DEEPSEEK_V2, 1e4, false },
	{ "DeepseekV3ForCausalLM", "deepseek_v3", "deepseek2", KIND_DEEPSEEK_V3, 1e4, false },
	{ "GptOssForCausalLM", "gpt_oss", "gpt-oss", KIND_GPT_OSS, 1.5e5, false },
	{ "Glm4ForCausalLM", "glm4", "glm4", KIND_GLM4, 1e4, false },
	{ "Glm4MoeForCausalLM", "glm4_moe", "glm4moe", KIND_GLM4_MOE, 1e4, false },
	{ "Qwen3NextForCausalLM", "qwen3_next", "qwen3next", KIND_QWEN3_NEXT, 1e4, false },
	{ "Qwen3_5ForCausalLM", "qwen3_5_text", "qwen35", KIND_QWEN35, 1e4, false },
	{ "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen35moe", KIND_QWEN35_MOE, 1e4, false },
};

#define LLAVA \
	{ \
		"vision_tower.", "multi_modal_projector." \
	}

static const struct arch_whole wholes[] = {
	{ "Gemma3ForConditionalGeneration", "gemma3", "gemma3_text", "gemma3_text", NULL, true,
	  LLAVA },
	{ "Mistral3ForConditionalGeneration", "mistral3", "mistral", "mistral", "mistral3", true,
	  LLAVA },
	{ "Mistral3ForConditionalGeneration", "mistral3", "ministral3", "ministral3", NULL, true,
	  LLAVA },
	{ "Qwen3VLForConditionalGeneration",
	  "qwen3_vl",
	  "qwen3_vl_text",
	  "qwen3",
	  "qwen3vl",
	  false,
	  { "visual." } },
	{ "Qwen3_5ForConditionalGeneration",
	  "qwen3_5",
	  "qwen3_5_text",
	  "qwen3_5_text",
	  NULL,
	  false,
	  { "visual." } },
	{ "Qwen3_5MoeForConditionalGeneration",
	  "qwen3_5_moe",
	  "qwen3_5_moe_text",
	  "qwen3_5_moe_text",
	  NULL,
	  false,
	  { "visual." } },
};

static const char *class_of(const struct config_in *r)
{
	return jval_str(jval_at(config_get(r, "architectures"), 0));
}

/* Is it the one that config.json names? If there is a class, the type does not count. */
static bool is_named(const char *class, const char *type, const char *its_class,
		     const char *its_type)
{
	return class ? !strcmp(class, its_class) : type && !strcmp(type, its_type);
}

static const struct arch_family *family_of(struct config_in *r)
{
	const char *class = class_of(r), *type = config_text(r, "model_type", NULL);

	for (size_t i = 0; i < ARRAY_LEN(families); i++)
		if (is_named(class, type, families[i].class, families[i].type))
			return &families[i];
	if (!r->rc && !class && !type)
		r->rc = err_set(r->e, EINVAL,
				"config.json has no 'architectures' and no 'model_type'");
	if (!r->rc)
		r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: %s '%.80s' is not supported",
				class ? "architecture" : "model_type", class ? class : type);
	return NULL;
}

/* Of those with that name, the one with this type of text model, or else the first. */
static const struct arch_whole *whole_of(struct config_in *r)
{
	const char *class = class_of(r), *type = config_text(r, "model_type", NULL);
	struct jval text = jval_get(config_get(r, "text_config"), "model_type");
	const struct arch_whole *found = NULL;

	for (size_t i = 0; i < ARRAY_LEN(wholes); i++) {
		if (!is_named(class, type, wholes[i].class, wholes[i].type))
			continue;
		if (jval_is_str(text, wholes[i].text))
			return &wholes[i];
		found = found ? found : &wholes[i];
	}
	return found;
}

/* Moves *r on to text_config, the text model of a->whole. */
static void enter_text(struct arch *a, struct config_in *r)
{
	struct jval text = config_object(r, "text_config");
	const struct arch_family *f = families;
	const char *type, *class;

	if (!text.d) {
		config_must_have(r, "text_config");
		return;
	}
	r->from = text;
	r->below = "text_config.";
	type = config_text(r, "model_type", a->whole->text);
	class = class_of(r);
	if (class && !strcmp(class, a->whole->class))
		class = NULL;
	while (strcmp(f->type, a->whole->family) != 0)
		f++;
	if (config_get(r, "text_config").d)
		config_wrong(r, "text_config", "is in another text_config");
	/* Some name the class of the text model on its own; the converter then makes that. */
	if (!r->rc && (strcmp(type, a->whole->text) != 0 ||
		       (class && (strcmp(class, f->class) != 0 || strcmp(f->type, type) != 0))))
		r->rc = err_set(
			r->e, ERR_UNSUPPORTED,
			"config.json: a %s whose text_config is of '%.80s' is not supported",
			a->whole->class, strcmp(type, a->whole->text) ? type : class);
	a->family = f;
	a->gguf = a->whole->gguf && !class ? a->whole->gguf : f->gguf;
}

const char *arch_class(const struct arch *a)
{
	return a->whole ? a->whole->class : a->family->class;
}

/* ---- layers ---- */

static int keep_dense(struct arch *a, struct config_in *r, struct jval only, uint64_t step)
{
	struct jiter i = jiter(only);
	int64_t n;

	a->dense = calloc(a->layers, 1);
	if (!a->dense)
		return err_nomem(r->e);
	for (uint64_t k = 0; k < a->layers; k++)
		a->dense[k] = (k + 1) % step != 0;
	while (jiter_next(&i))
		if (jval_int(i.v, &n) && n >= 0 && (uint64_t)n < a->layers)
			a->dense[n] = true;
	return 0;
}

/* Determines which layers have experts. */
static void read_sparse(struct arch *a, struct config_in *r)
{
	uint64_t step = config_count_or(r, "decoder_sparse_step", 1);
	struct jval only = config_get(r, "mlp_only_layers");

	if (a->kind & KIND_ROUTED)
		a->first_experts = config_whole(r, "first_k_dense_replace");
	else if (!r->rc && a->kind & (KIND_QWEN2_MOE | KIND_QWEN3_MOE | KIND_QWEN3_NEXT) &&
		 (step != 1 || jval_size(only)))
		r->rc = keep_dense(a, r, only, step);
}

/* Determines which layers attend to all positions. */
static void read_full(struct arch *a, struct config_in *r)
{
	uint64_t step = config_count_or(r, "full_attention_interval", 4);
	struct jval types = config_get(r, "layer_types");
	struct jiter i = jiter(types);

	if (r->rc)
		return;
	config_must(r, !types.d || jval_size(types) == a->layers,
		    "'layer_types' for another number of layers");
	a->full = calloc(a->layers, 1);
	if (!a->full) {
		r->rc = err_nomem(r->e);
		return;
	}
	for (uint64_t k = 0; !r->rc && k < a->layers; k++) {
		a->full[k] = (k + 1) % step == 0;
		if (!types.d)
			continue;
		(void)jiter_next(&i);
		a->full[k] = jval_is_str(i.v, "full_attention");
		config_must(r, a->full[k] || jval_is_str(i.v, "linear_attention"),
			    "a layer that is neither full_attention nor linear_attention");
	}
}

bool arch_has_experts(const struct arch *a, uint64_t layer)
{
	if (!a->experts)
		return false;
	return a->dense ? layer < a->layers && !a->dense[layer] : layer >= a->first_experts;
}

/* ---- numbers ---- */

static void read_gpt2(struct arch *a, struct config_in *r)
{
	a->layers = config_count(r, "n_layer");
	a->positions = config_count_or(r, "n_positions", 0);
	if (!a->positions)
		a->positions = config_count(r, "n_ctx");
	a->hidden = config_count(r, "n_embd");
	a->heads = a->kv_heads = config_count(r, "n_head");
	a->ffn = config_count_or(r, "n_inner", 4 * a->hidden);
}

static void read_experts(struct arch *a, struct config_in *r)
{
	const char *key = a->kind & KIND_ROUTED ? "n_routed_experts" : "num_local_experts";

	if (a->kind & (KIND_GATED_SHARED | KIND_QWEN3_MOE) && !config_get(r, key).d)
		key = "num_experts";
	a->experts = config_count(r, key);
	a->expert_ffn =
		a->kind & KIND_WIDE_EXPERTS ? a->ffn : config_count(r, "moe_intermediate_size");
	if (a->kind & KIND_GATED_SHARED)
		a->shared_ffn = config_count(r, "shared_expert_intermediate_size");
	if (a->kind & KIND_ROUTED)
		a->shared_ffn = config_count(r, "n_shared_experts") * a->expert_ffn;
}

/* transformers does not write how many; it recognises published models by their layers. */
static void read_further(struct arch *a, struct config_in *r)
{
	uint64_t published =
		a->kind == KIND_DEEPSEEK_V3 ? a->layers == 61 : a->layers == 46 || a->layers == 92;

	a->further = config_get(r, "num_nextn_predict_layers").d
			     ? config_whole(r, "num_nextn_predict_layers")
			     : published;
}

/* Low-rank queries and values, as in DeepSeek. */
static void read_latent(struct arch *a, struct config_in *r)
{
	/* null: the model has none; absent: the class has a default. */
	if (!jval_is(jval_get(r->from, "q_lora_rank"), J_NULL))
		a->q_lora = config_count(r, "q_lora_rank");
	a->kv_lora = config_count(r, "kv_lora_rank");
	a->nope_dim = config_count(r, "qk_nope_head_dim");
	a->rope_dim = config_count(r, "qk_rope_head_dim");
	a->v_dim = config_count(r, "v_head_dim");
}

static void read_linear(struct arch *a, struct config_in *r)
{
	struct arch_linear *l = &a->linear;

	l->k_heads = config_count(r, "linear_num_key_heads");
	l->v_heads = config_count(r, "linear_num_value_heads");
	l->k_dim = config_count(r, "linear_key_head_dim");
	l->v_dim = config_count(r, "linear_value_head_dim");
	l->kernel = config_count(r, "linear_conv_kernel_dim");
	config_must(r, l->v_heads % l->k_heads == 0,
		    "a 'linear_num_value_heads' that is not a multiple of 'linear_num_key_heads'");
}

/* Published files of Gemma 3 leave out what its class has as a default, which has never changed. */
static uint64_t count_of_class(const struct arch *a, struct config_in *r, const char *key,
			       uint64_t gemma3)
{
	return a->kind == KIND_GEMMA3 ? config_count_or(r, key, gemma3) : config_count(r, key);
}

static void read_decoder(struct arch *a, struct config_in *r)
{
	a->layers = config_count(r, "num_hidden_layers");
	a->positions = count_of_class(a, r, "max_position_embeddings", 131072);
	if (a->kind == KIND_COHERE) /* published with less than it was trained on */
		a->positions = config_count_or(r, "model_max_length", a->positions);
	a->hidden = config_count(r, "hidden_size");
	a->heads = count_of_class(a, r, "num_attention_heads", 8);
	a->kv_heads =
		a->kind & (KIND_LLAMAS | KIND_PHI3 | KIND_OLMO2 | KIND_GRANITE_MOE | KIND_COHERE)
			? config_count_or(r, "num_key_value_heads", a->heads)
			: count_of_class(a, r, "num_key_value_heads", 4);
	if (a->kind != KIND_QWEN35_MOE || config_get(r, "intermediate_size").d)
		a->ffn = config_count(r, "intermediate_size");
	a->attention_bias = config_flag(r, "attention_bias", a->kind & (KIND_GPT_OSS | KIND_GLM4));
	if (a->kind & (KIND_QWEN2 | KIND_QWEN2_MOE))
		a->attention_bias = config_flag(r, "qkv_bias", true);
	a->mlp_bias = config_flag(r, "mlp_bias", false);
	if (a->kind & KIND_EXPERTS)
		read_experts(a, r);
	if (a->kind & KIND_LATENT)
		read_latent(a, r);
	if (a->kind & KIND_LINEAR)
		read_linear(a, r);
	if (a->kind & (KIND_DEEPSEEK_V3 | KIND_GLM4_MOE))
		read_further(a, r);
	a->qk_norm = config_flag(r, "use_qk_norm", false);
}

/* a->heads and a->hidden are set; everything else about heads follows from them. */
static void read_heads(struct arch *a, struct config_in *r)
{
	unsigned must = KIND_QWEN3 | KIND_QWEN3_MOE | KIND_GEMMA | KIND_GEMMA2 | KIND_GEMMA3 |
			KIND_GPT_OSS | KIND_GLM4 | KIND_LINEAR;

	if (a->kind & must) {
		a->head_dim = count_of_class(a, r, "head_dim", 256);
	} else {
		config_must(r,
			    config_get(r, "head_dim").d || a->kind & KIND_LATENT ||
				    a->hidden % a->heads == 0,
			    "'hidden_size' is not a multiple of the number of heads");
		a->head_dim = config_count_or(r, "head_dim", max_u64(a->hidden / a->heads, 1));
	}
	config_must(r, a->heads % a->kv_heads == 0,
		    "the number of heads is not a multiple of 'num_key_value_heads'");
}

static int find_model(struct arch *a, struct config_in *r)
{
	a->whole = whole_of(r);
	if (a->whole) {
		a->tied = config_flag(r, "tie_word_embeddings", a->whole->tied);
		enter_text(a, r);
		return r->rc;
	}
	a->family = family_of(r);
	if (!a->family)
		return r->rc;
	a->gguf = a->family->gguf;
	a->tied = config_flag(r, "tie_word_embeddings", a->family->tied);
	return r->rc;
}

int arch_read(struct config_in *r, struct arch *ret)
{
	int rc;

	*ret = (struct arch){ 0 };
	rc = find_model(ret, r);
	if (rc)
		return rc;
	ret->kind = ret->family->kind;
	ret->vocab = count_of_class(ret, r, "vocab_size", 262208);
	if (ret->kind == KIND_GPT2)
		read_gpt2(ret, r);
	else
		read_decoder(ret, r);
	read_heads(ret, r);
	if (ret->layers > ARCH_MAX_LAYERS)
		config_unsupported(r, "more than 65536 layers");
	if (ret->kind & KIND_EXPERTS)
		read_sparse(ret, r);
	if (ret->kind & KIND_LINEAR)
		read_full(ret, r);
	return r->rc;
}

void arch_release(struct arch *a)
{
	free(a->dense);
	free(a->full);
	a->dense = a->full = NULL;
}

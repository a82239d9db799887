/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/model/gguf_model.h"

#include "base/checked.h"
#include "base/err.h"
#include "ckpt/model/gguf_model_internal.h"
#include "ckpt/model/gguf_recipe.h"
#include "index/catalog_query.h"

#include <errno.h>
#include <string.h>

#define MAX_TEXT ((size_t)1 << 20) /* of the recipe, and of config.json */

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
static bool is_model(const struct gguf_reading *r, size_t i, bool experts)
{
	uint64_t score = 0;

	if (strcmp(models[i].gguf, r->arch) != 0 || models[i].experts != experts)
		return false;
	if (models[i].kind == KIND_OLMO2)
		return !gguf_key_of(r, ".attention.sliding_window") ==
		       !strcmp(models[i].type, "olmo2");
	(void)gguf_count_of(r, ".expert_gating_func", &score);
	return models[i].kind & KIND_ROUTED ? score == (models[i].kind == KIND_DEEPSEEK_V2 ? 1 : 2)
					    : true;
}

/* Says why none of the models is this one. */
static void no_model(struct gguf_reading *r, bool experts)
{
	bool with_these = false, with_others = false;

	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		if (strcmp(models[i].gguf, r->arch) != 0)
			continue;
		with_these |= models[i].experts == experts;
		with_others |= models[i].experts != experts;
	}
	if (with_these)
		gguf_no_config(
			r,
			"the key '%s.expert_gating_func' does not have a value that is known for "
			"this architecture",
			r->arch);
	else if (with_others)
		gguf_no_config(
			r,
			experts ? "the key '%s.expert_count' is not 0, but this architecture is "
				  "supported only without experts"
				: "the key '%s.expert_count' is 0, no number, or missing, but "
				  "this architecture is supported only with experts",
			r->arch);
	else
		gguf_no_config(r, "llama.cpp's architecture '%s' is not supported", r->arch);
}

static void put_config(struct gguf_reading *r, const char *dtype)
{
	const struct catalog_tensor *embeddings = gguf_tensor_of(r, "token_embd.weight");
	uint64_t experts = 0;
	size_t i = 0;

	if (!gguf_text_of(r, "general.architecture", r->arch)) {
		gguf_no_config(r, "the GGUF has no key 'general.architecture'");
		r->failed = true;
		return;
	}
	(void)gguf_count_of(r, ".expert_count", &experts);
	while (i < ARRAY_LEN(models) && !is_model(r, i, experts > 0))
		i++;
	if (i == ARRAY_LEN(models))
		no_model(r, experts > 0);
	else if (!embeddings || embeddings->n_dims != 2)
		gguf_no_config(r, "the GGUF of architecture '%s' has no token_embd.weight",
			       r->arch);
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
		gguf_put_gpt2(r);
	else
		gguf_put_decoder(r, models[i].kind);
	if (!strcmp(models[i].type, "mistral")) /* without one, it would be 4096 */
		json_raw(&r->j, "sliding_window", "null");
	json_bool(&r->j, "tie_word_embeddings", !gguf_tensor_of(r, "output.weight"));
	(void)gguf_copy(r, "bos_token_id", "tokenizer.ggml.bos_token_id");
	(void)gguf_copy(r, "eos_token_id", "tokenizer.ggml.eos_token_id");
	(void)gguf_copy(r, "pad_token_id", "tokenizer.ggml.padding_token_id");
	json_str(&r->j, "torch_dtype", dtype);
	json_close(&r->j);
	gguf_check_keys(r, models[i].kind);
}

static int make_recipe(struct gguf_reading *r, struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };
	int rc = gguf_recipe_make(&r->ret->config, r->further, &r->ret->recipe, &why);

	if (rc == -ENOMEM)
		return err_nomem(e);
	if (rc) {
		gguf_no_config(r, "%s", why.msg);
		r->failed = true;
	}
	return 0;
}

int gguf_model_read(const struct catalog *c, const char *dtype, const struct peek *peek,
		    struct gguf_model *ret, struct ckpt_err *e)
{
	bool no_memory = false;
	struct gguf_reading r = { .c = c, .ret = ret, .peek = peek, .no_memory = &no_memory };
	int rc = 0;

	*ret = (struct gguf_model){ .config = BUF_INIT(MAX_TEXT), .recipe = BUF_INIT(MAX_TEXT) };
	r.o = catalog_objects(c, &r.n_objects);
	r.t = catalog_tensors(c, NULL);
	r.j.to = &ret->config;
	if (!dtype) {
		gguf_no_config(
			&r, "the weights are quantised blocks; dequantize=bf16, fp16 or fp32 gives "
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

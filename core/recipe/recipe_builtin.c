/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_builtin - the built-in recipes: core/recipe/recipes/NAME.recipe, included by the
 * assembler. The Makefile records that this file depends on them.
 */
#include "recipe/recipe.h"

#include <string.h>

#define INCLUDE(symbol, name) \
	__asm__(".pushsection .rodata\n" \
		"recipe_" #symbol ": .incbin \"core/recipe/recipes/" name ".recipe\"\n" \
		"recipe_" #symbol "_end: .byte 0\n" \
		".popsection\n"); \
	extern const char recipe_##symbol[], recipe_##symbol##_end[]

INCLUDE(llama, "megatron-llama");
INCLUDE(mixtral, "megatron-mixtral");
INCLUDE(qwen_moe, "megatron-qwen-moe");
INCLUDE(gemma, "megatron-gemma");
INCLUDE(phi3, "megatron-phi3");
INCLUDE(glm4, "megatron-glm4");
INCLUDE(glm4_moe, "megatron-glm4-moe");
INCLUDE(deepseek, "megatron-deepseek-v3");
INCLUDE(gpt_oss, "megatron-gpt-oss");
INCLUDE(gpt2, "megatron-gpt2");
INCLUDE(gpt_bigcode, "megatron-gpt-bigcode");
INCLUDE(gpt_neox, "megatron-gpt-neox");
INCLUDE(titan_llama, "torchtitan-llama");
INCLUDE(titan_qwen, "torchtitan-qwen");
INCLUDE(titan_deepseek, "torchtitan-deepseek-v3");
INCLUDE(titan_gpt_oss, "torchtitan-gpt-oss");
INCLUDE(olmo2, "olmo-olmo2");
INCLUDE(olmo_llama, "olmo-llama");
INCLUDE(max_llama, "maxtext-llama");
INCLUDE(max_mixtral, "maxtext-mixtral");
INCLUDE(max_qwen, "maxtext-qwen");
INCLUDE(max_gemma, "maxtext-gemma");
INCLUDE(max_gemma2, "maxtext-gemma2");
INCLUDE(max_gemma3, "maxtext-gemma3");

/* ...: the model_types. */
#define RECIPE(symbol, name, summary, ...) \
	{ \
		name, summary, recipe_##symbol, recipe_##symbol##_end, (const char *const[]) \
		{ \
			__VA_ARGS__, NULL \
		} \
	}
#define CHOICE(name, from) \
	{ \
		name, "the recipe from " from " that config.json's model_type requires", "", "", \
			(const char *const[]) \
		{ \
			NULL \
		} \
	}

static const struct recipe_builtin builtins[] = {
	CHOICE("megatron", "Megatron-core"),
	RECIPE(llama, "megatron-llama", "Megatron-core to Llama, Mistral, Qwen2, Qwen3", "llama",
	       "mistral", "qwen2", "qwen3"),
	RECIPE(mixtral, "megatron-mixtral", "Megatron-core to Mixtral", "mixtral"),
	RECIPE(qwen_moe, "megatron-qwen-moe", "Megatron-core to Qwen2-MoE, Qwen3-MoE", "qwen2_moe",
	       "qwen3_moe"),
	RECIPE(gemma, "megatron-gemma", "Megatron-core to Gemma, Gemma 2, Gemma 3 (text)", "gemma",
	       "gemma2", "gemma3_text"),
	RECIPE(phi3, "megatron-phi3", "Megatron-core to Phi-3", "phi3"),
	RECIPE(glm4, "megatron-glm4", "Megatron-core to GLM-4", "glm4"),
	RECIPE(glm4_moe, "megatron-glm4-moe", "Megatron-core to GLM-4.5", "glm4_moe"),
	RECIPE(deepseek, "megatron-deepseek-v3", "Megatron-core to DeepSeek-V3", "deepseek_v3"),
	RECIPE(gpt_oss, "megatron-gpt-oss", "Megatron-core to gpt-oss", "gpt_oss"),
	RECIPE(gpt2, "megatron-gpt2", "Megatron-core to GPT-2", "gpt2"),
	RECIPE(gpt_bigcode, "megatron-gpt-bigcode", "Megatron-core to GPTBigCode", "gpt_bigcode"),
	RECIPE(gpt_neox, "megatron-gpt-neox", "Megatron-core to GPT-NeoX", "gpt_neox"),
	CHOICE("torchtitan", "torchtitan"),
	RECIPE(titan_llama, "torchtitan-llama", "torchtitan to Llama", "llama"),
	RECIPE(titan_qwen, "torchtitan-qwen", "torchtitan to Qwen3, Qwen3-MoE", "qwen3",
	       "qwen3_moe"),
	RECIPE(titan_deepseek, "torchtitan-deepseek-v3", "torchtitan to DeepSeek-V3",
	       "deepseek_v3"),
	RECIPE(titan_gpt_oss, "torchtitan-gpt-oss", "torchtitan to gpt-oss", "gpt_oss"),
	CHOICE("olmo", "OLMo-core"),
	RECIPE(olmo2, "olmo-olmo2", "OLMo-core to OLMo 2, OLMo 3", "olmo2", "olmo3"),
	RECIPE(olmo_llama, "olmo-llama", "OLMo-core to Llama, Qwen3", "llama", "qwen3"),
	CHOICE("maxtext", "MaxText"),
	RECIPE(max_llama, "maxtext-llama", "MaxText to Llama, Mistral", "llama", "mistral"),
	RECIPE(max_mixtral, "maxtext-mixtral", "MaxText to Mixtral", "mixtral"),
	RECIPE(max_qwen, "maxtext-qwen", "MaxText to Qwen2, Qwen3, Qwen3-MoE", "qwen2", "qwen3",
	       "qwen3_moe"),
	RECIPE(max_gemma, "maxtext-gemma", "MaxText to Gemma", "gemma"),
	RECIPE(max_gemma2, "maxtext-gemma2", "MaxText to Gemma 2", "gemma2"),
	RECIPE(max_gemma3, "maxtext-gemma3", "MaxText to Gemma 3 (text)", "gemma3_text"),
};

const struct recipe_builtin *recipe_builtin(size_t i)
{
	return i < sizeof(builtins) / sizeof(builtins[0]) ? &builtins[i] : NULL;
}

const struct recipe_builtin *recipe_builtin_named(const char *name)
{
	const struct recipe_builtin *b;

	for (size_t i = 0; (b = recipe_builtin(i)); i++)
		if (!strcmp(b->name, name))
			return b;
	return NULL;
}

const struct recipe_builtin *recipe_builtin_for(const char *choice, const char *model_type)
{
	size_t n = strlen(choice);
	const struct recipe_builtin *b;

	for (size_t i = 0; (b = recipe_builtin(i)); i++)
		for (const char *const *m = b->models; *m; m++)
			if (!strcmp(*m, model_type) && !strncmp(b->name, choice, n) &&
			    b->name[n] == '-')
				return b;
	return NULL;
}

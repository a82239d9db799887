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
INCLUDE(torchtitan, "torchtitan");

static const char *const llama[] = { "llama", NULL };
static const char *const dense[] = { "llama", "mistral", "qwen2", "qwen3", NULL };
static const char *const mixtral[] = { "mixtral", NULL };
static const char *const qwen_moe[] = { "qwen2_moe", "qwen3_moe", NULL };

static const struct recipe_builtin builtins[] = {
	{ "megatron-llama", "Megatron-core to Llama, Mistral, Qwen2, Qwen3", recipe_llama,
	  recipe_llama_end, dense },
	{ "megatron-mixtral", "Megatron-core to Mixtral", recipe_mixtral, recipe_mixtral_end,
	  mixtral },
	{ "megatron-qwen-moe", "Megatron-core to Qwen2-MoE, Qwen3-MoE", recipe_qwen_moe,
	  recipe_qwen_moe_end, qwen_moe },
	{ "torchtitan", "torchtitan to Llama", recipe_torchtitan, recipe_torchtitan_end, llama },
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

const struct recipe_builtin *recipe_builtin_for(const char *model_type)
{
	const struct recipe_builtin *b;

	for (size_t i = 0; (b = recipe_builtin(i)); i++)
		for (const char *const *m = b->models; *m; m++)
			if (!strcmp(*m, model_type) && !strncmp(b->name, "megatron-", 9))
				return b;
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_recipe - the option recipe=: which recipe it is, and what the recipe is told.
 *
 * The numbers come from the config.json among the assets, and from the arguments that Megatron-core
 * keeps in a checkpoint. Private to core/ckpt.
 *
 * Threads: one.
 */
#ifndef CKPT_MODEL_RECIPE_H
#define CKPT_MODEL_RECIPE_H

#include "base/digest.h"
#include "base/json.h"
#include "recipe/recipe.h"

#include <stdbool.h>

struct engine;
struct ckpt_err;
struct megatron_args;

struct model_recipe {
	struct recipe *recipe;
	struct digest digest; /* of its text, where it is a file */
	struct recipe_facts facts;
	struct jdoc config;
	struct megatron_args *args;
};

/*
 * name: of a recipe that comes with the program; "megatron", for the one of these that fits the
 * model; or a file. The checkpoint's assets and fetch are there, and outlive *ret, which stays
 * where it is and is to be released in any case.
 */
int model_recipe_open(struct engine *eng, const char *name, struct model_recipe *ret,
		      struct ckpt_err *e);
/* What recipes are told, without one: ret->facts. */
int model_recipe_facts(struct engine *eng, struct model_recipe *ret, struct ckpt_err *e);
void model_recipe_release(struct model_recipe *r);
/* Is the name that of a file? */
bool model_recipe_is_file(const char *name);

#endif

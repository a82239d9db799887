/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_recipe - the option recipe=: selects the recipe and collects the facts it needs.
 *
 * The numbers come from the config.json among the assets, and from the arguments that Megatron-core
 * stores in a checkpoint. Private to core/ckpt.
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
	struct digest digest; /* digest of the recipe's text, if it is a file */
	struct recipe_facts facts;
	struct jdoc config;
	struct megatron_args *args;
};

/*
 * name: a built-in recipe; "megatron" or another choice of the built-in recipe that fits the model;
 * or a file. The checkpoint's assets and fetch must exist and outlive *ret. *ret must not be moved,
 * and is released by the caller also after a failure.
 */
int model_recipe_open(struct engine *eng, const char *name, struct model_recipe *ret,
		      struct ckpt_err *e);
/* Collects only ret->facts, the facts that recipes are given. */
int model_recipe_facts(struct engine *eng, struct model_recipe *ret, struct ckpt_err *e);
void model_recipe_release(struct model_recipe *r);
/* Does the name refer to a file? */
bool model_recipe_is_file(const char *name);
/* Reports that the name is neither that of a file nor a built-in one. Returns -ENOENT. */
int model_recipe_none(const char *name, struct ckpt_err *e);

#endif

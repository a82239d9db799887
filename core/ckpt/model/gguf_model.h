/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_model - the model that a GGUF holds, in Hugging Face's terms: a config.json, made from its
 * keys, and a recipe (gguf_recipe.h).
 *
 * The config.json is made only if all keys of the architecture are known to mean something in it.
 *
 * Private to core/ckpt.
 *
 * Threads: the one that opens; the result is immutable.
 */
#ifndef CKPT_GGUF_MODEL_H
#define CKPT_GGUF_MODEL_H

#include "base/buf.h"

struct catalog;
struct ckpt_err;
struct peek;

enum { GGUF_MODEL_WHY = 300 };

struct gguf_model {
	struct buf config, recipe; /* texts; empty: there is none */
	char why[GGUF_MODEL_WHY];  /* why there is no config.json; "": there is one */
};

/* dtype: "bfloat16" and so on, of the weights that are shown; NULL if they are blocks.
 * peek: for the few tensors that are settings, factors of rotary embeddings. Fails only for lack of
 * memory. The caller releases *ret, also after a failure. */
int gguf_model_read(const struct catalog *c, const char *dtype, const struct peek *peek,
		    struct gguf_model *ret, struct ckpt_err *e);
void gguf_model_release(struct gguf_model *m);

#endif

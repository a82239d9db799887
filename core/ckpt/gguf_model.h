/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_model - the model that a GGUF holds, in Hugging Face's terms: a config.json, and a recipe
 * that gives its tensors their names there and undoes what llama.cpp's converter did to them.
 *
 * The recipe is made from the table of weights by which gguf/ is written (tensor/arch.h), so what
 * one direction does the other undoes. The config.json is made only if all keys of the architecture
 * are known to mean something in it.
 *
 * Private to core/ckpt.
 *
 * Threads: pure.
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

/* dtype: "bfloat16" and so on, of the weights that are shown; NULL if they are blocks. Fails only
 * for lack of memory. The caller releases *ret, also after a failure. */
int gguf_model_read(const struct catalog *c, const char *dtype, const struct peek *peek,
		    struct gguf_model *ret, struct ckpt_err *e);
void gguf_model_release(struct gguf_model *m);

#endif

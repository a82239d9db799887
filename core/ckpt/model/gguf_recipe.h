/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_recipe - a recipe that gives the tensors of a GGUF the names of Hugging Face and undoes what
 * llama.cpp's converter did to them.
 *
 * It is made from the table of weights by which gguf/ is written (tensor/arch.h), so what one
 * direction does the other undoes.
 *
 * Private to core/ckpt.
 *
 * Threads: pure.
 */
#ifndef CKPT_GGUF_RECIPE_H
#define CKPT_GGUF_RECIPE_H

#include <stdint.h>

struct buf;
struct ckpt_err;

/*
 * Appends the recipe to *ret, whose own error is for the caller to look at. The sizes are those in
 * config, a config.json; `further`: how many layers after the others are left out. -ENOMEM, or
 * another error if the model cannot be described.
 */
int gguf_recipe_make(const struct buf *config, uint64_t further, struct buf *ret,
		     struct ckpt_err *e);

#endif

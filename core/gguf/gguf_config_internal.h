/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_config_internal - families of models whose configuration has a file of its own.
 *
 * *_check sets what the family needs and refuses what llama.cpp does not compute as transformers
 * does; *_put writes the keys that are not those of all models.
 *
 * Private to core/gguf. Threads: pure.
 */
#ifndef GGUF_GGUF_CONFIG_INTERNAL_H
#define GGUF_GGUF_CONFIG_INTERNAL_H

struct config_in;
struct gguf_config;
struct gguf_keys;

/* Gemma 2, and Gemma 3 without images. */
void gguf_gemma_check(struct gguf_config *c, struct config_in *r);
void gguf_gemma_put(const struct gguf_config *c, struct gguf_keys *k);

#endif

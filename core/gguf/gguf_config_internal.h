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

#include "tensor/config_values.h"

struct gguf_config;
struct gguf_keys;

/* Gemma 2, and Gemma 3 without images. */
void gguf_gemma_check(struct gguf_config *c, struct config_in *r);
void gguf_gemma_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_gemma1_check(struct gguf_config *c, struct config_in *r);
void gguf_gemma1_put(const struct gguf_config *c, struct gguf_keys *k);
/* Models that are almost Llama. */
void gguf_granite_check(struct gguf_config *c, struct config_in *r);
void gguf_granite_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_granite_moe_check(struct gguf_config *c, struct config_in *r);
void gguf_granite_moe_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_cohere_check(struct gguf_config *c, struct config_in *r);
void gguf_cohere_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_smollm3_check(struct gguf_config *c, struct config_in *r);
void gguf_smollm3_put(const struct gguf_config *c, struct gguf_keys *k);
/* OLMo 2 and 3. */
void gguf_olmo2_check(struct gguf_config *c, struct config_in *r);
void gguf_olmo2_put(const struct gguf_config *c, struct gguf_keys *k);
/* Phi-3 and Phi-4. */
void gguf_phi3_check(struct gguf_config *c, struct config_in *r);
void gguf_phi3_put(const struct gguf_config *c, struct gguf_keys *k);
/* GLM-4, and the mixture of experts GLM-4.5. */
void gguf_glm4_check(struct gguf_config *c, struct config_in *r);
void gguf_glm4_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_gpt_oss_check(struct gguf_config *c, struct config_in *r);
void gguf_gpt_oss_put(const struct gguf_config *c, struct gguf_keys *k);
/* Qwen3-Next, and Qwen 3.5 without images. */
void gguf_qwen_linear_check(struct gguf_config *c, struct config_in *r);
void gguf_qwen_linear_put(const struct gguf_config *c, struct gguf_keys *k);
/* DeepSeek-V2 and V3. */
void gguf_deepseek_check(struct gguf_config *c, struct config_in *r);
void gguf_deepseek_put(const struct gguf_config *c, struct gguf_keys *k);

/* ---- what families share ---- */

/* Newer files have everything in rope_parameters, older ones theta beside rope_scaling. */
struct config_in gguf_rope_of(struct config_in *r);
const char *gguf_rope_type(struct config_in *rope);
/* The part of a head that is rotated; its errors are those of *rope. */
double gguf_rope_partial(struct config_in *r, struct config_in *rope, double otherwise);
/* Types that llama.cpp computes for every model: default, linear, yarn; llama3 for some. */
void gguf_rope_check(struct gguf_config *c, struct config_in *r);
void gguf_rope_put(const struct gguf_config *c, struct gguf_keys *k);
void gguf_silu_check(struct config_in *r);
/*
 * The sections in which the `pairs` of a head's elements are rotated; if there are none, the usual
 * ones, which may be NULL.
 */
enum { GGUF_SECTIONS = 4 };
void gguf_sections_check(uint64_t pairs, const uint32_t *usual, struct config_in *r);
void gguf_sections_put(const struct gguf_config *c, const uint32_t *usual, struct gguf_keys *k);
/* What Qwen3-VL has in addition to Qwen3. */
void gguf_qwen3_vl_check(const struct gguf_config *c, struct config_in *r);
void gguf_qwen3_vl_put(const struct gguf_config *c, struct gguf_keys *k);
/* What Ministral 3 has in addition to Llama. */
bool gguf_is_ministral3(const struct gguf_config *c);
void gguf_ministral3_check(struct config_in *r);
void gguf_ministral3_put(const struct gguf_config *c, struct gguf_keys *k);
/* Experts as DeepSeek has them. */
void gguf_routed_check(struct gguf_config *c, struct config_in *r);
void gguf_routed_put(const struct gguf_config *c, struct gguf_keys *k);
/* Keys of the heads and of the norms' epsilon. */
void gguf_attention_put(const struct gguf_config *c, struct gguf_keys *k);

#endif

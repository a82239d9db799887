/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_rope - how Llama 3.1 and its successors scale rotary embeddings: the factors that a GGUF has
 * as the tensor rope_freqs.weight, and the settings of a config.json.
 *
 * Source: Llama's rope_scaling of type "llama3" in transformers' modeling_rope_utils.py;
 * llama.cpp's convert_hf_to_gguf.py.
 *
 * Threads: pure.
 */
#ifndef GGUF_GGUF_ROPE_H
#define GGUF_GGUF_ROPE_H

#include <stdbool.h>
#include <stddef.h>

struct gguf_llama3 {
	float factor, low, high; /* "factor", "low_freq_factor", "high_freq_factor" */
	double old;		 /* "original_max_position_embeddings" */
};

/* The settings by whose factors v the frequencies of heads of 2 n elements are divided, if all of
 * them but "factor" are Llama's. n: 1 to GGUF_MAX_ROPE; theta: "rope_theta" */
bool gguf_llama3_find(float theta, const float *v, size_t n, struct gguf_llama3 *ret);

#endif

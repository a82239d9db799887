/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_mix - the types of a GGUF's tensors, as llama-quantize chooses them without an importance
 * matrix.
 *
 * A mix has a type for most matrices, and gives more bits to some: the head or, if there is none,
 * the embeddings; the values and the way down in the first and last eighth of the layers and in
 * every third between; keys and values if there are 8 experts. Rows that are not whole blocks get
 * a type of smaller blocks, or f16. What is float32 already (norms, biases, routers, positions) is
 * left alone, and so is a matrix of a single row, which llama-quantize takes for a vector.
 *
 * Where llama-quantize stops because rows are not whole blocks of 32 elements, here they are f16.
 *
 * Sources: src/llama-quant.cpp, include/llama.h (llama_ftype) and src/models/ of llama.cpp;
 * tests/torch/gguf.sh compares.
 * Threads: pure.
 */
#ifndef GGUF_GGUF_MIX_H
#define GGUF_GGUF_MIX_H

#include "codec/blocks.h"

#include <stddef.h>
#include <stdint.h>

struct arch;
struct gguf_tensor;

struct gguf_mix {
	const char *name; /* value of gguf_dtype */
	enum ggml_type base;
	uint8_t file_type; /* general.file_type: llama.cpp's enum llama_ftype */
	/* Q4_K_M and Q5_K_M: more bits in every third layer; Q4_K_S: only in the first ones. */
	enum { MIX_EVEN, MIX_SMALL, MIX_MEDIUM } rule;
};

enum { GGUF_N_MIXES = 14 };
extern const struct gguf_mix gguf_mixes[GGUF_N_MIXES];

/* The mix of matrices that are elements: F32, F16 or BF16. */
const struct gguf_mix *gguf_mix_of(enum ggml_type elements);

/*
 * Sets the types of all tensors of a model. Those that must be float32 have that type already.
 * plain: the type of matrices that are not quantised although the mix has blocks.
 */
void gguf_mix_choose(const struct gguf_mix *m, const struct arch *a, enum ggml_type plain,
		     struct gguf_tensor *t, size_t n);

#endif

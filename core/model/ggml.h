/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ggml - the numbers of types in GGUF files: types of tensors, and of the values of keys.
 *
 * Source: ggml/include/ggml.h, ggml-common.h, gguf.h (0.27); gguf-py/gguf/constants.py.
 * Threads: const tables.
 */
#ifndef MODEL_GGML_H
#define MODEL_GGML_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* enum ggml_type. Numbers that are missing here have been removed from ggml. */
enum ggml_type {
	GGML_F32 = 0,
	GGML_F16 = 1,
	GGML_Q4_0 = 2,
	GGML_Q4_1 = 3,
	GGML_Q5_0 = 6,
	GGML_Q5_1 = 7,
	GGML_Q8_0 = 8,
	GGML_Q8_1 = 9,
	GGML_Q2_K = 10,
	GGML_Q3_K = 11,
	GGML_Q4_K = 12,
	GGML_Q5_K = 13,
	GGML_Q6_K = 14,
	GGML_Q8_K = 15,
	GGML_IQ2_XXS = 16,
	GGML_IQ2_XS = 17,
	GGML_IQ3_XXS = 18,
	GGML_IQ1_S = 19,
	GGML_IQ4_NL = 20,
	GGML_IQ3_S = 21,
	GGML_IQ2_S = 22,
	GGML_IQ4_XS = 23,
	GGML_I8 = 24,
	GGML_I16 = 25,
	GGML_I32 = 26,
	GGML_I64 = 27,
	GGML_F64 = 28,
	GGML_IQ1_M = 29,
	GGML_BF16 = 30,
	GGML_TQ1_0 = 34,
	GGML_TQ2_0 = 35,
	GGML_MXFP4 = 39,
	GGML_NVFP4 = 40,
	GGML_Q1_0 = 41,
	GGML_Q2_0 = 42
};

struct ggml_info {
	const char *name;	  /* "Q4_K" */
	uint8_t type;		  /* enum ggml_type */
	uint8_t dtype;		  /* enum ckpt_dtype; CKPT_DTYPE_NONE: it has blocks */
	uint16_t elements, bytes; /* of a block; without blocks, of one element */
};

/* NULL: it is not a type. */
const struct ggml_info *ggml_info(uint64_t type);
/* By its name; NULL if there is none. */
const struct ggml_info *ggml_info_named(const char *name);

/* enum gguf_type: of a value, or of the members of an array. */
enum gguf_type {
	GGUF_U8 = 0,
	GGUF_I8 = 1,
	GGUF_U16 = 2,
	GGUF_I16 = 3,
	GGUF_U32 = 4,
	GGUF_I32 = 5,
	GGUF_F32 = 6,
	GGUF_BOOL = 7,
	GGUF_STR = 8,
	GGUF_ARRAY = 9,
	GGUF_U64 = 10,
	GGUF_I64 = 11,
	GGUF_F64 = 12
};

#endif

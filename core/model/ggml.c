/* SPDX-License-Identifier: Apache-2.0 */
#include "model/ggml.h"

#include "base/checked.h"

#include <string.h>

#define ELEMENTS(name, dtype, size) \
	{ \
#name, GGML_##name, CKPT_DTYPE_##dtype, 1, size \
	}
#define BLOCKS(name, elements, bytes) \
	{ \
#name, GGML_##name, CKPT_DTYPE_NONE, elements, bytes \
	}

static const struct ggml_info types[] = {
	ELEMENTS(F32, F32, 4),	  ELEMENTS(F16, F16, 2),    BLOCKS(Q4_0, 32, 18),
	BLOCKS(Q4_1, 32, 20),	  BLOCKS(Q5_0, 32, 22),	    BLOCKS(Q5_1, 32, 24),
	BLOCKS(Q8_0, 32, 34),	  BLOCKS(Q8_1, 32, 36),	    BLOCKS(Q2_K, 256, 84),
	BLOCKS(Q3_K, 256, 110),	  BLOCKS(Q4_K, 256, 144),   BLOCKS(Q5_K, 256, 176),
	BLOCKS(Q6_K, 256, 210),	  BLOCKS(Q8_K, 256, 292),   BLOCKS(IQ2_XXS, 256, 66),
	BLOCKS(IQ2_XS, 256, 74),  BLOCKS(IQ3_XXS, 256, 98), BLOCKS(IQ1_S, 256, 50),
	BLOCKS(IQ4_NL, 32, 18),	  BLOCKS(IQ3_S, 256, 110),  BLOCKS(IQ2_S, 256, 82),
	BLOCKS(IQ4_XS, 256, 136), ELEMENTS(I8, I8, 1),	    ELEMENTS(I16, I16, 2),
	ELEMENTS(I32, I32, 4),	  ELEMENTS(I64, I64, 8),    ELEMENTS(F64, F64, 8),
	BLOCKS(IQ1_M, 256, 56),	  ELEMENTS(BF16, BF16, 2),  BLOCKS(TQ1_0, 256, 54),
	BLOCKS(TQ2_0, 256, 66),	  BLOCKS(MXFP4, 32, 17),    BLOCKS(NVFP4, 64, 36),
	BLOCKS(Q1_0, 128, 18),	  BLOCKS(Q2_0, 64, 18),
};

const struct ggml_info *ggml_info(uint64_t type)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

const struct ggml_info *ggml_info_named(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (!strcmp(types[i].name, name))
			return &types[i];
	return NULL;
}

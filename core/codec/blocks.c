/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/blocks.h"

#include "base/checked.h"
#include "codec/blocks_internal.h"
#include "codec/q8_0.h"
#include "codec/q8_0_internal.h"

static const struct block_type types[] = {
	{ GGML_Q4_0, 32, 18, q4_0_encode, q4_0_encode_portable },
	{ GGML_Q4_1, 32, 20, q4_1_encode, q4_1_encode_portable },
	{ GGML_Q5_0, 32, 22, q5_0_encode, q5_0_encode_portable },
	{ GGML_Q5_1, 32, 24, q5_1_encode, q5_1_encode_portable },
	{ GGML_Q8_0, Q8_0_ELEMENTS, Q8_0_BYTES, q8_0_run, q8_0_run_portable },
	{ GGML_Q4_K, 256, 144, q4_k_encode, q4_k_encode_portable },
	{ GGML_Q5_K, 256, 176, q5_k_encode, q5_k_encode_portable },
	{ GGML_Q6_K, 256, 210, q6_k_encode, q6_k_encode_portable },
	{ GGML_MXFP4, 32, 17, mxfp4_encode, mxfp4_encode_portable },
};

const struct block_type *block_type(enum ggml_type type)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

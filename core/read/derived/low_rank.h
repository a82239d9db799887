/* SPDX-License-Identifier: Apache-2.0 */
/*
 * low_rank - a weight W and the product of two small matrices that was trained on top of it (Hu et
 * al. 2021), as a derived tensor.
 *
 *	plain		W is M x N: W + scale * (B A)
 *	turned		W is N x M: W + scale * (B A)^T, as for embeddings and GPT-2's Conv1D
 *
 * for A, r x N, and B, M x r. All of it is float32: the sum of the r products in their order, from
 * 0, never fused; times the scale; plus W; each rounded. Then one rounding to the dtype of W, to
 * nearest, ties to even. That is what PEFT does on CPUs (peft/tuners/lora/layer.py:
 * get_delta_weight, merge) with adapters in float32 (it converts others when it loads them), if the
 * BLAS adds in that order, as Debian's generic one does. Others add in another order: then elements
 * differ by at most one step of a 16-bit dtype, unless W and the product nearly cancel.
 *
 * Inputs: W, A, B. A box needs its rows of one and its columns of the other.
 *
 * Threads: see derived.h.
 */
#ifndef READ_LOW_RANK_H
#define READ_LOW_RANK_H

#include "read/derived.h"

#include <stdbool.h>

enum { LORA_MAX_RANK = 16384 };

struct low_rank {
	enum ckpt_dtype dtype; /* of W and of the result: what cast_run can make */
	uint32_t rank;
	float scale;
	bool turned;
};

/* For derived.run; how is a struct low_rank. */
derived_fn low_rank_run;

#endif

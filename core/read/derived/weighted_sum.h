/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weighted_sum - a weighted sum of the same tensor of several checkpoints, as a derived tensor.
 *
 * In the order of the inputs, from +0: acc = fma(weight, x, acc) in float32, with the weight
 * rounded to float32 once; then acc is rounded to the dtype of the result, to nearest, ties to even
 * (see codec/cast.h). That is torch's
 *
 *	acc = torch.zeros_like(x, dtype=torch.float32)
 *	for x, w in ...: acc.add_(x.float(), alpha=w)
 *	acc.to(dtype)
 *
 * bit for bit on CPUs with AVX2 or later. If the result is float64, everything is: inputs of other
 * types are converted, which is exact. A NaN stays one, with whatever payload the CPU gives it.
 *
 * Inputs have the shape of the result and any type that cast_possible has.
 *
 * Threads: see derived.h.
 */
#ifndef READ_WEIGHTED_SUM_H
#define READ_WEIGHTED_SUM_H

#include "read/derived.h"

struct weighted_sum {
	enum ckpt_dtype dtype; /* of the result: float64, or what cast_run can make */
	uint8_t n_dims;
	size_t n;
	const double *weights; /* n, one for each input */
};

/* For derived.run; how is a struct weighted_sum. */
derived_fn weighted_sum_run;

#endif

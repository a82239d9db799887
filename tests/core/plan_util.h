/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_util - small write items and boxes for tests of plans.
 */
#ifndef TESTS_PLAN_UTIL_H
#define TESTS_PLAN_UTIL_H

#include "base/checked.h"
#include "rng.h"
#include "save/metadata.h"

#include <string.h>

static const uint64_t plan_zero[2]; /* an offset */

/* A whole tensor with n_dims dimensions of `size`. */
static inline struct ckpt_write_item whole(const char *fqn, uint8_t n_dims, const uint64_t *size,
					   uint8_t dtype)
{
	return (struct ckpt_write_item){ .index = { fqn, plan_zero, (uint32_t)strlen(fqn),
						    CKPT_META_NO_HINT, n_dims, true },
					 .chunk = { plan_zero, size },
					 .size = size,
					 .props = { .dtype = dtype },
					 .type = CKPT_WRITE_TENSOR };
}

/* A small box of n dimensions inside shape, perhaps empty: n offsets, then n lengths. */
static inline void random_box(struct rng *r, size_t n, const uint64_t *shape, uint64_t *box)
{
	for (size_t d = 0; d < n; d++) {
		box[d] = rng_below(r, shape[d] + 1);
		box[n + d] = rng_below(r, min_u64(4, shape[d] - box[d]) + 1);
	}
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vtensor_ops - virtual tensors made of virtual tensors: other orders of the same elements.
 *
 * Each result is the caller's, free() it; the tensors it is made of may go. It is shown as the
 * first one's dtype, in its shape. ENOMEM, or what vtensor_copy says.
 *
 * Threads: pure.
 */
#ifndef TENSOR_VTENSOR_OPS_H
#define TENSOR_VTENSOR_OPS_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct vtensor;

/* A matrix with its dimensions exchanged. */
int vtensor_transpose(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e);
/* n > 0 tensors of one shape and one stored dtype, one behind the other along a new first
 * dimension. */
int vtensor_stack(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		  struct ckpt_err *e);
/* n > 0 tensors of one stored dtype, alike but for their first dimension, one behind the other
 * along it. */
int vtensor_concat(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		   struct ckpt_err *e);
/* Number i along the first dimension, which the result does without. */
int vtensor_pick(const struct vtensor *v, uint64_t i, struct vtensor **ret, struct ckpt_err *e);
/*
 * Rows that are `groups` times first half, then second half, with the halves' rows taking turns:
 * 0 1 2 3 4 5 in one group become 0 3 1 4 2 5. Their number is a multiple of 2 * groups, which is
 * not 0. The result's first dimension is three: group, row of a half, half.
 */
int vtensor_interleave(const struct vtensor *v, uint64_t groups, struct vtensor **ret,
		       struct ckpt_err *e);

#endif

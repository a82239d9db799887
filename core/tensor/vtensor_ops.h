/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vtensor_ops - virtual tensors made from virtual tensors: the same elements in another order.
 *
 * The caller frees each result with free(); it does not refer to its inputs. It is shown with the
 * dtype of the first one, in its own shape. Several must be alike, see vtensor_alike. Fails with
 * ENOMEM, or as vtensor_copy.
 *
 * Threads: pure.
 */
#ifndef TENSOR_VTENSOR_OPS_H
#define TENSOR_VTENSOR_OPS_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct vtensor;

/* The last two dimensions are swapped; there must be two. */
int vtensor_transpose(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e);
/* n > 0 alike tensors with one shape, stacked along a new first dimension. */
int vtensor_stack(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		  struct ckpt_err *e);
/* n > 0 alike tensors with equal shapes except for the first dimension, concatenated along it. */
int vtensor_concat(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		   struct ckpt_err *e);
/* Element i of the first dimension, which is dropped. */
int vtensor_pick(const struct vtensor *v, uint64_t i, struct vtensor **ret, struct ckpt_err *e);
/*
 * Interleaves the rows of two halves: v's rows are `groups` times a first half, then a second half;
 * 0 1 2 3 4 5 in one group become 0 3 1 4 2 5. Their number must be a multiple of 2 * groups, not
 * 0. The first dimension becomes three: group, row of a half, half.
 */
int vtensor_interleave(const struct vtensor *v, uint64_t groups, struct vtensor **ret,
		       struct ckpt_err *e);
/* The first dimension becomes two: group, row of a group. It must be a multiple of groups, not
 * 0. */
int vtensor_group(const struct vtensor *v, uint64_t groups, struct vtensor **ret,
		  struct ckpt_err *e);

#endif

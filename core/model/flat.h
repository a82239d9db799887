/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flat - tensors stored as a grid of flattened boxes.
 *
 * Megatron-core 0.8 to 0.15 stores optimizer state this way: a tensor of shape (4, 6, 8) whose last
 * dimension is in two parts, and whose first is in four, is stored as (4, 1, 2, 24): the cells
 * along each dimension, then the elements of a cell's box (1, 6, 4) in C order.
 *
 * Threads: pure.
 */
#ifndef MODEL_FLAT_H
#define MODEL_FLAT_H

#include "model/box.h"

#define FLAT_MAX_DIMS (CKPT_MAX_DIMS / 2) /* of the original tensor */

/* Is `stored`, of n + 1 dimensions, the flattened form of a non-empty tensor with that shape? */
bool flat_fits(size_t n, const uint64_t *shape, const uint64_t *stored);

#endif

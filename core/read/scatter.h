/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter - a strided copy from memory to memory.
 *
 * Private to core/read. Two expensive cases are special: single elements become single moves, and
 * matrices whose columns become rows are transposed tile by tile.
 *
 * Threads: pure.
 */
#ifndef READ_SCATTER_H
#define READ_SCATTER_H

#include "read/plan.h"

#include <stdint.h>

/* Copies runs of `run` bytes over n >= 1 dimensions, the one with the largest steps in `from`
 * first. */
void scatter(const struct copy_dim *d, uint32_t n, uint64_t run, uint8_t *to, const uint8_t *from);

#endif

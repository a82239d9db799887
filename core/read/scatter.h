/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter - a strided copy from memory to memory.
 *
 * Private to core/read. Of what costs time it knows two kinds: elements, which become single moves,
 * and matrices whose columns become rows, which are turned tile by tile.
 *
 * Threads: pure.
 */
#ifndef READ_SCATTER_H
#define READ_SCATTER_H

#include "read/plan.h"

#include <stdint.h>

/* Runs of `run` bytes, by n >= 1 dimensions, the one with the longest steps in `from` first. */
void scatter(const struct copy_dim *d, uint32_t n, uint64_t run, uint8_t *to, const uint8_t *from);

#endif

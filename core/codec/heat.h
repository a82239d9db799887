/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heat - where in a tensor elements changed, and in which direction: a grid of cells, each of which
 * has the change of largest magnitude among its elements.
 *
 *	struct heat h;
 *	if (heat_init(&h, shape, n_dims, 64))
 *		heat_add(&h, cells, at, a, b, n);	// block by block, in any order
 *	heat_merge(cells, of_another_thread, heat_cells(&h));
 *
 * The tensor is seen as a matrix, whose columns are its last dimension. Rows and columns are cut
 * into at most `side` parts each, and lengths of parts differ by at most one.
 *
 * Threads: pure.
 */
#ifndef CODEC_HEAT_H
#define CODEC_HEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEAT_MAX_SIDE = 64, HEAT_MAX_CELLS = HEAT_MAX_SIDE * HEAT_MAX_SIDE };

/* n elements cut into `parts`. */
struct heat_axis {
	uint64_t n, parts;
};

struct heat {
	struct heat_axis rows, columns;
};

/* False: it has no elements, or more than fit in 64 bits. */
bool heat_init(struct heat *h, const uint64_t *shape, size_t n_dims, unsigned side);
size_t heat_cells(const struct heat *h);

/*
 * n elements from number `at` on. Cells begin as 0. A cell becomes NaN where an element changed
 * that is not finite, before or after; a change too large or too small for a float is the largest,
 * or the smallest.
 */
void heat_add(const struct heat *h, float *cells, uint64_t at, const double *a, const double *b,
	      size_t n);
void heat_merge(float *to, const float *from, size_t n);

#endif

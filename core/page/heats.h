/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heats - pictures (ckpt_diff.h) of the tensors that changed the most, and where; not too many.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_HEATS_H
#define PAGE_HEATS_H

#include "base/buf.h"

#include <ckptfs/ckpt_diff.h>

#include <stdbool.h>

/* Sides of a picture, in cells; numbers of pictures of the optimizer's tensors, and of others. */
enum { HEATS_SIDE = 64, HEATS_OPTIMIZER = 4, HEATS_OTHER = 12 };

struct heats_entry {
	uint64_t row;
	bool nan; /* NaN appeared: such entries come first */
	double relative;
	unsigned rows, columns;
	float largest;			       /* magnitude of a change */
	int8_t codes[HEATS_SIDE * HEATS_SIDE]; /* see heats_write */
};

struct heats {
	struct heats_list {
		struct heats_entry *entries; /* the most changed first */
		size_t n;
	} lists[2];
};

/* Keeps the picture of a row if it is among those that changed the most. -ENOMEM. */
int heats_add(struct heats *h, uint64_t row, bool optimizer, const struct ckpt_diff_values *v);
/*
 * Writes the number of pictures, and for each the row, the numbers of rows and columns, the largest
 * magnitude, and the cells, where 127 stands for it and -127 for its negative, and smaller numbers
 * for changes in proportion to their squares; -128 is where something that is not finite changed.
 */
void heats_write(const struct heats *h, struct buf *b);
void heats_release(struct heats *h);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * box - axis-aligned boxes of index space, the one idea everything rests on.
 *
 * A box of n dimensions is two arrays the caller owns: off[n] and len[n], half-open in every
 * dimension: [off, off+len). Callers have checked all sums (box_inside). A box of 0 dimensions has
 * one element.
 *
 * Threads: pure.
 */
#ifndef MODEL_BOX_H
#define MODEL_BOX_H

#include <ckptfs/ckpt_tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Intersects (a_off, a_len) and (b_off, b_len); false if the result is empty (then ret_* are
 * undefined). ret_* may be either input. Saving, loading, layouts and reads all rely on this
 * function.
 */
bool box_intersect(size_t n, const uint64_t *a_off, const uint64_t *a_len, const uint64_t *b_off,
		   const uint64_t *b_len, uint64_t *ret_off, uint64_t *ret_len);

/* Number of elements; false if it does not fit 63 bits. */
bool box_volume(size_t n, const uint64_t *len, uint64_t *ret);
/* Does the box lie inside [0, shape)? Overflow-safe. */
bool box_inside(size_t n, const uint64_t *off, const uint64_t *len, const uint64_t *shape);

/* n numbers each: sizes or positions. */
static inline bool dims_equal(size_t n, const uint64_t *a, const uint64_t *b)
{
	return !n || !memcmp(a, b, n * sizeof(*a));
}

static inline bool box_equal(size_t n, const uint64_t *a_off, const uint64_t *a_len,
			     const uint64_t *b_off, const uint64_t *b_len)
{
	return dims_equal(n, a_off, b_off) && dims_equal(n, a_len, b_len);
}

/* Row-major order of first elements. */
int box_compare_off(size_t n, const uint64_t *a, const uint64_t *b);

/*
 * Splits elements [first, first+count) of a row-major array into boxes: at most 2n-1 of them, in
 * order, each a contiguous run of the array. `emit` gets the box and the position of its first
 * element relative to `first`; a non-zero return stops and is returned.
 */
typedef int box_emit_fn(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos);
int box_of_range(size_t n, const uint64_t *shape, uint64_t first, uint64_t count, box_emit_fn *emit,
		 void *arg);

/*
 * Do the boxes cover [0, shape)? They may be in any order and overlap.
 *   BOXES_COVER    yes, each element once
 *   BOXES_OVERLAP  yes, but two of them overlap: ret_pair
 *   BOXES_HOLE     no: (ret_off, ret_len) is a box that none touches, or the whole shape if finding
 *                  one would take too long
 *   BOXES_UNKNOWN  too irregular to decide within *work
 * boxes: count rows of 2n numbers, offsets then lengths, every box inside the shape, none empty.
 *
 * *work: how many numbers may still be compared, in addition to sorting; reduced by the call, 0
 * once it has run out. The tensors of a checkpoint share one budget, which starts at
 * BOXES_MAX_WORK, a second or two: a tensor of 100,000 chunks in 316 rows that are split in 316
 * different ways takes an eighth of it, one split along a single dimension next to nothing, one
 * whose chunks form a grid nothing.
 */
#define BOXES_MAX_WORK ((uint64_t)1 << 28)
enum boxes_verdict { BOXES_COVER, BOXES_OVERLAP, BOXES_HOLE, BOXES_UNKNOWN };
enum boxes_verdict boxes_cover(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
			       uint64_t *work, uint64_t *ret_off, uint64_t *ret_len,
			       size_t ret_pair[2]);

/*
 * Finds the grid that the boxes form, if they do: sorted by box_compare_off, box k is cell k of a
 * regular partition of [0, shape) into counts[0] x counts[1] x ... cells. `starts` receives the
 * cells' first indices, dimension after dimension (at most count + n numbers). False: not a grid.
 */
bool boxes_grid(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
		uint64_t *ret_counts, uint64_t *ret_starts);

#endif

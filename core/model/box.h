/* SPDX-License-Identifier: Apache-2.0 */
/*
 * box - axis-aligned boxes of index space, the one idea everything rests on.
 *
 * A box of n dimensions is two arrays the caller owns: off[n] and len[n], half-open in every
 * dimension: [off, off+len). All sums have been checked (box_inside) before they get here.
 * A box of 0 dimensions has one element.
 *
 * Threads: pure.
 */
#ifndef MODEL_BOX_H
#define MODEL_BOX_H

#include <ckptfs/ckpt_tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The intersection routine: that of (a_off, a_len) and (b_off, b_len), false when it is empty
 * (ret_* then hold nothing of use). ret_* may be either input. Save, load, layouts and reads all
 * end here.
 */
bool box_intersect(size_t n, const uint64_t *a_off, const uint64_t *a_len, const uint64_t *b_off,
		   const uint64_t *b_len, uint64_t *ret_off, uint64_t *ret_len);

/* Elements; false when that does not fit 63 bits. */
bool box_volume(size_t n, const uint64_t *len, uint64_t *ret);
/* Does the box lie inside [0, shape)? Overflow-safe. */
bool box_inside(size_t n, const uint64_t *off, const uint64_t *len, const uint64_t *shape);
bool box_equal(size_t n, const uint64_t *a_off, const uint64_t *a_len, const uint64_t *b_off,
	       const uint64_t *b_len);
/* Row-major order of first elements. */
int box_compare_off(size_t n, const uint64_t *a, const uint64_t *b);

/*
 * The elements [first, first+count) of a row-major array, as boxes: at most 2n-1 of them, in
 * order, each again one run of that array. `emit` gets the box and the position of its first
 * element counted from `first`; a non-zero return stops and is returned.
 */
typedef int box_emit_fn(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos);
int box_of_range(size_t n, const uint64_t *shape, uint64_t first, uint64_t count, box_emit_fn *emit,
		 void *arg);

/*
 * Do the boxes cover [0, shape)? They may come in any order and overlap.
 *   BOXES_COVER    yes, each element once
 *   BOXES_OVERLAP  yes, but two of them overlap: ret_pair
 *   BOXES_HOLE     no: (ret_off, ret_len) is a box that none touches, or the whole shape where
 *                  finding one would take too long
 *   BOXES_UNKNOWN  too irregular to tell within *work
 * boxes: count rows of 2n numbers, offsets then lengths, every box inside the shape, none empty.
 *
 * *work: how many numbers may still be compared with each other, beyond what sorting takes; less
 * afterwards, 0 when it ran out. The tensors of a checkpoint share one, which begins with
 * BOXES_MAX_WORK, a second or two: a tensor of 100,000 chunks in 316 rows that are cut in 316
 * different ways takes an eighth of it, one cut along a single dimension next to nothing, one
 * whose chunks form a grid nothing.
 */
#define BOXES_MAX_WORK ((uint64_t)1 << 28)
enum boxes_verdict { BOXES_COVER, BOXES_OVERLAP, BOXES_HOLE, BOXES_UNKNOWN };
enum boxes_verdict boxes_cover(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
			       uint64_t *work, uint64_t *ret_off, uint64_t *ret_len,
			       size_t ret_pair[2]);

/*
 * The grid that the boxes form, if they do: sorted by box_compare_off, box k is cell k of a
 * regular partition of [0, shape) into counts[0] x counts[1] x ... cells. `starts` receives the
 * cells' first indices, dimension after dimension (at most count + n numbers). False: no grid.
 */
bool boxes_grid(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
		uint64_t *ret_counts, uint64_t *ret_starts);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hist - histograms of elements: exact counts, in bins chosen after counting.
 *
 *	hist_count(counts, CKPT_DTYPE_F32, block, n);	// the thread's own counts, initially 0
 *	n = hist_take(counts, entries);			// resets them to 0
 *	hist_add(&h, entries, n);			// block by block, in any order
 *	hist_linear(&h, 64, &bins);
 *	hist_log(&h, 64, &bins);
 *
 * Elements are counted by key: the real line is cut at all numbers that have 8 significant bits
 * (those of bfloat16), and a key is the interval from one cut, inclusive, to the next. The bins of
 * a histogram begin and end at cuts, so their counts are exact without reading elements again, and
 * histograms of several tensors can be added.
 *
 * NaN and infinities are not counted, nor are numbers without a key: magnitudes of 2^128 and more.
 *
 * Threads: pure.
 */
#ifndef CODEC_HIST_H
#define CODEC_HIST_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HIST_KEYS = 1 << 16,
	HIST_MAX_BINS = 256,
};

/* True for real numbers: values_known(), and not complex. */
bool hist_known(enum ckpt_dtype t);
/* Adds n elements to counts[HIST_KEYS], which must not overflow. */
void hist_count(uint32_t *counts, enum ckpt_dtype t, const void *from, size_t n);

struct hist_entry {
	uint32_t count;
	uint16_t key;
};
/* Moves all non-zero counts to ret[HIST_KEYS]; returns their number. */
size_t hist_take(uint32_t *counts, struct hist_entry *ret);

struct hist {
	unsigned first, last; /* range of keys with counts; first > last: there are none */
	uint64_t counts[HIST_KEYS];
};
/* h must be all zero, or have been used before. */
void hist_init(struct hist *h);
void hist_add_key(struct hist *h, unsigned key, uint64_t n);
void hist_add(struct hist *h, const struct hist_entry *v, size_t n);
void hist_merge(struct hist *to, const struct hist *from);

/* Bin i is from edges[i], inclusive, to edges[i + 1], exclusive. n is 0 if nothing was counted. */
struct hist_bins {
	size_t n;
	double edges[HIST_MAX_BINS + 1];
	uint64_t counts[HIST_MAX_BINS];
};
/*
 * Bins of equal width, a power of two, with edges at multiples of it. The width is the smallest for
 * which at most max bins, up to HIST_MAX_BINS, are needed and whose multiples are cuts.
 */
void hist_linear(const struct hist *h, size_t max, struct hist_bins *ret);
/*
 * A bin for each power of two of either sign, down from the largest. Zero and all smaller
 * magnitudes are in the middle bin, from -2^k to 2^k. There are at most max bins; max must be at
 * least 3.
 */
void hist_log(const struct hist *h, size_t max, struct hist_bins *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hist - histograms of elements: exact counts, in bins that are chosen when all have been counted.
 *
 *	hist_count(counts, CKPT_DTYPE_F32, block, n);	// a thread's own, of zeros
 *	n = hist_take(counts, entries);			// zeros again
 *	hist_add(&h, entries, n);			// block after block, in any order
 *	hist_linear(&h, 64, &bins);
 *	hist_log(&h, 64, &bins);
 *
 * Elements are counted by key: the real line is cut at all numbers that have 8 significant bits
 * (bfloat16's), and a key is what lies from one cut to the next, the lower one included. The bins of a
 * histogram begin and end at cuts, so their counts are exact although no element is looked at again, and
 * histograms of several tensors are added up.
 *
 * NaN and infinities are not counted, nor is what has no key: magnitudes of 2^128 and more.
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

/* Real numbers: values_known(), and not complex. */
bool hist_known(enum ckpt_dtype t);
/* Adds n elements to counts[HIST_KEYS], which have room for them. */
void hist_count(uint32_t *counts, enum ckpt_dtype t, const void *from, size_t n);

struct hist_entry {
	uint32_t count;
	uint16_t key;
};
/* Moves all counts to ret[HIST_KEYS]; returns how many there are. */
size_t hist_take(uint32_t *counts, struct hist_entry *ret);

struct hist {
	unsigned first, last; /* of the keys that have counts; first > last: there are none */
	uint64_t counts[HIST_KEYS];
};
/* From zeros, or from what was counted before. */
void hist_init(struct hist *h);
void hist_add_key(struct hist *h, unsigned key, uint64_t n);
void hist_add(struct hist *h, const struct hist_entry *v, size_t n);
void hist_merge(struct hist *to, const struct hist *from);

/* Bin i is from edges[i] to edges[i + 1], which is not in it. n is 0 where nothing was counted. */
struct hist_bins {
	size_t n;
	double edges[HIST_MAX_BINS + 1];
	uint64_t counts[HIST_MAX_BINS];
};
/*
 * Bins of one width, a power of two, with edges that are multiples of it. It is the smallest for which
 * at most max bins, up to HIST_MAX_BINS, are needed and whose multiples are cuts.
 */
void hist_linear(const struct hist *h, size_t max, struct hist_bins *ret);
/*
 * A bin for each power of two of either sign, down from the largest. Zero and what is smaller than the
 * least of them is in the one in the middle, from -2^k to 2^k. At most max bins, which is at least 3.
 */
void hist_log(const struct hist *h, size_t max, struct hist_bins *ret);

#endif

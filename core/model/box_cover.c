/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coverage. Chunks tile a tensor if their volumes add up to the tensor's and no two overlap.
 * Overlaps are found by a sweep along the dimension in which the fewest boxes lie side by side,
 * with a list of those that reach the sweep line; for the shardings of real systems the list stays
 * short. Holes are found by cutting every box out of the remainder. Both are quadratic for
 * adversarial input, hence the bound on work.
 */
#include "base/vec.h"
#include "model/box.h"

#include "base/checked.h"
#include "base/cleanup.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REST = 64 << 20 }; /* bytes for the remainder of the tensor */

struct sweep_entry {
	uint64_t start, end;
	size_t box;
};

static int by_start(const void *ap, const void *bp)
{
	const struct sweep_entry *a = ap, *b = bp;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->box < b->box ? -1 : a->box > b->box;
}

static int by_value(const void *ap, const void *bp)
{
	const uint64_t *a = ap, *b = bp;

	return *a < *b ? -1 : *a > *b;
}

/* The boxes in order of their start along dimension d. */
static void sort_along(size_t n, const uint64_t *boxes, size_t count, size_t d,
		       struct sweep_entry *ret)
{
	for (size_t i = 0; i < count; i++) {
		const uint64_t *b = boxes + i * 2 * n;

		ret[i] = (struct sweep_entry){ b[d], b[d] + b[n + d], i };
	}
	qsort(ret, count, sizeof(*ret), by_start);
}

/* Are all boxes the same along dimension d? */
static bool are_alike(size_t n, const uint64_t *boxes, size_t count, size_t d)
{
	for (size_t i = 1; i < count; i++)
		if (boxes[i * 2 * n + d] != boxes[d] || boxes[i * 2 * n + n + d] != boxes[n + d])
			return false;
	return true;
}

/* Number of pairs of boxes that share an index along the dimension by which they are sorted. */
static uint64_t count_pairs(const struct sweep_entry *sorted, size_t count, uint64_t *ends)
{
	uint64_t pairs = 0;
	size_t ended = 0;

	for (size_t i = 0; i < count; i++)
		ends[i] = sorted[i].end;
	qsort(ends, count, sizeof(*ends), by_value);
	for (size_t i = 0; i < count; i++) {
		while (ends[ended] <= sorted[i].start)
			ended++;
		pairs += i - ended;
	}
	return pairs;
}

/* The boxes in order of their start along the dimension with the fewest pairs. */
static struct sweep_entry *sweep_order(size_t n, const uint64_t *boxes, size_t count)
{
	struct sweep_entry *s = malloc((count + 1) * sizeof(*s));
	autofree uint64_t *ends = malloc((count + 1) * sizeof(*ends));
	uint64_t fewest = UINT64_MAX, pairs;
	size_t best = 0;

	if (!s || !ends) {
		free(s);
		return NULL;
	}
	for (size_t d = 0; d < n && fewest; d++) {
		if (are_alike(n, boxes, count, d))
			continue;
		sort_along(n, boxes, count, d, s);
		pairs = count_pairs(s, count, ends);
		if (pairs < fewest) {
			fewest = pairs;
			best = d;
		}
	}
	sort_along(n, boxes, count, best, s);
	return s;
}

/* Do the boxes have an element in common? Subtracts the number of comparisons from *work. */
static bool overlap(size_t n, const uint64_t *a, const uint64_t *b, uint64_t *work)
{
	size_t d = 0;

	while (d < n && a[d] < b[d] + b[n + d] && b[d] < a[d] + a[n + d])
		d++;
	*work -= min_u64(*work, d + 1);
	return d == n;
}

/* 1 and the pair; 0: none; -1: out of work; -2: out of memory. */
static int find_overlap(size_t n, const uint64_t *boxes, const struct sweep_entry *order,
			size_t count, uint64_t *work, size_t ret_pair[2])
{
	autofree struct sweep_entry *active = malloc((count + 1) * sizeof(*active));
	size_t n_active = 0;

	if (!active)
		return -2;
	for (size_t i = 0; i < count; i++) {
		const uint64_t *b = boxes + order[i].box * 2 * n;
		size_t kept = 0;

		for (size_t j = 0; j < n_active; j++) {
			if (active[j].end <= order[i].start)
				continue;
			if (!*work)
				return -1;
			if (overlap(n, boxes + active[j].box * 2 * n, b, work)) {
				ret_pair[0] = min_u64(active[j].box, order[i].box);
				ret_pair[1] = max_u64(active[j].box, order[i].box);
				return 1;
			}
			active[kept++] = active[j];
		}
		n_active = kept;
		active[n_active++] = order[i];
	}
	return 0;
}

struct rest {
	uint64_t *boxes; /* rows of 2n */
	size_t count, cap;
};

static bool rest_add(struct rest *r, size_t n, const uint64_t *off, const uint64_t *len)
{
	const size_t row = 2 * n * sizeof(uint64_t);

	if (r->count == r->cap && !vec_grow(&r->boxes, &r->cap, r->count + 1, MAX_REST / row, row))
		return false;
	memcpy(r->boxes + r->count * 2 * n, off, n * sizeof(*off));
	memcpy(r->boxes + r->count++ * 2 * n + n, len, n * sizeof(*len));
	return true;
}

/* Cuts (cut_off, cut_len), a part of box `at`, out of that box: up to 2n boxes remain of it. */
static bool rest_cut(struct rest *r, size_t n, size_t at, const uint64_t *cut_off,
		     const uint64_t *cut_len)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];

	memcpy(off, r->boxes + at * 2 * n, n * sizeof(*off));
	memcpy(len, r->boxes + at * 2 * n + n, n * sizeof(*len));
	r->count--;
	memmove(r->boxes + at * 2 * n, r->boxes + r->count * 2 * n, 2 * n * sizeof(*off));
	for (size_t d = 0; d < n; d++) {
		uint64_t o = off[d], l = len[d], before = cut_off[d] - o;
		uint64_t after = o + l - (cut_off[d] + cut_len[d]);

		len[d] = before;
		if (before && !rest_add(r, n, off, len))
			return false;
		off[d] = cut_off[d] + cut_len[d];
		len[d] = after;
		if (after && !rest_add(r, n, off, len))
			return false;
		off[d] = cut_off[d];
		len[d] = cut_len[d];
	}
	return true;
}

/* 1 and a hole; 0: none; -1: out of work or memory. */
static int find_hole(size_t n, const uint64_t *shape, const uint64_t *boxes,
		     const struct sweep_entry *order, size_t count, uint64_t *work,
		     uint64_t *ret_off, uint64_t *ret_len)
{
	struct rest r = { 0 };
	autofree void *release = NULL;
	uint64_t off[CKPT_MAX_DIMS] = { 0 }, len[CKPT_MAX_DIMS];
	bool ok = rest_add(&r, n, off, shape);

	for (size_t i = 0; i < count && ok; i++) {
		const uint64_t *b = boxes + order[i].box * 2 * n;

		for (size_t j = r.count; j-- > 0 && ok;) {
			const uint64_t *h = r.boxes + j * 2 * n;

			ok = *work;
			if (!ok || !overlap(n, h, b, work))
				continue;
			(void)box_intersect(n, h, h + n, b, b + n, off, len);
			*work -= min_u64(*work, 4 * n * n); /* up to 2n boxes remain */
			ok = rest_cut(&r, n, j, off, len);
		}
	}
	release = r.boxes;
	if (!ok)
		return -1;
	if (!r.count)
		return 0;
	memcpy(ret_off, r.boxes, n * sizeof(*ret_off));
	memcpy(ret_len, r.boxes + n, n * sizeof(*ret_len));
	return 1;
}

enum boxes_verdict boxes_cover(size_t n, const uint64_t *shape, const uint64_t *boxes, size_t count,
			       uint64_t *work, uint64_t *ret_off, uint64_t *ret_len,
			       size_t ret_pair[2])
{
	autofree struct sweep_entry *order = NULL;
	uint64_t want, sum = 0, share, v;
	int overlap, hole;

	memset(ret_off, 0, n * sizeof(*ret_off));
	memcpy(ret_len, shape, n * sizeof(*ret_len));
	if (!box_volume(n, shape, &want))
		return BOXES_UNKNOWN;
	if (!want)
		return BOXES_COVER;
	if (!count)
		return BOXES_HOLE;
	if (!n && count == 1)
		return BOXES_COVER;
	if (!n) {
		ret_pair[0] = 0;
		ret_pair[1] = 1;
		return BOXES_OVERLAP;
	}
	order = sweep_order(n, boxes, count);
	if (!order)
		return BOXES_UNKNOWN;
	for (size_t i = 0; i < count; i++)
		if (!box_volume(n, boxes + i * 2 * n + n, &v) || ckd_add(&sum, sum, v))
			return BOXES_UNKNOWN;
	overlap = find_overlap(n, boxes, order, count, work, ret_pair);
	if (overlap < 0)
		return BOXES_UNKNOWN;
	if (!overlap && sum == want)
		return BOXES_COVER;
	/* If the volumes do not add up there is a hole, whether or not it can be located. Locating
	 * it must not use up the work that other tensors need. */
	share = overlap ? *work : *work / 4;
	*work -= share;
	hole = find_hole(n, shape, boxes, order, count, &share, ret_off, ret_len);
	*work += share;
	if (!overlap)
		return BOXES_HOLE;
	return hole < 0 ? BOXES_UNKNOWN : hole ? BOXES_HOLE : BOXES_OVERLAP;
}

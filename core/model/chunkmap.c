/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chunkmap.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/search.h"
#include "model/box.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct sort_entry {
	uint64_t start;
	uint32_t chunk;
};

static int by_start(const void *ap, const void *bp)
{
	const struct sort_entry *a = ap, *b = bp;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->chunk < b->chunk ? -1 : a->chunk > b->chunk;
}

static void grid_steps(size_t n, const uint64_t *shape, const uint64_t *counts,
		       const uint64_t *starts, uint64_t *steps)
{
	for (size_t d = 0; d < n; d++) {
		uint64_t step = counts[d] > 1 ? starts[1] : shape[d];

		for (size_t k = 0; k < counts[d] && step; k++)
			if (starts[k] != k * step)
				step = 0;
		/* The last cell may be shorter but not longer, so that a quotient stays inside. */
		if (step && shape[d] > counts[d] * step)
			step = 0;
		steps[d] = step;
		starts += counts[d];
	}
}

/* Fills in the search order of a map that is not a grid. */
static bool sweep_fill(struct chunkmap *m, uint32_t *order)
{
	size_t n = m->n_dims, best_distinct = 0;
	autofree struct sort_entry *s = reallocarray(NULL, (size_t)m->count + 1, sizeof(*s));

	if (!s)
		return false;
	for (size_t pass = 0; pass <= n && n; pass++) {
		size_t d = pass < n ? pass : m->sweep_dim, distinct = 1;

		for (uint32_t i = 0; i < m->count; i++)
			s[i] = (struct sort_entry){ m->boxes[i * 2 * n + d], i };
		qsort(s, m->count, sizeof(*s), by_start);
		for (uint32_t i = 1; i < m->count; i++)
			distinct += s[i].start != s[i - 1].start;
		if (distinct > best_distinct) {
			best_distinct = distinct;
			m->sweep_dim = (uint32_t)d;
		}
	}
	for (uint32_t i = 0; i < m->count; i++) {
		order[i] = n ? s[i].chunk : i;
		if (n)
			m->max_extent =
				max_u64(m->max_extent, m->boxes[i * 2 * n + n + m->sweep_dim]);
	}
	return true;
}

struct chunkmap *chunkmap_new(size_t n, const uint64_t *shape, const uint64_t *boxes,
			      uint32_t count)
{
	autofree uint64_t *starts = reallocarray(NULL, count + n + 1, sizeof(*starts));
	uint64_t counts[CKPT_MAX_DIMS], n_starts = 0;
	struct chunkmap *m;
	size_t numbers, bytes;
	uint64_t *at;
	bool grid;

	if (!starts)
		return NULL;
	grid = boxes_grid(n, shape, boxes, count, counts, starts);
	for (size_t d = 0; d < n && grid; d++)
		n_starts += counts[d];
	numbers = n + (grid ? 2 * n + n_starts : 2 * n * count);
	if (ckd_mul(&bytes, count, sizeof(struct chunk_loc) + (grid ? 0 : sizeof(uint32_t))) ||
	    ckd_mul(&numbers, numbers, sizeof(uint64_t)) || ckd_add(&bytes, bytes, numbers) ||
	    ckd_add(&bytes, bytes, sizeof(*m)))
		return NULL;
	m = calloc(1, bytes);
	if (!m)
		return NULL;
	m->n_dims = (uint32_t)n;
	m->count = count;
	m->bytes = bytes;
	m->locs = (struct chunk_loc *)(m + 1);
	at = (uint64_t *)(m->locs + count);
	if (n)
		memcpy(at, shape, n * sizeof(*at));
	m->shape = at;
	at += n;
	if (grid) {
		memcpy(at, counts, n * sizeof(*at));
		m->counts = at;
		memcpy(at + n, starts, n_starts * sizeof(*at));
		m->starts = at + n;
		grid_steps(n, shape, counts, starts, at + n + n_starts);
		m->steps = at + n + n_starts;
		return m;
	}
	if (n)
		memcpy(at, boxes, 2 * n * count * sizeof(*at));
	m->boxes = at;
	m->order = (uint32_t *)(at + 2 * n * count);
	if (!sweep_fill(m, (uint32_t *)(at + 2 * n * count))) {
		free(m);
		return NULL;
	}
	return m;
}

/* The cell of dimension d (whose starts are given) that contains index x. */
static uint64_t cell_of(const struct chunkmap *m, size_t d, const uint64_t *starts, uint64_t x)
{
	size_t behind;

	if (m->steps[d])
		return x / m->steps[d];
	behind = PARTITION_POINT(i, m->counts[d], starts[i] <= x);
	return behind ? behind - 1 : 0;
}

static uint64_t cell_end(const struct chunkmap *m, size_t d, const uint64_t *starts, uint64_t k)
{
	return k + 1 < m->counts[d] ? starts[k + 1] : m->shape[d];
}

void chunkmap_box(const struct chunkmap *m, uint32_t i, uint64_t *off, uint64_t *len)
{
	size_t n = m->n_dims;
	uint64_t cells = m->count, left = i;
	const uint64_t *starts = m->starts;

	if (!m->counts) {
		if (n) {
			memcpy(off, m->boxes + i * 2 * n, n * sizeof(*off));
			memcpy(len, m->boxes + i * 2 * n + n, n * sizeof(*len));
		}
		return;
	}
	for (size_t d = 0; d < n; d++) {
		uint64_t k;

		cells /= m->counts[d];
		k = left / cells;
		left %= cells;
		off[d] = starts[k];
		len[d] = cell_end(m, d, starts, k) - starts[k];
		starts += m->counts[d];
	}
}

static int find_in_grid(const struct chunkmap *m, const uint64_t *off, const uint64_t *len,
			chunk_visit_fn *visit, void *arg)
{
	uint64_t first[CKPT_MAX_DIMS], last[CKPT_MAX_DIMS], cell[CKPT_MAX_DIMS], at[CKPT_MAX_DIMS];
	uint64_t c_off[CKPT_MAX_DIMS], c_len[CKPT_MAX_DIMS], i_off[CKPT_MAX_DIMS],
		i_len[CKPT_MAX_DIMS];
	size_t n = m->n_dims, d;

	c_off[0] = c_len[0] = 0; /* for a 0-dimensional grid */
	for (size_t k = 0, base = 0; k < n; k++) {
		const uint64_t *starts = m->starts + base;

		first[k] = cell_of(m, k, starts, off[k]);
		last[k] = len[k] == 1 ? first[k] : cell_of(m, k, starts, off[k] + len[k] - 1);
		cell[k] = first[k];
		at[k] = base;
		base += m->counts[k];
	}
	for (;;) {
		uint64_t chunk = 0;
		int rc;

		for (d = 0; d < n; d++) {
			const uint64_t *starts = m->starts + at[d];

			chunk = chunk * m->counts[d] + cell[d];
			c_off[d] = starts[cell[d]];
			c_len[d] = cell_end(m, d, starts, cell[d]) - c_off[d];
		}
		/* Cells between the first and the last always intersect. */
		(void)box_intersect(n, c_off, c_len, off, len, i_off, i_len);
		rc = visit(arg, (uint32_t)chunk, c_off, c_len, i_off, i_len);
		if (rc)
			return rc;
		for (d = n; d-- > 0;) {
			if (++cell[d] <= last[d])
				break;
			cell[d] = first[d];
		}
		if (d == (size_t)-1)
			return 0;
	}
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int find_by_search(const struct chunkmap *m, const uint64_t *off, const uint64_t *len,
			  chunk_visit_fn *visit, void *arg)
{
	uint64_t i_off[CKPT_MAX_DIMS], i_len[CKPT_MAX_DIMS], from = 0, to = UINT64_MAX;
	size_t n = m->n_dims, s = m->sweep_dim, hits = 0, first;
	uint32_t small[64] = { 0 };
	autofree uint32_t *big = NULL;
	uint32_t *hit = small;

	if (n) {
		/* A chunk that reaches off[s] starts less than max_extent before it. */
		from = off[s] >= m->max_extent ? off[s] - m->max_extent + 1 : 0;
		to = off[s] + len[s];
	}
	first = PARTITION_POINT(i, m->count, n && m->boxes[m->order[i] * 2 * n + s] < from);
	for (size_t i = first; i < m->count; i++) {
		const uint64_t *b = m->boxes + m->order[i] * 2 * n;

		if (n && b[s] >= to)
			break;
		if (!box_intersect(n, b, b + n, off, len, i_off, i_len))
			continue;
		if (hits == ARRAY_LEN(small) && !big) {
			big = malloc(m->count * sizeof(*big));
			if (!big)
				return -ENOMEM;
			memcpy(big, small, sizeof(small));
			hit = big;
		}
		hit[hits++] = m->order[i];
	}
	qsort(hit, hits, sizeof(*hit), by_number); /* listing order: later chunks win */
	for (size_t i = 0; i < hits; i++) {
		const uint64_t *b = m->boxes + hit[i] * 2 * n;
		int rc;

		(void)box_intersect(n, b, b + n, off, len, i_off, i_len);
		rc = visit(arg, hit[i], b, b + n, i_off, i_len);
		if (rc)
			return rc;
	}
	return 0;
}

int chunkmap_find(const struct chunkmap *m, const uint64_t *off, const uint64_t *len,
		  chunk_visit_fn *visit, void *arg)
{
	return m->counts ? find_in_grid(m, off, len, visit, arg)
			 : find_by_search(m, off, len, visit, arg);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "scene_util.h"

#include "rng.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CHUNKS = 200 };

static uint64_t rng_choose(void *arg, uint64_t n)
{
	return rng_below(arg, n);
}

struct choose choose_rng(struct rng *r)
{
	return (struct choose){ rng_choose, r };
}

static uint64_t pick(const struct choose *c, uint64_t n)
{
	return c->below(c->arg, n);
}

static void *need(void *p)
{
	if (!p)
		abort(); /* a test without memory says nothing */
	return p;
}

bool next_index(size_t n, const uint64_t *len, uint64_t *idx)
{
	for (size_t d = n; d-- > 0;) {
		if (++idx[d] < len[d])
			return true;
		idx[d] = 0;
	}
	return false;
}

/* ---- shapes and tilings ---- */

static void make_shape(struct scene *s, const struct choose *c, const struct scene_opts *o)
{
	static const uint64_t sizes[] = { 1, 2, 3, 5, 7, 4, 8, 13, 31, 64 };
	uint64_t elements = 1;

	s->n = (size_t)pick(c, o->max_dims + 1);
	for (size_t d = 0; d < s->n; d++) {
		uint64_t v = sizes[pick(c, sizeof(sizes) / sizeof(sizes[0]))];

		while (elements * v > o->max_elements)
			v = v / 2 ? v / 2 : 1;
		s->shape[d] = v;
		elements *= v;
	}
	if (s->n && !pick(c, 40))
		s->shape[pick(c, s->n)] = 0;
}

static uint64_t *add_box(struct scene *s)
{
	return s->boxes + (size_t)s->count++ * 2 * s->n;
}

static void tile_grid(struct scene *s, const struct choose *c)
{
	uint64_t starts[CKPT_MAX_DIMS][9], counts[CKPT_MAX_DIMS], cell[CKPT_MAX_DIMS] = { 0 },
								  cells = 1;

	for (size_t d = 0; d < s->n; d++) {
		uint64_t at = 0, left = s->shape[d];
		uint64_t step =
			pick(c, 2) ? 1 + pick(c, left) : 0; /* even, or each of its own length */

		counts[d] = 0;
		while (left) {
			bool last = counts[d] == 7 || cells * (counts[d] + 2) > MAX_CHUNKS;
			uint64_t len = last ? left : step ? step : 1 + pick(c, left);

			starts[d][counts[d]++] = at;
			len = len > left ? left : len;
			at += len;
			left -= len;
		}
		starts[d][counts[d]] = at;
		cells *= counts[d];
	}
	do {
		uint64_t *b = add_box(s);

		for (size_t d = 0; d < s->n; d++) {
			b[d] = starts[d][cell[d]];
			b[s->n + d] = starts[d][cell[d] + 1] - b[d];
		}
	} while (next_index(s->n, counts, cell));
}

static void tile_cuts(struct scene *s, const struct choose *c, const uint64_t *box, unsigned depth)
{
	size_t d = s->n ? (size_t)pick(c, s->n) : 0, n = s->n;
	uint64_t half[2 * CKPT_MAX_DIMS], at;

	if (!n || !depth || box[n + d] < 2 || s->count > MAX_CHUNKS / 2 || !pick(c, 6)) {
		memcpy(add_box(s), box, 2 * n * sizeof(*box));
		return;
	}
	at = 1 + pick(c, box[n + d] - 1);
	memcpy(half, box, 2 * n * sizeof(*box));
	half[n + d] = at;
	tile_cuts(s, c, half, depth - 1);
	half[d] = box[d] + at;
	half[n + d] = box[n + d] - at;
	tile_cuts(s, c, half, depth - 1);
}

static void shuffle(struct scene *s, const struct choose *c)
{
	uint64_t t[2 * CKPT_MAX_DIMS];
	size_t row = 2 * s->n * sizeof(*t);

	for (size_t i = s->count; i > 1; i--) {
		uint64_t *a = s->boxes + (i - 1) * 2 * s->n, *b = s->boxes + pick(c, i) * 2 * s->n;

		memcpy(t, a, row);
		memmove(a, b, row);
		memcpy(b, t, row);
	}
}

static void make_boxes(struct scene *s, const struct choose *c, enum scene_tiling tiling)
{
	uint64_t all[2 * CKPT_MAX_DIMS] = { 0 };

	s->boxes = need(calloc((size_t)MAX_CHUNKS * 2 * (s->n + 1), sizeof(*s->boxes)));
	for (size_t d = 0; d < s->n; d++) {
		if (!s->shape[d])
			return; /* nothing to store */
		all[s->n + d] = s->shape[d];
	}
	if (tiling == TILE_ANY)
		tiling = (enum scene_tiling)pick(c, TILE_ANY);
	if (tiling == TILE_GRID) {
		tile_grid(s, c);
		return;
	}
	tile_cuts(s, c, all, 7);
	for (uint64_t i = tiling == TILE_OVERLAPS ? 1 + pick(c, 5) : 0; i; i--) {
		uint64_t *b = add_box(s);

		for (size_t d = 0; d < s->n; d++) {
			b[d] = pick(c, s->shape[d]);
			b[s->n + d] = 1 + pick(c, s->shape[d] - b[d]);
		}
		s->overlap = true;
	}
	shuffle(s, c);
}

/* ---- items ---- */

static void make_strides(const struct scene *s, const struct choose *c, const uint64_t *len,
			 enum scene_strides kind, uint64_t *stride)
{
	size_t order[CKPT_MAX_DIMS];
	uint64_t step = s->element;

	if (kind == ROWS_ANY)
		kind = (enum scene_strides)pick(c, ROWS_ANY);
	for (size_t d = 0; d < s->n; d++)
		order[d] = d;
	for (size_t i = s->n; i > 1 && kind != ROWS_DENSE; i--) {
		size_t k = (size_t)pick(c, i), t = order[i - 1];

		order[i - 1] = order[k];
		order[k] = t;
	}
	for (size_t i = s->n; i-- > 0;) {
		size_t d = order[i];

		switch (kind) {
		case ROWS_SMALL:
			stride[d] = pick(c, 4) * s->element;
			break;
		case ROWS_BYTES:
			stride[d] = pick(c, 3 * s->element);
			break;
		case ROWS_ZERO:
			if (!pick(c, 3)) {
				stride[d] = 0;
				break;
			}
			__attribute__((fallthrough));
		default:
			stride[d] = step;
			step *= len[d];
			if (kind == ROWS_PADDED)
				step += pick(c, 3) * s->element;
		}
		if (len[d] == 1 && !pick(c, 4))
			stride[d] = pick(c, UINT64_MAX); /* means nothing */
	}
}

static void make_items(struct scene *s, const struct choose *c, enum scene_strides kind)
{
	size_t n = s->n;

	s->payloads = need(calloc(s->count + 1u, sizeof(*s->payloads)));
	s->strides = need(calloc(s->count * n + 1, sizeof(*s->strides)));
	s->items = need(calloc(s->count + 1u, sizeof(*s->items)));
	s->item_len = need(calloc(s->count + 1u, sizeof(*s->item_len)));
	for (uint32_t i = 0; i < s->count; i++) {
		const uint64_t *len = s->boxes + i * 2 * n + n;
		struct payload *p = &s->payloads[i];
		uint64_t end;

		p->stride = s->strides + i * n;
		p->data = pick(c, 3) ? pick(c, 100) : 0;
		make_strides(s, c, len, kind, p->stride);
		end = p->data + s->element;
		for (size_t d = 0; d < n; d++)
			end += (len[d] - 1) * (len[d] > 1 ? p->stride[d] : 0);
		p->end = s->item_len[i] = end;
		s->items[i] = need(malloc(end));
		for (uint64_t k = 0; k < end; k++)
			s->items[i][k] = (uint8_t)pick(c, 256);
	}
}

static void put_together(struct scene *s)
{
	size_t n = s->n;

	s->want = need(calloc(s->bytes + 1, 1));
	for (uint32_t i = 0; i < s->count; i++) {
		const uint64_t *off = s->boxes + i * 2 * n, *len = off + n;
		uint64_t idx[CKPT_MAX_DIMS] = { 0 };

		do {
			uint64_t from = s->payloads[i].data, to = 0;

			for (size_t d = 0; d < n; d++) {
				from += idx[d] * (len[d] > 1 ? s->payloads[i].stride[d] : 0);
				to = to * s->shape[d] + off[d] + idx[d];
			}
			memcpy(s->want + to * s->element, s->items[i] + from, s->element);
		} while (next_index(n, len, idx));
	}
}

static void finish(struct scene *s, const struct choose *c, const struct scene_opts *o)
{
	s->bytes = s->element;
	for (size_t d = 0; d < s->n; d++)
		s->bytes *= s->shape[d];
	make_items(s, c, o->strides);
	s->map = need(chunkmap_new(s->n, s->shape, s->boxes, s->count));
	put_together(s);
}

void scene_make(struct scene *s, const struct choose *c, const struct scene_opts *o)
{
	memset(s, 0, sizeof(*s));
	s->element = o->element ? o->element : (uint32_t)1 << pick(c, 5);
	make_shape(s, c, o);
	make_boxes(s, c, o->tiling);
	finish(s, c, o);
}

void scene_make_shape(struct scene *s, const struct choose *c, const struct scene_opts *o, size_t n,
		      const uint64_t *shape)
{
	memset(s, 0, sizeof(*s));
	s->element = o->element;
	s->n = n;
	memcpy(s->shape, shape, n * sizeof(*shape));
	make_boxes(s, c, o->tiling);
	finish(s, c, o);
}

void scene_make_of(struct scene *s, const struct choose *c, const struct scene_opts *o, size_t n,
		   const uint64_t *shape, uint32_t count, const uint64_t *boxes)
{
	memset(s, 0, sizeof(*s));
	s->element = o->element;
	s->n = n;
	s->count = count;
	memcpy(s->shape, shape, n * sizeof(*shape));
	s->boxes = need(malloc((2 * n * count + 1) * sizeof(*boxes)));
	memcpy(s->boxes, boxes, 2 * n * count * sizeof(*boxes));
	finish(s, c, o);
}

void scene_release(struct scene *s)
{
	for (uint32_t i = 0; i < s->count; i++)
		free(s->items[i]);
	free(s->items);
	free(s->item_len);
	free(s->boxes);
	free(s->payloads);
	free(s->strides);
	free(s->map);
	free(s->want);
}

void scene_memory_make(struct scene_memory *m, const struct scene *s, struct rng *r)
{
	size_t order[CKPT_MAX_DIMS];

	*m = (struct scene_memory){ .bytes = s->element };
	for (size_t d = 0; d < s->n; d++) {
		size_t k = rng_below(r, d + 1);

		order[d] = order[k];
		order[k] = d;
	}
	if (rng_chance(r, 30)) /* the last dimension dense, as in most memory */
		for (size_t d = 0; d < s->n; d++)
			order[d] = s->n - 1 - d;
	for (size_t k = 0; k < s->n; k++) {
		size_t d = order[k];
		uint64_t steps = s->shape[d] ? s->shape[d] - 1 : 0;
		uint64_t stride = m->bytes + (rng_chance(r, 30) ? rng_below(r, 9) : 0);

		m->stride[d] = (int64_t)stride;
		m->bytes += steps * stride;
		if (rng_chance(r, 20)) {
			m->stride[d] = -m->stride[d];
			m->first += steps * stride;
		}
	}
}

void scene_memory_fill(const struct scene_memory *m, const struct scene *s, uint64_t off,
		       uint64_t len, uint8_t *ret)
{
	for (uint64_t i = off; i < off + len; i++) {
		uint64_t at = i / s->element;
		int64_t to = (int64_t)(m->first + i % s->element);

		for (size_t d = s->n; d-- > 0; at /= s->shape[d])
			to += (int64_t)(at % s->shape[d]) * m->stride[d];
		ret[to] = s->want[i];
	}
}

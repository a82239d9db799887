/* SPDX-License-Identifier: Apache-2.0 */
#include "read/plan.h"

#include "base/vec.h"
#include "model/box.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct planning {
	const struct vtensor *v;
	const struct plan_source *sources;
	struct plan *plan;
	/* Bytes between neighbours along each dimension of v in the destination, and the offset of
	 * the destination's first byte. */
	uint64_t stride[CKPT_MAX_DIMS], origin;
	uint64_t byte_off, byte_len; /* the part of each element in the current box */
	/* The current piece: the part of it inside the box, and its position in the source. */
	uint32_t piece;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	uint64_t src_off[CKPT_MAX_DIMS], src_len[CKPT_MAX_DIMS];
};

void plan_release(struct plan *p)
{
	free(p->copies);
	free(p->dims);
	*p = (struct plan){ 0 };
}

static int grow(struct plan *p, size_t dims)
{
	return VEC_ROOM(p->copies, p->cap, p->n + 1) &&
			       VEC_ROOM(p->dims, p->cap_dims, p->n_dims + dims)
		       ? 0
		       : -ENOMEM;
}

/* Appends the copy to the plan, merging it with the previous one if it continues that. */
static void finish_copy(struct plan *p, const struct copy *c)
{
	struct copy *last = p->n ? &p->copies[p->n - 1] : NULL;

	if (last && !c->n_dims && !last->n_dims && last->piece == c->piece &&
	    last->chunk == c->chunk && last->src + last->run == c->src &&
	    last->dst + last->run == c->dst) {
		last->run += c->run;
		return;
	}
	p->copies[p->n++] = *c;
	p->n_dims += c->n_dims;
}

/*
 * Adds a dimension inside those that the copy has, or merges it with its neighbour if the two are
 * one regular sequence on both sides.
 */
static void add_dim(const struct plan *p, struct copy *c, uint64_t count, uint64_t src,
		    uint64_t dst)
{
	struct copy_dim *d = p->dims + c->dim + c->n_dims;

	if (c->n_dims && d[-1].src_stride == count * src && d[-1].dst_stride == count * dst)
		d[-1] = (struct copy_dim){ d[-1].count * count, src, dst };
	else {
		*d = (struct copy_dim){ count, src, dst };
		c->n_dims++;
	}
}

/*
 * Counts the elements first, first+step, ... of a source dimension that are inside [off, off+len);
 * *ret_at is the number of the first.
 */
static uint64_t steps_inside(uint64_t first, uint64_t step, uint64_t off, uint64_t len,
			     uint64_t *ret_at)
{
	uint64_t at = (off - first + step - 1) / step, end = (off + len - 1 - first) / step + 1;

	*ret_at = at;
	return end > at ? end - at : 0;
}

/* One chunk of the source contains the box (off, len) of the part wanted from it. */
static int visit(void *arg, uint32_t chunk, const uint64_t *c_off, const uint64_t *c_len,
		 const uint64_t *off, const uint64_t *len)
{
	struct planning *g = arg;
	const struct piece *pc = &g->v->pieces[g->piece];
	const struct payload *pl = &g->sources[g->piece].payloads[chunk];
	struct plan *p = g->plan;
	size_t n = g->v->n_dims;
	struct copy c = { .piece = g->piece,
			  .chunk = chunk,
			  .src = pl->data + g->byte_off,
			  .dst = g->byte_off - g->origin,
			  .run = g->byte_len,
			  .dim = (uint32_t)p->n_dims };
	int rc = grow(p, n);

	(void)c_len;
	if (rc || (p->max && p->n >= p->max))
		return rc ? rc : 1;
	for (size_t s = 0; s < pc->n_source; s++)
		c.src += (off[s] - c_off[s]) * pl->stride[s];
	for (size_t d = 0; d < n; d++) {
		uint64_t at = 0, count = 1, stride = 0;
		uint8_t s = g->len[d] > 1 ? pc->dim[d] : PIECE_FIXED;

		if (s != PIECE_FIXED && pc->coeff[d] == 1) {
			at = off[s] - g->src_off[s];
			count = len[s];
			stride = pl->stride[s];
		} else if (s != PIECE_FIXED) {
			count = steps_inside(g->src_off[s], pc->coeff[d], off[s], len[s], &at);
			if (!count)
				return 0;
			stride = pl->stride[s] * pc->coeff[d];
			c.src += (g->src_off[s] + at * pc->coeff[d] - off[s]) * pl->stride[s];
		}
		c.dst += (g->off[d] + at) * g->stride[d];
		if (count > 1)
			add_dim(p, &c, count, stride, g->stride[d]);
	}
	/* Whole elements that are adjacent on both sides form one run. */
	while (c.n_dims && p->dims[c.dim + c.n_dims - 1].src_stride == c.run &&
	       p->dims[c.dim + c.n_dims - 1].dst_stride == c.run)
		c.run *= p->dims[c.dim + --c.n_dims].count;
	finish_copy(p, &c);
	return 0;
}

static int read_piece(struct planning *g);

/* Reads the indices of a dimension that shares its source dimension with a later one, one by
 * one. */
static int read_each(struct planning *g, size_t d)
{
	uint64_t off = g->off[d], len = g->len[d];
	int rc = 0;

	g->len[d] = 1;
	for (uint64_t i = 0; !rc && i < len; i++) {
		g->off[d] = off + i;
		rc = read_piece(g);
	}
	g->off[d] = off;
	g->len[d] = len;
	return rc;
}

/* Plans the copies that the part (g->off, g->len) of the piece needs from its source. */
static int read_piece(struct planning *g)
{
	const struct piece *p = &g->v->pieces[g->piece];
	size_t shares = CKPT_MAX_DIMS;
	uint64_t moved = 0; /* bits: source dimensions along which it moves more than one step */

	for (size_t s = 0; s < p->n_source; s++) {
		g->src_off[s] = p->base[s];
		g->src_len[s] = 1;
	}
	for (size_t d = g->v->n_dims; d-- > 0;) {
		uint8_t s = p->dim[d];

		if (s == PIECE_FIXED)
			continue;
		g->src_off[s] += p->coeff[d] * (g->off[d] - p->off[d]);
		if (g->len[d] == 1)
			continue;
		g->src_len[s] += p->coeff[d] * (g->len[d] - 1);
		if (moved >> s & 1)
			shares = d;
		moved |= (uint64_t)1 << s;
	}
	if (shares < CKPT_MAX_DIMS)
		return read_each(g, shares);
	return chunkmap_find(g->sources[g->piece].map, g->src_off, g->src_len, visit, g);
}

static int emit(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct planning *g = arg;
	size_t n = g->v->n_dims;
	int rc = 0;

	(void)pos;
	g->byte_off = off[n];
	g->byte_len = len[n];
	for (g->piece = 0; !rc && g->piece < g->v->n_pieces; g->piece++) {
		const struct piece *p = &g->v->pieces[g->piece];

		if (box_intersect(n, off, len, p->off, p->len, g->off, g->len))
			rc = read_piece(g);
	}
	return rc;
}

int plan_read(const struct vtensor *v, const struct plan_source *sources, uint64_t off,
	      uint64_t len, const int64_t *strides, struct plan *ret)
{
	struct planning g = {
		.v = v, .sources = sources, .plan = ret, .origin = strides ? 0 : off
	};
	uint32_t element = dtype_info(v->stored)->size;
	uint64_t shape[CKPT_MAX_DIMS + 1], row = element;
	size_t n = v->n_dims;

	ret->n = ret->n_dims = 0;
	for (size_t d = n; d-- > 0;) {
		shape[d] = v->shape[d];
		g.stride[d] = strides ? (uint64_t)strides[d] : row;
		row *= v->shape[d];
	}
	shape[n] = element;
	return box_of_range(n + 1, shape, off, len, emit, &g);
}

static bool moves_alike(const struct copy *c, const struct copy_dim *dims)
{
	for (uint32_t d = c->dim; d < c->dim + c->n_dims; d++)
		if (dims[d].src_stride != dims[d].dst_stride)
			return false;
	return true;
}

/* All copies together form the whole reply, so it is in place if every copy is. */
bool plan_in_place(const struct plan *p, const struct plan_source *sources, uint32_t *ret_file,
		   uint64_t *ret_off)
{
	uint64_t off = 0; /* may wrap around, if the copies do not agree */
	uint32_t file = 0;

	for (size_t i = 0; i < p->n; i++) {
		const struct copy *c = &p->copies[i];
		const struct chunk_loc *loc = &sources[c->piece].locs[c->chunk];

		if (!i) {
			file = loc->file;
			off = loc->offset + c->src - c->dst;
		}
		if (loc->file != file || loc->offset + c->src != off + c->dst ||
		    !moves_alike(c, p->dims))
			return false;
	}
	if (p->n) {
		*ret_file = file;
		*ret_off = off;
	}
	return p->n;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "read/plan.h"

#include "base/checked.h"
#include "model/box.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct planning {
	const struct chunkmap *m;
	const struct payload *payloads;
	struct plan *plan;
	uint64_t row[MAX_DIMS]; /* bytes between neighbours along each dimension of the tensor */
	/* The box at hand. */
	const uint64_t *box_off;
	uint64_t pos;		     /* of its first byte in the reply */
	uint64_t byte_off, byte_len; /* its part of every element */
};

void plan_release(struct plan *p)
{
	free(p->copies);
	free(p->dims);
	*p = (struct plan){ 0 };
}

static int grow(struct plan *p, size_t dims)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 16;
		struct copy *v = realloc(p->copies, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		p->copies = v;
		p->cap = cap;
	}
	if (p->cap_dims - p->n_dims < dims) {
		size_t cap = p->cap_dims * 2 + dims + 16;
		struct copy_dim *v = realloc(p->dims, cap * sizeof(*v));

		if (!v)
			return -ENOMEM;
		p->dims = v;
		p->cap_dims = cap;
	}
	return 0;
}

/* Put the copy at the plan's end, glued to the one before when it just goes on. */
static void finish_copy(struct plan *p, const struct copy *c)
{
	struct copy *last = p->n ? &p->copies[p->n - 1] : NULL;

	if (last && !c->n_dims && !last->n_dims && last->chunk == c->chunk &&
	    last->src + last->run == c->src && last->dst + last->run == c->dst) {
		last->run += c->run;
		return;
	}
	p->copies[p->n++] = *c;
	p->n_dims += c->n_dims;
}

/*
 * Append a dimension inside those that the copy has, or melt it into its neighbour when the two
 * are one regular sequence on both sides.
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

static int visit(void *arg, uint32_t chunk, const uint64_t *c_off, const uint64_t *c_len,
		 const uint64_t *off, const uint64_t *len)
{
	struct planning *g = arg;
	const struct payload *pl = &g->payloads[chunk];
	struct plan *p = g->plan;
	size_t n = g->m->n_dims;
	struct copy c = { .chunk = chunk,
			  .src = pl->data + g->byte_off,
			  .dst = g->pos,
			  .run = g->byte_len,
			  .dim = (uint32_t)p->n_dims };
	int rc = grow(p, n);

	(void)c_len;
	if (rc)
		return rc;
	for (size_t d = 0; d < n; d++) {
		c.src += (off[d] - c_off[d]) * pl->stride[d];
		c.dst += (off[d] - g->box_off[d]) * g->row[d];
		if (len[d] > 1)
			add_dim(p, &c, len[d], pl->stride[d], g->row[d]);
	}
	/* Whole elements that follow each other on both sides are one run. */
	while (c.n_dims && p->dims[c.dim + c.n_dims - 1].src_stride == c.run &&
	       p->dims[c.dim + c.n_dims - 1].dst_stride == c.run)
		c.run *= p->dims[c.dim + --c.n_dims].count;
	finish_copy(p, &c);
	return 0;
}

static int emit(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct planning *g = arg;
	size_t n = g->m->n_dims;

	g->box_off = off;
	g->pos = pos;
	g->byte_off = off[n];
	g->byte_len = len[n];
	return chunkmap_find(g->m, off, len, visit, g);
}

int plan_read(const struct chunkmap *m, uint32_t element, const struct payload *payloads,
	      uint64_t off, uint64_t len, struct plan *ret)
{
	struct planning g = { .m = m, .payloads = payloads, .plan = ret };
	uint64_t shape[MAX_DIMS + 1], row = element;
	size_t n = m->n_dims;

	ret->n = ret->n_dims = 0;
	for (size_t d = n; d-- > 0;) {
		shape[d] = m->shape[d];
		g.row[d] = row;
		row *= m->shape[d];
	}
	shape[n] = element;
	return box_of_range(n + 1, shape, off, len, emit, &g);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/vtensor.h"

#include "base/checked.h"
#include "base/err.h"
#include "codec/blocks.h"
#include "index/catalog_query.h"
#include "model/box.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool vtensor_alike(const struct vtensor *a, const struct vtensor *b)
{
	return a->stored == b->stored && arith_equal(a->arith, b->arith) &&
	       arith_equal(a->after, b->after);
}

/* One vtensor is one block of memory: the struct, its pieces, their numbers. */
struct room {
	struct piece *pieces;
	uint64_t *numbers;
	uint8_t *dims;
};

/* extra: numbers in addition to the shape and three per dimension of a piece */
static struct vtensor *new_vtensor(size_t n_dims, size_t n_pieces, size_t extra, struct room *a,
				   struct ckpt_err *e)
{
	size_t numbers = n_dims + n_pieces * 3 * n_dims + extra;
	struct vtensor *v = calloc(1, sizeof(*v) + n_pieces * sizeof(struct piece) +
					      numbers * sizeof(uint64_t) + n_pieces * n_dims + 1);

	if (!v) {
		(void)err_nomem(e);
		return NULL;
	}
	v->n_dims = v->n_shown = (uint8_t)n_dims;
	v->pieces = a->pieces = (struct piece *)(v + 1);
	a->numbers = (uint64_t *)(a->pieces + n_pieces);
	a->dims = (uint8_t *)(a->numbers + numbers);
	return v;
}

static uint64_t *take(struct room *a, size_t n)
{
	uint64_t *p = a->numbers;

	a->numbers += n;
	return p;
}

static const uint64_t *keep(struct room *a, const uint64_t *from, size_t n)
{
	return n ? memcpy(take(a, n), from, n * sizeof(*from)) : a->numbers;
}

static const uint8_t *keep_dims(struct room *a, const uint8_t *from, size_t n)
{
	uint8_t *p = a->dims;

	if (n)
		memcpy(p, from, n);
	a->dims += n;
	return p;
}

int vtensor_whole(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		  struct vtensor **ret, struct ckpt_err *e)
{
	size_t n = t->n_dims;
	struct room a = { 0 };
	struct vtensor *v = new_vtensor(n, 1, n, &a, e);
	struct piece *p = a.pieces;

	if (!v)
		return -ENOMEM;
	v->stored = t->dtype;
	v->dtype = (uint8_t)dtype;
	v->n_pieces = 1;
	v->bytes = t->bytes / dtype_info(t->dtype)->size * dtype_info(dtype)->size;
	v->shape = v->shown = p->len = keep(&a, t->shape, n);
	p->source = number;
	p->n_source = (uint8_t)n;
	p->off = p->base = take(&a, n); /* zeros */
	p->coeff = a.numbers;
	p->dim = a.dims;
	for (size_t d = 0; d < n; d++) {
		*take(&a, 1) = 1;
		*a.dims++ = (uint8_t)d;
	}
	*ret = v;
	return 0;
}

/* The dimensions in which a flattened tensor is described. */
struct unfolded {
	size_t n;
	uint64_t len[CKPT_MAX_DIMS], coeff[CKPT_MAX_DIMS];
	uint8_t dim[CKPT_MAX_DIMS];
};

/*
 * For every dimension first its cells, which are a dimension of the stored tensor, then the
 * elements inside a cell, which all move along the last stored dimension. With a single cell there
 * is nothing between the elements and those of the previous dimension, so both form one dimension.
 */
static void unfold(const struct catalog_tensor *t, struct unfolded *u)
{
	uint8_t n = t->n_logical;
	uint64_t step = t->shape[n];

	u->n = 0;
	for (uint8_t d = 0; d < n; d++) {
		uint64_t cells = t->shape[d], len = t->logical[d] / cells;
		size_t last = u->n - 1;

		step /= len;
		if (cells > 1) {
			u->len[u->n] = cells;
			u->coeff[u->n] = 1;
			u->dim[u->n++] = d;
		} else if (u->n && u->dim[last] == n) {
			u->len[last] *= len;
			u->coeff[last] = step;
			continue;
		}
		if (len > 1) {
			u->len[u->n] = len;
			u->coeff[u->n] = step;
			u->dim[u->n++] = n;
		}
	}
}

int vtensor_logical(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		    struct vtensor **ret, struct ckpt_err *e)
{
	struct unfolded u;
	struct room a = { 0 };
	struct vtensor *v;
	struct piece *p;

	unfold(t, &u);
	v = new_vtensor(u.n, 1, (size_t)t->n_dims + t->n_logical, &a, e);
	p = a.pieces;
	if (!v)
		return -ENOMEM;
	v->stored = t->dtype;
	v->dtype = (uint8_t)dtype;
	v->n_pieces = 1;
	v->bytes = t->bytes / dtype_info(t->dtype)->size * dtype_info(dtype)->size;
	v->n_shown = t->n_logical;
	v->shown = keep(&a, t->logical, t->n_logical);
	v->shape = keep(&a, u.len, u.n);
	*p = (struct piece){ .source = number,
			     .n_source = t->n_dims,
			     .off = take(&a, u.n), /* zeros, as in all arrays from take() */
			     .base = take(&a, t->n_dims),
			     .len = v->shape,
			     .coeff = keep(&a, u.coeff, u.n),
			     .dim = keep_dims(&a, u.dim, u.n) };
	*ret = v;
	return 0;
}

static size_t source_dims(const struct vtensor *v)
{
	size_t n = 0;

	for (uint32_t i = 0; i < v->n_pieces; i++)
		n += v->pieces[i].n_source;
	return n;
}

int vtensor_copy(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e)
{
	size_t n = v->n_dims;
	uint64_t bytes;
	struct room a;
	struct vtensor *c;

	if (!box_volume(n, v->shape, &bytes) ||
	    ckd_mul(&bytes, bytes, dtype_info(v->dtype)->size) || bytes > INT64_MAX)
		return err_set(e, EFBIG, "a tensor of more than 2^63 bytes");
	c = new_vtensor(n, v->n_pieces, source_dims(v), &a, e);
	if (!c)
		return -ENOMEM;
	c->stored = v->stored;
	c->dtype = v->dtype;
	c->blocks = v->blocks;
	c->arith = v->arith;
	c->after = v->after;
	c->n_pieces = v->n_pieces;
	c->bytes = v->blocks ? bytes / 4 / v->blocks->elements * v->blocks->bytes : bytes;
	c->shape = c->shown = keep(&a, v->shape, n);
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];

		a.pieces[i] = (struct piece){ .source = p->source,
					      .n_source = p->n_source,
					      .off = keep(&a, p->off, n),
					      .len = keep(&a, p->len, n),
					      .coeff = keep(&a, p->coeff, n),
					      .dim = keep_dims(&a, p->dim, n),
					      .base = keep(&a, p->base, p->n_source) };
	}
	*ret = c;
	return 0;
}

/* Selects `count` elements along each dimension: off, off + step, ... */
struct steps {
	size_t n;
	const uint64_t *off, *step, *count;
};

static uint64_t step_of(const struct steps *x, size_t d)
{
	return x->step ? x->step[d] : 1;
}

/*
 * The part of p that the steps select. The box (off, len), which contains it, becomes a box of the
 * new tensor. False: they select nothing of it.
 */
static bool count_steps(const struct steps *x, uint64_t *off, uint64_t *len)
{
	for (size_t d = 0; d < x->n; d++) {
		uint64_t step = step_of(x, d), at = off[d] - x->off[d];
		uint64_t first = at / step + (at % step != 0), end = (at + len[d] - 1) / step + 1;

		if (first >= end)
			return false;
		off[d] = first;
		len[d] = end - first;
	}
	return true;
}

/* The part of p that falls into the box (off, len) of the new tensor. */
static void cut_piece(const struct piece *p, const struct steps *x, const uint64_t *off,
		      const uint64_t *len, struct room *a, struct piece *ret)
{
	uint64_t *base = take(a, p->n_source), *coeff = take(a, x->n);

	memcpy(base, p->base, p->n_source * sizeof(*base));
	for (size_t d = 0; d < x->n; d++) {
		uint64_t step = step_of(x, d), from = x->off[d] + off[d] * step - p->off[d];

		if (p->dim[d] != PIECE_FIXED)
			base[p->dim[d]] += p->coeff[d] * from;
		coeff[d] = len[d] > 1 ? p->coeff[d] * step : 1;
	}
	*ret = (struct piece){ .source = p->source,
			       .n_source = p->n_source,
			       .off = keep(a, off, x->n),
			       .len = keep(a, len, x->n),
			       .coeff = coeff,
			       .dim = keep_dims(a, p->dim, x->n),
			       .base = base };
}

int vtensor_steps(const struct vtensor *v, const uint64_t *off, const uint64_t *step,
		  const uint64_t *count, struct vtensor **ret, struct ckpt_err *e)
{
	const struct steps x = { v->n_dims, off, step, count };
	uint64_t hull[CKPT_MAX_DIMS], x_off[CKPT_MAX_DIMS], x_len[CKPT_MAX_DIMS], volume = 0;
	struct room a;
	struct vtensor *s;

	/* off, len and coeff: three numbers per dimension, as for any piece. */
	s = new_vtensor(x.n, v->n_pieces, source_dims(v), &a, e);
	if (!s)
		return -ENOMEM;
	s->stored = v->stored;
	s->dtype = v->dtype;
	s->arith = v->arith;
	s->after = v->after;
	s->shape = s->shown = keep(&a, count, x.n);
	(void)box_volume(x.n, count, &volume); /* at most v's volume */
	s->bytes = volume * dtype_info(v->dtype)->size;
	for (size_t d = 0; d < x.n; d++)
		hull[d] = count[d] ? (count[d] - 1) * step_of(&x, d) + 1 : 0;
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];

		if (box_intersect(x.n, off, hull, p->off, p->len, x_off, x_len) &&
		    count_steps(&x, x_off, x_len))
			cut_piece(p, &x, x_off, x_len, &a, a.pieces + s->n_pieces++);
	}
	*ret = s;
	return 0;
}

int vtensor_slice(const struct vtensor *v, const uint64_t *off, const uint64_t *len,
		  struct vtensor **ret, struct ckpt_err *e)
{
	return vtensor_steps(v, off, NULL, len, ret, e);
}

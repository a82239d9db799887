/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/vtensor_ops.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"
#include "tensor/vtensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A tensor under construction, in separate arrays; vtensor_copy joins them. */
struct draft {
	struct vtensor v;
	uint64_t shape[CKPT_MAX_DIMS];
	struct piece *pieces;
	uint64_t *numbers; /* off, len, coeff of each piece, then its base */
	uint8_t *dims;
	size_t at; /* of numbers */
};

static void draft_release(struct draft *d)
{
	free(d->pieces);
	free(d->numbers);
	free(d->dims);
}

/* Makes room for n_pieces, none of which moves along more than n_source dimensions. */
static int draft_init(struct draft *d, const struct vtensor *like, size_t n_dims, size_t n_pieces,
		      size_t n_source, struct ckpt_err *e)
{
	size_t numbers;

	*d = (struct draft){ .v = *like };
	if (n_dims > CKPT_MAX_DIMS || n_pieces > UINT32_MAX ||
	    ckd_mul(&numbers, n_pieces, 3 * n_dims + n_source))
		return err_set(e, EFBIG, "a tensor of %zu dimensions in %zu pieces", n_dims,
			       n_pieces);
	d->pieces = calloc(n_pieces + 1, sizeof(*d->pieces));
	d->numbers = calloc(numbers + 1, sizeof(*d->numbers));
	d->dims = calloc(n_pieces * n_dims + 1, 1);
	d->v.n_dims = (uint8_t)n_dims;
	d->v.n_pieces = 0;
	d->v.shape = d->shape;
	d->v.pieces = d->pieces;
	if (d->pieces && d->numbers && d->dims)
		return 0;
	return err_nomem(e);
}

/* A piece being filled in; initially it has length 1 everywhere and does not move. */
struct drafted {
	uint64_t *off, *len, *coeff, *base;
	uint8_t *dim;
};

static struct drafted add_piece(struct draft *d, const struct piece *from)
{
	size_t n = d->v.n_dims;
	uint64_t *p = d->numbers + d->at;
	struct drafted x = { p, p + n, p + 2 * n, p + 3 * n, d->dims + d->v.n_pieces * n };

	d->at += 3 * n + from->n_source;
	memcpy(x.base, from->base, from->n_source * sizeof(*x.base));
	for (size_t i = 0; i < n; i++) {
		x.len[i] = x.coeff[i] = 1;
		x.dim[i] = PIECE_FIXED;
	}
	d->pieces[d->v.n_pieces++] = (struct piece){ .source = from->source,
						     .n_source = from->n_source,
						     .off = x.off,
						     .len = x.len,
						     .coeff = x.coeff,
						     .dim = x.dim,
						     .base = x.base };
	return x;
}

/* Makes dimension `to` of the new piece dimension `from` of the old one. */
static void take_dim(const struct drafted *x, size_t to, const struct piece *p, size_t from)
{
	x->off[to] = p->off[from];
	x->len[to] = p->len[from];
	x->coeff[to] = p->coeff[from];
	x->dim[to] = p->dim[from];
}

static size_t most_source_dims(const struct vtensor *v)
{
	size_t n = 0;

	for (uint32_t i = 0; i < v->n_pieces; i++)
		n = (size_t)max_u64(n, v->pieces[i].n_source);
	return n;
}

int vtensor_transpose(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e)
{
	struct draft d CLEANUP(draft_release) = { 0 };
	size_t n = v->n_dims;
	int rc = draft_init(&d, v, n, v->n_pieces, most_source_dims(v), e);

	if (rc)
		return rc;
	memcpy(d.shape, v->shape, n * sizeof(*d.shape));
	d.shape[n - 2] = v->shape[n - 1];
	d.shape[n - 1] = v->shape[n - 2];
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		struct drafted x = add_piece(&d, &v->pieces[i]);

		for (size_t t = 0; t + 2 < n; t++)
			take_dim(&x, t, &v->pieces[i], t);
		take_dim(&x, n - 2, &v->pieces[i], n - 1);
		take_dim(&x, n - 1, &v->pieces[i], n - 2);
	}
	return vtensor_copy(&d.v, ret, e);
}

/* Total pieces of n tensors, and the largest number of source dimensions. */
static size_t all_pieces(const struct vtensor *const *v, size_t n, size_t *ret_source)
{
	size_t pieces = 0;

	*ret_source = 0;
	for (size_t k = 0; k < n; k++) {
		pieces += v[k]->n_pieces;
		*ret_source = (size_t)max_u64(*ret_source, most_source_dims(v[k]));
	}
	return pieces;
}

int vtensor_stack(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		  struct ckpt_err *e)
{
	struct draft d CLEANUP(draft_release) = { 0 };
	size_t n_source, pieces = all_pieces(v, n, &n_source), dims = v[0]->n_dims;
	int rc = draft_init(&d, v[0], dims + 1, pieces, n_source, e);

	if (rc)
		return rc;
	d.shape[0] = n;
	if (dims)
		memcpy(d.shape + 1, v[0]->shape, dims * sizeof(*d.shape));
	for (size_t k = 0; k < n; k++)
		for (uint32_t i = 0; i < v[k]->n_pieces; i++) {
			struct drafted x = add_piece(&d, &v[k]->pieces[i]);

			x.off[0] = k;
			for (size_t t = 0; t < dims; t++)
				take_dim(&x, t + 1, &v[k]->pieces[i], t);
		}
	return vtensor_copy(&d.v, ret, e);
}

int vtensor_concat(const struct vtensor *const *v, size_t n, struct vtensor **ret,
		   struct ckpt_err *e)
{
	struct draft d CLEANUP(draft_release) = { 0 };
	size_t n_source, pieces = all_pieces(v, n, &n_source), dims = v[0]->n_dims;
	int rc = draft_init(&d, v[0], dims, pieces, n_source, e);

	if (rc)
		return rc;
	memcpy(d.shape, v[0]->shape, dims * sizeof(*d.shape));
	d.shape[0] = 0;
	for (size_t k = 0; k < n; k++) {
		for (uint32_t i = 0; i < v[k]->n_pieces; i++) {
			struct drafted x = add_piece(&d, &v[k]->pieces[i]);

			for (size_t t = 0; t < dims; t++)
				take_dim(&x, t, &v[k]->pieces[i], t);
			x.off[0] += d.shape[0];
		}
		if (ckd_add(&d.shape[0], d.shape[0], v[k]->shape[0]))
			return err_set(e, EFBIG, "a tensor of more than 2^64 rows");
	}
	return vtensor_copy(&d.v, ret, e);
}

int vtensor_pick(const struct vtensor *v, uint64_t i, struct vtensor **ret, struct ckpt_err *e)
{
	struct draft d CLEANUP(draft_release) = { 0 };
	size_t dims = v->n_dims - 1u;
	int rc = draft_init(&d, v, dims, v->n_pieces, most_source_dims(v), e);

	if (rc)
		return rc;
	if (dims)
		memcpy(d.shape, v->shape + 1, dims * sizeof(*d.shape));
	for (uint32_t k = 0; k < v->n_pieces; k++) {
		const struct piece *p = &v->pieces[k];
		struct drafted x;

		if (i < p->off[0] || i - p->off[0] >= p->len[0])
			continue;
		x = add_piece(&d, p);
		if (p->dim[0] != PIECE_FIXED)
			x.base[p->dim[0]] += p->coeff[0] * (i - p->off[0]);
		for (size_t t = 0; t < dims; t++)
			take_dim(&x, t, p, t + 1);
	}
	return vtensor_copy(&d.v, ret, e);
}

/* Rows [row, row + n) of the piece: whole groups, or rows of one part. The first dimension becomes
 * n_new; the caller says where the rows are in these. */
static struct drafted add_rows(struct draft *d, const struct piece *p, uint64_t row, size_t n_new)
{
	struct drafted x = add_piece(d, p);

	if (p->dim[0] != PIECE_FIXED)
		x.base[p->dim[0]] += p->coeff[0] * (row - p->off[0]);
	for (size_t i = n_new; i < d->v.n_dims; i++)
		take_dim(&x, i, p, i - n_new + 1);
	return x;
}

static void step(const struct drafted *x, size_t d, const struct piece *p, uint64_t len,
		 uint64_t rows)
{
	x->len[d] = len;
	if (len == 1)
		return;
	x->dim[d] = p->dim[0];
	x->coeff[d] = p->coeff[0] * rows;
}

static void interleave_piece(struct draft *d, const struct piece *p, uint64_t half)
{
	uint64_t row = p->off[0], end = row + p->len[0];

	while (row < end) {
		struct drafted x = add_rows(d, p, row, 3);
		uint64_t group = row / (2 * half), in = row % (2 * half), n;

		x.off[0] = group;
		if (!in && end - row >= 2 * half) {
			n = (end - row) / (2 * half);
			step(&x, 0, p, n, 2 * half);
			step(&x, 1, p, half, 1);
			step(&x, 2, p, 2, half);
			row += n * 2 * half;
			continue;
		}
		n = min_u64(half - in % half, end - row);
		x.off[1] = in % half;
		x.off[2] = in / half;
		step(&x, 1, p, n, 1);
		row += n;
	}
}

int vtensor_interleave(const struct vtensor *v, uint64_t groups, struct vtensor **ret,
		       struct ckpt_err *e)
{
	enum {
		PARTS = 5
	}; /* a piece has at most: rest of a half, a half, groups, a half, start of a half */
	struct draft d CLEANUP(draft_release) = { 0 };
	uint64_t half = v->shape[0] / groups / 2;
	int rc = draft_init(&d, v, (size_t)v->n_dims + 2, (size_t)v->n_pieces * PARTS,
			    most_source_dims(v), e);

	if (rc)
		return rc;
	d.shape[0] = groups;
	d.shape[1] = half;
	d.shape[2] = 2;
	for (size_t i = 1; i < v->n_dims; i++)
		d.shape[i + 2] = v->shape[i];
	for (uint32_t i = 0; i < v->n_pieces; i++)
		interleave_piece(&d, &v->pieces[i], half);
	return vtensor_copy(&d.v, ret, e);
}

static void group_piece(struct draft *d, const struct piece *p, uint64_t rows)
{
	uint64_t row = p->off[0], end = row + p->len[0];

	while (row < end) {
		struct drafted x = add_rows(d, p, row, 2);
		bool whole = row % rows == 0 && end - row >= rows;
		uint64_t groups = whole ? (end - row) / rows : 1;
		uint64_t n = whole ? rows : min_u64(rows - row % rows, end - row);

		x.off[0] = row / rows;
		x.off[1] = row % rows;
		step(&x, 0, p, groups, rows);
		step(&x, 1, p, n, 1);
		row += groups * n;
	}
}

int vtensor_group(const struct vtensor *v, uint64_t groups, struct vtensor **ret,
		  struct ckpt_err *e)
{
	enum { PARTS = 3 }; /* rest of a group, groups, start of a group */
	struct draft d CLEANUP(draft_release) = { 0 };
	uint64_t rows = v->shape[0] / groups;
	int rc = draft_init(&d, v, (size_t)v->n_dims + 1, (size_t)v->n_pieces * PARTS,
			    most_source_dims(v), e);

	if (rc)
		return rc;
	d.shape[0] = groups;
	d.shape[1] = rows;
	for (size_t i = 1; i < v->n_dims; i++)
		d.shape[i + 1] = v->shape[i];
	for (uint32_t i = 0; i < v->n_pieces; i++)
		group_piece(&d, &v->pieces[i], rows);
	return vtensor_copy(&d.v, ret, e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_slice - cuts the part of a stored tensor that the axes of a recipe select, and joins them.
 *
 * Along each axis the selected elements are runs of equal length, consecutive in the result:
 * [groups : 0..r of r+2 : d] is `groups` runs of r*d elements, (r+2)*d apart. The elements of a run
 * are equally spaced in the source: adjacent, unless factors are swapped. The pieces are the
 * products of the axes' runs.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/arith.h"
#include "codec/cast.h"
#include "model/box.h"
#include "recipe/recipe_internal.h"
#include "tensor/vtensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct level {
	uint64_t from, to, of;
	uint64_t count, step; /* to - from; their distance in the source */
};

struct axis {
	uint64_t length; /* required of the source, or its minimum: */
	bool at_least;
	bool gone; /* a single index, dropped from the result */
	size_t n;  /* number of levels, in the order of the result; the last one is a run */
	struct level levels[RECIPE_MAX_FACTORS + 1];
	uint64_t base; /* index of the first element in the source */
	uint64_t runs; /* number of runs; 0: nothing is selected */
};

struct cutting {
	const struct cut_from *from;
	const struct recipe *r;
	struct ckpt_err *e;
	struct axis axes[CKPT_MAX_DIMS];
	size_t n_axes;
	/* For those of `axes` that remain: */
	struct {
		uint8_t place;	/* axis of the result */
		bool outer;	/* others joined to it are inside it: a run is one index */
		uint64_t inner; /* how many of the result's indices each of its own spans */
	} to[CKPT_MAX_DIMS];
	uint8_t n_places;
};

/* ---- the selection ---- */

static int read_level(struct eval *x, const struct cutting *c, const struct factor *f, uint64_t any,
		      struct level *ret)
{
	uint32_t line = c->from->line;
	struct level v = { .of = any };
	int rc = f->any ? 0 : recipe_eval(x, f->of, line, &v.of, c->e);

	v.to = v.of;
	if (!rc && f->cut)
		rc = recipe_eval(x, f->from, line, &v.from, c->e);
	if (!rc && f->cut && !f->one)
		rc = recipe_eval(x, f->to, line, &v.to, c->e);
	if (!rc && f->one && ckd_add(&v.to, v.from, 1))
		v.to = UINT64_MAX;
	*ret = v;
	return rc;
}

/*
 * Puts an axis's levels in the order of the result, and merges adjacent ones that are contiguous in
 * the source; the last one is then a run.
 */
static void order_levels(struct axis *a, const struct factor *f)
{
	struct level v[RECIPE_MAX_FACTORS];
	uint64_t step = 1;
	size_t n = 0;

	a->base = 0;
	a->runs = 1;
	for (size_t i = a->n; i-- > 0;) {
		struct level *l = &a->levels[i];

		l->count = l->to - l->from;
		l->step = step;
		a->base += l->from * step;
		step *= l->of;
	}
	for (size_t i = 0; i < a->n; i++) {
		v[i] = a->levels[i];
		if (f[i].swap) { /* two swaps are never adjacent */
			v[i] = a->levels[i + 1];
			v[i + 1] = a->levels[i];
			i++;
		}
	}
	for (size_t i = 0; i < a->n; i++) {
		struct level *before = n ? &a->levels[n - 1] : NULL;

		if (before && (before->count == 1 || before->step == v[i].count * v[i].step)) {
			before->count *= v[i].count;
			before->step = v[i].step;
		} else {
			a->levels[n++] = v[i];
		}
	}
	a->n = n;
	for (size_t i = 0; i < n; i++)
		a->runs *= i + 1 < n ? a->levels[i].count : a->levels[i].count > 0;
}

/* Evaluates the factors of an axis; dim: its length in the source. */
static int read_axis(struct eval *x, struct cutting *c, struct run factors, uint64_t dim,
		     struct axis *ret)
{
	struct axis a = { .length = 1, .n = factors.n };
	const struct factor *f = &x->r->factors[factors.at];

	for (size_t i = 0; i < a.n; i++) {
		struct level *v = &a.levels[i];
		int rc = read_level(x, c, &f[i], dim, v);

		if (rc)
			return rc;
		if (f[i].any && v->to > v->of) { /* shown as the required length */
			a.at_least = true;
			v->of = v->to;
		}
		if (v->from > v->to || v->to > v->of)
			return recipe_bad(
				x->r, c->from->line, c->e,
				"'%.80s': there is no range %llu..%llu in an axis of %llu",
				c->from->out, (unsigned long long)v->from,
				(unsigned long long)v->to, (unsigned long long)v->of);
		if (ckd_mul(&a.length, a.length, v->of))
			return recipe_bad(x->r, c->from->line, c->e,
					  "'%.80s': an axis of more than 2^64", c->from->out);
	}
	a.gone = a.n == 1 && f[0].cut && f[0].one;
	order_levels(&a, f);
	*ret = a;
	return 0;
}

static void add_number(char *out, size_t cap, size_t *at, const char *mark, uint64_t v)
{
	if (*at < cap)
		*at += (size_t)snprintf(out + *at, cap - *at, "%s%s%llu", *at > 1 ? "," : "", mark,
					(unsigned long long)v);
}

/* "'OUT' needs 'STORED' of shape [...], but that is [...]" */
static int misfit(const struct cutting *c)
{
	const struct recipe_source *s = c->from->source;
	char want[90] = "[", have[90] = "[", out[90], stored[90];
	size_t w = 1, h = 1;

	for (size_t i = 0; i < c->from->n_stacked; i++)
		add_number(want, sizeof(want), &w, "", c->from->count[i]);
	for (size_t i = 0; i < c->n_axes; i++)
		add_number(want, sizeof(want), &w, c->axes[i].at_least ? ">=" : "",
			   c->axes[i].length);
	for (size_t i = 0; i < s->n_dims; i++)
		add_number(have, sizeof(have), &h, "", s->shape[i]);
	return recipe_bad(
		c->r, c->from->line, c->e, "'%s' needs '%s' of shape %s], but that is %s]",
		text_show(c->from->out, strlen(c->from->out), out, sizeof(out)),
		text_show(c->from->stored, strlen(c->from->stored), stored, sizeof(stored)), want,
		have);
}

static uint64_t selected(const struct axis *a)
{
	return a->runs * a->levels[a->n - 1].count;
}

/* Makes every index of the axis a run. */
static void split_runs(struct axis *a)
{
	if (a->runs)
		a->runs *= a->levels[a->n - 1].count;
	a->levels[a->n++] = (struct level){ .count = 1, .step = 1 };
}

static int place_axes(struct eval *x, struct cutting *c, struct run order)
{
	const uint8_t *orders = order.n ? x->r->orders + order.at : NULL;
	struct axis *kept[CKPT_MAX_DIMS];
	uint64_t inner = 1;
	uint8_t n = 0;

	for (size_t i = 0; i < c->n_axes; i++)
		if (!c->axes[i].gone)
			kept[n++] = &c->axes[i];
	c->n_places = n;
	for (uint8_t i = 0; i < n; i++) {
		c->to[i].place = i;
		c->to[i].inner = 1;
	}
	for (uint32_t i = 0; i < order.n; i++)
		c->n_places -= orders[i] & ORDER_JOINED ? 1 : 0;
	n = c->n_places;
	for (uint32_t i = order.n; i-- > 0;) { /* from the innermost of those that are joined */
		uint8_t k = orders[i] & (uint8_t)~ORDER_JOINED;

		c->to[k].place = n - 1;
		c->to[k].inner = inner;
		c->to[k].outer = i + 1 < order.n && orders[i + 1] & ORDER_JOINED;
		if (c->to[k].outer)
			split_runs(kept[k]);
		if (ckd_mul(&inner, inner, selected(kept[k])))
			return recipe_bad(x->r, c->from->line, c->e,
					  "'%.80s': an axis of more than 2^64", c->from->out);
		if (!(orders[i] & ORDER_JOINED)) {
			inner = 1;
			n--;
		}
	}
	return 0;
}

static int read_axes(struct eval *x, struct cutting *c, struct run axes, struct run order)
{
	const struct recipe_source *s = c->from->source;
	size_t stacked = c->from->n_stacked;
	bool fits = s->n_dims == stacked + axes.n;

	if (recipe_count_steps(x, 64 * (uint64_t)axes.n, c->from->line, c->e))
		return -c->e->code;
	if (axes.n > CKPT_MAX_DIMS)
		return recipe_bad(x->r, c->from->line, c->e, "more than %d axes", CKPT_MAX_DIMS);
	for (size_t i = 0; i < stacked && fits; i++)
		fits = s->shape[i] == c->from->count[i];
	for (size_t i = 0; i < axes.n; i++) {
		uint64_t dim = stacked + i < s->n_dims ? s->shape[stacked + i] : 0;
		int rc = read_axis(x, c, x->r->axes[axes.at + i], dim, &c->axes[i]);

		if (rc)
			return rc;
		c->n_axes = i + 1;
		fits &= c->axes[i].length == dim;
	}
	if (!fits)
		return misfit(c);
	return place_axes(x, c, order);
}

/* ---- the computation ---- */

static float rounded_to_bf16(float f)
{
	uint8_t bits[2];

	cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_BF16, &f, bits, 1);
	cast_run(CKPT_DTYPE_BF16, CKPT_DTYPE_F32, bits, &f, 1);
	return f;
}

static int read_computation(struct eval *x, const struct cutting *c, const struct computation *how,
			    struct arith *ret)
{
	const struct cut_from *from = c->from;
	char stored[90];
	uint64_t v;
	double d;
	int rc;

	if (!arith_possible(from->source->stored))
		return recipe_bad(
			x->r, from->line, c->e,
			"'%.80s' computes with '%s', which is %s: only float16, bfloat16, "
			"float32 and float64 can be computed with",
			from->out,
			text_show(from->stored, strlen(from->stored), stored, sizeof(stored)),
			dtype_info(from->source->stored)->name);
	rc = recipe_eval(x, how->number, from->line, &v, c->e);
	if (!rc && !v)
		rc = recipe_bad(x->r, from->line, c->e, "'%.80s' multiplies or divides by 0",
				from->out);
	if (rc)
		return rc;
	d = how->root ? sqrt((double)v) : (double)v;
	*ret = (struct arith){ how->op, (float)d };
	if (how->bfloat16)
		ret->number = rounded_to_bf16(ret->number);
	if (how->minus)
		ret->number = -ret->number;
	return 0;
}

/* ---- pieces ---- */

/* The index at which run k of the axis begins in the source. */
static uint64_t run_start(const struct axis *a, uint64_t k)
{
	uint64_t at = a->base;

	for (size_t i = a->n - 1; i-- > 0;) {
		at += k % a->levels[i].count * a->levels[i].step;
		k /= a->levels[i].count;
	}
	return at;
}

static int count_pieces(const struct cutting *c, uint64_t *ret)
{
	uint64_t n = 1;

	for (size_t i = 0; i < c->n_axes; i++)
		if (!c->axes[i].runs) {
			*ret = 0;
			return 0;
		}
	for (size_t i = 0; i < c->n_axes; i++)
		if (ckd_mul(&n, n, c->axes[i].runs) || n > RECIPE_MAX_PIECES)
			return err_set(c->e, EFBIG, "%.100s:%u: '%.90s' has more than %d pieces",
				       c->r->file, c->from->line, c->from->out, RECIPE_MAX_PIECES);
	*ret = n;
	return 0;
}

/* Data shared by all pieces, and room for each piece's own. */
struct parts {
	struct vtensor v;
	uint64_t shape[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], coeff[CKPT_MAX_DIMS];
	uint8_t dim[CKPT_MAX_DIMS];
};

static void describe(const struct cutting *c, struct parts *p)
{
	size_t n = 0;

	for (size_t d = 0; d < c->n_places; d++)
		p->shape[d] = 1;
	for (size_t i = 0; i < c->n_axes; i++) {
		const struct axis *a = &c->axes[i];
		size_t d;

		if (a->gone)
			continue;
		d = c->to[n].place;
		p->shape[d] *= selected(a);
		if (c->to[n++].outer)
			continue;
		p->len[d] = a->levels[a->n - 1].count;
		/* Meaningless for a single element. */
		p->coeff[d] = p->len[d] > 1 ? a->levels[a->n - 1].step : 1;
		p->dim[d] = (uint8_t)(c->from->n_stacked + i);
	}
	p->v = (struct vtensor){ .stored = c->from->source->stored,
				 .dtype = c->from->source->shown,
				 .n_dims = c->n_places,
				 .shape = p->shape };
}

/* Makes piece k; its n_dims offsets and n_source bases are stored at `numbers`, which are 0. */
static void make_piece(const struct cutting *c, const struct parts *p, uint64_t k,
		       uint64_t *numbers, struct piece *ret)
{
	const struct recipe_source *s = c->from->source;
	uint64_t *off = numbers, *base = numbers + p->v.n_dims;
	size_t stacked = c->from->n_stacked, kept = 0;

	for (size_t i = 0; i < c->n_axes; i++)
		kept += !c->axes[i].gone;

	for (size_t i = 0; i < stacked; i++)
		base[i] = c->from->index[i];
	for (size_t i = c->n_axes; i-- > 0;) {
		const struct axis *a = &c->axes[i];
		uint64_t run = k % a->runs;

		k /= a->runs;
		base[stacked + i] = run_start(a, run);
		if (a->gone)
			continue;
		kept--;
		off[c->to[kept].place] += run * a->levels[a->n - 1].count * c->to[kept].inner;
	}
	*ret = (struct piece){ .source = s->number,
			       .n_source = s->n_dims,
			       .off = off,
			       .len = p->len,
			       .coeff = p->coeff,
			       .dim = p->dim,
			       .base = base };
}

/* Bytes that vtensor_copy will allocate for it and its list entries. */
static uint64_t result_bytes(const struct vtensor *v, uint64_t pieces, size_t n_source)
{
	uint64_t numbers = v->n_dims + pieces * (3ull * v->n_dims + n_source);

	return sizeof(*v) + pieces * (sizeof(*v->pieces) + v->n_dims) + numbers * 8 + 64;
}

int recipe_cut(struct eval *x, const struct cut_from *from, const struct rule_source *s,
	       struct vtensor **ret, struct ckpt_err *e)
{
	struct cutting c = { .from = from, .r = x->r, .e = e };
	autofree struct piece *pieces = NULL;
	autofree uint64_t *numbers = NULL;
	struct parts p;
	uint64_t n = 0;
	size_t each;
	struct arith arith = { 0 };
	int rc = read_axes(x, &c, s->axes, s->order);

	if (!rc && s->compute.op != ARITH_NONE)
		rc = read_computation(x, &c, &s->compute, &arith);
	if (!rc)
		rc = count_pieces(&c, &n);
	if (rc)
		return rc;
	describe(&c, &p);
	p.v.arith = arith;
	each = (size_t)p.v.n_dims + from->source->n_dims;
	rc = recipe_count_steps(x, n * (each + p.v.n_dims), from->line, e);
	if (!rc)
		rc = recipe_count_result(x, result_bytes(&p.v, n, from->source->n_dims), from->line,
					 e);
	if (rc)
		return rc;
	pieces = calloc(n + 1, sizeof(*pieces));
	numbers = calloc(n * each + 1, sizeof(*numbers));
	if (!pieces || !numbers)
		return err_nomem(e);
	for (uint64_t k = 0; k < n; k++)
		make_piece(&c, &p, k, numbers + k * each, &pieces[k]);
	p.v.n_pieces = (uint32_t)n;
	p.v.pieces = pieces;
	return vtensor_copy(&p.v, ret, e);
}

/* ---- joining ---- */

static bool same_but_first_axis(const struct vtensor *v, const struct vtensor *to)
{
	return v->n_dims == to->n_dims && dims_equal(v->n_dims - 1, v->shape + 1, to->shape + 1);
}

/* Sums up the parts: *all has the shape and the number of pieces of the result, but no pieces. */
static int measure(struct eval *x, const char *out, uint32_t line, struct vtensor *const *parts,
		   size_t n, uint64_t *shape, struct vtensor *all, struct ckpt_err *e)
{
	uint64_t pieces = 0, bytes = 0;
	int rc;

	*all = *parts[0];
	if (!all->n_dims)
		return recipe_bad(x->r, line, e,
				  "'%.90s': its parts have no axis to be joined along", out);
	memcpy(shape, all->shape, all->n_dims * sizeof(*shape));
	all->shape = shape;
	shape[0] = 0;
	for (size_t i = 0; i < n; i++) {
		const struct vtensor *v = parts[i];

		if (v->stored != all->stored || v->dtype != all->dtype)
			return recipe_bad(x->r, line, e,
					  "'%.90s': its parts are of different dtypes", out);
		if (!vtensor_alike(v, all))
			return recipe_bad(x->r, line, e,
					  "'%.90s': its parts are computed in different ways", out);
		if (!same_but_first_axis(v, all))
			return recipe_bad(
				x->r, line, e,
				"'%.90s': its parts differ in shape beyond the first axis", out);
		if (ckd_add(&shape[0], shape[0], v->shape[0]))
			return recipe_bad(x->r, line, e, "'%.90s': an axis of more than 2^64", out);
		pieces += v->n_pieces;
		for (uint32_t k = 0; k < v->n_pieces; k++)
			bytes += 8 * (uint64_t)v->pieces[k].n_source;
	}
	if (pieces > RECIPE_MAX_PIECES)
		return err_set(e, EFBIG, "%.100s:%u: '%.90s' has more than %d pieces", x->r->file,
			       line, out, RECIPE_MAX_PIECES);
	all->n_pieces = (uint32_t)pieces;
	rc = recipe_count_steps(x, n + pieces * (3ull * all->n_dims + 1), line, e);
	return rc ? rc : recipe_count_result(x, bytes + result_bytes(all, pieces, 0), line, e);
}

int recipe_join(struct eval *x, const char *out, uint32_t line, struct vtensor *const *parts,
		size_t n, struct vtensor **ret, struct ckpt_err *e)
{
	autofree struct piece *pieces = NULL;
	autofree uint64_t *offs = NULL;
	uint64_t shape[CKPT_MAX_DIMS], before = 0, *off;
	struct vtensor all;
	struct piece *to;
	int rc = measure(x, out, line, parts, n, shape, &all, e);

	if (rc)
		return rc;
	all.pieces = to = pieces = calloc(all.n_pieces + (size_t)1, sizeof(*pieces));
	off = offs = calloc((size_t)all.n_pieces * all.n_dims + 1, sizeof(*offs));
	if (!pieces || !offs)
		return err_nomem(e);
	for (size_t i = 0; i < n; before += parts[i++]->shape[0])
		for (uint32_t k = 0; k < parts[i]->n_pieces; k++, off += all.n_dims) {
			*to = parts[i]->pieces[k];
			memcpy(off, to->off, all.n_dims * sizeof(*off));
			off[0] += before;
			to++->off = off;
		}
	return vtensor_copy(&all, ret, e);
}

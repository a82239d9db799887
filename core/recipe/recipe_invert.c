/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_invert - runs a recipe backwards: finds the stored tensors that it would make the given
 * ones from.
 *
 * Every rule that makes one of the given tensors is cut as it would be cut forwards, out of a
 * tensor of which only the name and the shape are known, and each of the resulting pieces is turned
 * round. The pieces of all rules must then be the whole of every stored tensor, each element once.
 * Finally the recipe is run forwards on what was made.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "model/box.h"
#include "recipe/recipe_internal.h"
#include "tensor/vtensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	UNUSED_SHOWN = 3,
	MAX_PIECES = 1 << 20 /* of a tensor: permuted rows are turned one by one */
};

/* What one rule says of a tensor to be stored. */
struct part {
	const char *stored; /* its name */
	uint32_t at;	    /* position of the result in in->names */
	uint32_t line;
	bool by_layer; /* it has an axis for the outermost loop */
	uint8_t n_dims;
	const uint64_t *shape;
	struct piece *pieces; /* of the tensor to be stored */
	size_t n_pieces;
};

/* A result that the checkpoint lacks, though the rule needs it; and what it could be cut from. */
struct lack {
	const char *out;
	uint32_t line;
	size_t from, n; /* in work.names */
};

struct work {
	struct eval x;
	const struct recipe *r;
	const struct recipe_in *in;
	struct ckpt_err *e;
	const char *prefix;
	struct arena a; /* of all that follows */
	struct part *parts;
	size_t n_parts, cap_parts;
	struct lack *lacks;
	size_t n_lacks, cap_lacks;
	struct lack_name {
		const char *name;
		bool joined; /* needed together with the one before it */
	} * names;
	size_t n_names, cap_names;
	bool *used;	/* by position in in->names */
	bool apart;	/* what belongs to a round of the outermost loop has a name of its own */
	bool could_be;	/* the failure may be due to layers that are not alike */
	uint64_t boxes; /* work left for comparing boxes */
	unsigned depth;
	struct buf name;
};

/* ---- names ---- */

static int write_name(struct work *w, struct run parts, uint32_t line, const char *prefix,
		      unsigned stacked)
{
	return recipe_write_name(&w->x, parts, line, prefix, stacked, &w->name, w->e);
}

static const char *keep_name(struct work *w)
{
	return arena_dup(&w->a, w->name.data, w->name.len + 1);
}

/* Position of the result in in->names, or -1 if there is none; a negative errno in *ret_rc. */
static int64_t find_out(struct work *w, const struct statement *s, int *ret_rc)
{
	*ret_rc = write_name(w, s->name, s->line, "", 0);
	if (!*ret_rc)
		*ret_rc = recipe_count_steps(&w->x, w->name.len * w->depth / 4, s->line, w->e);
	return *ret_rc ? -1 : namelist_find(w->in->names, w->name.data, w->name.len);
}

/* The brackets of a name that are axes: all, but those of the outermost loop if layers are
 * apart. */
static unsigned stacked_of(const struct work *w, struct run parts, bool *ret_by_layer)
{
	unsigned mask = 0, bit = 1;

	*ret_by_layer = false;
	for (uint32_t i = parts.at; i < parts.at + parts.n; i++) {
		const struct name_part *p = &w->r->parts[i];

		if (p->kind != PART_STACKED)
			continue;
		if (p->loop || !w->apart)
			mask |= bit;
		*ret_by_layer |= !p->loop && !w->apart;
		bit <<= 1;
	}
	return mask;
}

/* ---- the shape of a tensor to be stored ---- */

/* One rule cannot be run backwards. */
static int no_way_back(struct work *w, uint32_t line, const char *out, const char *why)
{
	char shown[100];

	return recipe_bad(w->r, line, w->e, "'%s' cannot be inverted: %s",
			  text_show(out, strlen(out), shown, sizeof(shown)), why);
}

/* The length of an axis; dim: that of the result, UINT64_MAX if it is not known. */
static int axis_length(struct work *w, struct run factors, uint32_t line, const char *out,
		       uint64_t dim, uint64_t *ret)
{
	const struct factor *f = &w->r->factors[factors.at];
	uint64_t from, v;
	int rc = 0;

	*ret = 1;
	if (f->any && !f->cut) {
		*ret = dim;
		return dim != UINT64_MAX
			       ? 0
			       : no_way_back(w, line, out,
					     "the length of an axis that it joins is not known");
	}
	if (f->any) {
		rc = recipe_eval(&w->x, f->from, line, &from, w->e);
		if (!rc && (from || f->one))
			return no_way_back(w, line, out,
					   "it drops elements before those it takes, and others "
					   "whose number is not known");
		/* What is dropped after the elements is padding, which need not be written. */
		return rc ? rc : recipe_eval(&w->x, f->to, line, ret, w->e);
	}
	for (uint32_t i = 0; !rc && i < factors.n; i++) {
		rc = recipe_eval(&w->x, f[i].of, line, &v, w->e);
		if (!rc && ckd_mul(ret, *ret, v))
			return recipe_bad(w->r, line, w->e, "'%.80s': an axis of more than 2^64",
					  out);
	}
	return rc;
}

static bool is_dropped(const struct recipe *r, struct run factors)
{
	const struct factor *f = &r->factors[factors.at];

	return factors.n == 1 && f->cut && f->one;
}

/* The length of the result's axis that is the part's axis number `of`; UINT64_MAX if it is more. */
static uint64_t result_axis(const struct recipe *r, struct run order, size_t of, bool joined,
			    const struct recipe_source *out)
{
	const uint8_t *v = r->orders + order.at;
	size_t place = of, axes = 0;
	bool alone = true;

	for (uint32_t i = 0; i < order.n; i++) {
		bool first = !(v[i] & ORDER_JOINED);

		axes += first;
		if ((v[i] & (uint8_t)~ORDER_JOINED) != of)
			continue;
		place = axes - 1;
		alone = first && !(i + 1 < order.n && v[i + 1] & ORDER_JOINED);
	}
	return alone && place < out->n_dims && (place || !joined) ? out->shape[place] : UINT64_MAX;
}

/* The stacked axes, then those that the part of the rule describes. out: the shape of the
 * result. */
static int stored_shape(struct work *w, const struct cut_from *from, const struct rule_source *s,
			bool joined, const struct recipe_source *out, uint64_t *ret, size_t *ret_n)
{
	size_t n = 0, left = 0;
	int rc = 0;

	if (from->n_stacked + s->axes.n > CKPT_MAX_DIMS)
		return recipe_bad(w->r, from->line, w->e, "more than %d axes", CKPT_MAX_DIMS);
	for (; n < from->n_stacked; n++)
		ret[n] = from->count[n];
	for (uint32_t i = 0; !rc && i < s->axes.n; i++) {
		struct run factors = w->r->axes[s->axes.at + i];
		bool dropped = is_dropped(w->r, factors);
		uint64_t dim = UINT64_MAX;

		if (!dropped)
			dim = result_axis(w->r, s->order, left, joined, out);
		left += !dropped;
		rc = axis_length(w, factors, from->line, from->out, dim, &ret[n++]);
	}
	*ret_n = n;
	return rc;
}

/* ---- turning pieces round ---- */

/* How many pieces one becomes: elements of a dimension that are apart become pieces. */
static uint64_t count_turned(const struct vtensor *v, const struct piece *p)
{
	uint64_t n = 1;

	for (size_t d = 0; d < v->n_dims; d++)
		if (p->dim[d] != PIECE_FIXED && p->coeff[d] > 1 && ckd_mul(&n, n, p->len[d]))
			return UINT64_MAX;
	return n;
}

/* Element number k of those that are apart. */
static bool turn(struct work *w, const struct vtensor *v, const struct piece *p, uint32_t source,
		 uint64_t k, struct piece *ret)
{
	size_t n = p->n_source;
	uint64_t *off = arena_array(&w->a, 3 * n + v->n_dims, sizeof(*off));
	uint8_t *dim = arena_array(&w->a, n, 1);
	uint64_t *len, *coeff, *base;

	if (!off || !dim)
		return false;
	len = off + n;
	coeff = off + 2 * n;
	base = off + 3 * n;
	for (size_t a = 0; a < n; a++) {
		off[a] = p->base[a];
		len[a] = coeff[a] = 1;
		dim[a] = PIECE_FIXED;
	}
	for (size_t d = 0; d < v->n_dims; d++) {
		size_t a = p->dim[d];

		base[d] = p->off[d];
		if (a == PIECE_FIXED)
			continue;
		if (p->coeff[d] > 1) {
			off[a] += k % p->len[d] * p->coeff[d];
			base[d] += k % p->len[d];
			k /= p->len[d];
		} else {
			len[a] = p->len[d];
			dim[a] = (uint8_t)d;
		}
	}
	*ret = (struct piece){ .source = source,
			       .n_source = v->n_dims,
			       .off = off,
			       .len = len,
			       .coeff = coeff,
			       .dim = dim,
			       .base = base };
	return true;
}

/* Gives the parts, from `first` on, the pieces of the result that were cut from them. */
static int turn_all(struct work *w, const struct vtensor *v, size_t first, uint32_t source)
{
	uint32_t line = w->parts[first].line;

	for (uint32_t i = 0; i < v->n_pieces; i++) {
		struct part *t = &w->parts[v->pieces[i].source];
		uint64_t n = count_turned(v, &v->pieces[i]);

		if (n > MAX_PIECES || (t->n_pieces += (size_t)n) > MAX_PIECES)
			return recipe_bad(w->r, line, w->e,
					  "'%.90s' would have more than %d pieces", t->stored,
					  MAX_PIECES);
	}
	for (size_t i = first; i < w->n_parts; i++) {
		struct part *t = &w->parts[i];
		size_t each = sizeof(*t->pieces) + 8 * (3 * (size_t)t->n_dims + v->n_dims) + 16;
		int rc = recipe_count_result(&w->x, t->n_pieces * each, line, w->e);

		if (rc)
			return rc;
		t->pieces = arena_array(&w->a, t->n_pieces, sizeof(*t->pieces));
		if (!t->pieces)
			return err_nomem(w->e);
		t->n_pieces = 0;
	}
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];
		struct part *t = &w->parts[p->source];
		uint64_t n = count_turned(v, p);

		for (uint64_t k = 0; k < n; k++)
			if (!turn(w, v, p, source, k, &t->pieces[t->n_pieces++]))
				return err_nomem(w->e);
	}
	return 0;
}

/* ---- rules ---- */

/* The parts of a result, in their order. */
struct cuts {
	struct vtensor **v;
	size_t n, cap;
};

static void cuts_release(struct cuts *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->v[i]);
	free(c->v);
}

static int add_part(struct work *w, const struct statement *s, const struct rule_source *source,
		    bool joined, uint32_t at, const char *out, struct cuts *cuts)
{
	const struct recipe_source *of = &w->in->sources[w->in->names->v[at].index];
	struct recipe_source stored = { .number = (uint32_t)w->n_parts,
					.stored = of->stored,
					.shown = of->shown };
	uint64_t shape[CKPT_MAX_DIMS];
	struct cut_from from;
	struct part *t;
	bool by_layer;
	unsigned mask = stacked_of(w, source->name, &by_layer);
	size_t n = 0;
	int rc = write_name(w, source->name, s->line, w->prefix, mask);

	if (rc)
		return rc;
	if (!VEC_ROOM(w->parts, w->cap_parts, w->n_parts + 1) ||
	    !VEC_ROOM(cuts->v, cuts->cap, cuts->n + 1))
		return err_nomem(w->e);
	t = &w->parts[w->n_parts++];
	*t = (struct part){
		.stored = keep_name(w), .at = at, .line = s->line, .by_layer = by_layer
	};
	if (!t->stored)
		return err_nomem(w->e);
	from = recipe_cut_from(&w->x, source->name, s->line, mask, t->stored, &stored);
	from.out = out;
	rc = stored_shape(w, &from, source, joined, of, shape, &n);
	if (rc)
		return rc;
	t->n_dims = stored.n_dims = (uint8_t)n;
	t->shape = stored.shape = arena_dup(&w->a, shape, n * sizeof(*shape));
	if (!t->shape)
		return err_nomem(w->e);
	rc = recipe_cut(&w->x, &from, source, &cuts->v[cuts->n], w->e);
	cuts->n += !rc;
	return rc;
}

static void show_shape(const uint64_t *v, size_t n, struct buf *ret)
{
	buf_str(ret, "[");
	for (size_t i = 0; i < n; i++)
		buf_printf(ret, "%s%llu", i ? "," : "", (unsigned long long)v[i]);
	buf_str(ret, "]");
}

static int check_shape(struct work *w, const struct statement *s, const char *out,
		       const struct vtensor *made, const struct recipe_source *is)
{
	CLEANUP(buf_release) struct buf have = BUF_INIT(1024);
	CLEANUP(buf_release) struct buf want = BUF_INIT(1024);
	char shown[100];

	if (made->n_dims == is->n_dims && dims_equal(is->n_dims, made->shape, is->shape))
		return 0;
	show_shape(is->shape, is->n_dims, &have);
	show_shape(made->shape, made->n_dims, &want);
	if (have.err || want.err)
		return err_nomem(w->e);
	return recipe_bad(w->r, s->line, w->e, "'%s' is of shape %s, but the recipe makes it %s",
			  text_show(out, strlen(out), shown, sizeof(shown)), have.data, want.data);
}

/* Turns the rule's first alternative round, which is the one that is looked for first. */
static int turn_rule(struct work *w, const struct statement *s, uint32_t at)
{
	const struct rule_source *source = w->r->sources + s->sources.at;
	const struct rule_source *end = source + s->sources.n;
	CLEANUP(cuts_release) struct cuts cuts = { 0 };
	autofree struct vtensor *joined = NULL;
	const struct recipe_source *of = &w->in->sources[w->in->names->v[at].index];
	const char *out = keep_name(w);
	size_t first = w->n_parts;
	bool several = source + 1 < end && source[1].joined;
	const struct vtensor *v;
	int rc;

	if (!out)
		return err_nomem(w->e);
	if (w->used[at])
		return no_way_back(w, s->line, out, "two rules make it");
	w->used[at] = true;
	do
		rc = add_part(w, s, source, several, at, out, &cuts);
	while (!rc && ++source < end && source->joined);
	if (!rc && several)
		rc = recipe_join(&w->x, out, s->line, cuts.v, cuts.n, &joined, w->e);
	if (rc)
		return rc;
	v = several ? joined : cuts.v[0];
	if (v->arith.op != ARITH_NONE)
		return no_way_back(w, s->line, out, "it computes, which rounds");
	rc = check_shape(w, s, out, v, of);
	return rc ? rc : turn_all(w, v, first, of->number);
}

/* The checkpoint has no such result: notes what it could be cut from. */
static int note_lack(struct work *w, const struct statement *s)
{
	const char *out = keep_name(w);
	struct lack *l;

	if (!out || !VEC_ROOM(w->lacks, w->cap_lacks, w->n_lacks + 1))
		return err_nomem(w->e);
	l = &w->lacks[w->n_lacks++];
	*l = (struct lack){ .out = out, .line = s->line, .from = w->n_names };
	for (uint32_t i = s->sources.at; i < s->sources.at + s->sources.n; i++, l->n++) {
		const struct rule_source *source = &w->r->sources[i];
		bool by_layer;
		int rc = write_name(w, source->name, s->line, w->prefix,
				    stacked_of(w, source->name, &by_layer));

		if (rc)
			return rc;
		if (!VEC_ROOM(w->names, w->cap_names, w->n_names + 1))
			return err_nomem(w->e);
		w->names[w->n_names] = (struct lack_name){ keep_name(w), source->joined };
		if (!w->names[w->n_names++].name)
			return err_nomem(w->e);
	}
	return recipe_count_result(&w->x, sizeof(*l) + l->n * 2 * RECIPE_MAX_BRACKETS, s->line,
				   w->e);
}

static int do_rule(void *arg, const struct statement *s)
{
	struct work *w = arg;
	int rc;
	int64_t at = find_out(w, s, &rc);

	if (rc)
		return rc;
	if (at >= 0)
		return turn_rule(w, s, (uint32_t)at);
	return s->optional ? 0 : note_lack(w, s);
}

/*
 * A tensor is stored if a rule of the condition makes one of the given tensors from it, and if all
 * that these rules need is given: the other branch may have rules for the same tensors.
 */
static int holds(void *arg, uint32_t at, bool *ret)
{
	struct work *w = arg;
	const struct statement *s = &w->r->statements[at], *rule;
	CLEANUP(buf_release) struct buf wanted = BUF_INIT(RECIPE_MAX_NAME);
	bool by_layer, found = false, all = true;
	int rc = recipe_write_name(&w->x, s->name, s->line, w->prefix,
				   stacked_of(w, s->name, &by_layer), &wanted, w->e);

	for (uint32_t i = at + 1; !rc && i < s->other;) {
		const struct rule_source *source;
		int64_t out;

		rule = &w->r->statements[i];
		i = rule->kind == DO_FOR || rule->kind == DO_IF ? rule->end : i + 1;
		if (rule->kind != DO_RULE)
			continue;
		out = find_out(w, rule, &rc);
		all &= out >= 0 || rule->optional;
		source = w->r->sources + rule->sources.at;
		if (!rc && out >= 0)
			rc = write_name(w, source->name, rule->line, w->prefix,
					stacked_of(w, source->name, &by_layer));
		found |= !rc && out >= 0 && !strcmp(w->name.data, wanted.data);
	}
	*ret = found && all;
	return rc;
}

/* ---- the tensors ---- */

static int by_stored(const void *ap, const void *bp)
{
	const struct part *a = ap, *b = bp;
	int c = strcmp(a->stored, b->stored);

	return c ? c : a->at < b->at ? -1 : a->at > b->at;
}

static int not_whole(struct work *w, const struct part *t, const char *what)
{
	char shown[100];

	w->could_be |= t->by_layer;
	return recipe_bad(w->r, t->line, w->e, "the recipe cannot be run backwards: %s '%s'", what,
			  text_show(t->stored, strlen(t->stored), shown, sizeof(shown)));
}

/* No result fills some of its elements: perhaps they are those of one that the checkpoint lacks. */
static int has_hole(struct work *w, const struct part *t)
{
	char shown[100];

	for (size_t i = 0; i < w->n_lacks; i++) {
		const struct lack *l = &w->lacks[i];

		for (size_t k = l->from; k < l->from + l->n; k++) {
			if (strcmp(w->names[k].name, t->stored) != 0)
				continue;
			w->could_be |= t->by_layer;
			return recipe_bad(w->r, l->line, w->e, "the checkpoint has no '%s'",
					  text_show(l->out, strlen(l->out), shown, sizeof(shown)));
		}
	}
	return not_whole(w, t, "no rule uses, or no given tensor fills, some elements of");
}

static int check_cover(struct work *w, const struct part *t, const struct vtensor *v)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], volume, *row;
	size_t n = v->n_dims, pair[2];
	autofree uint64_t *rows = NULL;

	if (!box_volume(n, v->shape, &volume))
		return recipe_bad(w->r, t->line, w->e, "'%.90s' would have more than 2^63 elements",
				  t->stored);
	if (!volume)
		return 0;
	row = rows = calloc(v->n_pieces + (size_t)1, (2 * n + 1) * sizeof(*rows));
	if (!rows)
		return err_nomem(w->e);
	for (uint32_t i = 0; i < v->n_pieces; i++, row += 2 * n) {
		memcpy(row, v->pieces[i].off, n * sizeof(*row));
		memcpy(row + n, v->pieces[i].len, n * sizeof(*row));
	}
	errno = 0;
	switch (boxes_cover(n, v->shape, rows, v->n_pieces, &w->boxes, off, len, pair)) {
	case BOXES_COVER:
		return 0;
	case BOXES_OVERLAP:
		return not_whole(w, t, "two rules use the same elements of");
	case BOXES_HOLE:
		return has_hole(w, t);
	default:
		if (errno == ENOMEM)
			return err_nomem(w->e);
		return not_whole(w, t, "it is too irregular to tell what rules use of");
	}
}

/* The n parts of one tensor. */
static int make_tensor(struct work *w, const struct part *t, size_t n, struct vtensor **ret)
{
	const struct recipe_source *of = &w->in->sources[w->in->names->v[t->at].index];
	struct vtensor v = {
		.stored = of->stored, .dtype = of->shown, .n_dims = t->n_dims, .shape = t->shape
	};
	autofree struct piece *pieces = NULL;
	size_t count = 0;
	int rc;

	for (size_t i = 0; i < n; i++) {
		const struct recipe_source *s = &w->in->sources[w->in->names->v[t[i].at].index];

		count += t[i].n_pieces;
		if (t[i].n_dims != t->n_dims || !dims_equal(t->n_dims, t[i].shape, t->shape))
			return not_whole(w, t, "its rules disagree about the shape of");
		if (s->stored != of->stored || s->shown != of->shown)
			return not_whole(w, t, "tensors of different dtypes would be in");
		if (count > MAX_PIECES)
			return recipe_bad(w->r, t->line, w->e,
					  "'%.90s' would have more than %d pieces", t->stored,
					  MAX_PIECES);
	}
	pieces = calloc(count + 1, sizeof(*pieces));
	if (!pieces)
		return err_nomem(w->e);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < t[i].n_pieces; k++)
			pieces[v.n_pieces++] = t[i].pieces[k];
	v.pieces = pieces;
	rc = check_cover(w, t, &v);
	return rc ? rc : vtensor_copy(&v, ret, w->e);
}

static int keep_tensor(struct recipe_out *o, size_t *cap, const char *stored, struct vtensor *v,
		       struct ckpt_err *e)
{
	const char *name = namelist_copy(&o->names, stored, strlen(stored));

	if (!name || !VEC_ROOM(o->tensors, *cap, o->names.n + 1)) {
		free(v);
		return err_nomem(e);
	}
	o->tensors[o->names.n] = v;
	if (!namelist_add(&o->names, name, strlen(name), (uint32_t)o->names.n, e))
		return 0;
	free(v);
	return -e->code;
}

static int make_tensors(struct work *w, struct recipe_out *out)
{
	size_t cap = 0, n;
	int rc = 0;

	qsort(w->parts, w->n_parts, sizeof(*w->parts), by_stored);
	for (size_t i = 0; !rc && i < w->n_parts; i += n) {
		struct vtensor *v;

		for (n = 1;
		     i + n < w->n_parts && !strcmp(w->parts[i].stored, w->parts[i + n].stored);)
			n++;
		rc = make_tensor(w, &w->parts[i], n, &v);
		if (!rc)
			rc = keep_tensor(out, &cap, w->parts[i].stored, v, w->e);
	}
	return rc ? rc : namelist_finish(&out->names, NULL, NULL, w->e);
}

/* ---- checks ---- */

/* What is lacking must be in tensors that others fill, such as a head that is the embedding. */
static int check_lacks(struct work *w, const struct recipe_out *out)
{
	char shown[100];

	for (size_t i = 0; i < w->n_lacks; i++) {
		const struct lack *l = &w->lacks[i];
		bool there = false, any = false;

		for (size_t k = l->from; k < l->from + l->n; k++) {
			const struct lack_name *name = &w->names[k];

			any |= !name->joined && there;
			there = (there || !name->joined) &&
				namelist_find(&out->names, name->name, strlen(name->name)) >= 0;
		}
		if (!there && !any)
			return recipe_bad(w->r, l->line, w->e, "the checkpoint has no '%s'",
					  text_show(l->out, strlen(l->out), shown, sizeof(shown)));
	}
	return 0;
}

static int check_unused(struct work *w)
{
	const struct namelist *t = w->in->names;
	CLEANUP(buf_release) struct buf b = BUF_INIT(512);
	char shown[80];
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		if (!w->used[i] && n++ < UNUSED_SHOWN)
			buf_printf(&b, "%s'%s'", n > 1 ? ", " : "",
				   text_show(t->v[i].fqn, t->v[i].len, shown, sizeof(shown)));
	if (n > UNUSED_SHOWN)
		buf_printf(&b, " and %zu more tensor%s", n - UNUSED_SHOWN,
			   n == UNUSED_SHOWN + 1 ? "" : "s");
	if (!n)
		return 0;
	if (b.err)
		return err_nomem(w->e);
	return err_set(w->e, EINVAL,
		       "%.100s: no rule makes %s, which would be lost: exclude what is not needed",
		       w->r->file, b.data);
}

/* Forwards, the tensors made must decide each condition as it was decided here. */
struct branches {
	struct work *w;
	const struct namelist *made;
};

static int no_rule(void *arg, const struct statement *s)
{
	(void)arg;
	(void)s;
	return 0;
}

/* Whichever of its brackets are axes, as when run forwards. */
static int is_made(struct branches *b, const struct statement *s, bool *ret)
{
	unsigned all = 1;
	int rc = 0;

	for (uint32_t i = s->name.at; i < s->name.at + s->name.n; i++)
		all <<= b->w->r->parts[i].kind == PART_STACKED;
	*ret = false;
	for (unsigned stacked = 0; !rc && !*ret && stacked < all; stacked++) {
		rc = write_name(b->w, s->name, s->line, b->w->prefix, stacked);
		*ret = !rc && namelist_find(b->made, b->w->name.data, b->w->name.len) >= 0;
	}
	return rc;
}

static int same_branch(void *arg, uint32_t at, bool *ret)
{
	struct branches *b = arg;
	const struct statement *s = &b->w->r->statements[at];
	bool made;
	int rc = holds(b->w, at, ret);

	if (!rc)
		rc = is_made(b, s, &made);
	if (!rc && made != *ret)
		rc = recipe_bad(
			b->w->r, s->line, b->w->e,
			"the recipe cannot be run backwards: the tensors given are those of "
			"one branch, but forwards the other would be taken, because '%.90s' "
			"is%s stored",
			b->w->name.data, made ? "" : " not");
	return rc;
}

/*
 * Runs the recipe forwards on the tensors made. If the same branches are taken, each rule finds the
 * elements that were put there for it.
 */
static int check_back(struct work *w, const struct recipe_out *out)
{
	struct branches branches = { w, &out->names };
	struct recipe_walk walk = { &w->x, w->e, no_rule, same_branch, &branches };
	autofree struct recipe_source *sources = calloc(out->names.n + 1, sizeof(*sources));
	struct recipe_in in = { .names = &out->names, .sources = sources, .facts = w->in->facts };
	struct recipe_out back;
	const struct named *lost = NULL;
	char shown[100];
	int rc;

	if (!sources)
		return err_nomem(w->e);
	rc = recipe_walk(&walk, 0, w->r->n_statements);
	if (rc)
		return rc;
	for (size_t i = 0; i < out->names.n; i++) {
		const struct vtensor *v = out->tensors[i];

		sources[i] = (struct recipe_source){ v->shape, (uint32_t)i, v->stored, v->dtype,
						     v->n_dims };
	}
	rc = recipe_apply(w->r, &in, &back, w->e);
	if (rc)
		return rc;
	for (size_t i = 0; i < w->in->names->n && !lost; i++) {
		const struct named *name = &w->in->names->v[i];
		const struct recipe_source *s = &w->in->sources[name->index];
		int64_t at = namelist_find(&back.names, name->fqn, name->len);
		const struct vtensor *v = at < 0 ? NULL : back.tensors[back.names.v[at].index];

		if (!v || v->n_dims != s->n_dims || !dims_equal(s->n_dims, v->shape, s->shape))
			lost = name;
	}
	recipe_out_release(&back);
	return lost ? err_set(w->e, EINVAL,
			      "%.100s: the recipe cannot be run backwards: it would not make '%s' "
			      "again",
			      w->r->file, text_show(lost->fqn, lost->len, shown, sizeof(shown)))
		    : 0;
}

/* ---- all of it ---- */

/* Megatron itself uses no prefix, so that is preferred if the recipe lists it. */
static const char *choose_prefix(const struct recipe *r)
{
	for (uint32_t i = 0; r->probe && i < r->n_prefixes; i++)
		if (!*r->prefixes[i])
			return "";
	return r->probe && r->n_prefixes ? r->prefixes[0] : "";
}

static int attempt(struct work *w, struct recipe_out *out)
{
	struct recipe_walk walk = { &w->x, w->e, do_rule, holds, w };
	int rc;

	arena_release(&w->a);
	w->a = (struct arena)ARENA_INIT(2 * (size_t)RECIPE_MAX_RESULTS);
	w->n_parts = w->n_lacks = w->n_names = 0;
	w->could_be = false;
	memset(w->used, 0, w->in->names->n * sizeof(*w->used));
	*out = (struct recipe_out){ 0 };
	rc = recipe_walk(&walk, 0, w->r->n_statements);
	if (!rc)
		rc = check_unused(w);
	if (!rc)
		rc = make_tensors(w, out);
	if (!rc)
		rc = check_lacks(w, out);
	if (!rc)
		rc = check_back(w, out);
	if (rc)
		recipe_out_release(out);
	return rc;
}

int recipe_invert(const struct recipe *r, const struct recipe_in *in, struct recipe_out *ret,
		  struct ckpt_err *e)
{
	const struct ckpt_err before = *e;
	struct recipe_out out;
	struct work w = { .x = { .r = r, .facts = in->facts },
			  .r = r,
			  .in = in,
			  .e = e,
			  .prefix = choose_prefix(r),
			  .boxes = BOXES_MAX_WORK,
			  .name = BUF_INIT(RECIPE_MAX_NAME) };
	int rc = 0;

	while (in->names->n >> w.depth)
		w.depth++;
	w.x.params = calloc((size_t)r->n_params + 1, sizeof(*w.x.params));
	w.used = calloc(in->names->n + 1, sizeof(*w.used));
	if (!w.x.params || !w.used)
		rc = err_nomem(e);
	if (!rc)
		rc = attempt(&w, &out);
	if (rc && w.could_be) {
		*e = before;
		w.apart = true;
		w.x.results = 0;
		rc = attempt(&w, &out);
	}
	if (!rc)
		*ret = out;
	arena_release(&w.a);
	free(w.parts);
	free(w.lacks);
	free(w.names);
	free(w.x.params);
	free(w.used);
	buf_release(&w.name);
	return rc;
}

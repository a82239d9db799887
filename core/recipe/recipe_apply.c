/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_apply - executes the statements of a recipe on the tensors of a checkpoint.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "recipe/recipe_internal.h"
#include "tensor/vtensor.h"

#include <stdlib.h>
#include <string.h>

enum { UNUSED_SHOWN = 3 };

struct work {
	struct eval x;
	const struct recipe *r;
	const struct recipe_in *in;
	struct ckpt_err *e;
	struct recipe_out *out;
	const char *prefix;
	bool *used;	   /* by position in in->names, like the next member: */
	uint32_t *made_of; /* by index of out->tensors, for messages */
	size_t cap_made_of, cap_tensors;
	struct buf name, tried;
	unsigned depth; /* binary logarithm of the number of stored tensors */
};

/* ---- names ---- */

/* Writes the name to w->name. */
static int write_name(struct work *w, struct run parts, uint32_t line, const char *prefix,
		      unsigned stacked)
{
	return recipe_write_name(&w->x, parts, line, prefix, stacked, &w->name, w->e);
}

static unsigned count_brackets(const struct work *w, struct run parts)
{
	unsigned n = 0;

	for (uint32_t i = parts.at; i < parts.at + parts.n; i++)
		n += w->r->parts[i].kind == PART_STACKED;
	return n;
}

/* A stored tensor: its position in in->names, and which of its brackets are axes. */
struct found {
	uint32_t at;
	unsigned stacked;
	char name[RECIPE_MAX_NAME + 1];
};

/* 1: it does not exist; the names tried are added to w->tried. */
static int find_stored(struct work *w, struct run parts, uint32_t line, struct found *ret)
{
	unsigned all = 1u << count_brackets(w, parts);
	char shown[100], other[100];
	bool found = false;

	for (unsigned stacked = 0; stacked < all; stacked++) {
		int rc = write_name(w, parts, line, w->prefix, stacked);
		int64_t at;

		/* Comparing names with a common prefix takes time up to the first difference. */
		if (!rc)
			rc = recipe_count_steps(&w->x, w->name.len * w->depth / 4, line, w->e);
		if (rc)
			return rc;
		at = namelist_find(w->in->names, w->name.data, w->name.len);
		(void)text_show(w->name.data, w->name.len, shown, sizeof(shown));
		if (at < 0) {
			if (w->tried.len < 200) /* longer text would not fit the message */
				buf_printf(&w->tried, "%s'%s'", w->tried.len ? ", " : "", shown);
			continue;
		}
		if (found)
			return recipe_bad(
				w->r, line, w->e, "there are both '%s' and '%s'",
				text_show(ret->name, strlen(ret->name), other, sizeof(other)),
				shown);
		found = true;
		if (w->in->found)
			++*w->in->found;
		ret->at = (uint32_t)at;
		ret->stacked = stacked;
		memcpy(ret->name, w->name.data, w->name.len + 1);
	}
	return !found;
}

/* ---- rules ---- */

static int keep_tensor(struct work *w, const char *out, uint32_t made_of, struct vtensor *v)
{
	struct recipe_out *o = w->out;
	const char *name;

	if (!VEC_ROOM(o->tensors, w->cap_tensors, o->names.n + 1) ||
	    !VEC_ROOM(w->made_of, w->cap_made_of, o->names.n + 1))
		return err_nomem(w->e);
	name = namelist_copy(&o->names, out, strlen(out));
	if (!name)
		return err_nomem(w->e);
	o->tensors[o->names.n] = v;
	w->made_of[o->names.n] = made_of;
	return namelist_add(&o->names, name, strlen(name), (uint32_t)o->names.n, w->e);
}

static int missing(struct work *w, const struct statement *s)
{
	int rc = write_name(w, s->name, s->line, "", 0);
	char out[100];

	if (rc)
		return rc;
	return recipe_bad(w->r, s->line, w->e, "'%s' needs a tensor that does not exist: %s",
			  text_show(w->name.data, w->name.len, out, sizeof(out)),
			  w->tried.err ? "" : w->tried.data);
}

/* The parts of a result, in their order. */
struct parts {
	struct vtensor **v;
	size_t n, cap;
};

static void parts_release(struct parts *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->v[i]);
	free(p->v);
}

static int add_part(struct work *w, const struct statement *s, const struct rule_source *source,
		    const struct found *f, const char *out, struct parts *p)
{
	struct cut_from from = recipe_cut_from(&w->x, source->name, s->line, f->stacked, f->name,
					       &w->in->sources[w->in->names->v[f->at].index]);
	int rc;

	from.out = out;
	if (!VEC_ROOM(p->v, p->cap, p->n + 1))
		return err_nomem(w->e);
	rc = recipe_cut(&w->x, &from, source, &p->v[p->n], w->e);
	if (rc)
		return rc;
	p->n++;
	w->used[f->at] = true;
	return 0;
}

/* Makes the result of the source found and of those joined to it, up to `end`. */
static int cut(struct work *w, const struct statement *s, const struct rule_source *source,
	       const struct rule_source *end, const struct found *first)
{
	CLEANUP(parts_release) struct parts p = { 0 };
	autofree struct found *more = NULL;
	autofree struct vtensor *v = NULL;
	autofree char *out = NULL;
	int rc = write_name(w, s->name, s->line, "", 0);

	if (!rc)
		rc = recipe_count_result(&w->x, w->name.len + 1, s->line, w->e);
	if (rc)
		return rc;
	out = strdup(w->name.data);
	more = malloc(sizeof(*more));
	if (!out || !more)
		return err_nomem(w->e);
	rc = add_part(w, s, source, first, out, &p);
	while (!rc && ++source < end && source->joined) {
		w->tried.len = 0;
		rc = find_stored(w, source->name, s->line, more);
		if (rc)
			return rc < 0 ? rc : missing(w, s);
		rc = add_part(w, s, source, more, out, &p);
	}
	if (!rc && p.n == 1)
		v = p.v[--p.n];
	else if (!rc)
		rc = recipe_join(&w->x, out, s->line, p.v, p.n, &v, w->e);
	if (!rc)
		rc = keep_tensor(w, out, first->at, v);
	if (!rc)
		v = NULL;
	return rc;
}

static int do_rule(void *arg, const struct statement *s)
{
	struct work *w = arg;
	const struct rule_source *source = w->r->sources + s->sources.at;
	const struct rule_source *end = source + s->sources.n;
	struct found f;

	for (w->tried.len = 0; source < end; source++) {
		int rc = source->joined ? 1 : find_stored(w, source->name, s->line, &f);

		if (rc != 1)
			return rc ? rc : cut(w, s, source, end, &f);
	}
	return s->optional ? 0 : missing(w, s);
}

/* The condition of an `if`: is it stored? */
static int is_stored(void *arg, uint32_t at, bool *ret)
{
	struct work *w = arg;
	const struct statement *s = &w->r->statements[at];
	struct found f;
	int rc;

	w->tried.len = 0;
	rc = find_stored(w, s->name, s->line, &f);
	*ret = !rc;
	return rc < 0 ? rc : 0;
}

/* ---- prefix and warnings ---- */

static int find_prefix(struct work *w)
{
	char name[80];

	w->prefix = "";
	if (!w->r->probe)
		return 0;
	for (uint32_t i = 0; i < w->r->n_prefixes; i++) {
		w->prefix = w->r->prefixes[i];
		w->name.len = 0;
		buf_str(&w->name, w->prefix);
		buf_str(&w->name, w->r->probe);
		if (w->name.err)
			return err_set(w->e, w->name.err, "%.100s: prefix", w->r->file);
		if (namelist_find(w->in->names, w->name.data, w->name.len) >= 0) {
			if (w->in->found)
				++*w->in->found;
			return 0;
		}
		buf_printf(&w->tried, "%s%.40s", i ? ", " : "", *w->prefix ? w->prefix : "none");
	}
	return recipe_bad(w->r, w->r->probe_line, w->e,
			  "there is no tensor '%s' with any of the prefixes %.200s",
			  text_show(w->r->probe, strlen(w->r->probe), name, sizeof(name)),
			  w->tried.err ? "" : w->tried.data);
}

static bool ignored(const struct recipe *r, const struct named *name, uint64_t *glob_steps)
{
	for (uint32_t i = 0; i < r->n_ignored; i++)
		if (text_glob_within(r->ignored[i], name->fqn, name->len, glob_steps))
			return true;
	return false;
}

/* Tensors that no rule uses are usually a mistake in the recipe. */
static int warn_unused(struct work *w)
{
	uint64_t glob_steps = TEXT_GLOB_STEPS;
	const struct namelist *t = w->in->names;
	struct buf b = BUF_INIT(512);
	char name[80];
	size_t n = 0;

	buf_printf(&b, "%.100s: no rule uses ", w->r->file);
	for (size_t i = 0; i < t->n; i++) {
		if (w->used[i] || ignored(w->r, &t->v[i], &glob_steps) || n++ >= UNUSED_SHOWN)
			continue;
		buf_printf(&b, "%s'%s'", n > 1 ? ", " : "",
			   text_show(t->v[i].fqn, t->v[i].len, name, sizeof(name)));
	}
	if (!glob_steps) {
		buf_release(&b);
		(void)text_glob_check(glob_steps, "ignore", w->e);
		return err_wrap(w->e, "%.100s", w->r->file);
	}
	if (n > UNUSED_SHOWN)
		buf_printf(&b, " and %zu more tensor%s", n - UNUSED_SHOWN,
			   n == UNUSED_SHOWN + 1 ? "" : "s");
	if (n && w->in->warn && !b.err)
		w->in->warn(w->in->warn_arg, b.data);
	buf_release(&b);
	return 0;
}

/* The stored tensor that result number `index` is made of. */
static void stored_name(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct work *w = arg;
	const struct named *from = &w->in->names->v[w->made_of[index]];

	*ret = from->fqn;
	*ret_len = from->len;
}

int recipe_apply(const struct recipe *r, const struct recipe_in *in, struct recipe_out *ret,
		 struct ckpt_err *e)
{
	struct recipe_out out = { 0 };
	struct work w = { .x = { .r = r, .facts = in->facts },
			  .r = r,
			  .in = in,
			  .e = e,
			  .out = &out,
			  .name = BUF_INIT(RECIPE_MAX_NAME),
			  .tried = BUF_INIT(4096) };
	struct recipe_walk walk = { &w.x, e, do_rule, is_stored, &w };
	int rc = 0;

	while (in->names->n >> w.depth)
		w.depth++;
	w.x.params = calloc((size_t)r->n_params + 1, sizeof(*w.x.params));
	w.used = calloc(in->names->n + 1, sizeof(*w.used));
	if (!w.x.params || !w.used)
		rc = err_nomem(e);
	if (!rc)
		rc = find_prefix(&w);
	if (!rc)
		rc = recipe_walk(&walk, 0, r->n_statements);
	if (!rc && namelist_finish(&out.names, stored_name, &w, e))
		rc = err_wrap(e, "%.100s", r->file);
	if (!rc)
		rc = warn_unused(&w);
	if (rc)
		recipe_out_release(&out);
	else
		*ret = out;
	free(w.x.params);
	free(w.used);
	free(w.made_of);
	buf_release(&w.name);
	buf_release(&w.tried);
	return rc;
}

void recipe_out_release(struct recipe_out *o)
{
	for (size_t i = 0; i < o->names.n; i++)
		free(o->tensors[o->names.v[i].index]);
	free(o->tensors);
	namelist_release(&o->names);
}

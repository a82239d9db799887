/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_walk - the statements of a recipe in the order in which they are executed, in either
 * direction: loops, conditions and names.
 */
#include "base/buf.h"
#include "base/err.h"
#include "recipe/recipe_internal.h"

#include <errno.h>

/* ---- names ---- */

int recipe_write_name(struct eval *x, struct run parts, uint32_t line, const char *prefix,
		      unsigned stacked, struct buf *b, struct ckpt_err *e)
{
	uint64_t v;
	int rc = 0;

	b->len = 0;
	buf_str(b, prefix);
	for (uint32_t i = parts.at; !rc && i < parts.at + parts.n; i++) {
		const struct name_part *part = &x->r->parts[i];

		switch (part->kind) {
		case PART_TEXT:
			buf_add(b, part->text, part->len);
			break;
		case PART_NUMBER:
			rc = recipe_eval(x, part->expr, line, &v, e);
			if (!rc)
				buf_u64(b, v);
			break;
		default:
			if (!(stacked & 1))
				buf_printf(b, "%llu.", (unsigned long long)x->loops[part->loop]);
			stacked >>= 1;
		}
	}
	if (!rc)
		rc = recipe_count_steps(x, 64 + b->len, line, e);
	if (!rc && b->err)
		rc = b->err == EFBIG ? recipe_bad(x->r, line, e, "a name of more than %d bytes",
						  RECIPE_MAX_NAME)
				     : err_nomem(e);
	return rc;
}

struct cut_from recipe_cut_from(const struct eval *x, struct run name, uint32_t line,
				unsigned stacked, const char *stored,
				const struct recipe_source *source)
{
	struct cut_from from = { .source = source, .stored = stored, .line = line };
	unsigned bit = 0;

	for (uint32_t i = name.at; i < name.at + name.n; i++) {
		const struct name_part *part = &x->r->parts[i];

		if (part->kind != PART_STACKED || !(stacked >> bit++ & 1))
			continue;
		from.index[from.n_stacked] = x->loops[part->loop];
		from.count[from.n_stacked++] = x->loop_ends[part->loop];
	}
	return from;
}

/* ---- statements ---- */

static int count_step(struct recipe_walk *w, uint32_t line)
{
	return recipe_count_steps(w->x, 64, line, w->e);
}

static int do_for(struct recipe_walk *w, uint32_t at)
{
	const struct statement *s = &w->x->r->statements[at];
	uint64_t from = 0, to;
	int rc = s->from.n ? recipe_eval(w->x, s->from, s->line, &from, w->e) : 0;

	if (!rc)
		rc = recipe_eval(w->x, s->to, s->line, &to, w->e);
	if (rc)
		return rc;
	w->x->loop_ends[s->loop] = to;
	for (; !rc && from < to; from++) {
		w->x->loops[s->loop] = from;
		rc = count_step(w, s->line);
		if (!rc)
			rc = recipe_walk(w, at + 1, s->end);
	}
	return rc;
}

static int do_if(struct recipe_walk *w, uint32_t at)
{
	const struct statement *s = &w->x->r->statements[at];
	bool holds;
	int rc = w->holds(w->arg, at, &holds);

	if (rc)
		return rc;
	return holds ? recipe_walk(w, at + 1, s->other) : recipe_walk(w, s->other, s->end);
}

static int do_refuse(struct recipe_walk *w, const struct statement *s)
{
	uint64_t v;
	int rc = recipe_eval(w->x, s->to, s->line, &v, w->e);

	if (rc || !v)
		return rc < 0 ? rc : 0;
	return recipe_bad(w->x->r, s->line, w->e, "%s", s->text);
}

/* Recursion depth is the nesting depth of the recipe. */
int recipe_walk(struct recipe_walk *w, uint32_t at, uint32_t end)
{
	int rc = 0;

	while (!rc && at < end) {
		const struct statement *s = &w->x->r->statements[at];

		rc = count_step(w, s->line);
		if (rc)
			return rc;
		switch (s->kind) {
		case DO_FOR:
			rc = do_for(w, at);
			break;
		case DO_IF:
			rc = do_if(w, at);
			break;
		case DO_REFUSE:
			rc = do_refuse(w, s);
			break;
		default:
			rc = w->rule(w->arg, s);
		}
		at = s->kind == DO_FOR || s->kind == DO_IF ? s->end : at + 1;
	}
	return rc;
}

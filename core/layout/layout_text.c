/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_text - parses the layout language, see layout/layout.h.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "layout/layout_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
	struct layout *l;
	struct ckpt_err *e;
	uint32_t line;
	char *at; /* rest of the line, NUL-terminated */
	const char *axes[CKPT_MESH_MAX_AXES];
	uint64_t mesh[CKPT_MESH_MAX_AXES];
	uint8_t n_axes;
};

static int bad(const struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(const struct reader *r, const char *fmt, ...)
{
	char what[200];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(r->e, EINVAL, "%.150s:%u: %s", r->l->name, r->line, what);
}

/* Words of the file for messages; one at a time. */
static const char *show(const char *s, char out[static 100])
{
	return text_show(s, strlen(s), out, 100);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* The next word, or NULL at the end of the line. A backslash keeps the following blank in the word,
 * and stays in it. */
static char *next_word(struct reader *r)
{
	char *s = r->at, *word;

	while (is_blank(*s))
		s++;
	if (!*s || *s == '#')
		return NULL;
	for (word = s; *s && !is_blank(*s); s++)
		if (*s == '\\' && s[1])
			s++;
	r->at = s + (*s != 0);
	*s = 0;
	return word;
}

/* ---- mesh NAME=SIZE ... ---- */

static bool is_name(const char *s)
{
	static const char more[] = "0123456789_-.";
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";

	if (!*s || !strchr(letters, *s))
		return false;
	while (*s && (strchr(letters, *s) || strchr(more, *s)))
		s++;
	return !*s;
}

static size_t find_axis(const struct reader *r, const char *name)
{
	size_t i = 0;

	while (i < r->n_axes && strcmp(r->axes[i], name) != 0)
		i++;
	return i;
}

static int read_axis(struct reader *r, char *word)
{
	char *eq = strchr(word, '=');
	uint64_t size = 0;
	char tmp[100];
	bool ok;

	if (eq)
		*eq = 0;
	ok = eq && is_name(word) && layout_number(eq + 1, CKPT_MESH_MAX_RANKS, &size);
	if (!ok && eq)
		*eq = '=';
	if (!ok)
		return bad(r, "'%s' is not NAME=SIZE", show(word, tmp));
	if (find_axis(r, word) < r->n_axes)
		return bad(r, "axis '%s' is named twice", show(word, tmp));
	if (!size)
		return bad(r, "axis '%s' has size 0", show(word, tmp));
	if (r->n_axes == CKPT_MESH_MAX_AXES)
		return bad(r, "more than %d axes", CKPT_MESH_MAX_AXES);
	r->axes[r->n_axes] = word;
	r->mesh[r->n_axes++] = size;
	return 0;
}

static int read_mesh(struct reader *r)
{
	char *word;

	if (r->n_axes)
		return bad(r, "a second mesh line");
	while ((word = next_word(r))) {
		int rc = read_axis(r, word);

		if (rc)
			return rc;
	}
	if (!r->n_axes)
		return bad(r, "a mesh without axes");
	if (!mesh_size(r->n_axes, r->mesh, &r->l->mesh_ranks))
		return bad(r, "a mesh of more than %u ranks", CKPT_MESH_MAX_RANKS);
	return 0;
}

/* ---- GLOB (replicate | AXIS:DIM ...) ---- */

static int read_placement(struct reader *r, char *word, struct layout_spec *s)
{
	char *colon = strrchr(word, ':'), tmp[100];
	bool back = colon && colon[1] == '-';
	uint64_t dim;
	size_t axis;

	if (!colon || colon == word || !layout_number(colon + 1 + back, CKPT_MAX_DIMS, &dim))
		return bad(r, "'%s' is not AXIS:DIM", show(word, tmp));
	if (dim >= CKPT_MAX_DIMS + (uint64_t)back)
		return bad(r, "'%s': tensors have at most %d dimensions", show(word, tmp),
			   CKPT_MAX_DIMS);
	*colon = 0;
	axis = find_axis(r, word);
	if (axis == r->n_axes)
		return bad(r, "unknown axis '%s'", show(word, tmp));
	for (size_t i = 0; i < s->n; i++)
		if (s->placements[i].axis == axis)
			return bad(r, "axis '%s' is used twice", show(word, tmp));
	s->placements[s->n++] =
		(struct ckpt_placement){ (uint8_t)axis, (int8_t)(back ? -(int)dim : (int)dim),
					 CKPT_SPLIT_CEIL };
	return 0;
}

/* From the literal characters of a glob, as far as easily found: up to the first [...]. */
static uint64_t glob_pairs(const char *p)
{
	uint64_t pairs = 0;
	char before = 0;

	for (; *p && *p != '['; p++) {
		if (*p == '*' || *p == '?' || (*p == '\\' && p[1])) {
			p += *p == '\\';
			before = 0;
			continue;
		}
		if (before)
			pairs |= layout_pair(before, *p);
		before = *p;
	}
	return pairs;
}

static int read_rule(struct reader *r, const char *glob)
{
	struct layout *l = r->l;
	struct layout_rule rule = { .glob = glob, .line = r->line };
	struct layout_spec s = { .n_axes = r->n_axes };
	bool whole = false;
	char *word, tmp[100];
	int rc = 0;

	if (!r->n_axes)
		return bad(r, "a rule before the mesh line");
	memcpy(s.mesh, r->mesh, sizeof(s.mesh));
	while (!rc && (word = next_word(r))) {
		if (whole || (s.n && !strcmp(word, "replicate")))
			return bad(r, "'replicate' cannot be combined with an axis");
		whole = !strcmp(word, "replicate");
		if (!whole)
			rc = read_placement(r, word, &s);
	}
	if (rc)
		return rc;
	if (!whole && !s.n)
		return bad(r, "'%s' is followed by neither 'replicate' nor AXIS:DIM",
			   show(glob, tmp));
	rule.pairs = glob_pairs(glob);
	rc = layout_in_file(layout_add_spec(l, &s, &rule.spec, r->e), r->e, l->name);
	if (rc)
		return rc;
	if (l->n_rules == LAYOUT_MAX_RULES)
		return err_set(r->e, EFBIG, "%.150s:%u: more than %zu rules", l->name, r->line,
			       LAYOUT_MAX_RULES);
	if (!VEC_ROOM(l->rules, l->rules_cap, l->n_rules + 1))
		return err_nomem(r->e);
	l->rules[l->n_rules++] = rule;
	return 0;
}

static int read_line(struct reader *r, size_t len)
{
	const char *word;

	if (memchr(r->at, 0, len))
		return bad(r, "a NUL byte");
	word = next_word(r);
	if (!word)
		return 0;
	return strcmp(word, "mesh") != 0 ? read_rule(r, word) : read_mesh(r);
}

int layout_add_text(struct layout *l, const char *text, size_t len, struct ckpt_err *e)
{
	struct reader r = { .l = l, .e = e };
	char *at, *end;

	l->is_text = true;
	l->text = malloc(len + 1);
	if (!l->text)
		return err_nomem(e);
	if (len)
		memcpy(l->text, text, len);
	end = l->text + len;
	*end = '\n';
	for (at = l->text; at < end;) {
		char *nl = memchr(at, '\n', (size_t)(end - at) + 1);
		int rc;

		r.line++;
		r.at = at;
		*nl = 0;
		rc = read_line(&r, (size_t)(nl - at));
		if (rc)
			return rc;
		at = nl + 1;
	}
	if (!r.n_axes)
		return err_set(e, EINVAL, "%.150s: no mesh line", l->name);
	return 0;
}

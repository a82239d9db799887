/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/faults.h"

#include "cmd/cmd.h"

#include "base/buf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_SHOWN = 3, MAX_CAUSES = 256, SENTENCE = sizeof(((struct ckpt_err *)0)->msg) };

struct fault_cause {
	const char *before;
	char what[SENTENCE], pattern[SENTENCE]; /* of the first name, or else of the first file */
	bool differ;				/* not all sentences are identical */
	uint64_t names, files;
	char *shown[NAMES_SHOWN]; /* names, each of shown_len bytes */
	size_t shown_len[NAMES_SHOWN];
};

/* Removes numbers, which may have a point and an exponent, and text in quotes or brackets from the
 * sentence. */
static void pattern_of(const char *what, char out[static SENTENCE])
{
	bool quoted = false, number = false, listed = false;
	size_t n = 0;

	for (; *what && n + 1 < SENTENCE; what++) {
		bool digit = *what >= '0' && *what <= '9';

		quoted ^= *what == '\'';
		listed = (listed || *what == '[') && *what != ']';
		if (quoted || listed || (number && strchr("0123456789.e+-", *what)))
			continue;
		out[n++] = *what;
		if (digit)
			out[n - 1] = '0';
		number = digit;
	}
	out[n] = 0;
}

static struct fault_cause *find(struct faults *f, const char *before, const char *pattern)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].before == before && !strcmp(f->v[i].pattern, pattern))
			return &f->v[i];
	return NULL;
}

static struct fault_cause *add_cause(struct faults *f, const char *before, const char *pattern,
				     const char *what)
{
	struct fault_cause *c;

	if (!f->v)
		f->v = calloc(MAX_CAUSES, sizeof(*f->v));
	if (!f->v) {
		f->err = ENOMEM;
		return NULL;
	}
	if (f->n == MAX_CAUSES)
		return NULL;
	c = &f->v[f->n++];
	c->before = before;
	(void)snprintf(c->what, sizeof(c->what), "%s", what);
	(void)snprintf(c->pattern, sizeof(c->pattern), "%s", pattern);
	return c;
}

static void add_name(struct faults *f, struct fault_cause *c, const char *fqn, size_t len)
{
	if (c->names < NAMES_SHOWN) {
		char *copy = malloc(len + 1);

		if (!copy) {
			f->err = ENOMEM;
			return;
		}
		memcpy(copy, fqn, len);
		c->shown[c->names] = copy;
		c->shown_len[c->names] = len;
	}
	c->names++;
}

void faults_add(struct faults *f, const char *before, const char *fqn, size_t len, const char *what)
{
	char pattern[SENTENCE];
	struct fault_cause *c;

	pattern_of(what, pattern);
	c = find(f, before, pattern);
	if (!c)
		c = add_cause(f, before, pattern, what);
	if (!c) {
		f->others++;
		return;
	}
	c->differ |= strncmp(c->what, what, SENTENCE - 1) != 0;
	if (!fqn) {
		c->files++;
		return;
	}
	if (!c->names) /* names are said before files */
		(void)snprintf(c->what, sizeof(c->what), "%s", what);
	add_name(f, c, fqn, len);
}

size_t faults_causes(const struct faults *f, const char *before)
{
	size_t n = 0;

	for (size_t i = 0; i < f->n; i++)
		n += f->v[i].before == before;
	return n;
}

/* "a, b, c, 97 more and the file itself", without the names before number `from` */
static void add_names(const struct fault_cause *c, size_t from, struct buf *b)
{
	const char *between = "";

	for (size_t i = from; i < NAMES_SHOWN && i < c->names; i++, between = ", ") {
		buf_str(b, between);
		cmd_add_fqn(b, c->shown[i], c->shown_len[i]);
	}
	if (c->names > NAMES_SHOWN)
		buf_printf(b, "%s%" PRIu64 " more", c->files ? ", " : " and ",
			   c->names - NAMES_SHOWN);
	buf_str(b, c->files && *between ? " and " : "");
	if (c->files == 1)
		buf_str(b, "the file itself");
	else if (c->files)
		buf_printf(b, "%" PRIu64 " files", c->files);
}

static void show(const struct fault_cause *c, struct buf *b)
{
	buf_str(b, c->before);
	if (!c->names) {
		buf_str(b, c->what);
		if (c->differ)
			buf_printf(b, " (and %" PRIu64 " more like it)", c->files - 1);
	} else if (!c->differ) {
		add_names(c, 0, b);
		buf_printf(b, ": %s", c->what);
	} else { /* the sentence is true of the first one alone */
		cmd_add_fqn(b, c->shown[0], c->shown_len[0]);
		buf_printf(b, ": %s; similarly ", c->what);
		add_names(c, 1, b);
	}
	buf_str(b, "\n");
}

void faults_show(const struct faults *f, size_t max_lines, struct buf *b)
{
	uint64_t left = f->others;

	for (size_t i = 0; i < f->n; i++)
		if (i < max_lines)
			show(&f->v[i], b);
		else
			left += f->v[i].names + f->v[i].files;
	if (left)
		buf_printf(b, "%sand %" PRIu64 " more\n", f->n ? f->v[0].before : "", left);
	if (f->err)
		b->err = f->err;
}

void faults_release(struct faults *f)
{
	for (size_t i = 0; i < f->n; i++)
		for (size_t k = 0; k < NAMES_SHOWN; k++)
			free(f->v[i].shown[k]);
	free(f->v);
	*f = (struct faults){ 0 };
}

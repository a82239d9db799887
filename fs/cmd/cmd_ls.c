/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { LINE_MAX_BYTES = 64 << 20 };

/* One line: a tensor or an object. */
struct item {
	bool is_object;
	const char *fqn, *dtype, *fault;
	size_t fqn_len, n_dims, n_logical;
	const uint64_t *shape, *logical;
	uint64_t bytes, chunks;
};

/* Both lists of a checkpoint, merged into one natural order. */
struct walk {
	const struct ckpt *ckpt;
	const char *const *globs;
	uint64_t glob_steps;
	struct ckpt_totals totals;
	uint64_t next_tensor, next_object;
};

static void take_tensor(struct walk *w, const struct ckpt_tensor *t, struct item *ret)
{
	*ret = (struct item){
		.fqn = t->fqn,
		.fqn_len = t->fqn_len,
		.dtype = t->dtype,
		.n_dims = t->n_dims,
		.shape = t->shape,
		.n_logical = t->n_logical,
		.logical = t->logical,
		.bytes = t->bytes,
		.chunks = t->chunks,
		.fault = t->fault,
	};
	w->next_tensor++;
}

static void take_object(struct walk *w, const struct ckpt_object *o, struct item *ret)
{
	*ret = (struct item){
		.is_object = true,
		.fqn = o->fqn,
		.fqn_len = o->fqn_len,
		.dtype = "object",
		.bytes = o->length,
		.chunks = 1,
		.fault = o->fault,
	};
	w->next_object++;
}

static bool next_any(struct walk *w, struct item *ret)
{
	bool tensor = w->next_tensor < w->totals.tensors,
	     object = w->next_object < w->totals.objects;
	struct ckpt_tensor t;
	struct ckpt_object o;

	if (!tensor && !object)
		return false;
	if (tensor)
		ckpt_tensor(w->ckpt, w->next_tensor, &t);
	if (object)
		ckpt_object(w->ckpt, w->next_object, &o);
	if (tensor && object)
		tensor = text_natural_cmp(t.fqn, t.fqn_len, o.fqn, o.fqn_len) <= 0;
	if (tensor)
		take_tensor(w, &t, ret);
	else
		take_object(w, &o, ret);
	return true;
}

static bool next(struct walk *w, struct item *ret)
{
	while (next_any(w, ret))
		if (text_glob_any(w->globs, ret->fqn, ret->fqn_len, &w->glob_steps))
			return true;
	return false;
}

/* Did the globs get as far as the last name? */
static int check_globs(uint64_t steps)
{
	struct ckpt_err e = { 0 };

	return text_glob_check(steps, "ls", &e) ? cmd_fail(&e) : 0;
}

static struct walk walk_of(const struct ckpt *c, const char *const *globs)
{
	struct walk w = { .ckpt = c, .globs = globs, .glob_steps = TEXT_GLOB_STEPS };

	ckpt_totals(c, &w.totals);
	return w;
}

static void add_shape(struct buf *b, const struct item *i)
{
	if (i->is_object)
		buf_str(b, "-");
	else
		buf_json_u64s(b, i->shape, i->n_dims);
}

static void add_json(struct json_out *j, const struct item *i)
{
	json_open_line(j, NULL, '{');
	json_str_n(j, "fqn", i->fqn, i->fqn_len);
	json_str(j, "type", i->is_object ? "object" : "tensor");
	json_str(j, "dtype", i->is_object ? NULL : i->dtype);
	if (i->is_object)
		json_str(j, "shape", NULL);
	else
		json_u64s(j, "shape", i->shape, i->n_dims);
	if (i->n_logical)
		json_u64s(j, "logical", i->logical, i->n_logical);
	json_u64(j, "bytes", i->bytes);
	json_u64(j, "chunks", i->chunks);
	json_str(j, "fault", i->fault);
	json_close(j);
}

/* Columns of -l: dtype, shape, bytes, chunks; what follows is the FQN. */
struct widths {
	int dtype, shape, bytes, chunks;
};

static int wider(int width, size_t n)
{
	return n > (size_t)width ? (int)min_u64(n, 64) : width;
}

static void measure(struct walk w, struct buf *scratch, struct widths *ret)
{
	struct item i;

	while (next(&w, &i)) {
		ret->dtype = wider(ret->dtype, strlen(i.dtype));
		scratch->len = 0;
		add_shape(scratch, &i);
		ret->shape = wider(ret->shape, scratch->len);
		scratch->len = 0;
		buf_u64(scratch, i.bytes);
		ret->bytes = wider(ret->bytes, scratch->len);
		scratch->len = 0;
		buf_u64(scratch, i.chunks);
		ret->chunks = wider(ret->chunks, scratch->len);
	}
	scratch->len = 0;
}

static void add_columns(struct buf *b, const struct widths *w, const struct item *i)
{
	size_t start;

	buf_printf(b, "%-*s  ", w->dtype, i->dtype);
	start = b->len;
	add_shape(b, i);
	buf_printf(b, "%*s  %*ju  %*ju  ",
		   (int)max_u64(start + (size_t)w->shape, b->len) - (int)b->len, "", w->bytes,
		   (uintmax_t)i->bytes, w->chunks, (uintmax_t)i->chunks);
}

static int print_text(struct walk w, bool columns, struct buf *b, bool *any)
{
	struct widths widths = { 0 };
	struct item i;
	int rc = 0;

	if (columns)
		measure(w, b, &widths);
	while (!rc && next(&w, &i)) {
		*any = true;
		if (columns)
			add_columns(b, &widths, &i);
		cmd_add_fqn(b, i.fqn, i.fqn_len);
		if (columns && i.n_logical) {
			buf_str(b, "  (logical ");
			buf_json_u64s(b, i.logical, i.n_logical);
			buf_str(b, ")");
		}
		if (columns && i.fault)
			buf_printf(b, "  (%s)", i.fault);
		buf_str(b, "\n");
		rc = cmd_print(b);
	}
	return rc ? rc : check_globs(w.glob_steps);
}

static int print_json(struct walk w, struct buf *b, bool *any)
{
	struct json_out j = { .to = b };
	struct item i;
	int rc = 0;

	json_open(&j, NULL, '[');
	while (!rc && next(&w, &i)) {
		*any = true;
		add_json(&j, &i);
		rc = cmd_print(b);
	}
	json_close(&j);
	if (!rc)
		rc = check_globs(w.glob_steps);
	return rc ? rc : cmd_print(b);
}

/* The status of a list that has turned out to be empty. */
static int nothing(const struct ckpt *c, const struct options *o)
{
	char meant[CMD_MEANT];

	(void)fflush(stdout);
	(void)fprintf(stderr, "ckptfs: ls: nothing matches '%s'%s%s\n", o->args[1],
		      o->n_args > 2 ? " or another glob" : "",
		      o->n_args > 2 ? "" : cmd_meant(c, o->args[1], meant));
	return STATUS_NO;
}

/* ---- a run's checkpoints ---- */

struct run_lines {
	const struct options *o;
	struct buf *b;
	struct json_out json;
	uint64_t glob_steps;
	bool any;
};

static void add_entry_json(struct json_out *j, const struct ckpt_run_entry *x)
{
	json_open_line(j, NULL, '{');
	json_str(j, "name", x->name);
	json_bool(j, "complete", x->complete);
	json_bool(j, "latest", x->latest);
	json_str(j, "fault", x->fault);
	json_close(j);
}

/* Names alone are those that a mount shows. */
static int add_run_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct run_lines *l = arg;
	const struct options *o = l->o;

	if (!text_glob_any(o->args + 1, x->name, strlen(x->name), &l->glob_steps) ||
	    (!x->complete && !o->json && !o->long_list))
		return 0;
	if (o->json) {
		add_entry_json(&l->json, x);
	} else {
		if (o->long_list)
			buf_printf(l->b, "%-10s  ", x->complete ? "complete" : "incomplete");
		cmd_add_fqn(l->b, x->name, strlen(x->name));
		if (o->long_list && x->latest)
			buf_str(l->b, "  (latest)");
		if (o->long_list && x->fault)
			buf_printf(l->b, "  (%s)", x->fault);
		buf_str(l->b, "\n");
	}
	l->any = true;
	return cmd_print(l->b);
}

static int list_run(struct ckpt *c, const struct options *o, struct buf *b)
{
	struct run_lines l = { .o = o, .b = b, .json.to = b, .glob_steps = TEXT_GLOB_STEPS };
	struct ckpt_err e = { 0 };
	int rc = o->long_list || o->json ? ckpt_run_look(c, &e) : 0;

	if (o->json)
		json_open(&l.json, NULL, '[');
	if (!rc)
		rc = ckpt_run_each(c, add_run_entry, &l, &e);
	if (!rc && o->json) {
		json_close(&l.json);
		rc = cmd_print(b);
	}
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	rc = check_globs(l.glob_steps);
	if (rc)
		return rc;
	return cmd_finish(o->n_args > 1 && !l.any ? nothing(c, o) : STATUS_DONE);
}

static int ls_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf b CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	bool any = false, filtered = o->n_args > 1;
	struct ckpt_err e = { 0 };
	int rc;

	if (cmd_open(o->args[0], o, &(struct cmd_how){ CMD_WORDS("allow_missing", "runs"), NULL },
		     &c, &e))
		return cmd_fail(&e);
	if (ckpt_is_run(c))
		return list_run(c, o, &b);
	rc = o->json ? print_json(walk_of(c, o->args + 1), &b, &any)
		     : print_text(walk_of(c, o->args + 1), o->long_list, &b, &any);
	return rc ? rc : cmd_finish(filtered && !any ? nothing(c, o) : STATUS_DONE);
}

const struct command command_ls = {
	.name = "ls",
	.usage = "CKPT [GLOB...]",
	.summary = "List tensors and objects, or the checkpoints of a run",
	.details = "Names are in natural order; in a GLOB, '*' also matches dots and slashes. For "
		   "a run, lists\n"
		   "its complete checkpoints, with -l the incomplete ones too. Exit status 1 when "
		   "nothing\n"
		   "matches.\n",
	.words = WORDS_OPEN | WORDS_LS | WORDS_JSON,
	.min_args = 1,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = ls_run,
};

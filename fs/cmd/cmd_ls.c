/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/ls.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 64 << 20, MAX_DTYPES = 32 };

void ls_add_bytes(struct buf *b, uint64_t bytes, bool human)
{
	char size[16];

	if (human)
		buf_str(b, text_size(bytes, size));
	else
		buf_u64(b, bytes);
}

void ls_add_shape(struct buf *b, const struct ls_item *i)
{
	if (i->is_object)
		buf_str(b, "-");
	else
		buf_json_u64s(b, i->shape, i->n_dims);
}

/* ---- the last line on a terminal ---- */

struct sums {
	uint64_t tensors, objects, elements, tensor_bytes, object_bytes;
	/* Names of dtypes are literals of a table that is shorter than this. */
	struct {
		const char *dtype;
		uint64_t tensors;
	} of[MAX_DTYPES];
	size_t n_of;
};

static void count(struct sums *s, const struct ls_item *i)
{
	size_t k = 0;

	if (i->is_object) {
		s->objects++;
		s->object_bytes += i->bytes;
		return;
	}
	s->tensors++;
	s->elements += i->elements;
	s->tensor_bytes += i->bytes;
	while (k < s->n_of && strcmp(s->of[k].dtype, i->dtype) != 0)
		k++;
	if (k == s->n_of && k < MAX_DTYPES)
		s->of[s->n_of++].dtype = i->dtype;
	if (k < MAX_DTYPES)
		s->of[k].tensors++;
}

/* Elements of a whole checkpoint are counted separately: those of its model, and those that
 * training adds. */
static void add_elements(struct buf *b, const struct ckpt *c, const struct sums *s, bool whole)
{
	uint64_t parameters = ckpt_parameters(c);
	char text[16];

	if (!whole || !parameters || parameters > s->elements) {
		buf_printf(b, ", %s element%s", text_count(s->elements, text), text_s(s->elements));
		return;
	}
	buf_printf(b, ", %s parameter%s", text_count(parameters, text), text_s(parameters));
	if (s->elements > parameters)
		buf_printf(b, " and %s other element%s", text_count(s->elements - parameters, text),
			   text_s(s->elements - parameters));
}

static void add_sums(struct buf *b, const struct ckpt *c, const struct sums *s, bool whole)
{
	char text[16];

	buf_printf(b, "%s tensor%s", text_count(s->tensors, text), text_s(s->tensors));
	if (s->tensors)
		add_elements(b, c, s, whole);
	for (size_t k = 0; k < s->n_of; k++) {
		buf_printf(b, "%s%s", k ? ", " : " (", s->of[k].dtype);
		if (s->n_of > 1)
			buf_printf(b, " x%s", text_count(s->of[k].tensors, text));
	}
	if (s->tensors)
		buf_printf(b, "), %s", text_size(s->tensor_bytes, text));
	if (s->objects)
		buf_printf(b, "; %s object%s", text_count(s->objects, text), text_s(s->objects));
	if (s->objects)
		buf_printf(b, ", %s", text_size(s->object_bytes, text));
	buf_str(b, "\n");
}

/* ---- lines ---- */

/* Columns of -l: dtype, shape, bytes, chunks; what follows is the FQN. */
struct widths {
	int dtype, shape, bytes, chunks;
};

static int wider(int width, size_t n)
{
	return n > (size_t)width ? (int)min_u64(n, 64) : width;
}

static void measure(struct ls_walk w, const struct ls_look *look, struct buf *scratch,
		    struct widths *ret)
{
	struct ls_item i;

	if (look->header)
		*ret = (struct widths){ strlen("DTYPE"), strlen("SHAPE"), strlen("BYTES"),
					strlen("CHUNKS") };
	while (ls_next(&w, &i)) {
		ret->dtype = wider(ret->dtype, strlen(i.dtype));
		scratch->len = 0;
		ls_add_shape(scratch, &i);
		ret->shape = wider(ret->shape, scratch->len);
		scratch->len = 0;
		ls_add_bytes(scratch, i.bytes, look->human);
		ret->bytes = wider(ret->bytes, scratch->len);
		scratch->len = 0;
		buf_u64(scratch, i.chunks);
		ret->chunks = wider(ret->chunks, scratch->len);
	}
	scratch->len = 0;
}

static void add_header(struct buf *b, const struct widths *w, bool color)
{
	buf_printf(b, "%s%-*s  %-*s  %*s  %*s  NAME%s\n", cmd_style(color, STYLE_STRONG), w->dtype,
		   "DTYPE", w->shape, "SHAPE", w->bytes, "BYTES", w->chunks, "CHUNKS",
		   cmd_style(color, STYLE_PLAIN));
}

static void add_columns(struct buf *b, const struct widths *w, const struct ls_item *i, bool human)
{
	size_t start;
	char size[24];

	buf_printf(b, "%-*s  ", w->dtype, i->dtype);
	start = b->len;
	ls_add_shape(b, i);
	if (human)
		(void)text_size(i->bytes, size);
	else
		(void)snprintf(size, sizeof(size), "%ju", (uintmax_t)i->bytes);
	buf_printf(b, "%*s  %*s  %*ju  ",
		   (int)max_u64(start + (size_t)w->shape, b->len) - (int)b->len, "", w->bytes, size,
		   w->chunks, (uintmax_t)i->chunks);
}

static void add_line(struct buf *b, const struct ls_item *i, const struct widths *w,
		     const struct ls_look *look)
{
	if (w)
		add_columns(b, w, i, look->human);
	cmd_add_fqn(b, i->fqn, i->fqn_len);
	if (w && i->n_logical) {
		buf_str(b, "  (logical ");
		buf_json_u64s(b, i->logical, i->n_logical);
		buf_str(b, ")");
	}
	if (w && i->fault)
		buf_printf(b, "  %s(%s)%s", cmd_style(look->color, STYLE_BAD), i->fault,
			   cmd_style(look->color, STYLE_PLAIN));
	buf_str(b, "\n");
}

static int print_text(struct ls_walk w, bool columns, const struct ls_look *look, struct buf *b,
		      struct sums *sums)
{
	struct widths widths = { 0 };
	struct ls_item i;
	int rc = 0;

	if (columns)
		measure(w, look, b, &widths);
	if (columns && look->header)
		add_header(b, &widths, look->color);
	while (!rc && ls_next(&w, &i)) {
		count(sums, &i);
		add_line(b, &i, columns ? &widths : NULL, look);
		rc = cmd_print(b);
	}
	return rc ? rc : ls_check_globs(w.glob_steps);
}

static int print_tree(struct ls_walk *w, const struct ls_look *look, struct buf *b,
		      struct sums *sums)
{
	int rc = ls_collect(w, NULL);

	if (rc)
		return rc;
	for (size_t i = 0; i < w->n_items; i++)
		count(sums, &w->items[i]);
	return ls_tree(w->items, w->n_items, look, b);
}

static void add_json(struct json_out *j, const struct ls_item *i)
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

static int print_json(struct ls_walk w, struct buf *b, struct sums *sums)
{
	struct json_out j = { .to = b };
	struct ls_item i;
	int rc = 0;

	json_open(&j, NULL, '[');
	while (!rc && ls_next(&w, &i)) {
		count(sums, &i);
		add_json(&j, &i);
		rc = cmd_print(b);
	}
	json_close(&j);
	if (!rc)
		rc = ls_check_globs(w.glob_steps);
	return rc ? rc : cmd_print(b);
}

/* The exit status when the list is empty. */
static int nothing(const struct ckpt *c, const struct options *o)
{
	struct ckpt_err e = { 0 };

	if (!cmd_none_left(c, o, o->args + 1, "ls: nothing", &e))
		return STATUS_DONE;
	(void)cmd_fail(&e);
	return STATUS_NO;
}

/* ---- a run's checkpoints ---- */

struct run_lines {
	const struct options *o;
	struct buf *b;
	struct json_out json;
	uint64_t glob_steps;
	bool long_list, any, color;
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

/* A plain list has only the names that a mount shows. */
static int add_run_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct run_lines *l = arg;
	const struct options *o = l->o;

	if (!text_glob_any(o->args + 1, x->name, strlen(x->name), &l->glob_steps) ||
	    (!x->complete && !o->json && !l->long_list))
		return 0;
	if (o->json) {
		add_entry_json(&l->json, x);
	} else {
		if (l->long_list)
			buf_printf(l->b, "%s%-10s%s  ",
				   cmd_style(l->color, x->complete ? STYLE_GOOD : STYLE_BAD),
				   x->complete ? "complete" : "incomplete",
				   cmd_style(l->color, STYLE_PLAIN));
		cmd_add_fqn(l->b, x->name, strlen(x->name));
		if (l->long_list && x->latest)
			buf_str(l->b, "  (latest)");
		if (l->long_list && x->fault)
			buf_printf(l->b, "  (%s)", x->fault);
		buf_str(l->b, "\n");
	}
	l->any = true;
	return cmd_print(l->b);
}

static int list_run(struct ckpt *c, const struct options *o, struct buf *b)
{
	struct run_lines l = { .o = o,
			       .b = b,
			       .json.to = b,
			       .glob_steps = TEXT_GLOB_STEPS,
			       .long_list = o->long_list || o->human,
			       .color = cmd_color(o) };
	struct ckpt_err e = { 0 };
	int rc = l.long_list || o->json ? cmd_run_look(c, o, &e) : 0;

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
	rc = ls_check_globs(l.glob_steps);
	if (rc)
		return rc;
	return cmd_finish(o->n_args > 1 && !l.any ? nothing(c, o) : STATUS_DONE);
}

/* Refuses options that have no effect with others. */
static int check_options(const struct options *o, struct ckpt_err *e)
{
	if (o->json && (o->long_list || o->human || o->tree || o->color))
		return err_set(e, EINVAL, "option '%s' is for text, not for --json",
			       o->tree	      ? "tree"
			       : o->long_list ? "long"
			       : o->human     ? "human_readable"
					      : "color");
	if (o->depth && !o->tree)
		return err_set(e, EINVAL, "option 'depth' is for --tree");
	if (o->tree && o->long_list)
		return err_set(e, EINVAL, "options 'long' and 'tree' cannot be combined");
	if (o->tree && o->sort && !strcmp(o->sort, "dtype"))
		return err_set(e, EINVAL, "option 'sort': a tree is sorted by name or by size");
	return 0;
}

/* Refuses options that do not apply to a run. */
static int check_run_options(const struct options *o, struct ckpt_err *e)
{
	const char *given = o->tree ? "tree" : o->sort ? "sort" : NULL;

	return !given ? 0
		      : err_set(e, EINVAL,
				"option '%s' is for the tensors of a checkpoint, and '%.100s' is a "
				"run of checkpoints: take one of them",
				given, o->args[0]);
}

static int list_tensors(struct ckpt *c, const struct options *o, struct buf *b)
{
	struct ls_walk w CLEANUP(ls_walk_release) = ls_walk(c, o->args + 1);
	const struct ls_look look = { .header = isatty(STDOUT_FILENO),
				      .human = o->human,
				      .color = cmd_color(o),
				      .by_size = o->sort && !strcmp(o->sort, "size"),
				      .depth = o->depth };
	struct sums sums = { 0 };
	int rc = 0;

	if (o->sort && !o->tree)
		rc = ls_collect(&w, o->sort);
	if (!rc)
		rc = o->json   ? print_json(w, b, &sums)
		     : o->tree ? print_tree(&w, &look, b, &sums)
			       : print_text(w, o->long_list || o->human, &look, b, &sums);
	if (rc)
		return rc;
	if (!sums.tensors && !sums.objects && nothing(c, o))
		return cmd_finish(STATUS_NO);
	if (look.header && !o->json) {
		add_sums(b, c, &sums, o->n_args == 1);
		rc = cmd_print(b);
	}
	return rc ? rc : cmd_finish(STATUS_DONE);
}

static int ls_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf b CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct ckpt_err e = { 0 };

	if (check_options(o, &e) ||
	    cmd_open(o->args[0], o, &(struct cmd_how){ CMD_WORDS("allow_missing", "runs"), NULL },
		     &c, &e))
		return cmd_fail(&e);
	if (!ckpt_is_run(c))
		return list_tensors(c, o, &b);
	return check_run_options(o, &e) ? cmd_fail(&e) : list_run(c, o, &b);
}

const struct command command_ls = {
	.name = "ls",
	.usage = "CKPT [GLOB...]",
	.complete = "fn",
	.summary = "List tensors and objects, or the checkpoints of a run",
	.examples = "  $ ckptfs ls run/step-1000 'model.layers.0.*'\n"
		    "  $ ckptfs ls -h --sort=size run/step-1000\n"
		    "  $ ckptfs ls -h --tree --depth=3 run/step-1000\n",
	.details = "Names are in natural order; in a GLOB, '*' also matches dots and slashes. For "
		   "a run, lists\n"
		   "the checkpoints whose save has been completed; -l also finds out which have "
		   "lost data. Exit\n"
		   "status 1 if nothing matches.\n",
	.words = WORDS_TENSORS | WORDS_QUIET | WORDS_CONFINED | WORDS_LS | WORDS_COLOR | WORDS_JSON,
	.min_args = 1,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = ls_run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum command. Its output can be read by --check, and by diff in place of a checkpoint:
 *
 *	# ckptfs sum sha256
 *	0123...  float32 [13,24]  model.layers.0.weight
 */
#include "cmd/cmd.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/vec.h"
#include <ckptfs/ckpt_sum.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_LIST ((size_t)1 << 30) /* bytes of a file of sums, and of its lines in memory */

enum { LINE_MAX_BYTES = 64 << 20 };

static const char *const kinds[] = { [CKPT_SUM_SHA256] = "sha256", [CKPT_SUM_XXH] = "xxh3" };
static const size_t digits[] = { [CKPT_SUM_SHA256] = 64, [CKPT_SUM_XXH] = 32 };
static const char first_line[] = "# ckptfs sum ";

/* A line of the file that --check names: "HEX  DTYPE SHAPE  FQN". */
struct line {
	const char *text, *fqn; /* fqn: as it is printed */
	bool seen;
};

struct report {
	struct buf *out;
	struct progress progress;
	enum ckpt_sum_kind kind;
	bool begun;
	/* To compare with: */
	const char *list;
	struct line *lines; /* by fqn */
	size_t n_lines, cap_lines;
	uint64_t equal, differ, added, missing;
};

/* ---- a list ---- */

static int by_fqn(const void *a, const void *b)
{
	return strcmp(((const struct line *)a)->fqn, ((const struct line *)b)->fqn);
}

static int take_line(struct report *r, char *text, size_t n_digits, size_t number, const char *path,
		     struct ckpt_err *e)
{
	char *fqn = strstr(text, "  ");

	/* The name may be empty. */
	fqn = fqn && strspn(text, "0123456789abcdef") == n_digits ? strstr(fqn + 2, "  ") : NULL;
	if (!fqn || strcspn(text, " ") != n_digits)
		return err_set(e, EINVAL,
			       "'%s', line %zu: expected a hash of %zu digits, dtype, shape and "
			       "FQN as 'ckptfs sum' prints them",
			       path, number, n_digits);
	if (!VEC_ROOM(r->lines, r->cap_lines, r->n_lines + 1))
		return err_nomem(e);
	r->lines[r->n_lines++] = (struct line){ text, fqn + 2, false };
	return 0;
}

/* Parses the lines, which point into the text. */
static int read_list(struct report *r, const char *path, struct buf *text, enum ckpt_sum_kind *ret,
		     struct ckpt_err *e)
{
	size_t number = 1;
	char *line, *rest;
	int rc = io_read_file(path, text, e);

	if (rc)
		return rc;
	buf_add(text, "", 1);
	if (text->err)
		return err_nomem(e);
	line = strtok_r(text->data, "\n", &rest);
	*ret = CKPT_SUM_SHA256;
	if (line && !strncmp(line, first_line, strlen(first_line)))
		while (*ret <= CKPT_SUM_XXH && strcmp(line + strlen(first_line), kinds[*ret]) != 0)
			(*ret)++;
	else
		line = NULL;
	if (!line || *ret > CKPT_SUM_XXH)
		return err_set(e, EINVAL,
			       "'%s' does not begin like a list that 'ckptfs sum' has printed",
			       path);
	while (!rc && (line = strtok_r(NULL, "\n", &rest))) {
		number++;
		if (*line != '#')
			rc = take_line(r, line, digits[*ret], number, path, e);
	}
	if (!rc && r->n_lines)
		qsort(r->lines, r->n_lines, sizeof(*r->lines), by_fqn);
	for (size_t i = 1; !rc && i < r->n_lines; i++)
		if (!by_fqn(&r->lines[i - 1], &r->lines[i]))
			rc = err_set(e, EINVAL, "'%s' has two lines for '%.200s'", path,
				     r->lines[i].fqn);
	return rc;
}

/* ---- a tensor ---- */

/* Different names must not become the same text: '%' is written as %25. */
static void add_fqn(struct buf *b, const char *fqn, size_t len)
{
	for (size_t n; len; fqn += n, len -= n) {
		const char *percent = memchr(fqn, '%', len);

		n = percent == fqn ? 1 : percent ? (size_t)(percent - fqn) : len;
		if (percent == fqn)
			buf_str(b, "%25");
		else
			cmd_add_fqn(b, fqn, n);
	}
}

/* Adds the name that add_fqn has written as this text. */
static void add_name(struct buf *b, const char *text)
{
	for (; *text; text++) {
		char hex[3] = "", *end, byte = *text;

		if (*text == '%') {
			(void)snprintf(hex, sizeof(hex), "%s", text + 1);
			byte = (char)strtoul(hex, &end, 16);
			if (end == hex + 2)
				text += 2;
			else
				byte = '%';
		}
		buf_add(b, &byte, 1);
	}
}

static void add_line(struct buf *b, const struct ckpt_sum_item *i)
{
	buf_printf(b, "%s  %s ", i->hex, i->dtype);
	buf_json_u64s(b, i->shape, i->n_dims);
	buf_str(b, "  ");
	add_fqn(b, i->fqn, i->fqn_len);
}

static void compare(struct report *r, const struct ckpt_sum_item *i)
{
	struct buf *b = r->out;
	struct line key = { 0 }, *found;
	size_t start = b->len;

	add_line(b, i);
	buf_add(b, "", 1);
	if (b->err)
		return;
	key.text = b->data + start;
	key.fqn = strstr(strstr(key.text, "  ") + 2, "  ") + 2;
	found = r->n_lines ? bsearch(&key, r->lines, r->n_lines, sizeof(key), by_fqn) : NULL;
	if (found)
		found->seen = true;
	if (found && !strcmp(found->text, key.text)) {
		r->equal++;
		b->len = start;
		return;
	}
	if (found)
		r->differ++;
	else
		r->added++;
	b->len = start;
	buf_printf(b, "%s  ", found ? "differs  " : "not in it");
	add_fqn(b, i->fqn, i->fqn_len);
	buf_str(b, "\n");
}

static void begin(struct report *r)
{
	if (!r->begun && !r->list)
		buf_printf(r->out, "%s%s\n", first_line, kinds[r->kind]);
	r->begun = true;
}

static int show(void *arg, const struct ckpt_sum_item *i)
{
	struct report *r = arg;

	if (i->fault) {
		struct buf name CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
		struct ckpt_err e = { 0 };

		cmd_add_fqn(&name, i->fqn, i->fqn_len);
		buf_add(&name, "", 1);
		progress_hide(&r->progress);
		(void)err_set(&e, EIO, "sum: tensor '%.200s': %s", name.err ? "?" : name.data,
			      i->fault);
		(void)cmd_fail(&e);
		return 0;
	}
	if (r->list) {
		compare(r, i);
	} else {
		begin(r);
		add_line(r->out, i);
		buf_str(r->out, "\n");
	}
	progress_hide(&r->progress);
	return cmd_print(r->out);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	progress_report(&r->progress, done, total);
}

/* ---- the command ---- */

static void add_verdict(struct report *r, const char *const *globs)
{
	uint64_t glob_steps = TEXT_GLOB_STEPS; /* enough: the same globs have been matched before */

	for (size_t i = 0; i < r->n_lines; i++) {
		struct buf name CLEANUP(buf_release) = BUF_INIT(MAX_LIST);
		const struct line *l = &r->lines[i];

		if (!l->seen)
			add_name(&name, l->fqn);
		r->out->err = r->out->err ? r->out->err : name.err;
		if (l->seen ||
		    !text_glob_any(globs, name.data ? name.data : "", name.len, &glob_steps))
			continue;
		r->missing++;
		buf_printf(r->out, "missing    %s\n", l->fqn);
	}
	buf_printf(r->out,
		   "%" PRIu64 " equal, %" PRIu64 " differ, %" PRIu64 " missing, %" PRIu64
		   " not in the list\n",
		   r->equal, r->differ, r->missing, r->added);
}

static int run(const struct options *o, const char *list, const char *const *globs)
{
	const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing"), NULL };
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf out CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct buf text CLEANUP(buf_release) = BUF_INIT(MAX_LIST);
	autofree struct line *lines = NULL;
	struct report r = { .out = &out,
			    .list = list,
			    .kind = o->xxh ? CKPT_SUM_XXH : CKPT_SUM_SHA256 };
	struct ckpt_sum s = { .kind = r.kind,
			      .globs = globs,
			      .model = o->model,
			      .jobs = (unsigned)o->jobs,
			      .each = show,
			      .progress = show_progress,
			      .arg = &r };
	struct ckpt_err e = { 0 };
	int rc = 0;

	if (list) {
		rc = read_list(&r, list, &text, &s.kind, &e);
		lines = r.lines;
	}
	if (rc)
		return cmd_fail(&e);
	if (cmd_open(o->args[0], o, &holes_are_fine, &c, &e))
		return list == o->check ? cmd_fail_open(o, &e) : cmd_fail(&e); /* sum, or diff */
	progress_start(&r.progress, "sum", 0, !o->quiet);
	rc = ckpt_sum(c, &s, &e);
	progress_end(&r.progress);
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	if (list && !s.failed)
		add_verdict(&r, globs);
	if (s.failed)
		(void)err_set(&e, EIO, "sum: %" PRIu64 " of %" PRIu64 " tensors cannot be read",
			      s.failed, s.tensors);
	else if (!cmd_absent(c, globs, "sum", &e) && !s.tensors && !r.missing)
		(void)cmd_none_left(c, o, globs, "sum: no tensor", &e);
	if (!e.code || s.failed) /* there may be no tensors */
		begin(&r);
	if (cmd_print(&out))
		return STATUS_TROUBLE;
	if (e.code)
		return cmd_finish(cmd_fail(&e));
	return cmd_finish(r.differ || r.missing || r.added ? STATUS_NO : STATUS_DONE);
}

bool cmd_is_sums(const char *path)
{
	char start[sizeof(first_line)] = "";
	struct stat st;
	FILE *f;

	if (stat(path, &st) || !S_ISREG(st.st_mode))
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	(void)!fgets(start, sizeof(start), f);
	(void)fclose(f);
	return !strcmp(start, first_line);
}

int cmd_check_sums(const struct options *o, const char *list, const char *const *globs)
{
	return run(o, list, globs);
}

static int sum_run(const struct options *o)
{
	return run(o, o->check, o->args + 1);
}

const struct command command_sum = {
	.name = "sum",
	.usage = "CKPT [GLOB...]",
	.complete = "fn",
	.summary = "Print a hash of each tensor that does not depend on format and layout",
	.examples = "  $ ckptfs sum run/step-1000 > sums\n"
		    "  $ ckptfs sum --xxh run/step-1000 'model.*'\n",
	.details = "The hash is that of the tensor's bytes in C order, as tobytes() returns them "
		   "in Python.\n"
		   "With --check: exit status 0 if all tensors match the list, else 1.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED |
		 WORDS_SUM,
	.min_args = 1,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = sum_run,
};

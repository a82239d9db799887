/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report command: a page (page/page.h) of the tensors and of information about the whole
 * checkpoint.
 */
#include "cmd/cmd.h"
#include "cmd/info_model.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json_out.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/vec.h"
#include "page/chunkrows.h"
#include "page/page.h"
#include "page/table.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_PAGE     ((size_t)2 << 30)
#define DEFAULT_FILE "report.html"

struct report {
	const struct options *o;
	struct json_out json; /* of the section "head" */
	struct buf head;
	struct page page;
	struct progress progress;
};

/* ---- the whole checkpoint ---- */

static void add_time(struct json_out *j, const char *key, uint64_t ns)
{
	json_u64(j, key, ns / 1000000000);
}

static void add_number(struct json_out *j, const char *key, double v)
{
	if (isfinite(v))
		json_raw(j, key, "%.9g", v);
	else
		json_str(j, key, NULL);
}

static void add_values(struct json_out *j, const struct ckpt_values *v)
{
	json_open_line(j, "values", '{');
	json_u64(j, "elements", v->elements);
	json_u64(j, "nan", v->nan);
	json_u64(j, "inf", v->infinite);
	json_u64(j, "zero", v->zero);
	if (v->finite && !v->is_complex) {
		add_number(j, "min", v->min);
		add_number(j, "max", v->max);
	}
	if (v->finite) {
		add_number(j, "mean", v->mean[0]);
		add_number(j, "std", v->std);
		add_number(j, "norm", v->norm);
	}
	json_close(j);
}

static int add_verdict(void *arg, const struct ckpt_verdict *x)
{
	static const char *const words[] = { [CKPT_SERVES_YES] = "yes",
					     [CKPT_SERVES_NO] = "no",
					     [CKPT_SERVES_UNCHECKED] = "unchecked",
					     [CKPT_SERVES_ABSENT] = "absent" };
	struct json_out *j = arg;

	json_open_line(j, NULL, '{');
	json_str(j, "face", x->face);
	json_str(j, "serves",
		 (size_t)x->serves < ARRAY_LEN(words) ? words[x->serves] : "unchecked");
	json_str(j, "text", x->text);
	json_close(j);
	return 0;
}

/* The members that a checkpoint's page and a row of a run's table have. */
static void add_totals(struct json_out *j, const struct ckpt *c, const struct ckpt_totals *t)
{
	json_str(j, "format", t->format);
	json_u64(j, "tensors", t->tensors);
	json_u64(j, "objects", t->objects);
	json_u64(j, "chunks", t->chunks);
	json_u64(j, "files", t->files);
	json_u64(j, "ranks", t->ranks);
	json_u64(j, "tensor_bytes", t->tensor_bytes);
	json_u64(j, "stored_bytes", t->stored_bytes);
	json_u64(j, "incomplete", t->incomplete);
	json_u64(j, "parameters", cmd_parameters(c));
}

static int add_checkpoint(struct report *r, struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct buf family CLEANUP(buf_release) = BUF_INIT(1 << 16);
	struct json_out *j = &r->json;
	struct ckpt_totals t;
	int rc;

	ckpt_totals(c, &t);
	info_family(&family, c);
	json_open(j, "checkpoint", '{');
	json_str(j, "path", path);
	add_totals(j, c, &t);
	add_time(j, "mtime", t.mtime_ns);
	json_str_n(j, "family", family.len ? family.data : NULL, family.len);
	json_bool(j, "has_model", t.has_model);
	json_u64(j, "model_tensors", t.model_tensors);
	json_u64(j, "model_bytes", t.model_bytes);
	json_str_n(j, "model_prefix", t.model_prefix, t.model_prefix_len);
	json_open(j, "verdicts", '[');
	rc = ckpt_verdicts(c, false, add_verdict, j, e);
	json_close(j);
	return rc;
}

/* ---- the tables ---- */

static void show_bytes(void *arg, uint64_t done, uint64_t total)
{
	struct progress *p = arg;

	p->total = total;
	progress_set(p, done);
}

static int read_values(struct report *r, struct table *t, struct ckpt_err *e)
{
	int rc;

	progress_start(&r->progress, "values", 0, !r->o->quiet);
	rc = table_read_values(t, (unsigned)r->o->jobs, &r->progress, e);
	progress_end(&r->progress);
	if (!rc) {
		add_values(&r->json, &t->all_values);
		json_u64(&r->json, "unreadable", t->unreadable);
	}
	return rc;
}

static int add_tables(struct report *r, struct ckpt *c, struct ckpt_err *e)
{
	struct table t CLEANUP(table_release) = TABLE_INIT(MAX_PAGE);
	struct chunkrows chunks CLEANUP(chunkrows_release) = CHUNKROWS_INIT(MAX_PAGE);
	int rc = table_read(&t, c, e);

	if (!rc && r->o->stat)
		rc = read_values(r, &t, e);
	if (!rc)
		rc = chunkrows_read(&chunks, c, t.totals.tensors, e);
	if (!rc)
		rc = table_write(&t, &r->page, e);
	return rc ? rc : chunkrows_write(&chunks, &r->page, e);
}

/* Adds the head's member "checkpoint" and all tables. */
static int add_all(struct report *r, struct ckpt *c, const char *path, struct ckpt_err *e)
{
	int rc = add_checkpoint(r, c, path, e);

	if (!rc)
		rc = add_tables(r, c, e);
	json_close(&r->json);
	return rc;
}

/* ---- a run ---- */

static const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing"), NULL };

struct run_rows {
	struct report *r;
	struct ckpt *run;
	const char *latest; /* borrowed from names */
	struct ckpt_run_entry *rows;
	size_t n, cap;
};

static int take_entry(void *arg, const struct ckpt_run_entry *x)
{
	struct run_rows *s = arg;
	struct ckpt_run_entry *row;

	if (!VEC_ROOM(s->rows, s->cap, s->n + 1))
		return -ENOMEM;
	row = &s->rows[s->n];
	*row = *x;
	row->name = strdup(x->name);
	row->fault = x->fault ? strdup(x->fault) : NULL;
	s->n++;
	return row->name && (!x->fault || row->fault) ? 0 : -ENOMEM;
}

static void run_rows_release(struct run_rows *s)
{
	for (size_t i = 0; i < s->n; i++) {
		free((void *)(uintptr_t)s->rows[i].name);
		free((void *)(uintptr_t)s->rows[i].fault);
	}
	free(s->rows);
}

static int ignore_item(void *arg, const struct ckpt_values_item *item)
{
	(void)arg;
	(void)item;
	return 0;
}

static int add_step_values(struct report *r, struct ckpt *c, struct ckpt_err *e)
{
	struct ckpt_values_scan s = { .jobs = (unsigned)r->o->jobs,
				      .model = ckpt_model_tensors(c) != 0,
				      .each = ignore_item,
				      .progress = show_bytes,
				      .arg = &r->progress };
	int rc;

	progress_start(&r->progress, "values", 0, !r->o->quiet);
	rc = ckpt_values_scan(c, &s, e);
	progress_end(&r->progress);
	if (!rc)
		add_values(&r->json, &s.total);
	return rc;
}

/* A checkpoint that cannot be opened is a row with the reason. */
static int add_step(struct run_rows *s, const struct ckpt_run_entry *x, struct ckpt_err *e)
{
	struct json_out *j = &s->r->json;
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_err why = { 0 };
	struct ckpt_totals t;
	const char *rest;
	int rc = 0;

	json_open_line(j, NULL, '{');
	json_str(j, "name", x->name);
	json_bool(j, "complete", x->complete);
	json_bool(j, "latest", x->latest);
	add_time(j, "mtime", x->mtime_ns);
	if (x->complete &&
	    cmd_open_in_run(s->run, x->name, s->r->o, &holes_are_fine, &c, &rest, &why)) {
		json_str(j, "fault", why.msg);
	} else {
		json_str(j, "fault", x->fault);
		if (c) {
			ckpt_totals(c, &t);
			add_totals(j, c, &t);
			rc = s->r->o->stat ? add_step_values(s->r, c, e) : 0;
		}
	}
	json_close(j);
	return rc;
}

static int add_run(struct report *r, struct ckpt *run, struct ckpt_err *e)
{
	struct run_rows s CLEANUP(run_rows_release) = { .r = r, .run = run };
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	autofree char *path = NULL;
	const char *rest;
	int rc = ckpt_run_each(run, take_entry, &s, e);

	if (rc == -ENOMEM)
		return err_nomem(e);
	json_open(&r->json, "run", '{');
	json_str(&r->json, "path", r->o->args[0]);
	json_open(&r->json, "checkpoints", '[');
	for (size_t i = 0; !rc && i < s.n; i++) {
		rc = add_step(&s, &s.rows[i], e);
		s.latest = s.rows[i].latest && s.rows[i].complete ? s.rows[i].name : s.latest;
	}
	json_close(&r->json);
	json_close(&r->json);
	if (rc || !s.latest)
		return rc;
	if (asprintf(&path, "%s/%s", r->o->args[0], s.latest) < 0) {
		path = NULL;
		return err_nomem(e);
	}
	rc = cmd_open_in_run(run, s.latest, r->o, &holes_are_fine, &c, &rest, e);
	return rc ? rc : add_all(r, c, path, e);
}

/* ---- the file ---- */

/* The file gets its name only when it is complete. */
static int replace_file(const char *path, const struct buf *b, struct ckpt_err *e)
{
	autofree char *temporary = NULL;
	mode_t mask = umask(0);
	autoclose int fd = -1;
	int rc;

	(void)umask(mask);
	if (asprintf(&temporary, "%s.XXXXXX", path) < 0) {
		temporary = NULL;
		return err_nomem(e);
	}
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "write '%s'", path);
	rc = io_write(fd, b->data, b->len);
	if (!rc && (fchmod(fd, 0666 & ~mask) || rename(temporary, path)))
		rc = -errno;
	if (!rc)
		return 0;
	(void)unlink(temporary);
	return err_sys(e, -rc, "write '%s'", path);
}

static int write_page(const char *path, const struct buf *b, struct ckpt_err *e)
{
	struct stat st;

	if (!strcmp(path, "-")) {
		if (isatty(STDOUT_FILENO))
			return err_set(e, EINVAL,
				       "report: a page is not for a terminal; name a file with "
				       "--output=FILE");
		(void)fwrite(b->data, 1, b->len, stdout);
		return 0;
	}
	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		return err_set(e, EISDIR, "write '%s': a directory; --output takes a file's name",
			       path);
	if (!stat(path, &st) && !S_ISREG(st.st_mode)) { /* /dev/stdout */
		FILE *f = fopen(path, "we");
		bool done = f && fwrite(b->data, 1, b->len, f) == b->len;

		return (f && !fclose(f) && done) ? 0 : err_sys(e, errno, "write '%s'", path);
	}
	return replace_file(path, b, e);
}

static int make_page(struct report *r, struct ckpt *c, struct ckpt_err *e)
{
	const char *path = r->o->args[0];
	struct json_out *j = &r->json;
	int rc = page_begin(&r->page, path, e);

	if (rc)
		return rc;
	json_open(j, NULL, '{');
	json_str(j, "program", "ckptfs " CKPTFS_VERSION);
	json_u64(j, "made", (uint64_t)time(NULL));
	json_open_line(j, "options", '[');
	for (size_t i = 0; r->o->open && r->o->open[i]; i++)
		json_str(j, NULL, r->o->open[i]);
	json_close(j);
	rc = ckpt_is_run(c) ? add_run(r, c, e) : add_all(r, c, path, e);
	json_close(j);
	if (!rc)
		rc = page_section(&r->page, "head", &r->head, e);
	return rc ? rc : page_end(&r->page, e);
}

static int report_run(const struct options *o)
{
	const struct cmd_how how = { CMD_WORDS("allow_missing", "runs"), NULL };
	const char *to = o->output ? o->output : DEFAULT_FILE;
	struct report r = { .o = o, .head = BUF_INIT(MAX_PAGE), .page.out = BUF_INIT(MAX_PAGE) };
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_err e = { 0 };
	char size[16];
	int rc;

	r.json.to = &r.head;
	rc = cmd_open(o->args[0], o, &how, &c, &e);
	if (!rc && ckpt_is_run(c))
		rc = cmd_run_look(c, o, &e);
	if (!rc)
		rc = make_page(&r, c, &e);
	if (!rc)
		rc = write_page(to, &r.page.out, &e);
	if (!rc && strcmp(to, "-") != 0 && !o->quiet)
		(void)fprintf(stderr, "%s: %s\n", to, text_size(r.page.out.len, size));
	page_release(&r.page);
	buf_release(&r.head);
	return rc ? cmd_fail(&e) : cmd_finish(STATUS_DONE);
}

const struct command command_report = {
	.name = "report",
	.usage = "CKPT",
	.complete = "",
	.summary = "Write an HTML page that shows what is in a checkpoint",
	.examples = "  $ ckptfs report run/step-1000\n"
		    "  $ ckptfs report --stat --output=run.html run\n",
	.details = "Writes one file, report.html unless --output names another, which a browser "
		   "opens without a\n"
		   "network. --stat reads all elements and adds what values tensors have. Of a run "
		   "the page has a\n"
		   "table of its checkpoints, and the tensors of the latest.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_FILES | WORDS_CACHE | WORDS_QUIET |
		 WORDS_REPORT | WORDS_JOBS,
	.min_args = 1,
	.max_args = 1,
	.checkpoints = 1,
	.run = report_run,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_report.h>

#include "page/chunkrows.h"
#include "page/live_page.h"
#include "page/page.h"
#include "page/series.h"
#include "page/table.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/sized.h"
#include "base/text.h"
#include "base/vec.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PAGE ((size_t)2 << 30)
#define MAX_LIVE ((size_t)256 << 20) /* is kept in memory */

/* Bytes of a page, at most; and how many more for each tensor and each checkpoint of a run. */
enum { FIXED_ROOM = 100 << 10, ROOM = 150 };

struct report {
	const struct ckpt_report *o;
	struct json_out json; /* of the section "head" */
	struct buf head;
	struct page page;
	struct series series;
	bool in_run; /* the data is that of a checkpoint in a run's tree */
	/* Tensors of the checkpoint, or of the run's latest; other checkpoints of the run. */
	uint64_t unreadable, unreadable_steps;
};

static void report_release(struct report *r)
{
	series_release(&r->series);
	page_release(&r->page);
	buf_release(&r->head);
}

CLEANUP_POINTER(close_checkpoint, struct ckpt, ckpt_close)

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
	json_str(j, "missing", t->missing);
	json_u64(j, "parameters", ckpt_parameters(c));
}

static int add_checkpoint(struct report *r, struct ckpt *c, const char *path, struct ckpt_err *e)
{
	char family[CKPT_FAMILY_MAX];
	struct json_out *j = &r->json;
	struct ckpt_totals t;
	int rc;

	ckpt_totals(c, &t);
	json_open(j, "checkpoint", '{');
	json_str(j, "path", path);
	add_totals(j, c, &t);
	add_time(j, "mtime", t.mtime_ns);
	json_str(j, "family", ckpt_family(c, family, sizeof(family)) ? family : NULL);
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

static int read_values(struct report *r, struct table *t, struct ckpt_err *e)
{
	int rc = table_read_values(t, r->o, e);

	if (!rc) {
		add_values(&r->json, &t->all_values);
		json_u64(&r->json, "unreadable", t->unreadable);
		r->unreadable = t->unreadable;
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

struct run_rows {
	struct report *r;
	struct ckpt *run;
	const char *latest; /* borrowed from names */
	struct ckpt_run_entry *rows;
	size_t n, cap, complete;
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

static int add_step_values(struct report *r, struct ckpt *c, bool latest, struct ckpt_err *e)
{
	struct ckpt_values_scan s = { .jobs = r->o->jobs,
				      .model = ckpt_model_tensors(c) != 0,
				      .each = ignore_item,
				      .progress = r->o->progress,
				      .arg = r->o->arg };
	int rc = ckpt_values_scan(c, &s, e);

	if (!rc) {
		add_values(&r->json, &s.total);
		json_u64(&r->json, "unreadable", s.failed);
		r->unreadable_steps += s.failed && !latest;
	}
	return rc;
}

static int open_step(struct run_rows *s, const char *name, struct ckpt **ret, struct ckpt_err *e)
{
	const struct ckpt_report *o = s->r->o;
	const char *rest;

	return o->open ? o->open(o->arg, name, ret, e)
		       : ckpt_run_open(s->run, name, o->options, NULL, ret, &rest, e);
}

/* A checkpoint that cannot be opened is a row with the reason. */
static int add_step(struct run_rows *s, const struct ckpt_run_entry *x, struct ckpt_err *e)
{
	struct json_out *j = &s->r->json;
	struct ckpt *c CLEANUP(close_checkpoint) = NULL;
	struct ckpt_err why = { 0 };
	/* The page of a run in the tree leads to theirs. */
	bool open = x->complete && !s->r->page.data;
	struct ckpt_totals t;
	int rc = 0;

	json_open_line(j, NULL, '{');
	json_str(j, "name", x->name);
	json_bool(j, "complete", x->complete);
	json_bool(j, "latest", x->latest);
	add_time(j, "mtime", x->mtime_ns);
	if (open && open_step(s, x->name, &c, &why)) {
		json_str(j, "fault", why.msg);
	} else {
		json_str(j, "fault", x->fault);
		if (c) {
			ckpt_totals(c, &t);
			add_totals(j, c, &t);
			rc = s->r->o->stat ? add_step_values(s->r, c, x->latest, e) : 0;
		}
	}
	json_close(j);
	return rc;
}

static int add_run(struct report *r, struct ckpt *run, struct ckpt_err *e)
{
	struct run_rows s CLEANUP(run_rows_release) = { .r = r, .run = run };
	struct ckpt *c CLEANUP(close_checkpoint) = NULL;
	autofree char *path = NULL;
	int rc = ckpt_run_each(run, take_entry, &s, e);

	if (rc == -ENOMEM)
		return err_nomem(e);
	json_open(&r->json, "run", '{');
	json_str(&r->json, "path", r->o->path);
	json_open(&r->json, "checkpoints", '[');
	for (size_t i = 0; !rc && i < s.n; i++) {
		rc = add_step(&s, &s.rows[i], e);
		s.complete += s.rows[i].complete;
		s.latest = s.rows[i].latest && s.rows[i].complete ? s.rows[i].name : s.latest;
	}
	json_close(&r->json);
	json_close(&r->json);
	if (rc || !s.latest || r->page.data)
		return rc;
	path = text_format("%s/%s", r->o->path, s.latest);
	if (!path)
		return err_nomem(e);
	rc = open_step(&s, s.latest, &c, e);
	if (!rc)
		rc = add_all(r, c, path, e);
	return rc || !r->o->stat ? rc : series_read(&r->series, run, s.complete, c, r->o, e);
}

/* Adds the section, in the room that nothing else needs. */
static int add_series(struct report *r, struct ckpt_err *e)
{
	const struct series *s = &r->series;
	size_t room = FIXED_ROOM + ROOM * (size_t)(s->tensors + s->n_names),
	       used = page_size(&r->page);

	return series_write(s, &r->page, room - min_u64(room, used), e);
}

/* ---- the page ---- */

/* The section "head" and the tables. */
static int add_sections(struct report *r, struct ckpt *c, struct ckpt_err *e)
{
	const char *const *options = r->o->options;
	struct json_out *j = &r->json;
	int rc;

	j->to = &r->head;
	json_open(j, NULL, '{');
	json_str(j, "program", r->o->program ? r->o->program : "libckpt " CKPTFS_VERSION);
	if (r->page.data)
		json_bool(j, "in_run", r->in_run);
	else
		json_u64(j, "made", (uint64_t)time(NULL));
	json_open_line(j, "options", '[');
	for (size_t i = 0; options && options[i]; i++)
		json_str(j, NULL, options[i]);
	json_close(j);
	rc = ckpt_is_run(c) ? add_run(r, c, e) : add_all(r, c, r->o->path, e);
	json_close(j);
	if (!rc)
		rc = page_section(&r->page, "head", &r->head, e);
	return rc || r->page.data ? rc : add_series(r, e);
}

/* The page says so, too, but may never be looked at. */
static void warn_of_unreadable(const struct report *r, const struct ckpt *c)
{
	uint64_t steps = r->unreadable_steps + (r->unreadable != 0);
	struct ckpt_totals t;
	char what[100];

	if (!r->o->warn || !steps)
		return;
	ckpt_totals(c, &t);
	if (ckpt_is_run(c))
		(void)snprintf(what, sizeof(what),
			       "tensors of %" PRIu64 " checkpoint%s cannot be read", steps,
			       text_s(steps));
	else
		(void)snprintf(what, sizeof(what),
			       "%" PRIu64 " of %" PRIu64 " tensors cannot be read", r->unreadable,
			       t.tensors);
	r->o->warn(r->o->arg, what);
}

static int finish(struct report *r, int rc, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	if (!rc && r->page.out.err)
		rc = err_sys(e, r->page.out.err, "page");
	if (rc)
		return rc;
	*ret_len = r->page.out.len;
	*ret = steal_ptr(&r->page.out.data);
	return 0;
}

int ckpt_report_sized(struct ckpt *c, const struct ckpt_report *r, size_t size, char **ret,
		      size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt_report o;
	struct report report CLEANUP(report_release) = { .o = &o,
							 .head = BUF_INIT(MAX_PAGE),
							 .page.out = BUF_INIT(MAX_PAGE) };
	int rc = SIZED_TAKE(o, r, size, "ckpt_report", e);

	if (!rc && !o.path)
		rc = err_set(e, EINVAL, "ckpt_report: no path");
	if (!rc)
		rc = page_begin(&report.page, o.path, e);
	if (!rc)
		rc = add_sections(&report, c, e);
	if (!rc)
		rc = page_end(&report.page, e);
	rc = finish(&report, rc, ret, ret_len, e);
	if (!rc)
		warn_of_unreadable(&report, c);
	return rc;
}

/* ---- the page in the tree ---- */

int live_page(const char *path, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct report report CLEANUP(
		report_release) = { .page = { .out = BUF_INIT(MAX_LIVE), .live = true } };
	int rc = page_begin(&report.page, path, e);

	if (!rc)
		rc = page_end(&report.page, e);
	return finish(&report, rc, ret, ret_len, e);
}

int live_data(struct ckpt *c, const char *path, const char *const *options, bool in_run, char **ret,
	      size_t *ret_len, struct ckpt_err *e)
{
	const struct ckpt_report o = { .path = path, .options = options };
	struct report report CLEANUP(
		report_release) = { .o = &o,
				    .head = BUF_INIT(MAX_LIVE),
				    .page = { .out = BUF_INIT(MAX_LIVE), .data = true },
				    .in_run = in_run };
	int rc;

	buf_str(&report.page.out, "ckptfsData({\n");
	rc = add_sections(&report, c, e);
	buf_str(&report.page.out, "});\n");
	return finish(&report, rc, ret, ret_len, e);
}

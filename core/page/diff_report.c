/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of two checkpoints. Its rows are the tensors of either, then the objects; a row shows
 * the dtype and shape of B, or of A if B lacks it.
 */
#include <ckptfs/ckpt_report.h>

#include "page/heats.h"
#include "page/page.h"
#include "page/rows.h"
#include "page/table.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/sized.h"
#include "base/text.h"
#include "base/vec.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PAGE ((size_t)2 << 30)

struct line {
	int64_t at[2]; /* its numbers in A and in B; -1: it is not there */
	enum ckpt_diff_result result;
	bool known, numeric; /* values were compared; they are numbers */
	uint64_t changed, nan_a, nan_b, infinite;
	float l2, norm_a, max_abs, mean_abs;
	char *fault;
};

struct lines {
	struct line *all;
	size_t n, cap;
};

struct diff_report {
	struct ckpt_diff_report *o;
	struct ckpt *sides[2];
	struct table tables[2]; /* for the roles of tensors */
	struct lines tensors, objects;
	struct heats heats;
	struct rows rows;
	struct page page;
	struct json_out json;
	struct buf head, columns, model_names;
};

static void lines_release(struct lines *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->all[i].fault);
	free(l->all);
}

static void diff_report_release(struct diff_report *r)
{
	for (size_t i = 0; i < 2; i++)
		table_release(&r->tables[i]);
	lines_release(&r->tensors);
	lines_release(&r->objects);
	heats_release(&r->heats);
	rows_release(&r->rows);
	page_release(&r->page);
	buf_release(&r->head);
	buf_release(&r->columns);
	buf_release(&r->model_names);
}

/* ---- reading ---- */

static int64_t find(const struct diff_report *r, size_t side, const struct ckpt_diff_item *i,
		    bool object)
{
	const struct ckpt *c = r->sides[side];

	return object	     ? ckpt_object_find(c, i->fqn, i->fqn_len)
	       : r->o->model ? ckpt_model_find(c, i->fqn, i->fqn_len)
			     : ckpt_tensor_find(c, i->fqn, i->fqn_len);
}

static void tensor_at(const struct diff_report *r, size_t side, int64_t at, struct ckpt_tensor *ret)
{
	if (r->o->model)
		ckpt_model_tensor(r->sides[side], (uint64_t)at, ret);
	else
		ckpt_tensor(r->sides[side], (uint64_t)at, ret);
}

/* The side whose dtype and shape are shown. */
static size_t shown(const struct line *x)
{
	return x->at[1] >= 0;
}

static enum row_role role_of(const struct diff_report *r, const struct line *x)
{
	enum row_role role = ROLE_OTHER;

	if (r->o->model)
		return ROLE_MODEL;
	for (size_t side = 0; side < 2; side++) {
		struct ckpt_tensor t;

		if (x->at[side] < 0)
			continue;
		tensor_at(r, side, x->at[side], &t);
		role = table_role(&r->tables[side], (uint64_t)x->at[side], &t);
		if (role == ROLE_MODEL)
			break;
	}
	return role;
}

/* Never turns what is not 0 into 0. */
static float narrow(double v)
{
	return v > 0 ? fmaxf((float)fmin(v, (double)FLT_MAX), FLT_TRUE_MIN) : 0;
}

/*
 * The page divides one norm by the other. If a float cannot hold them (which takes tensors of
 * doubles), both are scaled alike, so that the relative change stays right.
 */
static void take_norms(struct line *x, double l2, double norm_a)
{
	const double small = 1e-20; /* leaves room below for smaller changes */
	double high = fmax(l2, norm_a), low = fmin(l2, norm_a), scale = 1;

	if (isfinite(high) && high > (double)FLT_MAX)
		scale = (double)FLT_MAX / high;
	else if (low < (double)FLT_MIN && high > 0 && high < small)
		scale = small / high;
	x->l2 = narrow(l2 * scale);
	x->norm_a = narrow(norm_a * scale);
}

static void take_values(struct line *x, const struct ckpt_diff_values *v)
{
	x->known = true;
	x->numeric = v->numeric;
	x->changed = v->changed;
	x->nan_a = v->nan_a;
	x->nan_b = v->nan_b;
	x->infinite = v->infinite;
	take_norms(x, v->l2, v->norm_a);
	x->max_abs = narrow(v->max_abs);
	x->mean_abs = narrow(v->mean_abs);
}

static int take(void *arg, const struct ckpt_diff_item *i)
{
	struct diff_report *r = arg;
	bool object = !i->a.dtype && !i->b.dtype;
	struct lines *l = object ? &r->objects : &r->tensors;
	struct line *x;
	int rc = 0;

	if (!VEC_ROOM(l->all, l->cap, l->n + 1))
		return -ENOMEM;
	x = &l->all[l->n++];
	*x = (struct line){ .result = i->result };
	for (size_t side = 0; side < 2; side++)
		x->at[side] = find(r, side, i, object);
	if (i->fault) {
		x->fault = text_format("%s%s",
				       i->result != CKPT_DIFF_FAILED ? ""
				       : i->fault_in_b		     ? "in B: "
								     : "in A: ",
				       i->fault);
		if (!x->fault)
			return -ENOMEM;
	}
	if (i->values) {
		take_values(x, i->values);
		rc = heats_add(&r->heats, l->n - 1, role_of(r, x) == ROLE_OPTIMIZER, i->values);
	}
	return rc || !r->o->each ? rc : r->o->each(r->o->arg, i);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	const struct diff_report *r = arg;

	if (r->o->progress)
		r->o->progress(r->o->arg, done, total);
}

static int compare(struct diff_report *r, struct ckpt_err *e)
{
	struct ckpt_diff d = { .globs = r->o->globs,
			       .model = r->o->model,
			       .values = true,
			       .jobs = r->o->jobs,
			       .each = take,
			       .progress = show_progress,
			       .arg = r,
			       .norms = true,
			       .heat = HEATS_SIDE };
	int rc = 0;

	for (size_t i = 0; !rc && i < 2 && !r->o->model; i++)
		rc = ckpt_is_run(r->sides[i]) ? err_set(e, EISDIR, "it is a run")
					      : table_read(&r->tables[i], r->sides[i], e);
	if (!rc)
		rc = ckpt_diff(r->sides[0], r->sides[1], &d, e);
	r->o->names = d.names;
	memcpy(r->o->counts, d.counts, sizeof(d.counts));
	return rc == -ENOMEM && !e->code ? err_nomem(e) : rc;
}

/* ---- writing ---- */

static int add_rows(struct diff_report *r)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < r->tensors.n; i++) {
		const struct line *x = &r->tensors.all[i];
		size_t side = shown(x);
		struct ckpt_tensor t;

		tensor_at(r, side, x->at[side], &t);
		rc = rows_add_tensor(&r->rows, role_of(r, x), &t, x->fault);
		page_add_uint(&r->model_names, 2);
	}
	for (size_t i = 0; !rc && i < r->objects.n; i++) {
		const struct line *x = &r->objects.all[i];
		struct ckpt_object o;

		ckpt_object(r->sides[shown(x)], (uint64_t)x->at[shown(x)], &o);
		rc = rows_add_object(&r->rows, &o, x->fault);
	}
	return rc;
}

/* The number of A's dtype or shape, where A is not what is shown. */
static int add_others(struct diff_report *r,
		      int64_t (*number)(struct rows *, const struct ckpt_tensor *))
{
	for (size_t i = 0; i < r->tensors.n; i++) {
		const struct line *x = &r->tensors.all[i];
		struct ckpt_tensor t;
		int64_t n;

		if (x->at[0] < 0 || x->at[1] < 0)
			continue;
		tensor_at(r, 0, x->at[0], &t);
		n = number(&r->rows, &t);
		if (n < 0)
			return -ENOMEM;
		page_add_uint(&r->columns, (uint64_t)n);
	}
	return 0;
}

static void add_counts(struct diff_report *r, size_t offset)
{
	for (size_t i = 0; i < r->tensors.n; i++)
		page_add_uint(&r->columns,
			      *(const uint64_t *)(const void *)((const char *)&r->tensors.all[i] +
								offset));
}

static int add_columns(struct diff_report *r)
{
	static const size_t counts[] = { offsetof(struct line, changed),
					 offsetof(struct line, nan_a), offsetof(struct line, nan_b),
					 offsetof(struct line, infinite) };
	static const size_t floats[] = { offsetof(struct line, l2), offsetof(struct line, norm_a),
					 offsetof(struct line, max_abs),
					 offsetof(struct line, mean_abs) };
	const struct lines *both[] = { &r->tensors, &r->objects };
	int rc;

	for (size_t k = 0; k < 2; k++)
		for (size_t i = 0; i < both[k]->n; i++)
			page_add_uint(&r->columns, both[k]->all[i].result);
	for (size_t i = 0; i < r->tensors.n; i++)
		page_add_uint(&r->columns, (unsigned)r->tensors.all[i].known +
						   (unsigned)r->tensors.all[i].numeric);
	rc = add_others(r, rows_dtype);
	if (!rc)
		rc = add_others(r, rows_shape);
	for (size_t k = 0; k < sizeof(counts) / sizeof(*counts); k++)
		add_counts(r, counts[k]);
	for (size_t k = 0; r->tensors.n && k < sizeof(floats) / sizeof(*floats); k++)
		page_add_floats(&r->columns, (const char *)r->tensors.all + floats[k], r->tensors.n,
				sizeof(*r->tensors.all));
	heats_write(&r->heats, &r->columns);
	return rc;
}

static void add_side(struct diff_report *r, size_t side)
{
	struct json_out *j = &r->json;
	struct ckpt_totals t;

	ckpt_totals(r->sides[side], &t);
	json_open(j, side ? "b" : "a", '{');
	json_str(j, "path", side ? r->o->path_b : r->o->path_a);
	json_str(j, "format", t.format);
	json_u64(j, "tensors", t.tensors);
	json_u64(j, "objects", t.objects);
	json_u64(j, "tensor_bytes", t.tensor_bytes);
	json_u64(j, "parameters", ckpt_parameters(r->sides[side]));
	json_u64(j, "mtime", t.mtime_ns / 1000000000);
	json_close(j);
}

static void add_head(struct diff_report *r)
{
	const char *const *options = r->o->options;
	struct json_out *j = &r->json;

	j->to = &r->head;
	json_open(j, NULL, '{');
	json_str(j, "program", r->o->program ? r->o->program : "libckpt " CKPTFS_VERSION);
	json_u64(j, "made", (uint64_t)time(NULL));
	json_open_line(j, "options", '[');
	for (size_t i = 0; options && options[i]; i++)
		json_str(j, NULL, options[i]);
	json_close(j);
	json_open(j, "diff", '{');
	json_bool(j, "model", r->o->model);
	add_side(r, 0);
	add_side(r, 1);
	json_close(j);
	json_close(j);
}

static int make_page(struct diff_report *r, struct ckpt_err *e)
{
	autofree char *title = NULL;
	int rc;

	title = text_format("%s \xE2\x86\x92 %s", r->o->path_a, r->o->path_b);
	if (!title)
		return err_nomem(e);
	rc = page_begin(&r->page, title, e);
	if (!rc)
		rc = compare(r, e);
	if (rc)
		return rc;
	if (add_rows(r) || add_columns(r))
		return err_nomem(e);
	add_head(r);
	rc = rows_write(&r->rows, &r->model_names, &r->page, e);
	if (!rc)
		rc = page_section(&r->page, "diff", &r->columns, e);
	if (!rc)
		rc = page_section(&r->page, "head", &r->head, e);
	return rc ? rc : page_end(&r->page, e);
}

int ckpt_diff_report_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff_report *r, size_t size,
			   char **ret, size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt_diff_report o;
	struct diff_report report CLEANUP(diff_report_release) = {
		.o = &o,
		.sides = { a, b },
		.tables = { TABLE_INIT(MAX_PAGE), TABLE_INIT(MAX_PAGE) },
		.rows = ROWS_INIT(MAX_PAGE),
		.page = { .out = BUF_INIT(MAX_PAGE), .diff = true },
		.head = BUF_INIT(MAX_PAGE),
		.columns = BUF_INIT(MAX_PAGE),
		.model_names = BUF_INIT(MAX_PAGE),
	};
	int rc = SIZED_TAKE(o, r, size, "ckpt_diff_report", e);

	if (!rc && !(o.path_a && o.path_b))
		rc = err_set(e, EINVAL, "ckpt_diff_report: no path");
	if (!rc)
		rc = make_page(&report, e);
	if (rc)
		return rc;
	SIZED_GIVE(r, size, o);
	*ret_len = report.page.out.len;
	*ret = steal_ptr(&report.page.out.data);
	return 0;
}

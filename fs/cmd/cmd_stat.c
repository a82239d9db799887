/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/interrupt.h"
#include "cmd/options.h"
#include "cmd/plot.h"
#include "cmd/stat_series.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/progress.h"
#include "base/vec.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LINE_MAX_BYTES = 64 << 20,
	PLOT_COLUMNS = 16,
	BAR_COLUMNS = 40, /* of a histogram's bin */
	FIRST_COLUMNS = 9,
};

/* A row that is waiting to be sorted or shown. */
struct row {
	struct ckpt_values_item item;
	uint64_t at; /* its place in natural order */
	char *fqn, *fault;
	struct ckpt_hist hists[2];
	void *bins[2];
};

struct column {
	const char *name;
	size_t at; /* in struct ckpt_values: */
	enum { REAL, COUNT } type;
};

struct report {
	const struct options *o;
	struct buf *out;
	struct json_out json;
	struct progress progress;
	const struct column *key; /* by which rows are sorted; NULL: they come as they are */
	struct row *rows;
	size_t n_rows, cap_rows;
	enum ckpt_values_by by;
	bool begun, plots, utf8;
	const struct column *bar; /* that is drawn; NULL: histograms instead */
	double longest;		  /* bar */
	uint64_t chunks;	  /* by rank */
};

/* ---- columns ---- */

static const struct column columns[] = {
	{ "elements", offsetof(struct ckpt_values, elements), COUNT },
	{ "min", offsetof(struct ckpt_values, min), REAL },
	{ "max", offsetof(struct ckpt_values, max), REAL },
	{ "mean", offsetof(struct ckpt_values, mean), REAL },
	{ "std", offsetof(struct ckpt_values, std), REAL },
	{ "norm", offsetof(struct ckpt_values, norm), REAL },
	{ "zero", offsetof(struct ckpt_values, zero), COUNT },
	{ "nan", offsetof(struct ckpt_values, nan), COUNT },
	{ "inf", offsetof(struct ckpt_values, infinite), COUNT },
};

static const struct column *column_of(const char *name)
{
	for (size_t i = 0; name && i < ARRAY_LEN(columns); i++)
		if (!strcmp(name, columns[i].name))
			return &columns[i];
	return NULL;
}

static double number_in(const struct column *c, const struct ckpt_values_item *i)
{
	const void *at = (const char *)&i->values + c->at;

	return c->type == COUNT ? (double)*(const uint64_t *)at : *(const double *)at;
}

static const char *const groupings[] = { "tensor", "layer", "role", "rank" };

/* The table of options has the same names. */
static int read_options(const struct options *o, struct report *r, struct ckpt_values_scan *s,
			struct ckpt_err *e)
{
	for (size_t i = 0; o->by && i < ARRAY_LEN(groupings); i++)
		if (!strcmp(o->by, groupings[i]))
			s->by = r->by = (enum ckpt_values_by)i;
	r->key = column_of(o->sort);
	if (o->csv && o->json)
		return err_set(e, EINVAL, "options 'csv' and 'json' cannot be combined");
	if (o->csv && o->hist)
		return err_set(e, EINVAL,
			       "options 'hist' and 'csv' cannot be combined; json has histograms");
	s->bins = (unsigned)o->hist;
	r->plots = !o->csv && !o->json && plot_wanted(o);
	r->utf8 = r->plots && plot_utf8();
	if (r->plots && r->by == CKPT_VALUES_LAYER)
		r->bar = r->key ? r->key : column_of("norm");
	else if (r->plots && !o->hist && (!o->resume || o->plot))
		s->bins = PLOT_COLUMNS; /* a resumed command may write to a file */
	return 0;
}

/* ---- numbers ---- */

/* A minimum or maximum; integers with all digits. */
static void add_extreme(char out[static 64], double v, double rest, bool integer)
{
	__int128 whole;
	char digits[48], *p = digits + sizeof(digits);

	if (!integer) {
		(void)snprintf(out, 64, "%.9g", v);
		return;
	}
	whole = (__int128)v + (__int128)rest;
	*--p = 0;
	for (__int128 left = whole < 0 ? -whole : whole; left || !*p; left /= 10)
		*--p = (char)('0' + (int)(left % 10));
	(void)snprintf(out, 64, "%s%s", whole < 0 ? "-" : "", p);
}

static bool is_integer(const struct ckpt_values_item *i)
{
	return i->dtype && (!strncmp(i->dtype, "int", 3) || !strncmp(i->dtype, "uint", 4));
}

static bool has_order(const struct ckpt_values *v)
{
	return v->known && v->finite && !v->is_complex;
}

/* ---- for people ---- */

static void add_heading(const struct report *r)
{
	struct buf *b = r->out;

	buf_printf(b, "%-*s %13s %12s %12s %12s %12s %12s %10s %6s %6s  ", FIRST_COLUMNS,
		   r->by == CKPT_VALUES_TENSOR ? "dtype"
		   : r->by == CKPT_VALUES_RANK ? "chunks"
					       : "tensors",
		   "elements", "min", "max", "mean", "std", "norm", "zeros", "NaN", "Inf");
	if (r->plots)
		buf_printf(b, "%-*s  ", PLOT_COLUMNS, r->bar ? r->bar->name : "min to max");
	buf_printf(b, "%s\n", groupings[r->by]);
}

static void add_plot(const struct report *r, const struct ckpt_values_item *i)
{
	if (r->bar) {
		/* A tensor among layers is unreadable. */
		double v = i->dtype ? 0 : fabs(number_in(r->bar, i));

		plot_bar(r->out, r->longest > 0 && v <= r->longest ? v / r->longest : 0,
			 PLOT_COLUMNS, true, r->utf8);
	} else {
		plot_spark(r->out, i->linear ? i->linear->counts : NULL,
			   i->linear ? i->linear->n : 0, PLOT_COLUMNS, r->utf8);
	}
	buf_str(r->out, "  ");
}

static void add_hist(const struct report *r, const char *name, const struct ckpt_hist *h)
{
	uint64_t largest = 1;

	for (size_t i = 0; i < h->n; i++)
		largest = h->counts[i] > largest ? h->counts[i] : largest;
	buf_printf(r->out, "  %s\n", name);
	for (size_t i = 0; i < h->n; i++) {
		buf_printf(r->out, "  %14.8g  %14" PRIu64, h->edges[i], h->counts[i]);
		if (r->plots) {
			buf_str(r->out, "  ");
			plot_bar(r->out, (double)h->counts[i] / (double)largest, BAR_COLUMNS, false,
				 r->utf8);
		}
		buf_str(r->out, "\n");
	}
	buf_printf(r->out, "  %14.8g\n", h->edges[h->n]);
}

/* A line whose columns are filled from the left. */
struct line {
	struct buf *b;
	size_t end; /* of the column, in b */
};

/* Text at the right of the next column. Text that is too wide takes room from the columns behind
 * it, so that those behind these are in their places. */
static void add_column(struct line *l, int width, const char *text)
{
	size_t len = strlen(text), at;

	l->end += 1 + (size_t)width;
	at = max_u64(l->b->len + 1, max_u64(l->end, len) - len);
	buf_printf(l->b, "%*s%s", (int)(at - l->b->len), "", text);
}

static void add_count(struct line *l, int width, uint64_t n)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, n);
	add_column(l, width, text);
}

static void add_real(struct line *l, bool known, double v)
{
	char text[32] = "-";

	if (known)
		(void)snprintf(text, sizeof(text), "%.6g", v);
	add_column(l, 12, text);
}

static void add_numbers(struct line *l, const struct ckpt_values_item *i)
{
	const struct ckpt_values *v = &i->values;
	bool any = v->finite != 0;
	char text[64];

	add_count(l, 13, v->elements);
	if (has_order(v) && is_integer(i)) {
		add_extreme(text, v->min, v->min_rest, true);
		add_column(l, 12, text);
		add_extreme(text, v->max, v->max_rest, true);
		add_column(l, 12, text);
	} else {
		add_real(l, has_order(v), v->min);
		add_real(l, has_order(v), v->max);
	}
	if (v->is_complex && any) {
		(void)snprintf(text, sizeof(text), "%.6g%+.6gj", v->mean[0], v->mean[1]);
		add_column(l, 12, text);
	} else {
		add_real(l, any, v->mean[0]);
	}
	add_real(l, any, v->std);
	add_real(l, any, v->norm);
	add_count(l, 10, v->zero);
	add_count(l, 6, v->nan);
	add_count(l, 6, v->infinite);
}

static void add_line(const struct report *r, const char *first, const struct ckpt_values_item *i)
{
	struct buf *b = r->out;
	const struct ckpt_values *v = &i->values;
	struct line line = { b, b->len + FIRST_COLUMNS };

	buf_printf(b, "%-*s", FIRST_COLUMNS, first);
	if (i->fault) {
		buf_str(b, " unreadable: ");
		buf_str(b, i->fault);
	} else if (!v->known) {
		buf_str(b, " its bytes are not numbers by themselves");
	} else {
		add_numbers(&line, i);
	}
	buf_str(b, "  ");
	if (r->plots && v->known)
		add_plot(r, i);
	cmd_add_fqn(b, i->fqn, i->fqn_len);
	buf_str(b, "\n");
	if (r->o->hist && i->linear && i->linear->n) {
		add_hist(r, "linear", i->linear);
		add_hist(r, "powers of two", i->logarithmic);
	}
}

static void add_row(struct report *r, const struct ckpt_values_item *i)
{
	char count[24];

	if (!r->begun)
		add_heading(r);
	r->begun = true;
	if (i->dtype) {
		add_line(r, i->dtype, i);
		return;
	}
	(void)snprintf(count, sizeof(count), "%" PRIu64, i->tensors);
	add_line(r, count, i);
}

/* ---- for programs ---- */

static void add_json_extreme(struct json_out *j, const char *key, const struct ckpt_values_item *i,
			     double v, double rest)
{
	char digits[64];

	if (!has_order(&i->values) || !is_integer(i)) {
		json_real(j, key, has_order(&i->values), v);
		return;
	}
	add_extreme(digits, v, rest, true);
	json_raw(j, key, "%s", digits);
}

static void add_json_parts(struct json_out *j, const char *key, const struct ckpt_values *v,
			   const double *parts)
{
	if (!v->is_complex) {
		json_real(j, key, v->finite, parts[0]);
		return;
	}
	json_open(j, key, '[');
	json_real(j, NULL, v->finite, parts[0]);
	json_real(j, NULL, v->finite, parts[1]);
	json_close(j);
}

static void add_json_first(struct json_out *j, const char *key, uint64_t first)
{
	if (first == UINT64_MAX)
		json_str(j, key, NULL);
	else
		json_u64(j, key, first);
}

static void add_json_values(struct json_out *j, const struct ckpt_values_item *i, bool firsts)
{
	const struct ckpt_values *v = &i->values;

	json_u64(j, "elements", v->elements);
	json_u64(j, "finite", v->finite);
	json_u64(j, "nan", v->nan);
	json_u64(j, "inf", v->infinite);
	json_u64(j, "zero", v->zero);
	json_u64(j, "subnormal", v->subnormal);
	if (firsts) {
		add_json_first(j, "first_nan", v->first_nan);
		add_json_first(j, "first_inf", v->first_infinite);
		add_json_first(j, "first_zero", v->first_zero);
	}
	add_json_extreme(j, "min", i, v->min, v->min_rest);
	add_json_extreme(j, "max", i, v->max, v->max_rest);
	add_json_parts(j, "sum", v, v->sum);
	add_json_parts(j, "mean", v, v->mean);
	json_real(j, "std", v->finite, v->std);
	json_real(j, "norm", v->finite, v->norm);
}

static void add_json_hist(struct json_out *j, const char *key, const struct ckpt_hist *h)
{
	json_open(j, key, '{');
	json_open(j, "edges", '[');
	for (size_t i = 0; i <= h->n && h->n; i++)
		json_raw(j, NULL, "%.17g", h->edges[i]);
	json_close(j);
	json_u64s(j, "counts", h->counts, h->n);
	json_close(j);
}

static void add_json(struct json_out *j, enum ckpt_values_by by, const struct ckpt_values_item *i)
{
	json_open_line(j, NULL, '{');
	json_str_n(j, i->dtype ? "fqn" : "group", i->fqn, i->fqn_len);
	if (i->dtype) {
		json_str(j, "dtype", i->dtype);
		json_u64s(j, "shape", i->shape, i->n_dims);
	} else {
		json_u64(j, by == CKPT_VALUES_RANK ? "chunks" : "tensors", i->tensors);
	}
	json_u64(j, "bytes", i->bytes);
	json_str(j, "fault", i->fault);
	if (i->values.known)
		add_json_values(j, i, i->dtype);
	if (i->linear) {
		add_json_hist(j, "linear", i->linear);
		add_json_hist(j, "logarithmic", i->logarithmic);
	}
	json_close(j);
}

static void add_csv(struct buf *b, const struct ckpt_values_item *i)
{
	const struct ckpt_values *v = &i->values;
	bool known = v->known && v->finite, integer = is_integer(i);
	char min[64] = "", max[64] = "";

	if (has_order(v)) {
		(void)snprintf(min, sizeof(min), "%.17g", v->min);
		(void)snprintf(max, sizeof(max), "%.17g", v->max);
		if (integer) {
			add_extreme(min, v->min, v->min_rest, true);
			add_extreme(max, v->max, v->max_rest, true);
		}
	}
	cmd_add_csv(b, i->fqn, i->fqn_len);
	buf_printf(b, ",%s,%" PRIu64 ",%" PRIu64, i->dtype ? i->dtype : "", i->tensors, i->bytes);
	if (v->known)
		buf_printf(b, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
			   v->elements, v->nan, v->infinite, v->zero, v->subnormal);
	else
		buf_str(b, ",,,,,");
	buf_printf(b, ",%s,%s", min, max);
	cmd_add_csv_number(b, known, v->mean[0]);
	cmd_add_csv_number(b, known && v->is_complex, v->mean[1]);
	cmd_add_csv_number(b, known, v->std);
	cmd_add_csv_number(b, known, v->norm);
	buf_str(b, ",");
	if (i->fault)
		cmd_add_csv(b, i->fault, strlen(i->fault));
	buf_str(b, "\r\n");
}

/* ---- the command ---- */

static int show(struct report *r, const struct ckpt_values_item *i)
{
	if (r->o->json)
		add_json(&r->json, r->by, i);
	else if (r->o->csv)
		add_csv(r->out, i);
	else
		add_row(r, i);
	progress_hide(&r->progress);
	return cmd_print(r->out);
}

static bool keep_hist(struct row *to, size_t k, const struct ckpt_hist *from)
{
	size_t n_edges = (from->n + 1) * sizeof(*from->edges), n = from->n * sizeof(*from->counts);
	double *edges = malloc(n_edges + n);
	uint64_t *counts;

	if (!edges)
		return false;
	counts = (void *)(edges + from->n + 1);
	memcpy(edges, from->edges, n_edges);
	memcpy(counts, from->counts, n);
	to->bins[k] = edges;
	to->hists[k] = (struct ckpt_hist){ from->n, edges, counts };
	return true;
}

/* Copies everything that is borrowed only for the call. */
static bool keep(struct row *to, const struct ckpt_values_item *i)
{
	to->fqn = malloc(i->fqn_len + 1);
	if (to->fqn)
		memcpy(to->fqn, i->fqn, i->fqn_len + 1);
	to->fault = i->fault ? strdup(i->fault) : NULL;
	to->item.fqn = to->fqn;
	to->item.fault = to->fault;
	return to->fqn && (to->fault || !i->fault) &&
	       (!i->linear || (keep_hist(to, 0, i->linear) && keep_hist(to, 1, i->logarithmic)));
}

static void release_rows(struct report *r)
{
	for (size_t i = 0; i < r->n_rows; i++) {
		struct row *row = &r->rows[i];

		free(row->fqn);
		free(row->fault);
		free(row->bins[0]);
		free(row->bins[1]);
	}
	free(r->rows);
}

static int take(void *arg, const struct ckpt_values_item *i)
{
	struct report *r = arg;
	struct row *row;

	if (r->by == CKPT_VALUES_RANK && !i->fault)
		r->chunks += i->tensors;
	if (!r->key && !r->bar)
		return show(r, i);
	if (!VEC_ROOM(r->rows, r->cap_rows, r->n_rows + 1))
		return -ENOMEM;
	row = &r->rows[r->n_rows];
	*row = (struct row){ .item = *i, .at = r->n_rows };
	r->n_rows++;
	if (r->bar && !i->dtype && isfinite(number_in(r->bar, i)))
		r->longest = fmax(r->longest, fabs(number_in(r->bar, i)));
	return keep(row, i) ? 0 : -ENOMEM;
}

static int compare_rows(const void *a, const void *b, void *arg)
{
	const struct row *x = a, *y = b;
	const struct report *r = arg;
	bool x_known = x->item.values.known, y_known = y->item.values.known;
	double i = number_in(r->key, &x->item), k = number_in(r->key, &y->item);

	if (x_known != y_known)
		return x_known ? -1 : 1;
	if (i != k)
		return i > k ? -1 : 1;
	return x->at < y->at ? -1 : 1;
}

static int show_sorted(struct report *r)
{
	int rc = 0;

	if (r->n_rows && r->key)
		qsort_r(r->rows, r->n_rows, sizeof(*r->rows), compare_rows, r);
	for (size_t i = 0; !rc && i < r->n_rows; i++) {
		struct row *row = &r->rows[i];

		if (row->item.linear) { /* the row's own copy */
			row->item.linear = &row->hists[0];
			row->item.logarithmic = &row->hists[1];
		}
		rc = show(r, &row->item);
	}
	return rc;
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	progress_report(&r->progress, done, total);
}

static void begin(struct report *r, const struct ckpt_values_scan *s)
{
	if (r->o->json) {
		json_open(&r->json, NULL, '{');
		json_str(&r->json, "checkpoint", r->o->args[0]);
		json_open(&r->json, s->by ? "groups" : "tensors", '[');
	} else if (r->o->csv) {
		buf_str(r->out, "name,dtype,tensors,bytes,elements,nan,inf,zero,subnormal,min,max,"
				"mean,mean_imag,std,norm,fault\r\n");
	}
}

static void end(struct report *r, const struct ckpt_values_scan *s)
{
	const struct ckpt_values_item all = { .fqn = "all",
					      .fqn_len = 3,
					      .bytes = s->bytes,
					      .tensors = s->by == CKPT_VALUES_RANK ? r->chunks
										   : s->tensors,
					      .values = s->total };

	if (r->o->json) {
		json_close(&r->json);
		json_open_line(&r->json, "all", '{');
		json_u64(&r->json, "tensors", s->tensors);
		json_u64(&r->json, "unreadable", s->failed);
		json_u64(&r->json, "bytes", s->bytes);
		add_json_values(&r->json, &all, false);
		json_close(&r->json);
		json_close(&r->json);
	} else if (!r->o->csv && s->tensors > 1) {
		add_row(r, &all);
	}
}

static int verdict(const struct ckpt *c, const struct options *o, const struct ckpt_values_scan *s)
{
	struct ckpt_err e = { 0 };

	if (s->failed)
		(void)err_set(&e, EIO, "stat: %" PRIu64 " of %" PRIu64 " tensors cannot be read",
			      s->failed, s->tensors);
	else if (!cmd_absent(c, o->args + 1, "stat", &e) && !s->tensors)
		(void)cmd_none_left(c, o, o->args + 1, "stat: no tensor", &e);
	return e.code ? cmd_fail(&e) : STATUS_DONE;
}

static int resume(const struct options *o, struct buf *request, struct ckpt_values_scan *s,
		  struct ckpt_err *e)
{
	options_add_shape(o, NULL, request);
	buf_add(request, "", 1);
	if (request->err)
		return err_sys(e, request->err, "options");
	/* Replaces the NULs, to make it a single string. */
	for (size_t i = 0; i + 1 < request->len; i++)
		if (!request->data[i])
			request->data[i] = '\n';
	s->resume = o->resume;
	s->resume_key = request->data;
	interrupt_say("ckptfs: stat: interrupted; the same command resumes it\n");
	return 0;
}

static int stat_run(const struct options *o)
{
	const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing", "runs"), NULL };
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf out CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct buf request CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct report r = { .o = o, .out = &out, .json.to = &out };
	struct ckpt_values_scan s = { .globs = o->args + 1,
				      .model = o->model,
				      .jobs = (unsigned)o->jobs,
				      .each = take,
				      .progress = show_progress,
				      .arg = &r };
	struct ckpt_err e = { 0 };
	int rc;

	if (read_options(o, &r, &s, &e) || cmd_open(o->args[0], o, &holes_are_fine, &c, &e))
		return cmd_fail(&e);
	if (ckpt_is_run(c))
		return stat_series(c, o);
	if (o->resume && resume(o, &request, &s, &e))
		return cmd_fail(&e);
	begin(&r, &s);
	progress_start(&r.progress, "stat", 0, !o->quiet);
	rc = ckpt_values_scan(c, &s, &e);
	progress_end(&r.progress);
	if (!rc)
		rc = show_sorted(&r);
	release_rows(&r);
	if (rc == -ENOMEM && !e.code)
		(void)err_nomem(&e);
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	end(&r, &s);
	return cmd_print(&out) ? STATUS_TROUBLE : cmd_finish(verdict(c, o, &s));
}

const struct command command_stat = {
	.name = "stat",
	.usage = "CKPT [GLOB...]",
	.complete = "fn",
	.summary = "Print statistics of values: extremes, mean, norm, NaN",
	.examples = "  $ ckptfs stat --by=role --sort=std run/step-1000 'model.*'\n"
		    "  $ ckptfs stat --json run/step-1000 model.norm.weight\n"
		    "  $ ckptfs stat run '*.norm.weight'\n",
	.details = "Reads every tensor, or those whose FQNs match a glob, and prints a row for "
		   "each and one for\n"
		   "all. NaN and infinities are counted and are left out of the other columns. "
		   "For a run,\n"
		   "prints a row for each checkpoint, and how much changed since the previous one. "
		   "Exit\n"
		   "status 2 if some could not be read.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED |
		 WORDS_STAT | WORDS_JSON,
	.min_args = 1,
	.max_args = SIZE_MAX,
	.checkpoints = 1,
	.run = stat_run,
};

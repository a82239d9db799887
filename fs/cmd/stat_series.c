/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/stat_series.h"

#include "cmd/cmd.h"
#include "cmd/faults.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/progress.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINE_MAX_BYTES = 64 << 20 };

struct report {
	struct ckpt *run;
	const struct options *o;
	struct buf *out;
	struct json_out json;
	struct progress progress;
	bool begun;
};

/* ---- numbers ---- */

static double rms(const struct ckpt_values *v)
{
	return v->norm / sqrt((double)v->finite);
}

static double max_abs(const struct ckpt_values *v)
{
	return fmax(fabs(v->min), fabs(v->max));
}

static bool has_max(const struct ckpt_values *v)
{
	return v->finite && !v->is_complex;
}

/* The number of elements, even if their bytes are not numbers. */
static uint64_t elements(const struct ckpt_series_item *i)
{
	uint64_t n = 1;

	for (size_t d = 0; d < i->n_dims; d++)
		n *= i->shape[d];
	return n;
}

static double share_changed(const struct ckpt_series_item *i)
{
	return i->changed ? (double)i->changed / (double)elements(i) : 0;
}

/* ---- for people ---- */

static void add_row(struct report *r, const struct ckpt_series_item *i)
{
	const struct ckpt_values *v = &i->values;
	struct buf *b = r->out;
	size_t at;

	if (!r->begun)
		buf_printf(b, "%-20s %12s %12s %12s %6s %6s %12s %12s  %s\n", "checkpoint", "rms",
			   "norm", "max abs", "NaN", "Inf", "changed", "relative", "tensor");
	r->begun = true;
	at = b->len;
	cmd_add_fqn(b, i->checkpoint, strlen(i->checkpoint));
	cmd_pad(b, at, 20);
	if (i->fault) {
		buf_printf(b, " %s%s", i->dtype ? "unreadable: " : "", i->fault);
	} else {
		cmd_add_number(b, v->finite, rms(v));
		cmd_add_number(b, v->finite, v->norm);
		cmd_add_number(b, has_max(v), max_abs(v));
		buf_printf(b, " %6" PRIu64 " %6" PRIu64, v->nan, v->infinite);
		if (i->other_shape)
			buf_printf(b, " %12s", "other shape");
		else
			cmd_add_number(b, i->compared, share_changed(i));
		cmd_add_number(b, i->compared && !isnan(i->relative), i->relative);
	}
	buf_str(b, "  ");
	cmd_add_fqn(b, i->fqn, i->fqn_len);
	buf_str(b, "\n");
}

/* ---- for programs ---- */

static void add_json(struct json_out *j, const struct ckpt_series_item *i)
{
	const struct ckpt_values *v = &i->values;

	json_open_line(j, NULL, '{');
	json_str_n(j, "fqn", i->fqn, i->fqn_len);
	json_str(j, "checkpoint", i->checkpoint);
	json_str(j, "fault", i->fault);
	json_str(j, "dtype", i->dtype);
	if (i->dtype)
		json_u64s(j, "shape", i->shape, i->n_dims);
	if (v->known) {
		json_u64(j, "elements", v->elements);
		json_u64(j, "nan", v->nan);
		json_u64(j, "inf", v->infinite);
		json_u64(j, "zero", v->zero);
		json_real(j, "rms", v->finite, rms(v));
		json_real(j, "norm", v->finite, v->norm);
		json_real(j, "max_abs", has_max(v), max_abs(v));
	}
	if (i->other_shape)
		json_bool(j, "other_shape", true);
	if (i->compared) {
		json_u64(j, "changed", i->changed);
		json_real(j, "changed_share", true, share_changed(i));
		json_real(j, "relative", true, i->relative);
	}
	json_close(j);
}

static void add_csv(struct buf *b, const struct ckpt_series_item *i)
{
	const struct ckpt_values *v = &i->values;

	cmd_add_csv(b, i->fqn, i->fqn_len);
	buf_str(b, ",");
	cmd_add_csv(b, i->checkpoint, strlen(i->checkpoint));
	buf_printf(b, ",%s", i->dtype ? i->dtype : "");
	if (v->known)
		buf_printf(b, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, v->elements, v->nan,
			   v->infinite, v->zero);
	else
		buf_str(b, ",,,,");
	cmd_add_csv_number(b, v->finite, rms(v));
	cmd_add_csv_number(b, v->finite, v->norm);
	cmd_add_csv_number(b, has_max(v), max_abs(v));
	if (i->compared)
		buf_printf(b, ",%" PRIu64, i->changed);
	else
		buf_str(b, ",");
	cmd_add_csv_number(b, i->compared, share_changed(i));
	cmd_add_csv_number(b, i->compared && !isnan(i->relative), i->relative);
	buf_str(b, ",");
	if (i->fault)
		cmd_add_csv(b, i->fault, strlen(i->fault));
	buf_str(b, "\r\n");
}

/* ---- the command ---- */

static int show(void *arg, const struct ckpt_series_item *i)
{
	struct report *r = arg;

	if (r->o->json)
		add_json(&r->json, i);
	else if (r->o->csv)
		add_csv(r->out, i);
	else
		add_row(r, i);
	progress_hide(&r->progress);
	return cmd_print(r->out);
}

static int open_one(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e)
{
	const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing"), NULL };
	struct report *r = arg;
	const char *rest;

	progress_hide(&r->progress);
	return cmd_open_in_run(r->run, checkpoint, r->o, &holes_are_fine, ret, &rest, e);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	progress_report(&r->progress, done, total);
}

static int refuse(const struct options *o, struct ckpt_err *e)
{
	const char *word = o->by				   ? "by"
			   : o->sort				   ? "sort"
			   : o->hist				   ? "hist"
			   : o->resume				   ? "resume"
			   : o->plot && !strcmp(o->plot, "always") ? "plot"
								   : NULL;

	return word ? err_set(e, EINVAL,
			      "option '%s' is for a checkpoint, not for a run: name one of its "
			      "checkpoints, or 'latest'",
			      word)
		    : 0;
}

static int add_left_out(void *arg, const struct ckpt_run_entry *x)
{
	if (!x->complete)
		faults_add(arg, "ckptfs: warning: left out: ", x->name, strlen(x->name),
			   x->fault ? x->fault : "it is not complete");
	return 0;
}

static void warn_of_left_out(struct ckpt *run, struct buf *b)
{
	struct faults left_out = { 0 };
	struct ckpt_err ignored;

	(void)ckpt_run_each(run, add_left_out, &left_out, &ignored);
	faults_show(&left_out, SIZE_MAX, b);
	faults_release(&left_out);
	if (!b->err && b->len)
		(void)fprintf(stderr, "%.*s", (int)b->len, b->data);
}

static int verdict(struct ckpt *run, const struct ckpt_series *s)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct ckpt_err e = { 0 };

	if (s->incomplete)
		warn_of_left_out(run, &b);
	if (s->failed)
		(void)err_set(&e, EIO, "stat: %" PRIu64 " row%s of a tensor that cannot be read",
			      s->failed, s->failed == 1 ? " is" : "s are");
	else if (!s->tensors)
		(void)err_set(&e, ENOENT, "stat: no tensor of the run's checkpoints matches");
	return e.code ? cmd_fail(&e) : STATUS_DONE;
}

int stat_series(struct ckpt *run, const struct options *o)
{
	struct buf out CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct report r = { .run = run, .o = o, .out = &out, .json.to = &out };
	struct ckpt_series s = { .globs = o->args + 1,
				 .model = o->model,
				 .jobs = (unsigned)o->jobs,
				 .open = open_one,
				 .each = show,
				 .progress = show_progress,
				 .arg = &r };
	struct ckpt_err e = { 0 };
	int rc;

	if (refuse(o, &e))
		return cmd_fail(&e);
	if (o->json) {
		json_open(&r.json, NULL, '{');
		json_str(&r.json, "run", o->args[0]);
		json_open(&r.json, "rows", '[');
	} else if (o->csv) {
		buf_str(&out, "name,checkpoint,dtype,elements,nan,inf,zero,rms,norm,max_abs,"
			      "changed,changed_share,relative,fault\r\n");
	}
	progress_start(&r.progress, "stat", 0, !o->quiet);
	rc = ckpt_series(run, &s, &e);
	progress_end(&r.progress);
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	if (o->json) {
		json_close(&r.json);
		json_close(&r.json);
	}
	return cmd_print(&out) ? STATUS_TROUBLE : cmd_finish(verdict(run, &s));
}

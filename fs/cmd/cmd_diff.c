/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "cmd/page_file.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/progress.h"
#include "base/text.h"
#include <ckptfs/ckpt_report.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 64 << 20, FQN_MAX_COLUMNS = 64, CKPT_MAX_DIMS = 64 };

static const struct {
	const char *text, *json;
} names[CKPT_DIFF_RESULTS] = {
	[CKPT_DIFF_EQUAL] = { "equal", "equal" },
	[CKPT_DIFF_ONLY_A] = { "only in A", "only_a" },
	[CKPT_DIFF_ONLY_B] = { "only in B", "only_b" },
	[CKPT_DIFF_KIND] = { "kind", "kind" },
	[CKPT_DIFF_SHAPE] = { "shape", "shape" },
	[CKPT_DIFF_DTYPE] = { "dtype", "dtype" },
	[CKPT_DIFF_BYTES] = { "differs", "differs" },
	[CKPT_DIFF_FAILED] = { "unreadable", "unreadable" },
};

struct report {
	const struct options *o;
	struct buf *out;
	struct json_out json;
	size_t columns; /* of the FQNs */
	struct progress progress;
};

/* ---- for people ---- */

static void add_side(struct buf *b, const struct ckpt_diff_side *s)
{
	if (!s->dtype) {
		buf_str(b, "object");
		return;
	}
	buf_printf(b, "%s ", s->dtype);
	buf_json_u64s(b, s->shape, s->n_dims);
}

/* The index of element number i in a tensor of that shape. */
static void add_index(struct buf *b, const struct ckpt_diff_side *s, uint64_t i)
{
	uint64_t index[CKPT_MAX_DIMS];
	size_t n =
		(size_t)min_u64(s->n_dims, CKPT_MAX_DIMS); /* no checkpoint has tensors with more */

	for (size_t k = n; k--;) {
		index[k] = i % s->shape[k];
		i /= s->shape[k];
	}
	buf_json_u64s(b, index, n);
}

static void add_values(struct buf *b, const struct ckpt_diff_values *v)
{
	buf_printf(b, "  %" PRIu64 " of %" PRIu64 " elements (%.3g %%)", v->changed, v->elements,
		   v->elements ? 100 * (double)v->changed / (double)v->elements : 0.0);
	if (!v->numeric)
		return;
	if (v->finite)
		buf_printf(b, ", max %.6g, mean %.6g", v->max_abs, v->mean_abs);
	if (v->infinite)
		buf_printf(b, ", infinite %" PRIu64, v->infinite);
	if (v->nan_a || v->nan_b)
		buf_printf(b, ", NaN %" PRIu64 " | %" PRIu64, v->nan_a, v->nan_b);
}

static void add_first(struct buf *b, const struct ckpt_diff_item *i)
{
	if (!i->a.dtype) {
		buf_printf(b, "  first at byte %" PRIu64, i->first);
		if (i->fault)
			buf_printf(b, ", but their values may be the same: %s", i->fault);
	} else if (i->a.n_dims) {
		buf_str(b, i->values ? ", first at " : "  first at ");
		add_index(b, &i->a, i->first);
	}
}

static void add_line(const struct report *r, const struct ckpt_diff_item *i)
{
	struct buf *b = r->out;
	size_t start;

	buf_printf(b, "%-10s  ", names[i->result].text);
	start = b->len;
	cmd_add_fqn(b, i->fqn, i->fqn_len);
	cmd_pad(b, start, r->columns);
	buf_str(b, "  ");
	add_side(b, i->result == CKPT_DIFF_ONLY_B ? &i->b : &i->a);
	if (i->result == CKPT_DIFF_KIND || i->result == CKPT_DIFF_SHAPE ||
	    i->result == CKPT_DIFF_DTYPE) {
		buf_str(b, " | ");
		add_side(b, &i->b);
	}
	if (i->values)
		add_values(b, i->values);
	if (i->result == CKPT_DIFF_BYTES)
		add_first(b, i);
	if (i->result == CKPT_DIFF_FAILED)
		buf_printf(b, "  in %c: %s", i->fault_in_b ? 'B' : 'A', i->fault);
	buf_str(b, "\n");
}

static uint64_t different(const struct ckpt_diff *d)
{
	return d->counts[CKPT_DIFF_KIND] + d->counts[CKPT_DIFF_SHAPE] + d->counts[CKPT_DIFF_DTYPE] +
	       d->counts[CKPT_DIFF_BYTES];
}

static void add_summary(struct buf *b, const struct ckpt_diff *d)
{
	buf_printf(b,
		   "%" PRIu64 " equal, %" PRIu64 " differ, %" PRIu64 " only in A, %" PRIu64
		   " only in B",
		   d->counts[CKPT_DIFF_EQUAL], different(d), d->counts[CKPT_DIFF_ONLY_A],
		   d->counts[CKPT_DIFF_ONLY_B]);
	if (d->counts[CKPT_DIFF_FAILED])
		buf_printf(b, ", %" PRIu64 " unreadable", d->counts[CKPT_DIFF_FAILED]);
	buf_str(b, "\n");
}

/* ---- JSON ---- */

static void add_json_side(struct json_out *j, const char *key, const struct ckpt_diff_side *s)
{
	json_open(j, key, '{');
	json_str(j, "type", s->dtype ? "tensor" : "object");
	json_str(j, "dtype", s->dtype);
	if (s->dtype)
		json_u64s(j, "shape", s->shape, s->n_dims);
	else
		json_str(j, "shape", NULL);
	json_u64(j, "bytes", s->bytes);
	json_close(j);
}

static void add_json_values(struct json_out *j, const struct ckpt_diff_values *v)
{
	json_open(j, "values", '{');
	json_u64(j, "elements", v->elements);
	json_u64(j, "changed", v->changed);
	if (v->numeric) {
		json_u64(j, "nan_a", v->nan_a);
		json_u64(j, "nan_b", v->nan_b);
		json_u64(j, "infinite", v->infinite);
		json_u64(j, "finite", v->finite);
		json_real(j, "max_abs", v->finite, v->max_abs);
		json_real(j, "mean_abs", v->finite, v->mean_abs);
	}
	json_close(j);
}

static void add_json(struct json_out *j, const struct ckpt_diff_item *i)
{
	json_open_line(j, NULL, '{');
	json_str_n(j, "fqn", i->fqn, i->fqn_len);
	json_str(j, "result", names[i->result].json);
	if (i->result != CKPT_DIFF_ONLY_B)
		add_json_side(j, "a", &i->a);
	if (i->result != CKPT_DIFF_ONLY_A)
		add_json_side(j, "b", &i->b);
	if (i->result == CKPT_DIFF_BYTES)
		json_u64(j, "first", i->first);
	if (i->result == CKPT_DIFF_BYTES && i->fault)
		json_str(j, "unknown", i->fault);
	if (i->values)
		add_json_values(j, i->values);
	if (i->result == CKPT_DIFF_FAILED) {
		json_str(j, "fault_in", i->fault_in_b ? "b" : "a");
		json_str(j, "fault", i->fault);
	}
	json_close(j);
}

static void add_json_head(struct json_out *j, const char *const *paths)
{
	json_open(j, NULL, '{');
	json_str(j, "a", paths[0]);
	json_str(j, "b", paths[1]);
	json_open(j, "tensors", '[');
}

static void add_json_summary(struct json_out *j, const struct ckpt_diff *d)
{
	json_close(j);
	json_open_line(j, "summary", '{');
	for (size_t i = 0; i < CKPT_DIFF_RESULTS; i++)
		json_u64(j, names[i].json, d->counts[i]);
	json_close(j);
	json_close(j);
}

/* ---- the command ---- */

static int show(void *arg, const struct ckpt_diff_item *i)
{
	struct report *r = arg;

	if (i->result == CKPT_DIFF_EQUAL)
		return 0;
	if (r->o->json)
		add_json(&r->json, i);
	else
		add_line(r, i);
	progress_hide(&r->progress);
	return cmd_print(r->out);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	progress_report(&r->progress, done, total);
}

/* The widest FQN among those that may get a line. */
static void measure(const struct ckpt *c, const struct ckpt_diff *d, struct buf *scratch,
		    size_t *ret)
{
	uint64_t glob_steps = TEXT_GLOB_STEPS; /* ckpt_diff says so if they run out */
	struct ckpt_totals n;

	ckpt_totals(c, &n);
	if (d->model) {
		n.tensors = ckpt_model_tensors(c);
		n.objects = 0;
	}
	for (uint64_t i = 0; i < n.tensors + n.objects; i++) {
		struct ckpt_tensor t;
		struct ckpt_object o;

		scratch->len = 0;
		if (i < n.tensors) {
			if (d->model)
				ckpt_model_tensor(c, i, &t);
			else
				ckpt_tensor(c, i, &t);
			if (text_glob_any(d->globs, t.fqn, t.fqn_len, &glob_steps))
				cmd_add_fqn(scratch, t.fqn, t.fqn_len);
		} else {
			ckpt_object(c, i - n.tensors, &o);
			if (text_glob_any(d->globs, o.fqn, o.fqn_len, &glob_steps))
				cmd_add_fqn(scratch, o.fqn, o.fqn_len);
		}
		if (scratch->len)
			*ret = max_u64(*ret, min_u64(cmd_columns(scratch->data, scratch->len),
						     FQN_MAX_COLUMNS));
	}
	scratch->len = 0;
}

/* Is the page written to standard output? */
static bool to_stdout(const struct options *o)
{
	return o->output && !strcmp(o->output, "-");
}

static const char *const of_model[] = { "weights", "recipe", "assets", "experts" };

/* Is the question whether a GGUF was made from a checkpoint? */
static bool is_of_gguf(const struct options *o)
{
	return !o->model && bytes_end(o->args[1], strlen(o->args[1]), ".gguf");
}

/* Without --model, refuses options that only affect the model. */
static int check_options(const struct options *o, struct ckpt_err *e)
{
	if (o->json && to_stdout(o))
		return err_set(e, EINVAL,
			       "options 'json' and 'report=-' both write to standard output");
	for (size_t i = 0; i < ARRAY_LEN(of_model) && !o->model && !is_of_gguf(o); i++)
		if (options_get(o, of_model[i]))
			return err_set(e, EINVAL, "option '%s' is for --model", of_model[i]);
	return 0;
}

/* Does the word put something into a checkpoint? */
static bool is_merge(const char *word)
{
	static const char *const merges[] = { "average=", "overlay=", "lora=" };

	for (size_t i = 0; i < ARRAY_LEN(merges); i++)
		if (!strncmp(word, merges[i], strlen(merges[i])))
			return true;
	return false;
}

/*
 * The second checkpoint is what the first one is compared with: nothing is put into it. A GGUF is
 * also opened without the options that say how the other one's model is made.
 */
static int open_second(const struct options *o, const struct cmd_how *how, struct ckpt **ret,
		       struct ckpt_err *e)
{
	autofree const char **words = NULL;
	struct options own = *o;
	bool is_gguf = is_of_gguf(o);
	size_t n = 0, kept = 0;

	while (o->open && o->open[n])
		n++;
	words = calloc(n + 1, sizeof(*words));
	if (!words)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		size_t len = strcspn(o->open[i], "=");
		bool leave = is_merge(o->open[i]);

		for (size_t k = 0; is_gguf && k < ARRAY_LEN(of_model); k++)
			leave |= bytes_are(o->open[i], len, of_model[k]);
		if (!leave)
			words[kept++] = o->open[i];
	}
	own.open = words;
	return cmd_open(o->args[1], &own, how, ret, e);
}

static int open_both(const struct options *o, struct ckpt **a, struct ckpt **b, struct ckpt_err *e)
{
	const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing"), NULL };
	const char *index = options_get(o, "index");
	int rc;

	if (index && strcmp(index, ":memory:") != 0)
		return err_set(e, EINVAL,
			       "option 'index': two checkpoints cannot share '%s'; here it can "
			       "only be :memory:",
			       index);
	rc = cmd_open(o->args[0], o, &holes_are_fine, a, e);
	return rc ? rc : open_second(o, &holes_are_fine, b, e);
}

/* A training checkpoint has other names than the model made from it. */
static void suggest_model(const struct ckpt *a, const struct ckpt *b, const struct options *o,
			  const struct ckpt_diff *d)
{
	uint64_t only_a = d->counts[CKPT_DIFF_ONLY_A], only_b = d->counts[CKPT_DIFF_ONLY_B];
	struct ckpt_totals ta, tb;

	ckpt_totals(a, &ta);
	ckpt_totals(b, &tb);
	if (!o->model && only_a && only_b && only_a + only_b == d->names && ta.has_model &&
	    tb.has_model)
		cmd_warn("no name is in both checkpoints; --model compares their models, under "
			 "the names in hf/");
}

/* The exit status of the comparison. */
static int verdict(const struct ckpt *a, const struct report *r, const struct ckpt_diff *d)
{
	uint64_t failed = d->counts[CKPT_DIFF_FAILED];
	struct ckpt_err e = { 0 };

	if (failed)
		(void)err_set(&e, EIO, "diff: %" PRIu64 " of %" PRIu64 " names cannot be compared",
			      failed, d->names);
	else if (!d->names)
		(void)cmd_none_left(a, r->o, d->globs, "diff: no FQN on either side", &e);
	if (e.code)
		return cmd_fail(&e);
	return d->counts[CKPT_DIFF_EQUAL] == d->names ? STATUS_DONE : STATUS_NO;
}

/* A list of hashes has no values. */
static int diff_sums(const struct options *o)
{
	struct ckpt_err e = { 0 };

	if (!o->values && !o->json && !o->output)
		return cmd_check_sums(o, o->args[1], o->args + 2);
	(void)err_set(&e, EINVAL,
		      "'%s' is a list of hashes, which has no values: leave out --values, --json "
		      "and --report",
		      o->args[1]);
	return cmd_fail(&e);
}

/* Lines are on the page, not printed. */
static int write_report(struct ckpt *a, struct ckpt *b, const struct options *o,
			struct ckpt_diff *d, struct ckpt_err *e)
{
	struct ckpt_diff_report r = { .path_a = o->args[0],
				      .path_b = o->args[1],
				      .program = "ckptfs " CKPTFS_VERSION,
				      .options = o->open,
				      .globs = d->globs,
				      .model = d->model,
				      .jobs = d->jobs,
				      .each = o->json ? d->each : NULL,
				      .progress = d->progress,
				      .arg = d->arg };
	struct report *shown = d->arg;
	autofree char *page = NULL;
	size_t len;
	int rc = ckpt_diff_report(a, b, &r, &page, &len, e);

	progress_end(&shown->progress);
	d->names = r.names;
	memcpy(d->counts, r.counts, sizeof(r.counts));
	return rc ? rc : page_file_write(o->output, page, len, o->quiet, e);
}

static int diff_run(const struct options *o)
{
	struct ckpt *a CLEANUP(cmd_closep) = NULL, *b CLEANUP(cmd_closep) = NULL;
	struct buf out CLEANUP(buf_release) = BUF_INIT(LINE_MAX_BYTES);
	struct report r = { .o = o, .out = &out, .json.to = &out };
	struct ckpt_diff d = {
		.globs = o->args + 2,
		.model = o->model,
		.values = o->values,
		.jobs = (unsigned)o->jobs,
		.each = show,
		.progress = show_progress,
		.arg = &r,
	};
	struct ckpt_err e = { 0 };
	int rc;

	if (cmd_is_sums(o->args[0])) {
		(void)err_set(&e, EINVAL,
			      "'%s' is a list of hashes, which comes after the checkpoint, as in "
			      "'ckptfs diff CKPT %s'",
			      o->args[0], o->args[0]);
		return cmd_fail(&e);
	}
	if (cmd_is_sums(o->args[1]))
		return diff_sums(o);
	if (check_options(o, &e) || open_both(o, &a, &b, &e))
		return cmd_fail(&e);
	if (o->json) {
		add_json_head(&r.json, o->args);
	} else {
		measure(a, &d, &out, &r.columns);
		measure(b, &d, &out, &r.columns);
	}
	progress_start(&r.progress, "diff", 0, !o->quiet);
	if (o->output) {
		rc = write_report(a, b, o, &d, &e);
	} else {
		rc = ckpt_diff(a, b, &d, &e);
		progress_end(&r.progress);
	}
	if (rc)
		return rc < 0 ? cmd_fail(&e) : rc;
	if (o->json)
		add_json_summary(&r.json, &d);
	else if (!to_stdout(o))
		add_summary(&out, &d);
	if (cmd_print(&out))
		return STATUS_TROUBLE;
	suggest_model(a, b, o, &d);
	return cmd_finish(verdict(a, &r, &d));
}

const struct command command_diff = {
	.name = "diff",
	.usage = "A B [GLOB...]",
	.complete = "ffn",
	.summary = "Compare two checkpoints, tensor by tensor",
	.examples = "  $ ckptfs diff run/step-1000 run/step-2000\n"
		    "  $ ckptfs diff --model --values run/step-1000 run/step-2000 '*.norm.weight'\n"
		    "  $ ckptfs diff --report=changes.html run/step-1000 run/step-2000\n",
	.details = "It does not matter how tensors are cut or what wrote the checkpoints. Prints "
		   "one line for each\n"
		   "tensor or object that differs, and a summary. Exit status 0 if all are equal, "
		   "1 if not, 2 if\n"
		   "some could not be compared.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED |
		 WORDS_DIFF | WORDS_JSON,
	.min_args = 2,
	.max_args = SIZE_MAX,
	.checkpoints = 2,
	.run = diff_run,
};

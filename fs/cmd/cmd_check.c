/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/faults.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/progress.h"
#include "base/text.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum { REPORT_MAX_BYTES = 256 << 20 };

/* Faults are kept until the end, so that they do not run into the progress bar. */
struct report {
	struct ckpt *c;
	struct buf *text;
	struct faults faults; /* for people, unless each fault gets its own line */
	bool each;
	struct json_out json;	    /* with --json */
	uint64_t counted, warnings; /* faults; warnings */
	struct progress progress;
};

static const char warning[] = "warning: ", fault[] = "fault: ";

static void add_fault(void *arg, const struct ckpt_fault *f)
{
	struct report *r = arg;
	struct buf *b = r->text;

	r->counted += !f->warning;
	r->warnings += f->warning;
	if (r->json.depth) {
		json_open_line(&r->json, NULL, '{');
		json_str_n(&r->json, "fqn", f->fqn, f->fqn_len);
		json_bool(&r->json, "warning", f->warning);
		json_str(&r->json, "what", f->what);
		json_str(&r->json, "rule", f->rule);
		json_close(&r->json);
		return;
	}
	if (!r->each) {
		faults_add(&r->faults, f->warning ? warning : fault, f->fqn, f->fqn_len, f->what);
		return;
	}
	buf_str(b, f->warning ? warning : fault);
	if (f->fqn) {
		cmd_add_fqn(b, f->fqn, f->fqn_len);
		buf_str(b, ": ");
	}
	buf_printf(b, "%s\n", f->what);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	progress_report(&r->progress, done, total);
}

/* ", 421 faults of 2 kinds" */
static void add_count(const struct report *r, const char *before, const char *what, uint64_t n)
{
	size_t causes = faults_causes(&r->faults, before);

	buf_printf(r->text, ", %" PRIu64 " %s%s", n, what, text_s(n));
	if (causes && causes < n)
		buf_printf(r->text, " of %zu kind%s", causes, text_s(causes));
}

static void add_summary(struct report *r, const struct ckpt *c, const struct ckpt_check *k,
			const struct ckpt_values_check *v)
{
	struct buf *b = r->text;
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	if (r->json.depth) {
		json_close(&r->json);
		json_u64(&r->json, "tensors", t.tensors);
		json_u64(&r->json, "objects", t.objects);
		json_u64(&r->json, "chunks", t.chunks);
		json_u64(&r->json, "fault_count", r->counted);
		json_u64(&r->json, "warning_count", r->warnings);
		json_u64(&r->json, "items", k->items);
		json_u64(&r->json, "bytes", k->bytes);
		json_u64(&r->json, "crcs", k->crcs);
		json_u64(&r->json, "hashes", k->hashes);
		json_u64(&r->json, "values_tensors", v->tensors);
		json_u64(&r->json, "values_bytes", v->bytes);
		json_close(&r->json);
		return;
	}
	buf_printf(b, "%s: %" PRIu64 " tensor%s, %" PRIu64 " object%s, %" PRIu64 " item%s",
		   r->counted ? "FAULTY" : "ok", t.tensors, text_s(t.tensors), t.objects,
		   text_s(t.objects), k->items, text_s(k->items));
	if (k->data)
		buf_printf(b, ", %" PRIu64 " byte%s read, %" PRIu64 " CRC%s verified", k->bytes,
			   text_s(k->bytes), k->crcs, text_s(k->crcs));
	/* That everything could be read should not look like a proof. */
	if (k->bytes && !k->crcs && !k->hashes && !r->counted)
		buf_str(b, " (damaged values may go unnoticed)");
	if (k->hashes)
		buf_printf(b, ", hash%s of %" PRIu64 " file%s verified", k->hashes == 1 ? "" : "es",
			   k->hashes, text_s(k->hashes));
	if (v->tensors)
		buf_printf(b, ", values of %" PRIu64 " tensor%s examined", v->tensors,
			   text_s(v->tensors));
	add_count(r, fault, "fault", r->counted);
	add_count(r, warning, "warning", r->warnings);
	buf_str(b, r->faults.n && r->faults.n < r->counted + r->warnings ? " (-v shows each)\n"
									 : "\n");
}

static void report_release(struct report *r)
{
	faults_release(&r->faults);
}

/* Faults that ckpt_check has reported are not reported again. */
static void add_value_fault(void *arg, const struct ckpt_fault *f)
{
	struct report *r = arg;
	struct ckpt_tensor t;

	ckpt_tensor(r->c, (uint64_t)ckpt_tensor_find(r->c, f->fqn, f->fqn_len), &t);
	if (!t.fault || strcmp(f->rule, "unreadable") != 0)
		add_fault(r, f);
}

static bool looks_at_values(const struct options *o)
{
	return o->values || o->allow_nan || o->allow_inf || o->allow_zero || o->allow_constant ||
	       o->max_abs > 0;
}

static int check_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf text CLEANUP(buf_release) = BUF_INIT(REPORT_MAX_BYTES);
	struct report r CLEANUP(
		report_release) = { .text = &text, .json.to = &text, .each = o->verbose };
	struct ckpt_check k = {
		.data = o->data,
		.jobs = (unsigned)o->jobs,
		.fault = add_fault,
		.progress = show_progress,
		.arg = &r,
	};
	struct ckpt_values_check v = {
		.allow_nan = o->allow_nan,
		.allow_inf = o->allow_inf,
		.allow_zero = o->allow_zero,
		.allow_constant = o->allow_constant,
		.max_abs = o->max_abs,
		.jobs = (unsigned)o->jobs,
		.fault = add_value_fault,
		.progress = show_progress,
		.arg = &r,
	};
	struct ckpt_err e = { 0 };
	int rc;

	if (o->json && o->verbose) {
		(void)err_set(&e, EINVAL,
			      "option 'verbose' is for text: --json lists every fault anyway");
		return cmd_fail(&e);
	}
	if (cmd_open(o->args[0], o, &(struct cmd_how){ CMD_WORDS("allow_missing"), NULL }, &c, &e))
		return cmd_fail(&e);
	if (cmd_refuse_nothing(c, o, &e)) {
		(void)err_wrap(&e, "check");
		return cmd_fail(&e);
	}
	if (o->json) {
		json_open(&r.json, NULL, '{');
		json_str(&r.json, "checkpoint", o->args[0]);
		json_open(&r.json, "faults", '[');
	}
	progress_start(&r.progress, "check", 0, !o->quiet);
	rc = ckpt_check(c, &k, &e);
	progress_end(&r.progress);
	if (!rc && looks_at_values(o)) {
		r.c = c;
		progress_start(&r.progress, "check values", 0, !o->quiet);
		rc = ckpt_values_check(c, &v, &e);
		progress_end(&r.progress);
	}
	if (rc)
		return cmd_fail(&e);
	faults_show(&r.faults, SIZE_MAX, &text);
	add_summary(&r, c, &k, &v);
	if (cmd_print(&text))
		return STATUS_TROUBLE;
	return cmd_finish(r.counted ? STATUS_NO : STATUS_DONE);
}

const struct command command_check = {
	.name = "check",
	.usage = "CKPT",
	.complete = "f",
	.summary = "Prove that a checkpoint is whole",
	.examples = "  $ ckptfs check run/step-1000\n"
		    "  $ ckptfs check --data run/step-1000\n"
		    "  $ ckptfs check --max-abs=1e4 --exclude='optim.*' run/step-1000\n",
	.details = "Every tensor must be covered exactly once, and every item must lie inside its "
		   "file.\n"
		   "Findings with the same cause are reported once, with the first names; -v and "
		   "--json list\n"
		   "all. Exit status 1 if there are faults.\n",
	.words = WORDS_STORE | WORDS_NAMES | WORDS_CACHE | WORDS_QUIET | WORDS_CONFINED |
		 WORDS_CHECK | WORDS_JSON,
	.min_args = 1,
	.max_args = 1,
	.checkpoints = 1,
	.run = check_run,
};

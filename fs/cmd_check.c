/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd.h"
#include "options.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REPORT_MAX_BYTES = 256 << 20 };

/* Faults are kept until the end, so that they do not run into the progress bar. */
struct report {
	struct buf *text;
	bool json;
	uint64_t warnings, lines;
	struct progress progress;
};

static void add_fault(void *arg, const struct ckpt_fault *f)
{
	struct report *r = arg;
	struct buf *b = r->text;

	r->warnings += f->warning;
	if (r->json) {
		buf_str(b, r->lines++ ? ",\n{\"fqn\":" : "\n{\"fqn\":");
		if (f->fqn)
			buf_json_str(b, f->fqn, f->fqn_len);
		else
			buf_str(b, "null");
		buf_printf(b, ",\"warning\":%s,\"what\":", f->warning ? "true" : "false");
		buf_json_str(b, f->what, strlen(f->what));
		buf_str(b, "}");
		return;
	}
	buf_str(b, f->warning ? "warning: " : "fault: ");
	if (f->fqn) {
		cmd_add_fqn(b, f->fqn, f->fqn_len);
		buf_str(b, ": ");
	}
	buf_printf(b, "%s\n", f->what);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	struct report *r = arg;

	r->progress.total = total;
	progress_set(&r->progress, done);
}

static void add_summary(struct report *r, const struct ckpt *c, const struct ckpt_check *k)
{
	struct buf *b = r->text;
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	if (r->json) {
		buf_printf(b,
			   "%s],\n\"tensors\":%" PRIu64 ",\"objects\":%" PRIu64
			   ",\"chunks\":%" PRIu64,
			   r->lines ? "\n" : "", t.tensors, t.objects, t.chunks);
		buf_printf(b, ",\"fault_count\":%" PRIu64 ",\"warning_count\":%" PRIu64, k->faults,
			   r->warnings);
		buf_printf(b,
			   ",\"items\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"crcs\":%" PRIu64
			   ",\"hashes\":%" PRIu64 "}\n",
			   k->items, k->bytes, k->crcs, k->hashes);
		return;
	}
	buf_printf(b, "%s: %" PRIu64 " tensors, %" PRIu64 " objects, %" PRIu64 " items",
		   k->faults ? "FAULTY" : "ok", t.tensors, t.objects, k->items);
	if (k->data)
		buf_printf(b, ", %" PRIu64 " bytes read, %" PRIu64 " CRCs verified", k->bytes,
			   k->crcs);
	if (k->hashes)
		buf_printf(b, ", %" PRIu64 " files' hashes verified", k->hashes);
	buf_printf(b, ", %" PRIu64 " fault%s, %" PRIu64 " warning%s\n", k->faults,
		   k->faults == 1 ? "" : "s", r->warnings, r->warnings == 1 ? "" : "s");
}

static int check_run(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct buf text CLEANUP(buf_release) = BUF_INIT(REPORT_MAX_BYTES);
	struct report r = { .text = &text, .json = o->json };
	struct ckpt_check k = {
		.data = o->data,
		.fault = add_fault,
		.progress = show_progress,
		.arg = &r,
	};
	struct ckpt_err e = { 0 };
	int rc;

	if (cmd_open(o->args[0], o, (struct ckpt_opts){ .allow_missing = true }, &c, &e))
		return cmd_fail(&e);
	if (o->json)
		buf_str(&text, "{\"faults\":[");
	progress_start(&r.progress, "check", 0, !o->quiet);
	rc = ckpt_check(c, &k, &e);
	progress_end(&r.progress);
	if (rc)
		return cmd_fail(&e);
	add_summary(&r, c, &k);
	if (cmd_print(&text))
		return STATUS_TROUBLE;
	return cmd_finish(k.faults ? STATUS_NO : STATUS_DONE);
}

const struct command command_check = {
	.name = "check",
	.usage = "CKPT",
	.summary = "Prove that a checkpoint is whole",
	.details = "Every tensor covered exactly once, every item inside its file. Exit status 1 "
		   "when faults\n"
		   "were found.\n",
	.words = WORDS_OPEN | WORDS_CHECK | WORDS_JSON,
	.min_args = 1,
	.max_args = 1,
	.run = check_run,
};

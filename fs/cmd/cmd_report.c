/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "cmd/page_file.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/progress.h"
#include <ckptfs/ckpt_report.h>

#include <stdio.h>

/* ---- the page ---- */

struct making {
	const struct options *o;
	struct ckpt *run;
	struct progress progress;
	uint64_t done; /* what the bar shows */
	bool started;
	bool some;	      /* at least one checkpoint of the run has something to show */
	struct ckpt_err none; /* set if include and exclude leave nothing of one */
};

static int open_step(void *arg, const char *checkpoint, struct ckpt **ret, struct ckpt_err *e)
{
	const struct cmd_how holes_are_fine = { CMD_WORDS("allow_missing"), NULL };
	struct making *m = arg;
	const char *rest;
	int rc = cmd_open_in_run(m->run, checkpoint, m->o, &holes_are_fine, ret, &rest, e);

	if (!rc && !cmd_refuse_nothing(*ret, m->o, &m->none))
		m->some = true;
	return rc;
}

static void end_progress(struct making *m)
{
	if (m->started)
		progress_end(&m->progress);
	m->started = false;
}

/* Each checkpoint of a run has its own bar. */
static void show_bytes(void *arg, uint64_t done, uint64_t total)
{
	struct making *m = arg;

	if (done < m->done)
		end_progress(m);
	if (!m->started)
		progress_start(&m->progress, "values", total, !m->o->quiet);
	m->started = true;
	m->done = done;
	progress_report(&m->progress, done, total);
}

static void show_warning(void *arg, const char *what)
{
	char line[200];

	end_progress(arg);
	(void)snprintf(line, sizeof(line), "report: %s: 'ckptfs stat' says why", what);
	cmd_warn(line);
}

static int make_page(const struct options *o, struct ckpt *c, char **ret, size_t *ret_len,
		     struct ckpt_err *e)
{
	struct making m = { .o = o, .run = c };
	const struct ckpt_report r = { .path = o->args[0],
				       .program = "ckptfs " CKPTFS_VERSION,
				       .options = o->open,
				       .stat = o->stat,
				       .jobs = (unsigned)o->jobs,
				       .open = open_step,
				       .progress = show_bytes,
				       .warn = show_warning,
				       .arg = &m };
	int rc = cmd_refuse_nothing(c, o, e);

	if (rc)
		return err_wrap(e, "report");
	rc = ckpt_report(c, &r, ret, ret_len, e);

	end_progress(&m);
	if (rc || m.some || !m.none.code)
		return rc;
	*e = m.none;
	return err_wrap(e, "report");
}

static int report_run(const struct options *o)
{
	const struct cmd_how how = { CMD_WORDS("allow_missing", "runs"), NULL };
	const char *to = o->output ? o->output : CMD_REPORT_FILE;
	autofree char *page = NULL;
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	struct ckpt_err e = { 0 };
	size_t len = 0;
	int rc = cmd_open(o->args[0], o, &how, &c, &e);

	if (!rc && ckpt_is_run(c))
		rc = cmd_run_look(c, o, &e);
	if (!rc)
		rc = make_page(o, c, &page, &len, &e);
	if (!rc)
		rc = page_file_write(to, page, len, o->quiet, &e);
	return rc ? cmd_fail(&e) : cmd_finish(STATUS_DONE);
}

const struct command command_report = {
	.name = "report",
	.usage = "CKPT",
	.complete = "f",
	.summary = "Write an HTML page that shows what is in a checkpoint",
	.examples = "  $ ckptfs report run/step-1000\n"
		    "  $ ckptfs report --stat --output=run.html run\n",
	.details = "Writes one file, report.html unless --output names another, which a browser "
		   "opens without a\n"
		   "network. --stat reads all elements and adds statistics. For a run, the page "
		   "has a table of its\n"
		   "checkpoints, and the tensors of the latest.\n",
	.words = WORDS_TENSORS | WORDS_MODEL | WORDS_FILES | WORDS_CACHE | WORDS_QUIET |
		 WORDS_CONFINED | WORDS_REPORT,
	.min_args = 1,
	.max_args = 1,
	.checkpoints = 1,
	.run = report_run,
};

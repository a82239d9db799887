/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/cmd.h"
#include "cmd/export.h"
#include "cmd/export_far.h"
#include "cmd/interrupt.h"
#include "cmd/options.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
	REQUEST_MAX_BYTES = 64 << 20,
	DEFAULT_JOBS = 8, /* however many CPUs: most jobs wait for a disk most of the time */
};

/* Adds the path as a mount would understand it: "/a//b/./" is "a/b". */
static void add_path(struct buf *b, const char *path)
{
	for (size_t n; *path; path += n + (path[n] == '/')) {
		n = strcspn(path, "/");
		if (!n || (n == 1 && *path == '.'))
			continue;
		buf_add(b, path, n);
		buf_add(b, "/", 1);
	}
}

static bool is_recipe(const char *name)
{
	const char *known, *summary, *text;

	for (size_t i = 0; (known = ckpt_recipe(i, &summary, &text)); i++)
		if (!strcmp(name, known))
			return true;
	return false;
}

/* The export itself checks the contents of option files, so the state records only that one was
 * given, not its path. */
static const char *without_path(const struct ckpt_option *x, const char *value)
{
	bool name = !strcmp(x->name, "recipe") && is_recipe(value);

	return x->form == CKPT_OPTION_FILE && !name ? "" : value;
}

static void show(void *arg, const char *what)
{
	(void)arg;
	(void)fprintf(stderr, "ckptfs: export: %s\n", what);
}

/* Is the face, or something in it, copied? path is in the form of add_path. */
static bool is_copied(const char *path, const char *face)
{
	size_t n = strlen(face);

	return !*path || (!strncmp(path, face, n) && path[n] == '/');
}

/* For files of single tensors the verdict is not worth the time it takes. */
static bool has_verdict(const char *path)
{
	return is_copied(path, "hf") || is_copied(path, "gguf") || is_copied(path, "pt") ||
	       is_copied(path, "safetensors");
}

/* With allow_missing, tensors and objects that cannot be read have files, too. Copying would fail
 * there, and only after everything before them has been copied. */
static int refuse_incomplete(struct ckpt *c, const char *path, struct ckpt_err *e)
{
	bool tensors = !*path || !strcmp(path, "tensors/") || !strcmp(path, "npy/");
	bool objects = !*path || !strcmp(path, "objects/");
	struct ckpt_totals all;
	struct ckpt_tensor t;
	struct ckpt_object x;
	struct ckpt_err why = { 0 };
	char more[48] = "";
	uint64_t n = 0;

	ckpt_totals(c, &all);
	for (uint64_t i = 0; all.incomplete && tensors && i < all.tensors; i++) {
		ckpt_tensor(c, i, &t);
		if (t.fault && !n++)
			(void)err_set(&why, EIO, "'%s' cannot be read: %s",
				      FQN_TEXT(t.fqn, t.fqn_len), t.fault);
	}
	for (uint64_t i = 0; all.incomplete && objects && i < all.objects; i++) {
		ckpt_object(c, i, &x);
		if (x.fault && !n++)
			(void)err_set(&why, EIO, "'%s' cannot be read: %s",
				      FQN_TEXT(x.fqn, x.fqn_len), x.fault);
	}
	if (!n)
		return 0;
	if (n > 1)
		(void)snprintf(more, sizeof(more), " (and %" PRIu64 " more cannot be read)", n - 1);
	return err_set(e, EIO, "%s%s; leave out with --exclude what 'ckptfs check' names", why.msg,
		       more);
}

static int show_verdict(void *arg, const struct ckpt_verdict *v)
{
	if (is_copied(arg, v->face))
		(void)fprintf(stderr, "ckptfs: export: %s/: %s\n", v->face, v->text);
	return 0;
}

static void begun(void)
{
	interrupt_say("ckptfs: export: interrupted; the same command resumes the copy\n");
}

/* ckptfs-fetch sees that this process has ended. */
static void begun_far(void)
{
	interrupt_say(
		"ckptfs: export: interrupted; its uploads are aborted, unless all has been sent\n");
}

/* ---- the command ---- */

static int copy(const struct options *o, struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct buf request CLEANUP(buf_release) = BUF_INIT(REQUEST_MAX_BYTES);
	struct export_job job = { .c = c,
				  .dest = o->args[2],
				  .quiet = o->quiet,
				  .say = show,
				  .begun = begun,
				  .threads = o->jobs ? (size_t)o->jobs : DEFAULT_JOBS };

	if (o->jobs > EXPORT_MAX_JOBS)
		return cmd_too_many("jobs", o->jobs, EXPORT_MAX_JOBS, e);
	if (!strcmp(job.dest, "-"))
		return err_set(e, EINVAL,
			       "'-': 'ckptfs cat' writes to standard output; a file of that name "
			       "is './-'");
	if (cmd_refuse_nothing(c, o, e) || cmd_find(c, path, o->fqn, &job.what, e))
		return -e->code;
	if (o->fqn)
		buf_str(&request, path);
	else
		add_path(&request, path);
	buf_add(&request, o->fqn ? "\0f" : "\0p", 2);
	if (!o->fqn && !request.err && refuse_incomplete(c, request.data, e))
		return -e->code;
	if (!o->quiet && !o->fqn && !request.err && has_verdict(request.data) &&
	    ckpt_verdicts(c, !is_copied(request.data, "gguf"), show_verdict, request.data, e))
		return -e->code;
	options_add_shape(o, without_path, &request);
	if (request.err)
		return err_sys(e, request.err, "options");
	if (text_is_address(job.dest)) {
		job.begun = begun_far;
		return export_far(&job, o->open, e);
	}
	job.request = request.data;
	job.request_len = request.len;
	return export_run(&job, e);
}

/* Replaces the run with the checkpoint that the path leads into. It is exported as if named
 * directly, so that an interrupted export can be resumed. */
static int enter(const struct options *o, struct ckpt **c, const char **path, struct ckpt_err *e)
{
	const struct cmd_how how = { CMD_WORDS("map_files"), NULL };
	struct ckpt *one = NULL;
	int rc = cmd_open_in_run(*c, *path, o, &how, &one, path, e);

	if (rc)
		return err_wrap(e, "export");
	ckpt_close(*c);
	*c = one;
	return 0;
}

static int run_export(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	const char *path = o->args[1];
	struct ckpt_err e = { 0 };

	if (!*path && !o->fqn) { /* a variable of the shell that is not set */
		(void)err_set(&e, EINVAL, "export: PATH is empty; '.' is the whole tree");
		return cmd_fail(&e);
	}
	if (cmd_open(o->args[0], o,
		     &(struct cmd_how){ CMD_WORDS("map_files", o->fqn ? NULL : "runs"), NULL }, &c,
		     &e) ||
	    (ckpt_is_run(c) && enter(o, &c, &path, &e)))
		return cmd_fail(&e);
	if (!copy(o, c, path, &e))
		return STATUS_DONE;
	(void)err_wrap(&e, "export");
	return cmd_fail(&e);
}

const struct command command_export = {
	.name = "export",
	.usage = "CKPT PATH DEST",
	.complete = "fpf",
	.summary = "Copy a file or directory of the tree to disk",
	.examples =
		"  $ ckptfs export run/step-1000 hf model -o assets=hf-config,dtype=bf16\n"
		"  $ ckptfs export run/step-1000 gguf/model.gguf model.gguf -o assets=hf-config\n",
	.details =
		"PATH is as in a mount; '.' is the whole tree. DEST is written as DEST.partial "
		"and renamed\n"
		"at the end. After an interruption, the same command resumes the copy. DEST may be "
		"an address:\n"
		"s3://BUCKET/KEY, gs://BUCKET/KEY.\n",
	.words = WORDS_OPEN | WORDS_QUIET | WORDS_CAT | WORDS_CONFINED | WORDS_EXPORT,
	.min_args = 3,
	.max_args = 3,
	.checkpoints = 1,
	.writes = true,
	.run = run_export,
};

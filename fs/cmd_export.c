/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd.h"
#include "export.h"
#include "options.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"

#include <errno.h>
#include <stdint.h>
#include <sys/stat.h>

enum {
	REQUEST_MAX_BYTES = 64 << 20,
	DEFAULT_JOBS = 8, /* whatever the CPUs: most of them wait for a disk most of the time */
};

/* The files that options name may change while their names stay. */
static void add_files(const struct options *o, struct buf *b)
{
	const char *const paths[] = { o->rename, o->layout, o->recipe, o->assets };
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		if (paths[i] && !stat(paths[i], &st))
			buf_printf(b, "%ju %ju %ju\n", (uintmax_t)st.st_ino, (uintmax_t)st.st_size,
				   (uintmax_t)io_mtime_ns(&st));
}

static int copy(const struct options *o, struct ckpt *c, const char *path, struct ckpt_err *e)
{
	struct buf request CLEANUP(buf_release) = BUF_INIT(REQUEST_MAX_BYTES);
	struct export_job job = { .c = c,
				  .dest = o->args[2],
				  .quiet = o->quiet,
				  .threads = o->jobs ? (size_t)o->jobs : DEFAULT_JOBS };

	if (o->jobs > EXPORT_MAX_JOBS)
		return err_set(e, EINVAL, "option 'jobs': at most %d", EXPORT_MAX_JOBS);
	if (cmd_find(c, path, o->fqn, &job.what, e))
		return -e->code;
	buf_u64(&request, job.what.node);
	buf_add(&request, "", 1);
	options_add_shape(o, &request);
	add_files(o, &request);
	if (request.err)
		return err_sys(e, request.err, "options");
	job.request = request.data;
	job.request_len = request.len;
	return export_run(&job, e);
}

/* In place of the run, the checkpoint that the path leads into: exported as by itself, so that it
 * can go on where it was when it is interrupted. */
static int enter(const struct options *o, struct ckpt **c, const char **path, struct ckpt_err *e)
{
	autofree char *checkpoint = NULL;

	if (ckpt_run_pick(*c, *path, &checkpoint, path, e))
		return err_wrap(e, "export");
	ckpt_close(*c);
	*c = NULL;
	return cmd_open(checkpoint, o, (struct ckpt_opts){ .map_files = true }, c, e);
}

static int run_export(const struct options *o)
{
	struct ckpt *c CLEANUP(cmd_closep) = NULL;
	const char *path = o->args[1];
	struct ckpt_err e = { 0 };

	if (cmd_open(o->args[0], o, (struct ckpt_opts){ .runs = !o->fqn, .map_files = true }, &c,
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
	.summary = "Copy a file or directory of the tree to a real place",
	.details = "PATH is as in a mount; '.' is all of it. DEST is written as DEST.partial and "
		   "renamed at the\nend. What was cut short goes on where it was when the same "
		   "command is given again.\n",
	.words = WORDS_OPEN | WORDS_CAT | WORDS_JOBS,
	.min_args = 3,
	.max_args = 3,
	.run = run_export,
};

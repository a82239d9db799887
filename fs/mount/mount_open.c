/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens what is mounted. The files of a checkpoint are parsed by another process, which has given
 * up its rights before: it makes the chunk index, and the daemon reads only that. The index is
 * checked as one that a stranger has written.
 */
#include "cmd/cmd.h"
#include "cmd/confine.h"
#include "cmd/options.h"
#include "mount/mount_internal.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIES = 10 }; /* the checkpoint may be saved again meanwhile */

/* What the other process reports. */
struct report {
	struct ckpt_err e; /* 0: the index has been made, */
	int kept;	   /* and is there for other processes */
};

static void log_warning(void *arg, const char *what)
{
	(void)arg;
	log_msg(LOG_LEVEL_WARN, "warning: %s", what);
}

/* The daemon warns, when it opens the checkpoint with that index. */
static void be_silent(void *arg, const char *what)
{
	(void)arg;
	(void)what;
}

static int open_it(struct mount *m, bool need_index, struct ckpt **ret, struct ckpt_err *e)
{
	const struct cmd_how how = { CMD_WORDS("runs", "map_files",
					       need_index ? "need_index" : m->index,
					       need_index ? m->index : NULL),
				     log_warning };

	return cmd_open(m->source, m->opts, &how, ret, e);
}

static void make_index(struct mount *m, struct report *ret)
{
	const struct cmd_how how = { CMD_WORDS("runs", m->index), be_silent };
	struct ckpt_err missing;
	struct ckpt *c = NULL;
	struct ckpt_totals t;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)confine(&command_mount, m->opts, &missing); /* mount_confine says what is missing */
	if (cmd_open(m->source, m->opts, &how, &c, &ret->e))
		return;
	ckpt_totals(c, &t);
	ret->kept = ckpt_is_run(c) || strcmp(t.index, ":memory:") != 0;
	ckpt_close(c);
}

/* *ret_kept: the index is where open_it finds it. */
static int make_index_apart(struct mount *m, bool *ret_kept, struct ckpt_err *e)
{
	struct report r = { 0 };
	int ends[2], status = 0;
	ssize_t n = 0;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return err_sys(e, errno, "pipe");
	pid = fork();
	if (pid == 0) {
		make_index(m, &r);
		_exit(io_write(ends[1], &r, sizeof(r)) ? STATUS_TROUBLE : STATUS_DONE);
	}
	if (pid < 0)
		(void)err_sys(e, errno, "fork");
	(void)close(ends[1]);
	do /* a pipe keeps so few bytes together */
		n = read(ends[0], &r, sizeof(r));
	while (n < 0 && errno == EINTR);
	(void)close(ends[0]);
	if (pid < 0)
		return -e->code;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (n != sizeof(r) || status || r.e.code < 0)
		return err_set(e, EIO,
			       "checkpoint '%.200s': the process that was to read its metadata "
			       "ended with %s %d",
			       m->source, WIFSIGNALED(status) ? "signal" : "status",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	/* Whoever has taken that process over has written it. */
	r.e.msg[sizeof(r.e.msg) - 1] = 0;
	*ret_kept = r.kept != 0;
	return r.e.code ? err_set(e, r.e.code, "%s", r.e.msg) : 0;
}

/* An index in memory cannot be handed over, and what is in a store is read by a thread, which is not
 * in a forked process. */
static bool is_apart(const struct mount *m)
{
	const char *index = options_get(m->opts, "index");

	return m->sandbox != SANDBOX_OFF && (!index || strcmp(index, ":memory:") != 0) &&
	       !confine_is_remote(&command_mount, m->opts);
}

int mount_open(struct mount *m, struct ckpt_err *e)
{
	bool kept = is_apart(m);
	int rc;

	for (unsigned i = 0; kept && i < TRIES; i++) {
		rc = open_it(m, true, &m->ckpt, e);
		if (rc != -ENODATA)
			return rc;
		rc = make_index_apart(m, &kept, e);
		if (rc)
			return rc;
	}
	if (kept)
		return err_set(e, EAGAIN,
			       "checkpoint '%.200s' changes while it is read: try again later",
			       m->source);
	return open_it(m, false, &m->ckpt, e);
}

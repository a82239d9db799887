/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens what is mounted. The files of a checkpoint are parsed by another process, which has given
 * up its rights before: it makes the chunk index, and the daemon reads only that. The index is
 * checked as one that a stranger has written.
 */
#include "cmd/cmd.h"
#include "cmd/confine.h"
#include "cmd/options.h"
#include "mount/child.h"
#include "mount/mount_internal.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The checkpoint may be saved again meanwhile; and where times are whole seconds, an index is not
 * trusted that was made so soon after it that it could have changed unseen. */
enum { TRIES = 10, PAUSE_NS = 500 * 1000000 };

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

/*
 * The words that decide which checkpoints are opened. The others are for the daemon alone: they may
 * name files that can be read only once, such as pipes.
 */
static const char *const for_index[] = { "index=", "ignore_ctime", "average=", "overlay=",
					 "lora=",  "dequantize=",  CMD_STORE,  NULL };

/* *ret: why it could not open the checkpoint. */
static void make_index(struct mount *m, struct ckpt_err *ret)
{
	const struct cmd_how how = { CMD_WORDS("runs", "allow_missing", m->index), be_silent };
	autofree const char **words = cmd_pick(m->opts, for_index, CMD_WORDS(NULL));
	struct options o = { .open = words, .quiet = m->opts->quiet };
	struct ckpt_err missing;
	struct ckpt *c = NULL;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Unless the user insists, mount_confine will say what is missing. */
	if (!words)
		(void)err_nomem(ret);
	else if (confine(&command_mount, m->opts, &missing) && m->sandbox == SANDBOX_ON)
		(void)err_set(ret, missing.code, "mount '%s': sandbox: %s", m->target, missing.msg);
	else if (!cmd_open(m->source, &o, &how, &c, ret)) {
		const char *unkept = ckpt_index_why(c);

		if (unkept)
			(void)err_set(ret, ENOSPC,
				      "checkpoint '%.200s': its chunk index cannot be kept: %s; "
				      "'index=:memory:' does without",
				      m->source, unkept);
		ckpt_close(c);
	}
}

/* The process has nothing of the daemon's but its standard files: not the pipes to the command that
 * waits and to the process that unmounts. */
static _Noreturn void be_apart(struct mount *m, int report)
{
	struct ckpt_err e = { 0 };

	if (!child_take(report, STDERR_FILENO + 1) || io_close_from(STDERR_FILENO + 2))
		_exit(STATUS_TROUBLE);
	make_index(m, &e);
	_exit(io_write(STDERR_FILENO + 1, &e, sizeof(e)) ? STATUS_TROUBLE : STATUS_DONE);
}

/* An error only if that process has not ended by itself. */
static int make_index_apart(struct mount *m, struct ckpt_err *ret, struct ckpt_err *e)
{
	int ends[2], status = 0;
	ssize_t n = 0;
	pid_t pid;

	*ret = (struct ckpt_err){ 0 };
	if (pipe2(ends, O_CLOEXEC))
		return err_sys(e, errno, "pipe");
	pid = fork();
	if (pid == 0)
		be_apart(m, ends[1]);
	if (pid < 0)
		(void)err_sys(e, errno, "fork");
	(void)close(ends[1]);
	do /* a pipe keeps so few bytes together */
		n = read(ends[0], ret, sizeof(*ret));
	while (n < 0 && errno == EINTR);
	(void)close(ends[0]);
	if (pid < 0)
		return -e->code;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	ret->msg[sizeof(ret->msg) - 1] = 0; /* a stranger may have written it */
	if (n == sizeof(*ret) && !status && ret->code >= 0)
		return 0;
	return err_set(e, EIO,
		       "checkpoint '%.200s': the process that was to read its metadata ended with "
		       "%s %d",
		       m->source, WIFSIGNALED(status) ? "signal" : "status",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Can indexes be kept? Asked before a checkpoint is read, whose author must not decide it. */
static bool can_keep(void)
{
	enum { LITTLE = 1 << 20 };
	autofree char *dir = ckpt_index_dir();
	autofree char *name = dir ? text_format("%s/.XXXXXX", dir) : NULL;
	autoclose int fd = name ? mkostemp(name, O_CLOEXEC) : -1;

	if (fd < 0)
		return false;
	(void)unlink(name);
	return !posix_fallocate(fd, 0, LITTLE);
}

/* An index in memory cannot be handed over. */
static bool is_apart(const struct mount *m)
{
	const char *index = options_get(m->opts, "index");

	return m->sandbox != SANDBOX_OFF && (!index || strcmp(index, ":memory:") != 0) &&
	       can_keep();
}

int mount_open(struct mount *m, struct ckpt_err *e)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	struct ckpt_err why = { 0 };

	if (!is_apart(m))
		return open_it(m, false, &m->ckpt, e);
	for (unsigned i = 0; i < TRIES; i++) {
		int rc = open_it(m, true, &m->ckpt, e);

		if (rc != -ENODATA)
			return rc;
		if (why.code)
			return err_set(e, why.code, "%s", why.msg);
		if (i)
			(void)nanosleep(&pause, NULL);
		if (make_index_apart(m, &why, e))
			return -e->code;
	}
	return err_set(e, EAGAIN,
		       "checkpoint '%.200s': a chunk index was made several times, and is not "
		       "current: the checkpoint changes while it is read",
		       m->source);
}

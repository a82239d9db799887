/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount command.
 *
 *	parent                          child
 *	  fork ──────────────────────────► opens the checkpoint (progress bar on our stderr)
 *	  waits on the pipe                mounts, detaches from the terminal, runs the loop
 *	  ◄────────────── "" or the error ─ from the INIT op, or from whatever went wrong
 *	  exits 0 or 2                     serves until unmounted or signalled
 *
 * The fork comes first because neither threads nor SQLite's connections survive one, and because
 * a mount that has not answered INIT is not usable. The child has children of its own, which
 * unmount and log for it (unmounter.h, logger.h) once it is in its sandbox: after mounting, before
 * the loop starts threads.
 */
#include "mount/mount_internal.h"

#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/journal.h"
#include "mount/logger.h"
#include "mount/loop.h"
#include "mount/stats.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	/* Use more threads than CPUs so that requests blocked on a disk do not delay others. A
	 * thread is started only when all others are busy, and an idle one costs nothing. */
	THREADS_PER_CPU = 4,
	MIN_THREADS = 16,
	MAX_THREADS = 32,
	MAX_ARENAS = 4, /* each keeps what its threads have freed: with one per thread, more than is
			   in use */
	LET_GO_MS = 1000,
	AGAIN_SECONDS = 30,
	MAX_SHAPE = 4 << 20, /* bytes */
};

/* ---- reporting ---- */

/* The mount is usable. */
static void report_ready(void *arg)
{
	struct mount *m = arg;

	log_msg(LOG_LEVEL_INFO, "mounted '%s' on '%s'", m->source, m->target);
	if (m->report >= 0) {
		(void)io_write(m->report, "", 1);
		(void)close(steal_fd(&m->report));
	}
}

static int report_failure(struct mount *m, const struct ckpt_err *e)
{
	if (m->report < 0)
		return cmd_fail(e);
	(void)io_write(m->report, e->msg, strlen(e->msg));
	(void)close(steal_fd(&m->report));
	return STATUS_TROUBLE;
}

/* Runs in the parent. */
static int await_ready(int fd, pid_t child, const char *target)
{
	struct ckpt_err e = { 0 };
	size_t n = 0;
	int status = 0;

	while (n < sizeof(e.msg) - 1) {
		ssize_t got = read(fd, e.msg + n, sizeof(e.msg) - 1 - n);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
		if (!e.msg[0])
			return STATUS_DONE;
	}
	if (!n) {
		if (waitpid(child, &status, 0) == child && !status)
			(void)err_set(&e, ECHILD, "mount '%s': unmounted before it could be used",
				      target);
		else
			(void)err_set(&e, ECHILD, "mount '%s': the daemon ended early (%s %d)",
				      target, WIFSIGNALED(status) ? "signal" : "status",
				      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
	return cmd_fail(&e);
}

/* Has libfuse said the same less than half a minute ago? It may do so for every request. */
static bool is_said_again(const char *line)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char last[512];
	static uint64_t last_ns;
	uint64_t now = clock_ns();
	SCOPED_LOCK(&lock);
	bool again = !strcmp(line, last) && now - last_ns < AGAIN_SECONDS * CLOCK_SECOND;

	if (!again) {
		(void)snprintf(last, sizeof(last), "%s", line);
		last_ns = now;
	}
	return again;
}

static void __attribute__((format(printf, 2, 0)))
log_fuse(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[512];

	(void)vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = 0;
	if (level <= FUSE_LOG_INFO && is_said_again(line))
		return;
	log_msg(level <= FUSE_LOG_ERR	 ? LOG_LEVEL_ERROR
		: level <= FUSE_LOG_INFO ? LOG_LEVEL_WARN /* such as io_uring failing to start */
					 : LOG_LEVEL_DEBUG,
		"%s", line);
}

/* ---- the daemon ---- */

/* Kernel and daemon have agreed, and nothing is being served yet. */
static int begin(void *arg, struct ckpt_err *e)
{
	struct mount *m = arg;
	int rc = m->sandbox != SANDBOX_OFF ? mount_filter_calls(m, e) : 0;

	fs_begin(m->fs);
	return rc;
}

static int to_dev_null(int fd, int flags, struct ckpt_err *e)
{
	autoclose int null = open("/dev/null", flags | O_CLOEXEC);

	return null < 0 || dup2(null, fd) < 0 ? err_sys(e, errno, "open '/dev/null'") : 0;
}

/* Closes everything inherited from the caller: a pipe that a script reads from would never end. */
static int detach(const struct mount *m, struct ckpt_err *e)
{
	if (logger_start(m->target, m->log, e))
		return -e->code;
	fuse_set_log_func(log_fuse);
	(void)setsid(); /* fails only for a group leader, which needs no session */
	if (chdir("/"))
		return err_sys(e, errno, "chdir to '/'");
	return to_dev_null(STDIN_FILENO, O_RDONLY, e) || to_dev_null(STDOUT_FILENO, O_WRONLY, e) ||
			       to_dev_null(STDERR_FILENO, O_WRONLY, e)
		       ? -e->code
		       : 0;
}

static unsigned thread_count(const struct options *o)
{
	uint64_t by_cpus = (uint64_t)cpus_usable() * THREADS_PER_CPU;

	if (o->threads)
		return (unsigned)min_u64(o->threads, 1024);
	return (unsigned)max_u64(MIN_THREADS, min_u64(MAX_THREADS, by_cpus));
}

static void log_hang(void *arg, uint32_t opcode, uint64_t node)
{
	const struct mount *m = arg;

	fs_hangs(m->fs,
		 opcode == FUSE_READ   ? "read"
		 : opcode == FUSE_OPEN ? "open"
				       : "look at",
		 node);
}

static bool let_go(void *arg)
{
	const struct mount *m = arg;

	return ckpt_let_go(m->ckpt, LET_GO_MS);
}

static int run_loop(struct mount *m, struct ckpt_err *e)
{
	struct loop_config config = { .threads = thread_count(m->opts),
				      .begun = begin,
				      .ready = report_ready,
				      .hangs = log_hang,
				      .tidies = ckpt_is_run(m->ckpt) ? let_go : NULL,
				      .arg = m };

	return loop_run(m->session, &config, &m->hung, e) ? err_wrap(e, "serve '%s'", m->target)
							  : 0;
}

/* The kernel offers 128 KiB in INIT and takes a larger value only afterwards, from sysfs. */
static void raise_read_ahead(void *arg)
{
	const struct mount *m = arg;

	if (m->found.major || m->found.minor)
		/*
		 * From a store, up to twice as much would be fetched in vain by every reader that
		 * stops; what comes next is announced anyway.
		 */
		mounts_read_ahead(&m->found, text_is_address(m->source) ? 256 : 1024);
}

/* The checkpoints of a run are opened later, when nobody reads our stderr. */
/* Shows a user one line for each face. Output under mount(8) is lost or goes to a log, so only
 * faults are reported there. */
static int show_verdict(void *arg, const struct ckpt_verdict *v)
{
	const struct options *o = arg;

	if (!o->helper || o->verbose || v->serves == CKPT_SERVES_NO)
		(void)fprintf(stderr, "ckptfs: %s/: %s\n", v->face, v->text);
	return 0;
}

static void show_verdicts(struct mount *m)
{
	struct ckpt_err ignored;

	if (!m->opts->quiet && !ckpt_is_run(m->ckpt))
		(void)ckpt_verdicts(m->ckpt, true, show_verdict, (void *)(uintptr_t)m->opts,
				    &ignored);
}

static struct stats *new_stats(struct mount *m)
{
	struct stats_about about = { .ckpt = m->ckpt,
				     .source = m->source,
				     .directory = m->cwd,
				     .threads = thread_count(m->opts),
				     .mount = &m->found,
				     .journal = m->journal };

	options_add_shape(m->opts, NULL, &m->shape);
	if (m->shape.err)
		return NULL;
	about.options = m->shape.data;
	about.options_len = m->shape.len;
	return stats_new(&about);
}

static int serve(struct mount *m, struct ckpt_err *e)
{
	const struct options *o = m->opts;
	struct fs_config config = {
		.uid = o->has_uid ? (uid_t)o->uid : getuid(),
		.gid = o->has_gid ? (gid_t)o->gid : getgid(),
		.io = m->io,
		.first_open = raise_read_ahead,
		.arg = m,
	};

	(void)mallopt(M_ARENA_MAX, MAX_ARENAS);
	if (mount_open(m, e)) {
		(void)mount_explain_swapped(m, e);
		return -e->code;
	}
	if (ckpt_is_run(m->ckpt) && mount_lies_in(m->target, m->source))
		return err_set(
			e, EINVAL,
			"mount point '%s': it is in the run, which is searched for checkpoints",
			m->target);
	if (mount_refuse_hiding(m, e))
		return -e->code;
	config.ckpt = m->ckpt;
	m->stats = new_stats(m);
	config.stats = m->stats;
	m->fs = m->stats ? fs_new(&config) : NULL;
	if (!m->fs)
		return err_sys(e, ENOMEM, "mount '%s'", m->target);
	if (m->sandbox != SANDBOX_OFF && mount_draw_limits(m, e))
		return -e->code;
	if (mount_new_session(m, e) || mount_start_session(m, e))
		return -e->code;
	if (m->sandbox != SANDBOX_OFF)
		mount_allow_read_ahead(m);
	show_verdicts(m);
	if (m->report >= 0 ? detach(m, e) : m->log >= 0 && logger_start(NULL, m->log, e))
		return -e->code;
	if (m->log >= 0) /* it belongs to the child from now on */
		(void)close(steal_fd(&m->log));
	if (m->sandbox != SANDBOX_OFF && mount_confine(m, e))
		return -e->code;
	return run_loop(m, e);
}

/* Every waiting reader has been answered by now. Hung threads still use everything but the
 * descriptor. */
static void close_session(struct mount *m)
{
	if (m->hung) {
		(void)close(fuse_session_fd(m->session));
		return;
	}
	fuse_session_destroy(m->session);
	m->session = NULL;
}

/* Does nothing if it has already been unmounted. /dev/fuse is closed before unmounting: a process
 * that waits for an answer would block us otherwise. */
static void leave(struct mount *m)
{
	struct pollfd p = { .fd = fuse_session_fd(m->session) };
	bool there = m->bound && (poll(&p, 1, 0) != 1 || !(p.revents & POLLERR));

	close_session(m);
	if (there && unmounter_ask(&m->unmounter))
		log_msg(LOG_LEVEL_ERROR, "'%s' is still mounted: 'ckptfs umount' removes it",
			m->target);
}

static _Noreturn void abandon(struct mount *m, int status)
{
	leave(m);
	log_msg(LOG_LEVEL_WARN, "unmounted '%s' while %u %s data files", m->target, m->hung,
		m->hung == 1 ? "request waits for its" : "requests wait for their");
	_exit(status);
}

static void clean_up(struct mount *m, int status)
{
	if (m->hung)
		abandon(m, status);
	if (m->signals)
		fuse_remove_signal_handlers(m->session);
	if (m->session)
		leave(m);
	unmounter_release(&m->unmounter);
	sandbox_release(&m->rules);
	fs_free(m->fs);
	stats_free(m->stats);
	ckpt_close(m->ckpt);
	journal_free(m->journal);
}

static int run_daemon(struct mount *m)
{
	struct ckpt_err e = { 0 };
	bool waited_for = m->report >= 0;
	int rc;

	(void)signal(SIGPIPE, SIG_IGN);
	log_set_level(m->opts->debug	 ? LOG_LEVEL_DEBUG
		      : m->opts->verbose ? LOG_LEVEL_INFO
					 : LOG_LEVEL_WARN);
	m->journal = journal_new();
	rc = m->journal ? unmounter_start(&m->unmounter, m->opts->auto_unmount, &e) : err_nomem(&e);
	if (!rc)
		rc = serve(m, &e);
	clean_up(m, rc ? STATUS_TROUBLE : STATUS_DONE);
	if (!rc) {
		log_msg(LOG_LEVEL_INFO, "unmounted '%s'", m->target);
		return STATUS_DONE;
	}
	if (waited_for && m->report < 0) { /* the parent has already exited */
		log_msg(LOG_LEVEL_ERROR, "%s", e.msg);
		return STATUS_TROUBLE;
	}
	return report_failure(m, &e);
}

static int fork_daemon(struct mount *m)
{
	struct ckpt_err e = { 0 };
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC)) {
		(void)err_sys(&e, errno, "pipe");
		return cmd_fail(&e);
	}
	child = fork();
	if (child == 0) {
		(void)close(ends[0]);
		m->report = ends[1];
		return run_daemon(m);
	}
	(void)close(ends[1]);
	if (child < 0) {
		(void)close(ends[0]);
		(void)err_sys(&e, errno, "fork");
		return cmd_fail(&e);
	}
	status = await_ready(ends[0], child, m->target);
	(void)close(ends[0]);
	return status;
}

static void release(struct mount *m)
{
	free(m->source);
	free(m->target);
	free(m->cwd);
	buf_release(&m->shape);
	if (m->target_fd >= 0)
		(void)close(m->target_fd);
	if (m->log >= 0)
		(void)close(m->log);
}

/* Makes the option's path absolute, because a relative one would change its meaning after
 * chdir("/"). */
static char *absolute_index(const char *index)
{
	autofree char *cwd = NULL;

	if (!index || *index == '/' || *index == ':')
		return NULL;
	cwd = getcwd(NULL, 0);
	return cwd ? text_format("index=%s/%s", cwd, index) : NULL;
}

/* Invalid words were refused when the options were parsed. */
static enum fs_io io_of(const char *word)
{
	if (!word || !strcmp(word, "auto"))
		return FS_IO_AUTO;
	return strcmp(word, "direct") ? FS_IO_CACHED : FS_IO_DIRECT;
}

static int mount_run(const struct options *o)
{
	autofree char *index = absolute_index(options_get(o, "index"));
	struct mount m CLEANUP(release) = { .opts = o,
					    .target_fd = -1,
					    .index = index,
					    .report = -1,
					    .log = -1,
					    .shape = BUF_INIT(MAX_SHAPE),
					    .rules = SANDBOX_NONE,
					    .unmounter = UNMOUNTER_NONE };
	struct ckpt_err e = { 0 };

	m.cwd = getcwd(NULL, 0);
	if (!m.cwd)
		m.cwd = strdup(""); /* the directory may be gone; then relative paths fail later */
	if (!m.cwd) {
		(void)err_sys(&e, ENOMEM, "mount");
		return cmd_fail(&e);
	}
	m.io = io_of(o->io);
	if (sandbox_parse(o->sandbox, &m.sandbox, &e) || mount_resolve(&m, &e) ||
	    (o->log && logger_open(o->log, &m.log, &e)))
		return cmd_fail(&e);
	return o->foreground || o->debug ? run_daemon(&m) : fork_daemon(&m);
}

const struct command command_mount = {
	.name = "mount",
	.usage = "CKPT MNT",
	.complete = "fd",
	.summary = "Mount a checkpoint, or a run of them, on a directory",
	.examples = "  $ ckptfs mount run/step-1000 mnt\n"
		    "  $ ckptfs mount run mnt\n"
		    "  $ ckptfs mount run/step-1000 mnt -o assets=hf-config,dtype=bf16\n",
	.details = "Returns when the mount can be used. Unmount with 'ckptfs umount MNT'.\n",
	.words = WORDS_OPEN | WORDS_MOUNT | WORDS_QUIET,
	.min_args = 2,
	.max_args = 2,
	.checkpoints = 1,
	.run = mount_run,
};

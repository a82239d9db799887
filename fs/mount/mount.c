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
#include "cmd/capture.h"
#include "cmd/cmd.h"
#include "cmd/options.h"
#include "mount/journal.h"
#include "mount/live.h"
#include "mount/logger.h"
#include "mount/loop.h"
#include "mount/mounts.h"
#include "mount/negotiate.h"
#include "mount/ops.h"
#include "mount/passthrough.h"
#include "mount/sandbox.h"
#include "mount/stats.h"
#include "mount/unmounter.h"
#include "mount/watch.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include <ckptfs/ckpt_mount.h>

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
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
	MAX_SHAPE = 4 << 20,   /* bytes */
	MAX_MOUNTS = 16 << 20, /* bytes of the list of all mounts */
};

struct mount {
	const struct options *opts;
	const char *index; /* a word for ckpt_open, or NULL */
	enum fs_io io;
	enum sandbox_mode sandbox;
	char *source, *target; /* absolute */
	bool given;	       /* target is "/dev/fd/N": the caller has mounted that */
	char *cwd;	       /* where the command was run, */
	struct buf shape;      /* and the options that determine the tree: see options_add_shape */
	int report;	       /* the pipe to the waiting parent, or -1 */
	int log;	       /* the file that messages are added to, or -1 */
	struct journal *journal;
	struct ckpt *ckpt;
	struct stats *stats;
	struct fs *fs;
	struct fuse_session *session;
	bool bound; /* it is mounted, and the unmounter knows which mount it is */
	bool signals;
	unsigned hung; /* threads that will not return */
	struct mount_found found;
	struct sandbox rules;
	struct unmounter unmounter;
};

/* ---- reporting ---- */

static void report_ready(struct mount *m)
{
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
		(void)waitpid(child, &status, 0);
		(void)err_set(&e, ECHILD, "mount '%s': the daemon ended early (%s %d)", target,
			      WIFSIGNALED(status) ? "signal" : "status",
			      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
	return cmd_fail(&e);
}

static void __attribute__((format(printf, 2, 0)))
log_fuse(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char line[512];

	(void)vsnprintf(line, sizeof(line), fmt, ap);
	line[strcspn(line, "\n")] = 0;
	log_msg(level <= FUSE_LOG_ERR	 ? LOG_LEVEL_ERROR
		: level <= FUSE_LOG_INFO ? LOG_LEVEL_WARN /* such as io_uring failing to start */
					 : LOG_LEVEL_DEBUG,
		"%s", line);
}

/* ---- existing mounts ---- */

/* Is `path` the directory `dir`, or something in it? */
static bool lies_in(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(dir, path, n) && (!path[n] || path[n] == '/' || n == 1);
}

static bool opens(const char *path)
{
	struct ckpt_err ignored;
	struct ckpt *c = NULL;

	(void)ckpt_open(path, CMD_WORDS("runs", "allow_missing", "index=:memory:"), NULL, &c,
			&ignored);
	ckpt_close(c);
	return c;
}

/* The mount cannot work as requested: are the two arguments in the wrong order? */
static bool explain_swapped(const struct mount *m, struct ckpt_err *e)
{
	const char *source = m->opts->args[0], *target = m->opts->args[1];

	if (!opens(target) || opens(m->source))
		return false;
	(void)err_set(e, EINVAL,
		      "'%s' is a checkpoint and '%s' is not: the checkpoint comes first, as in "
		      "'ckptfs mount %s %s'",
		      target, source, target, source);
	return true;
}

/* "/dev/fd/N": libfuse serves what the caller has mounted with this descriptor, as mount.fuse3(8)
 * does with drop_privileges, and programs that mount for containers. 1: target has another form. */
static int resolve_given(struct mount *m, const char *target, struct ckpt_err *e)
{
	unsigned fd;
	int end = 0;
	struct stat st;

	/* NOLINTNEXTLINE(cert-err34-c): nine digits fit */
	if (sscanf(target, "/dev/fd/%9u%n", &fd, &end) != 1 || target[end])
		return 1;
	if (fstat((int)fd, &st))
		return err_sys(e, errno, "mount point '%s'", target);
	if (fd <= STDERR_FILENO || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(10, 229))
		return err_set(e, EINVAL,
			       "mount point '%s': not an open descriptor of /dev/fuse with the "
			       "number 3 or above",
			       target);
	m->target = strdup(target);
	m->given = true;
	return m->target ? 0 : err_sys(e, ENOMEM, "mount");
}

/* A second mount would hide the first, and each would have to be unmounted. */
static int refuse_live(const struct mount *m, struct ckpt_err *e)
{
	struct jdoc stats CLEANUP(jdoc_release) = { 0 };
	struct mount_found found;
	struct ckpt_err ignored;
	const char *what;
	int rc = mounts_find(m->target, &found, e);

	if (rc < 0)
		return rc;
	if (rc || strncmp(found.type, "fuse", 4) != 0 || live_load(m->target, &stats, &ignored))
		return 0;
	what = jval_str(jval_get(jdoc_root(&stats), "checkpoint"));
	return err_set(e, EBUSY,
		       "mount point '%s': '%.100s' is mounted there already; 'ckptfs umount %s' "
		       "unmounts it",
		       m->target, what ? what : "a checkpoint", m->target);
}

static int resolve(struct mount *m, struct ckpt_err *e)
{
	const char *target = m->opts->args[1];
	struct stat st;
	struct statvfs fs;
	int rc;

	if (ckpt_address(m->opts->args[0], &m->source, e))
		return -e->code;
	rc = resolve_given(m, target, e);
	if (rc <= 0)
		return rc;
	if (statvfs(target, &fs) || stat(target, &st)) { /* stat alone may come from the cache */
		if (mounts_is_dead(errno))
			return err_set(e, ENOTCONN,
				       "mount point '%s': a dead mount is there; 'ckptfs umount "
				       "%s' removes it",
				       target, target);
		return err_sys(e, errno, "mount point '%s'", target);
	}
	if (!S_ISDIR(st.st_mode)) {
		rc = err_set(e, ENOTDIR, "mount point '%s': not a directory", target);
		return explain_swapped(m, e) ? -e->code : rc;
	}
	m->target = realpath(target, NULL);
	if (!m->target)
		return err_sys(e, errno, "mount point '%s'", target);
	if (lies_in(m->source, m->target))
		return err_set(e, EINVAL,
			       "mount point '%s': a mount there would hide the checkpoint", target);
	return refuse_live(m, e);
}

static void add_flag(char **list, bool on, const char *word, int *failed)
{
	if (on)
		*failed |= fuse_opt_add_opt(list, word);
}

/* A value may contain commas. */
static void add_value(char **list, const char *word, const char *value, int *failed)
{
	autofree char *both = NULL;

	if (!value)
		return;
	if (asprintf(&both, "%s=%s", word, value) < 0)
		*failed = -1;
	else
		*failed |= fuse_opt_add_opt_escaped(list, both);
}

static int new_session(struct mount *m, struct ckpt_err *e)
{
	const struct options *o = m->opts;
	struct fuse_args args CLEANUP(fuse_opt_free_args) = FUSE_ARGS_INIT(0, NULL);
	autofree char *list = NULL;
	struct fuse_lowlevel_ops ops;
	struct capture c;
	char line[256];
	int failed = 0;

	add_flag(&list, true, "ro", &failed);
	add_value(&list, "fsname", o->fsname ? o->fsname : m->source, &failed);
	add_value(&list, "subtype", o->subtype ? o->subtype : "ckptfs", &failed);
	add_value(&list, "context", o->context, &failed);
	add_flag(&list, o->allow_other, "allow_other", &failed);
	add_flag(&list, o->allow_root, "allow_root", &failed);
	/* The modes never change, so the kernel can check them itself; without this option
	 * access(X_OK) would report that files can be executed. */
	add_flag(&list, true, "default_permissions", &failed);
	add_flag(&list, o->auto_unmount, "auto_unmount", &failed);
	add_flag(&list, o->io_uring && negotiate_has_uring(), "io_uring", &failed);
	add_flag(&list, o->nosuid, "nosuid", &failed);
	add_flag(&list, o->nodev, "nodev", &failed);
	add_flag(&list, o->noexec, "noexec", &failed);
	if (failed || fuse_opt_add_arg(&args, "ckptfs") || fuse_opt_add_arg(&args, "-o") ||
	    fuse_opt_add_arg(&args, list) || (o->debug && fuse_opt_add_arg(&args, "-d")))
		return err_sys(e, ENOMEM, "mount options");
	watch_ops(&ops);
	capture_start(&c);
	m->session = fuse_session_new(&args, &ops, sizeof(ops), m->fs);
	capture_stop(&c, line, sizeof(line));
	if (!m->session)
		return err_set(e, EINVAL, "mount '%s': %s", m->target,
			       *line ? line : "libfuse refused");
	return 0;
}

/* Determines which mount is ours, before anything else could mistake another mount for it. */
static int find_mount(struct mount *m, const struct buf *before, struct ckpt_err *e)
{
	int rc = mounts_find_new(m->target, fuse_session_fd(m->session), before, &m->found, e);

	if (rc > 0)
		return err_set(e, ESTALE,
			       "mount '%s': the directory was moved while it was mounted; "
			       "'ckptfs umount' removes what is mounted there now",
			       m->target);
	if (rc)
		return err_wrap(e, "mount '%s' is left behind, and 'ckptfs umount' removes it",
				m->target);
	m->bound = true;
	return unmounter_bind(&m->unmounter, &m->found, e);
}

/* Explains why it was not mounted and, if FUSE is missing, names the commands that work without it.
 * */
static int refused(const struct mount *m, const char *why, struct ckpt_err *e)
{
	autoclose int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	struct stat st;
	bool no_fuse = fd < 0 || fstat(fd, &st) || st.st_rdev != makedev(10, 229) ||
		       strstr(why, "not permitted") ||
		       strstr(why, "No such file"); /* no /dev/fuse, no fusermount3 */

	return err_set(e, EIO, "mount '%s': %s%s", m->target, *why ? why : "refused",
		       no_fuse ? "; without FUSE, 'ckptfs cat', 'ckptfs export' and the Python "
				 "module 'ckptfs' read the same files"
			       : "");
}

static int do_mount(struct mount *m, struct ckpt_err *e)
{
	struct buf before CLEANUP(buf_release) = BUF_INIT(MAX_MOUNTS);
	struct capture c;
	char line[256];
	int rc;

	if (mounts_list(&before, e))
		return -e->code;
	if (fuse_set_signal_handlers(m->session))
		return err_set(e, EINVAL, "mount '%s': signal handlers refused", m->target);
	m->signals = true;
	capture_start(&c);
	rc = fuse_session_mount(m->session, m->target);
	capture_stop(&c, line, sizeof(line));
	if (rc)
		return refused(m, line, e);
	if (!m->given && find_mount(m, &before, e))
		return -e->code;
	if (m->opts->io_uring && negotiate_no_uring())
		log_msg(LOG_LEVEL_WARN, "warning: using /dev/fuse instead of io_uring: %s",
			negotiate_no_uring());
	rc = fs_start(m->fs, m->session);
	if (rc)
		return err_sys(e, -rc, "mount '%s'", m->target);
	return 0;
}

/* ---- the sandbox ---- */

static int may_read_source(void *arg, const struct ckpt_source *s)
{
	struct mount *m = arg;

	sandbox_allow_read(&m->rules, s->path);
	return 0;
}

static int may_read_other(void *arg, const char *path)
{
	struct mount *m = arg;

	if (!text_is_address(path))
		sandbox_allow_read(&m->rules, path);
	return 0;
}

/* Allows reading a file, or a directory and the targets of links in it. */
static void may_read_linked(struct mount *m, const char *dir)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, dir, 0);
	const struct dirent *entry;
	struct ckpt_err ignored;

	sandbox_allow_read(&m->rules, dir);
	while (d && io_next_entry(d, &entry, &ignored) > 0) {
		autofree char *path = NULL;

		if (entry->d_name[0] != '.' &&
		    (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) &&
		    asprintf(&path, "%s/%s", dir, entry->d_name) >= 0)
			sandbox_allow_read(&m->rules, path);
	}
}

/* A file is opened by way of its directory. */
static void may_list_parent(struct mount *m, const char *path)
{
	autofree char *dir = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	struct stat st;

	if (!dir || stat(path, &st) || S_ISDIR(st.st_mode))
		return;
	if (slash)
		slash[slash == dir] = 0;
	sandbox_allow_list(&m->rules, slash ? dir : ".");
}

/* "lora=DIR[:SCALE]", "overlay=PATH": what each checkpoint of a run will open. */
static void may_read_merged(struct mount *m, const char *word)
{
	static const char *const names[] = { "lora=", "overlay=" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		autofree char *path = NULL;
		char *colon;

		if (strncmp(word, names[i], strlen(names[i])) != 0)
			continue;
		word += strlen(names[i]);
		path = strdup(word + (strncmp(word, "file://", 7) ? 0 : 7));
		colon = path ? strrchr(path, ':') : NULL;
		if (colon && access(path, F_OK))
			*colon = 0;
		if (path) {
			may_read_linked(m, path);
			may_list_parent(m, path);
		}
	}
}

/* The checkpoints of a run are opened, and their indexes built, when a reader enters them. */
static void may_open_children(struct mount *m)
{
	autofree char *cache = ckpt_index_dir();
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		const char *path = options_get(m->opts, x->name);

		if (path && x->form == CKPT_OPTION_FILE)
			may_read_linked(m, path);
	}
	for (size_t i = 0; m->opts->open && m->opts->open[i]; i++)
		may_read_merged(m, m->opts->open[i]);
	if (cache)
		sandbox_allow_write(&m->rules, cache);
}

/* Determines what may be opened from now on, while relative paths still have their meaning for the
 * caller. */
static int draw_limits(struct mount *m, struct ckpt_err *e)
{
	char bdi[MOUNTS_BDI_MAX];

	sandbox_prepare(&m->rules);
	sandbox_allow_read(&m->rules, m->source);
	if (ckpt_beyond(m->ckpt))
		sandbox_allow_read(&m->rules, ckpt_beyond(m->ckpt));
	(void)ckpt_others(m->ckpt, may_read_other, m);
	if (m->bound) {
		mounts_bdi(&m->found, bdi);
		sandbox_allow_write_file(&m->rules, bdi);
	}
	if (ckpt_is_run(m->ckpt))
		may_open_children(m);
	/* Assets found without the option are already open. */
	return options_get(m->opts, "assets") ? ckpt_assets(m->ckpt, may_read_source, m, e) : 0;
}

static int miss(struct mount *m, const struct ckpt_err *missing, struct ckpt_err *e)
{
	if (m->sandbox == SANDBOX_ON)
		return err_set(e, missing->code, "mount '%s': sandbox: %s", m->target,
			       missing->msg);
	log_msg(LOG_LEVEL_WARN, "mount '%s': a part of the sandbox is missing: %s", m->target,
		missing->msg);
	return 0;
}

/* What ckptfs-fetch has from the environment. It has been started with that, and whoever takes this
 * process over is not to find it here. */
static void forget_secrets(void)
{
	static const char *const names[] = {
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"HF_TOKEN",
		"HUGGING_FACE_HUB_TOKEN",
		/* These may have passwords. */
		"http_proxy",
		"https_proxy",
		"HTTPS_PROXY",
		"all_proxy",
		"ALL_PROXY",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char *value = getenv(names[i]);

		if (!value)
			continue;
		explicit_bzero(value, strlen(value));
		(void)unsetenv(names[i]);
	}
}

static int confine(struct mount *m, struct ckpt_err *e)
{
	bool backing = m->io == FS_IO_AUTO && !ckpt_is_run(m->ckpt) && passthrough_allowed();
	struct ckpt_err missing;
	int rc = 0;

	ckpt_rest();
	forget_secrets();
	if (sandbox_enter(&m->rules, backing, &missing))
		rc = miss(m, &missing, e);
	if (!rc)
		sandbox_release(&m->rules);
	return rc;
}

static int is_in_store(void *arg, const char *path)
{
	(void)arg;
	return text_is_address(path);
}

/* Is anything of it in an object store: the checkpoint, or what an option names? */
static bool has_fetcher(const struct mount *m)
{
	const struct ckpt_option *x;

	if (text_is_address(m->source) || ckpt_others(m->ckpt, is_in_store, NULL))
		return true;
	for (size_t i = 0; (x = ckpt_option(i)); i++)
		for (size_t k = 0; x->tree && m->opts->open && m->opts->open[k]; k++) {
			const char *word = m->opts->open[k];
			size_t n = strlen(x->name);

			if (!strncmp(word, x->name, n) && word[n] == '=' && strstr(word, "://"))
				return true;
		}
	return false;
}

static int filter_calls(struct mount *m, struct ckpt_err *e)
{
	int queues = negotiate_queues(), rc = 0;
	struct ckpt_err missing;

	if (queues < 0) {
		(void)err_set(&missing, -queues, "io_uring is available but was not restricted");
		rc = miss(m, &missing, e);
	}
	if (!rc && sandbox_filter_calls(queues != 0, has_fetcher(m), &missing))
		rc = miss(m, &missing, e);
	return rc;
}

/* Kernel and daemon have agreed: the mount is usable. */
static int begin(void *arg, struct ckpt_err *e)
{
	struct mount *m = arg;
	int rc = m->sandbox != SANDBOX_OFF ? filter_calls(m, e) : 0;

	fs_begin(m->fs);
	if (!rc)
		report_ready(m);
	return rc;
}

/* ---- the daemon ---- */

static int to_dev_null(int fd, int flags, struct ckpt_err *e)
{
	autoclose int null = open("/dev/null", flags | O_CLOEXEC);

	return null < 0 || dup2(null, fd) < 0 ? err_sys(e, errno, "open '/dev/null'") : 0;
}

/* Closes everything inherited from the caller: a pipe that a script reads from would never end. */
static int detach(const struct mount *m, struct ckpt_err *e)
{
	if (logger_start(true, m->log, e))
		return -e->code;
	fuse_set_log_func(log_fuse);
	(void)setsid(); /* fails only for a group leader, which needs no session */
	if (chdir("/"))
		return err_sys(e, errno, "chdir to '/'");
	return to_dev_null(STDERR_FILENO, O_WRONLY, e);
}

static unsigned thread_count(const struct options *o)
{
	uint64_t cpus = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);

	if (o->threads)
		return (unsigned)min_u64(o->threads, 1024);
	return (unsigned)max_u64(MIN_THREADS, min_u64(MAX_THREADS, cpus * THREADS_PER_CPU));
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
		/* Of a store up to twice as much would be fetched for nothing by every reader that
		 * stops; what comes next is announced anyway. */
		mounts_read_ahead(&m->found, text_is_address(m->source) ? 256 : 1024);
}

/* The checkpoints of a run are opened later, when nobody reads our stderr. */
static void log_warning(void *arg, const char *what)
{
	(void)arg;
	log_msg(LOG_LEVEL_WARN, "warning: %s", what);
}

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
	if (cmd_open(m->source, o,
		     &(struct cmd_how){ CMD_WORDS("runs", "map_files", m->index), log_warning },
		     &m->ckpt, e)) {
		(void)explain_swapped(m, e);
		return -e->code;
	}
	if (ckpt_is_run(m->ckpt) && lies_in(m->target, m->source))
		return err_set(
			e, EINVAL,
			"mount point '%s': it is in the run, which is searched for checkpoints",
			m->target);
	config.ckpt = m->ckpt;
	m->stats = new_stats(m);
	config.stats = m->stats;
	m->fs = m->stats ? fs_new(&config) : NULL;
	if (!m->fs)
		return err_sys(e, ENOMEM, "mount '%s'", m->target);
	/* fusermount3 may stay (auto_unmount) and would keep a script's pipe open. */
	if (m->report >= 0 &&
	    (to_dev_null(STDIN_FILENO, O_RDONLY, e) || to_dev_null(STDOUT_FILENO, O_WRONLY, e)))
		return -e->code;
	if (new_session(m, e) || do_mount(m, e))
		return -e->code;
	if (m->sandbox != SANDBOX_OFF && draw_limits(m, e))
		return -e->code;
	show_verdicts(m);
	if (m->report >= 0 ? detach(m, e) : m->log >= 0 && logger_start(false, m->log, e))
		return -e->code;
	if (m->log >= 0) /* it belongs to the child from now on */
		(void)close(steal_fd(&m->log));
	if (m->sandbox != SANDBOX_OFF && confine(m, e))
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
	rc = m->journal ? unmounter_start(&m->unmounter, &e) : err_nomem(&e);
	if (!rc)
		rc = serve(m, &e);
	clean_up(m, rc ? STATUS_TROUBLE : STATUS_DONE);
	if (!rc)
		return STATUS_DONE;
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
	if (m->log >= 0)
		(void)close(m->log);
}

/* Makes the option's path absolute, because a relative one would change its meaning after
 * chdir("/"). */
static char *absolute_index(const char *index)
{
	autofree char *cwd = NULL;
	char *word = NULL;

	if (!index || *index == '/' || *index == ':')
		return NULL;
	cwd = getcwd(NULL, 0);
	return !cwd || asprintf(&word, "index=%s/%s", cwd, index) < 0 ? NULL : word;
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
	if (sandbox_parse(o->sandbox, &m.sandbox, &e) || resolve(&m, &e) ||
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

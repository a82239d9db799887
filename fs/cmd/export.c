/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Correctness depends on the order of the steps:
 *
 *	state saved ─► DEST.partial made ─► units written ─► fsync ─► units recorded ─► ...
 *	... ─► directories fsynced ─► rename ─► parent fsynced ─► state removed
 *
 * Every worker takes the next unit from a shared counter and has its own descriptors, so no locks
 * are needed. It flushes what it has written in batches, and only then records the units.
 */
#include "cmd/export.h"

#include "cmd/export_list.h"
#include "cmd/export_state.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/crew.h"
#include "base/err.h"
#include "base/io.h"
#include "base/progress.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

enum {
	BLOCK = 1 << 20,	/* bytes of one read */
	BATCH_BYTES = 64 << 20, /* maximum written by a worker and not yet flushed */
	BATCH_NS = 2000000000,	/* and maximum time until it is flushed */
	BATCH_UNITS = 64,
};

struct names {
	char *dir; /* the parent directory; in it: */
	char *base, *partial, *state;
};

struct run {
	const struct export_job *job;
	struct names names;
	int parent;
	struct export_list list;
	struct export_identity id;
	struct export_state state;
	size_t max_open; /* files that a worker may have open between two flushes */
	struct progress progress;
	_Atomic uint64_t next; /* unit */
	_Atomic uint64_t written;
	atomic_bool stop;
	pthread_mutex_t lock;
	struct ckpt_err err; /* the first one; under the lock */
};

struct worker {
	struct run *x;
	uint8_t *buf;
	uint32_t dir; /* the directory that dirfd is open on */
	int dirfd;
	size_t file; /* what src and fd[n_fds - 1] are open on */
	struct ckpt_file *src;
	/* Written since the last flush. */
	int fd[BATCH_UNITS];
	size_t fd_file[BATCH_UNITS], n_fds;
	uint64_t unit[BATCH_UNITS], bytes, since_ns;
	size_t n_units;
};

static const size_t no_file = SIZE_MAX;

/* ---- names ---- */

/* Splits "a/b/" into the directory "a" and the name 'b'. */
static int split_dest(struct run *x, struct ckpt_err *e)
{
	autofree char *dest = strdup(x->job->dest);
	size_t n = strlen(x->job->dest);
	const char *parent = ".", *base;
	char *slash;

	if (!dest)
		return err_sys(e, ENOMEM, "'%s'", x->job->dest);
	while (n > 1 && dest[n - 1] == '/')
		dest[--n] = 0;
	slash = strrchr(dest, '/');
	base = slash ? slash + 1 : dest;
	x->names.base = strdup(base);
	x->names.partial = text_format("%s.partial", base);
	x->names.state = text_format("%s.partial.state", base);
	if (!x->names.base || !x->names.partial || !x->names.state)
		return err_sys(e, ENOMEM, "'%s'", x->job->dest);
	if (slash) {
		slash[slash == dest] = 0;
		parent = dest;
	}
	x->names.dir = strdup(parent);
	if (!x->names.dir)
		return err_sys(e, ENOMEM, "'%s'", x->job->dest);
	x->parent = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return x->parent < 0 ? err_sys(e, errno, "directory '%s'", parent) : 0;
}

static bool exists(const struct run *x, const char *name)
{
	struct stat st;

	return !fstatat(x->parent, name, &st, AT_SYMLINK_NOFOLLOW);
}

static int refuse_existing(const struct run *x, struct ckpt_err *e)
{
	if (!*x->job->dest)
		return err_set(e, EINVAL, "DEST is empty: name the file or directory to write");
	if (!*x->names.base || exists(x, x->names.base))
		return err_set(e, EEXIST, "'%s' exists already: name another DEST", x->job->dest);
	return errno == ENOENT ? 0 : err_sys(e, errno, "'%s'", x->job->dest);
}

/* Opens the directory below DEST.partial named by the first len bytes of path; the caller closes
 * it. Links are not followed. */
static int open_below(const struct run *x, const char *path, size_t len, struct ckpt_err *e)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	const char *p = path, *end = path + len;
	int at = openat(x->parent, x->names.partial, flags);

	while (at >= 0 && p < end) {
		size_t n = strcspn(p, "/");
		char name[CKPT_NAME_MAX + 1];
		int fd;

		(void)snprintf(name, sizeof(name), "%.*s", (int)n, p);
		fd = openat(at, name, flags);
		(void)close(at);
		at = fd;
		p += n + 1;
	}
	return at < 0 ? err_sys(e, errno, "directory '%s/%.*s'", x->names.partial, (int)len, path)
		      : at;
}

/* The name of file i in its directory, and its node in the tree. */
static int name_of(const struct run *x, size_t i, char name[static CKPT_NAME_MAX + 1],
		   ckpt_node *ret, struct ckpt_err *e)
{
	const struct export_file *f = &x->list.files[i];

	if (f->dir == EXPORT_TOP) {
		(void)snprintf(name, CKPT_NAME_MAX + 1, "%s", x->names.partial);
		*ret = x->list.node;
		return 0;
	}
	return ckpt_entry(x->job->c, x->list.dirs[f->dir].node, f->pos, name, ret)
		       ? err_set(e, ENOENT, "the tree has changed")
		       : 0;
}

/* Puts "what 'tensors/NAME'" in front of the message, unless it names the tensor itself. */
static int blame(const struct run *x, const char *what, size_t i, struct ckpt_err *e)
{
	const struct export_file *f = &x->list.files[i];
	const char *dir = f->dir == EXPORT_TOP ? "" : x->list.dirs[f->dir].path;
	char name[CKPT_NAME_MAX + 1] = "";
	struct ckpt_err ignored;
	ckpt_node node;

	if (!strncmp(e->msg, "tensor '", strlen("tensor '")))
		return -e->code;
	(void)name_of(x, i, name, &node, &ignored);
	return err_wrap(e, "%s '%s%s%s'", what, dir, *dir ? "/" : "", name);
}

/* ---- a worker's files ---- */

/* The directory of file i; borrowed. */
static int dir_of(struct worker *w, size_t i, struct ckpt_err *e)
{
	const struct run *x = w->x;
	uint32_t d = x->list.files[i].dir;

	if (d == EXPORT_TOP)
		return x->parent;
	if (w->dirfd >= 0 && w->dir == d)
		return w->dirfd;
	if (w->dirfd >= 0)
		(void)close(w->dirfd);
	w->dirfd = open_below(x, x->list.dirs[d].path, strlen(x->list.dirs[d].path), e);
	w->dir = d;
	return w->dirfd;
}

/* Sets the file's size and allocates its blocks now, so that a full disk is noticed before hours of
 * copying. */
static int size_file(int fd, uint64_t size, struct ckpt_err *e)
{
	struct stat st;

	if (fstat(fd, &st))
		return err_sys(e, errno, "stat");
	if (!S_ISREG(st.st_mode))
		return err_set(e, EEXIST, "something other than a file is there");
	if ((uint64_t)st.st_size == size)
		return 0;
	if ((uint64_t)st.st_size < size) {
		if (!fallocate(fd, 0, 0, (off_t)size))
			return 0;
		if (errno != EOPNOTSUPP && errno != ENOSYS)
			return err_sys(e, errno, "allocate %llu bytes", (unsigned long long)size);
	}
	return ftruncate(fd, (off_t)size) ? err_sys(e, errno, "set the size") : 0;
}

static int open_target(struct worker *w, size_t i, const char *name, bool first, struct ckpt_err *e)
{
	autoclose int fd = -1;
	int dirfd = dir_of(w, i, e);

	if (dirfd < 0)
		return dirfd;
	fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
	if (fd < 0)
		(void)err_sys(e, errno, "create");
	if (fd < 0 || (first && size_file(fd, w->x->list.files[i].size, e)))
		return blame(w->x, "write", i, e);
	w->fd_file[w->n_fds] = i;
	w->fd[w->n_fds++] = steal_fd(&fd);
	return 0;
}

static void leave_file(struct worker *w)
{
	ckpt_file_close(w->src);
	w->src = NULL;
	w->file = no_file;
}

/*
 * Opens file i for reading and writing. Fewer than BATCH_UNITS descriptors must be waiting to be
 * flushed. The worker with the file's first unit sets its size; if that unit is already done, so is
 * the size.
 */
static int use_file(struct worker *w, size_t i, bool first, struct ckpt_err *e)
{
	const struct run *x = w->x;
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node;

	if (w->file == i)
		return 0;
	leave_file(w);
	if (name_of(x, i, name, &node, e) || ckpt_file_open(x->job->c, node, &w->src, e))
		return blame(x, "read", i, e);
	if (ckpt_file_size(w->src) != x->list.files[i].size) {
		(void)err_set(e, EIO, "its size has changed");
		return blame(x, "read", i, e);
	}
	if (open_target(w, i, name, first, e))
		return -e->code;
	w->file = i;
	return 0;
}

/* ---- flushing ---- */

static void fail(struct run *x, const struct ckpt_err *e)
{
	SCOPED_LOCK(&x->lock);
	if (!x->stop)
		x->err = *e;
	x->stop = true;
}

/* Waits until everything that this worker has written is on disk, then records it. */
static int flush_batch(struct worker *w, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; i < w->n_fds; i++) {
		if (!rc && fsync(w->fd[i])) {
			(void)err_sys(e, errno, "write to disk");
			rc = blame(w->x, "write", w->fd_file[i], e);
		}
		if (close(w->fd[i]) && !rc) {
			(void)err_sys(e, errno, "close");
			rc = blame(w->x, "write", w->fd_file[i], e);
		}
	}
	for (size_t i = 0; !rc && i < w->n_units; i++) {
		rc = export_state_record(&w->x->state, w->unit[i]);
		if (rc)
			(void)err_sys(e, -rc, "write '%s'", w->x->names.state);
	}
	leave_file(w); /* its descriptor was among them */
	w->n_fds = w->n_units = 0;
	w->bytes = 0;
	return rc;
}

static bool batch_is_full(const struct worker *w)
{
	return w->n_fds >= w->x->max_open || w->n_units == BATCH_UNITS || w->bytes >= BATCH_BYTES ||
	       (w->n_units && clock_ns() - w->since_ns > BATCH_NS);
}

/* ---- copying ---- */

static int copy_range(struct worker *w, int fd, uint64_t off, uint64_t len, struct ckpt_err *e)
{
	struct run *x = w->x;
	uint64_t end = off + len;

	while (off < end) {
		int64_t n = ckpt_file_read(w->src, w->buf, min_u64(end - off, BLOCK), off, e);
		int rc;

		if (!n)
			n = err_set(e, EIO, "ends at byte %llu", (unsigned long long)off);
		if (n < 0)
			return blame(x, "read", w->file, e);
		rc = io_pwrite(fd, w->buf, (size_t)n, off);
		if (rc) {
			(void)err_sys(e, -rc, "%lld bytes at %llu", (long long)n,
				      (unsigned long long)off);
			return blame(x, "write", w->file, e);
		}
		off += (uint64_t)n;
		progress_set(&x->progress,
			     atomic_fetch_add(&x->written, (uint64_t)n) + (uint64_t)n);
	}
	return 0;
}

/* After the last write to a file, gives it the checkpoint's time, which fsync then makes
 * durable. */
static int set_time(const struct run *x, int fd, ckpt_node node, struct ckpt_err *e)
{
	struct timespec t[2] = { { .tv_nsec = UTIME_NOW } };
	struct ckpt_stat st;

	if (ckpt_stat(x->job->c, node, &st, e))
		return -e->code;
	t[1].tv_sec = (time_t)(st.mtime_ns / 1000000000);
	t[1].tv_nsec = (long)(st.mtime_ns % 1000000000);
	return futimens(fd, t) ? err_sys(e, errno, "set the time") : 0;
}

static int finish_file(struct worker *w, int fd, struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node;

	return name_of(w->x, w->file, name, &node, e) || set_time(w->x, fd, node, e)
		       ? blame(w->x, "write", w->file, e)
		       : 0;
}

static int copy_unit(struct worker *w, uint64_t unit, struct ckpt_err *e)
{
	struct export_list *l = &w->x->list;
	size_t i = export_list_find(l, unit);
	uint64_t off, len = export_list_unit(l, i, unit, &off);
	int rc = use_file(w, i, !off, e), fd;

	if (rc)
		return rc;
	fd = w->fd[w->n_fds - 1];
	rc = copy_range(w, fd, off, len, e);
	if (rc)
		return rc;
	/* A hint: the disk writes while we continue reading, and the fsync has less to wait for. */
	(void)sync_file_range(fd, (off_t)off, (off_t)len, SYNC_FILE_RANGE_WRITE);
	if (atomic_fetch_sub(&l->files[i].left, 1) == 1)
		rc = finish_file(w, fd, e);
	if (!w->n_units)
		w->since_ns = clock_ns();
	if (!rc)
		w->unit[w->n_units++] = unit;
	w->bytes += len;
	return rc;
}

static void work(struct worker *w)
{
	struct run *x = w->x;
	struct ckpt_err e = { 0 };
	int rc = 0;

	while (!rc && !x->stop) {
		uint64_t unit = x->next++;

		if (unit >= x->list.units)
			break;
		if (x->state.done[unit])
			continue;
		rc = copy_unit(w, unit, &e);
		if (!rc && batch_is_full(w))
			rc = flush_batch(w, &e);
	}
	if (rc)
		fail(x, &e);
	/* Record completed units even if a later one failed. */
	if (flush_batch(w, &e))
		fail(x, &e);
	if (w->dirfd >= 0)
		(void)close(w->dirfd);
}

static void *worker_main(void *arg)
{
	struct worker w = { .x = arg, .dirfd = -1, .file = no_file };
	struct ckpt_err e = { 0 };

	w.buf = malloc(BLOCK);
	if (w.buf) {
		work(&w);
	} else {
		(void)err_sys(&e, ENOMEM, "start a worker");
		fail(w.x, &e);
	}
	free(w.buf);
	return NULL;
}

static int run_workers(struct run *x, struct ckpt_err *e)
{
	crew_run(min_u64(x->job->threads, x->list.units), worker_main, x);
	if (x->stop)
		*e = x->err;
	return x->stop ? -e->code : 0;
}

/* ---- preparation ---- */

/* The disk space that file i still needs, in blocks of `block`; marks units as not done if they are
 * missing. */
static uint64_t look_at_file(struct run *x, size_t i, const struct stat *st, uint64_t block)
{
	struct export_file *f = &x->list.files[i];
	uint8_t *done = x->state.done + f->first;
	uint64_t left = 0, undone = 0, there = 0, off;
	uint64_t units = export_units_of(f->size);

	if (!st || !S_ISREG(st->st_mode) || (uint64_t)st->st_size != f->size)
		memset(done, 0, units);
	else
		there = (uint64_t)st->st_blocks * 512;
	for (uint64_t u = 0; u < units; u++) {
		if (done[u])
			continue;
		left++;
		undone += export_list_unit(&x->list, i, f->first + u, &off);
	}
	f->left = (uint32_t)left;
	x->written -= undone;
	undone = (undone + block - 1) / block * block;
	return min_u64(undone, f->size + block > there ? f->size + block - there : 0);
}

/* Examines which files exist in DEST.partial. */
static int look_at_partial(struct run *x, uint64_t block, uint64_t *ret_need, struct ckpt_err *e)
{
	struct worker w = { .x = x, .dirfd = -1 };
	struct ckpt_err absent;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->list.n_files; i++) {
		char name[CKPT_NAME_MAX + 1];
		int dirfd = dir_of(&w, i, &absent);
		struct stat st;
		ckpt_node node;
		bool there;

		rc = name_of(x, i, name, &node, e);
		there = !rc && dirfd >= 0 && !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW);
		if (!rc)
			*ret_need += look_at_file(x, i, there ? &st : NULL, block);
	}
	if (w.dirfd >= 0)
		(void)close(w.dirfd);
	return rc;
}

static int check_space(const struct run *x, const struct statvfs *fs, uint64_t need,
		       struct ckpt_err *e)
{
	uint64_t free = fs->f_bavail * fs->f_frsize;
	char a[16], b[16];

	if (!fs->f_blocks || need <= free) /* some network file systems do not report it */
		return 0;
	return err_set(e, ENOSPC, "'%s' needs %s, but only %s are free there", x->job->dest,
		       text_size(need, a), text_size(free, b));
}

static uint64_t space_of_all(const struct export_list *l, uint64_t block)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < l->n_files; i++)
		sum += (l->files[i].size + block - 1) / block * block;
	return sum;
}

__attribute__((format(printf, 2, 3))) static void say(const struct run *x, const char *fmt, ...)
{
	char what[sizeof(((struct ckpt_err *)NULL)->msg) + 64];
	va_list ap;

	if (!x->job->say)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	x->job->say(x->job->say_arg, what);
}

static void say_resuming(const struct run *x)
{
	char a[16], b[16];

	if (x->job->quiet)
		return;
	say(x, "resuming: %s of %s are there", text_size(x->written, a),
	    text_size(x->list.bytes, b));
}

/* Is there anything to resume? A copy made from other bytes is removed: once its name is durably
 * gone, the state may describe another export. */
static int may_resume(const struct run *x, bool *ret, struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc;

	*ret = exists(x, x->names.partial);
	if (*ret && export_state_refuse_foreign(x->parent, x->names.partial, e))
		return -e->code;
	rc = *ret ? export_state_match(&x->state, &x->id, x->names.partial, &why) : 0;
	if (rc < 0)
		*e = why;
	if (rc <= 0)
		return rc;
	*ret = false;
	say(x, "starting over: %s", why.msg);
	rc = io_remove(x->parent, x->names.partial, e);
	if (!rc && fsync(x->parent))
		rc = err_sys(e, errno, "directory of '%s'", x->job->dest);
	return rc;
}

/* Space is checked before anything is allocated in proportion to the number of units. */
static int prepare_state(struct run *x, struct ckpt_err *e)
{
	uint64_t need, block;
	struct statvfs fs;
	bool resumed;

	if (may_resume(x, &resumed, e))
		return -e->code;
	if (fstatvfs(x->parent, &fs))
		return err_sys(e, errno, "file system of '%s'", x->job->dest);
	block = max_u64(fs.f_frsize, 1);
	need = space_of_all(&x->list, block);
	if (!resumed && check_space(x, &fs, need, e))
		return -e->code;
	if (export_state_init(&x->state, x->list.units, e))
		return -e->code;
	if (resumed) {
		need = 0;
		x->written = x->list.bytes;
		if (export_state_load(&x->state, x->names.partial, e) ||
		    look_at_partial(x, block, &need, e) || check_space(x, &fs, need, e))
			return -e->code;
		say_resuming(x);
	}
	if (export_state_save(&x->state, &x->id, e))
		return -e->code;
	/* The state's name must be on disk before the name of the copy that it describes. */
	return fsync(x->parent) ? err_sys(e, errno, "directory of '%s'", x->job->dest) : 0;
}

/* Directory or link number d. */
static int make_dir(const struct run *x, uint32_t d, struct ckpt_err *e)
{
	const char *path = x->list.dirs[d].path, *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path, *target = x->list.dirs[d].target;
	autoclose int parent = -1;
	int rc;

	if (!*path) {
		rc = mkdirat(x->parent, x->names.partial, 0755);
	} else {
		parent = open_below(x, path, slash ? (size_t)(slash - path) : 0, e);
		if (parent < 0)
			return parent;
		rc = target ? symlinkat(target, parent, name) : mkdirat(parent, name, 0755);
	}
	return rc && errno != EEXIST
		       ? err_sys(e, errno, "create %s '%s/%s'", target ? "link" : "directory",
				 x->names.partial, path)
		       : 0;
}

static int make_dirs(const struct run *x, struct ckpt_err *e)
{
	int rc = 0;

	for (uint32_t d = 0; !rc && d < x->list.n_dirs; d++)
		rc = make_dir(x, d, e);
	return rc;
}

/* ---- completion ---- */

static int sync_dirs(const struct run *x, struct ckpt_err *e)
{
	for (uint32_t d = 0; d < x->list.n_dirs; d++) {
		const struct export_dir *dir = &x->list.dirs[d];
		autoclose int fd = -1;

		if (dir->target)
			continue;
		fd = open_below(x, dir->path, strlen(dir->path), e);
		if (fd < 0)
			return fd;
		if (set_time(x, fd, dir->node, e))
			return -e->code;
		if (fsync(fd))
			return err_sys(e, errno, "write directory '%s/%s'", x->names.partial,
				       dir->path);
	}
	return 0;
}

static int publish(const struct run *x, struct ckpt_err *e)
{
	int rc = renameat2(x->parent, x->names.partial, x->parent, x->names.base, RENAME_NOREPLACE);

	if (rc && (errno == EINVAL || errno == ENOSYS)) { /* not every file system supports it */
		if (refuse_existing(x, e))
			return -e->code;
		rc = renameat(x->parent, x->names.partial, x->parent, x->names.base);
	}
	if (rc)
		return err_sys(e, errno, "rename '%s'", x->names.partial);
	if (fsync(x->parent))
		return err_sys(e, errno, "directory of '%s'", x->job->dest);
	(void)unlinkat(x->parent, x->names.state, 0);
	return 0;
}

/* ---- all of it ---- */

static int copy_all(struct run *x, struct ckpt_err *e)
{
	int rc = make_dirs(x, e);

	progress_start(&x->progress, "export", x->list.bytes, !x->job->quiet);
	x->progress.from = x->written;
	if (!rc)
		rc = run_workers(x, e);
	progress_end(&x->progress);
	if (!rc)
		rc = sync_dirs(x, e);
	return rc ? rc : publish(x, e);
}

static int lock_dest(struct run *x, struct ckpt_err *e)
{
	int rc = export_state_open(x->parent, x->names.state, &x->state, e);

	if (rc == -EBUSY)
		return err_set(e, EBUSY, "another export to '%s' is running", x->job->dest);
	return rc ? err_wrap(e, "directory '%s'", x->names.dir) : 0;
}

/* Removes a state that describes no copy; keeps any other. */
static void drop_empty_state(const struct run *x)
{
	struct stat st;

	if (!exists(x, x->names.partial) || (!fstat(x->state.fd, &st) && !st.st_size))
		(void)unlinkat(x->parent, x->names.state, 0);
}

static int run_locked(struct run *x, struct ckpt_err *e)
{
	struct ckpt_err why;

	/* DEST may have been created since the first check. */
	if (refuse_existing(x, e) || prepare_state(x, e)) {
		drop_empty_state(x);
		return -e->code;
	}
	if (x->job->begun)
		x->job->begun();
	if (!copy_all(x, e))
		return 0;
	if (!exists(x, x->names.partial)) {
		drop_empty_state(x);
		return -e->code;
	}
	why = *e;
	return err_set(e, why.code,
		       "%s; the same command resumes the copy, unless the checkpoint has changed",
		       why.msg);
}

static void release(struct run *x)
{
	export_list_release(&x->list);
	export_state_close(&x->state);
	if (x->parent >= 0)
		(void)close(x->parent);
	free(x->names.dir);
	free(x->names.base);
	free(x->names.partial);
	free(x->names.state);
	(void)pthread_mutex_destroy(&x->lock);
}

int export_run(const struct export_job *job, struct ckpt_err *e)
{
	struct run x CLEANUP(release) = { .job = job, .parent = -1, .state.fd = -1 };
	struct rlimit lim = { .rlim_cur = 1024 };

	(void)pthread_mutex_init(&x.lock, NULL);
	/* Reading needs descriptors, too, see files.c: we use an eighth. */
	(void)getrlimit(RLIMIT_NOFILE, &lim);
	x.max_open = (size_t)max_u64(1, min_u64(lim.rlim_cur / 8 / job->threads, BATCH_UNITS));
	if (split_dest(&x, e) || refuse_existing(&x, e) ||
	    export_list_make(job->c, &job->what, &x.list, e) ||
	    ckpt_origin(job->c, &x.id.origin, e))
		return -e->code;
	x.id.files = x.list.hash;
	x.id.request = job->request;
	x.id.request_len = job->request_len;
	return lock_dest(&x, e) ? -e->code : run_locked(&x, e);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "store/staging.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "source/writing.h"
#include "store/staging_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct staging {
	struct site place;
	int dir;  /* DEST.partial */
	int lock; /* held by the coordinator; -1 on other ranks */
	const char *const *over;
	bool ours;	 /* the lock file marks DEST.partial as ours */
	bool committed;	 /* DEST.partial now holds the old DEST */
	struct far *far; /* NULL: DEST is a directory of this machine */
	bool begun;	 /* not joined */
};

/* The contents of the lock file. They are written while no DEST.partial exists, before one is made,
 * so an empty lock file does not mark a DEST.partial as ours. */
#define MARK	 "A checkpoint is being saved here"
#define MAX_LATE 8 /* requests of killed saves that are waited for */
static const char note[] = MARK
	", or was when its process was killed. The next save to the same place removes this file, "
	"and the directories .partial and .partial.old beside it.\n";

const char *const staging_alone[] = { NULL };

int staging_check(const char *dest, const char *const *over, const struct staging_how *how,
		  struct ckpt_err *e)
{
	CLEANUP(site_close) struct site p = SITE_INIT;
	int rc;

	if (text_is_address(dest))
		return far_check(dest, over, how, e);
	rc = site_open(dest, &p, e);
	return rc ? rc : site_check(&p, over, e);
}

/* ---- the lock ---- */

static bool is_still_named(const struct site *p, int fd)
{
	struct stat a, b;

	return !fstat(fd, &a) && !fstatat(p->parent, p->lock, &b, AT_SYMLINK_NOFOLLOW) &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Lustre and some other file systems support flock only as a mount option; without it, creating the
 * file takes the lock. */
static int lock_file(const struct site *p, int fd, bool made, struct ckpt_err *e)
{
	int rc = io_lock(fd);

	if (rc == -EWOULDBLOCK)
		return err_set(e, EBUSY, "another save to '%s' is under way", p->path);
	if (rc < 0)
		return err_sys(e, -rc, "lock '%s.partial.lock'", p->path);
	if (!rc || made)
		return 0;
	return err_set(
		e, EBUSY,
		"'%s.partial.lock' exists, and its file system has no locks that tell whether a "
		"save is still running: remove it if none is",
		p->path);
}

static int take_lock(struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;
	const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

	for (;;) {
		autoclose int fd = openat(p->parent, p->lock, flags | O_CREAT | O_EXCL, 0666);
		bool made = fd >= 0;
		int rc;

		if (!made && errno == EEXIST) {
			fd = openat(p->parent, p->lock, flags);
			if (fd < 0 && errno == ENOENT)
				continue; /* its holder has just finished */
		}
		if (fd < 0)
			return err_sys(e, errno, "make '%s.partial.lock'", p->path);
		rc = lock_file(p, fd, made, e);
		if (rc)
			return rc;
		if (is_still_named(p, fd)) {
			s->lock = steal_fd(&fd);
			return 0;
		}
	}
}

static int not_ours(const struct site *p, const char *suffix, struct ckpt_err *e)
{
	return err_set(e, EEXIST, "'%s%s' is in the way: it was not made by a save of this program",
		       p->path, suffix);
}

/* Marks DEST.partial as ours, unless it belongs to somebody else. */
static int claim(struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;
	char mark[sizeof(MARK) - 1];
	int64_t n = io_pread_some(s->lock, mark, sizeof(mark), 0);
	int rc = 0;

	if (n < 0)
		return err_sys(e, (int)-n, "read '%s.partial.lock'", p->path);
	s->ours = n == sizeof(mark) && !memcmp(mark, MARK, sizeof(mark));
	if (n && !s->ours) {
		(void)close(steal_fd(&s->lock)); /* the file stays */
		return not_ours(p, ".partial.lock", e);
	}
	if (!s->ours) {
		if (site_has(p, p->partial))
			return not_ours(p, ".partial", e);
		if (site_has(p, p->old))
			return not_ours(p, ".partial.old", e);
		rc = io_write(s->lock, note, strlen(note));
	}
	/* If a crash left DEST.partial on disk without the mark, it would be taken for somebody
	 * else's. */
	if (!rc && (fsync(s->lock) || fsync(p->parent)))
		rc = -errno;
	if (rc)
		return err_sys(e, -rc, "write '%s.partial.lock'", p->path);
	s->ours = true;
	return 0;
}

static void give_lock(struct staging *s)
{
	const struct site *p = &s->place;

	if (s->lock < 0)
		return;
	if (!s->ours || (!site_has(p, p->partial) && !site_has(p, p->old)))
		(void)unlinkat(p->parent, p->lock, 0);
	(void)close(s->lock);
	s->lock = -1;
}

/* ---- begin ---- */

/*
 * Cleans up after a killed save. If it was killed between two renames, DEST is missing and the old
 * checkpoint is put back, even in place of an empty directory that somebody has made there since.
 * Otherwise the new checkpoint is in place and the old one is not needed.
 */
static int clean_up(const struct site *p, struct ckpt_err *e)
{
	int rc;

	if (renameat(p->parent, p->old, p->parent, p->name) && errno != ENOENT &&
	    errno != ENOTEMPTY && errno != EEXIST)
		return err_sys(e, errno, "put '%s.partial.old' back in its place", p->path);
	rc = site_remove(p, p->old, e);
	return rc ? rc : site_remove(p, p->partial, e);
}

static int open_partial(struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;

	s->dir = openat(p->parent, p->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return s->dir < 0 ? err_sys(e, errno, "open '%s.partial'", p->path) : 0;
}

static int begin(struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;
	int rc = site_check(p, s->over, e);

	if (!rc)
		rc = take_lock(s, e);
	if (!rc)
		rc = claim(s, e);
	if (!rc)
		rc = clean_up(p, e);
	if (!rc) /* check again: DEST may be back, or another save may have finished */
		rc = site_check(p, s->over, e);
	if (rc)
		return rc;
	/* An NFS server may carry out only now what a killed save has asked for. */
	for (int tries = 0; mkdirat(p->parent, p->partial, 0777); tries++) {
		if (errno != EEXIST || tries == MAX_LATE)
			return err_sys(e, errno, "make '%s.partial'", p->path);
		rc = site_remove(p, p->partial, e);
		if (rc)
			return rc;
	}
	return open_partial(s, e);
}

static struct staging *staging_new(void)
{
	struct staging *s = calloc(1, sizeof(*s));

	if (s) {
		s->place.parent = -1;
		s->dir = -1;
		s->lock = -1;
	}
	return s;
}

int staging_begin(const char *dest, const char *const *over, const struct staging_how *how,
		  struct staging **ret, struct ckpt_err *e)
{
	struct staging *s = staging_new();
	int rc;

	if (!s)
		return err_nomem(e);
	s->over = over;
	s->begun = true;
	if (text_is_address(dest)) {
		rc = far_begin(dest, over, how, &s->far, e);
	} else {
		rc = site_open(dest, &s->place, e);
		if (!rc)
			rc = begin(s, e);
	}
	if (rc)
		staging_end(s);
	else
		*ret = s;
	return rc;
}

int staging_join(const char *dest, struct staging **ret, struct ckpt_err *e)
{
	struct staging *s = staging_new();
	int rc;

	if (!s)
		return err_nomem(e);
	if (text_is_address(dest)) {
		rc = far_join(dest, &s->far, e);
	} else {
		rc = site_open(dest, &s->place, e);
		if (!rc)
			rc = open_partial(s, e);
	}
	if (rc)
		staging_end(s);
	else
		*ret = s;
	return rc;
}

/* ---- files ---- */

static bool is_element(const char *s, size_t n)
{
	return n && !memchr(s, '/', n) && !bytes_are(s, n, ".") && !bytes_are(s, n, "..");
}

static int check_name(const char *name, bool may_have_dir, struct ckpt_err *e)
{
	const char *slash = may_have_dir ? strchr(name, '/') : NULL;
	const char *last = slash ? slash + 1 : name;

	if (!is_element(last, strlen(last)) || (slash && !is_element(name, (size_t)(slash - name))))
		return err_set(e, EINVAL, "'%s' is not a valid name for a file of a checkpoint",
			       name);
	return 0;
}

/* The directory, if there is one, has been made by a save of ours. */
static int open_in(const struct staging *s, const char *name, int flags)
{
	const char *slash = strchr(name, '/');
	char dir[NAME_MAX + 1];
	autoclose int fd = -1;

	if (!slash)
		return openat(s->dir, name, flags, 0666);
	if (snprintf(dir, sizeof(dir), "%.*s", (int)(slash - name), name) > NAME_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = openat(s->dir, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -1 : openat(fd, slash + 1, flags, 0666);
}

int staging_dir(struct staging *s, const char *name, struct ckpt_err *e)
{
	int rc = check_name(name, false, e);

	if (!rc && !s->far && mkdirat(s->dir, name, 0777) && errno != EEXIST)
		rc = err_sys(e, errno, "make '%s'", name);
	return rc;
}

int staging_sync_dir(struct staging *s, const char *name, struct ckpt_err *e)
{
	autoclose int fd = -1;

	if (s->far)
		return 0;
	fd = openat(s->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? err_sys(e, errno, "sync '%s'", name) : 0;
}

static int create(struct staging *s, const char *name, bool last, struct staging_file *ret,
		  struct ckpt_err *e)
{
	if (s->far)
		return far_file(s->far, name, last, &ret->far, e);
	ret->fd = open_in(s, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
	return ret->fd < 0 ? err_sys(e, errno, "make '%s'", name) : 0;
}

int staging_open(struct staging *s, const char *name, struct staging_file *ret, struct ckpt_err *e)
{
	int rc = check_name(name, true, e);

	return rc ? rc : create(s, name, false, ret, e);
}

int staging_write(struct staging_file *f, const void *p, size_t n, struct ckpt_err *e)
{
	int rc;

	if (f->far)
		return writing_add(f->far, p, n, e);
	rc = io_write(f->fd, p, n);
	return rc ? err_set(e, -rc, "%s", strerror(-rc)) : 0;
}

void staging_hint(const struct staging_file *f, uint64_t off, uint64_t len)
{
	if (!f->far)
		(void)sync_file_range(f->fd, (off_t)off, (off_t)len, SYNC_FILE_RANGE_WRITE);
}

int staging_finish(struct staging_file *f, struct ckpt_err *e)
{
	if (f->far) {
		struct writing_file *far = f->far;

		f->far = NULL;
		return writing_finish(far, e);
	}
	return fsync(f->fd) || close(steal_fd(&f->fd)) ? err_set(e, errno, "%s", strerror(errno))
						       : 0;
}

void staging_drop(struct staging_file *f)
{
	writing_drop(f->far);
	if (f->fd >= 0)
		(void)close(f->fd);
	*f = (struct staging_file)STAGING_FILE_INIT;
}

int staging_blame(const struct staging *s, const char *name, struct ckpt_err *e)
{
	/* The end of a long path says most, and the reason must fit behind it. */
	size_t n = s->far ? 0 : strlen(s->place.path), skip = n > 120 ? n - 120 : 0;

	return s->far ? err_wrap(e, "write '%.100s'", name)
		      : err_wrap(e, "write '%s%s.partial/%.100s'", skip ? "..." : "",
				 s->place.path + skip, name);
}

int staging_put(struct staging *s, const char *name, const void *data, size_t len,
		struct ckpt_err *e)
{
	CLEANUP(staging_drop) struct staging_file f = STAGING_FILE_INIT;
	char tmp[NAME_MAX + 1];
	int rc = check_name(name, false, e);

	if (rc)
		return rc;
	if (snprintf(tmp, sizeof(tmp), ".%s.tmp", name) > NAME_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", name);
	rc = create(s, s->far ? name : tmp, true, &f, e);
	if (rc)
		return rc;
	rc = staging_write(&f, data, len, e);
	if (!rc)
		rc = staging_finish(&f, e);
	if (rc)
		return staging_blame(s, name, e);
	if (!s->far && renameat(s->dir, tmp, s->dir, name))
		return err_sys(e, errno, "rename '%s' to '%s'", tmp, name);
	return 0;
}

int staging_sync(struct staging *s, struct ckpt_err *e)
{
	return !s->far && fsync(s->dir) ? err_sys(e, errno, "sync '%s.partial'", s->place.path) : 0;
}

/* ---- commit ---- */

static int replace_by_two_renames(const struct site *p, struct ckpt_err *e)
{
	int code;

	if (renameat(p->parent, p->name, p->parent, p->old))
		return err_sys(e, errno, "rename '%s' to '%s.partial.old'", p->path, p->path);
	if (!renameat(p->parent, p->partial, p->parent, p->name))
		return 0;
	code = errno;
	if (renameat(p->parent, p->old, p->parent, p->name))
		return err_sys(e, code, "'%s' is now at '%s.partial.old': rename '%s.partial'",
			       p->path, p->path, p->path);
	return err_sys(e, code, "rename '%s.partial'", p->path);
}

/* For SFTP's unspecific error, which sshfs turns into EPERM. */
static bool is_there(const struct site *p)
{
	const int code = errno;
	struct stat st;
	bool there = !fstatat(p->parent, p->name, &st, AT_SYMLINK_NOFOLLOW);

	errno = code;
	return there;
}

/* A plain rename replaces only an empty directory or nothing: the two cases without risk. */
static int take_place(const struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;
	int rc;

	if (!renameat(p->parent, p->partial, p->parent, p->name))
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST && !(errno == EPERM && is_there(p)))
		return err_sys(e, errno, "rename '%s.partial'", p->path);
	rc = site_check(p, s->over, e);
	if (rc)
		return rc;
	if (!renameat2(p->parent, p->partial, p->parent, p->name, RENAME_EXCHANGE))
		return 0;
	if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
		return replace_by_two_renames(p, e);
	return err_sys(e, errno, "exchange '%s.partial' with '%s'", p->path, p->path);
}

int staging_commit(struct staging *s, struct ckpt_err *e)
{
	const struct site *p = &s->place;
	int rc = s->far ? far_commit(s->far, e) : staging_sync(s, e);

	if (s->far)
		return rc;
	if (!rc)
		rc = take_place(s, e);
	if (rc)
		return rc;
	s->committed = true;
	/* The old checkpoint is kept until the new one is durably in place. */
	if (fsync(p->parent))
		return err_sys(e, errno, "'%s' is saved; sync its directory", p->path);
	rc = site_remove(p, p->partial, e);
	if (!rc)
		rc = site_remove(p, p->old, e);
	if (!rc && fsync(p->parent))
		rc = err_sys(e, errno, "sync its directory");
	if (rc)
		return err_wrap(e, "'%s' is saved; what was there before", p->path);
	give_lock(s);
	return 0;
}

void staging_end(struct staging *s)
{
	struct ckpt_err ignored = { 0 };

	if (!s)
		return;
	far_end(s->far, s->begun);
	/* If something cannot be removed, its lock file is kept, and the next save tries again. */
	if (s->ours && !s->committed) {
		(void)site_remove(&s->place, s->place.partial, &ignored);
		(void)fsync(s->place.parent);
	}
	give_lock(s);
	if (s->dir >= 0)
		(void)close(s->dir);
	site_close(&s->place);
	free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "read/files.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_query.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <xxhash.h>

enum { SPARE_FDS = 64 }; /* for SQLite, /dev/fuse and the rest of the program */

struct file {
	uint64_t size, mtime_ns, inode; /* when files_new looked */
	int error;			/* errno of that look, or 0 */
	int fd;				/* -1 when closed */
	uint32_t pins;			/* readers using fd */
	uint32_t newer, older;		/* list of open descriptors, by index + 1; 0 ends it */
};

struct files {
	pthread_mutex_t lock; /* fd, pins and the list of every file; n_open */
	int dirfd;
	const struct catalog_source *sources;
	struct file *v;
	size_t n, n_open, max_open;
	uint32_t newest, oldest; /* index + 1 */
	struct counters *counts; /* enum files_count */
};

static void look(struct files *f, size_t i)
{
	struct file *x = &f->v[i];
	struct stat st;
	struct err e;
	int fd;

	x->fd = -1;
	/* A plain stat follows links out of the directory; opening is the check that counts. */
	if (fstatat(f->dirfd, f->sources[i].path, &st, AT_SYMLINK_NOFOLLOW)) {
		x->error = errno;
		return;
	}
	if (S_ISLNK(st.st_mode)) {
		fd = io_open_beneath(f->dirfd, f->sources[i].path, &st, &e);
		if (fd < 0) {
			x->error = -fd;
			return;
		}
		(void)close(fd);
	}
	if (!S_ISREG(st.st_mode)) {
		x->error = ERR_CORRUPT;
		return;
	}
	x->size = (uint64_t)st.st_size;
	x->mtime_ns = io_mtime_ns(&st);
	x->inode = st.st_ino;
}

/*
 * Have the kernel's table of descriptors grow now. Growing it later, when threads share it, waits
 * for an RCU grace period: ten milliseconds in the first read of a mount.
 */
static void reserve_fds(const struct files *f)
{
	int fd = fcntl(f->dirfd, F_DUPFD_CLOEXEC, (int)min_u64(f->n, f->max_open) + SPARE_FDS - 1);

	if (fd >= 0)
		(void)close(fd);
}

int files_new(int dirfd, const struct catalog_source *sources, size_t n, struct files **ret,
	      struct err *e)
{
	struct files *f = calloc(1, sizeof(*f));
	struct rlimit lim;

	if (f) {
		(void)pthread_mutex_init(&f->lock, NULL);
		f->v = calloc(n + 1, sizeof(*f->v));
		f->counts = counters_new(FILES_COUNTS);
	}
	if (!f || !f->v || !f->counts) {
		files_free(f);
		return err_set(e, ENOMEM, "out of memory");
	}
	f->dirfd = dirfd;
	f->sources = sources;
	f->n = n;
	/* A checkpoint may have a file per item: take the descriptors that we may have. */
	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &lim);
	}
	if (getrlimit(RLIMIT_NOFILE, &lim))
		lim.rlim_cur = 1024;
	/* Not all of them: who writes files needs some too. */
	f->max_open = lim.rlim_cur > 2 * SPARE_FDS
			      ? (size_t)(lim.rlim_cur - max_u64(SPARE_FDS, lim.rlim_cur / 4))
			      : SPARE_FDS;
	reserve_fds(f);
	for (size_t i = 0; i < n; i++)
		look(f, i);
	*ret = f;
	return 0;
}

void files_free(struct files *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].fd >= 0)
			(void)close(f->v[i].fd);
	(void)pthread_mutex_destroy(&f->lock);
	counters_free(f->counts);
	free(f->v);
	free(f);
}

bool files_fault(const struct files *f, uint32_t i, struct err *e)
{
	const struct file *x = &f->v[i];
	const struct catalog_source *s = &f->sources[i];

	if (x->error == ENOENT)
		(void)err_set(e, ENOENT, "data file '%s' is missing", s->path);
	else if (x->error == ERR_CORRUPT)
		(void)err_set(e, ERR_CORRUPT,
			      "data file '%s' is not a regular file of the checkpoint", s->path);
	else if (x->error)
		(void)err_sys(e, x->error, "data file '%s'", s->path);
	else if (x->size < s->min_size)
		(void)err_set(e, ERR_CORRUPT,
			      "data file '%s' has %llu bytes, items in it reach up to %llu",
			      s->path, (unsigned long long)x->size,
			      (unsigned long long)s->min_size);
	else
		return false;
	return true;
}

uint64_t files_size(const struct files *f, uint32_t i)
{
	return f->v[i].size;
}

uint64_t files_total(const struct files *f)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < f->n; i++)
		sum += f->v[i].size;
	return sum;
}

uint64_t files_newest_ns(const struct files *f)
{
	uint64_t newest = 0;

	for (size_t i = 0; i < f->n; i++)
		newest = max_u64(newest, f->v[i].mtime_ns);
	return newest;
}

uint64_t files_hash(const struct files *f)
{
	uint64_t h = 0;

	for (size_t i = 0; i < f->n; i++) {
		const uint64_t seen[] = { h, f->v[i].size, f->v[i].mtime_ns };

		h = XXH3_64bits(seen, sizeof(seen));
	}
	return h;
}

/* ---- open descriptors; all of this under the lock ---- */

static void list_remove(struct files *f, uint32_t i)
{
	struct file *x = &f->v[i];

	*(x->newer ? &f->v[x->newer - 1].older : &f->newest) = x->older;
	*(x->older ? &f->v[x->older - 1].newer : &f->oldest) = x->newer;
	x->newer = x->older = 0;
}

static void list_push(struct files *f, uint32_t i)
{
	struct file *x = &f->v[i];

	x->older = f->newest;
	x->newer = 0;
	*(f->newest ? &f->v[f->newest - 1].newer : &f->oldest) = i + 1;
	f->newest = i + 1;
}

/* A descriptor that may be closed because there are more than max, or -1. */
static int take_surplus(struct files *f, size_t max)
{
	if (f->n_open <= max)
		return -1;
	for (uint32_t i = f->oldest; i; i = f->v[i - 1].newer) {
		struct file *x = &f->v[i - 1];

		if (!x->pins) {
			list_remove(f, i - 1);
			f->n_open--;
			return steal_fd(&x->fd);
		}
	}
	return -1;
}

static int pin(struct files *f, uint32_t i, int *ret, struct err *e)
{
	struct file *x = &f->v[i];
	autoclose int fd = -1, surplus = -1;
	struct stat st;

	{
		SCOPED_LOCK(&f->lock);
		if (x->fd >= 0) {
			list_remove(f, i); /* used last now */
			list_push(f, i);
			x->pins++;
			*ret = x->fd;
			return 0;
		}
	}
	if (files_fault(f, i, e))
		return -e->code;
	fd = io_open_beneath(f->dirfd, f->sources[i].path, &st, e);
	if (fd < 0)
		return fd;
	SCOPED_LOCK(&f->lock);
	if (x->fd < 0) { /* else another thread was quicker */
		x->fd = steal_fd(&fd);
		list_push(f, i);
		f->n_open++;
		x->pins++; /* before looking for surplus: not this one */
		surplus = take_surplus(f, f->max_open);
	} else {
		x->pins++;
	}
	*ret = x->fd;
	return 0;
}

static void unpin(struct files *f, uint32_t i)
{
	SCOPED_LOCK(&f->lock);

	f->v[i].pins--;
}

void files_trim(struct files *f, size_t keep)
{
	for (int fd = 0; fd >= 0;) {
		{
			SCOPED_LOCK(&f->lock);
			fd = take_surplus(f, keep);
		}
		if (fd >= 0)
			(void)close(fd);
	}
}

int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off, struct err *e)
{
	const struct file *x = &f->v[i];
	const char *path = f->sources[i].path;
	struct stat st;
	int fd = -1, rc = pin(f, i, &fd, e);

	counters_add(f->counts, FILES_READS, 1);
	if (rc) {
		counters_add(f->counts, FILES_FAULTS, 1);
		return rc;
	}
	rc = io_pread(fd, buf, len, off);
	if (rc)
		(void)err_sys(e, rc == -ENODATA ? EIO : -rc, "read '%s', %zu bytes at %llu", path,
			      len, (unsigned long long)off);
	/* After the read, so that bytes of an overwrite that began before cannot slip through. */
	if (!rc && (fstat(fd, &st) || (uint64_t)st.st_size != x->size ||
		    io_mtime_ns(&st) != x->mtime_ns || st.st_ino != x->inode))
		rc = err_set(e, EIO, "'%s' was changed after the checkpoint was opened", path);
	unpin(f, i);
	counters_add(f->counts, rc ? FILES_FAULTS : FILES_BYTES, rc ? 1 : len);
	return rc ? -e->code : 0;
}

void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS])
{
	uint64_t now[FILES_COUNTS];

	counters_read(f->counts, now);
	for (size_t i = 0; i < FILES_COUNTS; i++)
		ret[i] += now[i];
}

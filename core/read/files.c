/* SPDX-License-Identifier: Apache-2.0 */
#include "read/files.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/io.h"
#include "catalog/catalog_query.h"
#include "read/guard.h"
#include "read/lease.h"
#include "read/pagemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <xxhash.h>

enum {
	BRING_SIZE = 1 << 20,
	SPARE_FDS = 64, /* for SQLite, /dev/fuse and the rest of the program */
	MAX_TRIES =
		64, /* to open a file while other threads take the descriptors that become free */
};

/* In a file's users, beside their number: it is open. Only then are there any. */
#define IS_OPEN ((uint32_t)1 << 31)

struct file {
	uint64_t size, mtime_ns, mark; /* when files_new looked; see mark_of */
	int error;		       /* errno of that look, or 0 */
	_Atomic uint32_t users;	       /* who use fd and map */
	atomic_bool used;	       /* since somebody looked for one to close */
	int fd;			       /* while it is open */
	_Atomic(struct pagemap *) map; /* NULL: none yet */
	atomic_bool no_map;	       /* it was tried */
	atomic_bool no_bring;	       /* it was tried, and the bytes did not stay */
	struct lease lease;
	uint32_t newer, older; /* list of open files, by index + 1; 0 ends it */
};

struct files {
	pthread_mutex_t lock;  /* opening, closing, mapping; the list of open files, n_open */
	struct pagepool *pool; /* NULL: nothing is mapped */
	struct leases *leases;
	int dirfd;
	bool keeps_inodes;
	const struct catalog_source *sources;
	struct file *v;
	size_t n, n_open, max_open;
	uint32_t newest, oldest; /* index + 1 */
	atomic_bool changed;
	struct counters *counts; /* enum files_count */
};

/* What tells a file from another one of that size and time. */
static uint64_t mark_of(const struct files *f, const struct stat *st)
{
	return f->keeps_inodes ? st->st_ino : io_ctime_ns(st);
}

static void look(struct files *f, size_t i)
{
	struct file *x = &f->v[i];
	struct stat st;
	struct ckpt_err e;
	int fd;

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
	x->mark = mark_of(f, &st);
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
	      struct ckpt_err *e)
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
	f->keeps_inodes = io_keeps_inodes(dirfd);
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
			      : SPARE_FDS; /* and less where there are not so many: see open_file */
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
		if (f->v[i].users & IS_OPEN) {
			if (f->leases)
				lease_drop(f->leases, &f->v[i].lease);
			pagemap_free(f->v[i].map);
			(void)close(f->v[i].fd);
		}
	leases_free(f->leases);
	pagepool_free(f->pool);
	(void)pthread_mutex_destroy(&f->lock);
	counters_free(f->counts);
	free(f->v);
	free(f);
}

bool files_fault(const struct files *f, uint32_t i, struct ckpt_err *e)
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

const char *files_path(const struct files *f, uint32_t i)
{
	return f->sources[i].path;
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

/* ---- open files; all of this under the lock ---- */

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

/* What is left of a file that is not open any more. */
struct surplus {
	int fd; /* -1: nothing */
	struct pagemap *map;
};

/* Close a file because there are more than max: the longest unused of those that nobody uses. */
static struct surplus take_surplus(struct files *f, size_t max)
{
	size_t left = 2 * f->n_open; /* who was used is asked again */

	while (f->n_open > max && left--) {
		uint32_t i = f->oldest - 1, unused = IS_OPEN;
		struct file *x = &f->v[i];

		list_remove(f, i);
		if (!atomic_exchange(&x->used, false) &&
		    atomic_compare_exchange_strong(&x->users, &unused, 0)) {
			f->n_open--;
			if (f->leases)
				lease_drop(f->leases, &x->lease);
			return (struct surplus){ x->fd, atomic_exchange(&x->map, NULL) };
		}
		list_push(f, i);
	}
	return (struct surplus){ -1, NULL };
}

/* ---- using a file ---- */

static void surplus_close(const struct surplus *s)
{
	pagemap_free(s->map);
	if (s->fd >= 0)
		(void)close(s->fd);
}

static bool pin_open(struct file *x)
{
	uint32_t users = x->users;

	while (users & IS_OPEN)
		if (atomic_compare_exchange_weak(&x->users, &users, users + 1)) {
			if (!x->used)
				x->used = true;
			return true;
		}
	return false;
}

static void unpin(struct files *f, uint32_t i)
{
	(void)atomic_fetch_sub(&f->v[i].users, 1);
}

/* Where descriptors have run out, in place of a file that nobody uses. */
static int open_file(struct files *f, uint32_t i, struct ckpt_err *e)
{
	struct stat st;

	for (int tries = 0;; tries++) {
		struct surplus s = { -1, NULL };
		struct ckpt_err why;
		int fd = io_open_beneath(f->dirfd, f->sources[i].path, &st, &why);

		if ((fd == -EMFILE || fd == -ENFILE) && tries < MAX_TRIES) {
			SCOPED_LOCK(&f->lock);
			s = take_surplus(f, max_u64(f->n_open, 1) - 1);
		}
		if (s.fd < 0) {
			if (fd < 0)
				*e = why;
			return fd;
		}
		surplus_close(&s);
	}
}

static int pin(struct files *f, uint32_t i, struct ckpt_err *e)
{
	struct surplus surplus CLEANUP(surplus_close) = { -1, NULL };
	struct file *x = &f->v[i];
	autoclose int fd = -1;

	if (pin_open(x))
		return 0;
	if (files_fault(f, i, e))
		return -e->code;
	fd = open_file(f, i, e);
	if (fd < 0)
		return fd;
	SCOPED_LOCK(&f->lock);
	if (pin_open(x)) /* another thread was quicker */
		return 0;
	x->fd = steal_fd(&fd);
	x->no_map = false;
	x->users = IS_OPEN | 1; /* before looking for surplus: not this one */
	list_push(f, i);
	f->n_open++;
	surplus = take_surplus(f, f->max_open);
	return 0;
}

void files_trim(struct files *f, size_t keep)
{
	struct surplus s;

	do {
		{
			SCOPED_LOCK(&f->lock);
			s = take_surplus(f, keep);
		}
		surplus_close(&s);
	} while (s.fd >= 0);
}

static bool looks_same(const struct file *x, const struct stat *st)
{
	return (uint64_t)st->st_size == x->size && io_mtime_ns(st) == x->mtime_ns;
}

static int check(struct files *f, uint32_t i, int fd, struct ckpt_err *e)
{
	const struct file *x = &f->v[i];
	struct stat st;

	if (!fstat(fd, &st) && mark_of(f, &st) == x->mark && looks_same(x, &st))
		return 0;
	f->changed = true;
	return err_set(e, EIO, "'%s' was changed after the checkpoint was opened",
		       f->sources[i].path);
}

bool files_changed(const struct files *f)
{
	return f->changed;
}

int files_check(struct files *f, uint32_t i, struct ckpt_err *e)
{
	return check(f, i, f->v[i].fd, e);
}

int files_open(struct files *f, uint32_t i, struct ckpt_err *e)
{
	struct stat st;
	autoclose int fd = io_open_beneath(f->dirfd, f->sources[i].path, &st, e);

	if (fd < 0)
		return fd;
	return check(f, i, fd, e) ? -e->code : steal_fd(&fd);
}

bool files_written(const struct files *f, uint32_t i)
{
	struct stat st;

	return !fstatat(f->dirfd, f->sources[i].path, &st, 0) &&
	       (!f->keeps_inodes || st.st_ino == f->v[i].mark) && !looks_same(&f->v[i], &st);
}

int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	int rc = pin(f, i, e);

	counters_add(f->counts, FILES_READS, 1);
	if (rc) {
		counters_add(f->counts, FILES_FAULTS, 1);
		return rc;
	}
	rc = io_pread(f->v[i].fd, buf, len, off);
	if (rc)
		(void)err_sys(e, rc == -ENODATA ? EIO : -rc, "read '%s', %zu bytes at %llu",
			      f->sources[i].path, len, (unsigned long long)off);
	else
		rc = files_check(f, i, e); /* see files.h: afterwards */
	unpin(f, i);
	counters_add(f->counts, rc ? FILES_FAULTS : FILES_BYTES, rc ? 1 : len);
	return rc ? -e->code : 0;
}

/* ---- mapped files ---- */

int files_allow_maps(struct files *f, uint64_t max_bytes, struct ckpt_err *e)
{
	f->pool = pagepool_new(max_bytes);
	f->leases = leases_new();
	if (!f->pool || !f->leases)
		return err_set(e, ENOMEM, "out of memory");
	guard_install();
	return 0;
}

/* The map of a file in use, or NULL. */
static struct pagemap *map_of(struct files *f, struct file *x)
{
	struct pagemap *m = x->map;

	if (m || x->no_map)
		return m;
	SCOPED_LOCK(&f->lock);
	if (!x->map) {
		x->map = pagemap_new(f->pool, x->fd, x->size);
		x->no_map = !x->map;
	}
	return x->map;
}

static const uint8_t *map_part(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	const uint8_t *p = NULL;
	struct pagemap *m;
	struct ckpt_err e;

	if (!f->pool || pin(f, i, &e))
		return NULL;
	m = map_of(f, &f->v[i]);
	if (m)
		p = pagemap_get(m, off, len);
	if (!p)
		unpin(f, i);
	return p;
}

const uint8_t *files_map(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	const uint8_t *p = map_part(f, i, off, len);

	if (p)
		counters_add(f->counts, FILES_MAPPED, len);
	return p;
}

const uint8_t *files_bring(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	struct file *x = &f->v[i];
	autofree uint8_t *buf = NULL;
	struct ckpt_err e;
	const uint8_t *p;

	if (!f->pool || x->no_map || x->no_bring)
		return NULL;
	buf = malloc(BRING_SIZE);
	for (uint64_t at = 0, n; at < len; at += n) {
		n = min_u64(len - at, BRING_SIZE);
		if (!buf || files_read(f, i, buf, (size_t)n, off + at, &e))
			return NULL;
	}
	p = files_map(f, i, off, len);
	x->no_bring = !p;
	return p;
}

void files_unmap(struct files *f, uint32_t i)
{
	unpin(f, i);
}

const uint8_t *files_lend(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	struct file *x = &f->v[i];
	const uint8_t *p;

	if (x->lease.tried && !x->lease.held)
		return NULL;
	p = map_part(f, i, off, len);
	if (!p)
		return NULL;
	if (!x->lease.tried)
		lease_take(f->leases, &x->lease, x->fd);
	if (lease_begin(&x->lease)) {
		counters_add(f->counts, FILES_MAPPED, len);
		return p;
	}
	unpin(f, i);
	return NULL;
}

void files_unlend(struct files *f, uint32_t i)
{
	lease_end(&f->v[i].lease);
	unpin(f, i);
}

void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS])
{
	uint64_t now[FILES_COUNTS];

	counters_read(f->counts, now);
	for (size_t i = 0; i < FILES_COUNTS; i++)
		ret[i] += now[i];
}

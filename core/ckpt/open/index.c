/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/open/index.h"

#include "base/cache_dir.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum {
	LOCK_SECONDS = 20, /* that another process may take to build the index */
	LOCK_PAUSE_MS = 50,
};

static const char beside_name[] = ".ckptfs-index.sqlite";

/* ---- whose it is ---- */

/*
 * Whoever runs a store chooses what tells one version of an object from another. So an index that
 * was made of one store must not be taken for one of another, though the address is the same or has
 * the same hash: it has an entry among its metadata files, of a name that no file has.
 */
static int whose(const struct index_request *rq, char **ret, struct ckpt_err *e)
{
	const char *origin = place_origin(rq->place);

	*ret = NULL;
	if (!origin)
		return 0;
	*ret = text_format("//%s%s%s", rq->root, *origin ? "\n" : "", origin);
	return *ret ? 0 : err_nomem(e);
}

static bool is_whose(const struct catalog_metadata *m)
{
	return m->name[0] == '/' && m->name[1] == '/';
}

/* ---- validity ---- */

/* lately: it was made within this opening. */
static bool same_metadata(const struct index_request *rq, const struct catalog_metadata *m,
			  bool lately)
{
	struct place_seen seen;
	struct digest hash;
	struct ckpt_err ignored;
	char hex[DIGEST_HEX], id[PLACE_ID_HEX];
	int found = place_look(rq->place, m->name, &seen, &ignored);

	if (m->size == CATALOG_MISSING)
		return !found;
	if (found <= 0 || seen.size != m->size)
		return false;
	place_id_hex(&seen.id, id);
	if ((m->settled || lately) && !strcmp(id, m->id))
		return true;
	/* The file was copied or touched, or may have changed unseen, so compare its contents. */
	if (!*m->hash || small_file_hash(rq->place, m->name, &hash, &seen, &ignored))
		return false;
	digest_hex(&hash, hex);
	return !strcmp(hex, m->hash);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool matches(const struct index_request *rq, const struct catalog *c, bool lately)
{
	size_t n;
	const struct catalog_metadata *m = catalog_metadata(c, &n);
	size_t n_names = rq->files->n, named = 0;
	autofree const char **names = n_names ? reallocarray(NULL, n_names, sizeof(*names)) : NULL;
	autofree char *mine = NULL;
	struct ckpt_err ignored;
	bool is_mine;

	if ((n_names && !names) || whose(rq, &mine, &ignored))
		return false;
	is_mine = !mine;
	for (size_t i = 0; i < n_names; i++)
		names[i] = rq->files->v[i];
	if (n_names)
		qsort(names, n_names, sizeof(*names), by_name); /* the order in the index */
	/* It may depend on other files, too. */
	for (size_t i = 0; i < n; i++) {
		if (is_whose(&m[i])) {
			if (!mine || strcmp(m[i].name, mine) != 0)
				return false;
			is_mine = true;
			continue;
		}
		if (!same_metadata(rq, &m[i], lately))
			return false;
		named += named < n_names && !strcmp(m[i].name, names[named]);
	}
	return is_mine && named == n_names;
}

bool index_still_matches(const struct index_request *rq, const struct catalog *c)
{
	return matches(rq, c, true);
}

/* Must be a regular file: an untrusted checkpoint may contain a FIFO or a device with that name. */
static bool is_there(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && S_ISREG(st.st_mode);
}

/* The index at path if it exists, is intact and up to date; else NULL. */
static struct catalog *try_open(const struct index_request *rq, const char *path)
{
	struct catalog *c = NULL;
	struct ckpt_err why;

	if (!is_there(path))
		return NULL;
	if (catalog_open(path, &c, &why)) {
		log_msg(LOG_LEVEL_DEBUG, "'%s' is rebuilt: %s", path, why.msg);
		return NULL;
	}
	if (matches(rq, c, false))
		return c;
	catalog_close(c);
	return NULL;
}

/* ---- building ---- */

/* *ret_unwritable: it failed only because of the file at path. */
static int build(const struct index_request *rq, const char *path, struct catalog **ret,
		 bool *ret_unwritable, struct ckpt_err *e)
{
	struct catalog_writer *w = NULL;
	autofree char *mine = NULL;
	int rc = whose(rq, &mine, e);

	*ret_unwritable = false;
	if (!rc) {
		rc = catalog_writer_new(path, rq->format->name, rq->root, &w, e);
		*ret_unwritable = rc && path && rc != -ENOMEM;
	}
	if (!rc && mine)
		rc = catalog_add_metadata(w, mine, NULL, NULL, e);
	if (!rc)
		rc = rq->format->scan(rq->place, rq->files, &rq->scan, w, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	if (rc && w)
		*ret_unwritable = catalog_writer_unwritable(w);
	catalog_writer_free(w);
	return rc;
}

/* io_lock, but the holder may have been stopped, or wait for storage that does not answer. */
static int lock_soon(int fd, uint64_t until_ns)
{
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_MS * 1000 * 1000L };
	int rc;

	while ((rc = io_lock(fd)) == -EWOULDBLOCK && clock_ns() < until_ns)
		(void)nanosleep(&pause, NULL);
	return rc;
}

/*
 * Locks `path`: returns a descriptor for unlock(), or -errno. A lock is an empty file; -EEXIST:
 * this file is something else. -EWOULDBLOCK: another process has it, and keeps it. The lock file is
 * removed with the lock, so check after locking that the name still refers to it.
 */
static int lock(const char *path)
{
	const uint64_t until = clock_ns() + LOCK_SECONDS * CLOCK_SECOND;

	for (;;) {
		autoclose int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		struct stat ours, named;
		int rc;

		if (fd < 0)
			return -errno;
		if (fstat(fd, &ours))
			return -errno;
		if (!S_ISREG(ours.st_mode) || ours.st_size)
			return -EEXIST;
		rc = lock_soon(fd, until);
		if (rc < 0)
			return rc;
		if (rc) { /* nobody can hold it, so it is in nobody's way */
			(void)unlink(path);
			return -ENOLCK;
		}
		if (!stat(path, &named) && named.st_ino == ours.st_ino &&
		    named.st_dev == ours.st_dev)
			return steal_fd(&fd);
	}
}

static void unlock(const char *path, int fd)
{
	(void)unlink(path);
	(void)close(fd);
}

static int build_locked(const struct index_request *rq, const char *path, struct catalog **ret,
			bool *ret_built, bool *ret_unwritable, struct ckpt_err *e)
{
	autofree char *lock_path = NULL;
	int fd, rc = 0;

	*ret_unwritable = false;
	lock_path = text_format("%s.lock", path);
	if (!lock_path)
		return err_nomem(e);
	fd = lock(lock_path);
	*ret_unwritable =
		fd < 0; /* -EEXIST: a checkpoint may bring a file with the name of the lock */
	if (fd == -EEXIST)
		return err_set(e, EEXIST,
			       "'%s' is there, and is not the lock of a chunk index: name another "
			       "file for the index, or remove it",
			       lock_path);
	if (fd == -EWOULDBLOCK)
		return err_set(e, EBUSY,
			       "another process has been building the chunk index '%s' for %d "
			       "seconds: wait until it has ended, or stop it",
			       path, LOCK_SECONDS);
	if (fd < 0)
		return err_sys(e, -fd, "write the chunk index '%s'", path);
	/* another process may have built it meanwhile */
	*ret = rq->rebuild ? NULL : try_open(rq, path);
	if (!*ret) {
		/* a user's name may be that of something else */
		rc = rq->where ? catalog_check_replaceable(path, e) : 0;
		if (!rc)
			rc = build(rq, path, ret, ret_unwritable, e);
		*ret_built = !rc;
	}
	unlock(lock_path, fd);
	return rc;
}

/* ---- location ---- */

/* A daemon changes its working directory, so the path must be absolute. */
static char *absolute(const char *path)
{
	autofree char *cwd = *path == '/' ? NULL : getcwd(NULL, 0);

	if (*path == '/')
		return strdup(path);
	return cwd ? text_format("%s/%s", cwd, path) : NULL;
}

char *index_cache_dir(void)
{
	struct ckpt_err ignored;

	return cache_dir("index", &ignored);
}

/* DIR/NAME-HASH.sqlite in the cache of indexes, or NULL. */
static char *cache_path(const char *root, struct ckpt_err *why)
{
	const char *name = strrchr(root, '/');
	autofree char *dir = cache_dir("index", why);
	char *path;

	if (!dir)
		return NULL;
	name = name && name[1] ? name + 1 : "root";
	path = text_format("%s/%.80s-%016llx.sqlite", dir, name,
			   (unsigned long long)XXH3_64bits(root, strlen(root)));
	if (!path)
		(void)err_nomem(why);
	return path;
}

static int finish(char *path, char **ret_path, struct ckpt_err *e)
{
	*ret_path = path ? path : strdup(":memory:");
	return *ret_path ? 0 : err_nomem(e);
}

/*
 * Can no other user create files in the checkpoint's directory? Another user could place a link
 * where the index is going to be written, or hold its lock forever.
 */
static bool is_ours(const struct index_request *rq)
{
	struct stat st;

	return !fstat(place_fd(rq->place), &st) && st.st_uid == geteuid() &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH));
}

bool index_is_beside(const char *root, const char *path)
{
	size_t n = strlen(root);

	return !strncmp(path, root, n) && path[n] == '/' && !strcmp(path + n + 1, beside_name);
}

bool index_may_grow(const struct index_request *rq, const char *path)
{
	return strcmp(path, ":memory:") != 0 &&
	       (rq->where || !index_is_beside(rq->root, path) || is_ours(rq));
}

/* The last reason counts. */
static void tell(const struct index_request *rq, const char *why)
{
	if (!rq->why)
		return;
	free(*rq->why);
	*rq->why = strdup(why);
}

/* Opens or builds the index at path; 1: it cannot be written there, or may_write is false. */
static int at_default(const struct index_request *rq, const char *path, bool may_write,
		      struct catalog **ret, bool *ret_built, struct ckpt_err *e)
{
	bool unwritable;
	int rc;

	*ret = rq->rebuild ? NULL : try_open(rq, path);
	if (*ret)
		return 0;
	if (!may_write || rq->needed)
		return 1;
	rc = build_locked(rq, path, ret, ret_built, &unwritable, e);
	if (rc && unwritable) {
		tell(rq, e->msg);
		return 1;
	}
	return rc;
}

static int not_built(const struct index_request *rq, struct ckpt_err *e)
{
	return err_set(e, ENODATA, "'%s' has no current chunk index", rq->root);
}

int index_open(const struct index_request *rq, struct catalog **ret, char **ret_path,
	       bool *ret_built, struct ckpt_err *e)
{
	autofree char *path = NULL;
	struct ckpt_err why;
	bool unwritable;
	int rc = 1;

	*ret_built = false;
	if (rq->where && strcmp(rq->where, ":memory:") != 0) {
		path = absolute(rq->where);
		if (!path)
			return err_sys(e, errno, "index '%s'", rq->where);
		*ret = rq->rebuild ? NULL : try_open(rq, path);
		rc = *ret	  ? 0
		     : rq->needed ? not_built(rq, e)
				  : build_locked(rq, path, ret, ret_built, &unwritable, e);
		return rc ? rc : finish(steal_ptr(&path), ret_path, e);
	}
	/* beside the checkpoint, if that is on this machine */
	if (!rq->where && !rq->is_file && place_fd(rq->place) >= 0)
		path = text_format("%s/%s", rq->root, beside_name);
	if (path && is_there(path))
		rc = at_default(rq, path, is_ours(rq), ret, ret_built, e);
	if (rc == 1 && !rq->where) {
		free(path);
		path = cache_path(rq->root, &why);
		if (!path)
			tell(rq, why.msg);
		else
			rc = at_default(rq, path, true, ret, ret_built, e);
	}
	if (rc == 1 && rq->needed)
		return not_built(rq, e);
	if (rc == 1) {
		free(steal_ptr(&path));
		rc = build(rq, NULL, ret, &unwritable, e);
		*ret_built = !rc;
	}
	return rc ? rc : finish(steal_ptr(&path), ret_path, e);
}

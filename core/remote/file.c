/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of this machine, on storage that is slower than the disk with the cache: NFS, sshfs.
 *
 * Nothing is opened by its path: the directory is the other side's descriptor, which it could only
 * open for reading if it may read it, and files are opened beneath it. A file is opened anew for
 * each get, which is when NFS asks the server whether it has changed, and examined after each read,
 * so that no byte of another version is taken for one of the version that was opened.
 */
#include "remote/store_internal.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/list.h"
#include "base/text.h"
#include "source/source.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	THREADS = 16,	     /* reads at a time: each waits for the storage */
	STEP = 1 << 20,	     /* bytes that are read before they are passed on */
	NAMES_MAX = 4 << 20, /* of one directory */
};

struct wanted {
	LIST_LINK(struct wanted) link;
	char *path;
	struct place_seen seen;
	uint64_t off, len;
	struct get_sink sink;
};

struct file_store {
	struct store base;
	struct place *place;
	pthread_mutex_t lock;
	pthread_cond_t change;
	LIST(struct wanted) waiting[2]; /* not urgent, urgent; the oldest is the last */
	unsigned n_waiting, idle, n_threads;
	pthread_t threads[THREADS];
	bool stop;
};

static struct file_store *files_of(struct store *s)
{
	return (struct file_store *)s;
}

/* ---- looking ---- */

static int file_look(struct store *base, const char *path, struct place_seen *ret,
		     struct ckpt_err *e)
{
	struct file_store *f = files_of(base);
	int rc = place_look(f->place, path, ret, e);

	if (rc > 0 && ret->kind == PLACE_DIR)
		*ret = (struct place_seen){ .kind = PLACE_DIR };
	return rc > 0 ? ret->kind == PLACE_DIR || ret->kind == PLACE_FILE : rc;
}

struct lister {
	struct store *store;
	const char *dir;
	store_entry_fn *each;
	void *arg;
	size_t names;
};

/* Is it a link whose target cannot be examined, for a reason other than a lack of memory? */
static bool is_bad_link(const struct file_store *f, const char *path, enum place_kind kind, int rc)
{
	struct ckpt_err ignored;
	struct place_seen seen;

	if (rc >= 0 || rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE)
		return false;
	return kind == PLACE_LINK ||
	       (kind == PLACE_UNKNOWN && place_look_at(f->place, path, &seen, &ignored) > 0 &&
		seen.kind == PLACE_LINK);
}

static int add_name(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct lister *l = arg;
	autofree char *path = NULL;
	struct ckpt_err why = { 0 };
	struct place_seen seen;
	int rc;

	if (!store_shows(name, strlen(name)))
		return 0;
	if (++l->names > NAMES_MAX)
		return err_set(e, EFBIG, "more than %d names are not supported", NAMES_MAX);
	path = text_format("%s/%s", l->dir, name);
	if (!path)
		return err_nomem(e);
	rc = file_look(l->store, path, &seen, &why);
	if (rc == -ELOOP) /* a link that leads nowhere */
		return 0;
	/* Its target cannot be examined. Opening it will say why; the other entries are listed. */
	if (is_bad_link(files_of(l->store), path, kind, rc)) {
		seen = (struct place_seen){ .kind = PLACE_OTHER };
		rc = 1;
	}
	if (rc < 0)
		*e = why;
	return rc > 0 ? l->each(l->arg, name, &seen, e) : rc;
}

static int file_list(struct store *base, const char *dir, store_entry_fn *each, void *arg,
		     struct ckpt_err *e)
{
	struct file_store *f = files_of(base);
	struct lister l = { base, dir, each, arg, 0 };
	struct ckpt_err why = { 0 };
	int rc = place_list(f->place, dir, add_name, &l, &why);

	if (rc == -ENOENT || rc == -ENOTDIR) /* as in other stores: no name begins with this */
		return 0;
	if (rc)
		*e = why;
	return rc;
}

/* ---- bytes ---- */

static int read_step(const struct place *p, struct source *s, const struct wanted *g, uint64_t at,
		     void *buf, size_t *ret_n, struct ckpt_err *e)
{
	int64_t n = source_read(s, buf, min_u64(g->len - at, STEP), g->off + at, e);
	struct place_seen now;
	int rc = n < 0 ? (int)n : 0;

	if (!rc && source_look(s, &now))
		rc = err_set(e, EIO, "cannot be examined");
	else if (!rc && place_compare(p, &g->seen.id, &now.id) > PLACE_RENAMED)
		rc = err_set(e, ESTALE, "was changed after it was opened");
	else if (!rc && !n)
		rc = err_set(e, EIO, "ends before byte %llu",
			     (unsigned long long)(g->off + g->len));
	*ret_n = (size_t)n;
	return rc;
}

static int read_all(struct file_store *f, const struct wanted *g, struct ckpt_err *e)
{
	struct source *s CLEANUP(source_freep) = NULL;
	autofree char *buf = malloc(STEP);
	int rc = buf ? place_file(f->place, g->path, &s, e) : err_nomem(e);

	if (rc == -ENOENT)
		rc = err_set(e, ESTALE, "was removed after it was opened");
	for (uint64_t at = 0; !rc && at < g->len;) {
		size_t n;

		rc = read_step(f->place, s, g, at, buf, &n, e);
		if (!rc && g->sink.bytes(g->sink.arg, buf, n))
			rc = err_set(e, ECANCELED, "is not wanted any more");
		at += n;
		if (!rc)
			net_note_read(f->base.net, n);
	}
	return rc;
}

static void finish(struct file_store *f, struct wanted *g, int rc, struct ckpt_err *e)
{
	autofree char *name = rc ? store_name(&f->base, g->path) : NULL;

	if (rc)
		(void)err_wrap(e, "'%s'", name ? name : g->path);
	g->sink.done(g->sink.arg, rc, rc ? e : NULL);
	free(g->path);
	free(g);
}

/* The next to be read; NULL: the thread is to end. */
static struct wanted *next(struct file_store *f)
{
	SCOPED_LOCK(&f->lock);
	struct wanted *g = NULL;

	f->idle++;
	while (!f->stop && !f->waiting[0].last && !f->waiting[1].last)
		(void)pthread_cond_wait(&f->change, &f->lock);
	f->idle--;
	for (int urgent = 1; urgent >= 0 && !g; urgent--) {
		g = f->waiting[urgent].last;
		if (g) {
			LIST_REMOVE(&f->waiting[urgent], g);
			f->n_waiting--;
		}
	}
	return g;
}

static void *reader(void *arg)
{
	struct file_store *f = arg;
	struct wanted *g;

	while ((g = next(f))) {
		struct ckpt_err e = { 0 };
		int rc = read_all(f, g, &e);

		finish(f, g, rc, &e);
	}
	return NULL;
}

static int file_get(struct store *base, const char *path, const struct place_seen *seen,
		    uint64_t off, uint64_t len, bool urgent, const struct get_sink *sink,
		    struct ckpt_err *e)
{
	struct file_store *f = files_of(base);
	struct wanted *g = calloc(1, sizeof(*g));
	int rc = 0;

	if (!g || !(g->path = strdup(path))) {
		free(g);
		return err_nomem(e);
	}
	g->seen = *seen;
	g->off = off;
	g->len = len;
	g->sink = *sink;
	{
		SCOPED_LOCK(&f->lock);
		if (f->n_waiting >= f->idle && f->n_threads < THREADS) {
			rc = pthread_create(&f->threads[f->n_threads], NULL, reader, f);
			f->n_threads += !rc;
		}
		if (f->n_threads) {
			LIST_PUSH(&f->waiting[urgent], g);
			f->n_waiting++;
			(void)pthread_cond_signal(&f->change);
			return 0;
		}
	}
	free(g->path);
	free(g);
	return err_sys(e, rc, "start a thread that reads");
}

/* ---- opening ---- */

static int file_dir(const struct store *base)
{
	return place_fd(((const struct file_store *)base)->place);
}

static void file_free(struct store *base)
{
	struct file_store *f = files_of(base);

	{
		SCOPED_LOCK(&f->lock);
		f->stop = true;
		(void)pthread_cond_broadcast(&f->change);
	}
	for (unsigned i = 0; i < f->n_threads; i++)
		(void)pthread_join(f->threads[i], NULL);
	(void)pthread_cond_destroy(&f->change);
	(void)pthread_mutex_destroy(&f->lock);
	place_free(f->place);
	free(base->address);
	free(f);
}

/* The path is the descriptor's own: what is kept under one must not come from another. */
static int address_of(int dir, char **ret, struct ckpt_err *e)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	n = readlink(link, path, sizeof(path));
	if (n < 0 || n == sizeof(path))
		return err_sys(e, n < 0 ? errno : ENAMETOOLONG, "find the directory's path");
	*ret = text_format(FILE_SCHEME "%.*s", (int)n, path);
	if (!*ret)
		return err_nomem(e);
	return 0;
}

int file_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	      struct ckpt_err *e)
{
	static const struct store_ops ops = {
		.look = file_look,
		.list = file_list,
		.get = file_get,
		.dir = file_dir,
		.free = file_free,
	};
	int flags = o->dir < 0 ? -1 : fcntl(o->dir, F_GETFL);
	autofree char *whole = NULL;
	autoclose int fd = -1;
	struct place *place;
	struct file_store *f;

	if (flags < 0 || (flags & O_PATH))
		return err_set(e, EACCES, "'%s' is not a directory that was opened for reading",
			       address);
	fd = fcntl(o->dir, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", address);
	if (address_of(fd, &whole, e) || local_place(fd, &place, e))
		return -e->code;
	(void)steal_fd(&fd);
	f = calloc(1, sizeof(*f));
	if (!f) {
		place_free(place);
		return err_nomem(e);
	}
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_cond_init(&f->change, NULL);
	f->base.ops = &ops;
	f->base.net = n;
	f->base.address = steal_ptr(&whole);
	f->place = place;
	*ret = &f->base;
	return 0;
}

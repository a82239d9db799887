/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/warm.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crew.h"
#include "base/err.h"
#include "base/io.h"
#include "base/progress.h"
#include "base/vec.h"
#include <ckptfs/ckpt.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BLOCK = 1 << 20, /* bytes of one read */
	UNIT = 8 << 20,	 /* per worker at once; restarts read-ahead */
	GAP = 128 *
	      1024, /* read rather than skipped: the kernel's read-ahead would bring it anyway */
};

/* ---- the list ---- */

static const char *own_path(struct warm *w, const char *path)
{
	char *copy;

	if (w->n_paths && !strcmp(w->paths[w->n_paths - 1], path))
		return w->paths[w->n_paths - 1];
	copy = VEC_ROOM(w->paths, w->cap_paths, w->n_paths + 1) ? strdup(path) : NULL;
	if (copy)
		w->paths[w->n_paths++] = copy;
	return copy;
}

int warm_add(struct warm *w, const struct warm_part *part, struct ckpt_err *e)
{
	struct warm_part *p;
	const char *own;

	if (!part->len)
		return 0;
	own = own_path(w, part->path);
	if (!own || !VEC_ROOM(w->v, w->cap, w->n + 1))
		return err_sys(e, ENOMEM, "list of files");
	p = &w->v[w->n++];
	*p = *part;
	p->path = own;
	if (!p->after) {
		p->after = own;
		p->after_off = p->off;
	}
	w->bytes += p->len;
	return 0;
}

static int compare(const char *a, uint64_t a_off, const char *b, uint64_t b_off)
{
	int rc = a == b ? 0 : strcmp(a, b);

	return rc ? rc : a_off < b_off ? -1 : a_off > b_off;
}

static int by_place(const void *a, const void *b)
{
	const struct warm_part *x = a, *y = b;
	int rc = compare(x->after, x->after_off, y->after, y->after_off);

	return rc ? rc : compare(x->path, x->off, y->path, y->off);
}

void warm_sort(struct warm *w)
{
	size_t n = 0;

	if (w->n)
		qsort(w->v, w->n, sizeof(*w->v), by_place);
	w->bytes = 0;
	w->files = 0;
	for (size_t i = 0; i < w->n; i++) {
		struct warm_part *last = n ? &w->v[n - 1] : NULL, *p = &w->v[i];
		bool same = last && !strcmp(last->path, p->path);
		uint64_t end = p->off + p->len;

		if (same && p->off <= last->off + last->len + GAP) {
			last->len = max_u64(last->off + last->len, end) - last->off;
			continue;
		}
		w->files += !same;
		w->v[n++] = *p;
	}
	w->n = n;
	for (size_t i = 0; i < n; i++)
		w->bytes += w->v[i].len;
}

void warm_release(struct warm *w)
{
	for (size_t i = 0; i < w->n_paths; i++)
		free(w->paths[i]);
	free(w->paths);
	free(w->v);
	*w = (struct warm){ 0 };
}

uint64_t warm_memory(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		/* NOLINTNEXTLINE(cert-err34-c): the kernel's numbers fit */
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		(void)fclose(f);
	return (uint64_t)kib << 10;
}

/* ---- reading ---- */

struct pool {
	struct warm *w;
	const struct warm_how *how;
	pthread_mutex_t lock; /* all of this */
	size_t part;	      /* the next unit */
	uint64_t off;
	struct ckpt_err err; /* the first one */
	_Atomic uint64_t read, there;
};

/* The next unit. False: none is left. */
static bool take(struct pool *p, struct warm_part *ret)
{
	SCOPED_LOCK(&p->lock);
	struct warm *w = p->w;

	/* A store that fails once has failed for as long as the option retry says. */
	if (p->part == w->n || (p->how->store && p->err.code))
		return false;
	*ret = w->v[p->part];
	ret->off += p->off;
	ret->len = min_u64(ret->len - p->off, UNIT);
	p->off += ret->len;
	if (p->off == w->v[p->part].len) {
		p->part++;
		p->off = 0;
	}
	return true;
}

static void fail(struct pool *p, const struct ckpt_err *e)
{
	SCOPED_LOCK(&p->lock);

	if (!p->err.code)
		p->err = *e;
}

static void advance(struct pool *p, uint64_t n)
{
	progress_set(p->how->progress, atomic_fetch_add(p->how->done, n) + n);
}

static int read_unit(struct pool *p, int fd, const struct warm_part *u, char *buf,
		     struct ckpt_err *e)
{
	int64_t n;

	if (io_is_cached(fd, u->off, u->len) > 0) {
		p->there += u->len;
		advance(p, u->len);
		return 0;
	}
	for (uint64_t done = 0; done < u->len; done += (uint64_t)n) {
		n = io_pread_some(fd, buf, min_u64(BLOCK, u->len - done), u->off + done);
		if (n < 0)
			return err_sys(e, (int)-n, "read '%s'", u->path);
		if (!n)
			break;
		p->read += (uint64_t)n;
		advance(p, (uint64_t)n);
	}
	return 0;
}

static void fetch_unit(struct pool *p, const struct warm_part *u)
{
	struct ckpt_err e = { 0 };

	if (ckpt_source_bring(p->how->store, u->path, u->off, u->len, &e)) {
		fail(p, &e);
		return;
	}
	p->read += u->len;
	advance(p, u->len);
}

static void *work(void *arg)
{
	struct pool *p = arg;
	autofree char *buf = malloc(BLOCK);
	struct warm_part unit;
	const char *path = NULL;
	autoclose int fd = -1;
	struct ckpt_err e = { 0 };
	int rc = buf ? 0 : err_sys(&e, ENOMEM, "read");

	if (rc)
		fail(p, &e);
	while (buf && take(p, &unit)) {
		if (p->how->store) {
			fetch_unit(p, &unit);
			continue;
		}
		if (unit.path != path) {
			if (fd >= 0)
				(void)close(fd);
			path = unit.path;
			/* A path that is no longer a file must not block us. */
			fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		}
		rc = fd < 0 ? err_sys(&e, errno, "open '%s'", path)
			    : read_unit(p, fd, &unit, buf, &e);
		if (rc) { /* its other units would fail, too: they find no descriptor */
			fail(p, &e);
			if (fd >= 0)
				(void)close(steal_fd(&fd));
		}
	}
	return NULL;
}

int warm_run(struct warm *w, const struct warm_how *how, struct ckpt_err *e)
{
	struct pool p = { .w = w, .how = how };

	(void)pthread_mutex_init(&p.lock, NULL);
	crew_run(how->threads, work, &p);
	(void)pthread_mutex_destroy(&p.lock);
	w->read = p.read;
	w->there = p.there;
	if (p.err.code)
		*e = p.err;
	return -p.err.code;
}

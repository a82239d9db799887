/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot_internal.h"

#include "base/clock.h"
#include "base/digest.h"
#include "base/io.h"
#include "base/vec.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum {
	FREE_PART = 20,	 /* 1/20 of the disk stays free */
	EVICT_PART = 5,	 /* 1/5 of the bound is evicted at a time */
	SCAN_PART = 16,	 /* the directory is scanned when 1/16 of the bound was written */
	STALE_S = 86400, /* how long an object without any bytes is kept */
};

#define MAX_SCAN ((uint64_t)16 << 30)

struct found {
	char path[96]; /* below the directory: ab/HASH/0000-1; or ab/HASH/map, if that is all */
	uint64_t bytes, used_ns;
};

/* A segment that this process is writing to. */
struct held {
	dev_t dev;
	ino_t ino; /* of the object's directory */
	uint64_t segment;
};

/*
 * A scan of the directory, by a thread of its own, which uses only what never changes in the depot.
 */
struct scan {
	const struct depot *depot;
	struct held *held;
	size_t n_held, cap_held;
	struct found *v;
	size_t n, cap;
	uint64_t bytes;
};

static int by_use(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/*
 * Is it the name of a directory of the cache: n hexadecimal digits? The directory may contain other
 * things, which are not ours to remove.
 */
static bool is_hex(const char *name, size_t n)
{
	return strlen(name) == n && strspn(name, "0123456789abcdef") == n;
}

/* As of segment_name. */
static bool is_segment(const char *name)
{
	size_t n = strspn(name, "0123456789abcdef"), k = 0;

	if (n >= 4 && n <= 8 && name[n] == '-')
		k = strspn(name + n + 1, "0123456789abcdef");
	return k && k <= 8 && !name[n + 1 + k];
}

static void add_found(struct scan *s, const char *outer, const char *object, const char *name,
		      uint64_t bytes, uint64_t used_ns)
{
	struct found f = { .bytes = bytes, .used_ns = used_ns };

	if (snprintf(f.path, sizeof(f.path), "%s/%s/%s", outer, object, name) <
		    (int)sizeof(f.path) &&
	    VEC_ROOM_WITHIN(s->v, s->cap, s->n + 1, (size_t)1 << 22))
		s->v[s->n++] = f;
}

/* Adds the files of an object. Out of memory: what is not found is not evicted this time. */
static void scan_object(int dir, const char *outer, const char *name, struct scan *s)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d CLEANUP(io_close_dir) = fd < 0 ? NULL : fdopendir(fd);
	uint64_t besides = 0, opened_ns = 0;
	const struct dirent *x;
	struct ckpt_err ignored;
	bool empty = true;
	struct stat st;

	if (!d && fd >= 0)
		(void)close(fd);
	while (d && io_next_entry(d, &x, &ignored) > 0) {
		bool map = !strcmp(x->d_name, "map");

		if ((!is_segment(x->d_name) && !map && strcmp(x->d_name, "about.json") != 0) ||
		    fstatat(dirfd(d), x->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
			continue;
		s->bytes += (uint64_t)st.st_blocks * 512;
		if (is_segment(x->d_name)) {
			add_found(s, outer, name, x->d_name, (uint64_t)st.st_blocks * 512,
				  io_mtime_ns(&st));
			empty = false;
			continue;
		}
		besides += (uint64_t)st.st_blocks * 512;
		if (map)
			opened_ns = io_mtime_ns(&st);
	}
	if (empty && opened_ns)
		add_found(s, outer, name, "map", besides, opened_ns);
}

static void scan_all(struct scan *s)
{
	DIR *top CLEANUP(io_close_dir) = io_open_dir(s->depot->dir, ".", 0);
	const struct dirent *x, *y;
	struct ckpt_err ignored;

	while (top && io_next_entry(top, &x, &ignored) > 0) {
		DIR *inner CLEANUP(io_close_dir) =
			is_hex(x->d_name, 2) ? io_open_dir(s->depot->dir, x->d_name, O_NOFOLLOW)
					     : NULL;

		while (inner && io_next_entry(inner, &y, &ignored) > 0)
			if (is_hex(y->d_name, DIGEST_HEX - 1))
				scan_object(dirfd(inner), x->d_name, y->d_name, s);
	}
}

/*
 * Is there a segment of that number? A file's name can claim any number, and the word at its place
 * may belong to a block. 1, 0, or -errno.
 */
static int has_segment(int map, uint64_t size, uint64_t i)
{
	struct map_view v;
	struct map_head h;
	int rc = size < sizeof(h) ? 0 : io_pread(map, &h, sizeof(h), 0);

	return rc ? rc
		  : size >= sizeof(h) && map_layout(h.size, h.segment, &v) && v.bytes == size &&
			       i < v.n_segments;
}

/*
 * Increments the generation of a segment in its map, if that is still the file's. False: that is
 * not certain, so the file must stay: an empty one in its place would be taken for it.
 */
static bool retire(int dir, const char *name)
{
	autoclose int fd = openat(dir, "map", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	char *end;
	uint64_t i = strtoull(name, &end, 16), at = MAP_HEAD + i * 4;
	uint32_t generation = *end == '-' ? (uint32_t)strtoul(end + 1, NULL, 16) : 0;
	uint32_t made = generation | MAP_MADE, plain = generation;
	_Atomic uint32_t *word;
	struct stat st;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p;
	int rc;

	if (fd < 0 || fstat(fd, &st))
		return fd < 0 && errno == ENOENT;
	rc = has_segment(fd, (uint64_t)st.st_size, i);
	if (rc <= 0)
		return !rc; /* or it is no map: see open_map */
	p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(at / page * page));
	if (p == MAP_FAILED)
		return false;
	word = (_Atomic uint32_t *)(void *)((char *)p + at % page);
	if (!atomic_compare_exchange_strong(word, &made, generation + 1) &&
	    !atomic_compare_exchange_strong(word, &plain, generation + 1) &&
	    plain == (generation | MAP_MADE)) /* made in between */
		(void)atomic_compare_exchange_strong(word, &plain, generation + 1);
	(void)munmap(p, page);
	return true;
}

/* Removes an object of which no segment is left, unless somebody uses it. */
static bool remove_empty(const struct depot *d, const char *object)
{
	char path[128], about[128];
	bool gone = false;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/map", object);
	(void)snprintf(about, sizeof(about), "%s/about.json", object);
	fd = openat(d->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	if (!map_lock(fd, F_WRLCK, LOCK_USE, 1)) {
		DIR *dir CLEANUP(io_close_dir) = io_open_dir(d->dir, object, O_NOFOLLOW);
		const struct dirent *x;
		struct ckpt_err ignored;
		bool empty = dir != NULL;

		while (empty && io_next_entry(dir, &x, &ignored) > 0)
			empty = !strchr(x->d_name, '-');
		/* The map goes first: a process that gets its lock then sees that it has no name
		 * any more. It may make another one at once, which stays, and with it the
		 * directory. */
		gone = empty && !unlinkat(d->dir, path, 0);
		if (gone) {
			(void)unlinkat(d->dir, about, 0);
			(void)unlinkat(d->dir, object, AT_REMOVEDIR);
		}
	}
	(void)close(fd);
	return gone;
}

/* Was this process writing to it? If so, removing it would only mean fetching it again. */
static bool is_held(const struct scan *s, int dir, const char *name)
{
	uint64_t i = strtoull(name, NULL, 16);
	struct stat st;

	if (fstat(dir, &st))
		return false;
	for (size_t k = 0; k < s->n_held; k++)
		if (s->held[k].segment == i && s->held[k].dev == st.st_dev &&
		    s->held[k].ino == st.st_ino)
			return true;
	return false;
}

/* False: it must stay. */
static bool evict(const struct scan *s, const struct found *f)
{
	const struct depot *d = s->depot;
	char object[96];
	const char *name = strrchr(f->path, '/') + 1;
	autoclose int dir = -1;

	(void)snprintf(object, sizeof(object), "%.*s", (int)(name - f->path - 1), f->path);
	if (!is_segment(name))
		return remove_empty(d, object);
	dir = openat(d->dir, object, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0 || is_held(s, dir, name) || !retire(dir, name))
		return false;
	(void)unlinkat(dir, name, 0);
	(void)remove_empty(d, object);
	return true;
}

/*
 * If the directory is too large, or the disk too full, evicts what has been unused the longest,
 * and objects that have no blocks and have not been looked at for a while.
 */
static void tidy(struct scan *s)
{
	uint64_t keep = s->depot->size, now = clock_wall_ns();
	struct statvfs st;
	bool full;

	scan_all(s);
	if (!fstatvfs(s->depot->dir, &st)) {
		uint64_t left = (uint64_t)st.f_bavail * st.f_frsize,
			 want = (uint64_t)st.f_blocks * st.f_frsize / FREE_PART;

		if (left < want)
			keep = min_u64(keep, s->bytes - min_u64(s->bytes, want - left));
	}
	full = s->bytes > keep;
	if (full)
		keep -= keep / EVICT_PART;
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), by_use);
	for (size_t i = 0; i < s->n; i++) {
		bool stale = !is_segment(strrchr(s->v[i].path, '/') + 1) &&
			     now > s->v[i].used_ns + STALE_S * CLOCK_SECOND;

		if ((stale || (full && s->bytes > keep)) && evict(s, &s->v[i]))
			s->bytes -= min_u64(s->bytes, s->v[i].bytes);
	}
}

static void scan_free(struct scan *s)
{
	free(s->held);
	free(s->v);
	free(s);
}

static void *tidy_in_back(void *arg)
{
	struct scan *s = arg;
	struct depot *d = (struct depot *)(uintptr_t)s->depot;

	tidy(s);
	scan_free(s);
	d->tidying = false;
	return NULL;
}

/* Out of memory: some may be evicted although they are written to. */
static void note_held(const struct depot *d, struct scan *s)
{
	struct stat st;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; !o->room->in_memory && i < o->room->view.n_segments; i++)
			if (o->room->v[i].holds && !fstat(o->room->dir, &st) &&
			    VEC_ROOM(s->held, s->cap_held, s->n_held + 1))
				s->held[s->n_held++] = (struct held){ st.st_dev, st.st_ino, i };
}

static void start_tidying(struct depot *d)
{
	struct scan *s = calloc(1, sizeof(*s));

	if (!s)
		return; /* the next time */
	d->written = 0;
	s->depot = d;
	note_held(d, s);
	if (d->has_tidier) /* it has ended, except for its return */
		(void)pthread_join(d->tidier, NULL);
	d->tidying = true;
	d->has_tidier = !pthread_create(&d->tidier, NULL, tidy_in_back, s);
	if (!d->has_tidier) {
		scan_free(s);
		d->tidying = false;
	}
}

static bool is_due(const struct depot *d)
{
	return d->written >= min_u64(d->size / SCAN_PART, MAX_SCAN);
}

void evict_note_written(struct depot *d, uint64_t n)
{
	if (d->written != UINT64_MAX)
		d->written += n;
	if (is_due(d) && !d->tidying)
		start_tidying(d);
}

void evict_end(struct depot *d)
{
	if (d->has_tidier)
		(void)pthread_join(d->tidier, NULL);
	d->has_tidier = false;
	/* What was written while it went through the directory would stay until the next time. */
	if (d->written != UINT64_MAX && is_due(d))
		start_tidying(d);
	if (d->has_tidier)
		(void)pthread_join(d->tidier, NULL);
}

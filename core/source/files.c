/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is closed, or open with a number of users. One word holds both (users: IS_OPEN and the
 * number), so that using an open file takes no lock. Its states:
 *
 *	closed      -> open, 1      pin: by the thread that has opened its source, under the lock
 *	open, n     -> open, n + 1  pin_open: without the lock
 *	open, n > 0 -> open, n - 1  unpin: without the lock
 *	open, 0     -> closed       take_surplus: under the lock
 *
 * The last transition is a single compare-and-swap: a thread that is about to use the file either
 * has been counted already, so that the file stays open, or finds it closed. `source` is set before
 * the file is marked open, read only by users, and freed by the thread that closes the file. Two
 * threads may open a source of the same file; the second to get the lock drops its own.
 *
 * Sources that cannot be opened again stay open until files_free and are in no list: bytes in
 * memory, which never change, and sources that the caller of files_new_seen provides without a
 * `within`.
 *
 * All other open files are in the list. The oldest is closed first, unless it has been used since
 * it was last examined; then it becomes the newest.
 */
#include "source/files.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/list.h"
#include "source/lender.h"
#include "source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

enum {
	BRING_SIZE = 1 << 20,
	SPARE_FDS = 64, /* for SQLite, /dev/fuse and the rest of the program */
	MAX_TRIES =
		64, /* to open a file while other threads take the descriptors that become free */
	MAX_LOOKS = 3,
};

/* A flag in file.users besides the count: the file is open. A closed file has no users. */
#define IS_OPEN ((uint32_t)1 << 31)

struct file {
	struct place_seen seen; /* what files_new saw */
	struct place_id id;	/* as of files_new or the last change of names; under the lock */
	int error;		/* errno of that look, or 0 */
	_Atomic uint32_t users; /* users of source, and IS_OPEN */
	atomic_bool used;	/* since take_surplus last looked at it */
	bool given; /* source is closed only by files_free: it is in memory, or from the caller of
		     * files_new_seen */
	struct place *within; /* where it is opened by `name`; NULL: in place, by its path */
	const char *name;
	struct source *source; /* while it is open */
	atomic_bool no_bring;  /* files_bring was tried, but the bytes did not stay in memory */
	uint32_t newer, older; /* list of open files, by index + 1; 0 ends it */
};

struct files {
	pthread_mutex_t lock;  /* opening, closing; the list of open files, n_open; new ids */
	struct lender *lender; /* NULL: nothing is mapped */
	struct place *place;
	bool ignores_ctime;
	const struct stored_file *sources;
	struct file *v;
	size_t n, n_open, max_open;
	uint32_t newest, oldest; /* index + 1 */
	atomic_bool changed;
	struct counters *counts; /* enum files_count */
	/* Under the lock of every. */
	LIST_LINK(struct files) link;
	unsigned visitors; /* threads that close files here, to open some elsewhere */
};

/* All files of the process, because they share its descriptors, and those of a fetcher. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t left; /* somewhere the last visitor has */
	LIST(struct files) all;
} every = { .lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER };

static void note(struct file *x, const struct place_seen *seen)
{
	x->seen = *seen;
	x->id = seen->id;
}

/* A file can be looked at without the right to read it. */
static bool is_unreadable(const struct files *f, const char *path)
{
	int fd = place_fd(f->place);

	return fd >= 0 && faccessat(fd, path, R_OK, AT_EACCESS) && errno == EACCES;
}

static void look(struct files *f, size_t i)
{
	struct file *x = &f->v[i];
	struct place_seen seen;
	struct source *s;
	struct ckpt_err e;
	int rc = place_look_at(f->place, f->sources[i].path, &seen, &e);

	if (rc <= 0) {
		x->error = rc ? -rc : ENOENT;
		return;
	}
	/* Looking follows links out of the directory; only opening checks that. A file that is too
	 * short may be a Git LFS pointer, which opening detects. */
	if (seen.kind == PLACE_LINK ||
	    (seen.kind == PLACE_FILE && seen.size < f->sources[i].min_size)) {
		rc = place_file(f->place, f->sources[i].path, &s, &e);
		if (rc) {
			x->error = -rc;
			return;
		}
		seen = s->seen;
		source_free(s);
	}
	if (seen.kind != PLACE_FILE) {
		x->error = ERR_CORRUPT;
		return;
	}
	note(x, &seen);
	if (is_unreadable(f, f->sources[i].path))
		x->error = EACCES;
}

/* Makes the kernel's descriptor table grow now. Growing it later, when threads share it, waits for
 * an RCU grace period: ten milliseconds in the first read of a mount. */
static void reserve_fds(const struct files *f)
{
	int fd = fcntl(place_fd(f->place), F_DUPFD_CLOEXEC,
		       (int)min_u64(f->n, f->max_open) + SPARE_FDS - 1);

	if (fd >= 0)
		(void)close(fd);
}

static void give(struct file *x, struct source *s)
{
	x->given = true;
	x->source = s;
	x->users = IS_OPEN; /* not in the list of files that may be closed */
}

/* Of files that are not in every. */
static void release(struct files *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].users & IS_OPEN)
			source_free(f->v[i].source);
	lender_free(f->lender);
	(void)pthread_mutex_destroy(&f->lock);
	counters_free(f->counts);
	free(f->v);
	free(f);
}

/* Nothing is known of the files yet, except of those in memory. Other threads do not see them. */
static int new_files(struct place *place, const struct stored_file *sources, size_t n,
		     struct files **ret, struct ckpt_err *e)
{
	struct files *f = calloc(1, sizeof(*f));
	struct rlimit lim;

	if (f) {
		(void)pthread_mutex_init(&f->lock, NULL);
		f->v = calloc(n + 1, sizeof(*f->v));
		f->counts = counters_new(FILES_COUNTS);
	}
	if (!f || !f->v || !f->counts) {
		release(f);
		return err_nomem(e);
	}
	f->place = place;
	f->sources = sources;
	f->n = n;
	if (getrlimit(RLIMIT_NOFILE, &lim))
		lim.rlim_cur = 1024;
	/* Not all descriptors: code that writes files needs some, too. */
	f->max_open = lim.rlim_cur > 2 * SPARE_FDS
			      ? (size_t)(lim.rlim_cur - max_u64(SPARE_FDS, lim.rlim_cur / 4))
			      : SPARE_FDS; /* and fewer if descriptors run out: see open_file */
	reserve_fds(f);
	for (size_t i = 0; i < n; i++) {
		struct source *s;

		if (!sources[i].bytes)
			continue;
		if (memory_source(sources[i].bytes, (size_t)sources[i].min_size, &s, e)) {
			release(f);
			return -e->code;
		}
		note(&f->v[i], &s->seen);
		give(&f->v[i], s);
	}
	*ret = f;
	return 0;
}

/* From now on other threads may close what is open. */
static void publish(struct files *f)
{
	SCOPED_LOCK(&every.lock);

	LIST_PUSH(&every.all, f);
}

int files_new(struct place *place, const struct stored_file *sources, size_t n, struct files **ret,
	      struct ckpt_err *e)
{
	if (new_files(place, sources, n, ret, e))
		return -e->code;
	for (size_t i = 0; i < n; i++)
		if (!sources[i].bytes)
			look(*ret, i);
	publish(*ret);
	return 0;
}

/* The list of open files, under the lock. */
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

int files_new_seen(struct place *place, const struct stored_file *sources,
		   const struct files_seen *seen, size_t n, struct files **ret, struct ckpt_err *e)
{
	if (new_files(place, sources, n, ret, e))
		return -e->code;
	for (size_t i = 0; i < n; i++) {
		struct file *x = &(*ret)->v[i];

		if (sources[i].bytes)
			continue;
		note(x, &seen[i].seen);
		if (seen[i].source)
			give(x, seen[i].source);
		if (seen[i].source && seen[i].within) {
			x->given = false;
			x->within = seen[i].within;
			x->name = seen[i].name;
			list_push(*ret, (uint32_t)i);
			(*ret)->n_open++;
		}
	}
	publish(*ret);
	return 0;
}

void files_free(struct files *f)
{
	if (!f)
		return;
	{
		SCOPED_LOCK(&every.lock);
		while (f->visitors)
			(void)pthread_cond_wait(&every.left, &every.lock);
		LIST_REMOVE(&every.all, f);
	}
	release(f);
}

bool files_fault(const struct files *f, uint32_t i, struct ckpt_err *e)
{
	const struct file *x = &f->v[i];
	const struct stored_file *s = &f->sources[i];

	if (x->error == ENOENT)
		(void)err_set(e, ENOENT, "data file '%s' is missing", s->path);
	else if (x->error == ERR_CORRUPT)
		(void)err_set(e, ERR_CORRUPT,
			      "data file '%s' is not a regular file of the checkpoint, or is a "
			      "link that leads out of it",
			      s->path);
	else if (x->error == EREMOTE)
		(void)err_set(e, EREMOTE, "data file '%s' is " IO_IS_POINTER, s->path);
	else if (x->error)
		(void)err_sys(e, x->error, "data file '%s'", s->path);
	else if (x->seen.size < s->min_size)
		(void)err_set(e, ERR_CORRUPT,
			      "data file '%s' has %llu bytes, items in it reach up to %llu",
			      s->path, (unsigned long long)x->seen.size,
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
	return f->v[i].seen.size;
}

uint64_t files_total(const struct files *f)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < f->n; i++)
		sum += f->v[i].seen.size;
	return sum;
}

uint64_t files_newest_ns(const struct files *f)
{
	uint64_t newest = 0;

	for (size_t i = 0; i < f->n; i++)
		newest = max_u64(newest, f->v[i].seen.mtime_ns);
	return newest;
}

void files_ignore_ctime(struct files *f)
{
	f->ignores_ctime = true;
}

uint64_t files_hash(const struct files *f)
{
	uint64_t h = 0;

	for (size_t i = 0; i < f->n; i++) {
		const uint64_t seen[] = { h, f->v[i].seen.size, f->v[i].seen.mtime_ns };

		h = XXH3_64bits(seen, sizeof(seen));
	}
	return h;
}

void files_id(const struct files *f, uint32_t i, struct place_id *ret)
{
	*ret = f->v[i].seen.id;
	if (f->v[i].error)
		ret->len = 0;
	else if (f->ignores_ctime)
		place_leave_ctime(f->place, ret);
}

uint64_t files_mtime_ns(const struct files *f, uint32_t i)
{
	return f->v[i].seen.mtime_ns;
}

unsigned files_at_once(const struct files *f)
{
	return f->place->at_once;
}

uint64_t files_keeps(const struct files *f)
{
	return f->place->keeps;
}

void files_digest(const struct files *f, struct digest *d)
{
	for (size_t i = 0; i < f->n; i++) {
		struct place_id id = f->v[i].seen.id;

		if (f->ignores_ctime)
			place_leave_ctime(f->place, &id);
		digest_add(d, id.v, id.len);
		digest_add(d, &f->v[i].error, sizeof(f->v[i].error));
	}
}

/* ---- open files; all of this under the lock ---- */

/* Closes the least recently used file without users if more than max are open. */
static struct source *take_surplus(struct files *f, size_t max)
{
	size_t left = 2 * f->n_open; /* a file used since the last look gets another turn */

	while (f->n_open > max && left--) {
		uint32_t i = f->oldest - 1, unused = IS_OPEN;
		struct file *x = &f->v[i];

		list_remove(f, i);
		if (!atomic_exchange(&x->used, false) &&
		    atomic_compare_exchange_strong(&x->users, &unused, 0)) {
			f->n_open--;
			return x->source;
		}
		list_push(f, i);
	}
	return NULL;
}

/* ---- using a file ---- */

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

static int open_source(struct files *f, uint32_t i, struct source **ret, struct ckpt_err *e)
{
	const struct file *x = &f->v[i];

	return x->within ? place_file(x->within, x->name, ret, e)
			 : place_file(f->place, f->sources[i].path, ret, e);
}

static struct source *take_one(struct files *f)
{
	SCOPED_LOCK(&f->lock);

	return take_surplus(f, max_u64(f->n_open, 1) - 1);
}

/* Closes files without users, and not only one, because to find out that descriptors have run out
 * may take several messages. False: there are none. */
static bool close_some(struct files *f)
{
	struct source *s;
	size_t n = 0, most;

	{
		SCOPED_LOCK(&f->lock);
		most = f->n_open / 8 + 1;
	}
	for (; n < most && (s = take_one(f)); n++)
		source_free(s);
	return n > 0;
}

/* Leaves f, NULL: nothing, for the next files, or NULL. Files stay until they have been left. */
static struct files *visit_next(struct files *f)
{
	SCOPED_LOCK(&every.lock);
	struct files *next = f ? f->link.next : every.all.first;

	if (f && !--f->visitors)
		(void)pthread_cond_broadcast(&every.left);
	if (next)
		next->visitors++;
	return next;
}

/* Not only files of the checkpoint that needs descriptors: another may have all of them. */
static bool close_some_of_all(void)
{
	bool some = false;

	for (struct files *f = visit_next(NULL); f; f = visit_next(f))
		some = close_some(f) || some;
	return some;
}

/* If descriptors have run out, closes some and tries again. */
static int open_file(struct files *f, uint32_t i, struct source **ret, struct ckpt_err *e)
{
	for (int tries = 0;; tries++) {
		struct ckpt_err why;
		int rc = open_source(f, i, ret, &why);

		if ((rc == -EMFILE || rc == -ENFILE) && tries < MAX_TRIES && close_some_of_all())
			continue;
		if (rc)
			*e = why;
		return rc;
	}
}

static int pin(struct files *f, uint32_t i, struct ckpt_err *e)
{
	struct source *surplus CLEANUP(source_freep) = NULL, *s CLEANUP(source_freep) = NULL;
	struct file *x = &f->v[i];

	if (pin_open(x))
		return 0;
	if (files_fault(f, i, e))
		return -e->code;
	if (open_file(f, i, &s, e))
		return -e->code;
	SCOPED_LOCK(&f->lock);
	if (pin_open(x)) /* another thread was quicker */
		return 0;
	source_set_lender(s, f->lender);
	x->source = steal_ptr(&s);
	x->users = IS_OPEN | 1; /* before take_surplus, which must not take this file */
	list_push(f, i);
	f->n_open++;
	surplus = take_surplus(f, f->max_open);
	return 0;
}

void files_trim(struct files *f, size_t keep)
{
	struct source *s;

	do {
		{
			SCOPED_LOCK(&f->lock);
			s = take_surplus(f, keep);
		}
		source_free(s);
	} while (s);
}

/* How file x, whose identity is `now`, has changed. */
static enum place_change compare(struct files *f, struct file *x, const struct place_id *now)
{
	struct place_id before = x->seen.id, after = *now;
	enum place_change change;

	if (f->ignores_ctime) {
		place_leave_ctime(f->place, &before);
		place_leave_ctime(f->place, &after);
	}
	change = place_compare(f->place, &before, &after);
	if (change != PLACE_RENAMED && change != PLACE_TOUCHED)
		return change;
	/* An earlier rename may already have been accepted. */
	SCOPED_LOCK(&f->lock);
	change = place_compare(f->place, &x->id, now);
	if (change == PLACE_RENAMED)
		x->id = *now;
	return change == PLACE_RENAMED ? PLACE_SAME : change;
}

/* What is in the file's place now. */
static int look_by_path(const struct files *f, uint32_t i, struct place_seen *ret)
{
	const struct file *x = &f->v[i];
	struct ckpt_err e;
	int rc = place_look(x->within ? x->within : f->place,
			    x->within ? x->name : f->sources[i].path, ret, &e);

	return rc < 0 ? rc : rc ? 0 : -ENOENT;
}

/* s: the open file; NULL: it is looked for. */
static int check(struct files *f, uint32_t i, struct source *s, struct ckpt_err *e)
{
	struct file *x = &f->v[i];
	enum place_change change = PLACE_TOUCHED;
	struct place_seen now;

	if (f->sources[i].bytes)
		return 0;
	/* Another thread may accept a new or removed name at the same time. */
	for (int tries = 0; change == PLACE_TOUCHED && tries < MAX_LOOKS; tries++) {
		int rc = s ? source_look(s, &now) : look_by_path(f, i, &now);

		if (rc && rc != -ESTALE && rc != -ENOENT)
			return err_sys(e, -rc,
				       "cannot tell whether '%s' has changed since the checkpoint "
				       "was opened",
				       f->sources[i].path);
		change = rc ? PLACE_ANOTHER : compare(f, x, &now.id);
	}
	if (change == PLACE_SAME)
		return 0;
	f->changed = true;
	return err_set(e, EIO, "'%s' was changed after the checkpoint was opened%s",
		       f->sources[i].path,
		       change == PLACE_TOUCHED ? ": its ctime has changed (see ignore_ctime)" : "");
}

bool files_changed(const struct files *f)
{
	return f->changed;
}

int files_check(struct files *f, uint32_t i, struct ckpt_err *e)
{
	return check(f, i, f->v[i].source, e);
}

int files_look(struct files *f, uint32_t i, struct ckpt_err *e)
{
	int rc;

	if (!pin_open(&f->v[i]))
		return place_fd(f->place) < 0 ? 0 : check(f, i, NULL, e);
	rc = files_check(f, i, e);
	unpin(f, i);
	return rc;
}

void files_look_at_open(struct files *f)
{
	struct ckpt_err ignored;

	for (uint32_t i = 0; i < f->n; i++)
		if (pin_open(&f->v[i])) {
			(void)files_check(f, i, &ignored);
			unpin(f, i);
		}
}

int files_open(struct files *f, uint32_t i, struct ckpt_err *e)
{
	const char *path = f->sources[i].path;
	struct source *opened CLEANUP(source_freep) = NULL, *s;
	int fd, rc = f->v[i].given ? 0 : open_source(f, i, &opened, e);

	s = f->v[i].given ? f->v[i].source : opened; /* others may be closed meanwhile */
	if (!rc)
		rc = check(f, i, s, e);
	if (rc)
		return rc;
	if (source_fd(s) < 0)
		return err_set(e, ENOTSUP, "'%s' is not a file of this machine", path);
	fd = fcntl(source_fd(s), F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

bool files_written(struct files *f, uint32_t i)
{
	struct file *x = &f->v[i];
	struct place_seen now;
	enum place_change change;

	if (f->sources[i].bytes)
		return false;
	if (x->given ? source_look(x->source, &now) != 0 : look_by_path(f, i, &now) != 0)
		return false;
	change = compare(f, x, &now.id);
	return change == PLACE_WRITTEN || change == PLACE_TOUCHED;
}

int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	int rc = pin(f, i, e);
	struct ckpt_err why = { 0 };
	int64_t n;

	counters_add(f->counts, FILES_READS, 1);
	if (rc) {
		counters_add(f->counts, FILES_FAULTS, 1);
		return rc;
	}
	n = source_read(f->v[i].source, buf, len, off, &why);
	/* Checked after the bytes were taken (see files.h), even if there are fewer than before, or
	 * a store no longer has them. */
	if (n >= 0 || n == -ESTALE)
		rc = files_check(f, i, e);
	if (!rc && n < 0 && *why.msg)
		rc = err_set(e, (int)-n, "read '%s', %s", f->sources[i].path, why.msg);
	else if (!rc && n < (int64_t)len)
		rc = err_sys(e, n < 0 ? (int)-n : EIO, "read '%s', %zu bytes at %llu",
			     f->sources[i].path, len, (unsigned long long)off);
	unpin(f, i);
	counters_add(f->counts, rc ? FILES_FAULTS : FILES_BYTES, rc ? 1 : len);
	return rc ? -e->code : 0;
}

bool files_want(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	struct ckpt_err ignored;
	bool missing;

	if (pin(f, i, &ignored))
		return false;
	missing = source_want(f->v[i].source, off, len);
	unpin(f, i);
	return missing;
}

/* ---- mapped files ---- */

int files_allow_maps(struct files *f, uint64_t max_bytes, struct ckpt_err *e)
{
	f->lender = lender_new(max_bytes);
	if (!f->lender)
		return err_nomem(e);
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].users & IS_OPEN)
			source_set_lender(f->v[i].source, f->lender);
	return 0;
}

/* Counts the bytes that a file in use has shown; if it has shown none, unpins it. */
static const uint8_t *shown(struct files *f, uint32_t i, const uint8_t *p, uint64_t len)
{
	if (p)
		counters_add(f->counts, FILES_MAPPED, len);
	else
		unpin(f, i);
	return p;
}

const uint8_t *files_map(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	struct ckpt_err e;

	if (!f->lender || pin(f, i, &e))
		return NULL;
	return shown(f, i, source_map(f->v[i].source, off, len), len);
}

const uint8_t *files_bring(struct files *f, uint32_t i, uint64_t off, uint64_t len)
{
	struct file *x = &f->v[i];
	autofree uint8_t *buf = NULL;
	struct ckpt_err e;
	const uint8_t *p;
	bool may;

	if (!f->lender || x->no_bring || pin(f, i, &e))
		return NULL;
	may = source_may_map(x->source);
	unpin(f, i);
	if (!may)
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
	struct ckpt_err e;

	if (!f->lender || pin(f, i, &e))
		return NULL;
	return shown(f, i, source_lend(f->v[i].source, off, len), len);
}

void files_unlend(struct files *f, uint32_t i)
{
	source_give_back(f->v[i].source);
	unpin(f, i);
}

void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS])
{
	uint64_t now[FILES_COUNTS];

	counters_read(f->counts, now);
	for (size_t i = 0; i < FILES_COUNTS; i++)
		ret[i] += now[i];
}

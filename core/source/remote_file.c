/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as sources. What the fetcher has fetched is in files of this machine, segments, and the
 * object's map says which blocks are there (see wire.h): those are read, mapped and lent
 * without a message.
 *
 * An object may be open as several sources; its segments are shared by them. A source maps segments
 * for itself, and keeps what it has mapped until it is freed.
 */
#include "source/remote_internal.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "source/guard.h"
#include "source/lender.h"
#include "source/pagemap.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
	PIECE = 4 << 20,       /* bytes that one message asks for */
	MAX_TRIES = 16,	       /* for blocks that are evicted as soon as they are there */
	TOUCH_SECONDS = 60,    /* between two messages that a segment is in use */
	MIN_SEGMENT = 4 << 20, /* so that a piece is in two segments at most */
	MAX_SEGMENTS = 1 << 20,
};

struct rseg {
	int fd;
	uint32_t generation, room;
	unsigned users; /* the table, readers, mappings; under the file's lock */
	uint64_t touched_ns;
};

/* Where an object's blocks are. */
struct room {
	uint32_t number; /* among the file's rooms: segments of another room do not belong here */
	bool in_memory;
	bool lost; /* the fetcher has another, whose map this process could not open: see get_number */
	struct map_view view;
	void *map;
	struct rseg **v; /* under the file's lock */
};

struct rfile {
	struct rplace *place;
	struct link *link; /* its */
	_Atomic unsigned users;
	uint32_t number; /* in the fetcher of that epoch; under the lock */
	uint64_t epoch;
	char *path;
	struct place_seen seen;
	_Atomic int gone; /* errno: the object is another by now */
	pthread_mutex_t lock;
	struct room *room;
};

/* A segment that a source has mapped. */
struct smap {
	struct rseg *segment;
	struct pagemap *map;
	uint64_t i;
	struct smap *next;
};

struct remote_source {
	struct source source;
	struct rfile *file;
	_Atomic(struct smap *) maps; /* only ever prepended to */
};

/* ---- rooms and segments; under the file's lock ---- */

/* Returns the descriptor that the caller must close without the lock; -1: none. */
static int leave_segment(struct rseg *s)
{
	int fd;

	if (!s || --s->users)
		return -1;
	fd = s->fd;
	free(s);
	return fd;
}

/* Descriptors of segments in this process, which may be a program that has few. */
static _Atomic size_t n_open;

static size_t most_open(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim))
		lim.rlim_cur = 1024;
	return (size_t)min_u64(max_u64(lim.rlim_cur / 2, 16), 1 << 20);
}

/* Closes what leave_segment has returned. */
static void close_fd(int fd)
{
	if (fd < 0)
		return;
	(void)close(fd);
	n_open--;
}

static void free_room(struct room *r)
{
	if (!r)
		return;
	for (uint64_t i = 0; r->v && i < r->view.n_segments; i++)
		close_fd(leave_segment(r->v[i]));
	if (r->map)
		(void)munmap(r->map, (size_t)r->view.bytes);
	free(r->v);
	free(r);
}

/* A room from the numbers of a message and its descriptor, which stays the caller's. */
static int new_room(const struct wire_head *h, int fd, uint64_t size, struct room **ret,
		    struct ckpt_err *e)
{
	struct room *r = calloc(1, sizeof(*r));
	struct stat st;

	if (!r)
		return err_nomem(e);
	if (fd == -EMFILE) {
		free(r);
		return err_sys(e, EMFILE, "open what was fetched");
	}
	r->in_memory = h->n[3] != 0;
	if (fd < 0 || fstat(fd, &st) || h->n[2] < MIN_SEGMENT ||
	    !map_layout(size, h->n[2], &r->view) || r->view.n_segments > MAX_SEGMENTS ||
	    st.st_size < 0 || (uint64_t)st.st_size < r->view.bytes) {
		free(r);
		return err_set(e, EPROTO, "ckptfs-fetch sent an invalid map");
	}
	r->v = calloc((size_t)r->view.n_segments + 1, sizeof(struct rseg *));
	if (!r->v) {
		free(r);
		return err_nomem(e);
	}
	guard_install();
	r->map = mmap(NULL, (size_t)r->view.bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (r->map == MAP_FAILED) {
		r->map = NULL;
		free_room(r);
		return err_sys(e, errno, "map");
	}
	*ret = r;
	return 0;
}

/* What is looked for in a map. The map may be cut by somebody else: see guard.h. */
struct look {
	const struct room *room;
	struct rseg *const *v;	/* v[0] is segment number i; NULL: in those that the map names */
	uint64_t i, first, end; /* blocks */
	bool there;
};

static void look_guarded(void *arg)
{
	struct look *l = arg;
	const struct room *r = l->room;
	uint64_t per = r->view.segment / WIRE_BLOCK;

	for (uint64_t b = l->first; b < l->end; b++) {
		const struct rseg *s = l->v ? l->v[b / per - l->i] : NULL;
		const struct map_block *x = map_block(r->map, &r->view, b);
		uint32_t generation =
			s ? s->generation : *map_generation(r->map, b / per) & (UINT32_MAX >> 2);

		if ((l->v && (!s || s->room != r->number)) ||
		    atomic_load_explicit(&x->word, memory_order_acquire) !=
			    map_word(generation, MAP_THERE))
			return;
	}
	l->there = true;
}

/* Are the blocks of [off, off+len) in these segments? v[0] is segment number i. */
static bool all_there(const struct room *r, struct rseg *const *v, uint64_t i, uint64_t off,
		      uint64_t len)
{
	struct look l = { r, v, i, off / WIRE_BLOCK, (off + len - 1) / WIRE_BLOCK + 1, false };

	return !r->lost && guard_run(look_guarded, &l) && l.there;
}

/* ---- files ---- */

bool rfile_hold(struct rfile *f)
{
	unsigned n = f->users;

	while (n && !atomic_compare_exchange_weak(&f->users, &n, n + 1))
		;
	return n > 0;
}

static void tell_forget(struct rfile *f, uint32_t number, uint64_t epoch)
{
	struct wire_head h = { .kind = WIRE_FORGET, .n = { number } };

	link_remove_file(f->link, number, f);
	link_tell(f->link, epoch, &h);
}

void rfile_put(struct rfile *f)
{
	if (!f || --f->users)
		return;
	tell_forget(f, f->number, f->epoch);
	free_room(f->room);
	(void)pthread_mutex_destroy(&f->lock);
	rplace_put(f->place);
	free(f->path);
	free(f);
}

bool rfile_is(const struct rfile *f, const char *path, const struct place_seen *seen)
{
	return !strcmp(f->path, path) && place_id_equal(&f->seen.id, &seen->id) &&
	       f->seen.size == seen->size;
}

bool rfile_is_gone(const struct rfile *f)
{
	return f->gone;
}

bool rfile_is_unused(const struct rfile *f)
{
	return f->users == 1;
}

static int ask_file_once(struct rfile *f, uint32_t *ret_number, uint64_t *ret_epoch,
			 struct room **ret, struct ckpt_err *e)
{
	struct call c = { .head = { .kind = WIRE_FILE } };
	int rc;

	wire_put_seen(&c.head, &f->seen);
	rc = rplace_call(f->place, &c, f->path, strlen(f->path) + 1, e);
	if (!rc) {
		rc = new_room(&c.head, c.fd, f->seen.size, ret, e);
		if (rc) /* it is open there */
			tell_forget(f, (uint32_t)c.head.n[1], c.epoch);
	}
	*ret_number = (uint32_t)c.head.n[1];
	*ret_epoch = c.epoch;
	call_release(&c);
	return rc;
}

/* Opens it in the fetcher that runs now. */
static int ask_file(struct rfile *f, uint32_t *ret_number, uint64_t *ret_epoch, struct room **ret,
		    struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };
	int rc = ask_file_once(f, ret_number, ret_epoch, ret, &why);

	if (rc == -EMFILE || rc == -ENFILE) {
		link_trim(f->link);
		return ask_file_once(f, ret_number, ret_epoch, ret, e);
	}
	if (rc)
		*e = why;
	return rc;
}

/* From now on the blocks are in this room. */
static void enter_room(struct rfile *f, struct room *r)
{
	r->number = f->room->number + 1;
	free_room(f->room);
	f->room = r;
}

/* Its number in a fetcher that runs or has just died; it is opened again if necessary, also if the
 * map of where its blocks are by now was lost. */
static int get_number(struct rfile *f, uint64_t *ret, uint64_t *ret_epoch, struct ckpt_err *e)
{
	uint32_t number, before;
	uint64_t epoch, epoch_before;
	struct room *r;
	bool newer, lost;

	{
		SCOPED_LOCK(&f->lock);
		*ret = f->number;
		*ret_epoch = f->epoch;
		lost = f->room->lost;
	}
	if (!lost && *ret_epoch == link_epoch(f->link))
		return 0;
	if (ask_file(f, &number, &epoch, &r, e))
		return -e->code;
	{
		/* If two threads come here at the same time, one opens it in vain. */
		SCOPED_LOCK(&f->lock);
		before = f->number;
		epoch_before = f->epoch;
		newer = epoch > f->epoch || (epoch == f->epoch && f->room->lost);
		if (newer) {
			f->number = number;
			f->epoch = epoch;
			enter_room(f, r);
		}
		*ret = f->number;
		*ret_epoch = f->epoch;
	}
	if (newer && epoch_before == epoch)
		tell_forget(f, before, epoch);
	if (newer && !link_add_file(f->link, epoch, number, f, e))
		return 0;
	tell_forget(f, number, epoch);
	if (!newer) {
		free_room(r);
		return 0;
	}
	SCOPED_LOCK(&f->lock);
	if (f->epoch == epoch)
		f->epoch = 0; /* whoever needs it tries again */
	return -e->code;
}

/* A call whose first number is the file's. */
static int file_call(struct rfile *f, struct call *c, struct ckpt_err *e)
{
	int rc;

	do {
		rc = get_number(f, &c->head.n[0], &c->epoch, e);
		if (!rc)
			rc = link_call(f->link, c, NULL, 0, e);
	} while (rc && link_again(c));
	return rc;
}

/* Sends a message that may be lost and means nothing to another fetcher. */
static void file_hint(struct rfile *f, struct wire_head *h)
{
	uint64_t epoch;

	{
		SCOPED_LOCK(&f->lock);
		h->n[0] = f->number;
		epoch = f->epoch;
	}
	link_hint(f->link, epoch, h);
}

int rfile_open(struct rplace *p, const char *path, const struct place_seen *seen,
	       struct rfile **ret, struct ckpt_err *e)
{
	struct rfile *f = calloc(1, sizeof(*f));

	if (!f || !(f->path = strdup(path))) {
		free(f);
		return err_nomem(e);
	}
	f->place = p;
	f->link = rplace_link(p);
	f->seen = *seen;
	f->users = 1;
	if (ask_file(f, &f->number, &f->epoch, &f->room, e)) {
		free(f->path);
		free(f);
		return -e->code;
	}
	(void)pthread_mutex_init(&f->lock, NULL);
	rplace_hold(p);
	rplace_note(p, path);
	if (link_add_file(f->link, f->epoch, f->number, f, e)) {
		rfile_put(f);
		return -e->code;
	}
	*ret = f;
	return 0;
}

/* ---- what the receiving thread does ---- */

void rfile_trim(struct rfile *f)
{
	int fds[64];
	size_t n;

	do {
		n = 0;
		{
			SCOPED_LOCK(&f->lock);
			struct room *r = f->room;

			for (uint64_t i = 0; i < r->view.n_segments && n < ARRAY_LEN(fds); i++)
				if (r->v[i] && r->v[i]->users == 1) {
					fds[n++] = leave_segment(r->v[i]);
					r->v[i] = NULL;
				}
		}
		for (size_t i = 0; i < n; i++)
			close_fd(fds[i]);
	} while (n == ARRAY_LEN(fds));
}

void rfile_segment(struct rfile *f, struct wire_msg *m)
{
	struct rseg *s = calloc(1, sizeof(*s)), *before = NULL;
	uint64_t i = m->head.n[1];
	int fd = -1;
	struct stat st;

	if (m->fd < 0 || n_open >= most_open())
		link_trim(f->link);
	if (!s || m->fd < 0 || fstat(m->fd, &st)) {
		free(s);
		return; /* a read that needs it will say so */
	}
	*s = (struct rseg){ .fd = m->fd, .generation = (uint32_t)m->head.n[2], .users = 1 };
	{
		SCOPED_LOCK(&f->lock);
		struct room *r = f->room;

		if (m->head.n[0] == f->number && i < r->view.n_segments && st.st_size >= 0 &&
		    (uint64_t)st.st_size >= map_segment_size(&r->view, i)) {
			before = r->v[i];
			s->room = r->number;
			r->v[i] = s;
			s = NULL;
			m->fd = -1;
			n_open++;
			fd = leave_segment(before);
		}
	}
	close_fd(fd);
	free(s);
}

void rfile_drop(struct rfile *f, const struct wire_msg *m)
{
	uint64_t i = m->head.n[1];
	int fd = -1;

	{
		SCOPED_LOCK(&f->lock);
		struct room *r = f->room;

		if (m->head.n[0] == f->number && i < r->view.n_segments && r->v[i] &&
		    r->v[i]->generation == m->head.n[2]) {
			fd = leave_segment(r->v[i]);
			r->v[i] = NULL;
		}
	}
	close_fd(fd);
}

void rfile_map(struct rfile *f, struct wire_msg *m)
{
	struct ckpt_err ignored;
	struct room *r;

	if (new_room(&m->head, m->fd, f->seen.size, &r, &ignored))
		r = NULL;
	SCOPED_LOCK(&f->lock);
	if (m->head.n[1] != f->number) { /* it has been opened again meanwhile */
		free_room(r);
		return;
	}
	if (!r) { /* segments that come now are not those that the old map is about */
		f->room->lost = true;
		return;
	}
	enter_room(f, r); /* once in the life of a file, because its disk is full */
}

/* Keeps the segments of a span that the caller will read. */
static bool pin(struct rfile *f, uint64_t off, uint64_t len, bool unless_missing,
		struct rseg *pins[static MAX_PINS])
{
	SCOPED_LOCK(&f->lock);
	const struct room *r = f->room;
	uint64_t i = off / r->view.segment, last = (off + len - 1) / r->view.segment;

	if (last - i >= MAX_PINS)
		return false;
	if (unless_missing && !all_there(r, r->v + i, i, off, len))
		return false;
	for (uint64_t k = i; k <= last; k++) {
		pins[k - i] = r->v[k];
		if (r->v[k])
			r->v[k]->users++;
	}
	return true;
}

static void unpin(struct rfile *f, struct rseg *pins[static MAX_PINS])
{
	int fds[MAX_PINS];

	{
		SCOPED_LOCK(&f->lock);
		for (size_t k = 0; k < MAX_PINS; k++) {
			fds[k] = leave_segment(pins[k]);
			pins[k] = NULL;
		}
	}
	for (size_t k = 0; k < MAX_PINS; k++)
		close_fd(fds[k]);
}

void rfile_pin(struct rfile *f, struct call *c)
{
	(void)pin(f, c->off, c->size, false, c->pins);
}

/* ---- reading ---- */

/* Says from time to time that a segment is in use, because reading it sends no message. */
static void touch(struct rfile *f, struct rseg *s, uint64_t i)
{
	uint64_t now = clock_ns();
	struct wire_head h = { .kind = WIRE_TOUCH, .n = { 0, i } };

	{
		SCOPED_LOCK(&f->lock);
		if (s->touched_ns && now - s->touched_ns < TOUCH_SECONDS * CLOCK_SECOND)
			return;
		s->touched_ns = now;
	}
	file_hint(f, &h);
}

/* Reads from pinned segments. 1: the blocks are in others by now. */
static int read_pinned(struct rfile *f, struct rseg *const *pins, uint8_t *buf, uint64_t len,
		       uint64_t off, struct ckpt_err *e)
{
	uint64_t segment, i;
	bool there;

	{
		SCOPED_LOCK(&f->lock);
		segment = f->room->view.segment;
		i = off / segment;
		there = (off + len - 1) / segment - i < MAX_PINS &&
			all_there(f->room, pins, i, off, len);
	}
	if (!there)
		return 1;
	while (len) {
		uint64_t k = off / segment, n = min_u64(len, (k + 1) * segment - off);
		int rc = io_pread(pins[k - i]->fd, buf, (size_t)n, off - k * segment);

		if (rc)
			return err_sys(e, -rc, "read the cache");
		touch(f, pins[k - i], k);
		buf += n;
		off += n;
		len -= n;
	}
	return 0;
}

/* Is there a segment of these bytes without a descriptor? */
static bool lacks_segments(struct rfile *f, uint64_t off, uint64_t len)
{
	SCOPED_LOCK(&f->lock);
	const struct room *r = f->room;

	for (uint64_t k = off / r->view.segment; k <= (off + len - 1) / r->view.segment; k++)
		if (!r->v[k])
			return true;
	return false;
}

static bool is_there(struct rfile *f, uint64_t off, uint64_t len)
{
	SCOPED_LOCK(&f->lock);
	struct look l = { f->room, NULL, 0, off / WIRE_BLOCK, (off + len - 1) / WIRE_BLOCK + 1,
			  false };

	return guard_run(look_guarded, &l) && l.there;
}

/* At most PIECE bytes that exist. */
static int read_piece(struct rfile *f, uint8_t *buf, uint64_t len, uint64_t off, struct ckpt_err *e)
{
	struct rseg *pins[MAX_PINS] = { NULL };
	int rc = 1;

	if (pin(f, off, len, true, pins)) {
		rc = read_pinned(f, pins, buf, len, off, e);
		unpin(f, pins);
	}
	link_note_read(f->link, rc <= 0 || is_there(f, off, len));
	for (unsigned tries = 0; rc == 1 && tries < MAX_TRIES; tries++) {
		bool anew = tries || lacks_segments(f, off, len);
		struct call c = { .head = { .kind = WIRE_READ, .n = { 0, off, len, anew } },
				  .file = f,
				  .off = off,
				  .size = len };

		rc = file_call(f, &c, e);
		if (rc == -ESTALE)
			f->gone = ESTALE;
		if (!rc)
			rc = read_pinned(f, c.pins, buf, len, off, e);
		unpin(f, c.pins);
		call_release(&c);
	}
	if (rc == 1)
		rc = err_set(e, EIO,
			     "fetched data is evicted at once: more file descriptors or a larger "
			     "cache are needed");
	return rc;
}

static struct rfile *file_of(const struct source *s)
{
	return ((const struct remote_source *)(const void *)s)->file;
}

static void tell_want(struct rfile *f, uint64_t off, uint64_t len)
{
	struct wire_head h = { .kind = WIRE_WANT, .n = { 0, off, len } };

	file_hint(f, &h);
}

static int64_t read_remote(struct source *s, void *buf, size_t len, uint64_t off,
			   struct ckpt_err *e)
{
	struct rfile *f = file_of(s);
	uint64_t size = f->seen.size;

	if (off >= size || !len)
		return 0;
	len = (size_t)min_u64(len, size - off);
	if (len > PIECE)
		tell_want(f, off + PIECE, len - PIECE);
	for (uint64_t at = 0, n; at < len; at += n) {
		struct ckpt_err why = { 0 };
		int rc;

		n = min_u64(len - at, PIECE);
		rc = read_piece(f, (uint8_t *)buf + at, n, off + at, &why);
		if (rc)
			return err_set(e, -rc, "%llu bytes at %llu: %s", (unsigned long long)n,
				       (unsigned long long)(off + at), why.msg);
	}
	return (int64_t)len;
}

static bool want_remote(struct source *s, uint64_t off, uint64_t len)
{
	struct rfile *f = file_of(s);

	if (off >= f->seen.size || !len)
		return false;
	len = min_u64(len, f->seen.size - off);
	if (f->gone || is_there(f, off, len))
		return false;
	tell_want(f, off, len);
	return true;
}

/* As long as the store serves that version, the object has not changed. */
static int look_remote(struct source *s, struct place_seen *ret)
{
	const struct rfile *f = file_of(s);

	if (f->gone)
		return -ESTALE;
	*ret = f->seen;
	return 0;
}

/* ---- mapping ---- */

static struct smap *find_map(struct remote_source *s, uint64_t i, const struct rseg *segment)
{
	for (struct smap *m = s->maps; m; m = m->next)
		if (m->i == i && m->segment == segment)
			return m;
	return NULL;
}

static void smap_free(struct rfile *f, struct smap *m)
{
	struct rseg *pins[MAX_PINS] = { m->segment };

	pagemap_free(m->map);
	unpin(f, pins);
	free(m);
}

/* Takes over a pin of the segment. */
static struct smap *map_segment(struct remote_source *s, uint64_t i, uint64_t size,
				struct rseg *segment)
{
	struct rseg *pins[MAX_PINS] = { segment };
	/* What is mapped keeps its descriptor: some must remain for what is read. */
	struct smap *m = n_open > most_open() / 4 * 3 ? NULL : calloc(1, sizeof(*m));

	if (m)
		m->map = pagemap_new(s->source.lender->pool, segment->fd, size);
	if (!m || !m->map) {
		free(m);
		unpin(s->file, pins);
		return NULL;
	}
	m->segment = segment;
	m->i = i;
	m->next = s->maps;
	while (!atomic_compare_exchange_weak(&s->maps, &m->next, m))
		;
	return m;
}

/* Only segments on disk: those in memory have to be closed when they are evicted, and what is
 * mapped is borrowed until the source is freed. */
static const uint8_t *map_remote(struct source *x, uint64_t off, uint64_t len)
{
	struct remote_source *s = (struct remote_source *)(void *)x;
	struct rseg *pins[MAX_PINS] = { NULL };
	struct smap *m;
	uint64_t segment, size, i;
	bool may;

	if (!range_ok(off, len, s->file->seen.size))
		return NULL;
	{
		SCOPED_LOCK(&s->file->lock);
		segment = s->file->room->view.segment;
		i = off / segment;
		size = map_segment_size(&s->file->room->view, i);
		may = !s->file->room->in_memory && (off + len - 1) / segment == i;
	}
	if (!may || !pin(s->file, off, len, true, pins))
		return NULL;
	if (!pins[0] || pins[1]) { /* another room by now */
		unpin(s->file, pins);
		return NULL;
	}
	m = find_map(s, i, pins[0]);
	if (m) {
		touch(s->file, pins[0], i);
		unpin(s->file, pins);
	} else
		m = map_segment(s, i, size, pins[0]);
	if (m)
		link_note_read(s->file->link, true);
	return m ? pagemap_get(m->map, off - i * segment, len, false) : NULL;
}

static bool may_map_remote(const struct source *x)
{
	struct rfile *f = file_of(x);
	SCOPED_LOCK(&f->lock);

	return !f->room->in_memory;
}

/* A stored block never changes. */
static void give_back_remote(struct source *s)
{
	(void)s;
}

static void free_remote(struct source *x)
{
	struct remote_source *s = (struct remote_source *)(void *)x;

	for (struct smap *m = s->maps, *next; m; m = next) {
		next = m->next;
		smap_free(s->file, m);
	}
	rfile_put(s->file);
	free(s);
}

int rfile_source(struct rfile *f, struct source **ret, struct ckpt_err *e)
{
	static const struct source_ops ops = { .read = read_remote,
					       .look = look_remote,
					       .free = free_remote,
					       .map = map_remote,
					       .may_map = may_map_remote,
					       .lend = map_remote,
					       .give_back = give_back_remote,
					       .want = want_remote };
	struct remote_source *s = calloc(1, sizeof(*s));

	if (!s)
		return err_nomem(e);
	s->source.ops = &ops;
	s->source.seen = f->seen;
	s->file = f;
	*ret = &s->source;
	return 0;
}

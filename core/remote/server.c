/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/server.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/list.h"
#include "base/vec.h"
#include "remote/depot.h"
#include "remote/sched.h"
#include "remote/store.h"
#include "remote/wire.h"
#include "remote/writes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

enum {
	MAX_JOBS = 64,	     /* that block in a store at a time; others wait for a thread */
	MAX_WANTS = 4096,    /* ranges; more are forgotten, because they are only hints */
	MAX_WAITERS = 65536, /* reads that wait at a time */
	MAX_OUT = 1 << 20,   /* messages that the other side has not taken */
	MAX_FETCHES = 256,   /* requests on their way */
	BUSY_MS = 4,	     /* until a block that another process fetches is looked at again */
	BUSY_MAX_MS = 10000, /* then it is fetched here, too */
	MESSAGES = 64,	     /* received before the rest has a turn */
	COUNT_MS = 500,	     /* until numbers are shown that came meanwhile */
	CHECKS = 64,	     /* unchecked blocks of what is wanted that are read in a turn */
};

/* ---- what there is ---- */

struct place_row {
	struct store *store;
	unsigned users; /* files, jobs, and the other side; 0: free */
	bool closed;	/* by the other side */
};

struct file {
	uint32_t number, place;
	char *path;
	struct place_seen seen;
	struct object *object;
	uint32_t *sent; /* generation of each segment whose descriptor was sent; 0: none */
	uint64_t sent_n;
	struct steps steps; /* of requests for what was wanted */
	unsigned fetches;
	bool forgotten;	     /* by the other side; freed when nothing is on its way */
	int gone;	     /* errno, once the object was found to be another */
	struct ckpt_err why; /* if gone */
};

/* A read that waits. */
struct waiter {
	struct file *file;
	uint32_t id;
	struct span span;
	uint64_t
		busy_ns; /* since when another process has fetched what is missing; 0: it does not */
	LIST_LINK(struct waiter) link;
};

struct want {
	struct file *file; /* NULL: not wanted any more */
	struct span span;
	uint64_t checked; /* no block before it is unchecked */
};

/* A request on its way. */
struct fetch {
	struct server *server;
	struct file *file;
	struct hold *hold;
	struct get *get;
	uint64_t first, n, bytes;
	uint64_t seen_done; /* blocks */
	bool urgent;
	/* Of the network's thread, until it is finished. */
	atomic_bool cancelled;
	int disk; /* -errno: the bytes could not be written */
	/* Under the queue's lock. */
	bool finished, noted;
	int rc;
	struct ckpt_err why;
	struct fetch *next_note;
	LIST_LINK(struct fetch) link;
};

/* A message that blocks in the store, or an answer of one. */
struct job {
	struct server *server;
	struct wire_head head;
	char *text[4];
	char *all; /* the whole text */
	int fd;	   /* that came with it, or -1 */
	struct store *store;
	uint32_t place;
	/* Of WIRE_FILE. */
	struct place_seen seen;
	bool again;
	struct object *object;
	int rc;
	struct ckpt_err why;
	uint32_t left; /* the place of a session that is over; UINT32_MAX: none is */
	struct job *next;
};

struct out {
	struct wire_head head;
	char *text;
	size_t len;
	int fd;
	struct out *next;
};

/* What other threads hand to the first, and it to them. */
struct queue {
	pthread_mutex_t lock;
	pthread_cond_t work;
	int event;
	struct fetch *notes;
	struct out *done, **done_end; /* answers */
	struct job *jobs, **jobs_end, *ended;
	unsigned threads, idle, n_jobs; /* n_jobs: those that no thread has taken */
};

struct server {
	int sock;
	struct queue queue;
	struct net *net;
	struct depot *depot;
	struct writes *writes;
	struct place_row *places;
	size_t n_places, cap_places;
	struct file **files; /* by number */
	size_t n_files, cap_files;
	struct want *wants;
	size_t n_wants, cap_wants;
	LIST(struct waiter) waiters; /* the last has waited for longest */
	size_t n_waiters;
	LIST(struct fetch) fetches;
	size_t n_fetches;
	uint64_t busy; /* bytes on their way */
	struct window window;
	uint64_t ram;
	struct out *out, **out_end;
	size_t n_out;
	bool again;		    /* something another process fetches is to be looked at again */
	bool at_once;		    /* there is more to check */
	struct wire_counts *counts; /* NULL: nobody sees them */
	bool counting;		    /* they may have changed since */
};

/* ---- sending ---- */

/* Takes over fd. Out of memory: the other side would wait for ever, so it is told by our end. */
static struct out *out_new(const struct wire_head *h, const void *text, size_t len, int fd)
{
	struct out *x = malloc(sizeof(*x));
	char *copy = x && len ? malloc(len) : NULL;

	if (!x || (len && !copy))
		_exit(1);
	if (len)
		memcpy(copy, text, len);
	*x = (struct out){ .head = *h, .text = copy, .len = len, .fd = fd };
	return x;
}

static void send_later(struct server *s, const struct wire_head *h, const void *text, size_t len,
		       int fd)
{
	struct out *x = out_new(h, text, len, fd);

	if (++s->n_out > MAX_OUT)
		_exit(1);
	*s->out_end = x;
	s->out_end = &x->next;
}

static void answer(struct server *s, uint32_t id, const struct ckpt_err *e)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = id };
	const char *text = e ? e->msg : NULL;

	h.n[0] = e ? (uint64_t)(e->code ? e->code : EIO) : 0;
	if (id)
		send_later(s, &h, text, text ? strlen(text) + 1 : 0, -1);
}

static int flush(struct server *s)
{
	while (s->out) {
		struct out *x = s->out;
		struct pollfd p = { .fd = s->sock, .events = POLLOUT };
		int rc;

		if (poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT))
			return 0;
		rc = wire_send(s->sock, &x->head, x->text, x->len, x->fd);
		if (rc)
			return rc;
		s->out = x->next;
		if (!s->out)
			s->out_end = &s->out;
		s->n_out--;
		if (x->fd >= 0)
			(void)close(x->fd);
		free(x->text);
		free(x);
	}
	return 0;
}

/* ---- the queue ---- */

static void wake(struct server *s)
{
	const uint64_t one = 1;

	(void)!write(s->queue.event, &one, sizeof(one));
}

/* From any thread. */
static void answer_from_thread(struct server *s, const struct wire_head *h, const void *text,
			       size_t len)
{
	struct out *x = out_new(h, text, len, -1);

	{
		SCOPED_LOCK(&s->queue.lock);
		*s->queue.done_end = x;
		s->queue.done_end = &x->next;
	}
	wake(s);
}

static void error_from_thread(struct server *s, uint32_t id, const struct ckpt_err *e)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = id };

	h.n[0] = (uint64_t)(e->code ? e->code : EIO);
	answer_from_thread(s, &h, e->msg, strlen(e->msg) + 1);
}

/* ---- jobs ---- */

/* A listing on its way out. */
struct lister {
	struct server *server;
	uint32_t id;
	char *text;
	size_t len;
};

static void send_entries(struct lister *l, bool more)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = l->id, .n = { 0, more } };

	answer_from_thread(l->server, &h, l->text, l->len);
	l->len = 0;
}

static int add_entry(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	struct lister *l = arg;
	size_t n = strlen(name);
	struct wire_entry x = { .size = seen->size,
				.mtime_ns = seen->mtime_ns,
				.kind = (uint8_t)seen->kind,
				.id_len = seen->id.len,
				.name = (uint16_t)n };

	if (n > UINT16_MAX || sizeof(x) + n > WIRE_TEXT_MAX)
		return err_set(e, ENAMETOOLONG, "a name of %zu bytes", n);
	memcpy(x.id, seen->id.v, sizeof(x.id));
	if (l->len + sizeof(x) + n > WIRE_TEXT_MAX)
		send_entries(l, true);
	memcpy(l->text + l->len, &x, sizeof(x));
	memcpy(l->text + l->len + sizeof(x), name, n);
	l->len += sizeof(x) + n;
	return 0;
}

static void do_list(struct job *j)
{
	struct lister l = { .server = j->server, .id = j->head.id, .text = malloc(WIRE_TEXT_MAX) };
	struct ckpt_err e = { 0 };
	int rc = l.text ? store_list(j->store, j->text[0], add_entry, &l, &e) : err_nomem(&e);

	if (rc == -ENOTSUP && !*e.msg)
		(void)err_set(&e, ENOTSUP, "the store has no listings");
	if (rc)
		error_from_thread(j->server, j->head.id, &e);
	else {
		if (l.len)
			send_entries(&l, true);
		send_entries(&l, false);
	}
	free(l.text);
}

static void do_look(struct job *j)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = j->head.id };
	struct place_seen seen = { 0 };
	struct ckpt_err e = { 0 };
	int rc = store_look(j->store, j->text[0], &seen, &e);

	if (rc < 0) {
		error_from_thread(j->server, j->head.id, &e);
		return;
	}
	h.n[1] = rc > 0;
	wire_put_seen(&h, &seen);
	answer_from_thread(j->server, &h, NULL, 0);
}

static const char *or_null(const char *s)
{
	return *s ? s : NULL;
}

/* The store becomes one of the places when the first thread sees the ended job. */
static void do_open(struct job *j)
{
	const struct store_options o = { .endpoint = or_null(j->text[1]),
					 .region = or_null(j->text[2]),
					 .profile = or_null(j->text[3]),
					 .anonymous = j->head.n[0] != 0,
					 .dir = j->fd };
	struct ckpt_err e = { 0 };

	if (store_open(j->server->net, j->text[0], &o, &j->store, &e)) {
		j->store = NULL;
		error_from_thread(j->server, j->head.id, &e);
	}
}

/* The object becomes a file when the first thread sees the ended job. */
static void do_file(struct job *j)
{
	const char *origin = store_origin(j->store);
	autofree char *address = NULL;

	/* What one endpoint serves must not be taken for what another has under that name. */
	if (asprintf(&address, "%s%s%s", store_address(j->store), *origin ? " at " : "", origin) <
	    0) {
		address = NULL;
		j->rc = err_nomem(&j->why);
		return;
	}
	j->rc = depot_prepare(j->server->depot, address, j->text[0], &j->seen, j->again, &j->object,
			      &j->why);
}

static void do_write(struct job *j)
{
	const struct write_call c = { j->head, j->all, j->fd, j->store, j->place };
	struct wire_head h = { .kind = WIRE_ANSWER, .id = j->head.id };
	struct buf text CLEANUP(buf_release) = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	if (writes_call(j->server->writes, &c, &h, &text, &j->left, &e))
		error_from_thread(j->server, j->head.id, &e);
	else
		answer_from_thread(j->server, &h, text.data, text.len ? text.len + 1 : 0);
}

static bool is_write(const struct wire_head *h)
{
	return h->kind >= WIRE_BEGIN && h->kind <= WIRE_END;
}

static void *work(void *arg)
{
	struct server *s = arg;
	struct queue *q = &s->queue;

	for (;;) {
		struct job *j;

		{
			SCOPED_LOCK(&q->lock);
			q->idle++;
			while (!q->jobs)
				(void)pthread_cond_wait(&q->work, &q->lock);
			q->idle--;
			j = q->jobs;
			q->n_jobs--;
			q->jobs = j->next;
			if (!q->jobs)
				q->jobs_end = &q->jobs;
		}
		if (j->head.kind == WIRE_OPEN)
			do_open(j);
		else if (j->head.kind == WIRE_CLOSE)
			store_free(j->store); /* waits for a renewal of its credentials */
		else if (j->head.kind == WIRE_FILE)
			do_file(j);
		else if (j->head.kind == WIRE_LOOK)
			do_look(j);
		else if (is_write(&j->head))
			do_write(j);
		else
			do_list(j);
		{
			SCOPED_LOCK(&q->lock);
			j->next = q->ended;
			q->ended = j;
		}
		wake(s);
	}
	return NULL;
}

static void job_free(struct job *j)
{
	for (size_t i = 0; i < ARRAY_LEN(j->text); i++)
		free(j->text[i]);
	if (j->fd >= 0)
		(void)close(j->fd);
	free(j->all);
	free(j);
}

static void queue_job(struct server *s, struct job *j)
{
	struct queue *q = &s->queue;
	bool thread = false;
	pthread_t t;

	j->next = NULL;
	{
		SCOPED_LOCK(&q->lock);
		*q->jobs_end = j;
		q->jobs_end = &j->next;
		/* An idle thread that was woken for another job is still counted. */
		if (++q->n_jobs > q->idle && q->threads < MAX_JOBS) {
			q->threads++;
			thread = true;
		}
		(void)pthread_cond_signal(&q->work);
	}
	if (thread && pthread_create(&t, NULL, work, s)) {
		SCOPED_LOCK(&q->lock);
		if (!--q->threads)
			_exit(1); /* nobody would ever answer */
	} else if (thread)
		(void)pthread_detach(t);
}

static struct job *job_new(void)
{
	struct job *j = calloc(1, sizeof(*j));

	if (j) {
		j->left = UINT32_MAX;
		j->fd = -1;
	}
	return j;
}

/* Takes over the message's descriptor. seen: of WIRE_FILE, or NULL. */
static void start_job(struct server *s, struct wire_msg *m, struct store *store, uint32_t place,
		      const struct place_seen *seen)
{
	struct job *j = job_new();
	bool enough = j != NULL;

	if (j) {
		j->fd = m->fd;
		m->fd = -1;
		j->all = malloc((size_t)m->head.text + 1);
		enough = j->all != NULL;
	}
	if (enough)
		memcpy(j->all, m->text, (size_t)m->head.text + 1);
	for (unsigned i = 0; enough && i < ARRAY_LEN(j->text); i++) {
		j->text[i] = strdup(wire_string(m, i));
		enough = j->text[i] != NULL;
	}
	if (!enough) {
		struct ckpt_err e;

		(void)err_nomem(&e);
		if (j)
			job_free(j);
		answer(s, m->head.id, &e);
		return;
	}
	j->server = s;
	j->head = m->head;
	j->store = store;
	j->place = place;
	if (seen)
		j->seen = *seen;
	if (store)
		s->places[place].users++;
	queue_job(s, j);
}

/* ---- places ---- */

static void place_leave(struct server *s, uint32_t i)
{
	struct place_row *r = &s->places[i];
	struct job *j;

	if (--r->users)
		return;
	j = job_new();
	if (j) { /* out of memory: it stays */
		j->server = s;
		j->head.kind = WIRE_CLOSE;
		j->store = r->store;
		queue_job(s, j);
	}
	*r = (struct place_row){ 0 };
}

static struct place_row *place_row(struct server *s, uint64_t i)
{
	return i < s->n_places && s->places[i].users && !s->places[i].closed ? &s->places[i] : NULL;
}

/* Takes over the store of a job. */
static void add_place(struct server *s, const struct job *j)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = j->head.id };
	const char *address = store_address(j->store);
	size_t i = 0;

	while (i < s->n_places && s->places[i].users)
		i++;
	if (strlen(address) >= WIRE_TEXT_MAX || i >= WIRE_FILES_MAX ||
	    !VEC_ROOM(s->places, s->cap_places, i + 1)) {
		struct ckpt_err e;

		(void)err_set(&e, ENOMEM, "open '%.100s': too many places, or too long an address",
			      address);
		store_free(j->store);
		answer(s, j->head.id, &e);
		return;
	}
	if (i == s->n_places)
		s->n_places++;
	s->places[i] = (struct place_row){ .store = j->store, .users = 1 };
	h.n[1] = i;
	send_later(s, &h, address, strlen(address) + 1, -1);
}

/* ---- files ---- */

static struct file *file_of(struct server *s, uint64_t i)
{
	return i < s->n_files && s->files[i] && !s->files[i]->forgotten ? s->files[i] : NULL;
}

static void file_free(struct server *s, struct file *f)
{
	object_close(f->object);
	s->files[f->number] = NULL;
	place_leave(s, f->place);
	free(f->sent);
	free(f->path);
	free(f);
}

/* Tells the other side where the blocks are from now on. id: of the request, or 0. */
static int send_map(struct server *s, struct file *f, uint32_t id, struct ckpt_err *e)
{
	const struct map_view *v = object_view(f->object);
	uint32_t *sent = calloc((size_t)v->n_segments + 1, sizeof(*sent));
	int fd = sent ? fcntl(object_map(f->object), F_DUPFD_CLOEXEC, 0) : -1;
	struct wire_head h = { .kind = id ? WIRE_ANSWER : WIRE_MAP, .id = id };

	if (!sent || fd < 0) {
		free(sent);
		return sent ? err_sys(e, errno, "open '%s'", f->path) : err_nomem(e);
	}
	free(f->sent);
	f->sent = sent;
	f->sent_n = v->n_segments;
	h.n[1] = f->number;
	h.n[2] = v->segment;
	h.n[3] = object_in_memory(f->object);
	send_later(s, &h, NULL, 0, fd);
	return 0;
}

/* Takes over the object of a job. */
static int new_file(struct server *s, const struct job *j, struct ckpt_err *e)
{
	struct file *f = NULL;
	size_t i = 0;

	depot_adopt(j->object);
	while (i < s->n_files && s->files[i])
		i++;
	if (i < WIRE_FILES_MAX && VEC_ROOM(s->files, s->cap_files, i + 1))
		f = calloc(1, sizeof(*f));
	if (f)
		f->path = strdup(j->text[0]);
	if (!f || !f->path) {
		free(f);
		object_close(j->object);
		return err_nomem(e);
	}
	f->number = (uint32_t)i;
	f->place = j->place;
	f->seen = j->seen;
	f->object = j->object;
	s->places[j->place].users++;
	s->files[i] = f;
	s->n_files = max_u64(s->n_files, i + 1);
	if (send_map(s, f, j->head.id, e)) {
		file_free(s, f);
		return -e->code;
	}
	return 0;
}

/* False: the job is tried again. */
static bool add_file(struct server *s, struct job *j)
{
	struct ckpt_err e;

	if (j->rc == -EMFILE && !j->again) {
		depot_spare(s->depot);
		j->again = true;
		queue_job(s, j);
		return false;
	}
	if (j->rc)
		answer(s, j->head.id, &j->why);
	else if (new_file(s, j, &e))
		answer(s, j->head.id, &e);
	return true;
}

static void drop_wants(struct server *s, const struct file *f)
{
	for (size_t i = 0; i < s->n_wants; i++)
		if (s->wants[i].file == f)
			s->wants[i].file = NULL;
}

static struct waiter *waiter_end(struct server *s, struct waiter *w)
{
	struct waiter *before = w->link.prev;

	LIST_REMOVE(&s->waiters, w);
	s->n_waiters--;
	free(w);
	return before;
}

static void cancel_ahead(struct server *s, const struct file *f)
{
	drop_wants(s, f);
	LIST_EACH (x, &s->fetches)
		if (x->file == f && !x->urgent)
			x->cancelled = true;
}

static void forget(struct server *s, struct file *f)
{
	f->forgotten = true;
	cancel_ahead(s, f);
	for (struct waiter *w = s->waiters.last; w;)
		w = w->file == f ? waiter_end(s, w) : w->link.prev;
	if (!f->fetches)
		file_free(s, f);
}

/* A segment in memory is evicted. */
static void drop_segment(void *arg, struct object *o, uint64_t segment, uint32_t generation)
{
	struct server *s = arg;

	for (size_t i = 0; i < s->n_files; i++) {
		struct file *f = s->files[i];
		struct wire_head h = { .kind = WIRE_DROP };

		if (!f || f->object != o || f->forgotten || segment >= f->sent_n ||
		    f->sent[segment] != generation)
			continue;
		f->sent[segment] = 0;
		h.n[0] = f->number;
		h.n[1] = segment;
		h.n[2] = generation;
		send_later(s, &h, NULL, 0, -1);
	}
}

/* ---- fetching ---- */

/* On the network's thread. Lock held: the queue's. */
static void note(struct fetch *x)
{
	struct queue *q = &x->server->queue;

	if (x->noted)
		return;
	x->noted = true;
	x->next_note = q->notes;
	q->notes = x;
}

static int take_bytes(void *arg, const void *p, size_t n)
{
	struct fetch *x = arg;
	uint64_t before = hold_done(x->hold);
	bool first;

	if (x->cancelled)
		return 1;
	x->disk = hold_write(x->hold, p, n);
	if (x->disk)
		return 1;
	if (hold_done(x->hold) == before)
		return 0;
	{
		SCOPED_LOCK(&x->server->queue.lock);
		first = !x->noted;
		note(x);
	}
	if (first)
		wake(x->server);
	return 0;
}

static void take_end(void *arg, int rc, const struct ckpt_err *e)
{
	struct fetch *x = arg;
	struct server *s = x->server;

	{
		SCOPED_LOCK(&s->queue.lock);
		x->rc = rc;
		if (rc && e)
			x->why = *e;
		x->finished = true;
		note(x);
	}
	wake(s);
}

struct asked {
	struct server *server;
	const struct file *file;
	bool busy; /* something that is missing is on its way */
};

static bool is_missing(void *arg, uint64_t block)
{
	struct asked *a = arg;

	if (object_has(a->file->object, block))
		return false;
	LIST_EACH (x, &a->server->fetches)
		if (x->file->object == a->file->object && !x->cancelled && block >= x->first &&
		    block < x->first + x->n) {
			a->busy = true;
			return false;
		}
	return true;
}

/* 1: started; 0: another process is at it, or the blocks are there by now. */
static int start_fetch(struct server *s, struct file *f, struct span span, bool urgent, bool alone,
		       struct ckpt_err *e)
{
	struct fetch *x = calloc(1, sizeof(*x));
	uint64_t n = 0;
	int rc = x ? object_hold(f->object, span.first, span.end - span.first, alone, &x->hold, &n,
				 e)
		   : err_nomem(e);

	if (rc) {
		free(x);
		return rc == -EAGAIN || rc == -EALREADY ? 0 : rc;
	}
	x->server = s;
	x->file = f;
	x->first = span.first;
	x->n = n;
	x->urgent = urgent;
	x->bytes = min_u64(n * WIRE_BLOCK, f->seen.size - span.first * WIRE_BLOCK);
	const struct get_sink sink = { .arg = x, .bytes = take_bytes, .done = take_end };

	LIST_PUSH(&s->fetches, x);
	rc = store_get(s->places[f->place].store, f->path, &f->seen, span.first * WIRE_BLOCK,
		       x->bytes, urgent, &sink, &x->get, e);
	if (rc) {
		LIST_REMOVE(&s->fetches, x);
		hold_end(x->hold);
		free(x);
		return rc;
	}
	s->n_fetches++;
	s->busy += x->bytes;
	f->fetches++;
	return 1;
}

/* Sends the segments of a span that is there. False: not all of it is. */
static bool send_segments(struct server *s, struct file *f, struct span span, struct ckpt_err *e)
{
	const struct map_view *v = object_view(f->object);
	uint64_t per = v->segment / WIRE_BLOCK;

	for (uint64_t b = span.first; b < span.end; b++)
		if (!object_has(f->object, b))
			return false;
	for (uint64_t i = span.first / per; i <= (span.end - 1) / per; i++) {
		struct wire_head h = { .kind = WIRE_SEGMENT };
		uint32_t generation;
		int fd, rc = object_segment(f->object, i, &generation, &fd, e);

		if (rc)
			return false;
		object_touch(f->object, i);
		if (f->sent[i] == generation)
			continue;
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			(void)err_sys(e, errno, "segment");
			return false;
		}
		f->sent[i] = generation;
		h.n[0] = f->number;
		h.n[1] = i;
		h.n[2] = generation;
		send_later(s, &h, NULL, 0, fd);
	}
	/* What was evicted since is in another generation. */
	for (uint64_t b = span.first; b < span.end; b++)
		if (!object_has(f->object, b))
			return false;
	return true;
}

/* The object's directory cannot be used: its blocks are fetched into memory from now on. */
static bool leave_disk(struct server *s, struct file *f, struct ckpt_err *e)
{
	return !object_in_memory(f->object) && !object_leave_disk(f->object, e) &&
	       !send_map(s, f, 0, e);
}

/* Starts what a reader waits for. True: it is answered. */
static bool serve(struct server *s, struct waiter *w)
{
	struct file *f = w->file;
	struct asked a = { s, f, false };
	struct ckpt_err e = { 0 };
	struct span r;
	bool alone;

	if (f->gone) {
		answer(s, w->id, &f->why);
		return true;
	}
	if (send_segments(s, f, w->span, &e)) {
		answer(s, w->id, NULL);
		return true;
	}
	alone = w->busy_ns && clock_ns() - w->busy_ns > BUSY_MAX_MS * CLOCK_MS;
	for (struct span left = w->span;
	     !e.code && s->n_fetches < MAX_FETCHES &&
	     sched_exact(left, SCHED_MAX / WIRE_BLOCK, is_missing, &a, &r);
	     left.first = r.end) {
		int rc = start_fetch(s, f, r, true, alone, &e);

		if (!rc) {
			if (!w->busy_ns)
				w->busy_ns = clock_ns();
			s->again = true;
		}
		if (rc > 0)
			r.end = r.first + s->fetches.first->n;
	}
	if (e.code && leave_disk(s, f, &e)) {
		s->again = true;
		return false;
	}
	if (e.code) {
		answer(s, w->id, &e);
		return true;
	}
	if (s->n_fetches >= MAX_FETCHES || !a.busy)
		s->again = true;
	return false;
}

/* Checks more of what is wanted. *most: the blocks that may be read for it. */
static void check_more(struct want *w, uint64_t *most)
{
	uint64_t from = max_u64(w->checked, w->span.first);

	w->checked = object_check(w->file->object, from, w->span.end, *most);
	if (w->checked < w->span.end)
		*most = 0;
}

/* A request for wants[i] and what adjoins. False: nothing of it is missing. */
static bool start_wanted(struct server *s, size_t i, const struct net_pace *p, uint64_t *most)
{
	struct file *f = s->wants[i].file;
	struct asked a = { s, f, false };
	struct span near[64], r;
	struct ckpt_err ignored = { 0 };
	size_t n = 0;
	int rc;

	for (size_t k = i; k < s->n_wants && n < ARRAY_LEN(near); k++)
		if (s->wants[k].file == f) {
			check_more(&s->wants[k], most);
			near[n++] = (struct span){ s->wants[k].span.first, s->wants[k].checked };
		}
	if (f->gone || !sched_exact(near[0], 1, is_missing, &a, &r)) {
		s->wants[i].span.first = s->wants[i].checked;
		return false;
	}
	if (!sched_wanted(near, n, steps_most(&f->steps, r.first), sched_gap(p, s->busy),
			  is_missing, &a, &r))
		return false;
	rc = start_fetch(s, f, r, false, false, &ignored);
	if (rc <= 0) { /* another process fetches it, or a reader will see why not */
		if (rc < 0)
			s->wants[i].span.end = 0;
		s->wants[i].span.first = r.end;
		return rc == 0 && s->wants[i].span.first < s->wants[i].span.end;
	}
	steps_sent(&f->steps, r.first, r.first + s->fetches.first->n);
	return true;
}

static void schedule(struct server *s)
{
	struct net_pace p;
	uint64_t checks = CHECKS;
	size_t i = 0, kept = 0;

	s->again = s->at_once = false;
	for (struct waiter *w = s->waiters.last; w;)
		w = serve(s, w) ? waiter_end(s, w) : w->link.prev;
	net_pace(s->net, &p);
	while (i < s->n_wants && s->busy < s->window.bytes && s->n_fetches < MAX_FETCHES &&
	       s->n_fetches < max_u64(p.at_once, 1)) {
		struct want *w = &s->wants[i];

		if (w->file && start_wanted(s, i, &p, &checks))
			continue;
		s->at_once = w->file && !w->file->gone && w->checked < w->span.end;
		if (s->at_once)
			break;
		s->wants[i++].file = NULL;
	}
	for (i = 0; i < s->n_wants; i++)
		if (s->wants[i].file)
			s->wants[kept++] = s->wants[i];
	s->n_wants = kept;
}

/* The readers of a failed request, who would only fail again. */
static void fail_waiters(struct server *s, const struct fetch *x)
{
	for (struct waiter *w = s->waiters.last; w;) {
		bool his = w->file == x->file && w->span.first < x->first + x->n &&
			   w->span.end > x->first;

		if (his)
			answer(s, w->id, &x->why);
		w = his ? waiter_end(s, w) : w->link.prev;
	}
}

static void fetch_ended(struct server *s, struct fetch *x)
{
	struct file *f = x->file;
	bool in_memory = hold_in_memory(x->hold);
	int rc = x->rc;

	LIST_REMOVE(&s->fetches, x);
	s->n_fetches--;
	s->busy -= x->bytes;
	hold_end(x->hold);
	f->fetches--;
	if (rc == -ESTALE) {
		f->gone = ESTALE;
		f->why = x->why;
		drop_wants(s, f);
	}
	if (x->disk && !f->forgotten) {
		/* What the disk had no room for is fetched once more, into memory. */
		if (in_memory) {
			(void)err_sys(&x->why, -x->disk, "keep what was fetched");
			fail_waiters(s, x);
		} else if (!object_in_memory(f->object) && !leave_disk(s, f, &x->why))
			fail_waiters(s, x);
	} else if (rc && rc != -ECANCELED)
		fail_waiters(s, x);
	if (f->forgotten && !f->fetches)
		file_free(s, f);
	free(x);
}

/* The next fetch that has something to say; NULL: none. */
static struct fetch *take_note(struct server *s, bool *ret_finished)
{
	SCOPED_LOCK(&s->queue.lock);
	struct fetch *x = s->queue.notes;

	if (x) {
		s->queue.notes = x->next_note;
		x->noted = false;
		*ret_finished = x->finished;
	}
	return x;
}

static void take_notes(struct server *s)
{
	struct net_pace p;
	uint64_t arrived = 0;
	bool full = s->busy + SCHED_MAX > s->window.bytes, finished;

	for (struct fetch *x; (x = take_note(s, &finished));) {
		uint64_t done = hold_done(x->hold);

		arrived += (done - x->seen_done) * WIRE_BLOCK;
		x->seen_done = done;
		if (finished)
			fetch_ended(s, x);
	}
	net_pace(s->net, &p);
	window_arrived(&s->window, arrived, clock_ns(), full, &p, s->ram);
}

static void take_answers(struct server *s)
{
	struct out *done;
	struct job *ended;

	{
		SCOPED_LOCK(&s->queue.lock);
		done = s->queue.done;
		s->queue.done = NULL;
		s->queue.done_end = &s->queue.done;
		ended = s->queue.ended;
		s->queue.ended = NULL;
	}
	while (done) {
		struct out *x = done;

		done = x->next;
		x->next = NULL;
		if (++s->n_out > MAX_OUT)
			_exit(1);
		*s->out_end = x;
		s->out_end = &x->next;
	}
	while (ended) {
		struct job *j = ended;

		ended = j->next;
		if (j->left != UINT32_MAX)
			place_leave(s, j->left);
		if (j->head.kind == WIRE_FILE && !add_file(s, j))
			continue;
		if (j->head.kind == WIRE_OPEN && j->store)
			add_place(s, j);
		else if (j->head.kind != WIRE_OPEN && j->head.kind != WIRE_CLOSE && j->store)
			place_leave(s, j->place);
		job_free(j);
	}
}

/* ---- messages ---- */

static bool span_of(const struct file *f, uint64_t off, uint64_t len, struct span *ret)
{
	if (!len || !range_ok(off, len, f->seen.size))
		return false;
	*ret = (struct span){ off / WIRE_BLOCK, (off + len - 1) / WIRE_BLOCK + 1 };
	return true;
}

static void on_read(struct server *s, const struct wire_msg *m)
{
	struct file *f = file_of(s, m->head.n[0]);
	struct ckpt_err e;
	struct waiter *w;
	struct span span;

	if (!f || m->head.n[2] > WIRE_READ_MAX || s->n_waiters >= MAX_WAITERS ||
	    !span_of(f, m->head.n[1], m->head.n[2], &span)) {
		(void)err_set(&e, EINVAL, "a read that is not possible");
		answer(s, m->head.id, &e);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		(void)err_nomem(&e);
		answer(s, m->head.id, &e);
		return;
	}
	if (m->head.n[3]) { /* the other side had no descriptor left, or has closed them */
		uint64_t per = object_view(f->object)->segment / WIRE_BLOCK;

		for (uint64_t i = span.first / per; i <= (span.end - 1) / per; i++)
			f->sent[i] = 0;
	}
	(void)object_check(f->object, span.first, span.end, UINT64_MAX);
	w->file = f;
	w->id = m->head.id;
	w->span = span;
	LIST_PUSH(&s->waiters, w);
	s->n_waiters++;
}

static void on_want(struct server *s, const struct wire_msg *m)
{
	struct file *f = file_of(s, m->head.n[0]);
	struct span span;

	if (!f || f->gone || s->n_wants >= MAX_WANTS ||
	    !span_of(f, m->head.n[1], m->head.n[2], &span) ||
	    !VEC_ROOM(s->wants, s->cap_wants, s->n_wants + 1))
		return;
	s->wants[s->n_wants++] = (struct want){ f, span, span.first };
}

static void on_file(struct server *s, struct wire_msg *m)
{
	const char *path = wire_string(m, 0);
	struct place_row *r = place_row(s, m->head.n[0]);
	struct place_seen seen;
	struct ckpt_err e;

	if (!r || !wire_get_seen(&m->head, &seen))
		(void)err_set(&e, EINVAL, "a file that is not possible");
	else if (!io_check_relative(path, strlen(path), &e)) {
		start_job(s, m, r->store, (uint32_t)m->head.n[0], &seen);
		return;
	}
	answer(s, m->head.id, &e);
}

static void on_place(struct server *s, struct wire_msg *m)
{
	const char *path = wire_string(m, 0);
	struct place_row *r = place_row(s, m->head.n[0]);
	struct ckpt_err e;

	if (!r)
		(void)err_set(&e, EINVAL, "a place that is not open");
	else if (!strcmp(path, ".") || !io_check_relative(path, strlen(path), &e)) {
		start_job(s, m, r->store, (uint32_t)m->head.n[0], NULL);
		return;
	}
	answer(s, m->head.id, &e);
}

/* Where the numbers are written; the descriptor is for the other side. -1: nowhere. */
static int share_counts(struct server *s)
{
	int fd = memfd_create("ckptfs", MFD_CLOEXEC);
	void *p =
		fd < 0 || ftruncate(fd, sizeof(*s->counts))
			? MAP_FAILED
			: mmap(NULL, sizeof(*s->counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p != MAP_FAILED) {
		s->counts = p;
		return fd;
	}
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

static void show_counts(struct server *s)
{
	const char *note = depot_note(s->depot);
	struct net_pace p;

	if (!s->counts)
		return;
	net_pace(s->net, &p);
	s->counting = s->n_fetches || p.requests != s->counts->v.requests ||
		      p.bytes != s->counts->v.bytes;
	s->counts->v.requests = p.requests;
	s->counts->v.bytes = p.bytes;
	s->counts->v.retries = p.retries;
	s->counts->v.hedges = p.hedges;
	s->counts->v.latency_us = p.latency_us;
	s->counts->v.connection_bps = p.connection_bps;
	s->counts->v.total_bps = p.total_bps;
	s->counts->v.window = s->window.bytes;
	if (*note && !s->counts->noted) {
		(void)snprintf(s->counts->note, sizeof(s->counts->note), "%s", note);
		s->counts->noted = true;
	}
}

static void on_begin(struct server *s, struct wire_msg *m)
{
	struct place_row *r = place_row(s, m->head.n[0]);
	struct ckpt_err e;

	if (!r) {
		(void)err_set(&e, EINVAL, "a place that is not open");
		answer(s, m->head.id, &e);
		return;
	}
	r->users++; /* until the session is over */
	start_job(s, m, r->store, (uint32_t)m->head.n[0], NULL);
}

static int on_hello(struct server *s, const struct wire_msg *m)
{
	const struct depot_options o = { .dir = wire_string(m, 0),
					 .size = m->head.n[1],
					 .memory = m->head.n[2] };
	const struct net_options n = { .retry_ms = (unsigned)min_u64(m->head.n[3], UINT32_MAX) };
	struct ckpt_err e;
	int fd;

	if (s->net || m->head.n[0] != WIRE_VERSION) {
		(void)err_set(&e, EPROTO, "ckptfs-fetch is of another version");
		answer(s, m->head.id, &e);
		return 0;
	}
	if (depot_new(&o, drop_segment, s, &s->depot, &e) || net_new(&n, &s->net, &e)) {
		answer(s, m->head.id, &e);
		return 0;
	}
	fd = share_counts(s);
	show_counts(s);
	send_later(s, &(struct wire_head){ .kind = WIRE_ANSWER, .id = m->head.id }, NULL, 0, fd);
	return 0;
}

/* A message with numbers that mean nothing is answered with an error, or ignored. */
static int on_message(struct server *s, struct wire_msg *m)
{
	const struct wire_head *h = &m->head;
	struct file *f;

	if (h->kind == WIRE_HELLO)
		return on_hello(s, m);
	if (!s->net)
		return -EPROTO;
	switch (h->kind) {
	case WIRE_OPEN:
		start_job(s, m, NULL, 0, NULL);
		return 0;
	case WIRE_CLOSE:
		if (place_row(s, h->n[0])) {
			s->places[h->n[0]].closed = true;
			place_leave(s, (uint32_t)h->n[0]);
		}
		return 0;
	case WIRE_LOOK:
	case WIRE_LIST:
		on_place(s, m);
		return 0;
	case WIRE_FILE:
		on_file(s, m);
		return 0;
	case WIRE_BEGIN:
		on_begin(s, m);
		return 0;
	case WIRE_PART:
	case WIRE_NAME:
	case WIRE_COMMIT:
	case WIRE_END:
		start_job(s, m, NULL, 0, NULL);
		return 0;
	case WIRE_READ:
		on_read(s, m);
		return 0;
	case WIRE_WANT:
		on_want(s, m);
		return 0;
	case WIRE_PING:
		answer(s, h->id, NULL);
		return 0;
	default:
		break;
	}
	f = file_of(s, h->n[0]);
	if (h->kind == WIRE_FORGET && f)
		forget(s, f);
	else if (h->kind == WIRE_TOUCH && f && h->n[1] < object_view(f->object)->n_segments)
		object_touch(f->object, h->n[1]);
	return 0;
}

/* 1: go on; 0: the other side is gone. */
static int receive_some(struct server *s, struct wire_msg *m)
{
	for (int i = 0; i < MESSAGES; i++) {
		struct pollfd p = { .fd = s->sock, .events = POLLIN };
		bool is_there;
		int rc;

		if (poll(&p, 1, 0) <= 0 || !p.revents)
			break;
		rc = wire_receive(s->sock, m);
		is_there = rc > 0;
		if (is_there)
			rc = on_message(s, m);
		if (m->fd >= 0)
			(void)close(m->fd);
		if (rc || !is_there)
			return rc;
	}
	return 1;
}

static int run(struct server *s, struct wire_msg *m)
{
	for (;;) {
		struct pollfd p[] = { { .fd = s->sock,
					.events = s->out ? POLLIN | POLLOUT : POLLIN },
				      { .fd = s->queue.event, .events = POLLIN } };
		int rc = poll(p, ARRAY_LEN(p),
			      s->at_once    ? 0
			      : s->again    ? BUSY_MS
			      : s->counting ? COUNT_MS
					    : -1);
		uint64_t ignored;

		if (rc < 0 && errno != EINTR)
			return -errno;
		rc = receive_some(s, m);
		if (rc <= 0)
			return rc;
		(void)!read(s->queue.event, &ignored, sizeof(ignored));
		if (s->net) {
			take_answers(s);
			take_notes(s);
			schedule(s);
			show_counts(s);
		}
		rc = flush(s);
		if (rc)
			return rc == -EPIPE || rc == -ECONNRESET ? 0 : rc;
	}
}

int server_run(int sock)
{
	struct server *s = calloc(1, sizeof(*s));
	struct wire_msg *m = malloc(sizeof(*m));
	struct sysinfo info;
	int rc;

	if (!s || !m) {
		free(s);
		free(m);
		return -ENOMEM;
	}
	s->sock = sock;
	s->out_end = &s->out;
	s->queue.done_end = &s->queue.done;
	s->queue.jobs_end = &s->queue.jobs;
	s->ram = sysinfo(&info) ? UINT64_MAX : (uint64_t)info.totalram * info.mem_unit;
	window_init(&s->window);
	(void)pthread_mutex_init(&s->queue.lock, NULL);
	(void)pthread_cond_init(&s->queue.work, NULL);
	s->queue.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->writes = writes_new();
	rc = s->queue.event < 0 ? -errno : !s->writes ? -ENOMEM : run(s, m);
	if (s->writes)
		writes_close(s->writes);
	/* Threads may still be at work: only the end of the process frees what is left. */
	free(m);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/server.h"

#include "base/cleanup.h"
#include "base/io.h"
#include "remote/depot.h"
#include "remote/server_internal.h"
#include "remote/store.h"
#include "remote/writes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

enum {
	MAX_OUT = 1 << 20, /* messages that the other side has not taken */
	MESSAGES = 64,	   /* received before the rest has a turn */
	COUNT_MS = 500,	   /* until new numbers are shown */
};

struct out {
	struct wire_head head;
	char *text;
	size_t len;
	int fd;
	struct out *next;
};

struct messages {
	int sock, event; /* event: or -errno */
	struct out *out, **out_end;
	size_t n_out;
	struct wire_counts *counts; /* NULL: nobody sees them */
	bool counting;		    /* they may have changed since */

	pthread_mutex_t lock;
	struct out *done, **done_end; /* answers from other threads */
};

struct messages *messages_new(int sock)
{
	struct messages *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->sock = sock;
	m->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (m->event < 0)
		m->event = -errno;
	m->out_end = &m->out;
	m->done_end = &m->done;
	(void)pthread_mutex_init(&m->lock, NULL);
	return m;
}

/* ---- sending ---- */

/* Takes over fd. Out of memory: we end, since the other side would otherwise wait for ever. */
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

/* Behind the others. */
static void put_out(struct messages *m, struct out *x)
{
	if (++m->n_out > MAX_OUT)
		_exit(1);
	*m->out_end = x;
	m->out_end = &x->next;
}

void server_send(struct server *s, const struct wire_head *h, const void *text, size_t len, int fd)
{
	put_out(s->messages, out_new(h, text, len, fd));
}

void server_answer(struct server *s, uint32_t id, const struct ckpt_err *e)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = id };
	const char *text = e ? e->msg : NULL;

	h.n[0] = e ? (uint64_t)(e->code ? e->code : EIO) : 0;
	if (id)
		server_send(s, &h, text, text ? strlen(text) + 1 : 0, -1);
}

static int flush(struct messages *m)
{
	while (m->out) {
		struct out *x = m->out;
		struct pollfd p = { .fd = m->sock, .events = POLLOUT };
		int rc;

		if (poll(&p, 1, 0) <= 0 || !(p.revents & POLLOUT))
			return 0;
		rc = wire_send(m->sock, &x->head, x->text, x->len, x->fd);
		if (rc)
			return rc;
		m->out = x->next;
		if (!m->out)
			m->out_end = &m->out;
		m->n_out--;
		if (x->fd >= 0)
			(void)close(x->fd);
		free(x->text);
		free(x);
	}
	return 0;
}

/* ---- from other threads ---- */

void server_wake(struct server *s)
{
	const uint64_t one = 1;

	(void)!write(s->messages->event, &one, sizeof(one));
}

void server_answer_from_thread(struct server *s, const struct wire_head *h, const void *text,
			       size_t len)
{
	struct out *x = out_new(h, text, len, -1);

	{
		SCOPED_LOCK(&s->messages->lock);
		*s->messages->done_end = x;
		s->messages->done_end = &x->next;
	}
	server_wake(s);
}

void server_error_from_thread(struct server *s, uint32_t id, const struct ckpt_err *e)
{
	struct wire_head h = { .kind = WIRE_ANSWER, .id = id };

	h.n[0] = (uint64_t)(e->code ? e->code : EIO);
	server_answer_from_thread(s, &h, e->msg, strlen(e->msg) + 1);
}

static void take_answers(struct messages *m)
{
	struct out *done;

	{
		SCOPED_LOCK(&m->lock);
		done = m->done;
		m->done = NULL;
		m->done_end = &m->done;
	}
	while (done) {
		struct out *x = done;

		done = x->next;
		x->next = NULL;
		put_out(m, x);
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
	struct file *f = server_file(s, m->head.n[0]);
	struct ckpt_err e;
	struct span span;

	if (!f || m->head.n[2] > WIRE_READ_MAX || !span_of(f, m->head.n[1], m->head.n[2], &span))
		(void)err_set(&e, EINVAL, "an impossible read was requested");
	else if (!fetching_read(s, f, m->head.id, span, &e)) {
		if (m->head.n[3]) /* no descriptor was left there, or they were closed */
			server_file_unsend(f, span);
		return;
	}
	server_answer(s, m->head.id, &e);
}

static void on_want(struct server *s, const struct wire_msg *m)
{
	struct file *f = server_file(s, m->head.n[0]);
	struct span span;

	if (f && span_of(f, m->head.n[1], m->head.n[2], &span))
		fetching_want(s, f, span);
}

static void on_file(struct server *s, struct wire_msg *m)
{
	const char *path = wire_string(m, 0);
	struct store *store = server_place(s, m->head.n[0]);
	struct place_seen seen;
	struct ckpt_err e;

	if (!store || !wire_get_seen(&m->head, &seen))
		(void)err_set(&e, EINVAL, "an impossible file was requested");
	else if (!io_check_relative(path, strlen(path), &e)) {
		(void)jobs_start(s, m, store, (uint32_t)m->head.n[0], &seen);
		return;
	}
	server_answer(s, m->head.id, &e);
}

static void on_place(struct server *s, struct wire_msg *m)
{
	const char *path = wire_string(m, 0);
	struct store *store = server_place(s, m->head.n[0]);
	struct ckpt_err e;

	if (!store)
		(void)err_set(&e, EINVAL, "a place was used that is not open");
	else if (!strcmp(path, ".") || !io_check_relative(path, strlen(path), &e)) {
		(void)jobs_start(s, m, store, (uint32_t)m->head.n[0], NULL);
		return;
	}
	server_answer(s, m->head.id, &e);
}

/* Makes it one for reading: nobody else writes what is in the mapping. */
static int only_read(int fd)
{
	char link[64];
	int again;

	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
		return fd;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* Linux before 5.1 */
	again = open(link, O_RDONLY | O_CLOEXEC);
	(void)close(fd);
	return again;
}

/* Where the numbers are written; the descriptor is for the other side. -1: nowhere. */
static int share_counts(struct server *s)
{
	int fd = memfd_create("ckptfs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p = fd < 0 || ftruncate(fd, sizeof(*s->messages->counts)) ||
				  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
			  ? MAP_FAILED
			  : mmap(NULL, sizeof(*s->messages->counts), PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd, 0);

	if (p != MAP_FAILED) {
		s->messages->counts = p;
		return only_read(fd);
	}
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

static void show_counts(struct server *s)
{
	const char *note = depot_note(s->depot);
	struct net_pace p;

	if (!s->messages->counts)
		return;
	net_pace(s->net, &p);
	s->messages->counting = fetching_is_busy(s) ||
				p.requests != s->messages->counts->v.requests ||
				p.bytes != s->messages->counts->v.bytes;
	s->messages->counts->v.requests = p.requests;
	s->messages->counts->v.bytes = p.bytes;
	s->messages->counts->v.retries = p.retries;
	s->messages->counts->v.hedges = p.hedges;
	s->messages->counts->v.latency_us = p.latency_us;
	s->messages->counts->v.connection_bps = p.connection_bps;
	s->messages->counts->v.total_bps = p.total_bps;
	s->messages->counts->v.window = fetching_window(s);
	s->messages->counts->v.kept = depot_size(s->depot);
	if (*note && !s->messages->counts->noted) {
		(void)snprintf(s->messages->counts->note, sizeof(s->messages->counts->note), "%s",
			       note);
		s->messages->counts->noted = true;
	}
}

static void on_begin(struct server *s, struct wire_msg *m)
{
	struct store *store = server_place(s, m->head.n[0]);
	struct ckpt_err e;

	if (!store) {
		(void)err_set(&e, EINVAL, "a place was used that is not open");
		server_answer(s, m->head.id, &e);
		return;
	}
	if (jobs_start(s, m, store, (uint32_t)m->head.n[0], NULL))
		server_place_enter(s, (uint32_t)m->head.n[0]); /* until the session is over */
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
		server_answer(s, m->head.id, &e);
		return 0;
	}
	if (depot_new(&o, server_drop_segment, s, &s->depot, &e) || net_new(&n, &s->net, &e)) {
		server_answer(s, m->head.id, &e);
		return 0;
	}
	fd = share_counts(s);
	show_counts(s);
	server_send(s, &(struct wire_head){ .kind = WIRE_ANSWER, .id = m->head.id }, NULL, 0, fd);
	return 0;
}

/* A message with numbers that mean nothing is answered with an error, or ignored. */
static int on_message(struct server *s, struct wire_msg *m)
{
	const struct wire_head *h = &m->head;
	struct file *f;

	if (h->kind == WIRE_SEAL) {
		seal_take(&s->seal, m);
		return 0;
	}
	if (!seal_allows(&s->seal, m)) {
		struct ckpt_err e;

		(void)err_set(&e, EPERM,
			      "it is not among what was named before rights were given up "
			      "('sandbox=off' does without that)");
		server_answer(s, h->id, &e);
		return 0;
	}
	if (h->kind == WIRE_HELLO)
		return on_hello(s, m);
	if (!s->net)
		return -EPROTO;
	switch (h->kind) {
	case WIRE_OPEN:
		(void)jobs_start(s, m, NULL, 0, NULL);
		return 0;
	case WIRE_CLOSE:
		server_place_close(s, h->n[0]);
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
		(void)jobs_start(s, m, NULL, 0, NULL);
		return 0;
	case WIRE_READ:
		on_read(s, m);
		return 0;
	case WIRE_WANT:
		on_want(s, m);
		return 0;
	case WIRE_PING:
		server_answer(s, h->id, NULL);
		return 0;
	default:
		break;
	}
	f = server_file(s, h->n[0]);
	if (h->kind == WIRE_FORGET && f)
		fetching_forget(s, f);
	else if (h->kind == WIRE_TOUCH && f && h->n[1] < object_view(f->object)->n_segments)
		object_touch(f->object, h->n[1]);
	return 0;
}

/* ---- the loop ---- */

/* A message has come without its descriptor. */
static void refuse(struct server *s, const struct wire_msg *m)
{
	struct ckpt_err e;

	if (s->depot)
		depot_spare(s->depot);
	(void)err_set(&e, EMFILE, "ckptfs-fetch has no descriptor left");
	server_answer(s, m->head.id, &e);
}

/* 1: go on; 0: the other side is gone. */
static int receive_some(struct server *s, struct wire_msg *m)
{
	for (int i = 0; i < MESSAGES; i++) {
		struct pollfd p = { .fd = s->messages->sock, .events = POLLIN };
		bool is_there;
		int rc;

		if (poll(&p, 1, 0) <= 0 || !p.revents)
			break;
		rc = wire_receive(s->messages->sock, m);
		if (rc == -EMFILE) {
			refuse(s, m);
			continue;
		}
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
	struct messages *q = s->messages;

	for (;;) {
		struct pollfd p[] = {
			{ .fd = q->sock, .events = q->out ? POLLIN | POLLOUT : POLLIN },
			{ .fd = q->event, .events = POLLIN },
		};
		int pause = fetching_pause(s);
		int rc = poll(p, ARRAY_LEN(p), pause < 0 && q->counting ? COUNT_MS : pause);
		uint64_t ignored;

		if (rc < 0 && errno != EINTR)
			return -errno;
		rc = receive_some(s, m);
		if (rc <= 0)
			return rc;
		(void)!read(q->event, &ignored, sizeof(ignored));
		if (s->net) {
			jobs_take_ended(s);
			take_answers(q);
			fetching_take_notes(s);
			fetching_schedule(s);
			show_counts(s);
		}
		rc = flush(q);
		if (rc)
			return rc == -EPIPE || rc == -ECONNRESET ? 0 : rc;
	}
}

int server_run(int sock, const struct seal *seal)
{
	struct server *s = calloc(1, sizeof(*s));
	struct wire_msg *m = malloc(sizeof(*m));
	int rc = -ENOMEM;

	if (s) {
		if (seal)
			s->seal = *seal;
		s->messages = messages_new(sock);
		s->jobs = jobs_new();
		s->fetching = fetching_new();
		s->places = places_new();
		s->writes = writes_new();
	}
	if (s && m && s->messages && s->jobs && s->fetching && s->places && s->writes)
		rc = s->messages->event < 0 ? s->messages->event : run(s, m);
	if (s && s->writes)
		writes_close(s->writes);
	/* Threads may still be at work: only the end of the process frees what is left. */
	free(m);
	return rc;
}

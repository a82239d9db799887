/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiver: a thread of each link, which alone reads what is sent to us. It gives answers to
 * the calls that wait for them, and segments and maps to the files that the fetcher has open; it
 * deals with the death of a fetcher and greets the next one.
 */
#include "source/remote_link_internal.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/vec.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAX_ANSWER ((size_t)512 << 20) /* bytes of a listing */

void link_go_down(struct link *l, int code, const char *why)
{
	SCOPED_LOCK(&l->lock);

	if (!l->down)
		(void)err_set(&l->why, code, "%s", why);
	l->down = true;
	(void)pthread_cond_broadcast(&l->change);
	LIST_EACH (c, &l->calls)
		(void)pthread_cond_signal(&c->wake);
}

/* Adds what the answer says to the call. Under the lock. */
static bool take_answer(struct call *c, struct wire_msg *m)
{
	bool more = !m->head.n[0] && c->head.kind == WIRE_LIST && m->head.n[1];
	size_t n = m->head.text;

	if (m->head.n[0]) {
		int code = m->head.n[0] < 4096 ? (int)m->head.n[0] : EIO;

		(void)err_set(&c->err, code, "%s", m->text);
	} else if (c->len + n > MAX_ANSWER) {
		(void)err_set(
			&c->err, EFBIG,
			"the directory's listing has more than %zu MiB: name one with fewer files",
			MAX_ANSWER >> 20);
	} else if (!VEC_ROOM(c->text, c->cap, c->len + n + 1)) {
		(void)err_nomem(&c->err);
	} else {
		memcpy(c->text + c->len, m->text, n);
		c->len += n;
		c->text[c->len] = 0;
	}
	if (more)
		return false;
	memcpy(c->head.n, m->head.n, sizeof(c->head.n));
	c->head.seen = m->head.seen;
	c->fd = m->fd;
	m->fd = -1;
	return true;
}

static void on_answer(struct link *l, struct wire_msg *m)
{
	struct rfile *f = NULL;
	struct call *c;

	{
		SCOPED_LOCK(&l->lock);
		c = link_find_call(l, m->head.id);
		if (!c || c->taken || c->lost ||
		    !take_answer(c, m)) /* taken: a second answer to one call */
			return;
		f = c->file;
		c->taken = true; /* the caller waits until it is done, whatever happens */
	}
	if (f)
		rfile_pin(f, c);
	SCOPED_LOCK(&l->lock);
	c->done = true;
	(void)pthread_cond_signal(&c->wake);
}

/* ---- files by number ---- */

int link_add_file(struct link *l, uint64_t epoch, uint32_t number, struct rfile *f,
		  struct ckpt_err *e)
{
	SCOPED_LOCK(&l->lock);

	if (epoch != l->epoch)
		return 0; /* it is opened again when it is needed */
	if (number >= WIRE_FILES_MAX || !VEC_ROOM_ZEROED(l->files, l->n_files, (size_t)number + 1))
		return err_nomem(e);
	if (l->files[number])
		return err_set(e, EPROTO, "ckptfs-fetch gave two files the same number");
	l->files[number] = f;
	return 0;
}

void link_remove_file(struct link *l, uint32_t number, const struct rfile *f)
{
	SCOPED_LOCK(&l->lock);

	if (number < l->n_files && l->files[number] == f)
		l->files[number] = NULL;
}

static struct rfile *file_of(struct link *l, uint64_t number)
{
	SCOPED_LOCK(&l->lock);
	struct rfile *f = number < l->n_files ? l->files[number] : NULL;

	return f && rfile_hold(f) ? f : NULL;
}

void link_trim(struct link *l)
{
	size_t n;

	{
		SCOPED_LOCK(&l->lock);
		n = l->n_files;
	}
	for (size_t i = 0; i < n; i++) {
		struct rfile *f = file_of(l, i);

		if (f)
			rfile_trim(f);
		rfile_put(f);
	}
}

/* ---- the fetcher ---- */

/* Under the lock. */
void link_add_counts(struct link *l, struct place_network *n)
{
	const struct wire_counts *c = l->counts;

	*n = l->before;
	if (!c)
		return;
	n->requests += c->v.requests;
	n->bytes += c->v.bytes;
	n->retries += c->v.retries;
	n->hedges += c->v.hedges;
}

/* What the fetcher says to our hello: it can be used. */
static void on_hello(struct link *l, const struct wire_msg *m)
{
	struct stat st;
	void *p = MAP_FAILED;

	if (m->head.n[0]) {
		link_go_down(l, m->head.n[0] < 4096 ? (int)m->head.n[0] : EIO, m->text);
		return;
	}
	/* Sealed, so that it cannot be cut while we look at it. */
	if (m->fd >= 0 && (fcntl(m->fd, F_GET_SEALS) & F_SEAL_SHRINK) && !fstat(m->fd, &st) &&
	    st.st_size >= (off_t)sizeof(*l->counts))
		p = mmap(NULL, sizeof(*l->counts), PROT_READ, MAP_SHARED, m->fd, 0);
	SCOPED_LOCK(&l->lock);
	if (l->up) { /* it answers twice */
		if (p != MAP_FAILED)
			(void)munmap(p, sizeof(*l->counts));
		return;
	}
	l->counts = p == MAP_FAILED ? NULL : p;
	l->up = true;
	(void)pthread_cond_broadcast(&l->change);
}

static void on_message(struct link *l, struct wire_msg *m)
{
	struct rfile *f;

	if (m->head.kind == WIRE_ANSWER && m->head.id == HELLO_ID) {
		on_hello(l, m);
		return;
	}
	if (m->head.kind == WIRE_ANSWER) {
		on_answer(l, m);
		return;
	}
	f = file_of(l, m->head.kind == WIRE_MAP ? m->head.n[1] : m->head.n[0]);
	if (f && m->head.kind == WIRE_SEGMENT)
		rfile_segment(f, m);
	else if (f && m->head.kind == WIRE_DROP)
		rfile_drop(f, m);
	else if (f && m->head.kind == WIRE_MAP)
		rfile_map(f, m);
	rfile_put(f);
}

static void set_sock(struct link *l, int sock)
{
	int before;

	{
		SCOPED_LOCK(&l->sending);
		before = l->sock;
		l->sock = sock;
		l->n_left = 0;
	}
	if (before >= 0)
		(void)close(before);
}

/* Those who wait for the fetcher may ask the next one. */
static void on_death(struct link *l)
{
	const struct wire_counts *counts;

	{
		SCOPED_LOCK(&l->lock);
		l->up = false;
		l->epoch++;
		LIST_EACH (c, &l->calls)
			if (!c->taken) {
				c->lost = true;
				(void)pthread_cond_signal(&c->wake);
			}
		for (size_t i = 0; i < l->n_files; i++)
			l->files[i] = NULL;
		link_add_counts(l, &l->before);
		counts = l->counts;
		l->counts = NULL;
	}
	if (counts)
		(void)munmap((void *)(uintptr_t)counts, sizeof(*counts));
	set_sock(l, -1);
}

/* Takes over the descriptor. */
static void on_fetcher(struct link *l, struct wire_msg *m)
{
	struct wire_head hello = { .kind = WIRE_HELLO,
				   .id = HELLO_ID,
				   .n = { WIRE_VERSION, l->key.cache_size, l->key.memory,
					  l->key.retry_ms } };

	if (m->head.kind != WIRE_FETCHER || m->fd < 0)
		return; /* closing the message's descriptor makes that fetcher end */
	if (l->sock >= 0)
		on_death(l);
	set_sock(l, m->fd);
	m->fd = -1;
	link_send_seal(l, l->sock); /* it may have begun before the seal came */
	(void)wire_send(l->sock, &hello, l->cache_dir, strlen(l->cache_dir) + 1, -1);
}

/* One message of the fetcher. False: the link is of no use any more. */
static bool hear(struct link *l, struct wire_msg *m)
{
	int rc = wire_receive(l->sock, m);

	if (rc > 0 || rc == -EMFILE) {
		l->heard_ns = clock_ns();
		on_message(l, m);
		return true;
	}
	if (rc == -EPROTO) {
		link_go_down(l, EIO, "ckptfs-fetch sent an invalid message");
		return false;
	}
	on_death(l);
	return !l->deserted;
}

/* One message about fetchers. */
static bool hear_of_others(struct link *l, struct wire_msg *m)
{
	int rc = wire_receive(l->control, m);

	if (rc > 0 || rc == -EMFILE) {
		on_fetcher(l, m);
		return true;
	}
	l->deserted = true;
	return l->sock >= 0;
}

static void *receive(void *arg)
{
	struct link *l = arg;
	struct wire_msg *m = malloc(sizeof(*m));
	bool is_there = m;

	while (is_there) {
		struct pollfd p[] = { { .fd = l->sock, .events = POLLIN },
				      { .fd = l->deserted ? -1 : l->control, .events = POLLIN },
				      { .fd = l->stop, .events = POLLIN } };

		if (poll(p, ARRAY_LEN(p), -1) < 0 && errno != EINTR)
			break;
		if (p[2].revents)
			break;
		m->fd = -1;
		if (p[0].revents)
			is_there = hear(l, m);
		else if (p[1].revents)
			is_there = hear_of_others(l, m);
		if (m->fd >= 0)
			(void)close(m->fd);
		if (l->orphan) {
			free(m);
			(void)pthread_detach(l->receiver);
			link_free(l);
			return NULL;
		}
	}
	free(m);
	if (l->resting)
		return NULL;
	{
		char why[100];

		(void)snprintf(why, sizeof(why), "%s: open the checkpoint again", LINK_ENDED);
		link_go_down(l, EIO, why);
	}
	return NULL;
}

int link_start_receiver(struct link *l, struct ckpt_err *e)
{
	sigset_t all, before;
	int rc;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&l->receiver, NULL, receive, l);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	l->receives = !rc;
	return rc ? err_sys(e, rc, "start a thread") : 0;
}

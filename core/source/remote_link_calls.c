/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: each is sent to the fetcher that runs, and waits until the receiver has the answer or that
 * fetcher has died. A fetcher that is silent for long is asked whether it is there, and then ended.
 */
#include "source/remote_link_internal.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/vec.h"

#include <stdlib.h>

enum {
	ASK_S = 5, /* of silence, then it is asked whether it is there */
	RETRY_MS = 60000,
};

struct call *link_find_call(struct link *l, uint32_t id)
{
	LIST_EACH (c, &l->calls)
		if (c->head.id == id)
			return c;
	return NULL;
}

/* Under `sending`. Sends what there was no room for. EAGAIN: for some there still is none. */
static int send_left(struct link *l)
{
	size_t n = 0;
	int rc = 0;

	while (n < l->n_left &&
	       !(rc = wire_send_how(l->sock, &l->left[n], NULL, 0, -1, MSG_DONTWAIT)))
		n++;
	l->n_left -= n;
	memmove(l->left, l->left + n, l->n_left * sizeof(*l->left));
	return rc;
}

/* Sends to the fetcher of that epoch only. EAGAIN: there is no room. */
static int send_now(struct link *l, uint64_t epoch, struct wire_head *h, const void *text,
		    size_t len, int fd)
{
	SCOPED_LOCK(&l->sending);
	int rc;

	if (l->epoch != epoch || l->sock < 0)
		return -EPIPE;
	rc = l->n_left ? send_left(l) : 0;
	return rc ? rc : wire_send_how(l->sock, h, text, len, fd, MSG_DONTWAIT);
}

/* A caller waits for a fetcher that may say nothing. */
struct silence {
	uint64_t began;
	bool ended; /* by end_silence */
};

/* If the fetcher has said nothing for long, it is ended, so that another one takes its place; if
 * that does not help either, the link is of no use. */
static bool end_silence(struct link *l, struct silence *s)
{
	struct wire_head h = { .kind = WIRE_END_IT };
	/* Nobody asked before this call; and the receiver may set heard_ns at any time: it is read
	 * before the clock is. */
	uint64_t since = max_u64(l->heard_ns, s->began);

	if (clock_ns() - since <= LINK_SILENT_S * CLOCK_SECOND)
		return false;
	if (s->ended || wire_send_how(l->control, &h, NULL, 0, -1, MSG_DONTWAIT))
		link_go_down(l, ETIMEDOUT,
			     "ckptfs-fetch, which reads object stores, does not answer");
	s->ended = true;
	s->began = clock_ns();
	return true;
}

/* Sends a call, waiting for room. */
static int send_call(struct link *l, const struct call *c, const void *text, size_t len, int fd,
		     struct silence *s)
{
	const struct timespec some = { .tv_nsec = (long)CLOCK_MS };
	struct wire_head h = c->head;
	int rc;

	while ((rc = send_now(l, c->epoch, &h, text, len, fd)) == -EAGAIN && !l->down) {
		(void)nanosleep(&some, NULL);
		(void)end_silence(l, s);
	}
	return rc;
}

/* One more slice of waiting; under the lock. */
static void wait_some(struct link *l, struct call *c, bool *ret_ask)
{
	uint64_t until = clock_ns() + ASK_S * CLOCK_SECOND;

	*ret_ask = false;
	while (!c->done && !c->lost && !l->down && !*ret_ask)
		*ret_ask = clock_cond_wait(&c->wake, &l->lock, until) == ETIMEDOUT;
}

static void wait_for(struct link *l, struct call *c, struct silence *s)
{
	bool done = false, ask;

	while (!done) {
		{
			SCOPED_LOCK(&l->lock);
			wait_some(l, c, &ask);
			done = c->done || c->lost || l->down;
		}
		if (!done && ask && !end_silence(l, s))
			(void)send_now(l, c->epoch,
				       &(struct wire_head){ .kind = WIRE_PING, .id = PING_ID },
				       NULL, 0, -1);
	}
}

/* Waits until a fetcher runs. Under the lock. */
int link_await_fetcher(struct link *l, uint64_t until_ns, struct ckpt_err *e)
{
	int rc = 0;

	if (!l->down && !l->receives && link_start_receiver(l, e))
		return -e->code;
	while (!l->up && !l->down && rc != ETIMEDOUT)
		rc = clock_cond_wait(&l->change, &l->lock, until_ns);
	if (l->down) {
		*e = l->why;
		return -e->code;
	}
	return l->up ? 0
		     : err_set(e, l->epoch > 1 ? EIO : ETIMEDOUT, "%s",
			       l->epoch > 1 ? LINK_ENDED
					    : "ckptfs-fetch, which reads object stores, does not "
					      "answer");
}

static int begin_call(struct link *l, struct call *c, struct ckpt_err *e)
{
	SCOPED_LOCK(&l->lock);

	if (link_await_fetcher(l, c->until_ns, e))
		return -e->code;
	if (c->epoch && c->epoch != l->epoch) {
		c->lost = true;
		return err_set(e, EIO, "%s", LINK_ENDED);
	}
	c->epoch = l->epoch;
	do
		c->head.id = ++l->last_id;
	while (!c->head.id || c->head.id >= HELLO_ID || link_find_call(l, c->head.id));
	LIST_PUSH(&l->calls, c);
	return 0;
}

/* Ends a call, which the receiver may still be filling in. */
static void end_call(struct link *l, struct call *c)
{
	SCOPED_LOCK(&l->lock);

	while (c->taken && !c->done)
		(void)pthread_cond_wait(&c->wake, &l->lock);
	if (c->lost)
		(void)err_set(&c->err, EIO, "%s", LINK_ENDED);
	else if (!c->done && !c->err.code)
		c->err = l->why;
	LIST_REMOVE(&l->calls, c);
}

int link_call(struct link *l, struct call *c, const void *text, size_t len, struct ckpt_err *e)
{
	return link_call_with(l, c, text, len, -1, e);
}

int link_call_with(struct link *l, struct call *c, const void *text, size_t len, int fd,
		   struct ckpt_err *e)
{
	struct silence s = { .began = clock_ns() };
	int rc;

	c->fd = -1;
	if (l->owner != getpid())
		return err_set(e, EIO,
			       "it was opened before fork(2): open the checkpoint again in this "
			       "process");
	if (!c->until_ns)
		c->until_ns =
			clock_ns() + (l->key.retry_ms ? l->key.retry_ms : RETRY_MS) * CLOCK_MS;
	clock_cond_init(&c->wake);
	rc = begin_call(l, c, e);
	if (rc) {
		(void)pthread_cond_destroy(&c->wake);
		return rc;
	}
	rc = send_call(l, c, text, len, fd, &s);
	if (rc == -EPIPE || rc == -ECONNRESET || rc == -EAGAIN)
		rc = 0; /* the receiver says what happened, or the link is down */
	else if (rc)
		(void)err_sys(&c->err, -rc, "ask ckptfs-fetch");
	if (!rc)
		wait_for(l, c, &s);
	end_call(l, c);
	(void)pthread_cond_destroy(&c->wake);
	if (c->err.code)
		*e = c->err;
	return c->err.code ? -e->code : 0;
}

bool link_again(struct call *c)
{
	if (!c->lost || clock_ns() >= c->until_ns)
		return false;
	call_release(c);
	c->text = NULL;
	c->len = c->cap = 0;
	c->fd = -1;
	c->epoch = 0;
	c->done = c->taken = c->lost = false;
	c->err = (struct ckpt_err){ 0 };
	return true;
}

void call_release(struct call *c)
{
	if (c->fd >= 0)
		(void)close(c->fd);
	free(c->text);
}

uint64_t link_epoch(struct link *l)
{
	return l->epoch;
}

void link_tell(struct link *l, uint64_t epoch, struct wire_head *h)
{
	if (!link_is_up(l) || send_now(l, epoch, h, NULL, 0, -1) != -EAGAIN)
		return;
	SCOPED_LOCK(&l->sending);
	/* Out of memory: it is lost, and what it is about stays open in the fetcher. */
	if (l->epoch == epoch && VEC_ROOM(l->left, l->cap_left, l->n_left + 1))
		l->left[l->n_left++] = *h;
}

void link_hint(struct link *l, uint64_t epoch, struct wire_head *h)
{
	if (link_is_up(l))
		(void)send_now(l, epoch, h, NULL, 0, -1);
}

bool link_is_up(struct link *l)
{
	SCOPED_LOCK(&l->lock);

	return l->up && !l->down && l->owner == getpid();
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/net_internal.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
	MOVES_MAX = 8, /* requests that follow another at once */
	BACKOFF_MS = 50,
	BACKOFF_MAX_MS = 5000,
	UNKNOWN_MS = 3000, /* for a server that has never answered */
	SLOW_S = 30,	   /* a transfer slower than SLOW_BPS for this long is ended */
	SLOW_BPS = 1024,
	LEAST_BPS = 16 << 10, /* a call may take as long as at this speed, plus retry_ms */
	LINGER_S = 2, /* for the answer to a request that has been sent, once it is cancelled */
};

static uint64_t random_below(struct net *n, uint64_t below)
{
	n->random ^= n->random << 13;
	n->random ^= n->random >> 7;
	n->random ^= n->random << 17;
	return n->random % below;
}

/* ---- how calls begin, go on and end ---- */

static unsigned stall_ms(const struct net *n, const struct call *c)
{
	return c->how.stall_ms ? c->how.stall_ms : n->o.stall_ms;
}

static unsigned retry_ms(const struct net *n, const struct call *c)
{
	return c->how.retry_ms ? c->how.retry_ms : n->o.retry_ms;
}

/* How long a call goes on without a byte. */
static uint64_t patience_ms(const struct net *n, const struct call *c)
{
	bool unknown = c->how.answered && !atomic_load(c->how.answered);

	return unknown ? min_u64(retry_ms(n, c), UNKNOWN_MS) : retry_ms(n, c);
}

/* When a call is given up, unless it has a request under way that may still be answered. */
static uint64_t deadline_ns(const struct net *n, const struct call *c)
{
	uint64_t bytes = c->how.upload		    ? c->how.upload
			 : c->how.len != UINT64_MAX ? c->how.len
						    : c->most;
	uint64_t total = retry_ms(n, c) + bytes / LEAST_BPS * 1000 + stall_ms(n, c);

	return min_u64(c->byte_ns + patience_ms(n, c) * CLOCK_MS, c->began_ns + total * CLOCK_MS);
}

static void note_lost(const struct call *c, const struct transfer *t)
{
	if (c->how.lost && transfer_is_lost(t))
		++*c->how.lost;
}

static void end_call(struct net *n, struct call *c, int rc, const struct ckpt_err *e)
{
	struct ckpt_err all = { 0 };

	for (int i = 0; i < 2; i++)
		if (c->t[i])
			note_lost(c, c->t[i]);
	transfers_drop(c);
	if (rc) {
		err_set(&all, -rc, "%s", e && e->msg[0] ? e->msg : strerror(-rc));
		err_wrap(&all, "'%s'", c->what);
	}
	{
		SCOPED_LOCK(&n->lock);
		LIST_REMOVE(&n->calls, c);
	}
	c->ops->done(c->arg, rc, rc ? &all : NULL);
	free(c->what);
	free(c);
}

/* Starts a request of the call. False: the call is over, or has to wait. */
static bool start(struct net *n, struct call *c, uint64_t now)
{
	int slot = c->t[0] ? 1 : 0, rc;
	struct ckpt_err e = { 0 };

	rc = transfer_start(n, c, now, &c->t[slot], &e);
	if (rc) {
		if (slot) /* it was only a hedge */
			return false;
		if (rc == -EAGAIN && now - c->byte_ns < retry_ms(n, c) * CLOCK_MS)
			c->due_ns = now + 20 * CLOCK_MS;
		else
			end_call(n, c, rc == -EAGAIN ? -ETIMEDOUT : rc, &e);
		return false;
	}
	if (n->in_flight == 1)
		pace_alone(&n->pace, now);
	if (!c->begun)
		c->began_ns = c->byte_ns = now;
	c->begun = true;
	c->hedged = slot;
	n->pace.v.requests++;
	return true;
}

/* The call has no transfer left, and is to be tried again. */
static void again(struct net *n, struct call *c, uint64_t now, uint64_t at_least_ms)
{
	uint64_t delay = (uint64_t)BACKOFF_MS << (c->tries < 7 ? c->tries : 7);

	/* A quarter of the time left for it, so that it is tried more than once. */
	delay = random_below(n, min_u64(min_u64(delay, BACKOFF_MAX_MS), patience_ms(n, c) / 4) + 1);
	delay = max_u64(delay, min_u64(at_least_ms, BACKOFF_MAX_MS));
	c->tries++;
	if (now + delay * CLOCK_MS > deadline_ns(n, c)) {
		struct ckpt_err e = c->last;
		int code = c->timed_out ? ETIMEDOUT : EIO;

		if (c->tries > 1)
			err_set(&e, code, "%s; tried %u times in %.1f s", c->last.msg, c->tries,
				(double)(now - c->byte_ns) / 1e9);
		end_call(n, c, -code, &e);
		return;
	}
	if (c->ops->restart && c->got) {
		c->ops->restart(c->arg);
		c->got = 0;
	}
	n->pace.v.retries++;
	c->due_ns = now + delay * CLOCK_MS;
}

/* A transfer has ended, as libcurl or the clock says (then `why` is set); frees it. */
static void ended(struct net *n, struct transfer *t, CURLcode code, uint64_t now)
{
	struct call *c = t->call;
	struct ckpt_err e;
	struct outcome o;
	bool others;

	if (!c) {
		transfer_free(n, t);
		return;
	}
	o = transfer_outcome(t, code, now, &e);
	if (o.now && ++c->moves > MOVES_MAX) {
		o.now = false;
		o.rc = err_set(&e, EIO, "the server redirects without end");
	}
	for (int i = 0; i < 2; i++)
		if (c->t[i] == t)
			c->t[i] = NULL;
	if (!c->t[0]) {
		c->t[0] = c->t[1];
		c->t[1] = NULL;
	}
	others = c->t[0];
	if (o.later || (o.rc && !o.now))
		note_lost(c, t);
	transfer_free(n, t);
	if (o.now) {
		transfers_drop(c);
		c->due_ns = now;
	} else if (o.later && others)
		return; /* the hedge, or what was hedged, may still answer in its own time */
	else if (o.later) {
		c->last = e;
		c->timed_out = o.timed_out;
		again(n, c, now, min_u64(o.wait_s, 3600) * 1000);
	} else
		end_call(n, c, o.rc, &e);
}

/* ---- the loop ---- */

/* Says why a transfer is ended. late: all of its answer should be there. */
static void say_slow(struct transfer *t, bool late, uint64_t now)
{
	const char *what = late			      ? "the answer is not complete after"
			   : t->first_ns && !t->bytes ? "the answer has begun, but no byte of its "
							"body came for"
						      : "no byte came for";

	(void)snprintf(t->why, sizeof(t->why), "%s %.1f s", what,
		       (double)(now - (late ? t->sent_ns : t->last_ns)) / 1e9);
}

/* Ends what has stalled, starts hedges. Returns when to look again. */
static uint64_t look_at_clock(struct net *n, uint64_t now)
{
	uint64_t next = now + CLOCK_SECOND;
	struct transfer *after;

	for (struct transfer *t = n->transfers.first; t; t = after) {
		struct call *c = t->call;
		uint64_t stall, hedge, late = UINT64_MAX;

		after = t->link.next;
		if (!c) {
			transfer_free(n, t);
			next = now; /* another may start */
			continue;
		}
		stall = t->last_ns + stall_ms(n, c) * CLOCK_MS;
		/* What is left of retry_ms counts too, but not while bytes come. */
		stall = min_u64(stall, max_u64(t->last_ns, c->byte_ns) + retry_ms(n, c) * CLOCK_MS);
		if (t->m.read || t->m.body.len)
			late = t->sent_ns + n->o.answer_ms * CLOCK_MS;
		stall = min_u64(stall, late);
		if (now >= stall) {
			say_slow(t, now >= late, now);
			ended(n, t, CURLE_OPERATION_TIMEDOUT, now);
			/* That may have started or freed other transfers. */
			return now;
		}
		next = min_u64(next, stall);
		if (now - t->mark_ns > SLOW_S * CLOCK_SECOND) { /* not covered: takes so long */
			uint64_t moved = t->bytes + t->sent - t->mark_bytes;

			/* While an upload is answered nothing moves: how.stall_ms is for that. */
			if (moved < SLOW_S * SLOW_BPS && !t->m.read && !t->m.body.len) {
				(void)snprintf(t->why, sizeof(t->why),
					       "only %llu bytes came in %d s",
					       (unsigned long long)moved, SLOW_S);
				ended(n, t, CURLE_OPERATION_TIMEDOUT, now);
				return now;
			}
			t->mark_ns = now;
			t->mark_bytes = t->bytes + t->sent;
		}
		/* One hedge a try: if one could replace another, the try would never be over. */
		if (!c->how.urgent || t->first_ns || c->hedged)
			continue;
		hedge = t->began_ns + pace_hedge_ns(&n->pace);
		if (now < hedge)
			next = min_u64(next, hedge);
		else if (n->in_flight < n->o.max_connections && start(n, c, now))
			n->pace.v.hedges++;
	}
	return next;
}

/*
 * Is there a request that has been sent as a whole, and whose effect matters? The server may carry
 * it out whether or not anybody waits; if it does so after uploads have been aborted, a part or an
 * upload stays for ever.
 */
static bool is_sent(const struct call *c, uint64_t now)
{
	const struct transfer *t = c->t[0];

	return t && c->how.lost && t->sent == t->m.upload && transfer_is_lost(t) &&
	       now - t->sent_ns < LINGER_S * CLOCK_SECOND;
}

static bool is_cancelled(const struct call *c, uint64_t now)
{
	return atomic_load(&c->cancelled) ||
	       (c->how.cancel && atomic_load(c->how.cancel) && !is_sent(c, now));
}

/* Starts what may start, urgent calls first. Returns when the next is due. */
static uint64_t start_calls(struct net *n, uint64_t now)
{
	uint64_t next = now + CLOCK_SECOND;
	struct call *before;

	for (int urgent = 1; urgent >= 0; urgent--)
		for (struct call *c = n->calls.last; c; c = before) {
			before = c->link.prev; /* newer ones are in front */
			if (is_cancelled(c, now)) {
				end_call(n, c, -ECANCELED, NULL);
				continue;
			}
			if (c->t[0] || c->how.urgent != (bool)urgent)
				continue;
			if (c->due_ns > now)
				next = min_u64(next, c->due_ns);
			else if (n->in_flight < (urgent ? n->o.max_connections : n->pace.v.at_once))
				(void)start(n, c, now);
		}
	return next;
}

/* Takes what others have asked for. False: it is to end. */
static bool take_incoming(struct net *n)
{
	SCOPED_LOCK(&n->lock);

	n->shown = n->pace.v;
	while (n->incoming.last) {
		struct call *c = n->incoming.last;

		LIST_REMOVE(&n->incoming, c);
		LIST_PUSH(&n->calls, c);
	}
	return !n->stop;
}

static void *run(void *arg)
{
	struct net *n = arg;
	bool stop = false;

	while (!stop || n->calls.first) {
		uint64_t now, next, before;
		int running, left;
		CURLMsg *m;

		stop = !take_incoming(n);
		if (stop)
			LIST_EACH (c, &n->calls)
				atomic_store(&c->cancelled, true);
		now = clock_ns();
		next = start_calls(n, now);
		before = clock_ns();
		(void)curl_multi_perform(n->multi, &running);
		now = clock_ns();
		/* A slow disk took bytes for so long that those of others had to wait. */
		if (now - before > CLOCK_SECOND)
			LIST_EACH (t, &n->transfers)
				t->last_ns = now;
		while ((m = curl_multi_info_read(n->multi, &left)))
			if (m->msg == CURLMSG_DONE) {
				struct transfer *t = NULL;

				(void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE,
							(char **)&t);
				ended(n, t, m->data.result, now);
				next = now;
			}
		next = min_u64(next, look_at_clock(n, now));
		pace_look(&n->pace, n->in_flight, now);
		now = clock_ns();
		if (next > now && !stop)
			(void)curl_multi_poll(n->multi, NULL, 0,
					      (int)((next - now + CLOCK_MS - 1) / CLOCK_MS), NULL);
	}
	while (n->transfers.first)
		transfer_free(n, n->transfers.first);
	return NULL;
}

/* ---- calls ---- */

int http_start(struct net *n, const struct http_ops *ops, void *arg, const struct http_how *how,
	       uint64_t *ret_id, struct ckpt_err *e)
{
	struct call *c = calloc(1, sizeof(*c));

	if (!c || !(c->what = strdup(how->what))) {
		free(c);
		return err_nomem(e);
	}
	c->ops = ops;
	c->arg = arg;
	c->how = *how;
	c->how.what = c->what;
	c->began_ns = c->byte_ns = c->due_ns = clock_ns();
	{
		SCOPED_LOCK(&n->lock);
		c->id = ++n->next_id;
		if (ret_id)
			*ret_id = c->id;
		LIST_PUSH(&n->incoming, c);
	}
	(void)curl_multi_wakeup(n->multi);
	return 0;
}

void http_cancel(struct net *n, uint64_t id)
{
	{
		SCOPED_LOCK(&n->lock);
		LIST_EACH (c, &n->incoming)
			if (c->id == id)
				atomic_store(&c->cancelled, true);
		LIST_EACH (c, &n->calls)
			if (c->id == id)
				atomic_store(&c->cancelled, true);
	}
	(void)curl_multi_wakeup(n->multi);
}

/* ---- the network ---- */

static void global_init(void)
{
	(void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* The first of them that is set. */
static const char *ca_file(void)
{
	static const char *const names[] = { "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *v = getenv(names[i]);

		if (v && *v)
			return v;
	}
	return NULL;
}

static bool make_shares(struct net *n)
{
	for (size_t i = 0; i < ARRAY_LEN(n->share); i++) {
		n->share[i] = curl_share_init();
		if (!n->share[i] ||
		    curl_share_setopt(n->share[i], CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) ||
		    curl_share_setopt(n->share[i], CURLSHOPT_SHARE, CURL_LOCK_DATA_CONNECT))
			return false;
	}
	return true;
}

static void free_shares(struct net *n)
{
	for (size_t i = 0; i < ARRAY_LEN(n->share); i++)
		(void)curl_share_cleanup(n->share[i]);
}

int net_new(const struct net_options *o, struct net **ret, struct ckpt_err *e)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct net *n = calloc(1, sizeof(*n));
	int rc;

	if (!n)
		return err_nomem(e);
	(void)pthread_once(&once, global_init);
	if (o)
		n->o = *o;
	n->o.max_connections = n->o.max_connections ? n->o.max_connections : 64;
	n->o.connect_ms = n->o.connect_ms ? n->o.connect_ms : 3000;
	n->o.stall_ms = n->o.stall_ms ? n->o.stall_ms : 10000;
	n->o.retry_ms = n->o.retry_ms ? n->o.retry_ms : 60000;
	n->o.answer_ms = n->o.answer_ms ? n->o.answer_ms : 600000;
	pace_init(&n->pace, n->o.max_connections);
	n->shown = n->pace.v;
	n->ca_file = ca_file();
	if (getrandom(&n->random, sizeof(n->random), GRND_NONBLOCK) != sizeof(n->random) ||
	    !n->random)
		n->random = clock_ns() | 1;
	(void)pthread_mutex_init(&n->lock, NULL);
	n->multi = curl_multi_init();
	if (!n->multi || !make_shares(n) ||
	    curl_multi_setopt(n->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING) ||
	    curl_multi_setopt(n->multi, CURLMOPT_MAXCONNECTS, (long)n->o.max_connections * 2)) {
		rc = err_nomem(e);
		goto fail;
	}
	rc = pthread_create(&n->thread, NULL, run, n);
	if (rc) {
		rc = err_sys(e, rc, "start a thread for the network");
		goto fail;
	}
	*ret = n;
	return 0;
fail:
	if (n->multi)
		(void)curl_multi_cleanup(n->multi);
	free_shares(n);
	(void)pthread_mutex_destroy(&n->lock);
	free(n);
	return rc;
}

void net_free(struct net *n)
{
	if (!n)
		return;
	{
		SCOPED_LOCK(&n->lock);
		n->stop = true;
	}
	(void)curl_multi_wakeup(n->multi);
	(void)pthread_join(n->thread, NULL);
	while (n->n_pool)
		curl_easy_cleanup(n->pool[--n->n_pool]);
	(void)curl_multi_cleanup(n->multi);
	free_shares(n);
	(void)pthread_mutex_destroy(&n->lock);
	free(n);
}

void net_pace(struct net *n, struct net_pace *ret)
{
	SCOPED_LOCK(&n->lock);
	*ret = n->shown;
	ret->requests += n->reads;
	ret->bytes += n->read_bytes;
}

void net_note_read(struct net *n, uint64_t bytes)
{
	SCOPED_LOCK(&n->lock);

	n->reads++;
	n->read_bytes += bytes;
}

unsigned net_retry_ms(const struct net *n)
{
	return n->o.retry_ms;
}

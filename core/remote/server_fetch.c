/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/server_internal.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/vec.h"
#include "remote/depot.h"
#include "remote/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

enum {
	MAX_WANTS = 4096,    /* ranges; more are forgotten, because they are only hints */
	MAX_WAITERS = 65536, /* reads that wait at a time */
	MAX_FETCHES = 256,   /* requests on their way */
	BUSY_MS = 4,	     /* until a block that another process fetches is looked for again */
	BUSY_MAX_MS = 10000, /* then it is fetched here, too */
	CHECKS = 64,	     /* unchecked blocks of what is wanted that are read in a turn */
};

/* A read that waits. */
struct waiter {
	struct file *file;
	uint32_t id;
	struct span span;
	uint64_t busy_ns; /* since when another process is fetching what is missing; 0: none is */
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
	/* Under fetching.lock. */
	bool finished, noted;
	int rc;
	struct ckpt_err why;
	struct fetch *next_note;
	LIST_LINK(struct fetch) link;
};

struct fetching {
	struct want *wants;
	size_t n_wants, cap_wants;
	LIST(struct waiter) waiters; /* the last has waited for longest */
	size_t n_waiters;
	LIST(struct fetch) fetches;
	size_t n_fetches;
	uint64_t busy; /* bytes on their way */
	struct window window;
	uint64_t ram;
	bool again;   /* something another process fetches is to be looked at again */
	bool at_once; /* there is more to check */

	pthread_mutex_t lock;
	struct fetch *notes; /* fetches that have something to say */
};

struct fetching *fetching_new(void)
{
	struct fetching *g = calloc(1, sizeof(*g));
	struct sysinfo info;

	if (!g)
		return NULL;
	g->ram = sysinfo(&info) ? UINT64_MAX : (uint64_t)info.totalram * info.mem_unit;
	window_init(&g->window);
	(void)pthread_mutex_init(&g->lock, NULL);
	return g;
}

int fetching_pause(const struct server *s)
{
	return s->fetching->at_once ? 0 : s->fetching->again ? BUSY_MS : -1;
}

bool fetching_is_busy(const struct server *s)
{
	return s->fetching->n_fetches;
}

uint64_t fetching_window(const struct server *s)
{
	return s->fetching->window.bytes;
}

/* ---- what is asked for ---- */

int fetching_read(struct server *s, struct file *f, uint32_t id, struct span span,
		  struct ckpt_err *e)
{
	struct fetching *g = s->fetching;
	struct waiter *w;

	if (g->n_waiters >= MAX_WAITERS)
		return err_set(e, EINVAL, "an impossible read was requested");
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_nomem(e);
	(void)object_check(f->object, span.first, span.end, UINT64_MAX);
	w->file = f;
	w->id = id;
	w->span = span;
	LIST_PUSH(&g->waiters, w);
	g->n_waiters++;
	return 0;
}

void fetching_want(struct server *s, struct file *f, struct span span)
{
	struct fetching *g = s->fetching;

	if (!f->gone && g->n_wants < MAX_WANTS && VEC_ROOM(g->wants, g->cap_wants, g->n_wants + 1))
		g->wants[g->n_wants++] = (struct want){ f, span, span.first };
}

static void drop_wants(struct server *s, const struct file *f)
{
	struct fetching *g = s->fetching;

	for (size_t i = 0; i < g->n_wants; i++)
		if (g->wants[i].file == f)
			g->wants[i].file = NULL;
}

static struct waiter *waiter_end(struct server *s, struct waiter *w)
{
	struct fetching *g = s->fetching;
	struct waiter *before = w->link.prev;

	LIST_REMOVE(&g->waiters, w);
	g->n_waiters--;
	free(w);
	return before;
}

static void cancel_ahead(struct server *s, const struct file *f)
{
	drop_wants(s, f);
	LIST_EACH (x, &s->fetching->fetches)
		if (x->file == f && !x->urgent) {
			x->cancelled = true;
			get_cancel(s->net, x->get); /* no byte may come for long */
		}
}

void fetching_forget(struct server *s, struct file *f)
{
	struct fetching *g = s->fetching;

	f->forgotten = true;
	cancel_ahead(s, f);
	for (struct waiter *w = g->waiters.last; w;)
		w = w->file == f ? waiter_end(s, w) : w->link.prev;
	if (!f->fetches)
		server_file_free(s, f);
}

/* ---- requests ---- */

/* On the network's thread. Lock held. */
static void note(struct fetch *x)
{
	struct fetching *g = x->server->fetching;

	if (x->noted)
		return;
	x->noted = true;
	x->next_note = g->notes;
	g->notes = x;
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
		SCOPED_LOCK(&x->server->fetching->lock);
		first = !x->noted;
		note(x);
	}
	if (first)
		server_wake(x->server);
	return 0;
}

static void take_end(void *arg, int rc, const struct ckpt_err *e)
{
	struct fetch *x = arg;
	struct server *s = x->server;

	{
		SCOPED_LOCK(&s->fetching->lock);
		x->rc = rc;
		if (rc && e)
			x->why = *e;
		x->finished = true;
		note(x);
	}
	server_wake(s);
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
	LIST_EACH (x, &a->server->fetching->fetches)
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
	struct fetching *g = s->fetching;
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

	LIST_PUSH(&g->fetches, x);
	rc = store_get(server_file_store(s, f), f->path, &f->seen, span.first * WIRE_BLOCK,
		       x->bytes, urgent, &sink, &x->get, e);
	if (rc) {
		LIST_REMOVE(&g->fetches, x);
		hold_end(x->hold);
		free(x);
		return rc;
	}
	g->n_fetches++;
	g->busy += x->bytes;
	f->fetches++;
	return 1;
}

/* Starts what a reader waits for. True: it is answered. */
static bool serve(struct server *s, struct waiter *w)
{
	struct fetching *g = s->fetching;
	struct file *f = w->file;
	struct asked a = { s, f, false };
	struct ckpt_err e = { 0 };
	struct span r;
	bool alone;

	if (f->gone) {
		server_answer(s, w->id, &f->why);
		return true;
	}
	if (server_file_send(s, f, w->span, &e)) {
		server_answer(s, w->id, NULL);
		return true;
	}
	alone = w->busy_ns && clock_ns() - w->busy_ns > BUSY_MAX_MS * CLOCK_MS;
	for (struct span left = w->span;
	     !e.code && g->n_fetches < MAX_FETCHES &&
	     sched_exact(left, SCHED_MAX / WIRE_BLOCK, is_missing, &a, &r);
	     left.first = r.end) {
		int rc = start_fetch(s, f, r, true, alone, &e);

		if (!rc) {
			if (!w->busy_ns)
				w->busy_ns = clock_ns();
			g->again = true;
		}
		if (rc > 0)
			r.end = r.first + g->fetches.first->n;
	}
	if (e.code && server_file_leave_disk(s, f, &e)) {
		g->again = true;
		return false;
	}
	if (e.code) {
		server_answer(s, w->id, &e);
		return true;
	}
	if (g->n_fetches >= MAX_FETCHES || !a.busy)
		g->again = true;
	return false;
}

/* Checks more of what is wanted. *most: the blocks that may be read for it. */
static void check_more(struct want *w, uint64_t *most)
{
	uint64_t from = max_u64(w->checked, w->span.first);

	w->checked = object_check(w->file->object, from, w->span.end, *most);
	if (w->checked < w->span.end)
		*most = 0;
	/* Do not look again for what is there: a want may cover all of a large object. */
	while (w->span.first < w->checked && object_has(w->file->object, w->span.first))
		w->span.first++;
}

/* A request for wants[i] and what adjoins. False: nothing of it is missing. */
static bool start_wanted(struct server *s, size_t i, const struct net_pace *p, uint64_t *most)
{
	struct fetching *g = s->fetching;
	struct file *f = g->wants[i].file;
	struct asked a = { s, f, false };
	struct span near[64], r;
	struct ckpt_err ignored = { 0 };
	size_t n = 0;
	int rc;

	for (size_t k = i; k < g->n_wants && n < ARRAY_LEN(near); k++)
		if (g->wants[k].file == f) {
			check_more(&g->wants[k], most);
			near[n++] = (struct span){ g->wants[k].span.first, g->wants[k].checked };
		}
	if (f->gone || !sched_exact(near[0], 1, is_missing, &a, &r)) {
		g->wants[i].span.first = g->wants[i].checked;
		return false;
	}
	if (!sched_wanted(near, n, steps_most(&f->steps, r.first), sched_gap(p, g->busy),
			  is_missing, &a, &r))
		return false;
	rc = start_fetch(s, f, r, false, false, &ignored);
	if (rc <= 0) { /* another process is fetching it, or a reader will see why not */
		if (rc < 0)
			g->wants[i].span.end = 0;
		g->wants[i].span.first = r.end;
		return rc == 0 && g->wants[i].span.first < g->wants[i].span.end;
	}
	steps_sent(&f->steps, r.first, r.first + g->fetches.first->n);
	return true;
}

void fetching_schedule(struct server *s)
{
	struct fetching *g = s->fetching;
	struct net_pace p;
	uint64_t checks = CHECKS;
	size_t i = 0, kept = 0;

	g->again = g->at_once = false;
	for (struct waiter *w = g->waiters.last; w;)
		w = serve(s, w) ? waiter_end(s, w) : w->link.prev;
	net_pace(s->net, &p);
	while (i < g->n_wants && g->busy < g->window.bytes && g->n_fetches < MAX_FETCHES &&
	       g->n_fetches < max_u64(p.at_once, 1)) {
		struct want *w = &g->wants[i];

		if (w->file && start_wanted(s, i, &p, &checks))
			continue;
		g->at_once = w->file && !w->file->gone && w->checked < w->span.end;
		if (g->at_once)
			break;
		g->wants[i++].file = NULL;
	}
	for (i = 0; i < g->n_wants; i++)
		if (g->wants[i].file)
			g->wants[kept++] = g->wants[i];
	g->n_wants = kept;
}

/* The readers of a failed request, who would only fail again. */
static void fail_waiters(struct server *s, const struct fetch *x)
{
	for (struct waiter *w = s->fetching->waiters.last; w;) {
		bool his = w->file == x->file && w->span.first < x->first + x->n &&
			   w->span.end > x->first;

		if (his)
			server_answer(s, w->id, &x->why);
		w = his ? waiter_end(s, w) : w->link.prev;
	}
}

static void fetch_ended(struct server *s, struct fetch *x)
{
	struct fetching *g = s->fetching;
	struct file *f = x->file;
	bool in_memory = hold_in_memory(x->hold);
	int rc = x->rc;

	LIST_REMOVE(&g->fetches, x);
	g->n_fetches--;
	g->busy -= x->bytes;
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
		} else if (!object_in_memory(f->object) && !server_file_leave_disk(s, f, &x->why))
			fail_waiters(s, x);
	} else if (rc && rc != -ECANCELED)
		fail_waiters(s, x);
	if (f->forgotten && !f->fetches)
		server_file_free(s, f);
	free(x);
}

/* The next fetch that has something to say; NULL: none. */
static struct fetch *take_note(struct server *s, bool *ret_finished)
{
	struct fetching *g = s->fetching;
	SCOPED_LOCK(&g->lock);
	struct fetch *x = g->notes;

	if (x) {
		g->notes = x->next_note;
		x->noted = false;
		*ret_finished = x->finished;
	}
	return x;
}

void fetching_take_notes(struct server *s)
{
	struct fetching *g = s->fetching;
	struct net_pace p;
	uint64_t arrived = 0;
	bool full = g->busy + SCHED_MAX > g->window.bytes, finished;

	for (struct fetch *x; (x = take_note(s, &finished));) {
		uint64_t done = hold_done(x->hold);

		arrived += (done - x->seen_done) * WIRE_BLOCK;
		x->seen_done = done;
		if (finished)
			fetch_ended(s, x);
	}
	net_pace(s->net, &p);
	window_arrived(&g->window, arrived, clock_ns(), full, &p, g->ram);
}

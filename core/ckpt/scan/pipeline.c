/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks go through a ring of slots:
 *
 *	      head                next             tail
 *	retired |  done or in work  |  to be taken   |  free
 *
 * Workers take slots in order and may finish them in any order; the calling thread fills them and
 * retires them in order.
 */
#include "ckpt/scan/pipeline.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/cpus.h"
#include "base/err.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_JOBS = 4 };

struct slot {
	struct pipeline_item *item;
	uint64_t block;
	bool done, idle; /* idle: for an item without blocks */
	void *result;
};

struct ring {
	const struct pipeline *of;
	pthread_mutex_t lock;
	pthread_cond_t filled, finished;
	struct slot *slots;
	uint8_t *items, *results;  /* as many as slots: each item in progress has one */
	uint64_t n;		   /* number of slots */
	uint64_t head, next, tail; /* written under the lock, as is .done */
	uint64_t serial;
	bool quit;
};

struct worker {
	struct ring *ring;
	pthread_t thread;
	void *own;
};

void pipeline_stop(struct pipeline_item *i, uint64_t block)
{
	uint64_t stop = i->stop;

	while (block < stop && !atomic_compare_exchange_weak(&i->stop, &stop, block))
		;
}

/* ---- workers ---- */

static void *run_worker(void *arg)
{
	struct worker *w = arg;
	struct ring *r = w->ring;

	(void)lock_take(&r->lock);
	for (;;) {
		struct slot *s;

		while (!r->quit && r->next == r->tail)
			(void)pthread_cond_wait(&r->filled, &r->lock);
		if (r->quit)
			break;
		s = &r->slots[r->next++ % r->n];
		if (s->done)
			continue;
		lock_give(&r->lock);
		if (s->block <= s->item->stop)
			r->of->work(r->of->arg, w->own, s->item, s->block, s->result);
		(void)lock_take(&r->lock);
		s->done = true;
		(void)pthread_cond_signal(&r->finished);
	}
	lock_give(&r->lock);
	return NULL;
}

/* ---- the calling thread ---- */

/* Waits for the oldest slot and removes it from the ring. */
static int retire(struct ring *r)
{
	struct slot *s = &r->slots[r->head % r->n];
	struct pipeline_item *i = s->item;
	int rc = 0;

	(void)lock_take(&r->lock);
	while (!s->done)
		(void)pthread_cond_wait(&r->finished, &r->lock);
	r->head++;
	r->next = max_u64(r->next, r->head); /* workers may not have passed an idle slot yet */
	lock_give(&r->lock);
	i->ended++;
	if (!s->idle)
		rc = r->of->merge(r->of->arg, i, s->result);
	if (!rc && i->complete && i->ended == i->queued)
		rc = r->of->finish(r->of->arg, i);
	return rc;
}

static int push(struct ring *r, struct pipeline_item *i, uint64_t block, bool idle)
{
	int rc = r->tail - r->head == r->n ? retire(r) : 0;
	struct slot *s = &r->slots[r->tail % r->n];

	if (rc)
		return rc;
	*s = (struct slot){ i, block, idle, idle,
			    r->results + r->tail % r->n * r->of->result_size };
	memset(s->result, 0, r->of->result_clear);
	i->queued++;
	(void)lock_take(&r->lock);
	r->tail++;
	(void)pthread_cond_signal(&r->filled);
	lock_give(&r->lock);
	return 0;
}

static int run_items(struct ring *r)
{
	int rc = 0;

	for (;;) {
		struct pipeline_item *i;
		uint64_t blocks = 0;

		/* The previous item in this place occupies a slot until it is finished. */
		if (r->tail - r->head == r->n)
			rc = retire(r);
		if (rc)
			return rc;
		i = (void *)(r->items + r->serial % r->n * r->of->item_size);
		memset(i, 0, r->of->item_size);
		if (!r->of->next(r->of->arg, i, &blocks))
			break;
		i->serial = ++r->serial;
		i->stop = UINT64_MAX;
		if (!blocks)
			rc = push(r, i, 0, true);
		for (uint64_t k = 0; !rc && k < blocks && k <= i->stop; k++)
			rc = push(r, i, k, false);
		if (rc)
			return rc;
		i->complete = true;
		if (i->ended == i->queued)
			rc = r->of->finish(r->of->arg, i);
	}
	while (!rc && r->head < r->tail)
		rc = retire(r);
	return rc;
}

static int run_with(struct ring *r, struct worker *workers, uint8_t *own, unsigned jobs,
		    struct ckpt_err *e)
{
	const struct pipeline *p = r->of;
	unsigned set_up = 0, started = 0;
	int rc = 0;

	for (; !rc && started < jobs; started += !rc) {
		struct worker *w = &workers[started];

		*w = (struct worker){ .ring = r, .own = own + started * p->worker_size };
		set_up++;
		rc = p->setup(p->arg, w->own, e);
		if (rc)
			break;
		rc = pthread_create(&w->thread, NULL, run_worker, w);
		if (rc)
			rc = err_sys(e, rc, "start a thread");
	}
	if (!rc)
		rc = run_items(r);
	(void)lock_take(&r->lock);
	r->quit = true;
	(void)pthread_cond_broadcast(&r->filled);
	lock_give(&r->lock);
	while (started)
		(void)pthread_join(workers[--started].thread, NULL);
	while (set_up)
		p->teardown(p->arg, workers[--set_up].own);
	return rc;
}

/* Size of an array element, rounded up so that all are aligned for any type. */
static size_t stride(size_t size)
{
	return (size + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);
}

int pipeline_run(const struct pipeline *pipeline, struct ckpt_err *e)
{
	struct pipeline of = *pipeline, *p = &of;
	unsigned jobs = p->jobs ? p->jobs : (unsigned)min_u64(cpus_usable(), DEFAULT_JOBS);
	struct ring r = { .of = p, .n = (uint64_t)jobs * PIPELINE_SLOTS };
	struct worker *workers;
	uint8_t *own;
	int rc;

	if (jobs > PIPELINE_MAX_JOBS)
		return err_set(e, EINVAL, "%u jobs are too many: at most %d are possible", jobs,
			       PIPELINE_MAX_JOBS);
	p->item_size = stride(p->item_size);
	p->result_size = stride(p->result_size);
	p->result_clear = p->result_clear ? p->result_clear : p->result_size;
	p->worker_size = stride(p->worker_size);
	r.slots = calloc(r.n, sizeof(*r.slots));
	r.items = calloc(r.n, p->item_size);
	r.results = calloc(r.n, p->result_size);
	workers = calloc(jobs, sizeof(*workers));
	own = calloc(jobs, p->worker_size);
	(void)pthread_mutex_init(&r.lock, NULL);
	(void)pthread_cond_init(&r.filled, NULL);
	(void)pthread_cond_init(&r.finished, NULL);
	rc = r.slots && r.items && r.results && workers && own ? run_with(&r, workers, own, jobs, e)
							       : err_nomem(e);
	(void)pthread_cond_destroy(&r.finished);
	(void)pthread_cond_destroy(&r.filled);
	(void)pthread_mutex_destroy(&r.lock);
	free(own);
	free(workers);
	free(r.results);
	free(r.items);
	free(r.slots);
	return rc;
}

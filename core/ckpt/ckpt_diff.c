/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff: two sorted lists of names are merged into pairs, a pair is cut into blocks, and blocks go
 * through a ring of slots:
 *
 *	      head                next             tail
 *	retired |  done or in work  |  to be taken   |  free
 *
 * Workers take slots in order and finish them in any; the calling thread fills them and retires
 * them in order, so that results come in natural order and sums do not depend on who was faster.
 */
#include <ckptfs/ckpt_diff.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/diff_pairs.h"
#include "codec/delta.h"
#include "store/object_same.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_PER_JOB = 4, DEFAULT_JOBS = 4 };

/* ---- workers ---- */

/* A pair under way. */
struct pair {
	struct diff_pair of;
	uint64_t serial;
	_Atomic uint64_t stop; /* nothing behind this block matters any more */

	/* The calling thread's. */
	uint64_t queued, retired, charged; /* slots, slots, bytes */
	bool complete, differs;
	struct delta delta;
	struct ckpt_diff_values result;
	struct ckpt_err why, untold;
};

/* One block of a pair; the only one of a pair that is not read, and of an object. */
struct slot {
	struct pair *pair;
	uint64_t block;
	bool done, differs;
	uint64_t first; /* if it differs: element of the tensor */
	struct delta delta;
	struct ckpt_err why; /* a code if reading failed */
	bool why_b;
	struct ckpt_err untold; /* a code if the values of two objects cannot be compared */
};

struct run {
	struct ckpt_diff *d;
	struct diff_side sides[2];
	pthread_mutex_t lock;
	sem_t room; /* for two whole objects in memory: held by one worker at a time */
	pthread_cond_t filled, finished;
	struct slot *slots;
	struct pair *pairs;	   /* as many: each that is under way has a slot */
	uint64_t n;		   /* of each */
	uint64_t head, next, tail; /* written under the lock, as .done is */
	bool quit;
	uint64_t serial, done, total; /* pairs; bytes */
};

struct worker {
	struct run *run;
	pthread_t thread;
	uint8_t *bufs[2];
	struct ckpt_file *files[2]; /* of the pair with that serial, if any */
	uint64_t serial;
};

static void worker_close(struct worker *w)
{
	for (size_t i = 0; i < 2; i++) {
		ckpt_file_close(w->files[i]);
		w->files[i] = NULL;
	}
}

static int worker_open(struct worker *w, struct slot *s)
{
	const struct pair *p = s->pair;

	if (w->files[1] && w->serial == p->serial)
		return 0;
	worker_close(w);
	w->serial = p->serial;
	for (size_t i = 0; i < 2; i++) {
		int rc = diff_open(&w->run->sides[i], p->of.is_object, p->of.at[i], &w->files[i],
				   &s->why);

		s->why_b = i;
		if (rc)
			return rc;
	}
	return 0;
}

/* n elements from element `from` on, of both sides. */
static int worker_read(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	for (size_t i = 0; i < 2; i++) {
		uint64_t size = dtype_info(s->pair->of.types[i])->size;
		int64_t got = ckpt_file_read(w->files[i], w->bufs[i], (size_t)(n * size),
					     from * size, &s->why);

		s->why_b = i;
		if (got >= 0 && (uint64_t)got != n * size)
			return err_set(&s->why, EIO, "it ends at %ju of %ju bytes",
				       (uintmax_t)(from * size + (uint64_t)got),
				       (uintmax_t)((from + n) * size));
		if (got < 0)
			return (int)got;
	}
	return 0;
}

/* Number of the first byte that differs; there is one. */
static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
	size_t at = 0;

	while (n > 1) {
		size_t half = n / 2;

		if (memcmp(a + at, b + at, half) != 0) {
			n = half;
		} else {
			at += half;
			n -= half;
		}
	}
	return at;
}

static void compare(struct worker *w, struct slot *s, uint64_t from, uint64_t n)
{
	const struct pair *p = s->pair;
	size_t size = dtype_info(p->of.types[0])->size;

	if (p->of.values)
		delta_add(&s->delta, p->of.types[0], w->bufs[0], p->of.types[1], w->bufs[1],
			  (size_t)n);
	if (p->of.same_type && !s->differs &&
	    memcmp(w->bufs[0], w->bufs[1], (size_t)n * size) != 0) {
		s->differs = true;
		s->first = from + first_difference(w->bufs[0], w->bufs[1], (size_t)n * size) / size;
	}
}

/* The bytes of two objects differ. Do their values? */
static int compare_whole(struct worker *w, struct slot *s, uint64_t *sizes)
{
	autofree uint8_t *both = NULL;
	struct object_bytes x[2];

	if (sizes[0] > OBJECT_SAME_MAX || sizes[1] > OBJECT_SAME_MAX)
		return err_set(&s->untold, ERR_UNSUPPORTED,
			       "more than %d MiB are compared by bytes", OBJECT_SAME_MAX >> 20);
	both = malloc(sizes[0] + sizes[1] + 1);
	if (!both)
		return err_set(&s->why, ENOMEM, "out of memory");
	for (size_t i = 0; i < 2; i++) {
		struct ckpt *c = w->run->sides[i].ckpt;
		uint8_t *at = both + (i ? sizes[0] : 0);
		int64_t got = ckpt_file_read(w->files[i], at, sizes[i], 0, &s->why);
		struct ckpt_object o;

		s->why_b = i;
		if (got < 0)
			return (int)got;
		ckpt_object(c, s->pair->of.at[i], &o);
		x[i] = (struct object_bytes){ ckpt_object_form(c->engine, &o), at, (size_t)got };
	}
	return object_same(&x[0], &x[1], &s->untold);
}

/* The sizes of objects are known only now. */
static void compare_objects(struct worker *w, struct slot *s)
{
	uint64_t sizes[] = { ckpt_file_size(w->files[0]), ckpt_file_size(w->files[1]) };
	uint64_t common = min_u64(sizes[0], sizes[1]);

	for (uint64_t at = 0; at < common && !s->differs; at += DIFF_BLOCK) {
		uint64_t n = min_u64(common - at, DIFF_BLOCK);

		if (worker_read(w, s, at, n))
			return;
		compare(w, s, at, n);
	}
	if (!s->differs && sizes[0] != sizes[1]) {
		s->differs = true;
		s->first = common;
	}
	if (s->differs) {
		while (sem_wait(&w->run->room))
			;
		s->differs = compare_whole(w, s, sizes) != 1;
		(void)sem_post(&w->run->room);
	}
	if (s->untold.code == ENOMEM)
		s->why = s->untold;
}

static void compare_tensors(struct worker *w, struct slot *s)
{
	const struct diff_pair *p = &s->pair->of;
	uint64_t from = s->block * p->step, n = min_u64(p->elements - from, p->step);

	if (!worker_read(w, s, from, n))
		compare(w, s, from, n);
}

static void run_slot(struct worker *w, struct slot *s)
{
	struct pair *p = s->pair;
	uint64_t stop = p->stop;

	if (stop < s->block)
		return;
	if (!worker_open(w, s)) {
		if (p->of.is_object)
			compare_objects(w, s);
		else
			compare_tensors(w, s);
	}
	/* The lowest block with something to tell decides: the same one in every run. */
	if (s->why.code || (s->differs && !p->of.values))
		while (s->block < stop && !atomic_compare_exchange_weak(&p->stop, &stop, s->block))
			;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct run *r = w->run;

	(void)lock_take(&r->lock);
	for (;;) {
		struct slot *s;

		while (!r->quit && r->next == r->tail)
			(void)pthread_cond_wait(&r->filled, &r->lock);
		if (r->quit)
			break;
		s = &r->slots[r->next++ % r->n];
		if (s->done) /* nothing to read */
			continue;
		lock_give(&r->lock);
		run_slot(w, s);
		(void)lock_take(&r->lock);
		s->done = true;
		(void)pthread_cond_signal(&r->finished);
	}
	lock_give(&r->lock);
	worker_close(w);
	return NULL;
}

/* ---- the calling thread ---- */

static void add_values(struct pair *p)
{
	const struct delta *d = &p->delta;

	p->result = (struct ckpt_diff_values){
		.elements = d->elements,
		.changed = d->changed,
		.numeric = delta_numeric(p->of.types[0], p->of.types[1]),
		.nan_a = d->nan_a,
		.nan_b = d->nan_b,
		.infinite = d->infinite,
		.finite = d->finite,
		.max_abs = d->max,
		.mean_abs = d->finite ? d->sum / (double)d->finite : 0,
	};
	p->of.item.values = &p->result;
}

/* All slots of a pair are retired, or there are no more to come. */
static int finish(struct run *r, struct pair *p)
{
	struct ckpt_diff_item *i = &p->of.item;

	if (p->why.code) {
		i->result = CKPT_DIFF_FAILED;
		i->fault = p->why.msg;
	} else {
		if (p->differs)
			i->result = CKPT_DIFF_BYTES;
		if (p->untold.code)
			i->fault = p->untold.msg;
		if (p->of.read && p->of.values)
			add_values(p);
	}
	r->d->names++;
	r->d->counts[i->result]++;
	r->done += p->of.cost - p->charged;
	if (r->d->progress)
		r->d->progress(r->d->arg, r->done, r->total);
	return r->d->each(r->d->arg, i);
}

/* Take the oldest slot out of the ring, when it is done. */
static int retire(struct run *r)
{
	struct slot *s = &r->slots[r->head % r->n];
	struct pair *p = s->pair;
	uint64_t bytes;

	(void)lock_take(&r->lock);
	while (!s->done)
		(void)pthread_cond_wait(&r->finished, &r->lock);
	r->head++;
	r->next = max_u64(r->next, r->head); /* one without work may not have been passed yet */
	lock_give(&r->lock);
	p->retired++;
	if (!p->why.code && !(p->differs && !p->of.values)) {
		if (s->why.code) {
			p->why = s->why;
			p->of.item.fault_in_b = s->why_b;
		}
		if (s->differs && !p->differs)
			p->of.item.first = s->first;
		p->differs |= s->differs;
		if (s->untold.code)
			p->untold = s->untold;
		delta_merge(&p->delta, &s->delta);
	}
	bytes = min_u64(p->of.cost - p->charged, 2 * DIFF_BLOCK);
	p->charged += bytes;
	r->done += bytes;
	if (p->complete && p->retired == p->queued)
		return finish(r, p);
	if (r->d->progress)
		r->d->progress(r->d->arg, r->done, r->total);
	return 0;
}

static int make_room(struct run *r)
{
	return r->tail - r->head == r->n ? retire(r) : 0;
}

static void push(struct run *r, struct pair *p, uint64_t block)
{
	struct slot *s = &r->slots[r->tail % r->n];

	*s = (struct slot){ .pair = p, .block = block, .done = !p->of.read };
	p->queued++;
	(void)lock_take(&r->lock);
	r->tail++;
	(void)pthread_cond_signal(&r->filled);
	lock_give(&r->lock);
}

static int compare_all(struct run *r)
{
	uint64_t glob_steps = TEXT_GLOB_STEPS; /* enough: the same globs were held before */
	struct diff_pair next;
	int rc = 0;

	while (!rc && diff_next(r->sides, r->d, &glob_steps, &next)) {
		struct pair *p;
		uint64_t blocks = 1;

		rc = make_room(r);
		if (rc)
			return rc;
		p = &r->pairs[r->serial % r->n];
		*p = (struct pair){ .of = next, .serial = ++r->serial, .stop = UINT64_MAX };
		if (p->of.read && !p->of.is_object && p->of.elements)
			blocks = (p->of.elements - 1) / p->of.step + 1;
		for (uint64_t k = 0; !rc && k < blocks && k <= p->stop; k++) {
			rc = make_room(r);
			if (!rc)
				push(r, p, k);
		}
		p->complete = true;
		if (!rc && p->retired == p->queued)
			rc = finish(r, p);
	}
	while (!rc && r->head < r->tail)
		rc = retire(r);
	return rc;
}

static unsigned default_jobs(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set)) /* more CPUs than it has bits */
		return DEFAULT_JOBS;
	return (unsigned)min_u64((uint64_t)CPU_COUNT(&set), DEFAULT_JOBS);
}

static int run_with(struct run *r, struct worker *workers, unsigned jobs, struct ckpt_err *e)
{
	unsigned started = 0;
	int rc = 0;

	for (; !rc && started < jobs; started += !rc) {
		struct worker *w = &workers[started];

		w->run = r;
		w->bufs[0] = malloc((size_t)2 * DIFF_BLOCK);
		if (!w->bufs[0]) {
			rc = err_set(e, ENOMEM, "out of memory");
			break;
		}
		w->bufs[1] = w->bufs[0] + DIFF_BLOCK;
		rc = pthread_create(&w->thread, NULL, work, w);
		if (rc)
			rc = err_sys(e, rc, "start a thread");
	}
	if (!rc)
		rc = compare_all(r);
	(void)lock_take(&r->lock);
	r->quit = true;
	(void)pthread_cond_broadcast(&r->filled);
	lock_give(&r->lock);
	while (started)
		(void)pthread_join(workers[--started].thread, NULL);
	for (unsigned i = 0; i < jobs; i++)
		free(workers[i].bufs[0]);
	return rc;
}

static int diff(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, struct ckpt_err *e)
{
	unsigned jobs = d->jobs ? d->jobs : default_jobs();
	struct run r = { .d = d, .n = (uint64_t)jobs * SLOTS_PER_JOB };
	struct diff_side sides[] = { diff_side_of(a, d), diff_side_of(b, d) };
	uint64_t glob_steps = TEXT_GLOB_STEPS;
	struct worker *workers;
	struct diff_pair p;
	int rc;

	if (ckpt_is_run(a) || ckpt_is_run(b))
		return err_set(e, EISDIR, "it is a run");
	if (jobs > CKPT_DIFF_MAX_JOBS)
		return err_set(e, EINVAL, "%u jobs: at most %d make sense", jobs,
			       CKPT_DIFF_MAX_JOBS);
	for (size_t i = 0; d->model && i < 2; i++)
		if (!sides[i].n_tensors)
			return err_set(e, ENOENT,
				       "%s has no model to compare: name its weights with weights=",
				       i ? "the second checkpoint" : "the first checkpoint");
	d->names = 0;
	memset(d->counts, 0, sizeof(d->counts));
	memcpy(r.sides, sides, sizeof(sides));
	while (diff_next(sides, d, &glob_steps, &p))
		r.total += p.cost;
	rc = text_glob_check(glob_steps, "diff", e);
	if (rc)
		return rc;
	r.slots = calloc(r.n, sizeof(*r.slots));
	r.pairs = calloc(r.n, sizeof(*r.pairs));
	workers = calloc(jobs, sizeof(*workers));
	(void)pthread_mutex_init(&r.lock, NULL);
	(void)sem_init(&r.room, 0, 1);
	(void)pthread_cond_init(&r.filled, NULL);
	(void)pthread_cond_init(&r.finished, NULL);
	rc = r.slots && r.pairs && workers ? run_with(&r, workers, jobs, e)
					   : err_set(e, ENOMEM, "out of memory");
	(void)pthread_cond_destroy(&r.finished);
	(void)pthread_cond_destroy(&r.filled);
	(void)sem_destroy(&r.room);
	(void)pthread_mutex_destroy(&r.lock);
	free(workers);
	free(r.pairs);
	free(r.slots);
	return rc;
}

int ckpt_diff_sized(struct ckpt *a, struct ckpt *b, struct ckpt_diff *d, size_t size,
		    struct ckpt_err *e)
{
	struct ckpt_diff ours;
	int rc = SIZED_TAKE(ours, d, size, "ckpt_diff", e);

	if (rc)
		return rc;
	rc = diff(a, b, &ours, e);
	SIZED_GIVE(d, size, ours);
	return rc;
}

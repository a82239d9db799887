/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads: each publishes a pointer to its bytes, and the receivers copy them, between two
 * barriers. comm.c ensures that all ranks are at the same barrier.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include <ckptfs/ckpt_comm.h>

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 512 << 10 };

struct group {
	pthread_mutex_t gate; /* held until all threads exist */
	bool is_open;	      /* under gate: all threads exist */
	pthread_barrier_t barrier;
	ckpt_comm_rank_fn *fn;
	void *arg;
	struct member *members;
	size_t n;
	const struct ckpt_comm_bytes *parts; /* what rank 0 sends */
	const void *data;
};

struct member {
	struct group *group;
	struct ckpt_comm comm;
	const void *mine; /* what this rank sends */
	size_t len;
	pthread_t thread;
};

static void meet(struct group *g)
{
	(void)pthread_barrier_wait(&g->barrier);
}

static void copy(void *to, const void *from, size_t n)
{
	if (n)
		memcpy(to, from, n);
}

static int gather(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		  struct ckpt_err *e)
{
	struct member *m = self;
	struct group *g = m->group;

	(void)e;
	m->mine = mine;
	m->len = len;
	meet(g);
	for (size_t i = 0; all && i < g->n; i++)
		copy(all[i].data, g->members[i].mine, g->members[i].len);
	meet(g);
	return 0;
}

static int scatter(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		   struct ckpt_err *e)
{
	const struct member *m = self;
	struct group *g = m->group;

	(void)e;
	if (parts)
		g->parts = parts;
	meet(g);
	copy(mine, g->parts[m->comm.rank].data, len);
	meet(g);
	return 0;
}

static int broadcast(void *self, void *data, size_t len, struct ckpt_err *e)
{
	const struct member *m = self;
	struct group *g = m->group;

	(void)e;
	if (m->comm.rank == 0)
		g->data = data;
	meet(g);
	if (m->comm.rank)
		copy(data, g->data, len);
	meet(g);
	return 0;
}

static int run_rank(struct member *m, struct ckpt_err *e)
{
	return ckpt_comm_leave(&m->comm, m->group->fn(m->group->arg, &m->comm, e), e);
}

static bool is_open(struct group *g)
{
	SCOPED_LOCK(&g->gate);

	return g->is_open;
}

static void *run_thread(void *arg)
{
	struct member *m = arg;
	struct ckpt_err e = { 0 };

	if (is_open(m->group))
		(void)run_rank(m, &e); /* rank 0 returns the same error */
	return NULL;
}

/* Starts ranks 1 to n - 1, which wait at the gate. Returns how many ranks exist now. */
static size_t start_threads(struct group *g, struct ckpt_err *e)
{
	pthread_attr_t attr;
	size_t n = 1;
	int rc;

	SCOPED_LOCK(&g->gate);
	rc = pthread_attr_init(&attr);
	if (rc) {
		(void)err_sys(e, rc, "start %zu ranks", g->n);
		return n;
	}
	rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
	while (!rc && n < g->n) {
		rc = pthread_create(&g->members[n].thread, &attr, run_thread, &g->members[n]);
		n += !rc;
	}
	(void)pthread_attr_destroy(&attr);
	if (rc)
		(void)err_sys(e, rc, "start rank %zu of %zu", n, g->n);
	g->is_open = !rc;
	return n;
}

static int run_group(struct group *g, struct ckpt_err *e)
{
	size_t n = start_threads(g, e);
	int rc = n == g->n ? run_rank(&g->members[0], e) : -e->code;

	while (n-- > 1)
		(void)pthread_join(g->members[n].thread, NULL);
	return rc;
}

static int make_members(struct group *g, struct ckpt_err *e)
{
	static const struct ckpt_comm_ops ops = { gather, scatter, broadcast };
	int rc = 0;

	g->members = calloc(g->n, sizeof(*g->members));
	if (!g->members)
		return err_set(e, ENOMEM, "%zu ranks: out of memory", g->n);
	for (size_t i = 0; i < g->n && !rc; i++) {
		g->members[i].group = g;
		rc = ckpt_comm_init(&g->members[i].comm, &ops, &g->members[i], i, g->n, e);
	}
	return rc;
}

int ckpt_comm_run_threads(size_t n, ckpt_comm_rank_fn *fn, void *arg, struct ckpt_err *e)
{
	struct group g = { .gate = PTHREAD_MUTEX_INITIALIZER, .fn = fn, .arg = arg, .n = n };
	struct ckpt_comm alone = ckpt_comm_self();
	int rc;

	if (n == 1)
		return fn(arg, &alone, e);
	if (!n || n > INT_MAX)
		return err_set(e, EINVAL, "%zu ranks", n);
	rc = pthread_barrier_init(&g.barrier, NULL, (unsigned)n);
	if (rc)
		return err_sys(e, rc, "start %zu ranks", n);
	rc = make_members(&g, e);
	if (!rc)
		rc = run_group(&g, e);
	if (g.members)
		ckpt_comm_release(&g.members[0].comm); /* the others own nothing */
	free(g.members);
	(void)pthread_barrier_destroy(&g.barrier);
	return rc;
}

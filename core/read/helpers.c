/* SPDX-License-Identifier: Apache-2.0 */
#include "read/helpers.h"

#include "base/checked.h"
#include "base/cpus.h"
#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { MAX_HELPERS = 32 };

struct share {
	helpers_fn *fn;
	void *arg;
	uint64_t from, n;
	int rc;
	struct ckpt_err e;
	pthread_t thread;
	bool started;
};

void helpers_init(struct helpers *h)
{
	h->most = (unsigned)min_u64(cpus_usable(), MAX_HELPERS);
	h->busy = 0;
}

/* Takes up to `wanted` of the threads that are not in use. */
static unsigned take(struct helpers *h, uint64_t wanted)
{
	unsigned busy = h->busy, n;

	do {
		n = busy < h->most ? (unsigned)min_u64(wanted, h->most - busy) : 0;
	} while (!atomic_compare_exchange_weak(&h->busy, &busy, busy + n));
	return n;
}

static void *run(void *arg)
{
	struct share *s = arg;

	s->rc = s->fn(s->arg, s->from, s->n, &s->e);
	return NULL;
}

int helpers_run(struct helpers *h, uint64_t n, uint64_t least, helpers_fn *fn, void *arg,
		struct ckpt_err *e)
{
	uint64_t parts = n / least;
	unsigned got = parts > 1 ? take(h, parts - 1) : 0, used = got;
	struct share shares[MAX_HELPERS];
	uint64_t each = (n + used) / (used + 1);
	int rc;

	/* Rounding up may leave nothing for the last ones. */
	used = each ? (unsigned)((n - 1) / each) : 0;
	for (unsigned i = 0; i < used; i++) {
		struct share *s = &shares[i];
		uint64_t from = (i + 1) * each;

		*s = (struct share){ .fn = fn, .arg = arg, .from = from };
		s->n = min_u64(each, n - from);
		s->started = !pthread_create(&s->thread, NULL, run, s);
	}
	rc = fn(arg, 0, used ? each : n, e);
	for (unsigned i = 0; i < used; i++) {
		struct share *s = &shares[i];

		if (s->started)
			(void)pthread_join(s->thread, NULL);
		else if (!rc)
			(void)run(s);
		if (!rc && s->rc) {
			*e = s->e;
			rc = s->rc;
		}
	}
	atomic_fetch_sub(&h->busy, got);
	return rc;
}

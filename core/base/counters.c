/* SPDX-License-Identifier: Apache-2.0 */
#include "base/counters.h"

#include "base/checked.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	/* Two cache lines, because some processors fetch lines in pairs. */
	LINE = 128,
	MAX_SETS = 64, /* CPUs beyond that share sets */
};

struct counters {
	size_t n, stride; /* cells in a set; distance to the next set */
	unsigned mask;	  /* sets - 1 */
	_Atomic uint64_t *cells;
};

struct counters *counters_new(size_t n)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct counters *c = malloc(sizeof(*c));
	unsigned sets = 1;
	size_t bytes;
	void *cells;

	while (sets < MAX_SETS && (long)sets < cpus)
		sets *= 2;
	if (!c || ckd_mul(&bytes, n, sizeof(*c->cells)) || ckd_add(&bytes, bytes, LINE - 1)) {
		free(c);
		return NULL;
	}
	bytes -= bytes % LINE;
	if (ckd_mul(&c->stride, bytes, sets) || posix_memalign(&cells, LINE, bytes * sets)) {
		free(c);
		return NULL;
	}
	memset(cells, 0, bytes * sets);
	c->n = n;
	c->stride = bytes / sizeof(*c->cells);
	c->mask = sets - 1;
	c->cells = cells;
	return c;
}

void counters_free(struct counters *c)
{
	if (!c)
		return;
	free(c->cells);
	free(c);
}

void counters_add(struct counters *c, size_t i, uint64_t by)
{
	/* By CPU, not by thread, which would need a table of threads. If the CPU is unknown (-1),
	 * any set will do. */
	size_t set = (unsigned)sched_getcpu() & c->mask;

	(void)atomic_fetch_add_explicit(&c->cells[set * c->stride + i], by, memory_order_relaxed);
}

void counters_read(const struct counters *c, uint64_t *ret)
{
	memset(ret, 0, c->n * sizeof(*ret));
	for (size_t set = 0; set <= c->mask; set++)
		for (size_t i = 0; i < c->n; i++)
			ret[i] += atomic_load_explicit(&c->cells[set * c->stride + i],
						       memory_order_relaxed);
}

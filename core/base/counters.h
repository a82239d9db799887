/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters - numbers that many threads increment constantly and that are read rarely.
 *
 *	enum { READS, BYTES, N };
 *	struct counters *c = counters_new(N);
 *	counters_add(c, READS, 1);
 *	counters_read(c, sums);     // uint64_t sums[N]
 *	counters_free(c);
 *
 * Each CPU has cells of its own, on cache lines of its own: adding costs a few nanoseconds however
 * many threads do it, and threads need not be registered. Nothing is lost when a thread moves to
 * another CPU in between. Numbers wrap at 2^64.
 *
 * Threads: add and read from any; new and free from one. A read sees everything that was added
 * before it (happens-before); related counters may be one apart.
 */
#ifndef BASE_COUNTERS_H
#define BASE_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

struct counters;

struct counters *counters_new(size_t n); /* n > 0; NULL: out of memory */
void counters_free(struct counters *c);	 /* NULL is fine */
void counters_add(struct counters *c, size_t i, uint64_t by);
/* Writes all n sums to ret. */
void counters_read(const struct counters *c, uint64_t *ret);

#endif

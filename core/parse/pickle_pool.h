/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_pool - memory of one pickle: sizes rounded up to powers of two, free lists by size, in an
 * arena. Private to core/parse.
 *
 * Threads: one at a time.
 */
#ifndef PARSE_PICKLE_POOL_H
#define PARSE_PICKLE_POOL_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>

enum { POOL_MIN_SHIFT = 5, POOL_CLASSES = 44 };

struct pool {
	void *free[POOL_CLASSES];
	struct arena arena;
	bool no_memory; /* pool_get failed for lack of memory, not at the ceiling */
};

void *pool_refill(struct pool *p, unsigned cls);

/* The smallest class whose pieces hold n bytes. */
static inline unsigned pool_class(size_t n)
{
	unsigned shift = n <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(n - 1);

	return shift <= POOL_MIN_SHIFT ? 0 : shift - POOL_MIN_SHIFT;
}

static inline size_t pool_class_size(unsigned cls)
{
	return (size_t)1 << (cls + POOL_MIN_SHIFT);
}

/* 2^(cls + POOL_MIN_SHIFT) bytes, uninitialised; NULL at the ceiling or out of memory. */
static inline void *pool_get(struct pool *p, unsigned cls)
{
	void **head;

	if (cls >= POOL_CLASSES)
		return NULL;
	head = p->free[cls];
	if (!head)
		return pool_refill(p, cls);
	p->free[cls] = *head;
	return head;
}

static inline void pool_put(struct pool *p, void *m, unsigned cls)
{
	*(void **)m = p->free[cls];
	p->free[cls] = m;
}

#endif

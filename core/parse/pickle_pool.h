/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_pool - memory of one pickle: sizes rounded to powers of two, freed pieces kept on lists
 * by size, everything given back at once, under a ceiling. Private to core/parse.
 *
 * Threads: one at a time.
 */
#ifndef PARSE_PICKLE_POOL_H
#define PARSE_PICKLE_POOL_H

#include <stddef.h>
#include <stdint.h>

enum { POOL_MIN_SHIFT = 5, POOL_CLASSES = 44 };

struct pool_slab;

struct pool {
	void *free[POOL_CLASSES];
	struct pool_slab *slabs;
	char *at;
	size_t left;            /* bytes of the newest slab */
	size_t bytes, max_bytes;
};

void *pool_refill(struct pool *p, unsigned cls);
void pool_release(struct pool *p);

static inline unsigned pool_class(size_t n)
{
	unsigned shift = n <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(n - 1);

	return shift <= POOL_MIN_SHIFT ? 0 : shift - POOL_MIN_SHIFT;
}

/* What an allocation of n bytes really holds. */
static inline size_t pool_size(size_t n)
{
	return (size_t)1 << (pool_class(n) + POOL_MIN_SHIFT);
}

/* n bytes, uninitialised; NULL at the ceiling or out of memory. */
static inline void *pool_alloc(struct pool *p, size_t n)
{
	unsigned cls = pool_class(n);
	void **head;

	if (cls >= POOL_CLASSES)
		return NULL;
	head = p->free[cls];
	if (!head)
		return pool_refill(p, cls);
	p->free[cls] = *head;
	return head;
}

/* n as given to pool_alloc. */
static inline void pool_free(struct pool *p, void *m, size_t n)
{
	unsigned cls = pool_class(n);

	*(void **)m = p->free[cls];
	p->free[cls] = m;
}

#endif

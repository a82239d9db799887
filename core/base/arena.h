/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena - memory that is given back all at once, under a ceiling given at birth.
 *
 *	struct arena a = ARENA_INIT(1 << 30);
 *	uint64_t *v = arena_array(&a, n, sizeof(*v));
 *	if (!v) ...                           // ENOMEM: the ceiling, or out of memory
 *	arena_release(&a);
 *
 * Threads: one at a time.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_slab;

struct arena {
	struct arena_slab *slabs;
	char *at;		 /* free bytes of the newest slab */
	size_t left;		 /* of them */
	size_t bytes, max_bytes; /* of all slabs, and of what arena_charge was told */
};

#define ARENA_INIT(limit) \
	{ \
		.max_bytes = (limit) \
	}

/* n bytes, aligned for numbers and pointers, uninitialised; not NULL for n = 0. Where it is NULL,
 * errno is ENOMEM, or EFBIG at the ceiling. */
void *arena_alloc(struct arena *a, size_t n);
/* count members of the given size, all bytes 0. */
void *arena_array(struct arena *a, size_t count, size_t size);
/* A copy of n bytes, followed by a NUL. */
void *arena_dup(struct arena *a, const void *p, size_t n);
/* Count n bytes that are held elsewhere but belong under the ceiling; false: no room. */
bool arena_charge(struct arena *a, size_t n);
/* Everything goes; the arena is as at birth. */
void arena_release(struct arena *a);

#endif

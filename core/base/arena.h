/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena - memory that is freed all at once, with a ceiling fixed at initialisation.
 *
 *	struct arena a = ARENA_INIT(1 << 30);
 *	uint64_t *v = arena_array(&a, n, sizeof(*v));
 *	if (!v) ...                           // errno: EFBIG at the ceiling, else ENOMEM
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
	size_t left;		 /* bytes left in it */
	size_t bytes, max_bytes; /* of all slabs, and of arena_charge */
};

#define ARENA_INIT(limit) \
	{ \
		.max_bytes = (limit) \
	}

/* n bytes, aligned for numbers and pointers, uninitialised; not NULL for n = 0. On failure NULL,
 * with errno ENOMEM, or EFBIG at the ceiling. */
void *arena_alloc(struct arena *a, size_t n);
/* count members of the given size, zeroed. */
void *arena_array(struct arena *a, size_t count, size_t size);
/* A copy of n bytes, followed by a NUL. */
void *arena_dup(struct arena *a, const void *p, size_t n);
/* Counts n bytes held elsewhere against the ceiling; false: no room. */
bool arena_charge(struct arena *a, size_t n);
/* Frees everything; the arena may be used again. */
void arena_release(struct arena *a);

#endif

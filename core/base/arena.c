/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/checked.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 8, FIRST_SLAB = 4096, LAST_SLAB = 1 << 20 };

struct arena_slab {
	struct arena_slab *next;
	char data[];
};

bool arena_charge(struct arena *a, size_t n)
{
	if (n > a->max_bytes - a->bytes)
		return false;
	a->bytes += n;
	return true;
}

/* A slab of n bytes, which must fit under the ceiling. Not yet in the list. */
static struct arena_slab *new_slab(struct arena *a, size_t n)
{
	struct arena_slab *s = malloc(n);

	if (s)
		a->bytes += n;
	return s;
}

/* Slabs double in size up to LAST_SLAB. A large allocation gets a slab of its own, inserted behind
 * the one that still has room. */
static char *add_slab(struct arena *a, size_t n)
{
	size_t size = FIRST_SLAB, need;
	struct arena_slab *s;

	while (size < LAST_SLAB && size < a->bytes)
		size *= 2;
	if (ckd_add(&need, n, sizeof(*s)) || need > a->max_bytes - a->bytes) {
		errno = EFBIG;
		return NULL;
	}
	if (n > size / 4 && a->slabs) {
		s = new_slab(a, need);
		if (!s)
			return NULL;
		s->next = a->slabs->next;
		a->slabs->next = s;
		return s->data;
	}
	size = min_u64(max_u64(size, need), a->max_bytes - a->bytes);
	s = new_slab(a, size);
	if (!s)
		return NULL;
	s->next = a->slabs;
	a->slabs = s;
	a->at = s->data + n;
	a->left = size - need;
	return s->data;
}

void *arena_alloc(struct arena *a, size_t n)
{
	if (n > SIZE_MAX - ALIGN) {
		errno = EFBIG;
		return NULL;
	}
	n = (n + !n + ALIGN - 1) / ALIGN * ALIGN;
	if (n > a->left)
		return add_slab(a, n);
	a->at += n;
	a->left -= n;
	return a->at - n;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
	size_t n;
	void *p;

	if (ckd_mul(&n, count, size))
		n = SIZE_MAX; /* refused, like everything beyond the ceiling */
	p = arena_alloc(a, n);
	if (p)
		memset(p, 0, n);
	return p;
}

void *arena_dup(struct arena *a, const void *p, size_t n)
{
	char *copy = arena_alloc(a, n + (n < SIZE_MAX));

	if (!copy)
		return NULL;
	if (n)
		memcpy(copy, p, n);
	copy[n] = 0;
	return copy;
}

void arena_release(struct arena *a)
{
	size_t max_bytes = a->max_bytes;

	for (struct arena_slab *s = a->slabs, *next; s; s = next) {
		next = s->next;
		free(s);
	}
	*a = (struct arena)ARENA_INIT(max_bytes);
}

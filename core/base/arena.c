/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/checked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_SLAB = 4096, LAST_SLAB = 1 << 20 };

struct arena_slab {
	struct arena_slab *next;
	char pad[ALIGN - sizeof(struct arena_slab *)];
	char data[];
};

/* A slab of at least n bytes becomes the newest; slabs double up to LAST_SLAB. */
static bool add_slab(struct arena *a, size_t n)
{
	size_t room = a->max_bytes - a->bytes, size = FIRST_SLAB;
	struct arena_slab *s;

	while (size < LAST_SLAB && size < a->bytes)
		size *= 2;
	if (ckd_add(&n, n, sizeof(*s)) || n > room)
		return false;
	size = min_u64(max_u64(size, n), room);
	s = malloc(size);
	if (!s)
		return false;
	s->next = a->slabs;
	a->slabs = s;
	a->at = s->data;
	a->left = size - sizeof(*s);
	a->bytes += size;
	return true;
}

void *arena_alloc(struct arena *a, size_t n)
{
	char *p;

	if (n > SIZE_MAX - ALIGN)
		return NULL;
	n = (n + !n + ALIGN - 1) / ALIGN * ALIGN;
	if (n > a->left && !add_slab(a, n))
		return NULL;
	p = a->at;
	a->at += n;
	a->left -= n;
	return p;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
	size_t n;
	void *p = ckd_mul(&n, count, size) ? NULL : arena_alloc(a, n);

	if (p)
		memset(p, 0, n);
	return p;
}

void *arena_dup(struct arena *a, const void *p, size_t n)
{
	char *copy = n == SIZE_MAX ? NULL : arena_alloc(a, n + 1);

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

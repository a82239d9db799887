/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for blocks. Most blocks have one size, and these are made of slabs: a page fault for every
 * 4 KiB of new memory takes longer than computing what is put there, so all pages of a slab are
 * made at once, and where the kernel has huge pages there is one.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "source/blockcache_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	MAX_SPARE = 16,	 /* blocks of slabs that are not in use at all */
	SMALL_CACHE = 8, /* huge pages; what is unused in one would be much of such a cache */
	SLAB_BLOCKS = 8,
};

#define SLAB_SIZE (SLAB_BLOCKS * DECODED_SIZE) /* a huge page of x86 and of most other CPUs */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

struct slab {
	struct slab *chain;
	uint8_t *memory;
	uint32_t n, n_spare; /* blocks */
	struct entry blocks[SLAB_BLOCKS];
};

static uint8_t *huge_new(void)
{
	/* Twice the size contains an aligned slab; what is around it goes back. */
	uint8_t *p = mmap(NULL, 2 * SLAB_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	size_t before;

	if (p == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)p % SLAB_SIZE;
	if (before)
		(void)munmap(p, before);
	(void)munmap(p + before + SLAB_SIZE, SLAB_SIZE - before);
	/* Both only save time. */
	(void)madvise(p + before, SLAB_SIZE, MADV_HUGEPAGE);
	(void)madvise(p + before, SLAB_SIZE, MADV_POPULATE_WRITE);
	return p + before;
}

static void slab_free(struct slab *s)
{
	if (s->n == 1)
		free(s->memory);
	else
		(void)munmap(s->memory, SLAB_SIZE);
	free(s);
}

static struct slab *slab_new(const struct blockcache *c)
{
	bool small = c->max_bytes < SMALL_CACHE * SLAB_SIZE;
	struct slab *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->n = small ? 1 : SLAB_BLOCKS;
	s->memory = small ? malloc(DECODED_SIZE) : huge_new();
	if (!s->memory) {
		free(s);
		return NULL;
	}
	for (size_t i = 0; i < s->n; i++)
		s->blocks[i] = (struct entry){ .slab = s, .data = s->memory + i * DECODED_SIZE };
	return s;
}

void memory_free(struct freed *f)
{
	while (f->blocks) {
		struct entry *next = f->blocks->chain;

		free(f->blocks);
		f->blocks = next;
	}
	while (f->slabs) {
		struct slab *next = f->slabs->chain;

		slab_free(f->slabs);
		f->slabs = next;
	}
}

/* ---- under the lock ---- */

static void push_spare(struct blockcache *c, struct entry *b)
{
	LIST_PUSH(&c->spare, b);
	c->n_spare++;
	b->slab->n_spare++;
}

static void remove_spare(struct blockcache *c, struct entry *b)
{
	LIST_REMOVE(&c->spare, b);
	c->n_spare--;
	b->slab->n_spare--;
}

/* Frees the slab if all its blocks are spare, and more than `most` are. */
static void trim_slab(struct blockcache *c, struct slab *s, size_t most, struct freed *f)
{
	if (s->n_spare < s->n || c->n_spare <= most)
		return;
	for (size_t i = 0; i < s->n; i++)
		remove_spare(c, &s->blocks[i]);
	s->chain = f->slabs;
	f->slabs = s;
}

static size_t max_spare(const struct blockcache *c)
{
	return (size_t)min_u64(MAX_SPARE, c->max_bytes / DECODED_SIZE);
}

bool memory_is_spare(const struct blockcache *c)
{
	return c->n_spare >= max_spare(c);
}

void entry_give(struct blockcache *c, struct entry *b, struct freed *f)
{
	if (!b->slab) {
		b->chain = f->blocks;
		f->blocks = b;
		return;
	}
	push_spare(c, b);
	trim_slab(c, b->slab, max_spare(c), f);
}

void memory_trim(struct blockcache *c, struct freed *f)
{
	for (struct entry *b = c->spare.first, *next; b; b = next) {
		struct slab *s = b->slab;

		/* The next one of another slab: this one may be gone. */
		for (next = b->link.next; next && next->slab == s;)
			next = next->link.next;
		trim_slab(c, s, 0, f);
	}
}

/* ---- without the lock ---- */

static struct entry *take_spare(struct blockcache *c)
{
	SCOPED_LOCK(&c->lock);
	struct entry *b = c->spare.first;

	if (b)
		remove_spare(c, b);
	return b;
}

static struct entry *take_new(struct blockcache *c)
{
	struct slab *s = slab_new(c);

	if (s) {
		SCOPED_LOCK(&c->lock);
		for (size_t i = 1; i < s->n; i++)
			push_spare(c, &s->blocks[i]);
	}
	return s ? s->blocks : NULL;
}

static struct entry *alone_new(size_t len)
{
	struct entry *b = malloc(sizeof(*b) + len);

	if (b)
		*b = (struct entry){ .data = (uint8_t *)(b + 1) };
	return b;
}

/* Are its blocks those that slabs are made of? */
static bool is_usual(const struct block_item *item)
{
	return item->coding && block_shift(item) == DECODED_SHIFT;
}

struct entry *entry_new(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	struct entry *b = NULL;

	if (!is_usual(item))
		b = alone_new(block_size(item));
	else if (!(b = take_spare(c)))
		b = take_new(c);
	if (b)
		*b = (struct entry){
			.item = *item, .index = index, .pins = 1, .slab = b->slab, .data = b->data
		};
	return b;
}

void entry_free(struct blockcache *c, struct entry *b)
{
	struct freed f = { 0 };

	if (!b)
		return;
	{
		SCOPED_LOCK(&c->lock);
		entry_give(c, b, &f);
	}
	memory_free(&f);
}

struct entry *entry_fit(struct blockcache *c, struct entry *b)
{
	struct entry *fit = alone_new(b->len);
	uint8_t *data;

	if (!fit)
		return b;
	data = fit->data;
	memcpy(data, b->data, b->len);
	*fit = *b;
	fit->slab = NULL;
	fit->data = data;
	entry_free(c, b);
	return fit;
}

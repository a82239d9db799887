/* SPDX-License-Identifier: Apache-2.0 */
#include "source/pagemap.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/io.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK ((uint64_t)1 << PAGEMAP_SHIFT)
/* Up to this size the bytes are checked every time; in larger ranges, a block that has been mapped
 * is assumed to be still in memory. */
#define LOOK_ALWAYS (4 * BLOCK)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

struct slot {
	struct pagemap *map; /* NULL: empty */
	uint64_t block;
};

struct pagepool {
	pthread_mutex_t lock;
	size_t n, next;
	struct slot slots[];
};

struct pagemap {
	struct pagepool *pool;
	int fd;
	bool stacked; /* cachestat would examine the upper file, which has no pages; a mapping is of
                         the real file */
	uint64_t size;
	uint8_t *base;
	_Atomic uint8_t mapped[]; /* by block: it has a slot */
};

struct pagepool *pagepool_new(uint64_t max_bytes)
{
	size_t n = (size_t)max_u64(max_bytes >> PAGEMAP_SHIFT, 1);
	struct pagepool *p = calloc(1, sizeof(*p) + n * sizeof(p->slots[0]));

	if (!p)
		return NULL;
	(void)pthread_mutex_init(&p->lock, NULL);
	p->n = n;
	return p;
}

void pagepool_free(struct pagepool *p)
{
	if (p)
		(void)pthread_mutex_destroy(&p->lock);
	free(p);
}

struct pagemap *pagemap_new(struct pagepool *p, int fd, uint64_t size)
{
	uint64_t blocks = (size >> PAGEMAP_SHIFT) + 1;
	struct pagemap *m;
	void *base;

	if (!size || size > SIZE_MAX / 2)
		return NULL;
	m = calloc(1, sizeof(*m) + blocks * sizeof(m->mapped[0]));
	if (!m)
		return NULL;
	base = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		free(m);
		return NULL;
	}
	m->pool = p;
	m->fd = fd;
	m->stacked = io_is_stacked(fd);
	m->size = size;
	m->base = base;
	return m;
}

void pagemap_free(struct pagemap *m)
{
	if (!m)
		return;
	{
		SCOPED_LOCK(&m->pool->lock);
		for (size_t i = 0; i < m->pool->n; i++)
			if (m->pool->slots[i].map == m)
				m->pool->slots[i].map = NULL;
	}
	(void)munmap(m->base, (size_t)m->size);
	free(m);
}

/* For kernels without cachestat. For another user's file the kernel reports everything as cached:
 * mapping it then waits for the disk, one page fault at a time. */
static bool all_in_core(const struct pagemap *m, uint64_t off, uint64_t len)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char in[BLOCK / 4096];

	len += off % page;
	off -= off % page;
	while (len) {
		uint64_t n = min_u64(len, page * sizeof(in)), pages = (n + page - 1) / page;

		if (mincore(m->base + off, (size_t)n, in))
			return false;
		for (uint64_t i = 0; i < pages; i++)
			if (!(in[i] & 1))
				return false;
		off += n;
		len -= n;
	}
	return true;
}

static bool resident(const struct pagemap *m, uint64_t off, uint64_t len, bool arriving)
{
	static atomic_bool too_old;
	int cached;

	if (too_old || m->stacked)
		return all_in_core(m, off, len);
	cached = io_is_cached(m->fd, off, len);
	if (cached == -ENOSYS) {
		too_old = true;
		return all_in_core(m, off, len);
	}
	/* An error: another user's file, on huge pages, or forbidden here. */
	return cached > 0 && (!arriving || all_in_core(m, off, len));
}

/* Gives a block the slot that was assigned longest ago. Under the pool's lock. */
static void take_slot(struct pagemap *m, uint64_t block)
{
	struct slot *s = &m->pool->slots[m->pool->next];

	m->pool->next = (m->pool->next + 1) % m->pool->n;
	if (s->map) {
		uint64_t at = s->block << PAGEMAP_SHIFT;

		(void)madvise(s->map->base + at, (size_t)min_u64(BLOCK, s->map->size - at),
			      MADV_DONTNEED);
		s->map->mapped[s->block] = 0;
	}
	*s = (struct slot){ m, block };
	m->mapped[block] = 1;
}

static bool map_block(struct pagemap *m, uint64_t block, bool arriving)
{
	uint64_t at = block << PAGEMAP_SHIFT, n = min_u64(BLOCK, m->size - at);

	if (!resident(m, at, n, arriving))
		return false;
	{
		SCOPED_LOCK(&m->pool->lock);
		if (m->mapped[block])
			return true;
		take_slot(m, block);
	}
	/* Without it (an older kernel), page faults do it, more slowly. */
	return !madvise(m->base + at, (size_t)n, MADV_POPULATE_READ) || errno == EINVAL;
}

const uint8_t *pagemap_get(struct pagemap *m, uint64_t off, uint64_t len, bool arriving)
{
	if (off >= m->size || len > m->size - off)
		return NULL;
	if (len <= LOOK_ALWAYS && !resident(m, off, len, arriving))
		return NULL;
	for (uint64_t b = off >> PAGEMAP_SHIFT; b <= (off + len - 1) >> PAGEMAP_SHIFT; b++)
		if (!m->mapped[b] && !map_block(m, b, arriving))
			return NULL;
	return m->base + off;
}

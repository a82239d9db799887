/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagemap - maps the cached pages of a data file. Private to core/source.
 *
 * Only cached data is mapped, two MiB at a time and all at once: cold data is left to pread, which
 * reads ahead, and a page fault per page costs more than copying it. The total mapped by all maps
 * of a pool is bounded, because page tables use memory too; the oldest mapping is removed first.
 * Pages that are evicted while in use come back by a page fault, unless the file was truncated:
 * then touching them raises SIGBUS (see guard.h), or EFAULT in a system call.
 *
 * Threads: any; a map may be freed only while it is unused.
 */
#ifndef SOURCE_PAGEMAP_H
#define SOURCE_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

struct pagemap;
struct pagepool;

#define PAGEMAP_SHIFT 21 /* 2 MiB: one page of page tables */

/* max_bytes: bound on the bytes mapped at a time. NULL: out of memory. */
struct pagepool *pagepool_new(uint64_t max_bytes);
void pagepool_free(struct pagepool *p); /* NULL is fine; free its maps first */

/* Maps the file of that descriptor, which is borrowed, and of that size. NULL: it cannot be
 * mapped. */
struct pagemap *pagemap_new(struct pagepool *p, int fd, uint64_t size);
void pagemap_free(struct pagemap *m); /* NULL is fine */

/* Bytes [off, off+len), len > 0, inside the file. NULL: they are not in memory or cannot be mapped.
 * arriving: pages may still be being read, although cachestat counts them as cached. */
const uint8_t *pagemap_get(struct pagemap *m, uint64_t off, uint64_t len, bool arriving);

#endif

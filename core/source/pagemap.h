/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagemap - a data file's pages where the page cache has them. Private to core/source.
 *
 * Only what is in memory is mapped, two MiB at a time and all at once: cold data is for pread,
 * which reads ahead, and a fault for every page costs more than copying it. What all maps of a pool
 * have mapped is bounded, because page tables are memory too; what was mapped first goes first.
 * Pages that go while they are looked at come back by a fault, unless the file became shorter:
 * then touching them is SIGBUS (see guard.h), and EFAULT for a system call.
 *
 * Threads: any; a map is freed when nobody uses it.
 */
#ifndef SOURCE_PAGEMAP_H
#define SOURCE_PAGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pagemap;
struct pagepool;

#define PAGEMAP_SHIFT 21 /* 2 MiB: one page of page tables */

/* max_bytes: what may be mapped at a time. NULL: out of memory. */
struct pagepool *pagepool_new(uint64_t max_bytes);
void pagepool_free(struct pagepool *p); /* NULL is fine; its maps are freed before */

/* The file of that descriptor, which is borrowed, and of that size. NULL: it cannot be mapped. */
struct pagemap *pagemap_new(struct pagepool *p, int fd, uint64_t size);
void pagemap_free(struct pagemap *m); /* NULL is fine */

/* Bytes [off, off+len), len > 0, inside the file; NULL: they are not in memory, or cannot be
 * mapped. arriving: pages may have been asked for, which are there for who only counts them. */
const uint8_t *pagemap_get(struct pagemap *m, uint64_t off, uint64_t len, bool arriving);

/* Bytes that are mapped now, for those who watch. */
uint64_t pagepool_mapped(struct pagepool *p);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockcache - blocks of decoded items, bounded in bytes.
 *
 * A block is made once, however many readers wait for it, and decoding resumes where it stopped, so
 * a sequential reader decodes once. Frames that record their size (zstd_frames.h) are skipped, and
 * the beginnings of frames are remembered: random reads decode only the frames they need or, in
 * items that are a single frame or have other codecs, everything before the requested bytes.
 * Decoding can resume at several places of an item, so readers at different places, or of different
 * items, do not disturb each other. Pinned blocks are never evicted.
 *
 * Decoders that could be resumed count against the limit, except for the first few. A running
 * decoder may use a window, or a Blosc block, of up to 8 MiB; larger ones (up to 128 MiB) are
 * allowed one at a time.
 *
 * Also used without decoding: an item whose elements are scattered is cheaper to gather from memory
 * than from the file. And for items that are computed (CODING_COMPUTED): each block alone, in any
 * order, and of a size that the item gives. Computing may read other items through the same cache,
 * but none that is computed from this one: so a thread that makes a block waits only for items
 * closer to the stored ones, and threads cannot wait for each other in a cycle.
 *
 * Threads: all functions from any thread (one internal mutex, never held across decoding).
 */
#ifndef SOURCE_BLOCKCACHE_H
#define SOURCE_BLOCKCACHE_H

#include "codec/coding.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blockcache;
struct ckpt_err;

#define BLOCK_SHIFT   20 /* 1 MiB: one FUSE read */
#define BLOCK_SIZE    ((size_t)1 << BLOCK_SHIFT)
#define DECODED_SHIFT 18 /* 256 KiB: frames made for random reads have about that size */
#define DECODED_SIZE  ((size_t)1 << DECODED_SHIFT)

struct block {
	const uint8_t *data;
	size_t len; /* block_size, or less at the end of the item */
};

struct block_source {
	/* Reads exactly the raw bytes [off, off+len) of file. */
	int (*read)(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		    struct ckpt_err *e);
	void *arg;
	/* The same for the bytes of a computed item, which is named by its file. */
	int (*compute)(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e);
};

/* The item takes so long to compute that its blocks are kept even after a sequential reader has
 * passed them. */
#define BLOCK_DEAR 1

/* An item, as the catalog names it. */
struct block_item {
	/* Where it is stored. For a computed item, 0 or BLOCK_DEAR, and its number of bytes. */
	uint64_t offset, length;
	uint32_t file;
	uint32_t coding; /* see codec/coding.h; 0: not encoded */
};

static inline unsigned block_shift(const struct block_item *item)
{
	if (coding_is_computed(item->coding))
		return coding_shift(item->coding);
	return item->coding ? DECODED_SHIFT : BLOCK_SHIFT;
}

/* Is it decoded from its beginning, one block after the other? */
static inline bool block_is_stream(const struct block_item *item)
{
	return item->coding && !coding_is_computed(item->coding);
}

static inline size_t block_size(const struct block_item *item)
{
	return (size_t)1 << block_shift(item);
}

/* max_bytes bounds what is kept; blocks may exceed it while they are pinned. */
struct blockcache *blockcache_new(size_t max_bytes, const struct block_source *src);
void blockcache_free(struct blockcache *c);
/* Drops everything that is not pinned or being decoded. */
void blockcache_clear(struct blockcache *c);
size_t blockcache_max(const struct blockcache *c);

struct blockcache_counts {
	uint64_t hits, misses; /* gets that found their block; gets that had to make it */
	uint64_t evictions;    /* blocks dropped */
	uint64_t bytes;	       /* of the blocks in the cache now */
	uint64_t decoded;      /* bytes; a block that is made twice counts twice */
};
/* Takes no lock. */
void blockcache_counts(const struct blockcache *c, struct blockcache_counts *ret);

/* Pins blocks [first, first+n) of the item; len is 0, without a pin, beyond the item's end.
 * Borrowed until put. Known damage fails again without being read again; nothing is pinned then. */
int blockcache_get(struct blockcache *c, const struct block_item *item, uint64_t first, size_t n,
		   struct block *ret, void **ret_pins, struct ckpt_err *e);
void blockcache_put(struct blockcache *c, void *pin); /* NULL is fine */

bool blockcache_has(struct blockcache *c, const struct block_item *item, uint64_t index);

/* Reads decoded bytes [off, off+len), up to the end of the item: the count, or a negative errno. */
int64_t blockcache_read(struct blockcache *c, const struct block_item *item, uint64_t off,
			void *buf, size_t len, struct ckpt_err *e);

/*
 * Makes the blocks that sequential readers are likely to request next. For a thread that has
 * answered a request and is idle. Returns soon unless readers keep pace with it.
 */
void blockcache_ahead(struct blockcache *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockcache - blocks of decoded items, bounded in bytes.
 *
 * A block is made once however many readers wait for it, and where decoding stopped it goes on, so
 * a sequential reader decodes once. Frames that say how long they are (zstd_frames.h) are stepped
 * over, and where one was seen to begin is remembered: random reads decode the frames they need
 * and, of items that are one frame, what lies before. Several places of an item can be gone on
 * from: readers at different places, or of different items, do not disturb each other. Pinned
 * blocks are never evicted.
 *
 * Decoders that may be gone on with count as well, but for the first few. While they run, windows
 * of up to 8 MiB are allowed to each, larger ones (up to 128 MiB) to one at a time.
 *
 * Also used without any decoding: an item whose elements are scattered is cheaper to gather from
 * memory than from the file.
 *
 * Threads: all functions from any thread (one internal mutex, never held across decoding).
 */
#ifndef SOURCE_BLOCKCACHE_H
#define SOURCE_BLOCKCACHE_H

#include <stddef.h>
#include <stdint.h>

struct blockcache;
struct ckpt_err;

#define BLOCK_SHIFT   20 /* 1 MiB: one FUSE read */
#define BLOCK_SIZE    ((size_t)1 << BLOCK_SHIFT)
#define DECODED_SHIFT 18 /* 256 KiB: frames that are made to be read at random have about that */
#define DECODED_SIZE  ((size_t)1 << DECODED_SHIFT)

struct block {
	const uint8_t *data;
	size_t len; /* block_size, less at the item's end */
};

struct block_source {
	/* Raw bytes [off, off+len) of file; exactly. */
	int (*read)(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		    struct ckpt_err *e);
	void *arg;
};

/* An item, as the catalog names it. */
struct block_item {
	uint64_t offset, length; /* stored bytes */
	uint32_t file;
	uint32_t zstd_layers; /* 0: not encoded */
};

static inline unsigned block_shift(const struct block_item *item)
{
	return item->zstd_layers ? DECODED_SHIFT : BLOCK_SHIFT;
}

static inline size_t block_size(const struct block_item *item)
{
	return (size_t)1 << block_shift(item);
}

/* max_bytes bounds what is kept; pinned blocks may exceed it for as long as they are pinned. */
struct blockcache *blockcache_new(size_t max_bytes, const struct block_source *src);
void blockcache_free(struct blockcache *c);
/* Let go of all that nobody has pinned or is decoding. */
void blockcache_clear(struct blockcache *c);
size_t blockcache_max(const struct blockcache *c);

struct blockcache_counts {
	uint64_t hits, misses; /* gets that found their block, and that had to bring it */
	uint64_t evictions;    /* blocks let go */
	uint64_t bytes;	       /* of the blocks that are there now */
	uint64_t decoded;      /* bytes; of blocks that were made twice, twice */
};
/* Takes no lock. */
void blockcache_counts(const struct blockcache *c, struct blockcache_counts *ret);

/*
 * Pin blocks [first, first+n) of the item; len 0, without a pin, where the item ends before.
 * Borrowed until put. What is known to be damaged fails again without being read again; then none
 * is pinned.
 */
int blockcache_get(struct blockcache *c, const struct block_item *item, uint64_t first, size_t n,
		   struct block *ret, void **ret_pins, struct ckpt_err *e);
void blockcache_put(struct blockcache *c, void *pin); /* NULL is fine */

/* Decoded bytes [off, off+len) as far as the item reaches: the count, or a negative errno. */
int64_t blockcache_read(struct blockcache *c, const struct block_item *item, uint64_t off,
			void *buf, size_t len, struct ckpt_err *e);

/*
 * Make blocks that are likely to be asked for next, where somebody reads in order: for a thread
 * that has answered and has nothing else to do. Returns soon unless readers keep pace with it.
 */
void blockcache_ahead(struct blockcache *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockcache - blocks of decoded items, bounded in bytes.
 *
 * Items are decoded from the front (zstd has no other way), a block at a time; where decoding
 * stopped it goes on, so a sequential reader decodes once. Readers of one item take turns at its
 * decoder, readers of different items do not wait for each other. Pinned blocks are never evicted.
 *
 * Also used without any decoding: an item whose elements are scattered is cheaper to gather from
 * memory than from the file.
 *
 * Threads: all functions from any thread (one internal mutex, never held across decoding).
 */
#ifndef READ_BLOCKCACHE_H
#define READ_BLOCKCACHE_H

#include <stddef.h>
#include <stdint.h>

struct blockcache;
struct err;

#define BLOCK_SHIFT 20 /* 1 MiB: one FUSE read */
#define BLOCK_SIZE  ((size_t)1 << BLOCK_SHIFT)

struct block {
	const uint8_t *data;
	size_t len; /* BLOCK_SIZE, less at the item's end */
};

struct block_source {
	/* Raw bytes [off, off+len) of file; exactly. */
	int (*read)(void *arg, uint32_t file, void *buf, size_t len, uint64_t off, struct err *e);
	void *arg;
};

/* An item, as the catalog names it. */
struct block_item {
	uint64_t offset, length; /* stored bytes */
	uint32_t file;
	uint32_t zstd_layers; /* 0: not encoded */
};

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
};
/* Takes no lock. */
void blockcache_counts(const struct blockcache *c, struct blockcache_counts *ret);

/* Pin block `index` of the item; ret->len 0 when the item ends before. Borrowed until put. */
int blockcache_get(struct blockcache *c, const struct block_item *item, uint64_t index,
		   struct block *ret, void **ret_pin, struct err *e);
void blockcache_put(struct blockcache *c, void *pin); /* NULL is fine */

/* Decoded bytes [off, off+len) as far as the item reaches: the count, or a negative errno. */
int64_t blockcache_read(struct blockcache *c, const struct block_item *item, uint64_t off,
			void *buf, size_t len, struct err *e);

#endif

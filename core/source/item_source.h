/* SPDX-License-Identifier: Apache-2.0 */
/*
 * item_source - the bytes of an item as its tensor or object has them: read in place from a data
 * file, or decoded from there.
 *
 *	item_store_init(&store, files, cache_bytes, &e);
 *	s = item_source_at(&store, coding, &loc);
 *	rc = item_read(&s, buf, len, off, &e);        // exactly; off counts from the item's first byte
 *
 * Layers above do not know how an item is encoded. They may ask only whether it is plain: then its
 * bytes are stored unchanged in the file, all of them cost the same to read, and those in the page
 * cache may be accessed directly. All other items are decoded or computed block by block, and the
 * blocks are cached.
 *
 * Threads: any; a struct item_source is a value.
 */
#ifndef SOURCE_ITEM_SOURCE_H
#define SOURCE_ITEM_SOURCE_H

#include "base/blob.h"
#include "model/chunkmap.h"
#include "source/blockcache.h"
#include "source/files.h"

#include <stdbool.h>
#include <string.h>

struct ckpt_err;
struct parts;

/* The place that items are read from. */
struct item_store {
	struct files *files; /* borrowed */
	struct blockcache *blocks;
	/* For items with CODING_COMPUTED, whose number stands in place of a file: computes a block,
	 * as in block_source; and item_want. Set after item_store_init. */
	int (*compute)(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e);
	bool (*want)(void *arg, uint32_t number, uint64_t off, uint64_t len);
	void *arg;
};

/* cache_bytes: limit of the block cache. *s must stay where it is. */
int item_store_init(struct item_store *s, struct files *files, size_t cache_bytes,
		    struct ckpt_err *e);
void item_store_release(struct item_store *s);

struct item_source {
	const struct item_store *store;
	struct block_item at;
};

/* coding: see codec/coding.h. */
static inline struct item_source item_source_at(const struct item_store *store, uint32_t coding,
						const struct chunk_loc *loc)
{
	return (struct item_source){ store,
				     { .offset = loc->offset,
				       .length = loc->length,
				       .file = loc->file,
				       .coding = coding } };
}

static inline bool item_is_plain(const struct item_source *s)
{
	return !s->at.coding;
}

/* Extends the item to `end`: a safetensors container extends beyond the recorded length. */
static inline void item_reach(struct item_source *s, uint64_t end)
{
	if (item_is_plain(s) && end > s->at.length)
		s->at.length = end;
}

/* The part of its file that bytes [off, off+len) are made from. Not for computed items. */
static inline void item_stored(const struct item_source *s, uint64_t off, uint64_t len,
			       uint64_t *ret_off, uint64_t *ret_len)
{
	bool plain = item_is_plain(s); /* other items can only be decoded from the beginning */

	*ret_off = s->at.offset + (plain ? off : 0);
	*ret_len = plain ? len : s->at.length;
}

/* ---- reading ---- */

int item_decode(const struct item_source *s, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e);

/* Exactly len bytes. */
static inline int item_read(const struct item_source *s, void *buf, size_t len, uint64_t off,
			    struct ckpt_err *e)
{
	return item_is_plain(s)
		       ? files_read(s->store->files, s->at.file, buf, len, s->at.offset + off, e)
		       : item_decode(s, buf, len, off, e);
}

/* Reads as many bytes as there are, up to len: the count, or a negative errno. */
int64_t item_read_some(const struct item_source *s, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e);
/* The same as a blob, for parsers; s is borrowed. */
struct blob item_blob(struct item_source *s, uint64_t size);
/* The number of decoded bytes; decodes the whole item to find it. */
int item_size(const struct item_source *s, uint64_t *ret, struct ckpt_err *e);

/* Makes the blocks of a range, within an item that is not plain, that are not in the cache, as far
 * as they can be made. False: all are there. */
bool item_keep(const struct item_source *s, uint64_t off, uint64_t len);

/* Like source_want. */
bool item_want(const struct item_source *s, uint64_t off, uint64_t len);

/* ---- bytes in place ---- */

/* Like files_map or files_bring; NULL if the item is not plain. */
const uint8_t *item_map(const struct item_source *s, uint64_t off, uint64_t len, bool bring);
void item_unmap(const struct item_source *s);
int item_check(const struct item_source *s, struct ckpt_err *e);

/* The same for a reply that has room for n runs of these bytes. The caller pins them there:
 * parts_pin(item_file()). */
const uint8_t *item_lend(const struct item_source *s, const struct parts *parts, uint64_t n,
			 uint64_t off, uint64_t len);
static inline uint32_t item_file(const struct item_source *s)
{
	return s->at.file;
}

/* Leaves the run that belongs at `to` in the reply in its decoded blocks. 1: it must be copied. */
int item_leave(const struct item_source *s, struct parts *parts, uint64_t off, uint8_t *to,
	       uint64_t run, struct ckpt_err *e);

/* Bytes in blocks of the cache. */
struct item_held {
	struct blockcache *cache;
	unsigned shift; /* of a block's size */
	uint64_t first; /* index of blocks[0] */
	size_t n;
	struct block *blocks;
	void **pins;
};

/* Is the item worth caching? Items that are not plain are cached anyway. */
bool item_may_hold(const struct item_source *s);
/* How many bytes may be held at once. */
uint64_t item_max_held(const struct item_source *s);
/* Holds [off, off+len) in memory until it is released, which is also required after a failure. */
int item_hold(const struct item_source *s, uint64_t off, uint64_t len, struct item_held *ret,
	      struct ckpt_err *e);
void item_let_go(struct item_held *h);

static inline void item_held_copy(const struct item_held *h, uint64_t off, uint8_t *to,
				  uint64_t run)
{
	uint64_t size = (uint64_t)1 << h->shift;

	while (run) {
		uint64_t skip = off & (size - 1), n = run < size - skip ? run : size - skip;

		memcpy(to, h->blocks[(off >> h->shift) - h->first].data + skip, n);
		off += n;
		to += n;
		run -= n;
	}
}

#endif

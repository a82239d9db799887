/* SPDX-License-Identifier: Apache-2.0 */
/*
 * item_source - the bytes of an item as its tensor or object has them: where they lie in a data file,
 * or what is decoded from there.
 *
 *	item_store_init(&store, files, cache_bytes, &e);
 *	s = item_source_at(&store, &coding, &loc);
 *	rc = item_read(&s, buf, len, off, &e);        // exactly; off counts from the item's first byte
 *
 * How an item is encoded is known here and nowhere above. What readers may ask is whether it is
 * plain: then its bytes lie in the file as they are, any of them cost as much as any others, and
 * those in the page cache may be looked at. All others are decoded block by block, and kept.
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

/* What was done to items on their way into a file. */
struct item_coding {
	uint32_t zstd_layers;
};

/* Of the names in the chunk index: "", "+stream.zstd/1+stream.zstd/1". False: there is another. */
bool item_coding_parse(const char *names, struct item_coding *ret);

static inline bool item_coding_is_plain(const struct item_coding *c)
{
	return !c->zstd_layers;
}

/* Where items are. */
struct item_store {
	struct files *files; /* borrowed */
	struct blockcache *blocks;
};

/* cache_bytes: of blocks. */
int item_store_init(struct item_store *s, struct files *files, size_t cache_bytes,
		    struct ckpt_err *e);
void item_store_release(struct item_store *s);

struct item_source {
	const struct item_store *store;
	struct block_item at;
};

static inline struct item_source item_source_at(const struct item_store *store,
						const struct item_coding *coding,
						const struct chunk_loc *loc)
{
	return (struct item_source){ store,
				     { .offset = loc->offset,
				       .length = loc->length,
				       .file = loc->file,
				       .zstd_layers = coding->zstd_layers } };
}

static inline bool item_is_plain(const struct item_source *s)
{
	return !s->at.zstd_layers;
}

/* Bytes up to `end` belong to it: what is safetensors inside goes on behind the recorded length. */
static inline void item_reach(struct item_source *s, uint64_t end)
{
	if (item_is_plain(s) && end > s->at.length)
		s->at.length = end;
}

/* The part of its file that bytes [off, off+len) are made from. */
static inline void item_stored(const struct item_source *s, uint64_t off, uint64_t len,
			       uint64_t *ret_off, uint64_t *ret_len)
{
	bool plain = item_is_plain(s); /* nothing of another without all before */

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

/* As many as there are, up to len: the count, or a negative errno. */
int64_t item_read_some(const struct item_source *s, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e);
/* The same for those who parse them; s is borrowed. */
struct blob item_blob(struct item_source *s, uint64_t size);
/* How many there are; all of it is decoded for that. */
int item_size(const struct item_source *s, uint64_t *ret, struct ckpt_err *e);

/* As source_want. */
bool item_want(const struct item_source *s, uint64_t off, uint64_t len);

/* ---- bytes where they are ---- */

/* As files_map, or files_bring; NULL if it is not plain. */
const uint8_t *item_map(const struct item_source *s, uint64_t off, uint64_t len, bool bring);
void item_unmap(const struct item_source *s);
int item_check(const struct item_source *s, struct ckpt_err *e);

/* The same for a reply that has room for n runs out of them, which are pinned there by the caller:
 * parts_pin(item_file()). */
const uint8_t *item_lend(const struct item_source *s, const struct parts *parts, uint64_t n,
			 uint64_t off, uint64_t len);
static inline uint32_t item_file(const struct item_source *s)
{
	return s->at.file;
}

/* Leave the run that the reply has at `to` in decoded blocks. 1: it is to be copied. */
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

/* Is it worth its place in the cache? What is not plain is there anyhow. */
bool item_may_hold(const struct item_source *s);
/* How many bytes may be held at once, if they have to be. */
uint64_t item_max_held(const struct item_source *s);
/* Have [off, off+len) in memory until it is let go; also after a failure. */
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

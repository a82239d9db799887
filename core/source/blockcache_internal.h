/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockcache_internal - shared by the files of blockcache: blocks (blockcache.c) and their memory
 * (blockcache_memory.c), records of their items (blockcache_items.c), decoders
 * (blockcache_decode.c) and read-ahead (blockcache_ahead.c).
 *
 * Private to core/source. Everything is protected by the lock, except a busy decoder, which belongs
 * to its thread.
 */
#ifndef SOURCE_BLOCKCACHE_INTERNAL_H
#define SOURCE_BLOCKCACHE_INTERNAL_H

#include "base/blob.h"
#include "base/err.h"
#include "base/list.h"
#include "source/blockcache.h"
#include "source/framemap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
	ENTRY_BUCKETS = 4096,
	ITEM_BUCKETS = 256,
	MAX_LEFT = 8,	  /* items */
	MIN_DECODERS = 8, /* kept however little memory there is: 3 MiB each with torch's
                             compression */
};

/* A cached block. */
struct entry {
	struct entry *chain;	      /* of its bucket */
	LIST_LINK(struct entry) link; /* of the unused, or of the spare ones */
	struct block_item item;
	uint64_t index;
	uint32_t pins;
	bool ahead; /* made before it was requested */
	size_t len;
	struct slab *slab; /* the slab with the data; NULL: the data is behind the entry */
	uint8_t *data;
};

/* What is to be freed without the lock. */
struct freed {
	struct entry *blocks;
	struct slab *slabs;
};

/* A record about a compressed item. */
struct known {
	struct known *chain;	      /* of its bucket */
	LIST_LINK(struct known) link; /* only while unused */
	struct known *next_ahead;
	struct block_item item;
	uint32_t users;		/* decoders and threads */
	bool large;		/* has a large window, which only a large decoder can decode */
	struct framemap frames; /* of items that are only zstd */
	uint64_t no_walk;	/* beginning of a frame that does not record its size */
	uint64_t end;		/* the block that is not full */
	/* Decoding from any place at or before block `bad` failed there, and would fail again. */
	uint64_t bad;
	struct ckpt_err why;
	/* The sequential reader. */
	uint64_t kept, asked; /* the first block not given up yet, and the last requested */
	uint64_t in_order;    /* how often the next block, or one soon after it, was requested */
	uint64_t ahead;	      /* blocks up to here are expected to be requested */
	bool queued;
	uint32_t run_ahead; /* threads that make such blocks */
};

/* Consecutive requested blocks. */
struct wanted {
	uint64_t first;
	size_t n;    /* at least 1 */
	void **pins; /* n, all NULL at first */
	bool ahead;  /* not requested yet */
};

struct decoder {
	struct decoder *next_one;
	struct blockcache *cache;
	struct known *known;
	uint32_t coding; /* of its stream */
	struct blob blob;
	struct codec_stream *stream;
	uint64_t next;		/* block that the stream yields next */
	struct zstd_place from; /* where the stream is to begin, if `begin` */
	bool begin;		/* false: it resumes */
	bool busy;
	bool large;    /* its stream may have large windows; fixed at creation */
	uint64_t used; /* clock value of the last use */
	size_t bytes;
};

/* A thread that waits for a block, for a decoder of its item, or for the large decoder. */
struct waiter {
	struct waiter *next;
	const struct known *known;
	uint64_t index;
	pthread_cond_t cond;
};

/* Blocks [next, end) of an item that a sequential reader has read to its end. */
struct left_behind {
	struct block_item item;
	uint64_t next, end;
};

struct blockcache {
	pthread_mutex_t lock; /* everything below */
	struct waiter *waiters;
	struct block_source src;
	size_t max_bytes;
	/* Changed under the lock, read by blockcache_counts without it. */
	_Atomic uint64_t bytes, hits, misses, evictions, decoded;
	struct entry *entries[ENTRY_BUCKETS];
	LIST(struct entry) unused; /* not pinned; least recently used last */
	LIST(struct entry) spare;  /* parts of slabs that are not in use */
	size_t n_spare, n_ahead;   /* blocks */
	size_t n_entries;
	struct known *items[ITEM_BUCKETS];
	LIST(struct known) unused_items;
	size_t n_items;
	struct decoder *decoders, *large; /* the large one among them; NULL: none */
	size_t n_decoders, decoder_bytes;
	struct codec_stream *streams[MIN_DECODERS]; /* of freed decoders, for new ones */
	size_t n_streams;
	uint64_t clock;
	struct left_behind left[MAX_LEFT]; /* the oldest first */
	size_t n_left;
	struct known *ahead; /* items for which blocks may be made ahead */
	atomic_bool any_ahead;
};

bool block_item_equal(const struct block_item *a, const struct block_item *b);

/* An empty block, pinned once; call it without the lock. NULL: out of memory. */
struct entry *entry_new(struct blockcache *c, const struct block_item *item, uint64_t index);
/* The same block, in no more memory than it needs, if it has been filled only to a small part; call
 * it without the lock. */
struct entry *entry_fit(struct blockcache *c, struct entry *b);
/* Frees a block that is not in the cache; call it without the lock. NULL is fine. */
void entry_free(struct blockcache *c, struct entry *b);
/* The same under the lock: what is not kept for new blocks is left to memory_free. */
void entry_give(struct blockcache *c, struct entry *b, struct freed *f);
/* Is as much memory kept for new blocks as may be? Under the lock. */
bool memory_is_spare(const struct blockcache *c);
/* Keeps nothing for new blocks; under the lock. */
void memory_trim(struct blockcache *c, struct freed *f);
void memory_free(struct freed *f); /* without the lock */

/* Under the lock. */
bool entry_is_there(struct blockcache *c, const struct block_item *item, uint64_t index);
struct entry *entry_pin(struct blockcache *c, const struct block_item *item, uint64_t index);
/* Reuses its memory for a new block, unless it is pinned. */
void entry_reuse(struct blockcache *c, const struct block_item *item, uint64_t index);
/* Takes ownership of b, which has one pin, the caller's. */
void entry_insert(struct blockcache *c, struct entry *b);

/* The item's record, created if needed; in use until known_done. NULL: out of memory. */
struct known *known_use(struct blockcache *c, const struct block_item *item);
void known_done(struct blockcache *c, struct known *k);
/* Drops unused records until at most `keep` are left. */
void known_trim(struct blockcache *c, size_t keep);

/* Makes the first block, without the lock: pinned, or NULL if the item ends before it. Also pins
 * the other blocks that were made along the way and were not in the cache. */
int decode_blocks(struct blockcache *c, struct known *k, const struct wanted *want,
		  struct ckpt_err *e);
/* Records a request for the block; under the lock. */
void note_asked(struct blockcache *c, struct known *k, uint64_t index);
/* Cancels read-ahead that has not begun; under the lock. */
void forget_ahead(struct blockcache *c);
/* Bytes of decoders that are not available for blocks; under the lock. */
size_t decoders_share(const struct blockcache *c);
/* Unlinks an idle decoder that may be freed, even if there are no more than `keep`; NULL: there is
 * none. */
struct decoder *decoder_surplus(struct blockcache *c, size_t keep);
/* Without the lock; NULL is fine. */
void decoder_free(struct blockcache *c, struct decoder *d);
void streams_free(struct blockcache *c);

#endif

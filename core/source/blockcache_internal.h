/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockcache_internal - what the files of blockcache share: blocks (blockcache.c), what is known of
 * the items that they are of (blockcache_items.c), those who make them (blockcache_decode.c), and
 * making them before they are asked for (blockcache_ahead.c).
 *
 * Private to core/source. Everything is under the lock but for what a busy decoder's thread does with
 * it.
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
	MAX_SPARE = 16,	  /* blocks */
	MIN_DECODERS = 8, /* kept however little memory there is: 3 MiB each, as torch compresses */
};

/* A cached block. */
struct entry {
	struct entry *chain;	      /* of its bucket */
	LIST_LINK(struct entry) link; /* least recently used first; only while not pinned */
	struct block_item item;
	uint64_t index;
	uint32_t pins;
	bool ahead; /* made before anybody has asked for it */
	size_t len;
	uint8_t data[];
};

/* What is known of a compressed item. */
struct known {
	struct known *chain;	      /* of its bucket */
	LIST_LINK(struct known) link; /* only while nobody uses it */
	struct known *next_ahead;
	struct block_item item;
	uint32_t users;		/* decoders and threads */
	bool large;		/* some window of it is: only a large decoder can bring all of it */
	struct framemap frames; /* of items with one layer */
	uint64_t no_walk;	/* where a frame begins that does not say how long it is */
	uint64_t end;		/* the block that is not full */
	/* Decoding from any place at or before block `bad` has failed there, and would again. */
	uint64_t bad;
	struct ckpt_err why;
	/* Who reads in order. */
	uint64_t start, asked; /* the first block and the last */
	uint64_t in_order;     /* how often the next one was asked for, or one soon after it */
	uint64_t ahead;	       /* blocks up to here will be asked for */
	bool queued, runs_ahead;
};

/* Blocks that somebody asks for, in order. */
struct wanted {
	uint64_t first;
	size_t n;    /* at least 1 */
	void **pins; /* n, all NULL at first */
	bool ahead;  /* nobody has asked yet */
};

struct decoder {
	struct decoder *next_one;
	struct blockcache *cache;
	struct known *known;
	uint32_t layers; /* of its stream */
	struct blob blob;
	struct zstd_stream *stream;
	uint64_t next;		/* block that the stream yields next */
	struct zstd_place from; /* where it is to begin, ... */
	bool begin;		/* ... unless it goes on */
	bool busy;
	bool large;    /* its stream may have large windows; from birth on */
	uint64_t used; /* clock value of the last use */
	size_t bytes;
};

/* A thread that waits: for a block, for a decoder of its item, for the large one. */
struct waiter {
	struct waiter *next;
	const struct known *known;
	uint64_t index;
	pthread_cond_t cond;
};

struct blockcache {
	pthread_mutex_t lock; /* everything below */
	struct waiter *waiters;
	struct block_source src;
	size_t max_bytes;
	/* Changed under the lock, read by blockcache_counts without it. */
	_Atomic uint64_t bytes, hits, misses, evictions, decoded;
	struct entry *entries[ENTRY_BUCKETS];
	LIST(struct entry) unused;
	struct entry *spare;
	size_t n_spare, n_ahead; /* blocks */
	struct known *items[ITEM_BUCKETS];
	LIST(struct known) unused_items;
	size_t n_items;
	struct decoder *decoders, *large; /* the one of them that is; NULL: none is there */
	size_t n_decoders, decoder_bytes;
	struct zstd_stream *streams[MIN_DECODERS]; /* of decoders that are gone, for new ones */
	size_t n_streams;
	uint64_t clock;
	struct known *ahead; /* items that blocks may be made of before they are asked for */
	atomic_bool any_ahead;
};

bool block_item_equal(const struct block_item *a, const struct block_item *b);

/* A block of nothing, pinned once, without the lock; NULL: out of memory. */
struct entry *entry_new(struct blockcache *c, const struct block_item *item, uint64_t index);
/* Under the lock. */
bool entry_is_there(struct blockcache *c, const struct block_item *item, uint64_t index);
struct entry *entry_pin(struct blockcache *c, const struct block_item *item, uint64_t index);
/* Keep its memory for a new block, if nobody has it pinned. */
void entry_reuse(struct blockcache *c, const struct block_item *item, uint64_t index);
/* Takes over b, whose one pin is the caller's. */
void entry_insert(struct blockcache *c, struct entry *b);
/* A copy of a block of a compressed item that takes no more memory than it needs; b is for a new
 * one then. Or b, where there is no memory. Without the lock. */
struct entry *entry_fit(struct blockcache *c, struct entry *b);

/* What the item's record says, made if need be; used until known_done. NULL: out of memory. */
struct known *known_use(struct blockcache *c, const struct block_item *item);
void known_done(struct blockcache *c, struct known *k);
/* Forget items that nobody uses until no more than `keep` are left. */
void known_trim(struct blockcache *c, size_t keep);

/* Bring the first block, without the lock: pinned, or NULL: the item ends before. So are those of
 * the others that come after it and were not there. */
int decode_blocks(struct blockcache *c, struct known *k, const struct wanted *want,
		  struct ckpt_err *e);
/* The block has been asked for; under the lock. */
void note_asked(struct blockcache *c, struct known *k, uint64_t index);
/* Make nothing ahead of anybody who has not begun to; under the lock. */
void forget_ahead(struct blockcache *c);
/* Bytes of decoders that blocks have to do without; under the lock. */
size_t decoders_share(const struct blockcache *c);
/* Let go of a decoder that is idle, though there be no more than `keep`; NULL: there is none.
 * Unlinked. */
struct decoder *decoder_surplus(struct blockcache *c, size_t keep);
/* Without the lock; NULL is fine. */
void decoder_free(struct blockcache *c, struct decoder *d);
void streams_free(struct blockcache *c);

#endif

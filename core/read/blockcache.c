/* SPDX-License-Identifier: Apache-2.0 */
#include "read/blockcache.h"

#include "base/blob.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/zstd_stream.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	BUCKETS = 4096,
	MAX_DECODERS = 8, /* each may hold a window of up to 128 MiB, in practice 2 MiB */
};

/* A cached block. */
struct entry {
	struct entry *chain;	     /* of its bucket */
	struct entry *newer, *older; /* least recently used first; only while not pinned */
	struct block_item item;
	uint64_t index;
	uint32_t pins;
	size_t len;
	uint8_t data[];
};

/* An item that is being decoded, or was and may be continued. */
struct decoder {
	struct decoder *next;
	struct block_item item;
	struct blob blob;
	struct blockcache *cache;
	struct zstd_stream *stream;
	uint64_t next_index; /* block that the stream yields next */
	bool busy;
	uint64_t used; /* clock value of the last use */
};

struct blockcache {
	pthread_mutex_t lock; /* everything below */
	pthread_cond_t idle;  /* a decoder has become idle */
	struct block_source src;
	size_t max_bytes;
	/* Changed under the lock, read by blockcache_counts without it. */
	_Atomic uint64_t bytes, hits, misses, evictions;
	struct entry *bucket[BUCKETS];
	struct entry *newest, *oldest;
	struct decoder *decoders;
	size_t n_decoders;
	uint64_t clock;
};

static bool same_item(const struct block_item *a, const struct block_item *b)
{
	return a->file == b->file && a->offset == b->offset && a->length == b->length &&
	       a->zstd_layers == b->zstd_layers;
}

static struct entry **bucket_of(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	uint64_t h = (item->offset ^ (uint64_t)item->file << 40) * 0x9e3779b97f4a7c15u + index;

	return &c->bucket[(h ^ h >> 29) % BUCKETS];
}

struct blockcache *blockcache_new(size_t max_bytes, const struct block_source *src)
{
	struct blockcache *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	(void)pthread_mutex_init(&c->lock, NULL);
	(void)pthread_cond_init(&c->idle, NULL);
	c->max_bytes = max_bytes;
	c->src = *src;
	return c;
}

static void decoder_free(struct decoder *d)
{
	zstd_stream_free(d->stream);
	free(d);
}

void blockcache_free(struct blockcache *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < BUCKETS; i++) {
		while (c->bucket[i]) {
			struct entry *next = c->bucket[i]->chain;

			free(c->bucket[i]);
			c->bucket[i] = next;
		}
	}
	while (c->decoders) {
		struct decoder *next = c->decoders->next;

		decoder_free(c->decoders);
		c->decoders = next;
	}
	(void)pthread_cond_destroy(&c->idle);
	(void)pthread_mutex_destroy(&c->lock);
	free(c);
}

size_t blockcache_max(const struct blockcache *c)
{
	return c->max_bytes;
}

void blockcache_counts(const struct blockcache *c, struct blockcache_counts *ret)
{
	ret->hits = c->hits;
	ret->misses = c->misses;
	ret->evictions = c->evictions;
	ret->bytes = c->bytes;
}

/* ---- blocks; under the lock ---- */

static void lru_remove(struct blockcache *c, struct entry *b)
{
	*(b->newer ? &b->newer->older : &c->newest) = b->older;
	*(b->older ? &b->older->newer : &c->oldest) = b->newer;
}

static void lru_push(struct blockcache *c, struct entry *b)
{
	b->newer = NULL;
	b->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = b;
	c->newest = b;
}

/* Unpinned blocks beyond max bytes, unlinked, as a chain for free_chain. */
static struct entry *evict_to(struct blockcache *c, size_t max)
{
	struct entry *gone = NULL;

	while (c->bytes > max && c->oldest) {
		struct entry *b = c->oldest, **p = bucket_of(c, &b->item, b->index);

		lru_remove(c, b);
		while (*p != b)
			p = &(*p)->chain;
		*p = b->chain;
		c->bytes -= b->len;
		c->evictions++;
		b->chain = gone;
		gone = b;
	}
	return gone;
}

static struct entry *evict(struct blockcache *c)
{
	return evict_to(c, c->max_bytes);
}

static void free_chain(struct entry *b)
{
	while (b) {
		struct entry *next = b->chain;

		free(b);
		b = next;
	}
}

/* The block, pinned, or NULL. */
static struct entry *find_pinned(struct blockcache *c, const struct block_item *item,
				 uint64_t index)
{
	for (struct entry *b = *bucket_of(c, item, index); b; b = b->chain) {
		if (b->index != index || !same_item(&b->item, item))
			continue;
		if (!b->pins++)
			lru_remove(c, b);
		return b;
	}
	return NULL;
}

/* Takes over b, whose one pin is the caller's. */
static void insert_pinned(struct blockcache *c, struct entry *b)
{
	struct entry **bucket = bucket_of(c, &b->item, b->index);

	b->chain = *bucket;
	*bucket = b;
	c->bytes += b->len;
}

void blockcache_put(struct blockcache *c, void *pin)
{
	struct entry *b = pin, *gone = NULL;

	if (!b)
		return;
	{
		SCOPED_LOCK(&c->lock);
		if (!--b->pins)
			lru_push(c, b);
		gone = evict(c);
	}
	free_chain(gone);
}

/* ---- decoders ---- */

static int64_t read_stored(void *arg, uint64_t off, void *buf, size_t len, struct err *e)
{
	struct decoder *d = arg;
	size_t n = (size_t)min_u64(len, off < d->item.length ? d->item.length - off : 0);
	int rc = n ? d->cache->src.read(d->cache->src.arg, d->item.file, buf, n,
					d->item.offset + off, e)
		   : 0;

	return rc ? rc : (int64_t)n;
}

static struct decoder *decoder_new(struct blockcache *c, const struct block_item *item)
{
	struct decoder *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->item = *item;
	d->cache = c;
	d->blob = (struct blob){ read_stored, d, item->length };
	return d;
}

static struct decoder *find_decoder(struct blockcache *c, const struct block_item *item)
{
	for (struct decoder *d = c->decoders; d; d = d->next)
		if (same_item(&d->item, item))
			return d;
	return NULL;
}

/* Unlink the idle decoder that was not used for longest, when there are more than max. */
static struct decoder *surplus_decoder(struct blockcache *c, size_t max)
{
	struct decoder **best = NULL, *d;

	if (c->n_decoders <= max)
		return NULL;
	for (struct decoder **p = &c->decoders; *p; p = &(*p)->next)
		if (!(*p)->busy && (!best || (*p)->used < (*best)->used))
			best = p;
	if (!best)
		return NULL;
	d = *best;
	*best = d->next;
	c->n_decoders--;
	return d;
}

/* The next block of d, new and pinned once, outside the lock; NULL with *e on failure. */
static struct entry *decode_next(struct decoder *d, uint64_t index, struct err *e)
{
	struct entry *b = malloc(sizeof(*b) + BLOCK_SIZE);
	int64_t n;

	if (!b) {
		(void)err_set(e, ENOMEM, "out of memory");
		return NULL;
	}
	if (!d->item.zstd_layers)
		n = read_stored(d, index << BLOCK_SHIFT, b->data, BLOCK_SIZE, e);
	else
		n = zstd_stream_read(d->stream, b->data, BLOCK_SIZE, e);
	if (n < 0) {
		free(b);
		return NULL;
	}
	b->item = d->item;
	b->index = index;
	b->pins = 1;
	b->len = (size_t)n;
	if (b->len < BLOCK_SIZE / 2) { /* small items would waste most of a block */
		struct entry *fit = realloc(b, sizeof(*b) + b->len);

		if (fit)
			b = fit;
	}
	return b;
}

/*
 * Bring decoder d (busy, ours) forward to block `index`. Blocks passed on the way are kept if
 * nobody has them. Called without the lock.
 */
static struct entry *decode_to(struct blockcache *c, struct decoder *d, uint64_t index,
			       struct err *e)
{
	if (!d->item.zstd_layers)
		d->next_index = index; /* raw bytes can be read anywhere */
	else if (!d->stream || d->next_index > index) {
		zstd_stream_free(d->stream);
		d->stream = zstd_stream_new(&d->blob, d->item.zstd_layers);
		d->next_index = 0;
		if (!d->stream) {
			(void)err_set(e, ENOMEM, "out of memory");
			return NULL;
		}
	}
	for (;;) {
		struct entry *b = decode_next(d, d->next_index, e), *have, *gone = NULL;
		bool last, end;

		if (!b) {
			zstd_stream_free(d->stream);
			d->stream = NULL;
			return NULL;
		}
		last = d->next_index == index;
		end = b->len < BLOCK_SIZE;
		d->next_index++;
		{
			SCOPED_LOCK(&c->lock);
			have = find_pinned(c, &b->item, b->index);
			if (!have)
				insert_pinned(c, b);
			if (!last && !end) { /* on the way only */
				struct entry *keep = have ? have : b;

				if (!--keep->pins)
					lru_push(c, keep);
				gone = evict(c);
			}
		}
		if (have)
			free(b);
		free_chain(gone);
		if (last || end)
			return have ? have : b;
	}
}

int blockcache_get(struct blockcache *c, const struct block_item *item, uint64_t index,
		   struct block *ret, void **ret_pin, struct err *e)
{
	struct decoder *d, *gone = NULL;
	struct entry *b;

	{
		SCOPED_LOCK(&c->lock);
		for (;;) {
			b = find_pinned(c, item, index);
			d = find_decoder(c, item);
			if (b || !d || !d->busy)
				break;
			(void)pthread_cond_wait(&c->idle, &c->lock);
		}
		if (!b && !d) {
			d = decoder_new(c, item);
			if (!d)
				return err_set(e, ENOMEM, "out of memory");
			d->next = c->decoders;
			c->decoders = d;
			c->n_decoders++;
		}
		c->hits += b != NULL;
		if (!b) {
			c->misses++;
			d->busy = true;
			d->used = ++c->clock;
			gone = surplus_decoder(c, MAX_DECODERS);
		}
	}
	if (gone)
		decoder_free(gone);
	if (!b) {
		b = decode_to(c, d, index, e);
		{
			SCOPED_LOCK(&c->lock);
			d->busy = false;
			(void)pthread_cond_broadcast(&c->idle);
		}
		if (!b)
			return -e->code;
	}
	*ret = (struct block){ b->data, b->index == index ? b->len : 0 };
	*ret_pin = b;
	return 0;
}

int64_t blockcache_read(struct blockcache *c, const struct block_item *item, uint64_t off,
			void *buf, size_t len, struct err *e)
{
	size_t done = 0;

	while (done < len) {
		uint64_t at = off + done, skip = at & (BLOCK_SIZE - 1);
		struct block b;
		void *pin;
		size_t n;
		int rc = blockcache_get(c, item, at >> BLOCK_SHIFT, &b, &pin, e);

		if (rc)
			return rc;
		n = (size_t)min_u64(len - done, skip < b.len ? b.len - skip : 0);
		memcpy((char *)buf + done, b.data + skip, n);
		blockcache_put(c, pin);
		done += n;
		if (skip + n >= b.len && b.len < BLOCK_SIZE) /* > where off lies behind the end */
			break;
	}
	return (int64_t)done;
}

void blockcache_clear(struct blockcache *c)
{
	for (struct decoder *d = NULL;;) {
		struct entry *gone;

		{
			SCOPED_LOCK(&c->lock);
			d = surplus_decoder(c, 0);
			gone = d ? NULL : evict_to(c, 0);
		}
		free_chain(gone);
		if (!d)
			return;
		decoder_free(d);
	}
}

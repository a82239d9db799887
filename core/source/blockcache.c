/* SPDX-License-Identifier: Apache-2.0 */
#include "source/blockcache.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "source/blockcache_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
	AT_ONCE = 5,	 /* blocks pinned by blockcache_read: 1 MiB at any alignment */
	LEAST = 1 << 10, /* bytes that a block counts for at least: its entry is a part of them */
};

bool block_item_equal(const struct block_item *a, const struct block_item *b)
{
	return a->file == b->file && a->offset == b->offset && a->length == b->length &&
	       a->coding == b->coding;
}

static struct entry **bucket_of(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	uint64_t h = (item->offset ^ (uint64_t)item->file << 40) * 0x9e3779b97f4a7c15u + index;

	return &c->entries[(h ^ h >> 29) % ENTRY_BUCKETS];
}

struct blockcache *blockcache_new(size_t max_bytes, const struct block_source *src)
{
	struct blockcache *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	(void)pthread_mutex_init(&c->lock, NULL);
	c->max_bytes = max_bytes;
	c->src = *src;
	return c;
}

void blockcache_free(struct blockcache *c)
{
	if (!c)
		return;
	blockcache_clear(c);
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
	ret->decoded = c->decoded;
}

/* ---- blocks; under the lock ---- */

static void unlink_block(struct blockcache *c, struct entry *b)
{
	struct entry **p = bucket_of(c, &b->item, b->index);

	LIST_REMOVE(&c->unused, b);
	while (*p != b)
		p = &(*p)->chain;
	*p = b->chain;
	c->bytes -= b->len;
	c->n_entries--;
	c->n_ahead -= b->ahead;
	c->evictions++;
}

/* Drops unpinned blocks beyond max bytes, or so many that they take more than that themselves. */
static void evict_to(struct blockcache *c, size_t max, struct freed *f)
{
	while (c->unused.last && (c->bytes > max || c->n_entries > max / LEAST)) {
		struct entry *b = c->unused.last;

		unlink_block(c, b);
		entry_give(c, b, f);
	}
}

static struct entry *find(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	struct entry *b = *bucket_of(c, item, index);

	while (b && (b->index != index || !block_item_equal(&b->item, item)))
		b = b->chain;
	return b;
}

void entry_reuse(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	struct entry *b = find(c, item, index);
	struct freed none = { 0 }; /* there is room for it */

	if (!b || b->pins || !b->slab || memory_is_spare(c))
		return;
	unlink_block(c, b);
	entry_give(c, b, &none);
}

bool entry_is_there(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	return find(c, item, index) != NULL;
}

bool blockcache_has(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	SCOPED_LOCK(&c->lock);

	return entry_is_there(c, item, index);
}

struct entry *entry_pin(struct blockcache *c, const struct block_item *item, uint64_t index)
{
	struct entry *b = find(c, item, index);

	if (b && !b->pins++)
		LIST_REMOVE(&c->unused, b);
	return b;
}

void entry_insert(struct blockcache *c, struct entry *b)
{
	struct entry **bucket = bucket_of(c, &b->item, b->index);

	b->chain = *bucket;
	*bucket = b;
	c->bytes += b->len;
	c->n_entries++;
	c->n_ahead += b->ahead;
}

void blockcache_put(struct blockcache *c, void *pin)
{
	struct entry *b = pin;
	struct freed gone = { 0 };

	if (!b)
		return;
	{
		SCOPED_LOCK(&c->lock);
		if (!--b->pins)
			LIST_PUSH(&c->unused, b);
		evict_to(c, c->max_bytes - decoders_share(c), &gone);
	}
	memory_free(&gone);
}

/* ---- reading ---- */

/* Gets pins[0], and those of the following n - 1 blocks that are made along the way. */
static int get_one(struct blockcache *c, const struct block_item *item, uint64_t index, size_t n,
		   void **pins, struct ckpt_err *e)
{
	const struct wanted want = { .first = index, .n = n, .pins = pins };
	bool made = pins[0] != NULL;
	struct entry *b;
	struct known *k;
	int rc = 0;

	{
		SCOPED_LOCK(&c->lock);
		k = known_use(c, item);
		if (!k)
			return err_nomem(e);
		note_asked(c, k, index);
		if (!made)
			pins[0] = entry_pin(c, item, index);
		*(pins[0] && !made ? &c->hits : &c->misses) += 1;
	}
	if (!pins[0])
		rc = decode_blocks(c, k, &want, e);
	{
		SCOPED_LOCK(&c->lock);
		b = pins[0];
		if (b && b->ahead) {
			b->ahead = false;
			c->n_ahead--;
		}
		known_done(c, k);
	}
	return rc;
}

int blockcache_get(struct blockcache *c, const struct block_item *item, uint64_t first, size_t n,
		   struct block *ret, void **ret_pins, struct ckpt_err *e)
{
	int rc = 0;

	memset(ret_pins, 0, n * sizeof(*ret_pins));
	for (size_t i = 0; !rc && i < n; i++) {
		const struct entry *b;

		rc = get_one(c, item, first + i, n - i, ret_pins + i, e);
		b = ret_pins[i];
		ret[i] = b ? (struct block){ b->data, b->len } : (struct block){ NULL, 0 };
	}
	for (size_t i = 0; rc && i < n; i++)
		blockcache_put(c, ret_pins[i]);
	return rc;
}

/* Copies bytes [off, off+len) of the blocks from `first` on, as far as they reach. */
static size_t copy_blocks(const struct block_item *item, const struct block *b, uint64_t first,
			  uint64_t off, uint8_t *to, size_t len)
{
	size_t size = block_size(item), done = 0, n = 0;

	for (; done < len; done += n) {
		uint64_t at = off + done, skip = at & (size - 1);
		const struct block *from = &b[(at >> block_shift(item)) - first];

		n = (size_t)min_u64(len - done, from->len - min_u64(skip, from->len));
		if (!n)
			break;
		memcpy(to + done, from->data + skip, n);
	}
	return done;
}

int64_t blockcache_read(struct blockcache *c, const struct block_item *item, uint64_t off,
			void *buf, size_t len, struct ckpt_err *e)
{
	const unsigned shift = block_shift(item);
	size_t done = 0, n, got;

	do {
		struct block blocks[AT_ONCE];
		void *pins[AT_ONCE];
		uint64_t at = off + done, first = at >> shift;
		int rc;

		n = (size_t)min_u64(len - done, ((first + AT_ONCE) << shift) - at);
		if (!n)
			break;
		rc = blockcache_get(c, item, first, (size_t)((at + n - 1) >> shift) - first + 1,
				    blocks, pins, e);
		if (rc)
			return rc;
		got = copy_blocks(item, blocks, first, at, (uint8_t *)buf + done, n);
		for (uint64_t i = first; i <= (at + n - 1) >> shift; i++)
			blockcache_put(c, pins[i - first]);
		done += got;
	} while (got == n && done < len);
	return (int64_t)done;
}

void blockcache_clear(struct blockcache *c)
{
	for (struct decoder *d = NULL;; decoder_free(c, d)) {
		struct freed gone = { 0 };

		{
			SCOPED_LOCK(&c->lock);
			forget_ahead(c);
			d = decoder_surplus(c, 0);
			if (!d) {
				evict_to(c, 0, &gone);
				memory_trim(c, &gone);
				known_trim(c, 0);
			}
		}
		memory_free(&gone);
		if (!d)
			break;
	}
	streams_free(c);
}

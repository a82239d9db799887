/* SPDX-License-Identifier: Apache-2.0 */
/* Records of items; the most recently used ones are kept. */
#include "source/blockcache_internal.h"

#include <stdlib.h>

enum { MAX_ITEMS = 1024 }; /* each has at most 16 KiB of places */

static struct known **item_bucket(struct blockcache *c, const struct block_item *item)
{
	uint64_t h = (item->offset ^ (uint64_t)item->file << 40) * 0x9e3779b97f4a7c15u;

	return &c->items[h >> 40 & (ITEM_BUCKETS - 1)];
}

void known_trim(struct blockcache *c, size_t keep)
{
	while (c->n_items > keep && c->unused_items.last) {
		struct known *k = c->unused_items.last, **p = item_bucket(c, &k->item);

		LIST_REMOVE(&c->unused_items, k);
		while (*p != k)
			p = &(*p)->chain;
		*p = k->chain;
		framemap_release(&k->frames);
		free(k);
		c->n_items--;
	}
}

struct known *known_use(struct blockcache *c, const struct block_item *item)
{
	struct known **bucket = item_bucket(c, item), *k = *bucket;

	while (k && !block_item_equal(&k->item, item))
		k = k->chain;
	if (k) {
		if (!k->users++)
			LIST_REMOVE(&c->unused_items, k);
		return k;
	}
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->item = *item;
	k->users = 1;
	k->no_walk = k->end = k->bad = UINT64_MAX;
	k->chain = *bucket;
	*bucket = k;
	c->n_items++;
	return k;
}

void known_done(struct blockcache *c, struct known *k)
{
	if (--k->users)
		return;
	LIST_PUSH(&c->unused_items, k);
	known_trim(c, MAX_ITEMS);
}

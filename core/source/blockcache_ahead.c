/* SPDX-License-Identifier: Apache-2.0 */
/* Read-ahead for sequential readers, and early release of the blocks behind them. */
#include "base/cleanup.h"
#include "source/blockcache_internal.h"

#include <string.h>

enum {
	AHEAD_AFTER = 8, /* steps forward; random reads seldom make as many */
	PASS_AFTER = 16,
	OVERTAKE = 40,	/* blocks; requests served at the same time may be this far apart */
	AHEAD = 8,	/* blocks made ahead: two requests of 1 MiB */
	MANY_AHEAD = 4, /* threads that make them, if each block is made alone */
};

static bool is_being_made(const struct blockcache *c, const struct known *k, uint64_t index)
{
	for (const struct decoder *d = c->decoders; d; d = d->next_one)
		if (d->known == k && d->busy && d->next == index)
			return true;
	return false;
}

/* The next block worth making; UINT64_MAX: none. Under the lock. */
static uint64_t next_ahead(struct blockcache *c, const struct known *k)
{
	if (!k->ahead || c->n_ahead >= c->max_bytes / DECODED_SIZE / 4)
		return UINT64_MAX;
	for (uint64_t i = k->asked; i <= k->ahead && i < k->end && i < k->bad; i++)
		if (!entry_is_there(c, &k->item, i) && !is_being_made(c, k, i))
			return i;
	return UINT64_MAX;
}

static bool is_dear(const struct known *k)
{
	return coding_is_computed(k->item.coding) && k->item.offset == BLOCK_DEAR;
}

/* Reuses a block of the item that was left behind first. */
static void reuse_left(struct blockcache *c, const struct known *k)
{
	struct left_behind *l = &c->left[0];

	if (!c->n_left || memory_is_spare(c))
		return;
	if (block_item_equal(&l->item, &k->item)) /* it is read again */
		l->next = l->end;
	else
		entry_reuse(c, &l->item, l->next++);
	if (l->next >= l->end)
		memmove(l, l + 1, --c->n_left * sizeof(*l));
}

/*
 * A sequential reader has advanced from k->asked to block `index`. In a large item, blocks far
 * behind the reader are unlikely to be needed again, because the kernel has cached them, and
 * reusing their memory, which is in the CPU cache, is cheaper than allocating. So are those of
 * large items that it has read before.
 */
static void pass(struct blockcache *c, struct known *k, uint64_t index)
{
	uint64_t keep = c->max_bytes / 32;

	for (; k->asked < index; k->asked++) {
		if (c->bytes <= keep || is_dear(k))
			continue;
		while (k->in_order >= PASS_AFTER && k->asked - k->kept >= OVERTAKE &&
		       !memory_is_spare(c))
			entry_reuse(c, &k->item, k->kept++);
		reuse_left(c, k);
	}
}

/* The reader of a large item is at its end. */
static void leave(struct blockcache *c, struct known *k)
{
	k->in_order = k->ahead = 0;
	if (c->n_left == MAX_LEFT)
		memmove(c->left, c->left + 1, --c->n_left * sizeof(c->left[0]));
	c->left[c->n_left++] = (struct left_behind){ k->item, k->kept, k->asked + 1 };
}

static bool is_last(const struct known *k, uint64_t index)
{
	if (coding_is_computed(k->item.coding))
		return index >= (k->item.length - 1) >> block_shift(&k->item);
	return index + 1 >= k->end;
}

void note_asked(struct blockcache *c, struct known *k, uint64_t index)
{
	if (!k->item.coding)
		return;
	if (index > k->asked + OVERTAKE || index + OVERTAKE < k->asked || (!index && k->asked)) {
		k->in_order = k->ahead = 0;
		k->kept = k->asked = index;
	}
	k->in_order += index > k->asked;
	pass(c, k, index);
	if (k->in_order >= PASS_AFTER && is_last(k, k->asked) && !is_dear(k)) {
		leave(c, k);
		return;
	}
	if (k->in_order < AHEAD_AFTER)
		return;
	k->ahead = k->asked + AHEAD;
	if (k->queued || k->run_ahead >= (block_is_stream(&k->item) ? 1 : MANY_AHEAD) ||
	    next_ahead(c, k) == UINT64_MAX)
		return;
	k->queued = true;
	k->users++;
	k->next_ahead = c->ahead;
	c->ahead = k;
	c->any_ahead = true;
}

void forget_ahead(struct blockcache *c)
{
	while (c->ahead) {
		struct known *k = c->ahead;

		c->ahead = k->next_ahead;
		k->queued = false;
		known_done(c, k);
	}
	c->any_ahead = false;
}

static struct known *take_ahead(struct blockcache *c)
{
	SCOPED_LOCK(&c->lock);
	struct known *k = c->ahead;

	if (k) {
		c->ahead = k->next_ahead;
		k->queued = false;
		k->run_ahead++;
	}
	c->any_ahead = c->ahead != NULL;
	return k;
}

/* The next block to make of k; UINT64_MAX: none, and k is no longer ours. */
static uint64_t more_ahead(struct blockcache *c, struct known *k)
{
	SCOPED_LOCK(&c->lock);
	uint64_t index = next_ahead(c, k);

	if (index == UINT64_MAX) {
		k->run_ahead--;
		known_done(c, k);
	}
	return index;
}

static void stop_ahead(struct blockcache *c, struct known *k)
{
	SCOPED_LOCK(&c->lock);

	k->in_order = k->ahead = 0;
}

void blockcache_ahead(struct blockcache *c)
{
	struct known *k;

	while (c->any_ahead && (k = take_ahead(c))) {
		void *pin = NULL;
		struct wanted want = { .n = 1, .pins = &pin, .ahead = true };

		while ((want.first = more_ahead(c, k)) != UINT64_MAX) {
			struct ckpt_err e = { 0 };

			/* A failure will recur when the block is requested. */
			if (decode_blocks(c, k, &want, &e))
				stop_ahead(c, k);
			blockcache_put(c, pin);
			pin = NULL;
		}
	}
}

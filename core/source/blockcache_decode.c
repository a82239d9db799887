/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoders produce the blocks of compressed items. A decoder is positioned between two blocks of an
 * item and can only move forward. An item may have several: a reader uses the one that is closest
 * behind its position, or starts a new one at a frame beyond all of those.
 *
 * A decoder is created small or large: a large one may have windows above 1 << CODEC_WINDOW_LOG,
 * and a cache has at most one. An item is small until one of its small decoders meets such a
 * window, and then large for as long as it is remembered (known.large). The states of a decoder;
 * all transitions happen under the lock:
 *
 *	none -> busy  choose: no existing decoder can reach the block
 *	idle -> busy  choose: it continues, or begins at a frame; or moves to another large item
 *	busy -> idle  step: the wanted blocks are made
 *	busy -> gone  step: the item's end, a failure, a window too large for a small one
 *	idle -> gone  decoder_surplus: its memory is needed, or blockcache_clear
 *
 * Blocks of items that are not decoded but copied or computed are made by decoders of one block.
 *
 * A busy decoder belongs to one thread, which does not wait for others (one of a computed item may
 * wait for items that this is computed from, and these never wait for it). A thread that waits
 * (await: for a block, for a busy decoder of the same item, for the large one) owns no decoder. So
 * threads cannot wait for each other in a cycle. If a small decoder meets a large window, its
 * thread starts again (decode_blocks): at most once for each small decoder of the item, because no
 * more of them are created.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "codec/codec_stream.h"
#include "source/blockcache_internal.h"

#include <assert.h>
#include <stdlib.h>

enum { NEAR = 4 }; /* blocks; decoding this many again costs little */

static uint64_t first_block(struct zstd_place at)
{
	return at.decoded / DECODED_SIZE + !!(at.decoded % DECODED_SIZE);
}

/* The last frame known to begin at or before the block. */
static struct zstd_place place_of(const struct known *k, uint64_t index)
{
	uint64_t decoded;

	return framemap_find(&k->frames,
			     ckd_mul(&decoded, index, DECODED_SIZE) ? UINT64_MAX : decoded);
}

enum { THERE, WALK, DECODE, AGAIN }; /* what to do about a block */

/* ---- decoders; under the lock ---- */

static int64_t read_stored(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	struct decoder *d = arg;
	const struct block_item *item = &d->known->item;
	size_t n = (size_t)min_u64(len, off < item->length ? item->length - off : 0);
	const struct block_source *src = &d->cache->src;
	int rc = 0;

	if (n && coding_is_computed(item->coding))
		rc = src->compute(src->arg, item->file, buf, n, off, e);
	else if (n)
		rc = src->read(src->arg, item->file, buf, n, item->offset + off, e);

	return rc ? rc : (int64_t)n;
}

/* Adds it to the list; large if the item is. */
static struct decoder *decoder_new(struct blockcache *c, struct known *k)
{
	struct decoder *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->cache = c;
	d->known = k;
	d->large = k->large;
	if (d->large) {
		assert(!c->large);
		c->large = d;
	}
	d->blob = (struct blob){ read_stored, d, k->item.length };
	k->users++;
	d->next_one = c->decoders;
	c->decoders = d;
	c->n_decoders++;
	return d;
}

/* Creating a stream takes longer than decoding a small item, and fragments memory. */
static struct codec_stream *take_stream(struct blockcache *c)
{
	SCOPED_LOCK(&c->lock);

	return c->n_streams ? c->streams[--c->n_streams] : NULL;
}

static void keep_stream(struct blockcache *c, struct decoder *d)
{
	SCOPED_LOCK(&c->lock);

	if (!d->stream || d->large || d->coding != CODEC_ZSTD ||
	    c->n_decoders + c->n_streams >= MIN_DECODERS)
		return;
	c->streams[c->n_streams++] = d->stream;
	d->stream = NULL;
}

void streams_free(struct blockcache *c)
{
	for (struct codec_stream *s; (s = take_stream(c));)
		codec_stream_free(s);
}

void decoder_free(struct blockcache *c, struct decoder *d)
{
	if (!d)
		return;
	keep_stream(c, d);
	codec_stream_free(d->stream);
	free(d);
}

static void decoder_unlink(struct blockcache *c, struct decoder *d)
{
	struct decoder **p = &c->decoders;

	while (*p != d)
		p = &(*p)->next_one;
	*p = d->next_one;
	c->n_decoders--;
	c->decoder_bytes -= d->bytes;
	assert(d->large == (c->large == d));
	if (d->large)
		c->large = NULL;
	known_done(c, d->known);
}

/* Would it cost little to recreate it at its position? */
static bool is_cheap(const struct decoder *d)
{
	return d->next - first_block(place_of(d->known, d->next)) < NEAR;
}

/* Should a be freed before b? */
static bool is_worse(const struct decoder *a, const struct decoder *b)
{
	bool cheap = is_cheap(a);

	return cheap != is_cheap(b) ? cheap : a->used < b->used;
}

struct decoder *decoder_surplus(struct blockcache *c, size_t keep)
{
	struct decoder *worst = NULL;

	if (c->n_decoders <= keep)
		return NULL;
	for (struct decoder *d = c->decoders; d; d = d->next_one)
		if (!d->busy && (!worst || is_worse(d, worst)))
			worst = d;
	if (worst)
		decoder_unlink(c, worst);
	return worst;
}

size_t decoders_share(const struct blockcache *c)
{
	size_t n = c->n_decoders;

	/* Decoders take at most 3/4 of the limit, however much the busy ones need. */
	return n <= MIN_DECODERS ? 0
				 : (size_t)min_u64(c->decoder_bytes / n * (n - MIN_DECODERS),
						   c->max_bytes / 4 * 3);
}

static struct decoder *too_many(struct blockcache *c)
{
	return c->decoder_bytes > c->max_bytes / 4 * 3 ? decoder_surplus(c, MIN_DECODERS) : NULL;
}

/* ---- waiting; under the lock ---- */

static void wait_as(struct blockcache *c, struct waiter *w)
{
	struct waiter **p = &c->waiters;

	(void)pthread_cond_init(&w->cond, NULL);
	w->next = c->waiters;
	c->waiters = w;
	(void)pthread_cond_wait(&w->cond, &c->lock);
	while (*p != w)
		p = &(*p)->next;
	*p = w->next;
	(void)pthread_cond_destroy(&w->cond);
}

/* Call when the block is in the cache. */
static void wake_for_block(const struct blockcache *c, const struct known *k, uint64_t index)
{
	for (struct waiter *w = c->waiters; w; w = w->next)
		if (w->known == k && w->index == index)
			(void)pthread_cond_signal(&w->cond);
}

/* Call when d is no longer busy, or will be freed before the lock is released. */
static void wake_for_decoder(const struct blockcache *c, const struct decoder *d)
{
	for (struct waiter *w = c->waiters; w; w = w->next)
		if (w->known == d->known || (d->large && w->known->large))
			(void)pthread_cond_signal(&w->cond);
}

/* ---- choosing a decoder; under the lock ---- */

struct choice {
	struct decoder *best; /* idle, the furthest one that is not beyond the block */
	struct decoder *run;  /* the same, among busy decoders */
	struct decoder *free; /* idle, dispensable at its position, may begin anywhere */
};

static struct choice choices(struct blockcache *c, const struct known *k, uint64_t index)
{
	struct choice x = { 0 };

	for (struct decoder *d = c->decoders; d; d = d->next_one) {
		struct decoder **to = d->busy ? &x.run : &x.best;

		if (d->known != k)
			continue;
		if (d->next <= index && (!*to || (*to)->next < d->next))
			*to = d;
		if (!d->busy && d->large == k->large && is_cheap(d))
			x.free = d;
	}
	return x;
}

static void begin_at(struct decoder *d, struct zstd_place at)
{
	d->begin = true;
	d->from = at;
	d->next = first_block(at);
}

/* Assigns the idle large decoder to the item. */
static void move_to(struct blockcache *c, struct decoder *d, struct known *k)
{
	assert(d->large && k->large && !d->busy);
	known_done(c, d->known);
	d->known = k;
	d->blob.size = k->item.length;
	k->users++;
}

/* Chooses a decoder that can reach the block, if only from the frame at `at` on, and makes it busy.
 * NULL: wait for a busy one instead; or -ENOMEM. */
static int choose(struct blockcache *c, struct known *k, uint64_t index, struct zstd_place at,
		  struct decoder **ret)
{
	bool stream = block_is_stream(&k->item);
	uint64_t begin = stream ? first_block(at) : index;
	struct choice x = choices(c, k, index);
	struct decoder *d = x.best;

	*ret = NULL;
	if (x.run && x.run->next >= begin && (!d || x.run->next >= d->next))
		return 0;
	if (!d || d->next < begin) {
		d = k->large ? c->large : x.free;
		if (d && d->busy)
			return 0;
		if (d && d->known != k)
			move_to(c, d, k);
		if (!d)
			d = decoder_new(c, k);
		if (!d)
			return -ENOMEM;
		begin_at(d, at);
		if (!stream)
			d->next = index;
	}
	assert(!d->busy);
	d->busy = true;
	d->used = ++c->clock;
	*ret = d;
	return 0;
}

/* ---- decoding; without the lock ---- */

/* Positions the stream at the point where d is to begin. */
static int begin(struct decoder *d, struct ckpt_err *e)
{
	const uint32_t coding = d->known->item.coding;

	if (coding != CODEC_ZSTD || d->coding != CODEC_ZSTD) { /* others cannot begin anew */
		codec_stream_free(d->stream);
		d->stream = NULL;
	}
	if (!d->stream && coding == CODEC_ZSTD && !d->large)
		d->stream = take_stream(d->cache);
	if (!d->stream)
		d->stream = codec_stream_new(&d->blob, coding,
					     d->large ? CODEC_WINDOW_LOG_MAX : CODEC_WINDOW_LOG);
	if (!d->stream)
		return err_nomem(e);
	d->coding = coding;
	if (coding == CODEC_ZSTD)
		codec_stream_go(d->stream, &d->blob, d->from);
	return 0;
}

/* The bytes of d's next block. */
static int64_t next_bytes(struct decoder *d, uint8_t *to, struct ckpt_err *e)
{
	const struct block_item *item = &d->known->item;
	uint64_t skip = 0;
	int64_t n = 0;

	if (!block_is_stream(item))
		return d->next > item->length >> block_shift(item)
			       ? 0
			       : read_stored(d, d->next << block_shift(item), to, block_size(item),
					     e);
	if (d->begin) {
		int rc = begin(d, e);

		if (rc)
			return rc;
		skip = (d->next << DECODED_SHIFT) - d->from.decoded;
	}
	d->begin = false;
	for (; skip; skip -= (uint64_t)n) {
		n = codec_stream_read(d->stream, to, (size_t)min_u64(skip, DECODED_SIZE), e);
		if (n <= 0)
			return n;
	}
	return codec_stream_read(d->stream, to, DECODED_SIZE, e);
}

/* The next block of d, new and pinned once. */
static struct entry *make_block(struct blockcache *c, struct decoder *d, struct ckpt_err *e)
{
	struct entry *b = entry_new(c, &d->known->item, d->next);
	int64_t n;

	if (!b) {
		(void)err_nomem(e);
		return NULL;
	}
	n = next_bytes(d, b->data, e);
	if (n < 0) {
		entry_free(c, b);
		return NULL;
	}
	b->len = (size_t)n;
	/* Small items would waste most of a block. */
	return b->len < block_size(&b->item) / 2 ? entry_fit(c, b) : b;
}

/* Did a small decoder meet a large window? (A failed read may look the same: it then fails again in
 * a large one.) */
static bool wants_large(const struct decoder *d, const struct ckpt_err *why)
{
	return why->code == ENOBUFS && block_is_stream(&d->known->item) && !d->large;
}

/* d failed at its next block, or reached the item's end; under the lock. */
static void decoder_finish(struct blockcache *c, struct decoder *d, const struct ckpt_err *why)
{
	struct known *k = d->known;

	/* Reading again gives the same bytes, and the blocks behind it are not reached. */
	if (why && why->code == ERR_CORRUPT && block_is_stream(&k->item)) {
		k->bad = d->next;
		k->why = *why;
	}
	if (why && wants_large(d, why))
		k->large = true;
	wake_for_decoder(c, d);
	decoder_unlink(c, d);
}

/* Inserts b, the block that d has made; returns the cached one, pinned. Under the lock. */
static struct entry *keep_block(struct blockcache *c, struct decoder *d, struct entry *b)
{
	struct known *k = d->known;
	struct entry *have = entry_pin(c, &b->item, b->index);

	c->decoded += k->item.coding ? b->len : 0;
	if (!have)
		entry_insert(c, b);
	if (b->len < block_size(&b->item))
		k->end = b->index + !!b->len;
	if (k->item.coding == CODEC_ZSTD)
		framemap_add(&k->frames, codec_stream_frame(d->stream));
	return have ? have : b;
}

static void count_memory(struct blockcache *c, struct decoder *d)
{
	size_t bytes = codec_stream_memory(d->stream);

	c->decoder_bytes += bytes - d->bytes;
	d->bytes = bytes;
}

/* Has d made all wanted blocks that it can reach? Blocks in the cache need not be made again. */
static bool is_enough(struct blockcache *c, const struct decoder *d, const struct wanted *want)
{
	uint64_t next = d->next + 1;

	return next > want->first &&
	       (next - want->first >= want->n || entry_is_there(c, &d->known->item, next));
}

/* One step of d, which is busy: its next block, pinned, or NULL. *ret_done: d is no longer ours,
 * because it has made enough, the item has ended, or it has failed. */
static struct entry *step(struct blockcache *c, struct decoder *d, const struct wanted *want,
			  bool *ret_done, struct ckpt_err *e)
{
	const struct block_item *item = &d->known->item;
	struct entry *b = make_block(c, d, e), *kept = NULL, *unused = NULL;
	struct decoder *gone = NULL, *surplus;

	{
		SCOPED_LOCK(&c->lock);
		assert(d->busy);
		*ret_done = !b || b->len < block_size(item) || is_enough(c, d, want);
		if (b) {
			b->ahead = want->ahead;
			count_memory(c, d);
			kept = keep_block(c, d, b);
			unused = kept == b ? NULL : b;
			wake_for_block(c, d->known, d->next);
		}
		if (!b || b->len < block_size(item) || !block_is_stream(item)) {
			decoder_finish(c, d, b ? NULL : e);
			*ret_done = true;
			gone = d;
		} else {
			d->next++;
			d->busy = !*ret_done;
			if (*ret_done)
				wake_for_decoder(c, d);
		}
		surplus = too_many(c);
	}
	entry_free(c, unused);
	decoder_free(c, gone);
	decoder_free(c, surplus);
	return kept;
}

static void hand_over(struct blockcache *c, const struct wanted *want, struct entry *b)
{
	bool wanted = b && b->len && b->index >= want->first && b->index - want->first < want->n;

	if (wanted)
		want->pins[b->index - want->first] = b;
	else
		blockcache_put(c, b);
}

/* 0, -errno, or AGAIN: the item turned out to be large. */
static int run_to(struct blockcache *c, struct decoder *d, const struct wanted *want,
		  struct ckpt_err *e)
{
	const bool may_be_large = block_is_stream(&d->known->item) && !d->large;
	struct ckpt_err why = { 0 };
	bool done = false;

	while (!done)
		hand_over(c, want, step(c, d, want, &done, &why));
	if (!why.code || want->pins[0]) /* otherwise the block fails when it is requested */
		return 0;
	if (why.code == ENOBUFS && may_be_large)
		return AGAIN;
	*e = why;
	return -e->code;
}

/* ---- finding frames; without the lock ---- */

struct walk {
	struct blockcache *c;
	struct known *k;
};

static void found_frame(void *arg, struct zstd_place at)
{
	struct walk *w = arg;
	SCOPED_LOCK(&w->c->lock);

	framemap_add(&w->k->frames, at);
}

/* Walks from *at, where a frame begins, to the last frame before the block. */
static int walk_frames(struct blockcache *c, struct known *k, uint64_t index, struct zstd_place *at,
		       struct ckpt_err *e)
{
	struct walk w = { c, k };
	struct decoder reader = { .cache = c, .known = k }; /* of stored bytes */
	struct blob blob = { read_stored, &reader, k->item.length };
	uint64_t target;
	int rc;

	if (ckd_mul(&target, index, DECODED_SIZE))
		target = UINT64_MAX;
	rc = zstd_frames_skip(&blob, at, target, found_frame, &w, e);
	if (rc < 0)
		return rc;
	if (!rc) {
		SCOPED_LOCK(&c->lock);
		k->no_walk = at->stored;
	}
	return 0;
}

/* ---- all of it ---- */

/* Is the block known to be damaged? Under the lock. */
static bool is_bad(const struct known *k, uint64_t index, struct zstd_place at, struct ckpt_err *e)
{
	if (index < k->bad || first_block(at) > k->bad)
		return false;
	*e = k->why;
	return true;
}

/* Can frames be skipped on the way from `at`, and would that help? Under the lock. */
static bool is_far(struct blockcache *c, const struct known *k, uint64_t index,
		   struct zstd_place at)
{
	const struct decoder *best = choices(c, k, index).best;

	return k->item.coding == CODEC_ZSTD && at.stored != k->no_walk && first_block(at) < index &&
	       (!best || best->next < index);
}

/* Waits until the first block is pinned (or beyond the end), or *ret_d is to make it. */
static int await(struct blockcache *c, struct known *k, const struct wanted *want,
		 struct zstd_place *at, bool walked, struct decoder **ret_d, struct ckpt_err *e)
{
	uint64_t index = want->first;
	struct waiter w = { .known = k, .index = index };
	SCOPED_LOCK(&c->lock);

	for (;; wait_as(c, &w)) {
		struct zstd_place known = place_of(k, index);

		want->pins[0] = entry_pin(c, &k->item, index);
		if (want->pins[0] || index >= k->end)
			return THERE;
		if (known.decoded >= at->decoded && known.stored > at->stored)
			*at = known;
		if (is_bad(k, index, *at, e))
			return -e->code;
		if (!walked && is_far(c, k, index, *at))
			return WALK;
		if (choose(c, k, index, *at, ret_d))
			return err_nomem(e);
		if (*ret_d)
			return DECODE;
	}
}

int decode_blocks(struct blockcache *c, struct known *k, const struct wanted *want,
		  struct ckpt_err *e)
{
	struct zstd_place at = { 0, 0 };
	struct decoder *d = NULL;
	bool walked = false;
	int rc;

	do {
		rc = await(c, k, want, &at, walked, &d, e);
		if (rc == WALK) {
			walked = true;
			rc = walk_frames(c, k, want->first, &at, e);
			rc = rc ? rc : AGAIN;
		} else if (rc == DECODE) {
			rc = run_to(c, d, want, e);
		}
	} while (rc == AGAIN);
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot_internal.h"

#include "base/clock.h"
#include "base/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { TOUCH_SECONDS = 60 };

struct hold {
	struct store_room *room;
	struct segment *segment; /* in the room */
	uint32_t generation;
	uint64_t block, n;
	uint64_t at; /* bytes written so far */
	_Atomic uint64_t done;
	XXH3_state_t *hash;
	bool locked;
};

static uint64_t segment_of(const struct store_room *r, uint64_t block)
{
	return block / (r->view.segment / WIRE_BLOCK);
}

static uint32_t generation_of(const struct store_room *r, uint64_t segment)
{
	return *map_generation(r->map, segment) & (UINT32_MAX >> 2);
}

bool object_has(struct object *o, uint64_t block)
{
	struct store_room *r = o->room;

	return map_block(r->map, &r->view, block)->word ==
	       map_word(generation_of(r, segment_of(r, block)), MAP_THERE);
}

/* ---- eviction from memory ---- */

/*
 * The segment in memory that has been unused the longest; NULL: all are held. A segment with few
 * blocks, such as the heads of items, will be needed when a reader gets there, and would make
 * little room: it goes after the others.
 */
static struct object *oldest(struct depot *d, uint64_t *ret)
{
	struct object *best = NULL;
	uint64_t used = UINT64_MAX;
	bool full = false;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; o->room->in_memory && i < o->room->view.n_segments; i++) {
			const struct segment *s = &o->room->v[i];
			bool is_full = s->bytes >= map_segment_size(&o->room->view, i) / 2;

			if (!s->generation || !s->bytes || s->holds || is_full < full ||
			    (is_full == full && s->used_ns >= used))
				continue;
			used = s->used_ns;
			full = is_full;
			best = o;
			*ret = i;
		}
	return best;
}

/* False: there is nothing to evict. */
static bool evict_oldest(struct depot *d)
{
	uint64_t i = 0;
	struct object *o = oldest(d, &i);
	struct segment *s = o ? &o->room->v[i] : NULL;
	uint32_t generation;

	if (!o)
		return false;
	generation = s->generation;
	d->in_memory -= min_u64(d->in_memory, s->bytes);
	(void)atomic_fetch_add(map_generation(o->room->map, i), 1);
	segment_close(s);
	d->drop(d->arg, o, i, generation);
	return true;
}

/* Makes room for n more bytes. */
static void room_in_memory(struct depot *d, uint64_t n)
{
	while (d->in_memory + n > d->memory && evict_oldest(d))
		;
}

/* ---- segments ---- */

static void segment_name(uint64_t i, uint32_t generation, char ret[static 32])
{
	(void)snprintf(ret, 32, "%04llx-%x", (unsigned long long)i, generation);
}

/* The file of a generation has been lost: others remove what was not used for long. True: its
 * blocks are missing from now on. */
static bool lose_segment(struct store_room *r, uint64_t i, uint32_t generation)
{
	uint32_t word = generation | MAP_MADE;

	return atomic_compare_exchange_strong(map_generation(r->map, i), &word, generation + 1);
}

/* -ESTALE: the generation is another by now. */
static int open_segment_file(struct store_room *r, uint64_t i, uint32_t generation,
			     struct segment *s)
{
	uint64_t size = map_segment_size(&r->view, i);
	uint32_t word = *map_generation(r->map, i); /* before the file is looked for */
	bool made = word & MAP_MADE;
	struct stat st;
	char name[32];

	if (r->in_memory)
		return memory_file(size, &s->fd, &s->reader);
	segment_name(i, generation, name);
	s->fd = openat(r->dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (s->fd < 0 && errno == ENOENT) {
		if (made && lose_segment(r, i, generation))
			return -ESTALE;
		s->fd = openat(r->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	}
	if (s->fd < 0 || fstat(s->fd, &st))
		return -errno;
	if (made && (uint64_t)st.st_size < size && lose_segment(r, i, generation))
		return -ESTALE;
	/* Larger, never smaller: it may be mapped. */
	if ((uint64_t)st.st_size < size && ftruncate(s->fd, (off_t)size))
		return -errno;
	s->reader = openat(r->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (s->reader < 0)
		return -errno;
	word = generation;
	(void)atomic_compare_exchange_strong(map_generation(r->map, i), &word,
					     generation | MAP_MADE);
	return 0;
}

bool segments_close_idle(const struct depot *d)
{
	bool any = false;

	LIST_EACH (o, &d->objects)
		for (uint64_t i = 0; !o->room->in_memory && i < o->room->view.n_segments; i++) {
			struct segment *s = &o->room->v[i];

			if (s->fd < 0 || s->holds || !s->generation) /* just being opened */
				continue;
			segment_close(s);
			any = true;
		}
	return any;
}

/* Closes what can be had again, if there is any. */
static bool spare_descriptors(struct depot *d)
{
	return segments_close_idle(d) || evict_oldest(d);
}

/*
 * Opens the present generation of a segment. A file that was evicted after its generation had been
 * looked up would be made again here, empty. New blocks no longer get that generation, and the
 * words of its old blocks are true only for those who have the old file; so the generation is
 * looked up again.
 */
static int segment_open(struct object *o, uint64_t i, struct segment **ret, struct ckpt_err *e)
{
	struct store_room *r = o->room;
	struct segment *s = &r->v[i];
	int rc = 0;

	for (unsigned tries = 0; tries < MAX_OPENS; tries++) {
		uint32_t generation = generation_of(r, i);
		char name[32];

		if (s->generation == generation)
			break;
		if (s->holds)
			return -EAGAIN; /* of the old generation, for a moment longer */
		segment_close(s);
		rc = open_segment_file(r, i, generation, s);
		if (rc) {
			segment_close(s);
			if (rc == -ESTALE || (rc == -EMFILE && spare_descriptors(o->depot)))
				continue;
			return err_sys(e, -rc, "segment %llu", (unsigned long long)i);
		}
		if (s->reader >= o->depot->scarce)
			(void)spare_descriptors(o->depot);
		if (generation_of(r, i) == generation) {
			s->generation = generation;
			break;
		}
		segment_name(i, generation, name);
		if (!r->in_memory)
			(void)unlinkat(r->dir, name, 0);
		segment_close(s);
	}
	if (!s->generation)
		return err_set(e, EBUSY, "segment %llu is evicted again and again",
			       (unsigned long long)i);
	s->used_ns = ++o->depot->now;
	*ret = s;
	return 0;
}

int object_segment(struct object *o, uint64_t i, uint32_t *ret_generation, int *ret_fd,
		   struct ckpt_err *e)
{
	struct segment *s;
	int rc = segment_open(o, i, &s, e);

	if (rc)
		return rc;
	*ret_generation = s->generation;
	*ret_fd = s->reader;
	return 0;
}

void object_touch(struct object *o, uint64_t i)
{
	struct segment *s = &o->room->v[i];
	uint64_t now = clock_ns();

	s->used_ns = ++o->depot->now;
	if (o->room->in_memory || s->fd < 0 ||
	    (s->touched_ns && now - s->touched_ns < TOUCH_SECONDS * CLOCK_SECOND))
		return;
	s->touched_ns = now;
	(void)futimens(s->fd, NULL);
}

void blocks_forget(struct object *o)
{
	struct store_room *r = o->room;

	if (!r->in_memory)
		return;
	for (uint64_t i = 0; i < r->view.n_segments; i++) {
		o->depot->in_memory -= min_u64(o->depot->in_memory, r->v[i].bytes);
		r->v[i].bytes = 0;
	}
}

/* ---- blocks ---- */

static bool check_block(struct object *o, uint64_t block, uint8_t *buf)
{
	struct store_room *r = o->room;
	struct map_block *b = map_block(r->map, &r->view, block);
	uint64_t size = map_block_size(&r->view, block), i = segment_of(r, block);
	uint32_t word = b->word;
	struct segment *s;
	struct ckpt_err ignored;
	bool right;

	if (word != map_word(generation_of(r, i), MAP_UNCHECKED))
		return false;
	if (segment_open(o, i, &s, &ignored) || word >> 2 != s->generation)
		return false;
	right = !io_pread(s->fd, buf, (size_t)size, block * WIRE_BLOCK - i * r->view.segment) &&
		XXH3_64bits(buf, (size_t)size) == b->hash;
	(void)atomic_compare_exchange_strong(
		&b->word, &word, map_word(s->generation, right ? MAP_THERE : MAP_MISSING));
	return right;
}

uint64_t object_check(struct object *o, uint64_t block, uint64_t end, uint64_t most)
{
	autofree uint8_t *buf = NULL;

	for (; block < end; block++) {
		if ((map_block(o->room->map, &o->room->view, block)->word & 3) != MAP_UNCHECKED)
			continue;
		if (!most--)
			break;
		if (!buf)
			buf = malloc(WIRE_BLOCK);
		if (!buf) /* then they are fetched again */
			return end;
		(void)check_block(o, block, buf);
	}
	return block;
}

int object_hold(struct object *o, uint64_t block, uint64_t n, bool alone, struct hold **ret,
		uint64_t *ret_n, struct ckpt_err *e)
{
	struct store_room *r = o->room;
	uint64_t per = r->view.segment / WIRE_BLOCK, i = segment_of(r, block), bytes;
	struct hold *h;
	struct segment *s;
	int rc;

	n = min_u64(n, min_u64((i + 1) * per, r->view.n_blocks) - block);
	bytes = min_u64(n * WIRE_BLOCK, r->view.size - block * WIRE_BLOCK);
	if (r->in_memory)
		room_in_memory(o->depot, bytes);
	rc = segment_open(o, i, &s, e);
	if (rc)
		return rc;
	rc = r->in_memory ? 0 : map_reserve(r, block, n);
	if (rc)
		return err_sys(e, -rc, "map");
	h = calloc(1, sizeof(*h));
	if (h)
		h->hash = XXH3_createState();
	if (!h || !h->hash) {
		free(h);
		return err_nomem(e);
	}
	while (!r->in_memory && !alone) {
		rc = map_lock(r->map_fd, F_WRLCK, (off_t)block, (off_t)n);
		if (rc == -EAGAIN && n > 1) {
			n /= 2;
			continue;
		}
		h->locked = !rc;
		if (rc == -EAGAIN) {
			XXH3_freeState(h->hash);
			free(h);
			return -EAGAIN;
		}
		break; /* no locks on this file system: then it may be fetched twice */
	}
	if (object_has(o, block)) { /* its holder has just finished */
		if (h->locked)
			(void)map_lock(r->map_fd, F_UNLCK, (off_t)block, (off_t)n);
		XXH3_freeState(h->hash);
		free(h);
		return -EALREADY;
	}
	h->room = r;
	r->users++;
	h->segment = s;
	s->holds++;
	h->generation = s->generation;
	h->block = block;
	h->n = n;
	(void)XXH3_64bits_reset(h->hash);
	if (r->in_memory) {
		s->bytes += bytes;
		o->depot->in_memory += bytes;
	} else
		evict_note_written(o->depot, bytes); /* now that it is held */
	*ret = h;
	*ret_n = n;
	return 0;
}

static void store_block(struct hold *h, uint64_t block)
{
	struct map_block *b = map_block(h->room->map, &h->room->view, block);

	b->hash = XXH3_64bits_digest(h->hash);
	atomic_store_explicit(&b->word, map_word(h->generation, MAP_THERE), memory_order_release);
	(void)XXH3_64bits_reset(h->hash);
	h->done++;
}

int hold_write(struct hold *h, const void *p, size_t n)
{
	const struct map_view *v = &h->room->view;
	uint64_t first = h->block * WIRE_BLOCK, base = first / v->segment * v->segment,
		 end = min_u64(first + h->n * WIRE_BLOCK, v->size);
	int rc;

	if (n > end - first - h->at)
		return -EOVERFLOW;
	rc = io_pwrite(h->segment->fd, p, n, first + h->at - base);
	if (rc)
		return rc;
	while (n) {
		uint64_t at = first + h->at, block = at / WIRE_BLOCK,
			 block_end = min_u64((block + 1) * WIRE_BLOCK, v->size);
		size_t part = (size_t)min_u64(n, block_end - at);

		(void)XXH3_64bits_update(h->hash, p, part);
		p = (const char *)p + part;
		n -= part;
		h->at += part;
		if (at + part == block_end)
			store_block(h, block);
	}
	return 0;
}

uint64_t hold_done(const struct hold *h)
{
	return h->done;
}

bool hold_in_memory(const struct hold *h)
{
	return h->room->in_memory;
}

void hold_end(struct hold *h)
{
	if (!h)
		return;
	if (h->locked)
		(void)map_lock(h->room->map_fd, F_UNLCK, (off_t)h->block, (off_t)h->n);
	h->segment->holds--;
	room_leave(h->room);
	XXH3_freeState(h->hash);
	free(h);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/ahead.h"

#include "base/checked.h"
#include "ckpt/ckpt_internal.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

enum {
	SLACK = 4 << 20,       /* bytes; concurrent requests may be this far apart */
	BEGIN_AFTER = 1 << 20, /* bytes read in order */
	MAX_WINDOW = 16 << 20,
	FAR_WINDOW = 64 << 20,	/* of one reader; less would bound what is on its way */
	CROWD_WINDOW = 8 << 20, /* of several readers together; 1 Gbit/s and 20 ms need 2.5 MB */
	LEAST_WINDOW = 1 << 20, /* the kernel reads this much ahead by itself */
	SLOW_WINDOW = 4 << 20,	/* of what takes a second or two to compute with one CPU */
	TURN_SHIFT = 24,	/* a turn is 2^24 bytes, of which 16 readers get 1 MiB each */
	FAR = 32,		/* a place that wants this many requests at a time is far away */
	MIN_PAUSE = 1 << 20,
	MAX_PAUSE = 64 << 20,
	PROBES = 8, /* tensors; if the first ones are all in memory, the others are assumed to be */
};

/* The numbers only produce hints, so threads need not agree. */
void ahead_note(struct ckpt_file *f, uint64_t off, uint64_t len)
{
	struct ahead *a = &f->ahead;
	uint64_t next = a->next, end = off + len;

	if (off > next + SLACK || end + SLACK < next) {
		a->in_order = 0;
		a->next = end;
	} else if (end > next) {
		/* Skipped bytes do not count: a random reader sometimes comes as near as this. */
		len = min_u64(end - next, len);
		a->in_order += len;
		a->next = end;
		if (f->engine)
			f->engine->in_order += len;
	}
}

bool ahead_is_in_order(const struct ahead *a)
{
	return a->wanted && a->in_order >= BEGIN_AFTER;
}

static bool want_tensor(struct ckpt_file *f, uint64_t id, uint64_t off, uint64_t len)
{
	struct fetch *fetch = f->engine->fetch;
	struct tensor_reader *r;
	struct ckpt_err ignored;
	struct vtensor *v;
	uint32_t number;
	uint64_t slow;
	bool missing;

	if (f->reader)
		return tensor_want(fetch, f->reader, off, len);
	/* A failure will recur when the data is requested. */
	if (view_vtensor(f->engine->view, id, &v, &ignored) || tensor_open(fetch, v, &r, &ignored))
		return false;
	slow = view_is_gguf(id, &number) ? tensor_slow_bytes(r) : 0;
	missing = tensor_want(fetch, r, off, len);
	if (slow && f->ahead.wanted)
		missing |= fetch_keep(fetch, number, slow, off, len);
	tensor_close(fetch, r);
	return missing;
}

/* False: everything examined is in memory. */
static bool announce(struct ckpt_file *f, uint64_t from, uint64_t to)
{
	bool missing = false;
	size_t n = 0;

	for (size_t i = vfile_find(&f->v, from); from < to && (missing || n < PROBES); i++) {
		const struct segment *s = &f->v.seg[i];
		uint64_t end = min_u64(s->off + s->len, to);

		if (s->kind == SEG_TENSOR) {
			missing |= want_tensor(f, s->id, from - s->off, end - from);
			n++;
		}
		from = end;
	}
	return missing;
}

/*
 * How many readers read this checkpoint in order, in this turn or the last, including this one.
 * Turns are measured in bytes that all of them have read, not in time: speed does not matter.
 * crowd: the turn, the readers of the one before it and its own, 32, 16 and 16 bits.
 */
static uint64_t count_readers(struct engine *engine, struct ahead *a)
{
	uint64_t turn =
		((engine->in_order >> TURN_SHIFT) + 1) & UINT32_MAX; /* a->turn is 0 at first */
	uint64_t v = engine->crowd, to, before, now;

	do {
		uint64_t passed = (turn - (v >> 32)) & UINT32_MAX;

		before = !passed ? v >> 16 & UINT16_MAX : passed == 1 ? v & UINT16_MAX : 0;
		now = passed ? 0 : v & UINT16_MAX;
		if (a->turn != turn && now < UINT16_MAX)
			now++;
		to = turn << 32 | before << 16 | now;
	} while (to != v && !atomic_compare_exchange_weak(&engine->crowd, &v, to));
	a->turn = turn;
	return max_u64(max_u64(before, now), 1);
}

/* The most that may be announced ahead of a reader; 0: the kernel reads enough ahead for all. */
static uint64_t window_of(struct ckpt_file *f)
{
	uint64_t n, each, keeps;

	if (files_at_once(f->engine->files) < FAR)
		return MAX_WINDOW;
	n = count_readers(f->engine, &f->ahead);
	keeps = files_keeps(f->engine->files);
	each = n == 1 ? FAR_WINDOW : CROWD_WINDOW / n;
	if (keeps) /* what is on its way needs room, too */
		each = min_u64(each, max_u64(keeps / 4, LEAST_WINDOW));
	return each < LEAST_WINDOW ? 0 : each;
}

void ahead_announce(struct ckpt_file *f)
{
	struct ahead *a = &f->ahead;
	uint64_t next = a->next, most = a->slow ? SLOW_WINDOW : FAR_WINDOW, window, from, to;

	if (!f->engine || !a->in_order || next >= f->v.size || atomic_exchange(&a->busy, true))
		return;
	/* Readers count from the start, so that the first ones know of the others. */
	window = min_u64(window_of(f), min_u64(2 * a->in_order, most));
	to = min_u64(next + window, f->v.size);
	if (window < LEAST_WINDOW || a->in_order < BEGIN_AFTER) {
		a->busy = false;
		return;
	}
	from = a->announced > next && a->announced <= to ? a->announced : next;
	if (a->quiet > next + MAX_PAUSE) /* it was set for a reader that has since moved */
		a->quiet = 0;
	if (next >= a->quiet && (to - from >= window / 2 || (to == f->v.size && from < to))) {
		bool missing = announce(f, from, to);

		a->announced = to;
		a->pause = missing ? 0 : min_u64(max_u64(2 * a->pause, MIN_PAUSE), MAX_PAUSE);
		a->quiet = missing ? 0 : next + a->pause;
	}
	a->busy = false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched - decides which blocks of an object the next request asks for, and how much may be on its
 * way. It does nothing itself.
 *
 * Private to core/remote. Threads: one.
 */
#ifndef REMOTE_SCHED_H
#define REMOTE_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_pace;

/* Blocks [first, end) of a file. */
struct span {
	uint64_t first, end;
};

enum {
	SCHED_MIN = 1 << 20, /* bytes of the first request for adjoining blocks */
	SCHED_MAX = 8 << 20, /* of the fourth */
};

/* How large successive requests of a file become. Zeros: none has been sent yet. */
struct steps {
	uint64_t end, blocks; /* of the last one: the block after it, and how many it could have */
};

/* The most blocks of a request that begins there. Some blocks in between do not matter: they may
 * have been fetched before. */
uint64_t steps_most(const struct steps *s, uint64_t first);
/* Blocks [first, end) were asked for. */
void steps_sent(struct steps *s, uint64_t first, uint64_t end);

/* Is the block neither there nor on its way? */
typedef bool sched_missing_fn(void *arg, uint64_t block);

/* The first run of missing blocks in `in`, at most `most` blocks. False: none is missing. */
bool sched_exact(struct span in, uint64_t most, sched_missing_fn *missing, void *arg,
		 struct span *ret);

/*
 * The request for what is wanted next of a file: it begins with the first missing block of
 * wants[0], and goes on through blocks that are missing and are in any of wants[1..n), and over up
 * to `gap` others. It has at most `most` blocks. False: nothing of wants[0] is missing.
 */
bool sched_wanted(const struct span *wants, size_t n, uint64_t most, uint64_t gap,
		  sched_missing_fn *missing, void *arg, struct span *ret);

/*
 * How many unneeded blocks a request may include so that it need not be split: those that arrive in
 * the time that another request would take to start. If so much is on its way (busy, in bytes) that
 * the link is full, waiting costs nothing, but every byte does.
 */
uint64_t sched_gap(const struct net_pace *p, uint64_t busy);

struct window {
	uint64_t bytes;	   /* that may be on their way */
	uint64_t best_bps; /* seen with the window of `before`, before it grew */
	uint64_t before;   /* 0: it has not grown */
	uint64_t since_ns, arrived;
};

void window_init(struct window *w);
/* n bytes have arrived, at that time, with that pace; full: as much was on its way as may be. */
void window_arrived(struct window *w, uint64_t n, uint64_t now_ns, bool full,
		    const struct net_pace *p, uint64_t ram);

#endif

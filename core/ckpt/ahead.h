/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead - tells the data sources what a sequential reader is about to request.
 *
 * The kernel reads ahead within each data file, but cannot know which file comes next: the items of
 * a virtual file may lie anywhere. This module knows the order. Once all of the data is in memory,
 * announcing it is useless, so it is tried less and less often. What takes long to compute is
 * computed, not announced.
 *
 * Where latency is high, what is announced is fetched at once, and in vain if its reader stops. So
 * the readers of a checkpoint share what is announced there.
 *
 * Threads: any.
 */
#ifndef CKPT_AHEAD_H
#define CKPT_AHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_file;

struct ahead {
	_Atomic uint64_t next;	   /* where a sequential reader continues */
	_Atomic uint64_t in_order; /* bytes it has read in order so far */
	atomic_bool wanted;	   /* someone has time to do things while the reader goes on */
	atomic_bool slow;	   /* something that was read takes long to compute */
	atomic_bool busy;	   /* a thread is announcing; the members below belong to it */
	uint64_t announced;	   /* offset up to which data was announced */
	/* nothing is announced before offset `quiet`; pause: the last such distance */
	uint64_t quiet, pause;
	uint64_t turn; /* in which this reader was last counted among those of its checkpoint */
};

/* Records that bytes [off, off+len) are read. */
void ahead_note(struct ckpt_file *f, uint64_t off, uint64_t len);
/* Is it a sequential reader, for which work is done ahead? */
bool ahead_is_in_order(const struct ahead *a);
/* Announces what is likely to be read next, if anything. */
void ahead_announce(struct ckpt_file *f);

#endif

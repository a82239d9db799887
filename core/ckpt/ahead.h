/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead - what a reader in file order is about to ask for, announced to where the bytes come from.
 *
 * The kernel reads ahead in each data file by itself, and knows nothing of the next: a virtual file
 * is made of items that lie anywhere. Here it is known which they are. Where all of it is in memory
 * already, announcing it again is no use, and is tried less and less often.
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
	_Atomic uint64_t next;	   /* where a reader in order goes on */
	_Atomic uint64_t in_order; /* bytes that it has come so far */
	atomic_bool busy;	   /* a thread announces; the rest is its own */
	uint64_t announced;	   /* up to here */
	uint64_t quiet, pause; /* nothing is announced until it is there; the last such distance */
};

/* Bytes [off, off+len) are read. */
void ahead_note(struct ahead *a, uint64_t off, uint64_t len);
/* Announce what is likely to be next, if there is any. */
void ahead_announce(struct ckpt_file *f);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_place - a directory in memory, as an example of a remote place: it has no descriptor, and
 * its files' identities are hashes of their contents. Its calls fail and take time on command.
 *
 * Threads: its calls from any, the rest from one.
 */
#ifndef TESTS_MEMORY_PLACE_H
#define TESTS_MEMORY_PLACE_H

#include <stddef.h>
#include <stdint.h>

struct place;

/* A copy of all that is in the directory; links are what they lead to. place_free frees it. */
struct place *memory_place(int dirfd);

/* Call number n from now on (1: the next) and the `count` - 1 behind it fail with that errno. 0: none. */
void memory_place_fail(struct place *p, uint64_t n, uint64_t count, int code);
/* Calls since then. */
uint64_t memory_place_calls(struct place *p);
/* What was announced with source_want, and what was read. */
struct memory_traffic {
	uint64_t reads, late; /* those that had bytes which nobody had announced */
	uint64_t announced;   /* bytes */
	size_t outstanding;   /* ranges that are announced and have not been read, at most */
};
/* Since the last call; the first one begins to count. */
struct memory_traffic memory_place_traffic(struct place *p);
/* Every call takes so long. */
void memory_place_delay(struct place *p, unsigned microseconds);

#endif

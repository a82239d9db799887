/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_place - a directory in memory, as an example of a remote place. It has no descriptor, and
 * a hash of the contents identifies a file. On command, its calls fail or take time.
 *
 * Threads: the place's calls from any, the rest from one.
 */
#ifndef TESTS_MEMORY_PLACE_H
#define TESTS_MEMORY_PLACE_H

#include <stddef.h>
#include <stdint.h>

struct place;

/* A copy of everything in the directory; links become what they lead to. place_free frees it. */
struct place *memory_place(int dirfd);

/* Calls n to n + count - 1 from now on (1: the next) fail with that errno. 0: none. */
void memory_place_fail(struct place *p, uint64_t n, uint64_t count, int code);
/* Calls since then. */
uint64_t memory_place_calls(struct place *p);
/* What was announced with source_want, and what was read. */
struct memory_traffic {
	uint64_t reads, late; /* late: reads with bytes that nobody had announced */
	uint64_t announced;   /* bytes */
	size_t outstanding;   /* at most: ranges announced and not yet read */
};
/* Since the last call; the first call begins to count. */
struct memory_traffic memory_place_traffic(struct place *p);
/* From now on it is like a web server: it lists nothing, and has no directories but itself. */
void memory_place_unlisted(struct place *p);
/* Makes every call take that long. */
void memory_place_delay(struct place *p, unsigned microseconds);

#endif

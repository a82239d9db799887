/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock - the current time, in nanoseconds.
 *
 * Threads: no shared state.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_SECOND ((uint64_t)1000000000)
#define CLOCK_MS     ((uint64_t)1000000)

/* Monotonic. */
static inline uint64_t clock_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * CLOCK_SECOND + (uint64_t)t.tv_nsec;
}

/* Since 1970, like file times. */
static inline uint64_t clock_wall_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * CLOCK_SECOND + (uint64_t)t.tv_nsec;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock - the current time, in nanoseconds.
 *
 * Threads: no shared state.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
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

/* A condition for clock_cond_wait. */
static inline void clock_cond_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(c, &attr);
	(void)pthread_condattr_destroy(&attr);
}

/* Waits until a time of clock_ns; ETIMEDOUT: it has come. */
static inline int clock_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t until)
{
	const struct timespec t = { .tv_sec = (time_t)(until / CLOCK_SECOND),
				    .tv_nsec = (long)(until % CLOCK_SECOND) };

	return pthread_cond_timedwait(c, lock, &t);
}

#endif

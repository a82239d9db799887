/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew - threads that share work until none is left.
 *
 * Threads: no shared state.
 */
#ifndef BASE_CREW_H
#define BASE_CREW_H

#include <pthread.h>
#include <stddef.h>

enum { CREW_MAX = 1024 };

/* Calls work(arg) on n threads at once, at most CREW_MAX, and returns when all calls have. This
 * thread takes part, so it works even if no other can be started. */
static inline void crew_run(size_t n, void *(*work)(void *), void *arg)
{
	pthread_t others[CREW_MAX - 1];
	size_t started = 0;

	while (started + 1 < n && started < CREW_MAX - 1 &&
	       !pthread_create(&others[started], NULL, work, arg))
		started++;
	(void)work(arg);
	while (started)
		(void)pthread_join(others[--started], NULL);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup - locals that release themselves when their scope ends.
 *
 *	autofree char *p = malloc(n);
 *	autoclose int fd = openat(...);
 *	SCOPED_LOCK(&c->lock);
 *	...
 *	*ret = steal_ptr(&p);
 *
 * All mutexes are locked and unlocked through this header: a thread holds at most one at a time
 * (core/README.md), and sanitizer builds (CHECK_LOCKS) abort when it takes a second one.
 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))
#define autofree    CLEANUP(cleanup_free)
#define autoclose   CLEANUP(cleanup_close)

/* Defines a function for CLEANUP that frees what a local points to, if it is not NULL. */
#define CLEANUP_POINTER(name, type, release) \
	static inline void name(type *const *p) \
	{ \
		if (*p) \
			(void)release(*p); \
	}

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

#ifdef CHECK_LOCKS
void lock_note_take(bool is_outer);
void lock_note_give(bool is_outer);
#else
static inline void lock_note_take(bool is_outer)
{
	(void)is_outer;
}

static inline void lock_note_give(bool is_outer)
{
	(void)is_outer;
}
#endif

static inline pthread_mutex_t *lock_take(pthread_mutex_t *m)
{
	lock_note_take(false);
	(void)pthread_mutex_lock(m);
	return m;
}

static inline void lock_give(pthread_mutex_t *m)
{
	(void)pthread_mutex_unlock(m);
	lock_note_give(false);
}

static inline pthread_mutex_t *outer_lock_take(pthread_mutex_t *m)
{
	lock_note_take(true);
	(void)pthread_mutex_lock(m);
	return m;
}

/* NULL: another thread has kept it for that long. */
static inline pthread_mutex_t *outer_lock_take_within(pthread_mutex_t *m, unsigned ms)
{
	struct timespec end;

	lock_note_take(true);
	(void)clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += ms / 1000;
	end.tv_nsec += (long)(ms % 1000) * 1000000;
	if (end.tv_nsec >= 1000000000) {
		end.tv_sec++;
		end.tv_nsec -= 1000000000;
	}
	if (!pthread_mutex_timedlock(m, &end))
		return m;
	lock_note_give(true);
	return NULL;
}

static inline void cleanup_unlock(pthread_mutex_t **m)
{
	lock_give(*m);
}

static inline void cleanup_outer_unlock(pthread_mutex_t **m)
{
	if (!*m)
		return;
	(void)pthread_mutex_unlock(*m);
	lock_note_give(true);
}

/* One lock per scope, one lock per thread: a nested one shadows the name, which -Wshadow
 * reports. */
#define SCOPED_LOCK(m) \
	pthread_mutex_t *scoped_lock CLEANUP(cleanup_unlock) = lock_take(m); \
	(void)scoped_lock

/* A lock under which other locks are taken and I/O is done; core/README.md lists them. */
#define SCOPED_OUTER_LOCK(m) \
	pthread_mutex_t *outer_lock CLEANUP(cleanup_outer_unlock) = outer_lock_take(m); \
	(void)outer_lock

/* The same, but outer_lock is NULL if another thread has kept it for that many milliseconds. */
#define SCOPED_OUTER_LOCK_WITHIN(m, ms) \
	pthread_mutex_t *outer_lock CLEANUP(cleanup_outer_unlock) = outer_lock_take_within(m, ms)

static inline void *steal_ptr_(void *pp)
{
	void *p = *(void **)pp;

	*(void **)pp = NULL;
	return p;
}
#define steal_ptr(pp) ((__typeof__(*(pp)))steal_ptr_(pp))

static inline int steal_fd(int *fd)
{
	int r = *fd;

	*fd = -1;
	return r;
}

#endif

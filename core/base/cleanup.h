/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup - locals that release themselves when their scope ends.
 *
 *	autofree char *p = malloc(n);
 *	autoclose int fd = openat(...);
 *	SCOPED_LOCK(&c->lock);
 *	...
 *	*ret = steal_ptr(&p);
 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))
#define autofree    CLEANUP(cleanup_free)
#define autoclose   CLEANUP(cleanup_close)

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

static inline void cleanup_unlock(pthread_mutex_t **m)
{
	(void)pthread_mutex_unlock(*m);
}

static inline pthread_mutex_t *scoped_lock_take(pthread_mutex_t *m)
{
	(void)pthread_mutex_lock(m);
	return m;
}

/* One lock per scope, one lock per thread: a nested one shadows the name and -Wshadow says so. */
#define SCOPED_LOCK(m) \
	pthread_mutex_t *scoped_lock CLEANUP(cleanup_unlock) = scoped_lock_take(m); \
	(void)scoped_lock

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

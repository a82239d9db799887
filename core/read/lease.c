/* SPDX-License-Identifier: Apache-2.0 */
#include "read/lease.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct leases {
	pthread_mutex_t lock;
	struct lease *first; /* of those that are taken */
	bool running;
	atomic_bool stop;
	pthread_t watcher;
	_Atomic pid_t tid; /* of it; 0: not running yet */
};

struct leases *leases_new(void)
{
	struct leases *s = calloc(1, sizeof(*s));

	if (s)
		(void)pthread_mutex_init(&s->lock, NULL);
	return s;
}

bool lease_begin(struct lease *l)
{
	if (!l->held)
		return false;
	(void)atomic_fetch_add(&l->users, 1);
	l->used = true;
	if (l->held) /* who takes it away looks at users afterwards */
		return true;
	lease_end(l);
	return false;
}

void lease_end(struct lease *l)
{
	(void)atomic_fetch_sub(&l->users, 1);
}

static void wait_a_moment(void)
{
	static const struct timespec moment = { .tv_nsec = 20 * 1000 };

	(void)nanosleep(&moment, NULL);
}

static void give_back(struct leases *s, struct lease *l)
{
	(void)fcntl(l->fd, F_SETLEASE, F_UNLCK);
	l->taken = false;
	*(l->prev ? &l->prev->next : &s->first) = l->next;
	if (l->next)
		l->next->prev = l->prev;
}

/* Give back those that stand in somebody's way. true: some are still used. */
static bool give_way(struct leases *s)
{
	bool again = false;
	SCOPED_LOCK(&s->lock);

	for (struct lease *l = s->first, *next; l; l = next) {
		next = l->next;
		if (fcntl(l->fd, F_GETLEASE) == F_RDLCK)
			continue;
		l->held = false; /* no use begins */
		if (l->users)
			again = true;
		else
			give_back(s, l);
	}
	return again;
}

/* Give back those that nobody has used since the last time. */
static void give_back_idle(struct leases *s)
{
	SCOPED_LOCK(&s->lock);

	for (struct lease *l = s->first, *next; l; l = next) {
		next = l->next;
		if (atomic_exchange(&l->used, false))
			continue;
		l->held = false;
		if (l->users) { /* one has just begun */
			l->held = true;
		} else {
			give_back(s, l);
			l->tried = false; /* it may be taken again */
		}
	}
}

static bool any_taken(struct leases *s)
{
	SCOPED_LOCK(&s->lock);

	return s->first;
}

static void *watch(void *arg)
{
	static const struct timespec idle = { .tv_sec = LEASE_IDLE_SECONDS };
	struct leases *s = arg;
	sigset_t io;
	int sig;

	(void)sigemptyset(&io);
	(void)sigaddset(&io, SIGIO);
	s->tid = gettid();
	while (!s->stop) {
		sig = sigtimedwait(&io, NULL, any_taken(s) ? &idle : NULL);
		/* Without the lock meanwhile: who uses one lease may be about to take another. */
		while (give_way(s))
			wait_a_moment();
		if (sig < 0)
			give_back_idle(s);
	}
	return NULL;
}

/* With all signals blocked: SIGIO is waited for, the others are for other threads. */
static bool start(struct leases *s)
{
	sigset_t all, before;

	if (s->running)
		return true;
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	s->running = !pthread_create(&s->watcher, NULL, watch, s);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	while (s->running && !s->tid)
		wait_a_moment();
	return s->running;
}

void leases_free(struct leases *s)
{
	if (!s)
		return;
	if (s->running) {
		s->stop = true;
		(void)pthread_kill(s->watcher, SIGIO);
		(void)pthread_join(s->watcher, NULL);
	}
	(void)pthread_mutex_destroy(&s->lock);
	free(s);
}

void lease_take(struct leases *s, struct lease *l, int fd)
{
	struct f_owner_ex owner = { .type = F_OWNER_TID };
	SCOPED_LOCK(&s->lock);

	if (l->tried)
		return;
	l->tried = true;
	l->fd = fd;
	if (!start(s))
		return;
	owner.pid = s->tid;
	if (fcntl(fd, F_SETOWN_EX, &owner) || fcntl(fd, F_SETLEASE, F_RDLCK))
		return;
	if (!s->first)
		(void)pthread_kill(s->watcher, SIGIO); /* from now on it has to look at the clock */
	l->next = s->first;
	l->prev = NULL;
	if (s->first)
		s->first->prev = l;
	s->first = l;
	/* From here on the watcher can give it back. */
	l->taken = true;
	l->held = true;
}

void lease_drop(struct leases *s, struct lease *l)
{
	SCOPED_LOCK(&s->lock);

	if (l->taken)
		give_back(s, l);
	l->held = l->tried = false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of a lease. Only one that is held can be used:
 *
 *	new     -> held     lease_take: the kernel grants it
 *	new     -> refused  lease_take: it does not
 *	held    -> leaving  give_way: another process waits to write to the file
 *	leaving -> refused  give_way: it has no users left
 *	held    -> new      give_back_idle: not used since the watcher looked last
 *	any     -> new      lease_drop: the file is closed
 *
 *	          held  tried  taken
 *	new        -     -      -
 *	held      yes   yes    yes
 *	leaving    -    yes    yes    while its users finish
 *	refused    -    yes     -
 *
 * lease_begin counts itself, then looks at `held` once more; the watcher clears `held`, then looks
 * at the count. So either the user sees that the lease is leaving, or the watcher sees the user.
 */
#include "source/lease.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct leases {
	struct leases *next; /* list of those with a watcher, under watchers_lock */
	pthread_mutex_t lock;
	pthread_cond_t started;
	LIST(struct lease) all; /* those that are taken */
	bool running;
	atomic_bool stop;
	pthread_t watcher;
	_Atomic pid_t tid; /* the watcher's; 0: not running yet */
};

static pthread_mutex_t watchers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct leases *watchers;

struct leases *leases_new(void)
{
	struct leases *s = calloc(1, sizeof(*s));

	if (s) {
		(void)pthread_mutex_init(&s->lock, NULL);
		(void)pthread_cond_init(&s->started, NULL);
	}
	return s;
}

bool lease_begin(struct lease *l)
{
	if (!l->held)
		return false;
	(void)atomic_fetch_add(&l->users, 1);
	l->used = true;
	if (l->held) /* the watcher that takes it away checks users afterwards */
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
	LIST_REMOVE(&s->all, l);
}

/* Releases leases that block another process. true: some are still in use. */
static bool give_way(struct leases *s)
{
	bool again = false;
	SCOPED_LOCK(&s->lock);

	for (struct lease *l = s->all.first, *next; l; l = next) {
		next = l->link.next;
		if (fcntl(l->fd, F_GETLEASE) == F_RDLCK)
			continue;
		l->held = false; /* no new uses */
		if (l->users)
			again = true;
		else
			give_back(s, l);
	}
	return again;
}

/* Releases leases that have not been used since the last call. */
static void give_back_idle(struct leases *s)
{
	SCOPED_LOCK(&s->lock);

	for (struct lease *l = s->all.first, *next; l; l = next) {
		next = l->link.next;
		if (atomic_exchange(&l->used, false))
			continue;
		l->held = false;
		if (l->users) { /* a use has just begun */
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

	return s->all.first;
}

static void tell_tid(struct leases *s)
{
	SCOPED_LOCK(&s->lock);

	s->tid = gettid();
	(void)pthread_cond_broadcast(&s->started);
}

/* A signal to the whole process (set_owner) reaches any one of the watchers, which wakes the
 * others. */
static void wake_others(const struct leases *self)
{
	SCOPED_LOCK(&watchers_lock);

	for (const struct leases *s = watchers; s; s = s->next)
		if (s != self)
			(void)tgkill(getpid(), s->tid, SIGIO);
}

static void remember_watcher(struct leases *s)
{
	SCOPED_LOCK(&watchers_lock);

	s->next = watchers;
	watchers = s;
}

static void forget_watcher(struct leases *s)
{
	SCOPED_LOCK(&watchers_lock);
	struct leases **at = &watchers;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
}

static void *watch(void *arg)
{
	static const struct timespec idle = { .tv_sec = LEASE_IDLE_SECONDS };
	struct leases *s = arg;
	siginfo_t info;
	sigset_t io;
	int sig;

	(void)sigemptyset(&io);
	(void)sigaddset(&io, SIGIO);
	remember_watcher(s); /* before a lease is taken, which waits for tid */
	tell_tid(s);
	while (!s->stop) {
		sig = sigtimedwait(&io, &info, any_taken(s) ? &idle : NULL);
		if (sig > 0 && info.si_code == SI_KERNEL)
			wake_others(s);
		/* Without the lock: a thread that uses one lease may be about to take another. */
		while (give_way(s))
			wait_a_moment();
		if (sig < 0)
			give_back_idle(s);
	}
	forget_watcher(s);
	return NULL;
}

/* All signals are blocked: SIGIO is waited for, the others are for other threads. Under the lock,
 * which is released while the thread starts. */
static bool start(struct leases *s)
{
	sigset_t all, before;

	if (!s->running) {
		(void)sigfillset(&all);
		(void)pthread_sigmask(SIG_SETMASK, &all, &before);
		s->running = !pthread_create(&s->watcher, NULL, watch, s);
		(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	while (s->running && !s->tid)
		(void)pthread_cond_wait(&s->started, &s->lock);
	return s->running;
}

static bool blocks_sigio(void)
{
	sigset_t now;

	return !pthread_sigmask(SIG_SETMASK, NULL, &now) && sigismember(&now, SIGIO) == 1;
}

/*
 * Notifications go to the watcher, so that no thread of a program gets an unexpected signal. A
 * system call filter may refuse that (EPERM), because the thread's number is in memory, which a
 * filter cannot read. Then the process is notified, if all its threads have SIGIO blocked, as the
 * filter requires.
 */
static bool set_owner(const struct leases *s, int fd)
{
	const struct f_owner_ex owner = { .type = F_OWNER_TID, .pid = s->tid };

	if (!fcntl(fd, F_SETOWN_EX, &owner))
		return true;
	return errno == EPERM && blocks_sigio() && !fcntl(fd, F_SETOWN, getpid());
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
	(void)pthread_cond_destroy(&s->started);
	(void)pthread_mutex_destroy(&s->lock);
	free(s);
}

void lease_take(struct leases *s, struct lease *l, int fd)
{
	SCOPED_LOCK(&s->lock);

	if (l->tried)
		return;
	l->tried = true;
	l->fd = fd;
	if (!start(s))
		return;
	if (!set_owner(s, fd) || fcntl(fd, F_SETLEASE, F_RDLCK))
		return;
	if (!s->all.first)
		(void)pthread_kill(s->watcher, SIGIO); /* from now on it must check the time */
	LIST_PUSH(&s->all, l);
	/* From here on the watcher can release it. */
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

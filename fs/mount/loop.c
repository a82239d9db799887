/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/loop.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
	TICK_MS = 500,
	/* While some hang, a thread that takes this long is likely to hang too, so another is
	 * started sooner. */
	AGAIN_MS = 100,
	TOLD_AT_ONCE = 8,
	STOP_MS = 10,
	TRIM_MS = 10000,
};

#define WAKE_SIGNAL SIGURG /* ignored by default, so a late delivery is harmless */

struct worker {
	struct loop *loop;
	LIST_LINK(struct worker) link;
	pthread_t thread;
	struct fuse_buf buf;
	/* The current request, under the lock: */
	uint64_t unique; /* 0: none */
	uint64_t node, since_ms;
	uint32_t opcode;
	bool may_interrupt;
	bool interrupted; /* its reader has got a signal, but no answer yet */
	bool hung;	  /* another thread may replace it */
	bool told;
};

struct loop {
	struct fuse_session *session;
	const struct loop_config *config;
	int wake; /* eventfd: wakes the caller of loop_run */
	pthread_mutex_t lock;
	LIST(struct worker) all;  /* running */
	LIST(struct worker) gone; /* to be joined */
	unsigned n, idle, hung;
	bool watched;  /* the time is checked, because a request is being served */
	bool stopping; /* no thread is started, and none ends by itself */
	int error;
	/*
	 * Of the thread that runs config->tidies, because closing a file may hang. All but untidy
	 * belong to the caller of loop_run.
	 */
	pthread_t tidier;
	bool tidying;
	uint64_t tidied_ms;
	atomic_bool untidy;
};

struct hang {
	uint32_t opcode;
	uint64_t node;
};

/* The one that this thread is. */
static _Thread_local struct worker *current;

static uint64_t now_ms(void)
{
	return clock_ns() / CLOCK_MS;
}

static void wake(const struct loop *l)
{
	(void)eventfd_write(l->wake, 1);
}

/* ---- supervision of the threads, under the lock ---- */

static void *serve(void *arg);

/* buf: memory for its requests, which it takes over; NULL: it gets its own. */
static int start_worker(struct loop *l, struct fuse_buf *buf)
{
	struct worker *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return ENOMEM;
	w->loop = l;
	if (buf)
		w->buf = *buf;
	rc = pthread_create(&w->thread, NULL, serve, w);
	if (rc) {
		free(w);
		return rc;
	}
	if (buf)
		buf->mem = NULL;
	LIST_PUSH(&l->all, w);
	l->n++;
	l->idle++;
	return 0;
}

/* If no thread can be created, the existing ones carry on. */
static void keep_one_idle(struct loop *l)
{
	if (!l->idle && !l->stopping && l->n < l->config->threads + l->hung)
		(void)start_worker(l, NULL);
}

/* Answers instead of its thread; the kernel then refuses that thread's answer (ENOENT). */
static void answer_interrupted(struct loop *l, struct worker *w)
{
	const struct fuse_out_header out = { .len = sizeof(out),
					     .error = -EINTR,
					     .unique = w->unique };

	(void)!write(fuse_session_fd(l->session), &out, sizeof(out));
	w->interrupted = false;
}

static void answer_if_hung(struct loop *l, struct worker *w, uint64_t age_ms)
{
	if (w->interrupted && w->may_interrupt && age_ms >= LOOP_HUNG_MS)
		answer_interrupted(l, w);
}

/* If its thread has not received it yet, libfuse makes the kernel repeat the interrupt. */
static void interrupt(struct loop *l, uint64_t unique)
{
	LIST_EACH (w, &l->all)
		if (w->unique == unique) {
			w->interrupted = true;
			answer_if_hung(l, w, now_ms() - w->since_ms);
		}
}

static void look_at(struct loop *l, struct worker *w, uint64_t age_ms)
{
	if (!w->hung && l->hung < LOOP_MAX_HUNG &&
	    age_ms >= (l->hung ? (uint64_t)AGAIN_MS : LOOP_HUNG_MS)) {
		w->hung = true;
		l->hung++;
	}
	answer_if_hung(l, w, age_ms);
}

/* Returns how many hangs are to be reported. */
static unsigned look_at_workers(struct loop *l, struct hang hangs[static TOLD_AT_ONCE])
{
	uint64_t now = now_ms();
	unsigned n = 0;
	bool busy = false;

	LIST_EACH (w, &l->all) {
		uint64_t age_ms = now - w->since_ms;

		if (!w->unique)
			continue;
		busy = true;
		look_at(l, w, age_ms);
		if (!w->told && age_ms >= LOOP_LOG_SECONDS * 1000 && n < TOLD_AT_ONCE) {
			w->told = true;
			hangs[n++] = (struct hang){ w->opcode, w->node };
		}
	}
	l->watched = busy;
	keep_one_idle(l);
	return n;
}

/* ---- threads ---- */

static void begin(struct worker *w)
{
	const struct fuse_in_header *head = w->buf.mem;
	struct loop *l = w->loop;
	SCOPED_LOCK(&l->lock);

	l->idle--;
	w->unique = head->unique;
	w->node = head->nodeid;
	w->opcode = head->opcode;
	w->may_interrupt = head->opcode != FUSE_READ;
	w->since_ms = now_ms();
	if (head->opcode == FUSE_INTERRUPT)
		interrupt(l, ((const struct fuse_interrupt_in *)(head + 1))->unique);
	keep_one_idle(l);
	if (!l->watched || (l->hung && !l->idle))
		wake(l);
	l->watched = true;
}

static void retire(struct loop *l, struct worker *w)
{
	LIST_REMOVE(&l->all, w);
	l->n--;
	LIST_PUSH(&l->gone, w);
	wake(l);
}

/* false: there are enough threads without this one. */
static bool end(struct worker *w)
{
	struct loop *l = w->loop;
	SCOPED_LOCK(&l->lock);

	w->unique = 0;
	w->interrupted = w->told = false;
	l->hung -= w->hung;
	w->hung = false;
	if (!l->stopping && l->n > l->config->threads + l->hung) {
		retire(l, w);
		return false;
	}
	l->idle++;
	return true;
}

void loop_may_interrupt(void)
{
	if (!current) /* a thread of libfuse */
		return;
	SCOPED_LOCK(&current->loop->lock);
	current->may_interrupt = true;
}

/* Are there other threads than w, which waits for a request but has no memory for one? The last
 * thread keeps trying. */
static bool may_go(struct worker *w)
{
	const struct timespec soon = { .tv_nsec = AGAIN_MS * 1000000L };
	struct loop *l = w->loop;

	{
		SCOPED_LOCK(&l->lock);
		if (!l->stopping && l->n > 1 + l->hung) {
			l->idle--;
			retire(l, w);
			return true;
		}
	}
	(void)nanosleep(&soon, NULL);
	return false;
}

/* n is 0 when the mount is gone. */
static void give_up(struct loop *l, int n)
{
	SCOPED_LOCK(&l->lock);

	if (!l->error)
		l->error = -n;
	fuse_session_exit(l->session);
}

static void *serve(void *arg)
{
	struct worker *w = arg;
	struct loop *l = w->loop;

	current = w;
	while (!fuse_session_exited(l->session)) {
		int n = fuse_session_receive_buf(l->session, &w->buf);

		if (n == -EINTR || n == -EAGAIN)
			continue;
		if (n == -ENOMEM) { /* for the buffer; nothing has been received */
			if (!may_go(w))
				continue;
			return NULL;
		}
		if (n <= 0) {
			/* What the kernel returns if the mount ended while a request was handed
			 * over. */
			give_up(l, n == -ECONNABORTED ? 0 : n);
			break;
		}
		begin(w);
		fuse_session_process_buf(l->session, &w->buf);
		if (!end(w))
			return NULL;
	}
	wake(l);
	return NULL;
}

static void free_worker(struct worker *w)
{
	free(w->buf.mem);
	free(w);
}

static void join_gone(struct loop *l)
{
	struct worker *w;

	{
		SCOPED_LOCK(&l->lock);
		w = l->gone.first;
		l->gone.first = l->gone.last = NULL;
	}
	while (w) {
		struct worker *next = w->link.next;

		(void)pthread_join(w->thread, NULL);
		free_worker(w);
		w = next;
	}
}

/*
 * Ends a thread that waits for a request, or does so before `until`. A signal may arrive just
 * before it waits, so it is sent repeatedly. Cancelling would load a library, for which there may
 * be no descriptor left, and abort the program.
 */
static bool end_worker(const struct worker *w, uint64_t until_ms)
{
	do {
		uint64_t soon = clock_wall_ns() + STOP_MS * CLOCK_MS;

		(void)pthread_kill(w->thread, WAKE_SIGNAL);
		if (!pthread_timedjoin_np(w->thread, NULL,
					  &(struct timespec){ (time_t)(soon / CLOCK_SECOND),
							      (long)(soon % CLOCK_SECOND) }))
			return true;
	} while (now_ms() < until_ms);
	return false;
}

/* False: it still runs. */
static bool end_tidier(struct loop *l, const struct timespec *until)
{
	if (l->tidying)
		l->tidying = (until ? pthread_timedjoin_np(l->tidier, NULL, until)
				    : pthread_tryjoin_np(l->tidier, NULL)) != 0;
	return !l->tidying;
}

/* Returns how many threads do not end. */
static unsigned stop_all(struct loop *l)
{
	uint64_t until = now_ms() + LOOP_GRACE_MS;
	unsigned left = 0;

	{
		SCOPED_LOCK(&l->lock);
		l->stopping = true;
	}
	for (struct worker *w = l->all.first, *next; w; w = next) {
		next = w->link.next;
		if (!end_worker(w, until)) {
			(void)pthread_detach(w->thread);
			left++;
			continue;
		}
		{
			/* A thread that has just received a request checks the others. */
			SCOPED_LOCK(&l->lock);
			LIST_REMOVE(&l->all, w);
		}
		free_worker(w);
	}
	join_gone(l);
	return left +
	       !end_tidier(l, &(struct timespec){ .tv_sec = time(NULL) + LOOP_GRACE_MS / 1000 });
}

static void wake_up(int sig)
{
	(void)sig;
}

/* ---- the caller's thread ---- */

/* Waits that long, or until something happens: true; -1: forever. Signals are unblocked only here,
 * so none arrives between the decision to wait and the wait. */
static bool wait_for_news(struct loop *l, long ms, const sigset_t *signals)
{
	const struct timespec until = { .tv_nsec = ms * 1000000 };
	struct pollfd p = { .fd = l->wake, .events = POLLIN };
	eventfd_t n;

	return ppoll(&p, 1, ms < 0 ? NULL : &until, signals) > 0 && !eventfd_read(l->wake, &n);
}

/* Memory that many threads needed at once stays with malloc: return it now and then, and when the
 * mount is idle. */
static void trim(bool busy, uint64_t *last_ms)
{
	uint64_t now = now_ms();

	if (busy && now - *last_ms < TRIM_MS)
		return;
	(void)malloc_trim(0);
	*last_ms = now;
}

static void *tidy(void *arg)
{
	struct loop *l = arg;

	if (l->config->tidies(l->config->arg))
		l->untidy = true;
	return NULL;
}

/* False: call it again. */
static bool tidy_up(struct loop *l, bool busy)
{
	uint64_t now = now_ms();

	if (!l->config->tidies)
		return true;
	if (busy)
		l->untidy = true;
	if (end_tidier(l, NULL) && l->untidy && now - l->tidied_ms >= LOOP_TIDY_MS) {
		l->tidied_ms = now;
		l->untidy = false;
		l->tidying = !pthread_create(&l->tidier, NULL, tidy, l);
		if (!l->tidying)
			l->untidy = true;
	}
	return !l->tidying && !l->untidy;
}

static void watch(struct loop *l, const sigset_t *signals)
{
	uint64_t trimmed_ms = 0;
	bool busy = false;
	long ms = -1;

	while (!fuse_session_exited(l->session)) {
		struct hang hangs[TOLD_AT_ONCE];
		bool news = wait_for_news(l, ms, signals) || busy;
		unsigned n;

		join_gone(l);
		{
			SCOPED_LOCK(&l->lock);
			n = look_at_workers(l, hangs);
			busy = l->watched;
			ms = !busy ? -1 : l->hung && !l->idle ? AGAIN_MS : TICK_MS;
		}
		while (n--)
			l->config->hangs(l->config->arg, hangs[n].opcode, hangs[n].node);
		trim(busy, &trimmed_ms);
		/* Also once more when what was being served has ended. */
		if (!tidy_up(l, news || busy) && !busy)
			ms = TICK_MS;
	}
}

/* INIT, which the kernel sends on mounting: nothing else arrives before it is answered. 0: the mount
 * is already gone. */
static int serve_first(struct loop *l, struct fuse_buf *buf, struct ckpt_err *e)
{
	int n;

	do
		n = fuse_session_receive_buf(l->session, buf);
	while ((n == -EINTR || n == -EAGAIN) && !fuse_session_exited(l->session));
	if (n > 0)
		fuse_session_process_buf(l->session, buf);
	if (n < 0 && n != -EINTR && n != -ECONNABORTED)
		return err_sys(e, -n, "requests");
	if (n <= 0)
		return 0;
	return l->config->begun(l->config->arg, e) ? -e->code : 1;
}

/* The first thread gets the memory that INIT was received with: it may be the last there is. */
static int serve_all(struct loop *l, struct fuse_buf *buf, const sigset_t *signals,
		     unsigned *ret_hung, struct ckpt_err *e)
{
	int rc;

	{
		SCOPED_LOCK(&l->lock);
		rc = start_worker(l, buf);
	}
	if (rc)
		return err_sys(e, rc, "start a thread");
	l->config->ready(l->config->arg);
	watch(l, signals);
	*ret_hung = stop_all(l);
	return l->error ? err_sys(e, l->error, "requests") : 0;
}

static int run(struct loop *l, unsigned *ret_hung, struct ckpt_err *e)
{
	const struct sigaction interrupts = { .sa_handler = wake_up };
	struct fuse_buf buf = { 0 };
	sigset_t ours, before;
	int rc;

	(void)sigaction(WAKE_SIGNAL, &interrupts, NULL);
	(void)sigemptyset(&ours);
	(void)sigaddset(&ours, SIGHUP);
	(void)sigaddset(&ours, SIGINT);
	(void)sigaddset(&ours, SIGTERM);
	(void)pthread_sigmask(SIG_BLOCK, &ours, &before);
	rc = serve_first(l, &buf, e);
	if (rc > 0)
		rc = serve_all(l, &buf, &before, ret_hung, e);
	free(buf.mem);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int loop_run(struct fuse_session *session, const struct loop_config *config, unsigned *ret_hung,
	     struct ckpt_err *e)
{
	struct loop *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_sys(e, ENOMEM, "requests");
	l->session = session;
	l->config = config;
	(void)pthread_mutex_init(&l->lock, NULL);
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = l->wake < 0 ? err_sys(e, errno, "requests") : run(l, ret_hung, e);
	if (!*ret_hung) {
		(void)close(l->wake);
		(void)pthread_mutex_destroy(&l->lock);
		free(l);
	}
	return rc;
}

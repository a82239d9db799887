/* SPDX-License-Identifier: Apache-2.0 */
/* A running ckptfs-fetch. */
#include "source/remote_internal.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/vec.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifndef CKPTFS_LIBEXECDIR
#define CKPTFS_LIBEXECDIR "/usr/local/libexec/ckptfs"
#endif
#define PACKAGED "/usr/libexec/ckptfs/ckptfs-fetch"

enum {
	ASK_S = 5, /* of silence, then it is asked whether it is there */
	RETRY_MS = 60000,
	PING_ID = 0xffffffff,
	HELLO_ID = 0xfffffffe,
	MAX_OPENINGS = 4096,
};

#define MAX_ANSWER ((size_t)512 << 20) /* bytes of a listing */

struct link {
	/* Under the lock of all links. */
	unsigned users;
	bool listed;
	LIST_LINK(struct link) link;
	/* Fixed. */
	char *cache_dir;
	struct link_key key;
	pid_t owner;
	int stop;	    /* wakes the receiver to end */
	pthread_t receiver; /* if `receives`, under the lock */
	bool receives;
	atomic_bool resting; /* it ends, and the link goes on */
	int control;	     /* of the process that starts fetchers */
	bool deserted;	     /* of the receiver: that process has ended */
	/* Set by the receiver under `sending`. A sender holds that lock, too, so that the fetcher is
	 * not replaced while the message goes out. No thread waits while it holds the lock. */
	pthread_mutex_t sending;
	int sock; /* of the fetcher; -1: none runs */
	/* Under the lock. */
	pthread_mutex_t lock;
	pthread_cond_t change; /* of up and down */
	LIST(struct call) calls;
	uint32_t last_id;
	_Atomic uint64_t epoch;
	bool up; /* a fetcher has answered our hello */
	atomic_bool down;
	bool orphan; /* its last user was the receiver, which frees it */
	struct ckpt_err why;
	struct rfile **files; /* of this epoch */
	size_t n_files;
	_Atomic uint64_t heard_ns;
	const struct wire_counts *counts; /* NULL: there are none */
	struct place_network before;	  /* of fetchers that have died */
	_Atomic uint64_t hits, misses;
};

static const char ended[] = "ckptfs-fetch, which reads object stores, has ended";

/* What may be opened after link_rest: a WIRE_SEAL each. */
struct opening {
	bool anonymous;
	size_t len;
	char *text;
};

/* All links of the process, because several checkpoints share one. */
static struct {
	pthread_mutex_t lock;
	LIST(struct link) all;
	struct opening *openings; /* not changed once it is sealed */
	size_t n_openings, cap_openings;
	struct link_key *expected; /* of links that may be needed then */
	size_t n_expected, cap_expected;
	atomic_bool sealed; /* by link_rest: none may be started, because that may be forbidden */
} links = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- starting it ---- */

static int find_program(char **ret, struct ckpt_err *e)
{
	const char *given = secure_getenv("CKPTFS_FETCH");
	char self[4096];
	ssize_t n;

	*ret = strdup(given && *given ? given : CKPTFS_LIBEXECDIR "/ckptfs-fetch");
	if (!*ret)
		return err_nomem(e);
	if ((given && *given) || !access(*ret, X_OK))
		return 0;
	n = readlink("/proc/self/exe", self, sizeof(self) - sizeof("ckptfs-fetch"));
	if (n <= 0)
		return 0;
	self[n] = 0;
	(void)snprintf(strrchr(self, '/') + 1, sizeof("ckptfs-fetch"), "ckptfs-fetch");
	if (access(self, X_OK)) {
		/* Where the Debian package has it: a wheel's libckpt is not installed by that. */
		if (access(PACKAGED, X_OK))
			return 0;
		(void)snprintf(self, sizeof(self), "%s", PACKAGED);
	}
	free(*ret);
	*ret = strdup(self);
	return *ret ? 0 : err_nomem(e);
}

static int spawn(const char *program, int sock, struct ckpt_err *e)
{
	extern char **environ;
	char name[] = "ckptfs-fetch", *argv[] = { name, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc, status;
	pid_t pid, got;

	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	if (posix_spawn_file_actions_init(&actions))
		return err_nomem(e);
	if (posix_spawnattr_init(&attr)) {
		(void)posix_spawn_file_actions_destroy(&actions);
		return err_nomem(e);
	}
	rc = posix_spawn_file_actions_adddup2(&actions, sock, WIRE_FD);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setsigdefault(&attr, &all);
	if (!rc)
		rc = posix_spawn(&pid, program, &actions, &attr, argv, environ);
	(void)posix_spawn_file_actions_destroy(&actions);
	(void)posix_spawnattr_destroy(&attr);
	if (rc)
		return err_sys(
			e, rc,
			"start '%s', which reads object stores (install ckptfs-fetch, or set "
			"CKPTFS_FETCH)",
			program);
	/* It goes on in a process that is not our child. */
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (got == pid && (!WIFEXITED(status) || WEXITSTATUS(status)))
		return err_set(e, EIO, "'%s' did not start: it ended with %s %d", program,
			       WIFEXITED(status) ? "status" : "signal",
			       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 0;
}

/* ---- receiving ---- */

static void link_free(struct link *l)
{
	const int fds[] = { l->sock, l->control, l->stop };

	if (l->counts)
		(void)munmap((void *)(uintptr_t)l->counts, sizeof(*l->counts));
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			(void)close(fds[i]);
	(void)pthread_cond_destroy(&l->change);
	(void)pthread_mutex_destroy(&l->lock);
	(void)pthread_mutex_destroy(&l->sending);
	free(l->files);
	free(l->cache_dir);
	free(l);
}

static void go_down(struct link *l, int code, const char *why)
{
	SCOPED_LOCK(&l->lock);

	if (!l->down)
		(void)err_set(&l->why, code, "%s", why);
	l->down = true;
	(void)pthread_cond_broadcast(&l->change);
	LIST_EACH (c, &l->calls)
		(void)pthread_cond_signal(&c->wake);
}

/* Adds what the answer says to the call. Under the lock. */
static bool take_answer(struct call *c, struct wire_msg *m)
{
	bool more = !m->head.n[0] && c->head.kind == WIRE_LIST && m->head.n[1];
	size_t n = m->head.text;

	if (m->head.n[0]) {
		int code = m->head.n[0] < 4096 ? (int)m->head.n[0] : EIO;

		(void)err_set(&c->err, code, "%s", m->text);
	} else if (c->len + n > MAX_ANSWER || !VEC_ROOM(c->text, c->cap, c->len + n + 1)) {
		(void)err_nomem(&c->err);
	} else {
		memcpy(c->text + c->len, m->text, n);
		c->len += n;
		c->text[c->len] = 0;
	}
	if (more)
		return false;
	memcpy(c->head.n, m->head.n, sizeof(c->head.n));
	c->head.seen = m->head.seen;
	c->fd = m->fd;
	m->fd = -1;
	return true;
}

static struct call *find_call(struct link *l, uint32_t id)
{
	LIST_EACH (c, &l->calls)
		if (c->head.id == id)
			return c;
	return NULL;
}

static void on_answer(struct link *l, struct wire_msg *m)
{
	struct rfile *f = NULL;
	struct call *c;

	{
		SCOPED_LOCK(&l->lock);
		c = find_call(l, m->head.id);
		if (!c || c->taken || c->lost ||
		    !take_answer(c, m)) /* taken: a second answer to one call */
			return;
		f = c->file;
		c->taken = true; /* the caller waits until it is done, whatever happens */
	}
	if (f)
		rfile_pin(f, c);
	SCOPED_LOCK(&l->lock);
	c->done = true;
	(void)pthread_cond_signal(&c->wake);
}

static struct rfile *file_of(struct link *l, uint64_t number)
{
	SCOPED_LOCK(&l->lock);
	struct rfile *f = number < l->n_files ? l->files[number] : NULL;

	return f && rfile_hold(f) ? f : NULL;
}

void link_trim(struct link *l)
{
	size_t n;

	{
		SCOPED_LOCK(&l->lock);
		n = l->n_files;
	}
	for (size_t i = 0; i < n; i++) {
		struct rfile *f = file_of(l, i);

		if (f)
			rfile_trim(f);
		rfile_put(f);
	}
}

/* Under the lock. */
static void add_counts(struct link *l, struct place_network *n)
{
	const struct wire_counts *c = l->counts;

	*n = l->before;
	if (!c)
		return;
	n->requests += c->v.requests;
	n->bytes += c->v.bytes;
	n->retries += c->v.retries;
	n->hedges += c->v.hedges;
}

/* What the fetcher says to our hello: it can be used. */
static void on_hello(struct link *l, const struct wire_msg *m)
{
	struct stat st;
	void *p = MAP_FAILED;

	if (m->head.n[0]) {
		go_down(l, m->head.n[0] < 4096 ? (int)m->head.n[0] : EIO, m->text);
		return;
	}
	if (m->fd >= 0 && !fstat(m->fd, &st) && st.st_size >= (off_t)sizeof(*l->counts))
		p = mmap(NULL, sizeof(*l->counts), PROT_READ, MAP_SHARED, m->fd, 0);
	SCOPED_LOCK(&l->lock);
	if (l->up) { /* it answers twice */
		if (p != MAP_FAILED)
			(void)munmap(p, sizeof(*l->counts));
		return;
	}
	l->counts = p == MAP_FAILED ? NULL : p;
	l->up = true;
	(void)pthread_cond_broadcast(&l->change);
}

static void on_message(struct link *l, struct wire_msg *m)
{
	struct rfile *f;

	if (m->head.kind == WIRE_ANSWER && m->head.id == HELLO_ID) {
		on_hello(l, m);
		return;
	}
	if (m->head.kind == WIRE_ANSWER) {
		on_answer(l, m);
		return;
	}
	f = file_of(l, m->head.kind == WIRE_MAP ? m->head.n[1] : m->head.n[0]);
	if (f && m->head.kind == WIRE_SEGMENT)
		rfile_segment(f, m);
	else if (f && m->head.kind == WIRE_DROP)
		rfile_drop(f, m);
	else if (f && m->head.kind == WIRE_MAP)
		rfile_map(f, m);
	rfile_put(f);
}

static void set_sock(struct link *l, int sock)
{
	int before;

	{
		SCOPED_LOCK(&l->sending);
		before = l->sock;
		l->sock = sock;
	}
	if (before >= 0)
		(void)close(before);
}

/* Those who wait for the fetcher may ask the next one. */
static void on_death(struct link *l)
{
	const struct wire_counts *counts;

	{
		SCOPED_LOCK(&l->lock);
		l->up = false;
		l->epoch++;
		LIST_EACH (c, &l->calls)
			if (!c->taken) {
				c->lost = true;
				(void)pthread_cond_signal(&c->wake);
			}
		for (size_t i = 0; i < l->n_files; i++)
			l->files[i] = NULL;
		add_counts(l, &l->before);
		counts = l->counts;
		l->counts = NULL;
	}
	if (counts)
		(void)munmap((void *)(uintptr_t)counts, sizeof(*counts));
	set_sock(l, -1);
}

/* Says to a fetcher, or to the process that starts them, what this one may ask for from now on. Without
 * the lock: it is sealed. */
static void send_seal(const struct link *l, int sock)
{
	struct wire_head h = { .kind = WIRE_SEAL };

	for (size_t i = 0; i < links.n_openings; i++) {
		h.n[0] = links.openings[i].anonymous;
		(void)wire_send(sock, &h, links.openings[i].text, links.openings[i].len, -1);
	}
	h.n[1] = 1;
	(void)wire_send(sock, &h, l->cache_dir, strlen(l->cache_dir) + 1, -1);
}

/* Takes over the descriptor. */
static void on_fetcher(struct link *l, struct wire_msg *m)
{
	struct wire_head hello = { .kind = WIRE_HELLO,
				   .id = HELLO_ID,
				   .n = { WIRE_VERSION, l->key.cache_size, l->key.memory,
					  l->key.retry_ms } };

	if (m->head.kind != WIRE_FETCHER || m->fd < 0)
		return; /* closing the message's descriptor makes that fetcher end */
	if (l->sock >= 0)
		on_death(l);
	set_sock(l, m->fd);
	m->fd = -1;
	if (links.sealed) /* it may have begun before the seal came */
		send_seal(l, l->sock);
	(void)wire_send(l->sock, &hello, l->cache_dir, strlen(l->cache_dir) + 1, -1);
}

/* One message of the fetcher. False: the link is of no use any more. */
static bool hear(struct link *l, struct wire_msg *m)
{
	int rc = wire_receive(l->sock, m);

	if (rc > 0 || rc == -EMFILE) {
		l->heard_ns = clock_ns();
		on_message(l, m);
		return true;
	}
	if (rc == -EPROTO) {
		go_down(l, EIO, "ckptfs-fetch sent an invalid message");
		return false;
	}
	on_death(l);
	return !l->deserted;
}

/* One message about fetchers. */
static bool hear_of_others(struct link *l, struct wire_msg *m)
{
	int rc = wire_receive(l->control, m);

	if (rc > 0 || rc == -EMFILE) {
		on_fetcher(l, m);
		return true;
	}
	l->deserted = true;
	return l->sock >= 0;
}

static void *receive(void *arg)
{
	struct link *l = arg;
	struct wire_msg *m = malloc(sizeof(*m));
	bool is_there = m;

	while (is_there) {
		struct pollfd p[] = { { .fd = l->sock, .events = POLLIN },
				      { .fd = l->deserted ? -1 : l->control, .events = POLLIN },
				      { .fd = l->stop, .events = POLLIN } };

		if (poll(p, ARRAY_LEN(p), -1) < 0 && errno != EINTR)
			break;
		if (p[2].revents)
			break;
		m->fd = -1;
		if (p[0].revents)
			is_there = hear(l, m);
		else if (p[1].revents)
			is_there = hear_of_others(l, m);
		if (m->fd >= 0)
			(void)close(m->fd);
		if (l->orphan) {
			free(m);
			(void)pthread_detach(l->receiver);
			link_free(l);
			return NULL;
		}
	}
	free(m);
	if (l->resting)
		return NULL;
	{
		char why[100];

		(void)snprintf(why, sizeof(why), "%s: open the checkpoint again", ended);
		go_down(l, EIO, why);
	}
	return NULL;
}

static int start_receiver(struct link *l, struct ckpt_err *e)
{
	sigset_t all, before;
	int rc;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&l->receiver, NULL, receive, l);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	l->receives = !rc;
	return rc ? err_sys(e, rc, "start a thread") : 0;
}

/* ---- calls ---- */

static void time_of(uint64_t ns, struct timespec *ret)
{
	*ret = (struct timespec){ .tv_sec = (time_t)(ns / CLOCK_SECOND),
				  .tv_nsec = (long)(ns % CLOCK_SECOND) };
}

static void cond_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(c, &attr);
	(void)pthread_condattr_destroy(&attr);
}

/* Sends to the fetcher of that epoch only. EAGAIN: there is no room. */
static int send_now(struct link *l, uint64_t epoch, struct wire_head *h, const void *text,
		    size_t len, int fd)
{
	SCOPED_LOCK(&l->sending);

	return l->epoch == epoch && l->sock >= 0
		       ? wire_send_how(l->sock, h, text, len, fd, MSG_DONTWAIT)
		       : -EPIPE;
}

/* The same, waiting for room. */
static int send_to(struct link *l, uint64_t epoch, struct wire_head *h, const void *text,
		   size_t len, int fd)
{
	const struct timespec some = { .tv_nsec = (long)CLOCK_MS };
	int rc;

	while ((rc = send_now(l, epoch, h, text, len, fd)) == -EAGAIN && !l->down)
		(void)nanosleep(&some, NULL);
	return rc;
}

/* One more slice of waiting; under the lock. */
static void wait_some(struct link *l, struct call *c, bool *ret_ask)
{
	struct timespec t;

	time_of(clock_ns() + ASK_S * CLOCK_SECOND, &t);
	*ret_ask = false;
	while (!c->done && !c->lost && !l->down && !*ret_ask)
		*ret_ask = pthread_cond_timedwait(&c->wake, &l->lock, &t) == ETIMEDOUT;
}

/* The fetcher has said nothing for long. It is ended, so that another one takes its place; if that
 * does not help either, the link is of no use. */
static void end_silence(struct link *l, bool before)
{
	struct wire_head h = { .kind = WIRE_END_IT };

	if (before || wire_send_how(l->control, &h, NULL, 0, -1, MSG_DONTWAIT))
		go_down(l, ETIMEDOUT, "ckptfs-fetch, which reads object stores, does not answer");
}

static void wait_for(struct link *l, struct call *c)
{
	uint64_t began = clock_ns();
	bool done = false, ask, silent = false;

	while (!done) {
		uint64_t since;

		{
			SCOPED_LOCK(&l->lock);
			wait_some(l, c, &ask);
			done = c->done || c->lost || l->down;
		}
		if (done || !ask)
			continue;
		/* Nobody asked before this call; and the receiver may set heard_ns at any time: it is
		 * read before the clock is. */
		since = max_u64(l->heard_ns, began);
		if (clock_ns() - since > LINK_SILENT_S * CLOCK_SECOND) {
			end_silence(l, silent);
			silent = true;
			began = clock_ns();
		} else
			(void)send_now(l, c->epoch,
				       &(struct wire_head){ .kind = WIRE_PING, .id = PING_ID },
				       NULL, 0, -1);
	}
}

/* Waits until a fetcher runs. Under the lock. */
static int await_fetcher(struct link *l, uint64_t until_ns, struct ckpt_err *e)
{
	struct timespec t;
	int rc = 0;

	time_of(until_ns, &t);
	if (!l->down && !l->receives && start_receiver(l, e))
		return -e->code;
	while (!l->up && !l->down && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&l->change, &l->lock, &t);
	if (l->down) {
		*e = l->why;
		return -e->code;
	}
	return l->up ? 0
		     : err_set(e, l->epoch > 1 ? EIO : ETIMEDOUT, "%s",
			       l->epoch > 1 ? ended
					    : "ckptfs-fetch, which reads object stores, does not "
					      "answer");
}

static int begin_call(struct link *l, struct call *c, struct ckpt_err *e)
{
	SCOPED_LOCK(&l->lock);

	if (await_fetcher(l, c->until_ns, e))
		return -e->code;
	if (c->epoch && c->epoch != l->epoch) {
		c->lost = true;
		return err_set(e, EIO, "%s", ended);
	}
	c->epoch = l->epoch;
	do
		c->head.id = ++l->last_id;
	while (!c->head.id || c->head.id >= HELLO_ID || find_call(l, c->head.id));
	LIST_PUSH(&l->calls, c);
	return 0;
}

/* The receiver may still be at it. */
static void end_call(struct link *l, struct call *c)
{
	SCOPED_LOCK(&l->lock);

	while (c->taken && !c->done)
		(void)pthread_cond_wait(&c->wake, &l->lock);
	if (c->lost)
		(void)err_set(&c->err, EIO, "%s", ended);
	else if (!c->done && !c->err.code)
		c->err = l->why;
	LIST_REMOVE(&l->calls, c);
}

int link_call(struct link *l, struct call *c, const void *text, size_t len, struct ckpt_err *e)
{
	return link_call_with(l, c, text, len, -1, e);
}

int link_call_with(struct link *l, struct call *c, const void *text, size_t len, int fd,
		   struct ckpt_err *e)
{
	struct wire_head h;
	int rc;

	c->fd = -1;
	if (l->owner != getpid())
		return err_set(e, EIO,
			       "it was opened before fork(2): open the checkpoint again in this "
			       "process");
	if (!c->until_ns)
		c->until_ns =
			clock_ns() + (l->key.retry_ms ? l->key.retry_ms : RETRY_MS) * CLOCK_MS;
	cond_init(&c->wake);
	rc = begin_call(l, c, e);
	if (rc) {
		(void)pthread_cond_destroy(&c->wake);
		return rc;
	}
	h = c->head;
	rc = send_to(l, c->epoch, &h, text, len, fd);
	if (rc == -EPIPE || rc == -ECONNRESET) {
		rc = 0; /* the receiver says what happened */
	} else if (rc)
		(void)err_sys(&c->err, -rc, "ask ckptfs-fetch");
	if (!rc)
		wait_for(l, c);
	end_call(l, c);
	(void)pthread_cond_destroy(&c->wake);
	if (c->err.code)
		*e = c->err;
	return c->err.code ? -e->code : 0;
}

bool link_again(struct call *c)
{
	if (!c->lost || clock_ns() >= c->until_ns)
		return false;
	call_release(c);
	c->text = NULL;
	c->len = c->cap = 0;
	c->fd = -1;
	c->epoch = 0;
	c->done = c->taken = c->lost = false;
	c->err = (struct ckpt_err){ 0 };
	return true;
}

void call_release(struct call *c)
{
	if (c->fd >= 0)
		(void)close(c->fd);
	free(c->text);
}

uint64_t link_epoch(struct link *l)
{
	return l->epoch;
}

void link_tell(struct link *l, uint64_t epoch, struct wire_head *h)
{
	if (link_is_up(l))
		(void)send_to(l, epoch, h, NULL, 0, -1);
}

void link_hint(struct link *l, uint64_t epoch, struct wire_head *h)
{
	if (link_is_up(l))
		(void)send_now(l, epoch, h, NULL, 0, -1);
}

bool link_is_up(struct link *l)
{
	SCOPED_LOCK(&l->lock);

	return l->up && !l->down && l->owner == getpid();
}

int link_add_file(struct link *l, uint64_t epoch, uint32_t number, struct rfile *f,
		  struct ckpt_err *e)
{
	SCOPED_LOCK(&l->lock);

	if (epoch != l->epoch)
		return 0; /* it is opened again when it is needed */
	if (number >= WIRE_FILES_MAX || !VEC_ROOM_ZEROED(l->files, l->n_files, (size_t)number + 1))
		return err_nomem(e);
	if (l->files[number])
		return err_set(e, EPROTO, "ckptfs-fetch gave two files the same number");
	l->files[number] = f;
	return 0;
}

void link_remove_file(struct link *l, uint32_t number, const struct rfile *f)
{
	SCOPED_LOCK(&l->lock);

	if (number < l->n_files && l->files[number] == f)
		l->files[number] = NULL;
}

/* ---- links ---- */

static struct link *link_new(const struct link_key *key)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->sock = l->control = l->stop = -1;
	l->epoch = 1;
	cond_init(&l->change);
	(void)pthread_mutex_init(&l->lock, NULL);
	(void)pthread_mutex_init(&l->sending, NULL);
	l->cache_dir = strdup(key->cache_dir ? key->cache_dir : "");
	if (!l->cache_dir) {
		link_free(l);
		return NULL;
	}
	l->users = 1;
	l->key = *key;
	l->key.cache_dir = l->cache_dir;
	l->owner = getpid();
	l->heard_ns = clock_ns();
	return l;
}

void link_note_read(struct link *l, bool hit)
{
	(void)atomic_fetch_add_explicit(hit ? &l->hits : &l->misses, 1, memory_order_relaxed);
}

void link_network(struct link *l, struct place_network *ret)
{
	SCOPED_LOCK(&l->lock);
	const struct wire_counts *c = l->counts;

	add_counts(l, ret);
	ret->hits = l->hits;
	ret->misses = l->misses;
	ret->restarts = l->epoch - 1;
	if (!c)
		return;
	ret->latency_us = c->v.latency_us;
	ret->connection_bps = c->v.connection_bps;
	ret->total_bps = c->v.total_bps;
	ret->window = c->v.window;
	if (c->noted)
		(void)snprintf(ret->note, sizeof(ret->note), "%.*s", (int)sizeof(c->note) - 1,
			       c->note);
}

/* Ends the receiver, and with the last descriptor the fetcher. */
static void link_stop(struct link *l)
{
	const uint64_t one = 1;

	if (l->owner == getpid() && l->receives && pthread_equal(l->receiver, pthread_self())) {
		l->orphan = true;
		return;
	}
	if (l->owner == getpid() && l->receives) {
		(void)!write(l->stop, &one, sizeof(one));
		(void)pthread_join(l->receiver, NULL);
	}
	link_free(l);
}

static int start(const struct link_key *key, struct link **ret, struct ckpt_err *e)
{
	autofree char *program = NULL;
	struct link *l;
	int pair[2], rc;

	/* A sandbox would kill this process for the attempt. */
	if (links.sealed)
		return err_set(e, EPERM,
			       "ckptfs-fetch, which reads object stores, has ended or was not "
			       "started, and a mount does not start it: mount it again");
	l = link_new(key);
	if (!l)
		return err_nomem(e);
	rc = find_program(&program, e);
	if (!rc && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		rc = err_sys(e, errno, "socketpair");
	if (rc) {
		link_free(l);
		return rc;
	}
	l->control = pair[0];
	rc = spawn(program, pair[1], e);
	(void)close(pair[1]);
	l->stop = eventfd(0, EFD_CLOEXEC);
	if (!rc && l->stop < 0)
		rc = err_sys(e, errno, "eventfd");
	if (rc) {
		link_free(l);
		return rc;
	}
	{
		SCOPED_LOCK(&l->lock);
		rc = await_fetcher(l, clock_ns() + LINK_SILENT_S * CLOCK_SECOND, e);
	}
	if (rc)
		link_stop(l);
	else
		*ret = l;
	return rc;
}

static bool is_same_key(const struct link_key *a, const struct link_key *b)
{
	return a->cache_size == b->cache_size && a->memory == b->memory &&
	       a->retry_ms == b->retry_ms &&
	       !strcmp(a->cache_dir ? a->cache_dir : "", b->cache_dir ? b->cache_dir : "");
}

/* One that runs; NULL: none. */
static struct link *find_link(const struct link_key *key)
{
	SCOPED_LOCK(&links.lock);

	LIST_EACH (l, &links.all)
		if (is_same_key(&l->key, key) && l->owner == getpid() && !l->down) {
			l->users++;
			return l;
		}
	return NULL;
}

/* Absolute, because the fetcher is not in this directory. *ret is NULL for the default. */
static int find_cache(const char *dir, char **ret, struct ckpt_err *e)
{
	autofree char *here = NULL;

	if (!dir || !*dir)
		return 0;
	if (*dir == '/' || !strcmp(dir, "none")) {
		*ret = strdup(dir);
		return *ret ? 0 : err_nomem(e);
	}
	here = getcwd(NULL, 0);
	if (!here)
		return err_sys(e, errno, "cache directory '%s'", dir);
	if (asprintf(ret, "%s/%s", here, dir) < 0) {
		*ret = NULL;
		return err_nomem(e);
	}
	return 0;
}

int link_get(const struct link_key *given, struct link **ret, struct ckpt_err *e)
{
	struct link_key key = *given;
	autofree char *dir = NULL;
	struct link *l = NULL;
	int rc = find_cache(given->cache_dir, &dir, e);

	key.cache_dir = dir;
	if (!rc)
		l = find_link(&key);
	if (!rc && !l)
		rc = start(&key, &l, e);
	if (rc)
		return rc;
	*ret = l;
	SCOPED_LOCK(&links.lock);
	if (!l->listed)
		LIST_PUSH(&links.all, l);
	l->listed = true;
	return 0;
}

void link_hold(struct link *l)
{
	SCOPED_LOCK(&links.lock);

	l->users++;
}

void link_put(struct link *l)
{
	{
		SCOPED_LOCK(&links.lock);
		if (--l->users)
			return;
		LIST_REMOVE(&links.all, l);
	}
	link_stop(l);
}

void link_may_open(bool anonymous, const char *text, size_t len)
{
	size_t address = strnlen(text, len), n = wire_authority(text), rest = len - address;
	char *entry;
	SCOPED_LOCK(&links.lock);

	if (links.sealed)
		return;
	for (size_t i = 0; i < links.n_openings; i++) {
		const struct opening *o = &links.openings[i];

		if (o->anonymous == anonymous && o->len == n + rest && !memcmp(o->text, text, n) &&
		    !memcmp(o->text + n, text + address, rest))
			return;
	}
	entry = malloc(n + rest);
	/* Out of memory, or too many: opening it later is an error. */
	if (!entry || !VEC_ROOM_WITHIN(links.openings, links.cap_openings, links.n_openings + 1,
				       MAX_OPENINGS)) {
		free(entry);
		return;
	}
	memcpy(entry, text, n);
	memcpy(entry + n, text + address, rest);
	links.openings[links.n_openings++] = (struct opening){ anonymous, n + rest, entry };
}

/* While no thread receives. */
static void seal(const struct link *l)
{
	send_seal(l, l->control);
	if (l->sock >= 0)
		send_seal(l, l->sock);
}

static void rest(struct link *l)
{
	uint64_t one = 1;

	if (l->owner != getpid())
		return;
	if (!l->receives) {
		seal(l);
		return;
	}
	l->resting = true;
	(void)!write(l->stop, &one, sizeof(one));
	(void)pthread_join(l->receiver, NULL);
	(void)!read(l->stop, &one, sizeof(one));
	l->resting = false;
	l->receives = false;
	seal(l);
}

void link_expect(const struct link_key *key)
{
	autofree char *dir = key->cache_dir ? strdup(key->cache_dir) : NULL;
	struct link_key k = *key;
	SCOPED_LOCK(&links.lock);

	for (size_t i = 0; i < links.n_expected; i++)
		if (is_same_key(&links.expected[i], key))
			return;
	/* Out of memory: what needs it will be an error. */
	if ((key->cache_dir && !dir) || !VEC_ROOM_WITHIN(links.expected, links.cap_expected,
							 links.n_expected + 1, MAX_OPENINGS))
		return;
	k.cache_dir = steal_ptr(&dir);
	links.expected[links.n_expected++] = k;
}

/* Without the lock: a receiver may need it to end. */
void link_rest(void)
{
	/* They stay until the process ends. One that cannot be started is an error when it is needed. */
	for (size_t i = 0; i < links.n_expected; i++) {
		struct ckpt_err ignored;
		struct link *l;

		(void)link_get(&links.expected[i], &l, &ignored);
	}
	links.sealed = true;
	LIST_EACH (l, &links.all)
		rest(l);
}

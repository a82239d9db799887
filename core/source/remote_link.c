/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links: they are shared by key, and each begins with a ckptfs-fetch and ends with its last user.
 * Before the process gives up its rights, all are told what they may open from then on.
 */
#include "source/remote_link_internal.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

enum { MAX_OPENINGS = 4096 };

/* What may be opened after link_rest: a WIRE_SEAL each, whose numbers and text these are. */
struct opening {
	uint64_t n[4];
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
	atomic_bool sealed;  /* by link_rest: none may be started, because that may be forbidden */
	struct ckpt_err why; /* one that was expected could not be started */
} links = { .lock = PTHREAD_MUTEX_INITIALIZER };

void link_free(struct link *l)
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
	free(l->left);
	free(l->files);
	free(l->cache_dir);
	free(l);
}

static struct link *link_new(const struct link_key *key)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->sock = l->control = l->stop = -1;
	l->epoch = 1;
	clock_cond_init(&l->change);
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

	link_add_counts(l, ret);
	ret->hits = l->hits;
	ret->misses = l->misses;
	ret->restarts = l->epoch - 1;
	if (!c)
		return;
	ret->latency_us = c->v.latency_us;
	ret->connection_bps = c->v.connection_bps;
	ret->total_bps = c->v.total_bps;
	ret->window = c->v.window;
	ret->kept = c->v.kept;
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
	if (links.sealed && links.why.code)
		return err_set(e, links.why.code, "%s", links.why.msg);
	if (links.sealed)
		return err_set(e, EPERM,
			       "ckptfs-fetch, which reads object stores, has ended or was not "
			       "started, and a program that has given up its rights cannot start "
			       "it: mount again, or run the command again");
	l = link_new(key);
	if (!l)
		return err_nomem(e);
	rc = fetcher_find(&program, e);
	if (!rc && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		rc = err_sys(e, errno, "socketpair");
	if (rc) {
		link_free(l);
		return rc;
	}
	l->control = pair[0];
	rc = fetcher_spawn(program, pair[1], e);
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
		rc = link_await_fetcher(l, clock_ns() + LINK_SILENT_S * CLOCK_SECOND, e);
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

/* A link with that key that can be used; NULL: none. */
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
	*ret = text_format("%s/%s", here, dir);
	if (!*ret)
		return err_nomem(e);
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

/* ---- what may be opened later ---- */

static bool is_same_opening(const struct opening *a, const struct opening *b)
{
	return !memcmp(a->n, b->n, sizeof(a->n)) && a->len == b->len &&
	       !memcmp(a->text, b->text, a->len);
}

/* Takes over o->text; NULL: out of memory. That, or too many: opening it later is an error. */
static void add_opening(struct opening o)
{
	SCOPED_LOCK(&links.lock);
	bool add = o.text && !links.sealed;

	for (size_t i = 0; add && i < links.n_openings; i++)
		add = !is_same_opening(&links.openings[i], &o);
	if (add &&
	    VEC_ROOM_WITHIN(links.openings, links.cap_openings, links.n_openings + 1, MAX_OPENINGS))
		links.openings[links.n_openings++] = o;
	else
		free(o.text);
}

void link_may_open(bool anonymous, const char *text, size_t len)
{
	size_t address = strnlen(text, len), n = wire_authority(text), rest = len - address;
	char *entry = malloc(n + rest + 1);

	if (entry) {
		memcpy(entry, text, n);
		memcpy(entry + n, text + address, rest);
	}
	add_opening((struct opening){ { anonymous }, n + rest, entry });
}

void link_may_read(const struct stat *dir, const char *names, size_t len)
{
	char *entry = malloc(len + 1);

	if (entry && len)
		memcpy(entry, names, len);
	add_opening((struct opening){ { 0, 2, dir->st_dev, dir->st_ino }, len, entry });
}

/* Without the lock: once it is sealed, nothing changes. */
void link_send_seal(const struct link *l, int sock)
{
	struct wire_head h = { .kind = WIRE_SEAL };

	if (!links.sealed)
		return;
	for (size_t i = 0; i < links.n_openings; i++) {
		memcpy(h.n, links.openings[i].n, sizeof(links.openings[i].n));
		(void)wire_send(sock, &h, links.openings[i].text, links.openings[i].len, -1);
	}
	h = (struct wire_head){ .kind = WIRE_SEAL,
				.n = { 0, 1, l->key.cache_size, l->key.memory, l->key.retry_ms } };
	(void)wire_send(sock, &h, l->cache_dir, strlen(l->cache_dir) + 1, -1);
}

/* While no thread receives. */
static void seal(const struct link *l)
{
	link_send_seal(l, l->control);
	if (l->sock >= 0)
		link_send_seal(l, l->sock);
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
	/* They stay until the process ends. One that cannot be started is an error when it is
	 * needed. */
	for (size_t i = 0; i < links.n_expected; i++) {
		struct ckpt_err e;
		struct link *l;

		if (link_get(&links.expected[i], &l, &e))
			links.why = e;
	}
	links.sealed = true;
	LIST_EACH (l, &links.all)
		rest(l);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of this machine as object stores: core/remote/store.h for tests of what is above it.
 * s3://BUCKET/KEY is the file BUCKET/KEY below $DIR_STORE; https://BUCKET/KEY is the same, but cannot
 * be listed. An object's identity is its file's size and mtime.
 *
 *	DIR_STORE_LOG=FILE	a line for each request: get PATH OFF LEN, look PATH, list PATH
 *	DIR_STORE_DELAY=MS	before the first byte of each answer
 *	DIR_STORE_FAIL=N	request N fails after some of its bytes, and each Nth after it
 *	DIR_STORE_MAD=SEED	messages are sent in between that say anything
 *	DIR_STORE_DIE=1		each get kills this process
 *	DIR_STORE_FREE=FILE	store_free waits until there is that file
 *	DIR_STORE_FULL=WHERE	nothing can be written to files on "disk", or neither there nor in
 *				"memory"
 *
 * The first line of the log is "pid PID".
 */
#include "remote/store.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "remote/wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* By the linker's --wrap, for blocks. */
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
	const char *where = getenv("DIR_STORE_FULL");
	char link[64], path[256];
	ssize_t len;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = where ? readlink(link, path, sizeof(path)) : -1;
	if (!where || (!strcmp(where, "disk") && len > 7 && !strncmp(path, "/memfd:", 7)))
		return __real_pwrite(fd, p, n, at);
	errno = ENOSPC;
	return -1;
}

struct net {
	_Atomic uint64_t requests, bytes;
	unsigned delay_ms, fail;
	int log;
};

struct store {
	struct net *net;
	char *address, *dir;
	bool no_list;
};

struct get {
	struct store *store;
	struct place_seen seen;
	char *path;
	uint64_t off, len;
	struct get_sink sink;
};

static unsigned number(const char *name)
{
	const char *s = getenv(name);

	return s ? (unsigned)strtoul(s, NULL, 10) : 0;
}

/* Another side that has lost its mind. */
static void *rave(void *arg)
{
	uint64_t x = *(unsigned *)arg;

	for (unsigned i = 0; i < 20000; i++) {
		struct wire_head h = { 0 };
		char text[300] = "nonsense";
		int fd = i % 3 ? -1 : open("/dev/zero", O_RDONLY | O_CLOEXEC);

		for (size_t k = 0; k < sizeof(h); k++) {
			x = x * 6364136223846793005 + 1442695040888963407;
			((uint8_t *)&h)[k] = (uint8_t)(x >> 56);
		}
		h.kind = WIRE_ANSWER + (uint32_t)(x >> 40) % (WIRE_KINDS - WIRE_ANSWER);
		h.id %= 50;
		for (size_t k = 0; k < WIRE_NUMBERS; k++)
			h.n[k] >>= (x >> 35) % 2 ? 60 : 0;
		(void)wire_send(WIRE_FD, &h, text, (x >> 20) % sizeof(text), fd);
		if (fd >= 0)
			(void)close(fd);
		(void)usleep(100);
	}
	return NULL;
}

int net_new(const struct net_options *o, struct net **ret, struct ckpt_err *e)
{
	const char *log = getenv("DIR_STORE_LOG");
	struct net *n = calloc(1, sizeof(*n));
	static unsigned seed;
	pthread_t t;

	(void)o;
	if (!n)
		return err_nomem(e);
	n->delay_ms = number("DIR_STORE_DELAY");
	n->fail = number("DIR_STORE_FAIL");
	n->log = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (n->log >= 0)
		(void)dprintf(n->log, "pid %d\n", (int)getpid());
	seed = number("DIR_STORE_MAD");
	if (seed && !pthread_create(&t, NULL, rave, &seed))
		(void)pthread_detach(t);
	*ret = n;
	return 0;
}

void net_free(struct net *n)
{
	free(n);
}

void net_pace(struct net *n, struct net_pace *ret)
{
	*ret = (struct net_pace){ .latency_us = 1000 * n->delay_ms + 100,
				  .connection_bps = 50000000,
				  .total_bps = 200000000,
				  .at_once = 8,
				  .requests = n->requests,
				  .bytes = n->bytes };
}

/* Does this one fail? */
static bool request(struct net *n, const char *what, const char *path, uint64_t off, uint64_t len)
{
	uint64_t i = ++n->requests;
	char line[4400];
	int k = snprintf(line, sizeof(line), "%s %s %llu %llu\n", what, path,
			 (unsigned long long)off, (unsigned long long)len);

	if (n->log >= 0 && k > 0)
		(void)!write(n->log, line, (size_t)k);
	if (*what == 'g' && getenv("DIR_STORE_DIE"))
		abort();
	(void)usleep(1000 * n->delay_ms);
	return n->fail && i % n->fail == 0;
}

int store_open(struct net *n, const char *address, const struct store_options *o,
	       struct store **ret, struct ckpt_err *e)
{
	const char *root = getenv("DIR_STORE"), *key = strstr(address, "://");
	struct store *s = calloc(1, sizeof(*s));

	(void)o;
	if (!s || !root || !key)
		return err_set(e, EINVAL, "no DIR_STORE");
	s->net = n;
	s->no_list = !strncmp(address, "https", 5);
	s->address = strdup(address);
	if (!s->address || asprintf(&s->dir, "%s/%s", root, key + 3) < 0)
		return err_nomem(e);
	*ret = s;
	return 0;
}

void store_free(struct store *s)
{
	const char *until = getenv("DIR_STORE_FREE");

	if (!s)
		return;
	while (until && access(until, F_OK))
		(void)usleep(1000);
	free(s->address);
	free(s->dir);
	free(s);
}

const char *store_address(const struct store *s)
{
	return s->address;
}

const char *store_origin(const struct store *s)
{
	(void)s;
	return "";
}

static void see(const struct stat *st, struct place_seen *ret)
{
	const uint64_t id[] = { (uint64_t)st->st_size, io_mtime_ns(st) };

	*ret = (struct place_seen){ .kind = S_ISDIR(st->st_mode) ? PLACE_DIR : PLACE_FILE,
				    .size = S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size,
				    .mtime_ns = io_mtime_ns(st) };
	if (ret->kind == PLACE_FILE) {
		ret->id.len = sizeof(id);
		memcpy(ret->id.v, id, sizeof(id));
	}
}

static int path_of(const struct store *s, const char *path, char ret[static 4096])
{
	int n = !strcmp(path, ".") ? snprintf(ret, 4096, "%s", s->dir)
				   : snprintf(ret, 4096, "%s/%s", s->dir, path);

	return n < 4096 ? 0 : -ENAMETOOLONG;
}

int store_look(struct store *s, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	char whole[4096];
	struct stat st;

	if (request(s->net, "look", path, 0, 0))
		return err_set(e, EIO, "look fails");
	if (path_of(s, path, whole) || stat(whole, &st) ||
	    (!S_ISREG(st.st_mode) && (s->no_list || !S_ISDIR(st.st_mode))))
		return 0;
	see(&st, ret);
	return 1;
}

int store_list(struct store *s, const char *dir, store_entry_fn *each, void *arg,
	       struct ckpt_err *e)
{
	char whole[4096], inner[8192];
	const struct dirent *x;
	struct stat st;
	int rc;

	if (s->no_list)
		return -ENOTSUP;
	if (request(s->net, "list", dir, 0, 0))
		return err_set(e, EIO, "list fails");
	if (path_of(s, dir, whole))
		return err_sys(e, ENAMETOOLONG, "list");
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, whole, 0);

	/* As in a store: no key has this prefix. */
	if (!d)
		return 0;
	while ((rc = io_next_entry(d, &x, e)) > 0) {
		struct place_seen seen;

		if (snprintf(inner, sizeof(inner), "%s/%s", whole, x->d_name) >=
			    (int)sizeof(inner) ||
		    stat(inner, &st))
			continue;
		see(&st, &seen);
		rc = each(arg, x->d_name, &seen, e);
		if (rc)
			return rc;
	}
	return rc;
}

static int deliver(struct get *g, bool fails, struct ckpt_err *e)
{
	static const size_t steps[] = { 1, 4096, 65536, 100000, 16384, 70001 };
	char whole[4096], buf[100000];
	struct place_seen now;
	struct stat st;
	int rc = path_of(g->store, g->path, whole);
	autoclose int fd = rc ? -1 : open(whole, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st))
		return err_set(e, ESTALE, "it was removed");
	see(&st, &now);
	if (!place_id_equal(&now.id, &g->seen.id))
		return err_set(e, ESTALE, "it was changed");
	for (uint64_t at = 0, i = 0, n; at < g->len; at += n, i++) {
		n = g->len - at < steps[i % 6] ? g->len - at : steps[i % 6];
		if (fails && i == 3)
			return err_set(e, EIO, "a request fails");
		rc = io_pread(fd, buf, (size_t)n, g->off + at);
		if (rc)
			return err_sys(e, -rc, "read");
		if (g->sink.bytes(g->sink.arg, buf, (size_t)n))
			return err_set(e, ECANCELED, "cancelled");
		g->store->net->bytes += n;
	}
	return 0;
}

static void *run(void *arg)
{
	struct get *g = arg;
	struct ckpt_err e = { 0 };
	bool fails = request(g->store->net, "get", g->path, g->off, g->len);
	int rc = deliver(g, fails, &e);

	g->sink.done(g->sink.arg, rc, rc ? &e : NULL);
	free(g->path);
	free(g);
	return NULL;
}

int store_get(struct store *s, const char *path, const struct place_seen *seen, uint64_t off,
	      uint64_t len, bool urgent, const struct get_sink *sink, struct get **ret,
	      struct ckpt_err *e)
{
	struct get *g = calloc(1, sizeof(*g));
	pthread_t t;
	int rc;

	(void)urgent;
	if (!g)
		return err_nomem(e);
	*g = (struct get){ s, *seen, strdup(path), off, len, *sink };
	rc = pthread_create(&t, NULL, run, g);
	if (rc)
		return err_sys(e, rc, "start a thread");
	(void)pthread_detach(t);
	*ret = g;
	return 0;
}

void get_cancel(struct net *n, struct get *g)
{
	(void)n;
	(void)g;
}

const struct upload_ops *store_uploads(const struct store *s)
{
	(void)s;
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of this machine as object stores: core/remote/store.h for tests of the layers above.
 * s3://BUCKET/KEY is the file BUCKET/KEY below $DIR_STORE; https://BUCKET/KEY is the same, but
 * cannot be listed. An object's identity is its file's size and mtime.
 *
 *	DIR_STORE_LOG=FILE	a line for each request: get PATH OFF LEN, look PATH, list PATH
 *	DIR_STORE_DELAY=MS	delay before the first byte of each answer
 *	DIR_STORE_FAIL=N	request N fails after some of its bytes, and each Nth after it
 *	DIR_STORE_MAD=SEED	random messages are sent in between
 *	DIR_STORE_DIE=1		each get kills this process
 *	DIR_STORE_FREE=FILE	store_free waits until that file exists
 *	DIR_STORE_FULL=WHERE	nothing can be written to files on "disk", or neither there nor in
 *				"memory"
 *	DIR_STORE_FAULT=N	call N of the program and its children fails: an allocation, a
 *				system call, a thread; the log says "fault NAME"
 *
 * The first line of the log is "pid PID". s3:// can be written to; only the process that wrote an
 * object knows its ETag and token.
 */
#include "remote/store.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "remote/upload.h"
#include "source/wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <nettle/base16.h>
#include <nettle/md5.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- calls that fail, by the linker's --wrap ---- */

static _Atomic uint64_t *calls; /* shared by all processes */
static uint64_t fault;		/* 0: none */

static void read_fault(void)
{
	const char *n = getenv("DIR_STORE_FAULT");
	void *p = n ? mmap(NULL, sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			   -1, 0)
		    : MAP_FAILED;

	if (p == MAP_FAILED)
		return;
	calls = p;
	fault = strtoull(n, NULL, 10);
}

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

/* Calls before main() are not the program's, but for example those of coverage counters. */
int __wrap_main(int argc, char **argv)
{
	read_fault();
	return __real_main(argc, argv);
}

static bool fails(const char *name, int code)
{
	const char *log;
	char line[64];
	int fd, n;

	if (!fault || atomic_fetch_add(calls, 1) + 1 != fault)
		return false;
	log = getenv("DIR_STORE_LOG");
	fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log,
				O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)
		 : -1;
	n = snprintf(line, sizeof(line), "fault %s\n", name);
	if (fd >= 0) {
		(void)!write(fd, line, (size_t)n);
		(void)close(fd);
	}
	errno = code;
	return true;
}

#define FAILING(type, bad, code, name, params, args) \
	type __real_##name params; \
	type __wrap_##name params; \
	type __wrap_##name params \
	{ \
		return fails(#name, code) ? bad : __real_##name args; \
	}
FAILING(void *, NULL, ENOMEM, malloc, (size_t n), (n))
FAILING(void *, NULL, ENOMEM, calloc, (size_t n, size_t size), (n, size))
FAILING(void *, NULL, ENOMEM, realloc, (void *p, size_t n), (p, n))
FAILING(char *, NULL, ENOMEM, strdup, (const char *t), (t))
FAILING(void *, MAP_FAILED, ENOMEM, mmap,
	(void *p, size_t n, int prot, int flags, int fd, off_t off), (p, n, prot, flags, fd, off))
FAILING(int, EAGAIN, EAGAIN, pthread_create,
	(pthread_t * ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
	(ret, attr, fn, arg))
FAILING(int, -1, EIO, fstat, (int fd, struct stat *st), (fd, st))
FAILING(int, -1, EIO, fstatat, (int fd, const char *path, struct stat *st, int flags),
	(fd, path, st, flags))
FAILING(int, -1, EIO, fstatvfs, (int fd, struct statvfs *st), (fd, st))
FAILING(int, -1, ENOSPC, ftruncate, (int fd, off_t n), (fd, n))
FAILING(int, -1, ENOSPC, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
FAILING(int, -1, EMFILE, memfd_create, (const char *name, unsigned flags), (name, flags))
FAILING(int, -1, EMFILE, eventfd, (unsigned n, int flags), (n, flags))
FAILING(int, -1, EMFILE, socketpair, (int domain, int type, int protocol, int fds[2]),
	(domain, type, protocol, fds))
FAILING(int, -1, EMFILE, pipe2, (int fds[2], int flags), (fds, flags))
FAILING(int, -1, EMFILE, dup2, (int from, int to), (from, to))
FAILING(pid_t, -1, EAGAIN, fork, (void), ())
FAILING(ssize_t, -1, EIO, pread, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
FAILING(DIR *, NULL, EMFILE, fdopendir, (int fd), (fd))

FAILING(int, -1, ENOSPC, mkdir, (const char *path, mode_t mode), (path, mode))
FAILING(int, ENOSPC, ENOSPC, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n))
FAILING(int, -1, EIO, fstatfs, (int fd, struct statfs *st), (fd, st))

static mode_t mode_of(int flags, va_list ap)
{
	return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

#define OPENING(name, params, args) \
	int __real_##name params; \
	int __wrap_##name params; \
	int __wrap_##name params \
	{ \
		mode_t mode; \
		va_list ap; \
\
		va_start(ap, flags); \
		mode = mode_of(flags, ap); \
		va_end(ap); \
		return fails(#name, EMFILE) ? -1 : __real_##name args; \
	}
OPENING(open, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);

ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
	const char *where = getenv("DIR_STORE_FULL");
	char link[64], path[256];
	ssize_t len;

	if (fails("pwrite", ENOSPC))
		return -1;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = where ? readlink(link, path, sizeof(path)) : -1;
	if (!where || (!strcmp(where, "disk") && len > 7 && !strncmp(path, "/memfd:", 7)))
		return __real_pwrite(fd, p, n, at);
	errno = ENOSPC;
	return -1;
}

/* ---- the network ---- */

struct net {
	_Atomic uint64_t requests, bytes;
	unsigned delay_ms, fail;
	int log;
};

struct store {
	struct net *net;
	char *address, *dir;
	int fd; /* of file://; -1: none */
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

/* A fetcher that has gone mad: sends random messages. */
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

/* Logs a request; returns whether it must fail. */
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

	if (!s || !root || !key)
		return err_set(e, EINVAL, "no DIR_STORE");
	s->net = n;
	s->no_list = !strncmp(address, "https", 5);
	s->fd = !strncmp(address, "file:", 5) ? fcntl(o->dir, F_DUPFD_CLOEXEC, 0) : -1;
	s->address = strdup(address);
	if (!s->address || (s->fd < 0 ? asprintf(&s->dir, "%s/%s", root, key + 3)
				      : asprintf(&s->dir, "/proc/self/fd/%d", s->fd)) < 0)
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
	if (s->fd >= 0)
		(void)close(s->fd);
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

int store_dir(const struct store *s)
{
	return s->fd;
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

	/* As in a store in which no key has this prefix. */
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
	rc = g->path ? pthread_create(&t, NULL, run, g) : ENOMEM;
	if (rc) {
		free(g->path);
		free(g);
		return err_sys(e, rc, "start a thread");
	}
	(void)pthread_detach(t);
	*ret = g;
	return 0;
}

void get_cancel(struct net *n, struct get *g)
{
	(void)n;
	(void)g;
}

/* ---- writing ---- */

enum { PARTS_MAX = 16, MADE_MAX = 256 };

struct part {
	char *p;
	size_t n;
};

/* An upload, or the ETag of an object that was written here. */
struct made {
	char *path;
	unsigned id; /* 0: an object */
	struct part parts[PARTS_MAX];
	char etag[64], token[UPLOAD_TOKEN];
};

static struct {
	pthread_mutex_t lock;
	struct made v[MADE_MAX];
	unsigned ids;
} made = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* To be called under the lock. */
static struct made *find_made(const char *path, unsigned id)
{
	for (size_t i = 0; i < MADE_MAX; i++)
		if (made.v[i].path && made.v[i].id == id && !strcmp(made.v[i].path, path))
			return &made.v[i];
	return NULL;
}

static struct made *new_made(const char *path, unsigned id)
{
	for (size_t i = 0; i < MADE_MAX; i++)
		if (!made.v[i].path) {
			made.v[i] = (struct made){ .path = strdup(path), .id = id };
			return made.v[i].path ? &made.v[i] : NULL;
		}
	return NULL;
}

static void drop_made(struct made *x)
{
	for (size_t i = 0; x && i < PARTS_MAX; i++)
		free(x->parts[i].p);
	if (x)
		free(x->path);
	if (x)
		*x = (struct made){ 0 };
}

static int no_request(const char *what, struct ckpt_err *e)
{
	return err_set(e, EIO, "%s fails", what);
}

/* Makes the file from the parts, and its directories. */
static int make_file(const struct store *s, const char *path, const struct part *parts, size_t n,
		     struct ckpt_err *e)
{
	char whole[4096], other[4200];
	uint64_t at = 0;
	int rc = path_of(s, path, whole);

	(void)mkdir(s->dir, 0700);
	for (char *c = whole + strlen(s->dir) + 1; !rc && (c = strchr(c, '/')); c++) {
		*c = 0;
		(void)mkdir(whole, 0700);
		*c = '/';
	}
	(void)snprintf(other, sizeof(other), "%s.new", whole);
	autoclose int fd = rc ? -1 : open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0)
		return err_sys(e, errno, "make '%s'", path);
	for (size_t i = 0; !rc && i < n; i++) {
		rc = io_pwrite(fd, parts[i].p, parts[i].n, at);
		at += parts[i].n;
	}
	if (rc || rename(other, whole)) {
		(void)unlink(other);
		return err_sys(e, rc ? -rc : errno, "make '%s'", path);
	}
	return 0;
}

static int take_bytes(const struct upload_bytes *b, struct part *ret, struct ckpt_err *e)
{
	int rc;

	*ret = (struct part){ malloc(b->len + 1), b->len };
	if (!ret->p)
		return err_nomem(e);
	rc = b->read(b->arg, 0, ret->p, b->len);
	return rc ? err_sys(e, -rc, "read") : 0;
}

static void hex_of(const uint8_t *md5, char *ret)
{
	base16_encode_update(ret, MD5_DIGEST_SIZE, md5);
	ret[2 * MD5_DIGEST_SIZE] = 0;
}

static bool is_there(const struct store *s, const char *path, uint64_t *ret_size)
{
	char whole[4096];
	struct stat st;

	if (path_of(s, path, whole) || stat(whole, &st) || !S_ISREG(st.st_mode))
		return false;
	*ret_size = (uint64_t)st.st_size;
	return true;
}

static void set_made(const char *path, const char *etag, const char *token)
{
	struct made *x;

	drop_made(find_made(path, 0));
	x = new_made(path, 0);
	if (!x)
		return;
	(void)snprintf(x->etag, sizeof(x->etag), "%s", etag);
	(void)snprintf(x->token, sizeof(x->token), "%s", token);
}

static int dir_put(void *store, const char *path, const struct upload_bytes *b, const char *token,
		   bool only_new, struct upload_result *ret, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "put", path, 0, b->len);
	struct part all;
	uint64_t size;
	int rc = take_bytes(b, &all, e);
	SCOPED_LOCK(&made.lock);

	*ret = (struct upload_result){ .lost = lost };
	if (!rc && only_new && is_there(s, path, &size))
		rc = err_set(e, EEXIST, "there is one");
	if (!rc)
		rc = make_file(s, path, &all, 1, e);
	free(all.p);
	if (rc)
		return rc;
	hex_of(b->md5, ret->etag);
	set_made(path, ret->etag, token);
	return lost ? no_request("put", e) : 0;
}

static int dir_begin(void *store, const char *path, const char *token, struct upload_begun *ret,
		     const atomic_bool *cancel, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "begin", path, 0, 0);
	SCOPED_LOCK(&made.lock);
	struct made *x = new_made(path, ++made.ids);

	(void)cancel;
	if (x)
		(void)snprintf(x->token, sizeof(x->token), "%s", token);
	*ret = (struct upload_begun){ .lost = lost };
	if (lost)
		return no_request("begin", e);
	if (x && asprintf(&ret->id, "%u", x->id) < 0)
		ret->id = NULL;
	return ret->id ? 0 : err_nomem(e);
}

static unsigned id_of(const char *id)
{
	return (unsigned)strtoul(id, NULL, 10);
}

static int dir_part(void *store, const char *path, const char *id, unsigned n,
		    const struct upload_bytes *b, char etag[static UPLOAD_ETAG], struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "part", path, n, b->len);
	struct part one;
	int rc = take_bytes(b, &one, e);
	SCOPED_LOCK(&made.lock);
	struct made *x = find_made(path, id_of(id));

	if (rc || !x || n > PARTS_MAX) {
		free(one.p);
		return rc ? rc : err_set(e, ENOENT, "no such upload");
	}
	free(x->parts[n - 1].p);
	x->parts[n - 1] = one;
	hex_of(b->md5, etag);
	return lost ? no_request("part", e) : 0;
}

static int dir_complete(void *store, const char *path, const char *id,
			const struct upload_done *parts, size_t n, bool only_new,
			struct upload_result *ret, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "complete", path, 0, n);
	uint8_t all[MD5_DIGEST_SIZE];
	char one[2 * MD5_DIGEST_SIZE + 1];
	SCOPED_LOCK(&made.lock);
	struct made *u = find_made(path, id_of(id));
	char token[UPLOAD_TOKEN];
	struct md5_ctx c;
	uint64_t size;
	int rc;

	*ret = (struct upload_result){ .lost = lost };
	if (!u)
		return err_set(e, ENOENT, "no such upload");
	if (only_new && is_there(s, path, &size))
		return err_set(e, EEXIST, "there is one");
	rc = make_file(s, path, u->parts, n, e);
	if (rc)
		return rc;
	md5_init(&c);
	for (size_t i = 0; i < n; i++)
		md5_update(&c, MD5_DIGEST_SIZE, parts[i].md5);
	md5_digest(&c, sizeof(all), all);
	hex_of(all, one);
	(void)snprintf(ret->etag, UPLOAD_ETAG, "%s-%zu", one, n);
	memcpy(token, u->token, sizeof(token));
	drop_made(u);
	set_made(path, ret->etag, token);
	return lost ? no_request("complete", e) : 0;
}

static int dir_abort(void *store, const char *path, const char *id, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "abort", path, 0, 0);
	SCOPED_LOCK(&made.lock);

	drop_made(find_made(path, id_of(id)));
	return lost ? no_request("abort", e) : 0;
}

static int dir_sweep(void *store, const char *path, const char *keep, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "sweep", path, 0, 0);
	int n = 0;
	SCOPED_LOCK(&made.lock);

	for (unsigned id = 1; id <= made.ids; id++) {
		struct made *x = keep && id_of(keep) == id ? NULL : find_made(path, id);

		n += x != NULL;
		drop_made(x);
	}
	return lost ? no_request("sweep", e) : n;
}

static int dir_look(void *store, const char *path, struct upload_seen *ret, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "see", path, 0, 0);
	SCOPED_LOCK(&made.lock);
	const struct made *x = find_made(path, 0);

	if (lost)
		return no_request("see", e);
	*ret = (struct upload_seen){ .etag = "another" };
	if (x) {
		memcpy(ret->etag, x->etag, sizeof(x->etag));
		memcpy(ret->token, x->token, sizeof(x->token));
	}
	return is_there(s, path, &ret->size);
}

static int dir_remove(void *store, const char *path, struct ckpt_err *e)
{
	const struct store *s = store;
	bool lost = request(s->net, "remove", path, 0, 0);
	char whole[4096];
	SCOPED_LOCK(&made.lock);

	if (!path_of(s, path, whole))
		(void)unlink(whole);
	drop_made(find_made(path, 0));
	return lost ? no_request("remove", e) : 0;
}

const struct upload_ops *store_uploads(const struct store *s)
{
	static const struct upload_ops ops = { .put = dir_put,
					       .begin = dir_begin,
					       .part = dir_part,
					       .complete = dir_complete,
					       .abort = dir_abort,
					       .sweep = dir_sweep,
					       .look = dir_look,
					       .remove = dir_remove };

	return strncmp(s->address, "s3", 2) ? NULL : &ops;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_util - a small HTTP server inside the test, and a reader that waits.
 *
 *	static bool serve(struct served *r)        // false: close the connection
 *	{
 *		return answer(r, 200, "ETag: \"a\"\r\n", "hello", 5);
 *	}
 *	unsigned port = server_start(serve);
 *
 * Each connection has a thread, which ends with the test's process, so `serve` runs on several at
 * once.
 */
#ifndef TESTS_REMOTE_UTIL_H
#define TESTS_REMOTE_UTIL_H

#include "remote/http.h"

#include "base/buf.h"
#include "base/err.h"

#include <arpa/inet.h>
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct served {
	int fd;
	unsigned number; /* number of the request, from 1, over all connections */
	char method[16], target[4096];
	char head[16384];
	size_t got; /* bytes in head, with those of the body that came with it */
	bool ranged;
	uint64_t first, last;
};

typedef bool serve_fn(struct served *r);

static struct {
	serve_fn *serve;
	int fd;
	_Atomic unsigned requests;
} server;

static inline void send_all(int fd, const void *p, size_t n)
{
	const char *at = p;

	while (n) {
		ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		at += sent;
		n -= (size_t)sent;
	}
}

/* The value of a field of the request, or NULL; valid until this thread's next call. */
static inline const char *request_field(const struct served *r, const char *name)
{
	static _Thread_local char value[8192];
	size_t n = strlen(name);

	for (const char *line = strstr(r->head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
		if (!strncasecmp(line + 2, name, n) && line[2 + n] == ':') {
			const char *from = line + 3 + n;

			from += strspn(from, " ");
			(void)snprintf(value, sizeof(value), "%.*s", (int)strcspn(from, "\r"),
				       from);
			return value;
		}
	return NULL;
}

/* Reads the body of a request with a Content-Length, up to cap - 1 bytes, and adds a NUL. Returns
 * its length. */
static inline size_t request_body(struct served *r, char *to, size_t cap)
{
	const char *length = request_field(r, "Content-Length");
	const char *at = strstr(r->head, "\r\n\r\n") + 4;
	size_t want = length ? strtoull(length, NULL, 10) : 0, n = r->got - (size_t)(at - r->head);
	char more[4096];

	n = n < want ? n : want;
	(void)snprintf(to, cap, "%.*s", (int)n, at);
	while (n < want) {
		ssize_t k = recv(r->fd, more, want - n < sizeof(more) ? want - n : sizeof(more), 0);

		if (k <= 0)
			break;
		if (n < cap - 1)
			(void)snprintf(to + n, cap - n, "%.*s", (int)k, more);
		n += (size_t)k;
	}
	return n;
}

/* Sends a whole answer, with its length; each of the fields ends in "\r\n". */
static inline bool answer(struct served *r, unsigned status, const char *fields, const void *body,
			  size_t n)
{
	char head[8192];
	int len = snprintf(head, sizeof(head), "HTTP/1.1 %u x\r\nContent-Length: %zu\r\n%s\r\n",
			   status, n, fields);

	send_all(r->fd, head, (size_t)len);
	if (strcmp(r->method, "HEAD") != 0)
		send_all(r->fd, body, n);
	return true;
}

/* Sends the part of an object that was asked for, with its range, and `fields`. */
static inline bool answer_object(struct served *r, const char *fields, const uint8_t *p, size_t n)
{
	char more[8192];

	if (!r->ranged)
		return answer(r, 200, fields, p, n);
	(void)snprintf(more, sizeof(more), "%sContent-Range: bytes %llu-%llu/%zu\r\n", fields,
		       (unsigned long long)r->first, (unsigned long long)r->last, n);
	return answer(r, 206, more, p + r->first, r->last - r->first + 1);
}

static inline void *serve_connection(void *arg)
{
	/* Not allocated, because tests count allocations, and make them fail. */
	struct served all, *r = &all;
	int fd = (int)(intptr_t)arg;
	bool on = true;

	while (on) {
		size_t n = 0;
		char *end = NULL;
		const char *range;

		memset(r, 0, sizeof(*r));
		r->fd = fd;
		while (n < sizeof(r->head) - 1 && !(end = strstr(r->head, "\r\n\r\n"))) {
			ssize_t got = recv(fd, r->head + n, sizeof(r->head) - 1 - n, 0);

			if (got <= 0)
				goto over;
			n += (size_t)got;
			r->head[n] = 0;
			r->got = n;
		}
		if (!end || sscanf(r->head, "%15s %4095s", r->method, r->target) != 2)
			break;
		range = request_field(r, "Range");
		r->ranged = range && sscanf(range, "bytes=%lu-%lu", &r->first, &r->last) == 2;
		r->number = atomic_fetch_add(&server.requests, 1) + 1;
		on = server.serve(r);
	}
over:
	(void)shutdown(fd, SHUT_RDWR);
	(void)close(fd);
	return NULL;
}

static inline void *serve_all(void *arg)
{
	(void)arg;
	for (;;) {
		int fd = accept(server.fd, NULL, NULL);
		pthread_t t;

		if (fd < 0)
			return NULL;
		/* Tried twice, as the first attempt may be made to fail. */
		if (pthread_create(&t, NULL, serve_connection, (void *)(intptr_t)fd) &&
		    pthread_create(&t, NULL, serve_connection, (void *)(intptr_t)fd))
			abort();
		(void)pthread_detach(t);
	}
}

/* Returns the port, on 127.0.0.1. */
static inline unsigned server_start(serve_fn *serve)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	pthread_t t;

	server.serve = serve;
	server.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(server.fd, 0);
	ck_assert_int_eq(bind(server.fd, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(server.fd, 128), 0);
	ck_assert_int_eq(getsockname(server.fd, (struct sockaddr *)&a, &n), 0);
	ck_assert_int_eq(pthread_create(&t, NULL, serve_all, NULL), 0);
	(void)pthread_detach(t);
	return ntohs(a.sin_port);
}

/* ---- a server that follows a script ---- */

struct reply {
	unsigned status;	   /* 0: `body` is sent as it is, and the connection is closed */
	const char *fields, *body; /* fields end in "\r\n" each; either may be NULL */
};

__attribute__((unused)) static struct {
	const struct reply *v; /* request n gets reply n; the last one stands for all that follow */
	size_t n;
	_Atomic unsigned served;
	pthread_mutex_t lock;
	char log[16384];  /* "METHOD TARGET\n" of each */
	char head[16384]; /* of the last request */
	char body[16384];
} script = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline void script_set(const struct reply *v, size_t n)
{
	script.v = v;
	script.n = n;
	atomic_store(&script.served, 0);
	script.log[0] = 0;
}

static inline bool serve_script(struct served *r)
{
	unsigned i = atomic_fetch_add(&script.served, 1);
	const struct reply *a = &script.v[i < script.n ? i : script.n - 1];
	const char *body = a->body ? a->body : "";
	size_t at;

	(void)pthread_mutex_lock(&script.lock);
	at = strlen(script.log);
	(void)snprintf(script.log + at, sizeof(script.log) - at, "%s %s\n", r->method, r->target);
	(void)snprintf(script.head, sizeof(script.head), "%s", r->head);
	(void)request_body(r, script.body, sizeof(script.body));
	(void)pthread_mutex_unlock(&script.lock);
	if (a->status)
		return answer(r, a->status, a->fields ? a->fields : "", body, strlen(body));
	send_all(r->fd, body, strlen(body));
	return false;
}

/* ---- answers without a server ---- */

/* The head of an answer from "NAME: VALUE\r\n" ..., which lie in *b. */
static inline struct http_answer answer_of(unsigned status, const char *fields, const char *error,
					   const char *url, struct buf *b)
{
	*b = (struct buf)BUF_INIT(64 << 10);
	for (const char *p = fields; *p; p += strcspn(p, "\n") + 1) {
		size_t name = strcspn(p, ":"), n = strcspn(p, "\r");

		buf_add(b, p, name);
		buf_add(b, "", 1);
		buf_add(b, p + name + 2, n - name - 2);
		buf_add(b, "", 1);
	}
	return (struct http_answer){ .status = status,
				     .fields = b,
				     .error = error,
				     .error_len = strlen(error),
				     .url = url };
}

/* ---- reading ---- */

struct reader {
	uint8_t *p;
	size_t n;
	_Atomic size_t cap; /* a test may reduce it meanwhile */
	bool over;
	int rc;
	struct ckpt_err e;
	struct get *get;
	pthread_mutex_t lock;
	pthread_cond_t ended;
};

static inline int reader_bytes(void *arg, const void *p, size_t n)
{
	struct reader *r = arg;

	if (n > r->cap - r->n)
		return 1;
	memcpy(r->p + r->n, p, n);
	r->n += n;
	return 0;
}

static inline void reader_done(void *arg, int rc, const struct ckpt_err *e)
{
	struct reader *r = arg;

	(void)pthread_mutex_lock(&r->lock);
	if (r->over)
		abort(); /* done twice */
	r->rc = rc;
	if (rc)
		r->e = *e;
	r->over = true;
	(void)pthread_cond_broadcast(&r->ended);
	(void)pthread_mutex_unlock(&r->lock);
}

static inline void reader_start(struct reader *r, struct store *s, const char *path,
				const struct place_seen *seen, uint64_t off, uint64_t len,
				bool urgent)
{
	const struct get_sink sink = { r, reader_bytes, reader_done };
	struct ckpt_err e = { 0 };

	*r = (struct reader){ .p = malloc(len), .cap = len };
	(void)pthread_mutex_init(&r->lock, NULL);
	(void)pthread_cond_init(&r->ended, NULL);
	/* The read may have ended before this returns. */
	if (store_get(s, path, seen, off, len, urgent, &sink, &r->get, &e))
		ck_abort_msg("%s", e.msg);
}

static inline int reader_wait(struct reader *r)
{
	(void)pthread_mutex_lock(&r->lock);
	while (!r->over)
		(void)pthread_cond_wait(&r->ended, &r->lock);
	(void)pthread_mutex_unlock(&r->lock);
	return r->rc;
}

static inline void reader_release(struct reader *r)
{
	free(r->p);
}

/* Reads [off, off+len) into *r and waits. Returns an error if the read cannot even begin. */
static inline int read_range_of(struct reader *r, struct store *s, const char *path,
				const struct place_seen *seen, uint64_t off, uint64_t len,
				struct ckpt_err *e)
{
	const struct get_sink sink = { r, reader_bytes, reader_done };
	static uint8_t room[4096];
	int rc;

	if (len > sizeof(room))
		abort();
	*r = (struct reader){ .p = room, .cap = len };
	(void)pthread_mutex_init(&r->lock, NULL);
	(void)pthread_cond_init(&r->ended, NULL);
	rc = store_get(s, path, seen, off, len, true, &sink, &r->get, e);
	if (rc)
		return rc;
	rc = reader_wait(r);
	if (rc)
		*e = r->e;
	return rc;
}

/* Reads [off, off+len) into *r and waits. */
static inline int read_range(struct reader *r, struct store *s, const char *path,
			     const struct place_seen *seen, uint64_t off, uint64_t len)
{
	reader_start(r, s, path, seen, off, len, true);
	return reader_wait(r);
}

#endif

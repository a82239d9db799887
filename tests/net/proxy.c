/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proxy - an HTTP/1.1 proxy in front of one server on this machine, with the latency, the
 * bandwidth and the faults for which a test asks.
 *
 *	proxy UPSTREAM_PORT [LOG]     prints its own port, and serves until it is killed
 *
 * A request for /.proxy?KEY=VALUE&... is answered by the proxy itself: it changes the settings,
 * sets the counters to 0, and answers with their old values. Without a query it just answers.
 *
 *	latency_ms=N    each request is delayed, the first of a connection for twice as long
 *	each_bps=N      bits per second of one connection; 0: no limit
 *	all_bps=N       bits per second of all connections together
 *	fault=KIND      what happens to requests [from, from + times)
 *	from=N times=N  numbers of requests since the counters were set to 0, from 1
 *	after=N         bytes of the body that pass before a fault
 *
 * Faults: reset (RST after so many bytes), stall (no further byte), short (the connection ends
 * early), 503, 500, 429, 403, 404, 412, 416 (that answer instead), 307 (to the same address),
 * etag (a wrong one in the answer), range (a wrong Content-Range), whole (200 instead of 206),
 * gzip (a wrong Content-Encoding), junk (no HTTP at all), close (no answer).
 *
 * Each request gets a connection of its own to the server. Requests have no body.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HEAD = 65536, PIECE = 16384, SPARE = 4096 /* for fields that are added */ };

struct settings {
	uint64_t latency_ms, each_bps, all_bps, from, times, after;
	char fault[16];
};

static struct {
	pthread_mutex_t lock;
	struct settings now;
	uint64_t connections, requests, bytes, faults;
	uint64_t all_free_ns; /* when the link shared by all is free again */
} state = { .lock = PTHREAD_MUTEX_INITIALIZER };

static unsigned upstream;
static FILE *log_to;

struct client {
	int fd;
	bool first;
	uint64_t free_ns; /* when the link of this connection is free again */
};

struct head {
	char text[MAX_HEAD + 1];
	size_t len;  /* up to and including the blank line */
	size_t have; /* bytes read; those after len belong to the body or the next request */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u),
			      .tv_nsec = (long)(ns % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static bool send_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return false;
		p += k;
		n -= (size_t)k;
	}
	return true;
}

/* The time when n more bytes will have passed a link of so many bits per second. */
static uint64_t pass(uint64_t *free_ns, uint64_t bps, size_t n, uint64_t now)
{
	if (!bps)
		return now;
	if (*free_ns < now)
		*free_ns = now;
	*free_ns += n * 8u * 1000000000u / bps;
	return *free_ns;
}

static bool send_paced(struct client *c, const char *p, size_t n)
{
	while (n) {
		size_t k = n < PIECE ? n : PIECE;
		uint64_t now = now_ns(), each, all;

		(void)pthread_mutex_lock(&state.lock);
		each = pass(&c->free_ns, state.now.each_bps, k, now);
		all = pass(&state.all_free_ns, state.now.all_bps, k, now);
		(void)pthread_mutex_unlock(&state.lock);
		if (each > now || all > now)
			sleep_until(each > all ? each : all);
		if (!send_all(c->fd, p, k))
			return false;
		(void)pthread_mutex_lock(&state.lock);
		state.bytes += k;
		(void)pthread_mutex_unlock(&state.lock);
		p += k;
		n -= k;
	}
	return true;
}

/* Reads up to a blank line; returns false if there is none. */
static bool read_head(int fd, struct head *h)
{
	h->have = h->len = 0;
	for (;;) {
		ssize_t k = recv(fd, h->text + h->have, MAX_HEAD - SPARE - h->have, 0);
		char *end;

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return false;
		h->have += (size_t)k;
		h->text[h->have] = 0;
		end = strstr(h->text, "\r\n\r\n");
		if (end) {
			h->len = (size_t)(end - h->text) + 4;
			return true;
		}
		if (h->have == MAX_HEAD - SPARE)
			return false;
	}
}

/* The value of a field, in place; NULL if there is none. */
static char *field(struct head *h, const char *name, size_t *ret_len)
{
	size_t n = strlen(name);

	for (char *line = strstr(h->text, "\r\n"); line && line + 2 < h->text + h->len - 2;
	     line = strstr(line + 2, "\r\n")) {
		char *at = line + 2;

		if (strncasecmp(at, name, n) != 0 || at[n] != ':')
			continue;
		at += n + 1;
		at += strspn(at, " ");
		*ret_len = strcspn(at, "\r");
		return at;
	}
	return NULL;
}

/* Replaces n bytes at a place of the head. */
static void replace(struct head *h, char *at, size_t n, const char *by)
{
	size_t k = strlen(by), off = (size_t)(at - h->text);

	if (h->have - n + k > MAX_HEAD)
		return;
	memmove(at + k, at + n, h->have - off - n);
	memcpy(at, by, k);
	h->have += k - n;
	h->len += k - n;
	h->text[h->have] = 0;
}

static void remove_field(struct head *h, const char *name)
{
	size_t len;
	char *at = field(h, name, &len);

	if (at) {
		char *line = at;

		while (line[-1] != '\n')
			line--;
		replace(h, line, (size_t)(at - line) + len + 2, "");
	}
}

static void add_field(struct head *h, const char *line)
{
	replace(h, h->text + h->len - 2, 0, line);
}

/* ---- requests of the test ---- */

static void set(struct settings *s, const char *key, const char *value)
{
	static const struct {
		const char *name;
		size_t at;
	} numbers[] = {
		{ "latency_ms", offsetof(struct settings, latency_ms) },
		{ "each_bps", offsetof(struct settings, each_bps) },
		{ "all_bps", offsetof(struct settings, all_bps) },
		{ "from", offsetof(struct settings, from) },
		{ "times", offsetof(struct settings, times) },
		{ "after", offsetof(struct settings, after) },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (!strcmp(key, numbers[i].name)) {
			uint64_t v = strtoull(value, NULL, 10);

			memcpy((char *)s + numbers[i].at, &v, sizeof(v));
		}
	if (!strcmp(key, "fault"))
		(void)snprintf(s->fault, sizeof(s->fault), "%s", value);
}

/* path: that of the request line, "/.proxy?..." */
static bool control(struct client *c, char *path)
{
	char body[256], answer[512], *save = NULL, *query = strchr(path, '?');
	int n;

	(void)pthread_mutex_lock(&state.lock);
	n = snprintf(body, sizeof(body), "connections=%llu requests=%llu bytes=%llu faults=%llu\n",
		     (unsigned long long)state.connections, (unsigned long long)state.requests,
		     (unsigned long long)state.bytes, (unsigned long long)state.faults);
	if (query) {
		for (char *word = strtok_r(query + 1, "&", &save); word;
		     word = strtok_r(NULL, "&", &save)) {
			char *value = strchr(word, '=');

			if (value) {
				*value = 0;
				set(&state.now, word, value + 1);
			}
		}
		state.connections = state.requests = state.bytes = state.faults = 0;
	}
	(void)pthread_mutex_unlock(&state.lock);
	n = snprintf(answer, sizeof(answer),
		     "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", n,
		     body);
	(void)send_all(c->fd, answer, (size_t)n);
	return false;
}

/* ---- one request ---- */

static int dial(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)upstream),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		(void)close(fd);
		return -1;
	}
	return fd;
}

static void reset(int fd)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

/* Sends an answer instead of the server's. */
static bool answer(struct client *c, const char *code, const char *path, const char *host,
		   int host_len, bool has_body)
{
	static const struct {
		const char *code, *text, *error;
	} known[] = {
		{ "503", "Service Unavailable", "SlowDown" },
		{ "500", "Internal Server Error", "InternalError" },
		{ "429", "Too Many Requests", "TooManyRequests" },
		{ "403", "Forbidden", "AccessDenied" },
		{ "404", "Not Found", "NoSuchKey" },
		{ "412", "Precondition Failed", "PreconditionFailed" },
		{ "416", "Range Not Satisfiable", "InvalidRange" },
		{ "307", "Temporary Redirect", "TemporaryRedirect" },
	};
	char body[128], text[4096];
	int n;

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(code, known[i].code)) {
			n = snprintf(body, sizeof(body), "<Error><Code>%s</Code></Error>",
				     known[i].error);
			n = snprintf(text, sizeof(text),
				     "HTTP/1.1 %s %s\r\nContent-Type: application/xml\r\n"
				     "Content-Length: %d\r\n%s%.*s%s%s\r\n%s",
				     code, known[i].text, n,
				     *code == '3' ? "Location: http://" : "",
				     *code == '3' ? host_len : 0, host, *code == '3' ? path : "",
				     *code == '3' ? "\r\n" : "", has_body ? body : "");
			return n < (int)sizeof(text) && send_all(c->fd, text, (size_t)n);
		}
	return false;
}

/* Damages the head of an answer. */
static void damage(struct head *h, const char *fault)
{
	size_t len;
	char *at;

	if (!strcmp(fault, "etag") && (at = field(h, "ETag", &len)) && len > 2)
		at[len / 2] = at[len / 2] == 'a' ? 'b' : 'a';
	if (!strcmp(fault, "range") && (at = field(h, "Content-Range", &len)))
		replace(h, at, len, "bytes 1-2/3");
	if (!strcmp(fault, "whole") && !strncmp(h->text, "HTTP/1.1 206", 12)) {
		memcpy(h->text + 9, "200", 3);
		remove_field(h, "Content-Range");
	}
	if (!strcmp(fault, "gzip"))
		add_field(h, "Content-Encoding: gzip\r\n");
}

/* Passes the rest of the answer on, up to the place of a fault. */
static bool pass_body(struct client *c, int server, struct head *h, const char *fault,
		      uint64_t after)
{
	bool cut = !strcmp(fault, "reset") || !strcmp(fault, "stall") || !strcmp(fault, "short");
	char piece[PIECE];
	const char *p = h->text + h->len;
	size_t n = h->have - h->len;
	uint64_t done = 0;

	for (;;) {
		ssize_t k;

		if (cut && n > after - done)
			n = (size_t)(after - done);
		if (!send_paced(c, p, n))
			return false;
		done += n;
		if (cut && done >= after)
			break;
		k = recv(server, piece, sizeof(piece), 0);
		if (k < 0 && errno == EINTR) {
			n = 0;
			continue;
		}
		if (k <= 0)
			return !k;
		p = piece;
		n = (size_t)k;
	}
	if (!strcmp(fault, "stall"))
		while (recv(c->fd, piece, sizeof(piece), 0) > 0)
			; /* until the client leaves */
	if (!strcmp(fault, "reset"))
		reset(c->fd);
	return false;
}

/* Passes the body of a request on to the server (-1: to nobody). False: the connection is over. */
static bool pass_request(struct client *c, int server, struct head *rq, const char *fault,
			 uint64_t after)
{
	size_t len, n = rq->have - rq->len;
	const char *given = field(rq, "Content-Length", &len);
	uint64_t left = given ? strtoull(given, NULL, 10) : 0, done = 0;
	char piece[PIECE], *p = rq->text + rq->len;

	for (;;) {
		ssize_t k;

		n = n < left ? n : (size_t)left;
		if (!strcmp(fault, "upload") && done + n >= after) {
			reset(c->fd);
			return false;
		}
		if (!strcmp(fault, "flip") && n && !done)
			p[0] ^= 1;
		if (server >= 0 && !send_all(server, p, n))
			server = -1; /* the server has answered already */
		done += n;
		left -= n;
		if (!left)
			return true;
		k = recv(c->fd, piece, sizeof(piece), 0);
		if (k < 0 && errno == EINTR) {
			n = 0;
			continue;
		}
		if (k <= 0)
			return false;
		p = piece;
		n = (size_t)k;
	}
}

static bool forward(struct client *c, struct head *rq, struct head *h, const char *fault,
		    uint64_t after, const char *what)
{
	bool keeps;
	size_t len;
	int server;

	remove_field(rq, "Connection");
	add_field(rq, "Connection: close\r\n");
	server = dial();
	if (server >= 0 && send_all(server, rq->text, rq->len) &&
	    !pass_request(c, server, rq, fault, after)) {
		(void)close(server);
		return false;
	}
	if (server < 0 || !read_head(server, h)) {
		if (server >= 0)
			(void)close(server);
		return answer(c, "503", "", "", 0, true) && false;
	}
	if (!strcmp(fault, "lost")) {
		char rest[PIECE];

		while (recv(server, rest, sizeof(rest), 0) > 0)
			; /* until it is done */
		(void)close(server);
		reset(c->fd);
		return false;
	}
	remove_field(h, "Connection");
	remove_field(h, "Keep-Alive");
	damage(h, fault);
	keeps = field(h, "Content-Length", &len) || field(h, "Transfer-Encoding", &len) ||
		!strncmp(rq->text, "HEAD ", 5);
	if (log_to) {
		char *range = field(rq, "Range", &len);

		(void)pthread_mutex_lock(&state.lock);
		(void)fprintf(log_to, "%.3s %s %.*s %s\n", h->text + 9, what, range ? (int)len : 0,
			      range ? range : "", fault);
		(void)fflush(log_to);
		(void)pthread_mutex_unlock(&state.lock);
	}
	keeps = send_all(c->fd, h->text, h->len) && pass_body(c, server, h, fault, after) && keeps;
	(void)close(server);
	return keeps;
}

/* Returns false if the connection ends. */
static bool serve_one(struct client *c, struct head *rq, struct head *h)
{
	char fault[16] = "", method[8], path[2048], what[2064];
	uint64_t after, hold;
	size_t host_len = 0;
	const char *host;

	if (!read_head(c->fd, rq) || sscanf(rq->text, "%7s %2047s", method, path) != 2)
		return false;
	if (!strncmp(path, "/.proxy", 7))
		return control(c, path);
	(void)pthread_mutex_lock(&state.lock);
	if (c->first)
		state.connections++;
	state.requests++;
	if (*state.now.fault && state.requests >= state.now.from &&
	    state.requests - state.now.from < state.now.times) {
		memcpy(fault, state.now.fault, sizeof(fault));
		state.faults++;
	}
	after = state.now.after;
	hold = state.now.latency_ms * 1000000u * (c->first ? 2 : 1);
	(void)pthread_mutex_unlock(&state.lock);
	c->first = false;
	if (hold)
		sleep_until(now_ns() + hold);
	if (!strcmp(fault, "close"))
		return false;
	if (!strcmp(fault, "junk"))
		return send_all(c->fd, "what is this?\r\n\r\n", 17) && false;
	if (!strcmp(fault, "error")) {
		static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 47\r\n\r\n"
					   "<Error><Code>InternalError</Code></Error>      ";

		return pass_request(c, -1, rq, "", 0) && send_all(c->fd, text, sizeof(text) - 1);
	}
	if (*fault >= '0' && *fault <= '9') {
		if (!pass_request(c, -1, rq, "", 0))
			return false;
		host = field(rq, "Host", &host_len);
		return answer(c, fault, path, host ? host : "", (int)host_len,
			      strcmp(method, "HEAD") != 0);
	}
	(void)snprintf(what, sizeof(what), "%s %s", method, path);
	return forward(c, rq, h, fault, after, what);
}

static void *serve(void *arg)
{
	struct client *c = arg;
	struct head *heads = malloc(2 * sizeof(*heads));

	while (heads && serve_one(c, &heads[0], &heads[1]))
		;
	(void)close(c->fd);
	free(heads);
	free(c);
	return NULL;
}

static int fail(const char *what)
{
	(void)fprintf(stderr, "proxy: %s: %m\n", what);
	return 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	upstream = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	if (!upstream || upstream > 65535)
		return fail("usage: proxy UPSTREAM_PORT [LOG]");
	if (argc > 2 && !(log_to = fopen(argv[2], "ae")))
		return fail(argv[2]);
	(void)signal(SIGPIPE, SIG_IGN);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 512) ||
	    getsockname(fd, (struct sockaddr *)&at, &len))
		return fail("listen");
	(void)printf("%u\n", ntohs(at.sin_port));
	(void)fflush(stdout);
	for (;;) {
		struct client *c = calloc(1, sizeof(*c));
		pthread_t t;

		if (!c)
			return fail("memory");
		c->first = true;
		c->fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (c->fd < 0 || pthread_create(&t, NULL, serve, c)) {
			if (c->fd >= 0)
				(void)close(c->fd);
			free(c);
			continue;
		}
		(void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		(void)pthread_detach(t);
	}
}

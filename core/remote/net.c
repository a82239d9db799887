/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/http.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

/*
 * One thread owns the multi handle and everything below but what `lock` guards. A call waits (due),
 * or has one transfer under way, or two: the second is the hedge. The first of them whose answer is
 * taken wins, and the other is dropped.
 *
 * A transfer cannot be removed, nor another one added, from within a callback of libcurl: callbacks
 * note what is to be done, and the loop does it.
 */

enum {
	FIELDS_MAX = 64 << 10,
	ERROR_MAX = 64 << 10,
	ERROR_READ_MAX = 1 << 20, /* more of an error's body ends the connection */
	MOVES_MAX = 8,		  /* requests that follow another at once */
	BACKOFF_MS = 50,
	BACKOFF_MAX_MS = 5000,
	UNKNOWN_MS = 3000, /* for a server that has never answered */
	SLOW_S = 30,	   /* a transfer slower than SLOW_BPS for this long is ended */
	SLOW_BPS = 1024,
	LEAST_BPS = 16 << 10, /* a call may take so long as this, besides retry_ms */
	SAMPLES = 64,
	AT_ONCE_FIRST = 8,
	POOL_MAX = 128,
	/* libcurl allocates it for each transfer under way. */
	RECEIVE_BYTES = 128 << 10,
	SEND_BYTES = 128 << 10,
	BODY_MAX = 4 << 20, /* 10,000 parts of an upload with their ETags */
};

struct call;

struct transfer {
	LIST_LINK(struct transfer) link; /* of net.transfers */
	struct call *call;		 /* NULL: dropped */
	struct net *net;
	CURL *easy;
	struct http_message m;
	struct buf fields, error;
	uint64_t error_seen;
	uint64_t began_ns, first_ns, last_ns, bytes;
	uint64_t mark_ns, mark_bytes; /* for SLOW_BPS */
	uint64_t sent;		      /* bytes of http_message.upload */
	bool head_over, judged;
	enum http_verdict verdict;
	int stop; /* what ended it from within a callback: errno */
	struct ckpt_err e;
	char why[CURL_ERROR_SIZE];
};

struct call {
	LIST_LINK(struct call) link; /* of net.incoming or net.calls; under lock */
	uint64_t id;
	const struct http_ops *ops;
	void *arg;
	struct http_how how;
	char *what;
	_Atomic bool cancelled;
	struct transfer *t[2];
	uint64_t got;
	uint64_t most, sent;		    /* the most that a request has brought, and has sent */
	uint64_t due_ns, began_ns, byte_ns; /* byte_ns: when the last byte came, or began_ns */
	bool begun; /* before, it waited for a connection: that is not the server's doing */
	unsigned tries, moves;
	struct ckpt_err last; /* why it is tried again */
	bool timed_out;	      /* that was because nothing came */
};

struct net {
	struct net_options o;
	CURLM *multi;
	CURLSH *share;
	pthread_t thread;
	LIST(struct transfer) transfers;
	CURL *pool[POOL_MAX];
	unsigned n_pool, in_flight;
	const char *ca_file;
	uint64_t random;

	/* What net_pace reports. */
	struct net_pace pace;
	uint64_t latency_us[SAMPLES], bps[SAMPLES];
	unsigned n_latency, n_bps;
	uint64_t p95_ns; /* of latency */
	uint64_t busy_ns, busy_bytes, halved_ns;
	unsigned credit; /* successes since at_once grew */
	bool was_halved;

	pthread_mutex_t lock;
	LIST(struct call) incoming, calls;
	struct net_pace shown;
	uint64_t reads, read_bytes; /* of net_note_read */
	uint64_t next_id;
	bool stop;
};

/* ---- messages ---- */

void http_add_field(struct http_message *m, const char *name, const char *value)
{
	struct buf line CLEANUP(buf_release) = BUF_INIT(FIELDS_MAX);
	struct curl_slist *more;

	for (const char *c = value; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			m->url.err = EFBIG;
	/* "name;" is how libcurl is told to send a field without a value. */
	buf_str(&line, name);
	buf_str(&line, *value ? ": " : ";");
	buf_str(&line, value);
	more = line.err || m->url.err ? NULL : curl_slist_append(m->fields, line.data);
	if (line.data)
		explicit_bzero(line.data, line.len);
	if (more)
		m->fields = more;
	else if (!m->url.err)
		m->url.err = ENOMEM;
}

/* A name without a value is how libcurl is told to leave a field out. */
static void no_expect(struct http_message *m)
{
	struct curl_slist *more = curl_slist_append(m->fields, "Expect:");

	if (more)
		m->fields = more;
	else
		m->url.err = ENOMEM;
}

static void release_message(struct http_message *m)
{
	for (struct curl_slist *l = m->fields; l; l = l->next)
		explicit_bzero(l->data, strlen(l->data));
	curl_slist_free_all(m->fields);
	if (m->url.data)
		explicit_bzero(m->url.data, m->url.len);
	if (m->body.data)
		explicit_bzero(m->body.data, m->body.len);
	buf_release(&m->url);
	buf_release(&m->body);
	*m = (struct http_message){ 0 };
}

/* ---- heads of answers; fields are NAME NUL VALUE NUL ... ---- */

const char *http_field(const struct http_answer *a, const char *name)
{
	const char *p = a->fields->data, *end = p ? p + a->fields->len : NULL, *found = NULL;

	while (p && p < end) {
		const char *value = p + strlen(p) + 1;

		if (!strcasecmp(p, name)) {
			if (found && strcmp(found, value))
				return "";
			found = value;
		}
		p = value + strlen(value) + 1;
	}
	return found;
}

/* Steps over decimal digits. */
static bool take_u64(const char **s, uint64_t *ret)
{
	const char *p = *s;
	uint64_t v = 0;

	for (; *p >= '0' && *p <= '9'; p++)
		if (ckd_mul(&v, v, 10) || ckd_add(&v, v, (uint64_t)(*p - '0')))
			return false;
	if (p == *s)
		return false;
	*s = p;
	*ret = v;
	return true;
}

bool http_number(const struct http_answer *a, const char *name, uint64_t *ret)
{
	const char *s = http_field(a, name);
	uint64_t v;

	if (!s || !take_u64(&s, &v) || *s)
		return false;
	*ret = v;
	return true;
}

bool http_range(const struct http_answer *a, uint64_t *ret_first, uint64_t *ret_last,
		uint64_t *ret_total)
{
	const char *s = http_field(a, "Content-Range");
	uint64_t first, last, total = UINT64_MAX;

	if (!s || strncasecmp(s, "bytes ", 6) != 0)
		return false;
	s += 6;
	if (!take_u64(&s, &first) || *s++ != '-' || !take_u64(&s, &last) || *s++ != '/' ||
	    first > last)
		return false;
	if (*s == '*')
		s++;
	else if (!take_u64(&s, &total) || last >= total)
		return false;
	if (*s)
		return false;
	*ret_first = first;
	*ret_last = last;
	*ret_total = total;
	return true;
}

bool http_passes(unsigned status)
{
	return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
	       status == 504;
}

CLEANUP_POINTER(free_url, CURLU, curl_url_cleanup)

int http_location(const struct http_answer *a, char **ret, struct ckpt_err *e)
{
	const char *to = http_field(a, "Location");
	CURLU *u CLEANUP(free_url) = curl_url();
	char *url = NULL, *scheme = NULL;
	bool was_secure, ok;

	if (!u)
		return err_nomem(e);
	if (!to || !*to)
		return err_set(e, EIO, "the server redirects (%u) and does not say where to",
			       a->status);
	ok = !curl_url_set(u, CURLUPART_URL, a->url, CURLU_PATH_AS_IS) &&
	     !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0);
	was_secure = ok && !strcmp(scheme, "https");
	curl_free(scheme);
	scheme = NULL;
	ok = ok && !curl_url_set(u, CURLUPART_URL, to, CURLU_PATH_AS_IS) &&
	     !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
	     (!strcmp(scheme, "https") || (!was_secure && !strcmp(scheme, "http"))) &&
	     !curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0) &&
	     !curl_url_set(u, CURLUPART_USER, NULL, 0) &&
	     !curl_url_set(u, CURLUPART_PASSWORD, NULL, 0) &&
	     !curl_url_get(u, CURLUPART_URL, &url, 0);
	curl_free(scheme);
	if (!ok) {
		curl_free(url);
		return err_set(e, EIO,
			       "the server redirects (%u) to what is not %s, which is refused",
			       a->status, was_secure ? "https" : "http or https");
	}
	*ret = strdup(url);
	curl_free(url);
	return *ret ? 0 : err_nomem(e);
}

/* ---- pace ---- */

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The value at a fraction (hundredths) of the samples in order. */
static uint64_t fraction(const uint64_t *v, unsigned n, unsigned hundredths)
{
	uint64_t sorted[SAMPLES];

	if (!n) /* not covered: the 2^32nd */
		return 0;
	n = n < SAMPLES ? n : SAMPLES;
	memcpy(sorted, v, n * sizeof(*v));
	qsort(sorted, n, sizeof(*v), compare_u64);
	return sorted[(n - 1) * hundredths / 100];
}

static void note_latency(struct net *n, uint64_t ns)
{
	n->latency_us[n->n_latency++ % SAMPLES] = ns / 1000;
	/* Now and then is enough: they change slowly. */
	if (n->n_latency > 16 && n->n_latency % 16)
		return;
	n->pace.latency_us = fraction(n->latency_us, n->n_latency, 50);
	n->p95_ns = fraction(n->latency_us, n->n_latency, 95) * 1000;
}

static void note_speed(struct net *n, const struct transfer *t)
{
	uint64_t ns = t->last_ns - t->first_ns;

	/* The first bytes of less tell nothing but what was in the buffers. */
	if (t->bytes < (256 << 10) || ns < CLOCK_MS)
		return;
	n->bps[n->n_bps++ % SAMPLES] = (uint64_t)((double)t->bytes * 1e9 / (double)ns);
	n->pace.connection_bps = fraction(n->bps, n->n_bps, 50);
}

static void note_busy(struct net *n, uint64_t now)
{
	uint64_t ns = now - n->busy_ns;

	if (n->in_flight && ns < CLOCK_SECOND)
		return;
	if (ns > CLOCK_SECOND / 5 && n->busy_bytes)
		n->pace.total_bps = (uint64_t)((double)n->busy_bytes * 1e9 / (double)ns);
	n->busy_ns = now;
	n->busy_bytes = 0;
}

static void note_success(struct net *n)
{
	/* No more than are asked for: what is not used says nothing. */
	if (n->in_flight + 1 < n->pace.at_once || n->pace.at_once >= n->o.max_connections)
		return;
	if (n->was_halved && ++n->credit < n->pace.at_once)
		return;
	n->credit = 0;
	n->pace.at_once++;
}

static void note_trouble(struct net *n, uint64_t now)
{
	/* Requests that were sent together are refused together. */
	if (n->was_halved && now - n->halved_ns < CLOCK_SECOND)
		return;
	n->pace.at_once = n->pace.at_once > 1 ? n->pace.at_once / 2 : 1;
	n->credit = 0;
	n->was_halved = true;
	n->halved_ns = now;
}

static uint64_t random_below(struct net *n, uint64_t below)
{
	n->random ^= n->random << 13;
	n->random ^= n->random >> 7;
	n->random ^= n->random << 17;
	return n->random % below;
}

/* ---- transfers ---- */

static unsigned stall_ms(const struct net *n, const struct call *c)
{
	return c->how.stall_ms ? c->how.stall_ms : n->o.stall_ms;
}

static unsigned retry_ms(const struct net *n, const struct call *c)
{
	return c->how.retry_ms ? c->how.retry_ms : n->o.retry_ms;
}

static void judge(struct transfer *t)
{
	struct call *c = t->call;
	long status = 0;
	struct http_answer a = { .fields = &t->fields,
				 .error = t->error.data ? t->error.data : "",
				 .error_len = t->error.len,
				 .url = t->m.url.data };

	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	a.status = (unsigned)status;
	t->judged = true;
	t->verdict = c->ops->judge(c->arg, c->got, &a, &t->e);
	if (status == 503 || status == 429)
		note_trouble(t->net, clock_ns());
	if (t->verdict == HTTP_TAKE) /* the winner */
		for (int i = 0; i < 2; i++)
			if (c->t[i] && c->t[i] != t) {
				c->t[i]->call = NULL;
				c->t[i] = NULL;
			}
}

static void note_byte(struct transfer *t)
{
	t->last_ns = clock_ns();
	if (t->first_ns)
		return;
	t->first_ns = t->last_ns;
	/* A request with a body is answered when that has been sent. */
	if (!t->m.read && !t->m.body.len)
		note_latency(t->net, t->first_ns - t->began_ns);
}

static size_t on_field(char *p, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	size_t len = size * n, name;
	const char *colon;

	if (!t->call)
		return 0;
	note_byte(t);
	while (len && (p[len - 1] == '\r' || p[len - 1] == '\n'))
		len--;
	if (!len) {
		t->head_over = true;
		if (t->call->how.answered) /* even if no body comes */
			atomic_store(t->call->how.answered, true);
		return size * n;
	}
	if (t->head_over) { /* another head, behind "100 Continue" */
		buf_restart(&t->fields);
		t->head_over = false;
	}
	colon = memchr(p, ':', len);
	/* NUL would end a value before its end. */
	if (!colon || memchr(p, 0, len))
		return size * n;
	name = (size_t)(colon++ - p);
	while (colon < p + len && (*colon == ' ' || *colon == '\t'))
		colon++;
	while (p + len > colon && (p[len - 1] == ' ' || p[len - 1] == '\t'))
		len--;
	buf_add(&t->fields, p, name);
	buf_add(&t->fields, "", 1);
	buf_add(&t->fields, colon, (size_t)(p + len - colon));
	buf_add(&t->fields, "", 1);
	if (!t->fields.err)
		return size * n;
	t->stop = t->fields.err == ENOMEM ? ENOMEM : EIO;
	if (t->stop == ENOMEM)
		err_nomem(&t->e);
	else
		err_set(&t->e, EIO, "the answer's header fields are larger than %d KiB, refused",
			FIELDS_MAX >> 10);
	return 0;
}

static size_t on_bytes(char *p, size_t size, size_t count, void *arg)
{
	struct transfer *t = arg;
	struct call *c = t->call;
	size_t n = size * count;
	long status = 0;

	if (!c)
		return 0;
	note_byte(t);
	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status / 100 != 2) { /* judged at its end */
		size_t room = t->error.max - t->error.len;

		t->error_seen += n;
		buf_add(&t->error, p, n < room ? n : room);
		return t->error_seen > ERROR_READ_MAX ? 0 : n;
	}
	if (!t->judged)
		judge(t);
	if (t->verdict != HTTP_TAKE)
		return 0;
	if (n > c->how.len - c->got) {
		t->stop = EIO;
		err_set(&t->e, EIO, "the server sent more than the %llu bytes that were asked for",
			(unsigned long long)c->how.len);
		return 0;
	}
	if (c->ops->bytes(c->arg, p, n)) {
		t->stop = ECANCELED;
		return 0;
	}
	c->got += n;
	if (c->got > c->most) { /* what comes again is no progress */
		c->most = c->got;
		c->byte_ns = t->last_ns;
	}
	t->bytes += n;
	t->net->pace.bytes += n;
	t->net->busy_bytes += n;
	return n;
}

/* More of what is uploaded. */
static size_t on_send(char *p, size_t size, size_t count, void *arg)
{
	struct transfer *t = arg;
	struct call *c = t->call;
	size_t n = (size_t)min_u64(size * count, t->m.upload - t->sent);
	int rc;

	if (!c)
		return CURL_READFUNC_ABORT;
	rc = n ? t->m.read(t->m.read_arg, t->sent, p, n) : 0;
	if (rc) {
		t->stop = -rc;
		err_sys(&t->e, -rc, "read what is to be uploaded");
		return CURL_READFUNC_ABORT;
	}
	t->sent += n;
	t->last_ns = clock_ns();
	if (t->sent > c->sent) { /* what is sent again is no progress */
		c->sent = t->sent;
		c->byte_ns = t->last_ns;
	}
	return n;
}

/* libcurl begins again on another connection. */
static int on_seek(void *arg, curl_off_t off, int origin)
{
	struct transfer *t = arg;

	if (origin != SEEK_SET || off < 0 || (uint64_t)off > t->m.upload)
		return CURL_SEEKFUNC_CANTSEEK;
	t->sent = (uint64_t)off;
	return CURL_SEEKFUNC_OK;
}

static void free_transfer(struct net *n, struct transfer *t)
{
	LIST_REMOVE(&n->transfers, t);
	if (t->easy) {
		(void)curl_multi_remove_handle(n->multi, t->easy);
		n->in_flight--;
		if (n->n_pool < POOL_MAX) {
			curl_easy_reset(t->easy);
			n->pool[n->n_pool++] = t->easy;
		} else
			curl_easy_cleanup(t->easy);
	}
	release_message(&t->m);
	buf_release(&t->fields);
	buf_release(&t->error);
	free(t);
}

static void drop_transfers(struct call *c)
{
	for (int i = 0; i < 2; i++) {
		if (c->t[i])
			c->t[i]->call = NULL;
		c->t[i] = NULL;
	}
}

/* Sets what every request has. */
static bool set_options(struct net *n, struct transfer *t)
{
	const char *method = t->m.method ? t->m.method : "GET";
	unsigned connect = t->call->how.connect_ms ? t->call->how.connect_ms : n->o.connect_ms;
	CURL *h = t->easy;
	CURLcode bad = CURLE_OK;

#define SET(option, value) \
	do { \
		CURLcode code_ = curl_easy_setopt(h, option, value); \
		bad = bad ? bad : code_; \
	} while (0)
	SET(CURLOPT_URL, t->m.url.data);
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
	SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_PATH_AS_IS, 1L);
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_TCP_NODELAY, 1L);
	SET(CURLOPT_TCP_KEEPALIVE, 1L);
	SET(CURLOPT_SHARE, n->share);
	/* Refused by libcurl 7.74 when a handle is used again, which has its buffer then. */
	(void)curl_easy_setopt(h, CURLOPT_BUFFERSIZE, (long)RECEIVE_BYTES);
	SET(CURLOPT_CONNECTTIMEOUT_MS, (long)connect);
	SET(CURLOPT_USERAGENT, "ckptfs/" CKPTFS_VERSION);
	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	SET(CURLOPT_HEADERFUNCTION, on_field);
	SET(CURLOPT_HEADERDATA, t);
	SET(CURLOPT_WRITEFUNCTION, on_bytes);
	SET(CURLOPT_WRITEDATA, t);
	SET(CURLOPT_PRIVATE, t);
	SET(CURLOPT_ERRORBUFFER, t->why);
	SET(CURLOPT_HTTPHEADER, t->m.fields);
	if (n->ca_file)
		SET(CURLOPT_CAINFO, n->ca_file);
	if (t->m.once)
		SET(CURLOPT_FRESH_CONNECT, 1L);
	if (t->m.direct)
		SET(CURLOPT_PROXY, "");
	if (!strcmp(method, "HEAD"))
		SET(CURLOPT_NOBODY, 1L);
	else if (t->m.read) {
		SET(CURLOPT_UPLOAD, 1L);
		SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)t->m.upload);
		SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)SEND_BYTES);
		SET(CURLOPT_READFUNCTION, on_send);
		SET(CURLOPT_READDATA, t);
		SET(CURLOPT_SEEKFUNCTION, on_seek);
		SET(CURLOPT_SEEKDATA, t);
		SET(CURLOPT_CUSTOMREQUEST, method);
	} else if (!strcmp(method, "DELETE")) {
		/* No body, nor the type of one: Ceph takes a form for a request without a signature. */
		SET(CURLOPT_CUSTOMREQUEST, method);
	} else if (strcmp(method, "GET") != 0) {
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->m.body.len);
		SET(CURLOPT_POSTFIELDS, t->m.body.data ? t->m.body.data : "");
		SET(CURLOPT_CUSTOMREQUEST, method);
	}
#undef SET
	return !bad;
}

static void end_call(struct net *n, struct call *c, int rc, const struct ckpt_err *e)
{
	struct ckpt_err all = { 0 };

	drop_transfers(c);
	if (rc) {
		err_set(&all, -rc, "%s", e && e->msg[0] ? e->msg : strerror(-rc));
		err_wrap(&all, "'%s'", c->what);
	}
	{
		SCOPED_LOCK(&n->lock);
		LIST_REMOVE(&n->calls, c);
	}
	c->ops->done(c->arg, rc, rc ? &all : NULL);
	free(c->what);
	free(c);
}

/* Starts a request of the call. False: the call is over, or has to wait. */
static bool start(struct net *n, struct call *c, uint64_t now)
{
	int slot = c->t[0] ? 1 : 0, rc;
	struct ckpt_err e = { 0 };
	struct transfer *t = calloc(1, sizeof(*t));

	if (!t) {
		err_nomem(&e);
		if (!c->t[0])
			end_call(n, c, -ENOMEM, &e);
		return false;
	}
	t->net = n;
	t->m.url = (struct buf)BUF_INIT(64 << 10);
	t->m.body = (struct buf)BUF_INIT(BODY_MAX);
	t->fields = (struct buf)BUF_INIT(FIELDS_MAX);
	t->error = (struct buf)BUF_INIT(ERROR_MAX);
	LIST_PUSH(&n->transfers, t);
	rc = c->ops->make(c->arg, c->got, &t->m, &e);
	if (!rc)
		http_add_field(&t->m, "Accept-Encoding", "identity");
	if (!rc && (t->m.read || t->m.body.len)) /* libcurl would wait for "100 Continue" */
		no_expect(&t->m);
	if (!rc && (t->m.url.err || t->m.body.err))
		rc = err_set(&e, t->m.url.err ? t->m.url.err : t->m.body.err,
			     "no request can be made: %s",
			     strerror(t->m.url.err ? t->m.url.err : t->m.body.err));
	if (!rc) {
		t->easy = n->n_pool ? n->pool[--n->n_pool] : curl_easy_init();
		if (!t->easy)
			rc = err_nomem(&e);
		else
			n->in_flight++;
	}
	t->call = c;
	if (!rc && !set_options(n, t))
		rc = err_nomem(&e);
	if (!rc && curl_multi_add_handle(n->multi, t->easy))
		rc = err_nomem(&e);
	if (rc) {
		free_transfer(n, t);
		if (slot) /* it was only a hedge */
			return false;
		if (rc == -EAGAIN && now - c->byte_ns < retry_ms(n, c) * CLOCK_MS)
			c->due_ns = now + 20 * CLOCK_MS;
		else
			end_call(n, c, rc == -EAGAIN ? -ETIMEDOUT : rc, &e);
		return false;
	}
	if (n->in_flight == 1) {
		n->busy_ns = now;
		n->busy_bytes = 0;
	}
	if (!c->begun)
		c->began_ns = c->byte_ns = now;
	c->begun = true;
	c->t[slot] = t;
	t->began_ns = t->last_ns = t->mark_ns = now;
	n->pace.requests++;
	return true;
}

/* The call has no transfer left, and is to be tried again. */
static void again(struct net *n, struct call *c, uint64_t now, uint64_t at_least_ms)
{
	uint64_t limit = retry_ms(n, c),
		 delay = (uint64_t)BACKOFF_MS << (c->tries < 7 ? c->tries : 7);
	uint64_t bytes = c->how.upload		    ? c->how.upload
			 : c->how.len != UINT64_MAX ? c->how.len
						    : c->most;
	uint64_t total = retry_ms(n, c) + bytes / LEAST_BPS * 1000 + stall_ms(n, c);
	bool unknown = c->how.answered && !atomic_load(c->how.answered);

	if (unknown)
		limit = min_u64(limit, UNKNOWN_MS);
	/* A quarter of the time that is left for it, so that it is tried more than once. */
	delay = random_below(n, min_u64(min_u64(delay, BACKOFF_MAX_MS), limit / 4) + 1);
	delay = max_u64(delay, min_u64(at_least_ms, BACKOFF_MAX_MS));
	c->tries++;
	if (now + delay * CLOCK_MS - c->byte_ns > limit * CLOCK_MS ||
	    now - c->began_ns > total * CLOCK_MS) {
		struct ckpt_err e = c->last;
		int code = c->timed_out ? ETIMEDOUT : EIO;

		if (c->tries > 1)
			err_set(&e, code, "%s; tried %u times in %.1f s", c->last.msg, c->tries,
				(double)(now - c->byte_ns) / 1e9);
		end_call(n, c, -code, &e);
		return;
	}
	if (c->ops->restart && c->got) {
		c->ops->restart(c->arg);
		c->got = 0;
	}
	n->pace.retries++;
	c->due_ns = now + delay * CLOCK_MS;
}

/* What no repetition will cure. */
static bool is_hopeless(CURLcode code)
{
	switch (code) {
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_URL_MALFORMAT:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_SSL_CIPHER:
	case CURLE_SSL_ENGINE_NOTFOUND:
	case CURLE_BAD_FUNCTION_ARGUMENT:
		return true;
	default:
		return false;
	}
}

static bool is_timeout(CURLcode code)
{
	return code == CURLE_OPERATION_TIMEDOUT;
}

/* A transfer has ended, as libcurl or the clock says (then `why` is set); frees it. */
static void ended(struct net *n, struct transfer *t, CURLcode code, uint64_t now)
{
	struct call *c = t->call;
	struct ckpt_err e = { 0 };
	uint64_t wait_s = 0;
	int rc = 0;
	bool later = false, others, timed_out = is_timeout(code), at_once = false;
	long status = 0;

	if (!c) {
		free_transfer(n, t);
		return;
	}
	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (!t->stop && !t->judged && t->head_over &&
	    (code == CURLE_OK || (status / 100 != 2 && t->error_seen > ERROR_READ_MAX)))
		judge(t);
	e = t->e;
	if (t->stop)
		rc = -t->stop;
	else if (t->judged && t->verdict == HTTP_FAIL)
		rc = e.code ? -e.code : err_set(&e, EIO, "the server answered %ld", status);
	else if (t->judged && t->verdict == HTTP_NOW) {
		if (++c->moves > MOVES_MAX)
			rc = err_set(&e, EIO, "the server redirects without end");
		else
			at_once = true;
	} else if (t->judged && t->verdict == HTTP_AGAIN) {
		struct http_answer a = { .fields = &t->fields };

		later = true;
		if (!e.code)
			err_set(&e, EIO, "the server answered %ld", status);
		(void)http_number(&a, "Retry-After", &wait_s);
	} else if (code || !t->head_over) {
		later = !is_hopeless(code);
		if (timed_out)
			note_trouble(n, now);
		rc = err_set(
			&e, timed_out ? ETIMEDOUT : EIO, "%s",
			!code ? "the connection ended within the head of the answer"
			/* libcurl says so of a field of more than 100 KiB, too. */
			: code == CURLE_OUT_OF_MEMORY && !t->head_over
				? "the answer's header fields are too large, or memory is short"
			: t->why[0] ? t->why
				    : curl_easy_strerror(code));
	} else if (c->how.len != UINT64_MAX && c->got < c->how.len) {
		later = true;
		err_set(&e, EIO, "the answer ended after %llu of %llu bytes",
			(unsigned long long)c->got, (unsigned long long)c->how.len);
	} else {
		note_speed(n, t);
		note_success(n);
	}
	for (int i = 0; i < 2; i++)
		if (c->t[i] == t)
			c->t[i] = NULL;
	if (!c->t[0]) {
		c->t[0] = c->t[1];
		c->t[1] = NULL;
	}
	others = c->t[0];
	free_transfer(n, t);
	if (at_once) {
		drop_transfers(c);
		c->due_ns = now;
	} else if (later && others)
		return; /* the hedge, or what was hedged, may still answer */
	else if (later) {
		c->last = e;
		c->timed_out = timed_out;
		again(n, c, now, min_u64(wait_s, 3600) * 1000);
	} else
		end_call(n, c, rc, &e);
}

/* ---- the loop ---- */

/* How long a request that somebody waits for may be without an answer before a second is sent. */
static uint64_t hedge_ns(const struct net *n)
{
	return max_u64(CLOCK_SECOND, 5 * n->p95_ns);
}

/* Ends what has stalled, starts hedges. Returns when to look again. */
static uint64_t look_at_clock(struct net *n, uint64_t now)
{
	uint64_t next = now + CLOCK_SECOND;
	struct transfer *after;

	for (struct transfer *t = n->transfers.first; t; t = after) {
		struct call *c = t->call;
		uint64_t stall, hedge;

		after = t->link.next;
		if (!c) {
			free_transfer(n, t);
			next = now; /* another may start */
			continue;
		}
		stall = t->last_ns + stall_ms(n, c) * CLOCK_MS;
		/* What is left of retry_ms counts too, but not while bytes come. */
		stall = min_u64(stall, max_u64(t->last_ns, c->byte_ns) + retry_ms(n, c) * CLOCK_MS);
		if (now >= stall) {
			(void)snprintf(t->why, sizeof(t->why), "no byte came for %.1f s",
				       (double)(now - t->last_ns) / 1e9);
			ended(n, t, CURLE_OPERATION_TIMEDOUT, now);
			/* That may have started or freed others. */
			return now;
		}
		next = min_u64(next, stall);
		if (now - t->mark_ns > SLOW_S * CLOCK_SECOND) { /* not covered: takes so long */
			uint64_t moved = t->bytes + t->sent - t->mark_bytes;

			/* While an upload is answered nothing moves: how.stall_ms is for that. */
			if (moved < SLOW_S * SLOW_BPS && !t->m.read && !t->m.body.len) {
				(void)snprintf(t->why, sizeof(t->why),
					       "only %llu bytes came in %d s",
					       (unsigned long long)moved, SLOW_S);
				ended(n, t, CURLE_OPERATION_TIMEDOUT, now);
				return now;
			}
			t->mark_ns = now;
			t->mark_bytes = t->bytes + t->sent;
		}
		if (!c->how.urgent || t->first_ns || c->t[1])
			continue;
		hedge = t->began_ns + hedge_ns(n);
		if (now < hedge)
			next = min_u64(next, hedge);
		else if (n->in_flight < n->o.max_connections && start(n, c, now))
			n->pace.hedges++;
	}
	return next;
}

/* Starts what may start, urgent calls first. Returns when the next is due. */
static uint64_t start_calls(struct net *n, uint64_t now)
{
	uint64_t next = now + CLOCK_SECOND;
	struct call *before;

	for (int urgent = 1; urgent >= 0; urgent--)
		for (struct call *c = n->calls.last; c; c = before) {
			before = c->link.prev; /* newer ones are in front */
			if (atomic_load(&c->cancelled) ||
			    (c->how.cancel && atomic_load(c->how.cancel))) {
				end_call(n, c, -ECANCELED, NULL);
				continue;
			}
			if (c->t[0] || c->how.urgent != (bool)urgent)
				continue;
			if (c->due_ns > now)
				next = min_u64(next, c->due_ns);
			else if (n->in_flight < (urgent ? n->o.max_connections : n->pace.at_once))
				(void)start(n, c, now);
		}
	return next;
}

/* Takes what others have asked for. False: it is to end. */
static bool take_incoming(struct net *n)
{
	SCOPED_LOCK(&n->lock);

	n->shown = n->pace;
	while (n->incoming.last) {
		struct call *c = n->incoming.last;

		LIST_REMOVE(&n->incoming, c);
		LIST_PUSH(&n->calls, c);
	}
	return !n->stop;
}

static void *run(void *arg)
{
	struct net *n = arg;
	bool stop = false;

	while (!stop || n->calls.first) {
		uint64_t now, next, before;
		int running, left;
		CURLMsg *m;

		stop = !take_incoming(n);
		if (stop)
			LIST_EACH (c, &n->calls)
				atomic_store(&c->cancelled, true);
		now = clock_ns();
		next = start_calls(n, now);
		before = clock_ns();
		(void)curl_multi_perform(n->multi, &running);
		now = clock_ns();
		/* A slow disk took bytes for so long that those of others had to wait. */
		if (now - before > CLOCK_SECOND)
			LIST_EACH (t, &n->transfers)
				t->last_ns = now;
		while ((m = curl_multi_info_read(n->multi, &left)))
			if (m->msg == CURLMSG_DONE) {
				struct transfer *t = NULL;

				(void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE,
							(char **)&t);
				ended(n, t, m->data.result, now);
				next = now;
			}
		next = min_u64(next, look_at_clock(n, now));
		note_busy(n, now);
		now = clock_ns();
		if (next > now && !stop)
			(void)curl_multi_poll(n->multi, NULL, 0,
					      (int)((next - now + CLOCK_MS - 1) / CLOCK_MS), NULL);
	}
	while (n->transfers.first)
		free_transfer(n, n->transfers.first);
	return NULL;
}

/* ---- calls ---- */

int http_start(struct net *n, const struct http_ops *ops, void *arg, const struct http_how *how,
	       uint64_t *ret_id, struct ckpt_err *e)
{
	struct call *c = calloc(1, sizeof(*c));

	if (!c || !(c->what = strdup(how->what))) {
		free(c);
		return err_nomem(e);
	}
	c->ops = ops;
	c->arg = arg;
	c->how = *how;
	c->how.what = c->what;
	c->began_ns = c->byte_ns = c->due_ns = clock_ns();
	{
		SCOPED_LOCK(&n->lock);
		c->id = ++n->next_id;
		if (ret_id)
			*ret_id = c->id;
		LIST_PUSH(&n->incoming, c);
	}
	(void)curl_multi_wakeup(n->multi);
	return 0;
}

void http_cancel(struct net *n, uint64_t id)
{
	{
		SCOPED_LOCK(&n->lock);
		LIST_EACH (c, &n->incoming)
			if (c->id == id)
				atomic_store(&c->cancelled, true);
		LIST_EACH (c, &n->calls)
			if (c->id == id)
				atomic_store(&c->cancelled, true);
	}
	(void)curl_multi_wakeup(n->multi);
}

struct exchange {
	const struct http_ops *ops;
	void *arg;
	struct buf *body;
	size_t len; /* of *body, before */
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool over;
	int rc;
	struct ckpt_err *e;
};

static int exchange_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	const struct exchange *x = arg;

	return x->ops->make(x->arg, from, m, e);
}

static enum http_verdict exchange_judge(void *arg, uint64_t from, const struct http_answer *a,
					struct ckpt_err *e)
{
	const struct exchange *x = arg;

	return x->ops->judge(x->arg, from, a, e);
}

static int exchange_bytes(void *arg, const void *p, size_t n)
{
	struct exchange *x = arg;

	buf_add(x->body, p, n);
	return x->body->err;
}

static void exchange_restart(void *arg)
{
	const struct exchange *x = arg;

	x->body->len = x->len;
	x->body->data[x->len] = 0; /* something has come, or nobody would restart */
}

static void exchange_done(void *arg, int rc, const struct ckpt_err *e)
{
	struct exchange *x = arg;

	SCOPED_LOCK(&x->lock);
	x->rc = rc;
	if (rc)
		*x->e = *e;
	x->over = true;
	(void)pthread_cond_signal(&x->ended);
}

int http_exchange(struct net *n, const struct http_ops *ops, void *arg, const struct http_how *how,
		  struct buf *body, struct ckpt_err *e)
{
	static const struct http_ops mine = { exchange_make, exchange_judge, exchange_bytes,
					      exchange_restart, exchange_done };
	struct exchange x = { .ops = ops, .arg = arg, .body = body, .len = body->len, .e = e };
	int rc;

	(void)pthread_mutex_init(&x.lock, NULL);
	(void)pthread_cond_init(&x.ended, NULL);
	rc = http_start(n, &mine, &x, how, NULL, e);
	if (!rc) {
		SCOPED_LOCK(&x.lock);
		while (!x.over)
			(void)pthread_cond_wait(&x.ended, &x.lock);
		rc = x.rc;
	}
	(void)pthread_cond_destroy(&x.ended);
	(void)pthread_mutex_destroy(&x.lock);
	if (rc == -ECANCELED && body->err == EFBIG)
		rc = err_set(e, EIO, "'%s': the answer is larger than %zu KiB, refused", how->what,
			     body->max >> 10);
	else if (rc == -ECANCELED && body->err)
		rc = err_nomem(e);
	return rc;
}

/* ---- the network ---- */

static void global_init(void)
{
	(void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* The first of them that is set. */
static const char *ca_file(void)
{
	static const char *const names[] = { "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *v = getenv(names[i]);

		if (v && *v)
			return v;
	}
	return NULL;
}

int net_new(const struct net_options *o, struct net **ret, struct ckpt_err *e)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct net *n = calloc(1, sizeof(*n));
	int rc;

	if (!n)
		return err_nomem(e);
	(void)pthread_once(&once, global_init);
	if (o)
		n->o = *o;
	n->o.max_connections = n->o.max_connections ? n->o.max_connections : 64;
	n->o.connect_ms = n->o.connect_ms ? n->o.connect_ms : 3000;
	n->o.stall_ms = n->o.stall_ms ? n->o.stall_ms : 10000;
	n->o.retry_ms = n->o.retry_ms ? n->o.retry_ms : 60000;
	n->pace.at_once = (unsigned)min_u64(AT_ONCE_FIRST, n->o.max_connections);
	n->shown = n->pace;
	n->ca_file = ca_file();
	if (getrandom(&n->random, sizeof(n->random), GRND_NONBLOCK) != sizeof(n->random) ||
	    !n->random)
		n->random = clock_ns() | 1;
	(void)pthread_mutex_init(&n->lock, NULL);
	n->multi = curl_multi_init();
	n->share = curl_share_init();
	if (!n->multi || !n->share ||
	    curl_share_setopt(n->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION) ||
	    curl_multi_setopt(n->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING) ||
	    curl_multi_setopt(n->multi, CURLMOPT_MAXCONNECTS, (long)n->o.max_connections * 2)) {
		rc = err_nomem(e);
		goto fail;
	}
	rc = pthread_create(&n->thread, NULL, run, n);
	if (rc) {
		rc = err_sys(e, rc, "start a thread for the network");
		goto fail;
	}
	*ret = n;
	return 0;
fail:
	if (n->multi)
		(void)curl_multi_cleanup(n->multi);
	(void)curl_share_cleanup(n->share);
	(void)pthread_mutex_destroy(&n->lock);
	free(n);
	return rc;
}

void net_free(struct net *n)
{
	if (!n)
		return;
	{
		SCOPED_LOCK(&n->lock);
		n->stop = true;
	}
	(void)curl_multi_wakeup(n->multi);
	(void)pthread_join(n->thread, NULL);
	while (n->n_pool)
		curl_easy_cleanup(n->pool[--n->n_pool]);
	(void)curl_multi_cleanup(n->multi);
	(void)curl_share_cleanup(n->share);
	(void)pthread_mutex_destroy(&n->lock);
	free(n);
}

void net_pace(struct net *n, struct net_pace *ret)
{
	SCOPED_LOCK(&n->lock);
	*ret = n->shown;
	ret->requests += n->reads;
	ret->bytes += n->read_bytes;
}

void net_note_read(struct net *n, uint64_t bytes)
{
	SCOPED_LOCK(&n->lock);

	n->reads++;
	n->read_bytes += bytes;
}

unsigned net_retry_ms(const struct net *n)
{
	return n->o.retry_ms;
}

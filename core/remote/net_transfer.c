/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/net_internal.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "remote/reach.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum {
	FIELDS_MAX = 64 << 10,
	ERROR_MAX = 64 << 10,
	ERROR_READ_MAX = 1 << 20, /* more of an error's body ends the connection */
	/* libcurl allocates it for each transfer under way. */
	RECEIVE_BYTES = 128 << 10,
	SEND_BYTES = 128 << 10,
	BODY_MAX = 4 << 20, /* 10,000 parts of an upload with their ETags */
};

/* ---- messages ---- */

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

/* ---- transfers ---- */

/* ---- where requests may lead ---- */

CLEANUP_POINTER(free_url, CURLU, curl_url_cleanup)

static const char *setting(const char *name)
{
	const char *v = getenv(name);

	return v && *v ? v : NULL;
}

/* Does a proxy make the connection? set_options tells libcurl, which does not look at no_proxy
 * then. */
static bool has_proxy(const struct http_message *m, const char *host)
{
	static const char *const plain[] = { "http_proxy", "all_proxy", "ALL_PROXY", NULL },
				 *const secure[] = { "https_proxy", "HTTPS_PROXY", "all_proxy",
						     "ALL_PROXY", NULL };
	const char *const *name = strncasecmp(m->url.data, "https:", 6) ? plain : secure;
	const char *except = setting("no_proxy");

	except = except ? except : setting("NO_PROXY");
	if (m->direct || (except && reach_is_listed(host, except)))
		return false;
	while (*name && !setting(*name))
		name++;
	return *name;
}

/* An URL that libcurl will refuse has no host. */
static void look_at_host(struct transfer *t)
{
	CURLU *u CLEANUP(free_url) = curl_url();
	char *host = NULL;

	if (u && !curl_url_set(u, CURLUPART_URL, t->m.url.data, CURLU_PATH_AS_IS))
		(void)curl_url_get(u, CURLUPART_HOST, &host, 0);
	t->is_named_inside = host && reach_of_host(host) != REACH_PUBLIC;
	t->has_proxy = has_proxy(&t->m, host ? host : "");
	curl_free(host);
}

/* Is the server that answers within a private network, or link-local? */
static bool is_inside(const struct transfer *t)
{
	const char *ip = NULL;

	return t->is_named_inside ||
	       (!t->has_proxy && !curl_easy_getinfo(t->easy, CURLINFO_PRIMARY_IP, &ip) && ip &&
		*ip && reach_of_host(ip) != REACH_PUBLIC);
}

/* In place of libcurl's own, when a redirect led here: the address is the one that is connected to,
 * so it does not matter how often the name resolves to another. */
static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
	struct transfer *t = arg;
	enum reach reach = reach_of(&a->addr);

	(void)purpose;
	if (reach != REACH_NEVER && (reach == REACH_PUBLIC || t->m.reach != HTTP_PUBLIC))
		return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
	if (getnameinfo(&a->addr, a->addrlen, t->refused, sizeof(t->refused), NULL, 0,
			NI_NUMERICHOST))
		(void)snprintf(t->refused, sizeof(t->refused), "?");
	return CURL_SOCKET_BAD;
}

/* ---- what comes ---- */

static void judge(struct transfer *t)
{
	struct call *c = t->call;
	long status = 0;
	struct http_answer a = { .fields = &t->fields,
				 .error = t->error.data ? t->error.data : "",
				 .error_len = t->error.len,
				 .url = t->m.url.data,
				 .reach = t->m.reach };

	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	a.status = (unsigned)status;
	a.inside = status / 100 == 3 && is_inside(t);
	t->judged = true;
	t->verdict = c->ops->judge(c->arg, c->got, &a, &t->e);
	if (status == 503 || status == 429)
		pace_trouble(&t->net->pace, clock_ns());
	if (t->verdict != HTTP_TAKE)
		return;
	/* The winner; a call without the first of the two would be started again. */
	for (int i = 0; i < 2; i++)
		if (c->t[i] && c->t[i] != t)
			c->t[i]->call = NULL;
	c->t[0] = t;
	c->t[1] = NULL;
}

/* The answer has begun. What follows of its head, or of an error, is no progress: a server could
 * send it drop by drop for ever. */
static void note_first(struct transfer *t)
{
	if (t->first_ns)
		return;
	t->first_ns = t->last_ns = clock_ns();
	/* A request with a body is answered when that has been sent. */
	if (!t->m.read && !t->m.body.len)
		pace_latency(&t->net->pace, t->first_ns - t->began_ns);
}

/* libcurl would decompress the body, and a few KiB that decode to nothing keep it at that for
 * hours: without a byte for on_bytes, and without an end to its call, which all other transfers
 * wait for. */
static bool is_packed(const char *name, size_t len, const char *value, const char *end)
{
	static const char field[] = "Transfer-Encoding";

	if (len != sizeof(field) - 1 || strncasecmp(name, field, len) != 0)
		return false;
	while (value < end) {
		const char *word = value;

		while (value < end && !strchr(", \t", *value))
			value++;
		len = (size_t)(value - word);
		if (len && (len != 7 || strncasecmp(word, "chunked", len) != 0) &&
		    (len != 8 || strncasecmp(word, "identity", len) != 0))
			return true;
		value += value < end;
	}
	return false;
}

static size_t on_field(char *p, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	size_t len = size * n, name;
	const char *colon;

	if (!t->call)
		return 0;
	note_first(t);
	while (len && (p[len - 1] == '\r' || p[len - 1] == '\n'))
		len--;
	if (!len) {
		t->head_over = true;
		if (t->call->how.answered) /* even if no body comes */
			atomic_store(t->call->how.answered, true);
		return size * n;
	}
	if (t->head_over) {
		if (len < 5 || memcmp(p, "HTTP/", 5) != 0) /* a trailer, after the body */
			return size * n;
		buf_restart(&t->fields); /* another head, after "100 Continue" */
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
	if (is_packed(p, name, colon, p + len)) {
		t->stop = EIO;
		err_set(&t->e, EIO, "the server answered with Transfer-Encoding %.*s",
			(int)min_u64(len - (size_t)(colon - p), 40), colon);
		return 0;
	}
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
	note_first(t);
	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (status / 100 != 2) { /* judged at its end */
		size_t room = t->error.max - t->error.len;

		t->error_seen += n;
		buf_add(&t->error, p, n < room ? n : room);
		return t->error_seen > ERROR_READ_MAX ? 0 : n;
	}
	t->last_ns = clock_ns();
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
	pace_bytes(&t->net->pace, n);
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
		err_sys(&t->e, -rc, "read the data to upload");
		return CURL_READFUNC_ABORT;
	}
	t->sent += n;
	t->last_ns = t->sent_ns = clock_ns();
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

void transfer_free(struct net *n, struct transfer *t)
{
	LIST_REMOVE(&n->transfers, t);
	if (t->easy) {
		(void)curl_multi_remove_handle(n->multi, t->easy);
		n->in_flight--;
		if (n->n_pool < NET_POOL) {
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

void transfers_drop(struct call *c)
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
	SET(CURLOPT_SHARE, n->share[t->m.reach]);
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
	if (t->m.reach != HTTP_ANYWHERE && !t->has_proxy) {
		SET(CURLOPT_OPENSOCKETFUNCTION, on_socket);
		SET(CURLOPT_OPENSOCKETDATA, t);
	}
	SET(t->has_proxy ? CURLOPT_NOPROXY : CURLOPT_PROXY, "");
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
		/* No body, nor the type of one: Ceph takes a form for a request without a
		 * signature. */
		SET(CURLOPT_CUSTOMREQUEST, method);
	} else if (strcmp(method, "GET") != 0) {
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->m.body.len);
		SET(CURLOPT_POSTFIELDS, t->m.body.data ? t->m.body.data : "");
		SET(CURLOPT_CUSTOMREQUEST, method);
	}
#undef SET
	return !bad;
}

int transfer_start(struct net *n, struct call *c, uint64_t now, struct transfer **ret,
		   struct ckpt_err *e)
{
	struct transfer *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_nomem(e);
	t->net = n;
	t->m.url = (struct buf)BUF_INIT(64 << 10);
	t->m.body = (struct buf)BUF_INIT(BODY_MAX);
	t->fields = (struct buf)BUF_INIT(FIELDS_MAX);
	t->error = (struct buf)BUF_INIT(ERROR_MAX);
	LIST_PUSH(&n->transfers, t);
	rc = c->ops->make(c->arg, c->got, &t->m, e);
	if (!rc)
		http_add_field(&t->m, "Accept-Encoding", "identity");
	if (!rc && (t->m.read || t->m.body.len)) /* libcurl would wait for "100 Continue" */
		no_expect(&t->m);
	if (!rc && (t->m.url.err || t->m.body.err))
		rc = err_set(e, t->m.url.err ? t->m.url.err : t->m.body.err,
			     "no request can be made: %s",
			     strerror(t->m.url.err ? t->m.url.err : t->m.body.err));
	if (!rc) {
		t->easy = n->n_pool ? n->pool[--n->n_pool] : curl_easy_init();
		if (!t->easy)
			rc = err_nomem(e);
		else
			n->in_flight++;
	}
	t->call = c;
	if (!rc)
		look_at_host(t);
	if (!rc && !set_options(n, t))
		rc = err_nomem(e);
	if (!rc && curl_multi_add_handle(n->multi, t->easy))
		rc = err_nomem(e);
	if (rc) {
		transfer_free(n, t);
		return rc;
	}
	t->began_ns = t->last_ns = t->sent_ns = t->mark_ns = now;
	*ret = t;
	return 0;
}

/* ---- what comes of them ---- */

/* Errors that no repetition will cure. */
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

bool transfer_is_lost(const struct transfer *t)
{
	long sent = 0, status = 0;

	(void)curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &sent);
	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	return sent && (!t->head_over || status / 100 <= 2);
}

struct outcome transfer_outcome(struct transfer *t, CURLcode code, uint64_t now, struct ckpt_err *e)
{
	struct outcome o = { .timed_out = is_timeout(code) };
	const struct call *c = t->call;
	struct net *n = t->net;
	long status = 0;

	(void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	if (!t->stop && !t->judged && t->head_over &&
	    (code == CURLE_OK || (status / 100 != 2 && t->error_seen > ERROR_READ_MAX)))
		judge(t);
	*e = t->e;
	if (t->stop)
		o.rc = -t->stop;
	else if (t->judged && t->verdict == HTTP_FAIL)
		o.rc = e->code ? -e->code : err_set(e, EIO, "the server answered %ld", status);
	else if (t->judged && t->verdict == HTTP_NOW)
		o.now = true;
	else if (t->judged && t->verdict == HTTP_AGAIN) {
		struct http_answer a = { .fields = &t->fields };

		o.later = true;
		if (!e->code)
			err_set(e, EIO, "the server answered %ld", status);
		(void)http_number(&a, "Retry-After", &o.wait_s);
	} else if (code && *t->refused) {
		o.rc = err_set(e, EIO,
			       "the server redirects to a host at %s, a private or link-local "
			       "address, which is refused",
			       t->refused);
	} else if (code || !t->head_over) {
		o.later = !is_hopeless(code);
		if (o.timed_out)
			pace_trouble(&n->pace, now);
		o.rc = err_set(
			e, o.timed_out ? ETIMEDOUT : EIO, "%s",
			!code ? "the connection ended within the head of the answer"
			/* libcurl also says this of a field of more than 100 KiB. */
			: code == CURLE_OUT_OF_MEMORY && !t->head_over
				? "the answer's header fields are too large, or memory is short"
			: t->why[0] ? t->why
				    : curl_easy_strerror(code));
	} else if (c->how.len != UINT64_MAX && c->got < c->how.len) {
		o.later = true;
		err_set(e, EIO, "the answer ended after %llu of %llu bytes",
			(unsigned long long)c->got, (unsigned long long)c->how.len);
	} else {
		pace_speed(&n->pace, t->bytes, t->last_ns - t->first_ns);
		pace_success(&n->pace, n->in_flight);
	}
	return o;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/http.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "remote/reach.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/*
 * The part of http.h that does not depend on how connections are made: the fields of requests, the
 * heads of answers, and calls that are waited for.
 */

enum { FIELD_MAX = 64 << 10 }; /* of a request */

/* ---- requests ---- */

void http_add_field(struct http_message *m, const char *name, const char *value)
{
	struct buf line CLEANUP(buf_release) = BUF_INIT(FIELD_MAX);
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

/* ---- heads of answers; fields are NAME NUL VALUE NUL ... ---- */

static const char *find_field(const struct http_answer *a, const char *name, bool *ret_several)
{
	const char *p = a->fields->data, *end = p ? p + a->fields->len : NULL, *found = NULL;

	*ret_several = false;
	while (p && p < end) {
		const char *value = p + strlen(p) + 1;

		if (!strcasecmp(p, name)) {
			*ret_several |= found && strcmp(found, value) != 0;
			found = value;
		}
		p = value + strlen(value) + 1;
	}
	return found;
}

const char *http_field(const struct http_answer *a, const char *name)
{
	bool several;
	const char *value = find_field(a, name, &several);

	return several ? "" : value;
}

bool http_disagrees(const struct http_answer *a, const char *name)
{
	bool several;

	(void)find_field(a, name, &several);
	return several;
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

/* SCHEME://HOST:PORT, and *ret_host; NULL: there is none, or no memory. The caller frees them. */
static char *origin_of(CURLU *u, char **ret_host)
{
	char *scheme = NULL, *host = NULL, *port = NULL, *origin = NULL;

	if (!curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
	    !curl_url_get(u, CURLUPART_HOST, &host, 0) &&
	    !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
		origin = text_format("%s://%s:%s", scheme, host, port);
	*ret_host = origin ? strdup(host) : NULL;
	curl_free(scheme);
	curl_free(host);
	curl_free(port);
	return origin;
}

static int reach_from(const struct http_answer *a, CURLU *to, enum http_reach *ret,
		      struct ckpt_err *e)
{
	CURLU *u CLEANUP(free_url) = curl_url();
	autofree char *before = NULL, *after = NULL, *host = NULL, *new_host = NULL;
	enum reach reach;

	if (!u || curl_url_set(u, CURLUPART_URL, a->url, CURLU_PATH_AS_IS))
		return err_nomem(e);
	before = origin_of(u, &host);
	after = origin_of(to, &new_host);
	if (!before || !after || !host || !new_host)
		return err_nomem(e);
	if (!strcasecmp(before, after)) {
		*ret = a->reach;
		return 0;
	}
	*ret = a->inside ? HTTP_INSIDE : HTTP_PUBLIC;
	reach = reach_of_host(new_host);
	if (reach == REACH_NEVER || (reach == REACH_INSIDE && *ret == HTTP_PUBLIC))
		return err_set(e, EIO,
			       "the server redirects (%u) to %.200s, a private or link-local "
			       "address, which is refused",
			       a->status, new_host);
	return 0;
}

int http_location(const struct http_answer *a, char **ret, enum http_reach *ret_reach,
		  struct ckpt_err *e)
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
		return err_set(
			e, EIO,
			"the server redirects (%u) to an address that is not %s, which is refused",
			a->status, was_secure ? "https" : "http or https");
	}
	if (reach_from(a, u, ret_reach, e)) {
		curl_free(url);
		return -e->code;
	}
	*ret = strdup(url);
	curl_free(url);
	return *ret ? 0 : err_nomem(e);
}

/* ---- calls that are waited for ---- */

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
	x->body->data[x->len] = 0; /* something has come, or restart would not be called */
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Object stores that answer with any bytes: S3, a web server and the Hugging Face hub are asked for
 * an object, a listing, bytes and, if it is S3, an upload. This file is the network: it replaces
 * the calls of http.h when the target is linked.
 *
 *	a digit: 0 to 3 an address, + 4 signed; then the answers, each
 *	STATUS NUL NAME NUL VALUE NUL ... NUL BODY FF
 *
 * Fuzzes: remote/s3 remote/web remote/hf remote/store remote/xml remote/url remote/moved
 * remote/http
 */
#include "base/checked.h"
#include "base/err.h"
#include "remote/http.h"
#include "remote/upload.h"

#include <curl/curl.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TRIES = 6, MAX_ANSWERS = 24, MAX_FIELDS = 4096, READ = 10 };

static const char *const addresses[] = { "s3://bucket/run/step-1", "https://host/a/b",
					 "hf://org/name@main/sub", "s3://bucket.name" };

static const uint8_t *at, *end;
static unsigned taken;

static void require(bool ok)
{
	if (!ok)
		abort();
}

/* ---- the answers ---- */

struct answer {
	struct http_answer head;
	struct buf fields, error;
	const uint8_t *body;
	size_t len;
};

static const char *take_string(const uint8_t *stop)
{
	const uint8_t *from = at, *nul = at < stop ? memchr(at, 0, (size_t)(stop - at)) : NULL;

	if (!nul)
		return NULL;
	at = nul + 1;
	return (const char *)from;
}

/* The head of the next answer; false if there is none. */
static bool take_answer(struct answer *a, const char *url)
{
	const uint8_t *stop = at < end ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
	const char *s;

	*a = (struct answer){ .fields = BUF_INIT(MAX_FIELDS), .error = BUF_INIT(64 << 10) };
	if (at == end || taken++ == MAX_ANSWERS)
		return false;
	stop = stop ? stop : end;
	s = take_string(stop);
	a->head.status = s ? (unsigned)strtoul(s, NULL, 10) % 1000 : 200;
	while (s && (s = take_string(stop)) && *s) {
		const char *value = take_string(stop);

		if (!value || a->fields.len + strlen(s) + strlen(value) + 2 > MAX_FIELDS)
			break;
		buf_add(&a->fields, s, strlen(s) + 1);
		buf_add(&a->fields, value, strlen(value) + 1);
	}
	a->body = at;
	a->len = (size_t)(stop - at);
	at = stop + (stop < end);
	if (a->head.status / 100 != 2)
		buf_add(&a->error, a->body, min_u64(a->len, 60 << 10));
	buf_add(&a->error, "", 1);
	require(!a->error.err && !a->fields.err);
	a->head.fields = &a->fields;
	a->head.error = a->error.data;
	a->head.error_len = a->error.len - 1;
	a->head.url = url;
	return true;
}

/* ---- the network ---- */

int __wrap_http_exchange(struct net *n, const struct http_ops *ops, void *arg,
			 const struct http_how *how, struct buf *body, struct ckpt_err *e);
int __wrap_http_start(struct net *n, const struct http_ops *ops, void *arg,
		      const struct http_how *how, uint64_t *ret_id, struct ckpt_err *e);
void __wrap_http_cancel(struct net *n, uint64_t id);
unsigned __wrap_net_retry_ms(const struct net *n);

/* One request and its answer. */
static enum http_verdict one_try(const struct http_ops *ops, void *arg, struct answer *a,
				 struct ckpt_err *e)
{
	struct http_message m = { .url = BUF_INIT(64 << 10), .body = BUF_INIT(1 << 20) };
	enum http_verdict v = HTTP_FAIL;
	uint8_t sent[READ];

	*e = (struct ckpt_err){ 0 };
	*a = (struct answer){ 0 };
	if (ops->make(arg, 0, &m, e)) {
		require(e->code && *e->msg);
	} else if (m.url.err) {
		(void)err_set(e, m.url.err, "the request");
	} else {
		buf_add(&m.url, "", 1);
		require(strstr(m.url.data, "://"));
		if (m.read)
			require(m.upload <= READ && !m.read(m.read_arg, 0, sent, m.upload));
		if (!take_answer(a, m.url.data)) {
			(void)err_set(e, ETIMEDOUT, "no answer");
		} else {
			v = ops->judge(arg, 0, &a->head, e);
			require(v == HTTP_TAKE || v == HTTP_NOW || (e->code && *e->msg));
		}
	}
	a->head.url = NULL;
	curl_slist_free_all(m.fields);
	buf_release(&m.url);
	buf_release(&m.body);
	return v;
}

static int exchange(const struct http_ops *ops, void *arg, struct answer *a, struct ckpt_err *e)
{
	enum http_verdict v = HTTP_AGAIN;

	for (unsigned i = 0; i < MAX_TRIES; i++) {
		v = one_try(ops, arg, a, e);
		if (v == HTTP_TAKE || v == HTTP_FAIL)
			break;
		buf_release(&a->fields);
		buf_release(&a->error);
		*a = (struct answer){ 0 };
	}
	if (v == HTTP_TAKE)
		return 0;
	return e->code ? -e->code : err_set(e, EIO, "tried too often");
}

static void release(struct answer *a)
{
	buf_release(&a->fields);
	buf_release(&a->error);
}

int __wrap_http_exchange(struct net *n, const struct http_ops *ops, void *arg,
			 const struct http_how *how, struct buf *body, struct ckpt_err *e)
{
	struct answer a;
	int rc = exchange(ops, arg, &a, e);

	(void)n;
	require(how->what);
	if (!rc) {
		buf_add(body, a.body, a.len);
		if (body->err)
			rc = err_set(e, EIO, "the answer is too large");
	}
	release(&a);
	return rc;
}

int __wrap_http_start(struct net *n, const struct http_ops *ops, void *arg,
		      const struct http_how *how, uint64_t *ret_id, struct ckpt_err *e)
{
	struct ckpt_err why = { 0 };
	struct answer a;
	int rc = exchange(ops, arg, &a, &why);

	(void)n;
	(void)e;
	if (ret_id)
		*ret_id = 1;
	if (!rc && a.len < how->len)
		rc = err_set(&why, EIO, "the answer is too short");
	else if (!rc && ops->bytes(arg, a.body, how->len))
		rc = err_set(&why, ECANCELED, "canceled");
	release(&a);
	ops->done(arg, rc, &why);
	return 0;
}

void __wrap_http_cancel(struct net *n, uint64_t id)
{
	(void)n;
	(void)id;
}

unsigned __wrap_net_retry_ms(const struct net *n)
{
	(void)n;
	return 1;
}

/* ---- what is asked ---- */

static void check(int rc, const struct ckpt_err *e)
{
	require(rc >= 0 || (e->code == -rc && *e->msg));
}

static int on_entry(void *arg, const char *name, const struct place_seen *seen, struct ckpt_err *e)
{
	unsigned *n = arg;

	require(*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/'));
	require(seen->id.len <= sizeof(seen->id.v) && seen->kind <= PLACE_OTHER);
	return ++*n < 1000 ? 0 : err_set(e, E2BIG, "many");
}

static int on_bytes(void *arg, const void *p, size_t n)
{
	uint64_t *left = arg;

	(void)p;
	require(n <= *left);
	*left -= n;
	return 0;
}

static void on_done(void *arg, int rc, const struct ckpt_err *e)
{
	const uint64_t *left = arg;

	require(rc ? e->code == -rc && *e->msg : !*left);
}

static int read_sent(void *arg, uint64_t off, void *buf, size_t n)
{
	(void)arg;
	require(off + n <= READ);
	memset(buf, 'x', n);
	return 0;
}

static void ask(struct store *s)
{
	uint64_t left = READ;
	const struct get_sink sink = { &left, on_bytes, on_done };
	struct place_seen seen = { 0 };
	struct ckpt_err e = { 0 };
	struct get *g = NULL;
	unsigned n = 0;
	int rc = store_look(s, "a b", &seen, &e);

	check(rc, &e);
	if (rc > 0 && seen.kind == PLACE_FILE && seen.size >= READ) {
		e = (struct ckpt_err){ 0 };
		check(store_get(s, "a b", &seen, seen.size - READ, READ, true, &sink, &g, &e), &e);
	}
	e = (struct ckpt_err){ 0 };
	rc = store_list(s, "d", on_entry, &n, &e);
	if (rc != -ENOTSUP)
		check(rc, &e);
}

static void upload(struct store *s)
{
	const struct upload_ops *ops = store_uploads(s);
	const struct upload_bytes b = { .len = READ, .read = read_sent };
	char etag[UPLOAD_ETAG] = "";
	struct upload_begun begun = { 0 };
	struct upload_result r = { 0 };
	struct upload_seen seen;
	struct ckpt_err e = { 0 };

	if (!ops)
		return;
	check(ops->put(s, "p", &b, "token", true, &r, &e), &e);
	e = (struct ckpt_err){ 0 };
	if (!ops->begin(s, "q", "token", &begun, NULL, &e)) {
		const struct upload_done part = { .len = READ, .etag = r.etag };

		require(begun.id);
		check(ops->part(s, "q", begun.id, 1, &b, etag, &e), &e);
		e = (struct ckpt_err){ 0 };
		check(ops->complete(s, "q", begun.id, &part, 1, false, &r, &e), &e);
		e = (struct ckpt_err){ 0 };
		check(ops->abort(s, "q", begun.id, &e), &e);
	} else {
		require(e.code && *e.msg);
	}
	free(begun.id);
	e = (struct ckpt_err){ 0 };
	check(ops->sweep(s, "q", NULL, &e), &e);
	e = (struct ckpt_err){ 0 };
	check(ops->look(s, "q", &seen, &e), &e);
	e = (struct ckpt_err){ 0 };
	check(ops->remove(s, "q", &e), &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct net *none = (struct net *)&taken; /* nobody looks into it */
	struct store_options o = { .endpoint = NULL };
	struct store *s = NULL;
	struct ckpt_err e = { 0 };
	unsigned flags;

	if (!size)
		return 0;
	(void)setenv("AWS_ACCESS_KEY_ID", "k", 1);
	(void)setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
	(void)setenv("AWS_CONFIG_FILE", "/dev/null", 1);
	(void)setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
	(void)setenv("HF_TOKEN", "t", 1);
	(void)setenv("HF_ENDPOINT", "https://hub", 1);
	flags = *data;
	at = data + 1;
	end = data + size;
	taken = 0;
	o.anonymous = !(flags & 4);
	if (store_open(none, addresses[flags & 3], &o, &s, &e)) {
		require(e.code && *e.msg);
		return 0;
	}
	require(*store_address(s));
	ask(s);
	upload(s);
	store_free(s);
	return 0;
}

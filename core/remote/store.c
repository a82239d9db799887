/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/store_internal.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"

#include <curl/curl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* ---- identities ---- */

const char *object_etag(const char *etag, size_t *len)
{
	size_t n = strlen(etag);

	if (n >= 2 && etag[0] == '"' && etag[n - 1] == '"') {
		etag++;
		n -= 2;
	}
	*len = n;
	return etag;
}

bool object_identify(const char *etag, const char *modified, struct place_id *ret)
{
	struct place_id id = { 0 };
	size_t n = 0;

	if (etag && *etag && strncmp(etag, "W/", 2) != 0)
		etag = object_etag(etag, &n);
	if (n && n < sizeof(id.v)) {
		id.v[0] = 'E';
		memcpy(id.v + 1, etag, n);
		id.len = (uint8_t)(n + 1);
	} else if (n) {
		struct sha256_ctx c;

		sha256_init(&c);
		sha256_update(&c, n, (const uint8_t *)etag);
		id.v[0] = 'H';
		sha256_digest(&c, SHA256_DIGEST_SIZE, id.v + 1);
		id.len = 1 + SHA256_DIGEST_SIZE;
	} else if (modified && *modified && strlen(modified) < sizeof(id.v)) {
		id.v[0] = 'M';
		id.len = (uint8_t)(1 + strlen(modified));
		memcpy(id.v + 1, modified, id.len - 1u);
	} else
		return false;
	*ret = id;
	return true;
}

bool object_is_same(const struct place_id *id, const char *etag, const char *modified)
{
	struct place_id now;

	/* Compare what identified it then: a strong ETag may have been added since. */
	return object_identify(id->v[0] == 'M' ? NULL : etag, id->v[0] == 'M' ? modified : NULL,
			       &now) &&
	       place_id_equal(id, &now);
}

/* Seconds of "+01:00", "-0130", after the seconds of a time and a fraction; 0: "Z", or nothing. */
static time_t zone_of(const char *s)
{
	int v[4], n = 0;
	bool before = false;

	if (*s == '.')
		s += 1 + strspn(s + 1, "0123456789");
	if (*s == '-')
		before = true;
	else if (*s != '+')
		return 0;
	for (s++; n < 4 && ((*s >= '0' && *s <= '9') || (n == 2 && *s == ':')); s++)
		if (*s != ':')
			v[n++] = *s - '0';
	while (n < 4)
		v[n++] = 0;
	v[0] = ((v[0] * 10 + v[1]) * 60 + v[2] * 10 + v[3]) * 60;
	return before ? -v[0] : v[0];
}

uint64_t object_time_ns(const char *s)
{
	struct tm t = { 0 };
	const char *end = strptime(s, "%Y-%m-%dT%H:%M:%S", &t);
	time_t v;

	if (end)
		v = timegm(&t) - zone_of(end);
	else
		v = curl_getdate(s, NULL);
	if (v > (time_t)(UINT64_MAX / CLOCK_SECOND)) /* "9999-12-31": never */
		v = (time_t)(UINT64_MAX / CLOCK_SECOND);
	return v > 0 ? (uint64_t)v * CLOCK_SECOND : 0;
}

int object_seen(const struct http_answer *a, uint64_t size, struct place_seen *ret,
		struct ckpt_err *e)
{
	const char *modified = http_field(a, "Last-Modified");
	struct place_seen seen = { .kind = PLACE_FILE, .size = size };

	if (!object_identify(http_field(a, "ETag"), modified, &seen.id))
		return err_set(
			e, ERR_UNSUPPORTED,
			"the server gives neither a strong ETag nor Last-Modified, so that a "
			"change would not be noticed: refused");
	seen.mtime_ns = modified ? object_time_ns(modified) : 0;
	*ret = seen;
	return 0;
}

/* ---- what all stores share ---- */

void object_add_fields(const struct object_request *o, struct http_message *m)
{
	if (o->range)
		http_add_field(m, "Range", o->range);
	if (o->if_match)
		http_add_field(m, "If-Match", o->if_match);
	if (o->if_unmodified)
		http_add_field(m, "If-Unmodified-Since", o->if_unmodified);
	if (o->if_none_match)
		http_add_field(m, "If-None-Match", o->if_none_match);
	if (o->type)
		http_add_field(m, "Content-Type", o->type);
	if (o->md5)
		http_add_field(m, "Content-MD5", o->md5);
}

char *store_name(const struct store *s, const char *path)
{
	size_t n = strlen(s->address);

	if (!strcmp(path, "."))
		return strdup(s->address);
	return text_format("%s%s%s", s->address, n && s->address[n - 1] == '/' ? "" : "/", path);
}

bool store_shows(const char *name, size_t len)
{
	if (!len || len > 255 || memchr(name, '/', len) || memchr(name, 0, len))
		return false;
	return !bytes_are(name, len, ".") && !bytes_are(name, len, "..");
}

enum http_verdict store_refuse(const struct http_answer *a, const char *code, const char *message,
			       struct ckpt_err *e)
{
	int errnum = EIO;

	if (a->status == 401 || a->status == 403)
		errnum = EACCES;
	else if (a->status == 404 || a->status == 410)
		errnum = ENOENT;
	if (code && *code)
		err_set(e, errnum, "the server answered %u (%.60s%s%.160s)", a->status, code,
			message && *message ? ": " : "", message ? message : "");
	else
		err_set(e, errnum, "the server answered %u", a->status);
	return http_passes(a->status) ? HTTP_AGAIN : HTTP_FAIL;
}

const char *store_address(const struct store *s)
{
	return s->address;
}

const char *store_origin(const struct store *s)
{
	return s->origin ? s->origin : "";
}

int store_dir(const struct store *s)
{
	return s->ops->dir ? s->ops->dir(s) : -1;
}

const struct upload_ops *store_uploads(const struct store *s)
{
	return s->ops->uploads;
}

void store_free(struct store *s)
{
	if (s)
		s->ops->free(s);
}

int store_open(struct net *n, const char *address, const struct store_options *o,
	       struct store **ret, struct ckpt_err *e)
{
	static const struct {
		const char *prefix;
		int (*open)(struct net *, const char *, const struct store_options *,
			    struct store **, struct ckpt_err *);
	} kinds[] = {
		{ "s3://", s3_open },	 { "gs://", s3_open }, { "https://", web_open },
		{ "http://", web_open }, { "hf://", hf_open }, { FILE_SCHEME, file_open },
	};
	static const struct store_options none = { .dir = -1 };

	if (strlen(address) >= 4096)
		return err_set(e, EINVAL, "an address of %zu bytes is not supported",
			       strlen(address));
	for (const char *c = address; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return err_set(e, EINVAL, "an address with byte 0x%02x is not supported",
				       (unsigned char)*c);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (!strncasecmp(address, kinds[i].prefix, strlen(kinds[i].prefix)))
			return kinds[i].open(n, address, o ? o : &none, ret, e);
	return err_set(e, EINVAL,
		       "'%s' is not an address that is supported: s3, gs, https, http, hf, file",
		       address);
}

static int check_path(const char *path, struct ckpt_err *e)
{
	const char *p = path;

	if (!strcmp(path, "."))
		return 0;
	for (;;) {
		size_t n = strcspn(p, "/");

		if (!store_shows(p, n))
			return err_set(e, EINVAL, "the name '%s' is not supported", path);
		if (!p[n])
			return 0;
		p += n + 1;
	}
}

int store_look(struct store *s, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	int rc = check_path(path, e);

	return rc ? rc : s->ops->look(s, path, ret, e);
}

int store_list(struct store *s, const char *dir, store_entry_fn *each, void *arg,
	       struct ckpt_err *e)
{
	int rc;

	if (!s->ops->list)
		return -ENOTSUP;
	rc = check_path(dir, e);
	return rc ? rc : s->ops->list(s, dir, each, arg, e);
}

/* ---- questions ---- */

struct question {
	struct store *s;
	const char *path;
	const struct object_request *o;
	int (*on_answer)(void *arg, const struct http_answer *a, struct ckpt_err *e);
	void *arg;
	bool found;
};

static int question_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	const struct question *q = arg;

	(void)from;
	return q->s->ops->make(q->s, q->path, q->o, m, e);
}

static enum http_verdict question_judge(void *arg, uint64_t from, const struct http_answer *a,
					struct ckpt_err *e)
{
	struct question *q = arg;

	(void)from;
	if (a->status / 100 != 2) {
		enum http_verdict v = q->s->ops->judge(q->s, q->path, a, e);

		if (v != HTTP_TAKE)
			return v;
		q->found = false;
		if (a->status == 404 || a->status == 410)
			return HTTP_TAKE;
		return store_refuse(a, NULL, NULL, e);
	}
	q->found = true;
	return q->on_answer && q->on_answer(q->arg, a, e) ? HTTP_FAIL : HTTP_TAKE;
}

int store_ask(struct store *s, const char *path, const struct object_request *o,
	      int (*on_answer)(void *arg, const struct http_answer *a, struct ckpt_err *e),
	      void *arg, struct buf *body, bool *ret_found, struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = question_make, .judge = question_judge };
	struct question q = { .s = s, .path = path, .o = o, .on_answer = on_answer, .arg = arg };
	struct buf none CLEANUP(buf_release) = BUF_INIT(64 << 10);
	autofree char *name = store_name(s, path);
	int rc;

	if (!name)
		return err_nomem(e);
	rc = http_exchange(
		s->net, &ops, &q,
		&(struct http_how){
			.what = name, .len = UINT64_MAX, .urgent = true, .answered = &s->answered },
		body ? body : &none, e);
	if (!rc)
		*ret_found = q.found;
	return rc;
}

/* ---- bytes ---- */

struct object_get {
	struct store *s;
	char *path;
	struct place_seen seen;
	uint64_t off, len;
	struct get_sink sink;
};

static int get_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	const struct object_get *g = arg;
	char range[64], match[80], date[64];
	struct object_request o = { .range = range };

	(void)snprintf(range, sizeof(range), "bytes=%llu-%llu", (unsigned long long)(g->off + from),
		       (unsigned long long)(g->off + g->len - 1));
	if (g->s->ops->check) { /* a condition would be another server's */
	} else if (g->seen.id.v[0] == 'E') {
		(void)snprintf(match, sizeof(match), "\"%.*s\"", g->seen.id.len - 1,
			       (const char *)g->seen.id.v + 1);
		o.if_match = match;
	} else if (g->seen.id.v[0] == 'M') {
		(void)snprintf(date, sizeof(date), "%.*s", g->seen.id.len - 1,
			       (const char *)g->seen.id.v + 1);
		o.if_unmodified = date;
	}
	return g->s->ops->make(g->s, g->path, &o, m, e);
}

/* Is this the answer for [off, off+len) of that version? */
static int check_bytes(const struct object_get *g, uint64_t off, uint64_t len,
		       const struct http_answer *a, struct ckpt_err *e)
{
	const char *encoding = http_field(a, "Content-Encoding");
	const char *length = http_field(a, "Content-Length");
	uint64_t first, last, total, n;

	if (a->status == 206) {
		if (!http_range(a, &first, &last, &total))
			return err_set(e, EIO,
				       "the server answered 206 without a valid Content-Range");
		if (first != off || last != off + len - 1)
			return err_set(e, EIO,
				       "the server answered with bytes %llu-%llu in place of "
				       "%llu-%llu",
				       (unsigned long long)first, (unsigned long long)last,
				       (unsigned long long)off,
				       (unsigned long long)(off + len - 1));
		if (total != UINT64_MAX && total != g->seen.size)
			return err_set(e, ESTALE,
				       "was changed: it has %llu bytes, and had %llu when it was "
				       "opened",
				       (unsigned long long)total, (unsigned long long)g->seen.size);
	} else if (a->status != 200 || off || len != g->seen.size)
		return err_set(
			e, EIO,
			"the server answered %u to a request for a range: it does not support "
			"ranges",
			a->status);
	if (length && (!http_number(a, "Content-Length", &n) || n != len))
		return err_set(e, EIO, "the server answered with %s bytes in place of %llu", length,
			       (unsigned long long)len);
	if (http_disagrees(a, "Content-Encoding"))
		return err_set(e, EIO, "the server answered with several fields Content-Encoding");
	if (encoding && *encoding && strcasecmp(encoding, "identity") != 0)
		return err_set(e, EIO, "the server answered with Content-Encoding %.40s", encoding);
	if (g->s->ops->check)
		return g->s->ops->check(g->s, g->path, &g->seen, a, e);
	if (!object_is_same(&g->seen.id, http_field(a, "ETag"), http_field(a, "Last-Modified")))
		return err_set(e, ESTALE, "was changed after it was opened");
	return 0;
}

static enum http_verdict get_judge(void *arg, uint64_t from, const struct http_answer *a,
				   struct ckpt_err *e)
{
	const struct object_get *g = arg;
	enum http_verdict v;

	if (a->status / 100 == 2)
		return check_bytes(g, g->off + from, g->len - from, a, e) ? HTTP_FAIL : HTTP_TAKE;
	v = g->s->ops->judge(g->s, g->path, a, e);
	if (v != HTTP_TAKE)
		return v;
	if (a->status == 404 || a->status == 410)
		err_set(e, ESTALE, "was removed after it was opened");
	else if (a->status == 412)
		err_set(e, ESTALE, "was changed after it was opened");
	else if (a->status == 416)
		err_set(e, ESTALE, "was changed: it is shorter than when it was opened");
	else
		return store_refuse(a, NULL, NULL, e);
	return HTTP_FAIL;
}

static int get_bytes(void *arg, const void *p, size_t n)
{
	const struct object_get *g = arg;

	return g->sink.bytes(g->sink.arg, p, n);
}

static void get_done(void *arg, int rc, const struct ckpt_err *e)
{
	struct object_get *g = arg;
	struct get_sink sink = g->sink;

	free(g->path);
	free(g);
	sink.done(sink.arg, rc, e);
}

int store_get(struct store *s, const char *path, const struct place_seen *seen, uint64_t off,
	      uint64_t len, bool urgent, const struct get_sink *sink, struct get **ret,
	      struct ckpt_err *e)
{
	static const struct http_ops ops = { get_make, get_judge, get_bytes, NULL, get_done };
	autofree char *name = NULL;
	struct object_get *g = NULL;
	uint64_t id;
	int rc = check_path(path, e);

	if (rc)
		return rc;
	if (!len || !range_ok(off, len, seen->size) || seen->id.len < 2)
		return err_set(e, EINVAL, "'%s': bytes %llu to %llu of %llu", path,
			       (unsigned long long)off, (unsigned long long)(off + len),
			       (unsigned long long)seen->size);
	if (s->ops->get) {
		*ret = NULL;
		return s->ops->get(s, path, seen, off, len, urgent, sink, e);
	}
	name = store_name(s, path);
	g = calloc(1, sizeof(*g));
	if (!g || !name || !(g->path = strdup(path))) {
		free(g);
		return err_nomem(e);
	}
	g->s = s;
	g->seen = *seen;
	g->off = off;
	g->len = len;
	g->sink = *sink;
	rc = http_start(
		s->net, &ops, g,
		&(struct http_how){
			.what = name, .len = len, .urgent = urgent, .answered = &s->answered },
		&id, e);
	if (rc) {
		free(g->path);
		free(g);
		return rc;
	}
	/* A number in place of an address: a get that is gone cannot be taken for another. */
	*ret = (struct get *)(uintptr_t)id; /* NOLINT(performance-no-int-to-ptr) */
	return 0;
}

void get_cancel(struct net *n, struct get *g)
{
	http_cancel(n, (uint64_t)(uintptr_t)g);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3 and compatible stores. The interface: docs.aws.amazon.com/AmazonS3/latest/API.
 *
 * Buckets are addressed as BUCKET.HOST at AWS (unless their name has a dot, which its certificate
 * does not cover) and where the endpoint begins with the bucket's name, else as HOST/BUCKET.
 */
#include "remote/creds.h"
#include "remote/s3_internal.h"
#include "remote/sign.h"
#include "remote/url.h"
#include "remote/xml.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
	PAGE_MAX = 16 << 20, /* bytes of one page of a listing: 1000 keys of 3 KiB, and more */
	PAGES_MAX = 20000,
	NAMES_MAX = 4 << 20, /* of one directory */
};

/* ---- requests ---- */

static void add_host(struct s3 *s, struct buf *b)
{
	SCOPED_LOCK(&s->lock);

	if (s->moved)
		buf_str(b, s->moved);
	else if (s->host)
		buf_str(b, s->host);
	else
		buf_printf(b, "%s%ss3.%s.amazonaws.com%s", s->by_host ? s->bucket : "",
			   s->by_host ? "." : "", s->region,
			   !strncmp(s->region, "cn-", 3) ? ".cn" : "");
}

static void copy_region(struct s3 *s, char ret[static REGION_BYTES])
{
	SCOPED_LOCK(&s->lock);

	memcpy(ret, s->region, REGION_BYTES);
}

int s3_request(struct s3 *s, const char *key, const char *query, const struct object_request *o,
	       struct http_message *m, struct ckpt_err *e)
{
	struct creds_key k CLEANUP(creds_key_release) = { 0 };
	struct buf host CLEANUP(buf_release) = BUF_INIT(1024);
	struct buf path CLEANUP(buf_release) = BUF_INIT(16 << 10);
	struct buf sum CLEANUP(buf_release) = BUF_INIT(8 << 10);
	char date[17], region[REGION_BYTES];
	struct sign_field f[12];
	const char *payload = o->payload ? o->payload : SIGN_EMPTY;
	size_t n = 0;
	time_t now = time(NULL);
	int rc = creds_get(s->creds, &k, e);

	if (rc)
		return rc;
	add_host(s, &host);
	copy_region(s, region);
	buf_str(&path, s->path);
	if (!s->by_host) {
		buf_str(&path, "/");
		url_encode(&path, s->bucket, strlen(s->bucket), false);
	}
	if (key || !path.len || s->by_host)
		buf_str(&path, "/");
	if (key)
		url_encode(&path, key, strlen(key), true);
	m->method = o->method;
	buf_printf(&m->url, "%s://%s%s%s%s", s->secure ? "https" : "http", host.data, path.data,
		   *query ? "?" : "", query);
	if (host.err || path.err)
		m->url.err = host.err ? host.err : path.err;
	object_add_fields(o, m);
	if (o->token)
		http_add_field(m, S3_TOKEN, o->token);
	if (!k.access || m->url.err)
		return 0;

	sign_date(now, date);
	if (o->md5)
		f[n++] = (struct sign_field){ "content-md5", o->md5 };
	if (o->type)
		f[n++] = (struct sign_field){ "content-type", o->type };
	f[n++] = (struct sign_field){ "host", host.data };
	if (o->if_match)
		f[n++] = (struct sign_field){ "if-match", o->if_match };
	if (o->if_none_match)
		f[n++] = (struct sign_field){ "if-none-match", o->if_none_match };
	if (o->range)
		f[n++] = (struct sign_field){ "range", o->range };
	f[n++] = (struct sign_field){ "x-amz-content-sha256", payload };
	f[n++] = (struct sign_field){ "x-amz-date", date };
	if (o->token)
		f[n++] = (struct sign_field){ S3_TOKEN, o->token };
	if (k.token)
		f[n++] = (struct sign_field){ "x-amz-security-token", k.token };
	sign_request(&(struct sign_request){ .method = o->method ? o->method : "GET",
					     .path = path.data,
					     .query = query,
					     .fields = f,
					     .n_fields = n,
					     .payload = payload },
		     &(struct sign_key){ k.access, k.secret, region, "s3" }, now, &sum);
	if (sum.err)
		m->url.err = sum.err;
	http_add_field(m, "x-amz-content-sha256", payload);
	http_add_field(m, "x-amz-date", date);
	if (k.token)
		http_add_field(m, "x-amz-security-token", k.token);
	http_add_field(m, "Authorization", sum.data ? sum.data : "");
	return 0;
}

char *s3_key(const struct s3 *s, const char *path, const char *end)
{
	if (!strcmp(path, "."))
		path = "";
	return text_format("%s%s%s%s", s->key, *s->key && *path ? "/" : "", path,
			   *s->key || *path ? end : "");
}

static int s3_make(struct store *base, const char *path, const struct object_request *o,
		   struct http_message *m, struct ckpt_err *e)
{
	struct s3 *s = s3_of(base);
	autofree char *key = s3_key(s, path, "");

	return key ? s3_request(s, key, "", o, m, e) : err_nomem(e);
}

/* ---- answers ---- */

static void copy_text(char *to, size_t cap, const char *text)
{
	(void)snprintf(to, cap, "%s", text);
}

int s3_on_error(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	struct s3_error *r = arg;

	(void)len;
	(void)e;
	if (!strcmp(path, "Error/Code"))
		copy_text(r->code, sizeof(r->code), text);
	else if (!strcmp(path, "Error/Message"))
		copy_text(r->message, sizeof(r->message), text);
	else if (!strcmp(path, "Error/Region"))
		copy_text(r->region, sizeof(r->region), text);
	return 0;
}

static bool is_region(const char *r)
{
	size_t n = strlen(r);

	return n && n < REGION_BYTES &&
	       strspn(r, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n;
}

/* The server says that the bucket is elsewhere; false: that is where we asked, with that url. */
static bool take_region(struct s3 *s, const char *region, const char *url)
{
	char host[REGION_BYTES + 8];
	SCOPED_LOCK(&s->lock);

	if (!is_region(region))
		return false;
	if (!strcmp(s->region, region)) { /* perhaps another request has learnt it meanwhile */
		(void)snprintf(host, sizeof(host), "s3.%s.", region);
		return !s->host && !s->moved && !strstr(url, host);
	}
	copy_text(s->region, sizeof(s->region), region);
	free(s->moved);
	s->moved = NULL;
	return true;
}

/* A temporary redirect of AWS, while a new bucket is not yet known everywhere. */
static bool take_host(struct s3 *s, const struct http_answer *a)
{
	autofree char *to = NULL;
	struct url u = { 0 };
	struct ckpt_err ignored = { 0 };
	enum http_reach any; /* it is checked below */
	bool ok;

	if (s->host || !s->by_host || http_location(a, &to, &any, &ignored))
		return false;
	to[strcspn(to, "?#")] = 0;
	if (url_parse(to, &u, &ignored))
		return false;
	ok = u.secure && bytes_begin(u.host, strlen(u.host), s->bucket) &&
	     u.host[strlen(s->bucket)] == '.' &&
	     bytes_end(u.host, strlen(u.host), ".amazonaws.com");
	if (ok) {
		SCOPED_LOCK(&s->lock);
		ok = !s->moved || strcmp(s->moved, u.host) != 0;
		free(s->moved);
		s->moved = steal_ptr(&u.host);
	}
	url_release(&u);
	return ok;
}

static enum http_verdict s3_judge(struct store *base, const char *path, const struct http_answer *a,
				  struct ckpt_err *e)
{
	struct s3 *s = s3_of(base);
	struct s3_error r = { 0 };
	struct ckpt_err ignored = { 0 };
	const char *region = http_field(a, "x-amz-bucket-region");

	(void)path;
	if (a->error_len)
		(void)xml_parse(a->error, a->error_len, s3_on_error, &r, &ignored);
	if (a->status == 404 && strcmp(r.code, "NoSuchBucket") != 0)
		return HTTP_TAKE;
	if (a->status == 412 || a->status == 416)
		return HTTP_TAKE;
	if (a->status == 301 || a->status == 307 || a->status == 400 || a->status == 403) {
		if ((region && take_region(s, region, a->url)) ||
		    (r.region[0] && take_region(s, r.region, a->url)))
			return HTTP_NOW;
		if (a->status == 307 && take_host(s, a))
			return HTTP_NOW;
	}
	/* The answer to HEAD has no body that would tell which 400 or 403 it is. */
	if (a->status == 403 || a->status == 400 || a->status == 401) {
		struct creds_key k CLEANUP(creds_key_release) = { 0 };
		bool named = !strcmp(r.code, "ExpiredToken") ||
			     !strcmp(r.code, "TokenRefreshRequired") ||
			     !strcmp(r.code, "InvalidToken");
		int rc = named || !r.code[0] ? creds_get(s->creds, &k, &ignored) : -1;

		/* Requests that were under way together are refused together: the first has them
		 * renewed, the others wait for that too, or were signed before it. */
		if (rc == -EAGAIN || (!rc && k.access && creds_refused(s->creds, k.access)))
			return HTTP_NOW;
		if (named && !rc && k.access && creds_are_new(s->creds)) {
			(void)store_refuse(a, r.code, r.message, e);
			return HTTP_AGAIN;
		}
	}
	if (a->status / 100 == 3) {
		err_set(e, EIO,
			"the server answered %u: the bucket is at another endpoint or in another "
			"region, see the options endpoint and region",
			a->status);
		return HTTP_FAIL;
	}
	if (!strcmp(r.code, "RequestTimeTooSkewed")) {
		err_set(e, EACCES, "the server answered %u: the clock of this machine is wrong",
			a->status);
		return HTTP_FAIL;
	}
	if (!strcmp(r.code, "RequestTimeout") || !strcmp(r.code, "SlowDown")) {
		(void)store_refuse(a, r.code, r.message, e);
		return HTTP_AGAIN;
	}
	{
		enum http_verdict v = store_refuse(a, r.code, r.message, e);

		if (a->status == 404)
			e->code = ENOENT;
		return v;
	}
}

/* ---- looking ---- */

static int on_head(void *arg, const struct http_answer *a, struct ckpt_err *e)
{
	uint64_t size;

	if (!http_number(a, "Content-Length", &size))
		return err_set(e, EIO, "the server does not say how large it is");
	return object_seen(a, size, arg, e);
}

/* ---- listing ---- */

struct listing {
	struct s3 *s;
	const char *prefix;
	size_t prefix_len;
	unsigned most;	     /* names of a page */
	struct buf token;    /* of the next page */
	struct buf query;    /* of this one */
	bool truncated, any; /* any: there was a key or a prefix, shown or not */
	uint64_t names;
	store_entry_fn *each;
	void *arg;
	/* The entry that is being read. */
	struct buf key, etag;
	uint64_t size, mtime_ns;
	bool has_size;
	int rc; /* of each */
};

static int list_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	static const struct object_request plain;
	struct listing *l = arg;

	(void)from;
	return s3_request(l->s, NULL, l->query.data, &plain, m, e);
}

static enum http_verdict list_judge(void *arg, uint64_t from, const struct http_answer *a,
				    struct ckpt_err *e)
{
	struct listing *l = arg;
	enum http_verdict v;

	(void)from;
	if (a->status == 200)
		return HTTP_TAKE;
	v = s3_judge(&l->s->base, ".", a, e);
	return v == HTTP_TAKE ? store_refuse(a, NULL, NULL, e) : v;
}

/* A key or a common prefix of the page, whose text is encoded. */
static int take_name(struct listing *l, struct buf *name, bool is_prefix, struct ckpt_err *e)
{
	struct place_seen seen = { .kind = is_prefix ? PLACE_DIR : PLACE_FILE };
	autofree char *etag = NULL;
	const char *p;
	size_t n;

	if (name->err)
		return name->err == ENOMEM ? err_nomem(e)
					   : err_set(e, EIO,
						     "the listing has a key of more than "
						     "4 KiB");
	l->any = true;
	p = name->data ? name->data : "";
	n = name->len;
	if (n < l->prefix_len || memcmp(p, l->prefix, l->prefix_len) != 0)
		return err_set(e, EIO,
			       "the listing has '%.100s', which does not begin with '%.100s'", p,
			       l->prefix);
	p += l->prefix_len;
	n -= l->prefix_len;
	if (is_prefix && n && p[n - 1] == '/')
		n--;
	else if (memchr(p, '/', n))
		return err_set(e, EIO, "the listing has '%.100s' below a common prefix", p);
	/* An object that stands for the directory itself has no name. */
	if (!l->each || !store_shows(p, n))
		return 0;
	if (++l->names > NAMES_MAX)
		return err_set(e, EFBIG, "a directory of more than %d names is not supported",
			       NAMES_MAX);
	if (!is_prefix) {
		if (!l->has_size || l->etag.err || !object_identify(l->etag.data, NULL, &seen.id))
			return err_set(e, EIO, "the listing has '%.100s' without its size or ETag",
				       p);
		seen.size = l->size;
		seen.mtime_ns = l->mtime_ns;
	}
	etag = strndup(p, n); /* each wants a NUL after the name */
	if (!etag)
		return err_nomem(e);
	return l->rc = l->each(l->arg, etag, &seen, e);
}

static int on_listed(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	static const char root[] = "ListBucketResult/";
	struct listing *l = arg;
	char *end;
	int rc = 0;

	if (!bytes_begin(path, strlen(path), root)) {
		if (!strcmp(path, "ListBucketResult"))
			return 0;
		return err_set(e, EIO, "the server answered a listing with <%.40s>", path);
	}
	path += sizeof(root) - 1;
	if (!strcmp(path, "Contents/Key"))
		url_decode(&l->key, text, len, true);
	else if (!strcmp(path, "Contents/ETag"))
		buf_add(&l->etag, text, len);
	else if (!strcmp(path, "Contents/LastModified"))
		l->mtime_ns = object_time_ns(text);
	else if (!strcmp(path, "Contents/Size")) {
		errno = 0;
		l->size = strtoull(text, &end, 10);
		l->has_size = isdigit((unsigned char)*text) && !*end && !errno;
	} else if (!strcmp(path, "Contents")) {
		rc = take_name(l, &l->key, false, e);
		buf_restart(&l->key);
		buf_restart(&l->etag);
		l->has_size = false;
		l->mtime_ns = 0;
	} else if (!strcmp(path, "CommonPrefixes/Prefix")) {
		url_decode(&l->key, text, len, true);
		rc = take_name(l, &l->key, true, e);
		buf_restart(&l->key);
	} else if (!strcmp(path, "IsTruncated"))
		l->truncated = !strcmp(text, "true");
	else if (!strcmp(path, "NextContinuationToken")) {
		buf_restart(&l->token);
		url_encode(&l->token, text, len, false);
	}
	return rc;
}

static int list_page(struct listing *l, const char *name, struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = list_make, .judge = list_judge };
	struct buf body CLEANUP(buf_release) = BUF_INIT(PAGE_MAX);
	autofree char *token = NULL;
	int rc;

	buf_restart(&l->query);
	if (l->token.len) {
		buf_printf(&l->query, "continuation-token=%s&", l->token.data);
		token = strdup(l->token.data);
	}
	buf_str(&l->query, "delimiter=%2F&encoding-type=url&list-type=2");
	buf_printf(&l->query, "&max-keys=%u&prefix=", l->most);
	url_encode(&l->query, l->prefix, l->prefix_len, false);
	if (l->query.err || (l->token.len && !token))
		return l->query.err == EFBIG
			       ? err_set(e, EIO, "'%.100s...': the name is too long", name)
			       : err_nomem(e);
	rc = http_exchange(l->s->base.net, &ops, l,
			   &(struct http_how){ .what = name,
					       .len = UINT64_MAX,
					       .urgent = true,
					       .answered = &l->s->base.answered },
			   &body, e);
	if (rc)
		return rc;
	l->truncated = false;
	buf_restart(&l->token);
	rc = xml_parse(body.data ? body.data : "", body.len, on_listed, l, e);
	if (rc)
		return l->rc ? rc : err_wrap(e, "list '%s'", name);
	if (l->token.err)
		return err_set(e, EIO, "list '%s': a page's token is too long", name);
	if (l->truncated && (!l->token.len || (token && !strcmp(token, l->token.data))))
		return err_set(e, EIO,
			       "list '%s': the server says that there is more, but not where",
			       name);
	return 0;
}

/* Lists up to `most` names a page, one page only if each is NULL. */
static int list(struct s3 *s, const char *dir, unsigned most, store_entry_fn *each, void *arg,
		bool *ret_any, struct ckpt_err *e)
{
	struct listing l = { .s = s,
			     .most = most,
			     .each = each,
			     .arg = arg,
			     .token = BUF_INIT(16 << 10),
			     .query = BUF_INIT(32 << 10),
			     .key = BUF_INIT(4096),
			     .etag = BUF_INIT(1024) };
	autofree char *prefix = s3_key(s, dir, "/");
	autofree char *name = store_name(&s->base, dir);
	int rc = 0;

	if (!prefix || !name)
		return err_nomem(e);
	l.prefix = prefix;
	l.prefix_len = strlen(prefix);
	for (unsigned page = 0;; page++) {
		if (page == PAGES_MAX) {
			rc = err_set(e, EFBIG, "'%s': a listing of more than %d pages", name,
				     PAGES_MAX);
			break;
		}
		rc = list_page(&l, name, e);
		if (rc || !each || !l.truncated)
			break;
	}
	buf_release(&l.token);
	buf_release(&l.query);
	buf_release(&l.key);
	buf_release(&l.etag);
	if (!rc)
		*ret_any = l.any;
	return rc;
}

static int s3_list(struct store *base, const char *dir, store_entry_fn *each, void *arg,
		   struct ckpt_err *e)
{
	bool any;
	int rc = list(s3_of(base), dir, 1000, each, arg, &any, e);
	autofree char *name = NULL;

	if (rc || any)
		return rc;
	/* An empty bucket is there, though nothing is in it. */
	if (!*s3_of(base)->key && !strcmp(dir, "."))
		return 0;
	name = store_name(base, dir);
	return name ? err_set(e, ENOENT, "'%s': no object has a key that begins like this", name)
		    : err_nomem(e);
}

static int s3_look(struct store *base, const char *path, struct place_seen *ret, struct ckpt_err *e)
{
	static const struct object_request head = { .method = "HEAD" };
	struct s3 *s = s3_of(base);
	bool found = false, at_top = !strcmp(path, ".");
	struct place_seen seen = { 0 };
	int rc;

	/* What is opened is mostly a directory; what is looked for in it, mostly an object. */
	for (int step = 0; step < 2 && !found; step++) {
		if (at_top == !step) {
			rc = list(s, path, 1, NULL, NULL, &found, e);
			if (!rc && at_top && !*s->key)
				found = true;
			seen = (struct place_seen){ .kind = PLACE_DIR };
		} else
			rc = store_ask(base, path, &head, on_head, &seen, NULL, &found, e);
		if (rc)
			return rc;
	}
	if (found)
		*ret = seen;
	return found;
}

/* ---- opening ---- */

static void s3_free(struct store *base)
{
	struct s3 *s = s3_of(base);

	creds_free(s->creds);
	free(base->address);
	free(base->origin);
	free(s->bucket);
	free(s->key);
	free(s->host);
	free(s->path);
	free(s->moved);
	(void)pthread_mutex_destroy(&s->lock);
	free(s);
}

static const char *env(const char *name)
{
	const char *v = getenv(name);

	return v && *v ? v : NULL;
}

/* Splits SCHEME://BUCKET/KEY. */
static int take_address(struct s3 *s, const char *address, struct ckpt_err *e)
{
	const char *bucket = address + 5, *slash = strchr(bucket, '/');
	size_t n = slash ? (size_t)(slash - bucket) : strlen(bucket);
	const char *key = slash ? slash + 1 : "";
	size_t key_len = strlen(key);

	/* 63 by AWS's rules; others, and old ones, may have up to 255. */
	if (!n || n > 255 ||
	    strspn(bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
			   "0123456789.-_:") < n)
		return err_set(e, EINVAL, "'%s': '%.*s' is not the name of a bucket", address,
			       (int)n, bucket);
	while (key_len && key[key_len - 1] == '/')
		key_len--;
	for (const char *p = key; p < key + key_len;) {
		size_t len = strcspn(p, "/");

		if (bytes_are(p, len, ".") || bytes_are(p, len, ".."))
			return err_set(e, EINVAL, "'%s': elements '.' and '..' are not supported",
				       address);
		p += len + 1;
	}
	s->bucket = strndup(bucket, n);
	s->key = strndup(key, key_len);
	if (s->bucket && s->key)
		s->base.address = text_format("%.2s://%s%s%s",
					      address[0] == 'g' || address[0] == 'G' ? "gs" : "s3",
					      s->bucket, *s->key ? "/" : "", s->key);
	return s->base.address ? 0 : err_nomem(e);
}

static int take_endpoint(struct s3 *s, const char *endpoint, struct ckpt_err *e)
{
	struct url u = { 0 };
	size_t n = strlen(s->bucket);
	int rc = url_parse(endpoint, &u, e);

	if (rc)
		return err_wrap(e, "endpoint");
	s->secure = u.secure;
	s->host = u.host;
	s->path = u.path;
	n = strlen(s->path);
	while (n && s->path[n - 1] == '/')
		s->path[--n] = 0;
	n = strlen(s->bucket);
	s->by_host = !strncasecmp(s->host, s->bucket, n) && s->host[n] == '.';
	s->base.origin = text_format("%s://%s%s", s->secure ? "https" : "http", s->host, s->path);
	if (!s->base.origin)
		return err_nomem(e);
	return 0;
}

/* Can it be the first part of a name that a certificate for *.s3.REGION covers? */
static bool is_label(const char *bucket)
{
	size_t n = strlen(bucket);

	return n <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

int s3_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	    struct ckpt_err *e)
{
	static const struct store_ops ops = { .look = s3_look,
					      .list = s3_list,
					      .make = s3_make,
					      .judge = s3_judge,
					      .free = s3_free,
					      .uploads = &s3_uploads };
	bool google = address[0] == 'g' || address[0] == 'G';
	const char *endpoint = o->endpoint, *region = o->region;
	struct s3 *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return err_nomem(e);
	s->base.ops = &ops;
	s->base.net = n;
	s->secure = true;
	s->opened = time(NULL);
	(void)pthread_mutex_init(&s->lock, NULL);
	rc = take_address(s, address, e);
	if (!rc)
		rc = creds_open(n, o->profile, o->anonymous, &s->creds, e);
	if (rc)
		goto fail;
	if (!endpoint && google)
		endpoint = "https://storage.googleapis.com";
	if (!endpoint)
		endpoint = env("AWS_ENDPOINT_URL_S3");
	if (!endpoint)
		endpoint = env("AWS_ENDPOINT_URL");
	if (!endpoint)
		endpoint = creds_endpoint(s->creds);
	if (!region && google)
		region = "auto";
	if (!region)
		region = env("AWS_REGION");
	if (!region)
		region = env("AWS_DEFAULT_REGION");
	if (!region)
		region = creds_region(s->creds);
	if (!region)
		region = "us-east-1";
	if (!is_region(region)) {
		rc = err_set(e, EINVAL, "'%s' is not the name of a region", region);
		goto fail;
	}
	copy_text(s->region, sizeof(s->region), region);
	if (endpoint)
		rc = take_endpoint(s, endpoint, e);
	else {
		s->by_host = is_label(s->bucket);
		s->path = strdup("");
		rc = s->path ? 0 : err_nomem(e);
	}
	if (rc)
		goto fail;
	*ret = &s->base;
	return 0;
fail:
	s3_free(&s->base);
	return rc;
}

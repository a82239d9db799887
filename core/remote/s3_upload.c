/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing to S3: PUT, and multipart uploads. The interface:
 * docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html.
 *
 * The server verifies each body: its MD5 (Content-MD5) is sent and signed. Without TLS its SHA-256
 * is signed, too.
 */
#include "remote/s3_internal.h"
#include "remote/sign.h"
#include "remote/url.h"
#include "remote/xml.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <nettle/base16.h>
#include <nettle/base64.h>
#include <nettle/md5.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	BODY_MAX = 1 << 20,	   /* of an answer */
	PART_STALL_MS = 30000,	   /* from the last byte sent to the answer */
	COMPLETE_STALL_MS = 60000, /* the server may join gigabytes before it answers */
	COMPLETE_TRIES = 5,	   /* after answers that say 200 and contain an error */
	ABORT_TRIES = 3,
	SKEW_S = 15 * 60, /* clocks that differ by more are refused by signatures */
	STRAYS_MAX = 64,  /* uploads of one key that are aborted */
};

/* A request; the whole body of the answer is wanted. */
struct ask {
	struct s3 *s;
	const char *key; /* found from the path */
	bool bucket;	 /* it is about the bucket, and there is no key */
	const char *query;
	struct object_request o;
	const struct upload_bytes *bytes; /* what is sent; NULL: xml, or nothing */
	const struct buf *xml;
	bool once;	  /* each request that is sent must be counted in tries */
	bool proves;	  /* the answer's ETag is to be that of the bytes */
	bool conditional; /* the last request was */
	unsigned tries;
	char *etag;		  /* UPLOAD_ETAG bytes, or NULL */
	struct upload_seen *seen; /* NULL: not wanted */
};

static int ask_make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	struct ask *a = arg;
	struct object_request o = a->o;

	(void)from;
	if (a->s->unconditional)
		o.if_none_match = NULL;
	a->conditional = o.if_none_match;
	a->tries++;
	m->once = a->once;
	if (a->xml)
		buf_add(&m->body, a->xml->data, a->xml->len);
	if (a->bytes) {
		m->read = a->bytes->read;
		m->read_arg = a->bytes->arg;
		m->upload = a->bytes->len;
	}
	return s3_request(a->s, a->key, a->query, &o, m, e);
}

static void hex_of(const uint8_t *md5, char ret[static 33])
{
	base16_encode_update(ret, MD5_DIGEST_SIZE, md5);
	ret[32] = 0;
}

/* Objects that are encrypted with a key of the customer's have ETags that look like an MD5 and are
 * not that of the bytes. */
static bool has_other_etag(const struct http_answer *h)
{
	const char *sse = http_field(h, "x-amz-server-side-encryption");

	return (sse && strcmp(sse, "AES256") != 0) ||
	       http_field(h, "x-amz-server-side-encryption-customer-algorithm");
}

/* Does the ETag of an answer contradict the bytes? */
static bool is_wrong(const struct ask *a, const struct http_answer *h)
{
	char md5[33];

	if (!a->proves || strlen(a->etag) != 32 || strspn(a->etag, "0123456789abcdef") != 32 ||
	    has_other_etag(h))
		return false;
	hex_of(a->bytes->md5, md5);
	return strcmp(md5, a->etag) != 0;
}

static enum http_verdict ask_take(struct ask *a, const struct http_answer *h, struct ckpt_err *e)
{
	const char *etag = http_field(h, "ETag");
	const char *token = a->seen ? http_field(h, S3_TOKEN) : NULL;
	size_t len;

	if (a->seen && !http_number(h, "Content-Length", &a->seen->size))
		a->seen->size = UINT64_MAX;
	if (a->seen)
		(void)snprintf(a->seen->token, UPLOAD_TOKEN, "%s", token ? token : "");
	if (!a->etag || !etag)
		return HTTP_TAKE;
	etag = object_etag(etag, &len);
	if (!etag || len >= UPLOAD_ETAG) {
		err_set(e, EIO, "the server answered with an invalid ETag");
		return HTTP_FAIL;
	}
	(void)snprintf(a->etag, UPLOAD_ETAG, "%.*s", (int)len, etag);
	if (!a->proves && has_other_etag(h)) /* of s3_look: it says nothing about the bytes */
		*a->etag = 0;
	if (!is_wrong(a, h))
		return HTTP_TAKE;
	err_set(e, EIO, "the server has stored other bytes: ETag \"%s\"", a->etag);
	return HTTP_AGAIN;
}

static enum http_verdict ask_judge(void *arg, uint64_t from, const struct http_answer *h,
				   struct ckpt_err *e)
{
	struct ask *a = arg;
	struct s3_error r = { 0 };
	struct ckpt_err ignored = { 0 };
	enum http_verdict v;

	(void)from;
	if (h->status / 100 == 2)
		return ask_take(a, h, e);
	if (h->error_len)
		(void)xml_parse(h->error, h->error_len, s3_on_error, &r, &ignored);
	if (h->status == 501 && a->conditional) {
		a->s->unconditional = true;
		return HTTP_NOW;
	}
	/*
	 * The request was damaged on the way. Ceph reads a list of parts before it compares hashes.
	 */
	if ((h->status == 400 &&
	     (!strcmp(r.code, "BadDigest") || !strcmp(r.code, "XAmzContentSHA256Mismatch") ||
	      !strcmp(r.code, "MalformedXML"))) ||
	    (h->status == 409 && (!strcmp(r.code, "ConditionalRequestConflict") ||
				  !strcmp(r.code, "OperationAborted")))) {
		(void)store_refuse(h, r.code, r.message, e);
		return HTTP_AGAIN;
	}
	v = a->s->base.ops->judge(&a->s->base, ".", h, e);
	if (v != HTTP_TAKE)
		return v;
	v = store_refuse(h, r.code, r.message, e);
	if (h->status == 412)
		e->code = EEXIST;
	return v;
}

struct ask_how {
	unsigned stall_ms, retry_ms;
	const atomic_bool *cancel;
	unsigned *lost; /* see http_how */
};

static int ask(struct ask *a, const char *path, const struct ask_how *how, struct buf *body,
	       struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = ask_make, .judge = ask_judge };
	struct buf none CLEANUP(buf_release) = BUF_INIT(BODY_MAX);
	autofree char *name = store_name(&a->s->base, path), *key = NULL;

	if (!a->bucket)
		a->key = key = s3_key(a->s, path, "");
	if (!name || (!key && !a->bucket))
		return err_nomem(e);
	return http_exchange(a->s->base.net, &ops, a,
			     &(struct http_how){ .what = name,
						 .len = UINT64_MAX,
						 .stall_ms = how->stall_ms,
						 .retry_ms = how->retry_ms,
						 .answered = &a->s->base.answered,
						 .upload = a->bytes ? a->bytes->len : 0,
						 .cancel = how->cancel,
						 .lost = how->lost },
			     body ? body : &none, e);
}

/* For what is undone: as short as for anything else, if that is shorter. */
static struct ask_how undo_how(const struct s3 *s)
{
	return (struct ask_how){ .retry_ms = (unsigned)min_u64(net_retry_ms(s->base.net),
							       UPLOAD_UNDO_MS) };
}

/* "KEY=" and the id, encoded. */
static char *id_query(const char *before, const char *id)
{
	struct buf b = BUF_INIT(16 << 10);

	buf_str(&b, before);
	url_encode(&b, id, strlen(id), false);
	if (b.err)
		buf_release(&b);
	return b.data;
}

/* ---- bytes ---- */

/* What is signed as the hash of the body. */
static int payload_of(const struct s3 *s, const struct upload_bytes *b, char ret[static 65],
		      struct ckpt_err *e)
{
	enum { PIECE = 64 << 10 };
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx c;
	autofree uint8_t *buf = NULL;

	if (s->secure) {
		(void)snprintf(ret, 65, "%s", SIGN_UNSIGNED);
		return 0;
	}
	buf = malloc(PIECE);
	if (!buf)
		return err_nomem(e);
	sha256_init(&c);
	for (uint64_t off = 0, n; off < b->len; off += n) {
		int rc;

		n = min_u64(PIECE, b->len - off);
		rc = b->read(b->arg, off, buf, (size_t)n);
		if (rc)
			return err_sys(e, -rc, "read the data to upload");
		sha256_update(&c, (size_t)n, buf);
	}
	sha256_digest(&c, sizeof(digest), digest);
	base16_encode_update(ret, sizeof(digest), digest);
	ret[64] = 0;
	return 0;
}

static int send(struct s3 *s, const char *path, const char *query, const struct upload_bytes *b,
		const struct object_request *o, struct upload_result *ret, struct ckpt_err *e)
{
	char payload[65], md5[BASE64_ENCODE_RAW_LENGTH(MD5_DIGEST_SIZE) + 1];
	struct ask a = {
		.s = s, .query = query, .o = *o, .bytes = b, .etag = ret->etag, .proves = true
	};
	int rc = payload_of(s, b, payload, e);

	*ret = (struct upload_result){ 0 };
	if (rc)
		return rc;
	base64_encode_raw(md5, MD5_DIGEST_SIZE, b->md5);
	md5[sizeof(md5) - 1] = 0;
	a.o.method = "PUT";
	a.o.md5 = md5;
	a.o.payload = payload;
	rc = ask(&a, path,
		 &(struct ask_how){
			 .stall_ms = PART_STALL_MS, .cancel = b->cancel, .lost = &ret->lost },
		 NULL, e);
	ret->repeated = a.tries > 1;
	if (!rc && !*ret->etag)
		rc = err_set(e, EIO, "'%s': the server did not return an ETag for what it stored",
			     path);
	return rc;
}

static const char binary[] = "application/octet-stream";

static int s3_put(void *store, const char *path, const struct upload_bytes *b, const char *token,
		  bool only_new, struct upload_result *ret, struct ckpt_err *e)
{
	const struct object_request o = { .type = binary,
					  .if_none_match = only_new ? "*" : NULL,
					  .token = token };

	return send(s3_of(store), path, "", b, &o, ret, e);
}

static int s3_part(void *store, const char *path, const char *id, unsigned number,
		   const struct upload_bytes *b, char etag[static UPLOAD_ETAG], struct ckpt_err *e)
{
	static const struct object_request plain;
	struct upload_result r;
	char before[64];
	autofree char *query = NULL;
	int rc;

	(void)snprintf(before, sizeof(before), "partNumber=%u&uploadId=", number);
	query = id_query(before, id);
	rc = query ? send(s3_of(store), path, query, b, &plain, &r, e) : err_nomem(e);
	if (!rc)
		memcpy(etag, r.etag, UPLOAD_ETAG);
	return rc;
}

/* ---- uploads ---- */

static int on_begun(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	char **id = arg;

	if (strcmp(path, "InitiateMultipartUploadResult/UploadId") != 0 || !len || *id)
		return 0;
	*id = strdup(text);
	return *id ? 0 : err_nomem(e);
}

static int s3_begin(void *store, const char *path, const char *token, struct upload_begun *ret,
		    const atomic_bool *cancel, struct ckpt_err *e)
{
	struct buf body CLEANUP(buf_release) = BUF_INIT(BODY_MAX);
	struct ask a = { .s = s3_of(store),
			 .query = "uploads=",
			 .once = true,
			 .o = { .method = "POST", .type = binary, .token = token } };
	autofree char *id = NULL;
	unsigned lost = 0;
	int rc = ask(&a, path, &(struct ask_how){ .cancel = cancel, .lost = &lost }, &body, e);

	*ret = (struct upload_begun){ .doubtful = a.tries > 1, .lost = lost };
	if (!rc)
		rc = xml_parse(body.data ? body.data : "", body.len, on_begun, &id, e);
	if (!rc && (!id || strlen(id) > 4096))
		rc = err_set(e, EIO, "'%s': the server began an upload but returned no ID for it",
			     path);
	if (!rc)
		ret->id = steal_ptr(&id);
	return rc;
}

struct completed {
	struct s3_error error;
	bool done;
	char *etag;
};

static int on_completed(void *arg, const char *path, const char *text, size_t len,
			struct ckpt_err *e)
{
	struct completed *c = arg;
	size_t n;

	if (!strcmp(path, "CompleteMultipartUploadResult")) {
		c->done = true;
	} else if (!strcmp(path, "CompleteMultipartUploadResult/ETag")) {
		const char *p = object_etag(text, &n);

		if (p && n < UPLOAD_ETAG)
			(void)snprintf(c->etag, UPLOAD_ETAG, "%.*s", (int)n, p);
	}
	return s3_on_error(&c->error, path, text, len, e);
}

/* An answer that says 200 may still be an error. 0; -EAGAIN: it may succeed later; or an error. */
static int read_completed(const struct buf *body, char *etag, struct ckpt_err *e)
{
	struct completed c = { .etag = etag };
	const char *p = body->data ? body->data : "";
	size_t blank = strspn(p, " \t\r\n"); /* sent so that the connection does not time out */
	int rc = xml_parse(p + blank, body->len - blank, on_completed, &c, e);

	if (rc)
		return rc;
	if (!c.error.code[0])
		return c.done ? 0
			      : err_set(e, EIO,
					"the server's answer to the end of an upload makes no "
					"sense");
	(void)err_set(e, EIO, "the server answered 200, and then %.60s: %.160s", c.error.code,
		      c.error.message);
	if (!strcmp(c.error.code, "InternalError") || !strcmp(c.error.code, "SlowDown") ||
	    !strcmp(c.error.code, "ServiceUnavailable"))
		return -EAGAIN;
	if (!strcmp(c.error.code, "NoSuchUpload"))
		e->code = ENOENT;
	else if (!strcmp(c.error.code, "PreconditionFailed"))
		e->code = EEXIST;
	return -e->code;
}

static void list_parts(const struct upload_done *parts, size_t n, struct buf *to)
{
	buf_str(to, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
	for (size_t i = 0; i < n; i++) {
		buf_printf(to, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
		for (const char *c = parts[i].etag; *c; c++)
			if (*c == '&')
				buf_str(to, "&amp;");
			else if (*c == '<')
				buf_str(to, "&lt;");
			else
				buf_add(to, c, 1);
		buf_str(to, "</ETag></Part>");
	}
	buf_str(to, "</CompleteMultipartUpload>");
}

static int s3_complete(void *store, const char *path, const char *id,
		       const struct upload_done *parts, size_t n, bool only_new,
		       struct upload_result *ret, struct ckpt_err *e)
{
	struct buf xml CLEANUP(buf_release) = BUF_INIT(4 << 20);
	struct buf body CLEANUP(buf_release) = BUF_INIT(BODY_MAX);
	autofree char *query = id_query("uploadId=", id);
	char hash[65];
	struct ask a = { .s = s3_of(store), .query = query, .xml = &xml };
	int rc;

	*ret = (struct upload_result){ 0 };
	list_parts(parts, n, &xml);
	if (!query || xml.err)
		return err_nomem(e);
	sign_hash(xml.data, xml.len, hash);
	a.o = (struct object_request){ .method = "POST",
				       .if_none_match = only_new ? "*" : NULL,
				       .type = "application/xml",
				       .payload = hash };
	for (unsigned i = 0;; i++) {
		buf_restart(&body);
		rc = ask(&a, path,
			 &(struct ask_how){ .stall_ms = COMPLETE_STALL_MS, .lost = &ret->lost },
			 &body, e);
		ret->repeated = a.tries > 1;
		if (!rc)
			rc = read_completed(&body, ret->etag, e);
		if (rc != -EAGAIN)
			return rc ? err_wrap(e, "'%s'", path) : 0;
		if (i == COMPLETE_TRIES)
			return err_wrap(e, "'%s'", path);
		(void)usleep(100000u << i);
	}
}

static int s3_look(void *store, const char *path, struct upload_seen *ret, struct ckpt_err *e)
{
	struct upload_seen seen = { 0 };
	struct ask a = { .s = s3_of(store),
			 .query = "",
			 .o = { .method = "HEAD" },
			 .etag = seen.etag,
			 .seen = &seen };
	int rc = ask(&a, path, &(struct ask_how){ 0 }, NULL, e);

	if (rc == -ENOENT)
		return 0;
	if (!rc)
		*ret = seen;
	return rc ? rc : 1;
}

static int s3_remove(void *store, const char *path, struct ckpt_err *e)
{
	struct s3 *s = s3_of(store);
	struct ask a = { .s = s, .query = "", .o = { .method = "DELETE" } };
	struct ask_how how = undo_how(s);
	int rc = ask(&a, path, &how, NULL, e);

	return rc == -ENOENT ? 0 : rc;
}

/* A part that was on its way when the upload was aborted may have been stored all the same. */
static int s3_abort(void *store, const char *path, const char *id, struct ckpt_err *e)
{
	struct s3 *s = s3_of(store);
	struct ask_how how = undo_how(s);
	autofree char *query = id_query("uploadId=", id);
	autofree char *list = id_query("max-parts=1&uploadId=", id);
	int rc;

	if (!query || !list)
		return err_nomem(e);
	for (unsigned i = 0;; i++) {
		struct ask a = { .s = s, .query = query, .o = { .method = "DELETE" } };
		struct ask still = { .s = s, .query = list };

		rc = ask(&a, path, &how, NULL, e);
		if (rc)
			return rc == -ENOENT ? 0 : rc;
		rc = ask(&still, path, &how, NULL, e);
		if (rc)
			return rc == -ENOENT ? 0 : rc;
		if (i == ABORT_TRIES)
			return err_set(e, EIO, "'%s': the server keeps an upload that was aborted",
				       path);
	}
}

/* ---- uploads whose ids were lost ---- */

struct strays {
	const char *key, *keep;
	uint64_t since_ns;
	struct buf name; /* of the upload that is being read, decoded */
	char *id;
	uint64_t began_ns;
	char *found[STRAYS_MAX];
	size_t n;
};

static int on_stray(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	static const char root[] = "ListMultipartUploadsResult/";
	struct strays *l = arg;

	if (!bytes_begin(path, strlen(path), root))
		return 0;
	path += sizeof(root) - 1;
	if (!strcmp(path, "Upload/Key")) {
		url_decode(&l->name, text, len, true);
	} else if (!strcmp(path, "Upload/UploadId")) {
		free(l->id);
		l->id = strdup(text);
		if (!l->id)
			return err_nomem(e);
	} else if (!strcmp(path, "Upload/Initiated")) {
		l->began_ns = object_time_ns(text);
	} else if (!strcmp(path, "Upload")) {
		if (l->id && l->name.data && !strcmp(l->name.data, l->key) &&
		    (!l->keep || strcmp(l->keep, l->id) != 0) &&
		    (!l->began_ns || l->began_ns >= l->since_ns) && l->n < STRAYS_MAX)
			l->found[l->n++] = steal_ptr(&l->id);
		free(l->id);
		l->id = NULL;
		l->began_ns = 0;
		buf_restart(&l->name);
	}
	return 0;
}

/* The first page is enough: keys come in order, and this one is the first that begins so. */
static int s3_sweep(void *store, const char *path, const char *keep, struct ckpt_err *e)
{
	struct s3 *s = s3_of(store);
	struct buf query CLEANUP(buf_release) = BUF_INIT(16 << 10);
	struct buf body CLEANUP(buf_release) = BUF_INIT(4 << 20);
	struct ask a = { .s = s, .bucket = true };
	struct ask_how how = undo_how(s);
	autofree char *key = s3_key(s, path, "");
	struct strays l = { .key = key,
			    .keep = keep,
			    .since_ns = (uint64_t)(s->opened - SKEW_S) * 1000000000u,
			    .name = BUF_INIT(8 << 10) };
	int rc, n = 0;

	if (!key)
		return err_nomem(e);
	buf_str(&query, "encoding-type=url&max-uploads=1000&prefix=");
	url_encode(&query, key, strlen(key), false);
	buf_str(&query, "&uploads=");
	if (query.err)
		return err_nomem(e);
	a.query = query.data;
	rc = ask(&a, path, &how, &body, e);
	if (!rc)
		rc = xml_parse(body.data ? body.data : "", body.len, on_stray, &l, e);
	for (size_t i = 0; i < l.n; i++) {
		if (!rc)
			rc = s3_abort(store, path, l.found[i], e);
		n += !rc;
		free(l.found[i]);
	}
	free(l.id);
	buf_release(&l.name);
	return rc ? rc : n;
}

const struct upload_ops s3_uploads = {
	.put = s3_put,
	.begin = s3_begin,
	.part = s3_part,
	.complete = s3_complete,
	.abort = s3_abort,
	.sweep = s3_sweep,
	.look = s3_look,
	.remove = s3_remove,
};

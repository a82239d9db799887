/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_internal - what the kinds of stores share: the identity of an object, and a request for
 * its bytes.
 *
 * Threads: pure, or as in store.h.
 */
#ifndef REMOTE_STORE_INTERNAL_H
#define REMOTE_STORE_INTERNAL_H

#include "remote/http.h"
#include "remote/store.h"

/* ---- identities; place_id.v is one of
 *	E, an ETag without its quotes
 *	H, the SHA-256 of an ETag that is longer than 62 bytes
 *	M, Last-Modified: there is no strong ETag
 */

/* From fields of an answer, either may be NULL. False: neither identifies a version. */
bool object_identify(const char *etag, const char *modified, struct place_id *ret);
/* Does an answer belong to that version? */
bool object_is_same(const struct place_id *id, const char *etag, const char *modified);
/* An ETag without quotes: its start and, in *len, its length. */
const char *object_etag(const char *etag, size_t *len);

/* Size, identity and time of an object from the answer to HEAD (length: Content-Length), or to
 * another request. Errors with a sentence: ENOTSUP: nothing identifies the version. */
int object_seen(const struct http_answer *a, uint64_t size, struct place_seen *ret,
		struct ckpt_err *e);
/* RFC 1123 or ISO 8601, to the second; 0: it is not a time. */
uint64_t object_time_ns(const char *s);

/* ---- stores ---- */

struct object_request {
	const char *method;   /* NULL: GET */
	const char *range;    /* "bytes=0-9", or NULL */
	const char *if_match; /* with quotes, or NULL */
	const char *if_unmodified;
	/* Of requests that write; NULL: not sent. */
	const char *if_none_match; /* "*" */
	const char *type;	   /* Content-Type */
	const char *md5;	   /* Content-MD5 */
	const char *token;	   /* of upload.h, as metadata of the object */
	const char *payload;	   /* SHA-256 of the body in hex, or SIGN_UNSIGNED; NULL: no body */
};

struct store_ops {
	int (*look)(struct store *s, const char *path, struct place_seen *ret, struct ckpt_err *e);
	int (*list)(struct store *s, const char *dir, store_entry_fn *each, void *arg,
		    struct ckpt_err *e);
	/* NULL: bytes come by requests of HTTP, for which are make, judge and check. */
	int (*get)(struct store *s, const char *path, const struct place_seen *seen, uint64_t off,
		   uint64_t len, bool urgent, const struct get_sink *sink, struct ckpt_err *e);
	/* Fills in a request for an object, also on the network's thread; -EAGAIN: not yet. */
	int (*make)(struct store *s, const char *path, const struct object_request *o,
		    struct http_message *m, struct ckpt_err *e);
	/* An answer that is not 2xx, before object_judge: HTTP_TAKE leaves it to that. */
	enum http_verdict (*judge)(struct store *s, const char *path, const struct http_answer *a,
				   struct ckpt_err *e);
	/* 2xx for bytes of an object, before they are taken; may be NULL. */
	int (*check)(struct store *s, const char *path, const struct place_seen *seen,
		     const struct http_answer *a, struct ckpt_err *e);
	int (*dir)(const struct store *s); /* of file://; NULL: see store_dir */
	void (*free)(struct store *s);
	const struct upload_ops *uploads; /* NULL: it cannot be written to */
};

struct store {
	const struct store_ops *ops;
	struct net *net;
	char *address;
	char *origin;	       /* who serves it, if the address does not say; NULL */
	_Atomic bool answered; /* see http_how */
};

/* Adds the fields of a request that are conditions, and the range. */
void object_add_fields(const struct object_request *o, struct http_message *m);
/* "ADDRESS/PATH"; the caller frees it. NULL: out of memory. */
char *store_name(const struct store *s, const char *path);
/* Is this an element of a path that is shown? */
bool store_shows(const char *name, size_t len);
/* The sentence for an answer that is an error: its status and, if `code` is set, what the server
 * calls it. HTTP_AGAIN or HTTP_FAIL. */
enum http_verdict store_refuse(const struct http_answer *a, const char *code, const char *message,
			       struct ckpt_err *e);

/* Makes a request for an object whose body is not wanted or goes to *body: *ret_found is false for
 * 404; else on_answer is called, on the network's thread. */
int store_ask(struct store *s, const char *path, const struct object_request *o,
	      int (*on_answer)(void *arg, const struct http_answer *a, struct ckpt_err *e),
	      void *arg, struct buf *body, bool *ret_found, struct ckpt_err *e);

int s3_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	    struct ckpt_err *e);
int web_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	     struct ckpt_err *e);
int file_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	      struct ckpt_err *e);
int hf_open(struct net *n, const char *address, const struct store_options *o, struct store **ret,
	    struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http - requests over the connections of a `struct net`.
 *
 * A call is one thing that is wanted from a server. It takes as many requests as it needs: make()
 * is asked for each of them, because signatures, credentials and addresses change, and judge() for
 * a verdict on the head of each answer, before the first byte of its body is passed on.
 *
 *	static const struct http_ops ops = { make, judge, bytes, restart, done };
 *	rc = http_start(net, &ops, arg, &(struct http_how){ .what = "s3://b/k", .len = n }, &id, &e);
 *
 * Answers are bounded: 64 KiB of header fields, 64 KiB of the body of an error.
 *
 * Private to core/remote.
 *
 * Threads: http_start, _cancel and _exchange from any; all functions of http_ops are called on the
 * network's thread, except those of http_exchange's, which is the same. _exchange waits, so not
 * from that thread.
 */
#ifndef REMOTE_HTTP_H
#define REMOTE_HTTP_H

#include "base/buf.h"
#include "remote/store.h"

struct curl_slist;

/* Where a request may lead: everywhere if the user named its host. Where a server redirected to,
 * never to link-local addresses, and to those of a private network only if that server is at one,
 * too. */
enum http_reach { HTTP_ANYWHERE, HTTP_INSIDE, HTTP_PUBLIC };

/* A request. */
struct http_message {
	const char *method; /* NULL: GET; "HEAD", "PUT", "POST" */
	struct buf url;	    /* encoded */
	struct buf body;
	/* In place of body, if set: `upload` bytes, read again from their beginning by each
	 * request: 0 or -errno. */
	int (*read)(void *arg, uint64_t off, void *buf, size_t n);
	void *read_arg;
	uint64_t upload;
	struct curl_slist *fields; /* see http_add_field */
	bool direct;		   /* through no proxy */
	enum http_reach reach;	   /* of the host in url */
	/* libcurl must not repeat it. It does so on a connection that was used before and has just
	 * been closed, so use a new one. */
	bool once;
};

/* Adds a header field. Errors (memory, a line end in the value) are sticky: in url.err. */
void http_add_field(struct http_message *m, const char *name, const char *value);

/* The head of an answer. */
struct http_answer {
	unsigned status;
	const struct buf *fields; /* see http_field */
	/* The body's beginning if status is not 2xx, up to 64 KiB and followed by NUL; else "". */
	const char *error;
	size_t error_len;
	const char *url; /* of the request */
	enum http_reach reach;
	bool inside; /* the server is at an address that is not public; false through a proxy */
};

/* The value of a field, borrowed; NULL: there is none. "" if there are several that differ. */
const char *http_field(const struct http_answer *a, const char *name);
/* Are there several that differ? "" may also be the value of the only one. */
bool http_disagrees(const struct http_answer *a, const char *name);
/* A field of decimal digits; false: there is none, or it is not a number. */
bool http_number(const struct http_answer *a, const char *name, uint64_t *ret);
/* Content-Range: bytes FIRST-LAST/TOTAL; *ret_total is UINT64_MAX for "*". */
bool http_range(const struct http_answer *a, uint64_t *ret_first, uint64_t *ret_last,
		uint64_t *ret_total);
/* May the same request succeed later: 408, 429, 500, 502, 503, 504? */
bool http_passes(unsigned status);
/* Where a redirect leads: an absolute URL in *ret (the caller frees it), and how far that may
 * reach. Fails with EIO if there is none, or it leaves http and https, or leads from https to http,
 * or to an address that is out of reach. Names are checked when a request connects, unless a proxy
 * does that. */
int http_location(const struct http_answer *a, char **ret, enum http_reach *ret_reach,
		  struct ckpt_err *e);

enum http_verdict {
	HTTP_TAKE,  /* pass the body on */
	HTTP_AGAIN, /* try the same again, after a while; *e says why */
	HTTP_NOW,   /* make another request at once: make() has learnt something */
	HTTP_FAIL,  /* with *e */
};

struct http_ops {
	/* The request for the bytes after the first `from`, which have been passed on. -EAGAIN
	 * without a sentence: not yet; another error ends the call. */
	int (*make)(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e);
	enum http_verdict (*judge)(void *arg, uint64_t from, const struct http_answer *a,
				   struct ckpt_err *e);
	/* The next bytes of the body; non-zero cancels. */
	int (*bytes)(void *arg, const void *p, size_t n);
	/* What was passed on is void. NULL: a request that breaks off is continued after it. */
	void (*restart)(void *arg);
	/* The call is over. */
	void (*done)(void *arg, int rc, const struct ckpt_err *e);
};

struct http_how {
	const char *what;  /* for sentences: the address; copied */
	uint64_t len;	   /* bytes of the body in all; UINT64_MAX: not known */
	bool urgent;	   /* see store_get */
	unsigned retry_ms; /* 0: the network's */
	unsigned connect_ms, stall_ms;
	/* Set once the server has sent the head of an answer. Until then a name that does not
	 * resolve and a refused connection are tried for 3 s only: it may be a typing error. NULL:
	 * set already. */
	_Atomic bool *answered;
	uint64_t upload; /* bytes that each request sends, and so more time */
	/*
	 * Counts the requests that were sent, at least in part, and got neither a whole answer nor
	 * an error: what the server has done with them, or will do, is unknown. NULL: not counted.
	 */
	unsigned *lost;
	const _Atomic bool
		*cancel; /* set by anybody: ends the call, within a second, or three if a request
			  * has been sent that `lost` would count; may be NULL */
};

int http_start(struct net *n, const struct http_ops *ops, void *arg, const struct http_how *how,
	       uint64_t *ret_id, struct ckpt_err *e);
/* done is called with -ECANCELED, soon, unless it has been called. */
void http_cancel(struct net *n, uint64_t id);

/* Makes a call and waits for its end; the body is added to *body, up to its ceiling. ops: only make
 * and judge. */
int http_exchange(struct net *n, const struct http_ops *ops, void *arg, const struct http_how *how,
		  struct buf *body, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store - the objects under one address in an object store, as ckptfs-fetch sees them.
 *
 *	rc = net_new(&limits, &net, &e);
 *	rc = store_open(net, "s3://bucket/run/step-1000", &options, &s, &e);
 *	rc = store_look(s, ".metadata", &seen, &e);            // 1, 0: it is not there, or < 0
 *	rc = store_list(s, ".", on_entry, arg, &e);            // one level, as a directory
 *	rc = store_get(s, "a.distcp", &seen, off, len, false, &sink, &get, &e);
 *
 * Addresses: s3://BUCKET/KEY, gs://BUCKET/KEY (by its S3-compatible API), https://HOST/PATH,
 * http:// likewise, hf://ORG/NAME[@REVISION][/PATH], file:///PATH.
 *
 * A get delivers bytes only of the version that `id` names: each request carries If-Match (or the
 * commit and the ETag of the hub), and status, Content-Range and length of each answer are checked
 * before its first byte is delivered. What fails for a moment is tried again, from the first byte
 * that is missing, until options.retry_ms have passed without one.
 *
 * Errors: ENOENT: no such object; EACCES: refused, or no credentials; ESTALE: changed or removed
 * since `id` was seen; ETIMEDOUT, EIO: the store did not answer, or answered nonsense; ECANCELED.
 * Sentences name the address, never a secret and never a signed query.
 *
 * Private to core/remote. Only ckptfs-fetch contains what implements this: no other program links
 * libcurl.
 *
 * Threads: store_open, _look and _list block and may be called from any thread at once; store_get
 * and get_cancel return at once; the calls of a sink are made on one thread at a time, the
 * network's or one of the store's, must not block for long, and may call store_get and get_cancel.
 */
#ifndef REMOTE_STORE_H
#define REMOTE_STORE_H

#include "source/place.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct get;
struct net;
struct store;
struct upload_ops;

/* ---- the network: connections shared by all stores of the process ---- */

struct net_options {
	unsigned max_connections; /* per host; 0: 64 */
	unsigned connect_ms;	  /* 0: 3000 */
	unsigned stall_ms;	  /* no byte for this long ends a request; 0: 10000 */
	unsigned retry_ms;	  /* retries go on for this long without a byte; 0: 60000 */
	/* All of the answer to a request with a body must have come by then; 0: 600000. S3 takes
	 * some minutes to join the parts of an upload, and sends white space meanwhile. */
	unsigned answer_ms;
};

int net_new(const struct net_options *o, struct net **ret,
	    struct ckpt_err *e); /* starts its thread */
void net_free(struct net *n);	 /* cancels what is left, and waits; NULL is fine */

/* As measured on the last requests; 0: not known yet. */
struct net_pace {
	uint64_t latency_us;	 /* to the first byte of an answer, median */
	uint64_t connection_bps; /* bytes per second of one connection */
	uint64_t total_bps;	 /* of all together, over the last second that was busy */
	unsigned at_once;	 /* requests worth having in flight now: grows by one at a time, is
				     halved when the store says 503 or 429, or does not answer */
	uint64_t requests, bytes, retries, hedges; /* since net_new */
};
void net_pace(struct net *n, struct net_pace *ret);
void net_note_read(struct net *n, uint64_t bytes); /* not over the network: counted all the same */
unsigned net_retry_ms(const struct net *n);	   /* see net_options */

/* ---- objects ---- */

struct store_options {
	const char *
		endpoint; /* NULL: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, HF_ENDPOINT, or the public one */
	const char *region;  /* NULL: AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1 */
	const char *profile; /* NULL: AWS_PROFILE, or default */
	bool anonymous;	     /* sign nothing, send no token */
	int dir; /* file://: the directory, which is borrowed; the address is its path */
};

int store_open(struct net *n, const char *address, const struct store_options *o,
	       struct store **ret, struct ckpt_err *e);
void store_free(struct store *s); /* after its gets have ended; NULL is fine */

/* How objects are written to it, see upload.h; `store` of the calls is s. NULL: they are not. */
const struct upload_ops *store_uploads(const struct store *s);

/* The address in its canonical form, with the commit of a hub's revision; borrowed. */
const char *store_address(const struct store *s);

/* The server that was asked for instead of the address's own, which may have anything under the
 * same address; "": none. Borrowed. */
const char *store_origin(const struct store *s);

/* Of file://: its directory, borrowed; else -1. */
int store_dir(const struct store *s);

/* Paths are relative to the address, '/' between elements; "." is the address itself. Objects whose
 * keys have empty, "." or ".." elements are not shown. */
int store_look(struct store *s, const char *path, struct place_seen *ret, struct ckpt_err *e);
/*
 * Each name of one level, in any order; seen.kind is PLACE_DIR for a common prefix. A store that
 * cannot list (plain https) returns -ENOTSUP, without a sentence. A non-zero value of `each` ends
 * it and is returned. Names, pages and their total are bounded.
 */
typedef int store_entry_fn(void *arg, const char *name, const struct place_seen *seen,
			   struct ckpt_err *e);
int store_list(struct store *s, const char *dir, store_entry_fn *each, void *arg,
	       struct ckpt_err *e);

/* ---- bytes ---- */

struct get_sink {
	void *arg;
	/* The next n bytes, in order from the first byte asked for; non-zero cancels. */
	int (*bytes)(void *arg, const void *p, size_t n);
	/* Called exactly once, after which the get is gone: 0, or a negative errno and its
	 * sentence. */
	void (*done)(void *arg, int rc, const struct ckpt_err *e);
};

/* Bytes [off, off+len), which must lie in the object; len > 0. An error here means that nothing was
 * started and the sink is not called. urgent: somebody waits; the others give way, and only urgent
 * requests are hedged. */
int store_get(struct store *s, const char *path, const struct place_seen *seen, uint64_t off,
	      uint64_t len, bool urgent, const struct get_sink *sink, struct get **ret,
	      struct ckpt_err *e);
/* The sink's done is called with -ECANCELED, soon, unless it has been called. Not from the sink.
 * NULL, a get of file://: nothing is done, and a sink that cancels is all that ends it. */
void get_cancel(struct net *n, struct get *g);

#endif

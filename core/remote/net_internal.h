/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_internal - what the files that implement `struct net` share.
 *
 *	net.c		calls: starts, repeats, hedges and ends them; the thread and its loop
 *	net_transfer.c	transfers: a single request over libcurl, and how it ended
 *	net_pace.c	pace: measured speeds, and how many requests at a time are worth having
 *
 * Each file uses only those below it in this list. A call waits (due), or has one transfer under
 * way, or two: the second is the hedge. The first of them whose answer is taken wins, and the other
 * is dropped.
 *
 * A transfer cannot be removed, nor another one added, from within a callback of libcurl: callbacks
 * note what is to be done, and the loop does it.
 *
 * Private to core/remote.
 *
 * Threads: all functions are called on the network's thread, which owns every field but those that
 * net.lock guards.
 */
#ifndef REMOTE_NET_INTERNAL_H
#define REMOTE_NET_INTERNAL_H

#include "base/err.h"
#include "base/list.h"
#include "remote/http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
	NET_SAMPLES = 64,
	NET_POOL = 128,
};

struct call;

/* ---- pace ---- */

struct pace {
	struct net_pace v; /* what net_pace reports; requests, retries and hedges are net.c's */
	/* Owned by net_pace.c. */
	unsigned most; /* at_once at most */
	uint64_t latency_us[NET_SAMPLES], bps[NET_SAMPLES];
	unsigned n_latency, n_bps;
	uint64_t p95_ns; /* of latency */
	uint64_t busy_ns, busy_bytes, halved_ns;
	unsigned credit; /* successes since at_once grew */
	bool was_halved;
};

void pace_init(struct pace *p, unsigned most);
/* The first byte of an answer came `ns` after its request began. */
void pace_latency(struct pace *p, uint64_t ns);
/* Bytes of a body came. */
void pace_bytes(struct pace *p, uint64_t n);
/* A connection brought a body of `bytes` bytes in `ns`, from its first byte to its last. */
void pace_speed(struct pace *p, uint64_t bytes, uint64_t ns);
/* A request has begun while no other is on its way. */
void pace_alone(struct pace *p, uint64_t now);
/* Measures the speed of all connections together; the loop calls it in each turn. */
void pace_look(struct pace *p, unsigned in_flight, uint64_t now);
/* One of in_flight requests has succeeded. */
void pace_success(struct pace *p, unsigned in_flight);
/* The server refuses requests, or does not answer: halves at_once. */
void pace_trouble(struct pace *p, uint64_t now);
/* How long to wait for the answer to an urgent request before sending a second one. */
uint64_t pace_hedge_ns(const struct pace *p);

/* ---- transfers ---- */

struct transfer {
	LIST_LINK(struct transfer) link; /* of net.transfers */
	struct call *call;		 /* NULL: dropped; it only has to be freed */
	struct net *net;
	uint64_t began_ns, first_ns, last_ns, bytes;
	uint64_t sent, sent_ns;	      /* bytes of http_message.upload, and when the last went out */
	uint64_t mark_ns, mark_bytes; /* net.c's, which looks for what is too slow */
	char why[CURL_ERROR_SIZE];    /* libcurl's words, or those of net.c, which ends it */
	struct http_message m;
	/* Owned by net_transfer.c. */
	CURL *easy;
	struct buf fields, error;
	uint64_t error_seen;
	bool head_over, judged, has_proxy;
	bool is_named_inside; /* the host in the URL is an address that is not public */
	char refused[64];     /* an address that it may not connect to */
	enum http_verdict verdict;
	int stop; /* what ended it from within a callback: errno */
	struct ckpt_err e;
};

/* How a transfer ended: its call makes another request, now or later, or is over. */
struct outcome {
	bool now;
	bool later;	 /* repeat the request; *e says why */
	bool timed_out;	 /* if later: no byte came in time */
	uint64_t wait_s; /* if later: the server's Retry-After; 0: it sent none */
	int rc;		 /* if the call is over: 0, or an error that *e describes */
};

/* Starts the call's next request, for the bytes after those it already has. -EAGAIN without a
 * sentence: not yet; any other error ends the call. */
int transfer_start(struct net *n, struct call *c, uint64_t now, struct transfer **ret,
		   struct ckpt_err *e);
/* Judges a transfer that has ended: `code` is libcurl's, or net.c's for a timeout. */
struct outcome transfer_outcome(struct transfer *t, CURLcode code, uint64_t now,
				struct ckpt_err *e);
/* May the server have a request whose answer nobody will see? */
bool transfer_is_lost(const struct transfer *t);
void transfer_free(struct net *n, struct transfer *t);
/* Detaches the call's transfers; the loop frees them later. */
void transfers_drop(struct call *c);

/* ---- calls ---- */

struct call {
	LIST_LINK(struct call) link; /* of net.incoming or net.calls; under net.lock */
	uint64_t id;
	const struct http_ops *ops;
	void *arg;
	struct http_how how;
	char *what;
	_Atomic bool cancelled; /* set by any thread */
	struct transfer *t[2];	/* one alone is the first */
	/* What net_transfer.c counts. net.c sets byte_ns when the first request begins, and got to
	 * 0 when the body counts for nothing. */
	uint64_t got;	     /* bytes that were passed on */
	uint64_t most, sent; /* the most that a request has brought, and has sent */
	uint64_t byte_ns;    /* when the last byte came, or began_ns */
	/* Owned by net.c. */
	uint64_t due_ns, began_ns;
	bool hedged; /* this try has had its second request */
	bool begun;  /* before, it waited for a connection: that is not the server's doing */
	unsigned tries, moves;
	struct ckpt_err last; /* why it is tried again */
	bool timed_out;	      /* that was because nothing came */
};

/* ---- the network ---- */

struct net {
	struct net_options o;
	CURLM *multi;
	/* By http_reach. Connections are kept by the name of the host, and one that was made
	 * because the user named that host must not be used by a request that a server has
	 * redirected to it. */
	CURLSH *share[HTTP_PUBLIC + 1];
	const char *ca_file;
	struct pace pace;
	/* Owned by net_transfer.c. */
	LIST(struct transfer) transfers; /* net.c goes through it */
	CURL *pool[NET_POOL];		 /* handles for use again, which net_free frees */
	unsigned n_pool, in_flight;
	/* Owned by net.c. */
	pthread_t thread;
	uint64_t random;

	pthread_mutex_t lock;
	LIST(struct call) incoming, calls; /* calls: changed by the network's thread only */
	struct net_pace shown;		   /* a copy of pace.v, for other threads */
	uint64_t reads, read_bytes;	   /* of net_note_read */
	uint64_t next_id;
	bool stop;
};

#endif

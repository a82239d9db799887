/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_internal - parts of remote: link (a running ckptfs-fetch, and calls to it), remote_file
 * (objects as sources), remote (addresses as places).
 *
 *	rc = link_get(&key, &l, e);                 // starts it, or one that runs is used
 *	rc = link_call(l, &call, text, len, e);     // sends call.head, waits for the answer
 *	call_release(&call);
 *	link_put(l);
 *
 * A thread of the link receives. Every wait ends: with the answer, when the fetcher is gone, or when
 * it has said nothing for LINK_SILENT_S although it was asked whether it is there. That it answers in
 * time, with an error if need be, is its own duty (option retry).
 *
 * After fork(2) only the parent can use a link: in the child every call fails.
 *
 * Private to core/source. Threads: any.
 */
#ifndef SOURCE_REMOTE_INTERNAL_H
#define SOURCE_REMOTE_INTERNAL_H

#include "base/err.h"
#include "base/list.h"
#include "remote/wire.h"
#include "source/source.h"

#include <pthread.h>

struct link;
struct rfile;

enum { LINK_SILENT_S = 30 };

/* ---- link ---- */

/* What a link is shared by. */
struct link_key {
	const char *cache_dir; /* NULL: the default */
	uint64_t cache_size, memory, retry_ms;
};

int link_get(const struct link_key *key, struct link **ret, struct ckpt_err *e);
void link_hold(struct link *l);
void link_put(struct link *l);
/* Ends the receivers of all links, while no other function is called. The next call starts its
 * link's again. No more links are started: the caller is about to give up the right to. */
void link_rest(void);

enum { MAX_PINS = 3 };

/* A call, from the caller's stack. */
struct call {
	struct wire_head head; /* the request; then the answer, without error */
	/* These are received with the answer; call_release frees them. */
	char *text;
	size_t len, cap;
	int fd; /* -1: none */
	/* When the answer to a read arrives, what it is about is kept from being dropped. */
	struct rfile *file;
	uint64_t off, size;
	struct rseg *pins[MAX_PINS];
	/* Of link.c. */
	bool done, taken;
	struct ckpt_err err;
	pthread_cond_t wake;
	LIST_LINK(struct call) link;
};

int link_call(struct link *l, struct call *c, const void *text, size_t len, struct ckpt_err *e);
/* The same, with a descriptor, which stays the caller's. */
int link_call_with(struct link *l, struct call *c, const void *text, size_t len, int fd,
		   struct ckpt_err *e);
void call_release(struct call *c);
/* Sends a message that has no answer; a failure shows in the next call. */
void link_tell(struct link *l, struct wire_head *h);
/* A read of what was here, or of what the fetcher had to be asked for. */
void link_note_read(struct link *l, bool hit);
void link_network(struct link *l, struct place_network *ret);
/* Can it be used, and from this process? */
bool link_is_up(struct link *l);

/* The receiving thread finds files by number. */
int link_add_file(struct link *l, uint32_t number, struct rfile *f, struct ckpt_err *e);
void link_remove_file(struct link *l, uint32_t number, const struct rfile *f);
/* Of the receiving thread: rfile_trim for all files. */
void link_trim(struct link *l);

/* ---- files ---- */

/* Of the receiving thread: it takes over m->fd. */
void rfile_segment(struct rfile *f, struct wire_msg *m);
void rfile_drop(struct rfile *f, const struct wire_msg *m);
void rfile_map(struct rfile *f, struct wire_msg *m);
void rfile_pin(struct rfile *f, struct call *c);
/* Closes the segments that nobody uses: whoever needs them asks for them again. */
void rfile_trim(struct rfile *f);
bool rfile_hold(struct rfile *f); /* false: its last user is just leaving it */
void rfile_put(struct rfile *f);  /* NULL is fine */

/* Object `path` of a place that the fetcher has open under that number. */
int rfile_open(struct link *l, uint64_t place, const char *path, const struct place_seen *seen,
	       struct rfile **ret, struct ckpt_err *e);
bool rfile_is(const struct rfile *f, const char *path, const struct place_seen *seen);
/* A source of it; takes over a reference on success. */
int rfile_source(struct rfile *f, struct source **ret, struct ckpt_err *e);

/* ---- places ---- */

/* A place whose address may not exist yet, and never is a file. The link is the place's; *ret_root
 * is the canonical address, which the caller frees. */
int remote_open_new(const char *address, const struct place_options *o, struct place **ret,
		    struct link **ret_link, uint64_t *ret_number, char **ret_root,
		    struct ckpt_err *e);

#endif

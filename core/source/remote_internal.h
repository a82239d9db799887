/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_internal - parts of remote: link (a running ckptfs-fetch, and calls to it), remote_file
 * (objects as sources), remote (addresses as places).
 *
 *	rc = link_get(&key, &l, e);                 // starts it, or one that runs is used
 *	do
 *		rc = link_call(l, &call, text, len, e);  // sends call.head, waits for the answer
 *	while (rc && link_again(&call));
 *	call_release(&call);
 *	link_put(l);
 *
 * A thread of the link receives. Every wait ends: with the answer, when the fetcher is gone, or
 * when it has said nothing for LINK_SILENT_S although it was asked whether it is there. It is the
 * fetcher's own duty to answer in time, if only with an error (option retry).
 *
 * A fetcher that dies is started again (see wire.h). The first one is epoch 1, the next
 * epoch 2. A new fetcher has nothing open, so the number of a place or a file is valid in one epoch
 * only: a place or file whose number comes from an earlier epoch is opened again when it is needed.
 * Calls that were under way are repeated until the time of the option retry has passed.
 *
 * After fork(2) only the parent can use a link: in the child every call fails.
 *
 * Private to core/source. Threads: any.
 */
#ifndef SOURCE_REMOTE_INTERNAL_H
#define SOURCE_REMOTE_INTERNAL_H

#include "base/err.h"
#include "base/list.h"
#include "source/source.h"
#include "source/wire.h"

#include <pthread.h>
#include <sys/stat.h>

struct link;
struct rfile;
struct rplace;

enum { LINK_SILENT_S = 30 };

/* ---- link ---- */

/* Users with equal keys share a link. */
struct link_key {
	const char *cache_dir; /* NULL: the default */
	uint64_t cache_size, memory, retry_ms;
};

int link_get(const struct link_key *key, struct link **ret, struct ckpt_err *e);
void link_hold(struct link *l);
void link_put(struct link *l);
/* Ends the receivers of all links, while no other function is called. The next call starts its
 * link's receiver again. No more links are started: the caller is about to give up the right to.
 * From now on the fetchers open only what they were told of before; see remote/seal.h. */
void link_rest(void);
/* A link with that key may be needed after link_rest, which starts it if none runs then. */
void link_expect(const struct link_key *key);
/* The text of a WIRE_OPEN, which may be sent again after link_rest, also for other addresses of the
 * same server, bucket or repository. */
void link_may_open(bool anonymous, const char *text, size_t len);
/* A directory of file://, beneath which everything may be read then, or only the files of these
 * names, each followed by a NUL. */
void link_may_read(const struct stat *dir, const char *names, size_t len);

enum { MAX_PINS = 3 };

/* A call, on the caller's stack. */
struct call {
	struct wire_head head; /* the request; then the answer, without error */
	uint64_t epoch; /* of its numbers, 0: it has none; then of the fetcher that answered */
	/* These are received with the answer; call_release frees them. */
	char *text;
	size_t len, cap;
	int fd; /* -1: none */
	/* When the answer to a read arrives, what it is about is kept from being dropped. */
	struct rfile *file;
	uint64_t off, size;
	struct rseg *pins[MAX_PINS];
	/* Of the link; see remote_link_internal.h. */
	uint64_t until_ns;	/* until then it may be made again; 0: it has not been made */
	bool done, taken, lost; /* lost: that fetcher has died */
	struct ckpt_err err;
	pthread_cond_t wake;
	LIST_LINK(struct call) link;
};

int link_call(struct link *l, struct call *c, const void *text, size_t len, struct ckpt_err *e);
/* The same, with a descriptor, which stays the caller's. */
int link_call_with(struct link *l, struct call *c, const void *text, size_t len, int fd,
		   struct ckpt_err *e);
/* After a call that failed: is it to be made again, because the fetcher has died? */
bool link_again(struct call *c);
void call_release(struct call *c);
/* The epoch of the fetcher that runs, or ran last. */
uint64_t link_epoch(struct link *l);
/* Sends a message that has no answer and whose numbers are valid in that epoch, never waiting: if
 * there is no room for it, it is sent before the next message. If it fails, so does the next
 * call. */
void link_tell(struct link *l, uint64_t epoch, struct wire_head *h);
/* The same for a message that may be lost: never waits. */
void link_hint(struct link *l, uint64_t epoch, struct wire_head *h);
/* Counts a read of what was here, or of what the fetcher had to be asked for. */
void link_note_read(struct link *l, bool hit);
void link_network(struct link *l, struct place_network *ret);
/* Can it be used, and from this process? */
bool link_is_up(struct link *l);

/* The receiving thread finds files by number. */
int link_add_file(struct link *l, uint64_t epoch, uint32_t number, struct rfile *f,
		  struct ckpt_err *e);
void link_remove_file(struct link *l, uint32_t number, const struct rfile *f);
/* For the receiving thread: rfile_trim for all files. */
void link_trim(struct link *l);

/* ---- what the fetcher has open for us ---- */

/* A place in the fetcher. Threads: any. */
struct rplace;

/* Opens an address; *ret_root is its canonical form, which the caller frees. */
int rplace_open(struct link *l, const char *address, int dir, const struct place_options *o,
		struct rplace **ret, char **ret_root, struct ckpt_err *e);
/* The address, which is not of file://, may be opened after link_rest. */
void rplace_expect(const char *address, const struct place_options *o);
/* Of file://: only this file is read, and what is opened in its directory before link_rest. */
void rplace_limit(struct rplace *p, const char *name);
/* An object is opened. */
void rplace_note(struct rplace *p, const char *path);
/* Before link_rest: what is open of file:// may be read, and opened again, after it. */
void rplace_rest(void);
void rplace_hold(struct rplace *p);
void rplace_put(struct rplace *p);
struct link *rplace_link(const struct rplace *p);
/* The endpoint, or "" if the address tells whose it is. */
const char *rplace_origin(const struct rplace *p);
/* Its number, in that epoch. */
uint64_t rplace_number(struct rplace *p, uint64_t *ret_epoch);
/* A call whose first number is the place's. */
int rplace_call(struct rplace *p, struct call *c, const void *text, size_t len, struct ckpt_err *e);

/* ---- files ---- */

/* For the receiving thread; takes over m->fd. */
void rfile_segment(struct rfile *f, struct wire_msg *m);
void rfile_drop(struct rfile *f, const struct wire_msg *m);
void rfile_map(struct rfile *f, struct wire_msg *m);
void rfile_pin(struct rfile *f, struct call *c);
/* Closes the segments that nobody uses: whoever needs them asks for them again. */
void rfile_trim(struct rfile *f);
bool rfile_hold(struct rfile *f); /* false: its last user is just leaving it */
void rfile_put(struct rfile *f);  /* NULL is fine */

/* Object `path` of a place. */
int rfile_open(struct rplace *p, const char *path, const struct place_seen *seen,
	       struct rfile **ret, struct ckpt_err *e);
bool rfile_is(const struct rfile *f, const char *path, const struct place_seen *seen);
/* Was it another object, or none, when it was last read? No read through it succeeds any more, but
 * for what is here. */
bool rfile_is_gone(const struct rfile *f);
/* Has it one user? */
bool rfile_is_unused(const struct rfile *f);
/* A source of it; takes over a reference on success. */
int rfile_source(struct rfile *f, struct source **ret, struct ckpt_err *e);

/* ---- places ---- */

/* A place whose address may not exist yet, and never is a file. *ret_place is borrowed from it;
 * *ret_root is the canonical address, which the caller frees. */
int remote_open_new(const char *address, const struct place_options *o, struct place **ret,
		    struct rplace **ret_place, char **ret_root, struct ckpt_err *e);

#endif

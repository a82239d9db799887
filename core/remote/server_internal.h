/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_internal - what the files that implement the server share.
 *
 *	server.c	messages: the loop that receives, handles and sends them
 *	server_jobs.c	jobs: messages that block in a store, on threads of their own
 *	server_fetch.c	fetching: what readers wait for, what is wanted, what is on its way
 *	server_files.c	places and files, and which segments of each the other side has
 *
 * server.c calls the others, and they send through it. server_jobs.c and server_fetch.c use
 * server_files.c, which uses neither, except that a job frees the store of a place that has no
 * users.
 *
 * Private to core/remote.
 *
 * Threads: the first, which is in server_run, calls every function that is not marked "any thread",
 * and owns every field. Where another thread hands it something, the file has a mutex of its own,
 * and does not call another file while it holds it.
 */
#ifndef REMOTE_SERVER_INTERNAL_H
#define REMOTE_SERVER_INTERNAL_H

#include "base/err.h"
#include "remote/sched.h"
#include "remote/seal.h"
#include "source/wire.h"

struct depot;
struct fetching;
struct jobs;
struct messages;
struct net;
struct object;
struct places;
struct store;
struct writes;

struct server {
	/* NULL before WIRE_HELLO, and not changed after it: any thread uses them. */
	struct depot *depot;
	struct net *net;
	struct writes *writes; /* never changed */
	struct seal seal;
	/* Each is defined in one file. */
	struct messages *messages; /* server.c */
	struct jobs *jobs;
	struct fetching *fetching;
	struct places *places; /* server_files.c */
};

/* ---- messages: server.c ---- */

struct messages *messages_new(int sock); /* NULL: out of memory */
/* Takes over fd, or -1. */
void server_send(struct server *s, const struct wire_head *h, const void *text, size_t len, int fd);
/* e: why it failed; NULL: it did not. id 0: no answer is expected, and none is sent. */
void server_answer(struct server *s, uint32_t id, const struct ckpt_err *e);
/* Any thread. */
void server_answer_from_thread(struct server *s, const struct wire_head *h, const void *text,
			       size_t len);
void server_error_from_thread(struct server *s, uint32_t id, const struct ckpt_err *e);
/* Any thread: there is something for the loop to look at. */
void server_wake(struct server *s);

/* ---- jobs ---- */

struct jobs *jobs_new(void); /* NULL: out of memory */
/* Has a thread answer the message, and takes over its descriptor. Out of memory: says so to the
 * other side, and returns false. store: that of the place, or NULL. seen: of WIRE_FILE, or NULL. */
bool jobs_start(struct server *s, struct wire_msg *m, struct store *store, uint32_t place,
		const struct place_seen *seen);
/* Has a thread free the store. */
void jobs_close(struct server *s, struct store *store);
/* Deals with the jobs that have ended: stores become places, objects become files. */
void jobs_take_ended(struct server *s);

/* ---- fetching ---- */

struct file;

struct fetching *fetching_new(void); /* NULL: out of memory */
/* Message `id` is answered as soon as the blocks are in segments that were sent. */
int fetching_read(struct server *s, struct file *f, uint32_t id, struct span span,
		  struct ckpt_err *e);
/* The blocks will be read, after those of earlier calls. */
void fetching_want(struct server *s, struct file *f, struct span span);
/* The other side has forgotten the file, which is freed once nothing of it is on its way. */
void fetching_forget(struct server *s, struct file *f);
/* Takes what has arrived into account. */
void fetching_take_notes(struct server *s);
/* Answers reads whose bytes are there, and starts requests. */
void fetching_schedule(struct server *s);
/* In how many milliseconds fetching_schedule must be called again, even if nothing happens; -1:
 * then it need not. */
int fetching_pause(const struct server *s);
bool fetching_is_busy(const struct server *s);
uint64_t fetching_window(const struct server *s); /* bytes that may be on their way */

/* ---- places and files ---- */

struct file {
	uint32_t number, place;
	char *path;
	struct place_seen seen;
	struct object *object;
	bool forgotten; /* by the other side; freed when nothing is on its way */
	/* Owned by server_files.c. */
	uint32_t *sent;	 /* generation of each segment whose descriptor was sent; 0: none */
	uint64_t sent_n; /* segments; 0, and sent is NULL: the map is still to be sent */
	/* Owned by server_fetch.c. */
	struct steps steps; /* of requests for what was wanted */
	unsigned fetches;
	int gone;	     /* errno, once the object was found to be another */
	struct ckpt_err why; /* if gone */
};

struct places *places_new(void); /* NULL: out of memory */
/* The store of a place that the other side has open; NULL: there is none. */
struct store *server_place(const struct server *s, uint64_t number);
/* Message `id` has opened this store, which is taken over. */
void server_place_add(struct server *s, uint32_t id, struct store *store);
/* The other side closes a place; ignored if it is not open. */
void server_place_close(struct server *s, uint64_t number);
/* A file, a job or a session begins to use a place, or ceases to. */
void server_place_enter(struct server *s, uint32_t number);
void server_place_leave(struct server *s, uint32_t number);

/* A file that the other side has open; NULL: there is none. */
struct file *server_file(const struct server *s, uint64_t number);
/* Answers message `id`, by which the object becomes a file. The object is taken over. */
void server_file_add(struct server *s, uint32_t id, uint32_t place, const char *path,
		     const struct place_seen *seen, struct object *object);
void server_file_free(struct server *s, struct file *f);
struct store *server_file_store(const struct server *s, const struct file *f);
/* Sends the segments of a span that is there. False: not all of it is. */
bool server_file_send(struct server *s, struct file *f, struct span span, struct ckpt_err *e);
/* The other side has lost the descriptors of the span's segments. */
void server_file_unsend(struct file *f, struct span span);
/* The object's directory cannot be used: its blocks are fetched into memory from now on. */
bool server_file_leave_disk(struct server *s, struct file *f, struct ckpt_err *e);
/* A depot_drop_fn, for which arg is the server: a segment in memory is evicted. */
void server_drop_segment(void *arg, struct object *o, uint64_t segment, uint32_t generation);

#endif

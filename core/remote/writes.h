/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writes - answers the messages of wire.h that write: a session for each checkpoint, whose objects
 * are in upload.h.
 *
 *	writes_call(w, &call, &answer, &text, &left, &e);	// WIRE_BEGIN to WIRE_END; waits
 *	writes_close(w);					// the other side is gone
 *
 * A session that the other side does not end, because it has been killed, is ended by writes_close:
 * what is not committed is undone. A commit that has begun is finished first.
 *
 * Private to core/remote.
 *
 * Threads: writes_call from any, several at once.
 */
#ifndef REMOTE_WRITES_H
#define REMOTE_WRITES_H

#include "source/wire.h"

struct buf;
struct ckpt_err;
struct session;
struct store;
struct writes;

struct write_call {
	struct wire_head head;
	const char *text;    /* head.text bytes, then a NUL */
	int fd;		     /* of WIRE_PART; stays the caller's */
	struct store *store; /* of WIRE_BEGIN: used until the session is over */
	uint32_t place;	     /* its number */
};

struct writes *writes_new(void); /* NULL: out of memory */
/*
 * *text: of the answer, empty before. *ret_left: the place of a session that does not use its store
 * any more, or could not begin; else unchanged. *ret_late: a session that is still ending after the
 * answer, for writes_wait; else unchanged.
 */
int writes_call(struct writes *w, const struct write_call *c, struct wire_head *answer,
		struct buf *text, uint32_t *ret_left, struct session **ret_late,
		struct ckpt_err *e);
/* Waits until that session is over, and returns its place. */
uint32_t writes_wait(struct session *late);
void writes_close(struct writes *w);

#endif

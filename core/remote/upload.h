/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload - objects that are written in parts and appear in a store all at once, or not at all.
 *
 *	uploads_new(&ops, store, &options, &u, &e);
 *	uploads_part(u, 0, "a.distcp", 1, false, &bytes, &e);    // waits; any thread, any order
 *	uploads_part(u, 0, "a.distcp", 2, true, &bytes, &e);
 *	uploads_name(u, UPLOADS_COMES_LAST, ".metadata", &e);
 *	uploads_commit(u, &e);
 *	uploads_undo(u, &left);                                  // what is not committed
 *	uploads_free(u);
 *
 * Nothing is visible before the commit. An object of several parts is a multipart upload, which is
 * begun with its first part and completed by the commit. One of a single part is kept in memory,
 * up to options.held bytes of all such objects together, and stored by the commit in one request;
 * beyond that it is a multipart upload of one part.
 *
 * The commit: old objects that must not be seen beside the new ones are removed
 * (UPLOADS_REMOVED_FIRST); the new ones appear, several at a time; old ones that are left are
 * removed (UPLOADS_REMOVED); those named by UPLOADS_COMES_LAST appear one after another. If a step
 * fails, what has appeared is removed again: the last of UPLOADS_COMES_LAST, the commit point,
 * before all others, which stay if it may still be visible, so that no checkpoint is ever visible
 * in part. A request whose answer is lost is decided by looking at the object: a random token that
 * the store keeps with it is that of this `struct uploads`, or it is not ours. Neither its size nor
 * the right bytes are proof, because somebody else may have written the same; and what is not
 * proved to be ours is not removed. If it is not there, it may still appear: a store may be slow.
 *
 * Private to core/remote.
 *
 * Threads: uploads_part and _name from any at once, _stop always; _commit and _undo from one, after
 * the others have returned (_undo waits for them).
 */
#ifndef REMOTE_UPLOAD_H
#define REMOTE_UPLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;
struct uploads;

enum {
	UPLOAD_ETAG = 256,	/* bytes of an ETag without its quotes, and NUL */
	UPLOAD_TOKEN = 64,	/* bytes of a token, and NUL: longer ones are cut */
	UPLOAD_PARTS = 10000,	/* of an object; the limit of S3 */
	UPLOAD_FILES = 4 << 20, /* of a checkpoint */
	UPLOAD_HELD = 64 << 20, /* bytes; the default of options.held */
	UPLOAD_AT_ONCE = 16,	/* requests of a commit or an undo */
	UPLOAD_UNDO_MS = 30000, /* how long an abort or a removal is retried */
	/* If one could not be undone by then, no other is begun: the network may be gone. */
	UPLOAD_UNDO_ALL_MS = 60000,
};

/* What a request sends. */
struct upload_bytes {
	uint64_t len;
	/* Reads [off, off + n), on any thread: 0 or -errno. */
	int (*read)(void *arg, uint64_t off, void *buf, size_t n);
	void *arg;
	uint8_t md5[16];
	const atomic_bool *cancel; /* ends the request with ECANCELED; may be NULL */
};

struct upload_done {
	uint64_t len;
	uint8_t md5[16];
	char *etag; /* as the store called the part */
};

struct upload_begun {
	char *id;      /* the caller frees it; NULL after an error */
	bool doubtful; /* a request may have begun another upload, whose answer was lost */
	unsigned
		lost; /* requests that were sent and not answered: the store may carry them out later */
};

/* What has become of an object that was to appear. */
struct upload_result {
	char etag[UPLOAD_ETAG];
	/* These are set in any case. */
	unsigned
		lost; /* requests that were sent and not answered: the store may carry them out later */
	bool repeated; /* there were requests before the last, and they may have been carried out */
};

/* An object that is there; "": the store does not say. */
struct upload_seen {
	char etag[UPLOAD_ETAG]; /* also "" if it says nothing about the bytes */
	char token[UPLOAD_TOKEN];
	uint64_t size;
};

/*
 * What a store can do. Each call waits and makes its own retries. Errors: EEXIST of put and
 * complete: there is such an object, and only_new was asked for; ENOENT: there is no such object or
 * upload. ETags are without their quotes.
 */
struct upload_ops {
	/* The token is kept with the object. */
	int (*put)(void *store, const char *path, const struct upload_bytes *b, const char *token,
		   bool only_new, struct upload_result *ret, struct ckpt_err *e);
	/* *ret is set in any case. The token is that of the object that the upload will be. */
	int (*begin)(void *store, const char *path, const char *token, struct upload_begun *ret,
		     const atomic_bool *cancel, struct ckpt_err *e);
	int (*part)(void *store, const char *path, const char *id, unsigned number,
		    const struct upload_bytes *b, char etag[static UPLOAD_ETAG],
		    struct ckpt_err *e);
	int (*complete)(void *store, const char *path, const char *id,
			const struct upload_done *parts, size_t n, bool only_new,
			struct upload_result *ret, struct ckpt_err *e);
	/* Returns 0 even if the upload no longer exists. */
	int (*abort)(void *store, const char *path, const char *id, struct ckpt_err *e);
	/* Aborts the uploads of exactly this path, but `keep` (may be NULL), that this process may
	 * have begun. Their number, or an error. */
	int (*sweep)(void *store, const char *path, const char *keep, struct ckpt_err *e);
	/* 1: there is an object; 0: there is none. */
	int (*look)(void *store, const char *path, struct upload_seen *ret, struct ckpt_err *e);
	int (*remove)(void *store, const char *path, struct ckpt_err *e);
};

struct uploads_options {
	bool only_new; /* an object that exists is an error, and stays */
	size_t held;   /* see above; 0: UPLOAD_HELD */
};

/* ops and store are borrowed. */
int uploads_new(const struct upload_ops *ops, void *store, const struct uploads_options *o,
		struct uploads **ret, struct ckpt_err *e);
void uploads_free(struct uploads *u); /* after uploads_undo or a commit; NULL is fine */

/* A part of object `file`, from 0, whose path is the same in each call; numbers are from 1. last:
 * it has no more. ECANCELED once stopped. EINVAL: a part that is there already, or after the
 * last. */
int uploads_part(struct uploads *u, uint64_t file, const char *path, unsigned number, bool last,
		 const struct upload_bytes *b, struct ckpt_err *e);

enum uploads_names { UPLOADS_COMES_LAST, UPLOADS_REMOVED_FIRST, UPLOADS_REMOVED, UPLOADS_NAMES };
int uploads_name(struct uploads *u, enum uploads_names which, const char *path, struct ckpt_err *e);

/* Not before all other calls have returned; until this one has, only uploads_stop may be called.
 * Errors: EINVAL: an object is not whole; nothing has changed then. */
int uploads_commit(struct uploads *u, struct ckpt_err *e);

/* Ends the requests that are on their way: what waits for them fails with ECANCELED. */
void uploads_stop(struct uploads *u);
/* Aborts and removes what is not committed; nothing after a commit. What could not be undone, or
 * may appear only later, is named in *left (a sentence; empty: nothing). */
void uploads_undo(struct uploads *u, struct buf *left);

#endif

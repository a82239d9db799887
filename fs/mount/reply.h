/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply - errors for the kernel, and the log of errors that are not the reader's fault.
 *
 * Errors that a reader can act on (no such name, not a directory, out of memory) are passed on;
 * anything else is EIO, and its sentence is logged once, with path and range. Further failures of
 * the same file are counted and mentioned with the next line, at most every REPLY_LOG_SECONDS.
 *
 * Threads: any.
 */
#ifndef FS_MOUNT_REPLY_H
#define FS_MOUNT_REPLY_H

#include <ckptfs/ckpt.h>

#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLY_LOG_SECONDS = 30 };

struct ckpt_err;
struct failures; /* what was logged, and when */

struct failures *failures_new(struct ckpt *c); /* NULL: out of memory */
void failures_free(struct failures *f);

struct failure {
	const char *doing; /* "read", "look into": what precedes the path */
	ckpt_node node;
	uint64_t off, len; /* of a read */
	bool unnamed;	   /* do not determine its path: its directories may hang, too */
};

/* Replies with an error unchanged, and counts it. */
void reply_error(fuse_req_t req, int code);
/* Replies to a request about names: rc is a negative errno, passed on if it is a valid answer. */
void reply_name_error(fuse_req_t req, int rc);
/* The same with a sentence, which is logged if rc is not a valid answer. */
void reply_name_failure(fuse_req_t req, struct failures *f, const struct failure *what,
			const struct ckpt_err *e);
/* Replies for a file that cannot be read: EIO (ENOMEM, EISDIR and EMFILE are passed on), and a line
 * in the log. */
void reply_failure(fuse_req_t req, struct failures *f, const struct failure *what,
		   const struct ckpt_err *e);

/* Only logs the line. */
void reply_log(struct failures *f, const struct failure *what, const struct ckpt_err *e);

#endif

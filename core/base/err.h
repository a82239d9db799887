/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err - one error value, supplied by the caller: a code and one sentence.
 *
 *	struct ckpt_err e = {0};
 *	if (catalog_open(path, &c, &e))
 *		fprintf(stderr, "ckptfs: %s\n", e.msg);
 *
 * On success *e is untouched; on failure it is always set. No heap, works under ENOMEM.
 * Message: what was being done, to which thing, what was found; lower case, no full stop.
 *
 * Threads: no shared state.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <ckptfs/ckpt_base.h>

#include <errno.h>
#include <stdbool.h>

#define ERR_CORRUPT	EBADMSG /* the checkpoint contradicts itself */
#define ERR_UNSUPPORTED ENOTSUP /* well formed, but not supported by this program */

/* Set code and message; returns -code so that "return err_set(...)" reads well. */
int err_set(struct ckpt_err *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same with ": strerror(code)" appended, for failed system calls. */
int err_sys(struct ckpt_err *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int err_nomem(struct ckpt_err *e); /* "out of memory" */
/* Does the code say that the machine lacks memory or descriptors? That the storage failed? One of
 * both? Then it says nothing about what was looked at. */
static inline bool err_is_shortage(int rc)
{
	return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}
static inline bool err_is_io(int rc)
{
	return rc == -EIO || rc == -ETIMEDOUT;
}
static inline bool err_is_external(int rc)
{
	return err_is_shortage(rc) || err_is_io(rc);
}
/* After a look at something that may be absent or damaged: passes on an external error; any other
 * is an answer, for which it returns 0. */
static inline int err_if_external(int rc, const struct ckpt_err *why, struct ckpt_err *e)
{
	if (!err_is_external(rc))
		return 0;
	*e = *why;
	return rc;
}
/* Put "context: " in front of the message that *e holds; returns -e->code. */
int err_wrap(struct ckpt_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture - catches what libfuse and fusermount3 print on stderr while mounting, for our own error
 * message.
 *
 *	struct capture c;
 *	if (capture_start(&c, e))
 *		return -e->code;
 *	rc = fuse_session_mount(se, path);
 *	capture_stop(&c, line, sizeof(line));
 *
 * Threads: redirects a descriptor of the whole process, so use it before starting any.
 */
#ifndef FS_CMD_CAPTURE_H
#define FS_CMD_CAPTURE_H

#include <stddef.h>

struct ckpt_err;

struct capture {
	int saved, file;
};

/* 0, or -errno with a sentence. Before Linux 3.17, nothing is caught. */
int capture_start(struct capture *c, struct ckpt_err *e);
/* The first line that was printed, without a prefix such as "fuse: "; "" if there was none. */
void capture_stop(struct capture *c, char *line, size_t cap);

#endif

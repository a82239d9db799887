/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture - catches what libfuse and fusermount3 print on stderr while mounting, for our own error
 * message.
 *
 *	struct capture c;
 *	capture_start(&c);
 *	rc = fuse_session_mount(se, path);
 *	capture_stop(&c, line, sizeof(line));
 *
 * Threads: redirects a descriptor of the whole process, so use it before starting any.
 */
#ifndef FS_CMD_CAPTURE_H
#define FS_CMD_CAPTURE_H

#include <stddef.h>

struct capture {
	int saved, file;
};

void capture_start(struct capture *c);
/* The first line that was printed, without a prefix such as "fuse: "; "" if there was none. */
void capture_stop(struct capture *c, char *line, size_t cap);

#endif

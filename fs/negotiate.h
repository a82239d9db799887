/* SPDX-License-Identifier: Apache-2.0 */
/*
 * negotiate - what the kernel can do and libfuse 3.14 does not know how to ask for.
 *
 * Direct I/O and a shared mapping of the same file exclude each other unless INIT says otherwise
 * (FUSE_DIRECT_IO_ALLOW_MMAP, Linux 6.6). A libfuse that knows the flag is asked for it; to an older
 * one's answer to INIT the flag is added on its way.
 *
 * Threads: INIT comes alone.
 */
#ifndef FS_NEGOTIATE_H
#define FS_NEGOTIATE_H

#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stdint.h>

struct negotiation {
	uint64_t unique; /* of INIT, while its answer is awaited */
	bool offered;	 /* the kernel can */
	bool granted;	 /* and has been told to */
};

/* After fuse_session_mount; get(userdata of the session) is whose struct it is. 0 or -errno. */
int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata));
/* In the init operation. */
void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn);

#endif

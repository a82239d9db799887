/* SPDX-License-Identifier: Apache-2.0 */
/*
 * negotiate - what kernel and daemon agree on in INIT, also what libfuse 3.14 does not know.
 *
 * Direct I/O and a shared mapping of the same file exclude each other unless INIT says otherwise
 * (FUSE_DIRECT_IO_ALLOW_MMAP, Linux 6.6); files that the kernel reads from another file by itself
 * (FUSE_PASSTHROUGH, Linux 6.9) have to be asked for as well. A libfuse that knows these flags is
 * asked for them; to an older one's answer to INIT they are added on its way.
 *
 * Threads: INIT comes alone.
 */
#ifndef FS_MOUNT_NEGOTIATE_H
#define FS_MOUNT_NEGOTIATE_H

#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stdint.h>

struct negotiation {
	bool passthrough; /* is it wanted? Set before negotiate_start. Afterwards: will it be asked
			     for? */
	bool allow_mmap;  /* direct I/O does not keep a file from being mapped */
	/* For an older libfuse: */
	uint64_t unique; /* of INIT, while its answer is awaited */
	uint32_t flags2; /* what is added to it */
};

/* After fuse_session_mount; get(userdata of the session) is whose struct it is. 0 or -errno. */
int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata));
/* In the init operation. */
void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn);

/* ---- io_uring instead of /dev/fuse ---- */

/* Does libfuse have the option? */
bool negotiate_has_uring(void);
/* Why a mount with it goes without it, one sentence; NULL: nothing is known to be in the way. */
const char *negotiate_no_uring(void);
/*
 * How many queues of io_uring libfuse has made, once INIT has been answered; 0: requests come
 * through /dev/fuse. All of them can do nothing but take requests of the session and answer them,
 * whatever is written into them; -EPERM: there is one that can do more.
 */
int negotiate_queues(void);
/* Where a read's answer is to be, which has come this way: as many bytes as it asks for; NULL: it
 * has come through /dev/fuse. */
char *negotiate_payload(fuse_req_t req);

#endif

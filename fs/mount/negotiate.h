/* SPDX-License-Identifier: Apache-2.0 */
/*
 * negotiate - what kernel and daemon agree on in INIT, including flags unknown to libfuse 3.14.
 *
 * Direct I/O and a shared mapping of the same file exclude each other unless INIT says otherwise
 * (FUSE_DIRECT_IO_ALLOW_MMAP, Linux 6.6); files that the kernel reads from another file by itself
 * (FUSE_PASSTHROUGH, Linux 6.9) must be requested, too. They are requested through libfuse if it
 * knows these flags; otherwise they are added to its answer to INIT before that is sent.
 *
 * Threads: INIT is served alone.
 */
#ifndef FS_MOUNT_NEGOTIATE_H
#define FS_MOUNT_NEGOTIATE_H

#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stdint.h>

struct negotiation {
	bool passthrough; /* set it before negotiate_start; afterwards: will it be used? */
	bool allow_mmap;  /* files with direct I/O can be mapped */
	/* For an older libfuse: */
	uint64_t unique; /* of INIT, while its answer is pending */
	uint32_t flags2; /* added to that answer */
};

/* Call after fuse_session_mount; get(userdata of the session) returns the struct. 0 or -errno. */
int negotiate_start(struct fuse_session *session, struct negotiation *(*get)(void *userdata));
/* Call in the init operation. */
void negotiate_init(struct negotiation *n, struct fuse_conn_info *conn);

/* Closing a file is no request, if libfuse can say so; if not, the kernel stops asking after the
 * first. */
static inline void negotiate_no_flush(struct fuse_file_info *fi)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 11)
	fi->noflush = 1;
#else
	(void)fi;
#endif
}

/* ---- io_uring instead of /dev/fuse ---- */

/* Does libfuse have the io_uring option? */
bool negotiate_has_uring(void);
/* Why a mount with this option does not use it, one sentence; NULL: no reason is known. */
const char *negotiate_no_uring(void);
/*
 * The number of io_uring queues that libfuse has created, once INIT has been answered; 0: requests
 * arrive through /dev/fuse. The queues can only fetch requests of the session and answer them,
 * whatever is written into them; -EPERM: one of them can do more.
 */
int negotiate_queues(void);
/* The buffer for the answer to a read that arrived over io_uring, as large as the read; NULL: the
 * read arrived through /dev/fuse. */
char *negotiate_payload(fuse_req_t req);

#endif

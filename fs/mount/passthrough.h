/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough - files that the kernel reads by itself: those that are a real file, byte for byte
 * (ckpt_file_backing), once they are open. Reads and mappings of them go to the real file and never
 * get here.
 *
 * It requires CAP_SYS_ADMIN, and a real file that is not on a stacked file system; otherwise files
 * are read normally. The kernel answers EIO to an open() that would have a file open both ways at
 * once, so the way of the first open applies until the file is closed by all.
 *
 * Changes to the real file are not noticed: if it is replaced or removed, readers keep the old
 * file; if it is written to or truncated, it changes under its readers, as it would without this
 * program. Every later open() fails, and this is logged when its last reader has closed it.
 *
 * Threads: init and release from one, the rest from any.
 */
#ifndef FS_MOUNT_PASSTHROUGH_H
#define FS_MOUNT_PASSTHROUGH_H

#include <ckptfs/ckpt_mount.h>

#include <fuse_lowlevel.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

struct ckpt_err;
struct handle;
struct handles;
struct opened;
struct stats;

/* Requests to /dev/fuse that need CAP_SYS_ADMIN: FUSE_DEV_IOC_BACKING_OPEN and _CLOSE of
 * linux/fuse.h of Linux 6.9, which is newer than that of Debian 12. */
#define PASSTHROUGH_OPEN  _IOW(229, 1, uint64_t[2])
#define PASSTHROUGH_CLOSE _IOW(229, 2, uint32_t)

enum { PASSTHROUGH_BUCKETS = 1024 };

struct passthrough {
	pthread_mutex_t lock;
	struct opened *buckets[PASSTHROUGH_BUCKETS]; /* by node */
	struct stats *stats;
	int fd;		     /* of the session */
	atomic_bool refused; /* by the kernel, permanently */
	atomic_flag told;
};

void passthrough_init(struct passthrough *p, struct stats *stats); /* borrowed */
/* Call when the session has ended. */
void passthrough_release(struct passthrough *p);
/* Has the process CAP_SYS_ADMIN, without which the kernel grants neither this nor mount(2)? */
bool is_sys_admin(void);

/*
 * Call when h is about to be returned to a reader that opens the node: returns the number of the
 * backing file (> 0) to open it with; 0: none; or -errno. If h->begun is set, passthrough_end must
 * be called after it is closed.
 */
int passthrough_begin(struct passthrough *p, struct handles *hs, struct handle *h, ckpt_node node,
		      struct ckpt_err *e);
/* The handle of the first opener, which passthrough_begin has got and the caller must put; NULL:
 * the node is still open elsewhere. */
struct handle *passthrough_end(struct passthrough *p, ckpt_node node);
/* The answer to OPEN; like fuse_reply_open. */
int passthrough_reply(fuse_req_t req, const struct handle *h, int backing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough - files that the kernel reads by itself: those that are a real file, byte for byte
 * (ckpt_file_backing), once they are open. Reads and mappings of them are the real file's and never
 * get here.
 *
 * It takes CAP_SYS_ADMIN, and a real file that does not lie on a stacked file system; where either
 * is missing files are read as all others are. The kernel answers EIO to an open() that has such a
 * file both ways at once, so how it is opened first holds until nobody has it open.
 *
 * What happens to the real file is not seen any more: one that is replaced or removed stays as it
 * was for who has it open, one that is written to or truncated changes under its readers, as
 * without this program. Every open() from then on fails, and once its last reader is done the log
 * says so.
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

/* What /dev/fuse is asked for, with CAP_SYS_ADMIN: FUSE_DEV_IOC_BACKING_OPEN and _CLOSE of
 * linux/fuse.h of Linux 6.9, which is newer than that of Debian 12. */
#define PASSTHROUGH_OPEN  _IOW(229, 1, uint64_t[2])
#define PASSTHROUGH_CLOSE _IOW(229, 2, uint32_t)

enum { PASSTHROUGH_BUCKETS = 1024 };

struct passthrough {
	pthread_mutex_t lock;
	struct opened *buckets[PASSTHROUGH_BUCKETS]; /* by node */
	struct stats *stats;
	int fd;		     /* of the session */
	atomic_bool refused; /* by the kernel, once and for all */
	atomic_flag told;
};

void passthrough_init(struct passthrough *p, struct stats *stats); /* borrowed */
/* The session has ended. */
void passthrough_release(struct passthrough *p);
/* Is a process like this one allowed to ask for it? */
bool passthrough_allowed(void);

/*
 * h is about to be given to who opens the node: the number of the backing file (> 0) that it has to
 * be opened with; 0: without; or -errno. Where h->begun is set, passthrough_end is due once it is
 * closed.
 */
int passthrough_begin(struct passthrough *p, struct handles *hs, struct handle *h, ckpt_node node,
		      struct ckpt_err *e);
/* The last one's handle, which passthrough_begin has got for itself and who calls puts back; NULL:
 * others have the node open. */
struct handle *passthrough_end(struct passthrough *p, ckpt_node node);
/* The answer to OPEN; as fuse_reply_open. */
int passthrough_reply(fuse_req_t req, const struct handle *h, int backing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts - what the kernel has mounted where (/proc/self/mountinfo), asked without touching the
 * mount itself: a daemon that is not serving yet, or no more, would never answer.
 *
 * Threads: no shared state, but the working directory.
 */
#ifndef FS_MOUNT_MOUNTS_H
#define FS_MOUNT_MOUNTS_H

#include <stdbool.h>

struct buf;
struct ckpt_err;

struct mount_found {
	unsigned id;	       /* of the mount, while it is there */
	unsigned major, minor; /* its device, as in /sys/class/bdi */
	char type[64];	       /* "fuse.ckptfs" */
};

/* The topmost mount at this absolute path: 0, 1 when there is none, or a negative errno. */
int mounts_find(const char *path, struct mount_found *ret, struct ckpt_err *e);

/* All mounts, appended as strings, so that one that comes later is known. */
int mounts_list(struct buf *ret, struct ckpt_err *e);
/* As mounts_find, but a mount that was not in the list. */
int mounts_find_new(const char *path, const struct buf *list, struct mount_found *ret,
		    struct ckpt_err *e);

/*
 * Unmount this mount and no other: wherever its directory has been moved to, and whatever its path
 * leads to by now. It stays when something else is mounted on it. `flags`: those of umount2(2).
 * Changes the working directory. 0, also when it is gone already, or a negative errno with a
 * sentence. Other users than root need fusermount3, which unmounts by path: what takes the place of
 * the mount in that moment, it unmounts if it is a FUSE mount of the same user.
 */
int mounts_remove(const struct mount_found *m, int flags, struct ckpt_err *e);

/*
 * Whether this errno of a call on a path in a mount means that its daemon is dead. A call that waited
 * for the daemon when it died gets ECONNABORTED, each later one ENOTCONN.
 */
bool mounts_is_dead(int errnum);

/*
 * Absolute path of a directory without symbolic links, also when it is a mount whose daemon is
 * dead. The caller frees it; NULL with *e set.
 */
char *mounts_resolve(const char *path, struct ckpt_err *e);

/* Where the kernel keeps how far ahead it reads from this mount: a file of one number, in KiB. */
enum { MOUNTS_BDI_MAX = 64 };
void mounts_bdi(const struct mount_found *m, char ret[static MOUNTS_BDI_MAX]);
/* Let the kernel read ahead 1 MiB at a time from this mount, if we may (root). */
void mounts_read_ahead(const struct mount_found *m);

#endif

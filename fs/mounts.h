/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts - what the kernel has mounted where (/proc/self/mountinfo), asked without touching the
 * mount itself: a daemon that is not serving yet, or no more, would never answer.
 *
 * Threads: no shared state.
 */
#ifndef FS_MOUNTS_H
#define FS_MOUNTS_H

#include <stdbool.h>

struct ckpt_err;

struct mount_found {
	unsigned major, minor; /* its device, as in /sys/class/bdi */
	char type[64];	       /* "fuse.ckptfs" */
};

/* The topmost mount at this absolute path: 0, 1 when there is none, or a negative errno. */
int mounts_find(const char *path, struct mount_found *ret, struct ckpt_err *e);

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

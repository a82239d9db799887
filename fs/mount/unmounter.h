/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmounter - a small process that unmounts at the daemon's request.
 *
 * A daemon that has given up its rights can no longer unmount: not as root, and not as a user
 * either, because fusermount3 is setuid, which the sandbox rules out. So a child is started before
 * anything of the checkpoint is read. Before the sandbox is entered it is told once which mount is
 * the daemon's; it waits for one byte on a pipe, unmounts that mount (mounts_remove), and ends. If
 * the daemon ends without a request, it ends without unmounting.
 *
 * Threads: see child.h.
 */
#ifndef FS_MOUNT_UNMOUNTER_H
#define FS_MOUNT_UNMOUNTER_H

#include <sys/types.h>

struct ckpt_err;
struct mount_found;

struct unmounter {
	int fd; /* -1: none */
	pid_t pid;
};
#define UNMOUNTER_NONE ((struct unmounter){ .fd = -1 })

int unmounter_start(struct unmounter *u, struct ckpt_err *e);
/* Names the mount; call it once. */
int unmounter_bind(struct unmounter *u, const struct mount_found *found, struct ckpt_err *e);
/* Requests a lazy unmount and waits until it is done. 0, or -EIO: it is still mounted. */
int unmounter_ask(struct unmounter *u);
/* It is no longer needed; after this, or after unmounter_ask, u is UNMOUNTER_NONE. */
void unmounter_release(struct unmounter *u);

#endif

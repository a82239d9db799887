/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmounter - a small process that unmounts at the daemon's request.
 *
 * A daemon that has given up its rights can no longer unmount: not as root, and not as a user
 * either, because fusermount3 is setuid, which the sandbox rules out. So a child is started before
 * anything of the checkpoint is read. Before the sandbox is entered it is told once which mount is
 * the daemon's; it waits for one byte on a pipe, unmounts that mount (mounts_remove), and ends.
 *
 * If the daemon ends without a request, its mount is dead, and stays, so that programs get errors
 * and do not mistake an empty directory for a checkpoint. With auto_unmount it is unmounted as
 * well. libfuse's own auto_unmount tries the mount when the daemon's socket has closed, which may
 * be before /dev/fuse is closed, and then leaves the mount there.
 *
 * Threads: see child.h.
 */
#ifndef FS_MOUNT_UNMOUNTER_H
#define FS_MOUNT_UNMOUNTER_H

#include <stdbool.h>
#include <sys/types.h>

struct ckpt_err;
struct mount_found;

struct unmounter {
	int fd; /* -1: none */
	pid_t pid;
};
#define UNMOUNTER_NONE ((struct unmounter){ .fd = -1 })

int unmounter_start(struct unmounter *u, bool auto_unmount, struct ckpt_err *e);
/* Names the mount; call it once. */
int unmounter_bind(struct unmounter *u, const struct mount_found *found, struct ckpt_err *e);
/* Requests a lazy unmount and waits until it is done. 0, or -EIO: it is still mounted. */
int unmounter_ask(struct unmounter *u);
/* It is no longer needed; after this, or after unmounter_ask, u is UNMOUNTER_NONE. */
void unmounter_release(struct unmounter *u);

#endif

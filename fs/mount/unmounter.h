/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmounter - a small process that unmounts when the daemon asks it to.
 *
 * A daemon that has given up its rights cannot unmount any more: not as root, and not as a user,
 * whom fusermount3 helps only because it is setuid, which is one of the things that are given up.
 * So a child is started before anything of the checkpoint is read. It is told once which mount is
 * the daemon's, before the sandbox; it waits for one byte on a pipe, unmounts that one
 * (mounts_remove), and ends; it ends without unmounting when the daemon has gone without asking.
 *
 * Threads: as child.h.
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
/* This is the mount; once. */
int unmounter_bind(struct unmounter *u, const struct mount_found *found, struct ckpt_err *e);
/* Have it unmounted, lazily, and wait until that is done. 0, or -EIO: it is still mounted. */
int unmounter_ask(struct unmounter *u);
/* It is not needed; after this or after asking u is none. */
void unmounter_release(struct unmounter *u);

#endif

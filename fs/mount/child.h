/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child - a small process that does one thing for the daemon that the daemon itself may not do any
 * more, and keeps nothing of it: not /dev/fuse, not the pipe of who waits for the mount, not its
 * terminal, not its directory. Signals that end the daemon do not reach it.
 *
 * Threads: one at a time; starting forks, so before there are others.
 */
#ifndef FS_MOUNT_CHILD_H
#define FS_MOUNT_CHILD_H

#include <sys/types.h>

struct ckpt_err;

/* Call run(arg) in a process with this name, whose standard input is `input`, the only descriptor
 * that it has beside /dev/null. It ends when run returns. 0, or -errno with *e set. */
int child_start(const char *name, int input, void (*run)(void *arg), void *arg, pid_t *ret,
		struct ckpt_err *e);

#endif

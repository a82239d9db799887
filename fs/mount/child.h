/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child - a small process that does one thing which the daemon itself may no longer do. It keeps
 * nothing of the daemon's open: not /dev/fuse, not the pipe on which the mount command waits, not
 * its terminal, not its directory. Signals that end the daemon do not reach it.
 *
 * Threads: one at a time; it forks, so call it before starting threads.
 */
#ifndef FS_MOUNT_CHILD_H
#define FS_MOUNT_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

struct ckpt_err;

/* Calls run(arg) in a process with this name, whose standard input is `input` and whose standard
 * output is `output` (-1: /dev/null), its only descriptors besides /dev/null. The process ends when
 * run returns. 0, or -errno with *e set. */
int child_start(const char *name, int input, int output, void (*run)(void *arg), void *arg,
		pid_t *ret, struct ckpt_err *e);

/* Like dup2, which may fail for a moment: EBUSY. */
bool child_take(int fd, int number);

#endif

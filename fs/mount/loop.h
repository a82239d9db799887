/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - the threads that serve requests, also while some of them hang.
 *
 * A read of a data file ends when its storage answers: on a network file system whose server is gone,
 * never, and the thread that waits there cannot be called back. So that nobody else has to wait:
 *
 *   - a thread that has been with one request for LOOP_HUNG_MS does not count any more: for each of
 *     those there may be one thread more, up to LOOP_MAX_HUNG;
 *   - a request that has hung for as long is answered with EINTR when its reader has got a signal, as
 *     the kernel tells us (FUSE_INTERRUPT). The thread stays where it is, and what it answers in
 *     the end is for nobody: the kernel drops it. Until then a signal has no effect, for programs do
 *     not expect it to cut short what takes a moment;
 *   - when the mount ends, hung requests are waited for LOOP_GRACE_MS and no longer.
 *
 * Threads: loop_run from one.
 */
#ifndef FS_MOUNT_LOOP_H
#define FS_MOUNT_LOOP_H

#include <stdint.h>

enum {
	LOOP_HUNG_MS = 1000,
	LOOP_MAX_HUNG = 512,
	LOOP_LOG_SECONDS = 10,
	LOOP_GRACE_MS = 2000,
};

struct ckpt_err;
struct fuse_session;

struct loop_config {
	unsigned threads; /* that serve at the same time; they are started as they are needed */
	/* INIT has been answered, and no thread of ours been started: 0, or *e is set and the loop
	 * ends. Not called when the mount has gone before. */
	int (*begun)(void *arg, struct ckpt_err *e);
	/* A request about a node hangs: told once, after LOOP_LOG_SECONDS. */
	void (*hangs)(void *arg, uint32_t opcode, uint64_t node);
	void *arg;
};

/*
 * Serve a mounted session until it is unmounted or a signal ends it (fuse_set_signal_handlers).
 * *ret_hung is the number of threads that had to be left behind in the middle of a request: while
 * there are any, all that requests use has to stay, and only the end of the process is safe.
 */
int loop_run(struct fuse_session *session, const struct loop_config *config, unsigned *ret_hung,
	     struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - the threads that serve requests, even while some of them hang.
 *
 * A read of a data file ends when its storage answers: on a network file system whose server is
 * gone, never, and the waiting thread cannot be interrupted. To keep other readers from waiting:
 *
 *   - a thread that has spent LOOP_HUNG_MS on one request no longer counts: for each such thread
 * one more may be started, up to LOOP_MAX_HUNG;
 *   - a request that has hung that long is answered with EINTR when its reader gets a signal
 *     (FUSE_INTERRUPT). The thread goes on waiting, and the kernel drops its late answer. Before
 * that a signal has no effect, because programs do not expect signals to interrupt short reads;
 *   - when the mount ends, hung requests are waited for only LOOP_GRACE_MS.
 *
 * Threads: loop_run from one.
 */
#ifndef FS_MOUNT_LOOP_H
#define FS_MOUNT_LOOP_H

#include <stdbool.h>
#include <stdint.h>

enum {
	LOOP_HUNG_MS = 1000,
	LOOP_MAX_HUNG = 512,
	LOOP_LOG_SECONDS = 10,
	LOOP_GRACE_MS = 2000,
	LOOP_TIDY_MS = 1000,
};

struct ckpt_err;
struct fuse_session;

struct loop_config {
	unsigned threads; /* that serve at the same time; started as needed */
	/* Called when INIT has been answered and no thread has been started yet: 0, or *e is set
	 * and the loop ends. Not called if the mount is gone before that. */
	int (*begun)(void *arg, struct ckpt_err *e);
	/* Called after that, when there is a thread that serves requests. */
	void (*ready)(void *arg);
	/* A request about a node hangs: reported once, after LOOP_LOG_SECONDS. */
	void (*hangs)(void *arg, uint32_t opcode, uint64_t node);
	/* Called by a thread of its own while there are requests, about every LOOP_TIDY_MS, and
	 * afterwards until it returns false. May be NULL. */
	bool (*tidies)(void *arg);
	void *arg;
};

/*
 * Serves a mounted session until it is unmounted or a signal ends it (fuse_set_signal_handlers).
 * *ret_hung is the number of threads that were abandoned in the middle of a request: if it is not
 * 0, everything that requests use must stay, and only the end of the process is safe.
 */
int loop_run(struct fuse_session *session, const struct loop_config *config, unsigned *ret_hung,
	     struct ckpt_err *e);

/*
 * Call it while serving a read, once the read holds its file: only from then on may the read be
 * answered with EINTR, because the kernel then releases the file if its reader has gone.
 */
void loop_may_interrupt(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease - keeps files from changing while their pages are handed to a system call.
 *
 * Bytes that a system call takes out of a mapped file cannot be checked afterwards, because they
 * have been delivered. So a read lease is taken first (fcntl(2), F_SETLEASE): the kernel grants it
 * only while no process has the file open for writing, and a later open for writing or truncate
 * waits until the lease is released. A dedicated thread releases it at once: it allows no new use,
 * waits for current ones, which takes microseconds, and does not take the lease again.
 *
 * The kernel notifies that thread with SIGIO; or the whole process, if a system call filter refuses
 * F_SETOWN_EX with EPERM and the thread that takes the lease has SIGIO blocked. Then all threads
 * must have it blocked.
 *
 * Requires ownership of the file or CAP_LEASE, and a local file system; otherwise the caller must
 * copy the bytes and check them.
 *
 * Threads: any; a lease may be dropped only while it is unused.
 */
#ifndef SOURCE_LEASE_H
#define SOURCE_LEASE_H

#include "base/list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { LEASE_IDLE_SECONDS = 1 };

struct leases; /* the leases watched by one thread */

struct lease {
	_Atomic uint32_t users;
	atomic_bool held;  /* it may be used */
	atomic_bool tried; /* taking it was tried */
	atomic_bool used;  /* since the watcher looked last */
	atomic_bool taken; /* and not released yet */
	int fd;
	LIST_LINK(struct lease) link;
};

/* NULL: out of memory. No thread is started before the first lease. */
struct leases *leases_new(void);
void leases_free(struct leases *s); /* NULL is fine; all leases are dropped before */

/* Takes a lease on a file, if possible and not tried before. */
void lease_take(struct leases *s, struct lease *l, int fd);
/* Releases it, if it is held; l is then as new. */
void lease_drop(struct leases *s, struct lease *l);

/* If true, the file cannot change until lease_end. */
bool lease_begin(struct lease *l);
void lease_end(struct lease *l);

#endif

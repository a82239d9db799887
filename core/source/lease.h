/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease - files that nobody can change while their pages are being given away.
 *
 * What a system call takes out of a mapped file cannot be checked afterwards: it has been given
 * away. So before it, a read lease is taken (fcntl(2), F_SETLEASE): the kernel grants it only while
 * nobody has the file open for writing, and a later open for writing or truncate waits until
 * the lease is given back. That is done at once, by a thread that does nothing else: no use is
 * begun any more, those that have been begun are waited for, microseconds, and the lease is not
 * taken again.
 *
 * The kernel tells that thread with SIGIO; or the whole process, where a filter of system calls
 * answers F_SETOWN_EX with EPERM and the thread that takes the lease has SIGIO blocked. Then all
 * threads must have it blocked.
 *
 * Needs the file's owner or CAP_LEASE, and a file system of this machine; without, the bytes are to
 * be copied and checked.
 *
 * Threads: any; a lease is dropped when nobody uses it.
 */
#ifndef SOURCE_LEASE_H
#define SOURCE_LEASE_H

#include "base/list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { LEASE_IDLE_SECONDS = 1 };

struct leases; /* those that one thread watches */

struct lease {
	_Atomic uint32_t users;
	atomic_bool held;  /* it may be used */
	atomic_bool tried; /* to take it */
	atomic_bool used;  /* since the watcher looked last */
	atomic_bool taken; /* and not given back yet */
	int fd;
	LIST_LINK(struct lease) link;
};

/* NULL: out of memory. No thread is started before the first lease. */
struct leases *leases_new(void);
void leases_free(struct leases *s); /* NULL is fine; all leases are dropped before */

/* Take one on a file, if it can be had and has not been tried before. */
void lease_take(struct leases *s, struct lease *l, int fd);
/* Give it back, if it is held; l is as new. */
void lease_drop(struct leases *s, struct lease *l);

/* From true on until lease_end nobody can change the file. */
bool lease_begin(struct lease *l);
void lease_end(struct lease *l);

#endif

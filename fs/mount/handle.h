/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle - a file that a reader has open.
 *
 * All of them are kept in a list, because the kernel does not release what is open when a mount
 * ends with a signal or a lazy unmount.
 *
 * Threads: any. A handle lives until who opened it and all who have got it have put it back: the
 * kernel may release a file as soon as it has the answer to the last read.
 */
#ifndef FS_MOUNT_HANDLE_H
#define FS_MOUNT_HANDLE_H

#include "base/list.h"

#include <ckptfs/ckpt.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_err;

struct handle {
	struct ckpt_file *file;
	LIST_LINK(struct handle) link;
	_Atomic unsigned users;
	bool direct; /* reads come as their reader makes them */
	bool begun;  /* passthrough_end is due */
	_Atomic unsigned small_reads;
	_Atomic uint64_t bad_off; /* where the last read failed, and how often there in a row */
	_Atomic unsigned bad_times;
};

struct handles {
	pthread_mutex_t lock;
	LIST(struct handle) all;
};

void handles_init(struct handles *hs);
/* Closes those that are left, which nobody reads from any more. */
void handles_release(struct handles *hs);

int handle_open(struct handles *hs, struct ckpt *c, ckpt_node node, struct handle **ret,
		struct ckpt_err *e);
struct handle *handle_get(struct handle *h);
void handle_put(struct handles *hs, struct handle *h);

/*
 * A read at off has failed. A mapping with MAP_POPULATE or mlock asks for a bad range again at
 * once, for ever, in the kernel: it cannot be stopped, but waiting here makes it cheap.
 */
void handle_failed(struct handle *h, uint64_t off);

#endif

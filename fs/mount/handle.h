/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle - a file that a reader has open.
 *
 * All handles are in a list, because the kernel does not release open files when a mount ends with
 * a signal or a lazy unmount.
 *
 * Threads: any. A handle lives until it has been put by its opener and by every thread that has got
 * it: the kernel may release a file as soon as it has the answer to the last read.
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
	bool direct; /* reads arrive in the sizes that the reader uses */
	bool begun;  /* passthrough_end is due */
	_Atomic unsigned small_reads;
	_Atomic uint64_t bad_off; /* offset of the last failed read, and how often it failed in a
                                     row */
	_Atomic unsigned bad_times;
};

struct handles {
	pthread_mutex_t lock;
	LIST(struct handle) all;
};

void handles_init(struct handles *hs);
/* Closes the remaining handles, from which nothing reads any more. */
void handles_release(struct handles *hs);

int handle_open(struct handles *hs, struct ckpt *c, ckpt_node node, struct handle **ret,
		struct ckpt_err *e);
struct handle *handle_get(struct handle *h);
void handle_put(struct handles *hs, struct handle *h);

/*
 * Call when a read at off has failed. A mapping with MAP_POPULATE or mlock retries a bad range in
 * the kernel immediately and forever. It cannot be stopped, but waiting here makes it cheap.
 */
void handle_failed(struct handle *h, uint64_t off);

#endif

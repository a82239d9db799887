/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline - processes the blocks of a sequence of items in several threads. Results arrive in
 * order, so they do not depend on which thread was faster. Private to core/ckpt/scan.
 *
 * Memory is bounded: at most PIPELINE_SLOTS blocks per thread are in progress.
 */
#ifndef CKPT_PIPELINE_H
#define CKPT_PIPELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

enum { PIPELINE_SLOTS = 4, PIPELINE_MAX_JOBS = 64 };

/* Must be the first member of the user's item structure. */
struct pipeline_item {
	uint64_t serial;	/* counts from 1 */
	_Atomic uint64_t stop;	/* see pipeline_stop */
	uint64_t queued, ended; /* numbers of blocks; used only by the calling thread */
	bool complete;
};

struct pipeline {
	size_t item_size, result_size, worker_size; /* bytes; all are zeroed */
	size_t result_clear; /* zero only this many bytes of a result; 0: all */
	unsigned jobs;	     /* threads; 0: one per CPU, at most 4 */
	void *arg;	     /* the first argument of all callbacks */

	/*
	 * Runs on the calling thread: fill in the next item. An item without blocks skips the
	 * workers but keeps its turn. False after the last item.
	 */
	bool (*next)(void *arg, void *item, uint64_t *ret_blocks);
	/*
	 * Run on the calling thread, in order: a block's result; an item's end. Non-zero stops the
	 * pipeline.
	 */
	int (*merge)(void *arg, void *item, const void *result);
	int (*finish)(void *arg, void *item);

	/*
	 * Run on a worker: setup before its first block; teardown after its last one, or if setup
	 * failed.
	 */
	int (*setup)(void *arg, void *worker, struct ckpt_err *e);
	void (*teardown)(void *arg, void *worker);
	/* Runs on a worker: process one block. */
	void (*work)(void *arg, void *worker, void *item, uint64_t block, void *result);
};

/* Results of the item's blocks after this one are no longer needed: they may be skipped. */
void pipeline_stop(struct pipeline_item *i, uint64_t block);
/* Returns 0, the result of merge or finish, or a negative errno. */
int pipeline_run(const struct pipeline *pipeline, struct ckpt_err *e);

#endif

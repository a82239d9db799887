/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline - the blocks of a sequence of items, worked on by several threads. Results come in order,
 * so that what is made of them does not depend on which thread was faster. Private to core/ckpt.
 *
 * Memory is bounded: at most PIPELINE_SLOTS blocks for each thread are under way.
 */
#ifndef CKPT_PIPELINE_H
#define CKPT_PIPELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

enum { PIPELINE_SLOTS = 4, PIPELINE_MAX_JOBS = 64 };

/* The first member of what a user of the pipeline calls an item. */
struct pipeline_item {
	uint64_t serial;	/* from 1 on */
	_Atomic uint64_t stop;	/* see pipeline_stop */
	uint64_t queued, ended; /* blocks; the calling thread's */
	bool complete;
};

struct pipeline {
	size_t item_size, result_size, worker_size; /* bytes; all begin as zeros */
	size_t result_clear;			    /* or of a result only so many; 0: all */
	unsigned jobs;				    /* threads; 0: one for each CPU, up to 4 */
	void *arg;				    /* the first argument of all functions */

	/* The calling thread: fill in the next item. With no blocks it passes through, in its turn.
	 * False after the last. */
	bool (*next)(void *arg, void *item, uint64_t *ret_blocks);
	/* The calling thread, in order: a block's result; an item's end. Non-zero stops the pipeline. */
	int (*merge)(void *arg, void *item, const void *result);
	int (*finish)(void *arg, void *item);

	/* A thread, before its first block; after its last one, or where setting up failed. */
	int (*setup)(void *arg, void *worker, struct ckpt_err *e);
	void (*teardown)(void *arg, void *worker);
	/* A thread: one block. */
	void (*work)(void *arg, void *worker, void *item, uint64_t block, void *result);
};

/* Of an item's blocks behind this one the results do not matter any more: they may be left out. */
void pipeline_stop(struct pipeline_item *i, uint64_t block);
/* 0, what merge or finish returned, or a negative errno. */
int pipeline_run(const struct pipeline *pipeline, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_scan - all bytes of all tensors, or of those whose FQNs match a glob, read by several threads.
 * Results come in natural order of the names. Private to core/ckpt.
 *
 * Memory is bounded by the number of threads, whatever the sizes of tensors.
 */
#ifndef CKPT_TENSOR_SCAN_H
#define CKPT_TENSOR_SCAN_H

#include "tensor/tensor_info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_err;

enum { TENSOR_SCAN_BLOCK = 4 << 20 /* bytes that are read at once */ };

struct tensor_scan {
	struct ckpt *c;
	const char *const *globs;
	bool model; /* the model's tensors, under their names in hf/ */
	bool by_chunk; /* not with model: each chunk is scanned as a tensor of its own, see chunk_path */
	bool in_order;	 /* a tensor's blocks come one after another, to one thread */
	uint64_t max;	 /* elements of a block; 0: as many as fit */
	unsigned jobs;	 /* 0: one for each CPU, up to 4 */
	const char *cmd; /* what globs that take too long are reported for: "stat" */
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *progress_arg;

	void *arg; /* the first argument of: */
	/* A thread's own memory, of zeros. */
	size_t worker_size;
	int (*setup)(void *arg, void *worker, struct ckpt_err *e);
	void (*teardown)(void *arg, void *worker);
	/* The calling thread, before anything is read, each tensor; and then begin, unless it is NULL,
	 * which tells how many of the first ones are not to be read. */
	void (*list)(void *arg, const struct tensor_info *t);
	int (*begin)(void *arg, uint64_t *ret_known, struct ckpt_err *e);
	/* Is there anything to learn from the bytes of this dtype? NULL: always. */
	bool (*wanted)(const struct tensor_info *t);
	/* A thread: n elements from number `from` on, of a tensor. *result began as zeros, or its first
	 * result_clear bytes did; one for each block, or in_order one for the tensor. */
	size_t result_size, result_clear;
	void (*block)(void *arg, void *worker, const struct tensor_info *t, const void *bytes,
		      size_t n, uint64_t from, void *result);
	/* The calling thread: a result, into the tensor's state, which began as zeros. */
	size_t state_size;
	void (*merge)(void *arg, void *state, const void *result);
	/* The calling thread: the tensor has been read; fault: why not, or NULL. `read` is false where
	 * it was not wanted. Non-zero ends the scan. */
	int (*finish)(void *arg, const struct tensor_info *t, bool read, const char *fault,
		      const void *state);

	/* by_chunk, while finish runs: the chunk's data file. .bytes are the chunk's. */
	const char *chunk_path;

	/* Filled in: */
	uint64_t tensors, failed, bytes;
};

/* 0, also when tensors could not be read; what finish returned; or a negative errno. */
int tensor_scan_run(struct tensor_scan *s, struct ckpt_err *e);

#endif

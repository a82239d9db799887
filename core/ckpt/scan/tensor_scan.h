/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_scan - reads all bytes of all tensors, or of those whose FQNs match a glob, in several
 * threads. Results arrive in natural order of the names. Private to core/ckpt/scan.
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

enum { TENSOR_SCAN_BLOCK = 4 << 20 /* bytes read at once */ };

struct tensor_scan {
	struct ckpt *c;
	const char *const *globs;
	bool model; /* the model's tensors, under their names in hf/ */
	/* not with model: each chunk is scanned as a separate tensor, see chunk_path */
	bool by_chunk;
	bool in_order;	 /* a tensor's blocks are processed in order, by one thread */
	uint64_t max;	 /* elements per block; 0: as many as fit */
	unsigned jobs;	 /* 0: one per CPU, at most 4 */
	const char *cmd; /* the command named in messages about globs that take too long: "stat" */
	void (*progress)(void *arg, uint64_t done, uint64_t total); /* bytes; may be NULL */
	void *progress_arg;

	void *arg; /* the first argument of all callbacks below */
	/* Zeroed memory for each worker. */
	size_t worker_size;
	int (*setup)(void *arg, void *worker, struct ckpt_err *e);
	void (*teardown)(void *arg, void *worker);
	/*
	 * Runs on the calling thread for each tensor, before anything is read; then begin, unless
	 * it is NULL, sets how many of the first tensors are not to be read.
	 */
	void (*list)(void *arg, const struct tensor_info *t);
	int (*begin)(void *arg, uint64_t *ret_known, struct ckpt_err *e);
	/* Is this tensor worth reading, given its dtype? NULL: always. */
	bool (*wanted)(const struct tensor_info *t);
	/*
	 * Runs on a worker: n elements of a tensor, starting at number `from`. The first
	 * result_clear bytes of *result (0: all) were zeroed. There is a result for each block, or,
	 * with in_order, for the tensor.
	 */
	size_t result_size, result_clear;
	void (*block)(void *arg, void *worker, const struct tensor_info *t, const void *bytes,
		      size_t n, uint64_t from, void *result);
	/* Runs on the calling thread: adds a result to the tensor's state, which was zeroed. */
	size_t state_size;
	void (*merge)(void *arg, void *state, const void *result);
	/*
	 * Runs on the calling thread after the tensor has been read; fault: why it could not be
	 * read, or NULL. `read` is false if it was not wanted. Non-zero ends the scan.
	 */
	int (*finish)(void *arg, const struct tensor_info *t, bool read, const char *fault,
		      const void *state);

	/*
	 * With by_chunk, while finish runs: the chunk's data file; .bytes are then those of the
	 * chunk.
	 */
	const char *chunk_path;

	/* Results: */
	uint64_t tensors, failed, bytes;
};

/* Returns 0, also if tensors could not be read; the result of finish; or a negative errno. */
int tensor_scan_run(struct tensor_scan *s, struct ckpt_err *e);

#endif

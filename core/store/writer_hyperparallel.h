/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_hyperparallel - a storage writer for HyperParallel's checkpoints, third generation.
 *
 *	CKPT/_rank{N}_.safetensors  a rank's chunks, under their tensor's name; several of one tensor
 *	                            are NAME.__dcp_chunk_0, 1, ... with '_' appended if a tensor
 *	                            has that name
 *	CKPT/_rank{N}_.bytes        a rank's objects, one after another
 *	CKPT/.metadata              written last
 *
 * A rank without chunks, or without objects, has no such file. ERR_UNSUPPORTED for tensors that
 * safetensors cannot hold. The same plans give the same bytes.
 *
 * Sources: hyper_parallel/core/distributed_checkpoint, of 2026. Threads: see ckpt_storage.h.
 */
#ifndef STORE_WRITER_HYPERPARALLEL_H
#define STORE_WRITER_HYPERPARALLEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

struct writer_hyperparallel_opts {
	bool overwrite; /* replace an existing checkpoint */
	size_t buffer;	/* 0: 4 MiB */
	/* `bytes` more have been written; called from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

int writer_hyperparallel_new(const struct writer_hyperparallel_opts *opts,
			     struct ckpt_storage_writer *ret, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_hyperparallel - a storage writer for HyperParallel's checkpoints, third generation.
 *
 *	CKPT/_rank{N}_.safetensors  a rank's chunks, under their tensor's name; several of one tensor
 *	                            are NAME.__dcp_chunk_0, 1, ... with '_' behind it where a tensor
 *	                            is called so
 *	CKPT/_rank{N}_.bytes        a rank's objects, one behind the other
 *	CKPT/.metadata              written last
 *
 * A rank without chunks, or without objects, has no such file. ERR_UNSUPPORTED for tensors that
 * safetensors cannot hold. The same plans give the same bytes.
 *
 * Sources: hyper_parallel/core/distributed_checkpoint, of 2026.
 * Threads: as ckpt_storage.h says.
 */
#ifndef STORE_WRITER_HYPERPARALLEL_H
#define STORE_WRITER_HYPERPARALLEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

struct writer_hyperparallel_opts {
	bool overwrite; /* replace a checkpoint that is there */
	size_t buffer;	/* 0: 4 MiB */
	/* So many bytes more are written: from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

int writer_hyperparallel_new(const struct writer_hyperparallel_opts *opts,
			     struct ckpt_storage_writer *ret, struct ckpt_err *e);

#endif

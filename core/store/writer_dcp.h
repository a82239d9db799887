/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_dcp - a storage writer whose checkpoints are those of torch.distributed.checkpoint 2.14.
 *
 *	DEST/.metadata            the index
 *	DEST/__{rank}_{n}.distcp  items: torch.save archives of chunks, and objects' bytes, which the
 *	                          state dict has as such archives already (torch_item.h wraps them)
 *
 *	struct writer_dcp_opts opts = { .threads = 4 };
 *	struct ckpt_storage_writer w = { 0 };
 *	writer_dcp_new(&opts, &w, &e);
 *
 * With `megatron`, those of Megatron-core's dist_checkpointing (megatron_form.h):
 *
 *	DEST/metadata.json
 *	DEST/common.pt            the bytes called common.pt; if there are neither these nor others
 *	                          called common_state/shard_0_1, one that says next to nothing
 *
 * DEST appears when everything is written (staging.h). Items are distributed over files, and
 * ordered, as by torch; but they are aligned to 64 bytes (dcp_file.h). The same plans and data give
 * the same files.
 *
 * Threads: see ckpt_storage.h.
 */
#ifndef STORE_WRITER_DCP_H
#define STORE_WRITER_DCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

enum { WRITER_DCP_MAX_THREADS = 1024 };

struct writer_dcp_opts {
	bool megatron;	    /* for Megatron-core; planner_data should be left out */
	bool overwrite;	    /* replace a checkpoint at DEST */
	bool file_per_item; /* single_file_per_rank=False; else one file per thread */
	int zstd_level;	    /* 0: uncompressed; else 1 to 22, or a negative level of zstd */
	unsigned threads;   /* per rank; 0: 1 */
	size_t buffer;	    /* bytes of write buffer per thread; 0: 4 MiB */
	/* `bytes` more of data have been written; called from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

/* EINVAL for invalid options. */
int writer_dcp_new(const struct writer_dcp_opts *opts, struct ckpt_storage_writer *ret,
		   struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_dcp - a storage writer whose checkpoints are those of torch.distributed.checkpoint 2.14.
 *
 *	DEST/.metadata           what is where
 *	DEST/__{rank}_{n}.distcp  items: torch.save archives of chunks, and objects' bytes, which the
 *	                          state dict has as such archives already (torch_item.h wraps them)
 *
 *	struct writer_dcp_opts opts = { .threads = 4 };
 *	struct ckpt_storage_writer w = { 0 };
 *	writer_dcp_new(&opts, &w, &e);
 *
 * DEST appears when all is done (staging.h). Which item is in which file, and in which order, is as
 * torch has it; but items are padded to begin on multiples of 64 bytes (dcp_file.h). The same plans
 * and data give the same files.
 *
 * Threads: as ckpt_storage.h says.
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
	bool overwrite;	    /* a checkpoint at DEST is replaced */
	bool file_per_item; /* single_file_per_rank=False; else a file for each thread */
	int zstd_level;	    /* 0: not compressed; else 1 to 22, or one of zstd's below 0 */
	unsigned threads;   /* of each rank; 0: 1 */
	size_t buffer;	    /* bytes that each thread holds of what it writes; 0: 4 MiB */
	/* So many more bytes of data have been written; from any thread; or NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

/* EINVAL for options that cannot be. */
int writer_dcp_new(const struct writer_dcp_opts *opts, struct ckpt_storage_writer *ret,
		   struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_save - saves the tensors of a program as a checkpoint, and loads them back. Installed as
 * <ckptfs/ckpt_save.h>; ckpt(3) has an example of 60 lines.
 *
 * On every rank a program has a state dict: names, and this rank's part of each tensor
 * (ckpt_state.h). All ranks call ckpt_save together:
 *
 *	struct ckpt_save_opts opts = { .format = CKPT_DCP };
 *
 *	rc = ckpt_save(comm, "run/step-100", &dict, &opts, &e);
 *
 * ckpt_load fills shards of the same names, however they are cut, from any checkpoint that
 * ckpt_open reads, whatever its ranks and format. It casts float64, float32, float16 and bfloat16
 * to float32, float16 and bfloat16; any other difference of dtypes is an error (EINVAL). A single
 * process passes ckpt_comm_self(); with ckpt_comm.h, ranks are threads or MPI processes. A program
 * may supply its own planners (ckpt_plan.h) and storage writers and readers (ckpt_storage.h).
 *
 * Functions return 0 or a negative errno with one sentence in *e; all ranks fail with the same
 * sentence, that of the first rank that failed. If a save fails or is killed, what existed at its
 * destination before is unchanged. The path may be an address in an object store, if the ranks are
 * threads of one process; ckptfs-remote(7) describes what is guaranteed there.
 *
 * Threads: one call at a time for each struct ckpt_comm; the state dict must stay until it returns.
 */
#ifndef CKPTFS_CKPT_SAVE_H
#define CKPTFS_CKPT_SAVE_H

#include "ckpt.h"
#include "ckpt_base.h"
#include "ckpt_comm.h"
#include "ckpt_plan.h"
#include "ckpt_state.h"
#include "ckpt_storage.h"

#include <stdbool.h>
#include <stdint.h>

CKPT_BEGIN

enum ckpt_format {
	CKPT_DCP,	    /* PyTorch Distributed Checkpoint, as of torch 2.14 */
	CKPT_HYPERPARALLEL, /* HyperParallel's third generation */
	CKPT_SAFETENSORS,   /* Hugging Face files and index; no objects */
	/*
	 * Megatron-core's dist_checkpointing, torch_dist: a DCP with metadata.json and common.pt.
	 * Bytes are called common.pt, the dict of everything that is not sharded, or
	 * NAME/shard_OFFSET_SHAPE (ckpt_sharded_object).
	 */
	CKPT_MEGATRON,
	CKPT_ZARR, /* a directory of zarr arrays, version 3; no objects, only whole tensors */
};

struct ckpt_save_opts {
	enum ckpt_format format;
	bool overwrite;	    /* replace an existing checkpoint, atomically, once all is written */
	int zstd;	    /* DCP: compression level for items; 0: uncompressed */
	bool file_per_item; /* DCP, Megatron: one file per item instead of per rank or thread */
	unsigned threads; /* DCP, Megatron: writer threads per rank, each with a file of its own; 0:
                             one */
	/* safetensors: tensor bytes per file, 0: 5 GB; zarr: bytes per chunk, 0: 256 MiB */
	uint64_t shard_size;
	bool no_paths; /* DCP: leave out planner_data; otherwise entries without a path are written
                          at the top level */
	bool save_to_lowest_rank; /* if several ranks hold the same data, the lowest one writes it,
                                     not the least loaded */
	/* The caller's own, instead of the format's; may be NULL. */
	struct ckpt_save_planner *planner;
	struct ckpt_storage_writer *writer;
	/* Do not resend plans that have not changed. Needs a planner (and, for safetensors, a
	 * writer) that is kept from save to save. */
	bool cache_plans;
	/* `bytes` more have been written; called from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *progress_arg;
	/*
	 * For a path that is an address, s3://BUCKET/KEY or gs://BUCKET/KEY. Options as for
	 * ckpt_open (endpoint=, region=, profile=, anonymous, retry=); NULL: none.
	 */
	const char *const *open;
	/* Polled, from any thread, while waiting for the store: return true to give up with
	 * ECANCELED. May be NULL. */
	bool (*stop)(void *arg);
	void *stop_arg;
	/* Called with a sentence about uploads of a failed save that could not be removed; may be
	 * NULL. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
};

CKPT_API int ckpt_save_sized(struct ckpt_comm *comm, const char *path,
			     const struct ckpt_state_dict *dict, const struct ckpt_save_opts *opts,
			     size_t size, struct ckpt_err *e);
static inline int ckpt_save(struct ckpt_comm *comm, const char *path,
			    const struct ckpt_state_dict *dict, const struct ckpt_save_opts *opts,
			    struct ckpt_err *e)
{
	return ckpt_save_sized(comm, path, dict, opts, sizeof(*opts), e);
}

/* The format's own planner and writer, for programs that keep or wrap them; release them with
 * ckpt_save_planner_free and ckpt_storage_writer_free. */
CKPT_API int ckpt_save_planner(enum ckpt_format format, struct ckpt_save_planner *ret,
			       struct ckpt_err *e);
CKPT_API int ckpt_save_writer_sized(const struct ckpt_save_opts *opts, size_t size,
				    struct ckpt_storage_writer *ret, struct ckpt_err *e);
static inline int ckpt_save_writer(const struct ckpt_save_opts *opts,
				   struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	return ckpt_save_writer_sized(opts, sizeof(*opts), ret, e);
}

struct ckpt_load_opts {
	const char *const *open;	/* options as for ckpt_open; NULL: none */
	bool allow_partial;		/* leave entries that the checkpoint lacks unchanged */
	ckpt_take_bytes_fn *take_bytes; /* NULL: the dict has no bytes entries */
	void *arg;			/* passed to take_bytes */
	/* Instead of CKPT_PLANNER_DCP and ckpt_reader_new; may be NULL. */
	struct ckpt_load_planner *planner;
	struct ckpt_storage_reader *reader;
};

CKPT_API int ckpt_load_sized(struct ckpt_comm *comm, const char *path,
			     const struct ckpt_state_dict *dict, const struct ckpt_load_opts *opts,
			     size_t size, struct ckpt_err *e);
static inline int ckpt_load(struct ckpt_comm *comm, const char *path,
			    const struct ckpt_state_dict *dict, const struct ckpt_load_opts *opts,
			    struct ckpt_err *e)
{
	return ckpt_load_sized(comm, path, dict, opts, sizeof(*opts), e);
}

/*
 * A storage reader for every checkpoint that ckpt_open reads. opts, as for ckpt_open, determine its
 * names and dtypes.
 */
CKPT_API int ckpt_reader_new(const char *const opts[], struct ckpt_storage_reader *ret,
			     struct ckpt_err *e);

CKPT_END

#endif

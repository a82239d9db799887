/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_save - saving the tensors of a program as a checkpoint, and loading them back. Installed as
 * <ckptfs/ckpt_save.h>; ckpt(3) has an example of 60 lines.
 *
 * A program has a state dict on every rank: names, and what this rank has of each tensor
 * (ckpt_state.h). All ranks call ckpt_save together:
 *
 *	struct ckpt_save_opts opts = { .format = CKPT_DCP };
 *
 *	rc = ckpt_save(comm, "run/step-100", &dict, &opts, &e);
 *
 * and ckpt_load with any other shards of the same names fills those from whatever checkpoint
 * ckpt_open reads, of whatever ranks and format. A program of one process passes a comm of its own
 * (ckpt_comm_self); ckpt_comm.h has ranks as threads and as MPI processes. Planners (ckpt_plan.h),
 * storage writers and readers (ckpt_storage.h) may be the program's own.
 *
 * Functions return 0 or a negative errno with one sentence in *e; all ranks fail with the same
 * sentence, that of the first rank that failed. A save that fails or is killed leaves at its place
 * what was there before.
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
	CKPT_HYPERPARALLEL, /* its third generation */
	CKPT_SAFETENSORS,   /* Hugging Face files and index; no objects */
};

struct ckpt_save_opts {
	enum ckpt_format format;
	bool overwrite;	     /* a checkpoint that is there is replaced, all at once at the end */
	int zstd;	     /* DCP: compress items at this level; 0: do not */
	bool file_per_item;  /* DCP: a file for each item, not for each rank or thread */
	unsigned threads;    /* DCP: of each rank, each with a file of its own; 0: one */
	uint64_t shard_size; /* safetensors: bytes of tensors in a file; 0: 5 GB */
	bool no_paths; /* planner_data is left out; else an entry without a path is at the top */
	bool save_to_lowest_rank; /* of ranks with the same, the lowest, not the least loaded */
	/* In place of those that the format has, the caller's own; may be NULL. */
	struct ckpt_save_planner *planner;
	struct ckpt_storage_writer *writer;
	/* With a planner that is kept from save to save (and, for safetensors, a writer): plans
	 * that have not changed are not sent again. */
	bool cache_plans;
	/* So many more bytes of data are written, from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *progress_arg;
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

/* The format's own planner and writer, for who wants to keep them, or to put something around them;
 * ckpt_save_planner_free and ckpt_storage_writer_free end them. */
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
	const char *const *open;	/* words as for ckpt_open; NULL: none */
	bool allow_partial;		/* entries that the checkpoint lacks are left as they are */
	ckpt_take_bytes_fn *take_bytes; /* NULL: the dict has no bytes */
	void *arg;			/* of take_bytes */
	/* In place of CKPT_PLANNER_DCP, and of ckpt_reader_new; may be NULL. */
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
 * Every checkpoint that ckpt_open reads, as a storage reader, with names and dtypes as opts, which are
 * words as for ckpt_open, has them.
 */
CKPT_API int ckpt_reader_new(const char *const opts[], struct ckpt_storage_reader *ret,
			     struct ckpt_err *e);

CKPT_END

#endif

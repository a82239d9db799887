/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_storage - where a checkpoint is written to and read from: a storage writer and a storage
 * reader, modelled on those of torch.distributed.checkpoint, each a set of functions that a program
 * may supply.
 *
 * Saving (ckpt_save does all of it, for all ranks):
 *
 *	ckpt_storage_writer_reset(&w, "run/step-100", &e);
 *	ckpt_storage_writer_set_up(&w, &ranks, &e);
 *	ckpt_storage_writer_prepare_local_plan(&w, &mine, &mine, &e);    // gather from all ranks
 *	ckpt_storage_writer_prepare_global_plan(&w, parts, n, &e);       // the coordinator; scatter
 *	ckpt_storage_writer_write_data(&w, &plan, &planner, &results, &e);   // gather
 *	ckpt_storage_writer_finish(&w, &md, all, n, &e);                 // the coordinator
 *
 * Loading (ckpt_load):
 *
 *	ckpt_storage_reader_reset(&r, "run/step-100", &e);
 *	ckpt_storage_reader_read_metadata(&r, &md, &e);
 *	ckpt_storage_reader_set_up(&r, md, &ranks, &e);
 *	ckpt_storage_reader_prepare_local_plan(&r, &mine, &mine, &e);    // gather
 *	ckpt_storage_reader_prepare_global_plan(&r, parts, n, &e);       // the coordinator; scatter
 *	ckpt_storage_reader_read_data(&r, &plan, &planner, &e);
 *
 * Calls in any other order fail with EPERM and a sentence that names the step; after a call that
 * failed, only reset and free are allowed. n is the number of ranks in all (else EINVAL), and rank
 * r is parts[r] and all[r]. Writers and readers may be reset and used again. A writer that is reset
 * or freed before it has finished leaves its destination as it was and removes its own files.
 *
 * For the writers and readers of this library the checkpoint id is a path.
 *
 * Ownership: what these functions return belongs to the writer or reader and is valid until it is
 * reset or freed; the plans passed to them are borrowed until then.
 *
 * Threads: one at a time for each writer or reader. It may use threads of its own, and then calls
 * the planner's get_data, acquire_tensor and apply_* from those.
 */
#ifndef CKPTFS_CKPT_STORAGE_H
#define CKPTFS_CKPT_STORAGE_H

#include "ckpt_base.h"
#include "ckpt_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

/* The ranks that take part. Rank 0 is the coordinator. */
struct ckpt_storage_ranks {
	size_t rank, size;
};

struct ckpt_write_results {
	const struct ckpt_write_result *v; /* one for each item that was written */
	size_t n;
};

/* ---- writing ---- */

struct ckpt_storage_writer_ops {
	/* Could the writer write here? Changes nothing. */
	int (*validate_checkpoint_id)(void *self, const char *id, struct ckpt_err *e);
	int (*reset)(void *self, const char *id, struct ckpt_err *e);
	int (*set_up)(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e);
	int (*prepare_local_plan)(void *self, const struct ckpt_save_plan *plan,
				  struct ckpt_save_plan *ret, struct ckpt_err *e);
	/*
	 * parts[r] is rank r's plan; what the writer must tell that rank goes into its .storage.
	 * NULL: it has nothing to tell.
	 */
	int (*prepare_global_plan)(void *self, struct ckpt_save_plan *parts, size_t n,
				   struct ckpt_err *e);
	int (*write_data)(void *self, const struct ckpt_save_plan *plan,
			  struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
			  struct ckpt_err *e);
	/* all[r] is what rank r has written; on return the checkpoint is complete and on disk. */
	int (*finish)(void *self, const struct ckpt_metadata *md,
		      const struct ckpt_write_results *all, size_t n, struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_storage_writer {
	const struct ckpt_storage_writer_ops *ops;
	void *self;
	uint8_t step;	     /* must start as 0; then managed by the library */
	bool is_coordinator; /* as set up, like the next */
	uint32_t n_ranks;
};

CKPT_API int ckpt_storage_writer_validate_checkpoint_id(struct ckpt_storage_writer *w,
							const char *id, struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_reset(struct ckpt_storage_writer *w, const char *id,
				       struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_set_up(struct ckpt_storage_writer *w,
					const struct ckpt_storage_ranks *ranks, struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_prepare_local_plan(struct ckpt_storage_writer *w,
						    const struct ckpt_save_plan *plan,
						    struct ckpt_save_plan *ret, struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_prepare_global_plan(struct ckpt_storage_writer *w,
						     struct ckpt_save_plan *parts, size_t n,
						     struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_write_data(struct ckpt_storage_writer *w,
					    const struct ckpt_save_plan *plan,
					    struct ckpt_save_planner *planner,
					    struct ckpt_write_results *ret, struct ckpt_err *e);
CKPT_API int ckpt_storage_writer_finish(struct ckpt_storage_writer *w,
					const struct ckpt_metadata *md,
					const struct ckpt_write_results *all, size_t n,
					struct ckpt_err *e);
CKPT_API void ckpt_storage_writer_free(struct ckpt_storage_writer *w); /* all zero is fine */

/* ---- reading ---- */

struct ckpt_storage_reader_ops {
	/* Is this a checkpoint that the reader can read? */
	int (*validate_checkpoint_id)(void *self, const char *id, struct ckpt_err *e);
	int (*reset)(void *self, const char *id, struct ckpt_err *e);
	int (*read_metadata)(void *self, const struct ckpt_metadata **ret, struct ckpt_err *e);
	int (*set_up)(void *self, const struct ckpt_metadata *md,
		      const struct ckpt_storage_ranks *ranks, struct ckpt_err *e);
	int (*prepare_local_plan)(void *self, const struct ckpt_load_plan *plan,
				  struct ckpt_load_plan *ret, struct ckpt_err *e);
	/* NULL: the reader has nothing to tell the ranks. */
	int (*prepare_global_plan)(void *self, struct ckpt_load_plan *parts, size_t n,
				   struct ckpt_err *e);
	int (*read_data)(void *self, const struct ckpt_load_plan *plan,
			 struct ckpt_load_planner *planner, struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_storage_reader {
	const struct ckpt_storage_reader_ops *ops;
	void *self;
	uint8_t step;
	bool is_coordinator;
	uint32_t n_ranks;
};

CKPT_API int ckpt_storage_reader_validate_checkpoint_id(struct ckpt_storage_reader *r,
							const char *id, struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_reset(struct ckpt_storage_reader *r, const char *id,
				       struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_read_metadata(struct ckpt_storage_reader *r,
					       const struct ckpt_metadata **ret,
					       struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_set_up(struct ckpt_storage_reader *r,
					const struct ckpt_metadata *md,
					const struct ckpt_storage_ranks *ranks, struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_prepare_local_plan(struct ckpt_storage_reader *r,
						    const struct ckpt_load_plan *plan,
						    struct ckpt_load_plan *ret, struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_prepare_global_plan(struct ckpt_storage_reader *r,
						     struct ckpt_load_plan *parts, size_t n,
						     struct ckpt_err *e);
CKPT_API int ckpt_storage_reader_read_data(struct ckpt_storage_reader *r,
					   const struct ckpt_load_plan *plan,
					   struct ckpt_load_planner *planner, struct ckpt_err *e);
CKPT_API void ckpt_storage_reader_free(struct ckpt_storage_reader *r); /* all zero is fine */

CKPT_END

#endif

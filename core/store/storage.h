/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage - where a checkpoint is written to and read from: a storage writer and a storage reader,
 * as torch.distributed.checkpoint has them, each a set of functions that a program may supply.
 *
 * Saving (save_run does all of it, for all ranks):
 *
 *	storage_writer_reset(&w, "run/step-100", &e);
 *	storage_writer_set_up(&w, &ranks, &e);
 *	storage_writer_prepare_local_plan(&w, &mine, &mine, &e);    // gather from all ranks
 *	storage_writer_prepare_global_plan(&w, parts, n, &e);       // the coordinator; scatter
 *	storage_writer_write_data(&w, &plan, &planner, &results, &e);   // gather
 *	storage_writer_finish(&w, &md, all, n, &e);                 // the coordinator
 *
 * Loading (load_run):
 *
 *	storage_reader_reset(&r, "run/step-100", &e);
 *	storage_reader_read_metadata(&r, &md, &e);
 *	storage_reader_set_up(&r, md, &ranks, &e);
 *	storage_reader_prepare_local_plan(&r, &mine, &mine, &e);    // gather
 *	storage_reader_prepare_global_plan(&r, parts, n, &e);       // the coordinator; scatter
 *	storage_reader_read_data(&r, &plan, &planner, &e);
 *
 * Calls in another order fail with EPERM and a sentence that names the step. Either may be reset
 * and used again. A writer that is reset or freed before it has finished leaves what was there
 * before as it was, and nothing of its own.
 *
 * The checkpoint id is a path, for the storages of this library.
 *
 * Ownership: what these functions return belongs to the writer or reader, and stays until it is
 * reset or freed; plans that they are given are borrowed until then.
 * Threads: one at a time for each writer or reader, which may use threads of its own; then it calls
 * the planner's get_data, acquire_tensor and apply_* from those.
 */
#ifndef STORE_STORAGE_H
#define STORE_STORAGE_H

#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct load_planner;
struct save_planner;

/* Who takes part. Rank 0 is the coordinator. */
struct storage_ranks {
	size_t rank, size;
};

struct write_results {
	const struct write_result *v; /* one for each item that was written */
	size_t n;
};

/* ---- writing ---- */

struct storage_writer_ops {
	/* Is this a place where the writer could write? Nothing is changed. */
	int (*validate_checkpoint_id)(void *self, const char *id, struct err *e);
	int (*reset)(void *self, const char *id, struct err *e);
	int (*set_up)(void *self, const struct storage_ranks *ranks, struct err *e);
	int (*prepare_local_plan)(void *self, const struct save_plan *plan, struct save_plan *ret,
				  struct err *e);
	/* parts[r] is rank r's; what each rank has to know is put into its .storage. */
	int (*prepare_global_plan)(void *self, struct save_plan *parts, size_t n, struct err *e);
	int (*write_data)(void *self, const struct save_plan *plan, struct save_planner *planner,
			  struct write_results *ret, struct err *e);
	/* all[r] is what rank r has written; afterwards the checkpoint is complete and on disk. */
	int (*finish)(void *self, const struct metadata *md, const struct write_results *all,
		      size_t n, struct err *e);
	void (*free)(void *self);
};

struct storage_writer {
	const struct storage_writer_ops *ops;
	void *self;
	uint8_t step;	     /* 0 at birth; the rest is storage.c's */
	bool is_coordinator; /* as set up */
};

int storage_writer_validate_checkpoint_id(struct storage_writer *w, const char *id, struct err *e);
int storage_writer_reset(struct storage_writer *w, const char *id, struct err *e);
int storage_writer_set_up(struct storage_writer *w, const struct storage_ranks *ranks,
			  struct err *e);
int storage_writer_prepare_local_plan(struct storage_writer *w, const struct save_plan *plan,
				      struct save_plan *ret, struct err *e);
int storage_writer_prepare_global_plan(struct storage_writer *w, struct save_plan *parts, size_t n,
				       struct err *e);
int storage_writer_write_data(struct storage_writer *w, const struct save_plan *plan,
			      struct save_planner *planner, struct write_results *ret,
			      struct err *e);
int storage_writer_finish(struct storage_writer *w, const struct metadata *md,
			  const struct write_results *all, size_t n, struct err *e);
void storage_writer_free(struct storage_writer *w); /* all zero is fine */

/* ---- reading ---- */

struct storage_reader_ops {
	/* Is this a checkpoint that the reader reads? */
	int (*validate_checkpoint_id)(void *self, const char *id, struct err *e);
	int (*reset)(void *self, const char *id, struct err *e);
	int (*read_metadata)(void *self, const struct metadata **ret, struct err *e);
	int (*set_up)(void *self, const struct metadata *md, const struct storage_ranks *ranks,
		      struct err *e);
	int (*prepare_local_plan)(void *self, const struct load_plan *plan, struct load_plan *ret,
				  struct err *e);
	int (*prepare_global_plan)(void *self, struct load_plan *parts, size_t n, struct err *e);
	int (*read_data)(void *self, const struct load_plan *plan, struct load_planner *planner,
			 struct err *e);
	void (*free)(void *self);
};

struct storage_reader {
	const struct storage_reader_ops *ops;
	void *self;
	uint8_t step;
	bool is_coordinator;
};

int storage_reader_validate_checkpoint_id(struct storage_reader *r, const char *id, struct err *e);
int storage_reader_reset(struct storage_reader *r, const char *id, struct err *e);
int storage_reader_read_metadata(struct storage_reader *r, const struct metadata **ret,
				 struct err *e);
int storage_reader_set_up(struct storage_reader *r, const struct metadata *md,
			  const struct storage_ranks *ranks, struct err *e);
int storage_reader_prepare_local_plan(struct storage_reader *r, const struct load_plan *plan,
				      struct load_plan *ret, struct err *e);
int storage_reader_prepare_global_plan(struct storage_reader *r, struct load_plan *parts, size_t n,
				       struct err *e);
int storage_reader_read_data(struct storage_reader *r, const struct load_plan *plan,
			     struct load_planner *planner, struct err *e);
void storage_reader_free(struct storage_reader *r); /* all zero is fine */

#endif

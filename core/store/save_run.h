/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_run - save a checkpoint, all ranks together: what dcp.save is to torch.
 *
 *	struct save_run_args args = { .comm = c, .path = "run/step-100", .dict = &dict,
 *				      .planner = &planner, .writer = &writer };
 *	rc = save_run(&args, &e);
 *
 * Every rank calls it with a planner and a writer of its own. Ranks say what they hold, rank 0
 * decides who writes what, each rank writes its part, rank 0 finishes when all have written:
 *
 *	each rank    writer reset, set_up; planner configure, local_plan; writer prepare_local_plan
 *	rank 0       planner global_plan; writer prepare_global_plan
 *	each rank    planner finish; writer write_data
 *	rank 0       writer finish
 *
 * A rank's steps of one line run while others are at theirs; no rank begins a line before all have
 * done the one above. A failure of any rank at any step ends the save on all of them with that
 * rank's sentence (comm.h), after all have stopped: the caller then frees or resets the writer,
 * and it removes what it has begun.
 *
 * Afterwards planner and writer may be configured and reset for the next save, or freed; the
 * plans that they had are gone.
 *
 * Threads: one for each rank.
 */
#ifndef STORE_SAVE_RUN_H
#define STORE_SAVE_RUN_H

#include <ckptfs/ckpt_plan.h>

struct ckpt_comm;
struct ckpt_err;
struct ckpt_storage_writer;

struct save_run_args {
	struct ckpt_comm *comm;
	const char *path; /* the checkpoint id: the same on all ranks */
	const struct ckpt_state_dict *dict;
	struct ckpt_save_planner *planner;
	struct ckpt_storage_writer *writer;
	struct ckpt_save_planning options; /* rank and is_coordinator are filled in */
};

int save_run(const struct save_run_args *args, struct ckpt_err *e);

#endif

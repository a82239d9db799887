/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_run - saves a checkpoint, all ranks together: the counterpart of torch's dcp.save.
 *
 *	struct save_run_args args = { .comm = c, .path = "run/step-100", .dict = &dict,
 *				      .planner = &planner, .writer = &writer };
 *	rc = save_run(&args, &e);
 *
 * Every rank calls it with a planner and a writer of its own. Ranks report what they hold, rank 0
 * decides which rank writes what, each rank writes its part, and rank 0 finishes when all have
 * written:
 *
 *	each rank    writer reset, set_up; planner configure, local_plan; writer prepare_local_plan
 *	rank 0       planner global_plan; writer prepare_global_plan
 *	each rank    planner finish; writer write_data
 *	rank 0       writer finish
 *
 * The steps of a line run on all ranks in parallel; no rank begins a line before all have finished
 * the one above. A failure of any rank at any step ends the save on all of them with that rank's
 * sentence (comm.h), after all have stopped. The caller then frees or resets the writer, which
 * removes its partial files.
 *
 * Afterwards planner and writer may be configured and reset for the next save, or freed; their
 * plans are no longer valid.
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

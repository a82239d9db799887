/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_run - loads a checkpoint into the tensors of all ranks together: the counterpart of torch's
 * dcp.load.
 *
 *	struct load_run_args args = { .comm = c, .path = "run/step-100", .dict = &dict,
 *				      .planner = &planner, .reader = &reader };
 *	rc = load_run(&args, &e);
 *
 * Every rank calls it with a planner and a reader of its own:
 *
 *	each rank    reader reset, read_metadata; planner configure; reader set_up;
 *	             planner local_plan; reader prepare_local_plan
 *	rank 0       planner global_plan; reader prepare_global_plan
 *	each rank    planner finish; reader read_data
 *
 * Each rank reads the metadata itself, as in torch: a reader must open its checkpoint anyway, and
 * ranks of one process can share an open one, which a copy sent by rank 0 would not allow.
 *
 * A failure of any rank at any step ends the load on all of them with that rank's sentence
 * (comm.h); tensors may then hold anything.
 *
 * Afterwards planner and reader may be configured and reset for the next load, or freed; their
 * plans are no longer valid.
 *
 * Threads: one for each rank.
 */
#ifndef STORE_LOAD_RUN_H
#define STORE_LOAD_RUN_H

#include <ckptfs/ckpt_plan.h>

struct ckpt_comm;
struct ckpt_err;
struct ckpt_storage_reader;

struct load_run_args {
	struct ckpt_comm *comm;
	const char *path; /* the checkpoint id: the same on all ranks */
	const struct ckpt_state_dict *dict;
	struct ckpt_load_planner *planner;
	struct ckpt_storage_reader *reader;
	struct ckpt_load_planning options; /* rank and is_coordinator are filled in */
};

int load_run(const struct load_run_args *args, struct ckpt_err *e);

#endif

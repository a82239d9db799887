/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_index - entries of a state dict by name. Private to core/save.
 *
 * Threads: any number may look up once it is built.
 */
#ifndef SAVE_STATE_INDEX_H
#define SAVE_STATE_INDEX_H

#include "save/idtable.h"
#include <ckptfs/ckpt_plan.h>

struct state_index {
	const struct ckpt_state_dict *dict;
	struct idtable names;
};

/* Also checks every entry; a duplicate name fails with the system's text. */
int state_index_init(struct state_index *x, const struct ckpt_state_dict *dict,
		     enum ckpt_planner_system system, struct ckpt_err *e);
void state_index_release(struct state_index *x);

/* ENOENT with HyperParallel's text if the name does not exist. */
int state_index_find(const struct state_index *x, const struct ckpt_meta_index *index, size_t *ret,
		     struct ckpt_err *e);

#endif

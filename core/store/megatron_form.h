/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron_form - what makes a DCP checkpoint one of Megatron-core's dist_checkpointing:
 *
 *	DEST/metadata.json    names the form, as up to core_v0.18; later versions ignore the rest
 *	DEST/common.pt        torch.save of the dict of everything that is not sharded
 *	KEY/shard_0.1_2.2     the name of an object that is part (0, 1) of 2 x 2: torch.save of a list
 *	                      of one value
 *
 * Since core_v0.19 Megatron-core keeps the dict in the object common_state/shard_0_1 and still
 * reads common.pt, which comes first if there are both.
 *
 * Sources: Megatron-LM core_v0.20 megatron/core/dist_checkpointing/. Threads: pure.
 */
#ifndef STORE_MEGATRON_FORM_H
#define STORE_MEGATRON_FORM_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct ckpt_err;

#define MEGATRON_JSON_NAME   "metadata.json"
#define MEGATRON_COMMON_NAME "common.pt"
#define MEGATRON_COMMON_PART "common_state/shard_0_1"
/* The end of the name of an object that is not divided. */
#define MEGATRON_WHOLE_PART "/shard_0_1"

extern const char megatron_json[];

/* Is the name that of a part of an object, KEY/shard_O_S? */
bool megatron_is_part(const char *fqn, size_t len);

/*
 * Appends a common.pt for a checkpoint without one: {"checkpoint_version": 3.0, "iteration": 0},
 * without which Megatron-LM would take the weights for those of its first version, or refuse them.
 */
int megatron_put_common(struct buf *ret, struct ckpt_err *e);

#endif

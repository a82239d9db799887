/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge - combines the plans of all ranks into one checkpoint: removes copies, makes the metadata,
 * checks.
 *
 * Threads: pure.
 */
#ifndef SAVE_MERGE_H
#define SAVE_MERGE_H

#include "save/dedup.h"
#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct ckpt_err;

struct merge_rules {
	bool dedup;	      /* otherwise every copy is written and listed */
	enum dedup_rule rule; /* of dedup */
	bool to_lowest_rank;  /* of dedup */
	/* HyperParallel: all items of a name must have the same properties and size, and names may
	 * repeat. Otherwise the first item determines both, and only shards may repeat. */
	bool same_props;
	bool validate;	     /* call metadata_validate, as torch does */
	const char *version; /* of the metadata */
};

/*
 * ret_plans: n plans, whose items have the positions of their chunks in the metadata's lists. Plans
 * and metadata are in the arena and borrow names and numbers from the input. None of the input
 * plans may be `unchanged`.
 */
int merge_plans(const struct ckpt_save_plan *plans, size_t n, const struct merge_rules *rules,
		struct arena *a, struct ckpt_save_plan *ret_plans, struct ckpt_metadata *ret_md,
		struct ckpt_err *e);

/*
 * Checks that all chunks are inside their tensors, none overlaps another, and, if must_fill, their
 * volumes add up to the tensors'. Tensors without dimensions are skipped. ERR_CORRUPT with torch's
 * text for the first fault.
 */
int metadata_validate(const struct ckpt_metadata *md, bool must_fill, struct ckpt_err *e);

#endif

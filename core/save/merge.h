/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge - the plans of all ranks made into one checkpoint: copies out, metadata, checks.
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
	bool dedup;	      /* else every copy is written and listed */
	enum dedup_rule rule; /* of dedup */
	bool to_lowest_rank;  /* of dedup */
	/* HyperParallel: all items of a name have the same properties and size, and names may repeat.
	 * Else the first item says both, and only shards may repeat. */
	bool same_props;
	bool validate;	     /* metadata_validate, as torch does */
	const char *version; /* of the metadata */
};

/*
 * ret_plans: n plans, whose items say where their chunks are in the metadata's lists. Plans and
 * metadata are in the arena and borrow names and numbers of the input. None of the input's plans
 * may be `unchanged`.
 */
int merge_plans(const struct ckpt_save_plan *plans, size_t n, const struct merge_rules *rules,
		struct arena *a, struct ckpt_save_plan *ret_plans, struct ckpt_metadata *ret_md,
		struct ckpt_err *e);

/*
 * Are all chunks inside their tensors, is none over another, and, if must_fill, do their volumes
 * add up to the tensors'? Tensors without dimensions are not looked at. ERR_CORRUPT with torch's
 * text for the first that is wrong.
 */
int metadata_validate(const struct ckpt_metadata *md, bool must_fill, struct ckpt_err *e);

#endif

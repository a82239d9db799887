/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup - which rank writes which item: each system's rules for distributing copies among ranks.
 * All are deterministic: equal input gives equal results on every rank.
 *
 * Threads: pure.
 */
#ifndef SAVE_DEDUP_H
#define SAVE_DEDUP_H

#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;

/*
 * Items with equal indexes are copies; one plan keeps each: among the plans that offer it, the one
 * with the least to write so far, or the lowest-numbered of several equal ones. What counts as "to
 * write":
 *
 *   DEDUP_DCP             bytes of the whole tensor; indexes in order of first appearance
 *   DEDUP_HYPERPARALLEL   bytes of the chunk by a guessed element size (hp_element_weight); items
 *			   that one plan alone offers are counted first, then the others in order of
 *			   first appearance
 *   DEDUP_HYPERPARALLEL_B the same with the others in order of size, largest first (newer versions)
 *
 * Bytes and empty tensors count 1. to_lowest_rank: the lowest plan that offers it keeps it.
 */
enum dedup_rule { DEDUP_DCP, DEDUP_HYPERPARALLEL, DEDUP_HYPERPARALLEL_B };

/*
 * keep: one for each item, plan after plan; true if the plan writes it. A plan that has the same
 * index twice keeps both items. Fails with ENOMEM, and EINVAL for impossible sizes and for shards
 * with one index but different sizes.
 */
int dedup_plans(const struct ckpt_save_plan *plans, size_t n, enum dedup_rule rule,
		bool to_lowest_rank, bool *keep, struct ckpt_err *e);

/* For planners that keep all copies: fails as dedup_plans does if shards with one index differ in
 * size. */
int dedup_check(const struct ckpt_save_plan *plans, size_t n, struct ckpt_err *e);

/*
 * HyperParallel's element size, found by searching the dtype's name ("torch.uint8", "BFloat16") for
 * known names: 4 if none is found, and wrong if one is part of another. Only a weight, never a
 * number of bytes to read.
 */
unsigned hp_element_weight(enum dedup_rule rule, const char *dtype, size_t len);

#endif

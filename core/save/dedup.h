/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup - who writes what: the rules by which each system shares copies out among ranks. All of
 * them are deterministic: equal input gives equal answers on every rank.
 *
 * Threads: pure.
 */
#ifndef SAVE_DEDUP_H
#define SAVE_DEDUP_H

#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/*
 * Items of equal index are copies; one plan keeps each. It is the one with the least to write so
 * far of those that offer it, the lowest where several are equal. What "to write" is:
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
 * keep: one for each item, plan after plan; true where the plan goes on to write it. A plan that
 * has one index twice keeps both. Fails with ENOMEM, EINVAL for impossible sizes and for shards of
 * one index that are not of one size.
 */
int dedup_plans(const struct ckpt_save_plan *plans, size_t n, enum dedup_rule rule,
		bool to_lowest_rank, bool *keep, struct ckpt_err *e);

/* For those who keep all copies: fails as dedup_plans does where shards of one index differ in
 * size. */
int dedup_check(const struct ckpt_save_plan *plans, size_t n, struct ckpt_err *e);

/*
 * HyperParallel's element size, found by looking for names in that of the dtype ("torch.uint8",
 * "BFloat16"): 4 where none is known, and wrong where one is part of another. A weight, never a
 * number of bytes to read.
 */
unsigned hp_element_weight(enum dedup_rule rule, const char *dtype, size_t len);

#endif

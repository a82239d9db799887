/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup - who writes what: the rules by which each system shares copies out among ranks, and the
 * items of a rank among files. All of them are deterministic: equal input gives equal answers on
 * every rank.
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

/*
 * Megatron's fully parallel save: shards, each held by some ranks of a group, one of which writes
 * it. Those that no other group has come first, then those with fewest holders, then the largest;
 * each goes to the holder with the fewest bytes so far, the lowest where several are equal.
 */
struct held_shard {
	const char *key; /* with the offset: what the shard is known by */
	const uint64_t *offset;
	uint32_t key_len;
	uint8_t n_dims;
	bool cross_group;
	uint64_t bytes;
	const uint32_t *holders; /* ranks below n_ranks, at least one */
	size_t n_holders;
};
/* ret: for each shard the rank that writes it. */
int distribute_shards(const struct held_shard *shards, size_t n, size_t n_ranks, uint32_t *ret,
		      struct ckpt_err *e);

/*
 * A rank's items shared out among `bins` files, 1 or more: bytes in turn, then tensors, the largest
 * (whole tensors' sizes) first, each to the lightest file, the first where several are equal. A
 * single file keeps the plan's order.
 * ret_order: the items, file after file; file b's are [ret_start[b], ret_start[b + 1]).
 */
int split_bins(const struct ckpt_write_item *items, size_t n, size_t bins, uint32_t *ret_order,
	       size_t *ret_start, struct ckpt_err *e);

#endif

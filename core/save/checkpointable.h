/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpointable - what a planner wants from a local tensor (ckpt_state.h): write items, the shard
 * that an index means; and Megatron's ShardedTensor and ShardedObject, of which local tensors are
 * made.
 *
 * Everything is a plain value that borrows its arrays from the caller; those that functions make
 * are in the arena which they are given. Functions that fail leave their outputs as they were.
 *
 * Threads: pure.
 */
#ifndef SAVE_CHECKPOINTABLE_H
#define SAVE_CHECKPOINTABLE_H

#include <ckptfs/ckpt_plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct buf;

/* A known dtype, no more than CKPT_MAX_DIMS dimensions, as many shards as the kind has, each
 * inside. */
int local_tensor_check(const struct ckpt_local_tensor *t, const char *fqn, size_t fqn_len,
		       struct ckpt_err *e);
/* Write items, one for each shard, in their order; they borrow the name, the boxes, the shape. */
void local_tensor_write_items(const struct ckpt_local_tensor *t, const char *fqn, uint32_t fqn_len,
			      struct ckpt_write_item *ret);
/*
 * The shard that an index means: at its hint, if that shard has the index's offset, or the first
 * with that offset. A CKPT_LOCAL_BOX has one shard and gives it for any index, as Megatron does.
 * ENOENT where there is none, with the sentence of the framework that would have failed.
 */
int local_tensor_shard(const struct ckpt_local_tensor *t, const struct ckpt_meta_index *index,
		       size_t *ret, struct ckpt_err *e);

/* Why shard_box refuses: always EINVAL, with HyperParallel's text for what does not divide. */
int sharding_refused(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
		     struct ckpt_err *e);

/* ---- Megatron ---- */

/*
 * This rank's shards of one key, as the planner wants them: CKPT_LOCAL_BOX for one,
 * CKPT_LOCAL_SHARDS for several. Without data the shards' data is NULL.
 */
int local_tensor_from_sharded(const struct ckpt_sharded_tensor *shards, size_t n, struct arena *a,
			      struct ckpt_local_tensor *ret, struct ckpt_err *e);

/* Append the name that the object is saved under. */
int sharded_object_name(const struct ckpt_sharded_object *o, struct buf *b, struct ckpt_err *e);

#endif

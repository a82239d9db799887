/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpointable - the interface of a local tensor (ckpt_state.h) to planners: its write items, and
 * the shard that an index refers to; and conversion of Megatron's ShardedTensor and ShardedObject.
 *
 * Everything is a plain value that borrows its arrays from the caller; functions allocate from the
 * arena that they are given. Functions that fail leave their outputs unchanged.
 *
 * Threads: pure.
 */
#ifndef SAVE_CHECKPOINTABLE_H
#define SAVE_CHECKPOINTABLE_H

#include <ckptfs/ckpt_plan.h>

#include <stddef.h>
#include <stdint.h>

struct arena;
struct buf;

/* Checks the dtype, at most CKPT_MAX_DIMS dimensions, as many shards as the kind allows, each
 * inside the tensor. */
int local_tensor_check(const struct ckpt_local_tensor *t, const char *fqn, size_t fqn_len,
		       struct ckpt_err *e);
/* Write items, one per shard, in order; they borrow the name, the boxes and the shape. */
void local_tensor_write_items(const struct ckpt_local_tensor *t, const char *fqn, uint32_t fqn_len,
			      struct ckpt_write_item *ret);
/*
 * The shard that an index refers to: the one at its hint, if that has the index's offset, or the
 * first with that offset. A CKPT_LOCAL_BOX has one shard and returns it for any index, as Megatron
 * does. ENOENT if there is none, with the message of the framework that would have failed.
 */
int local_tensor_shard(const struct ckpt_local_tensor *t, const struct ckpt_meta_index *index,
		       size_t *ret, struct ckpt_err *e);

/* The reason why shard_box refuses: always EINVAL, with HyperParallel's text if a split does not
 * divide. */
int sharding_refused(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
		     struct ckpt_err *e);

/* ---- Megatron ---- */

/*
 * This rank's shards of one key as a local tensor: CKPT_LOCAL_BOX for one, CKPT_LOCAL_SHARDS for
 * several. Without data the shards' data is NULL.
 */
int local_tensor_from_sharded(const struct ckpt_sharded_tensor *shards, size_t n, struct arena *a,
			      struct ckpt_local_tensor *ret, struct ckpt_err *e);

/* Appends the name that the object is saved under. */
int sharded_object_name(const struct ckpt_sharded_object *o, struct buf *b, struct ckpt_err *e);

#endif

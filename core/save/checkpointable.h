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

#include "save/ckpt_plan.h"

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
 * ENOENT where there is none, with the text of whoever would have been asked.
 */
int local_tensor_shard(const struct ckpt_local_tensor *t, const struct ckpt_meta_index *index,
		       size_t *ret, struct ckpt_err *e);

/* Why shard_box refuses: always EINVAL, with HyperParallel's text for what does not divide. */
int sharding_refused(const struct ckpt_sharding *s, size_t n_dims, const uint64_t *shape,
		     struct ckpt_err *e);

/* ---- Megatron ---- */

/* Which copy this is: a number, or numbers. The main one, all 0, is the one that is saved. */
struct replica_id {
	const int64_t *ids;
	size_t n;
	bool is_tuple; /* false: n is 1, or 0 for the number 0 */
};
bool replica_is_main(const struct replica_id *r);

struct array {
	void *data; /* row-major, without gaps */
	uint8_t dtype, n_dims;
	const uint64_t *shape;
};

/*
 * A local array's place in a global one. The global tensor may have axes in front which the local
 * one lacks (n_prepend: layers, experts). On a regular grid every axis of the global tensor is cut
 * into axis_fragmentations parts as long as the local one.
 */
struct sharded_tensor {
	const char *key;
	size_t key_len;
	const struct array *data; /* NULL: for consistency checks only */
	uint8_t dtype;
	uint8_t n_local, n_global, n_offset, n_prepend; /* lengths of the arrays below */
	const uint64_t *local_shape, *global_shape, *global_offset;
	const uint64_t *axis_fragmentations; /* n_global numbers, or NULL: no regular grid */
	struct replica_id replica;
	bool allow_shape_mismatch;
	const uint64_t *flattened_range; /* [0] to [1]: always refused; NULL */
};

/* Megatron's invariants, with its error texts (Megatron core 0.20, mapping.py). */
int sharded_tensor_check(const struct sharded_tensor *s, struct ckpt_err *e);

/* key, data and replica are borrowed, the rest is in the arena. */
struct rank_offsets_args {
	const char *key;
	size_t key_len;
	const struct array *data;
	const struct ckpt_rank_offset *offsets;
	size_t n_offsets;
	uint8_t n_prepend;
	struct replica_id replica;
	bool allow_shape_mismatch;
};
int sharded_tensor_from_rank_offsets(const struct rank_offsets_args *args, struct arena *a,
				     struct sharded_tensor *ret, struct ckpt_err *e);
/* Which cell of the grid this is: n_global numbers. */
int sharded_tensor_cell(const struct sharded_tensor *s, uint64_t *ret, struct ckpt_err *e);

/*
 * Do all ranks' shards of one key make up its tensor? Dtype and shapes agree, and each cell of the
 * grid has one main replica; where there is no grid nobody can tell, and only the former is looked
 * at. Megatron checks that before it saves.
 */
int sharded_tensors_check(const struct sharded_tensor *shards, size_t n, struct ckpt_err *e);

/*
 * This rank's shards of one key, as the planner wants them: CKPT_LOCAL_BOX for one,
 * CKPT_LOCAL_SHARDS for several. Without data the shards' data is NULL.
 */
int local_tensor_from_sharded(const struct sharded_tensor *shards, size_t n, struct arena *a,
			      struct ckpt_local_tensor *ret, struct ckpt_err *e);

/*
 * One of a grid of objects, which are never cut or joined: saved as bytes under the name
 * KEY/shard_<offset>_<shape>, numbers joined with dots.
 */
#define SHARDED_OBJECT_UNKNOWN UINT64_MAX /* last number of a shape that old files do not tell */
struct sharded_object {
	const char *key;
	size_t key_len;
	uint8_t n_offset, n_shape; /* equal, or it is refused */
	const uint64_t *offset, *shape;
	struct replica_id replica; /* main where sharded_object_parse made it */
};
/* Append the name. */
int sharded_object_name(const struct sharded_object *o, struct buf *b, struct ckpt_err *e);
/* Do all ranks' objects of one key have each main replica once, and as many as the shape says? */
int sharded_objects_check(const struct sharded_object *objects, size_t n, struct ckpt_err *e);
/* From a name, which the key is borrowed from. Names up to 0.5 lack the shape's last number. */
int sharded_object_parse(const char *name, size_t len, struct arena *a, struct sharded_object *ret,
			 struct ckpt_err *e);

#endif

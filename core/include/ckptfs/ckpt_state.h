/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_state - what a rank saves or loads: names, and its part of each tensor.
 *
 *	struct ckpt_shard s = { .off = off, .len = len, .data = elements };
 *	struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_BOX, .n_dims = 2, .shape = shape,
 *				       .props = { .dtype = CKPT_DTYPE_BF16 },
 *				       .shards = &s, .n_shards = 1 };
 *	struct ckpt_state_entry entry = { .fqn = "lm_head.weight", .fqn_len = 14, .tensor = &t };
 *	struct ckpt_state_dict dict = { &entry, 1 };
 *
 * The program supplies the box (off and len), or computes it with ckpt_sharding_box from a mesh and
 * placements (DTensor), ckpt_rank_offsets_box from rank offsets (Megatron) or ckpt_hp_layout_box
 * from a layout (HyperParallel). ckpt_sharded_dict_new makes a state dict from Megatron's sharded
 * tensors.
 *
 * All structures are plain values that borrow their arrays from the program. Offsets and lengths of
 * boxes are in elements. Functions that fail leave their outputs unchanged.
 *
 * Threads: pure.
 */
#ifndef CKPTFS_CKPT_STATE_H
#define CKPTFS_CKPT_STATE_H

#include "ckpt_base.h"
#include "ckpt_tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

/* ---- tensors ---- */

enum ckpt_memory_format { CKPT_MEMORY_CONTIGUOUS, CKPT_MEMORY_CHANNELS_LAST, CKPT_MEMORY_PRESERVE };

struct ckpt_tensor_props {     /* the layout is always torch.strided */
	uint8_t dtype;	       /* enum ckpt_dtype */
	uint8_t memory_format; /* enum ckpt_memory_format */
	bool requires_grad, pin_memory;
};

enum ckpt_local_kind {
	CKPT_LOCAL_WHOLE, /* a plain tensor: every rank holds all of it, as its only shard */
	CKPT_LOCAL_BOX,	  /* a DTensor, or one shard of Megatron: at most one box */
	/* torch's ShardedTensor, Megatron's LocalShardsContainer: any number of boxes */
	CKPT_LOCAL_SHARDS,
};

struct ckpt_shard {
	const uint64_t *off, *len; /* n_dims numbers each; the box may be empty */
	/* the box's elements, row-major, without gaps: saving reads them, loading writes them */
	void *data;
};

struct ckpt_local_tensor {
	uint8_t kind;	/* enum ckpt_local_kind */
	uint8_t n_dims; /* at most CKPT_MAX_DIMS */
	struct ckpt_tensor_props props;
	const uint64_t *shape;		 /* of the whole tensor */
	const struct ckpt_shard *shards; /* one for each part this rank holds */
	size_t n_shards;
	/* with CKPT_PLANNER_MEGATRON: loading fills what both shapes have in common and zeroes the
	 * rest, if they have as many dimensions; other planners refuse a different shape */
	bool allow_shape_mismatch;
};

/*
 * The box of a tensor that a rank (a position in the mesh; see ckpt_tensor.h) holds: n_dims numbers
 * each. An empty box is at the tensor's end. EINVAL: the rank is outside the mesh; a placement
 * names an axis or a dimension that does not exist, or the same axis as another; CKPT_SPLIT_EVEN
 * does not divide, reported in HyperParallel's words. A rank that is not in the mesh holds nothing:
 * give it a local tensor without shards.
 */
CKPT_API int ckpt_sharding_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims,
			       const uint64_t *shape, uint64_t *ret_off, uint64_t *ret_len,
			       struct ckpt_err *e);

struct ckpt_rank_offset { /* this is part `rank` of `fragm` along a global axis */
	int64_t axis, rank, fragm;
};

/*
 * A local array's place in a tensor, described as for Megatron's ShardedTensor.from_rank_offsets.
 * The tensor may have leading axes that the array lacks (n_prepend: layers, experts).
 */
struct ckpt_rank_offsets {
	const char *fqn; /* for messages */
	size_t fqn_len;
	const uint64_t *local_shape; /* n_local numbers */
	const struct ckpt_rank_offset *offsets;
	size_t n_offsets;
	uint8_t n_local, n_prepend;
};
/* The tensor's shape, and the array's box in it: n_prepend + n_local numbers each. EINVAL, with
 * Megatron's text, for impossible offsets. */
CKPT_API int ckpt_rank_offsets_box(const struct ckpt_rank_offsets *r, uint64_t *ret_shape,
				   uint64_t *ret_off, uint64_t *ret_len, struct ckpt_err *e);

/* ---- state dicts ---- */

/* Where an entry was in the nested state dict: the keys and list positions that lead to it. */
struct ckpt_path_step {
	const char *key; /* NULL: a position in a list */
	uint32_t key_len;
	uint64_t position;
};

/*
 * Bytes that are in memory (data), or that `read` supplies piece by piece, so that they need not
 * fit in memory. A caller that gets such a value from ckpt_save_planner_get_data must call
 * ckpt_data_close.
 */
struct ckpt_data {
	const void *data; /* NULL: call read, from any thread; for a tensor in whole elements */
	uint64_t len;	  /* bytes */
	int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e);
	void (*close)(void *arg); /* NULL: nothing to do */
	void *arg;
};

/* Leaves *s all zero; an all-zero *s is fine. */
CKPT_API void ckpt_data_close(struct ckpt_data *s);

struct ckpt_state_entry {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t n_steps;
	const struct ckpt_path_step *path; /* its path before the dict was flattened, or NULL */
	const struct ckpt_local_tensor *tensor; /* NULL: bytes */
	struct ckpt_data bytes;			/* if it is bytes and is being saved */
};

struct ckpt_state_dict {
	const struct ckpt_state_entry *entries; /* names are unique */
	size_t count;
};

/* ---- as Megatron describes it ---- */

/*
 * A program that has Megatron core's ShardedTensor and ShardedObject (core 0.20, mapping.py) lists
 * those of its rank, in any order, and gets a state dict for ckpt_save or ckpt_load:
 *
 *	struct ckpt_array a = { rows, CKPT_DTYPE_BF16, 2, local_shape };
 *	struct ckpt_rank_offset o = { 0, tp_rank, tp_size };
 *	struct ckpt_rank_offsets_args args = { .key = "w", .key_len = 1, .data = &a, .offsets = &o,
 *					       .n_offsets = 1, .replica = { ids, 3, true } };
 *
 *	ckpt_sharded_tensor_from_rank_offsets(&args, room, &s, &e);
 *	ckpt_sharded_dict_new(&s, 1, NULL, 0, CKPT_SHARDED_SAVE, &d, &e);
 *	ckpt_save(comm, path, ckpt_sharded_dict(d), &opts, &e);	// with CKPT_PLANNER_MEGATRON
 *	ckpt_sharded_dict_free(d);
 *
 * What Megatron rejects fails with EINVAL and Megatron's message.
 */

/* Which replica this is: one number, or several. The main one, with all 0, is the one saved. */
struct ckpt_replica_id {
	const int64_t *ids;
	size_t n;
	bool is_tuple; /* false: n is 1, or 0 for the number 0 */
};
CKPT_API bool ckpt_replica_is_main(const struct ckpt_replica_id *r);

struct ckpt_array {
	void *data; /* row-major, without gaps: saving reads it, loading writes it */
	uint8_t dtype, n_dims;
	const uint64_t *shape;
};

/*
 * A local array's place in a global one. The global tensor may have leading axes that the local one
 * lacks (n_prepend: layers, experts). On a regular grid every axis of the global tensor is split
 * into axis_fragmentations parts, each as long as the local one.
 */
struct ckpt_sharded_tensor {
	const char *key;
	size_t key_len;
	const struct ckpt_array *data; /* NULL: for consistency checks only */
	uint8_t dtype;
	uint8_t n_local, n_global, n_offset, n_prepend; /* lengths of the arrays below */
	const uint64_t *local_shape, *global_shape, *global_offset;
	const uint64_t *axis_fragmentations; /* n_global numbers, or NULL: no regular grid */
	struct ckpt_replica_id replica;
	bool allow_shape_mismatch;
	const uint64_t *flattened_range; /* NULL; [0] to [1] is refused, as in core 0.20 */
};

CKPT_API int ckpt_sharded_tensor_check(const struct ckpt_sharded_tensor *s, struct ckpt_err *e);
/* This array's cell of the grid (local_chunk_offset_in_global): n_global numbers. */
CKPT_API int ckpt_sharded_tensor_cell(const struct ckpt_sharded_tensor *s, uint64_t *ret,
				      struct ckpt_err *e);

struct ckpt_rank_offsets_args { /* of ShardedTensor.from_rank_offsets */
	const char *key;
	size_t key_len;
	const struct ckpt_array *data;
	const struct ckpt_rank_offset *offsets;
	size_t n_offsets;
	uint8_t n_prepend;
	struct ckpt_replica_id replica;
	bool allow_shape_mismatch;
};
/* room: for 3 * CKPT_MAX_DIMS numbers. *ret borrows part of it, and what args borrows. */
CKPT_API int ckpt_sharded_tensor_from_rank_offsets(const struct ckpt_rank_offsets_args *args,
						   uint64_t *room, struct ckpt_sharded_tensor *ret,
						   struct ckpt_err *e);
/*
 * Do these shards of one key, taken from all ranks, make up its tensor? Dtypes and shapes must
 * agree, and each cell of the grid must have exactly one main replica; without a grid only the
 * former is checked. Megatron runs this check before it saves; a save detects overlaps and gaps by
 * itself.
 */
CKPT_API int ckpt_sharded_tensors_check(const struct ckpt_sharded_tensor *shards, size_t n,
					struct ckpt_err *e);

/*
 * One of a grid of objects, which are never split or joined: saved as bytes under the name
 * KEY/shard_<offset>_<shape>, numbers joined with dots.
 */
struct ckpt_sharded_object {
	const char *key;
	size_t key_len;
	uint8_t n_offset, n_shape; /* must be equal */
	const uint64_t *offset, *shape;
	struct ckpt_replica_id replica;
	struct ckpt_data bytes; /* if it is being saved */
};
/* Do the objects of one key, taken from all ranks, include the main replica of each object that the
 * shape requires exactly once? */
CKPT_API int ckpt_sharded_objects_check(const struct ckpt_sharded_object *objects, size_t n,
					struct ckpt_err *e);

enum ckpt_sharded_use {
	CKPT_SHARDED_SAVE, /* main replicas only; each has data */
	CKPT_SHARDED_LOAD, /* all replicas */
};

/*
 * A state dict of a rank's shards: those of one key become one entry, in order of first appearance.
 * It borrows arrays, keys and data from the program until ckpt_sharded_dict_free, which accepts
 * NULL.
 */
struct ckpt_sharded_dict;
CKPT_API int ckpt_sharded_dict_new(const struct ckpt_sharded_tensor *tensors, size_t n_tensors,
				   const struct ckpt_sharded_object *objects, size_t n_objects,
				   enum ckpt_sharded_use use, struct ckpt_sharded_dict **ret,
				   struct ckpt_err *e);
CKPT_API const struct ckpt_state_dict *ckpt_sharded_dict(const struct ckpt_sharded_dict *d);
CKPT_API void ckpt_sharded_dict_free(struct ckpt_sharded_dict *d);

/* ---- as HyperParallel describes it ---- */

/*
 * A layout: a mesh, which dimension of a tensor each of its axes splits, and which rank is at each
 * position. Mesh axes are counted from the right. What HyperParallel refuses fails with EINVAL and
 * HyperParallel's message. Every rank saves its box as a CKPT_LOCAL_BOX; if several ranks have the
 * same box, the planner lets one of them write it.
 */
struct ckpt_hp_layout {
	const uint64_t *mesh; /* mesh_shape */
	uint8_t n_axes, n_dims;
	/* tensor_map: for each of n_dims dimensions the mesh axes, counted from the right, that
	 * split it, the coarsest first; none for a replicated dimension (-1 in files). */
	const struct ckpt_hp_map {
		const uint8_t *axes;
		uint8_t n;
	} * map;
	const uint64_t *ranks; /* rank_list: the rank at each position of the mesh */
	size_t n_ranks;
};

/*
 * The same layout as a sharding with even splits, for ckpt_sharding_box with positions instead of
 * ranks; placements are written to room[CKPT_MESH_MAX_AXES], the mesh is borrowed. `name` is what
 * messages call the layout ("to_layout").
 */
CKPT_API int ckpt_hp_layout_sharding(const struct ckpt_hp_layout *l, const char *name,
				     struct ckpt_placement *room, struct ckpt_sharding *ret,
				     struct ckpt_err *e);
/* The rank's position in the mesh; false: the layout does not contain it. */
CKPT_API bool ckpt_hp_layout_position(const struct ckpt_hp_layout *l, uint64_t rank, uint64_t *ret);
/* The rank's box of a tensor of l->n_dims dimensions; 1: the layout does not contain the rank,
 * which holds nothing (a local tensor without shards). */
CKPT_API int ckpt_hp_layout_box(const struct ckpt_hp_layout *l, uint64_t rank,
				const uint64_t *shape, uint64_t *ret_off, uint64_t *ret_len,
				struct ckpt_err *e);

/* off and len of a box in the whole tensor, and its offset in the rank's own part; valid during the
 * call. */
typedef int ckpt_hp_visit_fn(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
			     const uint64_t *local_off);
/*
 * Which parts of which ranks' tensors make up rank to_rank's tensor in another layout: visit is
 * called with source ranks, and covers each element of to_rank's box in exactly one call. Either
 * layout may be NULL, but not both: rank 0 then holds the whole tensor. A non-zero return of visit
 * stops and is returned.
 */
CKPT_API int ckpt_hp_reshard(const struct ckpt_hp_layout *from, const struct ckpt_hp_layout *to,
			     size_t n_dims, const uint64_t *shape, uint64_t to_rank,
			     ckpt_hp_visit_fn *visit, void *arg, struct ckpt_err *e);

CKPT_END

#endif

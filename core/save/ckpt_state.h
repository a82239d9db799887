/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_state - what a rank has to save, or wants to load: names, and what it holds of each tensor.
 *
 *	struct ckpt_shard s = { .off = off, .len = len, .data = elements };
 *	struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_BOX, .n_dims = 2, .shape = shape,
 *				       .props = { .dtype = CKPT_DTYPE_BF16 },
 *				       .shards = &s, .n_shards = 1 };
 *	struct ckpt_state_entry entry = { .fqn = "lm_head.weight", .fqn_len = 14, .tensor = &t };
 *	struct ckpt_state_dict dict = { &entry, 1 };
 *
 * The box, off and len, is what the program says it is; ckpt_sharding_box tells it of a mesh and
 * placements (DTensor, HyperParallel), ckpt_rank_offsets_box of rank offsets (Megatron).
 *
 * Everything is a plain value that borrows its arrays from the program. Functions that fail leave
 * their outputs as they were.
 *
 * Threads: pure.
 */
#ifndef SAVE_CKPT_STATE_H
#define SAVE_CKPT_STATE_H

#include "base/ckpt_base.h"
#include "model/ckpt_tensor.h"

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
	void *data; /* the box's elements, row-major, without gaps: saving reads, loading writes */
};

struct ckpt_local_tensor {
	uint8_t kind;	/* enum ckpt_local_kind */
	uint8_t n_dims; /* at most CKPT_MAX_DIMS */
	struct ckpt_tensor_props props;
	const uint64_t *shape;		 /* of the whole tensor */
	const struct ckpt_shard *shards; /* this is the chunk list */
	size_t n_shards;
	bool allow_shape_mismatch; /* loading takes what the shapes have in common, the rest is 0 */
};

/*
 * The box that a rank (a position in the mesh; see ckpt_tensor.h) holds of a tensor: n_dims numbers
 * each. A box without elements is at the tensor's end. EINVAL: the rank is none of the mesh; a
 * placement names an axis or a dimension that is not there; CKPT_SPLIT_EVEN does not divide, which
 * is said in HyperParallel's words. A rank outside of the mesh holds nothing: a local tensor
 * without shards.
 */
CKPT_API int ckpt_sharding_box(const struct ckpt_sharding *s, uint64_t rank, size_t n_dims,
			       const uint64_t *shape, uint64_t *ret_off, uint64_t *ret_len,
			       struct ckpt_err *e);

struct ckpt_rank_offset { /* this is part `rank` of `fragm` along a global axis */
	int64_t axis, rank, fragm;
};

/*
 * A local array's place in a tensor, as Megatron's ShardedTensor.from_rank_offsets is told it. The
 * tensor may have axes in front which the array lacks (n_prepend: layers, experts).
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
 * Megatron's text for offsets that cannot be. */
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
 * Bytes that are there (data), or that read brings piece by piece, so that they need not fit. Who
 * got it from ckpt_save_planner_get_data calls ckpt_data_close when it is done with it.
 */
struct ckpt_data {
	const void *data; /* NULL: ask read, from any thread; a tensor's in whole elements */
	uint64_t len;	  /* bytes */
	int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e);
	void (*close)(void *arg); /* NULL: nothing to do */
	void *arg;
};

/* *s is all zero then, which is fine here, too. */
CKPT_API void ckpt_data_close(struct ckpt_data *s);

struct ckpt_state_entry {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t n_steps;
	const struct ckpt_path_step *path; /* where it was before the dict was flattened, or NULL */
	const struct ckpt_local_tensor *tensor; /* NULL: bytes */
	struct ckpt_data bytes;			/* if it is bytes, and is saved */
};

struct ckpt_state_dict {
	const struct ckpt_state_entry *entries; /* no two of one name */
	size_t count;
};

CKPT_END

#endif

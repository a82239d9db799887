/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_plan - what is to be written or read, decided by all ranks together: plans, what checkpoint
 * systems say about a checkpoint, and the planners that make the one of the other. ckpt_save and
 * ckpt_load call planners; this is for programs that replace them, or call them themselves.
 *
 * A rank says what it holds (a state dict), its planner makes a local plan of it; one rank, the
 * coordinator, makes a global plan of all local ones, with the checkpoint's metadata when saving;
 * each rank finishes with its part of that and moves data item by item:
 *
 *	ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, &e);
 *	ckpt_save_planner_configure(&p, &dict, &options, &e);
 *	ckpt_save_planner_local_plan(&p, &mine, &e);		// gather `mine` from all ranks
 *	// the coordinator; scatter `parts`
 *	ckpt_save_planner_global_plan(&p, all, n, parts, &md, &e);
 *	ckpt_save_planner_finish(&p, &part, &plan, &e);
 *	for each item of plan: ckpt_save_planner_get_data(&p, &item, &source, &e);
 *	ckpt_save_planner_free(&p);
 *
 * Loading is the same with a load planner, whose items are acquired, filled and applied. A planner
 * may be configured again for the next checkpoint. Calls in another order fail with EPERM.
 *
 * There is a planner for each system, and a program may bring its own: fill in the functions.
 *
 * Plans and metadata are plain values. Their names are those of torch.distributed.checkpoint, in
 * this library's spelling; HyperParallel and Megatron have the same classes.
 *
 *	MetadataIndex           struct ckpt_meta_index      WriteItem    struct ckpt_write_item
 *	ChunkStorageMetadata    struct ckpt_chunk_meta      ReadItem     struct ckpt_read_item
 *	TensorProperties        struct ckpt_tensor_props    SavePlan     struct ckpt_save_plan
 *	TensorStorageMetadata   struct ckpt_tensor_meta     LoadPlan     struct ckpt_load_plan
 *	BytesStorageMetadata    a ckpt_meta_entry without   WriteResult  struct ckpt_write_result
 *	Metadata, StorageMeta   struct ckpt_metadata, ...   _StorageInfo struct ckpt_storage_info
 *
 * Names are bytes with a length: they may hold anything. Numbers are elements, not bytes, where
 * nothing else is said.
 *
 * Ownership: what a planner returns belongs to it, stays until it is configured again or freed,
 * and borrows names, shapes and data of the state dict, and of the plans it was given. Pointers in
 * other values are borrowed from their makers; nothing here is freed piece by piece.
 * Threads: one at a time for each planner, but get_data, acquire_tensor and apply_tensor may be
 * called from any number of threads once the plan is finished, each for items of its own.
 */
#ifndef CKPTFS_CKPT_PLAN_H
#define CKPTFS_CKPT_PLAN_H

#include "ckpt_base.h"
#include "ckpt_state.h"
#include "ckpt_tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

/* ---- chunks and entries ---- */

#define CKPT_META_NO_HINT (-1)

/*
 * Which chunk of which entry. Equality and hash are over fqn and offset; the hint says where in a
 * list of chunks to look first and is no part of it.
 */
struct ckpt_meta_index {
	const char *fqn;
	const uint64_t *offset; /* n_dims numbers */
	uint32_t fqn_len;
	int32_t hint;	 /* position in the tensor's list of chunks, or CKPT_META_NO_HINT */
	uint8_t n_dims;	 /* 0 too for a tensor that is one element */
	bool has_offset; /* false: the entry as a whole, which is bytes */
};

struct ckpt_chunk_meta {
	const uint64_t *off, *len; /* as many numbers as the tensor has dimensions */
};

/* ---- what is stored ---- */

struct ckpt_tensor_meta {
	struct ckpt_tensor_props props;
	uint8_t n_dims;
	const uint64_t *size; /* the whole tensor's shape */
	const struct ckpt_chunk_meta *chunks;
	size_t n_chunks;
};

struct ckpt_meta_entry {
	const char *fqn;
	uint32_t fqn_len;
	bool is_tensor;			/* false: bytes, about which no more is said */
	struct ckpt_tensor_meta tensor; /* if it is one */
};

struct ckpt_fqn_path {
	const char *fqn;
	const struct ckpt_path_step *steps;
	uint32_t fqn_len, n_steps;
};

struct ckpt_storage_info {
	const char *path;	 /* relative to the checkpoint */
	uint64_t offset, length; /* bytes of that file */
	const char *tensor_key;	 /* the name inside a container that has names, or NULL */
	uint32_t tensor_key_len;
	const char *transform; /* what has been done to the bytes, "stream.zstd/1"; NULL: nothing */
};

struct ckpt_write_result {
	struct ckpt_meta_index index;
	struct ckpt_storage_info info;
};

struct ckpt_storage_meta {
	const char *checkpoint_id, *save_id; /* NULL: not said */
};

struct ckpt_metadata {
	struct ckpt_meta_entry *entries; /* no two of one name */
	size_t n_entries;
	const struct ckpt_fqn_path *paths; /* planner_data */
	size_t n_paths;
	const struct ckpt_write_result *stored; /* storage_data */
	size_t n_stored;
	struct ckpt_storage_meta storage;
	const char *version; /* NULL: not said */
};

/* ---- plans ---- */

enum ckpt_write_type { CKPT_WRITE_BYTE_IO, CKPT_WRITE_TENSOR, CKPT_WRITE_SHARD };

struct ckpt_write_item {
	struct ckpt_meta_index index;
	struct ckpt_chunk_meta chunk; /* index.n_dims dimensions; tensors only, as what follows */
	const uint64_t *size;	      /* the whole tensor's shape */
	struct ckpt_tensor_props props;
	uint8_t type; /* enum ckpt_write_type */
};

struct ckpt_save_plan {
	const struct ckpt_write_item *items;
	size_t n_items;
	const struct ckpt_fqn_path *paths; /* planner_data */
	size_t n_paths;
	const void
		*storage; /* storage_data: what the storage writer of the coordinator has to say */
	size_t storage_len; /* to that of the plan's rank; bytes, after the global plan alone */
	bool unchanged; /* empty because it equals the one before, which the other side has kept */
};

enum ckpt_read_type { CKPT_READ_BYTE_IO, CKPT_READ_TENSOR };

/* Copy a box: `len` elements from storage_off in the stored chunk to dest_off in the local one. */
struct ckpt_read_item {
	struct ckpt_meta_index dest, storage;
	const uint64_t *dest_off, *storage_off, *len;
	uint8_t type;	/* enum ckpt_read_type */
	uint8_t n_dims; /* of the three; 1 for bytes, where all are {0} */
};

struct ckpt_load_plan {
	const struct ckpt_read_item *items;
	size_t n_items;
};

/* ---- planners ---- */

/* The systems whose rules the planners of this library follow. */
enum ckpt_planner_system {
	CKPT_PLANNER_DCP,      /* torch.distributed.checkpoint 2.14 */
	CKPT_PLANNER_MEGATRON, /* Megatron core 0.20: copies are left out by who makes the dict */
	CKPT_PLANNER_HYPERPARALLEL,   /* of March 2026 */
	CKPT_PLANNER_HYPERPARALLEL_B, /* later ones */
};

enum ckpt_planner_step {
	CKPT_STEP_NEW,
	CKPT_STEP_CONFIGURED,
	CKPT_STEP_PLANNED,
	CKPT_STEP_FINISHED
};

/* ---- saving ---- */

struct ckpt_save_planning {
	size_t rank;
	bool is_coordinator;
	bool keep_redundancy; /* write every copy: HyperParallel with remove_redundancy=False */
	bool no_paths;	      /* no planner_data: with flatten_state_dict=False torch has none */
	bool save_to_minimum_rank; /* of ranks with the same, the lowest, not the least loaded */
	/* Plans that equal those of the save before are not sent again: they come as empty ones,
	 * marked `unchanged`, and each side uses what it has kept. The ranks' number
	 * must stay, and all have the same options. */
	bool cache_plans;
};

struct ckpt_save_planner_ops {
	int (*configure)(void *self, const struct ckpt_state_dict *dict,
			 const struct ckpt_save_planning *opt, struct ckpt_err *e);
	int (*local_plan)(void *self, struct ckpt_save_plan *ret, struct ckpt_err *e);
	int (*global_plan)(void *self, const struct ckpt_save_plan *all, size_t n,
			   struct ckpt_save_plan *ret_parts, struct ckpt_metadata *ret_md,
			   struct ckpt_err *e);
	int (*finish)(void *self, const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
		      struct ckpt_err *e);
	int (*get_data)(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
			struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_save_planner {
	const struct ckpt_save_planner_ops *ops;
	void *self;
	uint8_t step; /* enum ckpt_planner_step; CKPT_STEP_NEW at birth */
};

CKPT_API int ckpt_save_planner_new(enum ckpt_planner_system system, struct ckpt_save_planner *ret,
				   struct ckpt_err *e);
CKPT_API void ckpt_save_planner_free(struct ckpt_save_planner *p); /* all zero is fine */

/* dict, and all that it points to, must stay until the planner is configured again or freed. */
CKPT_API int ckpt_save_planner_configure(struct ckpt_save_planner *p,
					 const struct ckpt_state_dict *dict,
					 const struct ckpt_save_planning *opt, struct ckpt_err *e);
CKPT_API int ckpt_save_planner_local_plan(struct ckpt_save_planner *p, struct ckpt_save_plan *ret,
					  struct ckpt_err *e);
/* all[r] is rank r's plan, ret_parts has room for as many. */
CKPT_API int ckpt_save_planner_global_plan(struct ckpt_save_planner *p,
					   const struct ckpt_save_plan *all, size_t n,
					   struct ckpt_save_plan *ret_parts,
					   struct ckpt_metadata *ret_md, struct ckpt_err *e);
/* part: this rank's of the global plan; it must stay as long as *ret is used. */
CKPT_API int ckpt_save_planner_finish(struct ckpt_save_planner *p,
				      const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
				      struct ckpt_err *e);
/* An item's bytes: a chunk's elements in row-major order, or the entry's bytes. */
CKPT_API int ckpt_save_planner_get_data(struct ckpt_save_planner *p,
					const struct ckpt_write_item *item, struct ckpt_data *ret,
					struct ckpt_err *e);

/* ---- loading ---- */

/* Bytes have been read. data is lent for the call. */
typedef int ckpt_take_bytes_fn(void *arg, const struct ckpt_state_entry *entry, const void *data,
			       size_t len, struct ckpt_err *e);

struct ckpt_load_planning {
	size_t rank;
	bool is_coordinator;
	bool allow_partial_load;	/* entries that the checkpoint lacks are left as they are */
	ckpt_take_bytes_fn *take_bytes; /* NULL: the dict has no bytes */
	void *arg;
};

/* Memory for a box: element x is at data + sum(x[d] * stride[d]). */
struct ckpt_tensor_view {
	void *data;
	uint8_t dtype, n_dims;
	const uint64_t *len;
	uint64_t stride[CKPT_MAX_DIMS]; /* bytes */
};

struct ckpt_load_planner_ops {
	int (*configure)(void *self, const struct ckpt_state_dict *dict,
			 const struct ckpt_metadata *md, const struct ckpt_load_planning *opt,
			 struct ckpt_err *e);
	int (*local_plan)(void *self, struct ckpt_load_plan *ret, struct ckpt_err *e);
	int (*global_plan)(void *self, const struct ckpt_load_plan *all, size_t n,
			   struct ckpt_load_plan *ret_parts, struct ckpt_err *e);
	int (*finish)(void *self, const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
		      struct ckpt_err *e);
	int (*acquire_tensor)(void *self, const struct ckpt_read_item *item,
			      struct ckpt_tensor_view *ret, struct ckpt_err *e);
	int (*apply_tensor)(void *self, const struct ckpt_read_item *item,
			    const struct ckpt_tensor_view *v, struct ckpt_err *e);
	int (*apply_bytes)(void *self, const struct ckpt_read_item *item, const void *data,
			   size_t len, struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_load_planner {
	const struct ckpt_load_planner_ops *ops;
	void *self;
	uint8_t step; /* enum ckpt_planner_step */
};

CKPT_API int ckpt_load_planner_new(enum ckpt_planner_system system, struct ckpt_load_planner *ret,
				   struct ckpt_err *e);
CKPT_API void ckpt_load_planner_free(struct ckpt_load_planner *p); /* all zero is fine */

/* dict and md must stay until the planner is configured again or freed. */
CKPT_API int ckpt_load_planner_configure(struct ckpt_load_planner *p,
					 const struct ckpt_state_dict *dict,
					 const struct ckpt_metadata *md,
					 const struct ckpt_load_planning *opt, struct ckpt_err *e);
CKPT_API int ckpt_load_planner_local_plan(struct ckpt_load_planner *p, struct ckpt_load_plan *ret,
					  struct ckpt_err *e);
CKPT_API int ckpt_load_planner_global_plan(struct ckpt_load_planner *p,
					   const struct ckpt_load_plan *all, size_t n,
					   struct ckpt_load_plan *ret_parts, struct ckpt_err *e);
/* Tensors that allow_shape_mismatch, and differ, are zeroed here. */
CKPT_API int ckpt_load_planner_finish(struct ckpt_load_planner *p,
				      const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
				      struct ckpt_err *e);
/* Where an item's elements go: a part of the state dict's tensor. */
CKPT_API int ckpt_load_planner_acquire_tensor(struct ckpt_load_planner *p,
					      const struct ckpt_read_item *item,
					      struct ckpt_tensor_view *ret, struct ckpt_err *e);
/*
 * The elements are there: v is what acquire_tensor gave, filled, or a view of the reader's own
 * memory with the same lengths and dtype, which is copied.
 */
CKPT_API int ckpt_load_planner_apply_tensor(struct ckpt_load_planner *p,
					    const struct ckpt_read_item *item,
					    const struct ckpt_tensor_view *v, struct ckpt_err *e);
CKPT_API int ckpt_load_planner_apply_bytes(struct ckpt_load_planner *p,
					   const struct ckpt_read_item *item, const void *data,
					   size_t len, struct ckpt_err *e);

CKPT_END

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_plan - deciding, by all ranks together, what is written or read: plans, the metadata of a
 * checkpoint, and the planners that make plans from metadata and state dicts. ckpt_save and
 * ckpt_load call planners; this header is for programs that replace planners or call them directly.
 *
 * Each rank describes what it holds (a state dict), and its planner makes a local plan from it. One
 * rank, the coordinator, makes a global plan from all local plans and, when saving, the
 * checkpoint's metadata. Each rank finishes its part of the global plan and moves data item by
 * item:
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
 * Loading works the same way with a load planner, whose items are acquired, filled and applied. A
 * planner may be configured again for the next checkpoint. Calls in any other order fail with
 * EPERM.
 *
 * There is a planner for each system, and a program may supply its own by filling in the functions.
 *
 * Plans and metadata are plain values. They are named after the classes of
 * torch.distributed.checkpoint; HyperParallel and Megatron have the same classes.
 *
 *	MetadataIndex           struct ckpt_meta_index      WriteItem    struct ckpt_write_item
 *	ChunkStorageMetadata    struct ckpt_chunk_meta      ReadItem     struct ckpt_read_item
 *	TensorProperties        struct ckpt_tensor_props    SavePlan     struct ckpt_save_plan
 *	TensorStorageMetadata   struct ckpt_tensor_meta     LoadPlan     struct ckpt_load_plan
 *	BytesStorageMetadata    a ckpt_meta_entry without   WriteResult  struct ckpt_write_result
 *	Metadata, StorageMeta   struct ckpt_metadata, ...   _StorageInfo struct ckpt_storage_info
 *
 * Names are byte strings with a length and may contain any byte. Numbers count elements unless
 * bytes are mentioned.
 *
 * Ownership: what a planner returns belongs to it and is valid until the planner is configured
 * again or freed; it borrows names, shapes and data from the state dict and from the plans passed
 * in. Pointers in other values are borrowed from whoever made the value; nothing here is freed
 * piece by piece.
 *
 * Threads: one at a time for each planner, except that get_data, acquire_tensor and apply_tensor
 * may be called from any number of threads once the plan is finished, each thread for items of its
 * own.
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
 * Identifies a chunk of an entry. Equality and hash cover fqn and offset; the hint, which tells
 * where in a list of chunks to look first, is not part of the identity.
 */
struct ckpt_meta_index {
	const char *fqn;
	const uint64_t *offset; /* n_dims numbers */
	uint32_t fqn_len;
	int32_t hint;	 /* position in the tensor's list of chunks, or CKPT_META_NO_HINT */
	uint8_t n_dims;	 /* also 0 for a scalar */
	bool has_offset; /* false: the entry as a whole, which is bytes */
};

struct ckpt_chunk_meta {
	const uint64_t *off, *len; /* n_dims numbers each */
};

/* ---- what is stored ---- */

struct ckpt_tensor_meta {
	struct ckpt_tensor_props props;
	uint8_t n_dims;
	const uint64_t *size; /* the whole tensor's shape */
	const struct ckpt_chunk_meta *chunks;
	size_t n_chunks;
	/* The shape before Megatron-core flattened it; only Megatron's metadata record it. */
	const uint64_t *logical; /* n_logical numbers */
	uint8_t n_logical;	 /* 0: it was not flattened */
};

struct ckpt_meta_entry {
	const char *fqn;
	uint32_t fqn_len;
	bool is_tensor;			/* false: bytes, about which nothing more is recorded */
	struct ckpt_tensor_meta tensor; /* if is_tensor */
};

struct ckpt_fqn_path {
	const char *fqn;
	const struct ckpt_path_step *steps;
	uint32_t fqn_len, n_steps;
};

struct ckpt_storage_info {
	const char *path;	 /* relative to the checkpoint */
	uint64_t offset, length; /* bytes of that file */
	const char *tensor_key;	 /* the name in a file that has names of its own, or NULL */
	uint32_t tensor_key_len;
	const char *transform; /* applied to the bytes, "stream.zstd/1"; NULL: none */
};

struct ckpt_write_result {
	struct ckpt_meta_index index;
	struct ckpt_storage_info info;
};

struct ckpt_storage_meta {
	const char *checkpoint_id, *save_id; /* NULL: not recorded */
};

struct ckpt_metadata {
	struct ckpt_meta_entry *entries; /* names are unique */
	size_t n_entries;
	const struct ckpt_fqn_path *paths; /* planner_data */
	size_t n_paths;
	const struct ckpt_write_result *stored; /* storage_data */
	size_t n_stored;
	struct ckpt_storage_meta storage;
	const char *version; /* NULL: not recorded */
};

/* ---- plans ---- */

enum ckpt_write_type { CKPT_WRITE_BYTE_IO, CKPT_WRITE_TENSOR, CKPT_WRITE_SHARD };

struct ckpt_write_item {
	struct ckpt_meta_index index;
	struct ckpt_chunk_meta chunk; /* index.n_dims dimensions; like the next two, only for
                                         tensors */
	const uint64_t *size;	      /* the whole tensor's shape */
	struct ckpt_tensor_props props;
	uint8_t type; /* enum ckpt_write_type */
};

struct ckpt_save_plan {
	const struct ckpt_write_item *items;
	size_t n_items;
	const struct ckpt_fqn_path *paths; /* planner_data */
	size_t n_paths;
	const void *storage; /* storage_data: from the coordinator's storage writer to this rank's,
                             after the global plan */
	size_t storage_len;  /* bytes */
	bool unchanged; /* equals the previous plan, which the other side has kept; sent empty */
};

enum ckpt_read_type { CKPT_READ_BYTE_IO, CKPT_READ_TENSOR };

/* Copies a box: `len` elements from storage_off in the stored chunk to dest_off in the local
 * one. */
struct ckpt_read_item {
	struct ckpt_meta_index dest, storage;
	const uint64_t *dest_off, *storage_off, *len;
	uint8_t type;	/* enum ckpt_read_type */
	uint8_t n_dims; /* of the three arrays; 1 for bytes, where each is {0} */
};

struct ckpt_load_plan {
	const struct ckpt_read_item *items;
	size_t n_items;
};

/* ---- planners ---- */

/* The systems whose rules the planners of this library follow. */
enum ckpt_planner_system {
	CKPT_PLANNER_DCP,      /* torch.distributed.checkpoint 2.14 */
	CKPT_PLANNER_MEGATRON, /* Megatron core 0.20: the program leaves copies out of the dict */
	CKPT_PLANNER_HYPERPARALLEL,   /* as of March 2026 */
	CKPT_PLANNER_HYPERPARALLEL_B, /* later versions */
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
	bool keep_redundancy; /* write every copy, as HyperParallel does with
                                 remove_redundancy=False */
	bool no_paths;	      /* no planner_data, as torch does with flatten_state_dict=False */
	bool save_to_minimum_rank; /* if several ranks hold the same data, the lowest one writes it,
                                      not the least loaded */
	/*
	 * Do not resend plans that equal those of the previous save: they are sent empty and marked
	 * `unchanged`, and each side uses the plan it has kept. The number of ranks must stay the
	 * same, and all ranks must use the same options.
	 */
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
	uint8_t step; /* enum ckpt_planner_step; must start as CKPT_STEP_NEW */
};

CKPT_API int ckpt_save_planner_new(enum ckpt_planner_system system, struct ckpt_save_planner *ret,
				   struct ckpt_err *e);
CKPT_API void ckpt_save_planner_free(struct ckpt_save_planner *p); /* all zero is fine */

/* dict, and everything it points to, must stay until the planner is configured again or freed. */
CKPT_API int ckpt_save_planner_configure(struct ckpt_save_planner *p,
					 const struct ckpt_state_dict *dict,
					 const struct ckpt_save_planning *opt, struct ckpt_err *e);
CKPT_API int ckpt_save_planner_local_plan(struct ckpt_save_planner *p, struct ckpt_save_plan *ret,
					  struct ckpt_err *e);
/* all[r] is rank r's plan; ret_parts has room for n plans. */
CKPT_API int ckpt_save_planner_global_plan(struct ckpt_save_planner *p,
					   const struct ckpt_save_plan *all, size_t n,
					   struct ckpt_save_plan *ret_parts,
					   struct ckpt_metadata *ret_md, struct ckpt_err *e);
/* part: this rank's part of the global plan; it must stay as long as *ret is used. */
CKPT_API int ckpt_save_planner_finish(struct ckpt_save_planner *p,
				      const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
				      struct ckpt_err *e);
/* The bytes of an item: a chunk's elements in row-major order, or an entry's bytes. */
CKPT_API int ckpt_save_planner_get_data(struct ckpt_save_planner *p,
					const struct ckpt_write_item *item, struct ckpt_data *ret,
					struct ckpt_err *e);

/* ---- loading ---- */

/* Called when the bytes of an entry have been read; data is valid during the call. */
typedef int ckpt_take_bytes_fn(void *arg, const struct ckpt_state_entry *entry, const void *data,
			       size_t len, struct ckpt_err *e);

struct ckpt_load_planning {
	size_t rank;
	bool is_coordinator;
	bool allow_partial_load;	/* leave entries that the checkpoint lacks unchanged */
	ckpt_take_bytes_fn *take_bytes; /* NULL: the dict has no bytes entries */
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
/* Zeroes tensors with allow_shape_mismatch whose shape differs. */
CKPT_API int ckpt_load_planner_finish(struct ckpt_load_planner *p,
				      const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
				      struct ckpt_err *e);
/* Where to write an item's elements: part of a tensor of the state dict. */
CKPT_API int ckpt_load_planner_acquire_tensor(struct ckpt_load_planner *p,
					      const struct ckpt_read_item *item,
					      struct ckpt_tensor_view *ret, struct ckpt_err *e);
/*
 * To be called when the elements have been read: v is the view from acquire_tensor, now filled, or
 * a view of the reader's own memory with the same lengths and dtype, which is copied.
 */
CKPT_API int ckpt_load_planner_apply_tensor(struct ckpt_load_planner *p,
					    const struct ckpt_read_item *item,
					    const struct ckpt_tensor_view *v, struct ckpt_err *e);
CKPT_API int ckpt_load_planner_apply_bytes(struct ckpt_load_planner *p,
					   const struct ckpt_read_item *item, const void *data,
					   size_t len, struct ckpt_err *e);

CKPT_END

#endif

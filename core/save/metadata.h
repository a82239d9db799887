/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata - what checkpoint systems say about a checkpoint, and the plans that lead there, as
 * plain values. The names are those of torch.distributed.checkpoint, in this program's spelling;
 * HyperParallel and Megatron have the same classes.
 *
 *	MetadataIndex           struct ckpt_meta_index      WriteItem    struct ckpt_write_item
 *	ChunkStorageMetadata    struct ckpt_chunk_meta      ReadItem     struct ckpt_read_item
 *	TensorProperties        struct ckpt_tensor_props    SavePlan     struct ckpt_save_plan
 *	TensorStorageMetadata   struct ckpt_tensor_meta     LoadPlan     struct ckpt_load_plan
 *	BytesStorageMetadata    a meta_entry without   WriteResult  struct ckpt_write_result
 *	Metadata, StorageMeta   struct ckpt_metadata, ...   _StorageInfo struct ckpt_storage_info
 *
 * Names are bytes with a length: they may hold anything. Numbers are elements, not bytes, where
 * nothing else is said. Pointers are borrowed from whoever made the value (planner.h says how long
 * that lasts); nothing here is freed piece by piece.
 *
 * Threads: plain values.
 */
#ifndef SAVE_METADATA_H
#define SAVE_METADATA_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct ckpt_err;

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

bool meta_index_equal(const struct ckpt_meta_index *a, const struct ckpt_meta_index *b);
uint64_t meta_index_hash(const struct ckpt_meta_index *x);

struct ckpt_chunk_meta {
	const uint64_t *off, *len; /* as many numbers as the tensor has dimensions */
};

enum ckpt_memory_format { CKPT_MEMORY_CONTIGUOUS, CKPT_MEMORY_CHANNELS_LAST, CKPT_MEMORY_PRESERVE };

struct ckpt_tensor_props {     /* the layout is always torch.strided */
	uint8_t dtype;	       /* enum ckpt_dtype */
	uint8_t memory_format; /* enum ckpt_memory_format */
	bool requires_grad, pin_memory;
};

bool tensor_props_equal(const struct ckpt_tensor_props *a, const struct ckpt_tensor_props *b);

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

/* Where an entry was in the nested state dict: the keys and list positions that lead to it. */
struct ckpt_path_step {
	const char *key; /* NULL: a position in a list */
	uint32_t key_len;
	uint64_t position;
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

/* Same items, hints included, and same paths, each in the same order? */
bool save_plan_equal(const struct ckpt_save_plan *a, const struct ckpt_save_plan *b);
/* A copy that borrows nothing: names, numbers and paths are in the arena. */
int save_plan_copy(const struct ckpt_save_plan *p, struct arena *a, struct ckpt_save_plan *ret,
		   struct ckpt_err *e);

/*
 * Bytes that a tensor takes: the whole tensor of a write item (the weight that torch and Megatron
 * balance with), or its chunk. Fails where that is beyond 63 bits.
 */
int write_item_tensor_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);
int write_item_chunk_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e);

#endif

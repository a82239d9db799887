/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata - what checkpoint systems say about a checkpoint, and the plans that lead there, as
 * plain values. The names are those of torch.distributed.checkpoint, in this program's spelling;
 * HyperParallel and Megatron have the same classes.
 *
 *	MetadataIndex           struct meta_index      WriteItem    struct write_item
 *	ChunkStorageMetadata    struct chunk_meta      ReadItem     struct read_item
 *	TensorProperties        struct tensor_props    SavePlan     struct save_plan
 *	TensorStorageMetadata   struct tensor_meta     LoadPlan     struct load_plan
 *	BytesStorageMetadata    a meta_entry without   WriteResult  struct write_result
 *	Metadata, StorageMeta   struct metadata, ...   _StorageInfo struct storage_info
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
struct err;

#define META_NO_HINT (-1)

/*
 * Which chunk of which entry. Equality and hash are over fqn and offset; the hint says where in a
 * list of chunks to look first and is no part of it.
 */
struct meta_index {
	const char *fqn;
	const uint64_t *offset; /* n_dims numbers */
	uint32_t fqn_len;
	int32_t hint;	 /* position in the tensor's list of chunks, or META_NO_HINT */
	uint8_t n_dims;	 /* 0 too for a tensor that is one element */
	bool has_offset; /* false: the entry as a whole, which is bytes */
};

bool meta_index_equal(const struct meta_index *a, const struct meta_index *b);
uint64_t meta_index_hash(const struct meta_index *x);

struct chunk_meta {
	const uint64_t *off, *len; /* as many numbers as the tensor has dimensions */
};

enum memory_format { MEMORY_CONTIGUOUS, MEMORY_CHANNELS_LAST, MEMORY_PRESERVE };

struct tensor_props {	       /* the layout is always torch.strided */
	uint8_t dtype;	       /* enum dtype */
	uint8_t memory_format; /* enum memory_format */
	bool requires_grad, pin_memory;
};

bool tensor_props_equal(const struct tensor_props *a, const struct tensor_props *b);

/* ---- what is stored ---- */

struct tensor_meta {
	struct tensor_props props;
	uint8_t n_dims;
	const uint64_t *size; /* the whole tensor's shape */
	const struct chunk_meta *chunks;
	size_t n_chunks;
};

struct meta_entry {
	const char *fqn;
	uint32_t fqn_len;
	bool is_tensor;		   /* false: bytes, about which no more is said */
	struct tensor_meta tensor; /* if it is one */
};

/* Where an entry was in the nested state dict: the keys and list positions that lead to it. */
struct path_step {
	const char *key; /* NULL: a position in a list */
	uint32_t key_len;
	uint64_t position;
};

struct fqn_path {
	const char *fqn;
	const struct path_step *steps;
	uint32_t fqn_len, n_steps;
};

struct storage_info {
	const char *path;	 /* relative to the checkpoint */
	uint64_t offset, length; /* bytes of that file */
	const char *tensor_key;	 /* the name inside a container that has names, or NULL */
	uint32_t tensor_key_len;
	const char *transform; /* what has been done to the bytes, "stream.zstd/1"; NULL: nothing */
};

struct write_result {
	struct meta_index index;
	struct storage_info info;
};

struct storage_meta {
	const char *checkpoint_id, *save_id; /* NULL: not said */
};

struct metadata {
	struct meta_entry *entries; /* no two of one name */
	size_t n_entries;
	const struct fqn_path *paths; /* planner_data */
	size_t n_paths;
	const struct write_result *stored; /* storage_data */
	size_t n_stored;
	struct storage_meta storage;
	const char *version; /* NULL: not said */
};

/* ---- plans ---- */

enum write_type { WRITE_BYTE_IO, WRITE_TENSOR, WRITE_SHARD };

struct write_item {
	struct meta_index index;
	struct chunk_meta chunk; /* index.n_dims dimensions; tensors only, as what follows */
	const uint64_t *size;	 /* the whole tensor's shape */
	struct tensor_props props;
	uint8_t type; /* enum write_type */
};

struct save_plan {
	const struct write_item *items;
	size_t n_items;
	const struct fqn_path *paths; /* planner_data */
	size_t n_paths;
	const void
		*storage; /* storage_data: what the storage writer of the coordinator has to say */
	size_t storage_len; /* to that of the plan's rank; bytes, after the global plan alone */
	bool unchanged; /* empty because it equals the one before, which the other side has kept */
};

enum read_type { READ_BYTE_IO, READ_TENSOR };

/* Copy a box: `len` elements from storage_off in the stored chunk to dest_off in the local one. */
struct read_item {
	struct meta_index dest, storage;
	const uint64_t *dest_off, *storage_off, *len;
	uint8_t type;	/* enum read_type */
	uint8_t n_dims; /* of the three; 1 for bytes, where all are {0} */
};

struct load_plan {
	const struct read_item *items;
	size_t n_items;
};

/* Same items, hints included, and same paths, each in the same order? */
bool save_plan_equal(const struct save_plan *a, const struct save_plan *b);
/* A copy that borrows nothing: names, numbers and paths are in the arena. */
int save_plan_copy(const struct save_plan *p, struct arena *a, struct save_plan *ret,
		   struct err *e);

/*
 * Bytes that a tensor takes: the whole tensor of a write item (the weight that torch and Megatron
 * balance with), or its chunk. Fails where that is beyond 63 bits.
 */
int write_item_tensor_bytes(const struct write_item *w, uint64_t *ret, struct err *e);
int write_item_chunk_bytes(const struct write_item *w, uint64_t *ret, struct err *e);

#endif

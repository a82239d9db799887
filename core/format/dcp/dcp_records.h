/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_records - what a DCP metadata pickle says, kept small; HyperParallel's is of the same kind.
 *
 * The pickle lists chunks per tensor and storage entries per (FQN, offset), far apart and in any
 * order. Both are kept as runs of varints, about 20 bytes a chunk, until dcp_join brings them
 * together. Private to core/format.
 *
 * Threads: one at a time.
 */
#ifndef DCP_DCP_RECORDS_H
#define DCP_DCP_RECORDS_H

#include "parse/pickle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct place;
struct scan_opts;

#define DCP_NO_TENSOR UINT32_MAX
#define DCP_NO_LENGTH UINT64_MAX
/* In path_at: what takes no place. */
#define DCP_PATH_UNKNOWN 0
#define DCP_PATH_FLAT	 SIZE_MAX

enum dcp_dialect { DCP_TORCH, DCP_HYPERPARALLEL };

/* One entry of state_dict_metadata. */
struct dcp_entry {
	uint64_t at;	 /* in chunks.data: shape, then per chunk offsets and sizes */
	uint32_t fqn;	 /* string id */
	uint32_t rank;	 /* of the metadata file; 0 when there is just one */
	uint32_t next;	 /* entry of the same FQN in another file, or DCP_NO_TENSOR */
	uint32_t count;	 /* chunks */
	size_t path_at;	 /* DCP_PATH_..., or 1 + where its path is in paths.data */
	size_t shape_at; /* in shapes.data: dimensions and shape before flattening, or 0 */
	uint8_t dtype;	 /* enum ckpt_dtype; CKPT_DTYPE_NONE for a bytes item */
	uint8_t n_dims;
};

struct byte_store {
	uint8_t *data;
	size_t len, cap;
};

struct dcp_records {
	enum dcp_dialect dialect; /* DCP_TORCH, unless set before anything is read */
	struct pk_strings *strings;
	struct dcp_entry *entries;
	uint32_t n_entries;
	size_t cap_entries;
	struct byte_store chunks;
	/*
	 * Per storage entry: fqn, rank, file (string id), encoding, offset, length, dimensions + 1
	 * (0 for a bytes item), offsets.
	 *
	 * As HyperParallel's is read: the container's key (string id) in place of the encoding,
	 * and DCP_NO_LENGTH where its length is -1, "look inside". Before dcp_join that is replaced
	 * by what was found in there, and `sized` set: offsets are followed by the item's dtype and
	 * sizes, or by CKPT_DTYPE_NONE where its file is not there.
	 */
	struct byte_store storage;
	bool sized;
	uint64_t n_storage;
	struct byte_store planned; /* fqn, path: planner_data of the file at hand, in its order */
	struct byte_store paths;   /* of all files, each once if they agree */
	struct byte_store shapes;  /* fqn, dimensions, shape: mcore_data of all files */
	uint32_t *by_fqn; /* first entry of a string id, or DCP_NO_TENSOR; see dcp_records_entry */
	uint32_t cap_by_fqn;
};

/* Step over n varints. */
static inline void skip_varints(const uint8_t **p, size_t n)
{
	while (n--) {
		while (**p & 0x80)
			++*p;
		++*p;
	}
}

/* Room for n more bytes, or NULL with *e set. */
uint8_t *byte_store_room(struct byte_store *s, size_t n, struct ckpt_err *e);

int dcp_records_init(struct dcp_records *r, struct ckpt_err *e);
void dcp_records_release(struct dcp_records *r);
/* First entry of an FQN, or DCP_NO_TENSOR. */
uint32_t dcp_records_entry(const struct dcp_records *r, uint32_t fqn);

/* ---- planner_data, in dcp_paths.c ---- */

/* A pair of the file at hand, whatever it is. */
int dcp_paths_add(struct dcp_records *r, const struct pk_value *key, const struct pk_value *value,
		  struct ckpt_err *e);
/* The file, of `rank`, has been read; its entries are those from `first`. */
int dcp_paths_apply(struct dcp_records *r, uint32_t rank, uint32_t first, struct ckpt_err *e);
/* They are those of a flat state dict. */
void dcp_paths_flat(struct dcp_records *r, uint32_t first);
/* Of an entry, as catalog_path.h has it. */
const uint8_t *dcp_entry_path(const struct dcp_records *r, const struct dcp_entry *entry);

/* ---- all of it ---- */

/* Read one metadata pickle into *r. */
int dcp_read_metadata(struct dcp_records *r, uint32_t rank, const struct pickle_input *in,
		      struct catalog_writer *w, struct ckpt_err *e);
struct dcp_join_opts {
	bool many; /* there is one metadata file per rank */
	/* The first dir_len bytes go in front of the names of data files: "weights/", or nothing. */
	const char *dir;
	size_t dir_len;
	/* 1 if two items of objects hold the same. NULL: never asked, ranks' objects stay apart. */
	int (*same_object)(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
			   uint64_t length, struct ckpt_err *e);
	void *arg;
};
/* Report all of it to the catalog. */
int dcp_join(struct dcp_records *r, const struct dcp_join_opts *o, struct catalog_writer *w,
	     struct ckpt_err *e);

/* All of it: n metadata files, n > 0, of one directory, which is where their data files are. */
int dcp_scan(struct place *place, char *const *names, size_t n, const struct scan_opts *opts,
	     struct catalog_writer *w, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_records - the contents of a DCP metadata pickle in compact form; HyperParallel's is alike.
 *
 * The pickle lists chunks per tensor and storage entries per (FQN, offset), far apart and in any
 * order. Both are kept as runs of varints, about 20 bytes a chunk, until dcp_join brings them
 * together. Private to core/format.
 *
 * Threads: one at a time.
 */
#ifndef DCP_DCP_RECORDS_H
#define DCP_DCP_RECORDS_H

#include "format/format.h"
#include "parse/pickle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct chunk_loc;
struct ckpt_err;
struct digest;
struct place;
struct scan_opts;
struct source;
struct tensor_chunks;
struct torchsave;
struct torchsave_wrapped;

#define DCP_NO_TENSOR UINT32_MAX
#define DCP_NO_LENGTH UINT64_MAX
/* In path_at: values that are not positions. */
#define DCP_PATH_UNKNOWN 0
#define DCP_PATH_FLAT	 SIZE_MAX

enum dcp_dialect { DCP_TORCH, DCP_HYPERPARALLEL };

/* One entry of state_dict_metadata. */
struct dcp_entry {
	uint64_t at;	 /* in chunks.data: shape, then per chunk offsets and sizes */
	uint32_t fqn;	 /* string id */
	uint32_t rank;	 /* of the metadata file; 0 if there is only one */
	uint32_t next;	 /* entry of the same FQN in another file, or DCP_NO_TENSOR */
	uint32_t count;	 /* chunks */
	size_t path_at;	 /* DCP_PATH_..., or 1 + position of its path in paths.data */
	size_t shape_at; /* in shapes.data: dimensions and shape before flattening, or 0 */
	uint8_t dtype;	 /* enum ckpt_dtype; CKPT_DTYPE_NONE for a bytes item */
	uint8_t n_dims;
};

struct byte_store {
	uint8_t *data;
	size_t len, cap;
};

struct dcp_records {
	enum dcp_dialect dialect; /* DCP_TORCH, unless set before reading */
	struct pk_strings *strings;
	struct dcp_entry *entries;
	uint32_t n_entries;
	size_t cap_entries;
	struct byte_store chunks;
	uint32_t n_chunks;
	/*
	 * Per storage entry: fqn, rank, file (string id), encoding, offset, length, dimensions + 1
	 * (0 for a bytes item), offsets.
	 *
	 * While HyperParallel's is read: the container's key (string id) instead of the encoding,
	 * and DCP_NO_LENGTH if the length is -1, "look inside". Before dcp_join these are replaced
	 * by what the container holds, and `sized` is set: offsets are followed by the item's dtype
	 * and sizes, or by CKPT_DTYPE_NONE if its file is missing.
	 */
	struct byte_store storage;
	bool sized;
	uint64_t n_storage;
	struct byte_store planned; /* fqn, path: planner_data of the current file, in its order */
	struct byte_store paths;   /* of all files, stored once if they agree */
	struct byte_store shapes;  /* fqn, dimensions, shape: mcore_data of all files */
	bool ancient;	  /* it was torch 1.12's metadata, which is why reading it failed */
	uint32_t *by_fqn; /* first entry of a string id, or DCP_NO_TENSOR; see dcp_records_entry */
	uint32_t cap_by_fqn;
};

/* Skips n varints. */
static inline void skip_varints(const uint8_t **p, size_t n)
{
	while (n--) {
		while (**p & 0x80)
			++*p;
		++*p;
	}
}

/*
 * Limits, because a pickle may refer to one value any number of times in two bytes: of a store, of
 * all chunks, and of the numbers in the boxes of one tensor. Real metadata has a million chunks, in
 * 40 MB.
 */
#define DCP_MAX_STORE	((size_t)512 << 20)
#define DCP_MAX_CHUNKS	((uint32_t)16 << 20)
#define DCP_MAX_NUMBERS ((size_t)64 << 20)

/* Makes room for n more bytes, or returns NULL with *e set: ENOMEM, EFBIG. */
uint8_t *byte_store_room(struct byte_store *s, size_t n, struct ckpt_err *e);

int dcp_records_init(struct dcp_records *r, struct ckpt_err *e);
void dcp_records_release(struct dcp_records *r);
/* First entry of an FQN, or DCP_NO_TENSOR. */
uint32_t dcp_records_entry(const struct dcp_records *r, uint32_t fqn);

/* ---- planner_data, in dcp_paths.c ---- */

/* Adds any pair of the current file's planner_data. */
int dcp_paths_add(struct dcp_records *r, const struct pk_value *key, const struct pk_value *value,
		  struct ckpt_err *e);
/* Call after reading the file of `rank`; its entries start at `first`. */
int dcp_paths_apply(struct dcp_records *r, uint32_t rank, uint32_t first, struct ckpt_err *e);
/* The entries from `first` are those of a flat state dict. */
void dcp_paths_flat(struct dcp_records *r, uint32_t first);
/* The path of an entry, encoded as in catalog_path.h. */
const uint8_t *dcp_entry_path(const struct dcp_records *r, const struct dcp_entry *entry);

/* ---- all of it ---- */

/* Reads one metadata pickle into *r. */
int dcp_read_metadata(struct dcp_records *r, uint32_t rank, const struct pickle_input *in,
		      struct catalog_writer *w, struct ckpt_err *e);
struct dcp_metafile {
	const char *name;
	uint32_t rank; /* whose it is */
};
/* Reads them all. */
int dcp_read_metafiles(struct dcp_records *r, struct place *place, const struct dcp_metafile *v,
		       size_t n, const struct scan_opts *opts, struct catalog_writer *w,
		       struct ckpt_err *e);
/* A tensor in one item, whose archive may have more than elements. */
struct dcp_inside {
	const char *fqn;
	size_t fqn_len;
	const uint8_t *fqn_path;     /* see catalog_path.h */
	const char *path;	     /* of the data file */
	const struct chunk_loc *loc; /* of the item */
};
/* The same for a tensor in several items. */
typedef int dcp_inside_fn(void *arg, const struct dcp_inside *q, struct ckpt_err *e);
struct dcp_cut {
	const struct dcp_records *r;
	const struct tensor_chunks *t;
	/* Calls `each` for the item of chunk k, if there is one. */
	int (*at)(const struct dcp_cut *of, uint32_t k, dcp_inside_fn *each, void *arg,
		  struct ckpt_err *e);
	void *join;
};
struct dcp_join_opts {
	bool many; /* there is one metadata file per rank */
	/* The first dir_len bytes are prefixed to the names of data files: "weights/", or
	 * nothing. */
	const char *dir;
	size_t dir_len;
	/* 1 if two object items are equal. NULL: they are not compared, so the ranks' objects stay
	 * apart. */
	int (*same_object)(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
			   uint64_t length, struct ckpt_err *e);
	/* Hashes into *ret the ends of the tensor in the item, or of the stored item if it is
	 * compressed. *ret remains as it was if the item is missing, damaged or strided. NULL:
	 * tensors that several ranks have are not compared. */
	int (*sample)(void *arg, const struct dcp_inside *q, struct digest *ret,
		      struct ckpt_err *e);
	/* Called for each quantised tensor; may be NULL. */
	int (*quantised)(void *arg, const struct dcp_records *r, const struct dcp_inside *q,
			 struct ckpt_err *e);
	/* Called for each tensor whose item does not have the size of its elements; 1 if it is made
	 * of others, which have been reported instead. NULL if quantised is. */
	int (*wrapped)(void *arg, const struct dcp_records *r, const struct dcp_inside *q,
		       struct ckpt_err *e);
	/* The same for one in several items; see dcp_report_cut. */
	int (*cut)(void *arg, const struct dcp_cut *of, char not_shown[static FORMAT_NOTE],
		   struct ckpt_err *e);
	void *arg;
};
/* The budget for opening items while the index is made. */
struct dcp_looks {
	struct place *place;
	uint64_t left; /* bytes: at first DCP_LOOKS_FIRST + DCP_LOOKS_EACH for each storage entry */
};
#define DCP_LOOKS_FIRST ((uint64_t)64 << 20)
#define DCP_LOOKS_EACH	4096
/* Reports its scale and zero point, if they can be found. */
int dcp_report_quantiser(struct dcp_looks *l, const struct dcp_records *r,
			 const struct dcp_inside *q, struct catalog_writer *w, struct ckpt_err *e);
/* Opens the item and returns what `look` does. 0 if it is damaged or missing, which reading it
 * reports, or if nothing is left; an error if the disk fails, or without memory or descriptors. */
typedef int dcp_look_fn(void *arg, const struct dcp_inside *q, struct torchsave *t,
			struct source *file, struct ckpt_err *e);
int dcp_look_inside(struct dcp_looks *l, const struct dcp_inside *q, dcp_look_fn *look, void *arg,
		    struct catalog_writer *w, struct ckpt_err *e);
/* How a wrapper in that item is reported. */
struct torchsave_wrapped dcp_wrapped(const struct dcp_records *r, const struct dcp_inside *q);
/* Reports what a wrapper is made of; 1 if it did. */
int dcp_report_wrapped(struct dcp_looks *l, const struct dcp_records *r, const struct dcp_inside *q,
		       struct catalog_writer *w, struct ckpt_err *e);
/* Puts together what the items of a tensor that is cut are made of, and reports it; 1 if it did. If
 * they are made of others and that is not possible, the tensor is not shown, and a note says so. */
int dcp_report_cut(struct dcp_looks *l, const struct dcp_cut *of,
		   char not_shown[static FORMAT_NOTE], struct catalog_writer *w,
		   struct ckpt_err *e);
/* See dcp_join_opts.sample. */
int dcp_sample(struct dcp_looks *l, const struct dcp_inside *q, struct catalog_writer *w,
	       struct digest *ret, struct ckpt_err *e);
/* Reports everything to the catalog. */
int dcp_join(struct dcp_records *r, const struct dcp_join_opts *o, struct catalog_writer *w,
	     struct ckpt_err *e);

/* Reports torch 1.12's to the catalog; the first dir_len bytes of `name` are the directory. */
int dcp_scan_ancient(struct place *place, const char *name, size_t dir_len,
		     const struct scan_opts *opts, struct catalog_writer *w, struct ckpt_err *e);
/* All of the above, for n > 0 metadata files of one directory, which also has their data files. */
int dcp_scan(struct place *place, char *const *names, size_t n, const struct scan_opts *opts,
	     struct catalog_writer *w, struct ckpt_err *e);

#endif

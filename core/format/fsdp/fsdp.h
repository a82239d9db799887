/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsdp - shared by the files that read per-rank FSDP checkpoints. Private to core/format/fsdp.
 *
 * Each rank has saved its own state dict, with the part of every tensor that it holds. The pickle
 * tells where that part belongs: DTensors have a mesh of ranks and placements on it, FSDP1's
 * ShardedTensors have offsets. So a rank's part becomes one chunk, or a few, in its file.
 *
 * Threads: one at a time.
 */
#ifndef FSDP_FSDP_H
#define FSDP_FSDP_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/format.h"
#include "format/raw_chunks.h"
#include "format/torch/torch_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files (fsdp_files.c) ---- */

/* in the order in which they are read */
enum fsdp_kind { FSDP_MODEL, FSDP_OPTIM, FSDP_EXTRA, FSDP_OTHER };

struct fsdp_file {
	const char *path, *base; /* borrowed; base: without directories */
	enum fsdp_kind kind;
	uint32_t world; /* number of ranks; 0: the name does not tell */
	uint32_t rank;
	size_t stem; /* if the name does not tell: length of the checkpoint's own name */
};

enum fsdp_kind fsdp_file_parse(const char *path, struct fsdp_file *ret);
int fsdp_probe(struct place *place, struct name_list *files, struct ckpt_err *e);

/* ---- parts (fsdp_part.c) ---- */

#define FSDP_MAX_AXES 8

struct fsdp_run {
	uint64_t off, len; /* indices along a dimension */
};

/* A part: for each dimension, the runs of indices that the local tensor holds, concatenated. */
struct fsdp_part {
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	const struct pk_value *local; /* its tensor, or NULL */
	struct fsdp_run *runs[CKPT_MAX_DIMS];
	size_t n_runs[CKPT_MAX_DIMS];
	bool copy;	  /* another rank has it too */
	char layout[160]; /* text that must be the same in all ranks' files */
};
enum fsdp_what { FSDP_PLAIN, FSDP_DTENSOR, FSDP_SHARDED };

/* The kind of tensor. */
enum fsdp_what fsdp_what(const struct pk_value *v);
/* The tensor that the rank itself holds, the first one if there are several; NULL: none. */
const struct pk_value *fsdp_local(const struct pk_value *v);
/*
 * The parts of a DTensor or ShardedTensor that the rank holds: `add` is called for each.
 * ERR_UNSUPPORTED: the tensor cannot be shown.
 */
struct fsdp_reader {
	struct torch_file *file;
	struct arena *arena; /* for one file; released after it */
	uint32_t rank, world;
	const struct pk_node *mesh; /* the mesh that was read last */
	uint64_t sizes[FSDP_MAX_AXES], coords[FSDP_MAX_AXES];
	size_t n_axes;
	bool outside; /* the rank is not in the mesh */
	int (*add)(void *arg, const struct fsdp_part *part, struct ckpt_err *e);
	void *arg;
};
int fsdp_read_parts(struct fsdp_reader *r, const struct pk_value *v, struct ckpt_err *e);

/* ---- tensors ---- */

struct fsdp_copy {		       /* a tensor that is not sharded, in one rank's file */
	const struct torch_view *view; /* without .at; that of the first copy, if it is the same */
	uint64_t at;
	struct digest sample; /* of its first and last bytes, if sampled */
	uint32_t rank, file;
	bool sampled;
	bool flat; /* a piece of a parameter that FSDP1 has flattened */
};

struct fsdp_tensor {
	const struct pk_str *fqn;
	const uint8_t *path;
	enum fsdp_kind kind;
	enum fsdp_what what;
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	const char *layout; /* for a DTensor */
	const char *fault;  /* why it cannot be shown, or NULL */
	uint32_t rank;	    /* the first rank that has it */
	uint64_t last;	    /* 1 + the number of the last file that has it */
	struct raw_chunks chunks;
	struct fsdp_copy *copies;
	size_t n_copies, cap_copies;
};

#define FSDP_MAX_NAMES ((size_t)1 << 30) /* bytes */
enum { FSDP_MAX_DEPTH = 32, FSDP_MAX_FQN = 1 << 16 };

struct fsdp {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	struct fsdp_file *files; /* sorted by kind, rank */
	size_t n_files, n_read;
	uint32_t world;

	struct arena arena;
	struct pk_strings *names;
	uint32_t *by_name; /* 1 + number of the tensor, by the id of its FQN */
	size_t cap_by_name;
	struct fsdp_tensor *tensors;
	size_t n_tensors, cap_tensors;
	uint64_t n_chunks, samples;
	bool sharded, flat; /* the model has ShardedTensors; it has flat parameters */
	/* Parameters, in the order of rank 0's state dict. */
	const struct pk_str **params;
	size_t n_params, cap_params;
	size_t n_optim_params; /* number in the single group of rank 0's optimizer file */
	bool one_group, numbers_known;
	char not_shown[FORMAT_NOTE], missing[FORMAT_NOTE];
};

#define fsdp_note(d, ...) format_note((d)->not_shown, __VA_ARGS__)
/* Adds one file's tensors to d; other values go to the catalog (fsdp_read.c). */
int fsdp_read(struct fsdp *d, const struct fsdp_file *f, struct ckpt_err *e);
/* Writes all tensors to the catalog (fsdp_report.c). */
int fsdp_report(struct fsdp *d, struct ckpt_err *e);

#endif

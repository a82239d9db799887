/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed - what the files that read DeepSpeed's checkpoints share: the files of one, and the
 * tensors that were found in them. Private to core/format/deepspeed.
 *
 * A tensor that training shards is in no file as such. Each data-parallel rank's file has flat
 * tensors ("columns": the fp32 masters, a moment), and lists of names and shapes say which elements of
 * them are whose. So a tensor here is a name, a shape and where its elements are in a column;
 * deepspeed_report makes chunks of that, and no element is read or copied.
 *
 * Threads: one at a time.
 */
#ifndef DEEPSPEED_DEEPSPEED_H
#define DEEPSPEED_DEEPSPEED_H

#include "base/arena.h"
#include "base/err.h"
#include "format/format.h"
#include "format/torch/torch_file.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files (deepspeed_files.c) ---- */

/* In the order in which they are read. */
enum ds_kind {
	DS_MODEL,     /* [zero_pp_rank_D_]mp_rank_MM_model_states.pt */
	DS_LAYER,     /* layer_LL[-model_TT]-model_states.pt: of a pipeline */
	DS_EXPERT,    /* layer_L_expert_E_mp_rank_MM_model_states.pt */
	DS_OPTIM,     /* [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt */
	DS_EXPP,      /* expp_rank_E_mp_rank_MM_optim_states.pt */
	DS_UNIVERSAL, /* zero/FQN/KEY.pt */
	DS_LATEST,
	DS_NONE,
};

struct ds_file {
	const char *path; /* in the checkpoint; borrowed */
	const char *base; /* without directories */
	enum ds_kind kind;
	uint32_t mp;   /* MM, or TT of a layer */
	uint32_t rank; /* D or E */
	uint32_t layer;
	bool sharded; /* of model states: one for each D, as ZeRO 3 writes them */
	enum { DS_PLAIN, DS_BF16, DS_FP16 } prefix; /* of optimizer states */
	const char *fqn;			    /* universal: fqn_len bytes of the path */
	size_t fqn_len;
	bool done; /* the catalog knows it */
};

/* DS_NONE: it is not a file of a checkpoint. ret->path is what was given. */
enum ds_kind ds_file_parse(const char *path, struct ds_file *ret);
/* As format's, of a directory. */
int ds_probe(struct place *place, struct name_list *files, struct ckpt_err *e);

/* ---- tensors ---- */

#define DS_MAX_NAMES ((size_t)1 << 30) /* bytes of all names */

/* Elements that follow each other in a file. */
struct ds_piece {
	uint64_t offset; /* bytes */
	uint64_t numel;
	uint32_t file; /* the catalog's number */
	bool swap, neg, conj;
};

/* A flat tensor in pieces, one for each rank. */
struct ds_column {
	const struct pk_str *key; /* NULL: weights */
	enum ckpt_dtype dtype;
	/* ZeRO 3: every parameter is in n equal parts, and begins at the same element of all pieces.
	 * Else a parameter is a range of all pieces put together: */
	bool by_parameter;
	uint32_t n;
	const struct ds_piece *piece;
	const uint64_t *start; /* where piece i begins in the whole, and where piece n would */
};

struct ds_tensor {
	const struct pk_str *name, *key; /* key NULL: weights */
	const uint64_t *shape;
	const uint64_t *stride; /* of one piece that is not contiguous, elements; else NULL */
	const struct ds_column *column; /* or NULL: */
	struct ds_piece piece;		/* all of it */
	uint64_t at, numel;		/* first element in the column; of this tensor */
	const char *text;		/* no tensor: an object, as JSON */
	enum ckpt_dtype dtype;
	uint32_t stage, t; /* which pipeline stage's, and which tensor-parallel rank's it is */
	uint8_t n_dims;
};
#define DS_WHOLE UINT32_MAX /* t of one that is no slice */

/* What is known of a name. */
struct ds_mark {
	const uint64_t *shape; /* of a parameter */
	uint32_t stage;
	uint8_t n_dims;
	bool is_param, is_buffer;
};

/* Another name of a parameter. */
struct ds_alias {
	const struct pk_str *name, *of;
};

struct ds_join;

struct ds {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	const struct name_list *list;
	struct ds_file *files; /* by kind, mp, layer, rank */
	size_t n_files, n_read;

	struct arena arena;
	struct pk_strings *names;
	struct ds_mark *marks; /* by a name's id */
	size_t cap_marks;

	uint32_t tp, pp; /* tensor-parallel ranks; pipeline stages */
	bool pipeline;
	bool universal;
	struct ds_join *join; /* how slices make up tensors; NULL: nothing says so */

	struct ds_tensor *tensors;
	struct ds_alias *aliases;
	size_t n_tensors, cap_tensors, n_aliases, cap_aliases;
	char not_shown[400]; /* what is not, and why: a sentence; or empty */
};

/* Note what is not shown, the first time; 0, so that "return ds_refuse(...)" goes on without it. */
int ds_refuse(struct ds *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const struct pk_str *ds_name(struct ds *d, const char *s, size_t len, struct ckpt_err *e);
struct ds_mark *ds_mark(struct ds *d, const struct pk_str *name, struct ckpt_err *e);
/* NULL: there is none. */
const struct ds_mark *ds_mark_of(const struct ds *d, const struct pk_str *name);
int ds_add(struct ds *d, const struct ds_tensor *t, struct ckpt_err *e);
int ds_add_alias(struct ds *d, const struct pk_str *name, const struct pk_str *of,
		 struct ckpt_err *e);
/* Number of elements; fails when that is beyond 2^62. */
int ds_numel(const uint64_t *shape, size_t n, uint64_t *ret, struct ckpt_err *e);

/* ---- one file (deepspeed_file.c) ---- */

struct ds_open {
	struct ds_file *f;
	struct torch_file file;
};

/* Open one, and tell the catalog. Close it also when this fails. */
int ds_open(struct ds *d, struct ds_file *f, struct ds_open *o, struct ckpt_err *e);
/* Fails when it changed meanwhile. */
int ds_close(struct ds *d, struct ds_open *o, int rc, struct ckpt_err *e);

/* A tensor of this file, as one piece: dtype, shape, piece and stride. */
int ds_tensor_of(struct ds *d, struct ds_open *o, const struct pk_value *v, struct ds_tensor *ret,
		 struct ckpt_err *e);
/* The same of a flat one. */
int ds_flat_of(struct ds *d, struct ds_open *o, const struct pk_value *v, const char *what,
	       struct ds_piece *ret, enum ckpt_dtype *ret_dtype, struct ckpt_err *e);
/* A dict's tensors as weights; what else is in it goes to the catalog. */
struct ds_weights {
	const struct pk_value *dict;
	const char *prefix; /* before each name */
	uint32_t stage, t;
	bool buffers_only;
};
int ds_read_weights(struct ds *d, struct ds_open *o, const struct ds_weights *x,
		    struct ckpt_err *e);

/* ---- reading (deepspeed_states.c, deepspeed_universal.c) ---- */

/* Model and optimizer states of model-parallel rank mp. */
int ds_read_rank(struct ds *d, uint32_t mp, struct ckpt_err *e);
int ds_read_universal(struct ds *d, struct ckpt_err *e);
/* Layer files of a pipeline, once all ranks have been read. */
int ds_read_layers(struct ds *d, struct ckpt_err *e);

/* The files of a kind that are a model-parallel rank's; all of the kind: UINT32_MAX. */
struct ds_file *ds_files_of(const struct ds *d, enum ds_kind kind, uint32_t mp, size_t *ret_n);

/* ---- joining (deepspeed_join.c) ---- */

/* universal_checkpoint_info, into d->join. */
int ds_join_read(struct ds *d, const struct pk_value *info, struct ckpt_err *e);
void ds_join_free(struct ds_join *j); /* NULL is fine */

/* Indexes [from, from + len) of a slice are [to, to + len) of the tensor. */
struct ds_segment {
	uint64_t from, len, to;
};
struct ds_joined {
	uint64_t shape[CKPT_MAX_DIMS];
	size_t dim;
	uint32_t n_slices; /* that are used: 1 where they are all the same */
	size_t per_slice;  /* segments of each slice */
	struct ds_segment *segments;
};
/* How these slices, n of them, make up their tensor: 1, or 0 when that is not known. */
int ds_join_find(struct ds *d, const struct ds_tensor *const *slices, uint32_t n,
		 struct ds_joined *ret, struct ckpt_err *e);

/* ---- telling the catalog (deepspeed_report.c) ---- */

int ds_report(struct ds *d, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed - shared by the files that read DeepSpeed's checkpoints: the files of a checkpoint, and
 * the tensors found in them. Private to core/format/deepspeed.
 *
 * A tensor that training shards is in no file as such. Each data-parallel rank's file has flat
 * tensors ("columns": the fp32 masters, a moment), and lists of names and shapes tell which
 * elements belong to which parameter. So a tensor here is a name, a shape and its position in a
 * column; deepspeed_report turns these into chunks, and no element is read or copied.
 *
 * Threads: one at a time.
 */
#ifndef DEEPSPEED_DEEPSPEED_H
#define DEEPSPEED_DEEPSPEED_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/format.h"
#include "format/torch/torch_file.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files (deepspeed_files.c) ---- */

/* In the order in which files are read. */
enum ds_kind {
	DS_MODEL,     /* [zero_pp_rank_D_]mp_rank_MM_model_states.pt */
	DS_LAYER,     /* layer_LL[-model_TT]-model_states.pt: a layer of a pipeline */
	DS_EXPERT,    /* layer_L_expert_E_mp_rank_MM_model_states.pt */
	DS_OPTIM,     /* [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt */
	DS_EXPP,      /* expp_rank_E_mp_rank_MM_optim_states.pt */
	DS_UNIVERSAL, /* zero/FQN/KEY.pt */
	DS_OPTIONS,   /* zero/optimizer_state.pt */
	DS_LATEST,
	DS_NONE,
};

struct ds_file {
	const char *path; /* relative to the checkpoint; borrowed */
	const char *base; /* without directories */
	enum ds_kind kind;
	uint32_t mp;   /* MM, or TT of a layer file */
	uint32_t rank; /* D or E */
	uint32_t layer;
	bool sharded; /* model states: one file for each D, as ZeRO 3 writes them */
	enum { DS_PLAIN, DS_BF16, DS_FP16 } prefix; /* of optimizer states */
	const char *fqn;			    /* universal: fqn_len bytes of the path */
	size_t fqn_len;
	bool done; /* it has been added to the catalog */
};

/* DS_NONE: it is not a file of a checkpoint. ret->path is set to `path`. */
enum ds_kind ds_file_parse(const char *path, struct ds_file *ret);
/* The probe function of the format, for a directory. */
int ds_probe(struct place *place, struct name_list *files, struct ckpt_err *e);

/* ---- tensors ---- */

#define DS_MAX_NAMES ((size_t)1 << 30) /* bytes of all names */

/* Contiguous elements in a file. */
struct ds_piece {
	uint64_t offset; /* bytes */
	uint64_t numel;
	uint32_t file; /* number in the catalog */
	bool swap, neg, conj;
};

/* A flat tensor in pieces, one per rank. */
struct ds_column {
	const struct pk_str *key; /* NULL: weights */
	enum ckpt_dtype dtype;
	/*
	 * ZeRO 3: every parameter is split into n equal parts, which begin at the same element in
	 * all pieces. Otherwise a parameter is a range of the concatenated pieces:
	 */
	bool by_parameter;
	uint32_t n;
	const struct ds_piece *piece;
	const uint64_t *start; /* offset of piece i in the concatenation; start[n] is its end */
};

struct ds_tensor {
	const struct pk_str *name, *key; /* key NULL: weights */
	const uint64_t *shape;
	/* of a single piece that is not contiguous, in elements; else NULL */
	const uint64_t *stride;
	const struct ds_column *column; /* or NULL: */
	struct ds_piece piece;		/* the whole tensor */
	uint64_t at, numel; /* its first element in the column; its number of elements */
	const char *text;   /* not a tensor but an object, as JSON */
	enum ckpt_dtype dtype;
	uint32_t stage, t; /* its pipeline stage and tensor-parallel rank */
	uint8_t n_dims;
};
#define DS_WHOLE UINT32_MAX /* value of t for a tensor that is not a slice */

/* What is known about a name. */
struct ds_mark {
	const uint64_t *shape; /* for a parameter */
	uint32_t stage;
	uint8_t n_dims;
	bool is_param, is_buffer, is_frozen, is_alias;
	bool is_other;	   /* not a tensor; already reported */
	bool is_universal; /* it has a master in a Universal checkpoint, of this shape: */
	uint8_t master_dims;
	const uint64_t *master_shape;
};

/* Another name for a parameter. */
struct ds_alias {
	const struct pk_str *name, *of;
};

/* How often a group was stepped. */
struct ds_step {
	const char *path; /* of the file that says it; NULL: none */
	bool is_option;	  /* it was among the options of the optimizer's groups */
	struct digest is; /* its value */
};

/* A weight of ZeRO 0 that an optimizer has states of: its name is not recorded. */
struct ds_trained {
	const uint64_t *shape;
	uint8_t n_dims;
	uint32_t t;
	struct digest is; /* its values, or those of a state */
};

struct ds_join;

struct ds {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	const struct name_list *list;
	struct ds_file *files; /* sorted by kind, mp, layer, rank */
	size_t n_files, n_read;

	struct arena arena;
	struct pk_strings *names;
	struct ds_mark *marks; /* by the name's id */
	size_t cap_marks;

	const char *first_model; /* the model states file that says how many steps were made */
	int64_t steps;
	struct ds_step *first_steps; /* of each group, as the first optimizer states have it */
	size_t n_first_steps;

	uint32_t tp, pp; /* tensor-parallel ranks; pipeline stages */
	bool pipeline;
	bool universal;
	bool *incomplete;	/* of each stage: the states of one of its slices were left out */
	bool zenflow;		/* matrices of the optimizer states are transposed */
	struct digest of_stage; /* names of the parameters of a stage's first slice */
	uint64_t *experts; /* of each layer of experts of the first stage, as far as it is known */
	size_t n_experts;
	uint64_t experts_each; /* before 0.6.0: of every layer; 0: unknown */
	struct ds_join *join;  /* how slices are joined into tensors; NULL: not recorded */

	struct ds_tensor *tensors;
	struct ds_alias *aliases;
	struct ds_trained *trained; /* in a pipeline */
	size_t n_trained, cap_trained;
	size_t n_tensors, cap_tensors, n_aliases, cap_aliases;
	char not_shown[FORMAT_NOTE]; /* a sentence on what is not shown, and why; or empty */
	char missing[FORMAT_NOTE];   /* one on files that are missing */
};

/*
 * Records what is not shown, the first time; returns 0, so that "return ds_refuse(...)" continues
 * without it.
 */
#define ds_refuse(d, ...) format_note((d)->not_shown, __VA_ARGS__)
/* The same if it is certain that files are missing. */
#define ds_miss(d, ...) format_note((d)->missing, __VA_ARGS__)

const struct pk_str *ds_name(struct ds *d, const char *s, size_t len, struct ckpt_err *e);
struct ds_mark *ds_mark(struct ds *d, const struct pk_str *name, struct ckpt_err *e);
/* NULL: the name is unknown. */
const struct ds_mark *ds_mark_of(const struct ds *d, const struct pk_str *name);
int ds_add(struct ds *d, const struct ds_tensor *t, struct ckpt_err *e);
int ds_add_alias(struct ds *d, const struct pk_str *name, const struct pk_str *of,
		 struct ckpt_err *e);
/* For qsort of pointers: by key (weights first), name, stage, slice; then as they were added. */
int ds_by_name(const void *ap, const void *bp);
/* The number of elements; fails if it exceeds 2^62. */
int ds_numel(const uint64_t *shape, size_t n, uint64_t *ret, struct ckpt_err *e);

/* ---- one file (deepspeed_file.c) ---- */

struct ds_open {
	struct ds_file *f;
	struct torch_file file;
};

/* Opens a file and adds it to the catalog. Call ds_close even if it fails. */
int ds_open(struct ds *d, struct ds_file *f, struct ds_open *o, struct ckpt_err *e);
/* Fails if the file has changed meanwhile. */
int ds_close(struct ds *d, struct ds_open *o, int rc, struct ckpt_err *e);

/* A tensor of this file as one piece: sets dtype, shape, piece and stride. */
int ds_tensor_of(struct ds *d, struct ds_open *o, const struct pk_value *v, struct ds_tensor *ret,
		 struct ckpt_err *e);
/* The same for a flat tensor. */
int ds_flat_of(struct ds *d, struct ds_open *o, const struct pk_value *v, const char *what,
	       struct ds_piece *ret, enum ckpt_dtype *ret_dtype, struct ckpt_err *e);
/* Reports a dict's tensors as weights; its other values go to the catalog. */
struct ds_weights {
	const struct pk_value *dict;
	const char *prefix;  /* prepended to each name */
	const char *without; /* a key that is left out; may be NULL */
	uint32_t stage, t;
	bool placeholders; /* parameters have none of their elements here */
};
int ds_read_weights(struct ds *d, struct ds_open *o, const struct ds_weights *x,
		    struct ckpt_err *e);

/* ---- copies (deepspeed_copies.c) ---- */

/* Some of the bytes of some of a file's tensors. */
struct ds_sample {
	struct digest is;
	uint32_t n, n_varied; /* number of tensors; of those whose bytes say something */
};
/* Adds a tensor. */
int ds_sample(struct ds_open *o, const struct ds_piece *p, enum ckpt_dtype dtype,
	      struct ds_sample *s, struct ckpt_err *e);
/* 1: two of n files have the same sample, and this is no coincidence. */
int ds_find_copy(const struct ds_sample *s, size_t n, size_t ret[2], struct ckpt_err *e);

/* ---- reading (deepspeed_states.h, deepspeed_experts.c, deepspeed_layers.c,
 * deepspeed_universal.c) ---- */

/* Reads the model and optimizer states of model-parallel rank mp. */
int ds_read_rank(struct ds *d, uint32_t mp, struct ckpt_err *e);
int ds_read_experts(struct ds *d, struct ckpt_err *e);
/* Notes which weights an optimizer of ZeRO 0 has states of, on tensor-parallel rank t. */
int ds_read_trained(struct ds *d, struct ds_open *o, const struct pk_value *optimizer, uint32_t t,
		    struct ckpt_err *e);
/* Reads the layer files of a pipeline, after all ranks. */
int ds_read_layers(struct ds *d, struct ckpt_err *e);
int ds_read_universal(struct ds *d, struct ckpt_err *e);

/* The files of a kind that belong to a model-parallel rank; UINT32_MAX: all files of the kind. */
struct ds_file *ds_files_of(const struct ds *d, enum ds_kind kind, uint32_t mp, size_t *ret_n);
/* Fails if two of these files have the same numbers: names may have leading zeros, or leave one
 * out. */
int ds_check_twice(const struct ds_file *f, size_t n, struct ckpt_err *e);

/* ---- joining (deepspeed_rules.c, deepspeed_join.c) ---- */

/* Reads universal_checkpoint_info into d->join. */
int ds_join_read(struct ds *d, struct ds_open *o, const struct pk_value *info, struct ckpt_err *e);
/* Applies it to all tensors, when they are known. */
int ds_join_prepare(struct ds *d, struct ckpt_err *e);
void ds_join_free(struct ds_join *j); /* NULL is fine */

/* Indexes [from, from + len) of a slice are [to, to + len) of the tensor. */
struct ds_segment {
	uint64_t from, len, to;
};
struct ds_joined {
	uint64_t shape[CKPT_MAX_DIMS];
	size_t dim;
	uint32_t n_slices; /* number of slices that are used: 1 if all are equal */
	size_t per_slice;  /* number of segments per slice */
	struct ds_segment *segments;
};
/* How these n slices are joined into their tensor: returns 1, or 0 if that is unknown. */
int ds_join_find(struct ds *d, const struct ds_tensor *const *slices, uint32_t n,
		 struct ds_joined *ret, struct ckpt_err *e);

/* ---- reporting to the catalog (deepspeed_report.c) ---- */

int ds_report(struct ds *d, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_states - model and optimizer states of one model-parallel rank. Private to
 * core/format/deepspeed.
 *
 *	deepspeed_states.c	the model states: the weights themselves, and what is in their files
 *	deepspeed_shapes.c	names and shapes of parameters
 *	deepspeed_ties.c	names that share storage, and so are one parameter
 *	deepspeed_frozen.c	parameters that are in no optimizer states
 *	deepspeed_zero.c	the optimizer states: the pieces of flat tensors in each rank's file
 *	deepspeed_whole.c	whether those of all ranks are there, and of one save
 *	deepspeed_padding.c	the padding in them
 *	deepspeed_pair.c	which elements of these pieces belong to which name
 *
 * param_shapes in the model states has the names and shapes, a dict for each group, in the order of
 * the parameters in the flat tensors. With |s| elements of a parameter and W files,
 *
 *	ZeRO 1, 2, BF16_Optimizer	a group's parameters are concatenated and split into the
 *					pieces single_partition_of_fp32_groups[g] of all ranks
 *	ZeRO 3				each is split into W parts of ceil(|s| / W), part r in
 *					fp32_flat_groups[g] of rank r, after the parts of the
 *					previous parameters
 *
 * The moments are laid out like the masters, followed by padding that may be longer.
 * param_slice_mappings has the same information in another form, and is wrong with
 * round_robin_gradients.
 *
 * Threads: one at a time.
 */
#ifndef DEEPSPEED_STATES_H
#define DEEPSPEED_STATES_H

#include "base/digest.h"
#include "format/deepspeed/deepspeed.h"

enum { DS_MAX_COLUMNS = 16 }; /* per group: there are three or four */

struct ds_param {
	const struct pk_str *name;
	const uint64_t *shape;
	uint64_t numel, pad; /* pad: elements of padding behind it, in the flat tensor */
	uint8_t n_dims;
};

struct ds_group {
	struct ds_param *params;
	size_t n;
};

/* A column while files are read: a piece for each rank that has one. */
struct ds_making {
	const struct pk_str *key;
	enum ckpt_dtype dtype;
	bool mixed; /* its pieces have different dtypes */
	struct ds_piece *piece;
	bool *have;
};

struct ds_flat_group {
	struct ds_making columns[DS_MAX_COLUMNS]; /* the first one holds the masters */
	size_t n;
	struct ds_tensor step;
	struct ds_step stepped; /* its path is NULL: there is no step */
	bool *have_step;	/* of each rank */
	uint64_t *tail;		/* group_paddings of each rank */
	uint32_t n_tails;	/* number of ranks that record it */
};

struct ds_rank {
	struct ds *d;
	uint32_t mp, stage, t;
	bool sharded; /* ZeRO 3's model states */

	struct ds_group *groups;
	size_t n_groups, n_params;
	bool undivided; /* before 0.5.4: one dict for all groups */
	bool has_shapes;
	struct ds_group frozen;
	struct ds_piece *fragments; /* frozen.n rows with a piece for each model states file */
	enum ckpt_dtype *frozen_dtype;
	struct ds_sample *frozen_samples; /* of each model states file */
	struct digest shapes, names;

	uint32_t world; /* number of optimizer states files */
	bool zero3;
	bool has_pads;	  /* paddings behind parameters are recorded */
	uint64_t *counts; /* partition_count of each group */
	struct ds_flat_group *flat;
	size_t n_flat;
	struct ds_sample *masters; /* of each file */
	bool by_data;		   /* use_data_before_expert_parallelism */
};

/* The value of dict[key] unless it is None; dict may be NULL, or no dict. */
const struct pk_value *ds_get(const struct pk_value *dict, const char *key);
/* The value of an integer or an enum. */
bool ds_number(const struct pk_value *v, int64_t *ret);

/* ---- names and shapes (deepspeed_shapes.c) ---- */

/* Reads param_shapes: a list with a dict for each group, a single dict, or None. */
int ds_read_shapes(struct ds_rank *x, struct ds_open *o, const struct pk_value *v,
		   struct ckpt_err *e);
/* Reads one such dict, whose names and shapes are added to the rank's digests. */
int ds_read_group(struct ds_rank *x, struct ds_open *o, const struct pk_value *dict,
		  struct ds_group *ret, struct ckpt_err *e);
/* Marks its names as parameters. */
int ds_mark_group(struct ds_rank *x, const struct ds_group *g, bool frozen, struct ckpt_err *e);
/* Does this file have the same names and shapes as the first? 1: it does not. */
int ds_compare_shapes(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e);

/* ---- ties (deepspeed_ties.c) ---- */

/* Adds as aliases the names of `module` that have a parameter's storage. Call it when the names of
 * parameters and buffers are known. */
int ds_find_ties(struct ds_rank *x, const struct pk_value *module, struct ckpt_err *e);

/* ---- frozen parameters (deepspeed_frozen.c) ---- */

/* From the first of `files` model states files: their names and shapes. */
int ds_read_frozen_names(struct ds_rank *x, struct ds_open *o, size_t files, struct ckpt_err *e);
/* From each file: their elements. */
int ds_read_frozen(struct ds_rank *x, struct ds_open *o, size_t file, size_t files,
		   struct ckpt_err *e);
/* After the last: ZeRO 3's, of which every file has a part. */
int ds_add_frozen(struct ds_rank *x, struct ckpt_err *e);

/* ---- optimizer states (deepspeed_zero.c, deepspeed_whole.c, deepspeed_padding.c,
 * deepspeed_pair.c) ---- */

/* These three are given a rank's n files. 1: they are not whole, or not of one save, which has been
 * recorded. By their names: */
int ds_check_files(struct ds_rank *x, const struct ds_file *f, size_t n);
/* by what the first one says: */
int ds_check_world(struct ds_rank *x, const struct ds_file *f);
/* when all have been read: */
int ds_check_whole(struct ds_rank *x, const struct ds_file *f, struct ckpt_err *e);

/* Reads the paddings in rank r's file. 1: they are inconsistent, which has been recorded. */
int ds_read_paddings(struct ds_rank *x, struct ds_open *o, const struct pk_value *states,
		     uint32_t r, struct ckpt_err *e);
/*
 * The pieces of these ranks hold more than `total` elements: is the rest padding at the end, as far
 * as that is recorded?
 */
bool ds_is_tail(const struct ds_rank *x, const struct ds_flat_group *f, const uint32_t *members,
		uint32_t n, uint64_t total);

/* These two: 1, the files are inconsistent, which has been recorded. */
int ds_read_partitions(struct ds_rank *x, struct ckpt_err *e);
int ds_pair(struct ds_rank *x, struct ckpt_err *e);
/* Reports the optimizer's options: `groups`, which may be NULL, and those beside the states. */
int ds_report_options(struct ds *d, struct ds_open *o, const struct pk_value *states,
		      const struct pk_value *groups, struct ckpt_err *e);

#endif

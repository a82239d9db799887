/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mranks - shared by the files that read Megatron-LM's format `torch`: a file for each
 * model-parallel rank. Private to core/format/megatron_ranks.
 *
 * A rank's file has its slices of the tensors, under the names that they have in that rank: layers
 * and experts are numbered from 0 in each. Nothing in a file says how slices are joined; Megatron's
 * classes do, and mranks_rules.c knows them by the tensors' names.
 *
 * Threads: one at a time.
 */
#ifndef MEGATRON_RANKS_MRANKS_H
#define MEGATRON_RANKS_MRANKS_H

#include "base/arena.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/format.h"
#include "format/raw_chunks.h"
#include "format/torch/torch_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- files (mranks_files.c) ---- */

struct mr;

struct mr_file {
	const char *path; /* borrowed: "mp_rank_00_001/model_optim_rng.pt" */
	size_t dir_len;	  /* bytes of its first component */
	uint32_t t, n[2]; /* numbers in it: the tensor-parallel rank, and up to two others */
	size_t n_numbers;
	bool nemo;	 /* a bare state dict */
	uint32_t p, e;	 /* pipeline stage, expert-parallel rank */
	uint32_t number; /* in the catalog */
	bool done;
	/* What it has: */
	struct digest sums; /* if the archive has CRCs, see torchsave.h */
	bool has_sums;
	bool slices, experts; /* tensors that other ranks have other slices of, or other experts */
	uint64_t rank;	      /* args.rank of the process that wrote it; UINT64_MAX: unknown */
};

/* False: it is not the name of a rank's file. */
bool mr_file_parse(const char *path, struct mr_file *ret);
int mr_probe(struct place *place, struct name_list *files, struct ckpt_err *e);
/* Fails if a rank's file is a copy of another's. */
int mr_check_copies(struct mr *d, struct ckpt_err *e);

/* ---- rules (mranks_rules.c) ---- */

enum mr_rule {
	MR_UNKNOWN, /* a copy if all ranks have the same, else nobody knows */
	MR_COPY,    /* all ranks have the same */
	MR_VOCAB,   /* dimension 0 is split; the last stage may have a copy */
	MR_COLUMN,  /* dimension 0 is split */
	MR_EITHER,  /* MR_COPY if all ranks have the same, else MR_COLUMN */
	MR_ROW,	    /* dimension 1 is split */
	MR_GATED,   /* dimension 0 is split; if a gate is in it, so are its halves */
	MR_QKV,	    /* like MR_COLUMN; before version 2, rows are in another order */
	MR_KV,
	MR_MAMBA,     /* dimension 0 is split, and so is each of several sections of it */
	MR_GROUPED_1, /* all experts of a rank in one tensor */
	MR_GROUPED_2,
};

enum mr_rule mr_rule_of(const char *name, size_t len);
bool mr_is_expert(const char *name);

/* A number in a name that counts from 0 in each rank: bytes [at, at + len). */
struct mr_number {
	uint32_t at, len, value;
};
/* "layers.N." and the expert's number. False: the name has none. */
bool mr_layer_in(const char *name, struct mr_number *ret);
bool mr_expert_in(const char *name, struct mr_number *ret);

/* ---- tensors ---- */

/* A tensor in one file. */
struct mr_part {
	const struct pk_str *name; /* as in the file; mr_number_parts makes it global */
	const struct mr_file *file;
	uint32_t v; /* virtual stage */
	const struct torch_view *view;
	struct digest sample; /* of the first and last bytes, if ranks may have copies */
};

#define MR_MAX_NAMES ((size_t)1 << 30) /* bytes */
enum { MR_MAX_FQN = 1 << 16 };

struct mr {
	struct place *place;
	const struct scan_opts *opts;
	struct catalog_writer *w;
	struct mr_file *files; /* sorted by stage, tensor-parallel and expert-parallel rank */
	size_t n_files, n_read;
	struct arena arena;
	struct pk_strings *names;
	struct mr_part *parts;
	size_t n_parts, cap_parts;
	uint64_t samples, chunks;
	uint32_t tp, pp, ep, vp; /* numbers of ranks; virtual stages in each */
	/* What the files say; UINT64_MAX: nothing. */
	uint64_t version_times_10, iteration, heads, layers, expert_tp;
	uint64_t config_tp, config_pp; /* NeMo's model_config.yaml, likewise */
	bool optimizer;
	char not_shown[FORMAT_NOTE];
};

/* Reads the numbers of ranks in NeMo's configuration, if there is one (mranks_nemo.c). */
#define MR_CONFIG "model_config.yaml"
int mr_read_config(struct mr *d, struct ckpt_err *e);
/* Reads all files into d->parts, and other values into the catalog (mranks_read.c). */
int mr_read(struct mr *d, struct ckpt_err *e);
/* Gives layers and experts their numbers in the whole model, and sorts (mranks_number.c). */
int mr_number_parts(struct mr *d, struct ckpt_err *e);
/* Writes all tensors to the catalog (mranks_join.c). */
int mr_report(struct mr *d, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_internal - what a face of the tree must provide, and what it may ask the view.
 *
 * To add a face: write its file with a `const struct face`, and add a line to `faces` in view.c.
 * Private to core/tree.
 */
#ifndef TREE_VIEW_INTERNAL_H
#define TREE_VIEW_INTERNAL_H

#include "model/box.h"
#include "tensor/namelist.h"
#include "tree/view.h"

#include <stdatomic.h>

/*
 * The parts of a node: its face, the rank whose directory contains it (number in the layout + 1; 0:
 * none), and its index there.
 */
struct spot {
	unsigned face;
	uint32_t rank, index;
};
#define SPOT_DIR 0xffffffu /* the directory itself: the largest index that fits a node */
/* Limits on tensors and objects; a directory may show a file for each, and assets. */
#define VIEW_MAX_NAMES	 (SPOT_DIR - 0x10000)
#define VIEW_MAX_OBJECTS (SPOT_DIR / 2) /* each has two files */

struct face {
	const char *dir; /* its name in the root */
	bool of_model;	 /* it exists only if the model's tensors have unique names */
	/* Does the entry exist, and what is it? p.rank is a valid rank, or 0. */
	enum view_kind (*kind)(const struct view *v, struct spot p);
	/* The number of entries in the directory p. */
	uint64_t (*entries)(const struct view *v, struct spot p);
	/* NULL: entry pos has index pos. */
	struct spot (*entry)(const struct view *v, struct spot p, uint64_t pos);
	/*
	 * The name of a file, a link or a rank's directory; takes constant time, however long the
	 * directory.
	 */
	void (*name)(const struct view *v, struct spot p, char out[static NAME_CAP]);
	/* False: there is no such name. */
	bool (*lookup)(const struct view *v, struct spot p, const char *name, struct spot *ret);
	/* Describes the file p. */
	int (*describe)(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e);
};
extern const struct face face_gguf, face_tensors, face_npy, face_logical, face_objects,
	face_safetensors, face_hf, face_pt, face_ranks, face_control, face_view;

/* In the order of the root directory; a face's number is its place here. */
enum {
	FACE_CONTROL,
	FACE_GGUF,
	FACE_HF,
	FACE_LOGICAL,
	FACE_NPY,
	FACE_OBJECTS,
	FACE_PT,
	FACE_RANKS,
	FACE_SAFETENSORS,
	FACE_TENSORS,
	N_ROOT_FACES,
	FACE_VIEW = N_ROOT_FACES, /* in .ckptfs; the numbers of its files take rank and index */
	N_FACES
};

struct gguf_lazy;

/* A tensor of the model. */
struct weight {
	struct vtensor *made; /* the tensor that a recipe made, or NULL: */
	uint32_t at;	      /* position in `tensors` of the unchanged weight */
	/* The stored tensors that `made` consists of: sources[0 .. n_sources) */
	uint32_t *sources, n_sources;
	uint8_t role; /* enum view_role */
};

/* Named tensors: what a recipe made, or the unchanged weights. */
struct model {
	struct namelist names; /* index: position in weights */
	struct weight *weights;
	size_t n_weights;
};
void model_release(struct model *m);

struct view {
	const struct catalog *c;
	struct view_opts o;
	uint64_t glob_steps;		  /* budget left for matching include and exclude */
	bool *included, *excluded;	  /* by glob: whether it has matched a name */
	struct namelist tensors, objects; /* index: catalog number */
	struct namelist logical;	  /* index: position in tensors */
	/* Positions in `objects` of those with a NAME.json file; NULL: all have one. */
	uint32_t *json;
	size_t n_json;
	struct model model;
	struct model regrouped; /* the model with its experts split, if only hf/ shows it so */
	struct model coded;	/* what hf/ shows in place of either, if weights are codes there */
	const char *config;	/* what hf/ shows as config.json; NULL: the asset */
	const struct model *hf; /* which of the three hf/ shows */
	bool has_model;
	const char *prefix_text; /* removed from the model's names: the first bytes, */
	size_t prefix;		 /* and their number */
	/*
	 * hf/: the file of each of its tensors, or HF_LEFT_OUT; the tensors of file s are
	 * by_shard[shard_at[s] .. shard_at[s+1])
	 */
	uint32_t *shard, *by_shard;
	size_t *shard_at;
	uint32_t n_shards;
	struct namelist hf_entries;
	/*
	 * ranks/: the tensors of the model that rank r (spot.rank) holds are held[held_at[r-1] ..
	 * held_at[r]), positions in model; held_at is NULL if every rank holds a part of every
	 * tensor
	 */
	uint32_t *held;
	size_t *held_at;
	_Atomic uint64_t
		*sizes; /* of consolidated files, once known: safetensors/, pt/, hf/ shards */
	struct gguf_lazy *gguf;
	/* .ckptfs/view: the tiles of tensor i are numbered tiles_at[i] .. tiles_at[i+1] */
	uint64_t *tiles_at;
};

struct spot view_spot(uint64_t node);

/* The dtype that a stored dtype is shown as. */
enum ckpt_dtype view_dtype(const struct view *v, enum ckpt_dtype stored);

/* ---- objects, in view_objects.c ---- */

/* Determines which objects have a NAME.json; v->objects must be set. */
int view_objects_init(struct view *v, struct ckpt_err *e);
/* Is it an object's value, rather than its stored bytes? *ret: position of the object. */
bool view_object_json(const struct view *v, struct spot p, size_t *ret);

/* ---- the model, in view_model.c ---- */

/* Builds the model from v->tensors and the options. */
int view_model_init(struct view *v, struct ckpt_err *e);
void view_model_release(struct view *v);

int view_weight_sources(struct weight *w, struct ckpt_err *e);
/*
 * Fuses or splits experts as view_opts requests. Replaces the model; or, if the option was not
 * given, builds v->regrouped for hf/ only.
 */
int view_experts_init(struct view *v, struct ckpt_err *e);

/* ---- assets ---- */

struct asset_text {
	char *s; /* NUL-terminated, owned by the caller; NULL: there is no such asset */
	size_t len;
};
/* EFBIG: it has more than max bytes. */
int view_read_asset(const struct view *v, const char *name, uint64_t max, struct asset_text *ret,
		    struct ckpt_err *e);
void asset_text_release(struct asset_text *t);

/* ---- tensors that can be shown ---- */

/*
 * Sets of tensors: those of the tree; the same in the shape they had before they were flattened;
 * those of hf/; those of the model; those of a GGUF; or the parts of the model that a rank has.
 * With a position in the set, it identifies a tensor that can be shown.
 */
enum { OF_TREE, OF_LOGICAL, OF_HF, OF_MODEL, OF_GGUF, OF_RANKS };
/* rank: as in spot.rank; files of rank 0 show the tree. */
static inline uint32_t of_rank(uint32_t rank)
{
	return rank ? OF_RANKS + rank - 1 : OF_TREE;
}

/* The box of model tensor i that a rank (spot.rank) holds. False: it holds nothing of it. */
bool view_rank_box(const struct view *v, uint32_t rank, size_t i, uint64_t *off, uint64_t *len);
/* The id for view_vtensor. */
uint64_t view_id(uint32_t of, size_t i);
/* The id of entry i of logical/. */
uint64_t view_logical_id(const struct view *v, size_t i);
/*
 * shape has room for CKPT_MAX_DIMS numbers, for the shape of a rank's part. False: the rank does
 * not hold it.
 */
bool view_info(const struct view *v, uint32_t of, size_t i, struct tensor_info *ret,
	       uint64_t *shape);

/* ---- consolidated files ---- */

struct members {
	struct tensor_info *v;
	size_t n;
	uint64_t *shapes;
};
/*
 * The tensors in a consolidated file: those that can be read and that `check` accepts. If `only` is
 * not NULL, it lists the positions to choose from.
 */
struct positions {
	const uint32_t *v;
	size_t n;
};
int view_members(const struct view *v, uint32_t of,
		 int (*check)(const struct tensor_info *t, struct ckpt_err *e),
		 const struct positions *only, struct members *ret, struct ckpt_err *e);
void members_release(struct members *m);
/* view_left_out for tensor i of a set, not of OF_GGUF or OF_RANKS. */
bool view_is_left_out(const struct view *v, uint32_t of, size_t i, struct ckpt_err *why);

/* Does safetensors/ show the model, rather than the whole tree? */
static inline bool view_of_model(const struct view *v)
{
	return v->o.weights || v->o.recipe;
}

/* ---- faces that require preparation ---- */

#define HF_LEFT_OUT UINT32_MAX
int view_hf_init(struct view *v, struct ckpt_err *e);
void view_hf_release(struct view *v);
int view_ranks_init(struct view *v, struct ckpt_err *e);
int view_gguf_init(struct view *v, struct ckpt_err *e);
void view_gguf_release(struct view *v);
/* Is there a GGUF? The first call waits until it is prepared. */
bool view_has_gguf(const struct view *v);
/* The same without waiting; false: not known yet. */
bool view_gguf_known(const struct view *v, bool *ret);
int view_page_init(struct view *v, struct ckpt_err *e);
/* The size of a tile's file, which is known before it is made. False: it is another file. */
bool view_page_size(const struct view *v, struct spot p, uint64_t *ret);
/* The number of the asset at entry `index`, or -1. */
int64_t view_hf_asset(const struct view *v, uint32_t index);
int64_t view_ranks_asset(const struct view *v, uint32_t index);

#endif

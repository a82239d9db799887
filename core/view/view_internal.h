/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_internal - what a face of the tree provides, and what it can ask the view.
 *
 * To add a face: write its file with a `const struct face`, add a line to `faces` in view.c.
 * Private to core/view.
 */
#ifndef VIEW_VIEW_INTERNAL_H
#define VIEW_VIEW_INTERNAL_H

#include "model/box.h"
#include "view/member.h"
#include "view/namelist.h"
#include "view/view.h"

#include <stdatomic.h>

/* A node: its face, the rank whose directory it lies in (number in the layout + 1; 0: none), and
 * what it is there. */
struct place {
	unsigned face;
	uint32_t rank, index;
};
#define PLACE_DIR UINT32_MAX /* the directory itself */

struct face {
	const char *dir; /* its name in the root */
	bool of_model;	 /* it exists only when the model's tensors have names of their own */
	/* Is there such an entry? p.rank is one of the layout's, or 0. */
	enum view_kind (*kind)(const struct view *v, struct place p);
	/* Of the directory p. */
	uint64_t (*entries)(const struct view *v, struct place p);
	struct place (*entry)(const struct view *v, struct place p, uint64_t pos,
			      char name[static NAME_CAP]);
	/* False: no such name. */
	bool (*lookup)(const struct view *v, struct place p, const char *name, struct place *ret);
	/* Of the file p. */
	int (*describe)(const struct view *v, struct place p, struct vfile *ret, struct err *e);
};
extern const struct face face_tensors, face_npy, face_logical, face_objects, face_safetensors,
	face_hf, face_pt, face_ranks, face_control;

/* In the order of the root directory; a face's number is its place here. */
enum {
	FACE_CONTROL,
	FACE_HF,
	FACE_LOGICAL,
	FACE_NPY,
	FACE_OBJECTS,
	FACE_PT,
	FACE_RANKS,
	FACE_SAFETENSORS,
	FACE_TENSORS,
	N_FACES
};

struct view {
	const struct catalog *c;
	struct view_opts o;
	struct namelist tensors, objects; /* index: number in the catalog */
	struct namelist model;		  /* index: position in tensors */
	struct namelist logical;	  /* index: position in tensors */
	bool has_model;
	size_t prefix; /* bytes taken off the model's names */
	/* hf/: file of every tensor of the model or HF_LEFT_OUT; the tensors of file s are
	 * by_shard[shard_at[s] .. shard_at[s+1]) */
	uint32_t *shard, *by_shard;
	size_t *shard_at;
	uint32_t n_shards;
	struct namelist hf_entries;
	/* ranks/: what rank r (place.rank) holds of the model is held[held_at[r-1] .. held_at[r]),
	 * positions in model; held_at is NULL when every rank holds a part of every tensor */
	uint32_t *held;
	size_t *held_at;
	_Atomic uint64_t
		*sizes; /* of consolidated files once known: safetensors/, pt/, hf/ shards */
	const char *info;
	size_t info_len;
};

uint64_t view_node_of(struct place p);
struct place view_place(uint64_t node);

/* The dtype that a stored one is shown as. */
enum dtype view_dtype(const struct view *v, enum dtype stored);
/* Box of model tensor i that a rank (place.rank) holds. False: it does not hold it. */
bool view_rank_box(const struct view *v, uint32_t rank, size_t i, uint64_t *off, uint64_t *len);
/* An id as view_vtensor takes it: rank 0: position in the tree, else in the model. VIEW_LOGICAL:
 * position in the tree, of the tensor in the shape it had before it was flattened. */
#define VIEW_LOGICAL UINT32_MAX
uint64_t view_id(uint32_t rank, size_t i);
/* Dtype, shape and bytes as shown; shape has room for MAX_DIMS. False: the rank does not hold it. */
bool view_shape(const struct view *v, uint32_t rank, size_t i, struct member *ret, uint64_t *shape);

/* ---- consolidated files ---- */

struct members {
	struct member *v;
	size_t n;
	uint64_t *shapes;
};
enum members_of { MEMBERS_TREE, MEMBERS_MODEL };
/*
 * What a file consolidates: tensors that can be read and that `check` lets pass, of the tree, or
 * of the model as a rank holds it (0: whole). only, if not NULL, are the positions to choose from.
 */
struct positions {
	const uint32_t *v;
	size_t n;
};
int view_members(const struct view *v, enum members_of of, uint32_t rank,
		 int (*check)(const struct member *m, struct err *e), const struct positions *only,
		 struct members *ret, struct err *e);
void members_release(struct members *m);

/* ---- faces with something to prepare ---- */

#define HF_LEFT_OUT UINT32_MAX
int view_hf_init(struct view *v, struct err *e);
int view_ranks_init(struct view *v, struct err *e);
/* Number of the asset that entry `index` is, or -1. */
int64_t view_hf_asset(const struct view *v, uint32_t index);
int64_t view_ranks_asset(const struct view *v, uint32_t index);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view - the tree of virtual files over a catalog.
 *
 * A face is a directory of the tree: tensors/, npy/, hf/, ... Each has a file of its own and a line
 * in the table of view.c; view_internal.h says what it has to provide.
 *
 * The view names things and says what every file consists of; it reads nothing. What it shows are
 * virtual tensors: those of the tree (every tensor that exists, under its name after renaming), and
 * those of the model (the weights among them, under the names that a model's code knows them by,
 * or what a recipe makes of these), whole or as a rank of a layout holds them.
 *
 * Nodes are inode numbers: the root is 1, all others say which face, rank and entry they are. They
 * are the same at every mount with the same options.
 *
 * Threads: immutable after view_new, except for sizes that are remembered and for gguf/, which is
 * made when it is first looked for.
 */
#ifndef TREE_VIEW_H
#define TREE_VIEW_H

#include "file/vfile.h"
#include "gguf/gguf_write.h"
#include "model/dtype.h"
#include "tensor/name.h"
#include "tensor/tensor_info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct ckpt_err;
struct layout;
struct namelist;
struct recipe;
struct recipe_facts;
struct recipe_out;
struct rename;
struct view;
struct vtensor;

/* A real file that is shown beside the weights. */
struct view_asset {
	const char *name;
	const char *path; /* absolute */
	uint64_t size, mtime_ns;
};

struct view_opts {
	const char *const *include; /* globs of stored FQNs, NULL-terminated, or NULL for all */
	const char *const *exclude;
	struct rename *rename; /* rules for FQNs, or NULL */
	const char *weights;   /* prefix of the model's FQNs, or NULL for the default */
	bool masters;	       /* in place of weights that have one */
	enum ckpt_dtype
		dtype; /* what floating-point tensors are cast to; CKPT_DTYPE_NONE: nothing */
	/* Of the model; in hf/ alone, and as save_pretrained does it; as they are stored. */
	enum view_experts { EXPERTS_AUTO, EXPERTS_STORED, EXPERTS_FUSED, EXPERTS_SPLIT } experts;
	uint64_t shard_size;		 /* bytes of tensors in a file of hf/ */
	uint64_t gguf_size;		 /* the same of gguf/; 0: one file has all */
	const enum ggml_type *gguf_type; /* of its matrices; NULL: the model's */
	struct layout *layout;		 /* of ranks/, or NULL */
	/* What the model is made of, instead of being the weights as they are; or NULL. */
	const struct recipe *recipe;
	const struct recipe_facts *facts; /* for the recipe, in view_new alone */
	const struct view_asset *assets;  /* in natural order */
	size_t n_assets;
	/* Why a tensor or object (number in the catalog) cannot be read, or NULL. */
	const char *(*fault)(void *arg, bool object, size_t number);
	/* Decoded size of an object. */
	int (*object_size)(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e);
	/* An object's value as JSON text, and the text's size. */
	int (*object_json)(void *arg, size_t number, struct buf *ret, struct ckpt_err *e);
	int (*object_json_size)(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e);
	int (*read_asset)(void *arg, size_t i, void *buf, size_t len, uint64_t off,
			  struct ckpt_err *e);
	/* What .ckptfs/info.json holds; borrowed. */
	int (*info)(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e);
	void *arg;
	/* One sentence about something odd in the options; may be NULL. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
};
/* opts' pointers are borrowed and outlive the view. */
int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct ckpt_err *e);
void view_free(struct view *v); /* NULL is fine */

/* ---- the tree ---- */

enum view_kind { VIEW_NONE, VIEW_DIR, VIEW_FILE, VIEW_LINK };
#define VIEW_ROOT_NODE ((uint64_t)1)
#define VIEW_NODE_BITS 48 /* all nodes are smaller than 1 << this */

/* VIEW_NONE for a number that stands for nothing. */
enum view_kind view_kind(const struct view *v, uint64_t node);
uint64_t view_parent(const struct view *v, uint64_t node);
/* 0 when there is none. */
uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name);
/* Entry number pos of a directory; 0 at the end. */
uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP]);
uint64_t view_entries(const struct view *v, uint64_t dir);
/* A node's name in its directory; false: it is the root, or nothing. */
bool view_name(const struct view *v, uint64_t node, char out[static NAME_CAP]);
/* Whether it has more of them is found out by listing it: the root, as long as nothing has asked for
 * gguf/. */
bool view_is_partial(const struct view *v, uint64_t dir);
/* Where a VIEW_LINK leads, relative to its directory. */
void view_target(const struct view *v, uint64_t node, char out[static NAME_CAP]);
/* Number of the asset that a file is, or -1. */
int64_t view_asset(const struct view *v, uint64_t node);

/* ---- files ---- */

/* What a file consists of; *ret is VFILE_INIT and the caller's to release, whatever happens. */
int view_describe(const struct view *v, uint64_t node, struct vfile *ret, struct ckpt_err *e);
int view_size(const struct view *v, uint64_t node, uint64_t *ret, struct ckpt_err *e);
/* The virtual tensor of a SEG_TENSOR segment. *ret is the caller's, free() it. */
int view_vtensor(const struct view *v, uint64_t id, struct vtensor **ret, struct ckpt_err *e);
/* Elements of a tensor of the tree or of the model, inside of which they lie: as vtensor_steps has
 * them. *ret is the caller's. */
int view_box(const struct view *v, uint64_t id, const uint64_t *off, const uint64_t *step,
	     const uint64_t *count, struct vtensor **ret, struct ckpt_err *e);

/* ---- tensors and objects ---- */

size_t view_tensors(const struct view *v);
void view_tensor(const struct view *v, size_t i, struct tensor_info *ret);
/* Of the model, as hf/ shows it. */
size_t view_model(const struct view *v);
void view_model_tensor(const struct view *v, size_t i, struct tensor_info *ret);
size_t view_objects(const struct view *v);
/* Number in the catalog. */
size_t view_object(const struct view *v, size_t i, const char **ret_fqn, size_t *ret_len);
/* Position by FQN, or -1. */
int64_t view_find_tensor(const struct view *v, const char *fqn, size_t len);
int64_t view_find_model_tensor(const struct view *v, const char *name, size_t len);
/* Tensor i of the model: its number in the layout, which is of ranks/; -1: they have it otherwise.
 */
int64_t view_rank_tensor(const struct view *v, size_t i);
int64_t view_find_object(const struct view *v, const char *fqn, size_t len);
/* Nodes of tensors/FQN and objects/FQN. */
uint64_t view_tensor_node(size_t i);
uint64_t view_object_node(size_t i);

/* What a file of tensors/, npy/, logical/ or objects/ shows: the object at *ret_id of the tree, or its
 * value, or
 * the tensor that view_vtensor takes as *ret_id, a rank's or whole. False: it is another file. */
bool view_single(const struct view *v, uint64_t node, bool *ret_object, uint64_t *ret_id);
/* The tensor that view_single found. Of a rank's part, shape is NULL. */
void view_single_tensor(const struct view *v, uint64_t id, struct tensor_info *ret);

/* ---- what info.json tells ---- */

struct view_about {
	bool has_model;
	const char *prefix; /* prefix_len bytes taken off the model's names: "model." */
	size_t prefix_len;
	uint64_t model_tensors, model_bytes;
	uint64_t shards; /* files of hf/ */
	uint64_t ranks;
	uint64_t left_out; /* tensors of the model that consolidated files leave out */
};
void view_about(const struct view *v, struct view_about *ret);
/* Do safetensors files do without tensor i of the model? Then *why says why. */
bool view_left_out(const struct view *v, size_t i, struct ckpt_err *why);
/* Of the files that consolidate tensors: how many there are, and how many they do without. */
enum view_file { VIEW_HF, VIEW_PT, VIEW_SAFETENSORS };
struct view_left {
	uint64_t tensors, left_out;
	struct tensor_info first; /* left out */
	struct ckpt_err why;
};
void view_left(const struct view *v, enum view_file file, struct view_left *ret);
/* The weights that recipes are for; to be released where it succeeds. */
int view_weight_names(const struct view *v, struct namelist *ret, struct ckpt_err *e);
/* What a recipe would make of them; the view stays as it is. *found: as struct recipe_in has it, also
 * where it fails. */
int view_try_recipe(const struct view *v, const struct recipe *r, const struct recipe_facts *facts,
		    const struct namelist *names, size_t *found, struct recipe_out *ret,
		    struct ckpt_err *e);
/* Is tensor i of the model in a file of hf/? */
bool view_hf_has(const struct view *v, size_t i);
/* gguf/: whether that is known, without waiting for it. */
bool view_gguf_is_known(const struct view *v);
/* gguf/: why it is not there, or what it is. The first call waits for it to be made. */
struct view_gguf {
	const char *missing; /* one sentence; NULL: */
	const char *arch, *dtype;
	uint64_t files, tensors;
};
void view_gguf(const struct view *v, struct view_gguf *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view - the tree of virtual files over a catalog.
 *
 * A face is a directory of the tree: tensors/, npy/, hf/, ... Each has a source file of its own and
 * a line in the table of view.c; view_internal.h describes what it has to provide.
 *
 * The view names files and describes what each consists of; it reads nothing. It shows virtual
 * tensors: those of the tree (every tensor that exists, under its name after renaming), and those
 * of the model (the weights among them, under the names that the model's code uses, or what a
 * recipe makes of them), whole or as a rank of a layout holds them.
 *
 * Nodes are inode numbers: the root is 1; all others encode the face, rank and entry. They are the
 * same at every mount with the same options.
 *
 * Threads: immutable after view_new and view_show_codes, except for cached sizes and for gguf/,
 * which is prepared when it is first looked up.
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
struct tile;
struct tile_form;
struct view;
struct vtensor;

/* A real file that is shown beside the weights. */
struct view_asset {
	const char *name;
	const char *path; /* absolute */
	uint64_t size, mtime_ns;
};

/* Texts of .ckptfs/view. */
enum view_page { VIEW_PAGE, VIEW_PAGE_DATA };

struct view_opts {
	const char *const *include; /* globs of stored FQNs, NULL-terminated, or NULL for all */
	const char *const *exclude;
	struct rename *rename; /* rules for FQNs, or NULL */
	const char *weights;   /* prefix of the model's FQNs, or NULL for the default */
	bool masters;	       /* show fp32 masters in place of weights that have one */
	enum ckpt_dtype
		dtype; /* dtype that floating-point tensors are cast to; CKPT_DTYPE_NONE: no cast */
	/* The member of config.json by which there are codes, if names do not tell which; or
	 * NULL. */
	const char *quantised;
	/*
	 * How experts are grouped: AUTO: in hf/ only, as save_pretrained does; STORED: as they are
	 * stored.
	 */
	enum view_experts { EXPERTS_AUTO, EXPERTS_STORED, EXPERTS_FUSED, EXPERTS_SPLIT } experts;
	uint64_t shard_size;		 /* tensor bytes per file in hf/ */
	uint64_t gguf_size;		 /* the same in gguf/; 0: one file for all tensors */
	const struct gguf_mix *gguf_mix; /* types of matrices in gguf/; NULL: the model's */
	struct layout *layout;		 /* of ranks/, or NULL */
	/* Makes the model, which otherwise consists of the unchanged weights; or NULL. */
	const struct recipe *recipe;
	bool backwards;			  /* what the recipe would make the weights from */
	const struct recipe_facts *facts; /* for the recipe; used only in view_new */
	const struct view_asset *assets;  /* in natural order */
	size_t n_assets;
	/* Why a tensor or object (catalog number) cannot be read, or NULL. */
	const char *(*fault)(void *arg, bool object, size_t number);
	/* Decoded size of an object. */
	int (*object_size)(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e);
	/* An object's value as JSON text, and the text's size. */
	int (*object_json)(void *arg, size_t number, struct buf *ret, struct ckpt_err *e);
	int (*object_json_size)(void *arg, size_t number, uint64_t *ret, struct ckpt_err *e);
	int (*read_asset)(void *arg, size_t i, void *buf, size_t len, uint64_t off,
			  struct ckpt_err *e);
	/* The contents of .ckptfs/info.json; borrowed. */
	int (*info)(void *arg, const char **ret, size_t *ret_len, struct ckpt_err *e);
	/*
	 * The texts of .ckptfs/view, borrowed; and the file `name` of a tile of tensor i, described
	 * by t, whose size is known before it is made. NULL: there is no such directory.
	 */
	int (*page)(void *arg, enum view_page which, const char **ret, size_t *ret_len,
		    struct ckpt_err *e);
	int (*tile)(void *arg, size_t i, const struct tensor_info *t, const struct tile *tile,
		    const struct tile_form *form, const char *name, struct buf *ret,
		    struct ckpt_err *e);
	uint64_t (*tile_size)(const struct tensor_info *t, const struct tile *tile,
			      const struct tile_form *form, const char *name);
	void *arg;
	/* Reports an anomaly in the options in one sentence; may be NULL. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
};
/* opts' pointers are borrowed and must outlive the view. */
int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct ckpt_err *e);
void view_free(struct view *v); /* NULL is fine */

/*
 * A tensor of hf/ that is shown as codes, with a tensor of scales beside it: computed tensors, by
 * their catalog numbers.
 */
struct view_codes {
	size_t i; /* of the model; ascending */
	uint32_t codes, scales;
};
/*
 * Shows these in hf/, and in the model that view_model_tensor describes, in place of the weights;
 * the names of scales are those of the weights and `end`. config is what hf/ shows as config.json,
 * if that is an asset; borrowed. Once, before the view is used, and only if it has a model.
 */
int view_show_codes(struct view *v, const struct view_codes *codes, size_t n, const char *end,
		    const char *config, struct ckpt_err *e);
/* Is tensor i of the model one of those? */
enum view_role { VIEW_WEIGHT, VIEW_CODES, VIEW_SCALES };
enum view_role view_role(const struct view *v, size_t i);

/* ---- the tree ---- */

enum view_kind { VIEW_NONE, VIEW_DIR, VIEW_FILE, VIEW_LINK };
#define VIEW_ROOT_NODE ((uint64_t)1)
#define VIEW_NODE_BITS 48 /* all nodes are smaller than 1 << this */

/* VIEW_NONE if the number is not a node. */
enum view_kind view_kind(const struct view *v, uint64_t node);
uint64_t view_parent(const struct view *v, uint64_t node);
/* 0: there is none. */
uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name);
/* Entry number pos of a directory; 0 at the end. */
uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP]);
uint64_t view_entries(const struct view *v, uint64_t dir);
/* A node's name in its directory; false: it is the root, or not a node. */
bool view_name(const struct view *v, uint64_t node, char out[static NAME_CAP]);
/*
 * Does the directory have more entries, which only listing it reveals? True for the root until
 * something has looked up gguf/.
 */
bool view_is_partial(const struct view *v, uint64_t dir);
/* The target of a VIEW_LINK, relative to its directory. */
void view_target(const struct view *v, uint64_t node, char out[static NAME_CAP]);
/* The number of the asset that a file shows, or -1. */
int64_t view_asset(const struct view *v, uint64_t node);

/* ---- files ---- */

/*
 * Describes a file's contents; *ret must be VFILE_INIT, and is released by the caller in any case.
 */
int view_describe(const struct view *v, uint64_t node, struct vfile *ret, struct ckpt_err *e);
int view_size(const struct view *v, uint64_t node, uint64_t *ret, struct ckpt_err *e);
/* The virtual tensor of a SEG_TENSOR segment. *ret is the caller's, free() it. */
int view_vtensor(const struct view *v, uint64_t id, struct vtensor **ret, struct ckpt_err *e);
/*
 * Elements of a tensor of the tree or of the model, selected as in vtensor_steps; they must lie
 * inside the tensor. The caller frees *ret.
 */
int view_box(const struct view *v, uint64_t id, const uint64_t *off, const uint64_t *step,
	     const uint64_t *count, struct vtensor **ret, struct ckpt_err *e);

/* ---- tensors and objects ---- */

size_t view_tensors(const struct view *v);
void view_tensor(const struct view *v, size_t i, struct tensor_info *ret);
/* The number of tensors in the model, as hf/ shows it. */
size_t view_model(const struct view *v);
void view_model_tensor(const struct view *v, size_t i, struct tensor_info *ret);
size_t view_objects(const struct view *v);
/* Returns the object's number in the catalog. */
size_t view_object(const struct view *v, size_t i, const char **ret_fqn, size_t *ret_len);
/* Position by FQN, or -1. */
int64_t view_find_tensor(const struct view *v, const char *fqn, size_t len);
int64_t view_find_model_tensor(const struct view *v, const char *name, size_t len);
/*
 * The number that tensor i of the model has in the layout of ranks/; -1: ranks/ groups its experts
 * differently.
 */
int64_t view_rank_tensor(const struct view *v, size_t i);
int64_t view_find_object(const struct view *v, const char *fqn, size_t len);
/* Nodes of tensors/FQN and objects/FQN. */
uint64_t view_tensor_node(size_t i);
uint64_t view_object_node(size_t i);

/*
 * Does a file of tensors/, npy/, logical/ or objects/ show a single item? *ret_id is then the
 * object's number in the tree (its bytes or its value), or the argument for view_vtensor, which may
 * be a rank's part. False: it is another file.
 */
bool view_single(const struct view *v, uint64_t node, bool *ret_object, uint64_t *ret_id);
/* The tensor that view_single found. For a rank's part, shape is NULL. */
void view_single_tensor(const struct view *v, uint64_t id, struct tensor_info *ret);

/* ---- contents of info.json ---- */

struct view_about {
	bool has_model;
	/* a prefix of prefix_len bytes that is removed from the model's names: "model." */
	const char *prefix;
	size_t prefix_len;
	uint64_t model_tensors, model_bytes;
	uint64_t shards; /* files of hf/ */
	uint64_t ranks;
	uint64_t left_out; /* tensors of the model that consolidated files omit */
};
void view_about(const struct view *v, struct view_about *ret);
/* Do safetensors files omit tensor i of view_model_tensor()? If so, *why gives the reason. */
bool view_left_out(const struct view *v, size_t i, struct ckpt_err *why);
/* For consolidated files: how many tensors they contain, and how many they omit. */
enum view_file { VIEW_HF, VIEW_PT, VIEW_SAFETENSORS };
struct view_left {
	uint64_t tensors, left_out;
	struct tensor_info first; /* the first omitted tensor */
	struct ckpt_err why;
};
void view_left(const struct view *v, enum view_file file, struct view_left *ret);
/* The weights that recipes are applied to; on success the caller releases *ret. */
int view_weight_names(const struct view *v, struct namelist *ret, struct ckpt_err *e);
/*
 * Applies a recipe to them without changing the view. *found: as in struct recipe_in, also set on
 * failure.
 */
int view_try_recipe(const struct view *v, const struct recipe *r, const struct recipe_facts *facts,
		    const struct namelist *names, size_t *found, struct recipe_out *ret,
		    struct ckpt_err *e);
/* Is tensor i of the model in a file of hf/? */
bool view_hf_has(const struct view *v, size_t i);
/* Is it known whether gguf/ exists? Does not wait. */
bool view_gguf_is_known(const struct view *v);
/* gguf/: what it is, or why it does not exist. The first call waits until it is prepared. */
struct view_gguf {
	const char *missing; /* one sentence, or NULL; then: */
	const char *arch, *dtype;
	uint64_t files, tensors;
};
void view_gguf(const struct view *v, struct view_gguf *ret);
/* Is it the id of a tensor of gguf/? *ret: its number there. */
bool view_is_gguf(uint64_t id, uint32_t *ret);
int view_gguf_vtensor(const struct view *v, uint32_t i, struct vtensor **ret, struct ckpt_err *e);
/* Bytes of all tensors of gguf/ that are blocks; 0 if that is not known yet. Does not wait. */
uint64_t view_gguf_blocks(const struct view *v);

#endif

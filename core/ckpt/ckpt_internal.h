/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_internal - the parts of an opened checkpoint, for the files of core/ckpt.
 */
#ifndef CKPT_CKPT_INTERNAL_H
#define CKPT_CKPT_INTERNAL_H

#include "base/arena.h"
#include "base/sized.h"
#include "ckpt/ahead.h"
#include "ckpt/computed/average.h"
#include "ckpt/computed/computed.h"
#include "ckpt/computed/dequantise.h"
#include "ckpt/computed/others.h"
#include "ckpt/model/gguf_model.h"
#include "ckpt/model/model_recipe.h"
#include "ckpt/open/assets.h"
#include "ckpt/open/ckpt_options.h"
#include "file/vfile.h"
#include "format/format.h"
#include "store/object_form.h"
#include "tree/tree.h"
#include "tree/view.h"
#include <ckptfs/ckpt_mount.h>
#include <ckptfs/ckpt_tensor.h>

#include <semaphore.h>
#include <stdatomic.h>

struct buf;
struct catalog;
struct chunkmap;
struct ckpt_run;
struct fetch;
struct files;
struct layout;
struct place;
struct rename;
struct run_child;
struct view;
struct view_opts;
struct tensor_info;
struct tensor_reader;

/*
 * An opened tree, and either the engine that reads its data or a run, each of whose checkpoints has
 * an engine of its own.
 */
struct ckpt {
	struct tree *tree;
	struct engine *engine; /* NULL for a run; see ckpt_engine */
	struct ckpt_run *run;  /* or NULL */
	char *root;	       /* absolute path of the checkpoint */
	char *dir; /* the directory of root: root itself, or the directory that contains the file */
	const char *file;	    /* NULL, or the file's name: the end of root */
	struct place *place;	    /* an open handle on dir */
	struct arena words;	    /* storage of the options, if they were strings */
	struct arena said;	    /* storage of: */
	const char *const *options; /* see ckpt_opts_words; of a run, those of its tree */
	struct ckpt_totals totals;  /* for a run: 0 where it has none of its own */
	bool in_run;		    /* it is shown in a run's tree */
	bool elsewhere;		    /* it is the base of an average, and not below the run */
};

/* A checkpoint that can be read. */
struct engine {
	struct tree tree; /* first, for engine_of */
	struct ckpt *c;	  /* the checkpoint it belongs to */
	const struct format *format;
	struct name_list metadata;
	struct catalog *catalog;
	char *index, *index_why; /* why it is not kept; NULL: it is, or was not to be */
	bool index_built;
	bool index_asked;	   /* opts.index was given */
	bool index_needed;	   /* it is being opened, with opts.need_index */
	bool refused_parts;	   /* opening has failed because data are missing */
	char *not_shown, *missing; /* see struct ckpt_totals */
	struct files *files;
	_Atomic uint32_t brought; /* the file that ckpt_source_bring has found last */
	struct rename *rename;
	struct digest renaming; /* digest of the renaming rules' text */
	struct layout *layout;
	struct model_recipe recipe;
	struct assets assets;
	struct average_plan average;
	struct others others;
	struct digest merging; /* of what is merged besides checkpoints: configurations, scales */
	struct dequantised dequantised;
	const char *quantised;	/* see look_for_codes in engine_derive.c */
	struct gguf_model gguf; /* of a GGUF */
	struct computed computed;
	struct view *view;
	struct fetch *fetch;
	uint64_t mtime_ns;    /* the latest of its metadata, and of what it is computed from */
	uint64_t metadata_ns; /* the latest of its metadata */
	char identity[67];
	/*
	 * Per tensor or object: 1 + the number of the data file that keeps it from being opened, or
	 * 0. NULL if all files are intact.
	 */
	uint32_t *tensor_bad, *object_bad;
	char **file_fault;	       /* by file: a sentence, or NULL */
	_Atomic uint64_t *object_size; /* for compressed objects, once known; by catalog number */
	_Atomic uint64_t *json_size;   /* the same for objects' values as JSON text */
	_Atomic uint64_t in_order;     /* bytes that readers have read in order */
	_Atomic uint64_t crowd;	       /* readers in order, see ahead.c */
	sem_t json_turn; /* limits conversion to one value at a time: each may need much memory */
	_Atomic(struct buf *) info;    /* info.json, built on first read */
	_Atomic(struct buf *) page[2]; /* the same for texts of .ckptfs/view, by enum view_page */
};

struct ckpt_file {
	struct engine *engine; /* the engine of the file's checkpoint; NULL for a run's own file */
	struct ckpt_run *run;  /* the run that the checkpoint belongs to, or NULL */
	struct run_child *child; /* the checkpoint's entry in the run */
	struct vfile v;
	/*
	 * Set if the file shows a single tensor. In other files each tensor is opened when it is
	 * read, because a file may contain a hundred thousand.
	 */
	struct tensor_reader *reader;
	struct ahead ahead;
	/* What ckpt_file_backing has found; NULL: it found nothing, or was not called. */
	struct files *backing;
	uint32_t backing_number;
};

#define ENGINE_CACHE ((uint64_t)256 << 20) /* the defaults of cache= and maps= */
#define ENGINE_MAPS  ((uint64_t)8 << 20)

/*
 * Special values in object_size, above all sizes. Failed: readers were given size 0 because the
 * object could not be read. Unknown: not yet requested.
 */
#define CKPT_SIZE_FAILED  (UINT64_MAX - 1)
#define CKPT_SIZE_UNKNOWN UINT64_MAX

/* Opens the checkpoint in a directory. `place` is taken over in any case; root is its path. */
int ckpt_open_place(struct place *place, const char *root, const struct ckpt_opts *opts,
		    struct ckpt **ret, struct ckpt_err *e);
/* Opens the run at a path to list its checkpoints, not to open them; 1: it is not a run. Of the
 * options, those that say how to reach it count. */
int ckpt_open_run(const char *path, const struct ckpt_opts *given, struct ckpt **ret,
		  struct ckpt_err *e);
/* c takes ownership of the storage of its options. */
void ckpt_keep_words(struct ckpt *c, struct arena *words);
/* Checks that there is a checkpoint at this path, or a file that is one, without opening it. */
int ckpt_probe(const char *path, struct ckpt_err *e);
/*
 * NULL for a run, with EISDIR in *e. A caller that holds a tensor, an object or a model of c need
 * not check: only a checkpoint with an engine has them.
 */
struct engine *ckpt_engine(const struct ckpt *c, struct ckpt_err *e);
/*
 * A directory, given by the first n_dir bytes of path, lacks the name that follows them: adds
 * similar names in that directory to the message.
 */
void ckpt_propose_path(struct ckpt *c, ckpt_node dir, const char *path, size_t n_dir,
		       const char *name, struct ckpt_err *e);

/* ---- an engine: engine.c, engine_derive.c, engine_faults.c, engine_view.c ---- */

/* Completes a new engine whose format and metadata files are known. */
int engine_open(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e);
void engine_free(struct engine *eng);
/* For a checkpoint that has not been read for a while: empties its cache and closes data files
 * until at most fds are open, and does the same for each checkpoint that it is computed from. */
void engine_trim(struct engine *eng, size_t fds);
/*
 * Chunk map of tensor i. If the index is damaged, the map comes from *renewed, which the caller
 * closes.
 */
int engine_load_map(struct engine *eng, struct catalog **renewed, size_t i, struct chunkmap **ret,
		    struct ckpt_err *e);
/*
 * Missing or short data files are an error, unless `allow` is set: then the tensors and objects
 * that need them are marked.
 */
int engine_find_faults(struct engine *eng, bool allow, struct ckpt_err *e);
/* Marks the tensors and objects that need unreadable files. Call it again after the numbers of
 * tensors have changed. */
int engine_find_victims(struct engine *eng, struct ckpt_err *e);
/* How many of the objects that are shown are lost or damaged. */
uint64_t engine_damaged_objects(const struct engine *eng);
/* An error if anything that is shown is incomplete. */
int engine_refuse_holes(const struct engine *eng, struct ckpt_err *e);
/* Reads the files that options name and finds the assets. */
int engine_read_options(struct engine *eng, const struct ckpt_opts *o, struct view_opts *ret,
			struct ckpt_err *e);
int engine_find_assets(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e);
/* Adds the tensors that options ask to compute to the catalog, and edits config.json accordingly:
 * before the tensors are used, when the assets are known. */
int engine_derive(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e);
/* Creates eng->view as the options request. */
int engine_show(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e);
/* For view_opts: .ckptfs/view. */
int engine_page(void *arg, enum view_page which, const char **ret, size_t *ret_len,
		struct ckpt_err *e);
int engine_tile(void *arg, size_t i, const struct tensor_info *t, const struct tile *tile,
		const struct tile_form *form, const char *name, struct buf *ret,
		struct ckpt_err *e);
uint64_t engine_tile_size(const struct tensor_info *t, const struct tile *tile,
			  const struct tile_form *form, const char *name);
/* 0, or the error with which opening without allow_missing fails. */
int engine_is_whole(const struct engine *eng, struct ckpt_err *e);
/* The engine as a tree. */
struct tree *ckpt_tree(struct engine *eng);
int ckpt_engine_open(struct tree *t, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e);
void engine_counters(struct tree *t, struct ckpt_counters *ret);
void ckpt_counters_add(struct ckpt_counters *to, struct ckpt *c);
int engine_absent(struct tree *t, uint64_t dir, const char *name, const char *path,
		  struct ckpt_err *e);
/*
 * A sentence that explains why a directory of the tree, or a name in it, does not exist; false: no
 * reason is known.
 */
bool engine_why_absent(const struct engine *eng, const char *face, const char *name, char *why,
		       size_t cap);
int engine_info(struct tree *t, char **ret, size_t *ret_len, struct ckpt_err *e);
/* ENOENT */
int ckpt_no_node(ckpt_node node, struct ckpt_err *e);
int engine_sources(struct tree *t, ckpt_node node,
		   int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		   struct ckpt_err *e);
static inline struct engine *engine_of(struct tree *t)
{
	return (struct engine *)(void *)t;
}
/* A file without content, or NULL. */
struct ckpt_file *ckpt_file_new(struct engine *eng, struct ckpt_err *e);
/* The last step of opening f: *ret is f, or, if rc is an error, f is closed. Returns rc. */
int ckpt_file_opened(struct ckpt_file *f, int rc, struct ckpt_file **ret);
/* The selected elements along each dimension. */
struct ckpt_steps {
	uint64_t start[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS], count[CKPT_MAX_DIMS];
};
/* start, stop, step: one per dimension, or NULL for all elements. EINVAL: not inside the tensor. */
int ckpt_steps_of(const struct tensor_info *t, const uint64_t *start, const uint64_t *stop,
		  const uint64_t *step, struct ckpt_steps *ret, struct ckpt_err *e);
/*
 * Opens the selected elements of a tensor, in row-major order. As in view_box, they must lie inside
 * the tensor.
 */
int ckpt_steps_open(struct engine *eng, const struct tensor_info *t, const uint64_t *off,
		    const uint64_t *step, const uint64_t *count, struct ckpt_file **ret,
		    struct ckpt_err *e);
/* Tensor i of the tree or of the model; EINVAL if there is none, as in a run. */
int ckpt_tensor_at(const struct ckpt *c, uint64_t i, struct tensor_info *ret, struct ckpt_err *e);
int ckpt_model_at(const struct ckpt *c, uint64_t i, struct tensor_info *ret, struct ckpt_err *e);
/* EIO if the tensor, or the object with that catalog number, cannot be read. */
int ckpt_readable(const struct engine *eng, const struct tensor_info *t, struct ckpt_err *e);
int ckpt_object_readable(const struct engine *eng, const char *fqn, size_t len, size_t number,
			 struct ckpt_err *e);
/* Removes the tensor's name from the beginning of a message that is shown beside that name: "tensor
 * 'w' cannot be read: data file ..." becomes "data file ...". */
void ckpt_drop_name(const char *fqn, size_t len, struct ckpt_err *e);
/* The rank that wrote a data file, according to its name; -1: the name does not tell. */
long ckpt_rank_of(const char *path);
/* *ret is the number of ranks that the data files are named after; 0: they are not named after
 * ranks. Fails only with -ENOMEM. */
int ckpt_ranks_of(const struct stored_file *files, size_t n, uint64_t *ret);
uint64_t ckpt_chunks_of(const struct engine *eng, const struct tensor_info *t);
int ckpt_files_of(struct engine *eng, const struct tensor_info *t, uint64_t *ret,
		  struct ckpt_err *e);
/* How an object is stored. */
enum object_form ckpt_object_form(const struct engine *eng, const struct ckpt_object *o);
const char *ckpt_fault_of(const struct engine *eng, const struct tensor_info *t);
/* Decoded size of an object, by catalog number. */
int ckpt_object_size(struct engine *eng, size_t i, uint64_t *ret, struct ckpt_err *e);
/* Appends an object's value as JSON text, by catalog number; or returns the size of that text. */
int engine_object_json(struct engine *eng, size_t i, struct buf *ret, struct ckpt_err *e);
int engine_object_json_size(struct engine *eng, size_t i, uint64_t *ret, struct ckpt_err *e);
/* Why a tensor or object cannot be opened, by catalog number; NULL: it can be opened. */
const char *ckpt_tensor_fault(const struct engine *eng, size_t i);
const char *ckpt_object_fault(const struct engine *eng, size_t i);

#endif

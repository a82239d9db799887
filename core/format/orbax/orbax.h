/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orbax - the pieces of the reader of JAX checkpoints. Private to core/format/orbax.
 *
 * orbax_find.c knows the directories, orbax_store.c OCDBT, orbax_tree.c the names of leaves,
 * orbax_flax.c files of msgpack, and orbax_shards.c models in several of these; orbax.c puts them
 * together.
 *
 * Threads: one at a time.
 */
#ifndef FORMAT_ORBAX_ORBAX_H
#define FORMAT_ORBAX_ORBAX_H

#include "base/arena.h"
#include "base/buf.h"
#include "format/format.h"

struct orbax_tree;
struct pk_strings;
struct zarr_store;

/* ---- directories ---- */

/* A directory with arrays. */
struct orbax_item {
	char *top;	  /* "DIR/", or "" for the checkpoint itself */
	bool has_store;	  /* manifest.ocdbt */
	bool has_tree;	  /* _METADATA */
	bool has_msgpack; /* checkpoint */
	bool has_dirs;	  /* no store: arrays are directories */
};

struct orbax_found {
	struct orbax_item *v;
	size_t n, cap;
	struct name_list files;	  /* that the index depends on; not those of items' trees */
	struct name_list msgpack; /* without items: files of a Flax model */
	bool has_index;		  /* which names more of them, perhaps */
};

/* 1, 0, or an error: it looks like one and is not complete, or cannot be read. */
int orbax_find(struct place *place, struct orbax_found *ret, struct ckpt_err *e);
void orbax_found_release(struct orbax_found *f);
/* Does the file begin like one of msgpack? 1, 0, or an error: it cannot be read. */
int orbax_is_msgpack(struct place *place, const char *file, struct ckpt_err *e);

/* ---- a Flax model in several files ---- */

#define ORBAX_FLAX_INDEX "flax_model.msgpack.index.json"

bool orbax_is_shard(const char *name);
/* Lists in f->msgpack those that there are, or those that the index names, by strcmp. */
int orbax_find_shards(struct place *place, const struct name_list *names, bool has_index,
		      struct orbax_found *f, struct ckpt_err *e);
/* Without an index: are all files there, of one save? */
int orbax_check_shards(const struct orbax_found *f, struct ckpt_err *e);
/* Makes a tree of the names in the index; the type of each leaf is the file where it should be. */
int orbax_read_index(struct place *place, struct orbax_tree *ret, struct ckpt_err *e);
/* Reports the leaves of that tree that were not found; files: all that there are, by strcmp. */
int orbax_tell_absent(const struct orbax_tree *t, const struct name_list *files,
		      struct catalog_writer *w, struct ckpt_err *e);

/* ---- names ---- */

enum { ORBAX_MAX_STEPS = 256 };

/* An FQN, step by step. */
struct orbax_name {
	struct buf fqn;
	size_t n;
	uint32_t len[ORBAX_MAX_STEPS];
	bool is_position[ORBAX_MAX_STEPS];
};

#define ORBAX_MAX_FQN 65535
#define ORBAX_NAME_INIT \
	{ \
		.fqn = BUF_INIT(ORBAX_MAX_FQN) \
	}

/* Appends a step; EFBIG if there are too many, or too long ones. orbax_name_cut drops all but n. */
int orbax_name_add(struct orbax_name *n, const char *s, size_t len, bool is_position,
		   struct ckpt_err *e);
void orbax_name_cut(struct orbax_name *n, size_t steps);
void orbax_name_release(struct orbax_name *n);
/* Its path (index/catalog_path.h), in the arena. */
const uint8_t *orbax_name_path(const struct orbax_name *n, struct arena *a, struct ckpt_err *e);

/* ---- leaves ---- */

enum orbax_kind { ORBAX_ARRAY, ORBAX_STRING, ORBAX_EMPTY, ORBAX_CUSTOM };

struct orbax_leaf {
	const char *name; /* keys joined with '.' */
	size_t len;
	const uint8_t *path; /* with the item's prefix */
	const char *type;
	enum orbax_kind kind;
	bool found;
};

struct orbax_tree {
	struct arena arena;
	struct orbax_leaf *v; /* by name */
	size_t n, cap;
	bool absent_is_damage; /* all chunks are stored, those of the fill value too */
};

/* Reads TOP/_METADATA. prefix: of all FQNs, a step or none. */
int orbax_tree_read(struct place *place, const struct orbax_item *item,
		    const struct orbax_name *prefix, struct orbax_tree *ret, struct ckpt_err *e);
void orbax_tree_release(struct orbax_tree *t);
/* Adds a leaf with a copy of its type, and the name without the prefix. Sort before searching. */
int orbax_tree_add(struct orbax_tree *t, const struct orbax_leaf *about,
		   const struct orbax_name *name, const struct orbax_name *prefix,
		   struct ckpt_err *e);
void orbax_tree_sort(struct orbax_tree *t);
struct orbax_leaf *orbax_tree_find(struct orbax_tree *t, const char *name, size_t len);
/* Reports string leaves, and those that are nowhere. */
int orbax_tree_report(struct orbax_tree *t, struct place *place, const struct orbax_item *item,
		      const struct orbax_name *prefix, struct catalog_writer *w,
		      struct ckpt_err *e);

/* ---- msgpack ---- */

/*
 * Reports what is in the file. A placeholder of an array in the store beside it is left out if the
 * array is one of `arrays`, those that have been reported; else the array is read as it is
 * described in the file, or reported as missing. store and arrays may be NULL.
 */
int orbax_flax_read(struct place *place, const char *file, const struct orbax_name *prefix,
		    struct orbax_tree *t, struct zarr_store *store, const struct pk_strings *arrays,
		    struct catalog_writer *w, uint64_t *total, struct ckpt_err *e);

#endif

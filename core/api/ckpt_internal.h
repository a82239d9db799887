/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_internal - the parts of an opened checkpoint, for the files of core/api.
 */
#ifndef API_CKPT_INTERNAL_H
#define API_CKPT_INTERNAL_H

#include "api/assets.h"
#include "api/ckpt.h"
#include "api/model_recipe.h"
#include "format/format.h"
#include "view/vfile.h"

#include <stdatomic.h>

struct catalog;
struct ckpt_run;
struct fetch;
struct files;
struct layout;
struct rename;
struct run_child;
struct view;
struct view_tensor;
struct vreader;

/* Of a run: root, dir, dirfd, run, and what its options were found to be. */
struct ckpt {
	char *root;	  /* absolute path of the checkpoint */
	char *dir;	  /* of its directory: root, or where the file is */
	const char *file; /* NULL, or the file's name: the end of root */
	int dirfd;
	struct ckpt_run *run; /* or NULL */
	const struct format *format;
	struct name_list metadata;
	struct catalog *catalog;
	char *index;
	bool index_built;
	struct files *files;
	struct rename *rename;
	struct layout *layout;
	struct model_recipe recipe;
	struct assets assets;
	struct view *view;
	struct fetch *fetch;
	uint64_t mtime_ns;
	char identity[67];
	/* Which data file, if any, keeps a tensor or object from being opened: number + 1. NULL
	 * when all files are well. */
	uint32_t *tensor_bad, *object_bad;
	char **file_fault;	       /* by file: sentence or NULL */
	_Atomic uint64_t *object_size; /* of compressed objects, once known; by catalog number */
	struct ckpt_totals totals;
	_Atomic(struct buf *) info; /* info.json, once somebody has read it */
};

struct ckpt_file {
	struct ckpt *c;		 /* the checkpoint that it is a file of */
	struct ckpt_run *run;	 /* NULL, or what the checkpoint is a part of, */
	struct run_child *child; /* and as what */
	struct vfile v;
	/* Where just one tensor is in it; of several, each is opened when it is read: a file may
	 * consist of a hundred thousand. */
	struct vreader *reader;
	/* What ckpt_file_backing has found; NULL: nothing, or it was not asked. */
	struct files *backing;
	uint32_t backing_number;
};

/* In object_size, above all sizes: 0 was answered, because it could not be read; not asked for. */
#define CKPT_SIZE_FAILED  (UINT64_MAX - 1)
#define CKPT_SIZE_UNKNOWN UINT64_MAX

/* The checkpoint in a directory: dirfd, which is taken over in any case; root is its absolute path.
 */
int ckpt_open_dir(int dirfd, const char *root, const struct ckpt_opts *opts, struct ckpt **ret,
		  struct ckpt_err *e);
/* Is there a checkpoint at this path, or a file that is one? Nothing of it is opened. */
int ckpt_probe(const char *path, struct ckpt_err *e);
/* A file without content yet, or NULL. */
struct ckpt_file *ckpt_file_new(struct ckpt *c, struct ckpt_err *e);
/* Elements of a tensor, inside of which they lie, as view_box has them, in row-major order. */
int ckpt_steps_open(struct ckpt *c, const struct view_tensor *t, const uint64_t *off,
		    const uint64_t *step, const uint64_t *count, struct ckpt_file **ret,
		    struct ckpt_err *e);
/* EIO where the tensor cannot be read. */
int ckpt_readable(const struct ckpt *c, const struct view_tensor *t, struct ckpt_err *e);
/* Of a tensor that is shown: the chunks of the stored ones that it is made of, their distinct
 * source files, and why it cannot be opened, or NULL. */
uint64_t ckpt_chunks_of(const struct ckpt *c, const struct view_tensor *t);
int ckpt_files_of(struct ckpt *c, const struct view_tensor *t, uint64_t *ret, struct ckpt_err *e);
const char *ckpt_fault_of(const struct ckpt *c, const struct view_tensor *t);
/* Decoded size of an object, by catalog number. */
int ckpt_object_size(struct ckpt *c, size_t i, uint64_t *ret, struct ckpt_err *e);
/* Why a tensor or object cannot be opened, by catalog number; NULL if it can. */
const char *ckpt_tensor_fault(const struct ckpt *c, size_t i);
const char *ckpt_object_fault(const struct ckpt *c, size_t i);

#endif

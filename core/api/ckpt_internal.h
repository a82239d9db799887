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

#include <stdatomic.h>

struct catalog;
struct fetch;
struct files;
struct layout;
struct rename;
struct view;
struct view_tensor;

struct ckpt {
	char *root;	  /* absolute path of the checkpoint */
	char *dir;	  /* of its directory: root, or where the file is */
	const char *file; /* NULL, or the file's name: the end of root */
	int dirfd;
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
	/* Which data file, if any, keeps a tensor or object from being opened: number + 1. NULL when
	 * all files are well. */
	uint32_t *tensor_bad, *object_bad;
	char **file_fault;	       /* by file: sentence or NULL */
	_Atomic uint64_t *object_size; /* of compressed objects, once known; by catalog number */
	struct ckpt_totals totals;
	char *info;
	size_t info_len;
};

/* In object_size, above all sizes: 0 was answered, because it could not be read; not asked for. */
#define CKPT_SIZE_FAILED  (UINT64_MAX - 1)
#define CKPT_SIZE_UNKNOWN UINT64_MAX

/* Of a tensor that is shown: the chunks of the stored ones that it is made of, their distinct
 * source files, and why it cannot be opened, or NULL. */
uint64_t ckpt_chunks_of(const struct ckpt *c, const struct view_tensor *t);
int ckpt_files_of(struct ckpt *c, const struct view_tensor *t, uint64_t *ret, struct err *e);
const char *ckpt_fault_of(const struct ckpt *c, const struct view_tensor *t);
/* Decoded size of an object, by catalog number. */
int ckpt_object_size(struct ckpt *c, size_t i, uint64_t *ret, struct err *e);
/* Why a tensor or object cannot be opened, by catalog number; NULL if it can. */
const char *ckpt_tensor_fault(const struct ckpt *c, size_t i);
const char *ckpt_object_fault(const struct ckpt *c, size_t i);

#endif

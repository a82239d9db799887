/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron - code shared by the two backends of Megatron-core checkpoints.
 *
 * Private to core/format/megatron. Threads: pure apart from the file system.
 */
#ifndef MEGATRON_MEGATRON_H
#define MEGATRON_MEGATRON_H

#include "format/format.h"

#include <limits.h>

#define MEGATRON_DIR_CAP 32 /* bytes for the longest directory, "model_weights/" */

/*
 * Is this a Megatron-core checkpoint of that backend? 1 and its subdirectory, "" or ending in a
 * slash; 0; or < 0 if it is one that cannot be read.
 */
int megatron_find(struct place *place, const char *backend, char dir[static MEGATRON_DIR_CAP],
		  struct ckpt_err *e);

/* `dir` and a name in it. */
int megatron_path(const char *dir, const char *name, char out[static PATH_MAX], struct ckpt_err *e);
/* Adds dir/name to the list of metadata files if it exists: 1, 0, or < 0. */
int megatron_list(struct place *place, const char *dir, const char *name, struct name_list *files,
		  struct ckpt_err *e);
/*
 * Reports common.pt, which holds everything that is not sharded, as an object if it is on the list.
 * After core_v0.18 there is no such file; that state is an object like any other.
 */
int megatron_add_common(struct place *place, const struct name_list *files,
			struct catalog_writer *w, struct ckpt_err *e);
/* Reports a whole file as an object. */
int megatron_add_object(struct catalog_writer *w, const char *name, const char *path, uint64_t size,
			struct ckpt_err *e);
/* The last element of a path. */
const char *megatron_base(const char *path);

#endif

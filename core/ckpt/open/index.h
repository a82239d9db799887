/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index - finds a checkpoint's chunk index and checks that it is still valid.
 *
 * The index is a cache, keyed by the metadata files it was made from (by their identities, or by a
 * content hash if those differ) and shared by all processes that open the checkpoint: one builds it
 * while the others wait. Private to core/ckpt.
 *
 * Threads: any; a lock file excludes other processes.
 */
#ifndef CKPT_INDEX_H
#define CKPT_INDEX_H

#include "format/format.h"

#include <stdbool.h>

struct catalog;
struct ckpt_err;
struct place;

struct index_request {
	struct place *place; /* the checkpoint */
	const char *root;    /* its absolute path */
	bool is_file;	     /* the checkpoint is a single file, and place is its directory */
	const struct format *format;
	const struct name_list *files; /* its metadata files */
	const char *where;	       /* a path, ":memory:", or NULL for the default */
	bool rebuild;
	bool needed; /* -ENODATA if there is no fresh one: it is not built */
	char **why;  /* if not NULL: set to why it is not kept, which the caller frees */
	struct scan_opts scan;
};

/* *ret_path is the index's path, or ":memory:"; the caller frees it. */
int index_open(const struct index_request *rq, struct catalog **ret, char **ret_path,
	       bool *ret_built, struct ckpt_err *e);

/* Do the files that it was just made from still look the same? */
bool index_still_matches(const struct index_request *rq, const struct catalog *c);

/* May the index that index_open has found or built be extended? */
bool index_may_grow(const struct index_request *rq, const char *path);

/* Is the index at this path in the checkpoint's own directory? root: absolute. */
bool index_is_beside(const char *root, const char *path);

/* The default directory, created if needed; the caller frees it. NULL: there is none that can be
 * used. */
char *index_cache_dir(void);

#endif

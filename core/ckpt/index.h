/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index - where a checkpoint's chunk index is kept, and whether it is still true.
 *
 * It is a cache: keyed by the metadata files it was made from (their identities; content hash
 * where those differ), shared by all that open the checkpoint; one builds it while the others wait.
 * Private to core/ckpt.
 *
 * Threads: any; processes are kept apart by a lock file.
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
	bool is_file;	     /* the checkpoint is one file, and place its directory */
	const struct format *format;
	const struct name_list *files; /* its metadata files */
	const char *where;	       /* a path, ":memory:", or NULL for the default */
	bool rebuild;
	struct scan_opts scan;
};

/* *ret_path is the caller's to free: the index's path, or ":memory:". */
int index_open(const struct index_request *rq, struct catalog **ret, char **ret_path,
	       bool *ret_built, struct ckpt_err *e);

/* May more be put into the index that index_open has found or made? */
bool index_may_grow(const struct index_request *rq, const char *path);

/* Where it is kept by default, made if need be; the caller's to free. NULL: there is no such place.
 */
char *index_cache_dir(void);

#endif

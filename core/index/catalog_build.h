/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_build - writes a chunk index from what a format reader reports.
 *
 * Reports may come in any order; tensors are numbered in natural order of their FQNs at the end.
 * Chunk lists are normalised on the way in: empty chunks and replicas dropped, grids recognised,
 * holes and overlaps detected. The file is written under a temporary name and renamed once complete
 * and synced, so a kill at any moment leaves the old index or none.
 *
 * Threads: one at a time.
 */
#ifndef INDEX_CATALOG_BUILD_H
#define INDEX_CATALOG_BUILD_H

#include "model/chunkmap.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_writer;
struct ckpt_err;
struct digest;
struct place_seen;

#define CATALOG_NO_FILE UINT32_MAX /* chunk_loc.file of a chunk that is listed but stored nowhere */

#define CATALOG_UNFINISHED ".tmp" /* behind the name of an index that is being built */

/* May an index be built at path? EEXIST, with a sentence: something would be lost other than an
 * index, an empty file, or what a killed builder has left, as when a user has named the wrong
 * file. */
int catalog_check_replaceable(const char *path, struct ckpt_err *e);

/* path NULL: in memory. catalog_writer_finish replaces the file at path. */
int catalog_writer_new(const char *path, const char *format, const char *root,
		       struct catalog_writer **ret, struct ckpt_err *e);
/* Has a function failed because the file cannot be written? Then an index in memory may work. */
bool catalog_writer_unwritable(const struct catalog_writer *w);
/* Discards an unfinished index and its temporary file. NULL is fine. */
void catalog_writer_free(struct catalog_writer *w);

/* Numbers for a data file (relative path, checked here) and for an encoding; equal ones get the
 * same number. */
int catalog_add_source(struct catalog_writer *w, const char *path, size_t len, uint32_t *ret,
		       struct ckpt_err *e);
int catalog_add_encoding(struct catalog_writer *w, const char *name, uint32_t *ret,
			 struct ckpt_err *e);

#define CATALOG_MAX_INLINE ((size_t)256 << 20) /* bytes of all chunks kept in the index */

/* Keeps a chunk's bytes in the index; sets the file, offset and length of *loc. EFBIG: there are
 * more of them than the index may have. */
int catalog_add_inline(struct catalog_writer *w, const void *bytes, size_t len,
		       struct chunk_loc *loc, struct ckpt_err *e);

/* A file that the index depends on, as it was when read, or NULL if it was missing; hash is the
 * XXH3-128 of its bytes, or NULL for a data file, which is too large to hash: then its identity
 * must not change. A file may be added several times. */
int catalog_add_metadata(struct catalog_writer *w, const char *name, const struct place_seen *seen,
			 const struct digest *hash, struct ckpt_err *e);

struct tensor_chunks {
	const char *fqn;
	size_t fqn_len;
	const uint8_t *path; /* of this FQN, see catalog_path.h; NULL: unknown */
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	size_t n_before; /* dimensions before flattening (model/flat.h); 0: it was not flattened */
	const uint64_t *before; /* the shape, ignored if it is impossible */
	uint32_t count;
	const uint64_t *boxes; /* count rows of offsets and lengths, in listing order */
	const struct chunk_loc *locs;
	const char *fault; /* why it cannot be read whatever chunks it has; or NULL */
	bool apart;	   /* only copies may overlap; else files are from two saves */
};
/* Fails if a number is impossible: a box outside the shape, sizes beyond 2^63-1. */
int catalog_add_tensor(struct catalog_writer *w, const struct tensor_chunks *t, struct ckpt_err *e);

/*
 * Bytes of a data file; or, if loc.file is CATALOG_NO_FILE, `text`, which the index stores; or,
 * without a text, nothing, and `fault` says why (NULL: listed, but stored nowhere).
 */
struct object_item {
	const char *fqn;
	size_t fqn_len;
	const uint8_t *path; /* as of a tensor */
	struct chunk_loc loc;
	const char *text;
	size_t text_len;
	const char *fault;
};

#define CATALOG_MAX_TEXT ((size_t)64 << 20) /* bytes of all objects' texts; more is EFBIG */

int catalog_add_object(struct catalog_writer *w, const struct object_item *o, struct ckpt_err *e);

/* Writes the rest, syncs, renames, and opens the index for reading. The writer must still be
 * freed. */
int catalog_writer_finish(struct catalog_writer *w, struct catalog **ret, struct ckpt_err *e);

#endif

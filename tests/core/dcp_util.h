/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_util - checkpoints written without torch: .metadata and data files.
 *
 *	struct dcp d;
 *	dcp_begin(&d, dirfd);
 *	dcp_scene(&d, "w", 1, &scene, 0, 0);
 *	dcp_end(&d, ".metadata");
 *
 * Threads: one at a time.
 */
#ifndef TESTS_DCP_UTIL_H
#define TESTS_DCP_UTIL_H

#include "model/chunkmap.h"
#include "model/dtype.h"
#include "pickle_util.h"
#include "scene_util.h"

#include <stddef.h>
#include <stdint.h>

enum { DCP_FILES = 4, DCP_NO_OFFSET = 65 };

struct dcp {
	int dirfd;
	const char *prefix;	    /* of data files: PREFIX0.distcp ...; dcp_begin sets "__0_" */
	struct emit state, storage; /* the pairs in state_dict_metadata and storage_data */
	struct emit planner;	    /* pairs of planner_data, or its whole value if that is odd */
	enum { PLANNER_PAIRS, PLANNER_VALUE, PLANNER_ABSENT } planner_is;
	struct emit more;   /* further attributes, each a name and a value */
	bool planner_first; /* the first attribute; otherwise the second, as torch writes it */
	struct buf files[DCP_FILES];
	bool used[DCP_FILES];
};

void dcp_begin(struct dcp *d, int dirfd);
/* Write the data files and the metadata file of that name, and free all. */
void dcp_end(struct dcp *d, const char *metadata);

/* ---- entry by entry ---- */

/* Append n bytes, packed `layers` times, to data file `file`. */
struct chunk_loc dcp_item(struct dcp *d, unsigned file, const void *p, size_t n, unsigned layers);
/* An entry of state_dict_metadata. boxes: count rows. */
void dcp_tensor(struct dcp *d, const char *fqn, size_t len, const char *dtype, size_t n_dims,
		const uint64_t *shape, uint32_t count, const uint64_t *boxes);
void dcp_object(struct dcp *d, const char *fqn, size_t len);
/* An entry of planner_data: the value is state_dict[keys[0]]...[keys[n-1]]. */
void dcp_path(struct dcp *d, const char *fqn, size_t len, size_t n, const char *const *keys);
/* An entry of storage_data. n_dims DCP_NO_OFFSET: that of an object. */
void dcp_stored(struct dcp *d, const char *fqn, size_t len, size_t n_dims, const uint64_t *off,
		const char *path, int64_t offset, int64_t length, unsigned layers);

/* ---- whole ones ---- */

/* DCP tells chunks apart by their offsets, so no two may have the same. */
bool dcp_can_hold(const struct scene *s);
/* A dtype of that many bytes: 1, 2, 4, 8 or 16. */
enum ckpt_dtype dcp_dtype(uint32_t element);
/*
 * Stores the scene's chunks as torch.save items, spread over the data files from `file` on. Strides
 * must be whole elements (not ROWS_BYTES).
 */
void dcp_scene(struct dcp *d, const char *fqn, size_t len, const struct scene *s, unsigned file,
	       unsigned layers);
/* The same with another dtype of that size. */
void dcp_scene_as(struct dcp *d, const char *fqn, size_t len, const struct scene *s,
		  enum ckpt_dtype dtype, unsigned file, unsigned layers);
/* An object of those bytes. */
void dcp_bytes(struct dcp *d, const char *fqn, size_t len, const void *p, size_t n, unsigned file,
	       unsigned layers);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr_dir - a directory of files as a zarr store.
 *
 *	struct zarr_dir d;
 *
 *	zarr_dir_init(&d, place, "weights/", w);
 *	rc = d.s.ops->arrays(&d.s, each, arg, &e);
 *
 * The index depends on every directory that was listed, except the place itself, by its time, and
 * on the metadata of every array, by its hash. Links are followed inside the place; on the way to
 * an array, at most one link to a directory.
 *
 * Threads: one at a time.
 */
#ifndef FORMAT_ZARR_ZARR_DIR_H
#define FORMAT_ZARR_ZARR_DIR_H

#include "format/zarr/zarr_store.h"

struct catalog_writer;

struct zarr_dir {
	struct zarr_store s;
	const char *top; /* "DIR/", or "" for the place itself; borrowed */
	struct catalog_writer *w;
	size_t dirs; /* listed so far */
};

void zarr_dir_init(struct zarr_dir *d, struct place *place, const char *top,
		   struct catalog_writer *w);

#endif

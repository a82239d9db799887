/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunkmap - the chunks of one tensor: where each is stored, and which of them a box intersects.
 *
 * Chunks that form a grid are found by cell arithmetic (a division where the cells of a
 * dimension are equally long, a binary search where they are not); others by binary search along
 * the dimension with the most distinct starts. Built by chunkmap_new, immutable afterwards.
 *
 * Threads: any number may read one map.
 */
#ifndef MODEL_CHUNKMAP_H
#define MODEL_CHUNKMAP_H

#include <stddef.h>
#include <stdint.h>

struct chunk_loc {
	uint64_t offset, length; /* the item's bytes in its file, as stored */
	uint32_t file;		 /* index into the catalog's sources */
	uint32_t encoding;	 /* index into the catalog's encodings */
};

struct chunkmap {
	uint32_t n_dims, count;
	const uint64_t *shape;
	struct chunk_loc *locs; /* count of them; filled in by the caller of chunkmap_new */

	const uint64_t *counts; /* a grid: cells per dimension; otherwise NULL */
	const uint64_t *starts; /* a grid: first index of every cell, dimension after dimension */
	const uint64_t *steps;	/* a grid: length of every cell but the last, 0 when they differ */

	const uint64_t *boxes; /* no grid: rows of offsets and lengths, in listing order */
	const uint32_t *order; /* no grid: chunks by start in dimension sweep_dim */
	uint64_t max_extent;   /* no grid: longest chunk in that dimension */
	uint32_t sweep_dim;

	size_t bytes; /* memory of the whole map */
};

/*
 * boxes: count rows of 2*n_dims numbers, none empty, all inside shape; in row-major order if they
 * form a grid (see boxes_grid). Copied. NULL: out of memory. Free with free().
 */
struct chunkmap *chunkmap_new(size_t n_dims, const uint64_t *shape, const uint64_t *boxes,
			      uint32_t count);

/* Box of chunk i into off[n_dims], len[n_dims]. */
void chunkmap_box(const struct chunkmap *m, uint32_t i, uint64_t *off, uint64_t *len);

/*
 * Calls visit for every chunk that intersects the box (not empty, inside shape), with the
 * intersection; the arrays are valid during the call. Where chunks overlap, the one listed later
 * comes later and so wins, as in torch. Stops at a non-zero return and returns it; -ENOMEM.
 */
typedef int chunk_visit_fn(void *arg, uint32_t chunk, const uint64_t *chunk_off,
			   const uint64_t *chunk_len, const uint64_t *off, const uint64_t *len);
int chunkmap_find(const struct chunkmap *m, const uint64_t *off, const uint64_t *len,
		  chunk_visit_fn *visit, void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scene_util - a random tensor in chunks, whose items are in memory, and its bytes assembled
 * element by element, for comparison with plan, gather and fetch.
 *
 * There are grids, irregular tilings and overlapping lists in which the later chunk wins. Items are
 * dense, transposed, padded, overlapping or have strides of 0.
 */
#ifndef TESTS_SCENE_UTIL_H
#define TESTS_SCENE_UTIL_H

#include "format/item.h"
#include "model/box.h"
#include "model/chunkmap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the numbers come from: a generator, or a fuzzer's input. 0 <= below(n) < n. */
struct choose {
	uint64_t (*below)(void *arg, uint64_t n);
	void *arg;
};
struct rng;
struct choose choose_rng(struct rng *r);

enum scene_tiling { TILE_GRID, TILE_CUTS, TILE_OVERLAPS, TILE_ANY };
enum scene_strides {
	ROWS_DENSE,
	ROWS_PERMUTED,
	ROWS_PADDED,
	ROWS_ZERO,
	ROWS_SMALL,
	ROWS_BYTES,
	ROWS_ANY
};

struct scene_opts {
	size_t max_dims;
	uint64_t max_elements;
	uint32_t element; /* bytes; 0: 1, 2, 4, 8 or 16 */
	enum scene_tiling tiling;
	enum scene_strides strides;
};

struct scene {
	size_t n;
	uint64_t shape[CKPT_MAX_DIMS];
	uint32_t element; /* bytes */
	uint64_t bytes;	  /* of the tensor */
	bool overlap;	  /* some element is in several chunks */
	uint32_t count;
	uint64_t *boxes; /* count rows of 2n numbers */
	struct payload *payloads;
	uint64_t *strides;
	uint8_t **items;
	uint64_t *item_len; /* up to the last element, not beyond */
	struct chunkmap *map;
	uint8_t *want; /* the tensor's bytes */
};

/* The bytes of the elements come from below(). */
void scene_make(struct scene *s, const struct choose *c, const struct scene_opts *o);
/* The same for a tensor whose shape is given. */
void scene_make_shape(struct scene *s, const struct choose *c, const struct scene_opts *o, size_t n,
		      const uint64_t *shape);
/*
 * The same for a tensor whose shape and chunks are given; payloads as o->strides says.
 * boxes: count rows.
 */
void scene_make_of(struct scene *s, const struct choose *c, const struct scene_opts *o, size_t n,
		   const uint64_t *shape, uint32_t count, const uint64_t *boxes);
void scene_release(struct scene *s);

/* Memory for a tensor's elements: dimensions in any order, forwards or backwards, with gaps. */
struct scene_memory {
	int64_t stride[CKPT_MAX_DIMS];
	uint64_t first, bytes; /* where element 0 goes; the size of all of it */
};
void scene_memory_make(struct scene_memory *m, const struct scene *s, struct rng *r);
/* Put bytes [off, off+len) of the tensor there, one by one. */
void scene_memory_fill(const struct scene_memory *m, const struct scene *s, uint64_t off,
		       uint64_t len, uint8_t *ret);

/* Step idx through [0, len) in row-major order; false after the last. */
bool next_index(size_t n, const uint64_t *len, uint64_t *idx);

#endif

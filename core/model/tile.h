/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tile - squares of cells that show the values of a tensor at several resolutions.
 *
 * A tensor is taken for a stack of matrices: of its last two dimensions, one for each index of the
 * others (a slice). With one dimension it is a matrix of one row. At level 0 a cell is an element;
 * at each level above, a cell stands for twice as many elements in both directions. The last level
 * shows a whole matrix in one tile.
 *
 * Tiles of a tensor are numbered from 0, slice by slice, level by level, row by row, so that a
 * number needs no more room than a file's node has.
 *
 * Threads: pure.
 */
#ifndef MODEL_TILE_H
#define MODEL_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TILE_SIDE = 256,  /* cells of a tile, at most, in each direction */
	TILE_SAMPLES = 4, /* elements of a cell that are read, at most, in each direction */
};

struct tile {
	uint64_t slice, row, col; /* row, col: which of the level's tiles */
	unsigned level;
};

/* What a file shows of a tile: the values of its cells, or a picture in which the colours of the
 * scale end at -2^exponent and 2^exponent. */
enum { TILE_MIN_EXP = -149, TILE_MAX_EXP = 128 }; /* of float32 */
struct tile_form {
	bool picture;
	int exponent;
};

/* The matrices of a tensor. */
struct tile_matrix {
	uint64_t slices, rows, cols;
};
/* False: the tensor has no elements, or too many to count. */
bool tile_matrix(size_t n_dims, const uint64_t *shape, struct tile_matrix *ret);

/* The number of tiles of the tensor; false if it does not fit 63 bits. */
bool tile_count(const struct tile_matrix *m, uint64_t *ret);
/* False: there is no such tile. */
bool tile_number(const struct tile_matrix *m, const struct tile *t, uint64_t *ret);
/* n < tile_count */
void tile_at(const struct tile_matrix *m, uint64_t n, struct tile *ret);

/* What a tile shows in one direction, in which its matrix has `n` elements. */
struct tile_span {
	uint64_t first; /* element */
	unsigned cells;
	/* Samples: elements first, first + step, ...; `each` of them for a cell, but the last cell
	 * may have fewer. */
	uint64_t step, samples;
	unsigned each;
};
/* The tile must exist. at: its row or column. */
void tile_span(uint64_t n, unsigned level, uint64_t at, struct tile_span *ret);

#endif

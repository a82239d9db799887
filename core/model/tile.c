/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tile.h"

#include "base/checked.h"
#include "model/box.h"

bool tile_matrix(size_t n_dims, const uint64_t *shape, struct tile_matrix *ret)
{
	uint64_t all;

	if (!box_volume(n_dims, shape, &all) || !all)
		return false;
	ret->cols = n_dims ? shape[n_dims - 1] : 1;
	ret->rows = n_dims > 1 ? shape[n_dims - 2] : 1;
	ret->slices = all / ret->cols / ret->rows;
	return true;
}

/* How many tiles cover n elements. */
static uint64_t tiles_along(uint64_t n, unsigned level)
{
	return ((n - 1) >> level) / TILE_SIDE + 1;
}

static bool is_last(const struct tile_matrix *m, unsigned level)
{
	return tiles_along(m->rows, level) == 1 && tiles_along(m->cols, level) == 1;
}

/* The tiles of a slice; cannot overflow, because a matrix has fewer tiles than elements +
 * levels. */
static uint64_t tiles_of_slice(const struct tile_matrix *m)
{
	uint64_t n = 0;

	for (unsigned level = 0;; level++) {
		n += tiles_along(m->rows, level) * tiles_along(m->cols, level);
		if (is_last(m, level))
			return n;
	}
}

bool tile_count(const struct tile_matrix *m, uint64_t *ret)
{
	return !ckd_mul(ret, tiles_of_slice(m), m->slices) && *ret <= INT64_MAX;
}

bool tile_number(const struct tile_matrix *m, const struct tile *t, uint64_t *ret)
{
	uint64_t n = 0;

	if (t->slice >= m->slices)
		return false;
	for (unsigned level = 0; level < t->level; level++) {
		n += tiles_along(m->rows, level) * tiles_along(m->cols, level);
		if (is_last(m, level))
			return false;
	}
	if (t->row >= tiles_along(m->rows, t->level) || t->col >= tiles_along(m->cols, t->level))
		return false;
	*ret = t->slice * tiles_of_slice(m) + n + t->row * tiles_along(m->cols, t->level) + t->col;
	return true;
}

void tile_at(const struct tile_matrix *m, uint64_t n, struct tile *ret)
{
	uint64_t each = tiles_of_slice(m), wide, all;

	*ret = (struct tile){ .slice = n / each };
	n %= each;
	for (;; ret->level++) {
		wide = tiles_along(m->cols, ret->level);
		all = wide * tiles_along(m->rows, ret->level);
		if (n < all)
			break;
		n -= all;
	}
	ret->row = n / wide;
	ret->col = n % wide;
}

void tile_span(uint64_t n, unsigned level, uint64_t at, struct tile_span *ret)
{
	uint64_t cell = (uint64_t)1 << level, left;

	ret->first = (at * TILE_SIDE) << level;
	left = n - ret->first;
	ret->cells = (unsigned)min_u64(TILE_SIDE, ((left - 1) >> level) + 1);
	ret->each = (unsigned)min_u64(cell, TILE_SAMPLES);
	ret->step = cell / ret->each;
	left = min_u64(left, (uint64_t)ret->cells << level);
	ret->samples = (left - 1) / ret->step + 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/low_rank.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/blend.h"
#include "codec/cast.h"

#include <stdlib.h>

enum { MOST = 1 << 20 }; /* elements of each factor that are in memory at once */

/* A box of W is computed in tiles, whose rows and columns of the factors fit MOST. */
struct tiles {
	const struct low_rank *l;
	const struct derived_in *in;
	uint64_t rows, columns; /* of a tile, at most */
	uint8_t *raw;		/* a factor's part as it is stored */
	float *left, *right;	/* rows x rank, rank x columns */
	float *moved;		/* a factor's part before it is transposed */
};

/* Reads the part [first, first + n) of dimension `dim` of a factor, all of the other dimension. */
static int load(const struct tiles *t, size_t input, size_t dim, uint64_t first, uint64_t n,
		float *to, struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS] = { 0 }, len[CKPT_MAX_DIMS];
	int rc;

	off[dim] = first;
	len[dim] = n;
	len[1 - dim] = t->l->rank;
	rc = derived_read(t->in, input, off, len, t->raw, e);
	if (!rc)
		cast_run(derived_dtype(t->in, input), CKPT_DTYPE_F32, t->raw, to, n * t->l->rank);
	return rc;
}

/* to[j, i] = from[i, j], of rows x columns */
static void transpose(const float *from, uint64_t rows, uint64_t columns, float *to)
{
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++)
			to[j * rows + i] = from[i * columns + j];
}

enum { FACTOR_A = 1, FACTOR_B = 2 }; /* inputs */

/* B's rows; of a turned W, A's columns as rows. */
static int load_left(const struct tiles *t, uint64_t first, uint64_t n, struct ckpt_err *e)
{
	int rc;

	if (!t->l->turned)
		return load(t, FACTOR_B, 0, first, n, t->left, e);
	rc = load(t, FACTOR_A, 1, first, n, t->moved, e);
	if (!rc)
		transpose(t->moved, t->l->rank, n, t->left);
	return rc;
}

/* A's columns; of a turned W, B's rows as columns. */
static int load_right(const struct tiles *t, uint64_t first, uint64_t n, struct ckpt_err *e)
{
	int rc;

	if (!t->l->turned)
		return load(t, FACTOR_A, 1, first, n, t->right, e);
	rc = load(t, FACTOR_B, 0, first, n, t->moved, e);
	if (!rc)
		transpose(t->moved, n, t->l->rank, t->right);
	return rc;
}

/* w: the box of W, which is len[1] wide. */
static int run_tiles(const struct tiles *t, const uint64_t *off, const uint64_t *len, uint8_t *w,
		     struct ckpt_err *e)
{
	size_t size = dtype_info(t->l->dtype)->size;
	struct blend_product p = { .a = t->right,
				   .b = t->left,
				   .rank = t->l->rank,
				   .b_stride = t->l->rank,
				   .w_stride = len[1],
				   .scale = t->l->scale,
				   .dtype = t->l->dtype };
	int rc = 0;

	for (uint64_t j = 0; !rc && j < len[1]; j += t->columns) {
		p.columns = p.a_stride = (size_t)min_u64(len[1] - j, t->columns);
		rc = load_right(t, off[1] + j, p.columns, e);
		for (uint64_t i = 0; !rc && i < len[0]; i += t->rows) {
			p.rows = (size_t)min_u64(len[0] - i, t->rows);
			rc = load_left(t, off[0] + i, p.rows, e);
			if (!rc)
				blend_product(&p, w + (i * len[1] + j) * size);
		}
	}
	return rc;
}

int low_rank_run(const void *how, const struct derived_in *in, const uint64_t *off,
		 const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct low_rank *l = how;
	uint64_t most = max_u64(MOST / l->rank, 1);
	struct tiles t = {
		.l = l, .in = in, .rows = min_u64(len[0], most), .columns = min_u64(len[1], most)
	};
	uint64_t part = max_u64(t.rows, t.columns) * l->rank;
	autofree uint8_t *raw = malloc(part * sizeof(double));
	autofree float *left = malloc(t.rows * l->rank * sizeof(float));
	autofree float *right = malloc(t.columns * l->rank * sizeof(float));
	autofree float *moved = malloc(l->turned ? part * sizeof(float) : 1);

	if (!raw || !left || !right || !moved)
		return err_nomem(e);
	t.raw = raw;
	t.left = left;
	t.right = right;
	t.moved = moved;
	if (derived_read(in, 0, off, len, out, e))
		return -e->code;
	return run_tiles(&t, off, len, out, e);
}

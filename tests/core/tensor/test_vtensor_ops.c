/* SPDX-License-Identifier: Apache-2.0 */
/* Where each element of a result comes from, compared with where it was in the input. */
#include "base/err.h"
#include "model/box.h"
#include "rng.h"
#include "suites.h"
#include "tensor/vtensor.h"
#include "tensor/vtensor_ops.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES = 6 };

/* A matrix of rows from several sources, each with steps of its own. */
struct matrix {
	struct vtensor v;
	uint64_t shape[2];
	struct piece pieces[PIECES];
	uint64_t off[PIECES][2], len[PIECES][2], coeff[PIECES][2], base[PIECES][3];
	uint8_t dim[PIECES][2];
};

static void matrix_random(struct matrix *m, struct rng *r, uint64_t rows, uint64_t cols)
{
	uint64_t row = 0;

	*m = (struct matrix){ .shape = { rows, cols } };
	m->v = (struct vtensor){ .stored = CKPT_DTYPE_BF16,
				 .dtype = CKPT_DTYPE_BF16,
				 .n_dims = 2,
				 .n_shown = 2,
				 .shape = m->shape,
				 .shown = m->shape,
				 .pieces = m->pieces };
	while (row < rows) {
		uint32_t i = m->v.n_pieces++;
		uint64_t n = i + 1 < PIECES ? 1 + rng_below(r, rows - row) : rows - row;
		uint8_t first = (uint8_t)rng_below(r, 3);

		m->off[i][0] = row;
		m->len[i][0] = n;
		m->len[i][1] = cols;
		for (int d = 0; d < 2; d++) {
			m->coeff[i][d] = 1 + rng_below(r, 3);
			m->dim[i][d] = (uint8_t)((first + d) % 3);
		}
		if (n == 1 && rng_chance(r, 50))
			m->dim[i][0] = PIECE_FIXED;
		for (int d = 0; d < 3; d++)
			m->base[i][d] = rng_below(r, 10);
		m->pieces[i] = (struct piece){ .source = (uint32_t)rng_below(r, 9),
					       .n_source = 3,
					       .off = m->off[i],
					       .len = m->len[i],
					       .coeff = m->coeff[i],
					       .dim = m->dim[i],
					       .base = m->base[i] };
		row += n;
	}
}

struct origin {
	uint32_t source;
	uint64_t at[3];
};

/* Where element x comes from; exactly one piece has it. */
static struct origin origin(const struct vtensor *v, const uint64_t *x)
{
	struct origin o = { 0 };
	unsigned found = 0;

	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];
		bool inside = true;

		for (size_t d = 0; d < v->n_dims; d++)
			inside &= x[d] >= p->off[d] && x[d] - p->off[d] < p->len[d];
		if (!inside)
			continue;
		found++;
		REQUIRE(p->n_source == 3);
		o.source = p->source;
		memcpy(o.at, p->base, sizeof(o.at));
		for (size_t d = 0; d < v->n_dims; d++)
			if (p->dim[d] != PIECE_FIXED)
				o.at[p->dim[d]] += p->coeff[d] * (x[d] - p->off[d]);
			else
				REQUIRE(p->len[d] == 1);
	}
	REQUIRE(found == 1);
	return o;
}

static bool same(const struct vtensor *a, const uint64_t *x, const struct vtensor *b,
		 const uint64_t *y)
{
	struct origin p = origin(a, x), q = origin(b, y);

	return p.source == q.source && !memcmp(p.at, q.at, sizeof(p.at));
}

START_TEST(rows_become_columns)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int round = 0; round < 200; round++) {
		uint64_t rows = 1 + rng_below(&r, 12), cols = 1 + rng_below(&r, 5);
		struct matrix m;
		struct vtensor *t;

		matrix_random(&m, &r, rows, cols);
		REQUIRE(!vtensor_transpose(&m.v, &t, &e));
		REQUIRE(t->shape[0] == cols && t->shape[1] == rows && t->bytes == rows * cols * 2);
		for (uint64_t i = 0; i < rows; i++)
			for (uint64_t k = 0; k < cols; k++)
				REQUIRE(same(&m.v, (uint64_t[]){ i, k }, t, (uint64_t[]){ k, i }));
		free(t);
	}
}
END_TEST

START_TEST(rows_of_groups_become_columns)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int round = 0; round < 500; round++) {
		uint64_t groups = 1 + rng_below(&r, 4), rows = 1 + rng_below(&r, 6);
		uint64_t cols = 1 + rng_below(&r, 3);
		struct matrix m;
		struct vtensor *g, *t;

		matrix_random(&m, &r, groups * rows, cols);
		REQUIRE(!vtensor_group(&m.v, groups, &g, &e));
		REQUIRE(!vtensor_transpose(g, &t, &e));
		REQUIRE(g->n_dims == 3 && g->shape[0] == groups && g->shape[1] == rows &&
			g->shape[2] == cols);
		REQUIRE(t->n_dims == 3 && t->shape[0] == groups && t->shape[1] == cols &&
			t->shape[2] == rows && t->bytes == groups * rows * cols * 2);
		for (uint64_t i = 0; i < groups * rows * cols; i++) {
			uint64_t row = i / cols, k = i % cols;
			uint64_t x[] = { row, k }, y[] = { row / rows, row % rows, k },
				 z[] = { row / rows, k, row % rows };

			REQUIRE(same(&m.v, x, g, y) && same(&m.v, x, t, z));
		}
		free(g);
		free(t);
	}
}
END_TEST

START_TEST(tensors_are_stacked_in_order)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int round = 0; round < 200; round++) {
		uint64_t rows = 1 + rng_below(&r, 8), cols = 1 + rng_below(&r, 4);
		size_t n = 1 + rng_below(&r, 4);
		const struct vtensor *v[4];
		struct matrix m[4];
		struct vtensor *t;

		for (size_t i = 0; i < n; i++) {
			matrix_random(&m[i], &r, rows, cols);
			v[i] = &m[i].v;
		}
		REQUIRE(!vtensor_stack(v, n, &t, &e));
		REQUIRE(t->n_dims == 3 && t->shape[0] == n && t->bytes == n * rows * cols * 2);
		for (uint64_t i = 0; i < n * rows * cols; i++) {
			uint64_t x[] = { i / cols / rows, i / cols % rows, i % cols };

			REQUIRE(same(v[x[0]], x + 1, t, x));
		}
		free(t);
	}
}
END_TEST

START_TEST(rows_go_on_and_are_picked)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int round = 0; round < 200; round++) {
		uint64_t cols = 1 + rng_below(&r, 4), row = 0;
		size_t n = 1 + rng_below(&r, 4);
		const struct vtensor *v[4];
		struct matrix m[4];
		struct vtensor *t, *one;

		for (size_t i = 0; i < n; i++) {
			matrix_random(&m[i], &r, 1 + rng_below(&r, 8), cols);
			v[i] = &m[i].v;
		}
		REQUIRE(!vtensor_concat(v, n, &t, &e));
		for (size_t i = 0; i < n; i++)
			for (uint64_t k = 0; k < m[i].shape[0]; k++, row++) {
				REQUIRE(!vtensor_pick(t, row, &one, &e));
				REQUIRE(one->n_dims == 1 && one->bytes == cols * 2);
				for (uint64_t c = 0; c < cols; c++) {
					uint64_t x[] = { k, c }, y[] = { row, c };

					REQUIRE(same(v[i], x, t, y) && same(v[i], x, one, y + 1));
				}
				free(one);
			}
		REQUIRE(t->n_dims == 2 && t->shape[0] == row);
		free(t);
	}
}
END_TEST

START_TEST(halves_of_groups_take_turns)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int round = 0; round < 500; round++) {
		uint64_t groups = 1 + rng_below(&r, 4), half = 1 + rng_below(&r, 5);
		uint64_t rows = groups * 2 * half, cols = 1 + rng_below(&r, 3);
		struct matrix m;
		struct vtensor *t;

		matrix_random(&m, &r, rows, cols);
		REQUIRE(!vtensor_interleave(&m.v, groups, &t, &e));
		REQUIRE(t->n_dims == 4 && t->shape[0] == groups && t->shape[1] == half &&
			t->shape[2] == 2 && t->shape[3] == cols);
		/* Row 2j + h of a group comes from row h * half + j. */
		for (uint64_t i = 0; i < rows * cols; i++) {
			uint64_t g = i / cols / (2 * half), j = i / cols / 2 % half,
				 h = i / cols % 2, k = i % cols;
			uint64_t x[] = { g * 2 * half + h * half + j, k }, y[] = { g, j, h, k };

			REQUIRE(same(&m.v, x, t, y));
		}
		free(t);
	}
}
END_TEST

START_TEST(a_vector_has_halves_too)
{
	uint64_t shape[] = { 6 }, zero[] = { 0, 0, 0 }, one[] = { 1 };
	uint8_t dim[] = { 0 };
	struct piece p = { 7, 3, zero, shape, one, dim, zero };
	struct vtensor v = { .stored = CKPT_DTYPE_F32,
			     .dtype = CKPT_DTYPE_F32,
			     .n_dims = 1,
			     .n_shown = 1,
			     .n_pieces = 1,
			     .bytes = 24,
			     .shape = shape,
			     .shown = shape,
			     .pieces = &p },
		       *t;
	static const uint64_t want[] = { 0, 3, 1, 4, 2, 5 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(vtensor_interleave(&v, 1, &t, &e), 0);
	for (uint64_t i = 0; i < 6; i++)
		ck_assert_uint_eq(origin(t, (uint64_t[]){ 0, i / 2, i % 2 }).at[0], want[i]);
	free(t);
}
END_TEST

SUITE(vtensor_ops)

/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual tensors of many pieces, and slices of them, are planned and compared element by
 * element. */
#include "base/checked.h"
#include "base/err.h"
#include "index/catalog_query.h"
#include "model/flat.h"
#include "read/plan.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"
#include "tensor/vtensor.h"
#include "whole_util.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 8, DIMS = 4 };

/* A virtual tensor with a stored one behind each piece. */
struct mosaic {
	struct vtensor v;
	uint64_t shape[DIMS];
	struct piece pieces[MAX_PIECES];
	uint64_t off[MAX_PIECES][DIMS], len[MAX_PIECES][DIMS], coeff[MAX_PIECES][DIMS];
	uint64_t base[MAX_PIECES][DIMS + 2];
	uint8_t dim[MAX_PIECES][DIMS];
	unsigned sharing; /* percentage of dimensions that share a source dimension */
	struct scene scenes[MAX_PIECES];
	struct plan_source sources[MAX_PIECES];
};

/* Makes a stored tensor with room for the piece, which takes random steps through it. */
static void make_source(struct mosaic *m, uint32_t i, struct rng *r, uint32_t element)
{
	struct scene_opts o = { .element = element, .tiling = TILE_ANY, .strides = ROWS_ANY };
	struct choose c = choose_rng(r);
	size_t n = m->v.n_dims, n_source = 0;
	uint64_t shape[DIMS + 2];
	uint8_t order[DIMS + 2];

	for (size_t d = 0; d < n; d++) {
		bool moves = m->len[i][d] > 1 || rng_chance(r, 50);

		m->coeff[i][d] = 1 + rng_below(r, rng_chance(r, 60) ? 1 : 3);
		if (moves && n_source && rng_chance(r, m->sharing))
			m->dim[i][d] = (uint8_t)rng_below(r, n_source);
		else
			m->dim[i][d] = moves ? (uint8_t)n_source++ : PIECE_FIXED;
	}
	n_source += rng_below(r, 3);
	for (uint8_t s = 0; s < n_source; s++)
		order[s] = s;
	for (size_t s = n_source; s > 1; s--) {
		size_t k = rng_below(r, s);
		uint8_t t = order[s - 1];

		order[s - 1] = order[k];
		order[k] = t;
	}
	for (size_t s = 0; s < n_source; s++) {
		m->base[i][s] = rng_below(r, 3);
		shape[s] = m->base[i][s] + 1 + rng_below(r, 2);
	}
	for (size_t d = 0; d < n; d++)
		if (m->dim[i][d] != PIECE_FIXED) {
			m->dim[i][d] = order[m->dim[i][d]];
			shape[m->dim[i][d]] += m->coeff[i][d] * (m->len[i][d] - 1);
		}
	scene_make_shape(&m->scenes[i], &c, &o, n_source, shape);
	m->sources[i] = (struct plan_source){ m->scenes[i].map, m->scenes[i].payloads,
					      m->scenes[i].map->locs };
	m->pieces[i] = (struct piece){ .source = i,
				       .n_source = (uint8_t)n_source,
				       .off = m->off[i],
				       .len = m->len[i],
				       .coeff = m->coeff[i],
				       .dim = m->dim[i],
				       .base = m->base[i] };
}

static void cut(struct mosaic *m, struct rng *r, const uint64_t *off, const uint64_t *len,
		unsigned depth)
{
	size_t n = m->v.n_dims, d = n ? rng_below(r, n) : 0;
	uint64_t half[DIMS], rest[DIMS];

	if (depth && n && len[d] > 1 && rng_chance(r, 75)) {
		memcpy(half, len, n * sizeof(*len));
		memcpy(rest, off, n * sizeof(*off));
		half[d] = 1 + rng_below(r, len[d] - 1);
		cut(m, r, off, half, depth - 1);
		rest[d] += half[d];
		half[d] = len[d] - half[d];
		cut(m, r, rest, half, depth - 1);
		return;
	}
	if (n) {
		memcpy(m->off[m->v.n_pieces], off, n * sizeof(*off));
		memcpy(m->len[m->v.n_pieces], len, n * sizeof(*len));
	}
	m->v.n_pieces++;
}

static void mosaic_make(struct mosaic *m, struct rng *r, unsigned sharing)
{
	static const uint64_t zero[DIMS];
	uint32_t element = (uint32_t)1 << rng_below(r, 5);

	memset(m, 0, sizeof(*m));
	m->sharing = sharing;
	m->v.n_dims = (uint8_t)rng_below(r, DIMS + 1);
	m->v.stored = m->v.dtype = (uint8_t)dtype_of_size(element);
	m->v.shape = m->shape;
	m->v.pieces = m->pieces;
	m->v.bytes = element;
	for (size_t d = 0; d < m->v.n_dims; d++)
		m->v.bytes *= m->shape[d] = 1 + rng_below(r, 5);
	cut(m, r, zero, m->shape, 3);
	for (uint32_t i = 0; i < m->v.n_pieces; i++)
		make_source(m, i, r, element);
}

static void mosaic_release(struct mosaic *m)
{
	for (uint32_t i = 0; i < m->v.n_pieces; i++)
		scene_release(&m->scenes[i]);
}

/* Element x by the definition in vtensor.h; exactly one piece must have it. */
static const uint8_t *element_of(const struct mosaic *m, const uint64_t *x)
{
	const uint8_t *found = NULL;

	for (uint32_t i = 0; i < m->v.n_pieces; i++) {
		const struct scene *s = &m->scenes[i];
		uint64_t y[DIMS + 2], at = 0;
		bool inside = true;

		memcpy(y, m->base[i], sizeof(y));
		for (size_t d = 0; d < m->v.n_dims; d++) {
			inside &= x[d] >= m->off[i][d] && x[d] < m->off[i][d] + m->len[i][d];
			if (m->dim[i][d] != PIECE_FIXED)
				y[m->dim[i][d]] += m->coeff[i][d] * (x[d] - m->off[i][d]);
		}
		if (!inside)
			continue;
		for (size_t k = 0; k < s->n; k++)
			at = at * s->shape[k] + y[k];
		REQUIRE(!found && at < s->bytes / s->element);
		found = s->want + at * s->element;
	}
	REQUIRE(found);
	return found;
}

static void carry_out(const struct mosaic *m, const struct vtensor *v, const struct plan *p,
		      uint64_t len, uint8_t *out, uint8_t *times)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct copy *c = &p->copies[i];
		const struct copy_dim *dims = c->n_dims ? p->dims + c->dim : NULL;
		uint64_t counts[CKPT_MAX_DIMS + 1], idx[CKPT_MAX_DIMS + 1] = { 0 };
		const struct scene *s = &m->scenes[v->pieces[c->piece].source];

		for (uint32_t d = 0; d < c->n_dims; d++)
			counts[d] = dims[d].count;
		do {
			uint64_t src = c->src, dst = c->dst;

			for (uint32_t d = 0; d < c->n_dims; d++) {
				src += idx[d] * dims[d].src_stride;
				dst += idx[d] * dims[d].dst_stride;
			}
			REQUIRE(range_ok(src, c->run, s->item_len[c->chunk]));
			REQUIRE(range_ok(dst, c->run, len));
			memcpy(out + dst, s->items[c->chunk] + src, c->run);
			for (uint64_t k = 0; k < c->run; k++)
				times[dst + k]++;
		} while (next_index(c->n_dims, counts, idx));
	}
}

/* Reads ranges of v, which has every step-th element of m from corner on; step NULL: every
 * element. */
static void check(const struct mosaic *m, const struct vtensor *v, const uint64_t *corner,
		  const uint64_t *step, struct rng *r)
{
	uint32_t element = dtype_info(v->stored)->size;
	struct plan_source sources[MAX_PIECES];
	uint8_t *want = malloc(v->bytes + 1), *out = malloc(v->bytes + 1);
	uint8_t *times = malloc(v->bytes + 1);
	uint64_t x[DIMS] = { 0 }, at = 0;
	struct plan p = { 0 };

	REQUIRE(want && out && times && v->bytes && v->n_pieces <= MAX_PIECES);
	do {
		uint64_t y[DIMS];

		for (size_t d = 0; d < v->n_dims; d++)
			y[d] = corner[d] + x[d] * (step ? step[d] : 1);
		memcpy(want + at, element_of(m, y), element);
		at += element;
	} while (next_index(v->n_dims, v->shape, x));
	REQUIRE(at == v->bytes);
	for (uint32_t i = 0; i < v->n_pieces; i++)
		sources[i] = m->sources[v->pieces[i].source];
	for (int k = 0; k < 12; k++) {
		uint64_t off = k ? rng_below(r, v->bytes) : 0;
		uint64_t len = k ? 1 + rng_below(r, v->bytes - off) : v->bytes;

		memset(times, 0, v->bytes);
		REQUIRE(!plan_read(v, sources, off, len, NULL, &p));
		carry_out(m, v, &p, len, out, times);
		REQUIRE(!memcmp(out, want + off, len));
		for (uint64_t i = 0; i < len; i++)
			REQUIRE(times[i]);
	}
	plan_release(&p);
	free(want);
	free(out);
	free(times);
}

START_TEST(pieces_are_read_as_element_by_element)
{
	static const uint64_t zero[DIMS];
	struct rng r = rng_new();
	static struct mosaic m;

	for (int i = 0; i < 3000; i++) {
		mosaic_make(&m, &r, i % 2 ? 60 : 0);
		check(&m, &m.v, zero, NULL, &r);
		mosaic_release(&m);
	}
}
END_TEST

/* A slice of a slice is what a rank holds of a part. */
START_TEST(slices_are_the_same_elements)
{
	struct rng r = rng_new();
	static struct mosaic m;

	for (int i = 0; i < 2000; i++) {
		uint64_t corner[DIMS] = { 0 }, off[DIMS], len[DIMS];
		const struct vtensor *from = &m.v;
		struct vtensor *v[2] = { NULL, NULL };

		mosaic_make(&m, &r, i % 2 ? 60 : 0);
		for (int depth = 0; depth < 2; depth++) {
			struct ckpt_err e;

			for (size_t d = 0; d < m.v.n_dims; d++) {
				off[d] = rng_below(&r, from->shape[d]);
				len[d] = 1 + rng_below(&r, from->shape[d] - off[d]);
				corner[d] += off[d];
			}
			REQUIRE(!vtensor_slice(from, off, len, &v[depth], &e));
			from = v[depth];
			check(&m, from, corner, NULL, &r);
		}
		free(v[0]);
		free(v[1]);
		mosaic_release(&m);
	}
}
END_TEST

/* Steps through a tensor that itself steps through another. */
START_TEST(steps_are_the_same_elements)
{
	struct rng r = rng_new();
	static struct mosaic m;

	for (int i = 0; i < 3000; i++) {
		uint64_t corner[DIMS] = { 0 }, apart[DIMS], off[DIMS], step[DIMS], count[DIMS];
		const struct vtensor *from = &m.v;
		struct vtensor *v[2] = { NULL, NULL };

		mosaic_make(&m, &r, i % 2 ? 60 : 0);
		m.v.arith = (struct arith){ ARITH_TIMES, 3 };
		m.v.after = (struct arith){ ARITH_PLUS, 1 };
		for (size_t d = 0; d < m.v.n_dims; d++)
			apart[d] = 1;
		for (int depth = 0; depth < 2; depth++) {
			struct ckpt_err e;

			for (size_t d = 0; d < m.v.n_dims; d++) {
				off[d] = rng_below(&r, from->shape[d]);
				step[d] = 1 + rng_below(&r, 5);
				count[d] =
					1 +
					rng_below(&r, (from->shape[d] - off[d] - 1) / step[d] + 1);
				corner[d] += off[d] * apart[d];
				apart[d] *= step[d];
			}
			REQUIRE(!vtensor_steps(from, off, step, count, &v[depth], &e));
			from = v[depth];
			ck_assert(arith_equal(from->arith, m.v.arith) &&
				  arith_equal(from->after, m.v.after));
			check(&m, from, corner, apart, &r);
		}
		free(v[0]);
		free(v[1]);
		mosaic_release(&m);
	}
}
END_TEST

/* ---- flattened tensors ---- */

/* The index in the stored tensor of element x of the tensor before it was flattened. */
static uint64_t flat_index(size_t n, const uint64_t *cells, const uint64_t *local,
			   const uint64_t *x)
{
	uint64_t cell = 0, flat = 0, size = 1;

	for (size_t d = 0; d < n; d++) {
		cell = cell * cells[d] + x[d] / local[d];
		flat = flat * local[d] + x[d] % local[d];
		size *= local[d];
	}
	return cell * size + flat;
}

static void plan_equals(const struct scene *s, const struct vtensor *v, const uint8_t *want,
			struct rng *r)
{
	struct plan_source source = { s->map, s->payloads, s->map->locs };
	struct mosaic m = { .scenes[0] = *s };
	uint8_t *out = malloc(s->bytes), *times = malloc(s->bytes);
	struct plan p = { 0 };

	REQUIRE(out && times);
	for (int k = 0; k < 8; k++) {
		uint64_t off = k ? rng_below(r, s->bytes) : 0;
		uint64_t len = k ? 1 + rng_below(r, s->bytes - off) : s->bytes;

		memset(times, 0, s->bytes);
		REQUIRE(!plan_read(v, &source, off, len, NULL, &p));
		carry_out(&m, v, &p, len, out, times);
		REQUIRE(!memcmp(out, want + off, len));
		for (uint64_t i = 0; i < len; i++)
			REQUIRE(times[i]);
	}
	plan_release(&p);
	free(out);
	free(times);
}

START_TEST(a_flattened_tensor_gets_its_shape_back)
{
	struct rng r = rng_new();

	for (int i = 0; i < 2000; i++) {
		uint64_t cells[DIMS], local[DIMS], shape[DIMS], stored[DIMS + 1], x[DIMS] = { 0 };
		struct scene_opts o = { .tiling = TILE_ANY, .strides = ROWS_ANY };
		struct choose c = choose_rng(&r);
		struct catalog_tensor t = { .shape = stored, .logical = shape };
		struct vtensor *v = NULL;
		uint64_t at = 0, volume = 1;
		struct scene s = { 0 };
		uint8_t *want;
		struct ckpt_err e;
		size_t n = 1 + rng_below(&r, DIMS);

		for (size_t d = 0; d < n; d++) {
			stored[d] = cells[d] = 1 + rng_below(&r, rng_chance(&r, 50) ? 1 : 3);
			local[d] = 1 + rng_below(&r, 4);
			shape[d] = cells[d] * local[d];
			volume *= local[d];
		}
		stored[n] = volume;
		REQUIRE(flat_fits(n, shape, stored));
		o.element = (uint32_t)1 << rng_below(&r, 5);
		scene_make_shape(&s, &c, &o, n + 1, stored);
		t.n_dims = (uint8_t)(n + 1);
		t.n_logical = (uint8_t)n;
		t.dtype = (uint8_t)dtype_of_size(o.element);
		t.bytes = s.bytes;
		REQUIRE(!vtensor_logical(&t, 0, t.dtype, &v, &e));
		REQUIRE(v->bytes == s.bytes && v->n_shown == n && v->n_pieces == 1);
		REQUIRE(!memcmp(v->shown, shape, n * sizeof(*shape)));
		want = malloc(s.bytes);
		REQUIRE(want);
		do {
			memcpy(want + at, s.want + flat_index(n, cells, local, x) * s.element,
			       s.element);
			at += s.element;
		} while (next_index(n, shape, x));
		plan_equals(&s, v, want, &r);
		free(want);
		free(v);
		scene_release(&s);
	}
}
END_TEST

/* If no cells follow each other, rows that do are read in one run. */
START_TEST(a_flattened_tensor_is_read_in_long_runs)
{
	static const uint64_t shape[] = { 4, 6, 8 }, stored[] = { 4, 1, 1, 48 },
			      halves[] = { 4, 1, 2, 24 };
	struct catalog_tensor t = { .shape = stored,
				    .logical = shape,
				    .n_dims = 4,
				    .n_logical = 3,
				    .dtype = CKPT_DTYPE_F32,
				    .bytes = 768 };
	struct vtensor *v = NULL;
	struct ckpt_err e;

	ck_assert_int_eq(vtensor_logical(&t, 0, CKPT_DTYPE_BF16, &v, &e), 0);
	ck_assert_uint_eq(v->n_dims, 2);
	ck_assert_uint_eq(v->shape[1], 48);
	ck_assert_uint_eq(v->bytes, 384);
	free(v);
	t.shape = halves;
	ck_assert_int_eq(vtensor_logical(&t, 0, CKPT_DTYPE_F32, &v, &e), 0);
	ck_assert_uint_eq(v->n_dims, 4);
	ck_assert_uint_eq(v->shape[1], 6);
	ck_assert_uint_eq(v->shape[2], 2);
	ck_assert_uint_eq(v->shape[3], 4);
	ck_assert_uint_eq(v->pieces[0].coeff[1], 4);
	ck_assert_uint_eq(v->pieces[0].dim[1], 3);
	ck_assert_uint_eq(v->pieces[0].dim[3], 3);
	free(v);
}
END_TEST

static const struct {
	size_t n;
	uint64_t shape[3], stored[4];
	bool fits;
} forms[] = {
	{ 3, { 4, 6, 8 }, { 4, 1, 2, 24 }, true },
	{ 3, { 4, 6, 8 }, { 1, 1, 1, 192 }, true },
	{ 1, { 10 }, { 1, 10 }, true },
	{ 3, { 4, 6, 8 }, { 4, 1, 3, 24 }, false }, /* does not divide */
	{ 3, { 4, 6, 8 }, { 4, 1, 2, 23 }, false }, /* other elements */
	{ 3, { 4, 6, 8 }, { 4, 0, 2, 24 }, false }, /* no cells */
	{ 2, { 0, 8 }, { 2, 1, 0 }, false },	    /* no elements */
	{ 2, { UINT64_MAX, 8 }, { 1, 1, UINT64_MAX - 7 }, false },
};

START_LOOP_TEST(what_fits_exactly_is_a_flattened_tensor, ARRAY_LEN(forms))
{
	ck_assert(flat_fits(forms[_i].n, forms[_i].shape, forms[_i].stored) == forms[_i].fits);
}
END_TEST

START_TEST(an_empty_slice_has_no_pieces)
{
	static const uint64_t shape[] = { 4, 6 }, off[] = { 4, 0 }, len[] = { 0, 6 };
	const struct catalog_tensor t = {
		.shape = shape, .n_dims = 2, .dtype = CKPT_DTYPE_F32, .bytes = 96
	};
	struct vtensor *whole, *empty;
	struct ckpt_err e;

	ck_assert_int_eq(vtensor_whole(&t, 7, CKPT_DTYPE_BF16, &whole, &e), 0);
	ck_assert_uint_eq(whole->bytes, 48);
	ck_assert_uint_eq(whole->stored, CKPT_DTYPE_F32);
	ck_assert_uint_eq(whole->pieces[0].source, 7);
	ck_assert_int_eq(vtensor_slice(whole, off, len, &empty, &e), 0);
	ck_assert_uint_eq(empty->bytes, 0);
	ck_assert_uint_eq(empty->n_pieces, 0);
	ck_assert_uint_eq(empty->shape[1], 6);
	ck_assert_uint_eq(empty->dtype, CKPT_DTYPE_BF16);
	free(whole);
	free(empty);
}
END_TEST

SUITE(vtensor)

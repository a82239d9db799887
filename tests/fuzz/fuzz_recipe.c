/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a recipe, for a few tensors. Each element of what it makes must come from exactly
 * one element, which must exist.
 *
 * Fuzzes: recipe/ tensor/vtensor
 */
#include "base/err.h"
#include "core/recipe_util.h"
#include "model/box.h"
#include "tensor/vtensor.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
	if (!ok)
		abort();
}

static const struct fact facts[] = { { RECIPE_CONFIG, "two", 2 },
				     { RECIPE_CONFIG, "zero", 0 },
				     { RECIPE_CONFIG, "huge", UINT64_MAX - 1 },
				     { RECIPE_CONFIG, "kind=x-1.0", 0 },
				     { RECIPE_CONFIG, "a.n", 4 },
				     { RECIPE_ARGS, "three", 3 },
				     { RECIPE_ARGS, "odd", UINT64_MAX },
				     { 0, NULL, 0 } };

/* The elements of a piece must lie inside its source. */
static void check_piece(const struct store *s, const struct vtensor *v, const struct piece *p)
{
	const struct stored *t = &s->tensors[p->source];
	uint64_t len[STORE_DIMS];

	require(p->n_source == t->n_dims);
	for (size_t d = 0; d < t->n_dims; d++)
		len[d] = 1;
	for (size_t d = 0; d < v->n_dims; d++) {
		require(p->dim[d] < t->n_dims && len[p->dim[d]] == 1 && p->coeff[d] > 0);
		len[p->dim[d]] = (p->len[d] - 1) * p->coeff[d] + 1;
	}
	require(box_inside(t->n_dims, p->base, len, t->shape));
	require(box_inside(v->n_dims, p->off, p->len, v->shape));
}

static void check(const struct store *s, const struct vtensor *v)
{
	uint64_t volume, off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], *boxes;
	size_t n = v->n_dims, pair[2];
	enum boxes_verdict verdict;
	uint64_t work = BOXES_MAX_WORK;

	require(box_volume(n, v->shape, &volume) && v->bytes == 2 * volume);
	require(!volume == !v->n_pieces);
	require(v->arith.op == ARITH_NONE || (isfinite(v->arith.number) && v->arith.number != 0));
	boxes = malloc((2 * n * v->n_pieces + 1) * sizeof(*boxes));
	require(boxes);
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		check_piece(s, v, &v->pieces[i]);
		for (size_t d = 0; d < n; d++) {
			boxes[2 * n * i + d] = v->pieces[i].off[d];
			boxes[2 * n * i + n + d] = v->pieces[i].len[d];
		}
	}
	if (volume) {
		verdict = boxes_cover(n, v->shape, boxes, v->n_pieces, &work, off, len, pair);
		require(verdict == BOXES_COVER || verdict == BOXES_UNKNOWN);
	}
	free(boxes);
}

/* Loops that go on until a limit would only take long. */
static bool has_long_number(const uint8_t *data, size_t size)
{
	size_t digits = 0;

	for (size_t i = 0; i < size && digits < 4; i++)
		digits = data[i] >= '0' && data[i] <= '9' ? digits + 1 : 0;
	return digits == 4;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct store s;
	struct recipe_out o;
	struct recipe *r = NULL;
	struct ckpt_err e = { 0 };
	int rc;

	if (!s.n) {
		store_add(&s, "a", 2, (const uint64_t[]){ 4, 6 });
		store_add(&s, "l.w", 3, (const uint64_t[]){ 2, 12, 3 });
		store_add(&s, "l.0.k", 1, (const uint64_t[]){ 3 });
		store_add(&s, "l.1.k", 1, (const uint64_t[]){ 3 });
		store_add(&s, "l.e.w", 4, (const uint64_t[]){ 2, 3, 8, 1 });
		store_add(&s, "p.s", 0, (const uint64_t[]){ 0 });
		store_add(&s, "none", 2, (const uint64_t[]){ 0, 7 });
		require(!store_finish(&s, &e));
		s.facts = facts;
	}
	rc = recipe_parse((const char *)data, size, "R", &r, &e);
	require(rc ? rc < 0 && e.code == -rc && *e.msg && !r : r && !e.code);
	if (rc)
		return 0;
	if (has_long_number(data, size)) {
		recipe_free(r);
		return 0;
	}
	rc = store_apply(&s, r, &o, &e);
	require(rc ? rc < 0 && e.code == -rc && *e.msg : !e.code);
	if (!rc) {
		for (size_t i = 0; i < o.names.n; i++)
			check(&s, o.tensors[o.names.v[i].index]);
		recipe_out_release(&o);
	}
	recipe_free(r);
	return 0;
}

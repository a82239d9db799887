/* SPDX-License-Identifier: Apache-2.0 */
#include "tree/gguf_linear.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"
#include "tensor/arch.h"
#include "tensor/vtensor.h"
#include "tensor/vtensor_ops.h"

#include <stdlib.h>
#include <string.h>

/* Rows of a tensor that are put one after another. */
struct rows {
	const struct vtensor *from;
	struct vtensor **part;
	size_t n, cap;
	struct ckpt_err *e;
	int rc; /* 0, or the first error */
};

static void rows_release(struct rows *r)
{
	for (size_t i = 0; r->part && i < r->n; i++)
		free(r->part[i]);
	free(r->part);
}

static int rows_init(struct rows *r, const struct vtensor *from, size_t cap, struct ckpt_err *e)
{
	*r = (struct rows){ .from = from, .cap = cap, .e = e };
	r->part = calloc(cap, sizeof(struct vtensor *));
	return r->part ? 0 : err_nomem(e);
}

/* Adds n rows from `row` on. To be called at most `cap` times. */
static void add(struct rows *r, uint64_t row, uint64_t n)
{
	uint64_t off[CKPT_MAX_DIMS] = { row }, len[CKPT_MAX_DIMS];

	memcpy(len, r->from->shape, r->from->n_dims * sizeof(*len));
	len[0] = n;
	if (!r->rc)
		r->rc = vtensor_slice(r->from, off, len, &r->part[r->n], r->e);
	if (!r->rc)
		r->n++;
}

static int join(const struct rows *r, struct vtensor **ret)
{
	return r->rc ? r->rc
		     : vtensor_concat((const struct vtensor *const *)r->part, r->n, ret, r->e);
}

/* The rows of heads of values: the first head of every key, then the second, and so on. */
static int in_turn(const struct arch_linear *l, const struct vtensor *v, uint64_t before,
		   uint64_t head, struct vtensor **ret, struct ckpt_err *e)
{
	CLEANUP(rows_release) struct rows r = { 0 };
	uint64_t share = l->v_heads / l->k_heads;
	int rc = rows_init(&r, v, l->v_heads + 1, e);

	if (rc)
		return rc;
	if (before)
		add(&r, 0, before);
	for (uint64_t i = 0; i < share; i++)
		for (uint64_t k = 0; k < l->k_heads; k++)
			add(&r, before + (k * share + i) * head, head);
	return join(&r, ret);
}

static int columns_in_turn(const struct arch_linear *l, const struct vtensor *v,
			   struct vtensor **ret, struct ckpt_err *e)
{
	autofree struct vtensor *turned = NULL, *made = NULL;
	int rc = vtensor_transpose(v, &turned, e);

	if (!rc)
		rc = in_turn(l, turned, 0, l->v_dim, &made, e);
	return rc ? rc : vtensor_transpose(made, ret, e);
}

int gguf_linear_rows(const struct arch *a, const struct arch_weight *w, const struct vtensor *v,
		     uint64_t *shape, struct vtensor **ret, struct ckpt_err *e)
{
	const struct arch_linear *l = &a->linear;
	uint64_t before = 0;

	if (w->turn == ARCH_KERNEL)
		shape[1] = shape[2];
	if (a->kind == KIND_QWEN3_NEXT || l->v_heads == l->k_heads)
		return vtensor_copy(v, ret, e);
	if (w->turn == ARCH_V_COLUMNS)
		return columns_in_turn(l, v, ret, e);
	if (w->turn == ARCH_KERNEL || w->turn == ARCH_QKV_ROWS)
		before = 2 * l->k_heads * l->k_dim;
	return in_turn(l, v, before, (shape[0] - before) / l->v_heads, ret, e);
}

int gguf_linear_mixed(const struct arch *a, const struct vtensor *v, bool second, uint64_t *shape,
		      struct vtensor **ret, struct ckpt_err *e)
{
	const struct arch_linear *l = &a->linear;
	uint64_t values = l->v_heads / l->k_heads * l->v_dim, all = 2 * l->k_dim + 2 * values;
	CLEANUP(rows_release) struct rows r = { 0 };
	int rc = rows_init(&r, v, 3 * l->k_heads, e);

	if (rc)
		return rc;
	for (uint64_t i = 0; !second && i < 2 * l->k_heads; i++)
		add(&r, i % l->k_heads * all + i / l->k_heads * l->k_dim, l->k_dim);
	for (uint64_t i = 0; i < l->k_heads; i++)
		add(&r, i * all + 2 * l->k_dim + (second ? values : 0), values);
	shape[0] = l->k_heads * (values + (second ? 0 : 2 * l->k_dim));
	shape[1] = a->hidden;
	return join(&r, ret);
}

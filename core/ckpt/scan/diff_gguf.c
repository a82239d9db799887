/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/scan/diff_gguf.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/dequantise_gguf.h"
#include "gguf/gguf_config.h"
#include "index/catalog_query.h"
#include "read/tensor_read.h"
#include "tensor/vtensor.h"
#include "tree/gguf_place.h"

#include <stdlib.h>
#include <string.h>

struct diff_gguf {
	struct gguf_config config;
	struct gguf_tensors tensors; /* of A */
	struct diff_gguf_side sides[2];
	struct diff_gguf_tensor *lists[2];
	struct vtensor **v;		   /* of B */
	uint64_t (*shapes)[CKPT_MAX_DIMS]; /* of B */
	size_t n_v;
};

void diff_gguf_free(struct diff_gguf *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->n_v; i++)
		free(g->v[i]);
	free(g->v);
	free(g->shapes);
	for (size_t i = 0; i < 2; i++)
		free(g->lists[i]);
	gguf_tensors_release(&g->tensors);
	gguf_config_release(&g->config);
	free(g);
}

CLEANUP_POINTER(diff_gguf_freep, struct diff_gguf, diff_gguf_free)

bool diff_gguf_is(struct ckpt *a, struct ckpt *b)
{
	return a->engine && b->engine && b->engine->format == &format_gguf &&
	       a->engine->format != &format_gguf && !b->engine->dequantised.n;
}

struct diff_gguf_side diff_gguf_side(const struct diff_gguf *g, size_t side)
{
	return g->sides[side];
}

/* ---- B ---- */

static int take_tensor(struct diff_gguf *g, const struct catalog_tensor *t, size_t i,
		       const struct ggml_info *type, struct ckpt_err *e)
{
	uint64_t *shape = g->shapes[i];
	int rc = vtensor_whole(t, (uint32_t)i, (enum ckpt_dtype)t->dtype, &g->v[i], e);

	if (rc)
		return rc;
	g->n_v++;
	memcpy(shape, t->shape, t->n_dims * sizeof(*shape));
	if (!type->dtype) { /* fits, see gguf_types */
		shape[t->n_dims - 1] /= type->bytes;
		if (ckd_mul(&shape[t->n_dims - 1], shape[t->n_dims - 1], type->elements))
			return err_set(e, EFBIG, "'%s' is too large", FQN_TEXT(t->fqn, t->fqn_len));
	}
	g->lists[1][i] = (struct diff_gguf_tensor){
		.name = t->fqn,
		.len = t->fqn_len,
		.n_dims = t->n_dims,
		.shape = shape,
		.dtype = type->dtype ? dtype_info((enum ckpt_dtype)type->dtype)->name : type->name,
		.bytes = t->bytes,
		.blocks = type->dtype ? NULL : type,
		.v = g->v[i]
	};
	return 0;
}

static int read_b(struct diff_gguf *g, struct ckpt *b, struct ckpt_err *e)
{
	autofree const struct ggml_info **types = NULL;
	size_t n, blocks;
	const struct catalog_tensor *t = catalog_tensors(b->engine->catalog, &n);
	int rc = gguf_types(b->engine->catalog, &types, &blocks, e);

	g->v = calloc(n + 1, sizeof(struct vtensor *));
	g->shapes = calloc(n + 1, sizeof(*g->shapes));
	g->lists[1] = calloc(n + 1, sizeof(*g->lists[1]));
	if (!rc && (!g->v || !g->shapes || !g->lists[1]))
		rc = err_nomem(e);
	for (size_t i = 0; !rc && i < n; i++)
		rc = take_tensor(g, &t[i], i, types[i], e);
	g->sides[1] = (struct diff_gguf_side){ b, g->lists[1], n };
	return rc;
}

/* ---- A ---- */

static int by_name(const void *ap, const void *bp)
{
	const struct diff_gguf_tensor *a = ap, *b = bp;

	return text_natural_cmp(a->name, a->len, b->name, b->len);
}

/* Gives a tensor of A the type that it has in B. llama-quantize makes a matrix of one row a
 * vector. */
static void set_type(struct diff_gguf_tensor *t, struct vtensor *v, const struct diff_gguf_side *b)
{
	const struct diff_gguf_tensor *other =
		b->n ? bsearch(t, b->t, b->n, sizeof(*b->t), by_name) : NULL;
	enum ckpt_dtype dtype =
		other ? ckpt_dtype_by_name(other->dtype, strlen(other->dtype)) : CKPT_DTYPE_NONE;

	for (; other && t->n_dims > other->n_dims && t->shape[0] == 1; t->n_dims--)
		t->shape++;
	if (other && other->blocks) {
		t->blocks = other->blocks;
		t->dtype = other->dtype;
	} else if (v && (dtype == CKPT_DTYPE_F16 || dtype == CKPT_DTYPE_BF16)) {
		v->dtype = (uint8_t)dtype;
		t->dtype = other->dtype;
		t->bytes /= 2;
	}
}

static int read_a(struct diff_gguf *g, struct ckpt *a, struct ckpt_err *e)
{
	struct gguf_tensors *l = &g->tensors;
	int rc = view_gguf_tensors(a->engine->view, &g->config, l, e);

	if (rc)
		return rc;
	g->lists[0] = calloc(l->n + 1, sizeof(*g->lists[0]));
	if (!g->lists[0])
		return err_nomem(e);
	for (size_t i = 0; i < l->n; i++) {
		struct diff_gguf_tensor *t = &g->lists[0][i];

		*t = (struct diff_gguf_tensor){ .name = l->t[i].name,
						.len = strlen(l->t[i].name),
						.n_dims = l->t[i].n_dims,
						.shape = l->t[i].shape,
						.dtype = dtype_info(CKPT_DTYPE_F32)->name,
						.bytes = l->t[i].bytes,
						.v = l->v[i],
						.memory = l->v[i] ? NULL : g->config.factors[i].v };
		set_type(t, l->v[i], &g->sides[1]);
	}
	if (l->n)
		qsort(g->lists[0], l->n, sizeof(*g->lists[0]), by_name);
	g->sides[0] = (struct diff_gguf_side){ a, g->lists[0], l->n };
	return 0;
}

int diff_gguf_new(struct ckpt *a, struct ckpt *b, struct diff_gguf **ret, struct ckpt_err *e)
{
	CLEANUP(diff_gguf_freep) struct diff_gguf *g = calloc(1, sizeof(*g));
	int rc = g ? read_b(g, b, e) : err_nomem(e);

	if (rc)
		return rc;
	rc = read_a(g, a, e);
	if (rc)
		return err_wrap(e, "what the first checkpoint would be as a GGUF (to compare the "
				   "tensors as they are, name the GGUF first)");
	*ret = steal_ptr(&g);
	return 0;
}

/* ---- reading ---- */

static int open_it(struct ckpt_file *f, const struct diff_gguf_tensor *t, struct ckpt_err *e)
{
	struct vtensor *v;
	int rc;

	if (!t->v) {
		vfile_lent(&f->v, t->memory, t->bytes);
		return vfile_done(&f->v, e);
	}
	rc = vtensor_copy(t->v, &v, e);
	if (rc)
		return rc;
	vfile_tensor(&f->v, 0, v->bytes);
	rc = tensor_open(f->engine->fetch, v, &f->reader, e);
	return rc ? rc : vfile_done(&f->v, e);
}

int diff_gguf_open(const struct diff_gguf_side *s, uint64_t at, struct ckpt_file **ret,
		   struct ckpt_err *e)
{
	struct ckpt_file *f = ckpt_file_new(s->ckpt->engine, e);

	return f ? ckpt_file_opened(f, open_it(f, &s->t[at], e), ret) : -ENOMEM;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Computed tensors: they take their places among those of the index, which get other numbers. */
#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "index/catalog_internal.h"
#include "index/catalog_path.h"
#include "index/catalog_schema.h"
#include "model/box.h"

#include <stdlib.h>

/* A tensor in its new place: */
struct moved {
	struct catalog_tensor t;
	uint32_t from; /* its number so far; of a computed one, their count plus its index */
	bool hidden;
};

static int by_place(const void *ap, const void *bp)
{
	const struct moved *a = ap, *b = bp;
	int order = text_natural_cmp(a->t.fqn, a->t.fqn_len, b->t.fqn, b->t.fqn_len);

	if (a->hidden != b->hidden)
		return a->hidden ? 1 : -1;
	return order ? order : (a->from > b->from) - (a->from < b->from);
}

/* The path of a tensor that is named like another except at its end: that of the other if all its
 * steps but the last are in the name, else unknown. */
static const uint8_t *path_like(const struct catalog_tensor *like, const char *fqn, uint32_t len)
{
	uint32_t n = len < like->fqn_len ? len : like->fqn_len, same = 0, last = 0;
	struct catalog_steps i = catalog_path_begin(like->path, like->fqn, like->fqn_len);
	struct catalog_step s;

	while (same < n && fqn[same] == like->fqn[same])
		same++;
	while (catalog_path_next(&i, &s))
		last = (uint32_t)(s.text - like->fqn);
	return last <= same ? like->path : catalog_path_unknown;
}

static int fill_computed(struct catalog *c, const struct catalog_computed *v, struct moved *ret,
			 struct ckpt_err *e)
{
	const struct catalog_tensor *like = &c->tensors[v->like];
	char *fqn = arena_dup(&c->shapes, v->fqn, v->fqn_len);
	uint64_t *shape = arena_array(&c->shapes, v->n_dims + 1, sizeof(*shape)), bytes;
	bool same = v->n_dims == like->n_dims && dims_equal(v->n_dims, v->shape, like->shape);

	if (!fqn || !shape)
		return catalog_no_memory(e);
	if (!box_volume(v->n_dims, v->shape, &bytes) ||
	    ckd_mul(&bytes, bytes, dtype_info(v->dtype)->size) || bytes > INT64_MAX)
		return err_set(e, EFBIG, "tensor '%.200s' has more bytes than a file can have",
			       fqn);
	for (size_t d = 0; d < v->n_dims; d++)
		shape[d] = v->shape[d];
	ret->t = (struct catalog_tensor){ .fqn = fqn,
					  .fqn_len = v->fqn_len,
					  .shape = shape,
					  .logical = same ? like->logical : shape,
					  .n_logical = same ? like->n_logical : 0,
					  .bytes = bytes,
					  .row = CATALOG_COMPUTED,
					  .path = path_like(like, fqn, v->fqn_len),
					  .dtype = (uint8_t)v->dtype,
					  .n_dims = (uint8_t)v->n_dims,
					  .chunks = 1 };
	ret->t.top = catalog_path_top(ret->t.path, v->fqn_len);
	return 0;
}

int catalog_compute(struct catalog *c, struct catalog_computed *v, size_t n, const bool *hide,
		    uint32_t *ret_numbers, struct ckpt_err *e)
{
	size_t old = c->n_all, all = old + n, shown = 0;
	autofree struct moved *m = calloc(all + 1, sizeof(*m));
	struct catalog_tensor *t;

	if (!m)
		return catalog_no_memory(e);
	for (size_t i = 0; i < old; i++)
		m[i] = (struct moved){ c->tensors[i], (uint32_t)i, i >= c->n_tensors || hide[i] };
	for (size_t i = 0; i < n; i++) {
		if (fill_computed(c, &v[i], &m[old + i], e))
			return -e->code;
		m[old + i].from = (uint32_t)(old + i);
		m[old + i].hidden = v[i].hidden;
		if (v[i].blocks)
			m[old + i].t.blocks = (uint32_t)(old + v[i].blocks - 1);
	}
	qsort(m, all, sizeof(*m), by_place);
	while (shown < all && !m[shown].hidden)
		shown++;
	for (size_t i = 1; i < shown; i++)
		if (!text_natural_cmp(m[i - 1].t.fqn, m[i - 1].t.fqn_len, m[i].t.fqn,
				      m[i].t.fqn_len))
			return err_set(e, EEXIST, "there are two tensors '%.200s'", m[i].t.fqn);
	t = calloc(all + 1, sizeof(*t));
	if (!t)
		return catalog_no_memory(e);
	for (size_t i = 0; i < all; i++) {
		t[i] = m[i].t;
		if (m[i].from < old)
			ret_numbers[m[i].from] = (uint32_t)i;
		else
			v[m[i].from - old].number = (uint32_t)i;
	}
	for (size_t i = 0; i < n; i++)
		v[i].like = ret_numbers[v[i].like];
	for (size_t i = 0; i < all; i++)
		if (t[i].blocks)
			t[i].blocks = t[i].blocks < old ? ret_numbers[t[i].blocks]
							: v[t[i].blocks - old].number;
	free(c->tensors);
	c->tensors = t;
	c->n_tensors = shown;
	c->n_all = all;
	return 0;
}

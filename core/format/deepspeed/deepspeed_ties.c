/* SPDX-License-Identifier: Apache-2.0 */
/* Ties: names of a module that are one parameter, because they share its storage. */
#include "base/cleanup.h"
#include "base/search.h"
#include "format/deepspeed/deepspeed_states.h"

#include <stdlib.h>
#include <string.h>

/* The storage that a name of `module` points to: names with the same one are one parameter. */
struct tie {
	const struct pk_str *storage, *name;
	const uint64_t *shape;
	uint64_t offset;
	size_t order;
	uint8_t n_dims;
};

static int compare_ties(const struct tie *a, const struct tie *b)
{
	if (a->storage != b->storage)
		return a->storage->id < b->storage->id ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	if (a->n_dims != b->n_dims)
		return a->n_dims < b->n_dims ? -1 : 1;
	return a->n_dims ? memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)) : 0;
}

static int by_place(const void *ap, const void *bp)
{
	const struct tie *a = ap, *b = bp;
	int c = compare_ties(a, b);

	return c ? c : (a->order > b->order) - (a->order < b->order);
}

static int read_tie(struct ds_rank *x, const struct pk_value *pair, size_t order, struct tie *ret,
		    struct ckpt_err *e)
{
	struct torch_tensor t = { 0 };
	uint64_t *shape;

	if (torch_tensor_read(pair + 1, &t, e)) /* such values are not our concern */
		return 0;
	shape = arena_array(&x->d->arena, t.n_dims + 1, sizeof(*shape));
	ret->storage = ds_name(x->d, t.key, strlen(t.key), e);
	ret->name = ds_name(x->d, pair->s->data, pair->s->len, e);
	if (!shape || !ret->storage || !ret->name)
		return shape ? -e->code : err_nomem(e);
	if (t.n_dims)
		memcpy(shape, t.size, t.n_dims * sizeof(*shape));
	ret->shape = shape;
	ret->n_dims = (uint8_t)t.n_dims;
	ret->offset = t.offset;
	ret->order = order;
	return 1;
}

/*
 * Other names of a parameter within one module are in no list. But `module` has all of them, and
 * they point to the same storage; with ZeRO 3 it is empty, but each parameter has its own.
 */
int ds_find_ties(struct ds_rank *x, const struct pk_value *module, struct ckpt_err *e)
{
	size_t n = pk_len(module), n_known = 0, n_other = 0;
	autofree struct tie *v = calloc(2 * n + 1, sizeof(*v));
	struct tie *other = v + n;
	int rc = v ? 0 : err_nomem(e);

	for (size_t i = 0; rc >= 0 && i < n; i++) {
		const struct pk_value *pair = &module->n->v[2 * i];
		const struct ds_mark *m;
		struct tie t = { 0 };

		if (pair->type != PK_STR || !torch_is_tensor(pair + 1))
			continue;
		rc = read_tie(x, pair, i, &t, e);
		if (rc <= 0)
			continue;
		m = ds_mark_of(x->d, t.name);
		if (m && m->is_param)
			v[n_known++] = t;
		else if (!m || !m->is_buffer)
			other[n_other++] = t;
	}
	if (rc < 0 || !n_known)
		return rc < 0 ? rc : 0;
	rc = 0;
	qsort(v, n_known, sizeof(*v), by_place);
	for (size_t i = 0; !rc && i < n_other; i++) {
		size_t k = PARTITION_POINT(j, n_known, compare_ties(&v[j], &other[i]) < 0);

		if (k < n_known && !compare_ties(&v[k], &other[i]))
			rc = ds_add_alias(x->d, other[i].name, v[k].name, e);
	}
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins slices of tensor parallelism into their tensors, by the rules of universal_checkpoint_info
 * (deepspeed_rules.c). DeepSpeed only joins optimizer states, whose slices are never dropped; here
 * weights are joined in the same way.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "format/deepspeed/deepspeed.h"
#include "format/deepspeed/deepspeed_rules.h"

#include <stdlib.h>
#include <string.h>

/* Do they have the same dtype, and the same shape except along dimension dim? */
static bool fit(const struct ds_tensor *const *v, uint32_t n, size_t dim)
{
	for (uint32_t i = 0; i < n; i++) {
		if (v[i]->dtype != v[0]->dtype || v[i]->n_dims != v[0]->n_dims || v[i]->text)
			return false;
		for (size_t k = 0; k < v[0]->n_dims; k++)
			if (k != dim && v[i]->shape[k] != v[0]->shape[k])
				return false;
	}
	return true;
}

/* Each slice has a share of every part. */
static bool make_segments(const struct ds_tensor *const *v, uint32_t n, const struct ds_parts *p,
			  struct ds_joined *ret)
{
	uint64_t at = 0;

	for (size_t k = 0; k < p->n; k++) {
		uint64_t inner = 0;

		for (uint32_t i = 0; i < n; i++) {
			struct ds_segment *s = &ret->segments[i * p->n + k];
			uint64_t len = v[i]->shape[p->dim];

			if (!p->width && len % p->n)
				return false;
			s->len = p->width ? p->width[k * n + i] : len / p->n;
			s->from = k ? s[-1].from + s[-1].len : 0;
			s->to = at + inner;
			if (!range_ok(s->from, s->len, len) || ckd_add(&inner, inner, s->len))
				return false;
			if (k + 1 == p->n && s->from + s->len != len)
				return false;
		}
		if (ckd_add(&at, at, inner) || at >> 62)
			return false;
	}
	ret->shape[p->dim] = at;
	return true;
}

/* Rows beyond the vocabulary are padding. */
static void cut(struct ds_joined *j, uint32_t n, uint64_t rows)
{
	for (size_t i = 0; i < n * j->per_slice; i++) {
		struct ds_segment *s = &j->segments[i];

		s->len = s->to >= rows ? 0 : min_u64(s->len, rows - s->to);
	}
	j->shape[0] = min_u64(j->shape[0], rows);
}

int ds_join_find(struct ds *d, const struct ds_tensor *const *slices, uint32_t n,
		 struct ds_joined *ret, struct ckpt_err *e)
{
	const struct ds_tensor *t = slices[0];
	const struct ds_rule *r = ds_rule_of(d, t->name);
	const struct ds_parts *p = r ? &r->parts : NULL;
	uint64_t numel, rows;

	if (!r || r->listed || (r->vocabulary && p->dim) ||
	    !fit(slices, n, r->same ? CKPT_MAX_DIMS : p->dim) || (!t->n_dims && !r->same) ||
	    (t->n_dims && p->dim >= t->n_dims) || (p->dim && p->rank && p->rank != t->n_dims))
		return 0;
	*ret = (struct ds_joined){ .n_slices = r->same ? 1 : n, .per_slice = p->n, .dim = p->dim };
	ret->segments = calloc((size_t)n * p->n, sizeof(*ret->segments));
	if (!ret->segments)
		return err_nomem(e);
	if (t->n_dims)
		memcpy(ret->shape, t->shape, t->n_dims * sizeof(*t->shape));
	if (t->n_dims && !make_segments(slices, ret->n_slices, p, ret))
		return 0;
	if (t->n_dims && r->vocabulary && ds_rule_vocabulary(d, &rows))
		cut(ret, ret->n_slices, rows);
	return ds_numel(ret->shape, t->n_dims, &numel, e) ? -e->code : 1;
}

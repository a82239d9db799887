/* SPDX-License-Identifier: Apache-2.0 */
/* Names and shapes of parameters, which every model states file lists in the same order. */
#include "base/checked.h"
#include "format/deepspeed/deepspeed_states.h"

#include <string.h>

static int read_param(struct ds_rank *x, struct ds_open *o, const struct pk_value *pair,
		      struct ds_param *ret, struct ckpt_err *e)
{
	uint64_t shape[CKPT_MAX_DIMS], *copy;
	size_t n;

	if (pair->type != PK_STR || !pk_numbers(pair + 1, shape, CKPT_MAX_DIMS, &n))
		return err_set(e, ERR_CORRUPT,
			       "'%.200s': its names and shapes are not in DeepSpeed's form",
			       o->f->path);
	copy = arena_array(&x->d->arena, n + 1, sizeof(*copy));
	ret->name = ds_name(x->d, pair->s->data, pair->s->len, e);
	if (!ret->name || !copy)
		return ret->name ? err_nomem(e) : -e->code;
	if (n)
		memcpy(copy, shape, n * sizeof(*copy));
	ret->shape = copy;
	ret->n_dims = (uint8_t)n;
	if (ds_numel(shape, n, &ret->numel, e))
		return err_wrap(e, "'%.200s': '%.100s'", o->f->path, ret->name->data);
	digest_add(&x->shapes, ret->name->data, ret->name->len + 1);
	digest_add(&x->names, ret->name->data, ret->name->len + 1);
	digest_add(&x->shapes, shape, n * sizeof(*shape));
	return 0;
}

int ds_read_group(struct ds_rank *x, struct ds_open *o, const struct pk_value *dict,
		  struct ds_group *ret, struct ckpt_err *e)
{
	size_t n = pk_dict_len(dict);
	uint64_t total = 0;
	int rc = torch_file_spend(&o->file, n + 1, e);

	if (!rc && dict->type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s': param_shapes is not in DeepSpeed's form",
			     o->f->path);
	ret->params = rc ? NULL : arena_array(&x->d->arena, n + 1, sizeof(*ret->params));
	if (!rc && !ret->params)
		rc = err_nomem(e);
	ret->n = n;
	digest_add(&x->shapes, &n, sizeof(n));
	for (size_t i = 0; !rc && i < n; i++) {
		rc = read_param(x, o, &dict->n->v[2 * i], &ret->params[i], e);
		if (!rc && (ckd_add(&total, total, ret->params[i].numel) || total >> 62))
			rc = err_set(e, ERR_CORRUPT, "'%.200s': a group of more than 2^62 elements",
				     o->f->path);
	}
	return rc;
}

int ds_mark_group(struct ds_rank *x, const struct ds_group *g, bool frozen, struct ckpt_err *e)
{
	for (size_t i = 0; i < g->n; i++) {
		struct ds_mark *m = ds_mark(x->d, g->params[i].name, e);

		if (!m)
			return -e->code;
		m->is_param = true;
		m->is_frozen = frozen;
		m->shape = g->params[i].shape;
		m->n_dims = g->params[i].n_dims;
		m->stage = x->stage;
	}
	return 0;
}

int ds_read_shapes(struct ds_rank *x, struct ds_open *o, const struct pk_value *v,
		   struct ckpt_err *e)
{
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	if (rc || !v)
		return rc;
	x->has_shapes = true;
	x->undivided = v->type == PK_DICT;
	x->n_groups = x->undivided ? 1 : n;
	x->groups = arena_array(&x->d->arena, x->n_groups + 1, sizeof(*x->groups));
	if (!x->groups)
		return err_nomem(e);
	if (!x->undivided && v->type != PK_LIST && v->type != PK_TUPLE)
		return err_set(e, ERR_CORRUPT, "'%.200s': param_shapes is not in DeepSpeed's form",
			       o->f->path);
	for (size_t i = 0; !rc && i < x->n_groups; i++) {
		rc = ds_read_group(x, o, x->undivided ? v : &v->n->v[i], &x->groups[i], e);
		if (!rc)
			rc = ds_mark_group(x, &x->groups[i], false, e);
		x->n_params += x->groups[i].n;
	}
	return rc;
}

int ds_compare_shapes(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	struct ds_rank other = { .d = x->d, .mp = x->mp, .stage = x->stage };
	const struct pk_value *frozen = ds_get(&o->file.root, "frozen_param_shapes");
	int rc = ds_read_shapes(&other, o, ds_get(&o->file.root, "param_shapes"), e);

	if (!rc && frozen)
		rc = ds_read_group(&other, o, frozen, &other.frozen, e);
	return rc ? rc : !!memcmp(&x->shapes, &other.shapes, sizeof(x->shapes));
}

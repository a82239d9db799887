/* SPDX-License-Identifier: Apache-2.0 */
/* The model: the weights among the tensors of the tree, or what a recipe makes of them. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "recipe/recipe.h"
#include "tensor/model_names.h"
#include "tensor/vtensor.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum ckpt_dtype view_dtype(const struct view *v, enum ckpt_dtype stored)
{
	return v->o.dtype != CKPT_DTYPE_NONE && cast_possible(stored, v->o.dtype) ? v->o.dtype
										  : stored;
}

/*
 * For mixed-precision training: replaces weights by their masters, if they have one. Masters are
 * found by stored names; renamed or not, a weight keeps the name it has here.
 */
static int take_masters(const struct view *v, struct namelist *names, struct ckpt_err *e)
{
	size_t n, found = 0;
	const struct catalog_tensor *t = catalog_tensors(v->c, &n);
	autofree uint32_t *at = malloc((n + 1) * sizeof(*at)); /* 1 + position in the tree */
	struct buf fqn CLEANUP(buf_release) = BUF_INIT(UINT32_MAX);

	if (!at)
		return err_nomem(e);
	memset(at, 0, (n + 1) * sizeof(*at));
	for (size_t i = 0; i < v->tensors.n; i++)
		at[v->tensors.v[i].index] = (uint32_t)i + 1;
	for (size_t i = 0; i < names->n; i++) {
		const struct catalog_tensor *w = &t[v->tensors.v[names->v[i].index].index];
		int64_t master;

		fqn.len = 0;
		buf_str(&fqn, "optimizer.state.");
		buf_add(&fqn, w->fqn, w->fqn_len);
		buf_str(&fqn, ".fp32");
		if (fqn.err)
			return err_nomem(e);
		master = catalog_find_tensor(v->c, fqn.data, fqn.len);
		if (master < 0 || !at[master])
			continue;
		names->v[i].index = at[master] - 1;
		found++;
	}
	return found || !names->n ? 0
				  : err_set(e, EINVAL,
					    "option 'master': no weight has an fp32 master, which "
					    "would be named optimizer.state.NAME.fp32");
}

/* The weights' names, derived from those of the tree; their indexes are positions there. */
static int list_weights(const struct view *v, struct namelist *ret, size_t *ret_prefix,
			struct ckpt_err *e)
{
	size_t n = v->tensors.n, k;
	const struct catalog_tensor *t = catalog_tensors(v->c, &k);
	autofree struct model_in *in = calloc(n + 1, sizeof(*in));

	if (!in)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		const struct named *name = &v->tensors.v[i];
		const struct catalog_tensor *from = &t[name->index];

		/* For a renamed tensor, the top-level key of the old name does not apply. */
		in[i] = (struct model_in){ name->fqn, name->len,
					   name->fqn == from->fqn ? from->top : 0 };
	}
	return model_names(in, n, v->o.weights, ret, ret_prefix, e);
}

/* The model consists of the unchanged weights. */
static int take_weights(struct view *v, struct namelist *names, struct ckpt_err *e)
{
	v->model.weights = calloc(names->n + 1, sizeof(*v->model.weights));
	if (!v->model.weights)
		return err_nomem(e);
	v->model.n_weights = names->n;
	for (uint32_t i = 0; i < names->n; i++) {
		v->model.weights[i].at = names->v[i].index;
		names->v[i].index = i;
	}
	v->model.names = *names;
	*names = (struct namelist){ 0 };
	return 0;
}

static int by_number(const void *ap, const void *bp)
{
	uint32_t a = *(const uint32_t *)ap, b = *(const uint32_t *)bp;

	return a < b ? -1 : a > b;
}

/* Lists the stored tensors it is made of, each once. */
int view_weight_sources(struct weight *w, struct ckpt_err *e)
{
	uint32_t n = w->made->n_pieces, *s = w->sources = malloc((n + 1ul) * sizeof(*s));

	if (!s)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++)
		s[i] = w->made->pieces[i].source;
	qsort(s, n, sizeof(*s), by_number);
	for (uint32_t i = 0; i < n; i++)
		if (!i || s[i] != s[w->n_sources - 1])
			s[w->n_sources++] = s[i];
	return 0;
}

/* found: as in struct recipe_in; if it is set, no warnings are issued. */
static int run_recipe(const struct view *v, const struct recipe *r, bool backwards,
		      const struct recipe_facts *facts, const struct namelist *names, size_t *found,
		      struct recipe_out *ret, struct ckpt_err *e)
{
	const struct catalog_tensor *t = catalog_tensors(v->c, NULL);
	autofree struct recipe_source *sources = calloc(v->tensors.n + 1, sizeof(*sources));
	struct recipe_in in = { .names = names,
				.sources = sources,
				.facts = facts,
				.warn = found ? NULL : v->o.warn,
				.warn_arg = v->o.warn_arg,
				.found = found };

	if (!sources)
		return err_nomem(e);
	for (size_t i = 0; i < v->tensors.n; i++) {
		uint32_t number = v->tensors.v[i].index;
		const struct catalog_tensor *from = &t[number];

		sources[i] =
			(struct recipe_source){ from->shape, number, from->dtype,
						(uint8_t)view_dtype(v, from->dtype), from->n_dims };
	}
	return backwards ? recipe_invert(r, &in, ret, e) : recipe_apply(r, &in, ret, e);
}

int view_weight_names(const struct view *v, struct namelist *ret, struct ckpt_err *e)
{
	size_t prefix;

	*ret = (struct namelist){ 0 };
	return list_weights(v, ret, &prefix, e);
}

int view_try_recipe(const struct view *v, const struct recipe *r, const struct recipe_facts *facts,
		    const struct namelist *names, size_t *found, struct recipe_out *ret,
		    struct ckpt_err *e)
{
	*found = 0;
	return run_recipe(v, r, false, facts, names, found, ret, e);
}

/* The model is made from the weights by the recipe. */
static int apply_recipe(struct view *v, const struct namelist *names, struct ckpt_err *e)
{
	struct recipe_out out;
	int rc = run_recipe(v, v->o.recipe, v->o.backwards, v->o.facts, names, NULL, &out, e);

	if (rc)
		return rc;
	v->model.weights = calloc(out.names.n + 1, sizeof(*v->model.weights));
	if (!v->model.weights) {
		recipe_out_release(&out);
		return err_nomem(e);
	}
	v->model.n_weights = out.names.n;
	for (size_t i = 0; i < out.names.n; i++)
		v->model.weights[i].made = out.tensors[i];
	free(out.tensors);
	v->model.names = out.names;
	v->prefix = 0;
	for (size_t i = 0; !rc && i < v->model.n_weights; i++)
		rc = view_weight_sources(&v->model.weights[i], e);
	return rc;
}

int view_model_init(struct view *v, struct ckpt_err *e)
{
	struct namelist names = { 0 };
	struct ckpt_err why = { 0 };
	int rc = list_weights(v, &names, &v->prefix, &why);

	if (!rc && names.n) /* before masters, whose names begin otherwise, take their place */
		v->prefix_text = v->tensors.v[names.v[0].index].fqn;
	if (!rc && v->o.masters && take_masters(v, &names, e)) {
		namelist_release(&names);
		return -e->code;
	}
	v->hf = &v->model;
	v->has_model = !rc;
	if (!rc) {
		rc = v->o.recipe ? apply_recipe(v, &names, e) : take_weights(v, &names, e);
		namelist_release(&names);
		return rc ? rc : view_experts_init(v, e);
	}
	if (rc != -EEXIST || v->o.weights || v->o.rename || v->o.layout || v->o.recipe) {
		*e = why;
		return rc;
	}
	/* No option requested a model, so only warn: the rest of the tree works without one. */
	if (v->o.warn) {
		(void)err_wrap(&why, "no hf/ and pt/: name the weights with weights= or rename=");
		v->o.warn(v->o.warn_arg, why.msg);
	}
	return 0;
}

void model_release(struct model *m)
{
	namelist_release(&m->names);
	for (size_t i = 0; i < m->n_weights; i++) {
		free(m->weights[i].made);
		free(m->weights[i].sources);
	}
	free(m->weights);
	*m = (struct model){ 0 };
}

void view_model_release(struct view *v)
{
	model_release(&v->model);
	model_release(&v->regrouped);
	model_release(&v->coded);
}

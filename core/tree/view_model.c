/* SPDX-License-Identifier: Apache-2.0 */
/* The model: the weights among the tensors of the tree, or what a recipe makes of them. */
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

enum ckpt_dtype view_dtype(const struct view *v, enum ckpt_dtype stored)
{
	return v->o.dtype != CKPT_DTYPE_NONE && cast_possible(stored, v->o.dtype) ? v->o.dtype
										  : stored;
}

/* The weights' names, from those of the tree; their indexes are positions there. */
static int list_weights(struct view *v, struct namelist *ret, struct ckpt_err *e)
{
	size_t n = v->tensors.n, k;
	const struct catalog_tensor *t = catalog_tensors(v->c, &k);
	autofree struct model_in *in = calloc(n + 1, sizeof(*in));

	if (!in)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const struct named *name = &v->tensors.v[i];
		const struct catalog_tensor *from = &t[name->index];

		/* What a renamed tensor's top-level key was says nothing about its new name. */
		in[i] = (struct model_in){ name->fqn, name->len,
					   name->fqn == from->fqn ? from->top : 0 };
	}
	return model_names(in, n, v->o.weights, ret, &v->prefix, e);
}

/* The model is the weights. */
static int take_weights(struct view *v, struct namelist *names, struct ckpt_err *e)
{
	v->model.weights = calloc(names->n + 1, sizeof(*v->model.weights));
	if (!v->model.weights)
		return err_set(e, ENOMEM, "out of memory");
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

/* Which stored tensors it is made of, each once. */
int view_weight_sources(struct weight *w, struct ckpt_err *e)
{
	uint32_t n = w->made->n_pieces, *s = w->sources = malloc((n + 1ul) * sizeof(*s));

	if (!s)
		return err_set(e, ENOMEM, "out of memory");
	for (uint32_t i = 0; i < n; i++)
		s[i] = w->made->pieces[i].source;
	qsort(s, n, sizeof(*s), by_number);
	for (uint32_t i = 0; i < n; i++)
		if (!i || s[i] != s[w->n_sources - 1])
			s[w->n_sources++] = s[i];
	return 0;
}

/* The model is what the recipe makes of the weights. */
static int apply_recipe(struct view *v, const struct namelist *names, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(v->c, &n);
	autofree struct recipe_source *sources = calloc(v->tensors.n + 1, sizeof(*sources));
	struct recipe_in in = { names, sources, v->o.facts, v->o.warn, v->o.warn_arg };
	struct recipe_out out;
	int rc;

	if (!sources)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < v->tensors.n; i++) {
		uint32_t number = v->tensors.v[i].index;
		const struct catalog_tensor *from = &t[number];

		sources[i] =
			(struct recipe_source){ from->shape, number, from->dtype,
						(uint8_t)view_dtype(v, from->dtype), from->n_dims };
	}
	rc = recipe_apply(v->o.recipe, &in, &out, e);
	if (rc)
		return rc;
	v->model.weights = calloc(out.names.n + 1, sizeof(*v->model.weights));
	if (!v->model.weights) {
		recipe_out_release(&out);
		return err_set(e, ENOMEM, "out of memory");
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
	int rc = list_weights(v, &names, &why);

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
	/* Nobody asked for a model: the rest of the tree is fine without. */
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
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a view: decides which tensors and objects it shows, and under which names. */
#include "tree/view.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/nearest.h"
#include "base/text.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "tensor/rename.h"
#include "tensor/scales.h"
#include "tree/view_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Also tries all globs that have not matched yet, to find out which ones never match. */
static bool matches(const char *const *globs, bool *used, const char *fqn, size_t len,
		    uint64_t *steps)
{
	bool any = false;

	for (size_t i = 0; globs && globs[i]; i++)
		if ((!any || !used[i]) && text_glob_within(globs[i], fqn, len, steps))
			any = used[i] = true;
	return any;
}

static bool exists(struct view *v, const char *fqn, size_t len)
{
	bool in = matches(v->o.include, v->included, fqn, len, &v->glob_steps),
	     out = matches(v->o.exclude, v->excluded, fqn, len, &v->glob_steps);

	return (in || !v->o.include) && !out;
}

static int new_flags(const char *const *globs, bool **ret, struct ckpt_err *e)
{
	size_t n = 0;

	while (globs && globs[n])
		n++;
	*ret = calloc(n + 1, sizeof(**ret));
	return *ret ? 0 : err_nomem(e);
}

static void stored_tensor(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;
	const struct catalog_tensor *t = &catalog_tensors(v->c, NULL)[index];

	*ret = t->fqn;
	*ret_len = t->fqn_len;
}

static void stored_object(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;
	const struct catalog_object *o = &catalog_objects(v->c, NULL)[index];

	*ret = o->hidden ? NULL : o->fqn;
	*ret_len = o->fqn_len;
}

/* "; did you mean 'a'?" for a glob that matches no name, or "". *steps: for all globs together. */
static const char *name_meant(const struct view *v, const char *glob, uint64_t *steps,
			      char out[static 160])
{
	struct nearest near = NEAREST_INIT(glob, strlen(glob));
	const char *fqn;
	size_t n, len;

	near.steps = *steps;
	(void)catalog_tensors(v->c, &n);
	for (uint32_t i = 0; i < n; i++) {
		stored_tensor(v, i, &fqn, &len);
		nearest_try(&near, fqn, len, i);
	}
	*steps = near.steps;
	if (!near.n)
		return "";
	stored_tensor(v, (uint32_t)near.best[0].id, &fqn, &len);
	(void)snprintf(out, 160, "; did you mean '%s'?", FQN_TEXT(fqn, len));
	return out;
}

/* A glob that matches nothing is usually a typo. */
static void warn_unused(const struct view *v, const char *word, const char *const *globs,
			const bool *used)
{
	uint64_t steps = NEAREST_STEPS;
	struct ckpt_err what;
	char meant[160];

	for (size_t i = 0; v->o.warn && globs && globs[i]; i++)
		if (!used[i]) {
			(void)err_set(&what, ENOENT, "option '%s': '%.200s' matches no FQN%s", word,
				      globs[i], name_meant(v, globs[i], &steps, meant));
			v->o.warn(v->o.warn_arg, what.msg);
		}
}

/* The names of the tree: those of n stored tensors or objects that exist, after renaming. */
static int list_names(struct view *v, size_t n, namelist_stored_fn *stored, struct namelist *ret,
		      struct ckpt_err *e)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < n; i++) {
		const char *fqn;
		size_t len;

		stored(v, i, &fqn, &len);
		if (fqn && exists(v, fqn, len))
			rc = namelist_add(ret, fqn, len, i, e);
	}
	if (!rc)
		rc = text_glob_check(v->glob_steps, "include= and exclude=", e);
	if (!rc && v->o.rename)
		rc = rename_list(v->o.rename, ret, e);
	return rc ? rc : namelist_finish(ret, stored, v, e);
}

static int list_tree(struct view *v, struct ckpt_err *e)
{
	size_t n_tensors, n_objects;
	int rc;

	(void)catalog_tensors(v->c, &n_tensors);
	(void)catalog_objects(v->c, &n_objects);
	if (n_tensors > VIEW_MAX_NAMES)
		return err_set(e, EFBIG, "%zu tensors: the tree has inode numbers for %u",
			       n_tensors, VIEW_MAX_NAMES);
	if (n_objects > VIEW_MAX_OBJECTS)
		return err_set(e, EFBIG, "%zu objects: the tree has inode numbers for %u",
			       n_objects, VIEW_MAX_OBJECTS);
	rc = new_flags(v->o.include, &v->included, e);
	if (!rc)
		rc = new_flags(v->o.exclude, &v->excluded, e);
	if (!rc)
		rc = list_names(v, n_tensors, stored_tensor, &v->tensors, e);
	if (!rc)
		rc = list_names(v, n_objects, stored_object, &v->objects, e);
	if (!rc)
		rc = view_objects_init(v, e);
	if (!rc)
		warn_unused(v, "include", v->o.include, v->included);
	if (!rc)
		warn_unused(v, "exclude", v->o.exclude, v->excluded);
	return rc;
}

static void tree_tensor(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;

	*ret = v->tensors.v[index].fqn;
	*ret_len = v->tensors.v[index].len;
}

/*
 * Is it optimizer state that was saved flattened but keeps its own shape? core_v0.8 to 0.10
 * flattened one-dimensional state. State with more dimensions is stored as blocks, with a dimension
 * for each and one for the elements, so a flattened tensor with one dimension can be nothing else.
 */
static bool is_flat_itself(const struct catalog_tensor *t)
{
	return t->n_dims == 1 && (text_glob("optimizer.state.*", t->fqn, t->fqn_len) ||
				  text_glob("chained_*.optimizer.state.*", t->fqn, t->fqn_len));
}

/*
 * If the checkpoint has tensors that are stored flattened: lists them, and one-dimensional ones
 * like them.
 */
static int list_logical(struct view *v, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(v->c, &n);
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < n && !any; i++)
		any = t[i].n_logical;
	for (uint32_t i = 0; !rc && any && i < v->tensors.n; i++) {
		const struct named *name = &v->tensors.v[i];

		if (t[name->index].n_logical || is_flat_itself(&t[name->index]))
			rc = namelist_add(&v->logical, name->fqn, name->len, i, e);
	}
	return rc ? rc : namelist_finish(&v->logical, tree_tensor, v, e);
}

uint64_t view_logical_id(const struct view *v, size_t i)
{
	uint32_t at = v->logical.v[i].index;

	return view_id(catalog_tensors(v->c, NULL)[v->tensors.v[at].index].n_logical ? OF_LOGICAL
										     : OF_TREE,
		       at);
}

static int bind_layout(struct view *v, struct ckpt_err *e)
{
	size_t n = v->model.names.n;
	autofree struct layout_tensor *in = calloc(n + 1, sizeof(*in));
	struct tensor_info t;

	if (!in)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		(void)view_info(v, OF_MODEL, i, &t, NULL);
		in[i] = (struct layout_tensor){ t.fqn, t.fqn_len, t.n_dims, t.shape };
	}
	return layout_bind(v->o.layout, in, n, e);
}

/* A cast would round the scales but not the codes, and no weights could be made from the result. */
static int refuse_scaled(const struct catalog_tensor *t, const struct catalog_tensor *scales,
			 struct ckpt_err *e)
{
	return err_set(e, ERR_UNSUPPORTED,
		       "option 'dtype': '%.120s' holds codes (%s) whose scales are in '%.120s', "
		       "which a cast does not apply: use dequantize=, leave the option out, or "
		       "exclude both",
		       FQN_TEXT(t->fqn, t->fqn_len), dtype_info(t->dtype)->name,
		       FQN_TEXT(scales->fqn, scales->fqn_len));
}

/* The same, where only config.json says that there are codes. */
static int refuse_unknown(const struct view *v, const struct catalog_tensor *t, struct ckpt_err *e)
{
	return err_set(e, ERR_UNSUPPORTED,
		       "option 'dtype': config.json has '%s', and '%.120s' (%s, shape %s) may hold "
		       "codes, whose scales a cast would round: leave the option out, or exclude "
		       "it and its scales, if it has any",
		       v->o.quantised, FQN_TEXT(t->fqn, t->fqn_len), dtype_info(t->dtype)->name,
		       TUPLE_TEXT(t->shape, t->n_dims));
}

static int refuse_codes(const struct view *v, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *all = catalog_tensors(v->c, &n);
	autofree bool *shown = calloc(n + 1, sizeof(*shown));

	if (!shown)
		return err_nomem(e);
	for (size_t i = 0; i < v->tensors.n; i++)
		shown[v->tensors.v[i].index] = true;
	for (size_t i = 0; i < n; i++) {
		const struct catalog_tensor *t = &all[i];
		int64_t scales;

		if (!shown[i])
			continue;
		for (size_t at = 0; (scales = scales_of(v->c, t, &at)) >= 0;)
			if (shown[scales])
				return refuse_scaled(t, &all[scales], e);
		/* Known scales that are not shown are not rounded. */
		if (v->o.quantised && scales_likely(t) && scales_of(v->c, t, &(size_t){ 0 }) < 0)
			return refuse_unknown(v, t, e);
	}
	return 0;
}

int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct ckpt_err *e)
{
	struct view *v = calloc(1, sizeof(*v));
	int rc;

	if (!v)
		return err_nomem(e);
	v->c = c;
	v->o = *opts;
	v->glob_steps = TEXT_GLOB_STEPS;
	rc = list_tree(v, e);
	if (!rc && v->o.dtype != CKPT_DTYPE_NONE)
		rc = refuse_codes(v, e);
	if (!rc)
		rc = list_logical(v, e);
	if (!rc)
		rc = view_model_init(v, e);
	if (!rc && v->o.layout)
		rc = bind_layout(v, e);
	if (!rc && v->has_model)
		rc = view_hf_init(v, e);
	if (!rc && v->o.layout)
		rc = view_ranks_init(v, e);
	if (!rc)
		rc = view_gguf_init(v, e);
	if (!rc)
		rc = view_page_init(v, e);
	if (rc) {
		view_free(v);
		return rc;
	}
	*ret = v;
	return 0;
}

void view_free(struct view *v)
{
	if (!v)
		return;
	namelist_release(&v->tensors);
	namelist_release(&v->objects);
	namelist_release(&v->logical);
	free(v->json);
	view_gguf_release(v);
	view_model_release(v);
	view_hf_release(v);
	free(v->held);
	free(v->held_at);
	free(v->tiles_at);
	free(v->included);
	free(v->excluded);
	free(v);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The model of hf/ with some of its weights as codes and scales, which are computed tensors. */
#include "base/cleanup.h"
#include "base/err.h"
#include "index/catalog_query.h"
#include "tensor/vtensor.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Takes over w, also on failure; there is room. */
static int add(struct view *v, const char *name, size_t len, struct weight w, struct ckpt_err *e)
{
	struct model *m = &v->coded;
	int rc = w.made ? view_weight_sources(&w, e) : 0;

	if (!rc)
		rc = namelist_add(&m->names, name, len, (uint32_t)m->n_weights, e);
	if (rc) {
		free(w.made);
		free(w.sources);
		return rc;
	}
	m->weights[m->n_weights++] = w;
	return 0;
}

static int add_computed(struct view *v, const char *name, size_t len, uint32_t number,
			enum view_role role, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &catalog_tensors(v->c, NULL)[number];
	struct weight w = { .role = (uint8_t)role };
	int rc = vtensor_whole(t, number, (enum ckpt_dtype)t->dtype, &w.made, e);

	return rc ? rc : add(v, name, len, w, e);
}

static int add_codes(struct view *v, const struct named *name, const struct view_codes *c,
		     const char *end, struct ckpt_err *e)
{
	size_t more = strlen(end);
	autofree char *text = malloc(name->len + more + 1);
	const char *scales;
	int rc;

	if (!text)
		return err_nomem(e);
	memcpy(text, name->fqn, name->len);
	memcpy(text + name->len, end, more + 1);
	scales = namelist_copy(&v->coded.names, text, name->len + more);
	rc = scales ? add_computed(v, scales, name->len + more, c->scales, VIEW_SCALES, e)
		    : err_nomem(e);
	return rc ? rc : add_computed(v, name->fqn, name->len, c->codes, VIEW_CODES, e);
}

static int keep(struct view *v, size_t i, struct ckpt_err *e)
{
	const struct named *name = &v->hf->names.v[i];
	struct weight w = { .at = v->hf->weights[name->index].at };
	int rc = v->hf->weights[name->index].made ? view_vtensor(v, view_id(OF_HF, i), &w.made, e)
						  : 0;

	return rc ? rc : add(v, name->fqn, name->len, w, e);
}

static void in_model(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	(void)arg;
	(void)index;
	*ret = "the model or its scales";
	*ret_len = strlen(*ret);
}

int view_show_codes(struct view *v, const struct view_codes *codes, size_t n, const char *end,
		    const char *config, struct ckpt_err *e)
{
	size_t all = v->hf->names.n, k = 0;
	int rc;

	if (all + n > VIEW_MAX_NAMES)
		return err_set(e, EFBIG,
			       "%zu tensors with their scales: the tree has numbers for %u",
			       all + n, VIEW_MAX_NAMES);
	v->coded.weights = calloc(all + n + 1, sizeof(*v->coded.weights));
	rc = v->coded.weights ? 0 : err_nomem(e);
	for (size_t i = 0; !rc && i < all; i++) {
		if (k < n && codes[k].i == i)
			rc = add_codes(v, &v->hf->names.v[i], &codes[k++], end, e);
		else
			rc = keep(v, i, e);
	}
	if (!rc)
		rc = namelist_finish(&v->coded.names, in_model, NULL, e);
	if (rc)
		return rc;
	v->hf = &v->coded;
	v->config = config;
	view_hf_release(v);
	return view_hf_init(v, e);
}

enum view_role view_role(const struct view *v, size_t i)
{
	return (enum view_role)v->hf->weights[v->hf->names.v[i].index].role;
}

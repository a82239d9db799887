/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/overlay.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/replace.h"

#include <errno.h>
#include <stdlib.h>

static int describe(struct engine *eng, const struct engine *other, const char *option,
		    const struct overlay_pair *p, bool cast, struct computed_new *ret,
		    struct ckpt_err *e)
{
	const struct catalog_tensor *to = &catalog_tensors(eng->catalog, NULL)[p->to];
	const struct catalog_tensor *from = &catalog_tensors(other->catalog, NULL)[p->from];
	enum ckpt_dtype dtype = (enum ckpt_dtype)(cast ? to->dtype : from->dtype);
	const struct replace how = { dtype, to->n_dims };
	struct derived_input *in = arena_array(&eng->computed.mem, 1, sizeof(*in));
	void *kept = arena_dup(&eng->computed.mem, &how, sizeof(how));

	if (!in || !kept)
		return err_nomem(e);
	if (from->n_dims != to->n_dims || !dims_equal(to->n_dims, from->shape, to->shape))
		return err_set(e, EINVAL,
			       "option '%s': '%.120s' has shape %s in '%.300s', and '%.120s' has "
			       "shape %s",
			       option, FQN_TEXT(from->fqn, from->fqn_len),
			       TUPLE_TEXT(from->shape, from->n_dims), other->c->root,
			       FQN_TEXT(to->fqn, to->fqn_len), TUPLE_TEXT(to->shape, to->n_dims));
	if (dtype != from->dtype && !cast_possible((enum ckpt_dtype)from->dtype, dtype))
		return err_set(e, EINVAL,
			       "option '%s': '%.120s' is %s in '%.300s', and '%.120s' is %s",
			       option, FQN_TEXT(from->fqn, from->fqn_len),
			       dtype_info((enum ckpt_dtype)from->dtype)->name, other->c->root,
			       FQN_TEXT(to->fqn, to->fqn_len), dtype_info(dtype)->name);
	*in = (struct derived_input){ .fetch = other->fetch, .tensor = p->from };
	*ret = (struct computed_new){ .fqn = to->fqn,
				      .fqn_len = to->fqn_len,
				      .like = p->to,
				      .dtype = dtype,
				      .n_dims = to->n_dims,
				      .shape = to->shape,
				      .run = replace_run,
				      .how = kept,
				      .inputs = in,
				      .n_inputs = 1 };
	return 0;
}

int overlay_replace(struct engine *eng, const struct engine *other, const char *option,
		    const struct overlay_pair *v, size_t n, bool cast, struct ckpt_err *e)
{
	size_t shown;
	autofree struct computed_new *make = calloc(n + 1, sizeof(*make));
	autofree bool *hide = NULL;
	int rc;

	(void)catalog_tensors(eng->catalog, &shown);
	hide = calloc(shown + 1, sizeof(*hide));
	rc = make && hide ? 0 : err_nomem(e);
	for (size_t i = 0; !rc && i < n; i++) {
		rc = describe(eng, other, option, &v[i], cast, &make[i], e);
		hide[v[i].to] = true;
	}
	return rc ? rc : computed_add(&eng->computed, eng->catalog, make, n, hide, e);
}

static int put_over(struct engine *eng, const struct engine *other, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(other->catalog, &n);
	autofree struct overlay_pair *v = calloc(n + 1, sizeof(*v));

	if (!v)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++) {
		int64_t at = computed_find(eng->catalog, t[i].fqn, t[i].fqn_len);

		if (at < 0)
			return err_set(e, EINVAL,
				       "option 'overlay': '%.300s' has a tensor '%.120s', and the "
				       "checkpoint has none of that name",
				       other->c->root, FQN_TEXT(t[i].fqn, t[i].fqn_len));
		v[i] = (struct overlay_pair){ i, (uint32_t)at };
	}
	return overlay_replace(eng, other, "overlay", v, n, false, e);
}

int overlay_derive(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	size_t n = 0;
	int rc = 0;

	while (o->overlay[n])
		n++;
	for (size_t i = 0; !rc && i < n; i++) {
		struct engine *other;

		rc = others_open(eng, o->overlay[i], o, n + 1, &other, e);
		rc = rc ? err_wrap(e, "option 'overlay'") : put_over(eng, other, e);
	}
	return rc;
}

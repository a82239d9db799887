/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/overlay.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/dequantise_gguf.h"
#include "ckpt/computed/overlay_sparse.h"
#include "codec/cast.h"
#include "format/format.h"
#include "format/gguf/gguf_types.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/derived/replace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	if (from->n_dims != to->n_dims ||
	    !dims_equal(to->n_dims - p->resized, from->shape + p->resized, to->shape + p->resized))
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
				      .shape = from->shape,
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

/* Whole tensors and single elements. */
struct put {
	struct engine *eng;
	const struct engine *other;
	struct computed_new *make;
	size_t n;
	bool *hide, *part; /* one for each tensor of eng, of other */
	struct overlay_sparse *sparse;
	size_t n_sparse;
	struct ckpt_err *e;
};

static void put_release(struct put *p)
{
	free(p->make);
	free(p->hide);
	free(p->part);
	free(p->sparse);
}

static int put_whole(struct put *p, uint32_t i)
{
	const struct catalog_tensor *t = &catalog_tensors(p->other->catalog, NULL)[i];
	int64_t at = catalog_find_tensor(p->eng->catalog, t->fqn, t->fqn_len);

	if (at < 0)
		return err_set(p->e, EINVAL,
			       "option 'overlay': '%.300s' has a tensor '%.120s', but the "
			       "checkpoint has none of that name",
			       p->other->c->root, FQN_TEXT(t->fqn, t->fqn_len));
	p->hide[at] = true;
	return describe(p->eng, p->other, "overlay",
			&(struct overlay_pair){ .from = i, .to = (uint32_t)at }, false,
			&p->make[p->n++], p->e);
}

static int put_sparse(struct put *p, const struct overlay_sparse *s)
{
	const struct catalog_tensor *to = &catalog_tensors(p->eng->catalog, NULL)[s->to];
	struct computed_new made = { 0 };

	if (p->hide[s->to])
		return err_set(p->e, EINVAL, "option 'overlay': '%.300s' changes '%.120s' twice",
			       p->other->c->root, FQN_TEXT(to->fqn, to->fqn_len));
	if (overlay_sparse_describe(p->eng, p->other, s, &made, p->e))
		return -p->e->code;
	if (made.run) {
		p->hide[s->to] = true;
		p->make[p->n++] = made;
	}
	return 0;
}

/* What the name of a type, in GGUF_TYPES, says of a tensor that the other GGUF has as `type`. */
static int check_type(const struct engine *other, const char *fqn, const char *name,
		      const struct ggml_info *type, struct ckpt_err *e)
{
	const struct ggml_info *had = name ? ggml_info_named(name) : NULL;

	if (had == type || (had && had->dtype && type->dtype))
		return 0;
	return err_set(e, EINVAL,
		       "option 'overlay': '%.120s' is of ggml's type %s in '%.300s', and of %.20s "
		       "in the checkpoint, whose '" GGUF_TYPES "' is shown; with 'dequantize' the "
		       "values are replaced",
		       FQN_TEXT(fqn, strlen(fqn)), type->name, other->c->root,
		       had ? had->name : "?");
}

/* Blocks are shown as bytes, which are other values if they are taken for another type's. */
static int check_gguf(const struct engine *eng, const struct engine *other, struct ckpt_err *e)
{
	const struct catalog_object *o = catalog_objects(eng->catalog, NULL);
	int64_t at = catalog_find_object(eng->catalog, GGUF_TYPES, strlen(GGUF_TYPES));
	struct jdoc types CLEANUP(jdoc_release) = { 0 };
	autofree const struct ggml_info **from = NULL;
	size_t blocks;
	int rc;

	if (at < 0 || !o[at].text)
		return err_set(e, EFBIG,
			       "option 'overlay': the types of the tensors take too much memory");
	rc = jdoc_parse_copy(&types, o[at].text, o[at].text_len, 0, e);
	if (!rc)
		rc = gguf_types(other->catalog, &from, &blocks, e);
	for (struct jiter i = jiter(jdoc_root(&types)); !rc && jiter_next(&i);) {
		int64_t k = catalog_find_tensor(other->catalog, i.key, i.key_len);

		if (k >= 0)
			rc = check_type(other, i.key, jval_str(i.v), from[k], e);
	}
	return rc;
}

static int put_over(struct engine *eng, const struct engine *other, struct digest *d,
		    struct ckpt_err *e)
{
	struct put p CLEANUP(put_release) = { .eng = eng, .other = other, .e = e };
	size_t n, shown;
	int rc;

	(void)catalog_tensors(other->catalog, &n);
	(void)catalog_tensors(eng->catalog, &shown);
	p.make = calloc(n + 1, sizeof(*p.make));
	p.hide = calloc(shown + 1, sizeof(*p.hide));
	p.part = calloc(n + 1, sizeof(*p.part));
	rc = p.make && p.hide && p.part
		     ? overlay_sparse_find(eng, other, &p.sparse, &p.n_sparse, p.part, d, e)
		     : err_nomem(e);
	for (uint32_t i = 0; !rc && i < n; i++)
		if (!p.part[i])
			rc = put_whole(&p, i);
	for (size_t i = 0; !rc && i < p.n_sparse; i++)
		rc = put_sparse(&p, &p.sparse[i]);
	return rc ? rc : computed_add(&eng->computed, eng->catalog, p.make, p.n, p.hide, e);
}

int overlay_derive(struct engine *eng, const struct ckpt_opts *o, struct digest *d,
		   struct ckpt_err *e)
{
	size_t n = 0;
	int rc = 0;

	while (o->overlay[n])
		n++;
	for (size_t i = 0; !rc && i < n; i++) {
		struct engine *other;

		rc = others_open(eng, o->overlay[i], o, n + 1, &other, e);
		if (rc)
			return err_wrap(e, "option 'overlay'");
		if (eng->format == &format_gguf && other->format == &format_gguf && !o->dequantize)
			rc = check_gguf(eng, other, e);
		if (!rc)
			rc = put_over(eng, other, d, e);
	}
	return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/dequantise.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/computed/dequantise_parts.h"
#include "read/derived/mxfp4_blocks.h"
#include "tensor/scales.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MEMORY ((size_t)4 << 30)

/* ---- all ---- */

/* Scales of activations, which nothing needs once the weights are not quantised. */
static void hide_others(struct deq_finder *f)
{
	static const char *const others[] = { ".input_scale",	   ".output_scale",
					      ".activation_scale", ".input_global_scale",
					      ".qscale_act",	   ".k_scale",
					      ".v_scale" };

	for (size_t i = 0; i < f->n_tensors; i++)
		for (size_t k = 0; k < ARRAY_LEN(others); k++)
			if (deq_ends(&f->t[i], others[k]))
				f->hide[i] = true;
}

bool dequantise_is_codes(const struct catalog *c, const struct catalog_tensor *t)
{
	size_t at = 0;

	return scales_of(c, t, &at) >= 0;
}

/*
 * Codes of a form that is not known here would be shown beside weights, and nothing would say that
 * they are codes, since that part of the configuration is cut out.
 */
static int refuse_others(const struct deq_finder *f)
{
	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct catalog_tensor *t = &f->t[i];
		size_t at = 0;
		int64_t scales;
		int rc = 0;

		if (deq_ends(t, ".pre_quant_scale") || deq_ends(t, ".act_pre_scale"))
			return err_set(f->e, ERR_UNSUPPORTED,
				       "option 'dequantize': '%.120s' is to be multiplied into "
				       "activations, which is not supported",
				       SHOWN(t));
		if (!f->hide[i] && scales_possible(t))
			rc = deq_refuse_wrapped(f, t);
		if (rc)
			return rc;
		do
			scales = f->hide[i] ? -1 : scales_of(f->catalog, t, &at);
		while (scales >= 0 && scales_are_parts(at)); /* of other libraries' tensors */
		if (scales >= 0)
			return err_set(f->e, ERR_UNSUPPORTED,
				       "option 'dequantize': '%.120s' (%s, shape %s) holds codes "
				       "of a form that is not known: there is also '%.120s'",
				       SHOWN(t), DTYPE_TEXT(t), SHAPE_TEXT(t),
				       SHOWN(&f->t[scales]));
	}
	return 0;
}

static int find_all(struct deq_finder *f)
{
	static deq_find_fn *const finders[] = {
		deq_find_wrapped, deq_find_float8, deq_find_int8,    deq_find_blocks,
		deq_find_fp4,	  deq_find_packed, deq_find_qweight, deq_find_bnb,
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < f->n_tensors; i++)
		for (size_t k = 0, n = f->n; !rc && f->n == n && k < ARRAY_LEN(finders); k++)
			rc = finders[k](f, &f->t[i]);
	if (!rc)
		rc = refuse_others(f);
	if (!rc && f->n)
		hide_others(f);
	return rc;
}

static size_t count_mxfp4(const struct deq_finder *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->n; i++)
		n += f->v[i].mxfp4;
	return n;
}

/* Lists for the catalog what was found, then blocks. *shapes: three numbers for each block. */
static void list_all(const struct deq_finder *f, struct catalog_computed *v, uint64_t (*shapes)[3])
{
	size_t k = f->n;

	for (size_t i = 0; i < f->n; i++) {
		const struct deq_found *x = &f->v[i];
		const struct catalog_tensor *t = &f->t[x->inputs[0]];

		v[i] = (struct catalog_computed){ .fqn = x->name,
						  .fqn_len = x->name_len,
						  .like = x->inputs[0],
						  .dtype = f->dtype,
						  .n_dims = x->n_dims,
						  .shape = x->shape };
		if (!x->mxfp4)
			continue;
		(*shapes)[0] = t->shape[0];
		(*shapes)[1] = t->shape[1];
		(*shapes)[2] = t->shape[2] * MXFP4_BYTES; /* fewer bytes than elements */
		v[k++] = (struct catalog_computed){ .fqn = t->fqn,
						    .fqn_len = t->fqn_len,
						    .like = x->inputs[0],
						    .dtype = CKPT_DTYPE_U8,
						    .n_dims = 3,
						    .shape = *shapes++,
						    .hidden = true };
		v[i].blocks = (uint32_t)k;
	}
}

static const void *keep_how(const struct deq_finder *f, const struct deq_found *x)
{
	return x->flat.block ? arena_dup(f->mem, &x->flat, sizeof(x->flat))
			     : arena_dup(f->mem, &x->q, sizeof(x->q));
}

/* Adds what was found to the catalog. */
static int derive(struct catalog *c, struct deq_finder *f, struct dequantised *ret)
{
	size_t n_blocks = count_mxfp4(f), n = f->n + n_blocks;
	autofree struct catalog_computed *v = calloc(n, sizeof(*v));
	autofree uint64_t(*shapes)[3] = calloc(n_blocks + 1, sizeof(*shapes));
	autofree uint32_t *numbers = calloc(f->n_tensors + 1, sizeof(*numbers));
	int rc;

	ret->v = arena_array(f->mem, n, sizeof(*ret->v));
	if (!v || !shapes || !numbers || !ret->v)
		return err_nomem(f->e);
	list_all(f, v, shapes);
	for (size_t i = 0; i < f->n; i++)
		deq_hide_owners(c, f, &f->v[i]);
	rc = catalog_compute(c, v, n, f->hide, numbers, f->e);
	if (rc)
		return err_wrap(f->e, "option 'dequantize'");
	for (size_t i = 0; i < f->n; i++) {
		const struct deq_found *x = &f->v[i];
		struct derived_input *in = arena_array(f->mem, x->n_inputs, sizeof(*in));
		const void *how = keep_how(f, x);

		if (!in || !how)
			return err_nomem(f->e);
		for (size_t k = 0; k < x->n_inputs; k++)
			in[k].tensor = numbers[x->inputs[k]];
		ret->v[i] = (struct derived){ .number = v[i].number,
					      .run = x->flat.block ? dequant_flat_run : dequant_run,
					      .how = how,
					      .inputs = in,
					      .n_inputs = x->n_inputs };
		if (x->mxfp4)
			ret->v[v[i].blocks - 1] =
				(struct derived){ .number = v[v[i].blocks - 1].number,
						  .run = mxfp4_blocks_run,
						  .inputs = in,
						  .n_inputs = x->n_inputs };
	}
	ret->n = n;
	return 0;
}

int dequantise(struct catalog *c, struct jval config, struct jval gptq, enum ckpt_dtype dtype,
	       const struct peek *peek, struct dequantised *ret, struct ckpt_err *e)
{
	struct deq_finder f = {
		.catalog = c, .dtype = dtype, .peek = peek, .mem = &ret->mem, .e = e
	};
	int rc;

	ret->mem = (struct arena)ARENA_INIT(MAX_MEMORY);
	deq_config_read(config, gptq, &f.config);
	f.t = catalog_tensors(c, &f.n_tensors);
	f.hide = calloc(f.n_tensors + 1, sizeof(*f.hide));
	rc = f.hide ? find_all(&f) : err_nomem(e);
	if (!rc && f.n)
		rc = derive(c, &f, ret);
	free(f.v);
	free(f.hide);
	return rc;
}

void dequantised_release(struct dequantised *d)
{
	arena_release(&d->mem);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/dequantise_gguf.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/cast.h"
#include "format/gguf/gguf_types.h"
#include "index/catalog_query.h"
#include "read/derived/block_values.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MEMORY ((size_t)1 << 30)

/* The index, which anyone may have written, says so: is it true of the tensor? */
static bool fits(const struct catalog_tensor *t, const struct ggml_info *type)
{
	if (type->dtype)
		return t->dtype == type->dtype;
	return t->dtype == CKPT_DTYPE_U8 && t->n_dims && t->shape[t->n_dims - 1] % type->bytes == 0;
}

static int take_types(const struct catalog *c, struct jval types, const struct ggml_info **ret,
		      size_t *ret_blocks, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);

	for (struct jiter i = jiter(types); jiter_next(&i);) {
		const char *name = jval_str(i.v);
		const struct ggml_info *type = name ? ggml_info_named(name) : NULL;
		int64_t at = catalog_find_tensor(c, i.key, i.key_len);

		if (!type || at < 0 || !fits(&t[at], type))
			return err_set(e, ERR_CORRUPT, "'" GGUF_TYPES "' is wrong about '%s'",
				       FQN_TEXT(i.key, strlen(i.key)));
		*ret_blocks += !type->dtype && !ret[at];
		ret[at] = type;
	}
	for (size_t k = 0; k < n; k++)
		if (!ret[k])
			return err_set(e, ERR_CORRUPT, "'" GGUF_TYPES "' lacks '%s'",
				       FQN_TEXT(t[k].fqn, t[k].fqn_len));
	return 0;
}

int gguf_types(const struct catalog *c, const struct ggml_info ***ret, size_t *ret_blocks,
	       struct ckpt_err *e)
{
	struct jdoc types CLEANUP(jdoc_release) = { 0 };
	int64_t at = catalog_find_object(c, GGUF_TYPES, strlen(GGUF_TYPES));
	const struct catalog_object *o = at < 0 ? NULL : &catalog_objects(c, NULL)[at];
	size_t n;
	autofree const struct ggml_info **v = NULL;
	int rc;

	(void)catalog_tensors(c, &n);
	v = calloc(n + 1, sizeof(*v));
	if (!v)
		return err_nomem(e);
	if (!o || !o->text)
		return err_set(e, EFBIG, "the types of the tensors take too much memory");
	*ret_blocks = 0;
	rc = jdoc_parse_copy(&types, o->text, o->text_len, 0, e);
	if (!rc)
		rc = take_types(c, jdoc_root(&types), v, ret_blocks, e);
	if (rc)
		return rc;
	*ret = v;
	v = NULL;
	return 0;
}

enum ckpt_dtype gguf_elements(const struct catalog *c, const struct ggml_info *const *types)
{
	enum ckpt_dtype ret = CKPT_DTYPE_F32;
	uint64_t most = 0;
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);

	for (size_t i = 0; i < n; i++)
		if (t[i].bytes > most &&
		    cast_possible((enum ckpt_dtype)types[i]->dtype, CKPT_DTYPE_F32)) {
			most = t[i].bytes;
			ret = (enum ckpt_dtype)types[i]->dtype;
		}
	return ret;
}

/* How tensor t is computed, and the shape that it then has. */
static int plan(const struct catalog_tensor *t, const struct ggml_info *type, enum ckpt_dtype dtype,
		struct arena *mem, struct block_values **ret, uint64_t **ret_shape,
		struct ckpt_err *e)
{
	struct block_values how = { .type = type,
				    .decode = block_decoder((enum ggml_type)type->type),
				    .dtype = dtype,
				    .n_dims = t->n_dims };
	uint64_t *last;

	if (!how.decode)
		return err_set(e, ERR_UNSUPPORTED,
			       "option 'dequantize': '%s' is of ggml's type %s, whose values are "
			       "not supported",
			       FQN_TEXT(t->fqn, t->fqn_len), type->name);
	*ret = arena_dup(mem, &how, sizeof(how));
	*ret_shape = arena_dup(mem, t->shape, t->n_dims * sizeof(*t->shape));
	if (!*ret || !*ret_shape)
		return err_nomem(e);
	last = &(*ret_shape)[t->n_dims - 1];
	if (ckd_mul(last, *last / type->bytes, type->elements))
		return err_set(e, EFBIG, "'%s' is too large", FQN_TEXT(t->fqn, t->fqn_len));
	return 0;
}

static int derive(struct catalog *c, const struct ggml_info *const *types, size_t n,
		  enum ckpt_dtype dtype, struct dequantised *ret, struct ckpt_err *e)
{
	size_t n_tensors, k = 0;
	const struct catalog_tensor *t = catalog_tensors(c, &n_tensors);
	autofree struct catalog_computed *v = calloc(n + 1, sizeof(*v));
	autofree struct block_values **how = calloc(n + 1, sizeof(*how));
	autofree bool *hide = calloc(n_tensors + 1, sizeof(*hide));
	autofree uint32_t *numbers = calloc(n_tensors + 1, sizeof(*numbers));
	struct derived_input *in = arena_array(&ret->mem, n, sizeof(*in));
	int rc = 0;

	ret->v = arena_array(&ret->mem, n, sizeof(*ret->v));
	if (!v || !how || !hide || !numbers || !in || !ret->v)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < n_tensors; i++) {
		uint64_t *shape = NULL;

		if (types[i]->dtype)
			continue;
		rc = plan(&t[i], types[i], dtype, &ret->mem, &how[k], &shape, e);
		hide[i] = true;
		v[k++] = (struct catalog_computed){ .fqn = t[i].fqn,
						    .fqn_len = t[i].fqn_len,
						    .like = (uint32_t)i,
						    .dtype = dtype,
						    .n_dims = t[i].n_dims,
						    .shape = shape };
	}
	if (!rc)
		rc = catalog_compute(c, v, n, hide, numbers, e);
	if (rc)
		return rc;
	k = 0;
	for (size_t i = 0; i < n_tensors; i++) {
		if (!hide[i])
			continue;
		in[k].tensor = numbers[i];
		ret->v[k] = (struct derived){ .number = v[k].number,
					      .run = block_values_run,
					      .how = how[k],
					      .inputs = &in[k],
					      .n_inputs = 1 };
		k++;
	}
	ret->n = n;
	return 0;
}

int dequantise_gguf(struct catalog *c, enum ckpt_dtype dtype, struct dequantised *ret,
		    struct ckpt_err *e)
{
	autofree const struct ggml_info **types = NULL;
	size_t blocks;
	int rc = gguf_types(c, &types, &blocks, e);

	ret->mem = (struct arena)ARENA_INIT(MAX_MEMORY);
	return rc || !blocks ? rc : derive(c, types, blocks, dtype, ret, e);
}

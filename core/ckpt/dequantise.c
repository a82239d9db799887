/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/dequantise.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/dequant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MEMORY ((size_t)4 << 30)
#define MAX_GROUPS ((uint64_t)1 << 20) /* that g_idx may name */

enum { MAX_INPUTS = 6, MAX_NAME = 1024 };

/* A tensor of codes, and what belongs to it. */
struct found {
	struct dequant q;
	uint32_t inputs[MAX_INPUTS]; /* numbers of the catalog */
	uint8_t n_inputs;
	char *name;
	uint32_t name_len;
	uint64_t shape[CKPT_MAX_DIMS];
	uint8_t n_dims;
};

struct finder {
	const struct catalog_tensor *t;
	size_t n_tensors;
	struct jval config; /* quantization_config */
	enum ckpt_dtype dtype;
	struct arena *mem;
	bool *hide;
	struct found *v;
	size_t n, cap;
	struct ckpt_err *e;
};

/* ---- names ---- */

static bool ends(const struct catalog_tensor *t, const char *end)
{
	return t->fqn_len > strlen(end) && bytes_end(t->fqn, t->fqn_len, end);
}

/* The tensor whose name is that of t with `end` replaced by `by`; -1: there is none. */
static int64_t sibling(const struct finder *f, const struct catalog_tensor *t, const char *end,
		       const char *by)
{
	size_t low = 0, high = f->n_tensors, cut = t->fqn_len - strlen(end), more = strlen(by);
	char name[MAX_NAME];

	if (cut + more >= sizeof(name))
		return -1;
	memcpy(name, t->fqn, cut);
	memcpy(name + cut, by, more + 1);
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = text_natural_cmp(f->t[mid].fqn, f->t[mid].fqn_len, name, cut + more);

		if (!order)
			return (int64_t)mid;
		*(order < 0 ? &low : &high) = order < 0 ? mid + 1 : mid;
	}
	return -1;
}

#define SHOWN(t)      FQN_TEXT((t)->fqn, (t)->fqn_len)
#define SHAPE_TEXT(t) TUPLE_TEXT((t)->shape, (t)->n_dims)
#define DTYPE_TEXT(t) dtype_info((enum ckpt_dtype)(t)->dtype)->name

static int no_scales(const struct finder *f, const struct catalog_tensor *t, const char *end,
		     const char *by)
{
	return err_set(
		f->e, EINVAL,
		"option 'dequantize': '%.120s' holds codes (%s), but '%.120s%s', which would "
		"be their scales, does not exist",
		SHOWN(t), DTYPE_TEXT(t), FQN_TEXT(t->fqn, t->fqn_len - strlen(end)), by);
}

static int bad_scales(const struct finder *f, const struct catalog_tensor *t,
		      const struct catalog_tensor *s, const char *want)
{
	return err_set(f->e, EINVAL,
		       "option 'dequantize': '%.100s' has codes of shape %s (%s), and '%.100s' has "
		       "shape %s (%s): %s",
		       SHOWN(t), SHAPE_TEXT(t), DTYPE_TEXT(t), SHOWN(s), SHAPE_TEXT(s),
		       DTYPE_TEXT(s), want);
}

/* ---- what was found ---- */

/* Adds codes t, whose weight is named as t with `end` replaced by `by`, of this shape. */
static struct found *add(struct finder *f, const struct catalog_tensor *t, const char *end,
			 const char *by, const uint64_t *shape, size_t n_dims)
{
	size_t cut = t->fqn_len - strlen(end), len = cut + strlen(by);
	char *name = arena_alloc(f->mem, len + 1);
	struct found *x;

	if (!name || !VEC_ROOM(f->v, f->cap, f->n + 1)) {
		(void)err_nomem(f->e);
		return NULL;
	}
	memcpy(name, t->fqn, cut);
	memcpy(name + cut, by, strlen(by) + 1);
	x = &f->v[f->n++];
	*x = (struct found){ .q = { .dtype = f->dtype,
				    .bits = 8,
				    .per = 1,
				    .rows = 1,
				    .columns = 1,
				    .zeros_per = 1,
				    .order = { 0, 1, 2, 3, 4, 5, 6, 7 } },
			     .name = name,
			     .name_len = (uint32_t)len,
			     .n_dims = (uint8_t)n_dims };
	memcpy(x->shape, shape, n_dims * sizeof(*shape));
	return x;
}

/* Adds a tensor that the weight is computed from; returns its number among these. */
static uint8_t add_input(struct finder *f, struct found *x, const struct catalog_tensor *t)
{
	f->hide[t - f->t] = true;
	x->inputs[x->n_inputs] = (uint32_t)(t - f->t);
	return x->n_inputs++;
}

/* ---- scales ---- */

static bool is_scales(const struct catalog_tensor *t)
{
	return cast_possible((enum ckpt_dtype)t->dtype, CKPT_DTYPE_F32) ||
	       t->dtype == CKPT_DTYPE_F8_E8M0FNU || t->dtype == CKPT_DTYPE_U8 ||
	       t->dtype == CKPT_DTYPE_F8_E4M3FN;
}

static bool is_one(const struct catalog_tensor *t)
{
	for (size_t d = 0; d < t->n_dims; d++)
		if (t->shape[d] != 1)
			return false;
	return true;
}

static uint64_t blocks_in(uint64_t n, uint64_t block)
{
	return n / block + !!(n % block);
}

/* The sizes of blocks in quantization_config; false: it has none. */
static bool block_of(const struct finder *f, uint64_t ret[2])
{
	struct jiter groups = jiter(jval_get(f->config, "config_groups"));
	size_t n;

	if (jval_u64s(jval_get(f->config, "weight_block_size"), ret, 2, &n) && n == 2 && ret[0] &&
	    ret[1])
		return true;
	while (jiter_next(&groups)) {
		struct jval weights = jval_get(groups.v, "weights");

		if (jval_u64s(jval_get(weights, "block_structure"), ret, 2, &n) && n == 2 &&
		    ret[0] && ret[1])
			return true;
	}
	return false;
}

/*
 * Sets the grid of scales s over planes of m x n codes. In this order: one scale for a plane, one
 * for each row, blocks as in the configuration, blocks of 128 x 128, groups of 32 for scales that
 * are exponents, groups that divide the row.
 */
static bool set_grid(const struct finder *f, struct dequant *q, const struct catalog_tensor *s,
		     size_t prefix, const uint64_t *shape, uint64_t m, uint64_t n)
{
	uint64_t tries[4][2] = { { 128, 128 }, { 128, 128 }, { 1, 32 }, { 1, 16 } }, rows, columns;

	q->exponents = s->dtype == CKPT_DTYPE_U8 || s->dtype == CKPT_DTYPE_F8_E8M0FNU;
	q->rows = max_u64(m, 1);
	q->columns = max_u64(n, 1);
	if (is_one(s) && !prefix)
		return true;
	if (s->n_dims == 1 && !prefix) {
		q->rows = 1;
		q->scale_dims = 1;
		return s->shape[0] == m;
	}
	q->scale_dims = 2;
	if (s->n_dims != prefix + 2 || !dims_equal(prefix, s->shape, shape))
		return false;
	rows = s->shape[prefix];
	columns = s->shape[prefix + 1];
	if (rows == 1 && columns == 1)
		return true;
	q->rows = 1;
	if (rows == m && columns == 1)
		return true;
	(void)block_of(f, tries[0]);
	for (size_t i = 0; i < ARRAY_LEN(tries); i++)
		if (rows == blocks_in(m, tries[i][0]) && columns == blocks_in(n, tries[i][1])) {
			q->rows = tries[i][0];
			q->columns = tries[i][1];
			return true;
		}
	q->columns = columns ? n / columns : 0;
	return q->columns && rows == m && q->columns * columns == n;
}

/* ---- float8 ---- */

static bool is_float8(const struct catalog_tensor *t)
{
	return t->dtype == CKPT_DTYPE_F8_E4M3FN || t->dtype == CKPT_DTYPE_F8_E5M2;
}

static const char scale_inv[] = "_scale_inv", scale[] = "_scale";

static const struct {
	const char *end, *scales;
} float8_names[] = {
	{ "", scale_inv },		 /* DeepSeek-V3, Qwen3 */
	{ "", scale },			 /* compressed-tensors, ModelOpt */
	{ ".weight", ".scale" },	 /* DeepSeek-V3.2's own files */
	{ ".weight", ".qscale_weight" }, /* Mistral */
};

static int find_float8(struct finder *f, const struct catalog_tensor *t)
{
	size_t prefix = t->n_dims - 2u;
	const struct catalog_tensor *s;
	struct found *x;
	int64_t at = -1;

	if (!is_float8(t) || ends(t, scale) || ends(t, scale_inv) || ends(t, ".scale"))
		return 0;
	for (size_t i = 0; at < 0 && i < ARRAY_LEN(float8_names); i++)
		if (!*float8_names[i].end || ends(t, float8_names[i].end))
			at = sibling(f, t, float8_names[i].end, float8_names[i].scales);
	if (at < 0)
		return no_scales(f, t, "", scale_inv);
	s = &f->t[at];
	if (t->n_dims < 2)
		return bad_scales(f, t, s, "codes must have two dimensions or more");
	x = add(f, t, "", "", t->shape, t->n_dims);
	if (!x)
		return -ENOMEM;
	x->q.codes = t->dtype == CKPT_DTYPE_F8_E4M3FN ? CODES_E4M3 : CODES_E5M2;
	x->q.n_prefix = (uint8_t)prefix;
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	if (!is_scales(s) ||
	    !set_grid(f, &x->q, s, prefix, t->shape, t->shape[prefix], t->shape[prefix + 1]))
		return bad_scales(f, t, s,
				  "that is neither a scale for all, for each row or for each block "
				  "of quantization_config (128 x 128 without one)");
	return 0;
}

/* ---- all ---- */

/* Scales of activations, which nothing needs once the weights are not quantised. */
static void hide_others(struct finder *f)
{
	static const char *const others[] = { ".input_scale",	   ".output_scale",
					      ".activation_scale", ".input_global_scale",
					      ".qscale_act",	   ".k_scale",
					      ".v_scale" };

	for (size_t i = 0; i < f->n_tensors; i++)
		for (size_t k = 0; k < ARRAY_LEN(others); k++)
			if (ends(&f->t[i], others[k]))
				f->hide[i] = true;
}

static int find_all(struct finder *f)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < f->n_tensors; i++)
		rc = find_float8(f, &f->t[i]);
	if (!rc && !f->n)
		return err_set(f->e, EINVAL,
			       "option 'dequantize': no tensor holds codes that have scales");
	if (!rc)
		hide_others(f);
	return rc;
}

/* Adds what was found to the catalog. */
static int derive(struct catalog *c, struct finder *f, struct dequantised *ret)
{
	autofree struct catalog_computed *v = calloc(f->n, sizeof(*v));
	autofree uint32_t *numbers = calloc(f->n_tensors + 1, sizeof(*numbers));
	int rc;

	ret->v = arena_array(f->mem, f->n, sizeof(*ret->v));
	if (!v || !numbers || !ret->v)
		return err_nomem(f->e);
	for (size_t i = 0; i < f->n; i++)
		v[i] = (struct catalog_computed){ .fqn = f->v[i].name,
						  .fqn_len = f->v[i].name_len,
						  .like = f->v[i].inputs[0],
						  .dtype = f->dtype,
						  .n_dims = f->v[i].n_dims,
						  .shape = f->v[i].shape };
	rc = catalog_compute(c, v, f->n, f->hide, numbers, f->e);
	if (rc)
		return err_wrap(f->e, "option 'dequantize'");
	for (size_t i = 0; i < f->n; i++) {
		const struct found *x = &f->v[i];
		struct derived_input *in = arena_array(f->mem, x->n_inputs, sizeof(*in));
		struct dequant *q = arena_dup(f->mem, &x->q, sizeof(*q));

		if (!in || !q)
			return err_nomem(f->e);
		for (size_t k = 0; k < x->n_inputs; k++)
			in[k].tensor = numbers[x->inputs[k]];
		ret->v[i] = (struct derived){ .number = v[i].number,
					      .run = dequant_run,
					      .how = q,
					      .inputs = in,
					      .n_inputs = x->n_inputs };
	}
	ret->n = f->n;
	return 0;
}

int dequantise(struct catalog *c, struct jval config, enum ckpt_dtype dtype,
	       struct dequantised *ret, struct ckpt_err *e)
{
	struct finder f = { .config = jval_get(config, "quantization_config"),
			    .dtype = dtype,
			    .mem = &ret->mem,
			    .e = e };
	int rc;

	ret->mem = (struct arena)ARENA_INIT(MAX_MEMORY);
	f.t = catalog_tensors(c, &f.n_tensors);
	f.hide = calloc(f.n_tensors + 1, sizeof(*f.hide));
	rc = f.hide ? find_all(&f) : err_nomem(e);
	if (!rc)
		rc = derive(c, &f, ret);
	free(f.v);
	free(f.hide);
	return rc;
}

void dequantised_release(struct dequantised *d)
{
	arena_release(&d->mem);
}

/* ---- config.json ---- */

static const char *skip_string(const char *s)
{
	for (s++; *s != '"'; s++)
		s += *s == '\\';
	return s + 1;
}

/* Behind the value at s: at the comma or bracket that ends it, or at the end of the text. */
static const char *skip_value(const char *s, const char *end)
{
	size_t depth = 0;

	while (s < end && (depth || !strchr(",}]", *s))) {
		if (*s == '"') {
			s = skip_string(s);
			continue;
		}
		depth += *s == '{' || *s == '[';
		depth -= *s == '}' || *s == ']';
		s++;
	}
	return s;
}

size_t json_without(char *text, size_t len, const char *key)
{
	const char *end = text + len, *s = strchr(text, '{'), *last = s;
	size_t n = strlen(key);

	while (s && s < end) {
		const char *name = strchr(s, '"'), *behind, *next;

		if (!name)
			break;
		behind = skip_string(name);
		next = strchr(behind, ':');
		if (!next)
			break;
		next = skip_value(next + 1, end);
		if ((size_t)(behind - name) == n + 2 && !memcmp(name + 1, key, n)) {
			/* The first member goes with the comma behind it, others with the one before. */
			const char *from = *last == ',' ? last : last + 1;
			const char *to = *last != ',' && *next == ',' ? next + 1 : next;

			/* The line break before a closing bracket stays. */
			while (*next != ',' && to > behind && strchr(" \t\r\n", to[-1]))
				to--;
			memmove(text + (from - text), to, (size_t)(end - to) + 1);
			return len - (size_t)(to - from);
		}
		if (next >= end || *next != ',')
			break;
		last = next;
		s = next + 1;
	}
	return len;
}

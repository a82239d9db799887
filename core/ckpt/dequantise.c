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
	/* What it says, looked up once: it may be long, and there may be many tensors. */
	uint64_t block[2];   /* 128 x 128 if it has none */
	unsigned bits;	     /* see bits_of */
	uint64_t group_size; /* 0: it has none */
	enum ckpt_dtype dtype;
	const struct dequantise_peek *peek;
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

/* Two sizes, neither of which is 0. */
static bool is_block(struct jval v, uint64_t ret[2])
{
	uint64_t size[2];
	size_t n;

	if (!jval_u64s(v, size, 2, &n) || n != 2 || !size[0] || !size[1])
		return false;
	ret[0] = size[0];
	ret[1] = size[1];
	return true;
}

/* The sizes of blocks in quantization_config, which need not have them. */
static void block_of(const struct finder *f, uint64_t ret[2])
{
	struct jiter groups = jiter(jval_get(f->config, "config_groups"));
	bool found = is_block(jval_get(f->config, "weight_block_size"), ret);

	while (!found && jiter_next(&groups))
		found = is_block(jval_get(jval_get(groups.v, "weights"), "block_structure"), ret);
}

/*
 * Sets the grid of scales s over planes of m x n codes. In this order: one scale for a plane, one
 * for each row, blocks as in the configuration, blocks of 128 x 128, groups of 32 for scales that
 * are exponents, groups that divide the row.
 */
static bool set_grid(const struct finder *f, struct dequant *q, const struct catalog_tensor *s,
		     size_t prefix, const uint64_t *shape, uint64_t m, uint64_t n)
{
	const uint64_t tries[4][2] = {
		{ f->block[0], f->block[1] }, { 128, 128 }, { 1, 32 }, { 1, 16 }
	};
	uint64_t rows, columns;

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

/* ---- codes of 8 bits that are integers ---- */

static int find_int8(struct finder *f, const struct catalog_tensor *t)
{
	int64_t at = t->dtype == CKPT_DTYPE_I8 && t->n_dims == 2 ? sibling(f, t, "", scale) : -1;
	const struct catalog_tensor *s = at < 0 ? NULL : &f->t[at];
	struct found *x;

	if (!s)
		return 0;
	if (sibling(f, t, "", "_zero_point") >= 0)
		return err_set(f->e, ERR_UNSUPPORTED,
			       "option 'dequantize': '%.120s' has zero points, which are not known "
			       "for codes that are not packed",
			       SHOWN(t));
	x = add(f, t, "", "", t->shape, t->n_dims);
	if (!x)
		return -ENOMEM;
	x->q.codes = CODES_INT8;
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) ||
	    !set_grid(f, &x->q, s, 0, t->shape, t->shape[0], t->shape[1]))
		return bad_scales(f, t, s, "that is neither a scale for all nor for each row");
	return 0;
}

/* ---- codes of 4 bits that are floats ---- */

static void set_e2m1(struct found *x)
{
	x->q.codes = CODES_E2M1;
	x->q.bits = 4;
	x->q.per = 2;
}

/* gpt-oss: blocks [experts, rows, groups, 16]; the weight has rows last, as transformers keeps it. */
static int find_blocks(struct finder *f, const struct catalog_tensor *t)
{
	const uint64_t *n = t->shape;
	const struct catalog_tensor *s;
	struct found *x;
	int64_t at;

	if (t->dtype != CKPT_DTYPE_U8 || !ends(t, "_blocks") || t->n_dims != 4 || n[3] != 16)
		return 0;
	at = sibling(f, t, "_blocks", "_scales");
	if (at < 0)
		return no_scales(f, t, "_blocks", "_scales");
	s = &f->t[at];
	if (s->dtype != CKPT_DTYPE_U8 || s->n_dims != 3 || !dims_equal(3, s->shape, n) ||
	    n[2] > UINT64_MAX / 32)
		return bad_scales(f, t, s, "there must be a uint8 for each group of 16 bytes");
	x = add(f, t, "_blocks", "", (const uint64_t[]){ n[0], n[2] * 32, n[1] }, 3);
	if (!x)
		return -ENOMEM;
	set_e2m1(x);
	x->q.n_prefix = 1;
	x->q.turned = true;
	x->q.group = 32;
	x->q.all_exponents = true;
	x->q.columns = 32;
	x->q.scale_dims = 2;
	x->q.exponents = true;
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	return 0;
}

/* A number for all scales; 0: there is none. */
static int add_global(struct finder *f, struct found *x, const struct catalog_tensor *t,
		      const char *end, const char *by, uint8_t *ret)
{
	int64_t at = sibling(f, t, end, by);

	if (at < 0)
		return 0;
	if (!is_one(&f->t[at]) || !cast_possible((enum ckpt_dtype)f->t[at].dtype, CKPT_DTYPE_F32))
		return bad_scales(f, t, &f->t[at], "that must be one number");
	*ret = add_input(f, x, &f->t[at]);
	return 0;
}

/* NVFP4 and MXFP4 of compressed-tensors (NAME_packed) and ModelOpt (NAME): two codes in a byte. */
static int find_fp4(struct finder *f, const struct catalog_tensor *t)
{
	const char *end = ends(t, "_packed") ? "_packed" : "";
	const struct catalog_tensor *s;
	struct found *x;
	int64_t at = t->dtype == CKPT_DTYPE_U8 && t->n_dims == 2 && !ends(t, scale)
			     ? sibling(f, t, end, scale)
			     : -1;
	int rc;

	if (at < 0)
		return *end && t->dtype == CKPT_DTYPE_U8 ? no_scales(f, t, end, scale) : 0;
	s = &f->t[at];
	if (t->shape[1] > UINT64_MAX / 2)
		return 0;
	x = add(f, t, end, "", (const uint64_t[]){ t->shape[0], t->shape[1] * 2 }, 2);
	if (!x)
		return -ENOMEM;
	set_e2m1(x);
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	x->q.columns = s->dtype == CKPT_DTYPE_F8_E4M3FN ? 16 : 32;
	x->q.scale_dims = 2;
	x->q.exponents = s->dtype != CKPT_DTYPE_F8_E4M3FN;
	if ((s->dtype != CKPT_DTYPE_F8_E4M3FN && s->dtype != CKPT_DTYPE_U8 &&
	     s->dtype != CKPT_DTYPE_F8_E8M0FNU) ||
	    s->n_dims != 2 || s->shape[0] != t->shape[0] ||
	    s->shape[1] != blocks_in(2 * t->shape[1], x->q.columns))
		return bad_scales(
			f, t, s, "there must be a float8 for 16 codes of a row, or a uint8 for 32");
	rc = add_global(f, x, t, end, "_global_scale", &x->q.over);
	return rc ? rc : add_global(f, x, t, end, "_scale_2", &x->q.times);
}

/* ---- integers packed into int32 ---- */

/* The width of codes that the configuration has, 4 if it has none; 0: it is not known here. */
static unsigned bits_of(const struct finder *f)
{
	struct jiter groups = jiter(jval_get(f->config, "config_groups"));
	struct jval bits = jval_get(f->config, "bits");
	uint64_t n = 4;

	while (!bits.d && jiter_next(&groups))
		bits = jval_get(jval_get(groups.v, "weights"), "num_bits");
	if (bits.d && !jval_u64(bits, &n))
		n = 0;
	return n == 4 || n == 8 ? (unsigned)n : 0;
}

static int unknown_bits(const struct finder *f, const struct catalog_tensor *t)
{
	return err_set(f->e, ERR_UNSUPPORTED,
		       "option 'dequantize': the codes of '%.120s' do not have 4 or 8 bits, "
		       "according to quantization_config",
		       SHOWN(t));
}

static uint64_t group_size_of(const struct finder *f)
{
	struct jiter groups = jiter(jval_get(f->config, "config_groups"));
	struct jval size = jval_get(f->config, "group_size");
	uint64_t n;

	while (!size.d && jiter_next(&groups))
		size = jval_get(jval_get(groups.v, "weights"), "group_size");
	return jval_u64(size, &n) ? n : 0;
}

/* The size of groups of n codes with this many scales: the configuration's, if it fits; 0: none
 * fits. */
static uint64_t group_of(const struct finder *f, uint64_t n, uint64_t scales)
{
	if (f->group_size && blocks_in(n, f->group_size) == scales)
		return f->group_size;
	return scales && n % scales == 0 ? n / scales : 0;
}

/* The number of columns: compressed-tensors stores the shape, since rows are padded. *per, 4 or 8
 * codes in a word, is what the configuration's first group has; groups may differ, so the shape
 * decides. 1: the shape is missing, and the number is that of a row with its padding. */
static int columns_of(struct finder *f, const struct catalog_tensor *t, uint64_t *per,
		      uint64_t *ret)
{
	int64_t at = sibling(f, t, "_packed", "_shape");
	uint64_t words = t->shape[1];
	uint8_t raw[16];
	int rc;

	*ret = words * *per;
	if (at < 0)
		return 0;
	if ((f->t[at].dtype != CKPT_DTYPE_I64 && f->t[at].dtype != CKPT_DTYPE_I32) ||
	    f->t[at].n_dims != 1 || f->t[at].shape[0] != 2)
		return bad_scales(f, t, &f->t[at], "that must be two integers");
	f->hide[at] = true;
	rc = f->peek->read(f->peek->arg, (uint32_t)at, raw, (size_t)f->t[at].bytes, f->e);
	if (rc)
		return rc;
	*ret = f->t[at].dtype == CKPT_DTYPE_I64 ? load_le64(raw + 8) : load_le32(raw + 4);
	for (int i = 0; i < 2; i++, *per = 12 - *per)
		if (blocks_in(*ret, *per) == words)
			return 0;
	return err_set(f->e, EINVAL,
		       "option 'dequantize': '%.120s' has shape %s, but '%.120s' says that there "
		       "are %llu columns of %llu in a word",
		       SHOWN(t), SHAPE_TEXT(t), SHOWN(&f->t[at]), (unsigned long long)*ret,
		       (unsigned long long)*per);
}

/* The groups of the n columns or rows, if they are given; compressed-tensors writes -1 for none. */
static int add_groups(struct finder *f, struct found *x, const struct catalog_tensor *t,
		      const char *end, const char *by, uint64_t n, uint64_t n_groups)
{
	int64_t at = sibling(f, t, end, by);
	const struct catalog_tensor *g = at < 0 ? NULL : &f->t[at];
	uint8_t first[4];
	int rc;

	if (!g || !n)
		return 0;
	f->hide[at] = true;
	if (g->dtype != CKPT_DTYPE_I32 || g->n_dims != 1 || g->shape[0] != n ||
	    n_groups > MAX_GROUPS)
		return bad_scales(f, t, g, "there must be an int32 for each input");
	rc = f->peek->read(f->peek->arg, (uint32_t)at, first, sizeof(first), f->e);
	if (rc < 0 || (!rc && load_le32(first) == UINT32_MAX))
		return rc;
	x->q.groups = add_input(f, x, g);
	x->q.n_groups = n_groups;
	return 0;
}

/* Zero points: int32, packed like codes, of a x b words. */
static int add_zeros(struct finder *f, struct found *x, const struct catalog_tensor *t, int64_t at,
		     uint64_t a, uint64_t b)
{
	const struct catalog_tensor *z = &f->t[at];

	if (z->dtype != CKPT_DTYPE_I32 || z->n_dims != 2 || z->shape[0] != a || z->shape[1] != b)
		return bad_scales(f, t, z, "the zero points must be packed like the codes");
	x->q.codes = CODES_UINT;
	x->q.zeros = add_input(f, x, z);
	x->q.zeros_per = (uint8_t)x->q.per;
	return 0;
}

/* compressed-tensors: pack-quantized. */
static int find_packed(struct finder *f, const struct catalog_tensor *t)
{
	unsigned bits = f->bits;
	const struct catalog_tensor *s;
	struct found *x;
	uint64_t n, per;
	int64_t at;
	int rc;

	if (t->dtype != CKPT_DTYPE_I32 || t->n_dims != 2 || !ends(t, "_packed"))
		return 0;
	at = sibling(f, t, "_packed", scale);
	if (at < 0)
		return no_scales(f, t, "_packed", scale);
	if (!bits)
		return unknown_bits(f, t);
	per = 32 / bits;
	s = &f->t[at];
	rc = columns_of(f, t, &per, &n);
	if (rc < 0)
		return rc;
	bits = (unsigned)(32 / per);
	x = add(f, t, "_packed", "", (const uint64_t[]){ t->shape[0], n }, 2);
	if (!x)
		return -ENOMEM;
	x->q.codes = bits == 4 ? CODES_UINT4_8 : CODES_UINT8_128;
	x->q.bits = (uint8_t)bits;
	x->q.per = (uint32_t)per;
	x->q.scale_dims = 2;
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	if (rc) /* the weight is as faulty as its shape */
		(void)add_input(f, x, &f->t[sibling(f, t, "_packed", "_shape")]);
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) || s->n_dims != 2 ||
	    s->shape[0] != t->shape[0] || !(x->q.columns = group_of(f, n, s->shape[1])))
		return bad_scales(f, t, s, "that is not a scale for each group of a row");
	at = sibling(f, t, "_packed", "_zero_point");
	rc = 0;
	if (at >= 0)
		rc = add_zeros(f, x, t, at, blocks_in(s->shape[0], per), s->shape[1]);
	x->q.zeros_packed_a = true;
	return rc ? rc : add_groups(f, x, t, "_packed", "_g_idx", n, s->shape[1]);
}

/*
 * What is added to GPTQ's zero points. AutoGPTQ stores them less 1; "gptq_v2" and two of AutoRound's
 * packings (auto_round/inference/backend.py: GPTQ_FORMAT_NO_ZP) as they are. False: not known.
 */
static bool zero_more(const struct finder *f, uint8_t *ret)
{
	struct jval packing = jval_get(f->config, "packing_format");
	struct jval method = jval_get(f->config, "quant_method");
	bool plain =
		jval_is_str(packing, "auto_round") || jval_is_str(packing, "auto_round:gptqmodel");

	*ret = !plain && !jval_is_str(jval_get(f->config, "checkpoint_format"), "gptq_v2");
	return plain || jval_is_str(packing, "auto_round:auto_gptq") ||
	       (!jval_is_str(method, "auto-round") && !jval_is_str(method, "intel/auto-round"));
}

/* AWQ: [inputs, outputs / 8], GPTQ: [inputs / 8, outputs]; scales are [groups, outputs]. */
static int find_qweight(struct finder *f, const struct catalog_tensor *t)
{
	static const uint8_t awq[] = { 0, 4, 1, 5, 2, 6, 3, 7 };
	static const char end[] = ".qweight";
	unsigned bits = f->bits;
	const struct catalog_tensor *s;
	bool is_gptq;
	struct found *x;
	uint64_t per, k, n;
	int64_t at, zeros;
	int rc;

	if (t->dtype != CKPT_DTYPE_I32 || t->n_dims != 2 || !ends(t, end))
		return 0;
	at = sibling(f, t, end, ".scales");
	zeros = sibling(f, t, end, ".qzeros");
	if (at < 0 || zeros < 0)
		return no_scales(f, t, end, at < 0 ? ".scales" : ".qzeros");
	if (!bits)
		return unknown_bits(f, t);
	s = &f->t[at];
	per = 32 / bits;
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) || s->n_dims != 2 ||
	    !s->shape[0])
		return bad_scales(f, t, s, "that is not a scale for each group of inputs");
	n = s->shape[1];
	is_gptq = t->shape[1] == n;
	k = t->shape[0];
	if (is_gptq ? ckd_mul(&k, k, per) : t->shape[1] != blocks_in(n, per) || n % per)
		return bad_scales(f, t, s, "that is not a scale for each output");
	if (!is_gptq && bits != 4)
		return unknown_bits(f, t);
	x = add(f, t, end, ".weight", (const uint64_t[]){ n, k }, 2);
	if (!x)
		return -ENOMEM;
	x->q.bits = (uint8_t)bits;
	x->q.per = (uint32_t)per;
	x->q.turned = true;
	x->q.packed_a = is_gptq;
	x->q.groups_of_a = true;
	x->q.scale_dims = 2;
	if (is_gptq && !zero_more(f, &x->q.zero_more))
		return err_set(f->e, ERR_UNSUPPORTED,
			       "option 'dequantize': quantization_config does not say in a known "
			       "way how the zero points of '%.120s' are stored",
			       SHOWN(t));
	if (!is_gptq)
		memcpy(x->q.order, awq, sizeof(awq));
	(void)add_input(f, x, t);
	(void)add_input(f, x, s);
	x->q.rows = group_of(f, k, s->shape[0]);
	if (!x->q.rows)
		return bad_scales(f, t, s, "the groups of inputs are not of one size");
	rc = add_zeros(f, x, t, zeros, s->shape[0], blocks_in(n, per));
	return rc ? rc : add_groups(f, x, t, end, ".g_idx", k, s->shape[0]);
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

/* Codes of a form that is not known here would be shown beside weights, and nothing would say that
 * they are codes: the configuration that did is cut out. */
static int refuse_others(const struct finder *f)
{
	static const struct {
		const char *end, *by;
	} signs[] = {
		{ "", scale_inv },	  { "", scale },	   { "_packed", scale },
		{ "_blocks", "_scales" }, { ".weight", ".scale" }, { ".qweight", ".scales" },
		{ ".weight", ".SCB" },	  { "", ".absmax" },
	};

	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct catalog_tensor *t = &f->t[i];
		enum ckpt_dtype dtype = (enum ckpt_dtype)t->dtype;

		if (ends(t, ".pre_quant_scale"))
			return err_set(f->e, ERR_UNSUPPORTED,
				       "option 'dequantize': '%.120s' is to be multiplied into "
				       "activations, which is not known here",
				       SHOWN(t));
		if (f->hide[i] || cast_possible(dtype, CKPT_DTYPE_F32) ||
		    dtype == CKPT_DTYPE_BOOL || dtype_info(dtype)->size > 4)
			continue;
		for (size_t k = 0; k < ARRAY_LEN(signs); k++)
			if ((!*signs[k].end || ends(t, signs[k].end)) &&
			    sibling(f, t, signs[k].end, signs[k].by) >= 0)
				return err_set(
					f->e, ERR_UNSUPPORTED,
					"option 'dequantize': '%.120s' (%s, shape %s) holds codes "
					"of a form that is not known: there is also '%.120s%s'",
					SHOWN(t), DTYPE_TEXT(t), SHAPE_TEXT(t),
					FQN_TEXT(t->fqn, t->fqn_len - strlen(signs[k].end)),
					signs[k].by);
	}
	return 0;
}

static int find_all(struct finder *f)
{
	static int (*const finders[])(struct finder * f, const struct catalog_tensor *t) = {
		find_float8, find_int8, find_blocks, find_fp4, find_packed, find_qweight,
	};
	int rc = 0;

	f->block[0] = f->block[1] = 128;
	block_of(f, f->block);
	f->bits = bits_of(f);
	f->group_size = group_size_of(f);
	for (size_t i = 0; !rc && i < f->n_tensors; i++)
		for (size_t k = 0; !rc && k < ARRAY_LEN(finders); k++)
			rc = finders[k](f, &f->t[i]);
	if (!rc && !f->n)
		return err_set(f->e, EINVAL,
			       "option 'dequantize': no tensor holds codes that have scales");
	if (!rc)
		rc = refuse_others(f);
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

const char *const dequantise_keys[2] = { "quantization_config", "compression_config" };

/* Of models of several parts it may be in the language model's (Kimi-K2.5). */
static struct jval quantization_of(struct jval config)
{
	const struct jval in[] = { config, jval_get(config, "text_config") };

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		for (size_t k = 0; k < ARRAY_LEN(dequantise_keys); k++) {
			struct jval v = jval_get(in[i], dequantise_keys[k]);

			if (jval_is(v, J_OBJECT))
				return v;
		}
	return (struct jval){ 0 };
}

int dequantise(struct catalog *c, struct jval config, enum ckpt_dtype dtype,
	       const struct dequantise_peek *peek, struct dequantised *ret, struct ckpt_err *e)
{
	struct finder f = { .config = quantization_of(config),
			    .dtype = dtype,
			    .peek = peek,
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

static const char blanks[] = " \t\r\n";

/* Behind the name of a member `key` that begins at s, at the colon; NULL: there is none. */
static const char *member_at(const char *s, const char *key)
{
	size_t n = strlen(key);
	const char *behind;

	if (*s != '"')
		return NULL;
	behind = skip_string(s);
	if ((size_t)(behind - s) != n + 2 || memcmp(s + 1, key, n) != 0)
		return NULL;
	behind += strspn(behind, blanks);
	return *behind == ':' ? behind : NULL;
}

/* In one pass, because there may be many. */
size_t json_without(char *text, size_t len, const char *key)
{
	const char *s = text, *end = text + len;
	char *to = text;

	while (s < end) {
		const char *colon = member_at(s, key), *next;

		if (!colon) {
			for (next = *s == '"' ? skip_string(s) : s + 1; s < next; s++)
				*to++ = *s;
			continue;
		}
		s = skip_value(colon + 1, end);
		while (to > text && strchr(blanks, to[-1]))
			to--;
		/* The first member goes with the comma behind it, others with the one before. */
		if (to > text && to[-1] == ',')
			to--;
		else if (*s == ',')
			s++;
		/* The line break before a closing bracket stays. */
		while (*s != ',' && s > colon + 1 && strchr(blanks, s[-1]))
			s--;
	}
	*to = 0;
	return (size_t)(to - text);
}

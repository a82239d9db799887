/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes inside tensor subclasses: torchao's and Transformer Engine's. Such a tensor NAME is an object
 * with the class and its attributes, and beside it are the tensors that it is made of, NAME.qdata and
 * so on (format/torch/torchsave_kinds.c). The class says which formula it is, attributes give sizes of
 * blocks. Sources, all relative to torchao/, 0.3 to 0.18:
 *
 *	quantization/quantize_/workflows/	Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor
 *	dtypes/affine_quantized_tensor.py, dtypes/uintx/plain_layout.py, q_dq_layout.py,
 *	dtypes/floatx/float8_layout.py
 *	quantization/linear_activation_quantized_tensor.py
 *	optim/, earlier prototype/low_bit_optim/	OptimState8bit, OptimState4bit, OptimStateFp8
 *
 * and transformer_engine/pytorch/tensor/ with the kernels for CUDA that it calls, common/cast/.
 * Layouts that are made for a kernel, such as tinygemm's tiles, are refused by the name of the class.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "ckpt/dequantise_parts.h"
#include "codec/cast.h"
#include "model/box.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define MAX_TEXT ((uint32_t)1 << 20) /* of an object; they have some hundred bytes */
#define MAX_LEVELS \
	16 /* of names, from a tensor to the object that it is a part of; there are at most 4 */

/* ---- objects ---- */

/* A tensor that is made of others. */
struct owner {
	struct jdoc doc;
	struct jval attrs;
	const char *module, *class; /* "" if there is none */
};

static void owner_release(struct owner *o)
{
	jdoc_release(&o->doc);
}

/* 1: no object has that name, or it belongs to another library. */
static int owner_read(const struct deq_finder *f, const char *name, size_t len, struct owner *ret)
{
	/* As torchsave_kinds.c begins it; other texts need not be parsed, tensor by tensor. */
	static const char begin[] = "{\"__class__\": \"";
	static const char *const modules[] = { "torchao", "transformer_engine" };
	int64_t at = catalog_find_object(f->catalog, name, len);
	const struct catalog_object *o = at < 0 ? NULL : &catalog_objects(f->catalog, NULL)[at];
	const char *module = NULL, *dot;
	struct ckpt_err why;
	int rc;

	*ret = (struct owner){ .module = "", .class = "" };
	if (!o || !o->text || o->text_len > MAX_TEXT || !bytes_begin(o->text, o->text_len, begin))
		return 1;
	for (size_t i = 0; i < ARRAY_LEN(modules); i++) {
		size_t from = strlen(begin), n = strlen(modules[i]);

		if (bytes_begin(o->text + from, o->text_len - from, modules[i]) &&
		    o->text_len > from + n && o->text[from + n] == '.')
			module = modules[i];
	}
	if (!module)
		return 1;
	rc = jdoc_parse_copy(&ret->doc, o->text, o->text_len,
			     JDOC_ANY | JDOC_DUPLICATES | JDOC_PYTHON | JDOC_BIG | JDOC_NULS, &why);
	if (rc)
		return rc == -ENOMEM ? err_nomem(f->e) : 1;
	ret->attrs = jdoc_root(&ret->doc);
	dot = jval_str(jval_get(ret->attrs, "__class__"));
	dot = dot ? strrchr(dot, '.') : NULL;
	if (!dot)
		return 1;
	ret->module = module;
	ret->class = dot + 1;
	return 0;
}

/* ---- one tensor ---- */

struct wrapped {
	struct deq_finder *f;
	const struct catalog_tensor *t; /* the codes */
	const char *end;		/* of their name */
	const struct owner *owner;	/* what they are a part of */
	const char *name;		/* of the weight; it need not end where the string does */
	size_t len;
};

static int refuse(const struct wrapped *x, const char *class, const char *why)
{
	return err_set(x->f->e, ERR_UNSUPPORTED,
		       "option 'dequantize': '%.120s', of class %.60s: %s",
		       FQN_TEXT(x->name, (uint32_t)x->len), class, why);
}

static int bad_part(const struct wrapped *x, const char *why)
{
	return refuse(x, x->owner->class, why);
}

/* A tensor beside the codes; NULL: there is none. */
static const struct catalog_tensor *part(const struct wrapped *x, const char *name)
{
	int64_t at = deq_sibling(x->f, x->t, x->end, name);

	return at < 0 ? NULL : &x->f->t[at];
}

static void hide_part(const struct wrapped *x, const char *name)
{
	const struct catalog_tensor *t = part(x, name);

	if (t)
		x->f->hide[t - x->f->t] = true;
}

static bool is_scale_dtype(const struct catalog_tensor *t)
{
	return t->dtype == CKPT_DTYPE_F32 || t->dtype == CKPT_DTYPE_F16 ||
	       t->dtype == CKPT_DTYPE_BF16;
}

static bool is_zero_dtype(const struct catalog_tensor *t)
{
	return is_scale_dtype(t) || t->dtype == CKPT_DTYPE_I8 || t->dtype == CKPT_DTYPE_U8 ||
	       t->dtype == CKPT_DTYPE_I16 || t->dtype == CKPT_DTYPE_I32 ||
	       t->dtype == CKPT_DTYPE_I64;
}

static struct deq_found *add_weight(const struct wrapped *x, const uint64_t *shape, size_t n_dims)
{
	return deq_add_named(x->f, x->name, x->len, shape, n_dims);
}

/* ---- blocks ---- */

/*
 * Sets the grid of scales s over codes of this shape that block_size divides (_get_reduction_params
 * in quant_primitives.py). Scales have the dimensions of the grid, except that there may be one for
 * all in any shape, and one for each row without a second dimension. Dimensions before the last two
 * are planes of their own, unless one scale is for all.
 */
static bool set_blocks(struct dequant *q, const struct catalog_tensor *s, const uint64_t *shape,
		       size_t n_dims, const uint64_t *block)
{
	uint64_t grid[CKPT_MAX_DIMS];
	bool single = true, planes = true;
	size_t prefix = n_dims - 2;

	for (size_t d = 0; d < n_dims; d++) {
		if (!block[d] || shape[d] % block[d])
			if (block[d] != shape[d])
				return false;
		grid[d] = block[d] ? shape[d] / block[d] : 1;
		single &= grid[d] == 1;
		planes &= d >= prefix || grid[d] == shape[d];
	}
	q->n_prefix = (uint8_t)prefix;
	q->rows = max_u64(block[prefix], 1);
	q->columns = max_u64(block[prefix + 1], 1);
	if (single && deq_is_one(s))
		return true;
	if (!prefix && grid[1] == 1 && s->n_dims == 1) {
		q->scale_dims = 1;
		return s->shape[0] == grid[0];
	}
	q->scale_dims = 2;
	return planes && s->n_dims == n_dims && dims_equal(n_dims, s->shape, grid);
}

/* The sizes of blocks that the attribute has, one for each dimension. */
static int read_blocks(const struct wrapped *x, struct jval attrs, size_t n_dims, uint64_t *ret)
{
	size_t n;

	if (!jval_u64s(jval_get(attrs, "block_size"), ret, CKPT_MAX_DIMS, &n) || n != n_dims)
		return bad_part(x, "it has no block_size for each of its dimensions");
	return n_dims < 2 ? bad_part(x, "it has less than two dimensions") : 0;
}

/* Adds the weight of codes that are as many as its elements, with scales for blocks. */
static int add_blocks(const struct wrapped *x, struct jval attrs, enum codes codes,
		      struct deq_found **ret)
{
	const struct catalog_tensor *t = x->t, *s = part(x, ".scale");
	uint64_t block[CKPT_MAX_DIMS];
	int rc = read_blocks(x, attrs, t->n_dims, block);

	if (rc)
		return rc;
	if (!s)
		return deq_no_scales(x->f, t, x->end, ".scale");
	if (!is_scale_dtype(s))
		return bad_part(x, "its scales are neither float32, float16 nor bfloat16");
	*ret = add_weight(x, t->shape, t->n_dims);
	if (!*ret)
		return -ENOMEM;
	(*ret)->q.codes = codes;
	(*ret)->q.form = DEQUANT_ROUNDED;
	(void)deq_add_input(x->f, *ret, t);
	(void)deq_add_input(x->f, *ret, s);
	return set_blocks(&(*ret)->q, s, t->shape, t->n_dims, block)
		       ? 0
		       : deq_bad_scales(x->f, t, s,
					"that is not a scale for each block of block_size");
}

/* Adds zero points, which have the shape of the scales; not there: nothing. */
static int add_zeros(const struct wrapped *x, struct deq_found *found)
{
	const struct catalog_tensor *s = part(x, ".scale"), *z = part(x, ".zero_point");

	if (!z)
		return 0;
	if (s->n_dims != z->n_dims || !dims_equal(s->n_dims, s->shape, z->shape))
		return deq_bad_scales(x->f, x->t, z,
				      "the zero points must be as many as the scales");
	if (!is_zero_dtype(z))
		return deq_bad_scales(x->f, x->t, z, "zero points of that type are not known");
	found->q.zeros = deq_add_input(x->f, found, z);
	found->q.zeros_plain = true;
	return 0;
}

/* ---- torchao's weights ---- */

static int find_int8(const struct wrapped *x)
{
	struct deq_found *found;
	int rc;

	if (x->t->dtype != CKPT_DTYPE_I8)
		return bad_part(x, "its codes are not int8");
	rc = add_blocks(x, x->owner->attrs, CODES_INT8, &found);
	if (!rc)
		rc = add_zeros(x, found);
	hide_part(x, ".act_quant_scale");
	hide_part(x, ".act_quant_zero_point");
	return rc;
}

/*
 * Two codes in each byte, the first in the low bits, with scales and zero points [.., groups, rows],
 * as int4_row_quantize_zp and pack_int4 make them (mslk, before it FBGEMM's gen_ai/quantize.py): codes are
 * -8 to 7, and a zero point is the value of the code 0. torchao has no formula but the kernel that
 * multiplies; this is the inverse of what was quantised.
 */
static int find_int4(const struct wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = part(x, ".scale"), *z = part(x, ".zero_point");
	uint64_t shape[CKPT_MAX_DIMS], grid[CKPT_MAX_DIMS], block[CKPT_MAX_DIMS];
	size_t n = t->n_dims, n_shape;
	struct deq_found *found;
	int rc = read_blocks(x, x->owner->attrs, n, block);

	if (rc)
		return rc;
	for (size_t d = 0; d + 1 < n; d++)
		if (block[d] != 1)
			return bad_part(x, "block_size is not that of groups of a row");
	if ((t->dtype != CKPT_DTYPE_I8 && t->dtype != CKPT_DTYPE_U8) ||
	    !jval_u64s(jval_get(x->owner->attrs, "shape"), shape, CKPT_MAX_DIMS, &n_shape) ||
	    n_shape != n || !dims_equal(n - 1, shape, t->shape) || shape[n - 1] % 2 ||
	    shape[n - 1] / 2 != t->shape[n - 1])
		return bad_part(x, "its codes are not bytes with two elements of a row in each");
	if (!s || !z)
		return deq_no_scales(x->f, t, x->end, s ? ".zero_point" : ".scale");
	if (!block[n - 1] || shape[n - 1] % block[n - 1])
		return bad_part(x, "its groups do not divide its rows");
	memcpy(grid, shape, n * sizeof(*grid));
	grid[n - 2] = shape[n - 1] / block[n - 1];
	grid[n - 1] = shape[n - 2];
	if (!is_scale_dtype(s) || s->n_dims != n || !dims_equal(n, s->shape, grid))
		return deq_bad_scales(x->f, t, s, "that is not a scale for each group, rows last");
	if (!is_scale_dtype(z))
		return deq_bad_scales(x->f, t, z, "zero points of that type are not known");
	found = add_weight(x, shape, n);
	if (!found)
		return -ENOMEM;
	found->q.codes = CODES_INT4;
	found->q.bits = 4;
	found->q.per = 2;
	found->q.n_prefix = (uint8_t)(n - 2);
	found->q.columns = block[n - 1];
	found->q.scale_dims = 2;
	found->q.scales_turned = true;
	found->q.form = DEQUANT_ADDED;
	(void)deq_add_input(x->f, found, t);
	(void)deq_add_input(x->f, found, s);
	return add_zeros(x, found);
}

/* ---- AffineQuantizedTensor, which torchao 0.3 to 0.17 had ---- */

enum domain { DOMAIN_INT, DOMAIN_FLOAT, DOMAIN_NONE, DOMAIN_UNKNOWN };

/* ZeroPointDomain(1), or getattr(ZeroPointDomain, "INT"); `first` is the number of INT. */
static enum domain domain_of(struct jval attrs, int64_t first)
{
	static const char *const names[] = { "INT", "FLOAT", "NONE" };
	struct jval args = jval_get(jval_get(attrs, "zero_point_domain"), "__args__");
	int64_t n;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (jval_size(args) == 2 && jval_is_str(jval_at(args, 1), names[i]))
			return (enum domain)i;
	if (jval_size(args) != 1 || !jval_int(jval_at(args, 0), &n) || n < first || n - first > 2)
		return DOMAIN_UNKNOWN;
	return (enum domain)(n - first);
}

/* Half of the smallest and the largest code and one. False: they are not among the codes. */
static bool middle_of(struct jval attrs, const struct catalog_tensor *t, float *ret)
{
	double low = t->dtype == CKPT_DTYPE_I8 ? -128 : 0, high = low + 255, min = low, max = high;
	struct jval vmin = jval_given(jval_get(attrs, "quant_min"));
	struct jval vmax = jval_given(jval_get(attrs, "quant_max"));

	if ((vmin.d && !jval_number(vmin, &min)) || (vmax.d && !jval_number(vmax, &max)) ||
	    !(min >= low && max <= high && min < max) || rint(min) != min || rint(max) != max)
		return false;
	*ret = (float)((max + min + 1) / 2);
	return true;
}

static int find_plain(const struct wrapped *x, const struct owner *outer)
{
	/* 0.3 counted from 0, and its layouts had no attribute of that name. */
	bool counted = jval_get(x->owner->attrs, "_layout").d ||
		       jval_get(x->owner->attrs, "layout_type").d;
	enum domain domain = domain_of(outer->attrs, counted ? 1 : 0);
	struct deq_found *found;
	int rc;

	if (x->t->dtype != CKPT_DTYPE_I8 && x->t->dtype != CKPT_DTYPE_U8)
		return bad_part(x, "its codes are neither int8 nor uint8");
	if (domain == DOMAIN_UNKNOWN || (domain == DOMAIN_NONE && part(x, ".zero_point")))
		return bad_part(x, "its zero_point_domain does not say what its zero points are");
	rc = add_blocks(x, outer->attrs, x->t->dtype == CKPT_DTYPE_I8 ? CODES_INT8 : CODES_UINT,
			&found);
	if (rc)
		return rc;
	if (domain == DOMAIN_FLOAT) {
		found->q.form = DEQUANT_SHIFTED;
		if (!middle_of(outer->attrs, x->t, &found->q.mid))
			return bad_part(x, "its quant_min and quant_max are not among its codes");
		if (part(x, ".zero_point") && !is_scale_dtype(part(x, ".zero_point")))
			return bad_part(x, "its zero_point_domain is FLOAT, but they are integers");
	}
	/* int8_dynamic_activation_int4_weight stores integers in the dtype of the weight. */
	found->q.zeros_whole = domain == DOMAIN_INT;
	return add_zeros(x, found);
}

static int find_plain_float8(const struct wrapped *x, const struct owner *outer)
{
	struct deq_found *found;

	if (x->t->dtype != CKPT_DTYPE_F8_E4M3FN && x->t->dtype != CKPT_DTYPE_F8_E5M2)
		return bad_part(x, "its codes are not float8");
	if (jval_is(jval_get(x->owner->attrs, "transposed"), J_TRUE))
		return bad_part(x, "it is transposed");
	return add_blocks(x, outer->attrs,
			  x->t->dtype == CKPT_DTYPE_F8_E4M3FN ? CODES_E4M3 : CODES_E5M2, &found);
}

/* ---- torchao's optimizers ---- */

static bool is_line(const struct catalog_tensor *t, enum ckpt_dtype dtype)
{
	return t && t->dtype == dtype && t->n_dims == 1;
}

static int find_state(const struct wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = part(x, ".scale"), *map = part(x, ".qmap");
	struct dequant_flat q = { .dtype = x->f->dtype, .codes = FLAT_BYTES };
	bool is_float8 = !strcmp(x->owner->class, "OptimStateFp8");
	size_t n_dims = t->n_dims;
	struct deq_found *found;
	uint64_t n;

	memcpy(q.shape, t->shape, n_dims * sizeof(*q.shape));
	if (is_float8)
		q.codes = FLAT_FLOAT8;
	if (!strcmp(x->owner->class, "OptimState4bit"))
		q.codes = FLAT_NIBBLES;
	if (q.codes == FLAT_NIBBLES &&
	    (t->n_dims != 1 ||
	     !jval_u64s(jval_get(x->owner->attrs, "shape"), q.shape, CKPT_MAX_DIMS, &n_dims)))
		return bad_part(x, "its codes are not a line of bytes, or it has no shape");
	q.n_dims = (uint8_t)n_dims;
	if (t->dtype != (is_float8 ? CKPT_DTYPE_F8_E4M3FN : CKPT_DTYPE_U8) || !n_dims ||
	    !box_volume(n_dims, q.shape, &n) ||
	    (q.codes == FLAT_NIBBLES && (n % 2 || n / 2 != t->shape[0])))
		return bad_part(x, "its codes are not as many as its elements");
	if (!s || (!is_float8 && !map))
		return deq_no_scales(x->f, t, x->end, s ? ".qmap" : ".scale");
	if (!is_line(s, CKPT_DTYPE_F32) || !s->shape[0] || n % s->shape[0] || !n)
		return deq_bad_scales(x->f, t, s, "that is not a float32 for each block of codes");
	if (!is_float8 &&
	    (!is_line(map, CKPT_DTYPE_F32) || map->shape[0] != (q.codes == FLAT_BYTES ? 256 : 16)))
		return deq_bad_scales(x->f, t, map, "that is not a float32 for each code");
	q.block = n / s->shape[0];
	found = add_weight(x, q.shape, n_dims);
	if (!found)
		return -ENOMEM;
	found->flat = q;
	(void)deq_add_input(x->f, found, t);
	(void)deq_add_input(x->f, found, s);
	if (!is_float8)
		(void)deq_add_input(x->f, found, map);
	return 0;
}

/* ---- Transformer Engine ---- */

/* The dtype of the codes, which are stored as bytes. */
static int engine_codes(const struct wrapped *x, enum codes *ret)
{
	struct jval dtype = jval_get(x->owner->attrs, "fp8_dtype");
	int64_t number;

	if (x->t->dtype != CKPT_DTYPE_U8 || x->t->n_dims < 2)
		return bad_part(x, "its codes are not bytes of two dimensions or more");
	*ret = jval_is_str(dtype, "float8_e5m2") ? CODES_E5M2 : CODES_E4M3;
	if (*ret == CODES_E5M2 || jval_is_str(dtype, "float8_e4m3fn"))
		return 0;
	if (jval_int(dtype, &number) && number == 7)
		return bad_part(x,
				"7, the number of its dtype, is float8_e5m2 before version 2.4 and "
				"float8_e4m3fn since, and nothing else says which version "
				"saved it: load it with that, and save it with 2.16 or a later "
				"one");
	return bad_part(x, "the dtype of its codes is not known");
}

static struct deq_found *add_engine(const struct wrapped *x, enum codes codes,
				    const struct catalog_tensor *s)
{
	struct deq_found *found = add_weight(x, x->t->shape, x->t->n_dims);

	if (!found)
		return NULL;
	found->q.codes = codes;
	found->q.n_prefix = (uint8_t)(x->t->n_dims - 2);
	(void)deq_add_input(x->f, found, x->t);
	(void)deq_add_input(x->f, found, s);
	return found;
}

static int find_engine(const struct wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = part(x, "._scale_inv");
	struct deq_found *found;
	enum codes codes;
	int rc = engine_codes(x, &codes);

	if (rc)
		return rc;
	if (!s)
		return deq_no_scales(x->f, t, x->end, "._scale_inv");
	if (s->dtype != CKPT_DTYPE_F32 || !deq_is_one(s))
		return deq_bad_scales(x->f, t, s, "that is not one float32");
	found = add_engine(x, codes, s);
	if (!found)
		return -ENOMEM;
	found->q.rows = max_u64(t->shape[t->n_dims - 2], 1);
	found->q.columns = max_u64(t->shape[t->n_dims - 1], 1);
	hide_part(x, "._transpose");
	return 0;
}

/* Are there at least this many scales in each dimension? They are padded for kernels. */
static bool covers(const struct catalog_tensor *s, uint64_t a, uint64_t b)
{
	return s->n_dims == 2 && s->shape[0] >= a && s->shape[1] >= b;
}

static int find_engine_blocks(const struct wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = part(x, "._rowwise_scale_inv");
	struct jval attrs = x->owner->attrs;
	bool mx = !strcmp(x->owner->class, "MXFP8Tensor");
	bool lines = !mx && !jval_is(jval_get(attrs, "is_2D_scaled"), J_TRUE);
	uint64_t columns, rows, groups;
	struct deq_found *found;
	enum codes codes;
	int rc = engine_codes(x, &codes);

	if (rc)
		return rc;
	if (jval_is(jval_get(attrs, "with_gemm_swizzled_scales"), J_TRUE))
		return bad_part(x, "its scales are in the order of a kernel");
	if (lines && jval_given(jval_get(attrs, "data_format")).d)
		return bad_part(x, "the order of its scales, data_format, is not known");
	if (t->n_dims != 2)
		return bad_part(x, "it has more than two dimensions");
	if (!s)
		return deq_no_scales(x->f, t, x->end, "._rowwise_scale_inv");
	columns = mx ? 32 : 128;
	rows = mx || lines ? 1 : 128;
	groups = deq_blocks_in(t->shape[1], columns);
	if (s->dtype != (mx ? CKPT_DTYPE_U8 : CKPT_DTYPE_F32) ||
	    !(lines ? covers(s, groups, t->shape[0])
		    : covers(s, deq_blocks_in(t->shape[0], rows), groups)))
		return deq_bad_scales(x->f, t, s, "that is not a scale for each block");
	found = add_engine(x, codes, s);
	if (!found)
		return -ENOMEM;
	found->q.rows = rows;
	found->q.columns = columns;
	found->q.scale_dims = 2;
	found->q.scales_turned = lines;
	found->q.exponents = mx;
	hide_part(x, "._columnwise_data");
	hide_part(x, "._columnwise_scale_inv");
	return 0;
}

/* ---- all ---- */

typedef int find_fn(const struct wrapped *x);
typedef int find_inner_fn(const struct wrapped *x, const struct owner *outer);

static const struct {
	const char *module, *class, *end;
	find_fn *find;
	find_inner_fn *inner; /* in place of it for what an AffineQuantizedTensor is made of */
} classes[] = {
	{ "torchao", "Int8Tensor", ".qdata", find_int8, NULL },
	{ "torchao", "IntxUnpackedToInt8Tensor", ".qdata", find_int8, NULL },
	{ "torchao", "Int4Tensor", ".qdata", find_int4, NULL },
	{ "torchao", "PlainAQTTensorImpl", ".int_data", NULL, find_plain },
	{ "torchao", "PlainAQTLayout", ".int_data", NULL, find_plain },
	{ "torchao", "QDQTensorImpl", ".int_data", NULL, find_plain },
	{ "torchao", "Float8AQTTensorImpl", ".float8_data", NULL, find_plain_float8 },
	{ "torchao", "Float8AQTLayout", ".float8_data", NULL, find_plain_float8 },
	{ "torchao", "OptimState8bit", ".codes", find_state, NULL },
	{ "torchao", "OptimState4bit", ".codes", find_state, NULL },
	{ "torchao", "OptimStateFp8", ".codes", find_state, NULL },
	{ "transformer_engine", "Float8Tensor", "._data", find_engine, NULL },
	{ "transformer_engine", "MXFP8Tensor", "._rowwise_data", find_engine_blocks, NULL },
	{ "transformer_engine", "Float8BlockwiseQTensor", "._rowwise_data", find_engine_blocks,
	  NULL },
};

/* Cuts an attribute's name from that of x. False: it has another end. */
static bool cut_name(struct wrapped *x, const char *end)
{
	if (x->len <= strlen(end) || !bytes_end(x->name, x->len, end))
		return false;
	x->len -= strlen(end);
	return true;
}

/* Cuts names of wrappers that only say what becomes of activations, or nothing. */
static int cut_wrappers(struct wrapped *x)
{
	static const char *const known[] = {
		"LinearActivationQuantizedTensor",
		"WeightTensorWithLinearActivationQuantizationMetadata",
	};

	while (cut_name(x, ".original_weight_tensor")) {
		CLEANUP(owner_release) struct owner o = { 0 };
		bool is_known = false;
		int rc = owner_read(x->f, x->name, x->len, &o);

		if (rc < 0)
			return rc;
		for (size_t i = 0; !rc && i < ARRAY_LEN(known); i++)
			is_known |= !strcmp(o.class, known[i]);
		if (!is_known)
			return refuse(x, rc ? "unknown" : o.class,
				      "what it does to the weight inside it is not known");
	}
	return 0;
}

static int find_inner(struct wrapped *x, find_inner_fn *find)
{
	CLEANUP(owner_release) struct owner outer = { 0 };
	int rc = 1;

	if (cut_name(x, ".tensor_impl") || cut_name(x, ".layout_tensor"))
		rc = owner_read(x->f, x->name, x->len, &outer);
	if (rc < 0)
		return rc;
	if (rc || strcmp(outer.class, "AffineQuantizedTensor") != 0)
		return bad_part(x, "it is not part of an AffineQuantizedTensor");
	rc = cut_wrappers(x);
	return rc ? rc : find(x, &outer);
}

int deq_find_wrapped(struct deq_finder *f, const struct catalog_tensor *t)
{
	CLEANUP(owner_release) struct owner o = { 0 };
	struct wrapped x = { .f = f, .t = t, .owner = &o, .name = t->fqn };
	bool is_read = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(classes); i++) {
		if (!deq_ends(t, classes[i].end))
			continue;
		x.end = classes[i].end;
		x.len = t->fqn_len - strlen(x.end);
		if (!is_read)
			rc = owner_read(f, x.name, x.len, &o);
		is_read = true;
		if (rc || strcmp(o.module, classes[i].module) != 0 ||
		    strcmp(o.class, classes[i].class) != 0)
			continue;
		if (classes[i].inner)
			return find_inner(&x, classes[i].inner);
		rc = cut_wrappers(&x);
		return rc ? rc : classes[i].find(&x);
	}
	return rc < 0 ? rc : 0;
}

int deq_check_float8(const struct deq_finder *f, const struct catalog_tensor *t, const char *end)
{
	static const char *const known[] = { "Float8Tensor", "PrototypeFloat8Tensor" };
	CLEANUP(owner_release) struct owner o = { 0 };
	int rc = owner_read(f, t->fqn, t->fqn_len - strlen(end), &o);

	for (size_t i = 0; !rc && i < ARRAY_LEN(known); i++)
		if (!strcmp(o.class, known[i]))
			return 0;
	return rc > 0 ? 0 : rc ? rc : deq_refuse_wrapped(f, t);
}

bool deq_has_parts(const struct deq_finder *f, const struct catalog_tensor *t)
{
	static const struct {
		const char *end, *by;
	} parts[] = {
		{ ".qdata", ".scale" },
		{ ".int_data", ".scale" },
		{ ".codes", ".scale" },
		{ "._data", "._scale_inv" },
		{ "._rowwise_data", "._rowwise_scale_inv" },
	};

	if (cast_possible((enum ckpt_dtype)t->dtype, CKPT_DTYPE_F32))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (deq_ends(t, parts[i].end) && deq_sibling(f, t, parts[i].end, parts[i].by) >= 0)
			return true;
	return false;
}

int deq_refuse_wrapped(const struct deq_finder *f, const struct catalog_tensor *t)
{
	unsigned levels = 0;

	for (size_t len = t->fqn_len; len-- > 1;) {
		CLEANUP(owner_release) struct owner o = { 0 };
		int rc;

		if (t->fqn[len] != '.')
			continue;
		if (levels++ == MAX_LEVELS) /* a name may be nothing but dots */
			break;
		rc = owner_read(f, t->fqn, len, &o);
		if (rc < 0)
			return rc;
		if (!rc)
			return err_set(
				f->e, ERR_UNSUPPORTED,
				"option 'dequantize': '%.120s' (%s, shape %s) holds codes of "
				"%s's class %.60s, whose layout is not known",
				SHOWN(t), DTYPE_TEXT(t), SHAPE_TEXT(t), o.module, o.class);
	}
	return 0;
}

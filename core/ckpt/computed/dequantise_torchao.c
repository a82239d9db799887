/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes inside torchao's tensor subclasses. The class says which formula it is, attributes give
 * sizes of blocks. Sources, all relative to torchao/, 0.3 to 0.18:
 *
 *	quantization/quantize_/workflows/	Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor
 *	dtypes/affine_quantized_tensor.py, dtypes/uintx/plain_layout.py, q_dq_layout.py,
 *	dtypes/floatx/float8_layout.py
 *	optim/, earlier prototype/low_bit_optim/	OptimState8bit, OptimState4bit, OptimStateFp8
 *
 * Layouts that are made for a kernel, such as tinygemm's tiles, are refused by the name of the
 * class.
 */
#include "base/checked.h"
#include "base/json.h"
#include "ckpt/computed/dequantise_wrapped.h"
#include "model/box.h"

#include <errno.h>
#include <math.h>
#include <string.h>

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
static int read_blocks(const struct deq_wrapped *x, struct jval attrs, size_t n_dims, uint64_t *ret)
{
	size_t n;

	if (!jval_u64s(jval_get(attrs, "block_size"), ret, CKPT_MAX_DIMS, &n) || n != n_dims)
		return deq_bad_part(x, "it has no block_size for each of its dimensions");
	return n_dims < 2 ? deq_bad_part(x, "it has fewer than two dimensions") : 0;
}

/* Adds the weight of codes that are as many as its elements, with scales for blocks. */
static int add_blocks(const struct deq_wrapped *x, struct jval attrs, enum codes codes,
		      struct deq_found **ret)
{
	const struct catalog_tensor *t = x->t, *s = deq_part(x, ".scale");
	uint64_t block[CKPT_MAX_DIMS];
	int rc = read_blocks(x, attrs, t->n_dims, block);

	if (rc)
		return rc;
	if (!s)
		return deq_no_scales(x->f, t, x->end, ".scale");
	if (!is_scale_dtype(s))
		return deq_bad_part(x, "its scales are neither float32, float16 nor bfloat16");
	*ret = deq_add_named(x->f, x->name, x->len, t->shape, t->n_dims);
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
static int add_zeros(const struct deq_wrapped *x, struct deq_found *found)
{
	const struct catalog_tensor *s = deq_part(x, ".scale"), *z = deq_part(x, ".zero_point");

	if (!z)
		return 0;
	if (s->n_dims != z->n_dims || !dims_equal(s->n_dims, s->shape, z->shape))
		return deq_bad_scales(x->f, x->t, z, "there must be as many zero points as scales");
	if (!is_zero_dtype(z))
		return deq_bad_scales(x->f, x->t, z, "zero points of that type are not known");
	found->q.zeros = deq_add_input(x->f, found, z);
	found->q.zeros_plain = true;
	return 0;
}

/* ---- torchao's weights ---- */

int deq_torchao_int8(const struct deq_wrapped *x)
{
	struct deq_found *found;
	int rc;

	if (x->t->dtype != CKPT_DTYPE_I8)
		return deq_bad_part(x, "its codes are not int8");
	rc = add_blocks(x, x->owner->attrs, CODES_INT8, &found);
	if (!rc)
		rc = add_zeros(x, found);
	deq_hide_part(x, ".act_quant_scale");
	deq_hide_part(x, ".act_quant_zero_point");
	return rc;
}

/*
 * Two codes in each byte, the first in the low bits, with scales and zero points [.., groups,
 * rows], as int4_row_quantize_zp and pack_int4 make them (mslk, before it FBGEMM's
 * gen_ai/quantize.py): codes are -8 to 7, and a zero point is the value of the code 0. torchao has
 * no formula, only the kernel that multiplies; this is the inverse of its quantisation.
 */
int deq_torchao_int4(const struct deq_wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = deq_part(x, ".scale"),
				    *z = deq_part(x, ".zero_point");
	uint64_t shape[CKPT_MAX_DIMS], grid[CKPT_MAX_DIMS], block[CKPT_MAX_DIMS];
	size_t n = t->n_dims, n_shape;
	struct deq_found *found;
	int rc = read_blocks(x, x->owner->attrs, n, block);

	if (rc)
		return rc;
	for (size_t d = 0; d + 1 < n; d++)
		if (block[d] != 1)
			return deq_bad_part(x, "block_size is not that of groups of a row");
	if ((t->dtype != CKPT_DTYPE_I8 && t->dtype != CKPT_DTYPE_U8) ||
	    !jval_u64s(jval_get(x->owner->attrs, "shape"), shape, CKPT_MAX_DIMS, &n_shape) ||
	    n_shape != n || !dims_equal(n - 1, shape, t->shape) || shape[n - 1] % 2 ||
	    shape[n - 1] / 2 != t->shape[n - 1])
		return deq_bad_part(x,
				    "its codes are not bytes with two elements of a row in each");
	if (!s || !z)
		return deq_no_scales(x->f, t, x->end, s ? ".zero_point" : ".scale");
	if (!block[n - 1] || shape[n - 1] % block[n - 1])
		return deq_bad_part(x, "its groups do not divide its rows");
	memcpy(grid, shape, n * sizeof(*grid));
	grid[n - 2] = shape[n - 1] / block[n - 1];
	grid[n - 1] = shape[n - 2];
	if (!is_scale_dtype(s) || s->n_dims != n || !dims_equal(n, s->shape, grid))
		return deq_bad_scales(x->f, t, s, "that is not a scale for each group, rows last");
	if (!is_scale_dtype(z))
		return deq_bad_scales(x->f, t, z, "zero points of that type are not known");
	found = deq_add_named(x->f, x->name, x->len, shape, n);
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

int deq_torchao_plain(const struct deq_wrapped *x, const struct deq_owner *outer)
{
	/* 0.3 counted from 0, and its layouts had no attribute of that name. */
	bool counted = jval_get(x->owner->attrs, "_layout").d ||
		       jval_get(x->owner->attrs, "layout_type").d;
	enum domain domain = domain_of(outer->attrs, counted ? 1 : 0);
	struct deq_found *found;
	int rc;

	if (x->t->dtype != CKPT_DTYPE_I8 && x->t->dtype != CKPT_DTYPE_U8)
		return deq_bad_part(x, "its codes are neither int8 nor uint8");
	if (domain == DOMAIN_UNKNOWN || (domain == DOMAIN_NONE && deq_part(x, ".zero_point")))
		return deq_bad_part(x,
				    "its zero_point_domain does not say what its zero points are");
	rc = add_blocks(x, outer->attrs, x->t->dtype == CKPT_DTYPE_I8 ? CODES_INT8 : CODES_UINT,
			&found);
	if (rc)
		return rc;
	if (domain == DOMAIN_FLOAT) {
		found->q.form = DEQUANT_SHIFTED;
		if (!middle_of(outer->attrs, x->t, &found->q.mid))
			return deq_bad_part(x,
					    "its quant_min and quant_max are not among its codes");
		if (deq_part(x, ".zero_point") && !is_scale_dtype(deq_part(x, ".zero_point")))
			return deq_bad_part(
				x, "its zero_point_domain is FLOAT, but they are integers");
	}
	/* int8_dynamic_activation_int4_weight stores integers in the dtype of the weight. */
	found->q.zeros_whole = domain == DOMAIN_INT;
	return add_zeros(x, found);
}

int deq_torchao_plain_float8(const struct deq_wrapped *x, const struct deq_owner *outer)
{
	struct deq_found *found;

	if (x->t->dtype != CKPT_DTYPE_F8_E4M3FN && x->t->dtype != CKPT_DTYPE_F8_E5M2)
		return deq_bad_part(x, "its codes are not float8");
	if (jval_is(jval_get(x->owner->attrs, "transposed"), J_TRUE))
		return deq_bad_part(x, "it is transposed");
	return add_blocks(x, outer->attrs,
			  x->t->dtype == CKPT_DTYPE_F8_E4M3FN ? CODES_E4M3 : CODES_E5M2, &found);
}

/* ---- torchao's optimizers ---- */

static bool is_line(const struct catalog_tensor *t, enum ckpt_dtype dtype)
{
	return t && t->dtype == dtype && t->n_dims == 1;
}

int deq_torchao_state(const struct deq_wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = deq_part(x, ".scale"),
				    *map = deq_part(x, ".qmap");
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
		return deq_bad_part(x, "its codes are not a line of bytes, or it has no shape");
	q.n_dims = (uint8_t)n_dims;
	if (t->dtype != (is_float8 ? CKPT_DTYPE_F8_E4M3FN : CKPT_DTYPE_U8) || !n_dims ||
	    !box_volume(n_dims, q.shape, &n) ||
	    (q.codes == FLAT_NIBBLES && (n % 2 || n / 2 != t->shape[0])))
		return deq_bad_part(x, "it does not have as many codes as elements");
	if (!s || (!is_float8 && !map))
		return deq_no_scales(x->f, t, x->end, s ? ".qmap" : ".scale");
	if (!is_line(s, CKPT_DTYPE_F32) || !s->shape[0] || n % s->shape[0] || !n)
		return deq_bad_scales(x->f, t, s, "that is not a float32 for each block of codes");
	if (!is_float8 &&
	    (!is_line(map, CKPT_DTYPE_F32) || map->shape[0] != (q.codes == FLAT_BYTES ? 256 : 16)))
		return deq_bad_scales(x->f, t, map, "that is not a float32 for each code");
	q.block = n / s->shape[0];
	found = deq_add_named(x->f, x->name, x->len, q.shape, n_dims);
	if (!found)
		return -ENOMEM;
	found->flat = q;
	(void)deq_add_input(x->f, found, t);
	(void)deq_add_input(x->f, found, s);
	if (!is_float8)
		(void)deq_add_input(x->f, found, map);
	return 0;
}

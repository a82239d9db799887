/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes inside Transformer Engine's tensor subclasses: transformer_engine/pytorch/tensor/, and the
 * kernels for CUDA that it calls, common/cast/.
 */
#include "base/checked.h"
#include "base/json.h"
#include "ckpt/computed/dequantise_wrapped.h"

#include <errno.h>
#include <string.h>

/* The dtype of the codes, which are stored as bytes. */
static int read_codes(const struct deq_wrapped *x, enum codes *ret)
{
	struct jval dtype = jval_get(x->owner->attrs, "fp8_dtype");
	int64_t number;

	if (x->t->dtype != CKPT_DTYPE_U8 || x->t->n_dims < 2)
		return deq_bad_part(x, "its codes are not bytes of two dimensions or more");
	*ret = jval_is_str(dtype, "float8_e5m2") ? CODES_E5M2 : CODES_E4M3;
	if (*ret == CODES_E5M2 || jval_is_str(dtype, "float8_e4m3fn"))
		return 0;
	if (jval_int(dtype, &number) && number == 7)
		return deq_bad_part(
			x, "7, the number of its dtype, is float8_e5m2 before version 2.4 and "
			   "float8_e4m3fn since, and nothing else says which version "
			   "saved it: load it with that, and save it with 2.16 or a later "
			   "one");
	return deq_bad_part(x, "the dtype of its codes is not known");
}

static struct deq_found *add_codes(const struct deq_wrapped *x, enum codes codes,
				   const struct catalog_tensor *s)
{
	struct deq_found *found = deq_add_named(x->f, x->name, x->len, x->t->shape, x->t->n_dims);

	if (!found)
		return NULL;
	found->q.codes = codes;
	found->q.n_prefix = (uint8_t)(x->t->n_dims - 2);
	(void)deq_add_input(x->f, found, x->t);
	(void)deq_add_input(x->f, found, s);
	return found;
}

int deq_te_float8(const struct deq_wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = deq_part(x, "._scale_inv");
	struct deq_found *found;
	enum codes codes;
	int rc = read_codes(x, &codes);

	if (rc)
		return rc;
	if (!s)
		return deq_no_scales(x->f, t, x->end, "._scale_inv");
	if (s->dtype != CKPT_DTYPE_F32 || !deq_is_one(s))
		return deq_bad_scales(x->f, t, s, "that is not one float32");
	found = add_codes(x, codes, s);
	if (!found)
		return -ENOMEM;
	found->q.rows = max_u64(t->shape[t->n_dims - 2], 1);
	found->q.columns = max_u64(t->shape[t->n_dims - 1], 1);
	deq_hide_part(x, "._transpose");
	return 0;
}

/* Are there at least this many scales in each dimension? They are padded for kernels. */
static bool covers(const struct catalog_tensor *s, uint64_t a, uint64_t b)
{
	return s->n_dims == 2 && s->shape[0] >= a && s->shape[1] >= b;
}

int deq_te_blocks(const struct deq_wrapped *x)
{
	const struct catalog_tensor *t = x->t, *s = deq_part(x, "._rowwise_scale_inv");
	struct jval attrs = x->owner->attrs;
	bool mx = !strcmp(x->owner->class, "MXFP8Tensor");
	bool lines = !mx && !jval_is(jval_get(attrs, "is_2D_scaled"), J_TRUE);
	uint64_t columns, rows, groups;
	struct deq_found *found;
	enum codes codes;
	int rc = read_codes(x, &codes);

	if (rc)
		return rc;
	if (jval_is(jval_get(attrs, "with_gemm_swizzled_scales"), J_TRUE))
		return deq_bad_part(x, "its scales are in the order of a kernel");
	if (lines && jval_given(jval_get(attrs, "data_format")).d)
		return deq_bad_part(x, "the order of its scales, data_format, is not known");
	if (t->n_dims != 2)
		return deq_bad_part(x, "it has more than two dimensions");
	if (!s)
		return deq_no_scales(x->f, t, x->end, "._rowwise_scale_inv");
	columns = mx ? 32 : 128;
	rows = mx || lines ? 1 : 128;
	groups = deq_blocks_in(t->shape[1], columns);
	if (s->dtype != (mx ? CKPT_DTYPE_U8 : CKPT_DTYPE_F32) ||
	    !(lines ? covers(s, groups, t->shape[0])
		    : covers(s, deq_blocks_in(t->shape[0], rows), groups)))
		return deq_bad_scales(x->f, t, s, "that is not a scale for each block");
	found = add_codes(x, codes, s);
	if (!found)
		return -ENOMEM;
	found->q.rows = rows;
	found->q.columns = columns;
	found->q.scale_dims = 2;
	found->q.scales_turned = lines;
	found->q.exponents = mx;
	deq_hide_part(x, "._columnwise_data");
	deq_hide_part(x, "._columnwise_scale_inv");
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of flattened tensors: what bitsandbytes saves of a Linear4bit (QuantState.as_dict in
 * bitsandbytes/functional.py). The shape and the sizes of blocks are JSON, in a tensor of bytes.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "ckpt/computed/dequantise_parts.h"
#include "model/box.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define MAX_STATE ((uint64_t)64 << 10) /* bytes of JSON; there are about 200 */

static const char absmax[] = ".absmax", map[] = ".quant_map", nested[] = ".nested_absmax",
		  nested_map[] = ".nested_quant_map";

static int bad_state(const struct deq_finder *f, const struct catalog_tensor *s, const char *why)
{
	return err_set(f->e, EINVAL, "option 'dequantize': '%.120s': %s", SHOWN(s), why);
}

static int read_state(const struct deq_finder *f, const struct catalog_tensor *s, struct jdoc *ret)
{
	autofree char *text = NULL;
	int rc;

	if (s->dtype != CKPT_DTYPE_U8 || s->bytes > MAX_STATE)
		return bad_state(f, s, "that is not a short text in bytes");
	text = malloc(s->bytes + 1);
	if (!text)
		return err_nomem(f->e);
	rc = f->peek->read(f->peek->arg, (uint32_t)(s - f->t), text, s->bytes, f->e);
	if (rc > 0)
		return bad_state(f, s, "it is missing, so the shape of the weight is not known");
	if (!rc && jdoc_parse_copy(ret, text, s->bytes, JDOC_PYTHON, f->e))
		rc = err_wrap(f->e, "option 'dequantize': '%.120s'", SHOWN(s));
	return rc;
}

/* What the state says, and the number of elements of the weight. */
static int take_state(const struct deq_finder *f, const struct catalog_tensor *s, struct jval state,
		      struct dequant_flat *q, uint64_t *ret_n)
{
	double offset = 0;
	size_t n_dims;

	if (!jval_u64s(jval_get(state, "shape"), q->shape, CKPT_MAX_DIMS, &n_dims) || !n_dims ||
	    !box_volume(n_dims, q->shape, ret_n))
		return bad_state(f, s, "it has no 'shape' of a weight");
	q->n_dims = (uint8_t)n_dims;
	if (!jval_u64(jval_get(state, "blocksize"), &q->block) || !q->block)
		return bad_state(f, s, "it has no 'blocksize'");
	if (!jval_get(state, "nested_blocksize").d)
		return 0;
	if (!jval_u64(jval_get(state, "nested_blocksize"), &q->nested_block) || !q->nested_block)
		return bad_state(f, s, "its 'nested_blocksize' is not a number of scales");
	if (!jval_number(jval_get(state, "nested_offset"), &offset) || !isfinite((float)offset))
		return bad_state(f, s, "its 'nested_offset' is not a number that fits a float32");
	q->offset = (float)offset;
	return 0;
}

/* Adds the input t with this ending, which must be a line of n elements of this type. */
static int add_line(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t,
		    const char *by, enum ckpt_dtype dtype, uint64_t n)
{
	int64_t at = deq_sibling(f, t, "", by);
	const struct catalog_tensor *s = at < 0 ? NULL : &f->t[at];

	if (!s)
		return deq_no_scales(f, t, "", by);
	(void)deq_add_input(f, x, s);
	return s->dtype == dtype && s->n_dims == 1 && s->shape[0] == n
		       ? 0
		       : err_set(f->e, EINVAL,
				 "option 'dequantize': '%.120s' has shape %s (%s), but by the "
				 "state "
				 "of its weight it should have %llu elements (%s)",
				 SHOWN(s), SHAPE_TEXT(s), DTYPE_TEXT(s), (unsigned long long)n,
				 dtype_info(dtype)->name);
}

static int add_weight(struct deq_finder *f, const struct catalog_tensor *t,
		      const struct catalog_tensor *s, const struct dequant_flat *q, uint64_t n)
{
	uint64_t scales = deq_blocks_in(n, q->block);
	struct deq_found *x;
	int rc;

	if (t->dtype != CKPT_DTYPE_U8 || !t->n_dims || t->shape[0] != t->bytes ||
	    t->bytes != n / 2 + n % 2)
		return err_set(f->e, EINVAL,
			       "option 'dequantize': '%.120s' has shape %s (%s), but '%.120s' says "
			       "that there are %llu codes, two in each uint8",
			       SHOWN(t), SHAPE_TEXT(t), DTYPE_TEXT(t), SHOWN(s),
			       (unsigned long long)n);
	x = deq_add(f, t, "", "", q->shape, q->n_dims);
	if (!x)
		return -ENOMEM;
	x->flat = *q;
	(void)deq_add_input(f, x, t);
	rc = add_line(f, x, t, absmax, q->nested_block ? CKPT_DTYPE_U8 : CKPT_DTYPE_F32, scales);
	if (!rc)
		rc = add_line(f, x, t, map, CKPT_DTYPE_F32, 16);
	if (!rc && q->nested_block)
		rc = add_line(f, x, t, nested, CKPT_DTYPE_F32,
			      deq_blocks_in(scales, q->nested_block));
	if (!rc && q->nested_block)
		rc = add_line(f, x, t, nested_map, CKPT_DTYPE_F32, 256);
	return rc;
}

int deq_find_bnb(struct deq_finder *f, const struct catalog_tensor *t)
{
	static const char *const states[] = { ".quant_state.bitsandbytes__nf4",
					      ".quant_state.bitsandbytes__fp4" };
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	struct dequant_flat q = { .dtype = f->dtype };
	int64_t at = -1;
	uint64_t n;
	int rc;

	for (size_t i = 0; at < 0 && i < ARRAY_LEN(states); i++)
		at = deq_sibling(f, t, "", states[i]);
	if (at < 0)
		return deq_sibling(f, t, "", absmax) < 0 ? 0 : deq_no_scales(f, t, "", states[0]);
	f->hide[at] = true;
	rc = read_state(f, &f->t[at], &d);
	if (!rc)
		rc = take_state(f, &f->t[at], jdoc_root(&d), &q, &n);
	return rc ? rc : add_weight(f, t, &f->t[at], &q, n);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of 4 and 8 bits, one after another: float8, int8, MXFP4 and NVFP4. */
#include "ckpt/computed/dequantise_parts.h"

#include "base/checked.h"
#include "base/err.h"
#include "codec/cast.h"
#include "model/box.h"

#include <errno.h>

static bool is_scales(const struct catalog_tensor *t)
{
	return cast_possible((enum ckpt_dtype)t->dtype, CKPT_DTYPE_F32) ||
	       t->dtype == CKPT_DTYPE_F8_E8M0FNU || t->dtype == CKPT_DTYPE_U8 ||
	       t->dtype == CKPT_DTYPE_F8_E4M3FN;
}

/* ---- float8 ---- */

static bool is_float8(const struct catalog_tensor *t)
{
	return t->dtype == CKPT_DTYPE_F8_E4M3FN || t->dtype == CKPT_DTYPE_F8_E5M2;
}

static const char qdata[] = ".qdata";

static const struct {
	const char *end, *scales;
} float8_names[] = {
	{ "", deq_scale_inv },		 /* DeepSeek-V3, Qwen3 */
	{ "", deq_scale },		 /* compressed-tensors, ModelOpt */
	{ ".weight", ".scale" },	 /* DeepSeek-V3.2's own files */
	{ ".weight", ".qscale_weight" }, /* Mistral */
};

/* torchao's Float8Tensor: as many scales as it has blocks, which are all of one size; or one for
 * all. */
static int find_qdata(struct deq_finder *f, const struct catalog_tensor *t)
{
	int64_t at = deq_sibling(f, t, qdata, ".scale");
	const struct catalog_tensor *s = at < 0 ? NULL : &f->t[at];
	size_t prefix = t->n_dims < 2 ? 0 : t->n_dims - 2u;
	const uint64_t *n = t->shape + prefix, *k;
	struct deq_found *x;
	bool one;
	int rc = deq_check_float8(f, t, qdata);

	if (rc)
		return rc;
	if (!s)
		return deq_no_scales(f, t, qdata, ".scale");
	one = deq_is_one(s);
	k = one ? (const uint64_t[]){ 1, 1 } : s->shape + prefix;
	if (t->n_dims < 2 || !cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) ||
	    (!one && (s->n_dims != t->n_dims || !dims_equal(prefix, s->shape, t->shape) || !k[0] ||
		      !k[1] || n[0] % k[0] || n[1] % k[1])))
		return deq_bad_scales(f, t, s, "its dimensions must divide those of the codes");
	x = deq_add(f, t, qdata, "", t->shape, t->n_dims);
	if (!x)
		return -ENOMEM;
	x->q.codes = t->dtype == CKPT_DTYPE_F8_E4M3FN ? CODES_E4M3 : CODES_E5M2;
	x->q.n_prefix = (uint8_t)prefix;
	x->q.scale_dims = one ? 0 : 2;
	x->q.rows = max_u64(n[0] / k[0], 1);
	x->q.columns = max_u64(n[1] / k[1], 1);
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	return 0;
}

int deq_find_float8(struct deq_finder *f, const struct catalog_tensor *t)
{
	size_t prefix = t->n_dims - 2u;
	const struct catalog_tensor *s;
	struct deq_found *x;
	int64_t at = -1;

	if (!is_float8(t) || deq_ends(t, deq_scale) || deq_ends(t, deq_scale_inv) ||
	    deq_ends(t, ".scale"))
		return 0;
	if (deq_ends(t, qdata))
		return find_qdata(f, t);
	for (size_t i = 0; at < 0 && i < ARRAY_LEN(float8_names); i++)
		if (!*float8_names[i].end || deq_ends(t, float8_names[i].end))
			at = deq_sibling(f, t, float8_names[i].end, float8_names[i].scales);
	if (at < 0)
		return deq_no_scales(f, t, "", deq_scale_inv);
	s = &f->t[at];
	if (t->n_dims < 2)
		return deq_bad_scales(f, t, s, "codes must have two dimensions or more");
	x = deq_add(f, t, "", "", t->shape, t->n_dims);
	if (!x)
		return -ENOMEM;
	x->q.codes = t->dtype == CKPT_DTYPE_F8_E4M3FN ? CODES_E4M3 : CODES_E5M2;
	x->q.n_prefix = (uint8_t)prefix;
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	if (!is_scales(s) ||
	    !deq_set_grid(f, &x->q, s, prefix, t->shape, t->shape[prefix], t->shape[prefix + 1]))
		return deq_bad_scales(f, t, s,
				      "that is not a scale for all, for each row or for each block "
				      "of quantization_config (128 x 128 without one)");
	return 0;
}

/* ---- codes of 8 bits that are integers ---- */

int deq_find_int8(struct deq_finder *f, const struct catalog_tensor *t)
{
	int64_t at =
		t->dtype == CKPT_DTYPE_I8 && t->n_dims == 2 ? deq_sibling(f, t, "", deq_scale) : -1;
	const struct catalog_tensor *s = at < 0 ? NULL : &f->t[at];
	struct deq_found *x;

	if (!s)
		return 0;
	if (deq_sibling(f, t, "", "_zero_point") >= 0)
		return err_set(f->e, ERR_UNSUPPORTED,
			       "option 'dequantize': '%.120s' has zero points, which are not known "
			       "for codes that are not packed",
			       SHOWN(t));
	x = deq_add(f, t, "", "", t->shape, t->n_dims);
	if (!x)
		return -ENOMEM;
	x->q.codes = CODES_INT8;
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) ||
	    !deq_set_grid(f, &x->q, s, 0, t->shape, t->shape[0], t->shape[1]))
		return deq_bad_scales(f, t, s, "that is not a scale for all or for each row");
	return 0;
}

/* ---- codes of 4 bits that are floats ---- */

static void set_e2m1(struct deq_found *x)
{
	x->q.codes = CODES_E2M1;
	x->q.bits = 4;
	x->q.per = 2;
}

/* gpt-oss: blocks [experts, rows, groups, 16]; the weight has rows last, as transformers keeps
 * it. */
int deq_find_blocks(struct deq_finder *f, const struct catalog_tensor *t)
{
	const uint64_t *n = t->shape;
	const struct catalog_tensor *s;
	struct deq_found *x;
	int64_t at;

	if (t->dtype != CKPT_DTYPE_U8 || !deq_ends(t, "_blocks") || t->n_dims != 4 || n[3] != 16)
		return 0;
	at = deq_sibling(f, t, "_blocks", "_scales");
	if (at < 0)
		return deq_no_scales(f, t, "_blocks", "_scales");
	s = &f->t[at];
	if (s->dtype != CKPT_DTYPE_U8 || s->n_dims != 3 || !dims_equal(3, s->shape, n) ||
	    n[2] > UINT64_MAX / 32)
		return deq_bad_scales(f, t, s, "there must be a uint8 for each group of 16 bytes");
	x = deq_add(f, t, "_blocks", "", (const uint64_t[]){ n[0], n[2] * 32, n[1] }, 3);
	if (!x)
		return -ENOMEM;
	set_e2m1(x);
	x->mxfp4 = true;
	x->q.n_prefix = 1;
	x->q.turned = true;
	x->q.group = 32;
	x->q.all_exponents = true;
	x->q.columns = 32;
	x->q.scale_dims = 2;
	x->q.exponents = true;
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	return 0;
}

/* A number for all scales; 0: there is none. */
static int add_global(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t,
		      const char *end, const char *by, uint8_t *ret)
{
	int64_t at = deq_sibling(f, t, end, by);

	if (at < 0)
		return 0;
	if (!deq_is_one(&f->t[at]) ||
	    !cast_possible((enum ckpt_dtype)f->t[at].dtype, CKPT_DTYPE_F32))
		return deq_bad_scales(f, t, &f->t[at], "that must be one number");
	*ret = deq_add_input(f, x, &f->t[at]);
	return 0;
}

/* NVFP4 and MXFP4 of compressed-tensors (NAME_packed) and ModelOpt (NAME): two codes in a byte. */
int deq_find_fp4(struct deq_finder *f, const struct catalog_tensor *t)
{
	const char *end = deq_ends(t, "_packed") ? "_packed" : "";
	const struct catalog_tensor *s;
	struct deq_found *x;
	int64_t at = t->dtype == CKPT_DTYPE_U8 && t->n_dims == 2 && !deq_ends(t, deq_scale)
			     ? deq_sibling(f, t, end, deq_scale)
			     : -1;
	int rc;

	if (at < 0)
		return *end && t->dtype == CKPT_DTYPE_U8 ? deq_no_scales(f, t, end, deq_scale) : 0;
	s = &f->t[at];
	if (t->shape[1] > UINT64_MAX / 2)
		return 0;
	x = deq_add(f, t, end, "", (const uint64_t[]){ t->shape[0], t->shape[1] * 2 }, 2);
	if (!x)
		return -ENOMEM;
	set_e2m1(x);
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	x->q.columns = s->dtype == CKPT_DTYPE_F8_E4M3FN ? 16 : 32;
	x->q.scale_dims = 2;
	x->q.exponents = s->dtype != CKPT_DTYPE_F8_E4M3FN;
	if ((s->dtype != CKPT_DTYPE_F8_E4M3FN && s->dtype != CKPT_DTYPE_U8 &&
	     s->dtype != CKPT_DTYPE_F8_E8M0FNU) ||
	    s->n_dims != 2 || s->shape[0] != t->shape[0] ||
	    s->shape[1] != deq_blocks_in(2 * t->shape[1], x->q.columns))
		return deq_bad_scales(
			f, t, s, "there must be a float8 for 16 codes of a row, or a uint8 for 32");
	rc = add_global(f, x, t, end, "_global_scale", &x->q.over);
	return rc ? rc : add_global(f, x, t, end, "_scale_2", &x->q.times);
}

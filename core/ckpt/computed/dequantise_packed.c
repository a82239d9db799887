/* SPDX-License-Identifier: Apache-2.0 */
/* Integers packed into int32: compressed-tensors, AWQ and GPTQ. */
#include "ckpt/computed/dequantise_parts.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "codec/cast.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_GROUPS ((uint64_t)1 << 20) /* that g_idx may name */

static int unknown_bits(const struct deq_finder *f, const struct catalog_tensor *t)
{
	return err_set(f->e, ERR_UNSUPPORTED,
		       "option 'dequantize': the codes of '%.120s' do not have 4 or 8 bits, "
		       "according to quantization_config",
		       SHOWN(t));
}

/* The size of groups of n codes with this many scales: the configuration's, if it fits; 0: none
 * fits. */
static uint64_t group_of(const struct deq_finder *f, uint64_t n, uint64_t scales)
{
	if (f->config.group_size && deq_blocks_in(n, f->config.group_size) == scales)
		return f->config.group_size;
	return scales && n % scales == 0 ? n / scales : 0;
}

/* The number of columns: compressed-tensors stores the shape, since rows are padded. *per, 4 or 8
 * codes in a word, is what the configuration's first group has; groups may differ, so the shape
 * decides. 1: the shape is missing, and the number is that of a row with its padding. */
static int columns_of(struct deq_finder *f, const struct catalog_tensor *t, uint64_t *per,
		      uint64_t *ret)
{
	int64_t at = deq_sibling(f, t, "_packed", "_shape");
	uint64_t words = t->shape[1];
	uint8_t raw[16];
	int rc;

	*ret = words * *per;
	if (at < 0)
		return 0;
	if ((f->t[at].dtype != CKPT_DTYPE_I64 && f->t[at].dtype != CKPT_DTYPE_I32) ||
	    f->t[at].n_dims != 1 || f->t[at].shape[0] != 2)
		return deq_bad_scales(f, t, &f->t[at], "that must be two integers");
	f->hide[at] = true;
	rc = f->peek->read(f->peek->arg, (uint32_t)at, raw, (size_t)f->t[at].bytes, f->e);
	if (rc)
		return rc;
	*ret = f->t[at].dtype == CKPT_DTYPE_I64 ? load_le64(raw + 8) : load_le32(raw + 4);
	for (int i = 0; i < 2; i++, *per = 12 - *per)
		if (deq_blocks_in(*ret, *per) == words)
			return 0;
	return err_set(f->e, EINVAL,
		       "option 'dequantize': '%.120s' has shape %s, but '%.120s' says that there "
		       "are %llu columns of %llu in a word",
		       SHOWN(t), SHAPE_TEXT(t), SHOWN(&f->t[at]), (unsigned long long)*ret,
		       (unsigned long long)*per);
}

/* The groups of the n columns or rows, if they are given; compressed-tensors writes -1 for none. */
static int add_groups(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t,
		      const char *end, const char *by, uint64_t n, uint64_t n_groups)
{
	int64_t at = deq_sibling(f, t, end, by);
	const struct catalog_tensor *g = at < 0 ? NULL : &f->t[at];
	uint8_t first[4];
	int rc;

	if (!g || !n)
		return 0;
	f->hide[at] = true;
	if (g->dtype != CKPT_DTYPE_I32 || g->n_dims != 1 || g->shape[0] != n ||
	    n_groups > MAX_GROUPS)
		return deq_bad_scales(f, t, g, "there must be an int32 for each input");
	rc = f->peek->read(f->peek->arg, (uint32_t)at, first, sizeof(first), f->e);
	if (rc < 0 || (!rc && load_le32(first) == UINT32_MAX))
		return rc;
	x->q.groups = deq_add_input(f, x, g);
	x->q.n_groups = n_groups;
	return 0;
}

/* Zero points: int32, packed like codes, of a x b words. */
static int add_zeros(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t,
		     int64_t at, uint64_t a, uint64_t b)
{
	const struct catalog_tensor *z = &f->t[at];

	if (z->dtype != CKPT_DTYPE_I32 || z->n_dims != 2 || z->shape[0] != a || z->shape[1] != b)
		return deq_bad_scales(f, t, z, "the zero points must be packed like the codes");
	x->q.codes = CODES_UINT;
	x->q.zeros = deq_add_input(f, x, z);
	x->q.zeros_per = (uint8_t)x->q.per;
	return 0;
}

/* compressed-tensors: pack-quantized. */
int deq_find_packed(struct deq_finder *f, const struct catalog_tensor *t)
{
	unsigned bits = f->config.bits;
	const struct catalog_tensor *s;
	struct deq_found *x;
	uint64_t n, per;
	int64_t at;
	int rc;

	if (t->dtype != CKPT_DTYPE_I32 || t->n_dims != 2 || !deq_ends(t, "_packed"))
		return 0;
	at = deq_sibling(f, t, "_packed", deq_scale);
	if (at < 0)
		return deq_no_scales(f, t, "_packed", deq_scale);
	if (!bits)
		return unknown_bits(f, t);
	per = 32 / bits;
	s = &f->t[at];
	rc = columns_of(f, t, &per, &n);
	if (rc < 0)
		return rc;
	bits = (unsigned)(32 / per);
	x = deq_add(f, t, "_packed", "", (const uint64_t[]){ t->shape[0], n }, 2);
	if (!x)
		return -ENOMEM;
	x->q.codes = bits == 4 ? CODES_UINT4_8 : CODES_UINT8_128;
	x->q.bits = (uint8_t)bits;
	x->q.per = (uint32_t)per;
	x->q.scale_dims = 2;
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	if (rc) /* the weight is as faulty as its shape */
		(void)deq_add_input(f, x, &f->t[deq_sibling(f, t, "_packed", "_shape")]);
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) || s->n_dims != 2 ||
	    s->shape[0] != t->shape[0] || !(x->q.columns = group_of(f, n, s->shape[1])))
		return deq_bad_scales(f, t, s, "that is not a scale for each group of a row");
	at = deq_sibling(f, t, "_packed", "_zero_point");
	rc = 0;
	if (at >= 0)
		rc = add_zeros(f, x, t, at, deq_blocks_in(s->shape[0], per), s->shape[1]);
	x->q.zeros_packed_a = true;
	return rc ? rc : add_groups(f, x, t, "_packed", "_g_idx", n, s->shape[1]);
}

/*
 * The sum of the numbers of bits, of 2, 4 and 8, with which these shapes fit together. groups:
 * GPTQ's, or NULL.
 */
static unsigned widths_of(const struct catalog_tensor *t, const struct catalog_tensor *zeros,
			  const struct catalog_tensor *groups, uint64_t n, bool is_gptq)
{
	unsigned widths = 0;

	for (unsigned bits = 2; bits <= 8; bits *= 2) {
		uint64_t per = 32 / bits, words = deq_blocks_in(n, per);
		bool fits = zeros->n_dims == 2 && zeros->shape[1] == words;

		if (!is_gptq)
			fits = t->shape[1] == words;
		else if (groups && groups->n_dims == 1)
			fits &= deq_blocks_in(groups->shape[0], per) == t->shape[0];
		widths |= fits ? bits : 0;
	}
	return widths;
}

/* "2", or "2, 4 or 8" */
static const char *list_widths(unsigned widths, char out[static 16])
{
	size_t at = 0;

	for (unsigned bits = 2; bits <= 8; widths &= ~bits, bits *= 2)
		if (widths & bits)
			at += (size_t)snprintf(out + at, 16 - at, "%s%u",
					       !at			       ? ""
					       : widths & ~(bits | (bits - 1)) ? ", "
									       : " or ",
					       bits);
	return out;
}

/*
 * The number of bits, which may differ from layer to layer: shapes tell it, and the configuration
 * must name it, and decides where several fit.
 */
static int find_bits(const struct deq_finder *f, const struct catalog_tensor *t, unsigned widths,
		     unsigned *ret)
{
	unsigned named = widths & f->config.widths;

	*ret = f->config.bits;
	if (named && !(named & *ret))
		*ret = (named & (named - 1)) == 0 ? named : 0;
	if (widths && !named && f->config.widths & (4 | 8))
		return err_set(f->e, EINVAL,
			       "option 'dequantize': '%.120s' and what belongs to it have the "
			       "shapes of %s-bit codes, but %s says %s bits",
			       SHOWN(t), list_widths(widths, (char[16]){ 0 }), f->config.says,
			       list_widths(f->config.widths, (char[16]){ 0 }));
	return *ret == 4 || *ret == 8 ? 0 : unknown_bits(f, t);
}

/* AWQ: [inputs, outputs / 8], GPTQ: [inputs / 8, outputs]; scales are [groups, outputs]. */
int deq_find_qweight(struct deq_finder *f, const struct catalog_tensor *t)
{
	static const uint8_t awq[] = { 0, 4, 1, 5, 2, 6, 3, 7 };
	static const char end[] = ".qweight";
	const struct catalog_tensor *s;
	unsigned bits;
	bool is_gptq;
	struct deq_found *x;
	uint64_t per, k, n;
	int64_t at, zeros, groups;
	int rc;

	if (t->dtype != CKPT_DTYPE_I32 || t->n_dims != 2 || !deq_ends(t, end))
		return 0;
	at = deq_sibling(f, t, end, ".scales");
	zeros = deq_sibling(f, t, end, ".qzeros");
	if (at < 0 || zeros < 0)
		return deq_no_scales(f, t, end, at < 0 ? ".scales" : ".qzeros");
	s = &f->t[at];
	if (!cast_possible((enum ckpt_dtype)s->dtype, CKPT_DTYPE_F32) || s->n_dims != 2 ||
	    !s->shape[0])
		return deq_bad_scales(f, t, s, "that is not a scale for each group of inputs");
	n = s->shape[1];
	is_gptq = t->shape[1] == n;
	if (is_gptq && f->config.is_empty)
		return err_set(
			f->e, ERR_UNSUPPORTED,
			"option 'dequantize': '%.120s' holds codes of GPTQ, whose zero points "
			"are stored in two ways: name with assets= the directory of its "
			"config.json or quantize_config.json, which tells them apart",
			SHOWN(t));
	groups = is_gptq ? deq_sibling(f, t, end, ".g_idx") : -1;
	rc = find_bits(f, t,
		       widths_of(t, &f->t[zeros], groups < 0 ? NULL : &f->t[groups], n, is_gptq),
		       &bits);
	if (rc)
		return rc;
	per = 32 / bits;
	k = t->shape[0];
	if (is_gptq ? ckd_mul(&k, k, per) : t->shape[1] != deq_blocks_in(n, per) || n % per)
		return deq_bad_scales(f, t, s, "that is not a scale for each output");
	if (!is_gptq && bits != 4)
		return unknown_bits(f, t);
	x = deq_add(f, t, end, ".weight", (const uint64_t[]){ n, k }, 2);
	if (!x)
		return -ENOMEM;
	x->q.bits = (uint8_t)bits;
	x->q.per = (uint32_t)per;
	x->q.turned = true;
	x->q.packed_a = is_gptq;
	x->q.groups_of_a = true;
	x->q.scale_dims = 2;
	x->q.zero_more = is_gptq ? f->config.zero_more : 0;
	if (is_gptq && !f->config.zero_known)
		return err_set(f->e, ERR_UNSUPPORTED,
			       "option 'dequantize': quantization_config does not say in a known "
			       "way how the zero points of '%.120s' are stored",
			       SHOWN(t));
	if (!is_gptq)
		memcpy(x->q.order, awq, sizeof(awq));
	(void)deq_add_input(f, x, t);
	(void)deq_add_input(f, x, s);
	x->q.rows = group_of(f, k, s->shape[0]);
	if (!x->q.rows)
		return deq_bad_scales(f, t, s, "the groups of inputs are not of one size");
	rc = add_zeros(f, x, t, zeros, s->shape[0], deq_blocks_in(n, per));
	return rc ? rc : add_groups(f, x, t, end, ".g_idx", k, s->shape[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/dequant.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "codec/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A part of one plane: codes [a, a + na) x [b, b + nb). */
struct part {
	const struct dequant *q;
	const struct derived_in *in;
	uint64_t prefix[CKPT_MAX_DIMS];
	uint64_t a, na, b, nb;
	/* The scales that it needs: [ga, ga + nga) x [gb, gb + ngb). */
	uint64_t ga, nga, gb, ngb;
};

/* The box of an input in the part's plane; returns the number of elements. */
static uint64_t box_in_plane(const struct part *p, uint64_t a, uint64_t na, uint64_t b, uint64_t nb,
			     uint64_t *off, uint64_t *len)
{
	size_t n = p->q->n_prefix;

	for (size_t d = 0; d < n; d++) {
		off[d] = p->prefix[d];
		len[d] = 1;
	}
	off[n] = a;
	len[n] = na;
	off[n + 1] = b;
	len[n + 1] = nb;
	return na * nb;
}

/* ---- codes ---- */

static uint8_t nibble(const uint8_t *p, uint64_t i)
{
	return i & 1 ? p[i / 2] >> 4 : p[i / 2] & 15;
}

/* Reads the codes to ret, a byte each, in the order of the plane. */
static int load_codes(const struct part *p, uint8_t *ret, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	uint64_t unit = q->group ? q->group : q->per; /* codes that are read together */
	uint64_t first = (q->packed_a ? p->a : p->b) / unit;
	uint64_t end = ((q->packed_a ? p->a + p->na : p->b + p->nb) + unit - 1) / unit;
	uint64_t bytes = unit * q->bits / 8, row = (end - first) * bytes, n;
	autofree uint8_t *raw = NULL;
	bool plain = q->bits == 8 && q->per == 1 && !q->group;
	int rc;

	if (q->packed_a)
		n = box_in_plane(p, first, end - first, p->b, p->nb, off, len);
	else
		n = box_in_plane(p, p->a, p->na, first, end - first, off, len);
	if (q->group) {
		off[q->n_prefix + 2] = 0;
		len[q->n_prefix + 2] = q->group / q->per;
	}
	if (plain)
		return derived_read(p->in, DEQUANT_CODES, off, len, ret, e);
	raw = malloc(n * bytes);
	if (!raw)
		return err_nomem(e);
	rc = derived_read(p->in, DEQUANT_CODES, off, len, raw, e);
	if (rc)
		return rc;
	for (uint64_t a = 0; a < p->na; a++)
		for (uint64_t b = 0; b < p->nb; b++) {
			uint64_t at =
				q->packed_a ? p->a + a - first * unit : p->b + b - first * unit;
			const uint8_t *from = raw + a * row;

			if (q->packed_a) {
				from = raw + (at / unit * p->nb + b) * bytes;
				at %= unit;
			}
			if (q->bits == 8)
				*ret++ = from[at];
			else
				*ret++ = nibble(from, (at & ~UINT64_C(7)) | q->order[at & 7]);
		}
	return 0;
}

/* ---- scales ---- */

static void to_floats(const struct dequant *q, enum ckpt_dtype dtype, const uint8_t *from,
		      float *to, uint64_t n)
{
	float values[256];

	if (cast_possible(dtype, CKPT_DTYPE_F32)) {
		cast_run(dtype, CKPT_DTYPE_F32, from, to, n);
		return;
	}
	codes_values(q->exponents ? CODES_E8M0 : CODES_E4M3, values);
	for (int i = 0; q->all_exponents && i < 256; i++)
		values[i] = ldexpf(1, i - 128); /* the codes' values are doubled */
	for (uint64_t i = 0; i < n; i++)
		to[i] = values[from[i]];
}

static int load_one(const struct part *p, size_t input, float *ret, struct ckpt_err *e)
{
	static const uint64_t off[CKPT_MAX_DIMS];
	uint64_t len[CKPT_MAX_DIMS];
	uint8_t raw[sizeof(double)];
	int rc;

	for (size_t d = 0; d < CKPT_MAX_DIMS; d++)
		len[d] = 1;
	rc = derived_read(p->in, input, off, len, raw, e);
	if (!rc)
		cast_run(derived_dtype(p->in, input), CKPT_DTYPE_F32, raw, ret, 1);
	return rc;
}

/* The box of the scales that the part needs. */
static void scales_box(const struct part *p, uint64_t off[CKPT_MAX_DIMS + 2],
		       uint64_t len[CKPT_MAX_DIMS + 2])
{
	const struct dequant *q = p->q;

	memset(off, 0, (CKPT_MAX_DIMS + 2) * sizeof(*off));
	if (q->scale_dims == 2 && q->scales_turned) {
		(void)box_in_plane(p, p->gb, p->ngb, p->ga, p->nga, off, len);
	} else if (q->scale_dims == 2) {
		(void)box_in_plane(p, p->ga, p->nga, p->gb, p->ngb, off, len);
	} else {
		for (size_t d = 0; d < CKPT_MAX_DIMS; d++)
			len[d] = 1;
		if (q->scale_dims) {
			off[0] = p->ga;
			len[0] = p->nga;
		}
	}
}

/* Brings numbers of a turned grid, ngb x nga, into the order of the plane. */
static int turn_back(const struct part *p, float *v, struct ckpt_err *e)
{
	uint64_t n = p->nga * p->ngb;
	autofree float *from = NULL;

	if (!p->q->scales_turned || p->q->scale_dims != 2 || p->nga == 1 || p->ngb == 1)
		return 0;
	from = calloc(n, sizeof(*from));
	if (!from)
		return err_nomem(e);
	memcpy(from, v, n * sizeof(*from));
	for (uint64_t a = 0; a < p->nga; a++)
		for (uint64_t b = 0; b < p->ngb; b++)
			v[a * p->ngb + b] = from[b * p->nga + a];
	return 0;
}

/* Reads the scales of the part to ret, nga x ngb. */
static int load_scales(const struct part *p, float *ret, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	enum ckpt_dtype dtype = derived_dtype(p->in, DEQUANT_SCALES);
	uint64_t off[CKPT_MAX_DIMS + 2], len[CKPT_MAX_DIMS + 2], n = p->nga * p->ngb;
	autofree uint8_t *raw = malloc(n * sizeof(double)); /* the largest dtype of scales */
	float one;
	int rc = raw ? 0 : err_nomem(e);

	scales_box(p, off, len);
	if (!rc)
		rc = derived_read(p->in, DEQUANT_SCALES, off, len, raw, e);
	if (rc)
		return rc;
	to_floats(q, dtype, raw, ret, n);
	rc = turn_back(p, ret, e);
	if (rc)
		return rc;
	if (q->over) {
		rc = load_one(p, q->over, &one, e);
		for (uint64_t i = 0; !rc && i < n; i++)
			ret[i] /= one;
	}
	if (!rc && q->times) {
		rc = load_one(p, q->times, &one, e);
		for (uint64_t i = 0; !rc && i < n; i++)
			ret[i] *= one;
	}
	return rc;
}

/* Rounds numbers to the dtype of the result and back; rounded has room for as many. */
static void round_all(const struct dequant *q, float *v, uint64_t n, void *rounded)
{
	if (q->dtype == CKPT_DTYPE_F32)
		return;
	cast_run(CKPT_DTYPE_F32, q->dtype, v, rounded, n);
	cast_run(q->dtype, CKPT_DTYPE_F32, rounded, v, n);
}

static int64_t integer(enum ckpt_dtype dtype, const uint8_t *p)
{
	switch (dtype) {
	case CKPT_DTYPE_U8:
		return *p;
	case CKPT_DTYPE_I8:
		return (int8_t)*p;
	case CKPT_DTYPE_I16:
		return (int16_t)load_le16(p);
	case CKPT_DTYPE_I32:
		return (int32_t)load_le32(p);
	default:
		return (int64_t)load_le64(p);
	}
}

/* Integers have to be among the codes: see enum dequant_form. */
static int zeros_of_integers(const struct dequant *q, enum ckpt_dtype dtype, const uint8_t *from,
			     float *to, uint64_t n, struct ckpt_err *e)
{
	int64_t low = q->codes == CODES_UINT ? 0 : -128, high = low + 255;

	for (uint64_t i = 0; i < n; i++) {
		int64_t zero = integer(dtype, from + i * dtype_info(dtype)->size);

		if (zero < low || zero > high)
			return err_set(e, ERR_CORRUPT,
				       "a zero point is %lld, outside the codes, %d to %d",
				       (long long)zero, (int)low, (int)high);
		to[i] = (float)zero;
	}
	return 0;
}

/* The same of floats. */
static int check_whole(const struct dequant *q, const float *v, uint64_t n, struct ckpt_err *e)
{
	int low = q->codes == CODES_UINT ? 0 : -128, high = low + 255;

	for (uint64_t i = 0; i < n; i++)
		if (!(v[i] >= (float)low && v[i] <= (float)high) || rintf(v[i]) != v[i])
			return err_set(e, ERR_CORRUPT,
				       "a zero point is %.9g, and not an integer from %d to %d",
				       (double)v[i], low, high);
	return 0;
}

/* Reads zero points that are stored like the scales. */
static int load_plain_zeros(const struct part *p, float *ret, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	enum ckpt_dtype dtype = derived_dtype(p->in, q->zeros);
	uint64_t off[CKPT_MAX_DIMS + 2], len[CKPT_MAX_DIMS + 2], n = p->nga * p->ngb;
	autofree uint8_t *raw = malloc(n * sizeof(double)); /* the largest dtype of zero points */
	int rc = raw ? 0 : err_nomem(e);

	scales_box(p, off, len);
	if (!rc)
		rc = derived_read(p->in, q->zeros, off, len, raw, e);
	if (rc)
		return rc;
	if (!cast_possible(dtype, CKPT_DTYPE_F32)) {
		rc = zeros_of_integers(q, dtype, raw, ret, n, e);
	} else {
		cast_run(dtype, CKPT_DTYPE_F32, raw, ret, n);
		if (q->zeros_whole)
			rc = check_whole(q, ret, n, e);
		if (q->form == DEQUANT_ROUNDED)
			round_all(q, ret, n, raw);
	}
	return rc ? rc : turn_back(p, ret, e);
}

/* Reads the zero points of these scales. */
static int load_zeros(const struct part *p, float *ret, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], per = q->zeros_per;
	uint64_t from = q->zeros_packed_a ? p->ga : p->gb, n = q->zeros_packed_a ? p->nga : p->ngb;
	uint64_t first = from / per, count = (from + n + per - 1) / per - first;
	uint64_t bytes = per * q->bits / 8, elements;
	autofree uint8_t *raw = NULL;
	int rc;

	elements = q->zeros_packed_a ? box_in_plane(p, first, count, p->gb, p->ngb, off, len)
				     : box_in_plane(p, p->ga, p->nga, first, count, off, len);
	raw = malloc(elements * bytes);
	if (!raw)
		return err_nomem(e);
	rc = derived_read(p->in, q->zeros, off, len, raw, e);
	for (uint64_t a = 0; !rc && a < p->nga; a++)
		for (uint64_t b = 0; b < p->ngb; b++) {
			uint64_t at = from - first * per + (q->zeros_packed_a ? a : b);
			const uint8_t *row = q->zeros_packed_a
						     ? raw + (at / per * p->ngb + b) * bytes
						     : raw + a * count * bytes;
			uint8_t zero;

			if (q->zeros_packed_a)
				at %= per;
			zero = q->bits == 8 ? row[at]
					    : nibble(row, (at & ~UINT64_C(7)) | q->order[at & 7]);
			*ret++ = (float)(zero + q->zero_more);
		}
	return rc;
}

/* Sets the group of each index of the dimension that they are given for. */
static int load_groups(const struct part *p, uint32_t *ret, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	uint64_t at = q->groups_of_a ? p->a : p->b, n = q->groups_of_a ? p->na : p->nb;
	int rc = derived_read(p->in, q->groups, &at, &n, ret, e);

	for (uint64_t i = 0; !rc && i < n; i++) {
		uint32_t group = load_le32(&ret[i]);

		if (group >= q->n_groups)
			return err_set(e, ERR_CORRUPT,
				       "index %llu is of group %d, but there are %llu groups",
				       (unsigned long long)(at + i), (int)group,
				       (unsigned long long)q->n_groups);
		ret[i] = group;
	}
	return rc;
}

/* ---- weights ---- */

struct loaded {
	uint8_t *codes;
	float *scales, *zeros; /* zeros may be NULL */
	uint32_t *groups;      /* may be NULL */
	float *line;	       /* a row of the result */
	float *rounded;	       /* room for one more; NULL with DEQUANT_SCALED */
};

static void loaded_release(struct loaded *l)
{
	free(l->codes);
	free(l->scales);
	free(l->zeros);
	free(l->groups);
	free(l->line);
	free(l->rounded);
}

static int load(struct part *p, struct loaded *l, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	uint64_t n_scales;
	int rc;

	p->ga = p->a / q->rows;
	p->nga = (p->a + p->na - 1) / q->rows - p->ga + 1;
	p->gb = p->b / q->columns;
	p->ngb = (p->b + p->nb - 1) / q->columns - p->gb + 1;
	if (q->groups) {
		*(q->groups_of_a ? &p->ga : &p->gb) = 0;
		*(q->groups_of_a ? &p->nga : &p->ngb) = q->n_groups;
	}
	n_scales = p->nga * p->ngb;
	l->codes = malloc(p->na * p->nb);
	l->scales = calloc(n_scales, sizeof(float));
	l->line = calloc(q->turned ? p->na : p->nb, sizeof(float));
	if (q->zeros)
		l->zeros = calloc(n_scales, sizeof(float));
	if (q->groups)
		l->groups = calloc(q->groups_of_a ? p->na : p->nb, sizeof(*l->groups));
	if (q->form != DEQUANT_SCALED)
		l->rounded = calloc(p->nb, sizeof(float));
	if (!l->codes || !l->scales || !l->line || (q->zeros && !l->zeros) ||
	    (q->groups && !l->groups) || (q->form != DEQUANT_SCALED && !l->rounded))
		return err_nomem(e);
	rc = load_codes(p, l->codes, e);
	if (!rc)
		rc = load_scales(p, l->scales, e);
	if (!rc && q->zeros)
		rc = (q->zeros_plain ? load_plain_zeros : load_zeros)(p, l->zeros, e);
	if (!rc && q->groups)
		rc = load_groups(p, l->groups, e);
	return rc;
}

/* Indices into the scales that were loaded. */
static uint64_t group_a(const struct part *p, const struct loaded *l, uint64_t a)
{
	return p->q->groups && p->q->groups_of_a ? l->groups[a] : (p->a + a) / p->q->rows - p->ga;
}

static uint64_t group_b(const struct part *p, const struct loaded *l, uint64_t b)
{
	return p->q->groups && !p->q->groups_of_a ? l->groups[b]
						  : (p->b + b) / p->q->columns - p->gb;
}

/* Row a of the plane. Runs of one scale are the inner loop. */
static void row_of(const struct part *p, const struct loaded *l, const float *values, uint64_t a)
{
	const uint8_t *codes = l->codes + a * p->nb;
	const float *scales = l->scales + group_a(p, l, a) * p->ngb;
	const float *zeros = l->zeros ? l->zeros + group_a(p, l, a) * p->ngb : NULL;
	bool single = p->q->groups && !p->q->groups_of_a;
	bool fp8 = p->q->codes == CODES_E4M3 && !p->q->all_exponents;

	for (uint64_t b = 0, end; b < p->nb; b = end) {
		uint64_t g = group_b(p, l, b);
		float scale = scales[g], zero = zeros ? zeros[g] : 0;

		end = single ? b + 1 : min_u64((p->gb + g + 1) * p->q->columns - p->b, p->nb);
		if (zeros)
			for (uint64_t i = b; i < end; i++)
				l->line[i] = (values[codes[i]] - zero) * scale;
		else if (fp8)
			fp8_scale(codes + b, scale, l->line + b, end - b);
		else
			for (uint64_t i = b; i < end; i++)
				l->line[i] = values[codes[i]] * scale;
	}
}

/* Row a of the plane in the other forms, operation by operation. */
static void form_row(const struct part *p, const struct loaded *l, const float *values, uint64_t a)
{
	const struct dequant *q = p->q;
	const uint8_t *codes = l->codes + a * p->nb;
	const float *scales = l->scales + group_a(p, l, a) * p->ngb;
	const float *zeros = l->zeros ? l->zeros + group_a(p, l, a) * p->ngb : NULL;
	float *y = l->line;

	for (uint64_t b = 0; b < p->nb; b++)
		y[b] = values[codes[b]];
	if (q->form == DEQUANT_SHIFTED)
		for (uint64_t b = 0; b < p->nb; b++)
			y[b] -= q->mid;
	else if (q->form == DEQUANT_ROUNDED && zeros)
		for (uint64_t b = 0; b < p->nb; b++)
			y[b] -= zeros[group_b(p, l, b)];
	if (q->form != DEQUANT_ADDED)
		round_all(q, y, p->nb, l->rounded);
	for (uint64_t b = 0; b < p->nb; b++)
		y[b] *= scales[group_b(p, l, b)];
	if (q->form == DEQUANT_ROUNDED || !zeros)
		return;
	if (q->form == DEQUANT_SHIFTED)
		round_all(q, y, p->nb, l->rounded);
	for (uint64_t b = 0; b < p->nb; b++)
		y[b] += zeros[group_b(p, l, b)];
}

/* Column b of the plane. */
static void column_of(const struct part *p, const struct loaded *l, const float *values, uint64_t b)
{
	uint64_t g = group_b(p, l, b);

	for (uint64_t a = 0; a < p->na; a++) {
		uint64_t at = group_a(p, l, a) * p->ngb + g;
		float x = values[l->codes[a * p->nb + b]];

		l->line[a] = (l->zeros ? x - l->zeros[at] : x) * l->scales[at];
	}
}

static int run_part(struct part *p, uint8_t *out, struct ckpt_err *e)
{
	const struct dequant *q = p->q;
	struct loaded l CLEANUP(loaded_release) = { 0 };
	uint64_t lines = q->turned ? p->nb : p->na, n = q->turned ? p->na : p->nb;
	float values[256];
	int rc = load(p, &l, e);

	codes_values(q->codes, values);
	for (size_t i = 0; q->all_exponents && i < ARRAY_LEN(values); i++)
		values[i] *= 2;
	for (uint64_t i = 0; !rc && i < lines; i++) {
		if (q->form != DEQUANT_SCALED)
			form_row(p, &l, values, i);
		else if (q->turned)
			column_of(p, &l, values, i);
		else
			row_of(p, &l, values, i);
		cast_run(CKPT_DTYPE_F32, q->dtype, l.line, out, n);
		out += n * dtype_info(q->dtype)->size;
	}
	return rc;
}

int dequant_run(const void *how, const struct derived_in *in, const uint64_t *off,
		const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct dequant *q = how;
	size_t n = q->n_prefix, a = n + q->turned, b = n + !q->turned;
	struct part p = { .q = q, .in = in, .a = off[a], .na = len[a], .b = off[b], .nb = len[b] };
	uint64_t planes = 1, bytes = p.na * p.nb * dtype_info(q->dtype)->size;
	int rc = 0;

	for (size_t d = 0; d < n; d++)
		planes *= len[d];
	for (uint64_t i = 0; !rc && i < planes; i++) {
		uint64_t rest = i;

		for (size_t d = n; d-- > 0; rest /= len[d])
			p.prefix[d] = off[d] + rest % len[d];
		rc = run_part(&p, (uint8_t *)out + i * bytes, e);
	}
	return rc;
}

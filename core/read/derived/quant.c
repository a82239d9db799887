/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/quant.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "codec/fp8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	AT_ONCE = 1 << 18, /* elements of the weight that are read at once */
	TILE = 2048,	   /* elements, which stay in the CPU's first cache */
};

static size_t size_of(enum ckpt_dtype dtype)
{
	return dtype_info(dtype)->size;
}

enum ckpt_dtype quantise_scale_dtype(const struct quantise *q)
{
	return q->by == QUANTISE_ROWS ? q->dtype : CKPT_DTYPE_F32;
}

static uint64_t blocks_in(uint64_t n)
{
	return n / QUANTISE_BLOCK + !!(n % QUANTISE_BLOCK);
}

void quantise_scale_shape(const struct quantise *q, uint64_t ret[static 2])
{
	bool rows = q->by == QUANTISE_ROWS;

	ret[0] = rows ? q->rows : blocks_in(q->rows);
	ret[1] = rows ? 1 : blocks_in(q->columns);
}

uint8_t quantise_scale_shift(const struct quantise *q, size_t size)
{
	uint64_t each = q->by == QUANTISE_ROWS ? q->columns : QUANTISE_BLOCK * QUANTISE_BLOCK;
	uint8_t shift = 0;

	while ((size_t)1 << shift < size)
		shift++;
	for (uint64_t n = 2; n < 1 << 12 && n * each <= AT_ONCE; n *= 2)
		shift++;
	return shift;
}

/* ---- maxima ---- */

static float amax_of(enum ckpt_dtype dtype, const uint8_t *raw, uint64_t n, float most)
{
	float x[TILE];

	for (uint64_t at = 0; at < n; at += TILE) {
		size_t k = (size_t)min_u64(n - at, TILE);

		cast_run(dtype, CKPT_DTYPE_F32, raw + at * size_of(dtype), x, k);
		most = fp8_amax(most, x, k);
	}
	return most;
}

/* The maxima of n short rows, or of one row of any length. */
static int maxima_of_rows(const struct quantise *q, const struct derived_in *in, uint64_t a,
			  uint64_t n, uint8_t *raw, float *out, struct ckpt_err *e)
{
	uint64_t size = size_of(q->dtype), wide;
	int rc = 0;

	memset(out, 0, n * sizeof(*out));
	for (uint64_t b = 0; !rc && b < q->columns; b += wide) {
		const uint64_t off[] = { a, b };
		const uint64_t len[] = { n, wide = min_u64(q->columns - b, AT_ONCE) };

		rc = derived_read(in, 0, off, len, raw, e);
		for (uint64_t r = 0; !rc && r < n; r++)
			out[r] = amax_of(q->dtype, raw + r * wide * size, wide, out[r]);
	}
	return rc;
}

/* The maxima of n blocks of block row a, from b on. */
static int maxima_of_blocks(const struct quantise *q, const struct derived_in *in, uint64_t a,
			    uint64_t b, uint64_t n, uint8_t *raw, float *out, struct ckpt_err *e)
{
	const uint64_t off[] = { a * QUANTISE_BLOCK, b * QUANTISE_BLOCK };
	const uint64_t len[] = { min_u64(q->rows - off[0], QUANTISE_BLOCK),
				 min_u64(q->columns - off[1], n * QUANTISE_BLOCK) };
	uint64_t size = size_of(q->dtype);
	int rc = derived_read(in, 0, off, len, raw, e);

	for (uint64_t i = 0; !rc && i < n; i++) {
		uint64_t from = i * QUANTISE_BLOCK, wide = min_u64(len[1] - from, QUANTISE_BLOCK);

		out[i] = 0;
		for (uint64_t r = 0; r < len[0]; r++)
			out[i] = amax_of(q->dtype, raw + (r * len[1] + from) * size, wide, out[i]);
	}
	return rc;
}

int quantise_maxima_run(const void *how, const struct derived_in *in, const uint64_t *off,
			const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct quantise *q = how;
	bool rows = q->by == QUANTISE_ROWS;
	/* Scales along the dimension that is read at once. */
	uint64_t all = rows ? len[0] : len[1], most = AT_ONCE / (QUANTISE_BLOCK * QUANTISE_BLOCK);
	autofree uint8_t *raw = malloc(AT_ONCE * size_of(q->dtype));
	autofree float *maxima = NULL;
	uint8_t *to = out;
	int rc;

	if (rows)
		most = max_u64(AT_ONCE / q->columns, 1);
	maxima = calloc(most, sizeof(*maxima));
	rc = raw && maxima ? 0 : err_nomem(e);
	for (uint64_t a = 0; a < (rows ? 1 : len[0]); a++)
		for (uint64_t b = 0, n; !rc && b < all; b += n) {
			n = min_u64(all - b, most);
			rc = rows ? maxima_of_rows(q, in, off[0] + b, n, raw, maxima, e)
				  : maxima_of_blocks(q, in, off[0] + a, off[1] + b, n, raw, maxima,
						     e);
			if (!rc)
				cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F32, maxima, to, n);
			to += n * sizeof(*maxima);
		}
	return rc;
}

/* ---- scales ---- */

/* The scale of a row with this maximum. */
static float row_scale(enum ckpt_dtype dtype, float most)
{
	static const float epsilon[] = { [CKPT_DTYPE_F32] = 0x1p-23f,
					 [CKPT_DTYPE_F16] = 0x1p-10f,
					 [CKPT_DTYPE_BF16] = 0x1p-7f };
	uint8_t raw[sizeof(float)];
	float scale = most / FP8_MAX;

	cast_run(CKPT_DTYPE_F32, dtype, &scale, raw, 1);
	cast_run(dtype, CKPT_DTYPE_F32, raw, &scale, 1);
	return scale == 0 ? epsilon[dtype] : scale;
}

/* The factor for a block with this maximum; torch divides a number by a tensor like this. */
static float block_factor(float most)
{
	return most > 0 ? 1 / most * FP8_MAX : 1;
}

/* Reads the maxima of a box, which the caller frees. */
static int read_maxima(const struct derived_in *in, size_t input, const uint64_t *off,
		       const uint64_t *len, float **ret, struct ckpt_err *e)
{
	uint64_t n = len[0] * len[1];
	float *x = calloc(n, sizeof(*x));
	int rc = x ? derived_read(in, input, off, len, x, e) : err_nomem(e);

	for (uint64_t i = 0; !rc && i < n; i++) {
		uint32_t bits = load_le32(&x[i]);

		memcpy(&x[i], &bits, sizeof(bits));
	}
	*ret = x;
	return rc;
}

int quantise_scales_run(const void *how, const struct derived_in *in, const uint64_t *off,
			const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct quantise *q = how;
	autofree float *x = NULL;
	int rc = read_maxima(in, 0, off, len, &x, e);

	for (uint64_t i = 0; !rc && i < len[0] * len[1]; i++)
		x[i] = q->by == QUANTISE_ROWS ? row_scale(q->dtype, x[i]) : 1 / block_factor(x[i]);
	if (!rc)
		cast_run(CKPT_DTYPE_F32, quantise_scale_dtype(q), x, out, len[0] * len[1]);
	return rc;
}

/* ---- codes ---- */

/* Writes the codes of a part of a row that has one maximum. */
static void put_codes(const struct quantise *q, const uint8_t *raw, float most, uint8_t *codes,
		      uint64_t n)
{
	float scale = q->by == QUANTISE_ROWS ? row_scale(q->dtype, most) : block_factor(most);
	float x[TILE];

	for (uint64_t at = 0; at < n; at += TILE) {
		size_t k = (size_t)min_u64(n - at, TILE);

		cast_run(q->dtype, CKPT_DTYPE_F32, raw + at * size_of(q->dtype), x, k);
		if (q->by == QUANTISE_ROWS)
			fp8_divide(q->dtype, x, scale, codes + at, k);
		else
			fp8_multiply(x, scale, codes + at, k);
	}
}

int quantise_codes_run(const void *how, const struct derived_in *in, const uint64_t *off,
		       const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct quantise *q = how;
	const uint64_t rows = q->by == QUANTISE_ROWS ? 1 : QUANTISE_BLOCK;
	const uint64_t columns = q->by == QUANTISE_ROWS ? q->columns : QUANTISE_BLOCK;
	const uint64_t at[] = { off[0] / rows, off[1] / columns };
	const uint64_t n[] = { (off[0] + len[0] - 1) / rows - at[0] + 1,
			       (off[1] + len[1] - 1) / columns - at[1] + 1 };
	uint64_t size = size_of(q->dtype);
	autofree uint8_t *raw = malloc(len[0] * len[1] * size);
	autofree float *maxima = NULL;
	uint8_t *to = out;
	int rc = raw ? read_maxima(in, 1, at, n, &maxima, e) : err_nomem(e);

	if (!rc)
		rc = derived_read(in, 0, off, len, raw, e);
	for (uint64_t r = 0; !rc && r < len[0]; r++, to += len[1]) {
		const float *line = maxima + ((off[0] + r) / rows - at[0]) * n[1];

		for (uint64_t c = 0, end; c < len[1]; c = end) {
			uint64_t g = (off[1] + c) / columns - at[1];

			end = min_u64((at[1] + g + 1) * columns - off[1], len[1]);
			put_codes(q, raw + (r * len[1] + c) * size, line[g], to + c, end - c);
		}
	}
	return rc;
}

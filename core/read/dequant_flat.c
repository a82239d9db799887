/* SPDX-License-Identifier: Apache-2.0 */
#include "read/dequant_flat.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"

#include <stdlib.h>

enum { MAP = 16, NESTED_MAP = 256 };

/* Reads elements [first, first + n) of an input that has one dimension, or others of size 1. */
static int read_line(const struct derived_in *in, size_t input, uint64_t first, uint64_t n,
		     void *to, struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS] = { first }, len[CKPT_MAX_DIMS];

	for (size_t d = 0; d < CKPT_MAX_DIMS; d++)
		len[d] = 1;
	len[0] = n;
	return derived_read(in, input, off, len, to, e);
}

/* Sets the scales of blocks [first, first + n). */
static int load_absmax(const struct dequant_flat *q, const struct derived_in *in, uint64_t first,
		       uint64_t n, float *ret, struct ckpt_err *e)
{
	float map[NESTED_MAP];
	autofree uint8_t *codes = NULL;
	autofree float *nested = NULL;
	uint64_t from, count;
	int rc;

	if (!q->nested_block)
		return read_line(in, FLAT_ABSMAX, first, n, ret, e);
	from = first / q->nested_block;
	count = (first + n - 1) / q->nested_block - from + 1;
	codes = malloc(n);
	nested = calloc(count, sizeof(*nested));
	if (!codes || !nested)
		return err_nomem(e);
	rc = read_line(in, FLAT_NESTED_MAP, 0, NESTED_MAP, map, e);
	if (!rc)
		rc = read_line(in, FLAT_ABSMAX, first, n, codes, e);
	if (!rc)
		rc = read_line(in, FLAT_NESTED_ABSMAX, from, count, nested, e);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < n; i++) {
		float product = map[codes[i]] * nested[(first + i) / q->nested_block - from];

		ret[i] = product + q->offset;
	}
	return 0;
}

/* Elements [first, first + n) of the flattened weight. */
static int run(const struct dequant_flat *q, const struct derived_in *in, uint64_t first,
	       uint64_t n, void *out, struct ckpt_err *e)
{
	uint64_t block = first / q->block, byte = first / 2;
	uint64_t n_blocks = (first + n - 1) / q->block - block + 1;
	uint64_t bytes = (first + n + 1) / 2 - byte;
	autofree uint8_t *codes = malloc(bytes);
	autofree float *absmax = calloc(n_blocks, sizeof(*absmax));
	autofree float *y = calloc(n, sizeof(*y));
	float map[MAP];
	int rc = codes && absmax && y ? 0 : err_nomem(e);

	if (!rc)
		rc = read_line(in, FLAT_MAP, 0, MAP, map, e);
	if (!rc)
		rc = read_line(in, FLAT_CODES, byte, bytes, codes, e);
	if (!rc)
		rc = load_absmax(q, in, block, n_blocks, absmax, e);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = first + i;
		uint8_t two = codes[at / 2 - byte];

		y[i] = map[at & 1 ? two & 15 : two >> 4] * absmax[at / q->block - block];
	}
	cast_run(CKPT_DTYPE_F32, q->dtype, y, out, n);
	return 0;
}

/* Boxes are parts of whole rows (derived.h), so their elements are neighbours. */
int dequant_flat_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct dequant_flat *q = how;
	uint64_t first = 0, n = 1;

	for (size_t d = 0; d < q->n_dims; d++) {
		first = first * q->shape[d] + off[d];
		n *= len[d];
	}
	return run(q, in, first, n, out, e);
}

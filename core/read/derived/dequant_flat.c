/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/dequant_flat.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "codec/codes.h"

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

/* The box that the elements [first, first + n) of the flattened weight are. */
struct range {
	uint64_t first, n;
	const uint64_t *off, *len;
};

/* Sets the codes of the range, one in a byte; ret has a byte more. */
static int load_codes(const struct dequant_flat *q, const struct derived_in *in,
		      const struct range *r, uint8_t *ret, struct ckpt_err *e)
{
	uint64_t byte = r->first / 2, bytes = (r->first + r->n + 1) / 2 - byte;
	uint8_t *two = ret + r->n + 1 - bytes; /* nothing is overwritten that is still needed */
	int rc;

	if (q->codes != FLAT_NIBBLES)
		return derived_read(in, FLAT_CODES, r->off, r->len, ret, e);
	rc = read_line(in, FLAT_CODES, byte, bytes, two, e);
	for (uint64_t i = 0; !rc && i < r->n; i++) {
		uint8_t x = two[(r->first + i) / 2 - byte];

		ret[i] = (r->first + i) & 1 ? x & 15 : x >> 4;
	}
	return rc;
}

static int run(const struct dequant_flat *q, const struct derived_in *in, const struct range *r,
	       void *out, struct ckpt_err *e)
{
	uint64_t block = r->first / q->block;
	uint64_t n_blocks = (r->first + r->n - 1) / q->block - block + 1;
	autofree uint8_t *codes = malloc(r->n + 1);
	autofree float *absmax = calloc(n_blocks, sizeof(*absmax));
	autofree float *y = calloc(r->n, sizeof(*y));
	float map[256];
	int rc = codes && absmax && y ? 0 : err_nomem(e);

	if (q->codes == FLAT_FLOAT8)
		codes_values(CODES_E4M3, map);
	else if (!rc)
		rc = read_line(in, FLAT_MAP, 0, q->codes == FLAT_BYTES ? 256 : MAP, map, e);
	if (!rc)
		rc = load_codes(q, in, r, codes, e);
	if (!rc)
		rc = load_absmax(q, in, block, n_blocks, absmax, e);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < r->n; i++)
		y[i] = map[codes[i]] * absmax[(r->first + i) / q->block - block];
	cast_run(CKPT_DTYPE_F32, q->dtype, y, out, r->n);
	return 0;
}

/* Boxes are parts of whole rows (derived.h), so their elements are neighbours. */
int dequant_flat_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct dequant_flat *q = how;
	struct range r = { .n = 1, .off = off, .len = len };

	for (size_t d = 0; d < q->n_dims; d++) {
		r.first = r.first * q->shape[d] + off[d];
		r.n *= len[d];
	}
	return run(q, in, &r, out, e);
}

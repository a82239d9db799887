/* SPDX-License-Identifier: Apache-2.0 */
#include "read/weighted_sum.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/blend.h"
#include "codec/cast.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 2048 }; /* elements, which stay in the CPU's first cache */

static size_t size_of(enum ckpt_dtype dtype)
{
	return dtype_info(dtype)->size;
}

static void add_f32(float *acc, enum ckpt_dtype from, const uint8_t *raw, double weight, uint64_t n)
{
	float x[TILE];

	for (uint64_t at = 0; at < n; at += TILE) {
		size_t k = (size_t)min_u64(n - at, TILE);

		cast_run(from, CKPT_DTYPE_F32, raw + at * size_of(from), x, k);
		blend_add(acc + at, x, (float)weight, k);
	}
}

static void add_f64(double *acc, enum ckpt_dtype from, const uint8_t *raw, double weight,
		    uint64_t n)
{
	double x[TILE];
	float narrow[TILE];

	for (uint64_t at = 0; at < n; at += TILE) {
		size_t k = (size_t)min_u64(n - at, TILE);

		if (from == CKPT_DTYPE_F64) {
			memcpy(x, raw + at * sizeof(*x), k * sizeof(*x));
		} else {
			cast_run(from, CKPT_DTYPE_F32, raw + at * size_of(from), narrow, k);
			for (size_t i = 0; i < k; i++)
				x[i] = (double)narrow[i];
		}
		blend_add_f64(acc + at, x, weight, k);
	}
}

int weighted_sum_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct weighted_sum *a = how;
	bool wide = a->dtype == CKPT_DTYPE_F64;
	autofree uint8_t *raw = NULL, *acc = NULL;
	uint64_t n = 1;
	int rc = 0;

	for (size_t d = 0; d < a->n_dims; d++)
		n *= len[d];
	raw = malloc(n * sizeof(double)); /* the largest type of an input */
	acc = calloc(n, wide ? sizeof(double) : sizeof(float));
	if (!raw || !acc)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < a->n; i++) {
		enum ckpt_dtype from = derived_dtype(in, i);

		rc = derived_read(in, i, off, len, raw, e);
		if (rc)
			break;
		if (wide)
			add_f64((double *)(void *)acc, from, raw, a->weights[i], n);
		else
			add_f32((float *)(void *)acc, from, raw, a->weights[i], n);
	}
	if (rc)
		return rc;
	if (wide)
		memcpy(out, acc, n * sizeof(double));
	else
		cast_run(CKPT_DTYPE_F32, a->dtype, acc, out, n);
	return 0;
}

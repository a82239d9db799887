/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/weighted_sum.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/blend.h"
#include "codec/cast.h"

#include <stdlib.h>
#include <string.h>

enum {
	TILE = 2048, /* elements whose sums stay in the CPU's first cache */
	SOME = 4,    /* inputs that are in memory at once */
};

/* Inputs that are added together, one tile after the other. */
struct adding {
	const struct weighted_sum *a;
	size_t first, n;
	enum ckpt_dtype from[SOME];
	uint8_t *raw[SOME];
};

static bool is_wide(const struct weighted_sum *a)
{
	return a->dtype == CKPT_DTYPE_F64;
}

/* Adds elements [at, at + n). */
static void add_tile(const struct adding *x, uint64_t at, size_t n, void *acc)
{
	for (size_t i = 0; i < x->n; i++) {
		const uint8_t *raw = x->raw[i] + at * dtype_info(x->from[i])->size;
		double weight = x->a->weights[x->first + i];

		if (is_wide(x->a))
			blend_add_f64(acc, x->from[i], raw, weight, n);
		else
			blend_add(acc, x->from[i], raw, (float)weight, n);
	}
}

static void round_tile(const struct weighted_sum *a, const void *acc, size_t n, void *out)
{
	if (is_wide(a))
		memcpy(out, acc, n * sizeof(double));
	else
		cast_run(CKPT_DTYPE_F32, a->dtype, acc, out, n);
}

/* Adds the inputs of x to n elements of the sum: `carried`, or if there are no others NULL. */
static void add(const struct adding *x, uint64_t n, uint8_t *carried, uint8_t *out)
{
	size_t unit = is_wide(x->a) ? sizeof(double) : sizeof(float), k;
	double tile[TILE];

	for (uint64_t at = 0; at < n; at += k) {
		void *acc = &tile;

		if (carried)
			acc = carried + at * unit;
		k = (size_t)min_u64(n - at, TILE);
		if (!x->first)
			memset(acc, 0, k * unit);
		add_tile(x, at, k, acc);
		if (x->first + x->n == x->a->n)
			round_tile(x->a, acc, k, out + at * dtype_info(x->a->dtype)->size);
	}
}

static int read_some(struct adding *x, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, struct ckpt_err *e)
{
	int rc = 0;

	x->n = (size_t)min_u64(x->a->n - x->first, SOME);
	for (size_t i = 0; !rc && i < x->n; i++) {
		x->from[i] = derived_dtype(in, x->first + i);
		rc = derived_read(in, x->first + i, off, len, x->raw[i], e);
	}
	return rc;
}

int weighted_sum_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct weighted_sum *a = how;
	struct adding x = { .a = a };
	uint64_t n = 1, widest = 1;
	autofree uint8_t *raw = NULL, *carried = NULL;
	int rc = 0;

	for (size_t d = 0; d < a->n_dims; d++)
		n *= len[d];
	for (size_t i = 0; i < a->n; i++)
		widest = max_u64(widest, dtype_info(derived_dtype(in, i))->size);
	raw = malloc(min_u64(a->n, SOME) * n * widest);
	if (a->n > SOME)
		carried = malloc(n * sizeof(double));
	if (!raw || (a->n > SOME && !carried))
		return err_nomem(e);
	for (size_t i = 0; i < SOME; i++)
		x.raw[i] = raw + i * n * widest;
	for (; !rc && x.first < a->n; x.first += x.n) {
		rc = read_some(&x, in, off, len, e);
		if (!rc)
			add(&x, n, carried, out);
	}
	return rc;
}

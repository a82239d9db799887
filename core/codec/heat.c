/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/heat.h"

#include "base/checked.h"

#include <float.h>
#include <math.h>

/* ---- the grid ---- */

/* As few parts as there are with this size: parts of one size look alike. */
static struct heat_axis axis_of(uint64_t n, unsigned side)
{
	uint64_t size = (n - 1) / side + 1;

	return (struct heat_axis){ n, (n - 1) / size + 1 };
}

/* The first n % parts parts are one element longer than the others. */
static uint64_t part_of(const struct heat_axis *x, uint64_t i)
{
	uint64_t size = x->n / x->parts, longer = x->n % x->parts;

	return i < longer * (size + 1) ? i / (size + 1) : (i - longer) / size;
}

static uint64_t end_of(const struct heat_axis *x, uint64_t part)
{
	return (part + 1) * (x->n / x->parts) + min_u64(part + 1, x->n % x->parts);
}

bool heat_init(struct heat *h, const uint64_t *shape, size_t n_dims, unsigned side)
{
	uint64_t rows = 1, columns = n_dims ? shape[n_dims - 1] : 1, all;

	for (size_t d = 0; d + 1 < n_dims; d++)
		if (ckd_mul(&rows, rows, shape[d]))
			return false;
	if (ckd_mul(&all, rows, columns) || !all)
		return false;
	h->rows = axis_of(rows, side);
	h->columns = axis_of(columns, side);
	return true;
}

size_t heat_cells(const struct heat *h)
{
	return (size_t)(h->rows.parts * h->columns.parts);
}

/* ---- changes ---- */

static float to_float(double v)
{
	float x = (float)fmin(fmax(v, -(double)FLT_MAX), (double)FLT_MAX);

	return x == 0 && v != 0 ? copysignf(FLT_TRUE_MIN, (float)v) : x;
}

/* Of two changes, the larger one; of v and -v, v. */
static float larger(float a, float b)
{
	if (isnan(a) || isnan(b))
		return NAN;
	return fabsf(a) > fabsf(b) || (fabsf(a) == fabsf(b) && a > b) ? a : b;
}

/* Has one of these elements changed that is not finite? */
static bool any_lost(const double *a, const double *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(isfinite(a[i]) && isfinite(b[i])) && !(isnan(a[i]) && isnan(b[i])) &&
		    a[i] != b[i])
			return true;
	return false;
}

/* The largest change of elements that are in one cell. */
static float change_of(const double *a, const double *b, size_t n)
{
	double low = 0, high = 0;
	bool finite = true;

	for (size_t i = 0; i < n; i++) {
		double x = b[i] - a[i];

		low = x < low ? x : low;
		high = x > high ? x : high;
		finite &= fabs(x) <= DBL_MAX;
	}
	if (!finite && any_lost(a, b, n))
		return NAN;
	/* Compared as floats, so that it does not matter how elements are cut into blocks. */
	return larger(to_float(high), to_float(low));
}

void heat_add(const struct heat *h, float *cells, uint64_t at, const double *a, const double *b,
	      size_t n)
{
	uint64_t row = at / h->columns.n, column = at % h->columns.n;
	uint64_t part = part_of(&h->columns, column), row_part = part_of(&h->rows, row);

	while (n) {
		uint64_t end = end_of(&h->columns, part);
		size_t run = (size_t)min_u64(n, end - column);
		float *cell = &cells[row_part * h->columns.parts + part];

		*cell = larger(*cell, change_of(a, b, run));
		a += run;
		b += run;
		n -= run;
		column += run;
		part += column == end;
		if (column < h->columns.n)
			continue;
		column = part = 0;
		row_part += ++row == end_of(&h->rows, row_part);
	}
}

void heat_merge(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = larger(to[i], from[i]);
}

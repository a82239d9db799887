/* SPDX-License-Identifier: Apache-2.0 */
#include "page/heats.h"

#include "page/page.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool before(const struct heats_entry *a, const struct heats_entry *b)
{
	return a->nan != b->nan ? a->nan : a->relative > b->relative;
}

static void encode(struct heats_entry *x, const struct ckpt_diff_heat *h)
{
	size_t n = h->rows * h->columns;

	x->rows = (unsigned)h->rows;
	x->columns = (unsigned)h->columns;
	x->largest = 0;
	for (size_t i = 0; i < n; i++)
		if (fabsf(h->cells[i]) > x->largest)
			x->largest = fabsf(h->cells[i]);
	for (size_t i = 0; i < n; i++) {
		double share = x->largest > 0 ? (double)fabsf(h->cells[i]) / (double)x->largest : 0;
		int code = INT8_MIN;

		if (!isnan(h->cells[i])) {
			code = (int)ceil(127 * sqrt(share));
			code += !code && h->cells[i] != 0; /* what changed is never 0 */
		}
		x->codes[i] = (int8_t)(h->cells[i] < 0 ? -code : code);
	}
}

int heats_add(struct heats *h, uint64_t row, bool optimizer, const struct ckpt_diff_values *v)
{
	struct heats_list *l = &h->lists[optimizer];
	size_t max = optimizer ? HEATS_OPTIMIZER : HEATS_OTHER, at;
	struct heats_entry x = { .row = row,
				 .nan = v->nan_b > v->nan_a,
				 .relative = v->l2 > 0 ? v->l2 / v->norm_a : 0 };

	if (isnan(x.relative)) /* both norms are too large for a double */
		x.relative = (double)INFINITY;
	if (!v->heat || v->heat->rows > HEATS_SIDE || v->heat->columns > HEATS_SIDE)
		return 0;
	if (!l->entries)
		l->entries = calloc(max, sizeof(*l->entries));
	if (!l->entries)
		return -ENOMEM;
	for (at = l->n; at && before(&x, &l->entries[at - 1]); at--)
		;
	if (at == max)
		return 0;
	l->n += l->n < max;
	memmove(&l->entries[at + 1], &l->entries[at], (l->n - at - 1) * sizeof(x));
	encode(&x, v->heat);
	l->entries[at] = x;
	return 0;
}

void heats_write(const struct heats *h, struct buf *b)
{
	page_add_uint(b, h->lists[0].n + h->lists[1].n);
	for (size_t k = 0; k < 2; k++)
		for (size_t i = 0; i < h->lists[k].n; i++) {
			const struct heats_entry *x = &h->lists[k].entries[i];

			page_add_uint(b, x->row);
			page_add_uint(b, x->rows);
			page_add_uint(b, x->columns);
			buf_add(b, &x->largest, sizeof(x->largest));
			buf_add(b, x->codes, (size_t)x->rows * x->columns);
		}
}

void heats_release(struct heats *h)
{
	free(h->lists[0].entries);
	free(h->lists[1].entries);
}

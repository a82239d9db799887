/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/info_model.h"

#include "cmd/cmd.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DTYPES = 32 };

/* ---- parameters and dtypes ---- */

struct dtype_sum {
	const char *name; /* a literal of a table that is shorter than MAX_DTYPES */
	uint64_t elements;
};

static int by_elements(const void *ap, const void *bp)
{
	const struct dtype_sum *a = ap, *b = bp;

	if (a->elements != b->elements)
		return a->elements < b->elements ? 1 : -1;
	return strcmp(a->name, b->name);
}

/* Sums over the model's tensors, or over all. */
static size_t sum_dtypes(const struct ckpt *c, bool model, uint64_t n, struct dtype_sum *of)
{
	size_t n_of = 0;

	for (uint64_t i = 0; i < n; i++) {
		struct ckpt_tensor t;
		size_t k = 0;

		if (model)
			ckpt_model_tensor(c, i, &t);
		else
			ckpt_tensor(c, i, &t);
		while (k < n_of && strcmp(of[k].name, t.dtype) != 0)
			k++;
		if (k == MAX_DTYPES)
			continue;
		if (k == n_of)
			of[n_of++] = (struct dtype_sum){ .name = t.dtype };
		if (ckd_add(&of[k].elements, of[k].elements, t.element ? t.bytes / t.element : 0))
			of[k].elements = UINT64_MAX;
	}
	qsort(of, n_of, sizeof(*of), by_elements);
	return n_of;
}

void info_add_dtypes(struct buf *b, const struct ckpt *c, const struct ckpt_totals *t)
{
	struct dtype_sum of[MAX_DTYPES] = { 0 };
	bool model = t->has_model;
	size_t n = sum_dtypes(c, model, model ? t->model_tensors : t->tensors, of);
	char text[16];

	for (size_t k = 0; k < n; k++) {
		buf_printf(b, "%s%s", k ? ", " : "\ndtypes      ", of[k].name);
		if (n > 1)
			buf_printf(b, " %s", text_count(of[k].elements, text));
	}
}

void info_add_family(struct buf *b, struct ckpt *c)
{
	char family[CKPT_FAMILY_MAX];

	if (ckpt_family(c, family, sizeof(family)))
		buf_printf(b, "\nfamily      %s, as config.json says", family);
}

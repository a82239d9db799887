/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/info_model.h"

#include "cmd/cmd.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20, MAX_DTYPES = 32 };

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

/* ---- family ---- */

static void close_file(struct ckpt_file **f)
{
	if (*f)
		ckpt_file_close(*f);
}

/* Reads config.json as hf/ shows it. False: there is none, or it cannot be read. */
static bool read_config(struct ckpt *c, char **text, struct jdoc *d)
{
	struct ckpt_file *f CLEANUP(close_file) = NULL;
	struct ckpt_err ignored = { 0 };
	uint64_t size;

	if (ckpt_file_open_path(c, "hf/config.json", &f, &ignored))
		return false;
	size = ckpt_file_size(f);
	if (size > MAX_CONFIG)
		return false;
	*text = malloc(size + 1); /* and a byte for jdoc_parse */
	return *text && ckpt_file_read(f, *text, size, 0, &ignored) == (int64_t)size &&
	       !jdoc_parse(d, *text, size, JDOC_BIG, &ignored);
}

void info_family(struct buf *b, struct ckpt *c)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	autofree char *text = NULL;
	const char *type, *class;

	if (!read_config(c, &text, &d))
		return;
	type = jval_str(jval_get(jdoc_root(&d), "model_type"));
	class = jval_str(jval_at(jval_get(jdoc_root(&d), "architectures"), 0));
	if (!type && !class)
		return;
	cmd_add_fqn(b, type ? type : class, strlen(type ? type : class));
	if (type && class) {
		buf_str(b, " (");
		cmd_add_fqn(b, class, strlen(class));
		buf_str(b, ")");
	}
}

void info_add_family(struct buf *b, struct ckpt *c)
{
	size_t start = b->len;

	buf_str(b, "\nfamily      ");
	info_family(b, c);
	if (b->len == start + strlen("\nfamily      "))
		b->len = start;
	else
		buf_str(b, ", as config.json says");
}

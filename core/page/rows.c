/* SPDX-License-Identifier: Apache-2.0 */
#include "page/rows.h"

#include "page/page.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Maximum number of reasons on a page; `ckptfs check` shows all. */
enum { MAX_FAULTS = 2000 };

int64_t rows_dtype(struct rows *r, const struct ckpt_tensor *x)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s:%zu", x->dtype, x->element);
	return dict_number(&r->dtypes, name, strlen(name));
}

int64_t rows_shape(struct rows *r, const struct ckpt_tensor *x)
{
	struct buf b = BUF_INIT(1 << 16);
	int64_t number;

	page_add_uint(&b, x->n_dims);
	for (size_t d = 0; d < x->n_dims; d++)
		page_add_uint(&b, x->shape[d]);
	page_add_uint(&b, x->n_logical);
	for (size_t d = 0; d < x->n_logical; d++)
		page_add_uint(&b, x->logical[d]);
	number = b.err ? -ENOMEM : dict_number(&r->shapes, b.data, b.len);
	buf_release(&b);
	return number;
}

/* 0: no fault; 1: a fault that the page does not list. */
static int64_t fault_number(struct rows *r, const char *fault)
{
	int64_t number = 0;

	if (!fault)
		return 0;
	if (r->faults.n >= MAX_FAULTS)
		return 1;
	number = dict_number(&r->faults, fault, strlen(fault));
	return number < 0 ? number : 2 + number;
}

static int add(struct rows *r, enum row_role role, const char *name, size_t len,
	       const int64_t numbers[ROW_COLUMNS])
{
	name_column_add(&r->last, name, len);
	page_add_uint(&r->columns[ROW_ROLES], role);
	for (size_t k = ROW_DTYPES; k < ROW_COLUMNS; k++) {
		if (numbers[k] < 0)
			return -ENOMEM;
		page_add_uint(&r->columns[k], (uint64_t)numbers[k]);
	}
	return 0;
}

int rows_add_tensor(struct rows *r, enum row_role role, const struct ckpt_tensor *x,
		    const char *fault)
{
	const int64_t numbers[] = { [ROW_DTYPES] = rows_dtype(r, x),
				    [ROW_SHAPES] = rows_shape(r, x),
				    [ROW_FAULTS] = fault_number(r, fault) };

	r->last.to = &r->names;
	*(role == ROLE_MADE ? &r->made : &r->stored) += 1;
	return add(r, role, x->fqn, x->fqn_len, numbers);
}

int rows_add_object(struct rows *r, const struct ckpt_object *o, const char *fault)
{
	const int64_t numbers[ROW_COLUMNS] = { [ROW_FAULTS] = fault_number(r, fault) };

	r->last.to = &r->names;
	r->objects++;
	return add(r, ROLE_OBJECT, o->fqn, o->fqn_len, numbers);
}

static void add_buf(struct buf *to, const struct buf *from)
{
	if (from->err && !to->err)
		to->err = from->err;
	buf_add(to, from->data ? from->data : "", from->len);
}

static void add_strings(struct buf *b, const struct dict *d)
{
	page_add_uint(b, d->n);
	for (size_t i = 0; i < d->n; i++) {
		size_t len;
		const char *s = dict_string(d, i, &len);

		page_add_uint(b, len);
		buf_add(b, s, len);
	}
}

int rows_write(struct rows *r, const struct buf *model_names, struct page *p, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(p->out.max);
	int rc;

	page_add_uint(&b, r->stored);
	page_add_uint(&b, r->made);
	page_add_uint(&b, r->objects);
	add_strings(&b, &r->dtypes);
	page_add_uint(&b, r->shapes.n);
	add_buf(&b, &r->shapes.bytes);
	add_strings(&b, &r->faults);
	for (size_t k = 0; k < ROW_COLUMNS; k++)
		add_buf(&b, &r->columns[k]);
	add_buf(&b, model_names);
	rc = page_section(p, "names", &r->names, e);
	if (!rc)
		rc = page_section(p, "rows", &b, e);
	buf_release(&b);
	return rc;
}

void rows_release(struct rows *r)
{
	dict_release(&r->shapes);
	dict_release(&r->dtypes);
	dict_release(&r->faults);
	buf_release(&r->names);
	for (size_t k = 0; k < ROW_COLUMNS; k++)
		buf_release(&r->columns[k]);
}

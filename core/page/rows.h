/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows - the names, dtypes and shapes that a page lists: tensors, then objects.
 *
 *	struct rows r = ROWS_INIT(limit);
 *	rows_add_tensor(&r, ROLE_MODEL, &x, x.fault);
 *	rows_write(&r, &model_names, &page, &e);
 *
 * names.js reads what rows_write writes.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_ROWS_H
#define PAGE_ROWS_H

#include "page/dict.h"
#include "page/name_column.h"

#include <ckptfs/ckpt.h>

/* The role of a row; names.js has the same names. */
enum row_role { ROLE_MODEL, ROLE_OPTIMIZER, ROLE_OTHER, ROLE_MADE, ROLE_OBJECT };

/* Columns, each a number for every row. */
enum { ROW_ROLES, ROW_DTYPES, ROW_SHAPES, ROW_FAULTS, ROW_COLUMNS };

struct rows {
	struct dict shapes, dtypes, faults;
	struct buf names, columns[ROW_COLUMNS];
	struct name_column last;
	uint64_t stored, made, objects; /* in this order */
};

#define ROWS_INIT(limit) \
	{ \
		.shapes = DICT_INIT(limit), .dtypes = DICT_INIT(limit), \
		.faults = DICT_INIT(limit), .names = BUF_INIT(limit), .columns = { \
			BUF_INIT(limit), \
			BUF_INIT(limit), \
			BUF_INIT(limit), \
			BUF_INIT(limit) \
		} \
	}

/* The numbers of a tensor's dtype and shape, or -ENOMEM. */
int64_t rows_dtype(struct rows *r, const struct ckpt_tensor *x);
int64_t rows_shape(struct rows *r, const struct ckpt_tensor *x);

/* fault: why it cannot be read, or NULL. Names must stay valid until the next call. -ENOMEM. */
int rows_add_tensor(struct rows *r, enum row_role role, const struct ckpt_tensor *x,
		    const char *fault);
int rows_add_object(struct rows *r, const struct ckpt_object *o, const char *fault);

/*
 * model_names: for each stored tensor 0: the model has the stored name without the prefix; 1 +
 * name: this name; 2: it is not in the model.
 */
struct page;
int rows_write(struct rows *r, const struct buf *model_names, struct page *p, struct ckpt_err *e);
void rows_release(struct rows *r);

#endif

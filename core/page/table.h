/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table - the tensors and objects of a checkpoint as columns of a page.
 *
 * Rows are the stored tensors in their order, then the tensors of the model that are not a whole
 * stored tensor (a recipe makes them), then the objects. data.js reads what table_write writes.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_TABLE_H
#define PAGE_TABLE_H

#include "page/rows.h"

#include <ckptfs/ckpt_values.h>

#include <stdbool.h>

/* The statistics of a tensor that a page shows. */
struct row_values {
	bool known;
	uint64_t nan, infinite, zero, elements;
	float min, max, mean, std, norm;
	size_t hist_at, hist_len; /* its part of the histograms; 0: none */
};

struct table {
	struct ckpt *c;
	struct ckpt_totals totals;
	int64_t *model_of; /* per stored tensor, the model's tensor that is equal to it; -1: none */
	uint64_t *made;	   /* model tensors that are not a stored tensor */
	size_t n_made, cap_made;
	/* NULL unless requested: of each stored tensor, of all, and the number of tensors without
	 * any. */
	struct row_values *values;
	struct ckpt_values all_values;
	uint64_t unreadable;
	struct buf hists; /* histograms of all tensors, as they are written */
};

#define TABLE_INIT(limit) \
	{ \
		.hists = BUF_INIT(limit) \
	}

int table_read(struct table *t, struct ckpt *c, struct ckpt_err *e);
/* The role of stored tensor i, which is x. */
enum row_role table_role(const struct table *t, uint64_t i, const struct ckpt_tensor *x);
/* Reads the values of all stored tensors. */
struct ckpt_report;
int table_read_values(struct table *t, const struct ckpt_report *o, struct ckpt_err *e);
struct page;
int table_write(struct table *t, struct page *p, struct ckpt_err *e);
void table_release(struct table *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_normal.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "index/catalog_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct normal_row {
	const uint64_t *box;
	uint32_t listed; /* position in the caller's list */
	uint32_t n_dims; /* for the comparison function, which gets no other argument */
};

void normal_release(struct normal *r)
{
	free(r->boxes);
	free(r->locs);
	free(r->rows);
	free(r->starts);
	*r = (struct normal){ 0 };
}

static int by_box(const void *ap, const void *bp)
{
	const struct normal_row *a = ap, *b = bp;
	int c = box_compare_off(2 * (size_t)a->n_dims, a->box, b->box); /* offsets, then lengths */

	return c ? c : a->listed < b->listed ? -1 : a->listed > b->listed;
}

static int by_listed(const void *ap, const void *bp)
{
	const struct normal_row *a = ap, *b = bp;

	return a->listed < b->listed ? -1 : a->listed > b->listed;
}

static int reserve(struct normal *r, size_t n, size_t count, struct ckpt_err *e)
{
	size_t numbers = 2 * n * count + n + 1;

	if (count > r->cap_rows) {
		size_t cap = count + count / 2;

		free(r->rows);
		free(r->locs);
		r->rows = malloc(cap * sizeof(*r->rows));
		r->locs = malloc(cap * sizeof(*r->locs));
		r->cap_rows = r->rows && r->locs ? cap : 0;
	}
	if (numbers > r->cap_numbers) {
		size_t cap = numbers + numbers / 2;

		free(r->boxes);
		free(r->starts);
		r->boxes = malloc(cap * sizeof(*r->boxes));
		r->starts = malloc(cap * sizeof(*r->starts));
		r->cap_numbers = r->boxes && r->starts ? cap : 0;
	}
	if (count > r->cap_rows || numbers > r->cap_numbers)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	return 0;
}

/* "[0,4]" of at most eight dimensions, for messages. */
static const char *show(const uint64_t *v, size_t n, char out[static 128])
{
	size_t at = 0;

	out[at++] = '[';
	for (size_t i = 0; i < n && at < 96; i++)
		at += (size_t)snprintf(out + at, 128 - at, i ? ",%llu" : "%llu",
				       (unsigned long long)v[i]);
	(void)snprintf(out + at, 128 - at, "]");
	return out;
}

static int check_chunk(const struct tensor_chunks *t, uint32_t i, const char *fqn,
		       struct ckpt_err *e)
{
	const uint64_t *off = t->boxes + i * 2 * t->n_dims, *len = off + t->n_dims;
	const struct chunk_loc *l = &t->locs[i];
	char a[128], b[128], c[128];
	uint64_t end;

	if (!box_inside(t->n_dims, off, len, t->shape))
		return err_set(e, ERR_CORRUPT,
			       "tensor '%s': chunk at %s of size %s lies outside its shape %s", fqn,
			       show(off, t->n_dims, a), show(len, t->n_dims, b),
			       show(t->shape, t->n_dims, c));
	if (l->file != CATALOG_NO_FILE && (ckd_add(&end, l->offset, l->length) || end > INT64_MAX))
		return err_set(e, ERR_CORRUPT, "tensor '%s': item at offset %llu of length %llu",
			       fqn, (unsigned long long)l->offset, (unsigned long long)l->length);
	return 0;
}

/* Keeps chunks that have elements and data; counts those without data, and notes the first of
 * them. */
static int collect(struct normal *r, const struct tensor_chunks *t, const char *fqn,
		   uint32_t *ret_kept, uint32_t *ret_lost, uint32_t *ret_first_lost,
		   struct ckpt_err *e)
{
	uint32_t kept = 0, lost = 0;
	size_t n = t->n_dims;

	for (uint32_t i = 0; i < t->count; i++) {
		const uint64_t *box = t->boxes + i * 2 * n;
		bool empty = false;
		int rc;

		for (size_t d = 0; d < n; d++)
			empty |= !box[n + d];
		if (empty)
			continue;
		rc = check_chunk(t, i, fqn, e);
		if (rc)
			return rc;
		if (t->locs[i].file == CATALOG_NO_FILE) {
			if (!lost++)
				*ret_first_lost = i;
			continue;
		}
		r->rows[kept++] = (struct normal_row){ box, i, (uint32_t)n };
	}
	*ret_kept = kept;
	*ret_lost = lost;
	return 0;
}

static void copy_boxes(const struct normal_row *rows, uint32_t count, size_t n, uint64_t *to)
{
	for (uint32_t i = 0; i < count && n; i++)
		memcpy(to + i * 2 * n, rows[i].box, 2 * n * sizeof(*to));
}

static void judge(struct normal *r, const struct tensor_chunks *t, uint32_t lost,
		  uint32_t first_lost)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t pair[2] = { 0, 0 }, n = t->n_dims;
	uint64_t work = BOXES_MAX_WORK - r->cover_work;
	char a[128], b[128];
	enum boxes_verdict verdict =
		boxes_cover(n, t->shape, r->boxes, r->count, &work, off, len, pair);

	r->cover_work = BOXES_MAX_WORK - work;
	switch (verdict) {
	case BOXES_COVER:
		r->state = TENSOR_COMPLETE;
		return;
	case BOXES_OVERLAP:
		r->state = t->apart ? TENSOR_INCOMPLETE : TENSOR_OVERLAPPING;
		(void)snprintf(r->fault, sizeof(r->fault), "chunks at %s and %s overlap%s",
			       show(r->boxes + pair[0] * 2 * n, n, a),
			       show(r->boxes + pair[1] * 2 * n, n, b),
			       t->apart ? ": are the ranks' files from one save?"
					: "; the one listed later is read");
		return;
	case BOXES_UNKNOWN:
		r->state = TENSOR_INCOMPLETE;
		(void)snprintf(r->fault, sizeof(r->fault),
			       "its chunks are too irregular to prove that they cover it: the "
			       "tensors of a checkpoint may take %llu comparisons for that in all; "
			       "save it with chunks that form a grid",
			       (unsigned long long)BOXES_MAX_WORK);
		return;
	case BOXES_HOLE:
		break;
	}
	r->state = TENSOR_INCOMPLETE;
	if (lost) {
		const uint64_t *box = t->boxes + first_lost * 2 * n;

		(void)snprintf(r->fault, sizeof(r->fault),
			       "%u of its chunks %s listed but stored nowhere%s at %s of size %s",
			       lost, lost == 1 ? "is" : "are",
			       lost == 1 ? ": the one" : ", first the one", show(box, n, a),
			       show(box + n, n, b));
	} else {
		(void)snprintf(r->fault, sizeof(r->fault),
			       "no chunk holds the elements at %s of size %s", show(off, n, a),
			       show(len, n, b));
	}
}

int normal_make(struct normal *r, const struct tensor_chunks *t, uint64_t *ret_bytes,
		struct ckpt_err *e)
{
	uint32_t lost = 0, first_lost = 0, kept, out;
	size_t n = t->n_dims;
	uint64_t bytes;
	char fqn[160];
	bool sorted = true;
	int rc;

	(void)text_show(t->fqn, t->fqn_len, fqn, sizeof(fqn));
	if (n > CKPT_MAX_DIMS)
		return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has %zu dimensions", fqn, n);
	if (!box_volume(n, t->shape, &bytes) ||
	    ckd_mul(&bytes, bytes, dtype_info(t->dtype)->size) || bytes > INT64_MAX)
		return err_set(e, ERR_CORRUPT, "tensor '%s' is larger than 2^63 bytes", fqn);
	rc = reserve(r, n, (size_t)t->count + 1, e);
	if (!rc)
		rc = collect(r, t, fqn, &kept, &lost, &first_lost, e);
	if (rc)
		return rc;

	for (uint32_t i = 1; i < kept && sorted; i++)
		sorted = by_box(&r->rows[i - 1], &r->rows[i]) < 0;
	if (!sorted)
		qsort(r->rows, kept, sizeof(*r->rows), by_box);
	out = 0;
	for (uint32_t i = 0; i < kept; i++) /* only the first of several replicas counts */
		if (!out || box_compare_off(2 * n, r->rows[out - 1].box, r->rows[i].box))
			r->rows[out++] = r->rows[i];
	r->count = out;
	r->fault[0] = 0;
	r->state = TENSOR_COMPLETE;

	copy_boxes(r->rows, out, n, r->boxes);
	r->is_grid = boxes_grid(n, t->shape, r->boxes, out, r->grid, r->starts);
	if (!r->is_grid) {
		qsort(r->rows, out, sizeof(*r->rows), by_listed);
		copy_boxes(r->rows, out, n, r->boxes);
		judge(r, t, lost, first_lost);
	}
	if (t->fault) {
		r->state = TENSOR_INCOMPLETE;
		(void)snprintf(r->fault, sizeof(r->fault), "%s", t->fault);
	}
	for (uint32_t i = 0; i < out; i++)
		r->locs[i] = t->locs[r->rows[i].listed];
	*ret_bytes = bytes;
	return 0;
}

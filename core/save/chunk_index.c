/* SPDX-License-Identifier: Apache-2.0 */
#include "save/chunk_index.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

int chunk_outside(const struct ckpt_tensor_meta *t, size_t i, const char *fqn, size_t fqn_len,
		  struct ckpt_err *e)
{
	return err_set(
		e, ERR_CORRUPT, "key:%s has out of bounds chunk: tensor-size:%s chunk: %s at %s",
		FQN_TEXT(fqn, fqn_len), SIZE_TEXT(t->size, t->n_dims),
		SIZE_TEXT(t->chunks[i].len, t->n_dims), SIZE_TEXT(t->chunks[i].off, t->n_dims));
}

static int by_offset(const void *ap, const void *bp, void *arg)
{
	const struct ckpt_tensor_meta *t = arg;
	uint32_t a = *(const uint32_t *)ap, b = *(const uint32_t *)bp;
	int c = box_compare_off(t->n_dims, t->chunks[a].off, t->chunks[b].off);

	return c ? c : a < b ? -1 : a > b;
}

/* The non-empty chunks, sorted so that a grid is recognised. */
static int sort_chunks(const struct ckpt_tensor_meta *t, const char *fqn, size_t fqn_len,
		       uint32_t *number, uint32_t *ret_count, struct ckpt_err *e)
{
	uint32_t count = 0;

	for (size_t i = 0; i < t->n_chunks; i++) {
		uint64_t volume;

		if (!box_inside(t->n_dims, t->chunks[i].off, t->chunks[i].len, t->size) ||
		    !box_volume(t->n_dims, t->chunks[i].len, &volume))
			return chunk_outside(t, i, fqn, fqn_len, e);
		if (volume)
			number[count++] = (uint32_t)i;
	}
	qsort_r(number, count, sizeof(*number), by_offset, (void *)(uintptr_t)t);
	*ret_count = count;
	return 0;
}

/* Rows of offsets and lengths, as chunkmap_new expects. */
static uint64_t *make_boxes(const struct ckpt_tensor_meta *t, const uint32_t *number,
			    uint32_t count)
{
	size_t n = t->n_dims;
	uint64_t *boxes = calloc((size_t)count + 1, (2 * n + 1) * sizeof(*boxes));

	for (size_t i = 0; boxes && n && i < count; i++) {
		memcpy(boxes + i * 2 * n, t->chunks[number[i]].off, n * sizeof(*boxes));
		memcpy(boxes + i * 2 * n + n, t->chunks[number[i]].len, n * sizeof(*boxes));
	}
	return boxes;
}

int chunk_index_init(struct chunk_index *x, const struct ckpt_tensor_meta *t, const char *fqn,
		     size_t fqn_len, struct ckpt_err *e)
{
	autofree uint32_t *number = NULL;
	autofree uint64_t *boxes = NULL;
	uint32_t count = 0;
	int rc;

	if (t->n_chunks > INT32_MAX)
		return err_set(e, EINVAL, "'%s': more than 2^31 - 1 chunks",
			       FQN_TEXT(fqn, fqn_len));
	number = calloc(t->n_chunks + 1, sizeof(*number));
	rc = number ? sort_chunks(t, fqn, fqn_len, number, &count, e) : 0;
	if (rc)
		return rc;
	boxes = number ? make_boxes(t, number, count) : NULL;
	x->map = boxes ? chunkmap_new(t->n_dims, t->size, boxes, count) : NULL;
	if (!x->map)
		return err_set(e, ENOMEM, "'%s': %zu chunks: out of memory", FQN_TEXT(fqn, fqn_len),
			       t->n_chunks);
	x->number = steal_ptr(&number);
	return 0;
}

void chunk_index_release(struct chunk_index *x)
{
	free(x->map);
	free(x->number);
	*x = (struct chunk_index){ 0 };
}

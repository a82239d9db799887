/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors into memory that need not be in one piece. */
#include "api/ckpt.h"
#include "api/ckpt_internal.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "view/view.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW ((uint64_t)4 << 20) /* bytes of elements on their way to where they have gaps */

/* What a struct ckpt_slice says of a tensor, all of it. */
struct wanted {
	size_t n, size; /* dimensions; bytes of an element */
	uint64_t start[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS], count[CKPT_MAX_DIMS];
	int64_t stride[CKPT_MAX_DIMS];
	bool dense; /* in row-major order without gaps */
};

static void resolve_strides(const struct ckpt_slice *s, struct wanted *w)
{
	uint64_t stride = w->size;

	w->dense = true;
	for (size_t d = w->n; d-- > 0; stride *= w->count[d]) {
		w->stride[d] = s->stride ? s->stride[d] : (int64_t)stride;
		if (w->count[d] > 1 && w->stride[d] != (int64_t)stride)
			w->dense = false;
	}
}

static int resolve(const struct view_tensor *t, const struct ckpt_slice *s, struct wanted *w,
		   struct ckpt_err *e)
{
	w->n = t->n_dims;
	w->size = dtype_info(t->dtype)->size;
	for (size_t d = 0; d < w->n; d++) {
		uint64_t start = s->start ? s->start[d] : 0;
		uint64_t stop = s->stop ? s->stop[d] : t->shape[d];
		uint64_t step = s->step ? s->step[d] : 1, len = stop - start;

		if (start > stop || stop > t->shape[d] || !step)
			return err_set(e, EINVAL,
				       "tensor '%s': elements %llu to %llu in steps of %llu are "
				       "outside dimension %zu of %llu",
				       FQN_TEXT(t->fqn, t->fqn_len), (unsigned long long)start,
				       (unsigned long long)stop, (unsigned long long)step, d,
				       (unsigned long long)t->shape[d]);
		w->start[d] = start;
		w->step[d] = step;
		w->count[d] = len / step + (len % step != 0);
	}
	resolve_strides(s, w);
	return 0;
}

/* ---- from a row-major run of elements to where they belong ---- */

struct scattering {
	const struct wanted *w;
	uint8_t *to;
	const uint8_t *from;
};

#define COPY_FIXED(size) \
	case size: \
		for (uint64_t i = 0; i < n; i++) \
			memcpy(to + (int64_t)i * stride, from + i * (size), size); \
		break

static void scatter_row(const struct wanted *w, uint64_t n, uint8_t *to, const uint8_t *from)
{
	int64_t stride = w->stride[w->n - 1];

	if (stride == (int64_t)w->size) {
		memcpy(to, from, n * w->size);
		return;
	}
	switch (w->size) { /* fixed sizes become single moves */
		COPY_FIXED(1);
		COPY_FIXED(2);
		COPY_FIXED(4);
		COPY_FIXED(8);
		COPY_FIXED(16);
	default:
		for (uint64_t i = 0; i < n; i++)
			memcpy(to + (int64_t)i * stride, from + i * w->size, w->size);
	}
}

/* Dimensions d and those after it; returns the end of what has been taken. */
static const uint8_t *scatter(const struct wanted *w, size_t d, const uint64_t *len, uint8_t *to,
			      const uint8_t *from)
{
	if (d + 1 == w->n) {
		scatter_row(w, len[d], to, from);
		return from + len[d] * w->size;
	}
	for (uint64_t i = 0; i < len[d]; i++)
		from = scatter(w, d + 1, len, to + (int64_t)i * w->stride[d], from);
	return from;
}

static int scatter_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	const struct scattering *s = arg;
	uint8_t *to = s->to;

	for (size_t d = 0; d < s->w->n; d++)
		to += (int64_t)off[d] * s->w->stride[d];
	(void)scatter(s->w, 0, len, to, s->from + pos * s->w->size);
	return 0;
}

/* ---- reading ---- */

static int read_exactly(struct ckpt_file *f, void *to, uint64_t len, uint64_t off,
			struct ckpt_err *e)
{
	int64_t n = ckpt_file_read(f, to, len, off, e);

	if (n < 0)
		return (int)n;
	return (uint64_t)n == len ? 0 : err_set(e, EIO, "it became shorter");
}

static int read_windows(struct ckpt_file *f, const struct wanted *w, uint8_t *to,
			struct ckpt_err *e)
{
	uint64_t total = ckpt_file_size(f) / w->size, step = min_u64(WINDOW / w->size, total), n;
	autofree uint8_t *window = malloc(step * w->size + 1);
	struct scattering s = { w, to, window };
	int rc = 0;

	if (!window)
		return err_set(e, ENOMEM, "out of memory");
	for (uint64_t at = 0; !rc && at < total; at += n) {
		n = min_u64(step, total - at);
		rc = read_exactly(f, window, n * w->size, at * w->size, e);
		if (!rc)
			rc = box_of_range(w->n, w->count, at, n, scatter_box, &s);
	}
	return rc;
}

static int read_slice(struct ckpt *c, const struct view_tensor *t, const struct ckpt_slice *s,
		      void *to, struct ckpt_err *e)
{
	struct ckpt_file *f;
	struct wanted w;
	int rc = resolve(t, s, &w, e);

	if (!rc)
		rc = ckpt_steps_open(c, t, w.start, w.step, w.count, &f, e);
	if (rc)
		return rc;
	rc = w.dense ? read_exactly(f, to, ckpt_file_size(f), 0, e) : read_windows(f, &w, to, e);
	ckpt_file_close(f);
	return rc;
}

int ckpt_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
		    struct ckpt_err *e)
{
	struct view_tensor t;

	view_tensor(c->view, i, &t);
	return read_slice(c, &t, s, to, e);
}

int ckpt_model_slice_read(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, void *to,
			  struct ckpt_err *e)
{
	struct view_tensor t;

	view_model_tensor(c->view, i, &t);
	return read_slice(c, &t, s, to, e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors into memory that need not be in one piece. */
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "read/tensor_read.h"
#include "tree/view.h"
#include <ckptfs/ckpt.h>

/* What a struct ckpt_slice says of a tensor, all of it. */
struct wanted {
	uint64_t start[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS], count[CKPT_MAX_DIMS];
	int64_t stride[CKPT_MAX_DIMS];
};

static int resolve(const struct tensor_info *t, const struct ckpt_slice *s, struct wanted *w,
		   struct ckpt_err *e)
{
	uint64_t row = dtype_info(t->dtype)->size;

	for (size_t d = 0; d < t->n_dims; d++) {
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
	for (size_t d = t->n_dims; d-- > 0; row *= w->count[d])
		w->stride[d] = s->stride ? s->stride[d] : (int64_t)row;
	return 0;
}

static int read_slice(struct ckpt *c, const struct tensor_info *t, const struct ckpt_slice *s,
		      void *to, struct ckpt_err *e)
{
	struct ckpt_file *f;
	struct wanted w;
	int rc = resolve(t, s, &w, e);

	if (!rc)
		rc = ckpt_steps_open(c->engine, t, w.start, w.step, w.count, &f, e);
	if (rc)
		return rc;
	rc = tensor_scatter(f->engine->fetch, f->reader, to, w.stride, t->dtype, e);
	ckpt_file_close(f);
	return rc;
}

int ckpt_slice_read_sized(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, size_t size,
			  void *to, struct ckpt_err *e)
{
	struct ckpt_slice slice = { 0 };
	struct tensor_info t;
	int rc = ckpt_tensor_at(c, i, &t, e);

	if (!rc)
		rc = SIZED_TAKE(slice, s, size, "ckpt_slice", e);
	return rc ? rc : read_slice(c, &t, &slice, to, e);
}

int ckpt_model_slice_read_sized(struct ckpt *c, uint64_t i, const struct ckpt_slice *s, size_t size,
				void *to, struct ckpt_err *e)
{
	struct ckpt_slice slice = { 0 };
	struct tensor_info t;
	int rc = ckpt_model_at(c, i, &t, e);

	if (!rc)
		rc = SIZED_TAKE(slice, s, size, "ckpt_slice", e);
	return rc ? rc : read_slice(c, &t, &slice, to, e);
}

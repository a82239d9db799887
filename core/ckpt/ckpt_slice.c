/* SPDX-License-Identifier: Apache-2.0 */
/* Reads parts of tensors into memory that need not be contiguous. */
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "read/tensor_read.h"
#include <ckptfs/ckpt.h>

/* Resolves the bounds of a struct ckpt_slice. */
int ckpt_steps_of(const struct tensor_info *t, const uint64_t *start, const uint64_t *stop,
		  const uint64_t *step, struct ckpt_steps *ret, struct ckpt_err *e)
{
	for (size_t d = 0; d < t->n_dims; d++) {
		uint64_t from = start ? start[d] : 0, to = stop ? stop[d] : t->shape[d];
		uint64_t by = step ? step[d] : 1;

		if (from > to || to > t->shape[d] || !by)
			return err_set(e, EINVAL,
				       "tensor '%s': elements %llu to %llu in steps of %llu are "
				       "outside dimension %zu, which has %llu",
				       FQN_TEXT(t->fqn, t->fqn_len), (unsigned long long)from,
				       (unsigned long long)to, (unsigned long long)by, d,
				       (unsigned long long)t->shape[d]);
		ret->start[d] = from;
		ret->step[d] = by;
		ret->count[d] = (to - from) / by + ((to - from) % by != 0);
	}
	return 0;
}

static int read_slice(struct ckpt *c, const struct tensor_info *t, const struct ckpt_slice *s,
		      void *to, struct ckpt_err *e)
{
	uint64_t row = dtype_info(t->dtype)->size;
	int64_t stride[CKPT_MAX_DIMS];
	struct ckpt_steps w;
	struct ckpt_file *f;
	int rc = ckpt_steps_of(t, s->start, s->stop, s->step, &w, e);

	if (!rc)
		rc = ckpt_steps_open(c->engine, t, w.start, w.step, w.count, &f, e);
	if (rc)
		return rc;
	for (size_t d = t->n_dims; d-- > 0; row *= w.count[d])
		stride[d] = s->stride ? s->stride[d] : (int64_t)row;
	rc = tensor_scatter(f->engine->fetch, f->reader, to, stride, t->dtype, e);
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

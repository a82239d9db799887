/* SPDX-License-Identifier: Apache-2.0 */
/* Opens parts of tensors as files. */
#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "model/box.h"
#include "read/tensor_read.h"
#include "tensor/vtensor.h"
#include "tree/view.h"
#include <ckptfs/ckpt.h>

static int outside(const struct tensor_info *t, const uint64_t *off, const uint64_t *len,
		   struct ckpt_err *e)
{
	const uint64_t *const numbers[] = { len, off, t->shape };
	struct buf b = BUF_INIT(CKPT_MAX_DIMS * 3 * 24);
	char shown[120];
	int rc;

	for (size_t i = 0; i < 3; i++) {
		buf_str(&b, (const char *const[]){ "", " at ", " is outside " }[i]);
		buf_json_u64s(&b, numbers[i], t->n_dims);
	}
	rc = err_set(e, EINVAL, "tensor '%s': box %.200s",
		     text_show(t->fqn, t->fqn_len, shown, sizeof(shown)), b.data ? b.data : "");
	buf_release(&b);
	return rc;
}

static int open_steps(struct ckpt_file *f, const struct tensor_info *t, const uint64_t *off,
		      const uint64_t *step, const uint64_t *count, struct ckpt_err *e)
{
	struct vtensor *v;
	int rc = view_box(f->engine->view, t->id, off, step, count, &v, e);

	if (rc)
		return rc;
	vfile_tensor(&f->v, t->id, v->bytes);
	rc = tensor_open(f->engine->fetch, v, &f->reader, e);
	return rc ? rc : vfile_done(&f->v, e);
}

int ckpt_steps_open(struct engine *eng, const struct tensor_info *t, const uint64_t *off,
		    const uint64_t *step, const uint64_t *count, struct ckpt_file **ret,
		    struct ckpt_err *e)
{
	struct ckpt_file *f;
	int rc = ckpt_readable(eng, t, e);

	if (rc)
		return rc;
	f = ckpt_file_new(eng, e);
	if (!f)
		return -ENOMEM;
	return ckpt_file_opened(f, open_steps(f, t, off, step, count, e), ret);
}

static int open_box(struct engine *eng, const struct tensor_info *t, const uint64_t *off,
		    const uint64_t *len, struct ckpt_file **ret, struct ckpt_err *e)
{
	int rc = ckpt_readable(eng, t, e);

	if (!rc && !box_inside(t->n_dims, off, len, t->shape))
		rc = outside(t, off, len, e);
	return rc ? rc : ckpt_steps_open(eng, t, off, NULL, len, ret, e);
}

int ckpt_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
		  struct ckpt_file **ret, struct ckpt_err *e)
{
	struct tensor_info t;
	int rc = ckpt_tensor_at(c, i, &t, e);

	return rc ? rc : open_box(c->engine, &t, off, len, ret, e);
}

int ckpt_model_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
			struct ckpt_file **ret, struct ckpt_err *e)
{
	struct tensor_info t;
	int rc = ckpt_model_at(c, i, &t, e);

	return rc ? rc : open_box(c->engine, &t, off, len, ret, e);
}

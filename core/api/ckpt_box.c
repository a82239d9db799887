/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors as files of their own. */
#include "api/ckpt.h"
#include "api/ckpt_internal.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "read/fetch.h"
#include "view/view.h"
#include "view/vtensor.h"

static int outside(const struct view_tensor *t, const uint64_t *off, const uint64_t *len,
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

static int open_steps(struct ckpt_file *f, const struct view_tensor *t, const uint64_t *off,
		      const uint64_t *step, const uint64_t *count, struct ckpt_err *e)
{
	struct vtensor *v;
	int rc = view_box(f->c->view, t->id, off, step, count, &v, e);

	if (rc)
		return rc;
	vfile_tensor(&f->v, t->id, v->bytes);
	rc = vreader_open(f->c->fetch, v, &f->reader, e);
	return rc ? rc : vfile_done(&f->v, e);
}

int ckpt_steps_open(struct ckpt *c, const struct view_tensor *t, const uint64_t *off,
		    const uint64_t *step, const uint64_t *count, struct ckpt_file **ret,
		    struct ckpt_err *e)
{
	struct ckpt_file *f;
	int rc = ckpt_readable(c, t, e);

	if (rc)
		return rc;
	f = ckpt_file_new(c, e);
	if (!f)
		return -ENOMEM;
	rc = open_steps(f, t, off, step, count, e);
	if (rc) {
		ckpt_file_close(f);
		return rc;
	}
	*ret = f;
	return 0;
}

static int open_box(struct ckpt *c, const struct view_tensor *t, const uint64_t *off,
		    const uint64_t *len, struct ckpt_file **ret, struct ckpt_err *e)
{
	int rc = ckpt_readable(c, t, e);

	if (!rc && !box_inside(t->n_dims, off, len, t->shape))
		rc = outside(t, off, len, e);
	return rc ? rc : ckpt_steps_open(c, t, off, NULL, len, ret, e);
}

int ckpt_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
		  struct ckpt_file **ret, struct ckpt_err *e)
{
	struct view_tensor t;

	view_tensor(c->view, i, &t);
	return open_box(c, &t, off, len, ret, e);
}

int ckpt_model_box_open(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
			struct ckpt_file **ret, struct ckpt_err *e)
{
	struct view_tensor t;

	view_model_tensor(c->view, i, &t);
	return open_box(c, &t, off, len, ret, e);
}

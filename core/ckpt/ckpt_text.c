/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_values.h>

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "codec/numpy_text.h"
#include "codec/values.h"
#include "tensor/tensor_info.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CKPT_TEXT_JSON == TEXT_JSON && (int)CKPT_TEXT_BITS == TEXT_BITS, "one list");

enum { MAX_TEXT = 512 << 20 };

/* A slice of a tensor, and the elements of it that are shown. */
struct part {
	const struct tensor_info *t;
	struct ckpt_steps of;
	uint64_t shown[CKPT_MAX_DIMS]; /* elements */
	int64_t stride[CKPT_MAX_DIMS]; /* bytes, in the buffer of shown elements */
	uint64_t shape[CKPT_MAX_DIMS]; /* of the resulting text */
	size_t n_dims;
	uint64_t all; /* number of elements shown */
};

/*
 * Without elements there is nothing to show, however long the other dimensions, except that JSON
 * has a list for each index before the first empty dimension.
 */
static int check_size(const struct part *p, enum ckpt_text_form form, struct ckpt_err *e)
{
	const struct tensor_info *t = p->t;
	bool empty = false;
	uint64_t all = 1;

	for (size_t k = 0; k < t->n_dims; k++)
		empty |= !p->shown[k];
	if (empty && form != CKPT_TEXT_JSON)
		return 0;
	for (size_t k = 0; k < t->n_dims && p->shown[k]; all *= p->shown[k++])
		if (all > CKPT_TEXT_MAX / p->shown[k])
			return err_set(e, E2BIG,
				       "tensor '%s': more than %d %s to show: name a slice",
				       FQN_TEXT(t->fqn, t->fqn_len), CKPT_TEXT_MAX,
				       empty ? "empty lists" : "elements");
	return 0;
}

static int resolve(const struct tensor_info *t, const struct ckpt_text *s, struct part *p,
		   struct ckpt_err *e)
{
	uint64_t size = dtype_info(t->dtype)->size;
	int rc;

	*p = (struct part){ .t = t, .all = 1 };
	rc = ckpt_steps_of(t, s->start, s->stop, s->step, &p->of, e);
	if (rc)
		return rc;
	for (size_t k = 0; k < t->n_dims; k++) {
		if (!s->drop || !s->drop[k])
			p->shape[p->n_dims++] = p->of.count[k];
		else if (p->of.count[k] != 1)
			return err_set(e, EINVAL,
				       "dimension %zu has %llu elements and cannot be left out", k,
				       (unsigned long long)p->of.count[k]);
	}
	(void)numpy_text_shown(p->of.count, t->n_dims, p->shown);
	if (s->form == CKPT_TEXT_JSON)
		memcpy(p->shown, p->of.count, sizeof(p->shown));
	rc = check_size(p, s->form, e);
	for (size_t k = t->n_dims; k-- > 0; p->all *= p->shown[k])
		p->stride[k] = (int64_t)(p->all * size);
	return rc;
}

/*
 * Reads one corner: for each dimension that is not shown completely, its beginning, or its end if
 * its bit is set.
 */
static int read_corner(struct ckpt *c, uint64_t i, bool model, const struct part *p, uint64_t ends,
		       uint8_t *data, struct ckpt_err *e)
{
	uint64_t start[CKPT_MAX_DIMS], stop[CKPT_MAX_DIMS];
	struct ckpt_slice s = { start, stop, p->of.step, p->stride };
	size_t bit = 0;

	for (size_t k = 0; k < p->t->n_dims; k++) {
		bool cut = p->shown[k] < p->of.count[k];
		bool end = cut && ends >> bit & 1;
		uint64_t n = cut ? NUMPY_TEXT_EDGE : p->of.count[k];
		uint64_t first = end ? p->of.count[k] - n : 0;

		bit += cut;
		start[k] = p->of.start[k] + first * p->of.step[k];
		stop[k] = start[k] + (n - 1) * p->of.step[k] + 1;
		data += end ? (int64_t)NUMPY_TEXT_EDGE * p->stride[k] : 0;
	}
	return model ? ckpt_model_slice_read(c, i, &s, data, e)
		     : ckpt_slice_read(c, i, &s, data, e);
}

/*
 * Reads all corners. They are few: each abbreviated dimension shows six elements, of at most
 * CKPT_TEXT_MAX.
 */
static int read_shown(struct ckpt *c, uint64_t i, bool model, const struct part *p, uint8_t *data,
		      struct ckpt_err *e)
{
	unsigned cut = 0;
	int rc = 0;

	for (size_t k = 0; k < p->t->n_dims; k++)
		cut += p->shown[k] < p->of.count[k];
	for (uint64_t ends = 0; !rc && p->all && ends < UINT64_C(1) << cut; ends++)
		rc = read_corner(c, i, model, p, ends, data, e);
	return rc;
}

static int make_text(struct ckpt *c, uint64_t i, const struct ckpt_text *s, char **ret,
		     size_t *ret_len, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_TEXT);
	autofree uint8_t *data = NULL;
	struct tensor_info t;
	struct part p;
	int rc = s->model ? ckpt_model_at(c, i, &t, e) : ckpt_tensor_at(c, i, &t, e);

	if (!rc)
		rc = resolve(&t, s, &p, e);
	if (!rc && s->form != CKPT_TEXT_BITS && !values_known(t.dtype))
		rc = err_set(e, ERR_UNSUPPORTED,
			     "tensor '%s': the bytes of %s are not numbers by themselves; they can "
			     "be shown as bits",
			     FQN_TEXT(t.fqn, t.fqn_len), dtype_info(t.dtype)->name);
	if (rc)
		return rc;
	data = malloc(p.all * dtype_info(t.dtype)->size + 1);
	if (!data)
		return err_nomem(e);
	rc = read_shown(c, i, s->model, &p, data, e);
	if (rc)
		return rc;
	numpy_text(&b, (enum text_form)s->form, t.dtype, p.shape, p.n_dims, data);
	buf_add(&b, "", 1);
	if (b.err)
		return err_sys(e, b.err, "print");
	*ret_len = b.len - 1;
	*ret = b.data;
	b = (struct buf)BUF_INIT(MAX_TEXT);
	return 0;
}

int ckpt_text_sized(struct ckpt *c, uint64_t i, const struct ckpt_text *s, size_t size, char **ret,
		    size_t *ret_len, struct ckpt_err *e)
{
	struct ckpt_text ours;
	int rc = SIZED_TAKE(ours, s, size, "ckpt_text", e);

	if (rc)
		return rc;
	if ((unsigned)ours.form > CKPT_TEXT_JSON)
		return err_set(e, EINVAL, "unknown form of text %d", (int)ours.form);
	return make_text(c, i, &ours, ret, ret_len, e);
}

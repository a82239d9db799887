/* SPDX-License-Identifier: Apache-2.0 */
/* What .ckptfs/view shows of an engine: the page, its data, and tiles of tensors. */
#include "base/buf.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "page/live_page.h"
#include "page/picture.h"
#include "tensor/tensor_info.h"
#include "tree/view.h"

#include <stdlib.h>

int engine_page(void *arg, enum view_page which, const char **ret, size_t *ret_len,
		struct ckpt_err *e)
{
	struct engine *eng = arg;
	struct buf *made = eng->page[which], *before = NULL;
	int rc;

	if (!made) {
		made = calloc(1, sizeof(*made));
		if (!made)
			return err_nomem(e);
		rc = which == VIEW_PAGE ? live_page(eng->c->root, &made->data, &made->len, e)
					: live_data(eng->c, eng->c->root, eng->c->options,
						    eng->c->in_run, &made->data, &made->len, e);
		if (rc) {
			free(made);
			return rc;
		}
		if (!atomic_compare_exchange_strong(&eng->page[which], &before, made)) {
			buf_release(made);
			free(made);
			made = before;
		}
	}
	*ret = made->data;
	*ret_len = made->len;
	return 0;
}

static struct picture picture_of(size_t i, const struct tensor_info *t, const struct tile *tile,
				 const struct tile_form *form, const char *name)
{
	return (struct picture){ .tensor = i,
				 .dtype = t->dtype,
				 .n_dims = t->n_dims,
				 .shape = t->shape,
				 .tile = tile,
				 .form = form,
				 .name = name };
}

int engine_tile(void *arg, size_t i, const struct tensor_info *t, const struct tile *tile,
		const struct tile_form *form, const char *name, struct buf *ret, struct ckpt_err *e)
{
	const struct picture h = picture_of(i, t, tile, form, name);

	return picture_make(((struct engine *)arg)->c, &h, ret, e);
}

uint64_t engine_tile_size(const struct tensor_info *t, const struct tile *tile,
			  const struct tile_form *form, const char *name)
{
	const struct picture h = picture_of(0, t, tile, form, name);

	return picture_size(&h);
}

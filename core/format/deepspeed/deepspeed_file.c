/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a file of torch.save, and describes its tensors as pieces of it. */
#include "base/checked.h"
#include "base/err.h"
#include "format/deepspeed/deepspeed.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

int ds_open(struct ds *d, struct ds_file *f, struct ds_open *o, struct ckpt_err *e)
{
	o->f = f;
	f->done = true;
	return torch_file_open(&o->file, d->place, f->path, d->w, e);
}

int ds_close(struct ds *d, struct ds_open *o, int rc, struct ckpt_err *e)
{
	rc = torch_file_close(&o->file, rc, e);
	if (d->opts->progress)
		d->opts->progress(d->opts->progress_arg, ++d->n_read, d->n_files);
	return rc;
}

int ds_numel(const uint64_t *shape, size_t n, uint64_t *ret, struct ckpt_err *e)
{
	if (!box_volume(n, shape, ret) || *ret > (uint64_t)1 << 62)
		return err_set(e, ERR_CORRUPT, "a tensor of more than 2^62 elements");
	return 0;
}

int ds_tensor_of(struct ds *d, struct ds_open *o, const struct pk_value *v, struct ds_tensor *ret,
		 struct ckpt_err *e)
{
	struct torch_view t;
	uint64_t *dims;
	int rc = torch_file_view(&o->file, v, &t, e);

	if (rc)
		return rc;
	dims = arena_array(&d->arena, 2 * t.n_dims + 1, sizeof(*dims));
	if (!dims)
		return err_nomem(e);
	if (t.n_dims) {
		memcpy(dims, t.size, t.n_dims * sizeof(*dims));
		memcpy(dims + t.n_dims, t.layout.stride, t.n_dims * sizeof(*dims));
	}
	ret->numel = t.numel;
	ret->shape = dims;
	ret->stride = t.layout.strided && t.numel ? dims + t.n_dims : NULL;
	ret->n_dims = (uint8_t)t.n_dims;
	ret->dtype = t.dtype;
	ret->column = NULL;
	ret->at = 0;
	ret->piece = (struct ds_piece){ .offset = t.at,
					.numel = t.numel,
					.file = o->file.number,
					.swap = t.layout.swap,
					.neg = t.layout.neg,
					.conj = t.layout.conj };
	return 0;
}

int ds_flat_of(struct ds *d, struct ds_open *o, const struct pk_value *v, const char *what,
	       struct ds_piece *ret, enum ckpt_dtype *ret_dtype, struct ckpt_err *e)
{
	struct ds_tensor t = { 0 };
	int rc = torch_is_tensor(v) ? ds_tensor_of(d, o, v, &t, e)
				    : err_set(e, ERR_CORRUPT, "no tensor");

	if (!rc && (t.n_dims != 1 || t.stride))
		rc = err_set(e, ERR_CORRUPT, "it is not flat");
	if (rc)
		return err_wrap(e, "'%.200s': %s", o->f->path, what);
	*ret = t.piece;
	*ret_dtype = t.dtype;
	return 0;
}

/* Reports values that are neither parameters nor buffers, by the catalog's own rules. */
static int report_other(struct ds *d, struct ds_open *o, const struct ds_weights *x,
			const struct pk_str *name, const struct pk_value *key,
			const struct pk_value *v, struct ckpt_err *e)
{
	size_t before = strlen(x->prefix);
	struct ds_mark *m = ds_mark(d, name, e);
	const char *steps[] = { key->s->data, NULL, NULL };
	char *module;

	if (!m)
		return -e->code;
	if (m->is_other || strlen(key->s->data) != key->s->len)
		return 0;
	m->is_other = true;
	if (before) { /* with a dot at its end */
		module = arena_dup(&d->arena, x->prefix, before - 1);
		if (!module)
			return err_nomem(e);
		steps[0] = module;
		steps[1] = key->s->data;
	}
	return torch_file_report(&o->file, v, steps, d->w, e);
}

/* The name of a dict's key; NULL with an error. */
static const struct pk_str *name_of(struct ds *d, const struct ds_weights *x,
				    const struct pk_str *key, struct ckpt_err *e)
{
	size_t before = strlen(x->prefix);
	const struct pk_str *r;
	char *both;

	if (!before)
		return ds_name(d, key->data, key->len, e);
	both = malloc(before + key->len + 1);
	if (!both) {
		(void)err_nomem(e);
		return NULL;
	}
	memcpy(both, x->prefix, before);
	memcpy(both + before, key->data, key->len);
	r = ds_name(d, both, before + key->len, e);
	free(both);
	return r;
}

/* With ZeRO 3 a parameter has a placeholder in place of its elements, under each of its names. */
static bool is_placeholder(const struct ds_mark *m, const struct pk_value *v)
{
	struct torch_tensor t = { 0 };
	struct ckpt_err ignored;

	if (m && (m->is_param || m->is_alias || m->is_buffer))
		return !m->is_buffer;
	return torch_is_tensor(v) && !torch_tensor_read(v, &t, &ignored) && t.n_dims == 1 &&
	       t.size[0] <= 1;
}

static int read_weight(struct ds *d, struct ds_open *o, const struct ds_weights *x,
		       const struct pk_value *key, const struct pk_value *v, struct ckpt_err *e)
{
	bool first = (*x->prefix || !x->stage) && (!x->t || x->t == DS_WHOLE);
	struct ds_tensor t = { .stage = x->stage, .t = x->t };
	int rc;

	t.name = name_of(d, x, key->s, e);
	if (!t.name)
		return -e->code;
	if (x->placeholders && is_placeholder(ds_mark_of(d, t.name), v))
		return 0;
	if (!torch_is_tensor(v))
		return first ? report_other(d, o, x, t.name, key, v, e) : 0;
	rc = ds_tensor_of(d, o, v, &t, e);
	if (rc == -ERR_UNSUPPORTED) /* once */
		return report_other(d, o, x, t.name, key, v, e);
	return rc ? err_wrap(e, "'%.200s': '%.100s'", o->f->path, key->s->data) : ds_add(d, &t, e);
}

int ds_read_weights(struct ds *d, struct ds_open *o, const struct ds_weights *x, struct ckpt_err *e)
{
	size_t n = pk_dict_len(x->dict);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &x->dict->n->v[2 * i];

		if (key->type == PK_STR && !(x->without && pk_is_text(key, x->without)))
			rc = read_weight(d, o, x, key, key + 1, e);
	}
	return rc;
}

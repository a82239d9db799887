/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of ds_to_universal.py: TAG/zero/FQN/{fp32,exp_avg,exp_avg_sq,step}.pt, beside the
 * model states. A file is a tensor, or a dict with it as "param", in its shape; for ZeRO 3 it is
 * flat, and the model states have the shape.
 */
#include "format/deepspeed/deepspeed.h"

#include <string.h>

static int read_state(struct ds *d, struct ds_open *o, struct ds_tensor *t, struct ckpt_err *e)
{
	const struct pk_value *v = &o->file.root;
	struct ds_mark *m = ds_mark(d, t->name, e);
	uint64_t numel;
	int rc;

	if (!m)
		return -e->code;
	if (v->type == PK_DICT)
		v = pk_get(v, "param");
	if (!torch_is_tensor(v)) /* a step number, or another program's file */
		return 0;
	rc = ds_tensor_of(d, o, v, t, e);
	if (rc)
		return err_wrap(e, "'%.200s'", o->f->path);
	m->is_universal |= !strcmp(t->key->data, "fp32");
	if (v == &o->file.root && t->n_dims == 1 && !t->stride && m->is_param) {
		if (ds_numel(m->shape, m->n_dims, &numel, e))
			return -e->code;
		if (numel != t->numel)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' has %llu elements, the model states say %llu",
				       o->f->path, (unsigned long long)t->numel,
				       (unsigned long long)numel);
		t->shape = m->shape;
		t->n_dims = m->n_dims;
	}
	return ds_add(d, t, e);
}

/* Has every parameter that was trained a master? Experts' names are those of one rank. */
static void check_masters(struct ds *d)
{
	uint32_t n = pk_strings_count(d->names);
	size_t experts;

	(void)ds_files_of(d, DS_EXPERT, UINT32_MAX, &experts);
	for (uint32_t i = 0; !experts && i < n && i < d->cap_marks; i++)
		if (d->marks[i].is_param && !d->marks[i].is_frozen && !d->marks[i].is_universal) {
			(void)ds_refuse(d, "'zero/%.120s/fp32.pt' is missing, and perhaps others",
					pk_string(d->names, i)->data);
			return;
		}
}

int ds_read_universal(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_UNIVERSAL, UINT32_MAX, &n);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_tensor t = { .t = DS_WHOLE };
		struct ds_open o;

		t.name = ds_name(d, f[i].fqn, f[i].fqn_len, e);
		t.key = t.name ? ds_name(d, f[i].base, strlen(f[i].base) - strlen(".pt"), e) : NULL;
		if (!t.key)
			return -e->code;
		rc = ds_open(d, &f[i], &o, e);
		if (!rc)
			rc = read_state(d, &o, &t, e);
		rc = ds_close(d, &o, rc, e);
	}
	if (!rc)
		check_masters(d);
	return rc;
}

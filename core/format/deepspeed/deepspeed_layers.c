/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of a pipeline: their files, and the names of what is in them. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/deepspeed/deepspeed.h"
#include "model/box.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The name of layer LL in the module list: "LL.", or "tied_modules.X." for a layer that is used in
 * two places. X is not recorded in any file; it is the only tied module, if there is one, whose
 * parameters have the names and shapes in this file.
 */
struct layer {
	char prefix[32];
	const struct pk_str *tied; /* "tied_modules.X.", or NULL */
	uint32_t stage;		   /* the stage that trains its parameters; 0 if unknown */
};

static const char tied_word[] = "tied_modules.";

/* The mark of prefix + key, if it is a parameter of that shape. */
static const struct ds_mark *param_of(struct ds *d, const char *prefix, const struct pk_value *key)
{
	struct torch_tensor t = { 0 };
	struct ckpt_err ignored;
	char name[4200];
	const struct pk_str *s;
	const struct ds_mark *m;

	if (key->type != PK_STR || !torch_is_tensor(key + 1) ||
	    snprintf(name, sizeof(name), "%s%s", prefix, key->s->data) >= (int)sizeof(name))
		return NULL;
	s = ds_name(d, name, strlen(name), &ignored);
	m = s ? ds_mark_of(d, s) : NULL;
	if (!m || !m->is_param || torch_tensor_read(key + 1, &t, &ignored) ||
	    t.n_dims != m->n_dims || !dims_equal(t.n_dims, t.size, m->shape))
		return NULL;
	return m;
}

/* Counts the file's tensors that are parameters below the prefix, and finds their stage. */
static size_t count_params(struct ds *d, const struct pk_value *dict, const char *prefix,
			   uint32_t *ret_stage)
{
	size_t found = 0;

	for (size_t i = 0; i < pk_len(dict); i++) {
		const struct ds_mark *m = param_of(d, prefix, &dict->n->v[2 * i]);

		if (m)
			*ret_stage = m->stage;
		found += m != NULL;
	}
	return found;
}

/* A tied module, "tied_modules.X."; each is listed once. */
struct tied {
	const struct pk_str *prefix;
	const struct pk_str *name; /* of one of its parameters */
	size_t params;		   /* number of its parameters */
	bool found;		   /* a file has them all */
};

static int list_tied(struct ds *d, struct tied **ret, size_t *ret_n, struct ckpt_err *e)
{
	uint32_t names = pk_strings_count(d->names);
	struct tied *v = NULL;
	size_t n = 0, cap = 0;

	for (uint32_t i = 0; i < names && i < d->cap_marks; i++) {
		const struct pk_str *s = pk_string(d->names, i), *prefix;
		const char *dot;
		size_t k = 0;

		if (!d->marks[i].is_param || strncmp(s->data, tied_word, strlen(tied_word)) != 0)
			continue;
		dot = strchr(s->data + strlen(tied_word), '.');
		if (!dot)
			continue;
		prefix = ds_name(d, s->data, (size_t)(dot + 1 - s->data), e);
		while (prefix && k < n && v[k].prefix != prefix)
			k++;
		if (!prefix || k == 1000 || !VEC_ROOM(v, cap, n + 1)) {
			free(v);
			return prefix ? err_set(e, EFBIG, "too many tied modules") : -e->code;
		}
		if (k == n)
			v[n++] = (struct tied){ .prefix = prefix, .name = s };
		v[k].params++;
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

static void name_layer(struct ds *d, const struct pk_value *dict, struct tied *v, size_t n,
		       struct layer *l)
{
	struct tied *found = NULL;
	size_t matches = 0;
	uint32_t stage = 0;

	if (count_params(d, dict, l->prefix, &l->stage))
		return;
	for (size_t i = 0; i < n; i++)
		if (count_params(d, dict, v[i].prefix->data, &stage) == v[i].params) {
			found = &v[i];
			v[i].found = true;
			matches++;
		}
	if (matches == 1)
		l->tied = found->prefix;
}

/*
 * Does each layer of a pipeline have a file for each tensor-parallel rank, and no others? Those of
 * an older save with more ranks may be under the same tag.
 */
static int check_slices(const struct ds *d, const struct ds_file *f, size_t n, struct ckpt_err *e)
{
	uint32_t t = 0; /* the next slice */

	for (size_t i = 0; d->pipeline && i < n; i++) {
		bool last = i + 1 == n || f[i + 1].layer != f[i].layer;

		if (f[i].mp >= d->tp)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' is of another save: the model states are of %u "
				       "tensor-parallel rank%s",
				       f[i].path, d->tp, text_s(d->tp));
		if (f[i].mp != t || (last && t + 1 != d->tp))
			return err_set(e, ENOENT,
				       "'layer_%02u-model_%02u-model_states.pt' is missing, though "
				       "'%.200s' is there",
				       f[i].layer, f[i].mp != t ? t : t + 1, f[i].path);
		t = last ? 0 : t + 1;
	}
	return 0;
}

/* Does each layer have a file whose parameters or buffers have its number in their names? */
static int check_layers(const struct ds *d, const struct ds_file *f, size_t n, struct ckpt_err *e)
{
	uint32_t names = pk_strings_count(d->names);

	for (uint32_t i = 0; d->pipeline && i < names && i < d->cap_marks; i++) {
		const char *s = pk_string(d->names, i)->data;
		uint32_t layer;
		size_t at;

		if ((!d->marks[i].is_param && !d->marks[i].is_buffer) ||
		    !text_take_number(&s, 8, &layer) || *s != '.')
			continue;
		at = PARTITION_POINT(k, n, f[k].layer < layer);
		if (at == n || f[at].layer != layer)
			return err_set(e, ENOENT,
				       "the file of layer %u is missing: the model states list "
				       "'%.150s'",
				       layer, pk_string(d->names, i)->data);
	}
	return 0;
}

/*
 * Is each tied module in a file? DeepSpeed writes it wherever it is a plain layer. Where it is not,
 * its masters are all there is, so this is no error.
 */
static void check_tied(struct ds *d, const struct tied *v, size_t n)
{
	for (size_t i = 0; d->pipeline && i < n; i++)
		if (!v[i].found)
			(void)ds_refuse(d, "no file of a layer holds '%.150s': it is missing",
					v[i].name->data);
}

/* ---- ZeRO 0 ---- */

static int add_trained(struct ds *d, struct ds_open *o, const struct pk_value *v, uint32_t t,
		       struct ckpt_err *e)
{
	struct ds_trained *x;
	struct torch_view view;
	struct ckpt_err ignored;
	uint64_t *shape;

	if (!torch_is_tensor(v) || torch_file_view(&o->file, v, &view, &ignored))
		return 0;
	shape = arena_array(&d->arena, view.n_dims + 1, sizeof(*shape));
	if (!shape || !VEC_ROOM(d->trained, d->cap_trained, d->n_trained + 1))
		return err_nomem(e);
	if (view.n_dims)
		memcpy(shape, view.size, view.n_dims * sizeof(*shape));
	x = &d->trained[d->n_trained++];
	*x = (struct ds_trained){ .shape = shape, .n_dims = (uint8_t)view.n_dims, .t = t };
	return torch_file_sample(&o->file, &view, &x->is, e);
}

/* A state that is sure to have its weight's shape: those of unknown optimizers may have others. */
static const struct pk_value *state_of(const struct pk_value *v)
{
	static const char *const known[] = { "exp_avg", "momentum_buffer", "exp_avg_sq",
					     "max_exp_avg_sq", "step" };
	const struct pk_value *first = pk_get(v, known[0]);
	size_t found = 0;

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		found += pk_get(v, known[i]) != NULL;
	if (found != pk_dict_len(v))
		return NULL;
	return first ? first : pk_get(v, known[1]);
}

/* {"state": {0: {"exp_avg": tensor}}}, or, in 16 bits, {"fp32_groups": [[tensor]]}. */
int ds_read_trained(struct ds *d, struct ds_open *o, const struct pk_value *optimizer, uint32_t t,
		    struct ckpt_err *e)
{
	const struct pk_value *state = pk_get(optimizer, "state");
	const struct pk_value *groups = pk_get(optimizer, "fp32_groups");
	size_t n = pk_dict_len(state), m = pk_list_len(groups);
	int rc = torch_file_spend(&o->file, n + m, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *v = state_of(&state->n->v[2 * i + 1]);

		rc = v ? add_trained(d, o, v, t, e) : 0;
	}
	for (size_t i = 0; !rc && i < m; i++) {
		const struct pk_value *group = &groups->n->v[i];
		size_t k = pk_list_len(group);

		rc = torch_file_spend(&o->file, k, e);
		while (!rc && k-- > 0)
			rc = add_trained(d, o, &group->n->v[k], t, e);
	}
	return rc;
}

static int by_shape(const void *ap, const void *bp)
{
	const struct ds_trained *a = ap, *b = bp;

	if (a->t != b->t || a->n_dims != b->n_dims)
		return a->t != b->t ? a->t < b->t ? -1 : 1 : a->n_dims < b->n_dims ? -1 : 1;
	for (size_t i = 0; i < a->n_dims; i++)
		if (a->shape[i] != b->shape[i])
			return a->shape[i] < b->shape[i] ? -1 : 1;
	return 0;
}

static int by_values(const void *ap, const void *bp)
{
	const struct ds_trained *a = ap, *b = bp;
	int c = by_shape(a, b);

	return c ? c : memcmp(&a->is, &b->is, sizeof(a->is));
}

/* How many weights in the layers' files may be of that shape, by the tensors sorted by shape? */
static size_t count_weights(const struct ds_trained *v, size_t n, const struct ds_trained *like)
{
	return PARTITION_POINT(i, n, by_shape(&v[i], like) <= 0) -
	       PARTITION_POINT(i, n, by_shape(&v[i], like) < 0);
}

/*
 * Without ZeRO no names are recorded, but what was trained must be somewhere. A weight that two
 * stages share has equal states in both, so different states are of different weights.
 */
static int check_trained(struct ds *d, struct ckpt_err *e)
{
	autofree struct ds_trained *v = calloc(d->n_tensors + 1, sizeof(*v));
	struct ds_trained *x = d->trained;
	size_t n = 0;

	if (!v || !d->n_trained)
		return v ? 0 : err_nomem(e);
	for (size_t i = 0; i < d->n_tensors; i++) {
		const struct ds_tensor *t = &d->tensors[i];
		const struct ds_mark *m = ds_mark_of(d, t->name);

		if (!t->key && !(m && m->is_buffer))
			v[n++] = (struct ds_trained){ .shape = t->shape,
						      .n_dims = t->n_dims,
						      .t = t->t };
	}
	qsort(v, n, sizeof(*v), by_shape);
	qsort(x, d->n_trained, sizeof(*x), by_values);
	for (size_t i = 0, k; i < d->n_trained; i += k) {
		size_t different = 1, there = count_weights(v, n, &x[i]);

		for (k = 1; i + k < d->n_trained && !by_shape(&x[i], &x[i + k]); k++)
			different += by_values(&x[i + k - 1], &x[i + k]) != 0;
		if (different > there)
			return ds_refuse(d,
					 "there are optimizer states of %zu weight%s of shape %s, "
					 "and the files of layers hold %zu: the file of a layer is "
					 "missing",
					 different, text_s(different),
					 TUPLE_TEXT(x[i].shape, x[i].n_dims), there);
	}
	return 0;
}

/* ---- all layers ---- */

int ds_read_layers(struct ds *d, struct ckpt_err *e)
{
	size_t n, n_tied = 0;
	struct ds_file *f = ds_files_of(d, DS_LAYER, UINT32_MAX, &n);
	autofree struct layer *layers = calloc(n + 1, sizeof(*layers));
	autofree struct tied *tied = NULL;
	int rc = layers ? ds_check_twice(f, n, e) : err_nomem(e);

	if (!rc)
		rc = check_slices(d, f, n, e);
	if (!rc)
		rc = check_layers(d, f, n, e);
	if (!rc)
		rc = list_tied(d, &tied, &n_tied, e);
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_weights w = { .t = d->tp > 1 ? f[i].mp : 0 };
		struct layer *l = &layers[i];
		struct ds_open o;

		(void)snprintf(l->prefix, sizeof(l->prefix), "%u.", f[i].layer);
		rc = ds_open(d, &f[i], &o, e);
		if (!rc && o.file.root.type != PK_DICT)
			rc = err_set(e, ERR_CORRUPT, "'%.200s' does not hold a state dict",
				     f[i].path);
		if (!rc)
			rc = torch_file_spend(&o.file, pk_len(&o.file.root) * (n_tied + 1), e);
		if (!rc)
			name_layer(d, &o.file.root, tied, n_tied, l);
		w.dict = &o.file.root;
		w.prefix = l->tied ? l->tied->data : l->prefix;
		w.stage = l->stage;
		if (!rc)
			rc = ds_read_weights(d, &o, &w, e);
		rc = ds_close(d, &o, rc, e);
	}
	if (rc)
		return rc;
	check_tied(d, tied, n_tied);
	return check_trained(d, e);
}

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
	size_t params; /* number of its parameters */
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
			v[n++] = (struct tied){ .prefix = prefix };
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
	return rc;
}

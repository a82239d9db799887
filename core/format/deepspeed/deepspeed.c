/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's checkpoints: ZeRO 0 to 3 in every precision, pipelines, tensor parallelism, mixtures
 * of experts, and Universal checkpoints.
 *
 *	DIR/latest                     the tag below
 *	DIR/TAG/[zero_pp_rank_D_]mp_rank_MM_model_states.pt
 *	                               weights (ZeRO 3: none), buffers, names and shapes
 *	DIR/TAG/[bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt
 *	                               flat masters and moments of one rank
 *	DIR/TAG/layer_LL-model_states.pt, layer_L_expert_E_mp_rank_MM_model_states.pt
 *	                               weights of pipelines' layers, and of experts
 *
 * All are files of torch.save. Their pickles are read when the index is built, but no elements of
 * tensors: the cost of a scan depends on the number of tensors and ranks.
 */
#include "format/deepspeed/deepspeed.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "model/box.h"
#include "source/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 65535 };
#define MAX_MEMORY ((size_t)2 << 30) /* bytes for the description of a checkpoint */

/* ---- names and tensors ---- */

const struct pk_str *ds_name(struct ds *d, const char *s, size_t len, struct ckpt_err *e)
{
	const struct pk_str *r;

	if (len > MAX_NAME) { /* a list can have it a million times */
		(void)err_set(e, EFBIG, "a name of more than %d bytes", MAX_NAME);
		return NULL;
	}
	r = pk_intern(d->names, s, len);
	if (!r)
		(void)err_set(e, errno,
			      errno == EFBIG ? "the names of all tensors take too much memory"
					     : "out of memory");
	return r;
}

struct ds_mark *ds_mark(struct ds *d, const struct pk_str *name, struct ckpt_err *e)
{
	if (!VEC_ROOM_ZEROED(d->marks, d->cap_marks, name->id + (size_t)1)) {
		(void)err_nomem(e);
		return NULL;
	}
	return &d->marks[name->id];
}

const struct ds_mark *ds_mark_of(const struct ds *d, const struct pk_str *name)
{
	return name->id < d->cap_marks ? &d->marks[name->id] : NULL;
}

int ds_add(struct ds *d, const struct ds_tensor *t, struct ckpt_err *e)
{
	if (!VEC_ROOM(d->tensors, d->cap_tensors, d->n_tensors + 1))
		return err_nomem(e);
	d->tensors[d->n_tensors++] = *t;
	return 0;
}

int ds_add_alias(struct ds *d, const struct pk_str *name, const struct pk_str *of,
		 struct ckpt_err *e)
{
	struct ds_mark *m;

	if (!VEC_ROOM(d->aliases, d->cap_aliases, d->n_aliases + 1))
		return err_nomem(e);
	m = ds_mark(d, name, e);
	if (!m)
		return -e->code;
	m->is_alias = true;
	d->aliases[d->n_aliases++] = (struct ds_alias){ name, of };
	return 0;
}

static uint64_t key_order(const struct ds_tensor *t)
{
	return t->key ? (uint64_t)t->key->id + 1 : 0;
}

int ds_by_name(const void *ap, const void *bp)
{
	const struct ds_tensor *a = *(const struct ds_tensor *const *)ap;
	const struct ds_tensor *b = *(const struct ds_tensor *const *)bp;
	const uint64_t x[] = { key_order(a), a->name->id, a->stage, a->t };
	const uint64_t y[] = { key_order(b), b->name->id, b->stage, b->t };

	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return a < b ? -1 : a > b; /* keep the order in which they were found */
}

/* ---- files ---- */

static int by_number(const void *ap, const void *bp)
{
	const struct ds_file *a = ap, *b = bp;
	bool by_layer = a->kind == DS_LAYER || a->kind == DS_EXPERT;
	const uint32_t x[] = { a->kind, by_layer ? a->layer : a->mp, by_layer ? a->mp : a->layer,
			       a->rank };
	const uint32_t y[] = { b->kind, by_layer ? b->layer : b->mp, by_layer ? b->mp : b->layer,
			       b->rank };

	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return strcmp(a->path, b->path);
}

struct ds_file *ds_files_of(const struct ds *d, enum ds_kind kind, uint32_t mp, size_t *ret_n)
{
	size_t first = 0, n = 0;

	for (size_t i = 0; i < d->n_files; i++)
		if (d->files[i].kind == kind && (mp == UINT32_MAX || d->files[i].mp == mp)) {
			first = n ? first : i;
			n++;
		}
	*ret_n = n;
	return d->files + first;
}

static int sort_files(struct ds *d, const struct name_list *files, struct ckpt_err *e)
{
	d->files = calloc(files->n + 1, sizeof(*d->files));
	if (!d->files)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++) {
		struct ds_file *f = &d->files[d->n_files++];

		(void)ds_file_parse(files->v[i], f);
		d->universal |= f->kind == DS_UNIVERSAL;
	}
	if (d->n_files)
		qsort(d->files, d->n_files, sizeof(*d->files), by_number);
	return 0;
}

/* Model-parallel ranks must be 0, 1, ..., each with model states. */
static int count_ranks(struct ds *d, uint32_t *ret, struct ckpt_err *e)
{
	uint32_t n = 0;

	for (size_t i = 0; i < d->n_files && d->files[i].kind == DS_MODEL; i++) {
		if (d->files[i].mp > n)
			return err_set(
				e, ENOENT,
				"the model states of mp_rank_%02u are missing (found '%.200s')", n,
				d->files[i].path);
		n = d->files[i].mp + 1;
	}
	if (!n)
		return err_set(e, ENOENT, "there are no model states");
	*ret = n;
	return 0;
}

int ds_check_twice(const struct ds_file *f, size_t n, struct ckpt_err *e)
{
	for (size_t i = 1; i < n; i++)
		if (f[i].layer == f[i - 1].layer && f[i].mp == f[i - 1].mp &&
		    f[i].rank == f[i - 1].rank)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' and '%.200s' are of the same rank: one is from "
				       "another checkpoint",
				       f[i - 1].path, f[i].path);
	return 0;
}

/* ---- layers of a pipeline ---- */

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

/* Reads the layer files of a pipeline, after all ranks. */
static int read_layers(struct ds *d, struct ckpt_err *e)
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

/* ---- entry points ---- */

/* The index depends on all files, including those that contributed nothing. */
static int note_files(struct ds *d, struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < d->n_files; i++) {
		struct place_seen seen;

		if (d->files[i].done)
			continue;
		if (d->files[i].kind == DS_LATEST) {
			rc = small_file_fingerprint(d->place, d->files[i].path, d->w, NULL, e);
			continue;
		}
		rc = place_find(d->place, d->files[i].path, &seen, e);
		if (!rc)
			rc = catalog_add_metadata(d->w, d->files[i].path, &seen, NULL, e);
	}
	return rc;
}

static int tell_not_shown(struct ds *d, struct ckpt_err *e)
{
	if (*d->not_shown && !d->n_tensors)
		return err_set(e, ERR_CORRUPT, "%s", d->not_shown);
	return format_tell(FORMAT_NOT_SHOWN, d->not_shown, d->w, e);
}

static int read_all(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	uint32_t ranks = 0;
	int rc = count_ranks(d, &ranks, e);

	d->tp = ranks;
	for (uint32_t mp = 0; !rc && mp < ranks; mp++)
		rc = ds_read_rank(d, mp, e);
	if (!rc)
		rc = ds_read_experts(d, e);
	if (!rc)
		rc = read_layers(d, e);
	if (!rc && d->universal)
		rc = ds_read_universal(d, e);
	(void)ds_files_of(d, DS_OPTIM, UINT32_MAX, &n);
	if (!rc && !n && !d->universal && d->files->sharded)
		(void)ds_refuse(d, "the weights: ZeRO 3 has them in the optimizer states' files, "
				   "but there are none");
	return rc;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct ds d = { .place = place,
			.opts = opts,
			.w = w,
			.names = pk_strings_new(DS_MAX_NAMES),
			.arena = ARENA_INIT(MAX_MEMORY) };
	int rc = d.names ? sort_files(&d, files, e) : err_nomem(e);

	if (!rc)
		rc = read_all(&d, e);
	if (!rc)
		rc = ds_report(&d, e);
	if (!rc)
		rc = tell_not_shown(&d, e);
	if (!rc)
		rc = note_files(&d, e);
	ds_join_free(d.join);
	free(d.files);
	free(d.tensors);
	free(d.aliases);
	free(d.marks);
	arena_release(&d.arena);
	pk_strings_free(d.names);
	return rc;
}

const struct format format_deepspeed = {
	.name = "deepspeed", .names_one = true, .probe_dir = ds_probe, .scan = scan
};

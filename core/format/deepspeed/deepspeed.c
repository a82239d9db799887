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

#include "base/checked.h"
#include "base/vec.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "source/place.h"

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
	const char *first = *d->missing ? d->missing : d->not_shown;
	int rc;

	if (*first && !d->n_tensors)
		return err_set(e, ERR_CORRUPT, "%s", first);
	rc = format_tell(FORMAT_MISSING, d->missing, d->w, e);
	return rc ? rc : format_tell(FORMAT_NOT_SHOWN, d->not_shown, d->w, e);
}

static int read_all(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	uint32_t ranks = 0;
	int rc = count_ranks(d, &ranks, e);

	d->tp = ranks;
	d->incomplete = rc ? NULL : arena_array(&d->arena, ranks, sizeof(*d->incomplete));
	if (!rc && !d->incomplete)
		rc = err_nomem(e);
	for (uint32_t mp = 0; !rc && mp < ranks; mp++)
		rc = ds_read_rank(d, mp, e);
	if (!rc)
		rc = ds_read_experts(d, e);
	if (!rc)
		rc = ds_read_layers(d, e);
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
	free(d.trained);
	free(d.marks);
	arena_release(&d.arena);
	pk_strings_free(d.names);
	return rc;
}

const struct format format_deepspeed = {
	.name = "deepspeed", .names_one = true, .probe_dir = ds_probe, .scan = scan
};

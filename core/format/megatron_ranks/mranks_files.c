/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the files of a checkpoint.
 *
 *	mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt
 *	                        T tensor-parallel rank; P pipeline stage, if there are several; E
 *	                        expert-parallel rank, likewise (megatron/training/checkpointing.py)
 *	mp_rank_TT[_PPP]/model_rng.pt
 *	                        2022 and 2023, with the distributed optimizer
 *	mp_rank_TT/model_weights.ckpt
 *	tp_rank_TT_pp_rank_PPP/model_weights.ckpt
 *	                        NeMo 1
 *
 * What else is in these directories (distrib_optim.pt; optim.pt in mp_rank_TT_PPP_DDD) is the
 * optimizer's.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "format/megatron_ranks/mranks.h"
#include "source/place.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const model_names[] = { "model_optim_rng.pt", "model_rng.pt",
					   "model_weights.ckpt" };
enum { NEMO_NAME = 2, MAX_DIGITS = 6, MAX_DIRS = 1 << 16 };

static bool parse_dir(const char *s, struct mr_file *f)
{
	bool nemo = text_take(&s, "tp_rank_");

	if (!nemo && !text_take(&s, "mp_rank_"))
		return false;
	if (!text_take_number(&s, MAX_DIGITS, &f->t))
		return false;
	f->n_numbers = 0;
	while (f->n_numbers < (nemo ? 1 : 2) && text_take(&s, nemo ? "_pp_rank_" : "_"))
		if (!text_take_number(&s, MAX_DIGITS, &f->n[f->n_numbers++]))
			return false;
	return (!nemo || f->n_numbers == 1) && (!*s || *s == '/');
}

bool mr_file_parse(const char *path, struct mr_file *ret)
{
	const char *slash = strchr(path, '/');

	*ret = (struct mr_file){ .path = path };
	if (!slash || !parse_dir(path, ret))
		return false;
	ret->dir_len = (size_t)(slash - path);
	ret->nemo = !strcmp(slash + 1, model_names[NEMO_NAME]);
	return true;
}

static int add_dir(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct name_list *dirs = arg;
	struct mr_file f;

	if ((kind != PLACE_DIR && kind != PLACE_UNKNOWN) || strchr(name, '/') ||
	    !parse_dir(name, &f))
		return 0;
	if (dirs->n == MAX_DIRS)
		return err_set(e, EFBIG, "the checkpoint has more than %d ranks", MAX_DIRS);
	return name_list_add(dirs, name, e);
}

/* Which of the names there is in a directory: adds its path and returns 1. */
static int add_model(struct place *place, const char *dir, struct name_list *files,
		     struct ckpt_err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(model_names); i++) {
		char path[PATH_MAX];
		struct place_seen seen;
		int rc;

		if (snprintf(path, sizeof(path), "%s/%s", dir, model_names[i]) >= (int)sizeof(path))
			return err_set(e, ENAMETOOLONG, "'%.100s...' is too long a name", dir);
		rc = place_look(place, path, &seen, e);
		if (rc > 0)
			return name_list_add(files, path, e) ? -e->code : 1;
		if (rc < 0)
			return rc;
	}
	return 0;
}

int mr_probe(struct place *place, struct name_list *files, struct ckpt_err *e)
{
	struct name_list dirs CLEANUP(name_list_release) = { 0 };
	int rc = place_list(place, ".", add_dir, &dirs, e);

	if (rc || !dirs.n)
		return rc;
	name_list_sort(&dirs);
	for (size_t i = 0; i < dirs.n; i++) {
		rc = add_model(place, dirs.v[i], files, e);
		if (rc < 0)
			return rc;
	}
	return files->n > 0;
}

/* ---- copies ---- */

/* Files that have the same bytes one after the other; else as they are sorted. */
static int by_sums(const void *ap, const void *bp)
{
	const struct mr_file *a = *(const struct mr_file *const *)ap;
	const struct mr_file *b = *(const struct mr_file *const *)bp;
	int c = memcmp(&a->sums, &b->sums, sizeof(a->sums));

	return c ? c : (a > b) - (a < b);
}

/* Must these two differ? What is not sliced, all ranks of a stage have alike. */
static bool must_differ(const struct mr_file *a, const struct mr_file *b)
{
	return (a->p != b->p && (a->slices || a->experts)) || (a->t != b->t && a->slices) ||
	       (a->e != b->e && a->experts);
}

/* Were the files written by different processes? One that converts a model writes them all. */
static bool ranks_differ(const struct mr *d)
{
	for (size_t i = 1; i < d->n_files; i++)
		if (d->files[i].rank != d->files[0].rank)
			return true;
	return false;
}

static int check_pair(struct mr *d, const struct mr_file *a, const struct mr_file *b,
		      struct ckpt_err *e)
{
	if (memcmp(&a->sums, &b->sums, sizeof(a->sums)) != 0 || !must_differ(a, b))
		return 0;
	/* In a model that was made from one without experts, all experts may be equal. */
	if (a->p == b->p && a->t == b->t && !ranks_differ(d))
		return format_note(d->not_shown,
				   "the experts in '%.100s', if it was overwritten with '%.100s': "
				   "both have the same bytes",
				   b->path, a->path);
	return err_set(e, ERR_CORRUPT,
		       "'%.100s' and '%.100s' have the same bytes, but are of different ranks: "
		       "one is a copy of the other",
		       a->path, b->path);
}

int mr_check_copies(struct mr *d, struct ckpt_err *e)
{
	const struct mr_file **v = calloc(d->n_files + 1, sizeof(*v));
	size_t n = 0;
	int rc = 0;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < d->n_files; i++)
		if (d->files[i].has_sums)
			v[n++] = &d->files[i];
	qsort(v, n, sizeof(*v), by_sums);
	for (size_t i = 1; !rc && i < n; i++)
		rc = check_pair(d, v[i - 1], v[i], e);
	free(v);
	return rc;
}

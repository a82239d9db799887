/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per-rank files of FSDP: the state that every rank has saved for itself with torch.save, as verl
 * and SkyRL do. fsdp_files.c finds the files, fsdp_part.c interprets their pickles. Pickles are
 * read when the index is built; of tensors, only the ends of those that are in every rank's file
 * are read.
 */
#include "format/fsdp/fsdp.h"

#include "base/checked.h"
#include "format/small_file.h"
#include "index/catalog_build.h"
#include "source/place.h"

#include <stdlib.h>

#define MAX_MEMORY ((size_t)2 << 30) /* bytes for the description of a checkpoint */

static int by_kind(const void *ap, const void *bp)
{
	const struct fsdp_file *a = ap, *b = bp;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return (a->rank > b->rank) - (a->rank < b->rank);
}

static int sort_files(struct fsdp *d, const struct name_list *files, struct ckpt_err *e)
{
	d->files = calloc(files->n + 1, sizeof(*d->files));
	if (!d->files)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++) {
		struct fsdp_file *f = &d->files[d->n_files++];

		if (fsdp_file_parse(files->v[i], f) == FSDP_MODEL)
			d->world++;
	}
	qsort(d->files, d->n_files, sizeof(*d->files), by_kind);
	return 0;
}

/*
 * If a rank's optimizer file is missing, the others only have parts of tensors, so none are shown.
 */
static bool has_all(struct fsdp *d, enum fsdp_kind kind)
{
	uint32_t next = 0, n = 0;

	for (size_t i = 0; i < d->n_files; i++)
		if (d->files[i].kind == kind) {
			n++;
			next += d->files[i].rank == next;
		}
	if (n && next < d->world)
		(void)format_note(d->missing,
				  "rank %u's file of optimizer states is missing; without it, "
				  "none of these are shown",
				  next);
	return !n || next >= d->world;
}

/* The index depends on all files, including those that contributed nothing. */
static int note_file(struct fsdp *d, const struct fsdp_file *f, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc;

	if (f->kind == FSDP_OTHER)
		return small_file_fingerprint(d->place, f->path, d->w, NULL, e);
	rc = place_find(d->place, f->path, &seen, e);
	return rc ? rc : catalog_add_metadata(d->w, f->path, &seen, NULL, e);
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct fsdp d = { .place = place,
			  .opts = opts,
			  .w = w,
			  .names = pk_strings_new(FSDP_MAX_NAMES),
			  .arena = ARENA_INIT(MAX_MEMORY) };
	int rc = d.names ? sort_files(&d, files, e) : err_nomem(e);
	bool optim = !rc && has_all(&d, FSDP_OPTIM);

	for (size_t i = 0; !rc && i < d.n_files; i++) {
		const struct fsdp_file *f = &d.files[i];

		if (f->kind == FSDP_OTHER || (f->kind == FSDP_OPTIM && !optim))
			rc = note_file(&d, f, e);
		else
			rc = fsdp_read(&d, f, e);
	}
	if (!rc && d.flat)
		(void)fsdp_note(&d,
				"the parameters that FSDP1 has flattened (LOCAL_STATE_DICT): the "
				"files record neither their shapes nor where they are; flat "
				"parameters are shown as they are; save with SHARDED_STATE_DICT");
	if (!rc)
		rc = fsdp_report(&d, e);
	if (!rc)
		rc = format_tell(FORMAT_MISSING, d.missing, d.w, e);
	if (!rc)
		rc = format_tell(FORMAT_NOT_SHOWN, d.not_shown, d.w, e);
	for (size_t i = 0; i < d.n_tensors; i++) {
		raw_chunks_release(&d.tensors[i].chunks);
		free(d.tensors[i].copies);
	}
	free(d.files);
	free(d.tensors);
	free(d.by_name);
	free(d.params);
	arena_release(&d.arena);
	pk_strings_free(d.names);
	return rc;
}

const struct format format_fsdp = {
	.name = "fsdp", .names_one = true, .probe_dir = fsdp_probe, .scan = scan
};

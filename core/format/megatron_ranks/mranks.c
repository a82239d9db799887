/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM's format `torch`, older than dist_checkpointing and still in use: each model-parallel
 * rank has saved its slices of the model. NeMo 1 has done so, too. mranks_files.c finds the files,
 * mranks_rules.c says how slices are joined. Pickles are read when the index is built; of tensors,
 * only the ends are read, and only where there may be copies.
 */
#include "format/megatron_ranks/mranks.h"

#include "source/place.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_MEMORY ((size_t)2 << 30) /* bytes for the description of a checkpoint */

static int list_files(struct mr *d, const struct name_list *files, struct ckpt_err *e)
{
	d->files = calloc(files->n + 1, sizeof(*d->files));
	if (!d->files)
		return err_nomem(e);
	for (size_t i = 0; i < files->n; i++)
		if (mr_file_parse(files->v[i], &d->files[d->n_files]))
			d->n_files++;
	return 0;
}

static int tell_optimizer(struct mr *d, struct ckpt_err *e)
{
	char path[300];
	struct place_seen seen;
	int rc = 0;

	(void)snprintf(path, sizeof(path), "%.*s/distrib_optim.pt", (int)d->files->dir_len,
		       d->files->path);
	if (!d->optimizer)
		rc = place_look(d->place, path, &seen, e);
	if (rc > 0 || d->optimizer)
		(void)format_note(d->not_shown,
				  "the optimizer's states: the files number them, and do not say "
				  "which parameters they belong to");
	return rc < 0 ? rc : 0;
}

static int scan(struct place *place, const struct name_list *files, const struct scan_opts *opts,
		struct catalog_writer *w, struct ckpt_err *e)
{
	struct mr d = { .place = place,
			.opts = opts,
			.w = w,
			.config_tp = UINT64_MAX,
			.config_pp = UINT64_MAX,
			.names = pk_strings_new(MR_MAX_NAMES),
			.arena = ARENA_INIT(MAX_MEMORY) };
	int rc = d.names ? list_files(&d, files, e) : err_nomem(e);

	if (!rc)
		rc = mr_read(&d, e);
	if (!rc)
		rc = mr_number_parts(&d, e);
	if (!rc)
		rc = mr_report(&d, e);
	if (!rc)
		rc = tell_optimizer(&d, e);
	if (!rc)
		rc = format_tell(FORMAT_NOT_SHOWN, d.not_shown, w, e);
	free(d.files);
	free(d.parts);
	arena_release(&d.arena);
	pk_strings_free(d.names);
	return rc;
}

const struct format format_megatron_ranks = { .name = "megatron-legacy",
					      .probe_dir = mr_probe,
					      .scan = scan };

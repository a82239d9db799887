/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_save.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/sized.h"
#include "ckpt/open/ckpt_options.h"
#include "source/place.h"
#include "store/load_run.h"
#include "store/save_run.h"
#include "store/writer_dcp.h"
#include "store/writer_hyperparallel.h"
#include "store/writer_place.h"
#include "store/writer_safetensors.h"
#include "store/writer_zarr.h"

/* ---- saving ---- */

static int unknown_format(enum ckpt_format format, struct ckpt_err *e)
{
	return err_set(e, EINVAL, "unknown format %d", (int)format);
}

int ckpt_save_planner(enum ckpt_format format, struct ckpt_save_planner *ret, struct ckpt_err *e)
{
	if ((unsigned)format > CKPT_ZARR)
		return unknown_format(format, e);
	return ckpt_save_planner_new(format == CKPT_HYPERPARALLEL ? CKPT_PLANNER_HYPERPARALLEL_B
								  : CKPT_PLANNER_DCP,
				     ret, e);
}

static int make_writer(const struct ckpt_save_opts *o, struct ckpt_storage_writer *ret,
		       struct ckpt_err *e)
{
	const struct writer_dcp_opts dcp = { .megatron = o->format == CKPT_MEGATRON,
					     .overwrite = o->overwrite,
					     .file_per_item = o->file_per_item,
					     .zstd_level = o->zstd,
					     .threads = o->threads,
					     .progress = o->progress,
					     .arg = o->progress_arg };
	const struct writer_hyperparallel_opts hp = { .overwrite = o->overwrite,
						      .progress = o->progress,
						      .arg = o->progress_arg };
	const struct writer_safetensors_opts st = { .overwrite = o->overwrite,
						    .shard_size = o->shard_size,
						    .progress = o->progress,
						    .arg = o->progress_arg };
	const struct writer_zarr_opts zarr = { .overwrite = o->overwrite,
					       .chunk_size = o->shard_size,
					       .progress = o->progress,
					       .arg = o->progress_arg };

	switch (o->format) {
	case CKPT_DCP:
	case CKPT_MEGATRON:
		return writer_dcp_new(&dcp, ret, e);
	case CKPT_HYPERPARALLEL:
		return writer_hyperparallel_new(&hp, ret, e);
	case CKPT_SAFETENSORS:
		return writer_safetensors_new(&st, ret, e);
	case CKPT_ZARR:
		return writer_zarr_new(&zarr, ret, e);
	}
	return unknown_format(o->format, e);
}

/* How the writer reaches an address. */
static int place_writer(const struct ckpt_save_opts *o, struct ckpt_storage_writer *w,
			struct ckpt_err *e)
{
	struct arena a CLEANUP(arena_release) = ARENA_INIT(2 * CKPT_MAX_WORDS);
	struct ckpt_opts opts = { 0 };
	int rc = o->open ? ckpt_opts_parse(o->open, NULL, 0, &a, &opts, e) : 0;
	const struct place_options place = ckpt_opts_place(&opts);

	return rc ? rc
		  : writer_place(w,
				 &(struct staging_how){ .place = &place,
							.stop = o->stop,
							.stop_arg = o->stop_arg,
							.warn = o->warn,
							.warn_arg = o->warn_arg },
				 e);
}

/* *ret is zero, and remains so on failure. */
static int new_writer(const struct ckpt_save_opts *o, struct ckpt_storage_writer *ret,
		      struct ckpt_err *e)
{
	struct ckpt_storage_writer w CLEANUP(ckpt_storage_writer_free) = { 0 };
	int rc = make_writer(o, &w, e);

	if (!rc)
		rc = place_writer(o, &w, e);
	if (rc)
		return rc;
	*ret = w;
	w = (struct ckpt_storage_writer){ 0 };
	return 0;
}

int ckpt_save_writer_sized(const struct ckpt_save_opts *opts, size_t size,
			   struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	struct ckpt_save_opts o;
	int rc = SIZED_TAKE(o, opts, size, "ckpt_save_opts", e);

	return rc ? rc : new_writer(&o, ret, e);
}

int ckpt_save_sized(struct ckpt_comm *comm, const char *path, const struct ckpt_state_dict *dict,
		    const struct ckpt_save_opts *opts, size_t size, struct ckpt_err *e)
{
	struct ckpt_save_opts o = { 0 };
	int rc = SIZED_TAKE(o, opts, size, "ckpt_save_opts", e);
	struct ckpt_save_planner planner CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_storage_writer writer CLEANUP(ckpt_storage_writer_free) = { 0 };
	struct save_run_args args = { .comm = comm,
				      .path = path,
				      .dict = dict,
				      .planner = o.planner ? o.planner : &planner,
				      .writer = o.writer ? o.writer : &writer };

	if (!rc && !o.planner)
		rc = ckpt_save_planner(o.format, &planner, e);
	if (!rc && !o.writer)
		rc = new_writer(&o, &writer, e);
	rc = ckpt_comm_agree(comm, rc, e);
	if (rc)
		return rc;
	args.options.save_to_minimum_rank = o.save_to_lowest_rank;
	args.options.no_paths = o.no_paths || o.format == CKPT_MEGATRON;
	args.options.cache_plans = o.cache_plans;
	return save_run(&args, e);
}

/* ---- loading ---- */

int ckpt_load_sized(struct ckpt_comm *comm, const char *path, const struct ckpt_state_dict *dict,
		    const struct ckpt_load_opts *opts, size_t size, struct ckpt_err *e)
{
	struct ckpt_load_opts o = { 0 };
	int rc = SIZED_TAKE(o, opts, size, "ckpt_load_opts", e);
	struct ckpt_load_planner planner CLEANUP(ckpt_load_planner_free) = { 0 };
	struct ckpt_storage_reader reader CLEANUP(ckpt_storage_reader_free) = { 0 };
	struct load_run_args args = { .comm = comm,
				      .path = path,
				      .dict = dict,
				      .planner = o.planner ? o.planner : &planner,
				      .reader = o.reader ? o.reader : &reader };

	if (!rc && !o.planner)
		rc = ckpt_load_planner_new(CKPT_PLANNER_DCP, &planner, e);
	if (!rc && !o.reader)
		rc = ckpt_reader_new(o.open, &reader, e);
	rc = ckpt_comm_agree(comm, rc, e);
	if (rc)
		return rc;
	args.options.allow_partial_load = o.allow_partial;
	args.options.take_bytes = o.take_bytes;
	args.options.arg = o.arg;
	return load_run(&args, e);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "store/save_run.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "comm/comm.h"
#include "save/plan_codec.h"
#include <ckptfs/ckpt_storage.h>

#include <stdlib.h>

struct run {
	const struct save_run_args *args;
	struct arena plans;	    /* everything received from other ranks, until the end */
	struct ckpt_save_plan mine; /* the local plan, later this rank's part of the global one */
	struct ckpt_metadata md;    /* rank 0 */
};

/* ---- deciding ---- */

static int local_step(struct run *r, struct buf *ret, struct ckpt_err *e)
{
	const struct save_run_args *a = r->args;
	struct ckpt_storage_ranks ranks = { a->comm->rank, a->comm->size };
	struct ckpt_save_planning opt = a->options;
	int rc = ckpt_storage_writer_reset(a->writer, a->path, e);

	opt.rank = ranks.rank;
	opt.is_coordinator = ranks.rank == 0;
	if (!rc)
		rc = ckpt_storage_writer_set_up(a->writer, &ranks, e);
	if (!rc)
		rc = ckpt_save_planner_configure(a->planner, a->dict, &opt, e);
	if (!rc)
		rc = ckpt_save_planner_local_plan(a->planner, &r->mine, e);
	if (!rc)
		rc = ckpt_storage_writer_prepare_local_plan(a->writer, &r->mine, &r->mine, e);
	return rc ? rc : save_plan_encode(&r->mine, ret, e);
}

/* all[i] has the bytes of rank i's plan. */
static int decode_all(struct run *r, const struct ckpt_comm_all *all, struct ckpt_save_plan *ret,
		      struct ckpt_err *e)
{
	for (size_t i = 0; i < all->n; i++)
		if (save_plan_decode(all->v[i].data, all->v[i].len, &r->plans, &ret[i], e))
			return err_wrap(e, "the plan of rank %zu", i);
	return 0;
}

/* Rank 0: each rank's part of the global plan. */
static int global_step(void *arg, const struct ckpt_comm_all *all, struct buf *ret,
		       struct ckpt_err *e)
{
	struct run *r = arg;
	const struct save_run_args *a = r->args;
	struct ckpt_save_plan *plans = arena_array(&r->plans, all->n, sizeof(*plans));
	struct ckpt_save_plan *parts = arena_array(&r->plans, all->n, sizeof(*parts));
	int rc;

	if (!plans || !parts)
		return err_set(e, ENOMEM, "plans of %zu ranks: out of memory", all->n);
	rc = decode_all(r, all, plans, e);
	if (!rc)
		rc = ckpt_save_planner_global_plan(a->planner, plans, all->n, parts, &r->md, e);
	if (!rc)
		rc = ckpt_storage_writer_prepare_global_plan(a->writer, parts, all->n, e);
	for (size_t i = 0; i < all->n && !rc; i++)
		rc = save_plan_encode(&parts[i], &ret[i], e);
	return rc;
}

static int plan_save(struct run *r, struct ckpt_err *e)
{
	struct buf bytes = BUF_INIT(SIZE_MAX);
	struct ckpt_comm_bytes part = { 0 };
	int rc = local_step(r, &bytes, e);

	rc = comm_exchange(r->args->comm, rc, &bytes, global_step, r, &part, e);
	if (!rc)
		rc = save_plan_decode(part.data, part.len, &r->plans, &r->mine, e);
	free(part.data);
	return rc;
}

/* ---- writing ---- */

static int write_step(struct run *r, struct buf *ret, struct ckpt_err *e)
{
	const struct save_run_args *a = r->args;
	struct ckpt_write_results results = { 0 };
	struct ckpt_save_plan plan = { 0 };
	int rc = ckpt_save_planner_finish(a->planner, &r->mine, &plan, e);

	if (!rc)
		rc = ckpt_storage_writer_write_data(a->writer, &plan, a->planner, &results, e);
	return rc ? rc : write_results_encode(results.v, results.n, ret, e);
}

/* Rank 0, after all ranks have written. */
static int finish_step(struct run *r, const struct ckpt_comm_all *all, struct ckpt_err *e)
{
	struct ckpt_write_results *v = arena_array(&r->plans, all->n, sizeof(*v));
	int rc = 0;

	if (!v)
		return err_set(e, ENOMEM, "results of %zu ranks: out of memory", all->n);
	for (size_t i = 0; i < all->n; i++) {
		rc = write_results_decode(all->v[i].data, all->v[i].len, &r->plans, &v[i].v,
					  &v[i].n, e);
		if (rc)
			return err_wrap(e, "the results of rank %zu", i);
	}
	return ckpt_storage_writer_finish(r->args->writer, &r->md, v, all->n, e);
}

/* rc: result of planning on this rank. */
static int write_save(struct run *r, int rc, struct ckpt_err *e)
{
	struct ckpt_comm *c = r->args->comm;
	struct buf bytes = BUF_INIT(SIZE_MAX);
	struct ckpt_comm_all all = { 0 };

	if (!rc)
		rc = write_step(r, &bytes, e);
	rc = ckpt_comm_gather(c, rc, bytes.data, bytes.len, &all, e);
	buf_release(&bytes);
	if (rc)
		return rc;
	if (c->rank == 0)
		rc = finish_step(r, &all, e);
	ckpt_comm_all_release(&all);
	return ckpt_comm_agree(c, rc, e);
}

int save_run(const struct save_run_args *args, struct ckpt_err *e)
{
	struct run r = { .args = args, .plans = ARENA_INIT(SIZE_MAX) };
	int rc = plan_save(&r, e);

	rc = write_save(&r, rc, e);
	arena_release(&r.plans);
	return rc;
}

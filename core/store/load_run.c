/* SPDX-License-Identifier: Apache-2.0 */
#include "store/load_run.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "comm/comm.h"
#include "save/plan_codec.h"
#include <ckptfs/ckpt_storage.h>

#include <stdlib.h>

struct run {
	const struct load_run_args *args;
	struct arena plans; /* everything received from other ranks, until the end */
};

static int open_step(struct run *r, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	const struct load_run_args *a = r->args;
	struct ckpt_load_planning opt = a->options;
	const struct ckpt_metadata *md = NULL;
	int rc = ckpt_storage_reader_reset(a->reader, a->path, e);

	opt.rank = ranks->rank;
	opt.is_coordinator = ranks->rank == 0;
	if (!rc)
		rc = ckpt_storage_reader_read_metadata(a->reader, &md, e);
	if (!rc)
		rc = ckpt_load_planner_configure(a->planner, a->dict, md, &opt, e);
	return rc ? rc : ckpt_storage_reader_set_up(a->reader, md, ranks, e);
}

static int local_step(struct run *r, struct buf *ret, struct ckpt_err *e)
{
	const struct load_run_args *a = r->args;
	struct ckpt_storage_ranks ranks = { a->comm->rank, a->comm->size };
	struct ckpt_load_plan plan = { 0 };
	int rc = open_step(r, &ranks, e);

	if (!rc)
		rc = ckpt_load_planner_local_plan(a->planner, &plan, e);
	if (!rc)
		rc = ckpt_storage_reader_prepare_local_plan(a->reader, &plan, &plan, e);
	return rc ? rc : load_plan_encode(&plan, ret, e);
}

/* Rank 0: each rank's part of the global plan. */
static int global_step(void *arg, const struct ckpt_comm_all *all, struct buf *ret,
		       struct ckpt_err *e)
{
	struct run *r = arg;
	const struct load_run_args *a = r->args;
	struct ckpt_load_plan *plans = arena_array(&r->plans, all->n, sizeof(*plans));
	struct ckpt_load_plan *parts = arena_array(&r->plans, all->n, sizeof(*parts));
	int rc = 0;

	if (!plans || !parts)
		return err_set(e, ENOMEM, "plans of %zu ranks: out of memory", all->n);
	for (size_t i = 0; i < all->n; i++) {
		rc = load_plan_decode(all->v[i].data, all->v[i].len, &r->plans, &plans[i], e);
		if (rc)
			return err_wrap(e, "the plan of rank %zu", i);
	}
	rc = ckpt_load_planner_global_plan(a->planner, plans, all->n, parts, e);
	if (!rc)
		rc = ckpt_storage_reader_prepare_global_plan(a->reader, parts, all->n, e);
	for (size_t i = 0; i < all->n && !rc; i++)
		rc = load_plan_encode(&parts[i], &ret[i], e);
	return rc;
}

static int plan_load(struct run *r, struct ckpt_load_plan *ret, struct ckpt_err *e)
{
	struct buf bytes = BUF_INIT(SIZE_MAX);
	struct ckpt_comm_bytes part = { 0 };
	int rc = local_step(r, &bytes, e);

	rc = comm_exchange(r->args->comm, rc, &bytes, global_step, r, &part, e);
	if (!rc)
		rc = load_plan_decode(part.data, part.len, &r->plans, ret, e);
	free(part.data);
	return rc;
}

int load_run(const struct load_run_args *args, struct ckpt_err *e)
{
	struct run r = { .args = args, .plans = ARENA_INIT(SIZE_MAX) };
	struct ckpt_load_plan part = { 0 }, plan = { 0 };
	int rc = plan_load(&r, &part, e);

	if (!rc)
		rc = ckpt_load_planner_finish(args->planner, &part, &plan, e);
	if (!rc)
		rc = ckpt_storage_reader_read_data(args->reader, &plan, args->planner, e);
	rc = ckpt_comm_agree(args->comm, rc, e);
	arena_release(&r.plans);
	return rc;
}

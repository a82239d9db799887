/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a storage's functions are called. */
#include "base/err.h"
#include <ckptfs/ckpt_storage.h>

/* The last step that was completed. A rank other than the coordinator goes from LOCAL to GLOBAL by
 * writing or reading. */
enum step { NEW, RESET, METADATA, SET_UP, LOCAL, GLOBAL, MOVED, FINISHED, FAILED };

static const char *const step_names[] = {
	[NEW] = "made",
	[RESET] = "reset",
	[METADATA] = "after the metadata has been read",
	[SET_UP] = "set up",
	[LOCAL] = "after the local plan",
	[GLOBAL] = "after the global plan",
	[MOVED] = "after the data has been moved",
	[FINISHED] = "finished",
	[FAILED] = "after a call that failed",
};

/* On the coordinator, data requires the global plan; other ranks do not make one. */
static bool may_move(uint8_t step, bool is_coordinator)
{
	return step == GLOBAL || (step == LOCAL && !is_coordinator);
}

static int out_of_order(const char *what, const char *call, uint8_t step, struct ckpt_err *e)
{
	return err_set(e, EPERM, "storage %s: %s out of order: it is %s", what, call,
		       step_names[step]);
}

/* Only reset leads on from a call that failed: what it has done so far is not known. */
static int then(uint8_t *step, uint8_t next, int rc)
{
	*step = rc ? FAILED : next;
	return rc;
}

static int check_ranks(const char *what, const struct ckpt_storage_ranks *r, struct ckpt_err *e)
{
	if (r->rank < r->size && r->size <= UINT32_MAX)
		return 0;
	return err_set(e, EINVAL, "storage %s: set_up for rank %zu of %zu", what, r->rank, r->size);
}

/* With the plans or results of fewer ranks, a checkpoint would lack data without a word. */
static int check_all(const char *what, const char *call, size_t n, uint32_t n_ranks,
		     struct ckpt_err *e)
{
	if (n == n_ranks)
		return 0;
	return err_set(e, EINVAL, "storage %s: %s of %zu ranks, but it is set up for %u", what,
		       call, n, n_ranks);
}

/* ---- writing ---- */

int ckpt_storage_writer_validate_checkpoint_id(struct ckpt_storage_writer *w, const char *id,
					       struct ckpt_err *e)
{
	return w->ops->validate_checkpoint_id(w->self, id, e);
}

int ckpt_storage_writer_reset(struct ckpt_storage_writer *w, const char *id, struct ckpt_err *e)
{
	w->step = NEW;
	return then(&w->step, RESET, w->ops->reset(w->self, id, e));
}

int ckpt_storage_writer_set_up(struct ckpt_storage_writer *w,
			       const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	if (w->step != RESET)
		return out_of_order("writer", "set_up", w->step, e);
	if (check_ranks("writer", ranks, e))
		return -EINVAL;
	w->is_coordinator = ranks->rank == 0;
	w->n_ranks = (uint32_t)ranks->size;
	return then(&w->step, SET_UP, w->ops->set_up(w->self, ranks, e));
}

int ckpt_storage_writer_prepare_local_plan(struct ckpt_storage_writer *w,
					   const struct ckpt_save_plan *plan,
					   struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	if (w->step != SET_UP)
		return out_of_order("writer", "prepare_local_plan", w->step, e);
	return then(&w->step, LOCAL, w->ops->prepare_local_plan(w->self, plan, ret, e));
}

int ckpt_storage_writer_prepare_global_plan(struct ckpt_storage_writer *w,
					    struct ckpt_save_plan *parts, size_t n,
					    struct ckpt_err *e)
{
	if (w->step != LOCAL || !w->is_coordinator)
		return out_of_order("writer", "prepare_global_plan", w->step, e);
	if (check_all("writer", "prepare_global_plan", n, w->n_ranks, e))
		return -EINVAL;
	return then(&w->step, GLOBAL,
		    w->ops->prepare_global_plan ? w->ops->prepare_global_plan(w->self, parts, n, e)
						: 0);
}

int ckpt_storage_writer_write_data(struct ckpt_storage_writer *w, const struct ckpt_save_plan *plan,
				   struct ckpt_save_planner *planner,
				   struct ckpt_write_results *ret, struct ckpt_err *e)
{
	if (!may_move(w->step, w->is_coordinator))
		return out_of_order("writer", "write_data", w->step, e);
	return then(&w->step, MOVED, w->ops->write_data(w->self, plan, planner, ret, e));
}

int ckpt_storage_writer_finish(struct ckpt_storage_writer *w, const struct ckpt_metadata *md,
			       const struct ckpt_write_results *all, size_t n, struct ckpt_err *e)
{
	if (w->step != MOVED || !w->is_coordinator)
		return out_of_order("writer", "finish", w->step, e);
	if (check_all("writer", "finish", n, w->n_ranks, e))
		return -EINVAL;
	return then(&w->step, FINISHED, w->ops->finish(w->self, md, all, n, e));
}

void ckpt_storage_writer_free(struct ckpt_storage_writer *w)
{
	if (w->ops)
		w->ops->free(w->self);
	*w = (struct ckpt_storage_writer){ 0 };
}

/* ---- reading ---- */

int ckpt_storage_reader_validate_checkpoint_id(struct ckpt_storage_reader *r, const char *id,
					       struct ckpt_err *e)
{
	return r->ops->validate_checkpoint_id(r->self, id, e);
}

int ckpt_storage_reader_reset(struct ckpt_storage_reader *r, const char *id, struct ckpt_err *e)
{
	r->step = NEW;
	return then(&r->step, RESET, r->ops->reset(r->self, id, e));
}

int ckpt_storage_reader_read_metadata(struct ckpt_storage_reader *r,
				      const struct ckpt_metadata **ret, struct ckpt_err *e)
{
	if (r->step != RESET)
		return out_of_order("reader", "read_metadata", r->step, e);
	return then(&r->step, METADATA, r->ops->read_metadata(r->self, ret, e));
}

int ckpt_storage_reader_set_up(struct ckpt_storage_reader *r, const struct ckpt_metadata *md,
			       const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	if (r->step != METADATA)
		return out_of_order("reader", "set_up", r->step, e);
	if (check_ranks("reader", ranks, e))
		return -EINVAL;
	r->is_coordinator = ranks->rank == 0;
	r->n_ranks = (uint32_t)ranks->size;
	return then(&r->step, SET_UP, r->ops->set_up(r->self, md, ranks, e));
}

int ckpt_storage_reader_prepare_local_plan(struct ckpt_storage_reader *r,
					   const struct ckpt_load_plan *plan,
					   struct ckpt_load_plan *ret, struct ckpt_err *e)
{
	if (r->step != SET_UP)
		return out_of_order("reader", "prepare_local_plan", r->step, e);
	return then(&r->step, LOCAL, r->ops->prepare_local_plan(r->self, plan, ret, e));
}

int ckpt_storage_reader_prepare_global_plan(struct ckpt_storage_reader *r,
					    struct ckpt_load_plan *parts, size_t n,
					    struct ckpt_err *e)
{
	if (r->step != LOCAL || !r->is_coordinator)
		return out_of_order("reader", "prepare_global_plan", r->step, e);
	if (check_all("reader", "prepare_global_plan", n, r->n_ranks, e))
		return -EINVAL;
	return then(&r->step, GLOBAL,
		    r->ops->prepare_global_plan ? r->ops->prepare_global_plan(r->self, parts, n, e)
						: 0);
}

int ckpt_storage_reader_read_data(struct ckpt_storage_reader *r, const struct ckpt_load_plan *plan,
				  struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	if (!may_move(r->step, r->is_coordinator))
		return out_of_order("reader", "read_data", r->step, e);
	return then(&r->step, MOVED, r->ops->read_data(r->self, plan, planner, e));
}

void ckpt_storage_reader_free(struct ckpt_storage_reader *r)
{
	if (r->ops)
		r->ops->free(r->self);
	*r = (struct ckpt_storage_reader){ 0 };
}

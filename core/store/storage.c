/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a storage's functions are called. */
#include "store/storage.h"
#include "base/err.h"

/*
 * What has been done. A rank that is no coordinator goes from LOCAL to GLOBAL by writing or reading.
 */
enum step { NEW, RESET, METADATA, SET_UP, LOCAL, GLOBAL, MOVED, FINISHED };

static const char *const step_names[] = {
	[NEW] = "made",
	[RESET] = "reset",
	[METADATA] = "after the metadata has been read",
	[SET_UP] = "set up",
	[LOCAL] = "after the local plan",
	[GLOBAL] = "after the global plan",
	[MOVED] = "after the data has been moved",
	[FINISHED] = "finished",
};

/* Data needs the global plan of the coordinator, and no other rank makes one. */
static bool may_move(uint8_t step, bool is_coordinator)
{
	return step == GLOBAL || (step == LOCAL && !is_coordinator);
}

static int out_of_order(const char *what, const char *call, uint8_t step, struct err *e)
{
	return err_set(e, EPERM, "storage %s: %s out of order: it is %s", what, call,
		       step_names[step]);
}

/* A call that failed is not repeated: the step stays, and only reset leads on from there. */
static int then(uint8_t *step, uint8_t next, int rc)
{
	if (!rc)
		*step = next;
	return rc;
}

/* ---- writing ---- */

int storage_writer_validate_checkpoint_id(struct storage_writer *w, const char *id, struct err *e)
{
	return w->ops->validate_checkpoint_id(w->self, id, e);
}

int storage_writer_reset(struct storage_writer *w, const char *id, struct err *e)
{
	w->step = NEW;
	return then(&w->step, RESET, w->ops->reset(w->self, id, e));
}

int storage_writer_set_up(struct storage_writer *w, const struct storage_ranks *ranks,
			  struct err *e)
{
	if (w->step != RESET)
		return out_of_order("writer", "set_up", w->step, e);
	w->is_coordinator = ranks->rank == 0;
	return then(&w->step, SET_UP, w->ops->set_up(w->self, ranks, e));
}

int storage_writer_prepare_local_plan(struct storage_writer *w, const struct save_plan *plan,
				      struct save_plan *ret, struct err *e)
{
	if (w->step != SET_UP)
		return out_of_order("writer", "prepare_local_plan", w->step, e);
	return then(&w->step, LOCAL, w->ops->prepare_local_plan(w->self, plan, ret, e));
}

int storage_writer_prepare_global_plan(struct storage_writer *w, struct save_plan *parts, size_t n,
				       struct err *e)
{
	if (w->step != LOCAL || !w->is_coordinator)
		return out_of_order("writer", "prepare_global_plan", w->step, e);
	return then(&w->step, GLOBAL, w->ops->prepare_global_plan(w->self, parts, n, e));
}

int storage_writer_write_data(struct storage_writer *w, const struct save_plan *plan,
			      struct save_planner *planner, struct write_results *ret,
			      struct err *e)
{
	if (!may_move(w->step, w->is_coordinator))
		return out_of_order("writer", "write_data", w->step, e);
	return then(&w->step, MOVED, w->ops->write_data(w->self, plan, planner, ret, e));
}

int storage_writer_finish(struct storage_writer *w, const struct metadata *md,
			  const struct write_results *all, size_t n, struct err *e)
{
	if (w->step != MOVED || !w->is_coordinator)
		return out_of_order("writer", "finish", w->step, e);
	return then(&w->step, FINISHED, w->ops->finish(w->self, md, all, n, e));
}

void storage_writer_free(struct storage_writer *w)
{
	if (w->ops)
		w->ops->free(w->self);
	*w = (struct storage_writer){ 0 };
}

/* ---- reading ---- */

int storage_reader_validate_checkpoint_id(struct storage_reader *r, const char *id, struct err *e)
{
	return r->ops->validate_checkpoint_id(r->self, id, e);
}

int storage_reader_reset(struct storage_reader *r, const char *id, struct err *e)
{
	r->step = NEW;
	return then(&r->step, RESET, r->ops->reset(r->self, id, e));
}

int storage_reader_read_metadata(struct storage_reader *r, const struct metadata **ret,
				 struct err *e)
{
	if (r->step != RESET)
		return out_of_order("reader", "read_metadata", r->step, e);
	return then(&r->step, METADATA, r->ops->read_metadata(r->self, ret, e));
}

int storage_reader_set_up(struct storage_reader *r, const struct metadata *md,
			  const struct storage_ranks *ranks, struct err *e)
{
	if (r->step != METADATA)
		return out_of_order("reader", "set_up", r->step, e);
	r->is_coordinator = ranks->rank == 0;
	return then(&r->step, SET_UP, r->ops->set_up(r->self, md, ranks, e));
}

int storage_reader_prepare_local_plan(struct storage_reader *r, const struct load_plan *plan,
				      struct load_plan *ret, struct err *e)
{
	if (r->step != SET_UP)
		return out_of_order("reader", "prepare_local_plan", r->step, e);
	return then(&r->step, LOCAL, r->ops->prepare_local_plan(r->self, plan, ret, e));
}

int storage_reader_prepare_global_plan(struct storage_reader *r, struct load_plan *parts, size_t n,
				       struct err *e)
{
	if (r->step != LOCAL || !r->is_coordinator)
		return out_of_order("reader", "prepare_global_plan", r->step, e);
	return then(&r->step, GLOBAL, r->ops->prepare_global_plan(r->self, parts, n, e));
}

int storage_reader_read_data(struct storage_reader *r, const struct load_plan *plan,
			     struct load_planner *planner, struct err *e)
{
	if (!may_move(r->step, r->is_coordinator))
		return out_of_order("reader", "read_data", r->step, e);
	return then(&r->step, MOVED, r->ops->read_data(r->self, plan, planner, e));
}

void storage_reader_free(struct storage_reader *r)
{
	if (r->ops)
		r->ops->free(r->self);
	*r = (struct storage_reader){ 0 };
}

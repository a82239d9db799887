/* SPDX-License-Identifier: Apache-2.0 */
/* The order of calls, which is the same for every planner. */
#include "save/planner.h"

#include "base/err.h"

/* Has the planner come as far as the call needs? */
static int check_step(uint8_t step, uint8_t needed, const char *not_configured, struct err *e)
{
	static const char *const missing[] = {
		[STEP_PLANNED] = "Planner has no local plan",
		[STEP_FINISHED] = "Planner has no finished plan",
	};

	if (step >= needed)
		return 0;
	return err_set(e, EPERM, "%s", step == STEP_NEW ? not_configured : missing[needed]);
}

static int check_save(const struct save_planner *p, uint8_t needed, struct err *e)
{
	return check_step(p->step, needed, "Planner not set up", e);
}

static int check_load(const struct load_planner *p, uint8_t needed, struct err *e)
{
	return check_step(p->step, needed, "Planner not configured", e);
}

/* ---- saving ---- */

void save_planner_free(struct save_planner *p)
{
	if (p->ops)
		p->ops->free(p->self);
	*p = (struct save_planner){ 0 };
}

int save_planner_configure(struct save_planner *p, const struct state_dict *dict,
			   const struct save_options *opt, struct err *e)
{
	int rc = p->ops->configure(p->self, dict, opt, e);

	p->step = rc ? STEP_NEW : STEP_CONFIGURED;
	return rc;
}

int save_planner_local_plan(struct save_planner *p, struct save_plan *ret, struct err *e)
{
	int rc = check_save(p, STEP_CONFIGURED, e);

	if (!rc)
		rc = p->ops->local_plan(p->self, ret, e);
	if (!rc)
		p->step = STEP_PLANNED;
	return rc;
}

int save_planner_global_plan(struct save_planner *p, const struct save_plan *all, size_t n,
			     struct save_plan *ret_parts, struct metadata *ret_md, struct err *e)
{
	int rc = check_save(p, STEP_PLANNED, e);

	return rc ? rc : p->ops->global_plan(p->self, all, n, ret_parts, ret_md, e);
}

int save_planner_finish(struct save_planner *p, const struct save_plan *part, struct save_plan *ret,
			struct err *e)
{
	int rc = check_save(p, STEP_PLANNED, e);

	if (!rc)
		rc = p->ops->finish(p->self, part, ret, e);
	if (!rc)
		p->step = STEP_FINISHED;
	return rc;
}

int save_planner_get_data(struct save_planner *p, const struct write_item *item, struct source *ret,
			  struct err *e)
{
	int rc = check_save(p, STEP_FINISHED, e);

	return rc ? rc : p->ops->get_data(p->self, item, ret, e);
}

/* ---- loading ---- */

void load_planner_free(struct load_planner *p)
{
	if (p->ops)
		p->ops->free(p->self);
	*p = (struct load_planner){ 0 };
}

int load_planner_configure(struct load_planner *p, const struct state_dict *dict,
			   const struct metadata *md, const struct load_options *opt, struct err *e)
{
	int rc = p->ops->configure(p->self, dict, md, opt, e);

	p->step = rc ? STEP_NEW : STEP_CONFIGURED;
	return rc;
}

int load_planner_local_plan(struct load_planner *p, struct load_plan *ret, struct err *e)
{
	int rc = check_load(p, STEP_CONFIGURED, e);

	if (!rc)
		rc = p->ops->local_plan(p->self, ret, e);
	if (!rc)
		p->step = STEP_PLANNED;
	return rc;
}

int load_planner_global_plan(struct load_planner *p, const struct load_plan *all, size_t n,
			     struct load_plan *ret_parts, struct err *e)
{
	int rc = check_load(p, STEP_PLANNED, e);

	return rc ? rc : p->ops->global_plan(p->self, all, n, ret_parts, e);
}

int load_planner_finish(struct load_planner *p, const struct load_plan *part, struct load_plan *ret,
			struct err *e)
{
	int rc = check_load(p, STEP_PLANNED, e);

	if (!rc)
		rc = p->ops->finish(p->self, part, ret, e);
	if (!rc)
		p->step = STEP_FINISHED;
	return rc;
}

int load_planner_acquire_tensor(struct load_planner *p, const struct read_item *item,
				struct tensor_view *ret, struct err *e)
{
	int rc = check_load(p, STEP_FINISHED, e);

	return rc ? rc : p->ops->acquire_tensor(p->self, item, ret, e);
}

int load_planner_apply_tensor(struct load_planner *p, const struct read_item *item,
			      const struct tensor_view *v, struct err *e)
{
	int rc = check_load(p, STEP_FINISHED, e);

	return rc ? rc : p->ops->apply_tensor(p->self, item, v, e);
}

int load_planner_apply_bytes(struct load_planner *p, const struct read_item *item, const void *data,
			     size_t len, struct err *e)
{
	int rc = check_load(p, STEP_FINISHED, e);

	return rc ? rc : p->ops->apply_bytes(p->self, item, data, len, e);
}

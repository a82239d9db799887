/* SPDX-License-Identifier: Apache-2.0 */
/* Enforces the order of calls, which is the same for every planner. */
#include <ckptfs/ckpt_plan.h>

#include "base/err.h"
#include "base/text.h"

/* Has the planner reached the step that the call needs? */
static int check_step(uint8_t step, uint8_t needed, const char *not_configured, struct ckpt_err *e)
{
	static const char *const missing[] = {
		[CKPT_STEP_PLANNED] = "Planner has no local plan",
		[CKPT_STEP_FINISHED] = "Planner has no finished plan",
	};

	if (step >= needed)
		return 0;
	return err_set(e, EPERM, "%s", step == CKPT_STEP_NEW ? not_configured : missing[needed]);
}

static int check_save(const struct ckpt_save_planner *p, uint8_t needed, struct ckpt_err *e)
{
	return check_step(p->step, needed, "Planner not set up", e);
}

static int check_load(const struct ckpt_load_planner *p, uint8_t needed, struct ckpt_err *e)
{
	return check_step(p->step, needed, "Planner not configured", e);
}

void ckpt_data_close(struct ckpt_data *s)
{
	if (s->close)
		s->close(s->arg);
	*s = (struct ckpt_data){ 0 };
}

/* ---- saving ---- */

void ckpt_save_planner_free(struct ckpt_save_planner *p)
{
	if (p->ops)
		p->ops->free(p->self);
	*p = (struct ckpt_save_planner){ 0 };
}

int ckpt_save_planner_configure(struct ckpt_save_planner *p, const struct ckpt_state_dict *dict,
				const struct ckpt_save_planning *opt, struct ckpt_err *e)
{
	int rc = p->ops->configure(p->self, dict, opt, e);

	p->step = rc ? CKPT_STEP_NEW : CKPT_STEP_CONFIGURED;
	return rc;
}

int ckpt_save_planner_local_plan(struct ckpt_save_planner *p, struct ckpt_save_plan *ret,
				 struct ckpt_err *e)
{
	int rc = check_save(p, CKPT_STEP_CONFIGURED, e);

	if (!rc)
		rc = p->ops->local_plan(p->self, ret, e);
	if (!rc)
		p->step = CKPT_STEP_PLANNED;
	return rc;
}

int ckpt_save_planner_global_plan(struct ckpt_save_planner *p, const struct ckpt_save_plan *all,
				  size_t n, struct ckpt_save_plan *ret_parts,
				  struct ckpt_metadata *ret_md, struct ckpt_err *e)
{
	int rc = check_save(p, CKPT_STEP_PLANNED, e);

	return rc ? rc : p->ops->global_plan(p->self, all, n, ret_parts, ret_md, e);
}

int ckpt_save_planner_finish(struct ckpt_save_planner *p, const struct ckpt_save_plan *part,
			     struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	int rc = check_save(p, CKPT_STEP_PLANNED, e);

	if (!rc)
		rc = p->ops->finish(p->self, part, ret, e);
	if (!rc)
		p->step = CKPT_STEP_FINISHED;
	return rc;
}

int ckpt_save_planner_get_data(struct ckpt_save_planner *p, const struct ckpt_write_item *item,
			       struct ckpt_data *ret, struct ckpt_err *e)
{
	struct ckpt_data s = { 0 };
	int rc = check_save(p, CKPT_STEP_FINISHED, e);

	if (!rc)
		rc = p->ops->get_data(p->self, item, &s, e);
	if (rc)
		return rc;
	if (s.len && !s.data && !s.read) {
		ckpt_data_close(&s);
		return err_set(e, EINVAL, "'%s': no data",
			       FQN_TEXT(item->index.fqn, item->index.fqn_len));
	}
	*ret = s;
	return 0;
}

/* ---- loading ---- */

void ckpt_load_planner_free(struct ckpt_load_planner *p)
{
	if (p->ops)
		p->ops->free(p->self);
	*p = (struct ckpt_load_planner){ 0 };
}

int ckpt_load_planner_configure(struct ckpt_load_planner *p, const struct ckpt_state_dict *dict,
				const struct ckpt_metadata *md,
				const struct ckpt_load_planning *opt, struct ckpt_err *e)
{
	int rc = p->ops->configure(p->self, dict, md, opt, e);

	p->step = rc ? CKPT_STEP_NEW : CKPT_STEP_CONFIGURED;
	return rc;
}

int ckpt_load_planner_local_plan(struct ckpt_load_planner *p, struct ckpt_load_plan *ret,
				 struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_CONFIGURED, e);

	if (!rc)
		rc = p->ops->local_plan(p->self, ret, e);
	if (!rc)
		p->step = CKPT_STEP_PLANNED;
	return rc;
}

int ckpt_load_planner_global_plan(struct ckpt_load_planner *p, const struct ckpt_load_plan *all,
				  size_t n, struct ckpt_load_plan *ret_parts, struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_PLANNED, e);

	return rc ? rc : p->ops->global_plan(p->self, all, n, ret_parts, e);
}

int ckpt_load_planner_finish(struct ckpt_load_planner *p, const struct ckpt_load_plan *part,
			     struct ckpt_load_plan *ret, struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_PLANNED, e);

	if (!rc)
		rc = p->ops->finish(p->self, part, ret, e);
	if (!rc)
		p->step = CKPT_STEP_FINISHED;
	return rc;
}

int ckpt_load_planner_acquire_tensor(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
				     struct ckpt_tensor_view *ret, struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_FINISHED, e);

	return rc ? rc : p->ops->acquire_tensor(p->self, item, ret, e);
}

int ckpt_load_planner_apply_tensor(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
				   const struct ckpt_tensor_view *v, struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_FINISHED, e);

	return rc ? rc : p->ops->apply_tensor(p->self, item, v, e);
}

int ckpt_load_planner_apply_bytes(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
				  const void *data, size_t len, struct ckpt_err *e)
{
	int rc = check_load(p, CKPT_STEP_FINISHED, e);

	return rc ? rc : p->ops->apply_bytes(p->self, item, data, len, e);
}

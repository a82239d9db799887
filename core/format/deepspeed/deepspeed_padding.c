/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Padding in the flat tensors of ZeRO 1 and 2. It is at the end of a group, where it makes the
 * partitions equally long:
 *
 *	group_paddings			of this rank, for each group; only that of the last rank up to 0.16.3
 *
 * and, since 0.19.7, behind parameters, so that the next one is aligned:
 *
 *	param_alignment_paddings	for each group, a list with the padding behind each parameter
 */
#include "base/checked.h"
#include "format/deepspeed/deepspeed_states.h"

/* 1: it is not a list with a padding for each of the group's parameters, or not rank 0's. */
static int read_group(struct ds_open *o, const struct pk_value *v, struct ds_group *g, uint32_t r,
		      struct ckpt_err *e)
{
	uint64_t total = 0;
	int rc = torch_file_spend(&o->file, g->n, e);

	if (rc || pk_list_len(v) != g->n)
		return rc ? rc : 1;
	for (size_t i = 0; i < g->n; i++) {
		struct ds_param *p = &g->params[i];
		int64_t pad;

		if (!ds_number(&v->n->v[i], &pad) || pad < 0 || (r && p->pad != (uint64_t)pad))
			return 1;
		p->pad = (uint64_t)pad;
		if (ckd_add(&total, total, p->numel) || ckd_add(&total, total, p->pad) ||
		    total >> 62)
			return 1;
	}
	return 0;
}

static int read_between(struct ds_rank *x, struct ds_open *o, const struct pk_value *v, uint32_t r,
			struct ckpt_err *e)
{
	bool fits = !x->zero3 && !x->undivided && pk_list_len(v) == x->n_groups;
	int rc = 0;

	if (!r)
		x->has_pads = v != NULL;
	if (!v && !x->has_pads)
		return 0;
	for (size_t g = 0; fits && x->has_pads && !rc && g < x->n_groups; g++)
		rc = read_group(o, &v->n->v[g], &x->groups[g], r, e);
	if (rc < 0 || (fits && x->has_pads && !rc))
		return rc;
	(void)ds_refuse(x->d,
			"'%.120s': its param_alignment_paddings are not those of the parameters "
			"that the model states list%s",
			o->f->path, r ? ", or not those of rank 0's file" : "");
	return 1;
}

int ds_read_paddings(struct ds_rank *x, struct ds_open *o, const struct pk_value *states,
		     uint32_t r, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(states, "group_paddings");
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t g = 0; !rc && g < x->n_flat && n == x->n_flat; g++) {
		struct ds_flat_group *f = &x->flat[g];
		int64_t pad;

		if (!f->tail)
			f->tail = arena_array(&x->d->arena, x->world, sizeof(*f->tail));
		if (!f->tail)
			return err_nomem(e);
		if (!ds_number(&v->n->v[g], &pad) || pad < 0)
			continue;
		f->tail[r] = (uint64_t)pad;
		f->n_tails++;
	}
	return rc ? rc : read_between(x, o, ds_get(states, "param_alignment_paddings"), r, e);
}

bool ds_is_tail(const struct ds_rank *x, const struct ds_flat_group *f, const uint32_t *members,
		uint32_t n, uint64_t total)
{
	uint64_t rest = 0, full;

	if (f->n_tails != x->world)
		return true; /* before 0.7.4 nothing says it */
	for (uint32_t i = 0; i < n; i++)
		if (ckd_add(&rest, rest, f->tail[members[i]]))
			return false;
	return !ckd_mul(&full, f->columns[0].piece[members[0]].numel, (uint64_t)n) &&
	       full >= rest && full - rest == total;
}

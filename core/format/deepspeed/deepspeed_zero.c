/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer states: the pieces of flat tensors in each rank's file. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "format/deepspeed/deepspeed_states.h"
#include "parse/pickle_json.h"

#include <string.h>

enum { MAX_GROUPS = 65536 };

/* ---- one file ---- */

/* The column with that key; NULL: there are too many, or out of memory. */
static struct ds_making *column_of(struct ds_rank *x, struct ds_flat_group *g, const char *key,
				   size_t len, struct ckpt_err *e)
{
	struct ds_making *m;

	for (size_t i = 0; i < g->n; i++)
		if (g->columns[i].key->len == len && !memcmp(g->columns[i].key->data, key, len))
			return &g->columns[i];
	if (g->n == DS_MAX_COLUMNS) {
		(void)err_set(e, EFBIG, "more than %d kinds of optimizer state", DS_MAX_COLUMNS);
		return NULL;
	}
	m = &g->columns[g->n];
	m->key = ds_name(x->d, key, len, e);
	m->piece = arena_array(&x->d->arena, x->world, sizeof(*m->piece));
	m->have = arena_array(&x->d->arena, x->world, sizeof(*m->have));
	if (!m->key)
		return NULL;
	if (!m->piece || !m->have) {
		(void)err_nomem(e);
		return NULL;
	}
	g->n++;
	return m;
}

static int add_piece(struct ds_rank *x, struct ds_open *o, struct ds_flat_group *g, const char *key,
		     size_t len, const struct pk_value *v, uint32_t r, struct ckpt_err *e)
{
	struct ds_making *m = column_of(x, g, key, len, e);
	enum ckpt_dtype dtype;
	int rc = m ? ds_flat_of(x->d, o, v, key, &m->piece[r], &dtype, e) : -e->code;

	if (rc)
		return rc;
	m->mixed |= m->dtype != CKPT_DTYPE_NONE && m->dtype != dtype;
	m->dtype = dtype;
	m->have[r] = true;
	return 0;
}

/* 1: it is no step. */
static int read_step_value(struct ds_open *o, const struct pk_value *v, struct buf *text,
			   struct digest *ret, struct ckpt_err *e)
{
	struct torch_view t = { 0 };
	struct ckpt_err ignored;
	int rc;

	if (torch_is_tensor(v)) {
		rc = torch_file_view(&o->file, v, &t, e);
		return rc ? rc : torch_file_sample(&o->file, &t, ret, e);
	}
	if (v->type != PK_INT && v->type != PK_FLOAT)
		return 1;
	rc = pickle_json(v, text, &ignored);
	if (rc)
		return rc == -ENOMEM ? err_nomem(e) : 1;
	buf_str(text, "\n");
	digest_add(ret, text->data, text->len);
	return text->err ? err_nomem(e) : 0;
}

/* All ranks make the same steps. 1: this one has made others, which has been recorded. */
static int compare_steps(struct ds_rank *x, const struct ds_step *first, const struct ds_step *s)
{
	if (!first->path || first->is_option != s->is_option ||
	    !memcmp(&first->is, &s->is, sizeof(s->is)))
		return 0;
	(void)ds_refuse(
		x->d,
		"'%.120s' is of another step than '%.120s': they are from two different saves",
		s->path, first->path);
	return 1;
}

/* 1: it differs from that of other ranks, which has been recorded. */
static int read_step(struct ds_rank *x, struct ds_open *o, const struct pk_value *v, size_t group,
		     bool is_option, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(64);
	struct ds_flat_group *g = &x->flat[group];
	struct ds_step is = { .path = o->f->path, .is_option = is_option };
	int rc;

	if (!v || (g->stepped.path && g->stepped.is_option != is_option))
		return 0;
	rc = read_step_value(o, v, &text, &is.is, e);
	if (rc)
		return rc < 0 ? rc : 0;
	if (!g->stepped.path)
		g->have_step = arena_array(&x->d->arena, x->world, sizeof(*g->have_step));
	if (!g->have_step)
		return err_nomem(e);
	g->have_step[o->f->rank] = true;
	if (g->stepped.path)
		return compare_steps(x, &g->stepped, &is);
	if (x->d->n_first_steps == x->n_flat) {
		struct ds_step *first = &x->d->first_steps[group];

		if (compare_steps(x, first, &is))
			return 1;
		if (!first->path)
			*first = is;
	}
	g->stepped = is;
	g->step = (struct ds_tensor){ .stage = x->stage, .t = DS_WHOLE };
	if (torch_is_tensor(v))
		return ds_tensor_of(x->d, o, v, &g->step, e);
	g->step.text = arena_dup(&x->d->arena, text.data, text.len);
	return g->step.text ? 0 : err_nomem(e);
}

/* Reads a group's part of the optimizer state: flat tensors, and the step. */
static int read_state(struct ds_rank *x, struct ds_open *o, const struct pk_value *state,
		      size_t group, uint32_t r, struct ckpt_err *e)
{
	struct ds_flat_group *g = &x->flat[group];
	size_t n = pk_dict_len(state);
	int rc = torch_file_spend(&o->file, n + 1, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &state->n->v[2 * i], *v = key + 1;
		struct torch_tensor t = { 0 };
		struct ckpt_err ignored;

		if (key->type != PK_STR)
			continue;
		if (pk_is_text(key, "step"))
			rc = read_step(x, o, v, group, false, e);
		/*
		 * The error buffers of 1-bit Adam are as long as a communication buffer, not the
		 * group.
		 */
		else if (torch_is_tensor(v) && !pk_is_text(key, "worker_error") &&
			 !pk_is_text(key, "server_error") && !torch_tensor_read(v, &t, &ignored) &&
			 t.n_dims == 1)
			rc = add_piece(x, o, g, key->s->data, key->s->len, v, r, e);
	}
	return rc;
}

/* The step may be among the options of the optimizer's groups: {"params": [0, 1], "step": 3}. */
static int read_options(struct ds_rank *x, struct ds_open *o, const struct pk_value *list,
			struct ckpt_err *e)
{
	size_t n = pk_list_len(list);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *step = ds_get(&list->n->v[i], "step");
		const struct pk_value *params = ds_get(&list->n->v[i], "params");
		size_t m = step ? pk_list_len(params) : 0;

		rc = torch_file_spend(&o->file, m, e);
		for (size_t k = 0; !rc && k < m; k++) {
			int64_t g;

			if (ds_number(&params->n->v[k], &g) && g >= 0 && (uint64_t)g < x->n_flat)
				rc = read_step(x, o, step, (size_t)g, true, e);
		}
	}
	return rc;
}

/* Elastic states have no groups with options: the step of all of them is beside the states. */
static int read_common_step(struct ds_rank *x, struct ds_open *o, const struct pk_value *states,
			    struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(states, "base_optimizer_state_step");
	int rc = v ? torch_file_spend(&o->file, x->n_flat, e) : 0;

	for (size_t g = 0; v && !rc && g < x->n_flat; g++)
		rc = read_step(x, o, v, g, true, e);
	return rc;
}

/* {"state": {g: {...}}, "param_groups": [...]}; or, elastic, [{...}, ...]. */
static int read_base(struct ds_rank *x, struct ds_open *o, const struct pk_value *base, uint32_t r,
		     struct ckpt_err *e)
{
	const struct pk_value *state = ds_get(base, "state");
	size_t n = base && base->type == PK_LIST ? pk_len(base) : 0;
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n && i < x->n_flat; i++)
		rc = read_state(x, o, &base->n->v[i], i, r, e);
	n = pk_dict_len(state);
	if (!rc)
		rc = torch_file_spend(&o->file, n, e);
	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &state->n->v[2 * i];

		if (key->type == PK_INT && key->i >= 0 && (uint64_t)key->i < x->n_flat)
			rc = read_state(x, o, key + 1, (size_t)key->i, r, e);
	}
	return rc ? rc : read_options(x, o, ds_get(base, "param_groups"), e);
}

static const char flat3[] = "fp32_flat_groups", flat2[] = "single_partition_of_fp32_groups";

int ds_report_options(struct ds *d, struct ds_open *o, const struct pk_value *states,
		      const struct pk_value *groups, struct ckpt_err *e)
{
	static const char *const shown[] = { "loss_scaler", "dynamic_loss_scale", "overflow",
					     "clip_grad" };
	const char *steps[] = { "optimizer", "param_groups", NULL };
	int rc = groups ? torch_file_report(&o->file, groups, steps, d->w, e) : 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(shown); i++) {
		const struct pk_value *v = ds_get(states, shown[i]);

		steps[1] = shown[i];
		rc = v ? torch_file_report(&o->file, v, steps, d->w, e) : 0;
	}
	return rc;
}

/* Reads partition_count: a number, or one for each group. 1: it differs from the first file. */
static int read_counts(struct ds_rank *x, const struct pk_value *v, uint32_t r, struct ckpt_err *e)
{
	size_t n = pk_list_len(v);

	if (!r) {
		x->counts = arena_array(&x->d->arena, x->n_flat + 1, sizeof(*x->counts));
		if (!x->counts)
			return err_nomem(e);
	}
	for (size_t g = 0; g < x->n_flat; g++) {
		int64_t count = x->world; /* old versions do not record it */

		if (v && !ds_number(n ? &v->n->v[g < n ? g : 0] : v, &count))
			return 1;
		if (count < 1 || (n && g >= n) || (r && x->counts[g] != (uint64_t)count))
			return 1;
		x->counts[g] = (uint64_t)count;
	}
	return 0;
}

/* 1: it is inconsistent with the other files, which has been recorded. */
static int read_flat(struct ds_rank *x, struct ds_open *o, uint32_t r, struct ckpt_err *e)
{
	const struct pk_value *states = ds_get(&o->file.root, "optimizer_state_dict");
	const struct pk_value *flat = ds_get(states, flat3), *base;
	const struct pk_value *regrouped = ds_get(states, "ds_zero_partition_groups");
	bool zero3 = flat != NULL;
	int rc;

	base = ds_get(states, zero3 ? "optimizer_state_dict" : "base_optimizer_state");
	if (!flat)
		flat = ds_get(states, flat2);
	if (!flat || flat->type != PK_LIST) {
		(void)ds_refuse(
			x->d, "'%.120s' %s", o->f->path,
			ds_get(states, "local_sub_partitions_of_fp32_groups")
				? "is of ZeRO 1 before DeepSpeed 0.5.9, which recorded no names"
				: "holds no flat groups as ZeRO has them");
		return 1;
	}
	if (regrouped && pk_len(regrouped)) {
		(void)ds_refuse(x->d,
				"'%.120s' partitions experts by replica groups (AutoEP), which is "
				"not supported",
				o->f->path);
		return 1;
	}
	if (!r) {
		x->zero3 = zero3;
		x->n_flat = pk_len(flat);
		if (x->n_flat > MAX_GROUPS)
			return err_set(e, EFBIG, "'%.200s': more than %d groups", o->f->path,
				       MAX_GROUPS);
		x->flat = arena_array(&x->d->arena, x->n_flat + 1, sizeof(*x->flat));
		if (!x->flat)
			return err_nomem(e);
		if (!x->d->first_steps) {
			x->d->n_first_steps = x->n_flat;
			x->d->first_steps = arena_array(&x->d->arena, x->n_flat + 1,
							sizeof(*x->d->first_steps));
			if (!x->d->first_steps)
				return err_nomem(e);
		}
		if (!x->has_shapes)
			rc = ds_read_shapes(x, o, ds_get(&o->file.root, "param_shapes"), e);
		else
			rc = 0;
		if (!rc && !x->mp)
			rc = ds_report_options(x->d, o, states, ds_get(base, "param_groups"), e);
		if (rc)
			return rc;
	}
	if (zero3 != x->zero3 || pk_len(flat) != x->n_flat) {
		(void)ds_refuse(x->d,
				"'%.120s' has other groups than rank 0's file: they are from two "
				"different saves",
				o->f->path);
		return 1;
	}
	rc = read_counts(x, ds_get(states, "partition_count"), r, e);
	if (rc > 0)
		(void)ds_refuse(x->d,
				"'%.120s': its partition_count is not that of rank 0's file: they "
				"are from two different saves",
				o->f->path);
	if (!rc)
		rc = ds_read_paddings(x, o, states, r, e);
	if (!rc)
		rc = torch_file_spend(&o->file, x->n_flat, e);
	for (size_t g = 0; !rc && g < x->n_flat; g++)
		rc = add_piece(x, o, &x->flat[g], "fp32", 4, &flat->n->v[g], r, e);
	for (size_t g = 0; !rc && x->world > 1 && g < x->n_flat; g++) {
		const struct ds_making *m = &x->flat[g].columns[0];

		rc = ds_sample(o, &m->piece[r], m->dtype, &x->masters[r], e);
	}
	if (!rc)
		rc = read_base(x, o, base, r, e);
	return rc ? rc : read_common_step(x, o, states, e);
}

/* ---- all files ---- */

int ds_read_partitions(struct ds_rank *x, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(x->d, DS_OPTIM, x->mp, &n);
	int rc = ds_check_files(x, f, n);

	x->world = (uint32_t)n;
	x->masters = arena_array(&x->d->arena, n + 1, sizeof(*x->masters));
	if (!x->masters)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_open o;

		rc = ds_open(x->d, &f[i], &o, e);
		if (!rc)
			rc = read_flat(x, &o, (uint32_t)i, e);
		if (!rc && !i)
			rc = ds_check_world(x, f);
		rc = ds_close(x->d, &o, rc, e);
	}
	return rc ? rc : ds_check_whole(x, f, e);
}

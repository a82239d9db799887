/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of ds_to_universal.py: TAG/zero/FQN/{fp32,exp_avg,exp_avg_sq,step}.pt, beside the
 * model states. A file is a tensor, or a dict with it as "param", in its shape; for ZeRO 3 it is
 * flat, and the model states have the shape. A step may be a number. TAG/zero/optimizer_state.pt
 * has the options of the optimizer; with ZeRO 3 also a rank's states, which are not shown again.
 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "format/deepspeed/deepspeed_states.h"
#include "model/box.h"
#include "parse/pickle_json.h"

#include <string.h>

/* Adds a step that is a number. Anything else was written by another program, and is ignored. */
static int read_number(struct ds *d, const struct pk_value *v, struct ds_tensor *t,
		       struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(64);
	struct ckpt_err ignored;
	int rc;

	if ((v->type != PK_INT && v->type != PK_FLOAT) || !pk_str_is(t->key, "step"))
		return 0;
	rc = pickle_json(v, &text, &ignored);
	if (rc)
		return rc == -ENOMEM ? err_nomem(e) : 0;
	buf_str(&text, "\n");
	t->text = text.err ? NULL : arena_dup(&d->arena, text.data, text.len);
	return t->text ? ds_add(d, t, e) : err_nomem(e);
}

static int read_state(struct ds *d, struct ds_open *o, struct ds_tensor *t, struct ckpt_err *e)
{
	const struct pk_value *v = &o->file.root;
	struct ds_mark *m = ds_mark(d, t->name, e);
	uint64_t numel;
	int rc;

	if (!m)
		return -e->code;
	if (v->type == PK_DICT && pk_get(v, "param"))
		v = pk_get(v, "param");
	if (!torch_is_tensor(v))
		return read_number(d, v, t, e);
	rc = ds_tensor_of(d, o, v, t, e);
	if (rc)
		return err_wrap(e, "'%.200s'", o->f->path);
	if (v == &o->file.root && t->n_dims == 1 && !t->stride && m->is_param) {
		if (ds_numel(m->shape, m->n_dims, &numel, e))
			return -e->code;
		if (numel != t->numel)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' has %llu elements, the model states say %llu",
				       o->f->path, (unsigned long long)t->numel,
				       (unsigned long long)numel);
		t->shape = m->shape;
		t->n_dims = m->n_dims;
	}
	if (!strcmp(t->key->data, "fp32")) {
		m->is_universal = true;
		m->master_shape = t->shape;
		m->master_dims = t->n_dims;
	}
	return ds_add(d, t, e);
}

/* Does every parameter that was trained have a master? Experts' names are those of one rank. */
static void check_masters(struct ds *d)
{
	uint32_t n = pk_strings_count(d->names);
	size_t experts;

	(void)ds_files_of(d, DS_EXPERT, UINT32_MAX, &experts);
	for (uint32_t i = 0; !experts && i < n && i < d->cap_marks; i++)
		if (d->marks[i].is_param && !d->marks[i].is_frozen && !d->marks[i].is_universal) {
			(void)ds_miss(d, "'zero/%.120s/fp32.pt' is missing, and perhaps others",
				      pk_string(d->names, i)->data);
			return;
		}
}

/* A parameter's files, which follow each other in alphabetical order. */
struct states {
	const struct ds_file *f;
	size_t n;
};

static struct states states_of_one(const struct ds_file *f, size_t n)
{
	struct states r = { .f = f, .n = 1 };

	while (r.n < n && f[r.n].fqn_len == f->fqn_len && !memcmp(f[r.n].fqn, f->fqn, f->fqn_len))
		r.n++;
	return r;
}

static bool has_master(const struct states *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->f[i].base, "fp32.pt"))
			return true;
	return false;
}

/* Do both have the same files? */
static bool compare_states(struct ds *d, const struct states *a, const struct states *b)
{
	size_t i = 0;
	int order;

	while (i < a->n && i < b->n && !strcmp(a->f[i].base, b->f[i].base))
		i++;
	if (i == a->n && i == b->n)
		return true;
	order = i == a->n ? 1 : i == b->n ? -1 : strcmp(a->f[i].base, b->f[i].base);
	if (order > 0) {
		const struct states *other = a;

		a = b;
		b = other;
	}
	(void)ds_miss(d, "'zero/%.*s/%.40s' is missing, and perhaps others: '%.120s' is there",
		      b->f->fqn_len > 120 ? 120 : (int)b->f->fqn_len, b->f->fqn, a->f[i].base,
		      a->f[i].path);
	return false;
}

/* Do all parameters with a master have the same states? */
static void check_states(struct ds *d, const struct ds_file *f, size_t n)
{
	struct states first = { 0 };
	bool same = true;

	for (size_t i = 0; same && i < n;) {
		struct states s = states_of_one(f + i, n - i);

		i += s.n;
		if (!has_master(&s))
			continue;
		if (!first.n)
			first = s;
		same = compare_states(d, &first, &s);
	}
}

/* Drops states that do not have their master's shape, of the tensors from the first one on. */
static void drop_misfits(struct ds *d, size_t first)
{
	size_t kept = first;

	for (size_t i = first; i < d->n_tensors; i++) {
		const struct ds_tensor *t = &d->tensors[i];
		const struct ds_mark *m = ds_mark_of(d, t->name);

		if (!m->is_universal || !t->n_dims || /* a step has no dimensions */
		    (t->n_dims == m->master_dims &&
		     dims_equal(t->n_dims, t->shape, m->master_shape))) {
			d->tensors[kept++] = *t;
			continue;
		}
		(void)ds_refuse(
			d,
			"'zero/%.100s/%.40s.pt' has shape %s, but the fp32.pt beside it %s: "
			"they are from two different saves",
			t->name->data, t->key->data, TUPLE_TEXT(t->shape, t->n_dims),
			TUPLE_TEXT(m->master_shape, m->master_dims));
	}
	d->n_tensors = kept;
}

static int read_options(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_OPTIONS, UINT32_MAX, &n);
	struct ds_open o;
	int rc;

	if (!n)
		return 0;
	rc = ds_open(d, f, &o, e);
	if (!rc)
		rc = ds_report_options(d, &o, &o.file.root, ds_get(&o.file.root, "param_groups"),
				       e);
	return ds_close(d, &o, rc, e);
}

int ds_read_universal(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_UNIVERSAL, UINT32_MAX, &n);
	size_t first = d->n_tensors;
	int rc = 0;

	if (d->zenflow) /* this has been recorded */
		return 0;
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_tensor t = { .t = DS_WHOLE };
		struct ds_open o;

		t.name = ds_name(d, f[i].fqn, f[i].fqn_len, e);
		t.key = t.name ? ds_name(d, f[i].base, strlen(f[i].base) - strlen(".pt"), e) : NULL;
		if (!t.key)
			return -e->code;
		rc = ds_open(d, &f[i], &o, e);
		if (!rc)
			rc = read_state(d, &o, &t, e);
		rc = ds_close(d, &o, rc, e);
	}
	if (rc)
		return rc;
	check_masters(d);
	check_states(d, f, n);
	drop_misfits(d, first);
	return read_options(d, e);
}

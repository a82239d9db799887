/* SPDX-License-Identifier: Apache-2.0 */
#include "format/deepspeed/deepspeed_states.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/search.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

const struct pk_value *ds_get(const struct pk_value *dict, const char *key)
{
	const struct pk_value *v = pk_get(dict, key);

	return v && v->type != PK_NONE ? v : NULL;
}

bool ds_number(const struct pk_value *v, int64_t *ret)
{
	if (v && v->type == PK_OBJECT && v->n->own[PK_ARGS].type == PK_TUPLE &&
	    pk_len(&v->n->own[PK_ARGS]) == 1)
		v = &v->n->own[PK_ARGS].n->own[0];
	if (!v || v->type != PK_INT)
		return false;
	*ret = v->i;
	return true;
}

/* dict[key], which is probably pair number `at`. */
static int lookup(struct ds_open *o, const struct pk_value *dict, const struct pk_str *key,
		  size_t at, const struct pk_value **ret, struct ckpt_err *e)
{
	size_t n = pk_dict_len(dict);

	*ret = NULL;
	if (at < n) {
		const struct pk_value *k = &dict->n->v[2 * at];

		if (k->type == PK_STR && k->s->len == key->len &&
		    !memcmp(k->s->data, key->data, key->len)) {
			*ret = k + 1;
			return 0;
		}
	}
	if (torch_file_spend(&o->file, n, e))
		return -e->code;
	*ret = n ? pk_get_n(dict, key->data, key->len) : NULL;
	return 0;
}

/* ---- names and shapes ---- */

static int read_param(struct ds_rank *x, struct ds_open *o, const struct pk_value *pair,
		      struct ds_param *ret, struct ckpt_err *e)
{
	uint64_t shape[CKPT_MAX_DIMS], *copy;
	size_t n;

	if (pair->type != PK_STR || !pk_numbers(pair + 1, shape, CKPT_MAX_DIMS, &n))
		return err_set(e, ERR_CORRUPT,
			       "'%.200s': its names and shapes are not in DeepSpeed's form",
			       o->f->path);
	copy = arena_array(&x->d->arena, n + 1, sizeof(*copy));
	ret->name = ds_name(x->d, pair->s->data, pair->s->len, e);
	if (!ret->name || !copy)
		return ret->name ? err_nomem(e) : -e->code;
	if (n)
		memcpy(copy, shape, n * sizeof(*copy));
	ret->shape = copy;
	ret->n_dims = (uint8_t)n;
	if (ds_numel(shape, n, &ret->numel, e))
		return err_wrap(e, "'%.200s': '%.100s'", o->f->path, ret->name->data);
	digest_add(&x->shapes, ret->name->data, ret->name->len + 1);
	digest_add(&x->names, ret->name->data, ret->name->len + 1);
	digest_add(&x->shapes, shape, n * sizeof(*shape));
	return 0;
}

static int read_group(struct ds_rank *x, struct ds_open *o, const struct pk_value *dict,
		      struct ds_group *ret, struct ckpt_err *e)
{
	size_t n = pk_dict_len(dict);
	uint64_t total = 0;
	int rc = torch_file_spend(&o->file, n + 1, e);

	if (!rc && dict->type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s': param_shapes is not in DeepSpeed's form",
			     o->f->path);
	ret->params = rc ? NULL : arena_array(&x->d->arena, n + 1, sizeof(*ret->params));
	if (!rc && !ret->params)
		rc = err_nomem(e);
	ret->n = n;
	digest_add(&x->shapes, &n, sizeof(n));
	for (size_t i = 0; !rc && i < n; i++) {
		rc = read_param(x, o, &dict->n->v[2 * i], &ret->params[i], e);
		if (!rc && (ckd_add(&total, total, ret->params[i].numel) || total >> 62))
			rc = err_set(e, ERR_CORRUPT, "'%.200s': a group of more than 2^62 elements",
				     o->f->path);
	}
	return rc;
}

static int mark_group(struct ds_rank *x, const struct ds_group *g, bool frozen, struct ckpt_err *e)
{
	for (size_t i = 0; i < g->n; i++) {
		struct ds_mark *m = ds_mark(x->d, g->params[i].name, e);

		if (!m)
			return -e->code;
		m->is_param = true;
		m->is_frozen = frozen;
		m->shape = g->params[i].shape;
		m->n_dims = g->params[i].n_dims;
		m->stage = x->stage;
	}
	return 0;
}

int ds_read_shapes(struct ds_rank *x, struct ds_open *o, const struct pk_value *v,
		   struct ckpt_err *e)
{
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	if (rc || !v)
		return rc;
	x->has_shapes = true;
	x->undivided = v->type == PK_DICT;
	x->n_groups = x->undivided ? 1 : n;
	x->groups = arena_array(&x->d->arena, x->n_groups + 1, sizeof(*x->groups));
	if (!x->groups)
		return err_nomem(e);
	if (!x->undivided && v->type != PK_LIST && v->type != PK_TUPLE)
		return err_set(e, ERR_CORRUPT, "'%.200s': param_shapes is not in DeepSpeed's form",
			       o->f->path);
	for (size_t i = 0; !rc && i < x->n_groups; i++) {
		rc = read_group(x, o, x->undivided ? v : &v->n->v[i], &x->groups[i], e);
		if (!rc)
			rc = mark_group(x, &x->groups[i], false, e);
		x->n_params += x->groups[i].n;
	}
	return rc;
}

/* ---- model states ---- */

/* Reads shared_params: {name: the name that has the data}; only rank 0's file has it. */
static int read_shared(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "shared_params");
	size_t n = pk_dict_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *k = &v->n->v[2 * i];
		const struct pk_str *name, *of;

		if (k[0].type != PK_STR || k[1].type != PK_STR)
			continue;
		name = ds_name(x->d, k[0].s->data, k[0].s->len, e);
		of = name ? ds_name(x->d, k[1].s->data, k[1].s->len, e) : NULL;
		rc = of ? ds_add_alias(x->d, name, of, e) : -e->code;
	}
	return rc;
}

static int read_buffer_names(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "buffer_names");
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *s = &v->n->v[i];
		const struct pk_str *name;
		struct ds_mark *m;

		if (s->type != PK_STR)
			continue;
		name = ds_name(x->d, s->s->data, s->s->len, e);
		m = name ? ds_mark(x->d, name, e) : NULL;
		if (!m)
			return -e->code;
		m->is_buffer = true;
	}
	return rc;
}

/* The storage that a name of `module` points to: names with the same one are one parameter. */
struct tie {
	const struct pk_str *storage, *name;
	const uint64_t *shape;
	uint64_t offset;
	size_t order;
	uint8_t n_dims;
};

static int compare_ties(const struct tie *a, const struct tie *b)
{
	if (a->storage != b->storage)
		return a->storage->id < b->storage->id ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	if (a->n_dims != b->n_dims)
		return a->n_dims < b->n_dims ? -1 : 1;
	return a->n_dims ? memcmp(a->shape, b->shape, a->n_dims * sizeof(*a->shape)) : 0;
}

static int by_place(const void *ap, const void *bp)
{
	const struct tie *a = ap, *b = bp;
	int c = compare_ties(a, b);

	return c ? c : (a->order > b->order) - (a->order < b->order);
}

static int read_tie(struct ds_rank *x, const struct pk_value *pair, size_t order, struct tie *ret,
		    struct ckpt_err *e)
{
	struct torch_tensor t = { 0 };
	uint64_t *shape;

	if (torch_tensor_read(pair + 1, &t, e)) /* such values are not our concern */
		return 0;
	shape = arena_array(&x->d->arena, t.n_dims + 1, sizeof(*shape));
	ret->storage = ds_name(x->d, t.key, strlen(t.key), e);
	ret->name = ds_name(x->d, pair->s->data, pair->s->len, e);
	if (!shape || !ret->storage || !ret->name)
		return shape ? -e->code : err_nomem(e);
	if (t.n_dims)
		memcpy(shape, t.size, t.n_dims * sizeof(*shape));
	ret->shape = shape;
	ret->n_dims = (uint8_t)t.n_dims;
	ret->offset = t.offset;
	ret->order = order;
	return 1;
}

/*
 * Other names of a parameter within one module are in no list. But `module` has all of them, and
 * they point to the same storage; with ZeRO 3 it is empty, but each parameter has its own.
 */
static int find_ties(struct ds_rank *x, const struct pk_value *module, struct ckpt_err *e)
{
	size_t n = pk_len(module), n_known = 0, n_other = 0;
	autofree struct tie *v = calloc(2 * n + 1, sizeof(*v));
	struct tie *other = v + n;
	int rc = v ? 0 : err_nomem(e);

	for (size_t i = 0; rc >= 0 && i < n; i++) {
		const struct pk_value *pair = &module->n->v[2 * i];
		const struct ds_mark *m;
		struct tie t = { 0 };

		if (pair->type != PK_STR || !torch_is_tensor(pair + 1))
			continue;
		rc = read_tie(x, pair, i, &t, e);
		if (rc <= 0)
			continue;
		m = ds_mark_of(x->d, t.name);
		if (m && m->is_param)
			v[n_known++] = t;
		else if (!m || !m->is_buffer)
			other[n_other++] = t;
	}
	if (rc < 0 || !n_known)
		return rc < 0 ? rc : 0;
	rc = 0;
	qsort(v, n_known, sizeof(*v), by_place);
	for (size_t i = 0; !rc && i < n_other; i++) {
		size_t k = PARTITION_POINT(j, n_known, compare_ties(&v[j], &other[i]) < 0);

		if (k < n_known && !compare_ties(&v[k], &other[i]))
			rc = ds_add_alias(x->d, other[i].name, v[k].name, e);
	}
	return rc;
}

static int read_frozen_names(struct ds_rank *x, struct ds_open *o, size_t files, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "frozen_param_shapes");
	uint64_t n;
	int rc = v ? read_group(x, o, v, &x->frozen, e) : 0;

	if (rc || !v)
		return rc;
	if (ckd_mul(&n, (uint64_t)x->frozen.n, (uint64_t)files))
		return err_nomem(e);
	x->fragments = arena_array(&x->d->arena, n + 1, sizeof(*x->fragments));
	x->frozen_dtype = arena_array(&x->d->arena, x->frozen.n + 1, sizeof(*x->frozen_dtype));
	return x->fragments && x->frozen_dtype ? mark_group(x, &x->frozen, true, e) : err_nomem(e);
}

/*
 * Reads frozen parameters. ZeRO 3: every file has a part of each; otherwise they are whole, and
 * `module` may have them as well.
 */
static int read_frozen(struct ds_rank *x, struct ds_open *o, size_t file, size_t files,
		       struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "frozen_param_fragments"), *found;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->frozen.n; i++) {
		const struct ds_param *p = &x->frozen.params[i];
		struct ds_tensor t = { .name = p->name, .stage = x->stage, .t = x->t };
		struct ds_piece *piece = &x->fragments[i * files + file];
		enum ckpt_dtype dtype;

		rc = lookup(o, v, p->name, i, &found, e);
		if (rc || !found)
			continue;
		if (!x->sharded) {
			rc = ds_tensor_of(x->d, o, found, &t, e);
			if (!rc)
				rc = ds_add(x->d, &t, e);
			continue;
		}
		rc = ds_flat_of(x->d, o, found, p->name->data, piece, &dtype, e);
		if (!file)
			x->frozen_dtype[i] = dtype;
		else if (!rc && dtype != x->frozen_dtype[i])
			piece->numel = 0; /* reported later, as if it were missing */
	}
	return rc;
}

/* Reports everything else that was saved. */
static int read_rest(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	static const char *const known[] = { "module",
					     "buffer_names",
					     "param_shapes",
					     "frozen_param_shapes",
					     "shared_params",
					     "frozen_param_fragments",
					     "sparse_tensor_module_names" };
	size_t n = pk_len(&o->file.root);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &o->file.root.n->v[2 * i];
		const char *steps[] = { "train_state", NULL, NULL };
		bool skip = key->type != PK_STR || key[1].type == PK_NONE || !key->s->len ||
			    strlen(key->s->data) != key->s->len;

		for (size_t k = 0; !skip && k < ARRAY_LEN(known); k++)
			skip = !strcmp(key->s->data, known[k]);
		if (skip)
			continue;
		steps[1] = key->s->data;
		if (!strcmp(key->s->data, "optimizer") || !strcmp(key->s->data, "lr_scheduler")) {
			steps[0] = key->s->data;
			steps[1] = NULL;
		}
		rc = torchsave_report_at(&o->file.t, o->f->path, key + 1, steps, x->d->w, e);
	}
	return rc;
}

/* Reads how many tensor-parallel ranks there are. False: the file does not say it. */
static bool read_degrees(const struct ds_open *o, uint32_t ranks, uint32_t *ret)
{
	const struct pk_value *dims = ds_get(&o->file.root, "checkpoint_parallel_dimensions");
	int64_t tp, pp;

	if (!ds_number(ds_get(dims, "tp_degree"), &tp) ||
	    !ds_number(ds_get(dims, "pp_degree"), &pp) || tp <= 0 || pp <= 0 || tp > ranks ||
	    pp > ranks || tp * pp != ranks)
		return false;
	*ret = (uint32_t)tp;
	return true;
}

/* Reads from the first file how model-parallel ranks are divided. */
static int read_parallel(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	struct ds *d = x->d;
	const struct pk_value *module = ds_get(&o->file.root, "module");
	size_t layers;
	const struct ds_file *layer = ds_files_of(d, DS_LAYER, UINT32_MAX, &layers);
	uint32_t ranks = d->tp;

	d->pipeline = !module && layers;
	if (!read_degrees(o, ranks, &d->tp) && d->pipeline) {
		for (d->tp = 1; d->tp < layers && layer[d->tp].layer == layer->layer;)
			d->tp++;
		if (d->tp > ranks || ranks % d->tp)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' and others are of %u tensor-parallel ranks, but "
				       "there are model states of %u ranks",
				       layer->path, d->tp, ranks);
	}
	d->pp = ranks / d->tp;
	return ds_join_read(d, ds_get(&o->file.root, "universal_checkpoint_info"), e);
}

/*
 * Are these all model-parallel ranks of the save, and no others? A tag that is used again keeps the
 * files of ranks that are no more. mp_world_size includes pipeline stages (runtime/pipe/topology.py).
 */
static int check_model_ranks(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	uint32_t ranks = x->d->tp * (x->mp ? x->d->pp : 1); /* not divided yet */
	uint32_t tp = x->d->tp;
	int64_t saved;

	if (x->mp && read_degrees(o, ranks, &tp) && tp != x->d->tp)
		return err_set(e, ERR_CORRUPT,
			       "'%.200s' is of another save: it has %u tensor-parallel rank%s, and "
			       "the file of the first rank has %u",
			       o->f->path, tp, text_s(tp), x->d->tp);
	if (!ds_number(ds_get(&o->file.root, "mp_world_size"), &saved) || saved == ranks)
		return 0;
	return err_set(e, saved < ranks ? ERR_CORRUPT : ENOENT,
		       "there are model states of %u model-parallel rank%s, but '%.200s' was saved "
		       "with %lld: %s",
		       ranks, text_s(ranks), o->f->path, (long long)saved,
		       saved < ranks ? "files of an older, larger save lie under the same tag"
				     : "files are missing");
}

/* Reads num_experts: a number, or one for each layer of experts. */
static int read_expert_counts(struct ds *d, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "num_experts");
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&o->file, n, e);

	d->experts = rc ? NULL : arena_array(&d->arena, n + 1, sizeof(*d->experts));
	if (!d->experts)
		return rc ? rc : err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		int64_t count;

		if (!ds_number(&v->n->v[i], &count) || count < 1)
			return 0;
		d->experts[d->n_experts++] = (uint64_t)count;
	}
	return 0;
}

static int read_first_model(struct ds_rank *x, struct ds_open *o, size_t files, struct ckpt_err *e)
{
	const struct pk_value *module = ds_get(&o->file.root, "module");
	const struct pk_value *config = ds_get(&o->file.root, "ds_config");
	const struct pk_value *by_data = ds_get(config, "use_data_before_expert_parallelism");
	struct ds_weights weights = { .dict = module, .prefix = "", .buffers_only = x->sharded };
	int rc = check_model_ranks(x, o, e);

	if (!rc && !x->mp)
		rc = read_parallel(x, o, e);
	if (!rc && !x->mp)
		rc = read_expert_counts(x->d, o, e);
	x->stage = x->mp / x->d->tp;
	x->t = x->mp % x->d->tp;
	x->by_data = by_data && by_data->type == PK_BOOL && by_data->i;
	if (!rc)
		rc = read_buffer_names(x, o, e);
	if (!rc)
		rc = ds_read_shapes(x, o, ds_get(&o->file.root, "param_shapes"), e);
	if (!rc)
		rc = read_frozen_names(x, o, files, e);
	weights.stage = x->stage;
	weights.t = x->t;
	if (!rc && module && module->type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s': its 'module' is not a state dict",
			     o->f->path);
	if (!rc && module)
		rc = ds_read_weights(x->d, o, &weights, e);
	if (!rc && module)
		rc = find_ties(x, module, e);
	return rc || x->mp ? rc : read_rest(x, o, e);
}

/* Does this file have the same names and shapes as the first? 1: it does not. */
static int compare_shapes(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	struct ds_rank other = { .d = x->d, .mp = x->mp, .stage = x->stage };
	const struct pk_value *frozen = ds_get(&o->file.root, "frozen_param_shapes");
	int rc = ds_read_shapes(&other, o, ds_get(&o->file.root, "param_shapes"), e);

	if (!rc && frozen)
		rc = read_group(&other, o, frozen, &other.frozen, e);
	return rc ? rc : !!memcmp(&x->shapes, &other.shapes, sizeof(x->shapes));
}

/* All files must be of the same step. */
static int check_steps(struct ds *d, const struct ds_open *o, struct ckpt_err *e)
{
	int64_t steps;

	if (!ds_number(ds_get(&o->file.root, "global_steps"), &steps))
		return 0;
	if (!d->first_model) {
		d->first_model = o->f->path;
		d->steps = steps;
	}
	if (steps == d->steps)
		return 0;
	return err_set(
		e, ERR_CORRUPT,
		"'%.150s' was saved after %lld steps and '%.150s' after %lld: they are from two "
		"different saves",
		d->first_model, (long long)d->steps, o->f->path, (long long)steps);
}

/* 1: the files are inconsistent, which has been recorded. */
static int read_model(struct ds_rank *x, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(x->d, DS_MODEL, x->mp, &n);
	bool refused = false;
	int rc = 0;

	x->sharded = f->sharded;
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_open o;

		if (f[i].sharded != x->sharded)
			return err_set(
				e, ERR_CORRUPT,
				"'%.200s' and '%.200s' are from two different saves: ZeRO 3 writes "
				"one, the other stages the other; remove those of the older one",
				f->path, f[i].path);
		if (i && f[i].rank == f[i - 1].rank)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' and '%.200s' are of the same rank: one is from "
				       "another checkpoint",
				       f[i - 1].path, f[i].path);
		rc = ds_open(x->d, &f[i], &o, e);
		if (!rc && o.file.root.type != PK_DICT)
			rc = err_set(e, ERR_CORRUPT, "'%.200s' does not hold DeepSpeed's dict",
				     f[i].path);
		if (!rc)
			rc = check_steps(x->d, &o, e);
		if (!rc && !i)
			rc = read_first_model(x, &o, n, e);
		else if (!rc)
			rc = compare_shapes(x, &o, e);
		if (rc > 0) {
			refused = true;
			rc = ds_refuse(x->d,
				       "'%.120s' lists other parameters than '%.120s': they are "
				       "from two different saves",
				       f[i].path, f->path);
		}
		if (!rc)
			rc = read_shared(x, &o, e);
		if (!rc)
			rc = read_frozen(x, &o, i, n, e);
		if (!rc && f[i].rank != i && x->sharded && !refused) {
			refused = true;
			rc = ds_refuse(x->d,
				       "model states of rank %zu are missing (found '%.120s')", i,
				       f[i].path);
		}
		rc = ds_close(x->d, &o, rc, e);
	}
	return rc ? rc : refused;
}

/* Joins ZeRO 3's frozen parameters from the parts in all files. */
static int add_frozen(struct ds_rank *x, struct ckpt_err *e)
{
	size_t files;
	int rc = 0;

	(void)ds_files_of(x->d, DS_MODEL, x->mp, &files);
	for (size_t i = 0; !rc && x->sharded && i < x->frozen.n; i++) {
		const struct ds_param *p = &x->frozen.params[i];
		const struct ds_piece *piece = &x->fragments[i * files];
		uint64_t each = p->numel / files + (p->numel % files != 0);
		struct ds_column *c = arena_array(&x->d->arena, 1, sizeof(*c));
		struct ds_tensor t = { .name = p->name,
				       .shape = p->shape,
				       .n_dims = p->n_dims,
				       .numel = p->numel,
				       .dtype = x->frozen_dtype[i],
				       .column = c,
				       .stage = x->stage,
				       .t = x->t };
		bool whole = true;

		if (!c)
			return err_nomem(e);
		*c = (struct ds_column){
			.dtype = t.dtype, .by_parameter = true, .n = (uint32_t)files, .piece = piece
		};
		for (size_t r = 0; r < files; r++) /* the last ones are padded */
			whole &= piece[r].numel == each;
		if (!whole)
			rc = ds_refuse(x->d, "parts of frozen parameter '%.100s' are missing",
				       p->name->data);
		else if (t.dtype != CKPT_DTYPE_NONE)
			rc = ds_add(x->d, &t, e);
	}
	return rc;
}

/*
 * Tensor-parallel ranks of a pipeline's stage have slices of the same parameters. If layers have two
 * files each because older ones are under the same tag, ranks of two stages are taken for those of one.
 */
static int check_stage(const struct ds_rank *x, struct ckpt_err *e)
{
	if (!x->d->pipeline || !x->has_shapes)
		return 0;
	if (!x->t)
		x->d->of_stage = x->names;
	if (!memcmp(&x->names, &x->d->of_stage, sizeof(x->names)))
		return 0;
	return err_set(
		e, ERR_CORRUPT,
		"the model states of mp_rank_%02u and mp_rank_%02u list different parameters, but "
		"the layers' files are of %u tensor-parallel ranks: files of an older save lie "
		"under the same tag",
		x->mp - x->t, x->mp, x->d->tp);
}

int ds_read_rank(struct ds *d, uint32_t mp, struct ckpt_err *e)
{
	size_t first;
	struct ds_rank x = { .d = d, .mp = mp };
	int rc = read_model(&x, e);

	if (!rc)
		rc = check_stage(&x, e);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = add_frozen(&x, e);
	if (rc)
		return rc;
	first = d->n_tensors;
	rc = ds_read_partitions(&x, e);
	if (!rc && x.world)
		rc = ds_pair(&x, e);
	if (rc > 0) /* report nothing of it */
		d->n_tensors = first;
	return rc < 0 ? rc : 0;
}

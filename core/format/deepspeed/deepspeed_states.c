/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model states of a rank: the weights themselves, which names are buffers or other names, and
 * whether the files are of one save.
 */
#include "format/deepspeed/deepspeed_states.h"

#include "base/checked.h"
#include "base/text.h"

#include <stdio.h>
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

/* Reports the optimizer states of ZeRO 0, which torch.optim numbers on each model-parallel rank. */
static int read_optimizer(struct ds_rank *x, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = ds_get(&o->file.root, "optimizer");
	char rank[40];
	const char *const steps[] = { "optimizer", x->d->tp * x->d->pp > 1 ? rank : NULL, NULL };
	int rc;

	(void)snprintf(rank, sizeof(rank), "mp_rank_%02u", x->mp);
	rc = v ? torch_file_report(&o->file, v, steps, x->d->w, e) : 0;
	return rc || !v || !x->d->pipeline ? rc : ds_read_trained(x->d, o, v, x->t, e);
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
					     "sparse_tensor_module_names",
					     "optimizer" };
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
		if (!strcmp(key->s->data, "lr_scheduler")) {
			steps[0] = key->s->data;
			steps[1] = NULL;
		}
		rc = torch_file_report(&o->file, key + 1, steps, x->d->w, e);
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
	if (!layers && !d->universal && pk_get(&o->file.root, "module") && !module)
		(void)ds_miss(d, "the files of layers are missing: the model states have no "
				 "weights");
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
	return ds_join_read(d, o, ds_get(&o->file.root, "universal_checkpoint_info"), e);
}

/*
 * Are these all model-parallel ranks of the save, and no others? A tag that is used again keeps the
 * files of ranks that no longer exist. mp_world_size includes pipeline stages
 * (runtime/pipe/topology.py).
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
	int64_t each;
	int rc = torch_file_spend(&o->file, n, e);

	if (ds_number(v, &each) && each > 0)
		d->experts_each = (uint64_t)each;
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
	const struct pk_value *zero = ds_get(config, "zero_optimization");
	struct ds_weights weights = { .dict = module, .prefix = "", .placeholders = x->sharded };
	int rc = check_model_ranks(x, o, e);

	if (!rc && !x->mp)
		rc = read_parallel(x, o, e);
	if (!rc && !x->mp)
		rc = read_expert_counts(x->d, o, e);
	x->stage = x->mp / x->d->tp;
	x->t = x->mp % x->d->tp;
	x->by_data = by_data && by_data->type == PK_BOOL && by_data->i;
	x->d->zenflow |= ds_get(zero, "zenflow") != NULL;
	if (!rc)
		rc = read_buffer_names(x, o, e);
	if (!rc)
		rc = ds_read_shapes(x, o, ds_get(&o->file.root, "param_shapes"), e);
	if (!rc)
		rc = ds_read_frozen_names(x, o, files, e);
	weights.stage = x->stage;
	weights.t = x->t;
	if (!rc && module && module->type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s': its 'module' is not a state dict",
			     o->f->path);
	if (!rc && module)
		rc = ds_find_ties(x, module, e);
	if (!rc)
		rc = read_shared(x, o, e);
	if (!rc && module)
		rc = ds_read_weights(x->d, o, &weights, e);
	if (!rc)
		rc = read_optimizer(x, o, e);
	return rc || x->mp ? rc : read_rest(x, o, e);
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
			rc = ds_compare_shapes(x, &o, e);
		if (rc > 0) {
			refused = true;
			rc = ds_refuse(x->d,
				       "'%.120s' lists other parameters than '%.120s': they are "
				       "from two different saves",
				       f[i].path, f->path);
		}
		if (!rc && i)
			rc = read_shared(x, &o, e);
		if (!rc)
			rc = ds_read_frozen(x, &o, i, n, e);
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

/*
 * Tensor-parallel ranks of a pipeline's stage have slices of the same parameters. If layers have
 * two files each because older ones are under the same tag, ranks of two stages are taken for those
 * of one.
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

/* 1: something of it is left out, which has been recorded. */
static int read_rank(struct ds_rank *x, struct ckpt_err *e)
{
	size_t first;
	int rc = read_model(x, e);

	if (!rc)
		rc = check_stage(x, e);
	if (rc)
		return rc;
	/*
	 * ZenFlow flattens matrices transposed (runtime/zenflow/zenflow_utils.py). With ZeRO 3 so
	 * are the shapes that are recorded, unless the model was made in zero.Init
	 * (engine_stage3.py).
	 */
	if (x->d->zenflow)
		return ds_refuse(x->d,
				 "%s: the run used ZenFlow, which stores matrices transposed there",
				 x->sharded ? "the parameters" : "the optimizer states");
	rc = ds_add_frozen(x, e);
	if (rc)
		return rc;
	first = x->d->n_tensors;
	rc = ds_read_partitions(x, e);
	if (!rc && x->world)
		rc = ds_pair(x, e);
	if (rc > 0) /* report nothing of it */
		x->d->n_tensors = first;
	return rc;
}

int ds_read_rank(struct ds *d, uint32_t mp, struct ckpt_err *e)
{
	struct ds_rank x = { .d = d, .mp = mp };
	int rc = read_rank(&x, e);

	if (rc > 0)
		d->incomplete[mp / d->tp] = true;
	return rc < 0 ? rc : 0;
}

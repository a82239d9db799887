/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model and optimizer states of one model-parallel rank.
 *
 * param_shapes in the model states has the names and shapes, a dict for each group, in the order of
 * the parameters in the flat tensors. With |s| elements of a parameter and W files,
 *
 *	ZeRO 1, 2, BF16_Optimizer	a group's parameters are concatenated and split into the
 *					pieces single_partition_of_fp32_groups[g] of all ranks
 *	ZeRO 3				each is split into W parts of ceil(|s| / W), part r in
 *					fp32_flat_groups[g] of rank r, after the parts of the
 *					previous parameters
 *
 * The moments are laid out like the masters, followed by padding that may be longer.
 * param_slice_mappings has the same information in another form, and is wrong with
 * round_robin_gradients.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/deepspeed/deepspeed.h"
#include "index/catalog_build.h"
#include "parse/pickle_json.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAX_COLUMNS = 16, /* per group: there are three or four */
	MAX_GROUPS = 65536,
};

struct param {
	const struct pk_str *name;
	const uint64_t *shape;
	uint64_t numel;
	uint8_t n_dims;
};

struct group {
	struct param *params;
	size_t n;
};

/* A column while files are read: a piece for each rank that has one. */
struct making {
	const struct pk_str *key;
	enum ckpt_dtype dtype;
	bool mixed; /* its pieces have different dtypes */
	struct ds_piece *piece;
	bool *have;
};

struct flat_group {
	struct making columns[MAX_COLUMNS]; /* the first one holds the masters */
	size_t n;
	struct ds_tensor step;
	bool has_step;
};

struct rank {
	struct ds *d;
	uint32_t mp, stage, t;
	bool sharded; /* ZeRO 3's model states */

	struct group *groups;
	size_t n_groups, n_params;
	bool undivided; /* before 0.5.4: one dict for all groups */
	bool has_shapes;
	struct group frozen;
	struct ds_piece *fragments; /* frozen.n rows with a piece for each model states file */
	enum ckpt_dtype *frozen_dtype;
	struct digest shapes;

	uint32_t world; /* number of optimizer states files */
	bool zero3;
	uint64_t *counts; /* partition_count of each group */
	struct flat_group *flat;
	size_t n_flat;
	bool by_data; /* use_data_before_expert_parallelism */
};

/* ---- values ---- */

static const struct pk_value *dict_get(const struct pk_value *dict, const char *key)
{
	const struct pk_value *v = dict && dict->type == PK_DICT ? pk_get(dict, key) : NULL;

	return v && v->type != PK_NONE ? v : NULL;
}

static size_t list_len(const struct pk_value *v)
{
	return v && (v->type == PK_LIST || v->type == PK_TUPLE) ? pk_len(v) : 0;
}

/* The value of an integer or an enum. */
static bool number_of(const struct pk_value *v, int64_t *ret)
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
	size_t n = dict && dict->type == PK_DICT ? pk_len(dict) : 0;

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

static int read_param(struct rank *x, struct ds_open *o, const struct pk_value *pair,
		      struct param *ret, struct ckpt_err *e)
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
	digest_add(&x->shapes, shape, n * sizeof(*shape));
	return 0;
}

static int read_group(struct rank *x, struct ds_open *o, const struct pk_value *dict,
		      struct group *ret, struct ckpt_err *e)
{
	size_t n = dict->type == PK_DICT ? pk_len(dict) : 0;
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

static int mark_group(struct rank *x, const struct group *g, struct ckpt_err *e)
{
	for (size_t i = 0; i < g->n; i++) {
		struct ds_mark *m = ds_mark(x->d, g->params[i].name, e);

		if (!m)
			return -e->code;
		m->is_param = true;
		m->shape = g->params[i].shape;
		m->n_dims = g->params[i].n_dims;
		m->stage = x->stage;
	}
	return 0;
}

/* Reads param_shapes: a list with a dict for each group, a single dict, or None. */
static int read_shapes(struct rank *x, struct ds_open *o, const struct pk_value *v,
		       struct ckpt_err *e)
{
	size_t n = list_len(v);
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
			rc = mark_group(x, &x->groups[i], e);
		x->n_params += x->groups[i].n;
	}
	return rc;
}

/* ---- model states ---- */

/* Reads shared_params: {name: the name that has the data}; only rank 0's file has it. */
static int read_shared(struct rank *x, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = dict_get(&o->file.root, "shared_params");
	size_t n = v && v->type == PK_DICT ? pk_len(v) : 0;
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

static int read_buffer_names(struct rank *x, struct ds_open *o, struct ckpt_err *e)
{
	const struct pk_value *v = dict_get(&o->file.root, "buffer_names");
	size_t n = list_len(v);
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

static int read_tie(struct rank *x, const struct pk_value *pair, size_t order, struct tie *ret,
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
static int find_ties(struct rank *x, const struct pk_value *module, struct ckpt_err *e)
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
		size_t lo = 0, hi = n_known;

		while (lo < hi) {
			size_t mid = lo + (hi - lo) / 2;

			if (compare_ties(&v[mid], &other[i]) < 0)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo < n_known && !compare_ties(&v[lo], &other[i]))
			rc = ds_add_alias(x->d, other[i].name, v[lo].name, e);
	}
	return rc;
}

static int read_frozen_names(struct rank *x, struct ds_open *o, size_t files, struct ckpt_err *e)
{
	const struct pk_value *v = dict_get(&o->file.root, "frozen_param_shapes");
	uint64_t n;
	int rc = v ? read_group(x, o, v, &x->frozen, e) : 0;

	if (rc || !v)
		return rc;
	if (ckd_mul(&n, (uint64_t)x->frozen.n, (uint64_t)files))
		return err_nomem(e);
	x->fragments = arena_array(&x->d->arena, n + 1, sizeof(*x->fragments));
	x->frozen_dtype = arena_array(&x->d->arena, x->frozen.n + 1, sizeof(*x->frozen_dtype));
	return x->fragments && x->frozen_dtype ? mark_group(x, &x->frozen, e) : err_nomem(e);
}

/*
 * Reads frozen parameters. ZeRO 3: every file has a part of each; otherwise they are whole, and
 * `module` may have them as well.
 */
static int read_frozen(struct rank *x, struct ds_open *o, size_t file, size_t files,
		       struct ckpt_err *e)
{
	const struct pk_value *v = dict_get(&o->file.root, "frozen_param_fragments"), *found;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->frozen.n; i++) {
		const struct param *p = &x->frozen.params[i];
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
static int read_rest(struct rank *x, struct ds_open *o, struct ckpt_err *e)
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

/* Reads from the first file how model-parallel ranks are divided. */
static int read_parallel(struct rank *x, struct ds_open *o, struct ckpt_err *e)
{
	struct ds *d = x->d;
	const struct pk_value *dims = dict_get(&o->file.root, "checkpoint_parallel_dimensions");
	const struct pk_value *module = dict_get(&o->file.root, "module");
	int64_t tp, pp;
	size_t layers;
	const struct ds_file *layer = ds_files_of(d, DS_LAYER, UINT32_MAX, &layers);
	uint32_t ranks = d->tp;

	d->pipeline = !module && layers;
	if (number_of(dict_get(dims, "tp_degree"), &tp) &&
	    number_of(dict_get(dims, "pp_degree"), &pp) && tp > 0 && pp > 0 && tp <= ranks &&
	    pp <= ranks && tp * pp == ranks) {
		d->tp = (uint32_t)tp;
	} else if (d->pipeline) {
		for (d->tp = 1; d->tp < layers && layer[d->tp].layer == layer->layer;)
			d->tp++;
		if (d->tp > ranks || ranks % d->tp)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' and others are of %u tensor-parallel ranks, and "
				       "there are model states of %u ranks",
				       layer->path, d->tp, ranks);
	}
	d->pp = ranks / d->tp;
	return ds_join_read(d, dict_get(&o->file.root, "universal_checkpoint_info"), e);
}

static int read_first_model(struct rank *x, struct ds_open *o, size_t files, struct ckpt_err *e)
{
	const struct pk_value *module = dict_get(&o->file.root, "module");
	const struct pk_value *config = dict_get(&o->file.root, "ds_config");
	const struct pk_value *by_data = dict_get(config, "use_data_before_expert_parallelism");
	struct ds_weights weights = { .dict = module, .prefix = "", .buffers_only = x->sharded };
	int rc = x->mp ? 0 : read_parallel(x, o, e);

	x->stage = x->mp / x->d->tp;
	x->t = x->mp % x->d->tp;
	x->by_data = by_data && by_data->type == PK_BOOL && by_data->i;
	if (!rc)
		rc = read_buffer_names(x, o, e);
	if (!rc)
		rc = read_shapes(x, o, dict_get(&o->file.root, "param_shapes"), e);
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
static int compare_shapes(struct rank *x, struct ds_open *o, struct ckpt_err *e)
{
	struct rank other = { .d = x->d, .mp = x->mp, .stage = x->stage };
	const struct pk_value *frozen = dict_get(&o->file.root, "frozen_param_shapes");
	int rc = read_shapes(&other, o, dict_get(&o->file.root, "param_shapes"), e);

	if (!rc && frozen)
		rc = read_group(&other, o, frozen, &other.frozen, e);
	return rc ? rc : !!memcmp(&x->shapes, &other.shapes, sizeof(x->shapes));
}

/* 1: the files are inconsistent, which has been recorded. */
static int read_model(struct rank *x, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(x->d, DS_MODEL, x->mp, &n);
	bool refused = false;
	int rc = 0;

	x->sharded = f->sharded;
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_open o;

		if (f[i].sharded != x->sharded)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' and '%.200s' are of two saves: ZeRO 3 writes one, "
				       "the other stages the other; remove those of the older one",
				       f->path, f[i].path);
		rc = ds_open(x->d, &f[i], &o, e);
		if (!rc && o.file.root.type != PK_DICT)
			rc = err_set(e, ERR_CORRUPT, "'%.200s' does not hold DeepSpeed's dict",
				     f[i].path);
		if (!rc && !i)
			rc = read_first_model(x, &o, n, e);
		else if (!rc)
			rc = compare_shapes(x, &o, e);
		if (rc > 0) {
			refused = true;
			rc = ds_refuse(x->d,
				       "'%.120s' lists other parameters than '%.120s': they are of "
				       "two saves",
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
static int add_frozen(struct rank *x, struct ckpt_err *e)
{
	size_t files;
	int rc = 0;

	(void)ds_files_of(x->d, DS_MODEL, x->mp, &files);
	for (size_t i = 0; !rc && x->sharded && i < x->frozen.n; i++) {
		const struct param *p = &x->frozen.params[i];
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

/* ---- optimizer states: one file ---- */

/* The column with that key; NULL: there are too many, or out of memory. */
static struct making *column_of(struct rank *x, struct flat_group *g, const char *key, size_t len,
				struct ckpt_err *e)
{
	struct making *m;

	for (size_t i = 0; i < g->n; i++)
		if (g->columns[i].key->len == len && !memcmp(g->columns[i].key->data, key, len))
			return &g->columns[i];
	if (g->n == MAX_COLUMNS) {
		(void)err_set(e, EFBIG, "more than %d kinds of optimizer state", MAX_COLUMNS);
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

static int add_piece(struct rank *x, struct ds_open *o, struct flat_group *g, const char *key,
		     size_t len, const struct pk_value *v, uint32_t r, struct ckpt_err *e)
{
	struct making *m = column_of(x, g, key, len, e);
	enum ckpt_dtype dtype;
	int rc = m ? ds_flat_of(x->d, o, v, key, &m->piece[r], &dtype, e) : -e->code;

	if (rc)
		return rc;
	m->mixed |= m->dtype != CKPT_DTYPE_NONE && m->dtype != dtype;
	m->dtype = dtype;
	m->have[r] = true;
	return 0;
}

static int read_step(struct rank *x, struct ds_open *o, const struct pk_value *v,
		     struct flat_group *g, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(64);
	struct ckpt_err ignored;

	if (g->has_step || !v)
		return 0;
	g->step = (struct ds_tensor){ .stage = x->stage, .t = DS_WHOLE };
	if (torch_is_tensor(v)) {
		g->has_step = true;
		return ds_tensor_of(x->d, o, v, &g->step, e);
	}
	if ((v->type != PK_INT && v->type != PK_FLOAT) || pickle_json(v, &text, &ignored))
		return 0;
	buf_str(&text, "\n");
	g->step.text = text.err ? NULL : arena_dup(&x->d->arena, text.data, text.len);
	g->has_step = g->step.text != NULL;
	return g->has_step ? 0 : err_nomem(e);
}

/* Reads a group's part of the optimizer state: flat tensors, and the step. */
static int read_state(struct rank *x, struct ds_open *o, const struct pk_value *state,
		      struct flat_group *g, uint32_t r, struct ckpt_err *e)
{
	size_t n = state->type == PK_DICT ? pk_len(state) : 0;
	int rc = torch_file_spend(&o->file, n + 1, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &state->n->v[2 * i], *v = key + 1;
		struct torch_tensor t = { 0 };
		struct ckpt_err ignored;

		if (key->type != PK_STR)
			continue;
		if (pk_is_text(key, "step"))
			rc = read_step(x, o, v, g, e);
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
static int read_options(struct rank *x, struct ds_open *o, const struct pk_value *list,
			struct ckpt_err *e)
{
	size_t n = list_len(list);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *step = dict_get(&list->n->v[i], "step");
		const struct pk_value *params = dict_get(&list->n->v[i], "params");
		size_t m = step ? list_len(params) : 0;

		rc = torch_file_spend(&o->file, m, e);
		for (size_t k = 0; !rc && k < m; k++) {
			int64_t g;

			if (number_of(&params->n->v[k], &g) && g >= 0 && (uint64_t)g < x->n_flat)
				rc = read_step(x, o, step, &x->flat[g], e);
		}
	}
	return rc;
}

/* {"state": {g: {...}}, "param_groups": [...]}; or, elastic, [{...}, ...]. */
static int read_base(struct rank *x, struct ds_open *o, const struct pk_value *base, uint32_t r,
		     struct ckpt_err *e)
{
	const struct pk_value *state = dict_get(base, "state");
	size_t n = base && base->type == PK_LIST ? pk_len(base) : 0;
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n && i < x->n_flat; i++)
		rc = read_state(x, o, &base->n->v[i], &x->flat[i], r, e);
	n = state && state->type == PK_DICT ? pk_len(state) : 0;
	if (!rc)
		rc = torch_file_spend(&o->file, n, e);
	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *key = &state->n->v[2 * i];

		if (key->type == PK_INT && key->i >= 0 && (uint64_t)key->i < x->n_flat)
			rc = read_state(x, o, key + 1, &x->flat[key->i], r, e);
	}
	return rc ? rc : read_options(x, o, dict_get(base, "param_groups"), e);
}

static const char flat3[] = "fp32_flat_groups", flat2[] = "single_partition_of_fp32_groups";

/* Reports the values that are not tensors. */
static int read_options_of(struct rank *x, struct ds_open *o, const struct pk_value *states,
			   const struct pk_value *base, struct ckpt_err *e)
{
	static const char *const shown[] = { "loss_scaler", "dynamic_loss_scale", "overflow",
					     "clip_grad" };
	const struct pk_value *groups = dict_get(base, "param_groups");
	const char *steps[] = { "optimizer", "param_groups", NULL };
	int rc =
		groups ? torchsave_report_at(&o->file.t, o->f->path, groups, steps, x->d->w, e) : 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(shown); i++) {
		const struct pk_value *v = dict_get(states, shown[i]);

		steps[1] = shown[i];
		rc = v ? torchsave_report_at(&o->file.t, o->f->path, v, steps, x->d->w, e) : 0;
	}
	return rc;
}

/* Reads partition_count: a number, or one for each group. 1: it differs from the first file. */
static int read_counts(struct rank *x, const struct pk_value *v, uint32_t r, struct ckpt_err *e)
{
	size_t n = list_len(v);

	if (!r) {
		x->counts = arena_array(&x->d->arena, x->n_flat + 1, sizeof(*x->counts));
		if (!x->counts)
			return err_nomem(e);
	}
	for (size_t g = 0; g < x->n_flat; g++) {
		int64_t count = x->world; /* old versions do not record it */

		if (v && !number_of(n ? &v->n->v[g < n ? g : 0] : v, &count))
			return 1;
		if (count < 1 || (n && g >= n) || (r && x->counts[g] != (uint64_t)count))
			return 1;
		x->counts[g] = (uint64_t)count;
	}
	return 0;
}

/* 1: it is inconsistent with the other files, which has been recorded. */
static int read_flat(struct rank *x, struct ds_open *o, uint32_t r, struct ckpt_err *e)
{
	const struct pk_value *states = dict_get(&o->file.root, "optimizer_state_dict");
	const struct pk_value *flat = dict_get(states, flat3), *base;
	const struct pk_value *regrouped = dict_get(states, "ds_zero_partition_groups");
	bool zero3 = flat != NULL;
	int rc;

	base = dict_get(states, zero3 ? "optimizer_state_dict" : "base_optimizer_state");
	if (!flat)
		flat = dict_get(states, flat2);
	if (!flat || flat->type != PK_LIST) {
		(void)ds_refuse(x->d, "'%.120s' %s", o->f->path,
				dict_get(states, "local_sub_partitions_of_fp32_groups")
					? "is of the ZeRO 1 before DeepSpeed 0.5.9, which says no "
					  "names"
					: "holds no flat groups as ZeRO has them");
		return 1;
	}
	if (regrouped && pk_len(regrouped)) {
		(void)ds_refuse(x->d,
				"'%.120s' partitions experts by replica groups (AutoEP), which is "
				"not read",
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
		if (!x->has_shapes)
			rc = read_shapes(x, o, dict_get(&o->file.root, "param_shapes"), e);
		else
			rc = 0;
		if (!rc && !x->mp)
			rc = read_options_of(x, o, states, base, e);
		if (rc)
			return rc;
	}
	if (zero3 != x->zero3 || pk_len(flat) != x->n_flat) {
		(void)ds_refuse(x->d,
				"'%.120s' has other groups than rank 0's file: they are of "
				"two saves",
				o->f->path);
		return 1;
	}
	rc = read_counts(x, dict_get(states, "partition_count"), r, e);
	if (rc > 0)
		(void)ds_refuse(x->d,
				"'%.120s': its partition_count is not that of rank 0's file: they "
				"are of two saves",
				o->f->path);
	if (!rc)
		rc = torch_file_spend(&o->file, x->n_flat, e);
	for (size_t g = 0; !rc && g < x->n_flat; g++)
		rc = add_piece(x, o, &x->flat[g], "fp32", 4, &flat->n->v[g], r, e);
	return rc ? rc : read_base(x, o, base, r, e);
}

/* ---- optimizer states: all files ---- */

/* Do the files belong to one save? 1: no, which has been recorded. */
static int check_files(struct rank *x, const struct ds_file *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (f[i].prefix != f->prefix) {
			(void)ds_refuse(x->d,
					"'%.120s' and '%.120s' are of two saves with other "
					"precisions: remove those of the older one",
					f->path, f[i].path);
			return 1;
		}
		if (i && f[i].rank == f[i - 1].rank) {
			(void)ds_refuse(x->d, "'%.120s' and '%.120s' are both rank %u's",
					f[i - 1].path, f[i].path, f[i].rank);
			return 1;
		}
		if (f[i].rank != i) {
			(void)ds_refuse(x->d,
					"'%szero_pp_rank_%zu_mp_rank_%02u_optim_states.pt' is "
					"missing, though '%.120s' is there",
					f->prefix == DS_BF16   ? "bf16_"
					: f->prefix == DS_FP16 ? "fp16_"
							       : "",
					i, x->mp, f[i].path);
			return 1;
		}
	}
	return 0;
}

static int check_world(struct rank *x)
{
	uint64_t most = 0;

	for (size_t g = 0; g < x->n_flat; g++)
		most = max_u64(most, x->counts[g]);
	if (!x->n_flat || most == x->world)
		return 0;
	(void)ds_refuse(x->d,
			most < x->world
				? "there are optimizer states of %u ranks, and %llu were saved: "
				  "files of an older, larger save lie under the same tag"
				: "there are optimizer states of %u ranks, and %llu were saved: "
				  "files are missing",
			x->world, (unsigned long long)most);
	return 1;
}

/*
 * Before 0.5.4 one dict had the parameters of all groups; the groups' sizes tell how many belong to
 * each.
 */
static int divide(struct rank *x, const uint64_t *totals, struct ckpt_err *e)
{
	const struct group all = x->groups[0];
	uint64_t slack = x->zero3 ? 0 : 2 * (uint64_t)x->world - 1;
	struct group *v = arena_array(&x->d->arena, x->n_flat + 1, sizeof(*v));
	size_t at = 0;

	if (!v)
		return err_nomem(e);
	for (size_t g = 0; g < x->n_flat; g++) {
		uint64_t sum = 0;

		v[g].params = all.params + at;
		for (; at < all.n; at++, v[g].n++) {
			uint64_t numel = all.params[at].numel;
			uint64_t size =
				x->zero3 ? numel / x->world + (numel % x->world != 0) : numel;

			if (sum + size > totals[g])
				break;
			/* It may belong to the next group, with this one ending in padding. */
			if (g + 1 < x->n_flat && size && totals[g] - sum <= slack) {
				(void)ds_refuse(x->d,
						"it is not clear to which group '%.100s' "
						"belongs",
						all.params[at].name->data);
				return 1;
			}
			sum += size;
		}
	}
	x->groups = v;
	x->n_groups = x->n_flat;
	x->undivided = false;
	if (at == all.n)
		return 0;
	(void)ds_refuse(x->d, "param_shapes has more elements than the optimizer states");
	return 1;
}

static uint64_t total_of(const struct rank *x, const struct group *g)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < g->n; i++) {
		uint64_t numel = g->params[i].numel;

		sum += x->zero3 ? numel / x->world + (numel % x->world != 0) : numel;
	}
	return sum;
}

/*
 * The column made of the pieces of these ranks, in this order. NULL: it does not hold parameters.
 */
static int make_column(struct rank *x, const struct flat_group *g, const struct making *m,
		       const uint32_t *members, uint32_t n, const uint64_t *start,
		       struct ds_column **ret, struct ckpt_err *e)
{
	struct ds_column *c = arena_array(&x->d->arena, 1, sizeof(*c));
	struct ds_piece *v = arena_array(&x->d->arena, n + 1ul, sizeof(*v));
	uint64_t most = 0;

	*ret = NULL;
	if (!c || !v)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++)
		most = max_u64(most, g->columns[0].piece[members[i]].numel);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t lean = g->columns[0].piece[members[i]].numel;

		v[i] = m->piece[members[i]];
		/* Only masters are stored without padding; a rank may have only padding. */
		if (v[i].numel < lean || (x->zero3 && v[i].numel != lean && m->have[members[i]]) ||
		    v[i].numel > most + 2 * (uint64_t)x->world)
			return 0;
	}
	*c = (struct ds_column){ .key = m->key,
				 .dtype = m->dtype,
				 .by_parameter = x->zero3,
				 .n = n,
				 .piece = v,
				 .start = start };
	*ret = c;
	return 0;
}

/* "A.deepspeed_experts.3.up" is expert 3 of its rank: "A.deepspeed_experts.7.up" among all. */
static int expert_name(struct rank *x, const struct group *g, const struct pk_str *name,
		       uint32_t e_rank, const struct pk_str **ret, struct ckpt_err *e);

static int add_params(struct rank *x, const struct group *g, const struct ds_column *c,
		      const struct pk_str *const *names, struct ckpt_err *e)
{
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < g->n; i++) {
		const struct param *p = &g->params[i];
		struct ds_tensor t = { .name = names[i],
				       .key = c->key,
				       .shape = p->shape,
				       .n_dims = p->n_dims,
				       .numel = p->numel,
				       .dtype = c->dtype,
				       .column = c,
				       .at = at,
				       .stage = x->stage,
				       .t = x->t };

		rc = ds_add(x->d, &t, e);
		at += x->zero3 ? p->numel / x->world + (p->numel % x->world != 0) : p->numel;
	}
	return rc;
}

static int add_steps(struct rank *x, const struct group *g, const struct flat_group *f,
		     const struct pk_str *const *names, struct ckpt_err *e)
{
	struct ds_tensor t = f->step;
	int rc = 0;

	t.key = ds_name(x->d, "step", 4, e);
	if (!t.key)
		return -e->code;
	for (size_t i = 0; !rc && f->has_step && i < g->n; i++) {
		t.name = names[i];
		rc = ds_add(x->d, &t, e);
	}
	return rc;
}

/*
 * Adds a group as stored by the ranks that share it: all of them, or those of expert-parallel rank
 * `expert`. 1: it is inconsistent, which has been recorded.
 */
static int add_group(struct rank *x, size_t number, const uint32_t *members, uint32_t n,
		     int64_t expert, struct ckpt_err *e)
{
	const struct group *g = &x->groups[number];
	const struct flat_group *f = &x->flat[number];
	const struct making *fp32 = &f->columns[0];
	uint64_t *start = arena_array(&x->d->arena, n + 1ul, sizeof(*start));
	const struct pk_str **names = arena_array(&x->d->arena, g->n + 1, sizeof(*names));
	uint64_t total = total_of(x, g);
	bool fits = true;
	int rc = 0;

	if (!start || !names)
		return err_nomem(e);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t numel = fp32->piece[members[i]].numel;

		if (total && !numel && x->zero3) {
			(void)ds_refuse(x->d,
					"the masters of rank %u are not in its file: they were "
					"offloaded to NVMe",
					members[i]);
			return 1;
		}
		fits &= !x->zero3 || numel == total;
		/* cannot overflow: each is at most 2^62 bytes of a file */
		start[i + 1] = start[i] + numel;
		if (start[i + 1] >> 62)
			fits = false;
	}
	if (!x->zero3)
		fits &= start[n] >= total && start[n] - total < 2 * (uint64_t)x->world;
	if (!fits || fp32->mixed) {
		(void)ds_refuse(x->d,
				"group %zu of the optimizer states does not have the elements that "
				"the model states list, %llu: they are of two saves",
				number, (unsigned long long)total);
		return 1;
	}
	for (size_t i = 0; !rc && i < g->n; i++) {
		names[i] = g->params[i].name;
		if (expert >= 0)
			rc = expert_name(x, g, names[i], (uint32_t)expert, &names[i], e);
	}
	for (size_t k = 0; !rc && k < f->n; k++) {
		struct ds_column *c;

		rc = f->columns[k].mixed
			     ? 0
			     : make_column(x, f, &f->columns[k], members, n, start, &c, e);
		if (!rc && !f->columns[k].mixed && c)
			rc = add_params(x, g, c, names, e);
	}
	return rc ? rc : add_steps(x, g, f, names, e);
}

static bool expert_number(const struct pk_str *name, size_t *ret_at, size_t *ret_len, uint64_t *ret)
{
	static const char word[] = ".deepspeed_moe.experts.deepspeed_experts.";
	const char *s = name->data, *found = NULL;

	while ((s = strstr(s, word))) {
		s += strlen(word);
		found = s;
	}
	*ret = 0;
	*ret_len = 0;
	for (; found && found[*ret_len] >= '0' && found[*ret_len] <= '9' && *ret_len < 9;
	     (*ret_len)++)
		*ret = *ret * 10 + (uint64_t)(found[*ret_len] - '0');
	*ret_at = found ? (size_t)(found - name->data) : 0;
	return *ret_len > 0;
}

/* The number of experts per rank: those numbered 0, 1, ... in the names of the same module. */
static uint64_t local_experts(const struct group *g, const struct pk_str *name, size_t prefix)
{
	uint64_t most = 0, number;
	size_t at, len;

	for (size_t i = 0; i < g->n; i++)
		if (expert_number(g->params[i].name, &at, &len, &number) && at == prefix &&
		    !memcmp(g->params[i].name->data, name->data, prefix))
			most = max_u64(most, number + 1);
	return most;
}

static int expert_name(struct rank *x, const struct group *g, const struct pk_str *name,
		       uint32_t e_rank, const struct pk_str **ret, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT((size_t)1 << 20);
	uint64_t number;
	size_t at, len;

	if (!expert_number(name, &at, &len, &number)) {
		(void)ds_refuse(x->d,
				"'%.100s' is an expert's, and its name does not say which one's",
				name->data);
		return 1;
	}
	buf_add(&b, name->data, at);
	buf_u64(&b, e_rank * local_experts(g, name, at) + number);
	buf_add(&b, name->data + at + len, name->len - at - len);
	if (b.err)
		return err_set(e, b.err, "a name of %u bytes", name->len);
	*ret = ds_name(x->d, b.data, b.len, e);
	return *ret ? 0 : -e->code;
}

/* The names of a group's experts are made for each rank: limits their total. */
#define MAX_EXPERT_WORK ((uint64_t)1 << 30)

/* 1: it is inconsistent, which has been recorded. */
static int add_shared_group(struct rank *x, size_t g, struct ckpt_err *e)
{
	uint32_t *members = arena_array(&x->d->arena, x->world + 1ul, sizeof(*members));
	uint64_t count = x->counts[g], experts = x->world / count;
	uint64_t n = x->groups[g].n;
	int rc = 0;

	if (!members)
		return err_nomem(e);
	if (x->world % count || (experts > 1 && n && n * experts > MAX_EXPERT_WORK / n)) {
		(void)ds_refuse(x->d, "group %zu is of %llu ranks, of %u", g,
				(unsigned long long)count, x->world);
		return 1;
	}
	for (uint32_t i = 0; !rc && i < experts; i++) {
		uint32_t k = 0;

		for (uint32_t r = 0; r < x->world; r++)
			if (experts == 1 || (x->by_data ? r / count : r % experts) == i)
				members[k++] = r;
		rc = add_group(x, g, members, k, experts > 1 ? (int64_t)i : -1, e);
	}
	return rc;
}

static int read_optimizer(struct rank *x, struct ckpt_err *e)
{
	size_t n, first = x->d->n_tensors;
	struct ds_file *f = ds_files_of(x->d, DS_OPTIM, x->mp, &n);
	autofree uint64_t *totals = NULL;
	int rc = check_files(x, f, n);

	x->world = (uint32_t)n;
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_open o;

		rc = ds_open(x->d, &f[i], &o, e);
		if (!rc)
			rc = read_flat(x, &o, (uint32_t)i, e);
		if (!rc && !i)
			rc = check_world(x);
		rc = ds_close(x->d, &o, rc, e);
	}
	if (rc || !n)
		return rc < 0 ? rc : 0;
	if (x->has_shapes && x->undivided) {
		totals = calloc(x->n_flat + 1, sizeof(*totals));
		if (!totals)
			return err_nomem(e);
		for (size_t g = 0; g < x->n_flat; g++)
			for (uint32_t r = 0; r < x->world && (!r || !x->zero3); r++)
				totals[g] += x->flat[g].columns[0].piece[r].numel;
		rc = divide(x, totals, e);
	}
	if (!rc && x->n_groups != x->n_flat) {
		(void)ds_refuse(x->d,
				"the optimizer states have %zu groups, the model states %zu: they "
				"are of two saves",
				x->n_flat, x->n_groups);
		rc = 1;
	}
	for (size_t g = 0; !rc && g < x->n_flat; g++)
		rc = add_shared_group(x, g, e);
	if (rc > 0) /* report nothing of it */
		x->d->n_tensors = first;
	return rc < 0 ? rc : 0;
}

int ds_read_rank(struct ds *d, uint32_t mp, struct ckpt_err *e)
{
	struct rank x = { .d = d, .mp = mp };
	int rc = read_model(&x, e);

	if (rc)
		return rc < 0 ? rc : 0;
	rc = add_frozen(&x, e);
	return rc ? rc : read_optimizer(&x, e);
}

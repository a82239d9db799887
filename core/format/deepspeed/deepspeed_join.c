/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How slices of tensor parallelism are joined into their tensors.
 *
 * Only universal_checkpoint_info records this, as lists of Python's regular expressions. The first
 * list with an expression that matches the beginning of a name decides:
 *
 *	tp_replicated_parameter_patterns		all slices equal the tensor
 *	parameter_to_average_patterns			their mean, which is in no file
 *	parameter_with_2_sub_params_cat_dim_0		two halves each, joined half by half
 *	parameter_with_sub_params			the same for parts of given widths
 *	parameter_with_row_parallelism_patterns		joined along dimension 1
 *	none						joined along dimension 0
 *
 * In addition, tensors in vocabulary_parameter_patterns have original_vocab_size rows. DeepSpeed
 * only joins optimizer states, whose slices are never dropped; here weights are joined in the same
 * way.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "format/deepspeed/deepspeed.h"
#include "format/deepspeed/deepspeed_pattern.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERNS = 10000, MAX_PARTS = 64 };

enum list { REPLICATED, AVERAGED, TWO_PARTS, ROWS, VOCABULARY, N_LISTS };
static const char *const list_names[N_LISTS] = {
	[REPLICATED] = "tp_replicated_parameter_patterns",
	[AVERAGED] = "parameter_to_average_patterns",
	[TWO_PARTS] = "parameter_with_2_sub_params_cat_dim_0",
	[ROWS] = "parameter_with_row_parallelism_patterns",
	[VOCABULARY] = "vocabulary_parameter_patterns",
};

struct patterns {
	struct ds_pattern **v;
	size_t n;
};

/* {"patterns": [...], "shape": (..., (width, width), ...), "partition_dim": 0} */
struct parts {
	struct patterns patterns;
	uint64_t width[MAX_PARTS]; /* of all slices together; 0: equal widths */
	size_t n, dim;
};

struct ds_join {
	struct patterns lists[N_LISTS];
	struct parts *parts;
	size_t n_parts;
	bool has_vocabulary;
	uint64_t vocabulary;
	uint64_t work; /* budget left for matching patterns */
};

static void patterns_release(struct patterns *p)
{
	for (size_t i = 0; i < p->n; i++)
		ds_pattern_free(p->v[i]);
	free(p->v);
	*p = (struct patterns){ 0 };
}

void ds_join_free(struct ds_join *j)
{
	if (!j)
		return;
	for (size_t i = 0; i < N_LISTS; i++)
		patterns_release(&j->lists[i]);
	for (size_t i = 0; i < j->n_parts; i++)
		patterns_release(&j->parts[i].patterns);
	free(j->parts);
	free(j);
}

/* ---- reading ---- */

/* 1: it is not in DeepSpeed's form, which has been recorded. */
static int read_patterns(struct ds *d, const struct pk_value *v, const char *what,
			 struct patterns *ret, struct ckpt_err *e)
{
	size_t n = pk_list_len(v);

	if (n > MAX_PATTERNS)
		return err_set(e, EFBIG, "more than %d patterns in '%s'", MAX_PATTERNS, what);
	ret->v = calloc(n + 1, sizeof(struct ds_pattern *));
	if (!ret->v)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		const struct pk_value *s = &v->n->v[i];
		int rc = s->type == PK_STR ? ds_pattern_new(s->s->data, &ret->v[ret->n], e)
					   : -ERR_UNSUPPORTED;

		if (rc && rc != -ERR_UNSUPPORTED)
			return rc;
		if (rc) {
			(void)ds_refuse(d,
					"slices of tensor parallelism are listed as they are: "
					"pattern '%.100s' of universal_checkpoint_info is not "
					"understood",
					s->type == PK_STR ? s->s->data : "?");
			return 1;
		}
		ret->n++;
	}
	return 0;
}

/* False: these are not widths along one dimension. */
static bool read_widths(const struct pk_value *v, struct parts *p)
{
	const struct pk_value *shape = pk_field(v, "shape"), *dim = pk_field(v, "partition_dim"),
			      *w;

	if (!shape || (shape->type != PK_TUPLE && shape->type != PK_LIST) || !dim ||
	    dim->type != PK_INT || dim->i < 0 || (uint64_t)dim->i >= pk_len(shape) ||
	    dim->i >= CKPT_MAX_DIMS)
		return false;
	p->dim = (size_t)dim->i;
	w = &shape->n->v[dim->i];
	if (w->type == PK_INT) { /* a number of equal parts */
		if (w->i < 1 || w->i > MAX_PARTS)
			return false;
		p->n = (size_t)w->i;
		return true;
	}
	return pk_numbers(w, p->width, MAX_PARTS, &p->n) && p->n &&
	       !pk_field(v, "sub_param_shard_widths");
}

static int read_parts(struct ds *d, const struct pk_value *v, struct ds_join *j, struct ckpt_err *e)
{
	size_t n = pk_list_len(v);
	int rc = 0;

	if (n > MAX_PATTERNS)
		return err_set(e, EFBIG, "more than %d patterns of sub-parameters", MAX_PATTERNS);
	j->parts = calloc(n + 1, sizeof(*j->parts));
	if (!j->parts)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < n; i++) {
		struct parts *p = &j->parts[j->n_parts++];
		const struct pk_value *patterns = pk_field(&v->n->v[i], "patterns");

		rc = read_patterns(d, patterns, "parameter_with_sub_params", &p->patterns, e);
		if (!rc && !read_widths(&v->n->v[i], p))
			p->n = 0; /* list matching tensors as slices */
	}
	return rc;
}

int ds_join_read(struct ds *d, const struct pk_value *info, struct ckpt_err *e)
{
	const struct pk_value *size;
	struct ds_join *j;
	int rc = 0;

	if (!info || info->type != PK_DICT || d->tp == 1)
		return 0;
	j = calloc(1, sizeof(*j));
	if (!j)
		return err_nomem(e);
	j->work = DS_PATTERN_WORK;
	for (size_t i = 0; !rc && i < N_LISTS; i++)
		rc = read_patterns(d, pk_get(info, list_names[i]), list_names[i], &j->lists[i], e);
	if (!rc)
		rc = read_parts(d, pk_get(info, "parameter_with_sub_params"), j, e);
	if (!rc && pk_get(info, "sub_param_shard_widths")) {
		(void)ds_refuse(d, "slices of tensor parallelism are listed as they are: their "
				   "sub-parameters are of uneven widths");
		rc = 1;
	}
	size = pk_get(info, "original_vocab_size");
	if (size && size->type == PK_INT && size->i >= 0) {
		j->has_vocabulary = true;
		j->vocabulary = (uint64_t)size->i;
	}
	if (rc) {
		ds_join_free(j);
		return rc < 0 ? rc : 0;
	}
	d->join = j;
	return 0;
}

/* ---- queries ---- */

static bool matches(struct ds_join *j, const struct patterns *p, const struct pk_str *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (ds_pattern_match(p->v[i], name->data, name->len, &j->work))
			return true;
	return false;
}

/* Do they have the same dtype, and the same shape except along dimension dim? */
static bool fit(const struct ds_tensor *const *v, uint32_t n, size_t dim)
{
	for (uint32_t i = 0; i < n; i++) {
		if (v[i]->dtype != v[0]->dtype || v[i]->n_dims != v[0]->n_dims || v[i]->text)
			return false;
		for (size_t k = 0; k < v[0]->n_dims; k++)
			if (k != dim && v[i]->shape[k] != v[0]->shape[k])
				return false;
	}
	return true;
}

/* Parts of equal or given widths; each slice has an equal share of every part. */
static bool make_segments(const struct ds_tensor *const *v, uint32_t n, const struct parts *p,
			  struct ds_joined *ret)
{
	uint64_t at = 0;

	for (size_t k = 0; k < p->n; k++) {
		uint64_t inner = 0;

		for (uint32_t i = 0; i < n; i++) {
			struct ds_segment *s = &ret->segments[i * p->n + k];
			uint64_t len = v[i]->shape[p->dim];

			if (p->width[0] ? p->width[k] % n : len % p->n)
				return false;
			s->len = p->width[0] ? p->width[k] / n : len / p->n;
			s->from = k ? s[-1].from + s[-1].len : 0;
			s->to = at + inner;
			if (!range_ok(s->from, s->len, len) || ckd_add(&inner, inner, s->len))
				return false;
			if (k + 1 == p->n && s->from + s->len != len)
				return false;
		}
		if (ckd_add(&at, at, inner) || at >> 62)
			return false;
	}
	ret->shape[p->dim] = at;
	return true;
}

/* Rows beyond the vocabulary are padding. */
static void cut(struct ds_joined *j, uint32_t n, uint64_t rows)
{
	for (size_t i = 0; i < n * j->per_slice; i++) {
		struct ds_segment *s = &j->segments[i];

		s->len = s->to >= rows ? 0 : min_u64(s->len, rows - s->to);
	}
	j->shape[0] = min_u64(j->shape[0], rows);
}

int ds_join_find(struct ds *d, const struct ds_tensor *const *slices, uint32_t n,
		 struct ds_joined *ret, struct ckpt_err *e)
{
	struct ds_join *j = d->join;
	const struct ds_tensor *t = slices[0];
	struct parts how = { .n = 1 };
	uint64_t numel;
	bool same, cut_rows;

	if (!j)
		return 0;
	*ret = (struct ds_joined){ .n_slices = n, .per_slice = 1 };
	same = matches(j, &j->lists[REPLICATED], t->name);
	if (!same && matches(j, &j->lists[AVERAGED], t->name))
		return 0;
	if (same) {
		ret->n_slices = 1;
	} else if (matches(j, &j->lists[TWO_PARTS], t->name)) {
		how.n = 2;
	} else {
		bool found = false;

		for (size_t i = 0; !found && i < j->n_parts; i++)
			if (matches(j, &j->parts[i].patterns, t->name)) {
				how = j->parts[i];
				found = true;
			}
		if (!found && matches(j, &j->lists[ROWS], t->name))
			how.dim = 1;
	}
	cut_rows = j->has_vocabulary && matches(j, &j->lists[VOCABULARY], t->name);
	if (!how.n || (cut_rows && how.dim) || !fit(slices, n, same ? CKPT_MAX_DIMS : how.dim) ||
	    (!t->n_dims && !same) || (t->n_dims && how.dim >= t->n_dims))
		return 0;
	ret->dim = how.dim;
	ret->per_slice = how.n;
	ret->segments = calloc((size_t)n * how.n, sizeof(*ret->segments));
	if (!ret->segments)
		return err_nomem(e);
	if (t->n_dims)
		memcpy(ret->shape, t->shape, t->n_dims * sizeof(*t->shape));
	if (t->n_dims && !make_segments(slices, ret->n_slices, &how, ret))
		return 0;
	if (t->n_dims && cut_rows)
		cut(ret, ret->n_slices, j->vocabulary);
	if (!j->work) {
		(void)ds_refuse(d, "slices of tensor parallelism are listed as they are: the "
				   "patterns of universal_checkpoint_info take too long");
		return 0;
	}
	return ds_numel(ret->shape, t->n_dims, &numel, e) ? -e->code : 1;
}

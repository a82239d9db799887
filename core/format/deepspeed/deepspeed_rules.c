/* SPDX-License-Identifier: Apache-2.0 */
/*
 * universal_checkpoint_info says how slices of tensor parallelism are joined, in lists of Python's
 * regular expressions. The first list with an expression that matches the beginning of a name
 * decides:
 *
 *	autotp_unsupported_parameter_patterns		{pattern: reason}: in a way that is not recorded
 *	expert_parameter_patterns			slices have other experts, or all of them
 *	tp_replicated_parameter_patterns		all slices equal the tensor
 *	parameter_to_average_patterns			their mean, which is in no file
 *	parameter_with_2_sub_params_cat_dim_0		two halves each, joined half by half
 *	parameter_with_sub_params			the same for parts of given widths
 *	parameter_with_row_parallelism_patterns		joined along dimension 1
 *	none						joined along dimension 0
 *
 * In addition, tensors in vocabulary_parameter_patterns have original_vocab_size rows. AutoTP
 * writes an expression for each parameter, ^NAME$; these are looked up, and only others are
 * matched.
 */
#include "format/deepspeed/deepspeed_rules.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/vec.h"
#include "format/deepspeed/deepspeed.h"
#include "format/deepspeed/deepspeed_pattern.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERNS = 10000, MAX_PARTS = 64, MAX_NAME = 1 << 20, MAX_REASON = 200 };
/* For reading all lists: bytes of patterns, which may be one long string again and again. */
enum { READ_WORK = 1 << 29, ENTRY_WORK = 64 };

static const char too_long[] = "slices of tensor parallelism are listed as they are: the "
			       "patterns of universal_checkpoint_info take too long";

enum list { UNSUPPORTED, EXPERTS, REPLICATED, AVERAGED, TWO_PARTS, ROWS, VOCABULARY, N_LISTS };
static const char *const list_names[N_LISTS] = {
	[UNSUPPORTED] = "autotp_unsupported_parameter_patterns",
	[EXPERTS] = "expert_parameter_patterns",
	[REPLICATED] = "tp_replicated_parameter_patterns",
	[AVERAGED] = "parameter_to_average_patterns",
	[TWO_PARTS] = "parameter_with_2_sub_params_cat_dim_0",
	[ROWS] = "parameter_with_row_parallelism_patterns",
	[VOCABULARY] = "vocabulary_parameter_patterns",
};
enum { PARTS = N_LISTS }; /* parameter_with_sub_params */

/* An expression of a list, with what the list says about it. */
struct entry {
	struct ds_pattern *pattern;
	const struct ds_parts *parts; /* of PARTS */
	const char *reason;	      /* of UNSUPPORTED; may be NULL */
};

/* What the lists say about a name that is one of their expressions. */
struct literal {
	unsigned lists; /* a bit for each */
	const struct ds_parts *parts;
	const char *reason;
};

struct patterns {
	struct entry *v;
	size_t n, cap;
};

struct ds_join {
	struct patterns lists[N_LISTS + 1];
	size_t n_patterns;
	struct pk_strings *names; /* of parameters, of which literals[id] is known; and reasons */
	struct literal *literals;
	size_t cap_literals;
	bool has_vocabulary;
	uint64_t vocabulary;
	struct ds_rule **rules; /* by the id of a name in ds.names; NULL for names of no slices */
	size_t n_rules;
};

void ds_join_free(struct ds_join *j)
{
	if (!j)
		return;
	for (size_t i = 0; i < ARRAY_LEN(j->lists); i++) {
		for (size_t k = 0; k < j->lists[i].n; k++)
			ds_pattern_free(j->lists[i].v[k].pattern);
		free(j->lists[i].v);
	}
	pk_strings_free(j->names);
	free(j->literals);
	free(j->rules);
	free(j);
}

/* ---- reading ---- */

struct reading {
	struct ds *d;
	struct ds_open *o;
	struct ds_join *j;
	const struct pk_value *widths; /* sub_param_shard_widths, or NULL */
	bool old;		       /* before version 0.4: equal widths are not recorded */
	uint64_t work;		       /* budget left */
	struct ckpt_err *e;
};

/* ^NAME$ with NAME escaped as by re.escape: adds NAME to the buffer. */
static bool read_literal(const char *s, size_t len, struct buf *ret)
{
	if (len < 2 || *s != '^' || s[len - 1] != '$')
		return false;
	for (size_t i = 1; i + 1 < len; i++) {
		if (s[i] == '\\') {
			unsigned char c = (unsigned char)s[++i];

			if (i + 1 == len || c > 0x7f || (c >= '0' && c <= '9') ||
			    ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
				return false;
		} else if (!s[i] || strchr(".^$*+?{[\\|()", s[i])) {
			return false;
		}
		buf_add(ret, s + i, 1);
	}
	return !ret->err;
}

static int add_literal(struct reading *x, unsigned list, const struct buf *name,
		       const struct entry *is)
{
	struct ds_join *j = x->j;
	const struct pk_str *s = pk_intern(j->names, name->data, name->len);
	struct literal *l;

	if (!s || !VEC_ROOM_ZEROED(j->literals, j->cap_literals, s->id + (size_t)1))
		return err_nomem(x->e);
	l = &j->literals[s->id];
	if (!(l->lists & 1u << list)) { /* the first one counts */
		l->parts = is->parts ? is->parts : l->parts;
		l->reason = is->reason ? is->reason : l->reason;
	}
	l->lists |= 1u << list;
	return 0;
}

static int take_too_long(struct reading *x)
{
	(void)ds_refuse(x->d, "%s", too_long);
	return 1;
}

/* Call it before an entry is read. 1: it is too much, which has been recorded. */
static int spend(struct reading *x, const struct pk_value *pattern)
{
	uint64_t n = ENTRY_WORK + (pattern->type == PK_STR ? pattern->s->len : 0);

	if (x->work <= n)
		return take_too_long(x);
	x->work -= n;
	return 0;
}

/* 1: it is not understood, or there are too many, which has been recorded. */
static int add_pattern(struct reading *x, unsigned list, const struct pk_value *v, struct entry is)
{
	struct buf name CLEANUP(buf_release) = BUF_INIT(MAX_NAME);
	struct patterns *p = &x->j->lists[list];
	int rc = -ERR_UNSUPPORTED;

	if (v->type == PK_STR && read_literal(v->s->data, v->s->len, &name))
		return add_literal(x, list, &name, &is);
	if (x->j->n_patterns == MAX_PATTERNS) {
		(void)ds_refuse(x->d,
				"slices of tensor parallelism are listed as they are: "
				"universal_checkpoint_info has more than %d patterns",
				MAX_PATTERNS);
		return 1;
	}
	if (v->type == PK_STR && strlen(v->s->data) == v->s->len)
		rc = ds_pattern_new(v->s->data, &x->work, &is.pattern, x->e);
	if (!rc && !VEC_ROOM(p->v, p->cap, p->n + 1)) {
		ds_pattern_free(is.pattern);
		return err_nomem(x->e);
	}
	if (rc == -ERR_UNSUPPORTED && !x->work)
		return take_too_long(x);
	if (rc == -ERR_UNSUPPORTED) {
		(void)ds_refuse(x->d,
				"slices of tensor parallelism are listed as they are: pattern "
				"'%.100s' of universal_checkpoint_info is not understood",
				v->type == PK_STR ? v->s->data : "?");
		return 1;
	}
	if (rc)
		return rc;
	x->j->n_patterns++;
	p->v[p->n++] = is;
	return 0;
}

/* A list of patterns, or a dict of them with reasons. */
static int read_list(struct reading *x, unsigned list, const struct pk_value *v)
{
	size_t n = v && v->type == PK_DICT ? pk_len(v) : pk_list_len(v);
	int rc = torch_file_spend(&x->o->file, n, x->e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *p = &v->n->v[v->type == PK_DICT ? 2 * i : i];
		struct entry is = { 0 };
		const struct pk_str *why;

		rc = spend(x, p);
		if (!rc && v->type == PK_DICT && p[1].type == PK_STR) {
			why = pk_intern(x->j->names, p[1].s->data,
					(size_t)min_u64(p[1].s->len, MAX_REASON));
			if (!why)
				return err_nomem(x->e);
			is.reason = why->data;
		}
		if (!rc)
			rc = add_pattern(x, list, p, is);
	}
	return rc;
}

/* ---- parts ---- */

/* Widths for each slice; or, before version 0.4, only of all together. False: they do not fit. */
static bool fill_widths(const struct reading *x, const struct pk_value *widths,
			const uint64_t *total, size_t n, uint64_t *ret)
{
	uint32_t tp = x->d->tp;

	if (widths && pk_list_len(widths) != n)
		return false;
	for (size_t k = 0; k < n; k++) {
		uint64_t *w = ret + k * tp, sum = 0;

		if (widths && pk_list_len(&widths->n->v[k]) != tp)
			return false;
		for (uint32_t t = 0; t < tp; t++) {
			int64_t one = (int64_t)(total[k] / tp);

			if (widths) {
				const struct pk_value *v = &widths->n->v[k].n->v[t];

				one = v->type == PK_INT ? v->i : -1;
			}
			if (one < 0 || ckd_add(&sum, sum, (uint64_t)one))
				return false;
			w[t] = (uint64_t)one;
		}
		if (sum != total[k])
			return false;
	}
	return true;
}

/*
 * How a tensor is made of its parts, by the shape in an entry of parameter_with_sub_params. *ret is
 * without parts if that is not known.
 */
static int read_parts(struct reading *x, const struct pk_value *v, const struct pk_value *pattern,
		      struct ds_parts *ret)
{
	const struct pk_value *shape = pk_field(v, "shape"), *dim = pk_field(v, "partition_dim"),
			      *w;
	const struct pk_value *widths = /* that are recorded for this pattern */
		pattern->type == PK_STR ? pk_get_n(x->widths, pattern->s->data, pattern->s->len)
					: NULL;
	uint64_t total[MAX_PARTS], *width;
	size_t n = 0;
	int rc;

	if (!pk_list_len(shape) || !dim || dim->type != PK_INT || dim->i < 0 ||
	    (uint64_t)dim->i >= pk_len(shape) || dim->i >= CKPT_MAX_DIMS ||
	    pk_field(v, "sub_param_shard_widths"))
		return 0;
	ret->dim = (size_t)dim->i;
	ret->rank = pk_len(shape);
	w = &shape->n->v[dim->i];
	if (w->type == PK_INT) { /* a number of equal parts */
		if (x->old && !widths && w->i >= 1 && w->i <= MAX_PARTS)
			ret->n = (size_t)w->i;
		return 0;
	}
	if (!pk_numbers(w, total, MAX_PARTS, &n) || !n || (!widths && !x->old))
		return 0;
	rc = torch_file_spend(&x->o->file, n * x->d->tp, x->e);
	width = rc ? NULL : arena_array(&x->d->arena, n * x->d->tp, sizeof(*width));
	if (!width)
		return rc ? rc : err_nomem(x->e);
	if (fill_widths(x, widths, total, n, width)) {
		ret->n = n;
		ret->width = width;
	}
	return 0;
}

/* {"patterns": [...], "shape": (..., (width, width), ...), "partition_dim": 0}, ... */
static int read_sub_params(struct reading *x, const struct pk_value *v)
{
	size_t n = pk_list_len(v);
	int rc = torch_file_spend(&x->o->file, n, x->e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *patterns = pk_field(&v->n->v[i], "patterns");
		size_t m = pk_list_len(patterns);

		rc = torch_file_spend(&x->o->file, m, x->e);
		for (size_t k = 0; !rc && k < m; k++) {
			struct ds_parts *p;

			rc = spend(x, &patterns->n->v[k]);
			if (rc)
				break;
			p = arena_array(&x->d->arena, 1, sizeof(*p));
			if (!p)
				return err_nomem(x->e);
			rc = read_parts(x, &v->n->v[i], &patterns->n->v[k], p);
			if (!rc)
				rc = add_pattern(x, PARTS, &patterns->n->v[k],
						 (struct entry){ .parts = p });
		}
	}
	return rc;
}

static bool is_old(const struct pk_value *version)
{
	return !version || (version->type == PK_FLOAT && version->f < 0.4) ||
	       (version->type == PK_INT && version->i < 1);
}

int ds_join_read(struct ds *d, struct ds_open *o, const struct pk_value *info, struct ckpt_err *e)
{
	struct reading x = { .d = d, .o = o, .work = READ_WORK, .e = e };
	const struct pk_value *size;
	struct ds_join *j;
	int rc = 0;

	if (!info || info->type != PK_DICT || d->tp == 1)
		return 0;
	j = calloc(1, sizeof(*j));
	if (!j)
		return err_nomem(e);
	x.j = j;
	j->names = pk_strings_new(DS_MAX_NAMES);
	if (!j->names)
		rc = err_nomem(e);
	x.widths = pk_get(info, "sub_param_shard_widths");
	x.old = !x.widths && is_old(pk_get(info, "universal_checkpoint_version"));
	for (unsigned i = 0; !rc && i < N_LISTS; i++)
		rc = read_list(&x, i, pk_get(info, list_names[i]));
	if (!rc)
		rc = read_sub_params(&x, pk_get(info, "parameter_with_sub_params"));
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

/* ---- rules ---- */

struct matching {
	struct ds_join *j;
	const struct pk_str *name;
	struct literal is; /* the name, literally */
	uint64_t *work;	   /* budget left */
	struct entry found;
};

static bool matches(struct matching *x, unsigned list)
{
	const struct patterns *p = &x->j->lists[list];

	x->found = (struct entry){ .parts = x->is.parts, .reason = x->is.reason };
	if (x->is.lists & 1u << list)
		return true;
	for (size_t i = 0; i < p->n; i++)
		if (ds_pattern_match(p->v[i].pattern, x->name->data, x->name->len, x->work)) {
			x->found = p->v[i];
			return true;
		}
	return false;
}

/* *ret_reason: why it is not known how to join it, if that was recorded; else NULL. */
static struct ds_rule make_rule(struct ds_join *j, const struct pk_str *name, uint64_t *work,
				const char **ret_reason)
{
	const struct pk_str *s = pk_find(j->names, name->data, name->len);
	struct matching x = { .j = j, .name = name, .work = work };
	struct ds_rule r = { .parts.n = 1 };

	*ret_reason = NULL;
	if (s && s->id < j->cap_literals)
		x.is = j->literals[s->id];
	if (matches(&x, UNSUPPORTED)) {
		*ret_reason = x.found.reason ? x.found.reason : "universal_checkpoint_info says so";
		r.listed = true;
	} else if (matches(&x, EXPERTS)) {
		r.listed = true;
	} else if (matches(&x, REPLICATED)) {
		r.same = true;
	} else if (matches(&x, AVERAGED)) {
		r.listed = true;
	} else if (matches(&x, TWO_PARTS)) {
		r.parts.n = 2;
	} else if (matches(&x, PARTS)) {
		r.parts = *x.found.parts;
		r.listed = !r.parts.n;
	} else if (matches(&x, ROWS)) {
		r.parts.dim = 1;
	}
	r.vocabulary = !r.listed && j->has_vocabulary && matches(&x, VOCABULARY);
	return r;
}

int ds_join_prepare(struct ds *d, struct ckpt_err *e)
{
	struct ds_join *j = d->join;
	uint64_t work = DS_PATTERN_WORK;
	const struct pk_str *first = NULL;
	const char *why = NULL;
	size_t n = 0;

	if (!j)
		return 0;
	j->n_rules = pk_strings_count(d->names);
	j->rules = calloc(j->n_rules + 1, sizeof(struct ds_rule *));
	if (!j->rules)
		return err_nomem(e);
	for (size_t i = 0; work && i < d->n_tensors; i++) {
		const struct pk_str *name = d->tensors[i].name;
		const char *reason;

		if (d->tensors[i].t == DS_WHOLE || j->rules[name->id])
			continue;
		j->rules[name->id] = arena_array(&d->arena, 1, sizeof(**j->rules));
		if (!j->rules[name->id])
			return err_nomem(e);
		*j->rules[name->id] = make_rule(j, name, &work, &reason);
		if (!reason)
			continue;
		first = n++ ? first : name;
		why = n > 1 ? why : reason;
	}
	if (!work) {
		ds_join_free(j);
		d->join = NULL;
		return ds_refuse(d, "%s", too_long);
	}
	return n ? ds_refuse(d, "slices of '%.100s'%s are listed as they are: %.200s", first->data,
			     n > 1 ? " and of other parameters" : "", why)
		 : 0;
}

const struct ds_rule *ds_rule_of(const struct ds *d, const struct pk_str *name)
{
	return d->join && name->id < d->join->n_rules ? d->join->rules[name->id] : NULL;
}

bool ds_rule_vocabulary(const struct ds *d, uint64_t *ret)
{
	if (!d->join || !d->join->has_vocabulary)
		return false;
	*ret = d->join->vocabulary;
	return true;
}

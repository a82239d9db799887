/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/average.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/run/run.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/derived/weighted_sum.h"
#include "tensor/scales.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SOURCES = 64 };

void average_release(struct average_plan *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->v[i].path);
	free(p->v);
	*p = (struct average_plan){ 0 };
}

void average_digest(const struct average_plan *p, struct digest *d)
{
	for (size_t i = 0; i < p->n; i++) {
		const char *path = p->v[i].path ? p->v[i].path : "";

		digest_add(d, path, strlen(path));
		digest_add(d, &p->v[i].weight, sizeof(p->v[i].weight));
	}
}

char *average_text(const struct average_plan *p)
{
	struct buf b = BUF_INIT(CKPT_MAX_WORDS);

	for (size_t i = 0; i < p->n; i++)
		buf_printf(&b, "%s%s:%.17g", i ? "," : "", p->v[i].path ? p->v[i].path : ".",
			   p->v[i].weight);
	buf_add(&b, "", 1);
	if (b.err)
		buf_release(&b);
	return b.data;
}

/* ---- the words ---- */

/* Adds a source; `path` has been allocated, and is NULL if there was no memory for it. */
static int add(struct average_plan *p, char *path, double weight, struct ckpt_err *e)
{
	if (p->n == MAX_SOURCES) {
		free(path);
		return err_set(e, EINVAL, "option 'average': more than %d checkpoints",
			       MAX_SOURCES);
	}
	if (!path || !VEC_ROOM(p->v, p->cap, p->n + 1)) {
		free(path);
		return err_nomem(e);
	}
	p->v[p->n++] = (struct average_source){ path, weight };
	return 0;
}

/* All of s is a number. */
static bool is_number(const char *s, double *ret)
{
	char *end;

	*ret = strtod(s, &end);
	return *s && !isspace((unsigned char)*s) && !*end;
}

/* One name, and the weight after its last ':' if that is a number. */
static int add_word(struct average_plan *p, char *word, bool *weighted, struct ckpt_err *e)
{
	char *colon = strrchr(word, ':');
	double weight = 0;

	*weighted = colon && is_number(colon + 1, &weight);
	if (*weighted)
		*colon = 0;
	if (!*word)
		return err_set(e, EINVAL, "option 'average': there is no name before '%s'",
			       *weighted ? colon + 1 : ",");
	if (!isfinite((float)weight))
		return err_set(e, EINVAL, "option 'average': the weight of '%.200s' is not finite",
			       word);
	return add(p, strdup(word), weight, e);
}

/* "NAME[:WEIGHT],..." */
static int parse_list(const char *text, struct average_plan *p, struct ckpt_err *e)
{
	autofree char *copy = strdup(text);
	size_t n_weighted = 0;
	bool weighted;
	int rc = copy ? 0 : err_nomem(e);

	for (char *at = copy, *next; !rc && at; at = next) {
		next = strchr(at, ',');
		if (next)
			*next++ = 0;
		rc = add_word(p, at, &weighted, e);
		n_weighted += weighted;
	}
	if (rc)
		return rc;
	if (n_weighted && n_weighted != p->n)
		return err_set(
			e, EINVAL,
			"option 'average': '%.200s' gives a weight to some checkpoints: give "
			"one to each, as in NAME:0.5, or to none",
			text);
	for (size_t i = 0; !n_weighted && i < p->n; i++)
		p->v[i].weight = 1.0 / (double)p->n;
	return 0;
}

/* "last:N", "ema:D:last:N": 1, or 0 if it is neither, or an error. decay: 0 for equal weights. */
static int parse_window(const char *text, uint32_t *ret_n, double *ret_decay, struct ckpt_err *e)
{
	const char *at = text;
	char *end;

	*ret_decay = 0;
	if (text_take(&at, "ema:")) {
		*ret_decay = strtod(at, &end);
		if (end == at || *end != ':' || !(*ret_decay > 0 && *ret_decay < 1))
			return err_set(e, EINVAL,
				       "option 'average': '%.200s' has no decay between 0 and 1: "
				       "write ema:0.9:last:8",
				       text);
		at = end + 1;
		if (strncmp(at, "last:", 5) != 0)
			return err_set(e, EINVAL,
				       "option 'average': '%.200s' does not say how many "
				       "checkpoints: write ema:0.9:last:8",
				       text);
	}
	if (!text_take(&at, "last:"))
		return 0;
	if (!text_take_number(&at, 9, ret_n) || *at || !*ret_n || *ret_n > MAX_SOURCES)
		return err_set(e, EINVAL,
			       "option 'average': '%.200s' must end in a number from 1 to %d", text,
			       MAX_SOURCES);
	return 1;
}

/* ---- a run ---- */

static int by_name(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return text_natural_cmp(*x, strlen(*x), *y, strlen(*y));
}

/* Adds the last n checkpoints of a run, in natural order, as run_latest would choose them. */
static int add_last(struct ckpt_run *r, const char *root, uint32_t n, double decay,
		    struct average_plan *p, struct ckpt_err *e)
{
	struct name_list names CLEANUP(name_list_release) = { 0 };
	struct run_about about;
	int rc = 0;

	for (unsigned slot = 1; !rc && !run_next(r, &slot, &about); slot++)
		if (isdigit((unsigned char)about.name[strlen(about.name) - 1]))
			rc = name_list_add(&names, about.name, e);
	if (rc)
		return rc;
	if (names.n < n)
		return err_set(e, EINVAL,
			       "option 'average': the last %u are asked for, and the run '%.300s' "
			       "has %zu complete checkpoint%s whose name ends in a number",
			       n, root, names.n, text_s(names.n));
	qsort(names.v, names.n, sizeof(*names.v), by_name);
	for (size_t i = names.n - n; !rc && i < names.n; i++) {
		double weight = 1.0 / n;
		char *path;

		if (decay > 0)
			weight = pow(decay, (double)(names.n - 1 - i)) *
				 (i == names.n - n ? 1 : 1 - decay);
		path = text_format("%s/%s", root, names.v[i]);
		rc = add(p, path, weight, e);
	}
	return rc;
}

/* Names of the run's checkpoints become paths. */
static int find_in_run(const char *root, struct average_plan *p, struct ckpt_err *e)
{
	for (size_t i = 0; i < p->n; i++) {
		char *path;

		if (strchr(p->v[i].path, '/'))
			continue;
		path = text_format("%s/%s", root, p->v[i].path);
		if (!path)
			return err_nomem(e);
		free(p->v[i].path);
		p->v[i].path = path;
	}
	return 0;
}

int average_of_run(struct place *place, const char *root, const struct ckpt_opts *o,
		   struct average_plan *ret, char **ret_base, struct ckpt_err *e)
{
	const struct ckpt_opts none = { 0 };
	struct ckpt_run *r = NULL;
	double decay = 0;
	uint32_t n = 0;
	int rc = run_new(place, root, &none, &r, e), window = 0;

	if (rc)
		return rc;
	window = parse_window(o->average, &n, &decay, e);
	if (window > 0)
		rc = add_last(r, root, n, decay, ret, e);
	else
		rc = window ? window : parse_list(o->average, ret, e);
	if (!rc && !window)
		rc = find_in_run(root, ret, e);
	run_free(r);
	if (rc)
		return rc;
	*ret_base = ret->v[ret->n - 1].path;
	ret->v[ret->n - 1].path = NULL;
	return 0;
}

/* The plan of a checkpoint. */
static int plan_of_one(const char *text, struct average_plan *ret, struct ckpt_err *e)
{
	double decay;
	uint32_t n;
	int rc = parse_window(text, &n, &decay, e);

	if (rc > 0)
		return err_set(e, EINVAL,
			       "option 'average': '%.200s' names checkpoints of a run, but this is "
			       "a checkpoint: give the run's directory",
			       text);
	if (!rc)
		rc = parse_list(text, ret, e);
	for (size_t i = 0; !rc && i < ret->n; i++) {
		char **path = &ret->v[i].path;

		if (!strcmp(*path, ".")) {
			free(*path);
			*path = NULL;
		} else if (!strchr(*path, '/')) {
			rc = err_set(e, EINVAL,
				     "option 'average': '%.200s' is not a path, and the checkpoint "
				     "is not a run: write './%.200s', or '.' for the checkpoint "
				     "itself",
				     *path, *path);
		}
	}
	return rc;
}

/* ---- tensors ---- */

struct averager {
	struct engine *eng;
	const struct ckpt_opts *o;
	const struct engine **of; /* for each source its engine */
	const double *weights;
	uint64_t glob_steps;
	struct ckpt_err *e;
};

static const char *name_of(const struct averager *a, size_t i)
{
	return a->of[i]->c->root;
}

static bool is_real(const struct catalog_tensor *t)
{
	return cast_possible((enum ckpt_dtype)t->dtype, CKPT_DTYPE_F32);
}

static const char *dtype_of(const struct catalog_tensor *t)
{
	return dtype_info((enum ckpt_dtype)t->dtype)->name;
}

/* Tensors that include= and exclude= hide take no part. */
static bool takes_part(struct averager *a, const struct catalog_tensor *t)
{
	return text_glob_any(a->o->include, t->fqn, t->fqn_len, &a->glob_steps) &&
	       (!a->o->exclude ||
		!text_glob_any(a->o->exclude, t->fqn, t->fqn_len, &a->glob_steps));
}

static int missing(const struct averager *a, const struct catalog_tensor *t, const char *lacks,
		   const char *has)
{
	return err_set(
		a->e, EINVAL,
		"option 'average': '%.300s' has no tensor '%.120s', which '%.300s' has: leave "
		"it out with exclude=, or average others",
		lacks, FQN_TEXT(t->fqn, t->fqn_len), has);
}

static int small_float(const struct averager *a, const struct catalog_tensor *t, const char *where)
{
	return err_set(a->e, ERR_UNSUPPORTED,
		       "option 'average': '%.120s' of '%.300s' is %s, whose codes have no average: "
		       "use dequantize=, or leave it out with exclude=",
		       FQN_TEXT(t->fqn, t->fqn_len), where, dtype_of(t));
}

/* config.json says that there are codes; whether these are some is not known. */
static int maybe_codes(const struct averager *a, const struct catalog_tensor *t)
{
	return err_set(
		a->e, ERR_UNSUPPORTED,
		"option 'average': config.json of '%.300s' has '%s', and '%.120s' (%s, shape "
		"%s) may hold codes, which have no average: leave it out with exclude=, or "
		"average what is not quantised",
		a->eng->c->root, a->eng->quantised, FQN_TEXT(t->fqn, t->fqn_len), dtype_of(t),
		TUPLE_TEXT(t->shape, t->n_dims));
}

static bool is_small_float(const struct catalog_tensor *t)
{
	const char *name = dtype_of(t);

	return !is_real(t) && !strncmp(name, "float", 5);
}

/* Integers that are codes of weights: their scales would be averaged, but not the codes. */
static bool is_codes(const struct averager *a, const struct catalog_tensor *t)
{
	if (a->eng->format == &format_gguf)
		return t->dtype == CKPT_DTYPE_U8; /* blocks: see gguf_types.h */
	return dequantise_is_codes(a->eng->catalog, t);
}

/* The tensor of source i that belongs to t, which is the base's. */
static int find(const struct averager *a, size_t i, const struct catalog_tensor *t, uint32_t *ret)
{
	const struct catalog *c = a->of[i]->catalog;
	int64_t at = catalog_find_tensor(c, t->fqn, t->fqn_len);
	const struct catalog_tensor *x;

	if (at < 0)
		return missing(a, t, name_of(a, i), a->eng->c->root);
	x = &catalog_tensors(c, NULL)[at];
	if (is_small_float(x))
		return small_float(a, x, name_of(a, i));
	if (!is_real(x))
		return err_set(a->e, EINVAL,
			       "option 'average': '%.120s' is %s in '%.300s', and %s in '%.300s'",
			       FQN_TEXT(t->fqn, t->fqn_len), dtype_of(x), name_of(a, i),
			       dtype_of(t), a->eng->c->root);
	if (x->n_dims != t->n_dims || !dims_equal(t->n_dims, x->shape, t->shape))
		return err_set(a->e, EINVAL,
			       "option 'average': '%.120s' has shape %s in '%.300s', and %s in "
			       "'%.300s'",
			       FQN_TEXT(t->fqn, t->fqn_len), TUPLE_TEXT(x->shape, x->n_dims),
			       name_of(a, i), TUPLE_TEXT(t->shape, t->n_dims), a->eng->c->root);
	*ret = (uint32_t)at;
	return 0;
}

/* Every floating-point tensor of a source must have one in the base. */
static int check_source(struct averager *a, size_t i)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(a->of[i]->catalog, &n);

	for (size_t k = 0; k < n; k++)
		if (is_real(&t[k]) && takes_part(a, &t[k]) &&
		    catalog_find_tensor(a->eng->catalog, t[k].fqn, t[k].fqn_len) < 0)
			return missing(a, &t[k], a->eng->c->root, name_of(a, i));
	return 0;
}

/* Describes the average of the base's tensor number k. */
static int describe(struct averager *a, const struct catalog_tensor *t, uint32_t k,
		    struct computed_new *ret)
{
	size_t n = a->eng->average.n;
	struct arena *mem = &a->eng->computed.mem;
	struct derived_input *inputs = arena_array(mem, n, sizeof(*inputs));
	const struct weighted_sum how = { .dtype = (enum ckpt_dtype)t->dtype,
					  .n_dims = t->n_dims,
					  .n = n,
					  .weights = a->weights };
	void *kept = arena_dup(mem, &how, sizeof(how));
	int rc = inputs && kept ? 0 : err_nomem(a->e);

	for (size_t i = 0; !rc && i < n; i++) {
		if (a->of[i] == a->eng) {
			inputs[i].tensor = k;
			continue;
		}
		inputs[i].fetch = a->of[i]->fetch;
		rc = find(a, i, t, &inputs[i].tensor);
	}
	*ret = (struct computed_new){ .fqn = t->fqn,
				      .fqn_len = t->fqn_len,
				      .like = k,
				      .dtype = (enum ckpt_dtype)t->dtype,
				      .n_dims = t->n_dims,
				      .shape = t->shape,
				      .run = weighted_sum_run,
				      .how = kept,
				      .inputs = inputs,
				      .n_inputs = n };
	return rc;
}

static int derive_all(struct averager *a)
{
	size_t n, found = 0;
	const struct catalog_tensor *t = catalog_tensors(a->eng->catalog, &n);
	autofree struct computed_new *v = calloc(n + 1, sizeof(*v));
	autofree bool *hide = calloc(n + 1, sizeof(*hide));
	int rc = v && hide ? 0 : err_nomem(a->e);

	for (uint32_t k = 0; !rc && k < n; k++) {
		bool small = is_small_float(&t[k]) || is_codes(a, &t[k]);
		bool maybe = a->eng->quantised && scales_likely(&t[k]);

		if ((!small && !maybe && !is_real(&t[k])) || !takes_part(a, &t[k]))
			continue;
		rc = small   ? small_float(a, &t[k], a->eng->c->root)
		     : maybe ? maybe_codes(a, &t[k])
			     : describe(a, &t[k], k, &v[found++]);
		hide[k] = true;
	}
	for (size_t i = 0; !rc && i < a->eng->average.n; i++)
		if (a->of[i] != a->eng)
			rc = check_source(a, i);
	if (!rc)
		rc = text_glob_check(a->glob_steps, "option 'average': include and exclude", a->e);
	if (!rc && !found)
		rc = err_set(a->e, EINVAL,
			     "option 'average': '%.300s' has no floating-point tensor",
			     a->eng->c->root);
	return rc ? rc : computed_add(&a->eng->computed, a->eng->catalog, v, found, hide, a->e);
}

int average_derive(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct average_plan *p = &eng->average;
	int rc = p->n ? 0 : plan_of_one(o->average, p, e);
	autofree const struct engine **of = calloc(p->n + 1, sizeof(*of));
	double *weights = arena_array(&eng->computed.mem, p->n, sizeof(*weights));
	struct averager a = { .eng = eng,
			      .o = o,
			      .of = of,
			      .weights = weights,
			      .glob_steps = TEXT_GLOB_STEPS,
			      .e = e };

	if (!rc && (!of || !weights))
		rc = err_nomem(e);
	for (size_t i = 0; !rc && i < p->n; i++) {
		struct engine *other = eng;

		if (p->v[i].path)
			rc = others_open(eng, p->v[i].path, o, p->n, &other, e);
		if (rc)
			return err_wrap(e, "option 'average'");
		of[i] = other;
		weights[i] = p->v[i].weight;
		if (other == eng)
			continue;
		/* Absolute: see ckpt_opts_words. */
		free(p->v[i].path);
		p->v[i].path = strdup(other->c->root);
		if (!p->v[i].path)
			return err_nomem(e);
	}
	return rc ? rc : derive_all(&a);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/lora.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/computed/lora_config.h"
#include "ckpt/computed/lora_vocabulary.h"
#include "ckpt/computed/overlay.h"
#include "codec/cast.h"
#include "format/small_file.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/derived/low_rank.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_CONFIG = 4 << 20, /* bytes of adapter_config.json */
	MAX_PREFIXES = 64,    /* tried for the first name of an adapter */
};

static const char above[] = "base_model.model.", weight[] = ".weight";

/* What an adapter does to one tensor. */
struct change {
	const char *name; /* of the tensor in the model that was tuned */
	size_t len;
	uint32_t a, b; /* numbers of the adapter's tensors; of a replacement, a */
	bool replaces, embeds;
};

/* Of the tensors that it resizes; 0, 0: of none. */
struct rows {
	uint64_t before, after;
};

struct adapter {
	struct engine *eng;
	struct engine *other; /* where its tensors are */
	const char *dir;
	double scale;
	struct lora_config config;
	struct change *v;
	size_t n, cap;
	char *prefix; /* of the checkpoint's names: "", or "model." */
	struct rows rows;
	struct ckpt_err *e;
};

static void adapter_release(struct adapter *a)
{
	lora_config_release(&a->config);
	free(a->v);
	free(a->prefix);
}

/* ---- its tensors ---- */

static int unknown_tensor(const struct adapter *a, const struct catalog_tensor *t, const char *why)
{
	return err_set(a->e, ERR_UNSUPPORTED, "option 'lora': '%.120s' of '%.300s' %s",
		       FQN_TEXT(t->fqn, t->fqn_len), a->dir, why);
}

/* Adds a change of the tensor whose name is the first `len` bytes of s and `end`. */
static int add(struct adapter *a, struct change c, const char *s, size_t len, const char *end)
{
	static const char base[] = "base_layer.";
	struct arena *mem = &a->eng->computed.mem;
	size_t n = len + strlen(end);
	char *name = arena_alloc(mem, n + 1), *inner;

	if (!name || !VEC_ROOM(a->v, a->cap, a->n + 1))
		return err_nomem(a->e);
	memcpy(name, s, len);
	memcpy(name + len, end, strlen(end) + 1);
	/* This is how PEFT saves an embedding that is resized and also has an adapter. */
	inner = c.replaces ? strstr(name, base) : NULL;
	if (inner && (inner == name || inner[-1] == '.')) {
		memmove(inner, inner + strlen(base), strlen(inner + strlen(base)) + 1);
		n -= strlen(base);
	}
	c.name = name;
	c.len = n;
	a->v[a->n++] = c;
	return 0;
}

/* The matrix that belongs to t, whose name ends in `end`, ends in `by`. */
static int partner(const struct adapter *a, const struct catalog_tensor *t, const char *end,
		   const char *by, uint32_t *ret)
{
	size_t cut = t->fqn_len - strlen(end);
	autofree char *name = NULL;
	int64_t at;

	name = text_format("%.*s%s", (int)cut, t->fqn, by);
	if (!name)
		return err_nomem(a->e);
	at = catalog_find_tensor(a->other->catalog, name, strlen(name));
	if (at < 0)
		return err_set(a->e, EINVAL,
			       "option 'lora': '%.120s' of '%.300s' has no '%.120s' that it is "
			       "multiplied with",
			       FQN_TEXT(t->fqn, t->fqn_len), a->dir, FQN_TEXT(name, strlen(name)));
	*ret = (uint32_t)at;
	return 0;
}

static int sort_tensor(struct adapter *a, uint32_t i)
{
	static const struct {
		const char *a, *b;
		bool embeds;
	} kinds[] = { { ".lora_A.weight", ".lora_B.weight", false },
		      { ".lora_embedding_A", ".lora_embedding_B", true } };
	const struct catalog_tensor *t = &catalog_tensors(a->other->catalog, NULL)[i];
	size_t skip = strlen(above);
	struct change c = { .a = i };
	int rc;

	if (t->fqn_len > INT16_MAX)
		return unknown_tensor(a, t, "has a name that is too long");
	if (t->fqn_len <= skip || memcmp(t->fqn, above, skip) != 0)
		return unknown_tensor(a, t, "is not below base_model.model, as PEFT has them");
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		if (bytes_end(t->fqn, t->fqn_len, kinds[k].b))
			return partner(a, t, kinds[k].b, kinds[k].a, &c.b);
		if (!bytes_end(t->fqn, t->fqn_len, kinds[k].a))
			continue;
		rc = partner(a, t, kinds[k].a, kinds[k].b, &c.b);
		c.embeds = kinds[k].embeds;
		if (!rc && t->fqn_len <= skip + strlen(kinds[k].a))
			return unknown_tensor(a, t, "has no module in its name");
		return rc ? rc
			  : add(a, c, t->fqn + skip, t->fqn_len - skip - strlen(kinds[k].a),
				weight);
	}
	if (strstr(t->fqn, ".lora_") || strstr(t->fqn, ".token_adapter."))
		return unknown_tensor(a, t, "is of a kind of adapter that cannot be merged here");
	c.replaces = true;
	return add(a, c, t->fqn + skip, t->fqn_len - skip, "");
}

/* ---- names in the checkpoint ---- */

/* Does the checkpoint have a tensor of that name, or with it at the end? */
static bool exists(const struct adapter *a, const struct change *c)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(a->eng->catalog, &n);

	for (size_t i = 0; i < n; i++)
		if (t[i].fqn_len >= c->len &&
		    !memcmp(t[i].fqn + t[i].fqn_len - c->len, c->name, c->len) &&
		    (t[i].fqn_len == c->len || t[i].fqn[t[i].fqn_len - c->len - 1] == '.'))
			return true;
	return false;
}

static bool alike(const struct catalog_tensor *a, const struct catalog_tensor *b)
{
	return a->dtype == b->dtype && a->n_dims == b->n_dims &&
	       dims_equal(a->n_dims, a->shape, b->shape);
}

/*
 * Output embeddings that are tied to the input embeddings are stored once in most checkpoints, but
 * twice by PEFT. Drops the second if it equals the first tensor of its dtype and shape.
 */
static int drop_tied(struct adapter *a)
{
	const struct catalog_tensor *t = catalog_tensors(a->other->catalog, NULL);
	size_t out = 0, in = 0;
	bool same = false;
	int rc;

	while (out < a->n && !(a->v[out].replaces && lora_is_output(a->v[out].name, a->v[out].len)))
		out++;
	if (out == a->n || exists(a, &a->v[out]))
		return 0;
	while (in < a->n &&
	       (in == out || !a->v[in].replaces || !alike(&t[a->v[in].a], &t[a->v[out].a])))
		in++;
	if (in == a->n)
		return 0;
	rc = lora_same_tensor(a->other, a->v[in].a, a->v[out].a, &same, a->e);
	if (rc)
		return err_wrap(a->e, "option 'lora'");
	if (same)
		memmove(&a->v[out], &a->v[out + 1], (--a->n - out) * sizeof(*a->v));
	return 0;
}

/* The checkpoint's number of a name after a prefix; -1: there is none. */
static int64_t find_behind(const struct adapter *a, const char *prefix, size_t n,
			   const struct change *c)
{
	char name[2 * INT16_MAX];

	if (n + c->len > sizeof(name))
		return -1;
	memcpy(name, prefix, n);
	memcpy(name + n, c->name, c->len);
	return catalog_find_tensor(a->eng->catalog, name, n + c->len);
}

/* The first name that is not there; NULL: all are. */
static const struct change *missing(const struct adapter *a, const char *prefix, size_t n)
{
	for (size_t i = 0; i < a->n; i++)
		if (find_behind(a, prefix, n, &a->v[i]) < 0)
			return &a->v[i];
	return NULL;
}

static int no_tensor(const struct adapter *a, const struct change *c)
{
	return err_set(a->e, EINVAL,
		       "option 'lora': '%.300s' changes '%.120s', but the checkpoint stores no "
		       "tensor of that name, with or without a prefix that all its names share",
		       a->dir, FQN_TEXT(c->name, c->len));
}

/* Finds the one prefix with which all names are there. */
static int find_prefix(struct adapter *a, const char *weights)
{
	const struct change *first = &a->v[0], *lacks = NULL;
	const struct catalog_tensor *t;
	const char *best = NULL;
	size_t n, n_best = 0, tries = 0, fits = 0;

	t = catalog_tensors(a->eng->catalog, &n);
	for (size_t i = 0; i < n && tries < MAX_PREFIXES; i++) {
		size_t before = t[i].fqn_len - first->len;
		const struct change *gone;

		if (t[i].fqn_len < first->len || (before && t[i].fqn[before - 1] != '.') ||
		    memcmp(t[i].fqn + before, first->name, first->len) != 0)
			continue;
		tries++;
		gone = missing(a, t[i].fqn, before);
		lacks = gone ? gone : lacks;
		if (gone)
			continue;
		/* No prefix, or the one that the user gives, takes precedence. */
		if (!before || (weights && strlen(weights) + 1 == before &&
				!memcmp(weights, t[i].fqn, before - 1))) {
			best = t[i].fqn;
			n_best = before;
			fits = 1;
			break;
		}
		best = t[i].fqn;
		n_best = before;
		fits++;
	}
	if (!fits)
		return no_tensor(a, lacks ? lacks : first);
	if (fits > 1)
		return err_set(a->e, EINVAL,
			       "option 'lora': the names of '%.300s' exist under several prefixes: "
			       "choose one with weights=",
			       a->dir);
	a->prefix = strndup(best, n_best);
	return a->prefix ? 0 : err_nomem(a->e);
}

/* ---- merging ---- */

/* Allows replacements to have another number of rows, if all have the same that differ: those that
 * the adapter's vocabulary has, as the first matrix of that kind tells. */
static void find_resized(struct adapter *a, struct overlay_pair *v, size_t n)
{
	const struct catalog_tensor *from = catalog_tensors(a->other->catalog, NULL),
				    *to = catalog_tensors(a->eng->catalog, NULL);
	struct rows *r = &a->rows;

	for (size_t i = 0; i < n && !r->after; i++) {
		const struct catalog_tensor *f = &from[v[i].from], *t = &to[v[i].to];

		if (f->n_dims == 2 && t->n_dims == 2 && t->shape[0] && f->shape[0] != t->shape[0])
			*r = (struct rows){ t->shape[0], f->shape[0] };
	}
	for (size_t i = 0; i < n && r->after; i++) {
		const struct catalog_tensor *f = &from[v[i].from], *t = &to[v[i].to];

		v[i].resized = f->n_dims && t->n_dims && t->shape[0] == r->before &&
			       f->shape[0] == r->after;
	}
}

static int replace(struct adapter *a)
{
	autofree struct overlay_pair *v = calloc(a->n + 1, sizeof(*v));
	size_t n = 0;
	int rc;

	if (!v)
		return err_nomem(a->e);
	for (size_t i = 0; i < a->n; i++)
		if (a->v[i].replaces)
			v[n++] = (struct overlay_pair){ .from = a->v[i].a,
							.to = (uint32_t)find_behind(
								a, a->prefix, strlen(a->prefix),
								&a->v[i]) };
	find_resized(a, v, n);
	rc = n ? overlay_replace(a->eng, a->other, "lora", v, n, true, a->e) : 0;
	return !rc && a->rows.after ? lora_resize(a->eng, a->rows.before, a->rows.after, a->e) : rc;
}

static int bad_matrices(const struct adapter *a, const struct change *c,
			const struct catalog_tensor *w, uint32_t rank)
{
	const struct catalog_tensor *t = catalog_tensors(a->other->catalog, NULL);

	return err_set(a->e, EINVAL,
		       "option 'lora': '%.100s' has shape %s (%s), and '%.200s' has matrices of "
		       "shapes %s and %s (%s, %s) and rank %u%s: they do not fit",
		       FQN_TEXT(c->name, c->len), TUPLE_TEXT(w->shape, w->n_dims),
		       dtype_info((enum ckpt_dtype)w->dtype)->name, a->dir,
		       TUPLE_TEXT(t[c->a].shape, t[c->a].n_dims),
		       TUPLE_TEXT(t[c->b].shape, t[c->b].n_dims),
		       dtype_info((enum ckpt_dtype)t[c->a].dtype)->name,
		       dtype_info((enum ckpt_dtype)t[c->b].dtype)->name, rank,
		       a->config.turned && !c->embeds ? " with fan_in_fan_out" : "");
}

static int describe(struct adapter *a, const struct change *c, uint32_t number,
		    struct computed_new *ret)
{
	const struct catalog_tensor *w = &catalog_tensors(a->eng->catalog, NULL)[number];
	const struct catalog_tensor *t = catalog_tensors(a->other->catalog, NULL);
	const struct catalog_tensor *ta = &t[c->a], *tb = &t[c->b];
	struct arena *mem = &a->eng->computed.mem;
	struct derived_input *in = arena_array(mem, 3, sizeof(*in));
	struct low_rank how = { .dtype = (enum ckpt_dtype)w->dtype,
				.turned = c->embeds || a->config.turned };
	void *kept;
	double scale;
	int rc = lora_config_of(&a->config, c->name, c->len - strlen(weight), &how.rank, &scale,
				a->e);

	if (rc)
		return err_wrap(a->e, "option 'lora': '%.300s'", a->dir);
	how.scale = (float)(scale * a->scale);
	if (!isfinite(how.scale))
		return err_set(a->e, EINVAL,
			       "option 'lora': what '%.300s' multiplies '%.120s' by is not finite",
			       a->dir, FQN_TEXT(c->name, c->len));
	if (!cast_possible(how.dtype, how.dtype))
		return err_set(a->e, ERR_UNSUPPORTED,
			       "option 'lora': '%.120s' is %s, but an adapter can be added only to "
			       "float32, float16 and bfloat16; dequantize= makes these from codes",
			       FQN_TEXT(c->name, c->len), dtype_info(how.dtype)->name);
	if (w->n_dims != 2 || ta->n_dims != 2 || tb->n_dims != 2 || ta->shape[0] != how.rank ||
	    tb->shape[1] != how.rank || w->shape[how.turned] != tb->shape[0] ||
	    w->shape[!how.turned] != ta->shape[1] ||
	    !cast_possible((enum ckpt_dtype)ta->dtype, CKPT_DTYPE_F32) ||
	    !cast_possible((enum ckpt_dtype)tb->dtype, CKPT_DTYPE_F32))
		return bad_matrices(a, c, w, how.rank);
	kept = arena_dup(mem, &how, sizeof(how));
	if (!in || !kept)
		return err_nomem(a->e);
	in[0].tensor = number;
	in[1] = (struct derived_input){ .fetch = a->other->fetch, .tensor = c->a };
	in[2] = (struct derived_input){ .fetch = a->other->fetch, .tensor = c->b };
	*ret = (struct computed_new){ .fqn = w->fqn,
				      .fqn_len = w->fqn_len,
				      .like = number,
				      .dtype = how.dtype,
				      .n_dims = 2,
				      .shape = w->shape,
				      .run = low_rank_run,
				      .how = kept,
				      .inputs = in,
				      .n_inputs = 3 };
	return 0;
}

static int merge(struct adapter *a)
{
	autofree struct computed_new *make = calloc(a->n + 1, sizeof(*make));
	autofree bool *hide = NULL;
	size_t shown, n = 0;
	int rc;

	(void)catalog_tensors(a->eng->catalog, &shown);
	hide = calloc(shown + 1, sizeof(*hide));
	rc = make && hide ? 0 : err_nomem(a->e);
	for (size_t i = 0; !rc && i < a->n; i++) {
		int64_t at;

		if (a->v[i].replaces)
			continue;
		at = find_behind(a, a->prefix, strlen(a->prefix), &a->v[i]);
		rc = describe(a, &a->v[i], (uint32_t)at, &make[n++]);
		hide[at] = true;
	}
	if (!rc && n)
		rc = computed_add(&a->eng->computed, a->eng->catalog, make, n, hide, a->e);
	return rc;
}

/* ---- opening ---- */

/* "DIR[:SCALE]" */
static int split(const char *word, char **ret_dir, double *ret_scale, struct ckpt_err *e)
{
	const char *colon = strrchr(word, ':');
	char *end = NULL;

	*ret_scale = 1;
	if (colon && colon[1] && !strchr(colon, '/')) {
		*ret_scale = strtod(colon + 1, &end);
		if (*end)
			*ret_scale = 1;
	}
	*ret_dir = end && !*end ? strndup(word, (size_t)(colon - word)) : strdup(word);
	if (!*ret_dir)
		return err_nomem(e);
	if (!isfinite(*ret_scale))
		return err_set(e, EINVAL, "option 'lora': '%.300s': the scale is not finite", word);
	return **ret_dir ? 0 : err_set(e, EINVAL, "option 'lora': '%.300s' names nothing", word);
}

static int read_config(struct adapter *a, struct digest *d)
{
	static const char name[] = "adapter_config.json";
	struct small_file file CLEANUP(small_file_release) = { 0 };
	int rc = small_file_read(a->other->c->place, name, MAX_CONFIG, &file, a->e);

	if (!rc)
		rc = lora_config_read(&a->config, file.bytes, file.len, a->e);
	if (rc)
		return err_wrap(a->e, "option 'lora': '%.300s/%s'", a->dir, name);
	digest_add(d, file.bytes, file.len);
	digest_add(d, &a->scale, sizeof(a->scale));
	return 0;
}

static int open_tensors(struct adapter *a, const struct ckpt_opts *o, size_t share)
{
	static const char *const names[] = { "adapter_model.safetensors", "adapter_model.bin" };
	struct ckpt_err why;
	int rc = -ENOENT;

	for (size_t i = 0; rc == -ENOENT && i < ARRAY_LEN(names); i++) {
		autofree char *path = NULL;

		path = text_format("%s/%s", a->dir, names[i]);
		if (!path)
			return err_nomem(a->e);
		rc = others_open(a->eng, path, o, share, &a->other, i ? &why : a->e);
		if (rc && i && rc != -ENOENT) /* the first name is the usual one */
			*a->e = why;
	}
	return rc ? err_wrap(a->e, "option 'lora'") : 0;
}

static int merge_one(struct engine *eng, const struct ckpt_opts *o, const char *word, size_t share,
		     struct digest *d, struct ckpt_err *e)
{
	struct adapter a CLEANUP(adapter_release) = { .eng = eng, .e = e };
	autofree char *dir = NULL;
	int rc = split(word, &dir, &a.scale, e);
	size_t n = 0;

	a.dir = dir;
	if (!rc)
		rc = open_tensors(&a, o, share);
	if (!rc)
		rc = read_config(&a, d);
	if (!rc)
		(void)catalog_tensors(a.other->catalog, &n);
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = sort_tensor(&a, i);
	if (!rc && !a.n)
		rc = err_set(e, EINVAL, "option 'lora': '%.300s' has no tensors", dir);
	if (!rc)
		rc = drop_tied(&a);
	if (!rc)
		rc = find_prefix(&a, o->weights);
	if (!rc)
		rc = replace(&a);
	return rc ? rc : merge(&a);
}

int lora_derive(struct engine *eng, const struct ckpt_opts *o, struct digest *d, struct ckpt_err *e)
{
	size_t n = 0;
	int rc = 0;

	while (o->lora[n])
		n++;
	for (size_t i = 0; !rc && i < n; i++)
		rc = merge_one(eng, o, o->lora[i], n + 1, d, e);
	return rc;
}

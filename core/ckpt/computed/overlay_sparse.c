/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/overlay_sparse.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "format/small_file.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/derived/patch.h"
#include "source/place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PAIRS ((uint64_t)1 << 30) /* of a tensor; all are read before its first element */

enum {
	MAX_MANIFEST = 128 << 20,
	NOTES = 1 << 17, /* of all tensors; a few bytes of a file can stand for many pairs */
};

static const char manifest[] = "sparse_update_manifest.json";

struct finding {
	const struct engine *eng, *other;
	const struct catalog_tensor *t; /* of the other */
	size_t n_tensors;
	bool *part;
	struct overlay_sparse *v;
	size_t n;
	struct ckpt_err *e;
};

static void add(struct finding *f, struct overlay_sparse s)
{
	f->part[s.indices] = f->part[s.values] = true;
	f->v[f->n++] = s;
}

static int no_tensor(const struct finding *f, const char *name, size_t len)
{
	return err_set(f->e, EINVAL,
		       "it changes elements of '%.120s', but the checkpoint has none of that name",
		       FQN_TEXT(name, len));
}

/* ---- by name ---- */

static const struct {
	const char *values, *indices;
	bool gaps;
} ends[] = { { ".val", ".idx", true }, { ".values", ".indices", false } };

/*
 * The indices for tensor i of the other checkpoint, if its name is that of values: *ret_end is the
 * entry of `ends`. -1: none, or the checkpoint has a tensor of that name. -ENOMEM
 */
static int64_t find_indices(const struct finding *f, uint32_t i, size_t *ret_end)
{
	const struct catalog_tensor *t = &f->t[i];
	int64_t at = -1;

	for (size_t k = 0; at == -1 && k < ARRAY_LEN(ends); k++) {
		size_t len = t->fqn_len - strlen(ends[k].values),
		       all = len + strlen(ends[k].indices);
		autofree char *name = NULL;

		if (!bytes_end(t->fqn, t->fqn_len, ends[k].values) ||
		    catalog_find_tensor(f->eng->catalog, t->fqn, t->fqn_len) >= 0)
			continue;
		name = malloc(all + 1);
		if (!name)
			return err_nomem(f->e);
		memcpy(name, t->fqn, len);
		memcpy(name + len, ends[k].indices, all - len + 1);
		at = catalog_find_tensor(f->other->catalog, name, all);
		*ret_end = k;
	}
	return at;
}

static int find_by_name(struct finding *f, uint32_t i)
{
	const struct catalog_tensor *t = &f->t[i];
	size_t k = 0, len;
	int64_t indices = find_indices(f, i, &k), to;

	if (indices < 0)
		return indices == -ENOMEM ? -ENOMEM : 0;
	len = t->fqn_len - strlen(ends[k].values);
	to = catalog_find_tensor(f->eng->catalog, t->fqn, len);
	if (to < 0)
		return no_tensor(f, t->fqn, len);
	add(f, (struct overlay_sparse){ .to = (uint32_t)to,
					.indices = (uint32_t)indices,
					.values = i,
					.gaps = ends[k].gaps });
	return 0;
}

/* ---- prime-rl's manifest ---- */

#define JSON_TEXT(v) FQN_TEXT(jval_str(v), jval_len(v))

static int manifest_tensor(struct finding *f, struct jval entry, const char *key, uint32_t *ret)
{
	struct jval name = jval_get(entry, key);
	int64_t at = jval_str(name) ? catalog_find_tensor(f->other->catalog, jval_str(name),
							  jval_len(name))
				    : -1;

	if (at < 0)
		return err_set(f->e, EINVAL, "'%s' of '%.120s' names no tensor beside it", key,
			       JSON_TEXT(jval_get(entry, "name")));
	if (f->part[at])
		return err_set(f->e, EINVAL, "'%.120s' is named twice", JSON_TEXT(name));
	f->part[at] = true;
	*ret = (uint32_t)at;
	return 0;
}

static int manifest_entry(struct finding *f, struct jval entry)
{
	struct jval name = jval_get(entry, "name");
	struct overlay_sparse s = { 0 };
	const struct catalog_tensor *to;
	uint64_t shape[CKPT_MAX_DIMS];
	size_t n_dims;
	int64_t at;

	if (!jval_str(name))
		return err_set(f->e, EINVAL, "an entry of 'tensors' has no name");
	at = catalog_find_tensor(f->eng->catalog, jval_str(name), jval_len(name));
	if (at < 0)
		return no_tensor(f, jval_str(name), jval_len(name));
	to = &catalog_tensors(f->eng->catalog, NULL)[at];
	if (!jval_u64s(jval_get(entry, "shape"), shape, CKPT_MAX_DIMS, &n_dims) ||
	    n_dims != to->n_dims || !dims_equal(n_dims, shape, to->shape))
		return err_set(f->e, EINVAL,
			       "'%.120s' does not have the shape %s that it has in the checkpoint",
			       FQN_TEXT(to->fqn, to->fqn_len), TUPLE_TEXT(to->shape, to->n_dims));
	s.to = (uint32_t)at;
	if (manifest_tensor(f, entry, "indices", &s.indices) ||
	    manifest_tensor(f, entry, "values", &s.values))
		return -f->e->code;
	add(f, s);
	return 0;
}

static int read_manifest(struct finding *f, struct jval root)
{
	struct jval tensors = jval_get(root, "tensors");
	uint64_t version;
	struct jiter i = jiter(tensors);
	int rc = 0;

	if (!jval_is_str(jval_get(root, "format"), "prime-rl-sparse-update") ||
	    !jval_u64(jval_get(root, "version"), &version) || version != 1)
		return err_set(f->e, ERR_UNSUPPORTED,
			       "it is not of the format prime-rl-sparse-update, version 1");
	if (!jval_is(tensors, J_ARRAY) || jval_size(tensors) > f->n_tensors / 2)
		return err_set(f->e, EINVAL, "'tensors' names more tensors than there are");
	while (!rc && jiter_next(&i))
		rc = manifest_entry(f, i.v);
	return rc;
}

/* 0 if there is none. A store that does not list may refuse what it does not have. */
static int find_by_manifest(struct finding *f, struct digest *d)
{
	struct jdoc doc CLEANUP(jdoc_release) = { 0 };
	struct small_file file CLEANUP(small_file_release) = { 0 };
	int rc = small_file_read(f->other->c->place, manifest, MAX_MANIFEST, &file, f->e);

	if (rc == -ENOENT || (rc == -EACCES && place_fd(f->other->c->place) < 0))
		return 0;
	if (!rc) {
		digest_add(d, file.bytes, file.len);
		rc = jdoc_parse(&doc, file.bytes, file.len, JDOC_BIG | JDOC_PYTHON, f->e);
	}
	if (!rc)
		rc = read_manifest(f, jdoc_root(&doc));
	return rc ? err_wrap(f->e, "'%s'", manifest) : 0;
}

/* Is there a tensor whose name the checkpoint does not have? */
static bool is_any_sparse(const struct finding *f)
{
	for (uint32_t i = 0; i < f->n_tensors; i++)
		if (catalog_find_tensor(f->eng->catalog, f->t[i].fqn, f->t[i].fqn_len) < 0)
			return true;
	return false;
}

/* Chooses the distance between notes so that there are not too many. */
static void set_steps(struct finding *f)
{
	uint64_t pairs = 0, tiles;

	for (size_t i = 0; i < f->n; i++) {
		const struct catalog_tensor *t = &f->t[f->v[i].indices];

		pairs += t->n_dims ? min_u64(t->shape[0], MAX_PAIRS) : 0;
	}
	tiles = pairs / ((uint64_t)NOTES * PATCH_TILE) + 1;
	for (size_t i = 0; i < f->n; i++)
		f->v[i].step = tiles * PATCH_TILE;
}

int overlay_sparse_find(const struct engine *eng, const struct engine *other,
			struct overlay_sparse **ret, size_t *ret_n, bool *part, struct digest *d,
			struct ckpt_err *e)
{
	struct finding f = { .eng = eng, .other = other, .part = part, .e = e };
	int rc;

	f.t = catalog_tensors(other->catalog, &f.n_tensors);
	f.v = *ret = calloc(f.n_tensors + 1, sizeof(*f.v));
	if (!f.v)
		return err_nomem(e);
	*ret_n = 0;
	if (!is_any_sparse(&f))
		return 0;
	rc = find_by_manifest(&f, d);
	for (uint32_t i = 0; !rc && i < f.n_tensors; i++)
		if (!part[i])
			rc = find_by_name(&f, i);
	set_steps(&f);
	*ret_n = f.n;
	return rc ? err_wrap(e, "option 'overlay': '%.300s'", other->c->root) : 0;
}

/* ---- what is computed ---- */

static bool is_indices(const struct overlay_sparse *s, const struct catalog_tensor *t)
{
	return t->dtype == CKPT_DTYPE_I32 || t->dtype == CKPT_DTYPE_I64 ||
	       (s->gaps && (t->dtype == CKPT_DTYPE_U16 || t->dtype == CKPT_DTYPE_U32));
}

/* Values that would be rounded may not be meant to replace any: some are differences. */
static bool is_exact(enum ckpt_dtype from, enum ckpt_dtype to)
{
	return from == to ||
	       (to == CKPT_DTYPE_F32 && (from == CKPT_DTYPE_BF16 || from == CKPT_DTYPE_F16));
}

int overlay_sparse_describe(struct engine *eng, const struct engine *other,
			    const struct overlay_sparse *s, struct computed_new *ret,
			    struct ckpt_err *e)
{
	const struct catalog_tensor *to = &catalog_tensors(eng->catalog, NULL)[s->to];
	const struct catalog_tensor *t = catalog_tensors(other->catalog, NULL);
	const struct catalog_tensor *indices = &t[s->indices], *values = &t[s->values];
	struct arena *mem = &eng->computed.mem;
	struct derived_input *in = arena_array(mem, 3, sizeof(*in));
	struct patch how = { .dtype = (enum ckpt_dtype)to->dtype,
			     .n_dims = (uint8_t)to->n_dims,
			     .pairs = indices->n_dims ? indices->shape[0] : 0 };
	autofree char *name = NULL;
	void *kept;

	if (indices->n_dims != 1 || values->n_dims != 1 || values->shape[0] != how.pairs ||
	    !is_indices(s, indices) || !box_volume(to->n_dims, to->shape, &how.elements) ||
	    how.pairs > how.elements)
		return err_set(
			e, EINVAL,
			"option 'overlay': '%.120s' of '%.300s' has shape %s (%s), and '%.120s' "
			"has shape %s: they are not indices and values of '%.120s'",
			FQN_TEXT(indices->fqn, indices->fqn_len), other->c->root,
			TUPLE_TEXT(indices->shape, indices->n_dims),
			dtype_info((enum ckpt_dtype)indices->dtype)->name,
			FQN_TEXT(values->fqn, values->fqn_len),
			TUPLE_TEXT(values->shape, values->n_dims), FQN_TEXT(to->fqn, to->fqn_len));
	if (how.pairs > MAX_PAIRS)
		return err_set(e, EFBIG,
			       "option 'overlay': '%.120s' of '%.300s' has %llu indices, more than "
			       "%llu: save the whole tensor in it",
			       FQN_TEXT(indices->fqn, indices->fqn_len), other->c->root,
			       (unsigned long long)how.pairs, (unsigned long long)MAX_PAIRS);
	if (!is_exact((enum ckpt_dtype)values->dtype, how.dtype))
		return err_set(e, EINVAL,
			       "option 'overlay': '%.120s' is %s in '%.300s', and '%.120s' is %s",
			       FQN_TEXT(values->fqn, values->fqn_len),
			       dtype_info((enum ckpt_dtype)values->dtype)->name, other->c->root,
			       FQN_TEXT(to->fqn, to->fqn_len), dtype_info(how.dtype)->name);
	if (!how.pairs)
		return 0;
	memcpy(how.shape, to->shape, to->n_dims * sizeof(*to->shape));
	name = text_format("'%s' of '%.300s'", FQN_TEXT(indices->fqn, indices->fqn_len),
			   other->c->root);
	if (!name)
		return err_nomem(e);
	how.name = arena_dup(mem, name, strlen(name));
	how.step = s->step;
	how.seen = arena_array(mem, 1, patch_seen_size(how.pairs, how.step));
	kept = arena_dup(mem, &how, sizeof(how));
	if (!in || !how.name || !how.seen || !kept)
		return err_nomem(e);
	*how.seen = PATCH_SEEN;
	in[0].tensor = s->to;
	in[1] = (struct derived_input){ .fetch = other->fetch, .tensor = s->indices };
	in[2] = (struct derived_input){ .fetch = other->fetch, .tensor = s->values };
	*ret = (struct computed_new){ .fqn = to->fqn,
				      .fqn_len = to->fqn_len,
				      .like = s->to,
				      .dtype = how.dtype,
				      .n_dims = to->n_dims,
				      .shape = to->shape,
				      .run = patch_run,
				      .how = kept,
				      .inputs = in,
				      .n_inputs = 3 };
	return 0;
}

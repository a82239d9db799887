/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What flax.serialization.to_bytes wrote, alone or beside the arrays of older Orbax and T5X
 * checkpoints: maps of maps. An array of more than a GiB is in pieces of its flattened elements,
 *
 *	{"__msgpack_chunked_array__": true, "shape": {"0": 3, "1": 4}, "chunks": {"0": array, ...}}
 *
 * "PLACEHOLDER://NAME", and T5X's
 *
 *	{"driver": "zarr", "dtype": "float32", "kvstore": {"path": ".../NAME/", ...},
 *	 "metadata": {"shape": {"0": 10}, "chunks": {"0": 5}, "compressor": {"id": "gzip", ...}}}
 *
 * stand for the array NAME beside it, which may lack a .zarray of its own.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/orbax/orbax.h"
#include "format/raw_chunks.h"
#include "format/zarr/zarr_array.h"
#include "format/zarr/zarr_store.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "model/dtype.h"
#include "parse/msgpack.h"
#include "parse/pickle_strings.h"
#include "parse/zarr_metadata.h"
#include "source/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PIECES = 1 << 20 };

struct reading {
	struct orbax_tree *t;
	struct catalog_writer *w;
	struct orbax_name name;
	size_t prefix; /* bytes of the name before the leaf's own */
	uint32_t source;
	uint64_t *total;
	struct zarr_store *store; /* or NULL */
	const struct pk_strings *arrays;
};

/* ---- arrays ---- */

struct tensor {
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
};

static int wrong(const struct reading *r, const char *what, struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT, "array '%s': %s",
		       FQN_TEXT(r->name.fqn.data ? r->name.fqn.data : "", r->name.fqn.len), what);
}

/* Do the bytes of a piece have that many elements? */
static bool fits(const struct msgpack_array *a, enum ckpt_dtype dtype, uint64_t *ret)
{
	uint64_t bytes;

	return box_volume(a->n_dims, a->shape, ret) &&
	       !ckd_mul(&bytes, *ret, (uint64_t)dtype_info(dtype)->size) && bytes == a->len;
}

struct piece {
	const struct reading *r;
	const struct tensor *t;
	const struct msgpack_array *a;
	struct raw_chunks *found;
	struct ckpt_err *e;
};

static int add_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	const struct piece *p = arg;
	struct raw_layout layout = { 0 };
	struct raw_chunk x = { .dtype = p->t->dtype,
			       .n_dims = p->t->n_dims,
			       .off = off,
			       .len = len,
			       .layout = &layout,
			       .file = p->r->source,
			       .offset = p->a->at + pos * dtype_info(p->t->dtype)->size };
	uint64_t step = 1;

	for (size_t d = x.n_dims; d-- > 0; step *= len[d])
		layout.stride[d] = step;
	return raw_chunks_add(p->found, &x, p->r->w, p->r->total, p->e);
}

static int add_tensor(struct reading *r, const struct tensor *t, const struct raw_chunks *found,
		      struct ckpt_err *e)
{
	const uint8_t *path = orbax_name_path(&r->name, &r->t->arena, e);

	return !path ? -e->code
		     : catalog_add_tensor(r->w,
					  &(struct tensor_chunks){ .fqn = r->name.fqn.data,
								   .fqn_len = r->name.fqn.len,
								   .path = path,
								   .dtype = t->dtype,
								   .n_dims = t->n_dims,
								   .shape = t->shape,
								   .count = (uint32_t)found->n,
								   .boxes = found->boxes,
								   .locs = found->locs },
					  e);
}

static int add_object(struct reading *r, const struct buf *text, const char *fault,
		      struct ckpt_err *e)
{
	struct object_item o = { .fqn = r->name.fqn.data,
				 .fqn_len = r->name.fqn.len,
				 .path = orbax_name_path(&r->name, &r->t->arena, e),
				 .loc = { .file = CATALOG_NO_FILE },
				 .fault = fault };

	if (!o.path)
		return -e->code;
	if (text && text->err)
		return err_nomem(e);
	if (text) {
		o.text = text->data;
		o.text_len = text->len;
	}
	return catalog_add_object(r->w, &o, e);
}

static int unknown_dtype(struct reading *r, const char *dtype, struct ckpt_err *e)
{
	char why[200];

	(void)snprintf(why, sizeof(why), CATALOG_UNSUPPORTED "dtype '%.100s'", dtype);
	return add_object(r, NULL, why, e);
}

/* The pieces, in order, of an array. */
static int add_pieces(struct reading *r, const struct tensor *t,
		      const struct msgpack_array *const *v, size_t n, struct ckpt_err *e)
{
	struct raw_chunks found = { 0 };
	uint64_t volume, at = 0;
	int rc = 0;

	if (!box_volume(t->n_dims, t->shape, &volume))
		return wrong(r, "its shape is impossible", e);
	for (size_t i = 0; !rc && i < n; i++) {
		struct piece p = { r, t, v[i], &found, e };
		uint64_t count = 0;

		if (ckpt_dtype_by_name(v[i]->dtype, strlen(v[i]->dtype)) != t->dtype)
			rc = wrong(r, "its pieces have several dtypes", e);
		else if (!fits(v[i], t->dtype, &count))
			rc = wrong(r, "it does not have as many bytes as its shape needs", e);
		else if (count > volume - at)
			rc = wrong(r, "its pieces have more elements than it has", e);
		if (!rc && count)
			rc = box_of_range(t->n_dims, t->shape, at, count, add_box, &p);
		at += rc ? 0 : count;
	}
	if (!rc && at != volume)
		rc = wrong(r, "its pieces have fewer elements than it has", e);
	if (!rc)
		rc = add_tensor(r, t, &found, e);
	raw_chunks_release(&found);
	return rc;
}

static int add_array(struct reading *r, const struct msgpack_array *a, struct ckpt_err *e)
{
	struct tensor t = { ckpt_dtype_by_name(a->dtype, strlen(a->dtype)), a->n_dims, a->shape };

	return t.dtype == CKPT_DTYPE_NONE ? unknown_dtype(r, a->dtype, e)
					  : add_pieces(r, &t, &a, 1, e);
}

/* The members "0", "1", ... of a map, by number; false: it has others. */
static bool numbered(const struct msgpack *map, const struct msgpack **ret, size_t n)
{
	if (!map || map->kind != MSGPACK_MAP || map->n != n)
		return false;
	memset(ret, 0, n * sizeof(*ret));
	for (const struct msgpack *m = map->first; m; m = m->next) {
		const char *s = m->key;
		uint32_t i;

		if (!text_take_number(&s, 9, &i) || s != m->key + m->key_len || i >= n || ret[i])
			return false;
		ret[i] = m;
	}
	return true;
}

static int add_chunked(struct reading *r, const struct msgpack *v, struct ckpt_err *e)
{
	const struct msgpack *shape = msgpack_get(v, "shape"), *chunks = msgpack_get(v, "chunks");
	size_t n = chunks && chunks->kind == MSGPACK_MAP ? chunks->n : 0;
	size_t dims = shape && shape->kind == MSGPACK_MAP ? shape->n : 0;
	autofree const struct msgpack **m = calloc(n + 1, sizeof(*m));
	autofree const struct msgpack_array **pieces = calloc(n + 1, sizeof(*pieces));
	const struct msgpack *dim[CKPT_MAX_DIMS];
	uint64_t size[CKPT_MAX_DIMS];
	struct tensor t = { .n_dims = dims, .shape = size };

	if (!m || !pieces)
		return err_nomem(e);
	if (!n || n > MAX_PIECES || dims > CKPT_MAX_DIMS || !numbered(shape, dim, dims) ||
	    !numbered(chunks, m, n))
		return wrong(r, "it has no shape, or no numbered pieces", e);
	for (size_t i = 0; i < dims; i++) {
		if (dim[i]->kind != MSGPACK_INT || dim[i]->integer < 0)
			return wrong(r, "its shape does not consist of numbers", e);
		size[i] = (uint64_t)dim[i]->integer;
	}
	for (size_t i = 0; i < n; i++) {
		if (m[i]->kind != MSGPACK_ARRAY)
			return wrong(r, "a piece of it is not an array", e);
		pieces[i] = m[i]->array;
	}
	t.dtype = ckpt_dtype_by_name(pieces[0]->dtype, strlen(pieces[0]->dtype));
	return t.dtype == CKPT_DTYPE_NONE ? unknown_dtype(r, pieces[0]->dtype, e)
					  : add_pieces(r, &t, pieces, n, e);
}

/* ---- other values ---- */

static void put_real(struct buf *b, double v)
{
	buf_printf(b, isfinite(v) ? "%.17g" : "\"%g\"", v);
}

static int add_value(struct reading *r, const struct msgpack *v, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(CATALOG_MAX_TEXT);

	switch (v->kind) {
	case MSGPACK_BOOL:
		buf_str(&text, v->integer ? "true" : "false");
		break;
	case MSGPACK_INT:
		buf_printf(&text, "%lld", (long long)v->integer);
		break;
	case MSGPACK_UINT:
		buf_u64(&text, (uint64_t)v->integer);
		break;
	case MSGPACK_REAL:
		put_real(&text, v->real);
		break;
	case MSGPACK_COMPLEX:
		buf_str(&text, "[");
		put_real(&text, v->real);
		buf_str(&text, ", ");
		put_real(&text, v->imag);
		buf_str(&text, "]");
		break;
	case MSGPACK_TEXT:
		buf_json_str(&text, v->text, (size_t)v->len);
		break;
	default:
		return add_object(r, NULL,
				  CATALOG_UNSUPPORTED
				  "a value that is neither an array, a number nor a text",
				  e);
	}
	buf_str(&text, "\n");
	return add_object(r, &text, NULL, e);
}

/* ---- arrays beside it ---- */

static const char placeholder[] = "PLACEHOLDER://";

/* {"0": 10, "1": 5}, or a list, as [10,5]. */
static void put_sizes(struct buf *b, const char *key, const struct msgpack *v)
{
	const struct msgpack *m[CKPT_MAX_DIMS];
	bool is_map = v && v->kind == MSGPACK_MAP, is_list = v && v->kind == MSGPACK_LIST;
	size_t n = 0;

	if (is_map && v->n <= CKPT_MAX_DIMS && numbered(v, m, v->n))
		n = v->n;
	for (const struct msgpack *d = is_list ? v->first : NULL; d && n < CKPT_MAX_DIMS;
	     d = d->next)
		m[n++] = d;
	buf_printf(b, "\"%s\":[", key);
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%s%lld", i ? "," : "",
			   m[i]->kind == MSGPACK_INT ? (long long)m[i]->integer : -1LL);
	/* Anything else becomes invalid JSON, which is refused. */
	buf_str(b, (is_map || is_list) && v->n == n ? "]," : "-],");
}

/* The .zarray that T5X's description amounts to. */
static void put_zarray(struct buf *b, const struct msgpack *spec)
{
	const struct msgpack *about = msgpack_get(spec, "metadata");
	const struct msgpack *codec = msgpack_get(msgpack_get(about, "compressor"), "id");
	const struct msgpack *dtype = msgpack_get(spec, "dtype");
	const char *name = dtype && dtype->kind == MSGPACK_TEXT ? dtype->text : "";
	enum ckpt_dtype t = ckpt_dtype_by_name(name, strlen(name));
	const char *npy = t == CKPT_DTYPE_NONE ? name : dtype_info(t)->npy;

	if (t != CKPT_DTYPE_NONE && npy[1] == 'V')
		npy = name;
	buf_str(b, "{\"zarr_format\":2,\"filters\":null,\"fill_value\":null,\"order\":\"C\",");
	put_sizes(b, "shape", msgpack_get(about, "shape"));
	put_sizes(b, "chunks", msgpack_get(about, "chunks"));
	buf_str(b, "\"dtype\":");
	buf_json_str(b, npy, strlen(npy));
	buf_str(b, ",\"compressor\":");
	if (codec && codec->kind == MSGPACK_TEXT) {
		buf_str(b, "{\"id\":");
		buf_json_str(b, codec->text, (size_t)codec->len);
		buf_str(b, "}}");
	} else {
		buf_str(b, "null}");
	}
}

/* The array `name`, which has no .zarray. */
static int add_described(struct reading *r, const struct msgpack *spec, const char *name,
			 size_t len, struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT((size_t)1 << 20);
	struct buf fqn CLEANUP(buf_release) = BUF_INIT((size_t)1 << 20);
	struct zarr_array a;
	int rc;

	put_zarray(&text, spec);
	buf_add(&fqn, r->name.fqn.data, r->prefix);
	buf_add(&fqn, name, len);
	if (text.err || fqn.err)
		return err_nomem(e);
	rc = zarr_parse(text.data, text.len, false, &a, e);
	if (rc <= 0)
		return rc ? err_wrap(e, "the description of array '%s'", FQN_TEXT(name, len)) : 0;
	return zarr_add_array(
		r->store,
		&(struct zarr_name){
			.name = name, .name_len = len, .fqn = fqn.data, .fqn_len = fqn.len },
		&a, false, r->w, r->total, e);
}

/* Is it in place of an array beside the file? Then *ret is the array's name. */
static bool stands_for(const struct msgpack *v, const char **ret, size_t *ret_len)
{
	const struct msgpack *path = msgpack_get(msgpack_get(v, "kvstore"), "path");
	size_t n = sizeof(placeholder) - 1;

	if (v->kind == MSGPACK_TEXT && bytes_begin(v->text, (size_t)v->len, placeholder)) {
		*ret = v->text + n;
		*ret_len = (size_t)v->len - n;
		return true;
	}
	if (!msgpack_is_text(msgpack_get(v, "driver"), "zarr") || !path ||
	    path->kind != MSGPACK_TEXT)
		return false;
	n = (size_t)path->len;
	while (n && path->text[n - 1] == '/')
		n--;
	*ret_len = n;
	while (n && path->text[n - 1] != '/')
		n--;
	*ret = path->text + n;
	*ret_len -= n;
	return true;
}

static int add_beside(struct reading *r, const struct msgpack *v, const char *name, size_t len,
		      struct ckpt_err *e)
{
	char why[200];

	if (r->arrays && pk_find(r->arrays, name, len))
		return 0;
	if (r->store && v->kind == MSGPACK_MAP)
		return add_described(r, v, name, len, e);
	(void)snprintf(why, sizeof(why),
		       "it is in the array '%s' beside the file, which is missing",
		       FQN_TEXT(name, len));
	return add_object(r, NULL, why, e);
}

/* ---- the tree ---- */

static void mark_found(struct reading *r)
{
	struct orbax_leaf *l = r->name.fqn.len >= r->prefix
				       ? orbax_tree_find(r->t, r->name.fqn.data + r->prefix,
							 r->name.fqn.len - r->prefix)
				       : NULL;

	if (l)
		l->found = true;
}

static int walk(struct reading *r, const struct msgpack *v, struct ckpt_err *e)
{
	size_t n = r->name.n, len;
	const char *name;
	uint64_t i = 0;
	int rc = 0;

	if (v->kind == MSGPACK_NIL)
		return 0;
	if (stands_for(v, &name, &len))
		return add_beside(r, v, name, len, e);
	if (msgpack_get(v, "__msgpack_chunked_array__")) {
		mark_found(r);
		return add_chunked(r, v, e);
	}
	if (v->kind != MSGPACK_MAP && v->kind != MSGPACK_LIST) {
		mark_found(r);
		return v->kind == MSGPACK_ARRAY ? add_array(r, v->array, e) : add_value(r, v, e);
	}
	for (const struct msgpack *m = v->first; !rc && m; m = m->next, i++) {
		char position[24];
		int digits = snprintf(position, sizeof(position), "%llu", (unsigned long long)i);

		rc = m->key ? orbax_name_add(&r->name, m->key, m->key_len, false, e)
			    : orbax_name_add(&r->name, position, (size_t)digits, true, e);
		if (!rc)
			rc = walk(r, m, e);
		orbax_name_cut(&r->name, n);
	}
	return rc;
}

int orbax_flax_read(struct place *place, const char *file, const struct orbax_name *prefix,
		    struct orbax_tree *t, struct zarr_store *store, const struct pk_strings *arrays,
		    struct catalog_writer *w, uint64_t *total, struct ckpt_err *e)
{
	struct arena a CLEANUP(arena_release) = ARENA_INIT(MSGPACK_MAX_MEMORY);
	struct source *s CLEANUP(source_freep) = NULL;
	struct reading r = { .t = t,
			     .w = w,
			     .name = ORBAX_NAME_INIT,
			     .total = total,
			     .store = store,
			     .arrays = arrays };
	struct msgpack *root;
	struct blob b;
	int rc = place_file(place, file, &s, e);

	if (rc)
		return rc;
	b = source_blob(s);
	rc = catalog_add_metadata(w, file, &s->seen, NULL, e);
	if (!rc)
		rc = catalog_add_source(w, file, strlen(file), &r.source, e);
	if (!rc)
		rc = msgpack_read(&b, &a, &root, e);
	if (!rc && prefix->n) {
		rc = orbax_name_add(&r.name, prefix->fqn.data, prefix->fqn.len, false, e);
		r.prefix = r.name.fqn.len + 1;
	}
	if (!rc)
		rc = walk(&r, root, e);
	if (!rc && !source_is_same(s))
		rc = err_set(e, EAGAIN, "it changed while it was read; is a save going on?");
	orbax_name_release(&r.name);
	return rc ? err_wrap(e, "read '%s'", file) : 0;
}

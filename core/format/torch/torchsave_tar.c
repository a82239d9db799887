/* SPDX-License-Identifier: Apache-2.0 */
#include "format/torch/torchsave_tar.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"
#include "format/torch/torchsave.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"
#include "parse/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_HEADERS = 64, /* of a file that may be something else */
	SOME_PICKLE = 1024,
	MAX_MEMORY = 1 << 20,
};

/* ---- the archive ---- */

struct search {
	struct tar_members *found;
	unsigned headers;
};

/* 1: all are found, or it has become clear that the file is something else. */
static int find_member(void *arg, const struct tar_member *m, struct ckpt_err *e)
{
	static const char *const names[TAR_MEMBERS] = { "pickle", "tensors", "storages" };
	struct search *x = arg;

	(void)e;
	for (unsigned k = 0; k < TAR_MEMBERS; k++)
		if (m->kind == TAR_FILE && bytes_are(m->name, m->name_len, names[k])) {
			x->found->m[k].at = m->at;
			x->found->m[k].len = m->size;
			x->found->found |= 1u << k;
		}
	return tar_members_complete(x->found) || ++x->headers == MAX_HEADERS;
}

int tar_members_find(const struct blob *file, struct tar_members *ret, struct ckpt_err *e)
{
	struct search x = { .found = ret };
	struct ckpt_err why;
	int rc;

	*ret = (struct tar_members){ 0 };
	rc = tar_each(file, find_member, &x, &why);
	if (rc >= 0 || rc == -ERR_CORRUPT || rc == -EFBIG) /* perhaps not even an archive */
		return 0;
	*e = why;
	return rc;
}

/* ---- what the pickles refer to ---- */

struct tar_entry {
	uint64_t at;   /* of a tensor's numbers */
	uint32_t key;  /* string id of its storage's key + 1; 0: there is no such tensor */
	uint8_t dtype; /* of a storage; 0: there is no such storage */
};

struct torchsave_tar {
	struct tar_entry *v; /* by string id of the key */
	size_t cap;
};

void torchsave_tar_free(struct torchsave_tar *x)
{
	if (!x)
		return;
	free(x->v);
	free(x);
}

/* Keys are addresses: numbers in the tables, text in the pickle. */
static bool key_text(const struct pk_value *v, char ret[24])
{
	if (v->type != PK_INT)
		return false;
	(void)snprintf(ret, 24, "%lld", (long long)v->i);
	return true;
}

static const struct pk_str *find_key(const struct torchsave *t, const struct pk_value *v)
{
	char text[24];

	if (v->type == PK_STR)
		return v->s;
	return key_text(v, text) ? pk_find(t->strings, text, strlen(text)) : NULL;
}

static int bad_table(struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "the table of %s is not as torch writes it", what);
}

static int add_key(struct torchsave *t, const struct pk_value *v, const char *what,
		   const struct pk_str **ret, struct ckpt_err *e)
{
	char text[24];

	if (v->type != PK_STR && !key_text(v, text))
		return bad_table(e, what);
	*ret = v->type == PK_STR ? v->s : pk_intern(t->strings, text, strlen(text));
	if (!*ret)
		return err_set(e, errno, "the keys of storages and tensors take too much memory");
	return 0;
}

static int entry_of(struct torchsave *t, const struct pk_value *key, const char *what,
		    struct tar_entry **ret, const struct pk_str **ret_key, struct ckpt_err *e)
{
	const struct pk_str *s;
	size_t old = t->tar->cap;
	int rc = add_key(t, key, what, &s, e);

	if (rc)
		return rc;
	if (s->id >= old) {
		if (!VEC_ROOM(t->tar->v, t->tar->cap, s->id + (size_t)1))
			return err_nomem(e);
		memset(t->tar->v + old, 0, (t->tar->cap - old) * sizeof(*t->tar->v));
	}
	*ret = &t->tar->v[s->id];
	*ret_key = s;
	return 0;
}

static const struct tar_entry *lookup(struct torchsave *t, const struct pk_value *v)
{
	const struct pk_str *s = t->tar && v->type == PK_PERSID ? find_key(t, &v->n->own[0]) : NULL;

	return s && s->id < t->tar->cap ? &t->tar->v[s->id] : NULL;
}

bool torchsave_tar_has(struct torchsave *t, const struct pk_value *v, bool tensor)
{
	const struct tar_entry *x = lookup(t, v);

	return x && (tensor ? x->key != 0 : x->dtype != 0);
}

/* ---- the tables ---- */

struct table {
	struct torchsave *t;
	const char *what;
	uint64_t at, end;
};

/* A short pickle in the table; *at is then behind it. */
static int next_pickle(struct table *x, struct pickle **ret, struct ckpt_err *e)
{
	char buf[SOME_PICKLE];
	struct pickle_opts opts = { .max_bytes = MAX_MEMORY, .strings = x->t->strings };
	size_t cap = (size_t)min_u64(sizeof(buf), x->end - x->at);
	const struct blob *file = x->t->file;
	int64_t n = file->read(file->arg, x->at, buf, cap, e);
	struct pickle_input in = { .mem = buf, .mem_len = n < 0 ? 0 : (size_t)n };
	int rc;

	if (n < 0)
		return (int)n;
	rc = pickle_load(&in, &opts, ret, e);
	if (rc == -ENODATA)
		return bad_table(e, x->what);
	if (!rc)
		x->at += pickle_end(*ret);
	return rc;
}

static int next_count(struct table *x, uint64_t *ret, struct ckpt_err *e)
{
	struct pickle *p = NULL;
	struct pk_value v;
	int rc = next_pickle(x, &p, e);

	if (rc)
		return rc;
	v = pickle_root(p);
	pickle_free(p);
	if (v.type != PK_INT || v.i < 0)
		return bad_table(e, x->what);
	*ret = (uint64_t)v.i;
	return 0;
}

static int next_bytes(struct table *x, void *buf, size_t n, struct ckpt_err *e)
{
	const struct blob *file = x->t->file;
	int64_t got = n <= x->end - x->at ? file->read(file->arg, x->at, buf, n, e) : 0;

	if (got < 0)
		return (int)got;
	if ((size_t)got != n)
		return bad_table(e, x->what);
	x->at += n;
	return 0;
}

/* The three values of a tuple: (key, ...). */
static int next_entry(struct table *x, struct pickle **p, const struct pk_value **ret,
		      struct ckpt_err *e)
{
	struct pk_value v;
	int rc = next_pickle(x, p, e);

	if (rc)
		return rc;
	v = pickle_root(*p);
	if (v.type != PK_TUPLE || pk_len(&v) != 3)
		return bad_table(e, x->what);
	*ret = v.n->own;
	return 0;
}

static int read_storage(struct table *x, struct ckpt_err *e)
{
	struct torchsave_storage *s;
	const struct pk_value *f = NULL;
	const struct pk_str *key;
	struct pickle *p = NULL;
	struct tar_entry *entry;
	enum ckpt_dtype dtype = CKPT_DTYPE_NONE;
	uint64_t count, bytes;
	uint8_t head[8];
	int rc = next_entry(x, &p, &f, e);

	if (!rc && f[2].type == PK_GLOBAL)
		dtype = dtype_by_storage(f[2].g->name->data);
	if (!rc && dtype == CKPT_DTYPE_NONE)
		rc = bad_table(e, x->what);
	if (!rc)
		rc = entry_of(x->t, &f[0], x->what, &entry, &key, e);
	pickle_free(p);
	if (!rc)
		rc = next_bytes(x, head, sizeof(head), e);
	if (rc)
		return rc;
	count = load_le64(head);
	if (ckd_mul(&bytes, count, dtype_info(dtype)->size) || bytes > x->end - x->at)
		return err_set(e, ERR_CORRUPT, "its storages end inside storage '%.60s'",
			       key->data);
	rc = torchsave_storage_of(x->t, key, &s, e);
	if (rc)
		return rc;
	if (s->state != STORAGE_NONE)
		return err_set(e, ERR_CORRUPT, "the file has two storages '%.60s'", key->data);
	entry->dtype = (uint8_t)dtype;
	*s = (struct torchsave_storage){ .at = x->at, .bytes = bytes, .state = STORAGE_FOUND };
	x->at += bytes;
	return 0;
}

/* (key, root's key, offset, count) */
static int read_window(struct table *x, const struct pk_value *v, struct ckpt_err *e)
{
	const struct pk_value *f = v->type == PK_TUPLE && pk_len(v) == 4 ? v->n->own : NULL;
	struct torchsave_storage *s, *root;
	struct tar_entry *entry, *from;
	const struct pk_str *key, *root_key;
	uint64_t at, bytes, size;
	uint8_t dtype;
	int rc;

	if (!f || f[2].type != PK_INT || f[2].i < 0 || f[3].type != PK_INT || f[3].i < 0)
		return bad_table(e, x->what);
	rc = entry_of(x->t, &f[1], x->what, &from, &root_key, e);
	if (rc)
		return rc;
	dtype = from->dtype;
	rc = entry_of(x->t, &f[0], x->what, &entry, &key, e);
	if (!rc) /* makes room for both, so that neither moves */
		rc = torchsave_storage_of(x->t, key->id > root_key->id ? key : root_key, &s, e);
	if (!rc)
		rc = torchsave_storage_of(x->t, root_key, &root, e);
	if (!rc)
		rc = torchsave_storage_of(x->t, key, &s, e);
	if (rc)
		return rc;
	size = dtype_info(dtype)->size;
	if (!dtype || root->state == STORAGE_NONE || s->state != STORAGE_NONE ||
	    ckd_mul(&at, (uint64_t)f[2].i, size) || ckd_mul(&bytes, (uint64_t)f[3].i, size) ||
	    !range_ok(at, bytes, root->bytes))
		return err_set(e, ERR_CORRUPT, "storage '%.60s' is not part of its root",
			       key->data);
	*s = (struct torchsave_storage){ .at = root->at + at,
					 .bytes = bytes,
					 .state = STORAGE_FOUND };
	entry->dtype = dtype;
	return 0;
}

static int read_storages(struct torchsave *t, uint64_t at, uint64_t len, struct ckpt_err *e)
{
	struct table x = { t, "storages", at, at + len };
	struct pickle *windows = NULL;
	struct pk_value v;
	uint64_t n;
	int rc = next_count(&x, &n, e);

	for (uint64_t i = 0; !rc && i < n; i++)
		rc = read_storage(&x, e);
	if (!rc)
		rc = torchsave_load(t, x.at, x.end - x.at, &windows, e);
	if (rc)
		return rc;
	v = pickle_root(windows);
	if (v.type != PK_LIST)
		rc = bad_table(e, x.what);
	for (size_t i = 0; !rc && i < pk_len(&v); i++)
		rc = read_window(&x, &v.n->v[i], e);
	pickle_free(windows);
	return rc;
}

static int read_tensor(struct table *x, struct ckpt_err *e)
{
	const struct pk_value *f = NULL;
	const struct pk_str *key, *storage = NULL;
	struct pickle *p = NULL;
	struct tar_entry *entry;
	uint8_t head[8];
	uint64_t n_dims;
	int rc = next_entry(x, &p, &f, e);

	if (!rc && f[1].type != PK_NONE)
		rc = add_key(x->t, &f[1], x->what, &storage, e);
	if (!rc)
		rc = entry_of(x->t, &f[0], x->what, &entry, &key, e);
	pickle_free(p);
	if (!rc && entry->key)
		rc = err_set(e, ERR_CORRUPT, "the file has two tensors '%.60s'", key->data);
	if (!rc) {
		entry->at = x->at;
		entry->key = storage ? storage->id + 1 : 0; /* None: torch has nothing to load */
		rc = next_bytes(x, head, sizeof(head), e);
	}
	if (rc)
		return rc;
	n_dims = load_le32(head);
	if (n_dims > CKPT_MAX_DIMS || 8 * (2 * n_dims + 1) > x->end - x->at)
		return bad_table(e, x->what);
	x->at += 8 * (2 * n_dims + 1);
	return 0;
}

int torchsave_tar_open(struct torchsave *t, const struct tar_members *m, struct ckpt_err *e)
{
	struct table x = { t, "tensors", m->m[TAR_TENSORS].at,
			   m->m[TAR_TENSORS].at + m->m[TAR_TENSORS].len };
	uint64_t n;
	int rc;

	t->tar = calloc(1, sizeof(*t->tar));
	if (!t->tar)
		return err_nomem(e);
	rc = read_storages(t, m->m[TAR_STORAGES].at, m->m[TAR_STORAGES].len, e);
	if (!rc)
		rc = next_count(&x, &n, e);
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = read_tensor(&x, e);
	return rc;
}

int torchsave_tar_tensor(struct torchsave *t, const struct pk_value *v, struct torch_tensor *ret,
			 struct ckpt_err *e)
{
	const struct tar_entry *x = lookup(t, v), *s;
	uint8_t head[8 + 8 * (2 * CKPT_MAX_DIMS + 1)];
	const struct pk_str *key;
	uint64_t numbers[2 * CKPT_MAX_DIMS + 1];
	size_t n;
	int64_t got;

	if (!x || !x->key)
		return err_set(e, ERR_CORRUPT, "the file has no tensor of that key");
	key = pk_string(t->strings, x->key - 1);
	s = key->id < t->tar->cap ? &t->tar->v[key->id] : NULL;
	if (!s || !s->dtype || key->len >= sizeof(ret->key))
		return err_set(e, ERR_CORRUPT, "the file has no storage '%.60s'", key->data);
	got = t->file->read(t->file->arg, x->at, head, sizeof(head), e);
	if (got < 0)
		return (int)got;
	n = got < 8 ? SIZE_MAX : load_le32(head);
	if (n > CKPT_MAX_DIMS || (size_t)got < 8 + 8 * (2 * n + 1))
		return bad_table(e, "tensors");
	for (size_t i = 0; i < 2 * n + 1; i++) {
		numbers[i] = load_le64(head + 8 + 8 * i);
		if (numbers[i] > INT64_MAX)
			return err_set(e, ERR_CORRUPT, "its sizes, strides or offset are negative");
	}
	*ret = (struct torch_tensor){ .dtype = s->dtype,
				      .storage_bytes = t->storages[key->id].bytes,
				      .n_dims = n,
				      .offset = numbers[2 * n] };
	memcpy(ret->key, key->data, key->len + 1);
	memcpy(ret->size, numbers, n * sizeof(*numbers));
	memcpy(ret->stride, numbers + n, n * sizeof(*numbers));
	return 0;
}

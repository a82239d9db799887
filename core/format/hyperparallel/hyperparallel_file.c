/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The archive is what torch.save writes for a dict: NAME/data.pkl, NAME/byteorder, and a record
 * NAME/data/KEY for every storage; tensors may share one, and need not be contiguous. The pickle
 * and the central directory are read on opening, a storage's header when it is needed.
 */
#include "format/hyperparallel/hyperparallel_file.h"

#include "base/blob.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "base/vec.h"
#include "format/torch_tensor.h"
#include "parse/pickle.h"
#include "parse/safetensors.h"
#include "parse/zip.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAX_PICKLE = 1 << 30,	/* bytes of memory for a data.pkl */
	MAX_PKL_SIZE = 1 << 28, /* bytes of one: about 200 per tensor */
	MAX_KEY = 63,		/* bytes of a storage's name, as in struct torch_tensor */
};

struct storage {
	char key[MAX_KEY + 1];
	struct zip_member member; /* without its name */
};

struct entry {
	const struct pk_str *name;
	const struct pk_value *value;
};

struct hp_file {
	struct blob blob;
	struct st_header *header; /* or an archive: */
	struct pickle *pickle;
	struct entry *entries;	  /* by name */
	struct storage *storages; /* by key */
	size_t n_entries, n_storages, cap_storages;
	bool big_endian;
};

/* ---- archives ---- */

/* What is collected from the directory in addition to the storages. */
struct listing {
	struct hp_file *f;
	struct zip_member pkl, order;
	bool have_pkl, have_order;
};

static int add_storage(struct hp_file *f, const char *key, size_t len, const struct zip_member *m,
		       struct ckpt_err *e)
{
	struct storage *s;

	if (!VEC_ROOM(f->storages, f->cap_storages, f->n_storages + 1))
		return err_nomem(e);
	s = &f->storages[f->n_storages++];
	memcpy(s->key, key, len);
	s->key[len] = 0;
	s->member = *m;
	return 0;
}

static int each_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct listing *l = arg;
	const char *slash = memchr(m->name, '/', m->name_len), *name = slash ? slash + 1 : m->name;
	size_t len = m->name_len - (size_t)(name - m->name);

	if (bytes_are(name, len, "data.pkl")) {
		l->pkl = *m;
		l->have_pkl = true;
	} else if (bytes_are(name, len, "byteorder")) {
		l->order = *m;
		l->have_order = true;
	} else if (len > 5 && len <= 5 + MAX_KEY && bytes_begin(name, len, "data/") &&
		   !memchr(name + 5, 0, len - 5)) {
		return add_storage(l->f, name + 5, len - 5, m, e);
	}
	return 0;
}

static int by_key(const void *ap, const void *bp)
{
	return strcmp(((const struct storage *)ap)->key, ((const struct storage *)bp)->key);
}

static int read_member(const struct hp_file *f, const struct zip_member *m, const char *name,
		       size_t max, uint8_t **ret, struct ckpt_err *e)
{
	autofree uint8_t *p = NULL;
	uint64_t at;
	int64_t n;
	int rc = zip_member_data(&f->blob, m, &at, e);

	if (rc)
		return rc;
	if (m->size > max)
		return err_set(e, EFBIG, "%s of %llu bytes", name, (unsigned long long)m->size);
	p = malloc(m->size + 1);
	if (!p)
		return err_nomem(e);
	n = f->blob.read(f->blob.arg, at, p, m->size, e);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != m->size)
		return err_set(e, ERR_CORRUPT, "%s ends early", name);
	*ret = steal_ptr(&p);
	return 0;
}

/* By name, later duplicates first: they count, as in Python. */
static int by_name(const void *ap, const void *bp)
{
	const struct entry *a = ap, *b = bp;
	size_t n = a->name->len < b->name->len ? a->name->len : b->name->len;
	int c = memcmp(a->name->data, b->name->data, n);

	if (c || a->name->len != b->name->len)
		return c ? c : a->name->len < b->name->len ? -1 : 1;
	return a->value > b->value ? -1 : a->value < b->value;
}

static int list_entries(struct hp_file *f, const struct pk_value *root, struct ckpt_err *e)
{
	size_t n = pk_dict_len(root);

	if (root->type != PK_DICT)
		return err_set(e, ERR_CORRUPT, "data.pkl does not hold a dict of tensors");
	f->entries = calloc(n + 1, sizeof(*f->entries));
	if (!f->entries)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		const struct pk_value *key = &root->n->v[2 * i];

		if (key->type == PK_STR)
			f->entries[f->n_entries++] = (struct entry){ key->s, key + 1 };
	}
	if (f->n_entries)
		qsort(f->entries, f->n_entries, sizeof(*f->entries), by_name);
	return 0;
}

static int open_archive(struct hp_file *f, struct ckpt_err *e)
{
	const struct pickle_opts opts = { .max_bytes = MAX_PICKLE };
	struct listing l = { .f = f };
	autofree uint8_t *pkl = NULL, *order = NULL;
	struct pickle_input in;
	struct pk_value root;
	int rc = zip_each(&f->blob, each_member, &l, e);

	if (rc)
		return rc;
	if (!l.have_pkl)
		return err_set(e, ERR_CORRUPT, "the archive has no data.pkl");
	if (f->n_storages)
		qsort(f->storages, f->n_storages, sizeof(*f->storages), by_key);
	rc = read_member(f, &l.pkl, "data.pkl", MAX_PKL_SIZE, &pkl, e);
	if (!rc && l.have_order)
		rc = read_member(f, &l.order, "byteorder", 16, &order, e);
	if (rc)
		return rc;
	f->big_endian = order && l.order.size == 3 && !memcmp(order, "big", 3);
	in = (struct pickle_input){ .mem = pkl, .mem_len = l.pkl.size };
	rc = pickle_load(&in, &opts, &f->pickle, e);
	if (rc)
		return err_wrap(e, "data.pkl");
	root = pickle_root(f->pickle);
	return list_entries(f, &root, e);
}

static int find_storage(const struct hp_file *f, const struct torch_tensor *t, uint64_t *ret,
			struct ckpt_err *e)
{
	struct storage key = { 0 };
	const struct storage *s;

	(void)memcpy(key.key, t->key, sizeof(key.key));
	s = f->n_storages ? bsearch(&key, f->storages, f->n_storages, sizeof(*s), by_key) : NULL;
	if (!s)
		return err_set(e, ERR_CORRUPT, "the archive has no data/%s", t->key);
	if (s->member.size < t->storage_bytes)
		return err_set(e, ERR_CORRUPT, "data/%s has %llu bytes, but data.pkl says %llu",
			       t->key, (unsigned long long)s->member.size,
			       (unsigned long long)t->storage_bytes);
	return zip_member_data(&f->blob, &s->member, ret, e);
}

static int from_archive(const struct hp_file *f, const struct pk_value *v, struct hp_tensor *ret,
			struct ckpt_err *e)
{
	struct torch_tensor t = { 0 };
	uint64_t end, storage;
	int rc = torch_tensor_read(v, &t, e);

	if (!rc)
		rc = torch_tensor_reach(&t, &end, e);
	if (!rc)
		rc = find_storage(f, &t, &storage, e);
	if (rc)
		return rc;
	ret->dtype = t.dtype;
	ret->n_dims = t.n_dims;
	memcpy(ret->shape, t.size, t.n_dims * sizeof(*ret->shape));
	torch_tensor_layout(&t, f->big_endian, &ret->layout);
	ret->offset = storage + (end ? t.offset * dtype_info(t.dtype)->size : 0);
	ret->length = end ? storage + end - ret->offset : 0;
	return 1;
}

static const struct pk_value *find_entry(const struct hp_file *f, const char *name, size_t len)
{
	const struct entry *v = f->entries;
	size_t at = PARTITION_POINT(i, f->n_entries,
				    bytes_compare(v[i].name->data, v[i].name->len, name, len) < 0);

	return at < f->n_entries && bytes_equal(v[at].name->data, v[at].name->len, name, len)
		       ? v[at].value
		       : NULL;
}

/* ---- safetensors ---- */

static int from_header(const struct st_header *h, const struct st_tensor *t, struct hp_tensor *ret,
		       struct ckpt_err *e)
{
	if (t->dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "dtype '%.60s' is not known", t->dtype_name);
	ret->dtype = t->dtype;
	ret->n_dims = t->n_dims;
	memcpy(ret->shape, t->shape, t->n_dims * sizeof(*ret->shape));
	/* safetensors counts single values, everything else pairs. */
	if (t->dtype == CKPT_DTYPE_F4_E2M1FN_X2 && t->n_dims)
		ret->shape[t->n_dims - 1] /= 2;
	ret->layout = (struct raw_layout){ 0 };
	ret->offset = st_data(h) + t->begin;
	ret->length = t->end - t->begin;
	return 1;
}

/* ---- both ---- */

int hp_file_find(const struct hp_file *f, const char *name, size_t len, struct hp_tensor *ret,
		 struct ckpt_err *e)
{
	const struct st_tensor *t;
	const struct pk_value *v;

	if (f->header) {
		t = st_find(f->header, name, len);
		return t ? from_header(f->header, t, ret, e) : 0;
	}
	v = find_entry(f, name, len);
	return v ? from_archive(f, v, ret, e) : 0;
}

void hp_file_close(struct hp_file *f)
{
	if (!f)
		return;
	st_free(f->header);
	pickle_free(f->pickle);
	free(f->entries);
	free(f->storages);
	free(f);
}

int hp_file_open(struct source *s, struct hp_file **ret, struct ckpt_err *e)
{
	struct hp_file *f = calloc(1, sizeof(*f));
	uint8_t magic[4];
	int64_t n;
	int rc;

	if (!f)
		return err_nomem(e);
	f->blob = source_blob(s);
	n = source_read(s, magic, sizeof(magic), 0, e);
	if (n < 0)
		rc = (int)n;
	else if (zip_magic(magic, (size_t)n))
		rc = open_archive(f, e);
	else
		rc = st_read(&f->blob, &f->header, e);
	if (rc)
		hp_file_close(f);
	else
		*ret = f;
	return rc;
}

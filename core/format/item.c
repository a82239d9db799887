/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save's archive, as far as it is read (torch 2.1 and later; older ones lack some of the
 * small records):
 *
 *	archive/data.pkl            pickle: _rebuild_tensor_v2(storage, offset, size, stride, ...)
 *	archive/.format_version, archive/.storage_alignment
 *	archive/byteorder           "little" or "big"
 *	archive/data/0              the storage's bytes, aligned
 *	archive/version, archive/.data/serialization_id, central directory
 *
 * One read of the first kilobytes is enough: headers are followed from the front, the pickle ends
 * at STOP, a small record where a data descriptor fits. Any other layout is looked up in the
 * central directory, as torch does.
 */
#include "format/item.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/raw.h"
#include "format/torch_tensor.h"
#include "model/box.h"
#include "parse/pickle.h"
#include "parse/safetensors.h"
#include "parse/zip.h"

#include <stdlib.h>
#include <string.h>

enum {
	FIRST_READ = 2048,	 /* data/0 begins at 704 or 768 with torch's default alignment */
	MAX_HEAD = 1 << 20,	 /* bytes read before falling back to the central directory */
	MAX_PICKLE = 64 << 20,	 /* bytes of memory for one data.pkl */
	MAX_PKL_SIZE = 16 << 20, /* bytes of a data.pkl found through the directory */
	/* Bytes of the directory: a tensor has ten records, but many tensors may name one item. */
	MAX_DIRECTORY = 1 << 20,
	MAX_SMALL_RECORD = 4096, /* bytes of a record other than a storage */
};

/* ---- data.pkl ---- */

/* *ret_len: length of the pickle. -ENODATA if it extends beyond len. */
static int read_pickle(const uint8_t *p, size_t len, struct torch_tensor *ret, size_t *ret_len,
		       struct ckpt_err *e)
{
	struct pickle_input in = { .mem = p, .mem_len = len };
	struct pickle_opts opts = { .max_bytes = MAX_PICKLE };
	struct pickle *pk = NULL;
	struct pk_value root;
	int rc = pickle_load(&in, &opts, &pk, e);

	if (rc)
		return rc;
	root = pickle_root(pk);
	*ret_len = (size_t)pickle_end(pk);
	rc = torch_tensor_read(&root, ret, e);
	pickle_free(pk);
	return rc;
}

/* ---- the archive ---- */

/* Where the storage is. */
struct found {
	struct torch_tensor view;
	uint64_t data;
	bool big_endian;
};

/* "archive/data/0" -> "data/0" */
static const char *base_name(const char *name, size_t len, size_t *ret_len)
{
	const char *slash = memchr(name, '/', len);

	*ret_len = slash ? len - (size_t)(slash + 1 - name) : len;
	return slash ? slash + 1 : name;
}

static bool is_storage(const char *name, size_t len, const char *key)
{
	return bytes_begin(name, len, "data/") && bytes_are(name + 5, len - 5, key);
}

/* Length of the small record at p, found by the descriptor after it; SIZE_MAX if there is none. */
static size_t small_record(const uint8_t *p, size_t len)
{
	for (size_t n = 1; n <= MAX_SMALL_RECORD && n + 16 <= len; n++)
		if (p[n] == 'P' && zip_descriptor(p + n, len - n, n))
			return n;
	return SIZE_MAX;
}

/*
 * Walks `head`, the archive's first len bytes. 0: found; 1: consult the directory; -ENODATA: a
 * longer head may help; other errors are final.
 */
static int walk(const uint8_t *head, size_t len, struct found *ret, struct ckpt_err *e)
{
	bool have_order = false;
	uint64_t at = 0;

	for (;;) {
		struct zip_local l;
		const uint8_t *p;
		const char *name;
		size_t name_len, size, left;
		int rc = zip_read_local(head + at, len - at, &l, e);

		if (rc)
			return rc == -ENODATA ? rc : 1;
		name = base_name(l.name, l.name_len, &name_len);
		p = head + at + l.data;
		left = len - at - l.data;
		if (!at) {
			if (!bytes_are(name, name_len, "data.pkl"))
				return 1;
			rc = read_pickle(p, left, &ret->view, &size, e);
			if (rc)
				return rc;
		} else if (name_len > 5 && !memcmp(name, "data/", 5)) {
			/* Before torch 2.1 there is no byteorder record; make sure that none
			 * follows. */
			if (!have_order || !is_storage(name, name_len, ret->view.key))
				return 1;
			ret->data = at + l.data;
			return 0;
		} else {
			size = l.streamed ? small_record(p, left) : l.size;
			if (size == SIZE_MAX)
				return left > MAX_SMALL_RECORD + 24 ? 1 : -ENODATA;
		}
		if (size > left || (l.streamed && left - size < 24))
			return -ENODATA;
		if (bytes_are(name, name_len, "byteorder")) {
			ret->big_endian = size == 3 && !memcmp(p, "big", 3);
			have_order = true;
		}
		at += l.data + size;
		if (l.streamed) {
			size_t d = zip_descriptor(p + size, left - size, size);

			if (!d)
				return 1;
			at += d;
		}
	}
}

struct lookup {
	const struct blob *item;
	const char *key; /* NULL until the pickle is read */
	struct zip_member pkl, order, storage;
	bool have_pkl, have_order, have_storage;
};

static int each_member(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct lookup *l = arg;
	size_t len;
	const char *name = base_name(m->name, m->name_len, &len);

	(void)e;
	if (!l->key && bytes_are(name, len, "data.pkl")) {
		l->pkl = *m;
		l->have_pkl = true;
	} else if (!l->key && bytes_are(name, len, "byteorder")) {
		l->order = *m;
		l->have_order = true;
	} else if (l->key && is_storage(name, len, l->key)) {
		l->storage = *m;
		l->have_storage = true;
	}
	return 0;
}

static int read_member(const struct blob *item, const struct zip_member *m, size_t max,
		       uint8_t **ret, struct ckpt_err *e)
{
	autofree uint8_t *p = NULL;
	uint64_t data;
	int64_t n;
	int rc = zip_member_data(item, m, &data, e);

	if (rc)
		return rc;
	if (m->size > max)
		return err_set(e, ERR_CORRUPT, "zip: a record of %llu bytes is too large",
			       (unsigned long long)m->size);
	p = malloc(m->size + 1);
	if (!p)
		return err_nomem(e);
	n = item->read(item->arg, data, p, m->size, e);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != m->size)
		return err_set(e, ERR_CORRUPT, "zip record ends early");
	*ret = steal_ptr(&p);
	return 0;
}

static int by_directory(const struct blob *item, struct found *ret, struct ckpt_err *e)
{
	struct lookup l = { .item = item };
	autofree uint8_t *pkl = NULL, *order = NULL;
	uint64_t directory;
	size_t len;
	int rc = zip_directory_size(item, &directory, e);

	if (!rc && directory > MAX_DIRECTORY)
		rc = err_set(e, ERR_UNSUPPORTED,
			     "the directory of the item's archive has %llu bytes, which is not how "
			     "torch writes a tensor",
			     (unsigned long long)directory);
	if (!rc)
		rc = zip_each(item, each_member, &l, e);
	if (rc)
		return rc;
	if (!l.have_pkl)
		return err_set(e, ERR_CORRUPT, "the item's archive has no data.pkl");
	rc = read_member(item, &l.pkl, MAX_PKL_SIZE, &pkl, e);
	if (!rc)
		rc = read_pickle(pkl, l.pkl.size, &ret->view, &len, e);
	if (!rc && l.have_order)
		rc = read_member(item, &l.order, 16, &order, e);
	if (rc)
		return rc;
	ret->big_endian = order && l.order.size == 3 && !memcmp(order, "big", 3);
	l.key = ret->view.key;
	rc = zip_each(item, each_member, &l, e);
	if (rc)
		return rc;
	if (!l.have_storage)
		return err_set(e, ERR_CORRUPT, "the item's archive has no data/%s", ret->view.key);
	if (l.storage.size < ret->view.storage_bytes)
		return err_set(e, ERR_CORRUPT, "data/%s has %llu bytes, but data.pkl says %llu",
			       ret->view.key, (unsigned long long)l.storage.size,
			       (unsigned long long)ret->view.storage_bytes);
	return zip_member_data(item, &l.storage, &ret->data, e);
}

static int find_storage(const struct blob *item, uint8_t *head, size_t len, struct found *ret,
			struct ckpt_err *e)
{
	autofree uint8_t *more = NULL;
	size_t cap = FIRST_READ;
	struct ckpt_err why; /* an error of the walk is not always final */
	int rc;

	for (;;) {
		int64_t n;

		*ret = (struct found){ 0 };
		rc = walk(more ? more : head, len, ret, &why);
		if (rc != -ENODATA || len < cap || cap >= MAX_HEAD)
			break;
		cap *= 8;
		free(more);
		more = malloc(cap);
		if (!more)
			return err_nomem(e);
		n = item->read(item->arg, 0, more, cap, e);
		if (n < 0)
			return (int)n;
		len = (size_t)n;
	}
	if (rc < 0 && rc != -ENODATA)
		*e = why;
	if (!rc || (rc < 0 && rc != -ENODATA))
		return rc;
	if (item->size == BLOB_SIZE_UNKNOWN) /* the directory is at the end, which is unknown */
		return err_set(
			e, ERR_UNSUPPORTED,
			"the item's archive cannot be read from the front, and it is compressed");
	*ret = (struct found){ 0 };
	return by_directory(item, ret, e);
}

/* ---- checks ---- */

static int wrong_dtype(const struct item_want *want, enum ckpt_dtype found, struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT, "the metadata says %s, but its item holds %s",
		       dtype_info(want->dtype)->name, dtype_info(found)->name);
}

static int check_view(const struct blob *item, const struct found *f, const struct item_want *want,
		      struct payload *ret, struct ckpt_err *e)
{
	const struct dtype_info *d = dtype_info(want->dtype);
	const struct torch_tensor *v = &f->view;
	struct raw_layout l;
	uint64_t end;
	int rc;

	if (v->dtype != want->dtype)
		return wrong_dtype(want, v->dtype, e);
	if (v->n_dims != want->n_dims || !dims_equal(v->n_dims, v->size, want->len))
		return err_set(e, ERR_CORRUPT, "its item does not have the chunk's sizes");
	rc = torch_tensor_reach(v, &end, e);
	if (rc)
		return rc;
	if (ckd_add(&ret->end, f->data, end) || ret->end > item->size)
		return err_set(e, ERR_CORRUPT, "its storage reaches beyond the item's %llu bytes",
			       (unsigned long long)item->size);
	torch_tensor_layout(v, f->big_endian, &l);
	for (size_t i = 0; i < v->n_dims; i++)
		ret->stride[i] = l.stride[i] * d->size;
	ret->data = f->data + (end ? v->offset * d->size : 0);
	ret->swap = l.swap;
	ret->neg = l.neg;
	ret->conj = l.conj;
	return 0;
}

static void reverse(uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n / 2; i++) {
		uint8_t t = p[i];

		p[i] = p[n - 1 - i];
		p[n - 1 - i] = t;
	}
}

/* Floating point: flips the sign bit. Integers, whose views torch gives the neg bit too: two's
 * complement. */
static void negate(uint8_t *p, size_t n, bool integer)
{
	unsigned carry = 1;

	if (!integer) {
		p[n - 1] ^= 0x80;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		carry += (uint8_t)~p[i];
		p[i] = (uint8_t)carry;
		carry >>= 8;
	}
}

void payload_resolve(const struct payload *p, enum ckpt_dtype dtype, void *elements, size_t bytes)
{
	const struct dtype_info *d = dtype_info(dtype);
	uint8_t *at = elements;

	for (size_t i = 0; i + d->unit <= bytes; i += d->unit) {
		bool imaginary = i / d->unit % 2 && d->size == 2 * d->unit;

		if (p->swap)
			reverse(at + i, d->unit);
		if (p->neg != (p->conj && imaginary))
			negate(at + i, d->unit, d->is_integer);
	}
}

/* ---- safetensors inside .distcp ---- */

struct item_cache {
	pthread_mutex_t lock;
	struct st_header *header;
	uint32_t file; /* of the header */
	uint64_t offset;
};

struct item_cache *item_cache_new(void)
{
	struct item_cache *c = calloc(1, sizeof(*c));

	if (c)
		(void)pthread_mutex_init(&c->lock, NULL);
	return c;
}

void item_cache_free(struct item_cache *c)
{
	if (!c)
		return;
	st_free(c->header);
	(void)pthread_mutex_destroy(&c->lock);
	free(c);
}

static int from_header(const struct st_header *h, const struct item_want *want, struct payload *ret,
		       struct ckpt_err *e)
{
	const struct st_tensor *t = st_find(h, want->fqn, want->fqn_len);
	uint64_t stride = dtype_info(want->dtype)->size;
	bool same;

	if (!t)
		return err_set(e, ERR_CORRUPT, "its file's safetensors header does not name it");
	if (t->dtype != want->dtype)
		return wrong_dtype(want, t->dtype, e);
	same = t->n_dims == want->n_dims;
	for (size_t i = 0; same && i < t->n_dims; i++) {
		bool halves = t->dtype == CKPT_DTYPE_F4_E2M1FN_X2 && i + 1 == t->n_dims;

		same = t->shape[i] == want->len[i] * (halves ? 2 : 1);
	}
	if (!same)
		return err_set(e, ERR_CORRUPT,
			       "its file's safetensors header gives it another shape");
	for (size_t i = want->n_dims; i-- > 0; stride *= want->len[i])
		ret->stride[i] = stride;
	ret->data = st_data(h) + t->begin;
	ret->end = st_data(h) + t->end;
	ret->swap = ret->neg = ret->conj = false;
	return 0;
}

static int open_safetensors(const struct item_want *want, struct item_cache *cache,
			    struct payload *ret, struct ckpt_err *e)
{
	struct st_header *h = NULL, *old;
	int rc;

	{
		SCOPED_LOCK(&cache->lock);
		if (cache->header && cache->file == want->file && cache->offset == want->offset)
			return from_header(cache->header, want, ret, e);
	}
	rc = st_read(want->rest, &h, e);
	if (rc)
		return err_wrap(e, "the item is neither a torch.save archive nor safetensors");
	rc = from_header(h, want, ret, e);
	{
		SCOPED_LOCK(&cache->lock);
		old = cache->header;
		cache->header = h;
		cache->file = want->file;
		cache->offset = want->offset;
	}
	st_free(old);
	return rc;
}

int item_open(const struct blob *item, const struct item_want *want, struct item_cache *cache,
	      struct payload *ret, struct ckpt_err *e)
{
	uint8_t head[FIRST_READ];
	struct found f;
	int64_t n = item->read(item->arg, 0, head, sizeof(head), e);
	int rc;

	if (n < 0)
		return (int)n;
	if (!zip_magic(head, (size_t)n)) {
		if (!want->rest)
			return err_set(e, ERR_CORRUPT,
				       "its decoded item is not a torch.save archive");
		return open_safetensors(want, cache, ret, e);
	}
	rc = find_storage(item, head, (size_t)n, &f, e);
	return rc ? rc : check_view(item, &f, want, ret, e);
}

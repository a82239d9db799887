/* SPDX-License-Identifier: Apache-2.0 */
#include "store/torch_item.h"

#include "base/blob.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "file/pt_write.h"
#include "model/box.h"
#include "parse/pickle_write.h"
#include "parse/zip.h"

#include <assert.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "archive/"

enum {
	PREFIX_LEN = sizeof(PREFIX) - 1,
	MAX_PICKLE = 1 << 30,
	FLAG_STREAMED = 1 << 3, /* size and CRC follow the data */
	FLAG_UTF8 = 1 << 11,
	PAD_KEY = 'F' | 'B' << 8, /* torch's own extra field */
	MADE_BY = 0x031e,	  /* of the end record: Unix, 3.0 */
	NEEDED = 45,		  /* to read it: 4.5, zip64 */
	MAX_ENTRY = ZIP_CENTRAL_SIZE + 64 + 4 + 24 + 4 + TORCH_ITEM_ALIGN,
};

/* ---- data.pkl ---- */

static void put_text(struct pickle_writer *w, const char *s)
{
	pw_str(w, s, strlen(s));
}

static void put_tuple(struct pickle_writer *w, const uint64_t *v, size_t n)
{
	pw_tuple_of(w, v, n);
	if (n) /* the empty tuple is a constant and gets no number */
		(void)pw_memo(w);
}

/* ("storage", class, "0", "cpu", count); untyped storages count bytes. */
static void put_storage(struct pickle_writer *w, const struct dtype_info *d, uint64_t bytes)
{
	pw_tuple_begin(w, 5);
	put_text(w, "storage");
	if (d->storage)
		pw_global(w, "torch", d->storage);
	else
		pw_global(w, "torch.storage", "UntypedStorage");
	put_text(w, "0");
	put_text(w, "cpu");
	pw_uint(w, d->storage ? bytes / d->size : bytes);
	pw_tuple_end(w, 5);
	(void)pw_memo(w);
	pw_op(w, OP_BINPERSID);
}

static void put_strides(struct pickle_writer *w, size_t n_dims, const uint64_t *shape)
{
	uint64_t stride[CKPT_MAX_DIMS], step = 1;

	for (size_t d = n_dims; d--;) {
		stride[d] = step;
		/* The product can overflow only for an empty tensor, whose strides do not
		 * matter. */
		if (ckd_mul(&step, step, max_u64(shape[d], 1)) || step > INT64_MAX)
			step = INT64_MAX;
	}
	put_tuple(w, stride, n_dims);
}

/*
 * _rebuild_tensor_v2(storage, 0, size, stride, requires_grad=False, backward_hooks=OrderedDict());
 * v3 with the dtype at the end if torch has no storage class for it. Memo numbers are those of
 * torch's pickler.
 */
static int put_pickle(struct buf *b, enum ckpt_dtype dtype, size_t n_dims, const uint64_t *shape,
		      uint64_t bytes)
{
	const struct dtype_info *d = dtype_info(dtype);
	struct pickle_writer w;
	size_t args = d->storage ? 6 : 7;

	pw_begin(&w, b, 2, true);
	pw_global(&w, "torch._utils", d->storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	pw_tuple_begin(&w, args);
	put_storage(&w, d, bytes);
	pw_uint(&w, 0);
	put_tuple(&w, shape, n_dims);
	put_strides(&w, n_dims, shape);
	pw_bool(&w, false);
	pw_global(&w, "collections", "OrderedDict");
	pw_op(&w, OP_EMPTY_TUPLE);
	pw_op(&w, OP_REDUCE);
	(void)pw_memo(&w);
	if (!d->storage)
		pw_global(&w, "torch", d->name);
	pw_tuple_end(&w, args);
	(void)pw_memo(&w);
	pw_op(&w, OP_REDUCE);
	(void)pw_memo(&w);
	return pw_end(&w);
}

/* ---- records ---- */

static void append(struct torch_item *t, struct buf *b, const void *p, size_t n)
{
	buf_add(b, p, n);
	t->at += n;
}

static bool is_far(const struct torch_record *r)
{
	return r->header >= UINT32_MAX;
}

static bool is_big(const struct torch_record *r)
{
	return r->size >= UINT32_MAX;
}

static unsigned flags_of(const struct torch_record *r)
{
	return FLAG_UTF8 | (r->size ? FLAG_STREAMED : 0u);
}

static uint8_t *put_name(uint8_t *p, const struct torch_record *r)
{
	memcpy(p, PREFIX, PREFIX_LEN);
	memcpy(p + PREFIX_LEN, r->name, strlen(r->name));
	return p + PREFIX_LEN + strlen(r->name);
}

/*
 * CRC and sizes are 0 here and follow the data, since it is written as a stream. The zip64 field is
 * miniz's: for a large record its size, with 0 as compressed size; for one at a large offset, the
 * offset.
 */
static void add_local(struct torch_item *t, struct buf *b, const struct torch_record *r)
{
	size_t name_len = PREFIX_LEN + strlen(r->name);
	size_t zip64 = is_big(r) ? 4 + 16 : is_far(r) ? 4 + 8 : 0;
	size_t pad = -(t->at + ZIP_LOCAL_SIZE + name_len + zip64 + 4) % TORCH_ITEM_ALIGN;
	uint8_t entry[MAX_ENTRY] = { 0 }, *p = entry;

	p = put_le(p, ZIP_SIG_LOCAL, 4);
	p = put_le(p, 0, 2); /* version needed */
	p = put_le(p, flags_of(r), 2);
	p = put_le(p, 0, 2 + 2 + 2); /* stored, time, date */
	p = put_le(p, 0, 4);
	p = put_le(p, 0, 8);
	p = put_le(p, name_len, 2);
	p = put_le(p, zip64 + 4 + pad, 2);
	p = put_name(p, r);
	if (zip64) {
		p = put_le(p, ZIP_TAG_ZIP64, 2);
		p = put_le(p, zip64 - 4, 2);
		p = put_le(p, is_big(r) ? r->size : r->header, 8);
		p = put_le(p, 0, is_big(r) ? 8 : 0);
	}
	p = put_le(p, PAD_KEY, 2);
	p = put_le(p, pad, 2);
	memset(p, 'Z', pad);
	append(t, b, entry, (size_t)(p + pad - entry));
}

/* The record's data is added next. */
static void begin_record(struct torch_item *t, struct buf *b, const char *name, uint64_t size)
{
	struct torch_record *r = &t->records[t->n++];

	assert(t->n <= TORCH_ITEM_RECORDS);
	*r = (struct torch_record){ .name = name, .header = t->at, .size = size };
	add_local(t, b, r);
}

/* The data descriptor; omitted if there is no data. */
static void end_record(struct torch_item *t, struct buf *b, uint32_t crc)
{
	struct torch_record *r = &t->records[t->n - 1];
	size_t width = is_big(r) || is_far(r) ? 8 : 4;
	uint8_t entry[4 + 4 + 16], *p = entry;

	if (!r->size)
		return;
	r->crc = crc;
	p = put_le(p, ZIP_SIG_DESCRIPTOR, 4);
	p = put_le(p, crc, 4);
	p = put_le(p, r->size, width);
	p = put_le(p, r->size, width);
	append(t, b, entry, (size_t)(p - entry));
}

static void add_record(struct torch_item *t, struct buf *b, const char *name, const void *p,
		       size_t n)
{
	begin_record(t, b, name, n);
	append(t, b, p, n);
	end_record(t, b, n ? libdeflate_crc32(0, p, n) : 0);
}

/* ---- the end ---- */

static void add_central(struct torch_item *t, struct buf *b, const struct torch_record *r)
{
	size_t zip64 = is_big(r) || is_far(r) ? 4 + is_big(r) * 16 + is_far(r) * 8 : 0;
	uint8_t entry[MAX_ENTRY], *p = entry;

	p = put_le(p, ZIP_SIG_CENTRAL, 4);
	p = put_le(p, 0, 2 + 2); /* versions made by and needed */
	p = put_le(p, flags_of(r), 2);
	p = put_le(p, 0, 2 + 2 + 2); /* stored, time, date */
	p = put_le(p, r->crc, 4);
	p = put_le(p, min_u64(r->size, UINT32_MAX), 4);
	p = put_le(p, min_u64(r->size, UINT32_MAX), 4);
	p = put_le(p, PREFIX_LEN + strlen(r->name), 2);
	p = put_le(p, zip64, 2);
	p = put_le(p, 0, 2 + 2 + 2); /* comment, disk, attributes */
	p = put_le(p, 0, 4);	     /* attributes, continued */
	p = put_le(p, min_u64(r->header, UINT32_MAX), 4);
	p = put_name(p, r);
	if (zip64) {
		p = put_le(p, ZIP_TAG_ZIP64, 2);
		p = put_le(p, zip64 - 4, 2);
		if (is_big(r))
			p = put_le(put_le(p, r->size, 8), r->size, 8);
		if (is_far(r))
			p = put_le(p, r->header, 8);
	}
	append(t, b, entry, (size_t)(p - entry));
}

static void add_end(struct torch_item *t, struct buf *b, uint64_t dir)
{
	uint8_t ends[ZIP_ENDS_SIZE];

	zip_put_ends(ends, MADE_BY, NEEDED, t->n, dir, t->at - dir);
	append(t, b, ends, sizeof(ends));
}

/*
 * Two numbers of 20 digits. torch computes the first from the names, in the order in which its C++
 * library keeps them in a hash table, so there is one for each set of names; the second from the
 * CRCs of records with data, using boost's hash_combine.
 */
static void add_id(struct torch_item *t, struct buf *b, bool has_data)
{
	uint64_t crcs = 0;
	char id[41];

	for (size_t i = 0; i < t->n; i++)
		if (t->records[i].size)
			crcs ^= t->records[i].crc + UINT64_C(0x9e3779b9) + (crcs << 6) +
				(crcs >> 2);
	(void)snprintf(id, sizeof(id), "%s%020" PRIu64,
		       has_data ? "15728199511854643026" : "02908468677762923104", crcs);
	add_record(t, b, ".data/serialization_id", id, 40);
}

/* ---- all of it ---- */

static void add_front(struct torch_item *t, const void *pickle, size_t n, struct buf *ret)
{
	add_record(t, ret, "data.pkl", pickle, n);
	add_record(t, ret, ".format_version", "1", 1);
	add_record(t, ret, ".storage_alignment", "64", 2);
	add_record(t, ret, "byteorder", "little", 6);
}

static int add_back(struct torch_item *t, bool has_data, struct buf *ret, struct ckpt_err *e)
{
	uint64_t dir;

	add_record(t, ret, "version", "3\n", 2);
	add_id(t, ret, has_data);
	dir = t->at;
	for (size_t i = 0; i < t->n; i++)
		add_central(t, ret, &t->records[i]);
	add_end(t, ret, dir);
	return ret->err ? err_sys(e, ret->err, "torch.save archive of %" PRIu64 " bytes", t->at)
			: 0;
}

static int tensor_bytes(enum ckpt_dtype dtype, size_t n_dims, const uint64_t *shape, uint64_t *ret,
			struct ckpt_err *e)
{
	uint64_t volume;

	if (!pt_holds(dtype))
		return err_set(e, ERR_UNSUPPORTED, "a torch.save archive cannot hold %s",
			       dtype_info(dtype)->name);
	if (n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL, "%zu dimensions are too many: at most %d are possible",
			       n_dims, CKPT_MAX_DIMS);
	if (!box_volume(n_dims, shape, &volume) || ckd_mul(ret, volume, dtype_info(dtype)->size) ||
	    *ret > INT64_MAX)
		return err_set(e, EOVERFLOW, "more than 2^63 - 1 bytes");
	return 0;
}

int torch_item_begin(struct torch_item *t, enum ckpt_dtype dtype, size_t n_dims,
		     const uint64_t *shape, struct buf *ret, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf pkl = BUF_INIT(MAX_PICKLE);
	uint64_t bytes = 0;
	int rc = tensor_bytes(dtype, n_dims, shape, &bytes, e);

	if (rc)
		return rc;
	rc = put_pickle(&pkl, dtype, n_dims, shape, bytes);
	if (rc)
		return err_sys(e, -rc, "data.pkl");
	*t = (struct torch_item){ .data_len = bytes };
	add_front(t, pkl.data, pkl.len, ret);
	begin_record(t, ret, "data/0", bytes);
	t->at += bytes;
	return ret->err ? err_sys(e, ret->err, "head of a torch.save archive") : 0;
}

int torch_item_end(struct torch_item *t, uint32_t crc, struct buf *ret, struct ckpt_err *e)
{
	end_record(t, ret, crc);
	return add_back(t, true, ret, e);
}

int torch_item_wrap(const void *pickle, size_t n, struct buf *ret, struct ckpt_err *e)
{
	struct torch_item t = { 0 };

	if (n > MAX_PICKLE)
		return err_set(e, EFBIG, "a pickle of %zu bytes, more than 1 GiB", n);
	add_front(&t, pickle, n, ret);
	return add_back(&t, false, ret, e);
}

/* ---- and back ---- */

struct bytes {
	const uint8_t *p;
	size_t n;
};

static int64_t read_bytes(void *arg, uint64_t off, void *to, size_t len, struct ckpt_err *e)
{
	const struct bytes *b = arg;
	size_t n = off < b->n ? (size_t)min_u64(len, b->n - off) : 0;

	(void)e;
	memcpy(to, b->p + (n ? off : 0), n);
	return (int64_t)n;
}

struct search {
	const struct blob *b;
	uint64_t at, size; /* position and size of the pickle */
	bool found, has_tensors;
};

/* After the archive's prefix, which may be anything. */
static int look_at(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	const char *slash = memchr(m->name, '/', m->name_len);
	const char *name = slash ? slash + 1 : m->name;
	size_t n = m->name_len - (size_t)(name - m->name);
	struct search *s = arg;

	if (bytes_begin(name, n, "data/"))
		s->has_tensors = true;
	if (!bytes_are(name, n, "data.pkl"))
		return 0;
	s->found = true;
	s->size = m->size;
	return zip_member_data(s->b, m, &s->at, e);
}

static int search(const void *item, size_t n, struct search *s, struct ckpt_err *e)
{
	struct bytes bytes = { item, n };
	struct blob b = { read_bytes, &bytes, n };
	struct ckpt_err why = { 0 };
	int rc;

	*s = (struct search){ .b = &b };
	if (!zip_magic(item, n))
		return 0;
	rc = zip_each(&b, look_at, s, &why);
	if (rc == -ENOMEM)
		*e = why;
	return rc == -ENOMEM ? rc : !rc && s->found;
}

static int take(const void *item, size_t n, bool tensors, const void **ret, size_t *ret_n,
		struct ckpt_err *e)
{
	struct search s;
	int rc = search(item, n, &s, e);

	if (rc <= 0 || (s.has_tensors && !tensors))
		return rc < 0 ? rc : 0;
	*ret = (const uint8_t *)item + s.at;
	*ret_n = (size_t)s.size;
	return 1;
}

int torch_item_unwrap(const void *item, size_t n, const void **ret, size_t *ret_n,
		      struct ckpt_err *e)
{
	return take(item, n, false, ret, ret_n, e);
}

int torch_item_pickle(const void *item, size_t n, const void **ret, size_t *ret_n,
		      struct ckpt_err *e)
{
	return take(item, n, true, ret, ret_n, e);
}

int torch_item_is(const void *item, size_t n, struct ckpt_err *e)
{
	struct search s;

	return search(item, n, &s, e);
}

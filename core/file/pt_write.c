/* SPDX-License-Identifier: Apache-2.0 */
#include "file/pt_write.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "file/vfile.h"
#include "parse/pickle_write.h"
#include "parse/zip.h"
#include "tensor/tensor_info.h"

#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

bool pt_holds(enum ckpt_dtype t)
{
	switch (t) {
	case CKPT_DTYPE_NONE:
	case CKPT_DTYPE_QI8:
	case CKPT_DTYPE_QU8:
	case CKPT_DTYPE_QI32:
	case CKPT_DTYPE_QU4X2:
	case CKPT_DTYPE_QU2X4:
	case CKPT_DTYPE_F8_E3M4:
	case CKPT_DTYPE_F8_E4M3B11FNUZ:
	case CKPT_DTYPE_F4_E2M1FN:
	case CKPT_DTYPE_I4:
	case CKPT_DTYPE_I2:
		return false;
	default:
		return t < CKPT_DTYPE_COUNT;
	}
}

static int why_not(const struct tensor_info *m, struct ckpt_err *e)
{
	if (!pt_holds(m->dtype))
		return err_set(e, ERR_UNSUPPORTED, "a .pt file cannot hold %s",
			       dtype_info(m->dtype)->name);
	if (!text_is_utf8(m->fqn, m->fqn_len))
		return err_set(e, ERR_UNSUPPORTED,
			       "torch.load requires names in UTF-8, but this name is not in UTF-8");
	return 0;
}

int pt_check(const struct tensor_info *m, struct ckpt_err *e)
{
	char shown[100];

	if (!why_not(m, e))
		return 0;
	return err_wrap(e, "'%s'", text_show(m->fqn, m->fqn_len, shown, sizeof(shown)));
}

/* ---- data.pkl ---- */

static void put_text(struct pickle_writer *w, const char *s)
{
	pw_str(w, s, strlen(s));
}

/* The tuples of sizes and strides, in elements. */
static void put_geometry(struct pickle_writer *w, const struct tensor_info *m)
{
	int64_t stride[UINT8_MAX + 1], step = 1;

	for (size_t d = m->n_dims; d--;) {
		stride[d] = step;
		/* The product can overflow only for an empty tensor, whose strides do not
		 * matter. */
		if (ckd_mul(&step, step, max_u64(m->shape[d], 1)))
			step = INT64_MAX;
	}
	pw_op(w, OP_MARK);
	for (size_t d = 0; d < m->n_dims; d++)
		pw_uint(w, m->shape[d]);
	pw_op(w, OP_TUPLE);
	pw_op(w, OP_MARK);
	for (size_t d = 0; d < m->n_dims; d++)
		pw_int(w, stride[d]);
	pw_op(w, OP_TUPLE);
}

/*
 * name: _rebuild_tensor_v2(storage, 0, size, stride, requires_grad=False, backward_hooks={}), the
 * storage being the persistent id ("storage", class, key, "cpu", elements). Where torch has no
 * storage class for the dtype, v3: an untyped storage, counted in bytes, and the dtype at the end.
 */
static void put_tensor(struct pickle_writer *w, const struct tensor_info *m, size_t key)
{
	const struct dtype_info *d = dtype_info(m->dtype);
	char digits[24];

	pw_str(w, m->fqn, m->fqn_len);
	pw_global(w, "torch._utils", d->storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	pw_op(w, OP_MARK);
	pw_op(w, OP_MARK);
	put_text(w, "storage");
	if (d->storage)
		pw_global(w, "torch", d->storage);
	else
		pw_global(w, "torch.storage", "UntypedStorage");
	(void)snprintf(digits, sizeof(digits), "%zu", key);
	put_text(w, digits);
	put_text(w, "cpu");
	pw_uint(w, d->storage ? m->bytes / d->size : m->bytes);
	pw_op(w, OP_TUPLE);
	pw_op(w, OP_BINPERSID);
	pw_uint(w, 0);
	put_geometry(w, m);
	pw_bool(w, false);
	pw_global(w, "collections", "OrderedDict");
	pw_op(w, OP_EMPTY_TUPLE);
	pw_op(w, OP_REDUCE);
	if (!d->storage)
		pw_global(w, "torch", d->name);
	pw_op(w, OP_TUPLE);
	pw_op(w, OP_REDUCE);
}

/* No memo is used, so each part of the pickle can be read by itself. */
static void put_pickle(struct buf *b, const struct tensor_info *m, size_t n)
{
	struct pickle_writer w;

	pw_begin(&w, b, 2, false);
	pw_op(&w, OP_EMPTY_DICT);
	pw_op(&w, OP_MARK);
	for (size_t i = 0; i < n && !b->err; i++)
		put_tensor(&w, &m[i], i);
	pw_op(&w, OP_SETITEMS);
	(void)pw_end(&w);
}

/* ---- the archive ---- */

enum {
	ALIGN = 64,
	VERSION = 45,		  /* of the format, 4.5: zip64 */
	FLAGS = 1 << 11,	  /* names in UTF-8 */
	DATE = 1 << 5 | 1,	  /* 1 January 1980, the earliest possible */
	PAD_KEY = 'F' | 'B' << 8, /* torch's own extra field */
	MAX_NAME = 64,
	MAX_ENTRY = ZIP_CENTRAL_SIZE + MAX_NAME + 4 + 16 + 4 + ALIGN,
};

struct archive {
	struct vfile *f;
	struct buf dir;
	uint64_t n;
};

struct record {
	const char *name;
	uint64_t size, header; /* bytes; offset of its local header */
	uint32_t crc;
};

/* The fields that local and central headers share. */
static uint8_t *put_fields(uint8_t *p, const struct record *r, size_t extra)
{
	p = put_le(p, VERSION, 2);
	p = put_le(p, FLAGS, 2);
	p = put_le(p, 0, 2); /* stored */
	p = put_le(p, 0, 2); /* time */
	p = put_le(p, DATE, 2);
	p = put_le(p, r->crc, 4);
	p = put_le(p, min_u64(r->size, UINT32_MAX), 4);
	p = put_le(p, min_u64(r->size, UINT32_MAX), 4);
	p = put_le(p, strlen(r->name), 2);
	return put_le(p, extra, 2);
}

static uint8_t *put_name(uint8_t *p, const struct record *r)
{
	size_t n = strlen(r->name);

	memcpy(p, r->name, n);
	return p + n;
}

/* The zip64 extra field, for fields that contain UINT32_MAX. */
static uint8_t *put_zip64(uint8_t *p, const struct record *r, bool size, bool header)
{
	if (!size && !header)
		return p;
	p = put_le(p, ZIP_TAG_ZIP64, 2);
	p = put_le(p, size * 16 + header * 8, 2);
	if (size)
		p = put_le(put_le(p, r->size, 8), r->size, 8);
	return header ? put_le(p, r->header, 8) : p;
}

/* Sizes are known in advance, so they are in the header and no data descriptor follows. */
static void add_local(struct vfile *f, const struct record *r)
{
	bool big = r->size >= UINT32_MAX;
	size_t extra = (big ? 4 + 16 : 0) + 4;
	size_t pad = -(r->header + ZIP_LOCAL_SIZE + strlen(r->name) + extra) % ALIGN;
	uint8_t entry[MAX_ENTRY], *p = entry;

	p = put_le(p, ZIP_SIG_LOCAL, 4);
	p = put_fields(p, r, extra + pad);
	p = put_name(p, r);
	p = put_zip64(p, r, big, false);
	p = put_le(p, PAD_KEY, 2);
	p = put_le(p, pad, 2);
	memset(p, 'Z', pad);
	vfile_bytes(f, entry, (size_t)(p + pad - entry));
}

static void add_central(struct buf *dir, const struct record *r)
{
	bool big = r->size >= UINT32_MAX, far = r->header >= UINT32_MAX;
	size_t extra = big || far ? 4 + big * 16 + far * 8 : 0;
	uint8_t entry[MAX_ENTRY], *p = entry;

	p = put_le(p, ZIP_SIG_CENTRAL, 4);
	p = put_le(p, VERSION, 2); /* made by */
	p = put_fields(p, r, extra);
	p = put_le(p, 0, 2);	 /* comment */
	p = put_le(p, 0, 2);	 /* disk */
	p = put_le(p, 0, 2 + 4); /* attributes */
	p = put_le(p, min_u64(r->header, UINT32_MAX), 4);
	p = put_name(p, r);
	p = put_zip64(p, r, big, far);
	buf_add(dir, entry, (size_t)(p - entry));
}

/* The record's bytes are added next. */
static void add_record(struct archive *a, const char *name, uint64_t size, uint32_t crc)
{
	struct record r = { name, size, a->f->size, crc };

	add_local(a->f, &r);
	add_central(&a->dir, &r);
	a->n++;
}

static void add_small(struct archive *a, const char *name, const void *p, size_t n)
{
	add_record(a, name, n, libdeflate_crc32(0, p, n));
	vfile_bytes(a->f, p, n);
}

static void add_end(struct archive *a)
{
	uint8_t ends[ZIP_ENDS_SIZE];

	zip_put_ends(ends, VERSION, VERSION, a->n, a->f->size, a->dir.len);
	vfile_bytes(a->f, a->dir.data, a->dir.len);
	vfile_bytes(a->f, ends, sizeof(ends));
}

int pt_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf pkl = BUF_INIT(VFILE_MAX_TEXT);
	CLEANUP(vfile_release) struct vfile f = VFILE_INIT;
	struct archive a = { .f = &f, .dir = BUF_INIT(VFILE_MAX_TEXT) };
	char name[MAX_NAME];
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++)
		rc = pt_check(&m[i], e);
	if (rc)
		return rc;
	put_pickle(&pkl, m, n);
	add_small(&a, "model/data.pkl", pkl.data, pkl.len);
	add_small(&a, "model/byteorder", "little", 6);
	for (size_t i = 0; i < n && !f.err; i++) {
		(void)snprintf(name, sizeof(name), "model/data/%zu", i);
		add_record(&a, name, m[i].bytes, 0);
		vfile_tensor(&f, m[i].id, m[i].bytes);
	}
	add_small(&a, "model/version", "3\n", 2);
	add_end(&a);
	if (!f.err)
		f.err = pkl.err ? pkl.err : a.dir.err;
	buf_release(&a.dir);
	rc = vfile_done(&f, e);
	if (rc)
		return rc;
	*ret = f;
	f = (struct vfile)VFILE_INIT;
	return 0;
}

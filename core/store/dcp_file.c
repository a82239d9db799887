/* SPDX-License-Identifier: Apache-2.0 */
#include "store/dcp_file.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "store/staging.h"
#include "store/torch_item.h"
#include <ckptfs/ckpt_plan.h>

#include <assert.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum {
	PIECE = 256 * 1024,	/* of data at once: stays in the CPU cache between CRC and write */
	ZSTD_PIECE = 64 * 1024, /* input per zstd call; fixed, so that the frame does not depend on
                                   the buffer */
	DIRECT = 64 * 1024,	/* longer runs are written without copying */
	WRITEBACK = 8 * 1024 * 1024, /* dirty bytes handed to the disk while more is written */
	ELEMENT_MASK = 15,	     /* sources return whole elements, of at most 16 bytes */
	MAX_TEXT = INT32_MAX,	     /* of an archive's head or tail */
};

struct dcp_file {
	struct dcp_file_opts opts;
	struct staging_file to;
	uint64_t pos;		 /* bytes written: file offset of the buffer */
	uint64_t on_its_way;	 /* writeback has been started up to here */
	struct buf text;	 /* head or tail of the item */
	ZSTD_CCtx *zstd;	 /* NULL: not compressed */
	uint8_t *in;		 /* input for zstd */
	uint8_t *out;		 /* to be written */
	size_t in_cap, cap, len; /* bytes of `in`, of `out`, and used of that */
};

int dcp_file_new(struct staging_file *to, const struct dcp_file_opts *opts, struct dcp_file **ret,
		 struct ckpt_err *e)
{
	struct dcp_file *f = calloc(1, sizeof(*f));

	assert(opts->buffer >= DCP_FILE_MIN_BUFFER);
	if (!f) {
		staging_drop(to);
		return err_nomem(e);
	}
	*f = (struct dcp_file){ .to = *to, .opts = *opts, .text = BUF_INIT(MAX_TEXT) };
	*to = (struct staging_file)STAGING_FILE_INIT;
	f->in_cap = opts->zstd_level ? ZSTD_PIECE : 0;
	f->cap = opts->buffer - f->in_cap;
	f->in = malloc(opts->buffer);
	f->out = f->in ? f->in + f->in_cap : NULL;
	if (opts->zstd_level)
		f->zstd = ZSTD_createCCtx();
	if (!f->in || (opts->zstd_level && !f->zstd)) {
		dcp_file_free(f);
		return err_set(e, ENOMEM, "buffer of %zu bytes: out of memory", opts->buffer);
	}
	if (f->zstd)
		(void)ZSTD_CCtx_setParameter(f->zstd, ZSTD_c_compressionLevel, opts->zstd_level);
	*ret = f;
	return 0;
}

void dcp_file_free(struct dcp_file *f)
{
	if (!f)
		return;
	staging_drop(&f->to);
	(void)ZSTD_freeCCtx(f->zstd);
	buf_release(&f->text);
	free(f->in);
	free(f);
}

/* ---- to the file ---- */

static int to_disk(struct dcp_file *f, const void *p, size_t n, struct ckpt_err *e)
{
	int rc = staging_write(&f->to, p, n, e);

	if (rc)
		return err_wrap(e, "%zu bytes at %" PRIu64, n, f->pos);
	f->pos += n;
	if (f->pos - f->on_its_way >= WRITEBACK) {
		/* Starts writeback, so that the final sync waits less. That sync reports errors. */
		staging_hint(&f->to, f->on_its_way, f->pos - f->on_its_way);
		f->on_its_way = f->pos;
	}
	return 0;
}

static int flush(struct dcp_file *f, struct ckpt_err *e)
{
	int rc = f->len ? to_disk(f, f->out, f->len, e) : 0;

	if (!rc)
		f->len = 0;
	return rc;
}

/* Writes bytes unchanged: through the buffer, or directly if there are many. */
static int put_plain(struct dcp_file *f, const void *p, size_t n, struct ckpt_err *e)
{
	int rc = n >= DIRECT || n > f->cap - f->len ? flush(f, e) : 0;

	if (rc)
		return rc;
	if (n >= DIRECT)
		return to_disk(f, p, n, e);
	if (n)
		memcpy(f->out + f->len, p, n);
	f->len += n;
	return 0;
}

static int put_zstd(struct dcp_file *f, const void *p, size_t n, ZSTD_EndDirective how,
		    struct ckpt_err *e)
{
	ZSTD_inBuffer in = { p, n, 0 };
	size_t left;

	do {
		int rc = f->len == f->cap ? flush(f, e) : 0;
		ZSTD_outBuffer out = { f->out, f->cap, f->len };

		if (rc)
			return rc;
		left = ZSTD_compressStream2(f->zstd, &out, &in, how);
		if (ZSTD_isError(left)) /* no other error is possible */
			return err_set(e, ENOMEM, "zstd: %s", ZSTD_getErrorName(left));
		f->len = out.pos;
	} while (how == ZSTD_e_end ? left != 0 : in.pos < in.size);
	return 0;
}

static int put(struct dcp_file *f, const void *p, size_t n, struct ckpt_err *e)
{
	return f->zstd ? put_zstd(f, p, n, ZSTD_e_continue, e) : put_plain(f, p, n, e);
}

/* ---- data ---- */

static void tell(const struct dcp_file *f, size_t n)
{
	if (f->opts.progress)
		f->opts.progress(f->opts.arg, n);
}

static int put_memory(struct dcp_file *f, const struct ckpt_data *s, uint32_t *crc,
		      struct ckpt_err *e)
{
	size_t piece = f->zstd ? ZSTD_PIECE : PIECE;

	for (uint64_t at = 0; at < s->len; at += piece) {
		const uint8_t *p = (const uint8_t *)s->data + at;
		size_t n = (size_t)min_u64(piece, s->len - at);
		int rc;

		*crc = libdeflate_crc32(*crc, p, n);
		rc = put(f, p, n, e);
		if (rc)
			return rc;
		tell(f, n);
	}
	return 0;
}

/* Reads directly into the buffer, or into `in` if it is to be compressed. */
static int put_read(struct dcp_file *f, const struct ckpt_data *s, uint32_t *crc,
		    struct ckpt_err *e)
{
	for (uint64_t at = 0, n; at < s->len; at += n) {
		uint8_t *to = f->in;
		int rc = 0;

		n = min_u64(f->in_cap, s->len - at);
		if (!f->zstd) {
			if (f->cap - f->len < DIRECT)
				rc = flush(f, e);
			to = f->out + f->len;
			n = min_u64((f->cap - f->len) & ~ELEMENT_MASK, s->len - at);
		}
		if (!rc)
			rc = s->read(s->arg, at, to, (size_t)n, e);
		if (rc)
			return rc;
		*crc = libdeflate_crc32(*crc, to, (size_t)n);
		if (f->zstd)
			rc = put_zstd(f, to, (size_t)n, ZSTD_e_continue, e);
		else
			f->len += (size_t)n;
		if (rc)
			return rc;
		tell(f, (size_t)n);
	}
	return 0;
}

static int put_data(struct dcp_file *f, const struct ckpt_data *s, uint32_t *crc,
		    struct ckpt_err *e)
{
	return s->data ? put_memory(f, s, crc, e) : put_read(f, s, crc, e);
}

/* ---- items ---- */

static int put_text(struct dcp_file *f, struct ckpt_err *e)
{
	int rc = put(f, f->text.data, f->text.len, e);

	f->text.len = 0;
	return rc;
}

static int put_tensor(struct dcp_file *f, const struct ckpt_write_item *item,
		      const struct ckpt_data *s, struct ckpt_err *e)
{
	uint32_t crc = 0;
	struct torch_item t;
	int rc = torch_item_begin(&t, item->props.dtype, item->index.n_dims, item->chunk.len,
				  &f->text, e);

	if (!rc && t.data_len != s->len)
		return err_set(e, EINVAL, "its chunk has %" PRIu64 " bytes, its data %" PRIu64,
			       t.data_len, s->len);
	if (!rc)
		rc = put_text(f, e);
	if (!rc)
		rc = put_data(f, s, &crc, e);
	if (!rc)
		rc = torch_item_end(&t, crc, &f->text, e);
	return rc ? rc : put_text(f, e);
}

static int pad(struct dcp_file *f, struct ckpt_err *e)
{
	static const uint8_t zeros[TORCH_ITEM_ALIGN];

	if (f->zstd)
		return 0;
	return put_plain(f, zeros, -(f->pos + f->len) % TORCH_ITEM_ALIGN, e);
}

int dcp_file_add(struct dcp_file *f, const struct ckpt_write_item *item, const struct ckpt_data *s,
		 uint64_t *ret_offset, uint64_t *ret_length, struct ckpt_err *e)
{
	uint32_t crc = 0;
	uint64_t start;
	int rc = pad(f, e);

	if (rc)
		return rc;
	start = f->pos + f->len;
	if (item->type == CKPT_WRITE_BYTE_IO)
		rc = put_data(f, s, &crc, e);
	else
		rc = put_tensor(f, item, s, e);
	if (!rc && f->zstd)
		rc = put_zstd(f, NULL, 0, ZSTD_e_end, e);
	if (rc)
		return rc;
	*ret_offset = start;
	*ret_length = f->pos + f->len - start;
	return 0;
}

int dcp_file_finish(struct dcp_file *f, struct ckpt_err *e)
{
	int rc = flush(f, e);

	if (rc)
		return rc;
	return staging_finish(&f->to, e) ? err_wrap(e, "sync") : 0;
}

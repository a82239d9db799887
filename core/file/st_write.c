/* SPDX-License-Identifier: Apache-2.0 */
#include "file/st_write.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "file/vfile.h"
#include "tensor/tensor_info.h"

#include <string.h>

#define METADATA "__metadata__"

enum {
	ALIGN = 4096,	 /* of the data, so that tensors are page-aligned in a mapping */
	MAX_ELEMENT = 8, /* bytes; every size is a power of two */
};

bool st_holds(enum ckpt_dtype t)
{
	return dtype_info(t)->safetensors;
}

/* text_is_utf8 accepts lone surrogates (ED A0-BF xx); JSON parsers other than Python's refuse
 * them. */
static bool is_unicode(const char *s, size_t n)
{
	const char *end = s + n;

	if (!text_is_utf8(s, n))
		return false;
	for (; (s = memchr(s, 0xed, (size_t)(end - s))); s++)
		if ((unsigned char)s[1] >= 0xa0)
			return false;
	return true;
}

static int why_not(const struct tensor_info *m, struct ckpt_err *e)
{
	if (!st_holds(m->dtype))
		return err_set(e, ERR_UNSUPPORTED, "safetensors has no type %s",
			       dtype_info(m->dtype)->name);
	if (m->dtype == CKPT_DTYPE_F4_E2M1FN_X2 && !m->n_dims)
		return err_set(e, ERR_UNSUPPORTED,
			       "safetensors cannot hold a pair of 4-bit values without dimensions");
	if (!is_unicode(m->fqn, m->fqn_len))
		return err_set(
			e, ERR_UNSUPPORTED,
			"safetensors requires names in UTF-8, but this name is not in UTF-8");
	if (bytes_are(m->fqn, m->fqn_len, METADATA))
		return err_set(e, ERR_UNSUPPORTED, "safetensors reserves this name");
	return 0;
}

int st_check(const struct tensor_info *m, struct ckpt_err *e)
{
	char shown[100];

	if (!why_not(m, e))
		return 0;
	return err_wrap(e, "'%s'", text_show(m->fqn, m->fqn_len, shown, sizeof(shown)));
}

/* F4 counts single values, torch counts pairs of them. */
static void put_shape(struct buf *b, const struct tensor_info *m)
{
	for (size_t i = 0; i < m->n_dims; i++) {
		bool pairs = m->dtype == CKPT_DTYPE_F4_E2M1FN_X2 && i + 1 == m->n_dims;

		if (i)
			buf_str(b, ",");
		buf_u64(b, pairs ? m->shape[i] * 2 : m->shape[i]);
	}
}

static void put_entry(struct buf *b, const struct tensor_info *m, uint64_t begin)
{
	buf_str(b, ",");
	buf_json_str(b, m->fqn, m->fqn_len);
	buf_str(b, ":{\"dtype\":\"");
	buf_str(b, dtype_info(m->dtype)->safetensors);
	buf_str(b, "\",\"shape\":[");
	put_shape(b, m);
	buf_str(b, "],\"data_offsets\":[");
	buf_u64(b, begin);
	buf_str(b, ",");
	buf_u64(b, begin + m->bytes);
	buf_str(b, "]}");
}

void st_order(const struct tensor_info *m, size_t n, size_t *ret)
{
	size_t at = 0;

	for (unsigned size = MAX_ELEMENT; size; size /= 2)
		for (size_t i = 0; i < n; i++)
			if (dtype_info(m[i].dtype)->size == size)
				ret[at++] = i;
}

static void put_metadata(struct buf *b, const struct st_note *notes, size_t n)
{
	buf_str(b, "{\"" METADATA "\":{");
	for (size_t i = 0; i < n; i++) {
		buf_json_str(b, notes[i].key, strlen(notes[i].key));
		buf_str(b, ":");
		buf_json_str(b, notes[i].value, notes[i].len);
		buf_str(b, ",");
	}
	buf_str(b, "\"format\":\"pt\"}");
}

int st_header(const struct tensor_info *m, const size_t *order, size_t n,
	      const struct st_note *notes, size_t n_notes, struct buf *ret, struct ckpt_err *e)
{
	uint64_t at = 0; /* may wrap: the file is then too large, which its writer detects */

	buf_add(ret, (uint8_t[8]){ 0 }, 8);
	put_metadata(ret, notes, n_notes);
	for (size_t i = 0; i < n; i++) {
		put_entry(ret, &m[order[i]], at);
		at += m[order[i]].bytes;
	}
	buf_str(ret, "}");
	while (!ret->err && ret->len % ALIGN)
		buf_str(ret, " ");
	if (buf_check(ret, e,
		      "a safetensors header holds at most %u bytes, and that of %zu tensor%s would "
		      "be larger",
		      ST_MAX_HEADER, n, text_s(n)))
		return -e->code;
	(void)put_le((uint8_t *)ret->data, ret->len - 8, 8);
	return 0;
}

int st_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf header = BUF_INIT(ST_HEADER_CAP);
	CLEANUP(vfile_release) struct vfile f = VFILE_INIT;
	autofree size_t *order = calloc(n + 1, sizeof(*order));
	int rc = order ? 0 : err_nomem(e);

	for (size_t i = 0; i < n && !rc; i++)
		rc = st_check(&m[i], e);
	if (rc)
		return rc;
	st_order(m, n, order);
	rc = st_header(m, order, n, NULL, 0, &header, e);
	if (rc == -EFBIG)
		return err_set(e, EFBIG,
			       "a safetensors header holds at most %u bytes, and that of %zu "
			       "tensor%s would be larger: a smaller shard_size= makes more and "
			       "smaller files",
			       ST_MAX_HEADER, n, text_s(n));
	if (rc)
		return rc;
	vfile_bytes(&f, header.data, header.len);
	for (size_t i = 0; i < n; i++)
		vfile_tensor(&f, m[order[i]].id, m[order[i]].bytes);
	rc = vfile_done(&f, e);
	if (rc)
		return rc;
	*ret = f;
	f = (struct vfile)VFILE_INIT;
	return 0;
}

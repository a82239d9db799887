/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/zip.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <stdlib.h>

enum {
	FLAG_STREAMED = 1 << 3,
	FLAG_ENCRYPTED = 1 << 0,
	MAX_DIRECTORY = 1 << 30, /* bytes */
};

bool zip_magic(const void *p, size_t len)
{
	return len >= 4 && load_le32(p) == ZIP_SIG_LOCAL;
}

int zip_read_local(const void *p, size_t len, struct zip_local *ret, struct ckpt_err *e)
{
	struct cursor c = cursor_of(p, len);
	uint32_t sig = cursor_le32(&c), csize, usize;
	uint16_t flags, method, name_len, extra_len;

	(void)cursor_le16(&c); /* version needed */
	flags = cursor_le16(&c);
	method = cursor_le16(&c);
	(void)cursor_take(&c, 8); /* time, date, CRC */
	csize = cursor_le32(&c);
	usize = cursor_le32(&c);
	name_len = cursor_le16(&c);
	extra_len = cursor_le16(&c);
	if (c.bad)
		return err_set(e, ENODATA, "zip header ends early");
	if (sig != ZIP_SIG_LOCAL)
		return err_set(e, ERR_CORRUPT, "zip: expected the header of a member, found 0x%08x",
			       sig);
	if (method || flags & FLAG_ENCRYPTED)
		return err_set(e, ERR_UNSUPPORTED, "zip member is compressed or encrypted");
	if (name_len > ZIP_MAX_NAME)
		return err_set(e, ERR_CORRUPT,
			       "zip: a member's name has %u bytes, which is too long", name_len);
	ret->name = (const char *)cursor_take(&c, name_len);
	if (!cursor_take(&c, extra_len))
		return err_set(e, ENODATA, "zip header ends early");
	ret->name_len = name_len;
	ret->data = (uint64_t)ZIP_LOCAL_SIZE + name_len + extra_len;
	ret->streamed = flags & FLAG_STREAMED;
	ret->size = usize;
	/* zip64 sizes of a member that is not streamed: no known writer does that; the directory
	 * has them. */
	if (!ret->streamed && (csize != usize || usize == UINT32_MAX))
		return err_set(e, ERR_UNSUPPORTED, "zip member with 64-bit sizes in its header");
	return 0;
}

size_t zip_descriptor(const void *p, size_t len, uint64_t size)
{
	const uint8_t *b = p;

	if (len < 16 || load_le32(b) != ZIP_SIG_DESCRIPTOR)
		return 0;
	/* 24 bytes if the size or the header's offset needs them, even with small sizes. */
	if (len >= 24 && load_le64(b + 8) == size && load_le64(b + 16) == size &&
	    (size > UINT32_MAX || load_le32(b + 12) != size || size == 0))
		return 24;
	return load_le32(b + 8) == size && load_le32(b + 12) == size ? 16 : 0;
}

/* ---- central directory ---- */

static int read_exact(const struct blob *b, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	int64_t n;

	if (!range_ok(off, len, b->size))
		return err_set(e, ERR_CORRUPT,
			       "zip: %zu bytes are needed at %llu, but the archive has %llu", len,
			       (unsigned long long)off, (unsigned long long)b->size);
	n = b->read(b->arg, off, buf, len, e);
	if (n < 0)
		return (int)n;
	return (size_t)n == len
		       ? 0
		       : err_set(e, ERR_CORRUPT, "zip: the archive ends too early, at %llu",
				 (unsigned long long)off + (unsigned long long)n);
}

struct directory {
	uint64_t off, size, count;
};

/* torch never writes a comment, so the end record is the last 22 bytes and no search is needed. */
static int find_directory(const struct blob *b, struct directory *ret, struct ckpt_err *e)
{
	uint8_t tail[ZIP_LOCATOR64_SIZE + ZIP_END_SIZE], end64[ZIP_END64_SIZE];
	const uint8_t *end = tail + ZIP_LOCATOR64_SIZE;
	bool have64 = b->size >= sizeof(tail);
	uint64_t at;
	int rc;

	if (b->size < ZIP_END_SIZE)
		return err_set(e, ERR_CORRUPT, "zip: an archive of %llu bytes is too short",
			       (unsigned long long)b->size);
	rc = have64 ? read_exact(b, b->size - sizeof(tail), tail, sizeof(tail), e)
		    : read_exact(b, b->size - ZIP_END_SIZE, tail + ZIP_LOCATOR64_SIZE, ZIP_END_SIZE,
				 e);
	if (rc)
		return rc;
	if (load_le32(end) != ZIP_SIG_END || load_le16(end + 20))
		return err_set(e, ERR_CORRUPT,
			       "zip: the archive has no end record in its last 22 bytes; it may "
			       "have been cut off");
	ret->count = load_le16(end + 10);
	ret->size = load_le32(end + 12);
	ret->off = load_le32(end + 16);
	if (!have64 || load_le32(tail) != ZIP_SIG_LOCATOR64)
		return 0;
	at = load_le64(tail + 8);
	rc = read_exact(b, at, end64, sizeof(end64), e);
	if (rc)
		return rc;
	if (load_le32(end64) != ZIP_SIG_END64)
		return err_set(e, ERR_CORRUPT, "zip: no zip64 end record at %llu",
			       (unsigned long long)at);
	ret->count = load_le64(end64 + 32);
	ret->size = load_le64(end64 + 40);
	ret->off = load_le64(end64 + 48);
	return 0;
}

int zip_directory_size(const struct blob *b, uint64_t *ret, struct ckpt_err *e)
{
	struct directory d = { 0 };
	int rc = find_directory(b, &d, e);

	*ret = d.size;
	return rc;
}

/* Fields that are 0xffffffff are in the zip64 extra field, in this order, and only those. */
static void zip64_fields(struct cursor extra, uint64_t *usize, uint64_t *csize, uint64_t *header)
{
	while (extra.end - extra.p >= 4) {
		uint16_t tag = cursor_le16(&extra), len = cursor_le16(&extra);
		const uint8_t *p = cursor_take(&extra, len);
		struct cursor c;

		if (!p)
			return;
		if (tag != ZIP_TAG_ZIP64)
			continue;
		c = cursor_of(p, len);
		if (*usize == UINT32_MAX)
			*usize = cursor_le64(&c);
		if (*csize == UINT32_MAX)
			*csize = cursor_le64(&c);
		if (*header == UINT32_MAX)
			*header = cursor_le64(&c);
		return;
	}
}

static int read_member(struct cursor *c, struct zip_member *m, struct ckpt_err *e)
{
	uint16_t flags, method, name_len, extra_len, comment_len;
	uint64_t csize;
	const uint8_t *extra;

	if (cursor_le32(c) != ZIP_SIG_CENTRAL)
		return err_set(e, ERR_CORRUPT, "zip: broken central directory");
	(void)cursor_take(c, 4); /* versions */
	flags = cursor_le16(c);
	method = cursor_le16(c);
	(void)cursor_take(c, 4); /* time, date */
	m->crc = cursor_le32(c);
	csize = cursor_le32(c);
	m->size = cursor_le32(c);
	name_len = cursor_le16(c);
	extra_len = cursor_le16(c);
	comment_len = cursor_le16(c);
	(void)cursor_take(c, 8); /* disk, attributes */
	m->header = cursor_le32(c);
	m->name = (const char *)cursor_take(c, name_len);
	m->name_len = name_len;
	extra = cursor_take(c, extra_len);
	(void)cursor_take(c, comment_len);
	if (c->bad)
		return err_set(e, ERR_CORRUPT, "zip: central directory ends early");
	zip64_fields(cursor_of(extra, extra_len), &m->size, &csize, &m->header);
	m->packed = method || flags & FLAG_ENCRYPTED || csize != m->size;
	return 0;
}

int zip_list(const struct blob *b,
	     int (*each)(void *arg, const struct zip_member *m, struct ckpt_err *e), void *arg,
	     struct ckpt_err *e)
{
	autofree uint8_t *dir = NULL;
	struct directory d = { 0 };
	struct cursor c;
	int rc = find_directory(b, &d, e);

	if (rc)
		return rc;
	if (!range_ok(d.off, d.size, b->size) || d.size > MAX_DIRECTORY ||
	    d.count > d.size / ZIP_CENTRAL_SIZE)
		return err_set(e, ERR_CORRUPT,
			       "zip: impossible directory: %llu members in %llu bytes at %llu",
			       (unsigned long long)d.count, (unsigned long long)d.size,
			       (unsigned long long)d.off);
	dir = malloc(d.size + 1);
	if (!dir)
		return err_set(e, ENOMEM, "zip: out of memory");
	rc = read_exact(b, d.off, dir, d.size, e);
	c = cursor_of(dir, d.size);
	for (uint64_t i = 0; !rc && i < d.count; i++) {
		struct zip_member m;

		rc = read_member(&c, &m, e);
		if (!rc)
			rc = each(arg, &m, e);
	}
	return rc;
}

struct stored_only {
	int (*each)(void *arg, const struct zip_member *m, struct ckpt_err *e);
	void *arg;
};

static int each_stored(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	const struct stored_only *x = arg;

	if (m->packed)
		return err_set(e, ERR_UNSUPPORTED, "zip member '%.*s' is compressed or encrypted",
			       (int)min_u64(m->name_len, 100), m->name);
	return x->each(x->arg, m, e);
}

int zip_each(const struct blob *b,
	     int (*each)(void *arg, const struct zip_member *m, struct ckpt_err *e), void *arg,
	     struct ckpt_err *e)
{
	struct stored_only x = { each, arg };

	return zip_list(b, each_stored, &x, e);
}

int zip_member_data(const struct blob *b, const struct zip_member *m, uint64_t *ret,
		    struct ckpt_err *e)
{
	uint8_t head[ZIP_LOCAL_SIZE];
	uint64_t data;
	int rc = read_exact(b, m->header, head, sizeof(head), e);

	if (rc)
		return rc;
	if (load_le32(head) != ZIP_SIG_LOCAL)
		return err_set(e, ERR_CORRUPT, "zip: no member at %llu",
			       (unsigned long long)m->header);
	data = m->header + ZIP_LOCAL_SIZE + load_le16(head + 26) + load_le16(head + 28);
	if (!range_ok(data, m->size, b->size))
		return err_set(e, ERR_CORRUPT,
			       "zip: a member has %llu bytes at %llu, but the archive has %llu",
			       (unsigned long long)m->size, (unsigned long long)data,
			       (unsigned long long)b->size);
	*ret = data;
	return 0;
}

void zip_put_ends(uint8_t out[static ZIP_ENDS_SIZE], uint16_t made_by, uint16_t needed, uint64_t n,
		  uint64_t at, uint64_t size)
{
	uint8_t *p = out;

	p = put_le(p, ZIP_SIG_END64, 4);
	p = put_le(p, ZIP_END64_SIZE - 12, 8); /* of the rest of this record */
	p = put_le(p, made_by, 2);
	p = put_le(p, needed, 2);
	p = put_le(p, 0, 8); /* disks */
	p = put_le(p, n, 8);
	p = put_le(p, n, 8);
	p = put_le(p, size, 8);
	p = put_le(p, at, 8);
	p = put_le(p, ZIP_SIG_LOCATOR64, 4);
	p = put_le(p, 0, 4); /* disk */
	p = put_le(p, at + size, 8);
	p = put_le(p, 1, 4); /* disks */
	p = put_le(p, ZIP_SIG_END, 4);
	p = put_le(p, 0, 4); /* disks */
	p = put_le(p, min_u64(n, UINT16_MAX), 2);
	p = put_le(p, min_u64(n, UINT16_MAX), 2);
	p = put_le(p, min_u64(size, UINT32_MAX), 4);
	p = put_le(p, min_u64(at, UINT32_MAX), 4);
	(void)put_le(p, 0, 2); /* comment */
}

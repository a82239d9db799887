/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deflate in gzip's members (RFC 1952), which may follow each other, or in one zlib stream
 * (RFC 1950). zlib verifies their checksums and sizes.
 */
#include "base/checked.h"
#include "base/err.h"
#include "codec/stage.h"

#include <stdlib.h>
#include <zlib.h>

enum { IN_SIZE = 64 * 1024, GZIP_ONLY = 16 /* added to the window's bits */ };

struct zlib_stage {
	struct stage stage;
	z_stream z;
	bool is_gzip;
	bool in_end; /* the input has been read to its end */
	bool in_member;
	bool any; /* a member has ended */
	uint8_t data[IN_SIZE];
};

static struct zlib_stage *zlib_of(struct stage *s)
{
	return (struct zlib_stage *)(void *)s;
}

static int refill(struct zlib_stage *s, struct ckpt_err *e)
{
	int64_t n = stage_input(&s->stage, s->data, IN_SIZE, e);

	if (n < 0)
		return (int)n;
	s->z.next_in = s->data;
	s->z.avail_in = (uInt)n;
	s->in_end = !n;
	return 0;
}

static int inflate_error(const struct zlib_stage *s, int rc, struct ckpt_err *e)
{
	const char *name = s->is_gzip ? "gzip" : "zlib";

	if (rc == Z_MEM_ERROR)
		return err_set(e, ENOMEM, "%s: out of memory", name);
	if (rc == Z_BUF_ERROR)
		return err_set(e, ERR_CORRUPT, "%s: the stream ends too early", name);
	return err_set(e, ERR_CORRUPT, "%s: %s", name, s->z.msg ? s->z.msg : "a preset dictionary");
}

/* Input follows the end of a member. */
static int next_member(struct zlib_stage *s, struct ckpt_err *e)
{
	if (!s->is_gzip)
		return err_set(e, ERR_CORRUPT, "zlib: the stream is followed by other bytes");
	(void)inflateReset(&s->z); /* cannot fail */
	return 0;
}

static int64_t zlib_read(struct stage *stage, void *buf, size_t len, struct ckpt_err *e)
{
	struct zlib_stage *s = zlib_of(stage);
	uint8_t *to = buf, *end = to + len;

	while (to < end) {
		int rc;

		if (!s->z.avail_in && !s->in_end && refill(s, e))
			return -e->code;
		if (!s->in_member && !s->z.avail_in && s->any)
			break;
		if (!s->in_member && s->any && next_member(s, e))
			return -e->code;
		s->in_member = true;
		s->z.next_out = to;
		s->z.avail_out = (uInt)min_u64((uint64_t)(end - to), UINT32_MAX);
		rc = inflate(&s->z, Z_NO_FLUSH);
		to = s->z.next_out;
		if (rc == Z_STREAM_END) {
			s->in_member = false;
			s->any = true;
		} else if (rc != Z_OK && (rc != Z_BUF_ERROR || s->in_end)) {
			return inflate_error(s, rc, e);
		}
	}
	return to - (uint8_t *)buf;
}

static size_t zlib_memory(const struct stage *stage)
{
	(void)stage;
	return sizeof(struct zlib_stage) + (48 << 10); /* of zlib's own: the window and tables */
}

static void zlib_free(struct stage *stage)
{
	struct zlib_stage *s = zlib_of(stage);

	(void)inflateEnd(&s->z);
	free(s);
}

struct stage *zlib_stage_new(bool gzip)
{
	static const struct stage_ops ops = { zlib_read, zlib_memory, zlib_free };
	struct zlib_stage *s = malloc(sizeof(*s));

	if (!s)
		return NULL;
	s->stage = (struct stage){ .ops = &ops };
	s->z = (z_stream){ 0 };
	s->is_gzip = gzip;
	s->in_end = s->in_member = s->any = false;
	if (inflateInit2(&s->z, MAX_WBITS + (gzip ? GZIP_ONLY : 0)) != Z_OK) {
		free(s);
		return NULL;
	}
	return &s->stage;
}

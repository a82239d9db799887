/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/zstd_stream.h"

#include "base/err.h"

#include <stdbool.h>
#include <stdlib.h>
#include <zstd.h>

enum {
	IN_SIZE = 128 * 1024,
	MAX_WINDOW_LOG = 27, /* 128 MiB, zstd's own default limit; torch writes 21 */
};

struct zstd_stream {
	ZSTD_DCtx *ctx;
	const struct blob *src; /* of the innermost layer */
	struct zstd_stream *inner;
	uint64_t src_pos;
	ZSTD_inBuffer in;
	bool in_end;   /* the input has been read to its end */
	bool in_frame; /* a frame has begun and not ended */
	uint8_t data[IN_SIZE];
};

struct zstd_stream *zstd_stream_new(const struct blob *src, unsigned layers)
{
	struct zstd_stream *s = malloc(sizeof(*s));

	if (!s)
		return NULL;
	s->ctx = ZSTD_createDCtx();
	s->src = src;
	s->inner = NULL;
	s->src_pos = 0;
	s->in = (ZSTD_inBuffer){ s->data, 0, 0 };
	s->in_end = s->in_frame = false;
	if (layers > 1)
		s->inner = zstd_stream_new(src, layers - 1);
	if (!s->ctx || (layers > 1 && !s->inner) ||
	    ZSTD_isError(ZSTD_DCtx_setParameter(s->ctx, ZSTD_d_windowLogMax, MAX_WINDOW_LOG))) {
		zstd_stream_free(s);
		return NULL;
	}
	return s;
}

void zstd_stream_free(struct zstd_stream *s)
{
	while (s) {
		struct zstd_stream *inner = s->inner;

		(void)ZSTD_freeDCtx(s->ctx);
		free(s);
		s = inner;
	}
}

static int refill(struct zstd_stream *s, struct err *e)
{
	int64_t n = s->inner ? zstd_stream_read(s->inner, s->data, IN_SIZE, e)
			     : s->src->read(s->src->arg, s->src_pos, s->data, IN_SIZE, e);

	if (n < 0)
		return (int)n;
	s->src_pos += (uint64_t)n;
	s->in.size = (size_t)n;
	s->in.pos = 0;
	s->in_end = !n;
	return 0;
}

int64_t zstd_stream_read(struct zstd_stream *s, void *buf, size_t len, struct err *e)
{
	ZSTD_outBuffer out = { buf, len, 0 };

	while (out.pos < out.size) {
		size_t before = out.pos, rc;

		if (s->in.pos == s->in.size && !s->in_end) {
			int r = refill(s, e);

			if (r)
				return r;
		}
		if (s->in_end && !s->in_frame)
			break;
		rc = ZSTD_decompressStream(s->ctx, &out, &s->in);
		if (ZSTD_isError(rc))
			return err_set(e, ERR_CORRUPT, "zstd: %s", ZSTD_getErrorName(rc));
		s->in_frame = rc != 0;
		if (s->in_end && out.pos == before && s->in_frame)
			return err_set(e, ERR_CORRUPT, "zstd: the stream ends inside a frame");
	}
	return (int64_t)out.pos;
}

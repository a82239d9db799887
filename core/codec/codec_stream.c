/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codec_stream.h"

#include "codec/stage.h"

#include <stdlib.h>

struct codec_stream {
	struct stage *stage[CODING_MAX]; /* the first reads the stored bytes */
	unsigned n;
	/*
	 * Decoding is one byte ahead of the reader, so that every stage has seen the end of its
	 * input, and verified its checksum, before the last byte is given out.
	 */
	bool looks_ahead, begun, has_next;
	uint8_t next;
};

static struct stage *stage_new(enum codec codec, int window_log)
{
	switch (codec) {
	case CODEC_ZSTD:
		return zstd_stage_new(window_log);
	case CODEC_GZIP:
		return zlib_stage_new(true);
	case CODEC_ZLIB:
		return zlib_stage_new(false);
	case CODEC_BLOSC:
		return blosc_stage_new(window_log);
	case CODEC_CRC32C:
		return crc32c_stage_new();
	case CODEC_NONE:
		break;
	}
	return NULL;
}

struct codec_stream *codec_stream_new(const struct blob *src, uint32_t coding, int window_log)
{
	struct codec_stream *s = calloc(1, sizeof(*s));

	for (; s && coding; coding >>= 4) {
		struct stage *stage = stage_new(coding & 15, window_log);

		if (!stage) {
			codec_stream_free(s);
			return NULL;
		}
		stage->before = s->n ? s->stage[s->n - 1] : NULL;
		stage->src = src;
		s->looks_ahead |= (coding & 15) != CODEC_ZSTD;
		s->stage[s->n++] = stage;
	}
	return s;
}

void codec_stream_free(struct codec_stream *s)
{
	if (!s)
		return;
	while (s->n) {
		struct stage *last = s->stage[--s->n];

		last->ops->free(last);
	}
	free(s);
}

static int64_t read_last(struct codec_stream *s, void *buf, size_t len, struct ckpt_err *e)
{
	struct stage *last = s->stage[s->n - 1];

	return stage_read(last, buf, len, e);
}

static int look_ahead(struct codec_stream *s, struct ckpt_err *e)
{
	int64_t n = read_last(s, &s->next, 1, e);

	s->begun = true;
	s->has_next = n > 0;
	return n < 0 ? (int)n : 0;
}

int64_t codec_stream_read(struct codec_stream *s, void *buf, size_t len, struct ckpt_err *e)
{
	uint8_t *to = buf;
	int64_t n;

	if (!s->looks_ahead)
		return read_last(s, buf, len, e);
	if (!s->begun && look_ahead(s, e))
		return -e->code;
	if (!s->has_next || !len)
		return 0;
	to[0] = s->next;
	s->has_next = false;
	n = read_last(s, to + 1, len - 1, e);
	if (n < 0)
		return n;
	if ((size_t)n == len - 1 && look_ahead(s, e))
		return -e->code;
	return n + 1;
}

void codec_stream_go(struct codec_stream *s, const struct blob *src, struct zstd_place at)
{
	zstd_stage_go(s->stage[0], src, at);
}

struct zstd_place codec_stream_frame(const struct codec_stream *s)
{
	return zstd_stage_frame(s->stage[0]);
}

size_t codec_stream_memory(const struct codec_stream *s)
{
	size_t sum = s ? sizeof(*s) : 0;

	for (unsigned i = 0; s && i < s->n; i++)
		sum += s->stage[i]->ops->memory(s->stage[i]);
	return sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "codec/codec_stream.h"
#include "codec/stage.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

/* Room for a whole frame of 256 KiB, however badly it compresses: a frame that is completely in
 * memory and fits the request is decoded in place, without a window. */
enum { IN_SIZE = 264 * 1024 };

struct zstd_stage {
	struct stage stage;
	ZSTD_DCtx *ctx;
	int window_log;
	ZSTD_inBuffer in;
	bool in_end;   /* the input has been read to its end */
	bool in_frame; /* a frame has begun and not ended */
	uint64_t decoded;
	struct zstd_place frame; /* the one that has begun */
	uint64_t frame_size;	 /* stored bytes of the last finished frame, plus a margin */
	uint8_t data[IN_SIZE];
};

static struct zstd_stage *zstd_of(struct stage *s)
{
	return (struct zstd_stage *)(void *)s;
}

static const struct zstd_stage *const_zstd_of(const struct stage *s)
{
	return (const struct zstd_stage *)(const void *)s;
}

static struct zstd_place here(const struct zstd_stage *s)
{
	return (struct zstd_place){ s->stage.src_pos - (s->in.size - s->in.pos), s->decoded };
}

struct zstd_place zstd_stage_frame(const struct stage *stage)
{
	const struct zstd_stage *s = const_zstd_of(stage);

	return s->in_frame ? s->frame : here(s);
}

void zstd_stage_go(struct stage *stage, const struct blob *src, struct zstd_place at)
{
	struct zstd_stage *s = zstd_of(stage);

	(void)ZSTD_DCtx_reset(s->ctx, ZSTD_reset_session_only); /* cannot fail */
	s->stage.src = src;
	s->stage.src_pos = at.stored;
	s->in = (ZSTD_inBuffer){ s->data, 0, 0 };
	s->in_end = s->in_frame = false;
	s->decoded = at.decoded;
	s->frame_size = 0;
}

/* Fills the input buffer. */
static int refill(struct zstd_stage *s, struct ckpt_err *e)
{
	size_t left = s->in.size - s->in.pos;
	uint8_t *to = s->data + left;
	int64_t n;

	memmove(s->data, s->data + s->in.pos, left);
	s->in.size = left;
	s->in.pos = 0;
	n = stage_input(&s->stage, to, IN_SIZE - left, e);
	if (n < 0)
		return (int)n;
	s->in.size += (size_t)n;
	s->in_end = !n;
	return 0;
}

/* Is there too little input? Successive frames often have the same size; then a whole one is
 * wanted. */
static bool wants_more(const struct zstd_stage *s)
{
	size_t left = s->in.size - s->in.pos;

	return !s->in_end && (!left || (!s->in_frame && left < min_u64(s->frame_size, IN_SIZE)));
}

static int decode_error(const struct zstd_stage *s, size_t rc, struct ckpt_err *e)
{
	bool larger = ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge;

	if (ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation)
		return err_set(e, ENOMEM, "zstd: out of memory");
	return err_set(e, larger && s->window_log < CODEC_WINDOW_LOG_MAX ? ENOBUFS : ERR_CORRUPT,
		       "zstd: %s", ZSTD_getErrorName(rc));
}

/* One step; out->pos tells how far it got. */
static int decode(struct zstd_stage *s, ZSTD_outBuffer *out, struct ckpt_err *e)
{
	size_t before = out->pos, rc;

	if (!s->in_frame)
		s->frame = here(s);
	rc = ZSTD_decompressStream(s->ctx, out, &s->in);
	if (ZSTD_isError(rc))
		return decode_error(s, rc, e);
	s->decoded += out->pos - before;
	s->in_frame = rc != 0;
	if (!s->in_frame)
		s->frame_size = (here(s).stored - s->frame.stored) / 8 * 9;
	if (s->in_end && s->in.pos == s->in.size && out->pos == before && s->in_frame)
		return err_set(e, ERR_CORRUPT, "zstd: the stream ends inside a frame");
	return 0;
}

static int64_t zstd_read(struct stage *stage, void *buf, size_t len, struct ckpt_err *e)
{
	struct zstd_stage *s = zstd_of(stage);
	ZSTD_outBuffer out = { buf, len, 0 };
	int rc = 0;

	while (!rc && out.pos < out.size) {
		if (wants_more(s))
			rc = refill(s, e);
		if (!rc && s->in_end && s->in.pos == s->in.size && !s->in_frame)
			break;
		if (!rc)
			rc = decode(s, &out, e);
	}
	return rc ? rc : (int64_t)out.pos;
}

static size_t zstd_memory(const struct stage *stage)
{
	const struct zstd_stage *s = const_zstd_of(stage);

	return sizeof(*s) + ZSTD_sizeof_DCtx(s->ctx);
}

static void zstd_free(struct stage *stage)
{
	struct zstd_stage *s = zstd_of(stage);

	(void)ZSTD_freeDCtx(s->ctx);
	free(s);
}

struct stage *zstd_stage_new(int window_log)
{
	static const struct stage_ops ops = { zstd_read, zstd_memory, zstd_free };
	struct zstd_stage *s = malloc(sizeof(*s));

	if (!s)
		return NULL;
	s->stage = (struct stage){ .ops = &ops };
	s->window_log = window_log;
	s->ctx = ZSTD_createDCtx();
	if (!s->ctx ||
	    ZSTD_isError(ZSTD_DCtx_setParameter(s->ctx, ZSTD_d_windowLogMax, window_log))) {
		zstd_free(&s->stage);
		return NULL;
	}
	zstd_stage_go(&s->stage, NULL, (struct zstd_place){ 0, 0 });
	return &s->stage;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - one codec of a codec_stream. It reads from the stage before it, the first one from a
 * blob.
 *
 * Private to core/codec.
 */
#ifndef CODEC_STAGE_H
#define CODEC_STAGE_H

#include "base/blob.h"
#include "base/err.h"
#include "codec/zstd_frames.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stage;

struct stage_ops {
	/* As codec_stream_read. */
	int64_t (*read)(struct stage *s, void *buf, size_t len, struct ckpt_err *e);
	size_t (*memory)(const struct stage *s);
	void (*free)(struct stage *s);
};

struct stage {
	const struct stage_ops *ops;
	struct stage *before;	/* NULL: the first */
	const struct blob *src; /* of the first; how far it has been read */
	uint64_t src_pos;
	uint64_t asked, taken; /* bytes that were asked of it; that it took from the stage before */
	bool takes_all;	       /* it limits what it takes itself */
};

/* What a stage may take before it gives anything. */
#define STAGE_MAX_AHEAD ((uint64_t)16 << 20)

static inline int64_t stage_read(struct stage *s, void *buf, size_t len, struct ckpt_err *e)
{
	s->asked += len;
	return s->ops->read(s, buf, len, e);
}

/*
 * The next bytes of the input: as many as there are up to len, at least one unless it has ended. A
 * few bytes can decode to any number of empty streams, over which the next stage would work without
 * end; but input that is of use is hardly longer than what it decodes to.
 */
static inline int64_t stage_input(struct stage *s, void *buf, size_t len, struct ckpt_err *e)
{
	int64_t n = s->before ? stage_read(s->before, buf, len, e)
			      : s->src->read(s->src->arg, s->src_pos, buf, len, e);

	s->src_pos += n > 0 ? (uint64_t)n : 0;
	if (!s->before || s->takes_all)
		return n;
	s->taken += n > 0 ? (uint64_t)n : 0;
	if (s->taken > STAGE_MAX_AHEAD && (s->taken - STAGE_MAX_AHEAD) / 2 > s->asked)
		return err_set(e, ERR_CORRUPT, "a codec decodes %llu MiB to nothing",
			       (unsigned long long)s->taken >> 20);
	return n;
}

/* The input is set by the caller. NULL: out of memory. */
struct stage *zstd_stage_new(int window_log);
struct stage *zlib_stage_new(bool gzip);
struct stage *blosc_stage_new(int window_log);
struct stage *crc32c_stage_new(void);

void zstd_stage_go(struct stage *s, const struct blob *src, struct zstd_place at);
struct zstd_place zstd_stage_frame(const struct stage *s);

#endif

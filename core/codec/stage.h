/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - one codec of a codec_stream. It reads from the stage before it, the first one from a blob.
 *
 * Private to core/codec.
 */
#ifndef CODEC_STAGE_H
#define CODEC_STAGE_H

#include "base/blob.h"
#include "codec/zstd_frames.h"

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
};

/* The next bytes of the input: as many as there are up to len, at least one unless it has ended. */
static inline int64_t stage_input(struct stage *s, void *buf, size_t len, struct ckpt_err *e)
{
	int64_t n = s->before ? s->before->ops->read(s->before, buf, len, e)
			      : s->src->read(s->src->arg, s->src_pos, buf, len, e);

	s->src_pos += n > 0 ? (uint64_t)n : 0;
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

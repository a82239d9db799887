/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_stream - the stream.zstd/1 transform undone, from front to back.
 *
 * Frames follow each other until the input ends (torch's writer may close with an empty one);
 * the decoded size is not recorded anywhere. Several transforms stack.
 * Source: torch/distributed/checkpoint/_extension.py, class ZStandard.
 *
 * A frame needs nothing of the one before: where one begins, decoding can (zstd_frames.h).
 *
 * Threads: a stream belongs to one thread at a time.
 */
#ifndef CODEC_ZSTD_STREAM_H
#define CODEC_ZSTD_STREAM_H

#include "base/blob.h"
#include "codec/zstd_frames.h"

#include <stddef.h>
#include <stdint.h>

struct zstd_stream;

enum {
	ZSTD_WINDOW_LOG = 23,	  /* 8 MiB, of level 19; torch writes 21 */
	ZSTD_WINDOW_LOG_MAX = 27, /* 128 MiB, zstd's own limit */
};

/*
 * Decode `layers` >= 1 times over what src holds, which must outlive the stream, frames with
 * windows of up to 1 << window_log bytes. NULL: out of memory.
 */
struct zstd_stream *zstd_stream_new(const struct blob *src, unsigned layers, int window_log);
void zstd_stream_free(struct zstd_stream *s);
/* The next len bytes, fewer only at the end. The count, or a negative errno: -ENOBUFS where a
 * window is too large for this stream, but may not be for one of ZSTD_WINDOW_LOG_MAX. */
int64_t zstd_stream_read(struct zstd_stream *s, void *buf, size_t len, struct ckpt_err *e);

/* Go on where a frame of src begins; whatever was there before is forgotten, errors too. One layer
 * only. */
void zstd_stream_go(struct zstd_stream *s, const struct blob *src, struct zstd_place at);
/* The beginning of the frame that comes next or has begun. One layer only. */
struct zstd_place zstd_stream_frame(const struct zstd_stream *s);

size_t zstd_stream_memory(const struct zstd_stream *s); /* bytes it has now */

#endif

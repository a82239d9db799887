/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_stream - decodes the stream.zstd/1 transform sequentially.
 *
 * Frames follow each other until the input ends (torch's writer may close with an empty one); the
 * decoded size is not recorded anywhere. Transforms can be nested. Source:
 * torch/distributed/checkpoint/_extension.py, class ZStandard.
 *
 * Frames are independent: decoding can start at the beginning of any (zstd_frames.h).
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
	ZSTD_WINDOW_LOG = 23,	  /* 8 MiB, as of level 19; torch writes 21 */
	ZSTD_WINDOW_LOG_MAX = 27, /* 128 MiB, zstd's own limit */
};

/*
 * Decodes src, which must outlive the stream, `layers` >= 1 times, accepting frames with windows of
 * up to 1 << window_log bytes. NULL: out of memory.
 */
struct zstd_stream *zstd_stream_new(const struct blob *src, unsigned layers, int window_log);
void zstd_stream_free(struct zstd_stream *s);
/* The next len bytes, fewer only at the end. The count, or a negative errno: -ENOBUFS if a window
 * is too large for this stream, but perhaps not for one with ZSTD_WINDOW_LOG_MAX. */
int64_t zstd_stream_read(struct zstd_stream *s, void *buf, size_t len, struct ckpt_err *e);

/* Continues where a frame of src begins, forgetting everything before, errors included. One layer
 * only. */
void zstd_stream_go(struct zstd_stream *s, const struct blob *src, struct zstd_place at);
/* The beginning of the current frame, or of the next one. One layer only. */
struct zstd_place zstd_stream_frame(const struct zstd_stream *s);

size_t zstd_stream_memory(const struct zstd_stream *s); /* bytes allocated now */

#endif

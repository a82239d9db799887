/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_stream - the stream.zstd/1 transform undone, from front to back.
 *
 * Frames follow each other until the input ends (torch's writer may close with an empty one);
 * the decoded size is not recorded anywhere. Several transforms stack.
 * Source: torch/distributed/checkpoint/_extension.py, class ZStandard.
 *
 * Threads: a stream belongs to one thread at a time.
 */
#ifndef CODEC_ZSTD_STREAM_H
#define CODEC_ZSTD_STREAM_H

#include "base/blob.h"

#include <stddef.h>
#include <stdint.h>

struct zstd_stream;

/* Decode `layers` >= 1 times over what src holds; src must outlive the stream. NULL: out of memory. */
struct zstd_stream *zstd_stream_new(const struct blob *src, unsigned layers);
void zstd_stream_free(struct zstd_stream *s);
/* The next len bytes, fewer only at the end. The count, or a negative errno. */
int64_t zstd_stream_read(struct zstd_stream *s, void *buf, size_t len, struct err *e);

#endif

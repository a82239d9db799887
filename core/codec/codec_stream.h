/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_stream - undoes a coding sequentially.
 *
 *	zstd     frames that follow each other until the input ends (torch's writer may close with
 *	         an empty one)
 *	gzip     members that follow each other
 *	zlib     one stream
 *	blosc    one chunk of Blosc 1, decoded block by block
 *	crc32c   passed through; verified before the last byte
 *
 * The decoded size is not recorded in most of them, and not believed where it is. A stream of a
 * single zstd codec can begin at any of its frames (zstd_frames.h). All others begin at the start,
 * and report damage that shows only at the end, such as a wrong checksum, instead of the last
 * bytes.
 *
 * Threads: a stream belongs to one thread at a time.
 */
#ifndef CODEC_CODEC_STREAM_H
#define CODEC_CODEC_STREAM_H

#include "base/blob.h"
#include "codec/coding.h"
#include "codec/zstd_frames.h"

#include <stddef.h>
#include <stdint.h>

struct codec_stream;

/*
 * Binary logarithms of the memory that one codec may take for what it decodes from: the window of a
 * zstd frame, the block of a Blosc chunk.
 */
enum {
	CODEC_WINDOW_LOG = 23,	   /* 8 MiB, as with zstd's level 19; torch writes 21 */
	CODEC_WINDOW_LOG_MAX = 27, /* 128 MiB, zstd's own limit */
};

/* Decodes src, which must outlive the stream; coding is not 0. NULL: out of memory. */
struct codec_stream *codec_stream_new(const struct blob *src, uint32_t coding, int window_log);
void codec_stream_free(struct codec_stream *s); /* NULL is fine */
/* The next len bytes, fewer only at the end. The count, or a negative errno: -ENOBUFS if a window
 * is too large for this stream, but perhaps not for one with CODEC_WINDOW_LOG_MAX. */
int64_t codec_stream_read(struct codec_stream *s, void *buf, size_t len, struct ckpt_err *e);

/* Continues where a frame of src begins, forgetting everything before, errors included. Only for
 * the coding CODEC_ZSTD. */
void codec_stream_go(struct codec_stream *s, const struct blob *src, struct zstd_place at);
/* The beginning of the current frame, or of the next one. Only for the coding CODEC_ZSTD. */
struct zstd_place codec_stream_frame(const struct codec_stream *s);

size_t codec_stream_memory(const struct codec_stream *s); /* bytes allocated now; NULL: 0 */

#endif

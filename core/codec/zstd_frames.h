/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_frames - where zstd frames begin, without decoding them.
 *
 * A frame may say how many bytes it holds, and its blocks say how long they are stored: such frames
 * are stepped over by reading a few bytes of each block (RFC 8878). What they say is not believed
 * where blocks cannot hold it; for the rest it is as good as any of their bytes, and decoding them
 * checks it.
 *
 * Threads: any.
 */
#ifndef CODEC_ZSTD_FRAMES_H
#define CODEC_ZSTD_FRAMES_H

#include <stdint.h>

struct blob;
struct ckpt_err;

struct zstd_place {
	uint64_t stored, decoded; /* bytes from the beginning */
};

/*
 * From *at, where a frame begins, over all frames that end at or before byte `target` of what is
 * decoded; *at becomes the beginning of the first one that does not (1), or of which that cannot be
 * told (0): it does not say, or is damaged, or the stream ends. Or a negative errno: a read failed.
 * each (may be NULL) is told of every beginning on the way.
 */
int zstd_frames_skip(const struct blob *src, struct zstd_place *at, uint64_t target,
		     void (*each)(void *arg, struct zstd_place at), void *arg, struct ckpt_err *e);

#endif

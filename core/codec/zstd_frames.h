/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd_frames - finds where zstd frames begin without decoding them.
 *
 * A frame may record its decoded size, and its blocks record their stored sizes: such frames are
 * skipped by reading a few bytes of each block (RFC 8878). A size that the blocks cannot hold is
 * not believed; otherwise it is as trustworthy as their contents, and decoding verifies it.
 *
 * Threads: any.
 */
#ifndef CODEC_ZSTD_FRAMES_H
#define CODEC_ZSTD_FRAMES_H

#include <stdint.h>

struct blob;
struct ckpt_err;

struct zstd_place {
	uint64_t stored, decoded; /* bytes from the beginning of the stream */
};

/*
 * From *at, where a frame begins, skips all frames that end at or before byte `target` of the
 * decoded stream. *at becomes the beginning of the first frame that does not (1), or for which that
 * cannot be told (0): it does not record its size, or is damaged, or the stream ends. Or a negative
 * errno: a read failed. each (may be NULL) is called with every frame's beginning on the way.
 */
int zstd_frames_skip(const struct blob *src, struct zstd_place *at, uint64_t target,
		     void (*each)(void *arg, struct zstd_place at), void *arg, struct ckpt_err *e);

#endif

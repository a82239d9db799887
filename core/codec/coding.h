/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coding - the codecs that an item's bytes went through, as one number.
 *
 * A nibble for each codec. The lowest is the one applied last, so it is undone first. 0 means that
 * the bytes are stored unchanged.
 *
 * Threads: pure.
 */
#ifndef CODEC_CODING_H
#define CODEC_CODING_H

#include <stdbool.h>
#include <stdint.h>

enum codec {
	CODEC_NONE,
	CODEC_ZSTD,
	CODEC_GZIP,
	CODEC_ZLIB,
	CODEC_BLOSC,
	CODEC_CRC32C, /* four bytes behind the others */
};

enum { CODING_MAX = 8 }; /* codecs */

/* No codecs: the bytes are computed from other items, any range alone, in blocks of 1 << shift
 * bytes, shift < 32. coding_parse never returns it. */
#define CODING_COMPUTED(shift) (UINT32_MAX - 31 + (shift))

static inline bool coding_is_computed(uint32_t coding)
{
	return coding >= CODING_COMPUTED(0);
}

/* The shift of a computed item. */
static inline unsigned coding_shift(uint32_t coding)
{
	return coding - CODING_COMPUTED(0);
}

/*
 * Parses the names in the chunk index, in the order in which the codecs were applied: "",
 * "+zstd+crc32c", "+stream.zstd/1+stream.zstd/1" (torch's name). False: a name is unknown, or there
 * are more than CODING_MAX.
 */
bool coding_parse(const char *names, uint32_t *ret);

#endif

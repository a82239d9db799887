/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/zstd_frames.h"

#include "base/blob.h"
#include "base/bytes.h"
#include "base/checked.h"

#include <stdbool.h>
#include <zstd.h>

enum {
	MAX_HEADER = 18, /* bytes of a frame header */
	BLOCK_HEADER = 3,
	SKIPPABLE_HEADER = 8,
	CHECKSUM = 4,
	PIECE = 256, /* bytes read at once: a block is about 100 KiB */
};

struct walker {
	const struct blob *src;
	uint64_t at; /* file offset of piece */
	size_t n;
	uint8_t piece[PIECE];
	int rc;	     /* result of a failed read */
	bool behind; /* the last frame examined ends after the target */
	struct ckpt_err *e;
};

/* The *ret_n bytes at off: `want`, or fewer at the end; NULL if fewer than `least`. */
static const uint8_t *look(struct walker *w, uint64_t off, size_t want, size_t least, size_t *ret_n)
{
	if (off < w->at || off - w->at > w->n || w->n - (size_t)(off - w->at) < want) {
		int64_t n = w->src->read(w->src->arg, off, w->piece, PIECE, w->e);

		w->at = off;
		w->n = n < 0 ? 0 : (size_t)n;
		w->rc = n < 0 ? (int)n : 0;
	}
	*ret_n = w->n - (size_t)(off - w->at);
	return *ret_n >= least ? w->piece + (off - w->at) : NULL;
}

/* Skips the blocks from *off on. false: they are incomplete or invalid. */
static bool skip_blocks(struct walker *w, uint64_t *off, uint64_t *ret_room)
{
	enum { RAW, RLE, COMPRESSED };
	uint32_t header = 0;

	for (*ret_room = 0; !(header & 1); *ret_room += ZSTD_BLOCKSIZE_MAX) {
		size_t n;
		const uint8_t *p = look(w, *off, BLOCK_HEADER, BLOCK_HEADER, &n);
		uint32_t type, size;

		if (!p)
			return false;
		header = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
		type = header >> 1 & 3;
		size = header >> 3;
		if (type > COMPRESSED || size > ZSTD_BLOCKSIZE_MAX ||
		    ckd_add(off, *off, BLOCK_HEADER + (type == RLE ? 1 : size)))
			return false;
	}
	return true;
}

/* Length of a frame's header according to its descriptor, the fifth byte. */
static unsigned header_size(unsigned descriptor)
{
	static const unsigned dictionary[] = { 0, 1, 2, 4 }, content[] = { 0, 2, 4, 8 };
	bool single = descriptor >> 5 & 1;

	return 5 + !single + dictionary[descriptor & 3] +
	       (descriptor >> 6 ? content[descriptor >> 6] : single);
}

/* Skips the data frame at *at, whose header starts with p[0 .. n). */
static bool skip_data(struct walker *w, const uint8_t *p, size_t n, struct zstd_place *at,
		      uint64_t target)
{
	unsigned long long content = ZSTD_getFrameContentSize(p, n);
	unsigned descriptor = p[4];
	uint64_t room;

	if (content == ZSTD_CONTENTSIZE_UNKNOWN || content == ZSTD_CONTENTSIZE_ERROR ||
	    ckd_add(&at->decoded, at->decoded, content))
		return false;
	w->behind = at->decoded > target;
	if (w->behind)
		return false;
	at->stored += header_size(descriptor);
	if (!skip_blocks(w, &at->stored, &room) || content > room)
		return false;
	return !ckd_add(&at->stored, at->stored, descriptor >> 2 & 1 ? CHECKSUM : 0);
}

/* Skips the frame at *at, unless it ends after target or that cannot be told. */
static bool skip_frame(struct walker *w, struct zstd_place *at, uint64_t target)
{
	struct zstd_place next = *at;
	size_t n;
	const uint8_t *p = look(w, at->stored, MAX_HEADER, SKIPPABLE_HEADER, &n);
	bool ok;

	if (!p)
		return false;
	if ((load_le32(p) & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START)
		ok = !ckd_add(&next.stored, next.stored,
			      SKIPPABLE_HEADER + (uint64_t)load_le32(p + 4));
	else
		ok = load_le32(p) == ZSTD_MAGICNUMBER && skip_data(w, p, n, &next, target);
	if (!ok || next.stored > w->src->size)
		return false;
	*at = next;
	return true;
}

int zstd_frames_skip(const struct blob *src, struct zstd_place *at, uint64_t target,
		     void (*each)(void *arg, struct zstd_place at), void *arg, struct ckpt_err *e)
{
	struct walker w = { .src = src, .e = e };

	while (skip_frame(&w, at, target))
		if (each)
			each(arg, *at);
	return w.rc ? w.rc : w.behind;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* PNG (ISO/IEC 15948), with stored blocks of zlib (RFC 1950) and deflate (RFC 1951). */
#include "page/png.h"

#include "base/buf.h"
#include "base/checked.h"

#include <libdeflate.h>
#include <string.h>

enum {
	SIGNATURE = 8,
	AROUND = 12, /* a chunk's length, type and check sum */
	HEADER = 13,
	PALETTE = 3 * 256,
	BLOCK = 65535, /* bytes of a stored block, at most */
	BLOCK_HEAD = 5,
	ZLIB_HEAD = 2,
	ADLER = 4,
};

/* A filter's number stands before each row. */
static uint64_t raw_size(unsigned w, unsigned h)
{
	return (uint64_t)h * (w + (uint64_t)1);
}

static uint64_t stream_size(unsigned w, unsigned h)
{
	uint64_t raw = raw_size(w, h);

	return ZLIB_HEAD + (raw + BLOCK - 1) / BLOCK * BLOCK_HEAD + raw + ADLER;
}

uint64_t png_size(unsigned w, unsigned h)
{
	return SIGNATURE + 4 * AROUND + HEADER + PALETTE + stream_size(w, h);
}

static void add_u32(struct buf *b, uint32_t v)
{
	const uint8_t bytes[] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8),
				  (uint8_t)v };

	buf_add(b, bytes, sizeof(bytes));
}

/* The position of the chunk's type. */
static size_t begin_chunk(struct buf *b, uint32_t len, const char type[static 4])
{
	size_t at;

	add_u32(b, len);
	at = b->len;
	buf_add(b, type, 4);
	return at;
}

static void end_chunk(struct buf *b, size_t type)
{
	if (!b->err)
		add_u32(b, libdeflate_crc32(0, b->data + type, b->len - type));
}

static void add_chunk(struct buf *b, const char type[static 4], const uint8_t *data, size_t len)
{
	size_t at = begin_chunk(b, (uint32_t)len, type);

	buf_add(b, data, len);
	end_chunk(b, at);
}

/* Pixels as the stream of zlib has them, in blocks. */
struct stored {
	struct buf *b;
	uint64_t left; /* of all blocks */
	uint32_t block, adler;
};

static void add_stored(struct stored *s, const uint8_t *p, size_t n)
{
	s->adler = libdeflate_adler32(s->adler, p, n);
	while (n) {
		size_t now;

		if (!s->block) {
			uint16_t len = (uint16_t)min_u64(s->left, BLOCK);
			const uint8_t head[BLOCK_HEAD] = { s->left <= BLOCK, (uint8_t)len,
							   (uint8_t)(len >> 8), (uint8_t)~len,
							   (uint8_t)(~len >> 8) };

			buf_add(s->b, head, sizeof(head));
			s->block = len;
		}
		now = (size_t)min_u64(n, s->block);
		buf_add(s->b, p, now);
		p += now;
		n -= now;
		s->block -= (uint32_t)now;
		s->left -= now;
	}
}

static void add_pixels(struct buf *b, unsigned w, unsigned h, const uint8_t *pixels)
{
	size_t at = begin_chunk(b, (uint32_t)stream_size(w, h), "IDAT");
	struct stored s = { .b = b, .left = raw_size(w, h), .adler = 1 };

	buf_add(b, "\x78\x01", ZLIB_HEAD);
	for (unsigned y = 0; y < h; y++) {
		add_stored(&s, (const uint8_t *)"", 1); /* no filter */
		add_stored(&s, pixels + (size_t)y * w, w);
	}
	add_u32(b, s.adler);
	end_chunk(b, at);
}

void png_write(struct buf *b, unsigned w, unsigned h, const uint8_t *pixels,
	       const uint8_t palette[static 3 * 256])
{
	/* bits per sample, colours from a palette; deflate, filters by row, not interlaced */
	const uint8_t header[HEADER] = {
		0, 0, (uint8_t)(w >> 8), (uint8_t)w, 0, 0, (uint8_t)(h >> 8), (uint8_t)h, 8, 3,
	};

	buf_add(b, "\x89PNG\r\n\x1a\n", SIGNATURE);
	add_chunk(b, "IHDR", header, sizeof(header));
	add_chunk(b, "PLTE", palette, PALETTE);
	add_pixels(b, w, h, pixels);
	add_chunk(b, "IEND", NULL, 0);
}

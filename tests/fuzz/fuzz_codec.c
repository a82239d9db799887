/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an item under up to three codecs of any kind, with a small window or a large one.
 * Decoding it at once and in pieces must give the same bytes, and end in the same way.
 *
 *	piece, codecs (two bytes, a nibble each), flags: 1 a large window, 2 the right CRC-32C is
 *	appended; the stored bytes
 */
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "bytes.h"
#include "codec/codec_stream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 4, MAX = 1 << 19, MAX_MEMORY = 16 << 20 };

static void require(bool ok)
{
	if (!ok)
		abort();
}

/* Returns how much there is, up to MAX. *ret_rc: 0, or the reason why there is no more. */
static size_t decode(struct bytes *b, uint32_t coding, int window, size_t piece, uint8_t *out,
		     int *ret_rc)
{
	const struct blob src = { read_bytes, b, b->n };
	struct codec_stream *s = codec_stream_new(&src, coding, window);
	struct ckpt_err e = { 0 };
	size_t at = 0;

	require(s);
	*ret_rc = 0;
	while (at < MAX) {
		size_t want = piece < MAX - at ? piece : MAX - at;
		int64_t n = codec_stream_read(s, out + at, want, &e);

		require(n <= (int64_t)want && (n >= 0 || (e.code == -n && *e.msg)));
		require(window > CODEC_WINDOW_LOG ||
			codec_stream_memory(s) < 3 * (size_t)MAX_MEMORY);
		*ret_rc = n < 0 ? (int)n : 0;
		at += n > 0 ? (size_t)n : 0;
		if (n < (int64_t)want)
			break;
	}
	codec_stream_free(s);
	return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *whole = malloc(MAX), *parts = malloc(MAX), *stored = malloc(size + 4);
	int window, rc_whole, rc_parts;
	uint32_t coding = 0;
	struct bytes b;
	size_t n, m;

	require(whole && parts && stored);
	for (int k = 0; size >= HEAD && k < 3; k++) {
		uint32_t codec = (data[1] | (uint32_t)data[2] << 8) >> 4 * k & 15;

		if (codec && codec <= CODEC_CRC32C)
			coding = coding << 4 | codec;
	}
	if (coding) {
		b = (struct bytes){ stored, size - HEAD };
		memcpy(stored, data + HEAD, b.n);
		if (data[3] & 2) {
			(void)put_le(stored + b.n, crc32c(0, stored, b.n), 4);
			b.n += 4;
		}
		window = data[3] & 1 ? CODEC_WINDOW_LOG_MAX : CODEC_WINDOW_LOG;
		n = decode(&b, coding, window, MAX, whole, &rc_whole);
		m = decode(&b, coding, window, 1 + data[0] * 16u, parts, &rc_parts);
		if (!rc_whole)
			require(!rc_parts && n == m && !memcmp(whole, parts, n));
		else
			require(rc_parts == rc_whole);
	}
	free(whole);
	free(parts);
	free(stored);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an item under one to three transforms, with a small window or a large one. Decoding
 * it at once, and in pieces of the size that the first byte gives, must give the same bytes and end
 * in the same way.
 */
#include "base/err.h"
#include "bytes.h"
#include "codec/codec_stream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 1 << 20 };

static void require(bool ok)
{
	if (!ok)
		abort();
}

/* Returns how much there is, up to MAX. *ret_rc: 0, or the reason why there is no more. */
static size_t decode(struct bytes *b, unsigned layers, int window, size_t piece, uint8_t *out,
		     int *ret_rc)
{
	const struct blob src = { read_bytes, b, b->n };
	struct codec_stream *s = codec_stream_new(&src, 0x111u >> 4 * (3 - layers), window);
	struct ckpt_err e = { 0 };
	size_t at = 0;

	require(s);
	*ret_rc = 0;
	while (at < MAX) {
		size_t want = piece < MAX - at ? piece : MAX - at;
		int64_t n = codec_stream_read(s, out + at, want, &e);

		require(n <= (int64_t)want && (n >= 0 || (e.code == -n && *e.msg)));
		*ret_rc = n < 0 ? (int)n : 0;
		if (n < 0 || (size_t)n < want) {
			at += n > 0 ? (size_t)n : 0;
			break;
		}
		at += (size_t)n;
	}
	codec_stream_free(s);
	return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = { data + 2, size - 2 };
	uint8_t *whole, *parts;
	int window;
	int rc_whole, rc_parts;
	size_t n, m;

	if (size < 2)
		return 0;
	window = data[1] & 4 ? CODEC_WINDOW_LOG_MAX : CODEC_WINDOW_LOG;
	whole = malloc(MAX);
	parts = malloc(MAX);
	require(whole && parts);
	n = decode(&b, 1 + data[1] % 3, window, MAX, whole, &rc_whole);
	m = decode(&b, 1 + data[1] % 3, window, 1 + data[0] * 16u, parts, &rc_parts);
	if (!rc_whole)
		require(!rc_parts && n == m && !memcmp(whole, parts, n));
	else
		require(rc_parts == rc_whole);
	free(whole);
	free(parts);
	return 0;
}

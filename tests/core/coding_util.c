/* SPDX-License-Identifier: Apache-2.0 */
#include "coding_util.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/crc32c.h"
#include "blob_util.h"
#include "codec/coding.h"
#include "suites.h"

#include <blosc.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

uint8_t *coding_bytes(struct rng *r, size_t n)
{
	uint8_t *p = malloc(n + 1);

	REQUIRE(p);
	for (size_t i = 0, run; i < n; i += run) {
		uint64_t kind = rng_below(r, 3), first = rng_below(r, 256);

		run = min_u64(n - i, 1 + rng_below(r, n / 8 + 2));
		if (kind == 2)
			random_bytes(r, p + i, run);
		for (size_t k = 0; kind < 2 && k < run; k++)
			p[i + k] = (uint8_t)(first + kind * (k / 4));
	}
	return p;
}

static uint8_t *pack_zlib(struct rng *r, const uint8_t *p, size_t n, bool gzip, size_t *ret_n)
{
	uint8_t *out = NULL;
	size_t at = 0, len = 0;

	do {
		size_t member = gzip && rng_below(r, 2) ? 1 + rng_below(r, n + 1) : n;
		z_stream z = { 0 };

		member = min_u64(member, n - at);
		REQUIRE(deflateInit2(&z, (int)rng_below(r, 10), Z_DEFLATED, 15 + (gzip ? 16 : 0), 8,
				     Z_DEFAULT_STRATEGY) == Z_OK);
		out = realloc(out, len + deflateBound(&z, member));
		REQUIRE(out);
		z.next_in = (uint8_t *)(uintptr_t)p + at;
		z.avail_in = (uInt)member;
		z.next_out = out + len;
		z.avail_out = (uInt)deflateBound(&z, member);
		REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
		len = (size_t)(z.next_out - out);
		at += member;
		(void)deflateEnd(&z);
	} while (at < n);
	*ret_n = len;
	return out;
}

/* Compressed by one thread or by several, whose blocks are in any order. */
static uint8_t *pack_blosc(struct rng *r, const uint8_t *p, size_t n, size_t *ret_n)
{
	static const char *const names[] = { "blosclz", "lz4", "lz4hc", "zlib", "zstd" };
	static const size_t types[] = { 1, 2, 4, 8, 16, 3, 255 };
	uint8_t *out = malloc(n + BLOSC_MAX_OVERHEAD);
	int len;

	REQUIRE(out);
	len = blosc_compress_ctx(
		(int)rng_below(r, 10), (int)rng_below(r, 3), types[rng_below(r, ARRAY_LEN(types))],
		n, p, out, n + BLOSC_MAX_OVERHEAD, names[rng_below(r, ARRAY_LEN(names))],
		rng_below(r, 2) ? rng_below(r, n + 2) : 0, rng_below(r, 2) ? 1 : 4);
	REQUIRE(len >= BLOSC_MAX_OVERHEAD);
	*ret_n = (size_t)len;
	return out;
}

static uint8_t *pack(struct rng *r, const uint8_t *p, size_t n, enum codec codec, size_t *ret_n)
{
	uint8_t *out;

	switch (codec) {
	case CODEC_ZSTD:
		return zstd_pack(p, n, rng_below(r, 2) ? 1 + rng_below(r, n + 1) : 0, ret_n);
	case CODEC_GZIP:
	case CODEC_ZLIB:
		return pack_zlib(r, p, n, codec == CODEC_GZIP, ret_n);
	case CODEC_BLOSC:
		return pack_blosc(r, p, n, ret_n);
	default:
		REQUIRE(codec == CODEC_CRC32C);
		out = malloc(n + 4);
		REQUIRE(out);
		if (n)
			memcpy(out, p, n);
		(void)put_le(out + n, crc32c_table(0, p, n), 4);
		*ret_n = n + 4;
		return out;
	}
}

uint8_t *coding_encode(struct rng *r, const void *p, size_t n, uint32_t coding, size_t *ret_n)
{
	uint8_t *bytes = malloc(n + 1);

	REQUIRE(bytes);
	if (n)
		memcpy(bytes, p, n);
	for (unsigned k = CODING_MAX; k-- > 0;) {
		enum codec codec = coding >> (4 * k) & 15;
		uint8_t *before = bytes;

		if (!codec)
			continue;
		bytes = pack(r, before, n, codec, &n);
		free(before);
	}
	*ret_n = n;
	return bytes;
}

uint32_t coding_draw(struct rng *r, unsigned most)
{
	uint32_t coding = 0;

	for (uint64_t n = 1 + rng_below(r, most); n; n--)
		coding = coding << 4 | (uint32_t)(1 + rng_below(r, CODEC_CRC32C));
	return coding;
}

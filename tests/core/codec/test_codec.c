/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of all codecs, and of chains of them, as the codecs' own libraries encode them. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/codec_stream.h"
#include "coding_util.h"
#include "fault.h"
#include "suites.h"

#include <blosc.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/*
 * Decodes in reads of `step` bytes until the stream ends or has given `cap` bytes, for which out
 * has room. Returns the count, or an error, which must have a sentence.
 */
static int64_t decode_some(const void *packed, size_t packed_n, uint32_t coding, size_t step,
			   bool size_known, uint8_t *out, size_t cap)
{
	struct mem m;
	struct blob b;
	struct codec_stream *s;
	struct ckpt_err e = { 0 };
	size_t at = 0, want;
	int64_t n;

	mem_init(&m, packed, packed_n);
	b = mem_blob(&m, size_known);
	s = codec_stream_new(&b, coding, CODEC_WINDOW_LOG_MAX);
	REQUIRE(s);
	do {
		want = min_u64(step, cap - at);
		n = codec_stream_read(s, out + at, want, &e);
		REQUIRE(n <= (int64_t)want && (n >= 0 || (e.code == -n && *e.msg)));
		at += n > 0 ? (size_t)n : 0;
	} while (n == (int64_t)want && at < cap);
	if (n >= 0 && (size_t)n < want)
		REQUIRE(codec_stream_read(s, out + at, 1, &e) == 0); /* it stays at the end */
	codec_stream_free(s);
	mem_release(&m);
	return n < 0 ? n : (int64_t)at;
}

static int64_t decode(const void *packed, size_t packed_n, uint32_t coding, size_t step,
		      uint8_t *out, size_t cap)
{
	return decode_some(packed, packed_n, coding, step, true, out, cap);
}

static size_t draw_size(struct rng *r)
{
	static const size_t around[] = { 0, 1, 4, 64 << 10, 256 << 10, 264 << 10, 1 << 20 };

	if (rng_below(r, 2))
		return rng_below(r, 5000);
	return around[rng_below(r, ARRAY_LEN(around))] + rng_below(r, 5);
}

START_LOOP_TEST(what_is_encoded_is_decoded, 8)
{
	struct rng r = rng_new();
	const int rounds = CHECK_FULL() ? 300 : 30;

	for (int i = 0; i < rounds; i++) {
		/* each codec by itself, then chains */
		uint32_t coding = _i && _i <= CODEC_CRC32C ? (uint32_t)_i : coding_draw(&r, 4);
		size_t n = draw_size(&r), packed_n, step = 1 + rng_below(&r, n + 2);
		autofree uint8_t *want = coding_bytes(&r, n), *out = malloc(n + 9);
		autofree uint8_t *packed = coding_encode(&r, want, n, coding, &packed_n);
		int64_t got;

		REQUIRE(out);
		step = max_u64(step, n / 1000);
		got = decode_some(packed, packed_n, coding, step, rng_below(&r, 2), out, n + 9);
		ck_assert_msg(got == (int64_t)n, "coding %x: %lld of %zu bytes", coding,
			      (long long)got, n);
		ck_assert(!memcmp(out, want, n));
		/* exactly what there is, without asking for more */
		got = decode(packed, packed_n, coding, step, out, n);
		ck_assert_int_eq(got, (int64_t)n);
	}
}
END_TEST

/*
 * Wherever a stream is cut, a reader gets an error no later than its last byte. Only codecs whose
 * streams may end with parts that hold no bytes can give all bytes without that; they are the right
 * ones then.
 */
START_LOOP_TEST(a_cut_stream_is_an_error, CODEC_CRC32C + 3)
{
	struct rng r = rng_new();

	for (int i = 0; i < (CHECK_FULL() ? 30 : 3); i++) {
		uint32_t coding = _i && _i <= CODEC_CRC32C ? (uint32_t)_i : coding_draw(&r, 3);
		size_t n = 1 + rng_below(&r, 300), packed_n;
		autofree uint8_t *want = coding_bytes(&r, n), *out = malloc(n);
		autofree uint8_t *packed = coding_encode(&r, want, n, coding, &packed_n);

		REQUIRE(out);
		for (size_t cut = 0; cut < packed_n; cut++) {
			int64_t got = decode(packed, cut, coding, 1 + rng_below(&r, n), out, n);

			/* a cut may take away empty frames or members at the end, which hold no
			 * bytes */
			ck_assert(got < (int64_t)n || !memcmp(out, want, n));
			ck_assert(got < (int64_t)n || (coding & 15) == CODEC_ZSTD ||
				  (coding & 15) == CODEC_GZIP);
		}
	}
}
END_TEST

/*
 * With a checksum, a changed byte is an error, unless it makes the stream longer than anybody would
 * read.
 */
START_LOOP_TEST(a_changed_stream_is_an_error_or_harmless, CODEC_CRC32C + 3)
{
	struct rng r = rng_new();

	for (int i = 0; i < (CHECK_FULL() ? 20 : 2); i++) {
		uint32_t coding = _i && _i <= CODEC_CRC32C ? (uint32_t)_i : coding_draw(&r, 3);
		uint32_t last = coding & 15;
		size_t n = 1 + rng_below(&r, 300), packed_n, room = n + 5000;
		autofree uint8_t *want = coding_bytes(&r, n), *out = malloc(room);
		autofree uint8_t *packed = coding_encode(&r, want, n, coding, &packed_n);

		REQUIRE(out);
		for (size_t at = 0; at < packed_n; at++) {
			uint8_t bit = (uint8_t)(1 << rng_below(&r, 8));
			int64_t got;

			packed[at] ^= bit;
			got = decode(packed, packed_n, coding, 1 + rng_below(&r, n), out, room);
			packed[at] ^= bit;
			if (last == CODEC_CRC32C)
				ck_assert_int_eq(got, -ERR_CORRUPT);
			/* gzip's checksum does not cover all of its header */
			if (coding == CODEC_GZIP || coding == CODEC_ZLIB)
				ck_assert(got < 0 || got == (int64_t)room ||
					  (got == (int64_t)n && !memcmp(out, want, n)));
		}
	}
}
END_TEST

START_TEST(noise_is_an_error_or_ends)
{
	struct rng r = rng_new();
	enum { MANY = 20000 };
	autofree uint8_t *out = malloc(MANY);

	REQUIRE(out);
	for (int i = 0; i < (CHECK_FULL() ? 20000 : 2000); i++) {
		uint8_t noise[200];
		size_t n = rng_below(&r, sizeof(noise)), packed_n;
		uint32_t coding = coding_draw(&r, 3);
		autofree uint8_t *packed = NULL;

		random_bytes(&r, noise, n);
		packed = coding_encode(&r, noise, n, coding >> 4, &packed_n);
		(void)decode(packed, packed_n, coding, 1 + rng_below(&r, MANY), out, MANY);
	}
}
END_TEST

/* ---- messages ---- */

struct sentence {
	uint32_t coding;
	const char *bytes;
	size_t n;
	int code;
	const char *msg;
};
#define BYTES(s) (s), sizeof(s) - 1

/* Blosc: version, compressor, flags, size of numbers, decoded, block, stored. */
static const struct sentence sentences[] = {
	{ CODEC_GZIP, BYTES(""), ERR_CORRUPT, "gzip: the stream ends too early" },
	{ CODEC_GZIP, BYTES("\x1f\x8b"), ERR_CORRUPT, "gzip: the stream ends too early" },
	{ CODEC_GZIP, BYTES("\x78\x9c"), ERR_CORRUPT, "gzip: incorrect header check" },
	{ CODEC_ZLIB, BYTES("\x1f\x8b"), ERR_CORRUPT, "zlib: incorrect header check" },
	{ CODEC_ZLIB, BYTES("\x78\xbb\0\0\0\1"), ERR_CORRUPT, "zlib: a preset dictionary" },
	{ CODEC_ZLIB, BYTES("\x78\x9c\3\0\0\0\0\1x"), ERR_CORRUPT,
	  "zlib: the stream is followed by other bytes" },
	{ CODEC_ZLIB, BYTES("\x78\x9c\3\0\0\0\0\2"), ERR_CORRUPT, "zlib: incorrect data check" },
	{ CODEC_CRC32C, BYTES("abc"), ERR_CORRUPT, "crc32c: the bytes end before their checksum" },
	{ CODEC_CRC32C, BYTES("\0\0\0\1"), ERR_CORRUPT,
	  "crc32c: the checksum of the bytes is 00000000, but 01000000 is recorded" },
	{ CODEC_BLOSC, BYTES("\2\1\0"), ERR_CORRUPT, "blosc: the chunk ends too early" },
	{ CODEC_BLOSC, BYTES("\3\1\0\1\1\0\0\0\1\0\0\0\x11\0\0\0x"), ERR_UNSUPPORTED,
	  "blosc: version 3 of the format is not known" },
	{ CODEC_BLOSC, BYTES("\2\1\2\1\1\0\0\0\1\0\0\0\x11\0\0\0"), ERR_CORRUPT,
	  "blosc: the chunk ends too early" },
	{ CODEC_BLOSC, BYTES("\2\1\2\1\1\0\0\0\1\0\0\0\x11\0\0\0xy"), ERR_CORRUPT,
	  "blosc: the chunk is followed by other bytes" },
	{ CODEC_BLOSC, BYTES("\2\1\2\1\2\0\0\0\1\0\0\0\x11\0\0\0x"), ERR_CORRUPT,
	  "blosc: a damaged header" },
	{ CODEC_BLOSC, BYTES("\2\1\2\1\1\0\0\0\1\0\0\0\x0f\0\0\0"), ERR_CORRUPT,
	  "blosc: a damaged header" },
	{ CODEC_BLOSC, BYTES("\2\1\2\1\1\0\0\x80\1\0\0\0\x10\0\0\0"), ERR_CORRUPT,
	  "blosc: a damaged header" },
	{ CODEC_BLOSC, BYTES("\2\1\0\1\x10\0\0\0\1\0\0\0\x18\0\0\0\x14\0\0\0\1\0\0\0"), ERR_CORRUPT,
	  "blosc: more blocks than it has room for" },
	{ CODEC_BLOSC, BYTES("\2\1\0\1\x10\0\0\0\x10\0\0\0\x18\0\0\0\x15\0\0\0\1\0\0\0"),
	  ERR_CORRUPT, "blosc: a block is outside the chunk" },
	{ CODEC_BLOSC, BYTES("\2\1\0\1\x10\0\0\0\x10\0\0\0\x18\0\0\0\x13\0\0\0\1\0\0\0"),
	  ERR_CORRUPT, "blosc: a block is outside the chunk" },
	{ CODEC_BLOSC, BYTES("\2\1\0\1\x10\0\0\0\x10\0\0\0\x18\0\0\0\x14\0\0\0\1\0\0\0"),
	  ERR_CORRUPT, "blosc: block 0 of 1 cannot be decoded" },
	{ CODEC_BLOSC,
	  BYTES("\2\1\0\1\0\0\0\x10\1\0\0\x08\x20\0\0\0\x14\0\0\0\x14\0\0\0\1\0\0\0\0\0\0\0"),
	  ERR_UNSUPPORTED, "blosc: a block has 134217729 bytes, at most 134217728 can be read" },
};

START_LOOP_TEST(damage_is_said_in_a_sentence, ARRAY_LEN(sentences))
{
	const struct sentence *x = &sentences[_i];
	struct ckpt_err e = { 0 };
	struct codec_stream *s;
	uint8_t out[64];
	struct mem m;
	struct blob b;

	mem_init(&m, x->bytes, x->n);
	b = mem_blob(&m, true);
	s = codec_stream_new(&b, x->coding, CODEC_WINDOW_LOG_MAX);
	ck_assert_int_eq(codec_stream_read(s, out, sizeof(out), &e), -x->code);
	ck_assert_str_eq(e.msg, x->msg);
	codec_stream_free(s);
	mem_release(&m);
}
END_TEST

/* A chain reports the error of an earlier codec. */
START_LOOP_TEST(a_wrong_checksum_under_another_codec_is_found, CODEC_CRC32C)
{
	struct rng r = rng_new();
	uint32_t coding = (uint32_t)(_i + 1) << 4 | CODEC_CRC32C;
	const size_t n = 300000;
	size_t packed_n;
	autofree uint8_t *want = coding_bytes(&r, n), *out = malloc(n);
	autofree uint8_t *packed = coding_encode(&r, want, n, coding, &packed_n);

	REQUIRE(out);
	packed[packed_n - 1] ^= 1;
	ck_assert_int_eq(decode(packed, packed_n, coding, n, out, n), -ERR_CORRUPT);
	ck_assert_int_eq(decode(packed, packed_n, coding, 1000, out, n), -ERR_CORRUPT);
}
END_TEST

/* ---- limits ---- */

/* Blocks of Blosc above 8 MiB need a stream that may take more. */
START_TEST(large_blocks_need_a_large_stream)
{
	const size_t n = (size_t)17 << 20;
	autofree uint8_t *p = calloc(1, n), *packed = malloc(n), *out = malloc(n);
	struct codec_stream *s;
	struct ckpt_err e = { 0 };
	struct blob b;
	struct mem m;
	int len;

	REQUIRE(p && packed && out);
	len = blosc_compress_ctx(1, 0, 1, n, p, packed, n, "zstd", n, 1);
	ck_assert_int_gt(len, 0);
	ck_assert_uint_gt(load_le32(packed + 8), (uint64_t)1 << CODEC_WINDOW_LOG);
	mem_init(&m, packed, (size_t)len);
	b = mem_blob(&m, true);
	s = codec_stream_new(&b, CODEC_BLOSC, CODEC_WINDOW_LOG);
	ck_assert_int_eq(codec_stream_read(s, out, n, &e), -ENOBUFS);
	ck_assert_uint_lt(codec_stream_memory(s), 10000);
	codec_stream_free(s);
	s = codec_stream_new(&b, CODEC_BLOSC, CODEC_WINDOW_LOG_MAX);
	ck_assert_int_eq(codec_stream_read(s, out, n, &e), (int64_t)n);
	ck_assert(!memcmp(out, p, n));
	codec_stream_free(s);
	mem_release(&m);
}
END_TEST

/* 2 GiB of zeros take little memory, whatever encoded them. */
START_FEW_TEST(bombs_take_bounded_memory, 3, 1)
{
	static const uint32_t codings[] = { CODEC_GZIP, CODEC_ZLIB, CODEC_ZSTD << 4 | CODEC_GZIP };
	struct rng r = rng_new();
	const size_t n = (size_t)32 << 20;
	size_t packed_n, step = 1 << 20;
	autofree uint8_t *zeros = calloc(1, n), *out = malloc(step);
	autofree uint8_t *packed = coding_encode(&r, zeros, n, codings[_i], &packed_n);
	struct codec_stream *s;
	struct ckpt_err e = { 0 };
	struct blob b;
	struct mem m;

	REQUIRE(zeros && out);
	mem_init(&m, packed, packed_n);
	b = mem_blob(&m, true);
	s = codec_stream_new(&b, codings[_i], CODEC_WINDOW_LOG);
	for (size_t at = 0; at < n; at += step) {
		ck_assert_int_eq(codec_stream_read(s, out, step, &e), (int64_t)step);
		ck_assert_uint_lt(codec_stream_memory(s), 12 << 20);
	}
	ck_assert_int_eq(codec_stream_read(s, out, step, &e), 0);
	codec_stream_free(s);
	mem_release(&m);
}
END_TEST

/* Without a bound, a stream of empty streams could take as long as its author likes. */
START_TEST(what_decodes_to_nothing_ends)
{
	static const uint8_t empty[] = { 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3,
					 3,    0,    0, 0, 0, 0, 0, 0, 0, 0 };
	struct rng r = rng_new();
	size_t n = (size_t)17 << 20, few = n / 20 / sizeof(empty) * sizeof(empty), packed_n;
	autofree uint8_t *many = malloc(n + sizeof(empty)), *packed = NULL, *some = NULL;
	uint8_t out[9];

	REQUIRE(many);
	for (size_t i = 0; i < n; i += sizeof(empty))
		memcpy(many + i, empty, sizeof(empty));
	n = n / sizeof(empty) * sizeof(empty);
	some = coding_encode(&r, many, few, CODEC_ZSTD, &packed_n);
	ck_assert_int_eq(decode(some, packed_n, CODEC_ZSTD | CODEC_GZIP << 4, 9, out, 9), 0);
	packed = coding_encode(&r, many, n, CODEC_ZSTD, &packed_n);
	ck_assert_int_eq(decode(packed, packed_n, CODEC_ZSTD | CODEC_GZIP << 4, 9, out, 9),
			 -ERR_CORRUPT);
}
END_TEST

/* ---- names ---- */

static const struct {
	const char *names;
	uint32_t coding;
} named[] = {
	{ "", 0 },
	{ "+zstd", 0x1 },
	{ "+stream.zstd/1", 0x1 },
	{ "+stream.zstd/1.7+stream.zstd/1", 0x11 },
	{ "+zstd+gzip+zlib+blosc+crc32c", 0x12345 },
	{ "+crc32c+zstd", 0x51 },
	{ "+zstd+zstd+zstd+zstd+zstd+zstd+zstd+zstd", 0x11111111 },
};

START_LOOP_TEST(names_become_codings, ARRAY_LEN(named))
{
	uint32_t coding = 7;

	ck_assert(coding_parse(named[_i].names, &coding));
	ck_assert_uint_eq(coding, named[_i].coding);
}
END_TEST

static const char *const unknown[] = {
	"zstd",		  "+",
	"+zstd+",	  "+zstd/1",
	"+stream.zstd/2", "+stream.zstd/10",
	"+stream.zstd",	  "+zstd+lz4",
	"+ZSTD",	  "+zstd ",
	"+zstd.1",	  "+bz2",
	"++zstd",	  "+crc32c/crc",
	"+zstd,crc32c",	  "+zstd+zstd+zstd+zstd+zstd+zstd+zstd+zstd+zstd",
};

START_LOOP_TEST(other_names_are_unknown, ARRAY_LEN(unknown))
{
	uint32_t coding;

	ck_assert(!coding_parse(unknown[_i], &coding));
}
END_TEST

/* ---- faults ---- */

START_LOOP_TEST(reads_and_allocations_may_fail, CODEC_CRC32C)
{
	struct rng r = rng_new();
	uint32_t coding = (uint32_t)_i + 1;
	const size_t n = 200000;
	size_t packed_n;
	autofree uint8_t *want = coding_bytes(&r, n), *out = malloc(n);
	autofree uint8_t *packed = coding_encode(&r, want, n, coding << 4 | coding, &packed_n);
	struct mem m;
	struct blob b;

	REQUIRE(out);
	mem_init(&m, packed, packed_n);
	b = mem_blob(&m, true);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct codec_stream *s =
			codec_stream_new(&b, coding << 4 | coding, CODEC_WINDOW_LOG);
		struct ckpt_err e = { 0 };
		int64_t got = s ? codec_stream_read(s, out, n, &e) : -ENOMEM;

		(void)fault_off();
		ck_assert_int_eq(got, fault_hit() ? -ENOMEM : (int64_t)n);
		codec_stream_free(s);
	}
	for (unsigned fail = 1;; fail++) {
		struct codec_stream *s =
			codec_stream_new(&b, coding << 4 | coding, CODEC_WINDOW_LOG);
		struct ckpt_err e = { 0 };
		int64_t got;

		m.reads = 0;
		m.fail = fail;
		got = codec_stream_read(s, out, n, &e);
		codec_stream_free(s);
		if (m.reads < fail) {
			ck_assert_int_eq(got, (int64_t)n);
			break;
		}
		ck_assert_int_eq(got, -EIO);
	}
	mem_release(&m);
}
END_TEST

SUITE(codec, .seconds = 120)

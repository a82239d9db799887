/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/codec_stream.h"
#include "fault.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* Text-like bytes: they compress, and no two stretches are equal. */
static uint8_t *make_bytes(struct rng *r, size_t n)
{
	uint8_t *p = malloc(n + 1);

	REQUIRE(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)("etaoin shrdlu"[rng_below(r, 13)]);
	return p;
}

/* Decodes all of the stream in reads of `step` bytes; returns the count or the error. */
static int64_t decode(const void *packed, size_t packed_n, unsigned layers, size_t step,
		      uint8_t *out, size_t cap, struct ckpt_err *e)
{
	struct mem m;
	struct blob b;
	struct codec_stream *s;
	size_t at = 0;
	int64_t n;

	mem_init(&m, packed, packed_n);
	b = mem_blob(&m, true);
	s = codec_stream_new(&b, zstd_layers(layers), CODEC_WINDOW_LOG_MAX);
	REQUIRE(s);
	do {
		size_t want = step < cap - at ? step : cap - at;

		n = codec_stream_read(s, out + at, want, e);
		if (n < 0)
			break;
		REQUIRE((size_t)n <= want);
		at += (size_t)n;
		if ((size_t)n < want) { /* the end; it stays there */
			REQUIRE(codec_stream_read(s, out + at, cap - at, e) == 0);
			break;
		}
	} while (n && at < cap);
	codec_stream_free(s);
	mem_release(&m);
	return n < 0 ? n : (int64_t)at;
}

static const struct {
	size_t n, frame, step;
	unsigned layers;
} shapes[] = {
	{ 0, 0, 10, 1 },
	{ 1, 0, 10, 1 },
	{ 1000, 0, 1, 1 },
	{ 100000, 0, 4096, 1 },
	{ 100000, 7000, 4096, 1 },
	{ 5000, 1, 100, 1 },
	{ 3000000, 0, 1 << 20, 1 },
	{ 3000000, 500000, 999, 1 },
	{ 2 << 20, 0, 1 << 20, 1 },
	{ 100000, 0, 4096, 2 },
	{ 100000, 9000, 4096, 3 },
	{ 0, 0, 10, 4 },
	{ 50000, 0, 50000, 8 },
};

START_LOOP_TEST(frames_follow_each_other_and_layers_stack, ARRAY_LEN(shapes))
{
	struct rng r = rng_new();
	size_t n = shapes[_i].n, packed_n = n;
	uint8_t *want = make_bytes(&r, n), *packed = make_bytes(&r, n), *out = malloc(n + 100);
	struct ckpt_err e = { 0 };

	memcpy(packed, want, n);
	for (unsigned l = 0; l < shapes[_i].layers; l++) {
		uint8_t *next = zstd_pack(packed, packed_n, shapes[_i].frame, &packed_n);

		free(packed);
		packed = next;
	}
	ck_assert_int_eq(
		decode(packed, packed_n, shapes[_i].layers, shapes[_i].step, out, n + 100, &e),
		(int64_t)n);
	ck_assert_int_eq(e.code, 0);
	ck_assert(!memcmp(out, want, n));
	free(want);
	free(packed);
	free(out);
}
END_TEST

/* pyzstd, torch's other choice, ends a frame with flush() and adds an empty one in close(). */
START_TEST(empty_frames_are_nothing)
{
	size_t n_empty, n_text;
	uint8_t *empty = zstd_pack("", 0, 0, &n_empty), *text = zstd_pack("text", 4, 0, &n_text);
	uint8_t b[200], out[20];
	struct ckpt_err e = { 0 };
	size_t n = 0;

	for (int i = 0; i < 3; i++) {
		memcpy(b + n, empty, n_empty);
		n += n_empty;
	}
	memcpy(b + n, text, n_text);
	n += n_text;
	memcpy(b + n, "\x50\x2a\x4d\x18\2\0\0\0xx", 10); /* skippable */
	n += 10;
	memcpy(b + n, empty, n_empty);
	n += n_empty;
	ck_assert_int_eq(decode(b, n, 1, 20, out, 20, &e), 4);
	ck_assert_mem_eq(out, "text", 4);
	ck_assert_int_eq(decode(b, n_empty, 1, 20, out, 20, &e), 0);
	ck_assert_int_eq(decode("", 0, 1, 20, out, 20, &e), 0);
	free(empty);
	free(text);
}
END_TEST

START_TEST(every_beginning_of_a_frame_is_an_error)
{
	struct rng r = rng_new();
	size_t n = 600, packed_n;
	uint8_t *text = make_bytes(&r, n), *packed = zstd_pack(text, n, 0, &packed_n), out[700];

	for (size_t cut = 1; cut < packed_n; cut++) {
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(decode(packed, cut, 1, 700, out, 700, &e), -EBADMSG);
		ck_assert_str_eq(e.msg, "zstd: the stream ends inside a frame");
	}
	free(text);
	free(packed);
}
END_TEST

static const struct {
	const char *bytes;
	size_t n;
	const char *msg;
} garbage[] = {
	{ "this is not zstd at all", 23, "zstd: Unknown frame descriptor" },
	{ "PK\3\4................", 20, "zstd: Unknown frame descriptor" },
	/* a window of 2 GiB */
	{ "\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9,
	  "zstd: Frame requires too much memory for decoding" },
	/* needs dictionary 1 */
	{ "\x28\xb5\x2f\xfd\x01\x58\x01\x01\x00\x00", 10, "zstd: Dictionary mismatch" },
	/* reserved block type */
	{ "\x28\xb5\x2f\xfd\x00\x58\x07\x00\x00", 9, "zstd: " }, /* the rest depends on zstd */
};

START_LOOP_TEST(garbage_is_an_error_with_a_sentence, ARRAY_LEN(garbage))
{
	struct ckpt_err e = { 0 };
	uint8_t out[100];

	ck_assert_int_eq(decode(garbage[_i].bytes, garbage[_i].n, 1, 100, out, 100, &e), -EBADMSG);
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_int_eq(strncmp(e.msg, garbage[_i].msg, strlen(garbage[_i].msg)), 0);
	ck_assert_uint_gt(strlen(e.msg), strlen("zstd: "));
}
END_TEST

START_TEST(garbage_behind_a_frame_is_an_error)
{
	size_t n;
	uint8_t *text = zstd_pack("text", 4, 0, &n), b[100], out[100];
	struct ckpt_err e = { 0 };

	memcpy(b, text, n);
	memcpy(b + n, "junk and more junk", 18);
	ck_assert_int_eq(decode(b, n + 18, 1, 100, out, 100, &e), -EBADMSG);
	free(text);
}
END_TEST

START_TEST(a_layer_too_many_is_an_error)
{
	size_t n;
	uint8_t *text = zstd_pack("text that is not packed twice", 29, 0, &n), out[100];
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(decode(text, n, 2, 100, out, 100, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "zstd: Unknown frame descriptor");
	free(text);
}
END_TEST

START_TEST(flipped_bits_never_crash)
{
	struct rng r = rng_new();
	size_t n = 20000, packed_n;
	uint8_t *text = make_bytes(&r, n), *packed = zstd_pack(text, n, 5000, &packed_n),
		*out = malloc(40000);

	for (int i = 0; i < 2000; i++) {
		size_t at = rng_below(&r, packed_n);
		uint8_t bit = (uint8_t)(1 << rng_below(&r, 8));
		struct ckpt_err e = { 0 };
		int64_t rc;

		packed[at] ^= bit;
		rc = decode(packed, packed_n, 1, 40000, out, 40000, &e);
		REQUIRE(rc < 0 ? e.code == -rc && e.msg[0] : !e.code);
		packed[at] ^= bit;
	}
	free(text);
	free(packed);
	free(out);
}
END_TEST

START_TEST(failing_reads_come_through)
{
	struct rng r = rng_new();
	size_t n = 2000000, packed_n;
	uint8_t *text = make_bytes(&r, n), *packed = zstd_pack(text, n, 0, &packed_n),
		*out = malloc(n);
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;
	struct codec_stream *s;

	mem_init(&m, packed, packed_n);
	m.fail = 2;
	b = mem_blob(&m, true);
	s = codec_stream_new(&b, 1, CODEC_WINDOW_LOG);
	ck_assert_int_eq(codec_stream_read(s, out, n, &e), -EIO);
	ck_assert_int_eq(e.code, EIO);
	codec_stream_free(s);
	mem_release(&m);
	free(text);
	free(packed);
	free(out);
}
END_TEST

START_TEST(without_memory_there_is_no_stream)
{
	struct blob b = { 0 };
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct codec_stream *s = codec_stream_new(&b, zstd_layers(3), CODEC_WINDOW_LOG);

		(void)fault_off();
		ck_assert_int_eq(!s, fault_hit());
		failed += !s;
		codec_stream_free(s);
	}
	/* The stream, and for each of three layers a stage and zstd's context. */
	ck_assert_uint_eq(failed, 1 + 6);
}
END_TEST

SUITE(zstd, .seconds = 60)

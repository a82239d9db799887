/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of frames of all kinds, whose places are known because they are made here. */
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/zstd_frames.h"
#include "suites.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { MAX_FRAMES = 12, MAX_CONTENT = 400000, MAX_STREAM = MAX_FRAMES * (MAX_CONTENT + 5000) };

struct made {
	uint8_t *p;
	size_t n;
	struct zstd_place begin[MAX_FRAMES + 1]; /* of frame i; the last: the end */
	bool unknown[MAX_FRAMES];		 /* does not record its size */
	size_t frames;
};

/* What makes raw, RLE and compressed blocks. */
static void fill(struct rng *r, uint8_t *p, size_t n)
{
	switch (rng_below(r, 4)) {
	case 0:
		random_bytes(r, p, n);
		break;
	case 1:
		memset(p, (int)rng_below(r, 256), n);
		break;
	case 2:
		for (size_t i = 0; i < n; i++)
			p[i] = (uint8_t)("etaoin shrdlu"[rng_below(r, 13)]);
		break;
	default: /* one after the other */
		random_bytes(r, p, n / 2);
		memset(p + n / 2, 0, n - n / 2);
	}
}

static size_t skippable(struct rng *r, uint8_t *to)
{
	size_t n = rng_below(r, 3000);

	const uint32_t head[] = { ZSTD_MAGIC_SKIPPABLE_START + (uint32_t)rng_below(r, 16),
				  (uint32_t)n };

	memcpy(to, head,
	       sizeof(head)); /* little-endian, like all machines that ckptfs is built for */
	random_bytes(r, to + sizeof(head), n);
	return sizeof(head) + n;
}

static void make(struct rng *r, struct made *m, bool all_known)
{
	ZSTD_CCtx *c = ZSTD_createCCtx();
	uint8_t *content = malloc(MAX_CONTENT);

	*m = (struct made){ .p = malloc(MAX_STREAM), .frames = rng_below(r, MAX_FRAMES + 1) };
	REQUIRE(c && content && m->p);
	for (size_t i = 0; i < m->frames; i++) {
		static const size_t most[] = { 1, 300, 70000, MAX_CONTENT };
		size_t n = rng_below(r, most[rng_below(r, ARRAY_LEN(most))]), put;

		if (rng_chance(r, 5)) {
			n = 0;
			put = skippable(r, m->p + m->n);
		} else {
			m->unknown[i] = !all_known && rng_chance(r, 8);
			fill(r, content, n);
			(void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, rng_chance(r, 2));
			(void)ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, !m->unknown[i]);
			(void)ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel,
						     1 + (int)rng_below(r, 4));
			put = ZSTD_compress2(c, m->p + m->n, MAX_STREAM - m->n, content, n);
			REQUIRE(!ZSTD_isError(put));
		}
		m->n += put;
		m->begin[i + 1].stored = m->n;
		m->begin[i + 1].decoded = m->begin[i].decoded + n;
	}
	free(content);
	ZSTD_freeCCtx(c);
}

struct calls {
	const struct made *m;
	size_t next;
};

static void called(void *arg, struct zstd_place at)
{
	struct calls *c = arg;

	c->next++;
	ck_assert_uint_eq(at.stored, c->m->begin[c->next].stored);
	ck_assert_uint_eq(at.decoded, c->m->begin[c->next].decoded);
}

START_LOOP_TEST(whole_frames_before_a_byte_are_skipped, 60)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct made made;
	struct mem mem;
	struct blob b;

	make(&r, &made, false);
	mem_init(&mem, made.p, made.n);
	b = mem_blob(&mem, true);
	for (int k = 0; k < 40; k++) {
		uint64_t end = made.begin[made.frames].decoded;
		size_t from = rng_below(&r, made.frames + 1), to = from;
		size_t past = from + rng_below(&r, made.frames + 1 - from);
		uint64_t least = made.begin[from].decoded; /* callers want what is behind */
		uint64_t target = rng_chance(&r, 2) ? made.begin[past].decoded
						    : least + rng_below(&r, end + 2 - least);
		struct zstd_place at = made.begin[from];
		struct calls c = { &made, from };
		struct ckpt_err e = { 0 };
		int rc;

		while (to < made.frames && !made.unknown[to] &&
		       made.begin[to + 1].decoded <= target)
			to++;
		rc = zstd_frames_skip(&b, &at, target, called, &c, &e);
		ck_assert_int_eq(rc, to < made.frames && !made.unknown[to]);
		ck_assert_uint_eq(at.stored, made.begin[to].stored);
		ck_assert_uint_eq(at.decoded, made.begin[to].decoded);
		ck_assert_uint_eq(c.next, to);
	}
	mem_release(&mem);
	free(made.p);
}
END_TEST

/* A frame that is cut off is not skipped, wherever that is. */
START_LOOP_TEST(a_stream_that_is_cut_ends_at_a_whole_frame, 20)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct made made;

	make(&r, &made, true);
	for (int k = 0; k < 20; k++) {
		size_t n = rng_below(&r, made.n + 1), to = 0;
		struct zstd_place at = { 0, 0 };
		struct ckpt_err e = { 0 };
		struct mem mem;
		struct blob b;

		while (to < made.frames && made.begin[to + 1].stored <= n)
			to++;
		mem_init(&mem, made.p, n);
		b = mem_blob(&mem, true);
		ck_assert_int_eq(zstd_frames_skip(&b, &at, UINT64_MAX, NULL, NULL, &e), 0);
		ck_assert_uint_eq(at.stored, made.begin[to].stored);
		ck_assert_uint_eq(at.decoded, made.begin[to].decoded);
		mem_release(&mem);
	}
	free(made.p);
}
END_TEST

/* A size that the blocks cannot hold. */
START_TEST(a_size_too_large_is_not_believed)
{
	/* One raw block of a byte; the frame says 2^17 + 1 bytes, then 2^17. */
	uint8_t frame[] = { 0x28, 0xb5, 0x2f, 0xfd, 0xa0, 1, 0, 2, 0, 0x09, 0, 0, 'x' };
	struct zstd_place at = { 0, 0 };
	struct ckpt_err e = { 0 };
	struct mem mem;
	struct blob b;

	mem_init(&mem, frame, sizeof(frame));
	b = mem_blob(&mem, true);
	ck_assert_int_eq(zstd_frames_skip(&b, &at, UINT64_MAX, NULL, NULL, &e), 0);
	ck_assert_uint_eq(at.stored, 0);
	mem.p[5] = 0;
	ck_assert_int_eq(zstd_frames_skip(&b, &at, UINT64_MAX, NULL, NULL, &e), 0);
	ck_assert_uint_eq(at.stored, sizeof(frame));
	ck_assert_uint_eq(at.decoded, 1 << 17);
	mem_release(&mem);
}
END_TEST

START_TEST(a_failed_read_is_an_error)
{
	struct rng r = rng_new();
	struct made made = { 0 };
	struct mem mem;
	struct blob b;
	unsigned reads = 0;

	do {
		free(made.p);
		make(&r, &made, true);
	} while (made.frames < 3);
	mem_init(&mem, made.p, made.n);
	b = mem_blob(&mem, true);
	for (unsigned fail = 0;; fail++) {
		struct zstd_place at = { 0, 0 };
		struct ckpt_err e = { 0 };
		int rc;

		mem.fail = fail;
		mem.reads = 0;
		rc = zstd_frames_skip(&b, &at, UINT64_MAX, NULL, NULL, &e);
		reads = fail ? reads : mem.reads;
		if (fail && fail <= reads)
			ck_assert_int_eq(rc, -EIO);
		else
			ck_assert_int_eq(rc, 0);
		if (fail > reads)
			break;
	}
	mem_release(&mem);
	free(made.p);
}
END_TEST

SUITE(zstd_frames)

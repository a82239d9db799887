/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/codec_stream.h"
#include "coding_util.h"
#include "fault.h"
#include "source/blockcache_internal.h"
#include "suites.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <zstd.h>

/* A "file" in memory that counts what is read of it. */
struct ckpt_data {
	const uint8_t *bytes;
	size_t n;
	_Atomic uint64_t reads, read_bytes;
	_Atomic uint64_t fail; /* number of the read that fails, from 1; 0: none */
};

static int read_source(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e)
{
	struct ckpt_data *s = arg;

	if (++s->reads == s->fail)
		return err_set(e, EIO, "read of the test's own that fails");
	if (file != 7 || off + len > s->n)
		return err_set(e, EIO, "read of file %u at %llu outside", file,
			       (unsigned long long)off);
	s->read_bytes += len;
	memcpy(buf, s->bytes + off, len);
	return 0;
}

static struct blockcache *new_cache(struct ckpt_data *s, size_t max)
{
	struct block_source src = { .read = read_source, .arg = s };
	struct blockcache *c = blockcache_new(max, &src);

	REQUIRE(c);
	REQUIRE(blockcache_max(c) == max);
	return c;
}

/* Bytes that compress, every block another. */
static uint8_t *make_bytes(size_t n)
{
	uint8_t *p = malloc(n + 1);

	REQUIRE(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i % 251 + i / 4096 * 7 + (i >> 20) * 31);
	return p;
}

static void check_one(struct blockcache *c, const struct block_item *item, uint64_t index,
		      const uint8_t *want, size_t n)
{
	size_t from = (size_t)index << block_shift(item), len = from < n ? n - from : 0;
	struct block b;
	struct ckpt_err e = { 0 };
	void *pin = NULL;
	int rc = blockcache_get(c, item, index, 1, &b, &pin, &e);

	if (rc)
		ck_abort_msg("%s", e.msg);
	len = len < block_size(item) ? len : block_size(item);
	REQUIRE(b.len == len);
	REQUIRE(!len || !memcmp(b.data, want + from, len));
	blockcache_put(c, pin);
}

/* MiB number `index`. */
static void check_block(struct blockcache *c, const struct block_item *item, uint64_t index,
			const uint8_t *want, size_t n)
{
	uint64_t per = BLOCK_SIZE / block_size(item);

	for (uint64_t i = index * per; i < (index + 1) * per; i++)
		check_one(c, item, i, want, n);
}

#define MIB ((size_t)1 << 20)

/* ---- raw items ---- */

/* What a block is kept in takes more than a byte, and looking for it takes longer. */
START_TEST(small_blocks_are_no_more_than_the_memory_allows)
{
	const size_t n = 20000, max = 1 * MIB;
	autofree uint8_t *bytes = make_bytes(n);
	struct ckpt_data s = { .bytes = bytes, .n = n };
	struct blockcache *c = new_cache(&s, max);
	struct blockcache_counts counts;

	for (size_t i = 0; i < n; i++)
		check_one(c, &(struct block_item){ .offset = i, .length = 1, .file = 7 }, 0,
			  bytes + i, 1);
	blockcache_counts(c, &counts);
	ck_assert_uint_ge(counts.evictions, n - max / (2 * sizeof(struct entry)));
	ck_assert_uint_ge(counts.bytes, 1000);
	blockcache_free(c);
}
END_TEST

START_TEST(blocks_of_raw_items_are_read_once_and_kept)
{
	size_t n = 5 * MIB + 100;
	autofree uint8_t *bytes = make_bytes(n);
	struct ckpt_data s = { .bytes = bytes, .n = n };
	struct block_item item = { .offset = 40, .length = n - 50, .file = 7 };
	struct blockcache *c = new_cache(&s, 8 * MIB);

	for (int round = 0; round < 2; round++)
		for (uint64_t i = 8; i-- > 0;)
			check_block(c, &item, i, bytes + 40, n - 50);
	ck_assert_uint_eq(s.read_bytes, n - 50);
	blockcache_put(c, NULL);
	blockcache_free(c);
}
END_TEST

START_TEST(the_longest_unused_block_goes_first)
{
	size_t n = 8 * MIB;
	autofree uint8_t *bytes = make_bytes(n);
	struct ckpt_data s = { .bytes = bytes, .n = n };
	struct block_item item = { .length = n, .file = 7 };
	struct blockcache *c = new_cache(&s, 4 * MIB);
	struct blockcache_counts counts;

	for (uint64_t i = 0; i < 4; i++)
		check_block(c, &item, i, bytes, n);
	check_block(c, &item, 0, bytes, n); /* used again */
	check_block(c, &item, 4, bytes, n); /* block 1 goes */
	blockcache_counts(c, &counts);
	ck_assert_uint_eq(counts.misses, 5);
	ck_assert_uint_eq(counts.hits, 1);
	ck_assert_uint_eq(counts.evictions, 1);
	ck_assert_uint_eq(counts.bytes, 4 * MIB);
	s.read_bytes = 0;
	check_block(c, &item, 0, bytes, n);
	check_block(c, &item, 2, bytes, n);
	check_block(c, &item, 3, bytes, n);
	check_block(c, &item, 4, bytes, n);
	ck_assert_uint_eq(s.read_bytes, 0);
	check_block(c, &item, 1, bytes, n);
	ck_assert_uint_eq(s.read_bytes, MIB);
	blockcache_free(c);
}
END_TEST

START_LOOP_TEST(pinned_blocks_stay_whatever_the_bound, 4)
{
	size_t n = 8 * MIB;
	autofree uint8_t *bytes = make_bytes(n);
	struct ckpt_data s = { .bytes = bytes, .n = n };
	struct block_item item = { .length = n, .file = 7 };
	struct blockcache *c = new_cache(&s, _i * MIB);
	struct block b[8];
	struct ckpt_err e = { 0 };
	void *pins[8], *again;

	for (uint64_t i = 0; i < 8; i++)
		ck_assert_int_eq(blockcache_get(c, &item, i, 1, &b[i], &pins[i], &e), 0);
	for (uint64_t i = 0; i < 8; i++) {
		struct block same;

		ck_assert(!memcmp(b[i].data, bytes + i * MIB, MIB));
		ck_assert_int_eq(blockcache_get(c, &item, i, 1, &same, &again, &e), 0);
		ck_assert_ptr_eq(same.data, b[i].data);
		blockcache_put(c, again);
	}
	ck_assert_uint_eq(s.read_bytes, n);
	for (int i = 0; i < 8; i++)
		blockcache_put(c, pins[i]);
	s.read_bytes = 0;
	for (uint64_t i = 0; i < 8; i++)
		check_block(c, &item, i, bytes, n);
	ck_assert_uint_ge(s.read_bytes, n - (size_t)_i * MIB);
	blockcache_free(c);
}
END_TEST

START_LOOP_TEST(memory_stays_under_the_bound, 2)
{
	size_t n = 40 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data raw = { .bytes = bytes, .n = n }, z = { .bytes = packed, .n = packed_n };
	struct ckpt_data *s = _i ? &z : &raw;
	struct block_item item = { .length = s->n, .file = 7, .coding = zstd_layers((unsigned)_i) };
	int64_t before = fault_live();
	struct blockcache *c = new_cache(s, 6 * MIB);

	fault_peak_reset();
	for (uint64_t i = 0; i < 40; i++)
		check_block(c, &item, i, bytes, n);
	check_block(c, &item, 3, bytes, n);
	/* Above the bound there may be one block on its way and some buffers for reuse, besides
	 * tables and decoders. */
	ck_assert_int_le(fault_peak() - before, (int64_t)(8 * MIB + 600000));
	ck_assert_int_gt(fault_peak() - before, (int64_t)(5 * MIB));
	blockcache_free(c);
	ck_assert_int_eq(fault_live(), before);
}
END_TEST

/* Blocks of a large cache share huge pages, which are reused and given back. */
START_TEST(a_large_cache_stays_under_its_bound_too)
{
	enum {
		BOUND = 24,
		PAGE = 2 * MIB,
		MOST = BOUND / 2 + 3
	}; /* in use, and some that are not */
	size_t n = 80 * MIB, packed_n, pages = 0;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, MIB, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, BOUND * MIB);
	uintptr_t seen[MOST] = { 0 }, page = 0;

	for (uint64_t k = 0; k < 2 * n / DECODED_SIZE; k++) {
		uint64_t i = k * 7 % (n / DECODED_SIZE); /* not like a reader in order */
		struct ckpt_err e = { 0 };
		struct block b;
		void *pin;
		size_t p = 0;

		REQUIRE(!blockcache_get(c, &item, i, 1, &b, &pin, &e));
		REQUIRE(b.len == DECODED_SIZE &&
			!memcmp(b.data, bytes + i * DECODED_SIZE, DECODED_SIZE));
		page = (uintptr_t)b.data / PAGE;
		blockcache_put(c, pin);
		while (p < pages && seen[p] != page)
			p++;
		REQUIRE(p < MOST);
		seen[p] = page;
		pages += p == pages;
	}
	blockcache_clear(c);
	for (size_t p = 0; p < pages; p++)
		ck_assert(msync((void *)(seen[p] * PAGE), 1, MS_ASYNC) && errno == ENOMEM);
	check_one(c, &item, 3, bytes, n);
	blockcache_free(c);
}
END_TEST

static int compute_block(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
			 struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	memset(buf, (int)(file + off / DECODED_SIZE), len);
	return 0;
}

static void read_in_order(struct blockcache *c, const struct block_item *item)
{
	for (uint64_t i = 0; i < item->length / DECODED_SIZE; i++) {
		struct ckpt_err e = { 0 };
		struct block b;
		void *pin;

		REQUIRE(!blockcache_get(c, item, i, 1, &b, &pin, &e));
		ck_assert_uint_eq(b.data[5], (uint8_t)(item->file + i));
		blockcache_put(c, pin);
	}
}

/* One item after another; blocks that are costly to compute stay, as far as the bound allows. */
START_LOOP_TEST(what_a_reader_in_order_has_left_goes_unless_it_is_dear, 2)
{
	struct block_source src = { .compute = compute_block };
	struct blockcache *c = blockcache_new(256 * MIB, &src);
	struct blockcache_counts n;
	uint64_t all = 0;

	REQUIRE(c);
	for (uint32_t i = 0; i < 24; i++) { /* each twice */
		struct block_item item = { .offset = _i ? BLOCK_DEAR : 0,
					   .length = (i % 3 ? 8 : 20) * MIB,
					   .file = i % 12,
					   .coding = CODING_COMPUTED(DECODED_SHIFT) };

		read_in_order(c, &item);
		all += item.length;
	}
	blockcache_counts(c, &n);
	ck_assert_uint_eq(n.decoded, _i ? all / 2 : all);
	if (_i)
		ck_assert_uint_eq(n.bytes, all / 2);
	else
		ck_assert_uint_le(n.bytes, 24 * MIB);
	blockcache_free(c);
}
END_TEST

START_TEST(without_memory_for_a_huge_page_reading_fails)
{
	size_t n = MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, 64 * MIB);
	struct ckpt_err e = { 0 };
	struct block b;
	void *pin;
	int rc;

	fault_on(FAULT_MAP, 1, UINT64_MAX);
	rc = blockcache_get(c, &item, 0, 1, &b, &pin, &e);
	(void)fault_off();
	ck_assert_int_eq(rc, -ENOMEM);
	check_one(c, &item, 0, bytes, n);
	blockcache_free(c);
}
END_TEST

/* ---- compressed items ---- */

static const struct {
	size_t n, frame;
	uint32_t layers;
} shapes[] = {
	{ 0, 0, 1 },	       { 1, 0, 1 },
	{ 1000, 0, 2 },	       { MIB - 1, 0, 1 },
	{ MIB, 0, 1 },	       { MIB + 1, 0, 1 },
	{ 3 * MIB, MIB, 1 },   { 3 * MIB, 70000, 1 },
	{ 3 * MIB + 5, 0, 2 }, { 2 * MIB, 300000, 3 },
};

START_LOOP_TEST(compressed_items_are_decoded_in_any_order, ARRAY_LEN(shapes))
{
	size_t n = shapes[_i].n, packed_n = n;
	autofree uint8_t *bytes = make_bytes(n), *packed = make_bytes(n);
	struct rng r = rng_new();
	struct ckpt_data s = { 0 };
	struct block_item item = { .offset = 0,
				   .file = 7,
				   .coding = zstd_layers(shapes[_i].layers) };
	uint64_t blocks = n / MIB + 3;
	struct blockcache *c;

	for (uint32_t l = 0; l < shapes[_i].layers; l++) {
		uint8_t *next = zstd_pack(packed, packed_n, shapes[_i].frame, &packed_n);

		free(packed);
		packed = next;
	}
	s.bytes = packed;
	s.n = item.length = packed_n;
	c = new_cache(&s, MIB + MIB / 2);
	for (uint64_t i = 0; i < blocks; i++)
		check_block(c, &item, i, bytes, n);
	ck_assert_uint_eq(s.read_bytes, packed_n); /* once, from front to back */
	for (uint64_t i = blocks; i-- > 0;)
		check_block(c, &item, i, bytes, n);
	for (int k = 0; k < 20; k++)
		check_block(c, &item, rng_below(&r, blocks), bytes, n);
	blockcache_free(c);
}
END_TEST

START_LOOP_TEST(reads_may_begin_and_end_anywhere, 2)
{
	size_t n = 2 * MIB + 5000, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n),
			 *out = malloc(n + 100);
	struct rng r = rng_new();
	struct ckpt_data raw = { .bytes = bytes, .n = n }, z = { .bytes = packed, .n = packed_n };
	struct ckpt_data *s = _i ? &z : &raw;
	struct block_item item = { .length = s->n, .file = 7, .coding = zstd_layers((unsigned)_i) };
	struct blockcache *c = new_cache(s, 8 * MIB);

	for (int i = 0; i < 300; i++) {
		uint64_t off = i < 8 ? (uint64_t)(i / 2) * MIB - i % 2 : rng_below(&r, n + 100);
		size_t len = i < 8 ? n : rng_below(&r, rng_chance(&r, 50) ? 1000 : n), want;
		struct ckpt_err e = { 0 };

		off = i == 1 ? n : off;
		want = off < n ? (len < n - off ? len : n - off) : 0;
		REQUIRE(blockcache_read(c, &item, off, out, len, &e) == (int64_t)want);
		REQUIRE(!want || !memcmp(out, bytes + off, want));
	}
	blockcache_free(c);
}
END_TEST

START_TEST(more_items_than_decoders_are_all_right)
{
	enum { ITEMS = 30 };
	size_t n = 2 * MIB + 10, at = 0;
	autofree uint8_t *all = malloc(ITEMS * MIB), *bytes = make_bytes(n);
	struct block_item items[ITEMS];
	struct rng r = rng_new();
	struct ckpt_data s = { .bytes = all };
	struct blockcache *c;

	ck_assert_ptr_nonnull(all);
	for (int i = 0; i < ITEMS; i++) {
		size_t packed_n;
		uint8_t *packed;

		bytes[0] = bytes[MIB] = bytes[n - 1] = (uint8_t)i;
		packed = zstd_pack(bytes, n, 0, &packed_n);
		ck_assert_uint_lt(packed_n, MIB);
		memcpy(all + at, packed, packed_n);
		items[i] = (struct block_item){ at, packed_n, 7, 1 };
		at += packed_n;
		free(packed);
	}
	s.n = at;
	c = new_cache(&s, 5 * MIB);
	for (int k = 0; k < 400; k++) {
		uint64_t i = rng_below(&r, ITEMS);

		bytes[0] = bytes[MIB] = bytes[n - 1] = (uint8_t)i;
		check_block(c, &items[i], rng_below(&r, 4), bytes, n);
	}
	blockcache_free(c);
}
END_TEST

START_TEST(items_that_differ_in_anything_are_kept_apart)
{
	size_t n = 100, packed_n, n2;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	autofree uint8_t *twice = zstd_pack(packed, packed_n, 0, &n2);
	struct ckpt_data s = { .bytes = twice, .n = n2 };
	struct blockcache *c = new_cache(&s, MIB);

	check_block(c, &(struct block_item){ 0, n2, 7, 0 }, 0, twice, n2);
	check_block(c, &(struct block_item){ 0, n2, 7, 1 }, 0, packed, packed_n);
	check_block(c, &(struct block_item){ 0, n2, 7, zstd_layers(2) }, 0, bytes, n);
	check_block(c, &(struct block_item){ 0, 3, 7, 0 }, 0, twice, 3);
	check_block(c, &(struct block_item){ 1, 3, 7, 0 }, 0, twice + 1, 3);
	check_block(c, &(struct block_item){ 0, n2, 7, 0 }, 0, twice, n2);
	blockcache_free(c);
}
END_TEST

/* ---- frames ---- */

static uint64_t decoded_by(struct blockcache *c)
{
	struct blockcache_counts counts;

	blockcache_counts(c, &counts);
	return counts.decoded;
}

START_TEST(a_block_costs_the_frames_it_lies_in)
{
	size_t n = 16 * MIB, packed_n, at = 0;
	autofree uint8_t *bytes = make_bytes(n), *packed = malloc(ZSTD_compressBound(n) * 2);
	struct ckpt_data s = { .bytes = packed };
	struct block_item item = { .file = 7, .coding = 1 };
	struct blockcache *c;
	struct rng r = rng_new();

	ck_assert_ptr_nonnull(packed);
	for (size_t i = 0; i < n; i += DECODED_SIZE) { /* with content sizes, as zstd writes them */
		packed_n = ZSTD_compress(packed + at, 2 * n, bytes + i, DECODED_SIZE, 1);
		ck_assert(!ZSTD_isError(packed_n));
		at += packed_n;
	}
	s.n = item.length = at;
	c = new_cache(&s, 64 * MIB);
	for (unsigned k = 1; k <= 20; k++) {
		uint64_t before = decoded_by(c), index = rng_below(&r, n / DECODED_SIZE);

		check_one(c, &item, index, bytes, n);
		ck_assert_uint_le(decoded_by(c) - before, DECODED_SIZE);
	}
	for (uint64_t i = n / DECODED_SIZE; i-- > 0;) /* backwards too */
		check_one(c, &item, i, bytes, n);
	ck_assert_uint_eq(decoded_by(c), n);
	blockcache_free(c);
}
END_TEST

/* Frames that do not say how long they are: decoding one block after another finds out, and that is
 * remembered. */
START_TEST(frames_that_were_seen_are_found_again)
{
	size_t n = 16 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, MIB / 4, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, MIB);
	uint64_t before;

	for (uint64_t i = 0; i < n / DECODED_SIZE; i++)
		check_one(c, &item, i, bytes, n);
	ck_assert_uint_eq(decoded_by(c), n);
	before = decoded_by(c);
	for (uint64_t i = n / DECODED_SIZE; i-- > 0;)
		check_one(c, &item, i, bytes, n);
	ck_assert_uint_le(decoded_by(c) - before, n);
	blockcache_free(c);
}
END_TEST

/* ---- other codecs: they can only be decoded from the beginning ---- */

static const uint32_t other_codings[] = {
	CODEC_GZIP,
	CODEC_ZLIB,
	CODEC_BLOSC,
	CODEC_ZSTD << 4 | CODEC_CRC32C,
	CODEC_CRC32C << 8 | CODEC_BLOSC << 4 | CODEC_GZIP,
};

struct other_reader {
	struct blockcache *c;
	const struct block_item *item;
	const uint8_t *bytes;
	size_t n;
	uint64_t seed;
};

static void *read_others(void *arg)
{
	const struct other_reader *x = arg;
	uint64_t blocks = x->n / DECODED_SIZE + 2;
	struct rng r = { x->seed };

	for (int i = 0; i < 100; i++)
		check_one(x->c, x->item, rng_below(&r, blocks), x->bytes, x->n);
	return NULL;
}

START_LOOP_TEST(any_coding_is_decoded_once_however_many_read, ARRAY_LEN(other_codings))
{
	enum { READERS = 8 };
	struct rng r = rng_new();
	size_t n = 6 * MIB + rng_below(&r, 3) * DECODED_SIZE / 2, packed_n;
	autofree uint8_t *bytes = make_bytes(n);
	autofree uint8_t *packed = coding_encode(&r, bytes, n, other_codings[_i], &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = other_codings[_i] };
	struct blockcache *c = new_cache(&s, 64 * MIB);
	struct other_reader readers[READERS];
	pthread_t threads[READERS];

	for (int i = 0; i < READERS; i++) {
		readers[i] = (struct other_reader){ c, &item, bytes, n, rng_below(&r, UINT64_MAX) };
		REQUIRE(!pthread_create(&threads[i], NULL, read_others, &readers[i]));
	}
	for (int i = 0; i < READERS; i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert_uint_le(decoded_by(c), n);
	blockcache_free(c);
}
END_TEST

/* Read in any order with room for only a few blocks, then from the front once more. */
START_LOOP_TEST(any_coding_is_read_at_random, ARRAY_LEN(other_codings))
{
	struct rng r = rng_new();
	size_t n = 4 * MIB + rng_below(&r, MIB), packed_n;
	autofree uint8_t *bytes = make_bytes(n);
	autofree uint8_t *packed = coding_encode(&r, bytes, n, other_codings[_i], &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = other_codings[_i] };
	struct blockcache *c = new_cache(&s, MIB);
	uint64_t before;

	for (int i = 0; i < 30; i++)
		check_one(c, &item, rng_below(&r, n / DECODED_SIZE + 2), bytes, n);
	blockcache_clear(c);
	before = decoded_by(c);
	for (uint64_t i = 0; i <= n / DECODED_SIZE; i++)
		check_one(c, &item, i, bytes, n);
	ck_assert_uint_eq(decoded_by(c) - before, n);
	blockcache_free(c);
}
END_TEST

/* The blocks before the damage can be read, the others cannot, and asking again reads nothing. */
START_TEST(a_wrong_checksum_is_known_from_then_on)
{
	struct rng r = rng_new();
	uint32_t coding = CODEC_ZSTD << 4 | CODEC_CRC32C;
	size_t n = 3 * DECODED_SIZE, packed_n;
	autofree uint8_t *bytes = make_bytes(n);
	autofree uint8_t *packed = coding_encode(&r, bytes, n, coding, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = coding };
	struct blockcache *c = new_cache(&s, 16 * MIB);
	struct ckpt_err e = { 0 };
	struct block b;
	uint64_t reads;
	void *pin;

	packed[packed_n - 1] ^= 1;
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(blockcache_get(c, &item, 2, 1, &b, &pin, &e), -ERR_CORRUPT);
		ck_assert_int_eq(strncmp(e.msg, "crc32c: the checksum of the bytes is ", 23), 0);
		if (i)
			ck_assert_uint_eq(s.reads, reads);
		reads = s.reads;
	}
	blockcache_free(c);
}
END_TEST

START_TEST(many_items_read_in_turns_are_decoded_once)
{
	enum { ITEMS = 40 }; /* more than the decoders that are always kept */
	size_t n = 3 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n), *all;
	struct ckpt_data s = { 0 };
	struct block_item items[ITEMS];
	struct blockcache *c;

	all = malloc(ITEMS * packed_n);
	ck_assert_ptr_nonnull(all);
	for (uint64_t i = 0; i < ITEMS; i++) {
		memcpy(all + i * packed_n, packed, packed_n);
		items[i] = (struct block_item){ i * packed_n, packed_n, 7, 1 };
	}
	s.bytes = all;
	s.n = ITEMS * packed_n;
	c = new_cache(&s, 256 * MIB);
	for (uint64_t index = 0; index < n / DECODED_SIZE; index++)
		for (int i = 0; i < ITEMS; i++)
			check_one(c, &items[i], index, bytes, n);
	ck_assert_uint_eq(decoded_by(c), ITEMS * n);
	blockcache_free(c);
}
END_TEST

START_TEST(places_far_apart_are_read_side_by_side)
{
	enum { READERS = 4 };
	size_t n = 16 * MIB, packed_n, blocks = n / DECODED_SIZE;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, 2 * MIB); /* holds an eighth */

	/* The furthest part comes first, so each of the following ones has to begin again, once. */
	for (uint64_t i = 0; i < blocks / READERS; i++)
		for (uint64_t k = READERS; k-- > 0;)
			check_one(c, &item, k * blocks / READERS + i, bytes, n);
	ck_assert_uint_le(decoded_by(c), n / 2 * 5);
	blockcache_free(c);
}
END_TEST

static const struct {
	size_t stretch; /* 0: one frame; 1: frames of random sizes */
	int sizes;	/* 0, 1, 2: no frame, most, all say how long they are */
	size_t cache;
} random_items[] = {
	{ 0, 0, MIB / 2 }, { 0, 1, 4 * MIB },  { 1, 0, MIB },	   { 1, 1, MIB },
	{ 1, 2, 0 },	   { 1, 2, 64 * MIB }, { 1, 1, 16 * MIB },
};

/* n bytes as frames of any size, with empty and skippable ones between them. */
static uint8_t *random_frames(struct rng *r, const uint8_t *p, size_t n, int way, size_t *ret_n)
{
	size_t cap = 4 * n + 100000, at = 0, done = 0;
	uint8_t *out = malloc(cap);
	ZSTD_CCtx *x = ZSTD_createCCtx();

	REQUIRE(out && x);
	while (done < n) {
		static const size_t sizes[] = { 1, 1000, 100000, DECODED_SIZE, 700000 };
		size_t rc, len = random_items[way].stretch
					 ? rng_below(r, 1 + sizes[rng_below(r, 5)])
					 : n;
		int says = random_items[way].sizes;

		len = len < n - done ? len : n - done;
		(void)ZSTD_CCtx_setParameter(x, ZSTD_c_contentSizeFlag,
					     says == 2 || (says && rng_chance(r, 80)));
		(void)ZSTD_CCtx_setParameter(x, ZSTD_c_checksumFlag, rng_chance(r, 50));
		rc = ZSTD_compress2(x, out + at, cap - at, p + done, len);
		REQUIRE(!ZSTD_isError(rc));
		at += rc;
		done += len;
		if (rng_chance(r, 10)) {
			memcpy(out + at, "\x53\x2a\x4d\x18\3\0\0\0xyz", 11);
			at += 11;
		}
	}
	(void)ZSTD_freeCCtx(x);
	*ret_n = at;
	return out;
}

struct stroll {
	struct blockcache *c;
	const struct block_item *item;
	const uint8_t *bytes;
	size_t n;
	uint64_t seed;
	bool ahead;
};

/* Reads as readers do: in order for a while, then a jump, backwards, small pieces. */
static void *stroll(void *arg)
{
	struct stroll *w = arg;
	struct rng r = { w->seed };
	autofree uint8_t *out = malloc(MIB);
	uint64_t at = 0;

	for (int k = 0; out && k < 60; k++) {
		size_t len = rng_below(&r, 4) ? 1 + rng_below(&r, 300000) : 1 + rng_below(&r, 5000);
		size_t want;
		struct ckpt_err e = { 0 };

		if (rng_chance(&r, 15))
			at = rng_below(&r, w->n + 1000);
		else if (rng_chance(&r, 10))
			at -= min_u64(at, len + rng_below(&r, 300000));
		want = at < w->n ? (len < w->n - at ? len : w->n - at) : 0;
		if (blockcache_read(w->c, w->item, at, out, len, &e) != (int64_t)want ||
		    (want && memcmp(out, w->bytes + at, want) != 0))
			return arg;
		if (w->ahead)
			blockcache_ahead(w->c);
		at += len;
	}
	return out ? NULL : arg;
}

START_LOOP_TEST(whatever_the_frames_and_the_readers_bytes_are_right, ARRAY_LEN(random_items))
{
	enum { READERS = 6 };
	struct rng r = rng_new();
	size_t n = 3 * MIB + rng_below(&r, 3 * MIB), packed_n;
	autofree uint8_t *bytes = make_bytes(n),
			 *packed = random_frames(&r, bytes, n, _i, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, random_items[_i].cache);
	struct stroll w[READERS];
	pthread_t threads[READERS];

	for (unsigned i = 0; i < READERS; i++) {
		w[i] = (struct stroll){ c, &item, bytes, n, rng_u64(&r), i % 2 };
		REQUIRE(!pthread_create(&threads[i], NULL, stroll, &w[i]));
	}
	for (unsigned i = 0; i < READERS; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	blockcache_free(c);
}
END_TEST

START_TEST(what_is_asked_for_next_may_be_made_before)
{
	size_t n = 16 * MIB, packed_n, blocks = n / DECODED_SIZE;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, 32 * MIB);
	struct blockcache_counts counts;

	for (uint64_t i = 0; i < 4; i++) /* too few to tell */
		check_one(c, &item, i, bytes, n);
	blockcache_ahead(c);
	ck_assert_uint_eq(decoded_by(c), 4 * DECODED_SIZE);
	for (uint64_t i = 4; i < blocks; i++) {
		check_one(c, &item, i, bytes, n);
		blockcache_ahead(c);
	}
	blockcache_counts(c, &counts);
	ck_assert_uint_eq(counts.decoded, n);
	ck_assert_uint_lt(counts.misses, 12);
	blockcache_free(c);
}
END_TEST

/* ---- large windows: the decoder's states (see blockcache_decode.c) ---- */

/* One frame whose window is 1 << window_log, however little it holds. */
static uint8_t *pack_window(const uint8_t *p, size_t n, int window_log, size_t *ret_n)
{
	ZSTD_CCtx *x = ZSTD_createCCtx();
	size_t cap = ZSTD_compressBound(n) + 1024, rc;
	ZSTD_outBuffer out = { malloc(cap), cap, 0 };
	ZSTD_inBuffer in = { p, n / 2, 0 };

	REQUIRE(x && out.dst);
	REQUIRE(!ZSTD_isError(ZSTD_CCtx_setParameter(x, ZSTD_c_compressionLevel, 1)));
	REQUIRE(!ZSTD_isError(ZSTD_CCtx_setParameter(x, ZSTD_c_windowLog, window_log)));
	REQUIRE(!ZSTD_isError(ZSTD_compressStream2(x, &out, &in, ZSTD_e_flush)));
	in.size = n; /* zstd can no longer know how much comes */
	do
		rc = ZSTD_compressStream2(x, &out, &in, ZSTD_e_end);
	while (rc && !ZSTD_isError(rc));
	REQUIRE(!rc);
	(void)ZSTD_freeCCtx(x);
	*ret_n = out.pos;
	return out.dst;
}

/* Bytes that do not compress. */
static uint8_t *make_noise(size_t n)
{
	struct rng r = rng_new();
	uint8_t *p = malloc(n);

	REQUIRE(p);
	random_bytes(&r, p, n);
	return p;
}

enum { WINDOWS = 8 }; /* from 1 MiB on: 2^20 to 2^27 */

/* _i: the windows of the first layer and of the second, if there is one. */
START_FEW_TEST(items_of_any_windows_are_decoded_again_and_again, WINDOWS *WINDOWS + WINDOWS, 6)
{
	size_t n = 2 * DECODED_SIZE + 1000, inner_n, packed_n;
	int first = 20 + _i % WINDOWS, second = 20 + _i / WINDOWS;
	bool twice = _i / WINDOWS < WINDOWS;
	autofree uint8_t *bytes = make_noise(n), *inner = pack_window(bytes, n, first, &inner_n),
			 *packed = pack_window(inner, inner_n, twice ? second : 27, &packed_n);
	struct ckpt_data s = { .bytes = twice ? packed : inner, .n = twice ? packed_n : inner_n };
	struct block_item item = { .length = s.n, .file = 7, .coding = zstd_layers(twice ? 2 : 1) };
	struct blockcache *c = new_cache(&s, 0); /* every block is let go at once */

	for (int round = 0; round < 2; round++) {
		for (uint64_t i = 0; i < 4; i++)
			check_one(c, &item, i, bytes, n);
		for (uint64_t i = 4; i-- > 0;)
			check_one(c, &item, i, bytes, n);
		check_one(c, &item, 0, bytes, n);
	}
	ck_assert_int_eq(c->large != NULL, first > 23 || (twice && second > 23));
	blockcache_free(c);
}
END_TEST

enum { SMALL, LARGE, TWICE, MIXED, CUT, RAW, KINDS, CLEAR };

/* 2 MiB and 1000 bytes, 9 blocks, as items of all kinds in one file. */
struct kinds {
	uint8_t *bytes, *file;
	size_t n;
	struct block_item items[KINDS];
	struct ckpt_data data;
	struct blockcache *c;
	char seen[64]; /* which decoders there were at each read: see states() */
};

/* A letter for each decoder: b busy, i idle; B, I: large ones. */
static void states(struct blockcache *c, char ret[static 16])
{
	size_t n = 0;

	for (const char *p = "BIbi"; *p; p++)
		for (const struct decoder *d = c->decoders; d && n < 15; d = d->next_one)
			if (*p == "ibIB"[2 * d->large + d->busy])
				ret[n++] = *p;
	ret[n] = 0;
}

static int read_and_look(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
			 struct ckpt_err *e)
{
	struct kinds *k = arg;
	char now[16];
	size_t n = strlen(k->seen), m;

	states(k->c, now);
	m = strlen(now);
	if (n < m || strcmp(k->seen + n - m, now) != 0) /* not the same as before */
		(void)snprintf(k->seen + n, sizeof(k->seen) - n, n ? " %s" : "%s", now);
	return read_source(&k->data, file, buf, len, off, e);
}

static void add_kind(struct kinds *k, int kind, const uint8_t *p, size_t n, uint32_t layers)
{
	size_t at = k->data.n;

	k->file = realloc(k->file, at + n);
	REQUIRE(k->file);
	memcpy(k->file + at, p, n);
	k->items[kind] = (struct block_item){ at, n, 7, zstd_layers(layers) };
	k->data.n = at + n;
	k->data.bytes = k->file;
}

static void kinds_init(struct kinds *k, int (*read)(void *arg, uint32_t file, void *buf, size_t len,
						    uint64_t off, struct ckpt_err *e))
{
	struct block_source src = { .read = read, .arg = k };
	size_t n = 8 * DECODED_SIZE + 1000, half = 4 * DECODED_SIZE, small_n, large_n, twice_n;
	autofree uint8_t *bytes = make_noise(n), *small = pack_window(bytes, n, 20, &small_n),
			 *large = pack_window(bytes, n, 26, &large_n),
			 *twice = pack_window(large, large_n, 25, &twice_n), *mixed = NULL;

	*k = (struct kinds){ .n = n };
	add_kind(k, SMALL, small, small_n, 1);
	add_kind(k, LARGE, large, large_n, 1);
	add_kind(k, TWICE, twice, twice_n, 2);
	add_kind(k, CUT, large, large_n - 100, 1);
	add_kind(k, RAW, bytes, n, 0);
	/* One that turns out to be large in the middle. */
	free(small);
	free(large);
	small = pack_window(bytes, half, 20, &small_n);
	large = pack_window(bytes + half, n - half, 25, &large_n);
	mixed = malloc(small_n + large_n);
	REQUIRE(mixed);
	memcpy(mixed, small, small_n);
	memcpy(mixed + small_n, large, large_n);
	add_kind(k, MIXED, mixed, small_n + large_n, 1);
	k->bytes = steal_ptr(&bytes);
	k->c = blockcache_new(0, &src); /* every block is let go at once */
	REQUIRE(k->c);
}

static void kinds_release(struct kinds *k)
{
	blockcache_free(k->c);
	free(k->bytes);
	free(k->file);
}

/*
 * Every transition in the diagram of blockcache_decode.c, as readers see it. `seen` and `after`
 * have a letter for each decoder, see states(); "b B": first a small one was at work, then a large
 * one. "": there was none, or nothing was read.
 */
static const struct transition {
	int kind;  /* the item of which a block is read; CLEAR: blockcache_clear */
	int block; /* 9: behind the end */
	bool fails;
	const char *seen, *after;
	const char *what;
} transitions[] = {
	{ SMALL, 0, false, "b", "i", "none to busy, and idle" },
	{ SMALL, 1, false, "b", "i", "idle to busy: goes on" },
	{ SMALL, 0, false, "b", "i", "idle to busy: begins at a frame" },
	{ SMALL, 7, false, "i b", "i", "idle to busy: frames are looked for first" },
	{ SMALL, 0, false, "bi", "ii", "none to busy, as the idle one is far ahead" },
	{ SMALL, 1, true, "bi", "i", "busy to gone: a read failed" },
	{ SMALL, 8, false, "", "", "busy to gone: the item's end" },
	{ SMALL, 9, false, "", "", "what is behind the end needs nobody" },
	{ RAW, 2, false, "b", "", "a raw item's decoder makes one block" },
	{ RAW, 2, true, "b", "", "or none" },
	{ SMALL, 0, false, "b", "i", "" },
	{ CLEAR, 0, false, "", "", "idle to gone: memory" },
	/* Small decoders of large items. */
	{ LARGE, 0, false, "b B", "I", "small, busy to gone: the window; none to large, busy" },
	{ LARGE, 1, false, "B", "I", "large: goes on" },
	{ LARGE, 0, false, "B", "I", "large: begins at a frame, and is large still" },
	{ LARGE, 7, false, "I B", "I", "large: frames are looked for first" },
	{ LARGE, 0, false, "B", "I", "large: begins at a frame although that is far" },
	{ LARGE, 1, true, "B", "", "large, busy to gone: a read failed" },
	{ LARGE, 0, false, "B", "I", "the item is known to be large" },
	{ TWICE, 0, false, "Ib B", "I", "large: moves to an item of two layers" },
	{ TWICE, 2, false, "B", "I", "large, two layers: goes on" },
	{ TWICE, 0, false, "B", "I", "large, two layers: begins again, and is large still" },
	{ LARGE, 0, false, "B", "I", "large: moves back to one layer" },
	{ TWICE, 3, true, "B", "", "large, busy to gone: after a move" },
	{ TWICE, 8, false, "B", "", "large, busy to gone: the item's end" },
	{ TWICE, 1, false, "B", "I", "" },
	{ CLEAR, 0, false, "", "", "large, idle to gone: memory" },
	{ CUT, 8, false, "b B", "", "large, busy to gone: damage" },
	{ CUT, 8, false, "", "", "which is not looked for again" },
	{ CUT, 2, false, "B", "I", "and what is before it can be had" },
	{ SMALL, 0, false, "Ib", "Ii", "a small one beside the large one" },
	{ CUT, 3, false, "Bi", "Ii", "and the large one beside a small one" },
	{ CLEAR, 0, false, "", "", "" },
	/* Small decoders of an item that turns out to be large. */
	{ MIXED, 0, false, "b", "i", "the first window is small" },
	{ MIXED, 5, false, "i b B", "I", "small, idle to busy to gone: the second is not" },
	{ MIXED, 0, false, "B", "I", "" },
	{ CLEAR, 0, false, "", "", "" },
};

static void run_transition(struct kinds *k, const struct transition *t)
{
	const struct block_item *item;
	struct ckpt_err e = { 0 };
	struct block b;
	void *pin = NULL;
	size_t from;
	int rc;

	if (t->kind == CLEAR) {
		blockcache_clear(k->c);
		return;
	}
	item = &k->items[t->kind];
	k->data.fail = t->fails ? k->data.reads + 1 : 0;
	rc = blockcache_get(k->c, item, (uint64_t)t->block, 1, &b, &pin, &e);
	k->data.fail = 0;
	if (t->fails || (t->kind == CUT && t->block == 8)) {
		REQUIRE(rc == (t->fails ? -EIO : -EBADMSG));
		return;
	}
	from = (size_t)t->block << block_shift(item);
	REQUIRE(!rc);
	REQUIRE(b.len == min_u64(block_size(item), k->n - min_u64(from, k->n)));
	REQUIRE(!b.len || !memcmp(b.data, k->bytes + from, b.len));
	blockcache_put(k->c, pin);
}

START_TEST(a_decoder_goes_from_state_to_state)
{
	struct kinds k;

	kinds_init(&k, read_and_look);
	for (size_t i = 0; i < ARRAY_LEN(transitions); i++) {
		const struct transition *t = &transitions[i];
		char after[16];

		k.seen[0] = 0;
		run_transition(&k, t);
		states(k.c, after);
		if (strcmp(k.seen, t->seen) != 0 || strcmp(after, t->after) != 0)
			ck_abort_msg("transition %zu, %s: '%s' then '%s'", i, t->what, k.seen,
				     after);
	}
	kinds_release(&k);
}
END_TEST

/* The first read of a large decoder waits for the gate; it may fail then. */
struct gated {
	struct kinds k;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool arrived, open, used, fails;
};

static int read_at_gate(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
			struct ckpt_err *e)
{
	struct gated *g = arg; /* k is its first member */
	bool is_large;

	(void)pthread_mutex_lock(&g->k.c->lock);
	is_large = g->k.c->large && g->k.c->large->busy;
	(void)pthread_mutex_unlock(&g->k.c->lock);
	(void)pthread_mutex_lock(&g->lock);
	if (is_large && !g->used) {
		g->used = g->arrived = true;
		(void)pthread_cond_broadcast(&g->moved);
		while (!g->open)
			(void)pthread_cond_wait(&g->moved, &g->lock);
		if (g->fails) {
			(void)pthread_mutex_unlock(&g->lock);
			return err_set(e, EIO, "the one that others wait for fails");
		}
	}
	(void)pthread_mutex_unlock(&g->lock);
	return read_source(&g->k.data, file, buf, len, off, e);
}

struct gated_reader {
	struct gated *g;
	int kind, block;
	int rc;
};

static void *read_gated(void *arg)
{
	struct gated_reader *r = arg;
	struct kinds *k = &r->g->k;
	size_t from = (size_t)r->block << DECODED_SHIFT;
	struct ckpt_err e = { 0 };
	struct block b = { 0 };
	void *pin = NULL;

	r->rc = blockcache_get(k->c, &k->items[r->kind], (uint64_t)r->block, 1, &b, &pin, &e);
	if (!r->rc && memcmp(b.data, k->bytes + from, b.len) != 0)
		r->rc = -EILSEQ;
	if (!r->rc)
		blockcache_put(k->c, pin);
	return NULL;
}

static unsigned waiting(struct blockcache *c)
{
	unsigned n = 0;
	SCOPED_LOCK(&c->lock);

	for (const struct waiter *w = c->waiters; w; w = w->next)
		n++;
	return n;
}

/* One reader has the large decoder. Others, of the same item and of other small and large ones,
 * wait for it if they need it. _i & 1: it fails then; _i & 2: the cache is cleared meanwhile. */
START_LOOP_TEST(all_who_wait_for_the_large_decoder_get_their_turn, 4)
{
	static const struct gated_reader readers[] = {
		{ .kind = LARGE, .block = 4 }, { .kind = LARGE, .block = 4 },
		{ .kind = LARGE, .block = 7 }, { .kind = LARGE, .block = 0 },
		{ .kind = TWICE, .block = 0 }, { .kind = TWICE, .block = 5 },
		{ .kind = CUT, .block = 3 },   { .kind = MIXED, .block = 6 },
		{ .kind = MIXED, .block = 4 },
	};
	struct gated g = { .lock = PTHREAD_MUTEX_INITIALIZER,
			   .moved = PTHREAD_COND_INITIALIZER,
			   .fails = _i & 1 };
	struct gated_reader r[ARRAY_LEN(readers)];
	pthread_t threads[ARRAY_LEN(readers)];

	kinds_init(&g.k, read_at_gate);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		r[i] = readers[i];
		r[i].g = &g;
		REQUIRE(!pthread_create(&threads[i], NULL, read_gated, &r[i]));
		(void)pthread_mutex_lock(&g.lock);
		while (!g.arrived) /* the first */
			(void)pthread_cond_wait(&g.moved, &g.lock);
		(void)pthread_mutex_unlock(&g.lock);
	}
	while (waiting(g.k.c) < ARRAY_LEN(readers) - 1)
		(void)sched_yield();
	check_one(g.k.c, &g.k.items[SMALL], 2, g.k.bytes, g.k.n); /* needs no turn */
	if (_i & 2)
		blockcache_clear(g.k.c);
	(void)pthread_mutex_lock(&g.lock);
	g.open = true;
	(void)pthread_cond_broadcast(&g.moved);
	(void)pthread_mutex_unlock(&g.lock);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		(void)pthread_join(threads[i], NULL);
		ck_assert_int_eq(r[i].rc, i == 0 && g.fails ? -EIO : 0);
	}
	ck_assert_uint_eq(waiting(g.k.c), 0);
	kinds_release(&g.k);
}
END_TEST

/* An allocation may fail anywhere, for items of all kinds: it leaves nothing behind for which
 * others would wait. */
START_TEST(a_large_decoder_without_memory_is_gone)
{
	struct kinds k;
	unsigned failed = 0;

	kinds_init(&k, read_and_look);
	FAULT_LOOP(FAULT_ALLOC)
	{
		static const int kinds[] = { LARGE, TWICE, MIXED };
		int64_t rc[ARRAY_LEN(kinds)];
		uint8_t out[1000];

		for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
			struct ckpt_err e = { 0 };

			rc[i] = blockcache_read(k.c, &k.items[kinds[i]], 5 * DECODED_SIZE, out,
						1000, &e);
		}
		(void)fault_off();
		for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
			REQUIRE(rc[i] == 1000 || rc[i] == -ENOMEM);
			failed += rc[i] < 0;
			check_one(k.c, &k.items[kinds[i]], 5, k.bytes, k.n);
		}
		blockcache_clear(k.c);
		REQUIRE(!k.c->large && !k.c->decoders && !k.c->decoder_bytes && !k.c->n_items);
		k.seen[0] = 0;
	}
	ck_assert_uint_ge(failed, 5);
	kinds_release(&k);
}
END_TEST

/* ---- errors ---- */

/* Only one window above 8 MiB is in use at a time. */
START_TEST(large_windows_take_turns)
{
	static const uint8_t frames[] = "\x28\xb5\x2f\xfd\0\x88\x21\0\0text"  /* 128 MiB */
					"\x28\xb5\x2f\xfd\0\x70\x21\0\0more"  /* 16 MiB */
					"\x28\xb5\x2f\xfd\0\x90\x21\0\0text"; /* 256 MiB */
	struct ckpt_data s = { .bytes = frames, .n = sizeof(frames) - 1 };
	struct block_item items[] = { { 0, 26, 7, 1 }, { 0, 13, 7, 1 }, { 13, 13, 7, 1 } };
	struct block_item huge = { 26, 13, 7, 1 };
	struct blockcache *c = new_cache(&s, 0);
	struct ckpt_err e = { 0 };
	struct block b;
	void *pin;

	for (int i = 0; i < 6; i++)
		check_one(c, &items[i % 3], 0, (const uint8_t *)(i % 3 == 2 ? "more" : "textmore"),
			  i % 3 ? 4 : 8);
	ck_assert_int_eq(blockcache_get(c, &huge, 0, 1, &b, &pin, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "zstd: Frame requires too much memory for decoding");
	blockcache_free(c);
}
END_TEST

START_TEST(damage_is_found_once)
{
	size_t n = 4 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, MIB, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n - 10, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, MIB);
	uint64_t reads = 0;

	for (int i = 0; i < 3; i++) {
		struct block b = { 0 };
		struct ckpt_err e = { 0 };
		void *pin = NULL;

		ck_assert_int_eq(blockcache_get(c, &item, 15, 1, &b, &pin, &e), -EBADMSG);
		ck_assert_str_eq(e.msg, "zstd: the stream ends inside a frame");
		ck_assert(!i || s.reads == reads);
		reads = s.reads;
	}
	check_one(c, &item, 2, bytes, n);
	blockcache_free(c);
}
END_TEST

/* A hundred thousand frames without bytes are read through only once. */
START_TEST(empty_frames_are_passed_once)
{
	enum { FRAMES = 100000 };
	size_t n = MIB, text_n, empty_n;
	autofree uint8_t *bytes = make_bytes(n), *text = zstd_pack(bytes, n, 0, &text_n),
			 *empty = zstd_pack("", 0, 0, &empty_n), *all;
	struct ckpt_data s = { 0 };
	struct block_item item = { .file = 7, .coding = 1 };
	struct blockcache *c;
	uint64_t before;

	all = malloc(FRAMES * empty_n + text_n);
	ck_assert_ptr_nonnull(all);
	for (size_t i = 0; i < FRAMES; i++)
		memcpy(all + i * empty_n, empty, empty_n);
	memcpy(all + FRAMES * empty_n, text, text_n);
	s.bytes = all;
	s.n = item.length = FRAMES * empty_n + text_n;
	c = new_cache(&s, 0);
	check_one(c, &item, 3, bytes, n);
	before = s.read_bytes;
	check_one(c, &item, 0, bytes, n);
	ck_assert_uint_lt(s.read_bytes - before, s.n / 2);
	blockcache_free(c);
}
END_TEST

START_TEST(damage_is_an_error_and_what_is_before_it_is_not)
{
	size_t n = 4 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, MIB, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	/* cut in the last frame */
	struct block_item item = { .length = packed_n - 10, .file = 7, .coding = 1 };
	struct blockcache *c = new_cache(&s, 8 * MIB);

	for (int round = 0; round < 2; round++) {
		struct block b = { 0 };
		struct ckpt_err e = { 0 };
		void *pin = NULL;

		for (uint64_t i = 0; i < 3; i++)
			check_block(c, &item, i, bytes, n);
		ck_assert_int_eq(blockcache_get(c, &item, 15, 1, &b, &pin, &e), -EBADMSG);
		ck_assert_int_eq(e.code, EBADMSG);
		ck_assert_str_eq(e.msg, "zstd: the stream ends inside a frame");
		ck_assert_ptr_null(pin);
		ck_assert_int_eq(blockcache_get(c, &item, 100, 1, &b, &pin, &e), -EBADMSG);
	}
	blockcache_free(c);
}
END_TEST

START_LOOP_TEST(a_read_that_fails_once_is_tried_again, 2)
{
	size_t n = 4 * MIB, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 1000, &packed_n);
	struct ckpt_data raw = { .bytes = bytes, .n = n }, z = { .bytes = packed, .n = packed_n };
	struct ckpt_data *s = _i ? &z : &raw;
	struct block_item item = { .length = s->n, .file = 7, .coding = zstd_layers((unsigned)_i) };
	unsigned failed = 0;

	ck_assert_uint_gt(packed_n, 300000); /* several reads */
	for (unsigned fail = 1; fail < 5; fail++) {
		struct blockcache *c = new_cache(s, 8 * MIB);
		struct block b;
		struct ckpt_err e = { 0 };
		void *pin;

		s->reads = 0;
		s->fail = fail;
		for (uint64_t i = 0; i < 4; i++) {
			if (blockcache_get(c, &item, i, 1, &b, &pin, &e)) {
				ck_assert_int_eq(e.code, EIO);
				failed++;
				check_block(c, &item, i, bytes, n);
			} else {
				blockcache_put(c, pin);
			}
		}
		s->fail = 0;
		for (uint64_t i = 0; i < 5; i++)
			check_block(c, &item, i, bytes, n);
		blockcache_free(c);
	}
	ck_assert_uint_ge(failed, 2);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
	size_t n = 2 * MIB + 10, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = zstd_layers(2) };
	struct block_source src = { .read = read_source, .arg = &s };
	unsigned failed = 0;

	item.coding = 1;
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct blockcache *c = blockcache_new(MIB, &src);
		struct ckpt_err e = { 0 };
		uint8_t out[1000];
		int64_t rc = c ? blockcache_read(c, &item, 2 * MIB - 500, out, 1000, &e) : -ENOMEM;

		(void)fault_off();
		if (rc < 0) {
			ck_assert_int_eq(rc, -ENOMEM);
			ck_assert(!c || e.code == ENOMEM);
			failed++;
		} else {
			ck_assert_int_eq(rc, 510);
		}
		for (uint64_t i = 0; c && i < 3; i++)
			check_block(c, &item, i, bytes, n);
		blockcache_free(c);
	}
	ck_assert_uint_ge(failed, 5);
}
END_TEST

/* ---- threads ---- */

struct crowd {
	struct blockcache *c;
	const struct block_item *items;
	size_t n_items;
	const uint8_t *bytes;
	size_t n;
	atomic_uint turn;
};

static void *read_blocks(void *arg)
{
	struct crowd *w = arg;
	struct rng r = { ++w->turn };

	for (int k = 0; k < 60; k++) {
		const struct block_item *item = &w->items[rng_below(&r, w->n_items)];
		size_t size = block_size(item);
		uint64_t index = rng_below(&r, w->n / size + 1);
		size_t from = index * size, len = w->n - from < size ? w->n - from : size;
		struct block b;
		struct ckpt_err e = { 0 };
		void *pin;

		if (blockcache_get(w->c, item, index, 1, &b, &pin, &e))
			return arg;
		if (b.len != len || memcmp(b.data, w->bytes + from, len) != 0)
			return arg;
		blockcache_put(w->c, pin);
	}
	return NULL;
}

static void run_crowd(struct crowd *w)
{
	pthread_t threads[8];

	for (int i = 0; i < 8; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, read_blocks, w));
	for (int i = 0; i < 8; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		REQUIRE(!bad);
	}
}

START_TEST(readers_of_one_compressed_item_decode_it_once)
{
	size_t n = 5 * MIB + 7, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n);
	struct ckpt_data s = { .bytes = packed, .n = packed_n };
	struct block_item item = { .length = packed_n, .file = 7, .coding = 1 };
	struct crowd w = {
		.c = new_cache(&s, 64 * MIB), .items = &item, .n_items = 1, .bytes = bytes, .n = n
	};

	run_crowd(&w);
	ck_assert_uint_eq(decoded_by(w.c), n);
	blockcache_free(w.c);
}
END_TEST

START_LOOP_TEST(readers_of_many_items_do_not_disturb_each_other, 2)
{
	size_t n = 2 * MIB + 7, packed_n;
	autofree uint8_t *bytes = make_bytes(n), *packed = zstd_pack(bytes, n, 0, &packed_n), *all;
	struct ckpt_data s = { 0 };
	struct block_item items[20];
	struct crowd w = { .items = items, .n_items = 20, .bytes = bytes, .n = n };

	all = malloc(20 * packed_n);
	ck_assert_ptr_nonnull(all);
	for (uint64_t i = 0; i < 20; i++) {
		memcpy(all + i * packed_n, packed, packed_n);
		items[i] = (struct block_item){ i * packed_n, packed_n, 7, 1 };
	}
	s.bytes = all;
	s.n = 20 * packed_n;
	w.c = new_cache(&s, (_i ? 64 : 3) * MIB);
	run_crowd(&w);
	blockcache_free(w.c);
}
END_TEST

/* Items of one and of two layers, read at random, with room for some blocks or for none. */
START_LOOP_TEST(readers_of_large_items_take_turns, 2)
{
	struct kinds k;
	struct crowd w = { .n_items = 3 };

	kinds_init(&k, read_and_look);
	w = (struct crowd){ .items = k.items, .n_items = 3, .bytes = k.bytes, .n = k.n };
	w.c = new_cache(&k.data, _i * 4 * MIB);
	run_crowd(&w);
	blockcache_free(w.c);
	kinds_release(&k);
}
END_TEST

SUITE(blockcache, .seconds = 120)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "fault.h"
#include "index/catalog_query.h"
#include "read/gather.h"
#include "rng.h"
#include "scene_util.h"
#include "source/files.h"
#include "source/parts.h"
#include "source/place.h"
#include "suites.h"
#include "whole_util.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct place *place;
static const struct stored_file source = { "items", 0, NULL };

static void setup(void)
{
	dir_setup();
	place = place_of(dir_fd);
}

static void teardown(void)
{
	place_free(place);
	(void)close(dir_fd);
}

/* A scene, with its items in one file. */
struct stage {
	struct scene *s;
	struct block_item *items;
	struct files *files;
	struct item_store store;
	uint8_t *out;
	struct plan plan;
	struct parts *parts; /* NULL: all bytes are to be in out */
};

static void stage_init(struct stage *g, struct scene *s, struct rng *r, uint32_t layers,
		       size_t cache)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	struct ckpt_err e = { 0 };

	*g = (struct stage){ .s = s,
			     .items = calloc(s->count + 1u, sizeof(*g->items)),
			     .out = malloc(s->bytes + 1) };
	REQUIRE(g->items && g->out);
	for (uint32_t i = 0; i < s->count; i++) {
		const uint8_t *p = s->items[i];
		size_t n = s->item_len[i];
		uint8_t *packed = NULL;

		for (uint32_t l = 0; l < layers; l++) {
			uint8_t *next = zstd_pack(p, n, 0, &n);

			free(packed);
			p = packed = next;
		}
		for (uint64_t gap = rng_below(r, 50); gap; gap--)
			buf_add(&b, "#", 1);
		g->items[i] = (struct block_item){ b.len, n, 0, zstd_layers(layers) };
		buf_add(&b, p, n);
		free(packed);
	}
	REQUIRE(!b.err);
	put_file(dir_fd, "items", b.data ? b.data : "", b.len);
	buf_release(&b);
	REQUIRE(!files_new(place, &source, 1, &g->files, &e));
	REQUIRE(!item_store_init(&g->store, g->files, cache, &e));
}

static void stage_release(struct stage *g)
{
	item_store_release(&g->store);
	files_free(g->files);
	plan_release(&g->plan);
	free(g->items);
	free(g->out);
	free(g->parts);
}

/* Lets readers use what is in the page cache. in_parts: runs of that many bytes are not copied. */
static void stage_map(struct stage *g, uint64_t in_parts)
{
	struct ckpt_err e = { 0 };

	REQUIRE(!files_allow_maps(g->files, 64 * MIB, &e));
	if (!in_parts || g->s->overlap)
		return;
	g->parts = calloc(1, sizeof(*g->parts));
	REQUIRE(g->parts);
	parts_start(g->parts, g->files, g->out, in_parts);
}

/* Puts the parts of a reply together. */
static void join(struct stage *g, uint64_t len)
{
	autofree uint8_t *all = malloc(len + 1);
	struct ckpt_err e = { 0 };
	uint64_t n = 0;

	REQUIRE(all && !parts_finish(g->parts, len, &e));
	for (int i = 0; i < g->parts->n_iov; i++) {
		REQUIRE(g->parts->iov[i].iov_len <= len - n);
		memcpy(all + n, g->parts->iov[i].iov_base, g->parts->iov[i].iov_len);
		n += g->parts->iov[i].iov_len;
	}
	REQUIRE(n == len);
	parts_release(g->parts);
	parts_start(g->parts, g->files, g->out, g->parts->min_run);
	memcpy(g->out, all, len);
}

static int stage_carry_out(struct stage *g, uint8_t *out, struct parts *parts, struct ckpt_err *e)
{
	for (size_t i = 0; i < g->plan.n; i++) {
		const struct copy *c = &g->plan.copies[i];
		struct gather job = { .item = { &g->store, g->items[c->chunk] },
				      .out = out,
				      .parts = parts };
		int rc = gather(&job, c, g->plan.dims, e);

		if (rc)
			return rc;
	}
	return 0;
}

static int stage_read(struct stage *g, uint64_t off, uint64_t len, struct ckpt_err *e)
{
	const struct scene *s = g->s;

	REQUIRE(!plan_whole(s->map, s->element, s->payloads, off, len, &g->plan));
	return stage_carry_out(g, g->out, g->parts, e);
}

/* Reads all of it to memory with strides. */
static void check_memory(struct stage *g, struct rng *r)
{
	const struct scene *s = g->s;
	struct scene_memory m;
	autofree uint8_t *want = NULL, *got = NULL;
	struct ckpt_err e = { 0 };

	scene_memory_make(&m, s, r);
	want = malloc(m.bytes);
	got = malloc(m.bytes);
	REQUIRE(want && got);
	memset(want, 0x55, m.bytes);
	memset(got, 0x55, m.bytes);
	scene_memory_fill(&m, s, 0, s->bytes, want);
	REQUIRE(!plan_whole_to(s->map, s->element, s->payloads, 0, s->bytes, m.stride, &g->plan));
	if (stage_carry_out(g, got + m.first, NULL, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(!memcmp(got, want, m.bytes));
}

static void check_read(struct stage *g, uint64_t off, uint64_t len)
{
	struct ckpt_err e = { 0 };

	memset(g->out, 0x55, len);
	if (stage_read(g, off, len, &e))
		ck_abort_msg("%s", e.msg);
	if (g->parts)
		join(g, len);
	REQUIRE(!memcmp(g->out, g->s->want + off, len));
	REQUIRE(!e.code);
}

/* ---- whichever way it goes, the bytes are those ---- */

static const struct {
	size_t cache;
	uint32_t layers;
	uint64_t elements;
	int scenes;
	bool mapped;
	uint64_t in_parts;
} mixes[] = {
	{ 0, 0, 3000, 150, false, 0 },	      { 64 << 20, 0, 3000, 150, false, 0 },
	{ 0, 1, 600, 60, false, 0 },	      { 8192, 1, 1500, 60, false, 0 },
	{ 64 << 20, 1, 3000, 100, false, 0 }, { 64 << 20, 2, 3000, 50, false, 0 },
	{ 0, 0, 60000, 6, false, 0 },	      { 3 << 20, 0, 60000, 6, false, 0 },
	{ 64 << 20, 0, 60000, 6, false, 0 },  { 64 << 20, 1, 60000, 6, false, 0 },
	{ 0, 0, 3000, 150, true, 0 },	      { 0, 0, 3000, 150, true, 1 },
	{ 0, 0, 60000, 6, true, 0 },	      { 0, 0, 60000, 12, true, 64 },
	{ 64 << 20, 1, 3000, 50, true, 1 },
};

START_FEW_TEST(all_ranges_read_as_element_by_element, ARRAY_LEN(mixes), 4)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { 4, mixes[_i].elements, 0, TILE_ANY, ROWS_ANY };

	for (unsigned i = 0; i < rng_rounds(mixes[_i].scenes, 1 + mixes[_i].scenes / 3); i++) {
		struct scene s;
		struct stage g;

		scene_make(&s, &c, &o);
		stage_init(&g, &s, &r, mixes[_i].layers, mixes[_i].cache);
		if (mixes[_i].mapped)
			stage_map(&g, mixes[_i].in_parts);
		check_read(&g, 0, s.bytes);
		for (int k = 0; k < 8 && s.bytes; k++) {
			uint64_t off = rng_below(&r, s.bytes);

			check_read(&g, off, 1 + rng_below(&r, s.bytes - off));
		}
		for (int k = 0; k < 4; k++)
			check_memory(&g, &r);
		stage_release(&g);
		scene_release(&s);
	}
}
END_TEST

/* ---- few reads ---- */

/* One chunk of float32 [rows, cols]; transposed: its item is column-major. */
static void make_matrix(struct scene *s, struct rng *r, uint64_t rows, uint64_t cols,
			uint64_t chunk_cols, bool transposed)
{
	struct choose c = choose_rng(r);
	struct scene_opts o = { .element = 4, .strides = ROWS_DENSE };
	const uint64_t shape[] = { rows, cols };
	uint64_t boxes[4 * 16];
	uint32_t count = 0;

	for (uint64_t at = 0; at < cols; at += chunk_cols, count++) {
		uint64_t *b = boxes + 4 * (size_t)count;

		b[0] = 0;
		b[1] = at;
		b[2] = rows;
		b[3] = chunk_cols;
	}
	scene_make_of(s, &c, &o, 2, shape, count, boxes);
	if (!transposed)
		return;
	REQUIRE(count == 1);
	s->payloads[0].stride[0] = 4;
	s->payloads[0].stride[1] = 4 * rows;
	for (uint64_t i = 0; i < rows * cols; i++)
		memcpy(s->want + i * 4,
		       s->items[0] + s->payloads[0].data + (i % cols * rows + i / cols) * 4, 4);
}

struct cost {
	uint64_t reads, bytes;
};

static struct cost cost_of(struct stage *g, uint64_t off, uint64_t len)
{
	struct cost c = { fault_reads(), fault_read_bytes() };

	check_read(g, off, len);
	return (struct cost){ fault_reads() - c.reads, fault_read_bytes() - c.bytes };
}

START_TEST(a_contiguous_run_is_read_in_place)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 1000, 500, 500, false);
	stage_init(&g, &s, &r, 0, 64 * MIB);
	c = cost_of(&g, 12345, 1000000);
	ck_assert_uint_eq(c.reads, 1);
	ck_assert_uint_eq(c.bytes, 1000000);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(a_column_shard_is_read_as_one_band)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 2000, 128, 32, false); /* 4 chunks */
	stage_init(&g, &s, &r, 0, 0);
	c = cost_of(&g, 0, s.bytes);
	ck_assert_uint_eq(c.reads, 4);
	ck_assert_uint_eq(c.bytes, s.bytes);
	c = cost_of(&g, 512 * 100, 512 * 300); /* 300 rows */
	ck_assert_uint_eq(c.reads, 4);
	ck_assert_uint_eq(c.bytes, 512 * 300);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(what_is_in_memory_is_not_read)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 2000, 128, 32, false); /* 4 chunks */
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 0);
	c = cost_of(&g, 512 * 100, 512 * 1800);
	ck_assert_uint_eq(c.reads, 0);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

/* Out of the page cache, where the file system has one. */
static void evict_items(void)
{
	int fd = openat(dir_fd, "items", O_RDONLY | O_CLOEXEC);

	REQUIRE(fd >= 0 && !fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	REQUIRE(!close(fd));
}

START_TEST(short_runs_that_are_not_in_memory_come_with_what_is_between)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 5000, 600, 600, true);
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 0);
	evict_items();
	c = cost_of(&g, 2400 * 100, 2400 * 50); /* of each column, 200 bytes */
	ck_assert_uint_le(c.reads, s.bytes / MIB + 1);
	c = cost_of(&g, 2400 * 3000, 2400 * 50);
	ck_assert_uint_eq(c.reads, 0);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(long_runs_stay_where_they_are)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct scene s;
	struct stage g;

	make_matrix(&s, &r, 100, 1000, 500, false);
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 2000);
	ck_assert_int_eq(stage_read(&g, 1000, 399000, &e), 0);
	/* The first run gets shorter; all others stay where they are. */
	ck_assert_uint_eq(g.parts->n, 199);
	ck_assert_int_eq(parts_finish(g.parts, 399000, &e), 0);
	ck_assert_int_eq(g.parts->n_iov, 200);
	ck_assert_ptr_eq(g.parts->iov[0].iov_base, g.out);
	ck_assert_uint_eq(g.parts->iov[0].iov_len, 1000);
	parts_release(g.parts);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_LOOP_TEST(decoded_blocks_stay_where_they_are, 2)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct scene s;
	struct stage g;

	make_matrix(&s, &r, 4000, 128, 128, false); /* one chunk */
	stage_init(&g, &s, &r, 1, (size_t)_i * MIB);
	stage_map(&g, 2000);
	ck_assert_int_eq(stage_read(&g, 100, s.bytes - 100, &e), 0);
	ck_assert_uint_ge(g.parts->n, s.bytes / DECODED_SIZE);
	memset(g.out, 0x55, s.bytes); /* no byte of the reply is there */
	blockcache_clear(g.store.blocks);
	join(&g, s.bytes - 100);
	ck_assert(!memcmp(g.out, s.want + 100, s.bytes - 100));
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(more_runs_than_a_reply_may_have_are_copied)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct scene s;
	struct stage g;

	make_matrix(&s, &r, PARTS_MAX, 64, 32, false);
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 1);
	ck_assert_int_eq(stage_read(&g, 0, s.bytes, &e), 0);
	ck_assert_uint_eq(g.parts->n, PARTS_MAX); /* of one chunk; the other is in out */
	join(&g, s.bytes);
	ck_assert(!memcmp(g.out, s.want, s.bytes));
	stage_release(&g);
	scene_release(&s);
}
END_TEST

static void *write_item(void *arg)
{
	(void)arg;
	put_file(dir_fd, "items", "x", 1);
	return NULL;
}

/* After the reply has been checked, a writer has to wait until it is sent. */
START_TEST(what_is_given_away_does_not_change)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	pthread_t writer;
	struct scene s;
	struct stage g;
	struct stat st;

	make_matrix(&s, &r, 100, 1000, 1000, false);
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 2000);
	ck_assert_int_eq(stage_read(&g, 0, s.bytes, &e), 0);
	ck_assert_uint_eq(g.parts->n, 1);
	ck_assert_int_eq(parts_finish(g.parts, s.bytes, &e), 0);
	(void)usleep(20000); /* a file system's clock is a tick behind */
	ck_assert_int_eq(pthread_create(&writer, NULL, write_item, NULL), 0);
	(void)usleep(50000);
	ck_assert(!fstatat(dir_fd, "items", &st, 0) && st.st_size > 1);
	ck_assert(!memcmp(g.parts->iov[0].iov_base, s.want, s.bytes));
	/* Nothing more is lent, and the wait is bounded. */
	ck_assert_ptr_null(files_lend(g.files, 0, 0, 1));
	parts_release(g.parts);
	(void)pthread_join(writer, NULL);
	parts_start(g.parts, g.files, g.out, 2000);
	ck_assert(stage_read(&g, 0, s.bytes, &e) || parts_finish(g.parts, s.bytes, &e));
	ck_assert_int_eq(e.code, EIO);
	parts_release(g.parts);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(a_file_that_somebody_may_change_is_copied)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	int fd;

	make_matrix(&s, &r, 100, 1000, 1000, false);
	stage_init(&g, &s, &r, 0, 0);
	stage_map(&g, 2000);
	fd = openat(dir_fd, "items", O_WRONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_ptr_null(files_lend(g.files, 0, 0, 1));
	check_read(&g, 0, s.bytes);
	(void)close(fd);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_LOOP_TEST(overlapping_parts_are_refused, 2)
{
	static const uint8_t data[8];
	uint8_t buf[16];
	struct parts p;
	struct ckpt_err e = { 0 };

	parts_start(&p, NULL, buf, 1);
	parts_add(&p, buf + 4, data, 4);
	parts_add(&p, buf + (_i ? 13 : 7), data, 4);
	ck_assert_int_eq(parts_finish(&p, 16, &e), -EIO);
	ck_assert_str_eq(e.msg, "runs of a reply overlap");
}
END_TEST

START_LOOP_TEST(a_band_too_large_for_one_buffer_is_read_in_parts, 2)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	int64_t before;
	struct cost c;

	make_matrix(&s, &r, 300000, 16, 8, false); /* two chunks of 9.6 MB */
	stage_init(&g, &s, &r, 0, _i ? 64 * MIB : 0);
	before = fault_live();
	fault_peak_reset();
	c = cost_of(&g, 0, s.bytes);
	ck_assert_uint_eq(c.reads, 2 * 2);
	ck_assert_int_le(fault_peak() - before, (int64_t)(8 * MIB + 100000));
	stage_release(&g);
	scene_release(&s);
}
END_TEST

/* Whatever size the cache has: each of many readers pins what it gathers from. */
START_TEST(what_is_pinned_at_once_has_a_bound)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct scene s;
	struct stage g;
	struct block b;
	void *pins[64];
	size_t n = 0;
	int64_t before;

	make_matrix(&s, &r, 2048, 2048, 2048, true); /* 16 MiB, a row reaches over all of it */
	stage_init(&g, &s, &r, 1, 33 * MIB);
	for (size_t pinned = 0; pinned < 33 * MIB; pinned += b.len, n++) { /* as others would */
		struct block_item other = { n, g.items[0].length - n, 0, 0 };

		REQUIRE(n < ARRAY_LEN(pins));
		REQUIRE(!blockcache_get(g.store.blocks, &other, 0, 1, &b, &pins[n], &e));
	}
	before = fault_live();
	fault_peak_reset();
	check_read(&g, 0, 4 * 2048);
	ck_assert_int_le(fault_peak() - before, (int64_t)(12 * MIB));
	while (n)
		blockcache_put(g.store.blocks, pins[--n]);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(scattered_elements_are_gathered_from_blocks_that_stay)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 1000, 1000, 1000, true); /* 4 MB */
	stage_init(&g, &s, &r, 0, 16 * MIB);
	c = cost_of(&g, 0, 4000); /* a row: 1000 places, 4 kB apart */
	ck_assert_uint_le(c.reads, 5);
	c = cost_of(&g, 4000, 400000);
	ck_assert_uint_eq(c.reads, 0);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_LOOP_TEST(what_is_larger_than_the_cache_is_read_in_pieces, 3)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;
	int64_t before;

	make_matrix(&s, &r, 1000, 1000, 1000, true);
	stage_init(&g, &s, &r, 0, _i * MIB);
	before = fault_live();
	fault_peak_reset();
	c = cost_of(&g, 0, 4000);
	ck_assert_uint_le(c.reads, 1000);
	(void)cost_of(&g, 1000, 5000);
	ck_assert_int_le(fault_peak() - before, (int64_t)((size_t)(_i + 3) * MIB));
	stage_release(&g);
	scene_release(&s);
}
END_TEST

/* Of two ways to cut a piece, the one that keeps neighbours together is taken: a column is one
 * band. */
START_TEST(pieces_are_cut_along_the_longest_stride)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 1000, 500, 500, true);
	stage_init(&g, &s, &r, 0, 0);
	c = cost_of(&g, 0,
		    (size_t)2000 * 100); /* 100 rows: 100 neighbours in each of 500 columns */
	ck_assert_uint_eq(c.reads, 500);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(small_spans_are_read_whole_even_if_little_is_wanted)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 100, 100, 100, true); /* 40 kB */
	stage_init(&g, &s, &r, 0, 0);
	c = cost_of(&g, 0, 400);
	ck_assert_uint_eq(c.reads, 1);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_LOOP_TEST(compressed_items_are_decoded_once, 2)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	struct cost c;

	make_matrix(&s, &r, 1000, 600, 600, _i);
	stage_init(&g, &s, &r, 1, 16 * MIB);
	c = cost_of(&g, 0, s.bytes);
	ck_assert_uint_eq(c.bytes, g.items[0].length);
	c = cost_of(&g, 5000, 100000);
	ck_assert_uint_eq(c.reads, 0);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_LOOP_TEST(compressed_items_larger_than_the_cache_are_right_too, 2)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;

	make_matrix(&s, &r, 800, 300, _i ? 100 : 300, false);
	stage_init(&g, &s, &r, 1, 100000);
	check_read(&g, 0, s.bytes);
	check_read(&g, 1200 * 799, 1200);
	check_read(&g, 0, 1200);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

/* ---- runs ---- */

static void mark_run(void *arg, uint8_t *p, uint64_t len)
{
	uint64_t *bytes = arg;

	*bytes += len;
	for (uint64_t i = 0; i < len; i++)
		p[i]++;
}

START_TEST(each_run_visits_every_byte_of_the_copy_once)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { 4, 500, 0, TILE_CUTS, ROWS_ANY };

	for (int i = 0; i < 300; i++) {
		struct scene s;
		struct plan p = { 0 };
		autofree uint8_t *times = NULL;
		uint64_t bytes = 0;

		scene_make(&s, &c, &o);
		times = calloc(1, s.bytes + 1);
		REQUIRE(times && !plan_whole(s.map, s.element, s.payloads, 0, s.bytes, &p));
		for (size_t k = 0; k < p.n; k++)
			gather_each_run(&p.copies[k], p.dims, times, mark_run, &bytes);
		REQUIRE(bytes == s.bytes);
		for (uint64_t k = 0; k < s.bytes; k++)
			REQUIRE(times[k] == 1);
		plan_release(&p);
		scene_release(&s);
	}
}
END_TEST

/* ---- errors ---- */

/* layers, transposed, cache: direct, band, blocks; compressed run and blocks */
static const struct {
	uint32_t layers;
	bool transposed;
	size_t cache;
} ways[] = { { 0, false, 0 },
	     { 0, true, 0 },
	     { 0, true, 16 << 20 },
	     { 1, false, 1000 },
	     { 1, true, 16 << 20 } };

START_LOOP_TEST(failing_reads_and_allocations_come_through, ARRAY_LEN(ways))
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	unsigned failed[2] = { 0 };

	make_matrix(&s, &r, 300, 200, 200, ways[_i].transposed);
	stage_init(&g, &s, &r, ways[_i].layers, ways[_i].cache);
	REQUIRE(!plan_whole(s.map, s.element, s.payloads, 0, s.bytes,
			    &g.plan)); /* no memory is needed for it later */
	for (int k = 0; k < 2; k++) {
		FAULT_LOOP(k ? FAULT_ALLOC : FAULT_READ)
		{
			struct ckpt_err e = { 0 };
			int rc;

			item_store_release(&g.store);
			rc = item_store_init(&g.store, g.files, ways[_i].cache, &e);
			if (!rc)
				rc = stage_read(&g, 0, 800, &e);
			(void)fault_off();
			if (!rc) {
				ck_assert(!memcmp(g.out, s.want, 800));
				continue;
			}
			ck_assert(fault_hit());
			ck_assert_int_eq(rc, k ? -ENOMEM : -EIO);
			ck_assert(!g.store.blocks || (e.code == -rc && e.msg[0]));
			failed[k]++;
		}
	}
	ck_assert_uint_ge(failed[0], 1);
	ck_assert_uint_ge(failed[1], 1);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

/* The index says where elements are, but the item is shorter once it is decoded. */
START_LOOP_TEST(an_item_that_decodes_to_too_little_is_an_error, 2)
{
	struct rng r = rng_new();
	struct scene s;
	struct stage g;
	static const uint64_t cuts[] = { 0, 1, 100, 5000, 20000 };

	make_matrix(&s, &r, 100, 80, 80, _i);
	for (size_t k = 0; k < ARRAY_LEN(cuts); k++) {
		uint64_t whole = s.item_len[0];

		for (size_t cache = 0; cache < 3; cache++) {
			struct ckpt_err e = { 0 };
			char want[100];

			s.item_len[0] = cuts[k];
			stage_init(&g, &s, &r, 1, cache * 4 * MIB);
			s.item_len[0] = whole;
			(void)snprintf(
				want, sizeof(want),
				"the item at %llu decodes to fewer bytes than its tensor needs",
				(unsigned long long)g.items[0].offset);
			ck_assert_int_eq(stage_read(&g, 0, s.bytes, &e), -EBADMSG);
			ck_assert_str_eq(e.msg, want);
			e = (struct ckpt_err){ 0 };
			ck_assert_int_eq(stage_read(&g, s.bytes - 7, 7, &e), -EBADMSG);
			ck_assert_str_eq(e.msg, want);
			stage_release(&g);
		}
	}
	scene_release(&s);
}
END_TEST

SUITE(gather, .setup = setup, .teardown = teardown, .seconds = 120)

/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that are computed from stored ones, compared with computing them element by element. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "index/catalog_query.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "rng.h"
#include "scan_util.h"
#include "scene_util.h"
#include "source/files.h"
#include "source/place.h"
#include "suites.h"
#include "tensor/vtensor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 301, COLUMNS = 1003, BYTES = ROWS * COLUMNS * 4 };

static struct place *place;
static atomic_int runs; /* boxes that were computed */

static void setup(void)
{
	dir_setup();
	place = place_of(dir_fd);
}

static void teardown(void)
{
	place_free(place);
	dir_teardown();
}

/* Computes x[i, j] ^ y[i / 2, j] from the inputs x and y; how says whether x is as large as the
 * result. */
static int xor_run(const void *how, const struct derived_in *in, const uint64_t *off,
		   const uint64_t *len, void *out, struct ckpt_err *e)
{
	const uint64_t y_off[] = { off[0] / 2, off[1] };
	const uint64_t y_len[] = { (off[0] + len[0] - 1) / 2 - off[0] / 2 + 1, len[1] };
	autofree uint32_t *y = malloc(y_len[0] * y_len[1] * sizeof(*y));
	uint8_t *to = out;
	int rc = y ? derived_read(in, 0, off, len, out, e) : err_nomem(e);

	(void)how;
	runs++;
	if (!rc)
		rc = derived_read(in, 1, y_off, y_len, y, e);
	for (uint64_t i = 0; !rc && i < len[0]; i++)
		for (uint64_t j = 0; j < len[1]; j++, to += 4) {
			uint32_t v;

			memcpy(&v, to, 4);
			v ^= y[((off[0] + i) / 2 - y_off[0]) * len[1] + j];
			memcpy(to, &v, 4);
		}
	return rc;
}

struct stage {
	struct catalog *catalog;
	struct files *files;
	struct fetch *fetch;
	struct derived derived[2];
	struct derived_input inputs[2][2];
	uint8_t *want[2];
	bool cached; /* otherwise every read computes, so there are fewer */
};

/* a and b are stored. c, made from a and b, is shown in place of a; d is made from c and b. */
static void put_checkpoint(struct stage *g, unsigned layers)
{
	static const uint64_t shapes[2][2] = { { ROWS, COLUMNS }, { (ROWS + 1) / 2, COLUMNS } };
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	const struct scene_opts o = { 2, 1 << 20, 4, TILE_GRID, ROWS_DENSE };
	struct scene s[2];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (unsigned i = 0; i < 2; i++) {
		do {
			scene_make_shape(&s[i], &c, &o, 2, shapes[i]);
		} while (s[i].count > 20 && (scene_release(&s[i]), true));
		dcp_scene_as(&d, i ? "b" : "a", 1, &s[i], CKPT_DTYPE_I32, i, layers);
	}
	dcp_end(&d, ".metadata");
	for (size_t i = 0; i < 2; i++) {
		g->want[i] = malloc(BYTES);
		REQUIRE(g->want[i]);
		for (size_t k = 0; k < ROWS * COLUMNS; k++) {
			uint32_t x, y;

			memcpy(&x, (i ? g->want[0] : s[0].want) + 4 * k, 4);
			memcpy(&y, s[1].want + 4 * (k / COLUMNS / 2 * COLUMNS + k % COLUMNS), 4);
			x ^= y;
			memcpy(g->want[i] + 4 * k, &x, 4);
		}
	}
	scene_release(&s[0]);
	scene_release(&s[1]);
}

static int stage_open(struct stage *g, size_t cache, struct ckpt_err *e)
{
	static const uint64_t shape[] = { ROWS, COLUMNS };
	struct catalog_computed v[] = {
		{ .fqn = "c", .fqn_len = 1, .dtype = CKPT_DTYPE_I32, .n_dims = 2, .shape = shape },
		{ .fqn = "d",
		  .fqn_len = 1,
		  .like = 1,
		  .dtype = CKPT_DTYPE_I32,
		  .n_dims = 2,
		  .shape = shape },
	};
	struct fetch_opts o = {
		.cache_bytes = cache, .map_bytes = cache, .derived = g->derived, .n_derived = 2
	};
	const bool hide[] = { true, false };
	const struct stored_file *s;
	uint32_t now[2];
	size_t n;
	int rc = scan_dir(dir_fd, &(struct scan_opts){ 0 }, &g->catalog, e);

	if (!rc)
		rc = catalog_compute(g->catalog, v, 2, hide, now, e);
	if (rc)
		return rc;
	REQUIRE(now[0] == 3 && now[1] == 0 && v[0].number == 1 && v[1].number == 2);
	g->inputs[0][0] = (struct derived_input){ .tensor = now[0] };
	g->inputs[1][0] = (struct derived_input){ .tensor = v[0].number };
	g->inputs[0][1] = g->inputs[1][1] = (struct derived_input){ .tensor = now[1] };
	for (size_t i = 0; i < 2; i++)
		g->derived[i] = (struct derived){
			.number = v[i].number, .run = xor_run, .inputs = g->inputs[i], .n_inputs = 2
		};
	s = catalog_sources(g->catalog, &n);
	rc = files_new(place, s, n, &g->files, e);
	return rc ? rc : fetch_new(g->catalog, g->files, &o, &g->fetch, e);
}

static void stage_close(struct stage *g)
{
	fetch_free(g->fetch);
	files_free(g->files);
	catalog_close(g->catalog);
	g->fetch = NULL;
	g->files = NULL;
	g->catalog = NULL;
}

static void stage_init(struct stage *g, unsigned layers, size_t cache)
{
	struct ckpt_err e = { 0 };

	*g = (struct stage){ .cached = cache > 0 };
	put_checkpoint(g, layers);
	if (stage_open(g, cache, &e))
		ck_abort_msg("%s", e.msg);
}

static void stage_release(struct stage *g)
{
	stage_close(g);
	free(g->want[0]);
	free(g->want[1]);
}

static int open_derived(struct stage *g, size_t i, struct tensor_reader **ret, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &catalog_tensors(g->catalog, NULL)[g->derived[i].number];
	struct vtensor *v;
	int rc = vtensor_whole(t, g->derived[i].number, CKPT_DTYPE_I32, &v, e);

	return rc ? rc : tensor_open(g->fetch, v, ret, e);
}

static void check_read(struct stage *g, const struct tensor_reader *t, size_t i, uint64_t off,
		       uint64_t len)
{
	autofree uint8_t *out = malloc(len + 1);
	struct ckpt_err e = { 0 };

	REQUIRE(out);
	if (tensor_read(g->fetch, t, out, len, off, NULL, &e))
		ck_abort_msg("%s", e.msg);
	ck_assert_msg(!memcmp(out, g->want[i] + off, len), "%llu bytes at %llu of %zu",
		      (unsigned long long)len, (unsigned long long)off, i);
}

START_FEW_TEST(every_range_has_the_computed_bytes, 6, 2)
{
	struct rng r = rng_new();
	struct stage g;
	struct tensor_reader *t;
	struct ckpt_err e = { 0 };
	bool cached = _i < 3;

	stage_init(&g, (unsigned)_i % 3, cached ? 64 << 20 : 0);
	for (size_t i = 0; i < 2; i++) {
		ck_assert_msg(!open_derived(&g, i, &t, &e), "%s", e.msg);
		ck_assert(tensor_is_encoded(t));
		check_read(&g, t, i, 0, BYTES);
		for (uint64_t edge = 0; edge <= BYTES; edge += (cached ? 1 : 3) * DECODED_SIZE)
			for (int64_t at = cached ? -3 : -1; at <= (cached ? 3 : 0); at++)
				for (uint64_t len = 1; len < (cached ? 10 : 3); len++)
					if ((int64_t)edge + at >= 0 &&
					    edge + (uint64_t)at + len <= BYTES)
						check_read(&g, t, i, edge + (uint64_t)at, len);
		for (int k = 0; k < (cached ? 100 : 4); k++) {
			uint64_t off = rng_below(&r, BYTES), most = BYTES - off;

			if (!cached)
				most = min_u64(most, 300000);
			check_read(&g, t, i, off, 1 + rng_below(&r, most));
		}
		tensor_close(g.fetch, t);
	}
	stage_release(&g);
}
END_TEST

START_TEST(a_small_read_computes_one_block_and_again_none)
{
	const uint64_t at = 2 * DECODED_SIZE + 5000;
	struct stage g;
	struct tensor_reader *t;
	struct ckpt_err e = { 0 };
	int first;

	stage_init(&g, 1, 64 << 20);
	ck_assert(!open_derived(&g, 0, &t, &e));
	ck_assert_int_eq(runs, 0);
	check_read(&g, t, 0, at, 4096);
	first = runs;
	ck_assert_int_ge(first, 1);
	ck_assert_int_le(first, 3); /* part of a row, rows, part of a row */
	check_read(&g, t, 0, at + 4096, 4096);
	ck_assert_int_eq(runs, first);
	tensor_close(g.fetch, t);
	stage_release(&g);
}
END_TEST

START_TEST(parts_and_other_shapes_of_it_are_tensors_too)
{
	static const uint64_t off[] = { 3, 1 }, step[] = { 7, 5 }, count[] = { 40, 200 };
	struct vtensor *v, *part;
	struct stage g;
	struct tensor_reader *t;
	struct ckpt_err e = { 0 };
	uint32_t *out = calloc(40 * 200, 4), want;

	stage_init(&g, 1, 1 << 20);
	REQUIRE(out);
	REQUIRE(!vtensor_whole(&catalog_tensors(g.catalog, NULL)[1], 1, CKPT_DTYPE_I32, &v, &e));
	REQUIRE(!vtensor_steps(v, off, step, count, &part, &e));
	ck_assert(!tensor_open(g.fetch, part, &t, &e));
	ck_assert(!tensor_read(g.fetch, t, out, 40 * 200 * 4, 0, NULL, &e));
	for (uint64_t i = 0; i < 40; i++)
		for (uint64_t j = 0; j < 200; j++) {
			memcpy(&want, g.want[0] + 4 * ((3 + 7 * i) * COLUMNS + 1 + 5 * j), 4);
			ck_assert_uint_eq(out[i * 200 + j], want);
		}
	tensor_close(g.fetch, t);
	free(out);
	free(v);
	stage_release(&g);
}
END_TEST

/* ---- what it is made of ---- */

struct spans {
	uint64_t bytes;
	unsigned files; /* bits */
};

static int add_span(void *arg, uint32_t file, uint64_t off, uint64_t len)
{
	struct spans *s = arg;

	(void)off;
	s->bytes += len;
	s->files |= 1u << file;
	return 0;
}

START_TEST(its_spans_are_those_of_the_inputs)
{
	struct stage g;
	struct tensor_reader *t;
	struct spans s = { 0 };
	struct ckpt_err e = { 0 };
	uint32_t file;
	uint64_t off;

	stage_init(&g, 0, 1 << 20);
	ck_assert(!open_derived(&g, 1, &t, &e));
	ck_assert(!tensor_spans(g.fetch, t, add_span, &s, &e));
	ck_assert_uint_eq(s.bytes, BYTES + 2 * ((ROWS + 1) / 2) * COLUMNS * 4);
	ck_assert_int_eq(tensor_in_place(t, &file, &off, &e), 1);
	(void)tensor_want(g.fetch, t, 1000, 100000);
	tensor_close(g.fetch, t);
	stage_release(&g);
}
END_TEST

START_TEST(two_tensors_of_one_name_are_refused)
{
	static const uint64_t shape[] = { 2, 2 }, huge[] = { UINT64_C(1) << 40, 1 << 22 };
	struct catalog_computed v = {
		.fqn = "b", .fqn_len = 1, .dtype = CKPT_DTYPE_I32, .n_dims = 2, .shape = shape
	};
	const bool hide[4] = { false };
	struct stage g;
	struct ckpt_err e = { 0 };
	uint32_t now[4];
	size_t n;

	stage_init(&g, 0, 1 << 20);
	ck_assert_int_eq(catalog_compute(g.catalog, &v, 1, hide, now, &e), -EEXIST);
	ck_assert_str_eq(e.msg, "there are two tensors 'b'");
	v.shape = huge;
	ck_assert_int_eq(catalog_compute(g.catalog, &v, 1, hide, now, &e), -EFBIG);
	(void)catalog_tensors(g.catalog, &n);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(catalog_all_tensors(g.catalog), 4);
	ck_assert_uint_eq(catalog_rows(g.catalog), 2);
	stage_release(&g);
}
END_TEST

/* ---- threads and faults ---- */

static void *read_much(void *arg)
{
	struct stage *g = arg;
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };

	for (int k = 0; k < (g->cached ? 30 : 6); k++) {
		size_t i = rng_below(&r, 2);
		uint64_t off = rng_below(&r, BYTES);
		struct tensor_reader *t;

		REQUIRE(!open_derived(g, i, &t, &e));
		check_read(g, t, i, off, 1 + rng_below(&r, min_u64(BYTES - off, 300000)));
		blockcache_ahead(fetch_blocks(g->fetch));
		tensor_close(g->fetch, t);
	}
	return NULL;
}

START_FEW_TEST(threads_wait_for_each_other_in_no_circle, 4, 2)
{
	struct stage g;
	pthread_t t[8];

	stage_init(&g, (unsigned)_i % 2, _i < 2 ? 0 : 1 << 20);
	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		REQUIRE(!pthread_create(&t[i], NULL, read_much, &g));
	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		(void)pthread_join(t[i], NULL);
	stage_release(&g);
}
END_TEST

START_FEW_TEST(whatever_fails_is_an_error, 2, 2)
{
	static uint8_t out[5000];
	struct stage g = { 0 };
	unsigned failed = 0;

	put_checkpoint(&g, 1);
	fault_sqlite();
	FAULT_LOOP_SOME(_i ? FAULT_READ : FAULT_ALLOC, 1)
	{
		const uint64_t at = 2 * DECODED_SIZE - 2500;
		struct tensor_reader *t = NULL;
		struct ckpt_err e = { 0 };
		int rc = stage_open(&g, 1 << 20, &e);

		if (!rc)
			rc = open_derived(&g, 1, &t, &e);
		if (!rc)
			rc = tensor_read(g.fetch, t, out, sizeof(out), at, NULL, &e);
		(void)fault_off();
		failed += rc != 0;
		if (rc)
			REQUIRE(rc == -e.code && e.msg[0]);
		else
			REQUIRE(!memcmp(out, g.want[1] + at, sizeof(out)));
		if (g.fetch)
			tensor_close(g.fetch, t);
		stage_close(&g);
	}
	ck_assert_uint_gt(failed, 3);
	stage_release(&g);
}
END_TEST

SUITE(derived, .setup = setup, .teardown = teardown, .seconds = 120)

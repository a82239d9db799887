/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "rng.h"
#include "scene_util.h"
#include "source/files.h"
#include "source/parts.h"
#include "source/place.h"
#include "suites.h"
#include "tensor/vtensor.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct place *place;

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

/* A checkpoint in dir, opened as core/api does it. */
struct stage {
	struct catalog *catalog;
	struct files *files;
	struct fetch *fetch;
};

/* where: NULL stands for memory */
static int make_catalog(const char *where, struct catalog **ret, struct ckpt_err *e)
{
	struct name_list files = { 0 };
	struct catalog_writer *w = NULL;
	const struct format *f;
	int rc = format_detect(place, NULL, &f, &files, e);

	if (!rc)
		rc = catalog_writer_new(where, f->name, dir, &w, e);
	if (!rc)
		rc = f->scan(place, &files, &(struct scan_opts){ 0 }, w, e);
	if (!rc)
		rc = catalog_writer_finish(w, ret, e);
	catalog_writer_free(w);
	name_list_release(&files);
	return rc;
}

static void stage_init(struct stage *g, const struct fetch_opts *o, const char *where)
{
	struct ckpt_err e = { 0 };
	size_t n;
	const struct stored_file *s;

	*g = (struct stage){ 0 };
	if (make_catalog(where, &g->catalog, &e))
		ck_abort_msg("%s", e.msg);
	s = catalog_sources(g->catalog, &n);
	REQUIRE(!files_new(place, s, n, &g->files, &e));
	REQUIRE(!fetch_new(g->catalog, g->files, o, &g->fetch, &e));
}

static void stage_release(struct stage *g)
{
	fetch_free(g->fetch);
	files_free(g->files);
	catalog_close(g->catalog);
}

static const struct fetch_opts plenty = { .cache_bytes = 64 << 20, .map_bytes = 64 << 20 };

/* All of a stored tensor as it is. */
static int open_stored(struct stage *g, size_t i, struct tensor_reader **ret, struct ckpt_err *e)
{
	struct vtensor *v;
	size_t n;
	const struct catalog_tensor *t = &catalog_tensors(g->catalog, &n)[i];

	return vtensor_whole(t, (uint32_t)i, t->dtype, &v, e) || tensor_open(g->fetch, v, ret, e)
		       ? -e->code
		       : 0;
}

static void check_read(struct stage *g, const struct tensor_reader *t, const struct scene *s,
		       uint64_t off, uint64_t len)
{
	autofree uint8_t *out = malloc(len + 1);
	struct ckpt_err e = { 0 };

	REQUIRE(out);
	if (tensor_read(g->fetch, t, out, len, off, NULL, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(!memcmp(out, s->want + off, len));
}

/* The same, but runs of min_run bytes stay in the page cache. */
static void check_parts(struct stage *g, const struct tensor_reader *t, const struct scene *s,
			uint64_t off, uint64_t len, uint64_t min_run)
{
	autofree uint8_t *out = malloc(len + 1);
	static struct parts p;
	struct ckpt_err e = { 0 };

	REQUIRE(out);
	memset(out, 0x55, len);
	parts_start(&p, g->files, out, min_run);
	if (tensor_read(g->fetch, t, out, len, off, &p, &e) || parts_finish(&p, len, &e))
		ck_abort_msg("%s", e.msg);
	for (int i = 0; i < p.n_iov; i++) {
		REQUIRE(p.iov[i].iov_len <= s->bytes - off);
		REQUIRE(!memcmp(p.iov[i].iov_base, s->want + off, p.iov[i].iov_len));
		off += p.iov[i].iov_len;
		len -= p.iov[i].iov_len;
	}
	REQUIRE(!len);
	parts_release(&p);
}

/* ---- tensors ---- */

START_FEW_TEST(tensors_of_any_layout_are_read, 8, 1)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	enum { N = 40 };
	static struct scene scenes[N];
	struct fetch_opts o = { .cache_bytes = _i % 2 ? 64 << 20 : 0,
				.map_bytes = _i % 4 < 2 ? 0 : 64 << 20 };
	struct stage g;
	struct dcp d;
	size_t n;

	dcp_begin(&d, dir_fd);
	for (int i = 0; i < N; i++) {
		struct scene_opts so = { 4, 500, (uint32_t)(1 << rng_below(&r, 5)), TILE_ANY,
					 (enum scene_strides)rng_below(&r, ROWS_BYTES) };
		char fqn[16];

		do {
			scene_make(&scenes[i], &c, &so);
			if (scenes[i].count < 30 && dcp_can_hold(&scenes[i]))
				break;
			scene_release(&scenes[i]);
		} while (true);
		(void)snprintf(fqn, sizeof(fqn), "t%03d", i);
		dcp_scene(&d, fqn, strlen(fqn), &scenes[i], (unsigned)i,
			  _i < 4 ? 0 : (unsigned)i % 3);
	}
	dcp_end(&d, ".metadata");
	stage_init(&g, &o, NULL);
	if (_i >= 4)
		REQUIRE(!files_allow_maps(g.files, 1, &(struct ckpt_err){ 0 }));
	(void)catalog_tensors(g.catalog, &n);
	ck_assert_uint_eq(n, N);
	for (int i = 0; i < N; i++) {
		struct tensor_reader *t = NULL;
		struct ckpt_err e = { 0 };

		if (open_stored(&g, (size_t)i, &t, &e))
			ck_abort_msg("%s", e.msg);
		check_read(&g, t, &scenes[i], 0, scenes[i].bytes);
		for (unsigned k = 0; k < rng_rounds(20, 4) && scenes[i].bytes; k++) {
			uint64_t off = rng_below(&r, scenes[i].bytes);

			check_read(&g, t, &scenes[i], off,
				   1 + rng_below(&r, scenes[i].bytes - off));
			check_parts(&g, t, &scenes[i], off,
				    1 + rng_below(&r, scenes[i].bytes - off),
				    1 + rng_below(&r, 20));
		}
		tensor_close(g.fetch, t);
	}
	stage_release(&g);
	for (int i = 0; i < N; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* complex64 [3], stored conjugated and negated by a big-endian machine */
START_LOOP_TEST(odd_payloads_are_resolved_whatever_the_range, 2)
{
	static const float want[] = { -1.5f, 2.5f, 3.5f, -4.5f, -5.5f, 6.5f };
	const int64_t size[] = { 3 };
	const uint64_t shape[] = { 3 }, box[] = { 0, 3 };
	uint32_t stored[6];
	struct saved t = { .dtype = CKPT_DTYPE_C64,
			   .n_dims = 1,
			   .size = size,
			   .storage = stored,
			   .storage_bytes = sizeof(stored),
			   .big = true,
			   .neg = true,
			   .conj = true };
	struct buf b = BUF_INIT(0);
	struct chunk_loc l;
	struct tensor_reader *o = NULL;
	struct ckpt_err e = { 0 };
	struct stage g;
	struct dcp d;

	for (int i = 0; i < 6; i++) {
		float v = i % 2 ? want[i] : -want[i];
		uint32_t u;

		memcpy(&u, &v, 4);
		stored[i] = htobe32(u);
	}
	(void)saved_item(&b, &t);
	dcp_begin(&d, dir_fd);
	l = dcp_item(&d, 0, b.data, b.len, (unsigned)_i);
	dcp_tensor(&d, "w", 1, "complex64", 1, shape, 1, box);
	dcp_stored(&d, "w", 1, 1, box, "__0_0.distcp", 0, (int64_t)l.length, (unsigned)_i);
	dcp_end(&d, ".metadata");
	stage_init(&g, &plenty, NULL);
	ck_assert_msg(!open_stored(&g, 0, &o, &e), "%s", e.msg);
	for (uint64_t off = 0; off <= 24; off++) {
		for (uint64_t len = 0; len <= 24 - off; len++) {
			uint8_t out[24];

			ck_assert_int_eq(tensor_read(g.fetch, o, out, len, off, NULL, &e), 0);
			ck_assert(!memcmp(out, (const uint8_t *)want + off, len));
		}
	}
	tensor_close(g.fetch, o);
	stage_release(&g);
	buf_release(&b);
}
END_TEST

/* ---- what is kept ---- */

enum { TENSORS = 20, SIDE = 100, FOUND = 16 << 10 /* bytes: what was found inside items */ };

/* t000... of SIDE chunks each, uint8 [SIDE] */
static void put_tensors(struct scene *scenes, unsigned layers)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { .element = 1, .strides = ROWS_DENSE };
	const uint64_t shape[] = { SIDE };
	uint64_t boxes[2 * SIDE];
	struct dcp d;

	for (uint64_t i = 0; i < SIDE; i++) {
		boxes[2 * i] = i;
		boxes[2 * i + 1] = 1;
	}
	dcp_begin(&d, dir_fd);
	for (int i = 0; i < TENSORS; i++) {
		char fqn[16];

		scene_make_of(&scenes[i], &c, &o, 1, shape, SIDE, boxes);
		(void)snprintf(fqn, sizeof(fqn), "t%03d", i);
		dcp_scene(&d, fqn, strlen(fqn), &scenes[i], 0, layers);
	}
	dcp_end(&d, ".metadata");
}

START_TEST(opened_tensors_are_kept_under_a_bound)
{
	static struct scene scenes[TENSORS];
	struct stage g;
	struct fetch_opts o = plenty;
	struct tensor_reader *t[TENSORS];
	struct ckpt_err e = { 0 };
	uint64_t reads;
	int64_t before, one = 0;

	o.map_bytes = 60000; /* of about 7,000 each */
	put_tensors(scenes, 0);
	stage_init(&g, &o, NULL);
	before = fault_live();
	for (size_t i = 0; i < 2; i++) {
		one = fault_live();
		ck_assert_int_eq(open_stored(&g, i, &t[i], &e), 0);
		tensor_close(g.fetch, t[i]);
		one = fault_live() - one;
	}
	ck_assert_int_lt(one, 20000);
	for (size_t i = 0; i < TENSORS; i++) {
		ck_assert_int_eq(open_stored(&g, i, &t[i], &e), 0);
		tensor_close(g.fetch, t[i]);
	}
	ck_assert_int_le(fault_live() - before, 60000 + one + FOUND);
	ck_assert_int_ge(fault_live() - before, 60000 - one);
	/* No item has to be looked into again: what was found there is kept. */
	reads = fault_reads();
	ck_assert_int_eq(open_stored(&g, TENSORS - 1, &t[0], &e), 0);
	ck_assert_uint_eq(fault_reads(), reads);
	ck_assert_int_eq(open_stored(&g, 0, &t[1], &e), 0);
	ck_assert_uint_eq(fault_reads(), reads);
	tensor_close(g.fetch, t[0]);
	tensor_close(g.fetch, t[1]);
	/* Open tensors stay, however many there are. */
	for (size_t i = 0; i < TENSORS; i++)
		ck_assert_int_eq(open_stored(&g, i, &t[i], &e), 0);
	ck_assert_int_ge(fault_live() - before, TENSORS * (one - 1000));
	for (size_t i = 0; i < TENSORS; i++)
		check_read(&g, t[i], &scenes[i], 0, SIDE);
	for (size_t i = 0; i < TENSORS; i++)
		tensor_close(g.fetch, t[i]);
	ck_assert_int_le(fault_live() - before, 60000 + one + FOUND);
	stage_release(&g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* In a flattened tensor every index may need a copy of its own: a plan of all would take 40 MB. */
enum { FLAT_ROWS = 500000, FLAT_CELLS = 2, FLAT_CELL = 2 };

START_LONG_TEST(a_large_strided_read_of_a_flattened_tensor_takes_little_memory)
{
	static const uint64_t stored[] = { 1, FLAT_CELLS, (uint64_t)FLAT_ROWS * FLAT_CELL };
	static const uint64_t logical[] = { FLAT_ROWS, (uint64_t)FLAT_CELLS * FLAT_CELL };
	/* Strides of rows, of cells and of elements in a cell's row: in order, and reversed. */
	static const int64_t strides[][3] = { { 4, 2, 1 },
					      { 1, (int64_t)FLAT_ROWS * FLAT_CELL, FLAT_ROWS } };
	const struct scene_opts o = { .element = 1, .strides = ROWS_DENSE };
	const uint64_t box[] = { 0, 0, 0, 1, FLAT_CELLS, stored[2] };
	const size_t size = (size_t)FLAT_ROWS * FLAT_CELLS * FLAT_CELL;
	autofree uint8_t *out = malloc(size);
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct tensor_reader *t = NULL;
	struct vtensor *v = NULL;
	struct catalog_tensor flat;
	struct ckpt_err e = { 0 };
	struct scene s;
	struct stage g;
	struct dcp d;
	int64_t before;
	size_t n;

	scene_make_of(&s, &c, &o, 3, stored, 1, box);
	dcp_begin(&d, dir_fd);
	dcp_scene(&d, "w", 1, &s, 0, 0);
	dcp_end(&d, ".metadata");
	stage_init(&g, &plenty, NULL);
	flat = catalog_tensors(g.catalog, &n)[0];
	flat.n_logical = 2;
	flat.logical = logical;
	REQUIRE(out && !vtensor_logical(&flat, 0, flat.dtype, &v, &e));
	ck_assert_uint_eq(v->n_dims, 3);
	REQUIRE(!tensor_open(g.fetch, v, &t, &e));
	before = fault_live();
	fault_peak_reset();
	for (size_t k = 0; k < ARRAY_LEN(strides); k++) {
		memset(out, 0x55, size);
		ck_assert_int_eq(tensor_scatter(g.fetch, t, out, strides[k], flat.dtype, &e), 0);
		for (uint64_t i = 0; i < size; i++) {
			uint64_t row = i / 4, cell = i / 2 % 2, at = i % 2;

			REQUIRE(out[row * (uint64_t)strides[k][0] + cell * (uint64_t)strides[k][1] +
				    at * (uint64_t)strides[k][2]] ==
				s.want[cell * stored[2] + row * FLAT_CELL + at]);
		}
	}
	ck_assert_int_le(fault_peak() - before, (int64_t)20 << 20);
	tensor_close(g.fetch, t);
	stage_release(&g);
	scene_release(&s);
}
END_TEST

START_TEST(listing_chunks_looks_into_no_item)
{
	static struct scene scenes[TENSORS];
	const struct chunkmap *m = NULL;
	struct otensor *a;
	struct tensor_reader *b;
	struct ckpt_err e = { 0 };
	struct stage g;
	uint64_t reads;

	put_tensors(scenes, 0);
	stage_init(&g, &plenty, NULL);
	reads = fault_reads();
	ck_assert_int_eq(otensor_map(g.fetch, 3, &a, &m, &e), 0);
	ck_assert_uint_eq(m->count, SIDE);
	ck_assert_uint_eq(fault_reads(), reads);
	ck_assert_int_eq(open_stored(&g, 3, &b, &e), 0);
	ck_assert_uint_eq(fault_reads(), reads + SIDE);
	otensor_close(g.fetch, a);
	check_read(&g, b, &scenes[3], 0, SIDE);
	tensor_close(g.fetch, b);
	tensor_close(g.fetch, NULL);
	otensor_close(g.fetch, NULL);
	stage_release(&g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* ---- threads ---- */

struct crowd {
	struct stage g;
	struct scene *scenes;
	atomic_uint turn;
};

static void *open_read_close(void *arg)
{
	struct crowd *w = arg;
	struct rng r = { ++w->turn };

	for (int k = 0; k < 150; k++) {
		size_t i = rng_below(&r, TENSORS);
		struct tensor_reader *t = NULL;
		struct ckpt_err e = { 0 };
		uint8_t out[SIDE];

		if (rng_chance(&r, 20)) {
			const struct chunkmap *m;
			struct otensor *o;

			if (otensor_map(w->g.fetch, i, &o, &m, &e) || m->count != SIDE)
				return arg;
			otensor_close(w->g.fetch, o);
		} else if (open_stored(&w->g, i, &t, &e) ||
			   tensor_read(w->g.fetch, t, out, SIDE, 0, NULL, &e) ||
			   memcmp(out, w->scenes[i].want, SIDE) != 0) {
			return arg;
		}
		tensor_close(w->g.fetch, t);
	}
	return NULL;
}

START_FEW_TEST(threads_open_and_read_at_once, 2, 1)
{
	static struct scene scenes[TENSORS];
	struct fetch_opts o = { .cache_bytes = 64 << 20, .map_bytes = 20000 };
	struct crowd w = { .scenes = scenes };
	pthread_t threads[8];

	put_tensors(scenes, (unsigned)_i);
	stage_init(&w.g, &o, NULL);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, open_read_close, &w), 0);
	for (int i = 0; i < 8; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	stage_release(&w.g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* ---- an index that breaks while it is in use ---- */

struct renewal {
	unsigned calls;
	bool fail;
};

static int renew(void *arg, struct catalog **ret, struct ckpt_err *e)
{
	struct renewal *n = arg;

	n->calls++;
	return n->fail ? err_set(e, ESTALE, "the test refuses") : make_catalog(NULL, ret, e);
}

/* Every page but the first is overwritten. */
static void break_index(const char *name)
{
	static const uint8_t junk[16384] = { 0xff, 0xff, 0xff };
	autoclose int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0);
	for (off_t at = 16384; pread(fd, &(char){ 0 }, 1, at) == 1; at += 16384)
		REQUIRE(pwrite(fd, junk, sizeof(junk), at) == sizeof(junk));
}

START_TEST(a_broken_index_is_renewed_once)
{
	static struct scene scenes[TENSORS];
	struct renewal n = { 0 };
	struct fetch_opts o = { .cache_bytes = 64 << 20, .renew = renew, .renew_arg = &n };
	struct crowd w = { .scenes = scenes };
	pthread_t threads[8];
	char where[4200];

	put_tensors(scenes, 0);
	(void)snprintf(where, sizeof(where), "%s/index", dir);
	stage_init(&w.g, &o, where);
	break_index("index");
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, open_read_close, &w), 0);
	for (int i = 0; i < 8; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	ck_assert_uint_eq(n.calls, 1);
	stage_release(&w.g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

START_LOOP_TEST(without_renewal_a_broken_index_is_an_error, 2)
{
	static struct scene scenes[TENSORS];
	struct renewal n = { .fail = true };
	struct fetch_opts o = { .cache_bytes = 64 << 20,
				.renew = _i ? renew : NULL,
				.renew_arg = &n };
	struct stage g;
	struct ckpt_err e = { 0 };
	struct tensor_reader *t = NULL;
	char where[4200];

	put_tensors(scenes, 0);
	(void)snprintf(where, sizeof(where), "%s/index", dir);
	stage_init(&g, &o, where);
	break_index("index");
	ck_assert_int_eq(open_stored(&g, 0, &t, &e), _i ? -ESTALE : -EBADMSG);
	if (_i)
		ck_assert_str_eq(e.msg, "the test refuses");
	ck_assert_ptr_null(t);
	stage_release(&g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* ---- errors ---- */

/* A uint8 tensor [4] "w" in file f, which has the n bytes at p, as an index would describe it. */
static void put_item(const char *encoding, const void *p, size_t n, uint64_t offset,
		     uint64_t length, struct catalog **ret)
{
	const uint64_t shape[] = { 4 }, box[] = { 0, 4 };
	struct chunk_loc l = { .offset = offset, .length = length };
	struct tensor_chunks t = { .fqn = "w\n",
				   .fqn_len = 2,
				   .dtype = CKPT_DTYPE_U8,
				   .n_dims = 1,
				   .shape = shape,
				   .count = 1,
				   .boxes = box,
				   .locs = &l };
	struct catalog_writer *w = NULL;
	struct ckpt_err e = { 0 };

	put_file(dir_fd, "f", p, n);
	REQUIRE(!catalog_writer_new(NULL, "dcp", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "f", 1, &l.file, &e));
	REQUIRE(!catalog_add_encoding(w, encoding, &l.encoding, &e));
	REQUIRE(!catalog_add_tensor(w, &t, &e));
	REQUIRE(!catalog_add_object(w, &(struct object_item){ .fqn = "o", .fqn_len = 1, .loc = l },
				    &e));
	REQUIRE(!catalog_writer_finish(w, ret, &e));
	catalog_writer_free(w);
}

static const struct {
	const char *encoding;
	unsigned layers; /* layers that it really has */
	size_t cut;	 /* bytes missing from the file */
	int code;	 /* of open; 0: opens */
	const char *msg;
} items[] = {
	{ "dcp", 0, 0, 0, NULL },
	{ "dcp+stream.zstd/1", 1, 0, 0, NULL },
	{ "dcp+stream.zstd/1.5", 1, 0, 0, NULL },
	{ "dcp+stream.zstd/1+stream.zstd/1.0", 2, 0, 0, NULL },
	{ "dcp+stream.zstd/2", 1, 0, ENOTSUP,
	  "tensor 'w%0A', item at 0 of 'f': stored as 'dcp+stream.zstd/2', which is not known" },
	{ "dcp+stream.zstd/12", 1, 0, ENOTSUP, NULL },
	{ "dcp+stream.gzip/1", 1, 0, ENOTSUP, NULL },
	{ "dcp+", 0, 0, ENOTSUP, NULL },
	{ "dcpx", 0, 0, ENOTSUP, NULL },
	{ "pickle", 0, 0, ENOTSUP, NULL },
	{ "dcp", 1, 0, EBADMSG, NULL },
	{ "dcp+stream.zstd/1", 0, 0, EBADMSG,
	  "tensor 'w%0A', item at 0 of 'f': zstd: Unknown frame descriptor" },
	{ "dcp", 0, 1, EBADMSG, NULL },
};

START_LOOP_TEST(how_an_item_is_stored_is_told_by_its_encoding, ARRAY_LEN(items))
{
	const int64_t size[] = { 4 };
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "data",
			   .storage_bytes = 4 };
	struct buf b = BUF_INIT(0);
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	struct tensor_reader *o = NULL;
	size_t n;
	const struct stored_file *s;
	uint8_t *p;
	char out[4];

	(void)saved_item(&b, &t);
	p = (uint8_t *)b.data;
	n = b.len;
	for (unsigned l = 0; l < items[_i].layers; l++) {
		uint8_t *next = zstd_pack(p, n, 0, &n);

		free(p);
		p = next;
	}
	put_item(items[_i].encoding, p, n - items[_i].cut, 0, n, &g.catalog);
	s = catalog_sources(g.catalog, &n);
	REQUIRE(!files_new(place, s, n, &g.files, &e));
	REQUIRE(!fetch_new(g.catalog, g.files, &plenty, &g.fetch, &e));
	ck_assert_int_eq(open_stored(&g, 0, &o, &e), -items[_i].code);
	ck_assert_int_eq(e.code, items[_i].code);
	if (items[_i].msg)
		ck_assert_str_eq(e.msg, items[_i].msg);
	if (!items[_i].code) {
		ck_assert_int_eq(tensor_read(g.fetch, o, out, 4, 0, NULL, &e), 0);
		ck_assert_mem_eq(out, "data", 4);
	}
	tensor_close(g.fetch, o);
	stage_release(&g);
	free(p);
}
END_TEST

/* A safetensors file begins where .metadata says that the item begins, and goes on to the file's
 * end. */
START_LOOP_TEST(safetensors_reach_to_the_end_of_their_file_and_no_further, 2)
{
	static const char json[] =
		"{\"w\\n\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
	uint8_t b[200] = "junk";
	size_t n = 4 + 8 + sizeof(json) - 1 + 7;
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	struct tensor_reader *o = NULL;
	const struct stored_file *s;
	size_t k;
	char out[4];

	b[4] = sizeof(json) - 1;
	memcpy(b + 12, json, sizeof(json) - 1);
	memcpy(b + n - 7, "xyzdata", 7);
	put_item("dcp", b, n - (size_t)_i, 4, 4, &g.catalog);
	s = catalog_sources(g.catalog, &k);
	REQUIRE(!files_new(place, s, k, &g.files, &e));
	REQUIRE(!fetch_new(g.catalog, g.files, &plenty, &g.fetch, &e));
	ck_assert_int_eq(open_stored(&g, 0, &o, &e), _i ? -EBADMSG : 0);
	if (_i) {
		ck_assert_str_eq(e.msg, "tensor 'w%0A', item at 4 of 'f': the item is neither a "
					"torch.save archive nor safetensors: safetensors header: "
					"the data has 7 bytes, but the file has 6");
	} else {
		ck_assert_int_eq(tensor_read(g.fetch, o, out, 4, 0, NULL, &e), 0);
		ck_assert_mem_eq(out, "data", 4);
	}
	tensor_close(g.fetch, o);
	stage_release(&g);
}
END_TEST

START_TEST(a_file_changed_after_opening_is_an_error_with_a_sentence)
{
	const int64_t size[] = { 4 };
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "data",
			   .storage_bytes = 4 };
	struct buf b = BUF_INIT(0);
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	struct tensor_reader *o = NULL;
	size_t n;
	const struct stored_file *s;
	char out[4];

	(void)saved_item(&b, &t);
	put_item("dcp", b.data, b.len, 0, b.len, &g.catalog);
	s = catalog_sources(g.catalog, &n);
	REQUIRE(!files_new(place, s, n, &g.files, &e));
	REQUIRE(!fetch_new(g.catalog, g.files, &plenty, &g.fetch, &e));
	ck_assert_int_eq(open_stored(&g, 0, &o, &e), 0);
	(void)usleep(20000);
	put_file(dir_fd, "f", b.data, b.len);
	ck_assert_int_eq(tensor_read(g.fetch, o, out, 2, 1, NULL, &e), -EIO);
	ck_assert_str_eq(
		e.msg,
		"tensor 'w%0A', bytes 1 to 3: 'f' was changed after the checkpoint was opened");
	tensor_close(g.fetch, o);
	stage_release(&g);
	buf_release(&b);
}
END_TEST

/* Opening twice gives the same: a failed open leaves nothing half done behind. */
START_LOOP_TEST(a_failed_open_can_be_repeated, 2)
{
	static struct scene scenes[TENSORS];
	struct stage g;
	unsigned failed = 0;

	put_tensors(scenes, (unsigned)_i);
	stage_init(&g, &plenty, NULL);
	for (int kind = 0; kind < 2; kind++) {
		size_t i = 0;

		FAULT_LOOP(kind ? FAULT_ALLOC : FAULT_READ)
		{
			struct tensor_reader *t = NULL;
			struct ckpt_err e = { 0 };
			uint8_t out[SIDE];
			int rc = open_stored(&g, i % TENSORS, &t, &e);

			if (!rc)
				rc = tensor_read(g.fetch, t, out, SIDE, 0, NULL, &e);
			(void)fault_off();
			ck_assert(!rc || (e.code == -rc && e.msg[0]));
			ck_assert(rc || !memcmp(out, scenes[i % TENSORS].want, SIDE));
			tensor_close(g.fetch, t);
			failed += rc != 0;
			ck_assert_int_eq(open_stored(&g, i % TENSORS, &t, &e), 0);
			check_read(&g, t, &scenes[i % TENSORS], 0, SIDE);
			tensor_close(g.fetch, t);
			i++;
		}
	}
	ck_assert_uint_gt(failed, 5);
	stage_release(&g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

START_TEST(without_memory_there_is_no_fetch)
{
	static struct scene scenes[TENSORS];
	struct stage g;

	put_tensors(scenes, 0);
	stage_init(&g, &plenty, NULL);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct fetch *f = NULL;
		struct ckpt_err e = { 0 };
		int rc = fetch_new(g.catalog, g.files, &plenty, &f, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		fetch_free(f);
	}
	stage_release(&g);
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}
END_TEST

/* ---- objects ---- */

static const struct {
	size_t n;
	unsigned layers;
} objects[] = { { 0, 0 },  { 10, 0 },	   { 3000000, 0 }, { 0, 1 },
		{ 10, 1 }, { 1 << 20, 1 }, { 3000000, 1 }, { 3000, 2 } };

START_LOOP_TEST(objects_are_read_after_undoing_transforms, ARRAY_LEN(objects))
{
	struct rng r = rng_new();
	size_t n = objects[_i].n, count;
	autofree uint8_t *bytes = malloc(n + 1), *out = malloc(n + 101);
	struct stage g;
	struct dcp d;
	struct ckpt_err e = { 0 };
	struct item_source item;
	uint64_t size = 42;

	ck_assert(bytes && out);
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)rng_below(&r, 5);
	dcp_begin(&d, dir_fd);
	dcp_bytes(&d, "first", 5, "xxx", 3, 0, 0);
	dcp_bytes(&d, "o", 1, bytes, n, 0, objects[_i].layers);
	dcp_end(&d, ".metadata");
	stage_init(&g, &plenty, NULL);
	ck_assert_int_eq(fetch_item(g.fetch, &catalog_objects(g.catalog, &count)[1].loc, &item, &e),
			 0);
	ck_assert_int_eq(item_size(&item, &size, &e), 0);
	ck_assert_uint_eq(size, n);
	for (int k = 0; k < 50; k++) {
		uint64_t off = k ? rng_below(&r, n + 50) : 0;
		size_t len = k ? rng_below(&r, n + 100) : n + 100, want = off < n ? n - off : 0;

		want = want < len ? want : len;
		ck_assert_int_eq(item_read_some(&item, out, len, off, &e), (int64_t)want);
		ck_assert(!want || !memcmp(out, bytes + off, want));
	}
	stage_release(&g);
}
END_TEST

START_TEST(a_damaged_object_is_an_error)
{
	struct stage g;
	struct dcp d;
	struct ckpt_err e = { 0 };
	struct item_source item;
	uint64_t size = 42;
	size_t count;
	char out[10];

	dcp_begin(&d, dir_fd);
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, "__0_0.distcp", 0, 20, 1);
	(void)dcp_item(&d, 0, "this is no zstd frame", 21, 0);
	dcp_end(&d, ".metadata");
	stage_init(&g, &plenty, NULL);
	ck_assert_int_eq(fetch_item(g.fetch, &catalog_objects(g.catalog, &count)[0].loc, &item, &e),
			 0);
	ck_assert_int_eq(item_size(&item, &size, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "zstd: Unknown frame descriptor");
	ck_assert_uint_eq(size, 42);
	ck_assert_int_eq(item_read_some(&item, out, 10, 0, &e), -EBADMSG);
	stage_release(&g);
}
END_TEST

SUITE(fetch, .setup = setup, .teardown = teardown, .seconds = 120)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "model/box.h"
#include "model/dtype.h"
#include "opts_util.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put_text(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

static void setup(void)
{
	dir_setup();
	put_text("metadata.json", "{\"sharded_backend\": \"zarr\"}");
}

static int open_with(const char *index, struct ckpt **ret, struct ckpt_err *e)
{
	return open_typed(dir, &(struct ckpt_opts){ .index = index, .allow_missing = true }, ret,
			  e);
}

/* ---- arrays ---- */

static const struct {
	const char *name;
	enum ckpt_dtype dtype;
	bool swapped;
} dtypes[] = {
	{ "<f4", CKPT_DTYPE_F32, false },	{ ">f4", CKPT_DTYPE_F32, true },
	{ "bfloat16", CKPT_DTYPE_BF16, false }, { "|b1", CKPT_DTYPE_BOOL, false },
	{ "<i8", CKPT_DTYPE_I64, false },	{ ">u2", CKPT_DTYPE_U16, true },
	{ "<c16", CKPT_DTYPE_C128, false },	{ "|u1", CKPT_DTYPE_U8, false },
};
enum { DIMS = 4 };

struct array {
	size_t n;
	uint64_t shape[DIMS], chunk[DIMS];
	unsigned type;
	bool fortran, nested, holes;
	uint8_t *want; /* little-endian, C order */
	uint64_t bytes;
};

static uint64_t index_of(size_t n, const uint64_t *shape, const uint64_t *x, bool fortran)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n; i++) {
		size_t d = fortran ? n - 1 - i : i;

		at = at * shape[d] + x[d];
	}
	return at;
}

/* The file of a chunk, with something in the elements that lie beyond the array. */
static void put_chunk(const struct array *a, const char *key, const uint64_t *cell, struct rng *r)
{
	size_t size = dtype_info(dtypes[a->type].dtype)->size;
	size_t unit = dtype_info(dtypes[a->type].dtype)->unit;
	uint64_t x[DIMS] = { 0 }, y[DIMS], volume;
	char name[200];
	size_t at = (size_t)snprintf(name, sizeof(name), "%s", key);
	autofree uint8_t *bytes = NULL;

	REQUIRE(box_volume(a->n, a->chunk, &volume));
	bytes = malloc(volume * size);
	REQUIRE(bytes);
	random_bytes(r, bytes, volume * size);
	do {
		uint8_t *to = bytes + index_of(a->n, a->chunk, x, a->fortran) * size;
		const uint8_t *from;
		bool inside = true;

		for (size_t d = 0; d < a->n; d++) {
			y[d] = cell[d] * a->chunk[d] + x[d];
			inside &= y[d] < a->shape[d];
		}
		if (!inside)
			continue;
		from = a->want + index_of(a->n, a->shape, y, false) * size;
		for (size_t i = 0; i < size; i++)
			to[i] = from[dtypes[a->type].swapped ? i / unit * unit + unit - 1 - i % unit
							     : i];
	} while (next_index(a->n, a->chunk, x));
	for (size_t d = 0; d < a->n; d++) {
		at += (size_t)snprintf(name + at, sizeof(name) - at, "%c%llu",
				       !d || a->nested ? '/' : '.', (unsigned long long)cell[d]);
		if (a->nested && d + 1 < a->n)
			(void)mkdirat(dir_fd, name, 0700);
	}
	put_file(dir_fd, a->n ? name : strcat(name, "/0"), bytes, volume * size);
}

static void put_array(struct array *a, const char *key, struct rng *r)
{
	struct buf json = BUF_INIT(1000);
	uint64_t cells[DIMS], cell[DIMS] = { 0 };
	char path[200];

	*a = (struct array){ .n = rng_below(r, DIMS + 1),
			     .type = (unsigned)rng_below(r, ARRAY_LEN(dtypes)),
			     .fortran = rng_chance(r, 30),
			     .nested = rng_chance(r, 30) };
	for (size_t d = 0; d < a->n; d++) {
		a->shape[d] = 1 + rng_below(r, 6);
		a->chunk[d] = 1 + rng_below(r, 7);
		cells[d] = (a->shape[d] + a->chunk[d] - 1) / a->chunk[d];
	}
	REQUIRE(box_volume(a->n, a->shape, &a->bytes));
	a->bytes *= dtype_info(dtypes[a->type].dtype)->size;
	a->want = malloc(a->bytes);
	REQUIRE(a->want);
	random_bytes(r, a->want, a->bytes);
	REQUIRE(!mkdirat(dir_fd, key, 0700));
	buf_str(&json, "{\"zarr_format\": 2, \"shape\": ");
	buf_json_u64s(&json, a->shape, a->n);
	buf_str(&json, ", \"chunks\": ");
	buf_json_u64s(&json, a->chunk, a->n);
	buf_printf(&json, ", \"order\": \"%c\", \"dtype\": \"%s\", \"compressor\": null%s}",
		   a->fortran ? 'F' : 'C', dtypes[a->type].name,
		   a->nested	       ? ", \"dimension_separator\": \"/\""
		   : rng_chance(r, 50) ? ", \"dimension_separator\": \".\", \"filters\": null"
				       : "");
	(void)snprintf(path, sizeof(path), "%s/.zarray", key);
	put_file(dir_fd, path, json.data, json.len);
	buf_release(&json);
	do {
		if (rng_chance(r, 2))
			a->holes = true;
		else
			put_chunk(a, key, cell, r);
	} while (next_index(a->n, cells, cell));
}

static void expect_array(struct ckpt *c, const struct array *a, const char *key)
{
	int64_t i = ckpt_tensor_find(c, key, strlen(key));
	autofree uint8_t *got = malloc(a->bytes + 1);
	struct ckpt_file *f = NULL;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };

	REQUIRE(i >= 0 && got);
	ckpt_tensor(c, (uint64_t)i, &t);
	ck_assert_str_eq(t.dtype, dtype_info(dtypes[a->type].dtype)->name);
	ck_assert_uint_eq(t.n_dims, a->n);
	ck_assert(!memcmp(t.shape, a->shape, a->n * sizeof(*a->shape)));
	ck_assert_int_eq(t.fault != NULL, a->holes);
	if (a->holes)
		return;
	ck_assert_msg(!ckpt_file_open(c, ckpt_tensor_node(c, (uint64_t)i), &f, &e), "%s", e.msg);
	ck_assert_uint_eq(ckpt_file_size(f), a->bytes);
	ck_assert_int_eq(ckpt_file_read(f, got, a->bytes + 1, 0, &e), (int64_t)a->bytes);
	ck_assert(!memcmp(got, a->want, a->bytes));
	ckpt_file_close(f);
}

START_TEST(arrays_are_read_element_by_element)
{
	enum { ARRAYS = 150 };
	static struct array a[ARRAYS];
	struct rng r = rng_new();
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char key[32];

	for (int i = 0; i < ARRAYS; i++) {
		(void)snprintf(key, sizeof(key), "layers.%d.w", i);
		put_array(&a[i], key, &r);
	}
	ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
	for (int i = 0; i < ARRAYS; i++) {
		(void)snprintf(key, sizeof(key), "layers.%d.w", i);
		expect_array(c, &a[i], key);
		free(a[i].want);
	}
	ckpt_close(c);
}
END_TEST

/* ---- refusals ---- */

#define HEAD "{\"zarr_format\":2,\"order\":\"C\",\"dtype\":\"<f4\","

static const struct {
	const char *json, *msg;
} arrays[] = {
	{ "{}", "its zarr_format is not 2" },
	{ "[]", "its zarr_format is not 2" },
	{ "{\"zarr_format\":3}", "its zarr_format is not 2" },
	{ HEAD "\"shape\":4}", "its shape is not a list of at most 64 numbers" },
	{ HEAD "\"shape\":[-1]}", "its shape is not a list of at most 64 numbers" },
	{ HEAD "\"shape\":[1.5]}", "its shape is not a list of at most 64 numbers" },
	{ HEAD "\"shape\":[4]}", "its chunks are not a list of as many numbers as its shape" },
	{ HEAD "\"shape\":[4],\"chunks\":[]}",
	  "its chunks are not a list of as many numbers as its shape" },
	{ HEAD "\"shape\":[4],\"chunks\":[0]}", "its chunks have no elements" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4]}",
	  "its dtype is neither a string nor a list" },
	{ HEAD "\"shape\":[4],\"chunks\":[4],\"dimension_separator\":\"-\"}",
	  "the separator of its keys is neither '.' nor '/'" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4],\"dtype\":\"<f4\",\"order\":\"K\"}",
	  "its order is neither C nor F" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4],\"dtype\":\"<f4\"}",
	  "its order is neither C nor F" },
	{ HEAD "\"shape\":[4,4],\"chunks\":[4611686018427387904,4]}",
	  "its chunks have more than 2^63 bytes" },
};

START_LOOP_TEST(an_array_that_is_not_read_is_refused, ARRAY_LEN(arrays))
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char want[4600];

	(void)mkdirat(dir_fd, "w", 0700);
	put_text("w/.zarray", arrays[_i].json);
	put_text("w/0", "0123456789abcdef");
	put_text("w/0.0", "0123456789abcdef");
	(void)snprintf(want, sizeof(want), "checkpoint '%.200s': 'w/.zarray': %s", dir,
		       arrays[_i].msg);
	ck_assert_int_lt(open_with(":memory:", &c, &e), 0);
	ck_assert_str_eq(e.msg, want);
}
END_TEST

/* The array is listed beside one that can be read, with the reason why it cannot. */
static const struct {
	const char *json, *fault;
} unsupported[] = {
	{ "\"dtype\":\"\",\"order\":\"C\"", "not supported: the dtype ''" },
	{ "\"dtype\":\"<V2\",\"order\":\"C\"", "not supported: the dtype '<V2'" },
	{ "\"dtype\":\"<\",\"order\":\"C\"", "not supported: the dtype '<'" },
	{ "\"dtype\":\"|f4\",\"order\":\"C\"", "not supported: the dtype '|f4'" },
	{ "\"dtype\":[[\"x\",\"<f4\"]],\"order\":\"C\"",
	  "not supported: a dtype of several fields" },
	{ "\"dtype\":\"<f4\",\"order\":\"C\",\"compressor\":{\"id\":\"zfpy\"}",
	  "not supported: the codec 'zfpy'" },
	{ "\"dtype\":\"<f4\",\"order\":\"C\",\"compressor\":7",
	  "not supported: the codec '(not a name)'" },
	{ "\"dtype\":\"<f4\",\"order\":\"C\",\"filters\":[{}]", "not supported: filters" },
};

START_LOOP_TEST(an_array_of_what_is_not_supported_is_listed, ARRAY_LEN(unsupported))
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt_tensor t;
	struct ckpt_object x;
	char json[300];
	bool tensor = strstr(unsupported[_i].json, "<f4\",\"order") != NULL;

	(void)mkdirat(dir_fd, "w", 0700);
	(void)mkdirat(dir_fd, "good", 0700);
	put_text("good/.zarray", HEAD "\"shape\":[1],\"chunks\":[1]}");
	put_text("good/0", "abcd");
	(void)snprintf(json, sizeof(json), "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4],%s}",
		       unsupported[_i].json);
	put_text("w/.zarray", json);
	put_text("w/0", "0123456789abcdef");
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	if (tensor) {
		ckpt_tensor(c, 1, &t);
		ck_assert_str_eq(t.fault, unsupported[_i].fault);
	} else {
		ckpt_object(c, 0, &x);
		ck_assert_str_eq(x.fault, unsupported[_i].fault);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(chunks_without_zarray_are_a_fault)
{
	static const char *const names[] = { "w/0", "w/1.0", "w/0/x" };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals t;
	struct ckpt_object o;

	put_text("common.pt", "common");
	(void)mkdirat(dir_fd, "w.sync", 0700);
	put_text("w.sync/0", "lock");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		(void)mkdirat(dir_fd, "w", 0700);
		if (strchr(names[i] + 2, '/'))
			(void)mkdirat(dir_fd, "w/0", 0700);
		put_text(names[i], "0123456789abcdef");
		ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
		ckpt_totals(c, &t);
		ck_assert_uint_eq(t.objects, 2);
		ckpt_object(c, 1, &o);
		ck_assert_str_eq(o.fqn, "w");
		ck_assert_str_eq(o.fault, "its .zarray is missing, but it has chunks");
		ckpt_close(c);
		ck_assert_int_eq(unlinkat(dir_fd, names[i], 0), 0);
	}
}
END_TEST

/* ---- names ---- */

START_TEST(other_names_are_no_chunks)
{
	static const char *const names[] = {
		"00",	  "01",	      "1",   "1.0", "-1",
		"+0",	  "0x",	      "0.0", " 0",  "18446744073709551616",
		".0.tmp", "0.partial"
	};
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_tensor t;
	char path[64];

	(void)mkdirat(dir_fd, "w", 0700);
	(void)mkdirat(dir_fd, "w.sync", 0700);
	put_text("w.sync/0", "lock");
	put_text("w/.zarray", HEAD "\"shape\":[4],\"chunks\":[4]}");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		(void)snprintf(path, sizeof(path), "w/%s", names[i]);
		put_text(path, "0123456789abcdef");
	}
	ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
	ckpt_tensor(c, 0, &t);
	ck_assert_uint_eq(t.chunks, 0);
	ck_assert_ptr_nonnull(t.fault);
	ckpt_close(c);
}
END_TEST

START_TEST(objects_are_called_by_their_unique_keys)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals t;
	struct ckpt_object o;

	(void)mkdirat(dir_fd, "rng", 0700);
	(void)mkdirat(dir_fd, "other", 0700);
	put_text("rng/shard_0.0_1.2.pt", "zero");
	put_text("rng/shard_0.1_1.2.pt", "one");
	put_text("rng/shard_0.pt2", "");
	put_text("other/file", "");
	put_text("common.pt", "common");
	ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	ck_assert_uint_eq(t.objects, 3);
	ckpt_object(c, 1, &o);
	ck_assert_str_eq(o.fqn, "rng/shard_0.0_1.2");
	ck_assert_str_eq(o.path, "rng/shard_0.0_1.2.pt");
	ck_assert_uint_eq(o.length, 4);
	ckpt_object(c, 0, &o);
	ck_assert_str_eq(o.fqn, "common.pt");
	ckpt_close(c);
}
END_TEST

static const struct {
	const char *names[4], *missing;
} parts[] = {
	{ { "shard_0_2.pt", "shard_1_2.pt" }, NULL },
	{ { "shard_0_2.pt" }, "'x/shard_1_2.pt', a part of an object, is missing" },
	{ { "shard_1_2.pt" }, "'x/shard_0_2.pt', a part of an object, is missing" },
	{ { "shard_0.0_2.2.pt", "shard_0.1_2.2.pt", "shard_1.1_2.2.pt" },
	  "'x/shard_1.0_2.2.pt', a part of an object, is missing" },
	{ { "shard_0_4000000000.pt" },
	  "'x/shard_1_4000000000.pt', a part of an object, is missing" },
	/* Megatron-core 0.5 loses a number of the shape. */
	{ { "shard_0.0_2.pt", "shard_0.1_2.pt", "shard_1.0_2.pt" }, NULL },
	/* What says nothing about others. */
	{ { "shard_0_2.pt", "shard_0_3.pt" }, NULL },
	{ { "shard_0_2", "shard_0_.pt", "shard__2.pt", "shard_0._2.pt" }, NULL },
	{ { "shard_0_0.pt" }, NULL },
	{ { "shard_0.0.0.0.0.0.0.0.0_2.1.1.1.1.1.1.1.1.pt" }, NULL },
};

START_LOOP_TEST(parts_of_objects_tell_which_others_there_are, ARRAY_LEN(parts))
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals t;

	(void)mkdirat(dir_fd, "x", 0700);
	for (size_t i = 0; i < ARRAY_LEN(parts[_i].names) && parts[_i].names[i]; i++) {
		char path[128];

		(void)snprintf(path, sizeof(path), "x/%s", parts[_i].names[i]);
		put_text(path, "");
	}
	put_text("common.pt", "common");
	ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	if (parts[_i].missing)
		ck_assert_str_eq(t.missing, parts[_i].missing);
	else
		ck_assert_msg(!t.missing, "%s", t.missing);
	ckpt_close(c);
}
END_TEST

/* ---- the index ---- */

static bool builds(const char *index)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals t;

	ck_assert_msg(!open_with(index, &c, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	ckpt_close(c);
	return t.index_built;
}

START_TEST(what_is_written_makes_the_index_stale)
{
	static const struct timespec long_ago[] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	char elsewhere[4096], index[4200];
	int fd = new_dir(elsewhere);

	(void)snprintf(index, sizeof(index), "%s/index", elsewhere);
	(void)mkdirat(dir_fd, "w", 0700);
	put_text("w/.zarray", HEAD "\"shape\":[8],\"chunks\":[4]}");
	put_text("w/0", "0123456789abcdef");
	/* File systems have coarse clocks, so the files are made old. */
	ck_assert_int_eq(utimensat(dir_fd, "w", long_ago, 0), 0);
	ck_assert_int_eq(utimensat(dir_fd, "metadata.json", long_ago, 0), 0);
	ck_assert(builds(index));
	ck_assert(!builds(index));
	put_text("w/1", "0123456789abcdef"); /* a hole is filled */
	ck_assert(builds(index));
	ck_assert(!builds(index));
	(void)mkdirat(dir_fd, "v", 0700); /* another tensor */
	put_text("v/.zarray", HEAD "\"shape\":[8],\"chunks\":[4]}");
	ck_assert(builds(index));
	ck_assert(!builds(index));
	/* The same text again, from another save. */
	ck_assert_int_eq(unlinkat(dir_fd, "metadata.json", 0), 0);
	put_text("metadata.json", "{\"sharded_backend\": \"zarr\"}");
	ck_assert(builds(index));
	put_text("common.pt", "x");
	ck_assert(builds(index));
	ck_assert(!builds(index));
	(void)close(fd);
}
END_TEST

/* "NAME: first bytes of it " for each tensor. */
static void list_tensors(struct buf *b, struct ckpt *c)
{
	struct ckpt_totals totals;
	struct ckpt_err e = { 0 };

	ckpt_totals(c, &totals);
	b->len = 0;
	for (uint64_t i = 0; i < totals.tensors; i++) {
		struct ckpt_tensor t;
		struct ckpt_file *f = NULL;
		char got[9] = "";

		ckpt_tensor(c, i, &t);
		ck_assert_msg(!ckpt_file_open(c, ckpt_tensor_node(c, i), &f, &e), "%s", e.msg);
		ck_assert_msg(ckpt_file_read(f, got, 8, 0, &e) == 8, "%s", e.msg);
		buf_printf(b, "%s: %s ", t.fqn, got);
		ckpt_file_close(f);
	}
}

START_TEST(directories_may_be_links_beneath_the_checkpoint_and_no_others)
{
	static const struct {
		const char *target, *msg;
	} rows[] = { { "../outside", "open 'w': refused, a link leads out of the checkpoint" },
		     { "/nowhere", "open 'w': refused, a link leads out of the checkpoint" },
		     { "nowhere", "open 'w': No such file or directory" },
		     { "w", "open 'w': refused, a link leads out of the checkpoint" } };
	struct buf b = BUF_INIT(1000);
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	(void)mkdirat(dir_fd, ".parts", 0700);
	(void)mkdirat(dir_fd, ".parts/a", 0700);
	(void)mkdirat(dir_fd, ".parts/row", 0700);
	put_text(".parts/a/.zarray", HEAD "\"shape\":[4],\"chunks\":[4]}");
	put_text(".parts/a/0", "abcdefghijklmnop");
	put_text(".parts/row/0", "ABCDEFGHIJKLMNOP");
	(void)mkdirat(dir_fd, "nested", 0700);
	put_text("nested/.zarray",
		 HEAD "\"dimension_separator\":\"/\",\"shape\":[1,4],\"chunks\":[1,4]}");
	ck_assert_int_eq(symlinkat(".parts/a", dir_fd, "w"), 0);
	ck_assert_int_eq(symlinkat("../.parts/row", dir_fd, "nested/0"), 0);
	ck_assert_int_eq(symlinkat("metadata.json", dir_fd, "file"), 0); /* not a directory */
	ck_assert_int_eq(symlinkat("/dev/null", dir_fd, "outside"), 0);
	ck_assert_msg(!open_with(":memory:", &c, &e), "%s", e.msg);
	list_tensors(&b, c);
	ck_assert_str_eq(b.data, "nested: ABCDEFGH w: abcdefgh ");
	ckpt_close(c);
	ck_assert_int_eq(unlinkat(dir_fd, "nested/0", 0), 0); /* its chunk is missing then */
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *of = "checkpoint '";
		char outside[5000];

		(void)snprintf(outside, sizeof(outside), "%s/../outside", dir);
		(void)mkdir(outside, 0700);
		ck_assert_int_eq(unlinkat(dir_fd, "w", 0), 0);
		ck_assert_int_eq(symlinkat(rows[i].target, dir_fd, "w"), 0);
		ck_assert_int_lt(open_with(":memory:", &c, &e), 0);
		ck_assert_msg(!strncmp(e.msg, of, strlen(of)) && strstr(e.msg, rows[i].msg), "%s",
			      e.msg);
		(void)rmdir(outside);
	}
	buf_release(&b);
}
END_TEST

SUITE(zarr, .setup = setup, .teardown = dir_teardown, .seconds = 60)

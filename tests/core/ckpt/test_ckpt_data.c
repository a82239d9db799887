/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every checkpoint of tests/data goes through all of core, and is compared with what torch itself
 * said about it.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "data_util.h"
#include "model/box.h"
#include "opts_util.h"
#include "rng.h"
#include "sha256_util.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- expected.json ---- */

/*
 * Jansson accepts neither lone surrogates nor NULs in names. Both are moved to code points that no
 * name uses: \udXXX to \ueXXX, \u0000 to \ue700; fqn_name() does the same to a FQN.
 */
static void move_strange(char *text)
{
	for (char *s = strstr(text, "\\u"); s; s = strstr(s + 6, "\\u")) {
		unsigned long v = strtoul((char[]){ s[2], s[3], s[4], s[5], 0 }, NULL, 16);

		if (s > text && s[-1] == '\\')
			continue;
		if (!v)
			memcpy(s + 2, "e700", 4);
		else if (v >= 0xd800 && v < 0xdc00 && !strncmp(s + 6, "\\ud", 3))
			s += 6; /* a pair, and one character */
		else if (v >= 0xd800 && v < 0xe000)
			s[2] = 'e';
	}
}

static char *fqn_name(const char *fqn, size_t len)
{
	struct buf b = BUF_INIT(1 << 20);

	buf_str(&b, "");
	for (size_t i = 0; i < len; i++) {
		bool surrogate =
			(uint8_t)fqn[i] == 0xed && i + 1 < len && (uint8_t)fqn[i + 1] >= 0xa0;

		if (!fqn[i])
			buf_str(&b, "\xee\x9c\x80");
		else
			buf_add(&b, surrogate ? "\xee" : fqn + i, 1);
	}
	REQUIRE(!b.err);
	return b.data;
}

static json_t *load_expected(const char *name)
{
	char path[600];
	size_t n;
	autofree char *text = NULL;
	autoclose int fd = open(data_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	json_error_t why;
	json_t *j;

	REQUIRE(fd >= 0);
	(void)snprintf(path, sizeof(path), "%s/expected.json", name);
	text = (char *)get_file(fd, path, &n);
	move_strange(text);
	j = json_loads(text, JSON_DECODE_INT_AS_REAL, &why); /* objects may be long integers */
	ck_assert_msg(j != NULL, "%s: %s in line %d", path, why.text, why.line);
	return j;
}

static const char *string_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	ck_assert_msg(s != NULL, "expected.json lacks '%s'", key);
	return s;
}

static int open_case(const char *name, const char *sub, const struct ckpt_opts *o,
		     struct ckpt **ret, struct ckpt_err *e)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s/%s", data_dir(), name, sub);
	return open_typed(path, o, ret, e);
}

/* ---- reading ---- */

/* Reads a whole file, then ranges of it once more, and compares them. */
static uint8_t *read_file(struct ckpt *c, ckpt_node node, size_t *ret_n)
{
	struct rng r = rng_new();
	struct ckpt_file *f = NULL;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	uint8_t *whole;
	uint64_t size;

	ck_assert_msg(!ckpt_file_open(c, node, &f, &e), "%s", e.msg);
	size = ckpt_file_size(f);
	ck_assert_int_eq(ckpt_stat(c, node, &st, &e), 0);
	ck_assert(!st.is_dir && st.size == size && st.node == node);
	whole = malloc(size + 100);
	REQUIRE(whole);
	ck_assert_msg(ckpt_file_read(f, whole, size + 100, 0, &e) == (int64_t)size, "%s", e.msg);
	ck_assert_int_eq(ckpt_file_read(f, whole, 100, size, &e), 0);
	ck_assert_int_eq(ckpt_file_read(f, whole, 100, UINT64_MAX, &e), 0);
	for (int i = 0; i < 20 && size; i++) {
		uint64_t off = rng_below(&r, size), len = rng_below(&r, size - off + 50);
		uint64_t want = len < size - off ? len : size - off;
		autofree uint8_t *part = malloc(want + 1); /* no byte more is written */

		REQUIRE(part);
		REQUIRE(ckpt_file_read(f, part, len, off, &e) == (int64_t)want);
		REQUIRE(!memcmp(part, whole + off, want));
	}
	ckpt_file_close(f);
	*ret_n = size;
	return whole;
}

static ckpt_node node_of(struct ckpt *c, const char *dir, uint64_t pos,
			 char name[static CKPT_NAME_MAX + 1])
{
	struct ckpt_err e = { 0 };
	ckpt_node d, n, again;

	ck_assert_int_eq(ckpt_walk(c, dir, &d, &e), 0);
	ck_assert_int_eq(ckpt_entry(c, d, pos, name, &n), 0);
	ck_assert_int_eq(ckpt_lookup(c, d, name, &again), 0);
	ck_assert_uint_eq(n, again);
	ck_assert_uint_eq(ckpt_parent(c, n), d);
	return n;
}

static void check_xattr(struct ckpt *c, ckpt_node node, const char *name, const void *want,
			size_t n)
{
	struct ckpt_err e = { 0 };
	char value[5000];

	ck_assert_int_eq(ckpt_xattr(c, node, name, value, sizeof(value), &e), (int64_t)n);
	ck_assert(!memcmp(value, want, n));
}

/* The .npy file is a header and the same bytes. */
static void check_npy(struct ckpt *c, uint64_t pos, const uint8_t *bytes, size_t n)
{
	char name[CKPT_NAME_MAX + 1];
	size_t size, head;
	autofree uint8_t *npy = read_file(c, node_of(c, "npy", pos, name), &size);

	ck_assert_uint_ge(size, n + 64);
	ck_assert_mem_eq(npy, "\x93NUMPY\x01\x00", 8);
	head = 10u + npy[8] + 256u * npy[9];
	ck_assert_uint_eq(head + n, size);
	ck_assert(!memcmp(npy + head, bytes, n));
}

static void check_shape(const json_t *want, size_t n_dims, const uint64_t *shape)
{
	ck_assert_uint_eq(json_array_size(want), n_dims);
	for (size_t d = 0; d < n_dims; d++)
		ck_assert_uint_eq((uint64_t)json_number_value(json_array_get(want, d)), shape[d]);
}

struct boxes {
	const json_t *want;
	size_t n_dims, seen;
};

static bool is_box(const json_t *want, const struct ckpt_chunk *chunk, size_t n)
{
	for (size_t d = 0; d < n; d++)
		if ((uint64_t)json_number_value(json_array_get(json_array_get(want, 0), d)) !=
			    chunk->off[d] ||
		    (uint64_t)json_number_value(json_array_get(json_array_get(want, 1), d)) !=
			    chunk->len[d])
			return false;
	return true;
}

static int each_chunk(void *arg, const struct ckpt_chunk *chunk)
{
	struct boxes *b = arg;
	bool found = false;

	for (size_t i = 0; i < json_array_size(b->want); i++)
		found |= is_box(json_array_get(b->want, i), chunk, b->n_dims);
	ck_assert(found);
	ck_assert(chunk->length && chunk->path[0]);
	ck_assert(!strncmp(chunk->encoding, "dcp", 3) || !strcmp(chunk->encoding, "raw"));
	b->seen++;
	return 0;
}

/* The number of chunks that torch lists, without empty ones and replicas. */
static size_t count_boxes(const json_t *want, size_t n_dims)
{
	size_t count = 0;

	for (size_t i = 0; i < json_array_size(want); i++) {
		const json_t *box = json_array_get(want, i);
		bool skip = false;

		for (size_t d = 0; d < n_dims; d++)
			skip |= !(uint64_t)json_number_value(
				json_array_get(json_array_get(box, 1), d));
		for (size_t k = 0; k < i; k++)
			skip |= json_equal(box, json_array_get(want, k)) == 1;
		count += !skip;
	}
	return count;
}

static void check_tensor(struct ckpt *c, uint64_t i, const json_t *want)
{
	struct boxes boxes = { .want = json_object_get(want, "chunks") };
	char name[CKPT_NAME_MAX + 1], hex[65], number[32];
	ckpt_node node = node_of(c, "tensors", i, name);
	autofree uint8_t *bytes = NULL;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	ckpt_node by_fqn = 0;
	uint64_t files = 0;
	size_t n;

	ckpt_tensor(c, i, &t);
	ck_assert_int_eq(ckpt_tensor_find(c, t.fqn, t.fqn_len), (int64_t)i);
	ck_assert_int_eq(ckpt_fqn_node(c, t.fqn, t.fqn_len, &by_fqn), 0);
	ck_assert_uint_eq(by_fqn, node);
	ck_assert_str_eq(t.dtype, string_of(want, "dtype"));
	ck_assert_uint_eq(t.bytes, (uint64_t)json_number_value(json_object_get(want, "nbytes")));
	check_shape(json_object_get(want, "shape"), t.n_dims, t.shape);
	check_xattr(c, node, "user.ckptfs.fqn", t.fqn, t.fqn_len);
	check_xattr(c, node, "user.ckptfs.dtype", t.dtype, strlen(t.dtype));
	n = (size_t)snprintf(number, sizeof(number), "%llu", (unsigned long long)t.chunks);
	check_xattr(c, node, "user.ckptfs.chunks", number, n);
	if (json_is_false(json_object_get(want, "complete")) ||
	    json_object_get(want, "unsupported")) {
		struct ckpt_file *f = NULL;

		ck_assert_ptr_nonnull(t.fault);
		ck_assert_int_eq(ckpt_file_open(c, node, &f, &e), -EIO);
		ck_assert_ptr_nonnull(strstr(e.msg, t.fault));
		return;
	}
	ck_assert_msg(!t.fault, "%s", t.fault);
	boxes.n_dims = t.n_dims;
	if (boxes.want) { /* torch cannot read safetensors back and lists none */
		ck_assert_int_eq(ckpt_tensor_chunks(c, i, each_chunk, &boxes, &e), 0);
		ck_assert_uint_eq(boxes.seen, t.chunks);
		ck_assert_uint_eq(boxes.seen, count_boxes(boxes.want, t.n_dims));
	}
	ck_assert_int_eq(ckpt_tensor_files(c, i, &files, &e), 0);
	ck_assert(files <= t.chunks && (files || !t.chunks));
	bytes = read_file(c, node, &n);
	ck_assert_uint_eq(n, t.bytes);
	ck_assert_msg(!strcmp(sha256_hex(bytes, n, hex), string_of(want, "sha256")),
		      "%s has other bytes", name);
	check_npy(c, i, bytes, n);
}

static uint64_t objects_of(const struct ckpt *c)
{
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	return t.objects;
}

/* NAME.json must have the size that was given before anybody read it; Python checks that it is
 * JSON. */
static void check_value(struct ckpt *c, uint64_t i)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node = node_of(c, "objects", objects_of(c) + i, name);
	struct ckpt_err e = { 0 };
	autofree char *direct = NULL;
	size_t n, len;
	autofree uint8_t *bytes = read_file(c, node, &n);

	ck_assert(n > 1 && bytes[n - 1] == '\n' && !memchr(bytes, '\n', n - 1));
	ck_assert_ptr_null(memmem(bytes, n, "__error__", strlen("__error__")));
	ck_assert_str_eq(name + strlen(name) - strlen(".json"), ".json");
	ck_assert_int_eq(ckpt_object_json(c, i, &direct, &len, &e), 0);
	ck_assert_uint_eq(len, n);
	ck_assert_mem_eq(direct, bytes, n);
}

static void check_object(struct ckpt *c, uint64_t i, const json_t *want)
{
	char name[CKPT_NAME_MAX + 1], hex[65];
	ckpt_node node = node_of(c, "objects", i, name);
	struct ckpt_object o;
	size_t n;
	autofree uint8_t *bytes = read_file(c, node, &n);

	ckpt_object(c, i, &o);
	ck_assert_ptr_null(o.fault);
	ck_assert_int_eq(ckpt_object_find(c, o.fqn, o.fqn_len), (int64_t)i);
	ck_assert_uint_eq(n, (uint64_t)json_number_value(json_object_get(want, "length")));
	ck_assert_str_eq(sha256_hex(bytes, n, hex), string_of(want, "sha256"));
	check_xattr(c, node, "user.ckptfs.fqn", o.fqn, o.fqn_len);
	check_value(c, i);
}

/* logical/ has the tensors that were flattened, in their original shapes. */
static void check_logical(struct ckpt *c, const json_t *want)
{
	struct ckpt_stat st = { 0 };
	struct ckpt_err e = { 0 };
	ckpt_node dir;

	if (!json_object_size(want)) {
		ck_assert_int_eq(ckpt_walk(c, "logical", &dir, &e), -ENOENT);
		return;
	}
	ck_assert_int_eq(ckpt_walk(c, "logical", &dir, &e), 0);
	ck_assert_int_eq(ckpt_stat(c, dir, &st, &e), 0);
	ck_assert_uint_eq(st.size, json_object_size(want));
	for (uint64_t i = 0; i < st.size; i++) {
		char name[CKPT_NAME_MAX + 1], hex[65];
		ckpt_node node = node_of(c, "logical", i, name);
		const json_t *t = json_object_get(want, name);
		struct buf shape = BUF_INIT(1000);
		const json_t *dim;
		uint8_t *bytes;
		size_t n, d;

		ck_assert_msg(t != NULL, "'%s' is not expected", name);
		json_array_foreach(json_object_get(t, "shape"), d, dim)
			buf_printf(&shape, "%c%.0f", d ? ',' : '[', json_number_value(dim));
		buf_str(&shape, "]");
		check_xattr(c, node, "user.ckptfs.shape", shape.data, shape.len);
		check_xattr(c, node, "user.ckptfs.fqn", name, strlen(name));
		bytes = read_file(c, node, &n);
		ck_assert_msg(!strcmp(sha256_hex(bytes, n, hex), string_of(t, "sha256")),
			      "logical/%s has other bytes", name);
		free(bytes);
		buf_release(&shape);
	}
}

/* ---- whole checkpoints ---- */

/* What torch has in planner_data. */
static void check_path(const struct ckpt *c, bool is_object, uint64_t i, const json_t *want)
{
	struct ckpt_step s[16] = { 0 };
	size_t n = (is_object ? ckpt_object_path : ckpt_tensor_path)(c, i, s, ARRAY_LEN(s));

	ck_assert_uint_eq(n, json_array_size(want));
	REQUIRE(n <= ARRAY_LEN(s));
	for (size_t k = 0; k < n; k++) {
		const json_t *step = json_array_get(want, k);
		autofree char *text = fqn_name(s[k].text, s[k].len);

		REQUIRE(s[k].is_position == json_is_number(step));
		if (s[k].is_position)
			REQUIRE((double)s[k].position == json_number_value(step));
		else
			ck_assert_str_eq(text, json_string_value(step));
	}
}

static void check_all(struct ckpt *c, const json_t *want)
{
	const json_t *tensors = json_object_get(want, "tensors"),
		     *objects = json_object_get(want, "bytes"),
		     *paths = json_object_get(want, "planner_data");
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	ck_assert_str_eq(t.format, strcmp(string_of(want, "format"), "hf")
					   ? string_of(want, "format")
					   : "safetensors");
	ck_assert_uint_eq(t.tensors, json_object_size(tensors));
	ck_assert_uint_eq(t.objects, json_object_size(objects));
	for (uint64_t i = 0; i < t.tensors; i++) {
		struct ckpt_tensor x;
		autofree char *name = NULL;

		ckpt_tensor(c, i, &x);
		name = fqn_name(x.fqn, x.fqn_len);
		ck_assert_msg(json_object_get(tensors, name) != NULL, "'%s' is not expected", name);
		check_tensor(c, i, json_object_get(tensors, name));
		if (paths)
			check_path(c, false, i, json_object_get(paths, name));
	}
	for (uint64_t i = 0; i < t.objects; i++) {
		struct ckpt_object x;
		autofree char *name = NULL;

		ckpt_object(c, i, &x);
		name = fqn_name(x.fqn, x.fqn_len);
		ck_assert_msg(json_object_get(objects, name) != NULL, "'%s' is not expected", name);
		check_object(c, i, json_object_get(objects, name));
		if (paths)
			check_path(c, true, i, json_object_get(paths, name));
	}
	check_logical(c, json_object_get(want, "logical"));
}

/* arg: the checkpoint's ckpt_totals. */
static void report(void *arg, const struct ckpt_fault *f)
{
	const struct ckpt_totals *t = arg;

	if (!f->warning && !(t->missing && strstr(f->what, t->missing)))
		ck_abort_msg("%s: %s", f->fqn ? f->fqn : "file", f->what);
}

static bool has_holes(const json_t *want)
{
	const char *key;
	json_t *t;

	json_object_foreach (json_object_get(want, "tensors"), key, t)
		if (json_is_false(json_object_get(t, "complete")) ||
		    json_object_get(t, "unsupported"))
			return true;
	return false;
}

static void check_good(const char *name, const json_t *want)
{
	char index[4400];
	bool holes = has_holes(want);
	/* With an index in memory, with one built into a file, and with that file. */
	const struct ckpt_opts opts[] = {
		{ .index = ":memory:", .allow_missing = holes },
		{ .index = index, .allow_holes = holes, .cache = 1, .maps = 1 },
		{ .index = index, .allow_missing = true },
	};

	(void)snprintf(index, sizeof(index), "%s/%s.sqlite", getenv("TMPDIR"), name);
	for (size_t i = 0; i < ARRAY_LEN(opts); i++) {
		struct ckpt *c = NULL;
		struct ckpt_totals t;
		struct ckpt_check k = { .data = true, .fault = report, .arg = &t };
		struct ckpt_err e = { 0 };

		ck_assert_msg(!open_case(name, string_of(want, "ckpt"), &opts[i], &c, &e), "%s",
			      e.msg);
		ckpt_totals(c, &t);
		ck_assert_int_eq(t.index_built, i < 2);
		check_all(c, want);
		if (!holes) {
			ck_assert_uint_eq(t.incomplete, 0);
			ck_assert_int_eq(ckpt_check(c, &k, &e), 0);
			ck_assert_uint_eq(k.faults, t.missing != NULL);
			ck_assert_uint_ge(k.items, t.chunks);
		}
		ckpt_close(c);
	}
	if (holes) {
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(open_case(name, string_of(want, "ckpt"), &opts[0], &c, &e), 0);
		ckpt_close(c);
		c = NULL;
		ck_assert_int_eq(open_case(name, string_of(want, "ckpt"),
					   &(struct ckpt_opts){ .index = index }, &c, &e),
				 -EBADMSG);
		ck_assert_ptr_null(c);
	}
}

static void check_refused(const char *name, const json_t *want)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_lt(open_case(name, string_of(want, "ckpt"),
				   &(struct ckpt_opts){ .index = ":memory:" }, &c, &e),
			 0);
	ck_assert(e.code && strstr(e.msg, "checkpoint '") == e.msg);
	ck_assert_ptr_null(c);
}

/* ---- rank files ---- */

/* The union of the ranks' chunks of tensor `fqn`, or NULL if ranks differ in dtype or shape. */
static uint8_t *join_ranks(const char *name, const json_t *ranks, const char *fqn, size_t *ret_n)
{
	const json_t *first = NULL;
	const char *key;
	json_t *rank;
	uint8_t *out = NULL;
	autoclose int fd = open(data_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	json_object_foreach ((json_t *)(uintptr_t)ranks, key, rank) {
		const json_t *t = json_object_get(json_object_get(rank, "tensors"), fqn), *box,
			     *chunks;
		autofree uint8_t *bytes = NULL;
		char path[600];
		size_t i, row;

		if (!t)
			continue;
		if (first &&
		    (!json_equal(json_object_get(first, "shape"), json_object_get(t, "shape")) ||
		     strcmp(string_of(first, "dtype"), string_of(t, "dtype")) != 0)) {
			free(out);
			return NULL;
		}
		(void)snprintf(path, sizeof(path), "%s/%s", name, string_of(t, "file"));
		bytes = get_file(fd, path, ret_n);
		if (!first) {
			out = calloc(1, *ret_n + 1);
			REQUIRE(out);
		}
		first = t;
		/* The fixtures are cut along the first dimension, so a chunk is some rows. */
		row = *ret_n /
		      (size_t)json_number_value(json_array_get(json_object_get(t, "shape"), 0));
		chunks = json_object_get(t, "chunks");
		for (i = 0; i < json_array_size(chunks); i++) {
			size_t from, rows;

			box = json_array_get(chunks, i);
			from = (size_t)json_number_value(json_array_get(json_array_get(box, 0), 0));
			rows = (size_t)json_number_value(json_array_get(json_array_get(box, 1), 0));
			memcpy(out + from * row, bytes + from * row, rows * row);
		}
	}
	return out;
}

static void check_ranks(const char *name, const json_t *want)
{
	const json_t *ranks = json_object_get(want, "per_metadata");
	struct ckpt *c = NULL;
	struct ckpt_totals totals;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_case(name, string_of(want, "ckpt"),
				 &(struct ckpt_opts){ .index = ":memory:" }, &c, &e),
		      "%s", e.msg);
	ckpt_totals(c, &totals);
	ck_assert_uint_gt(totals.tensors,
			  json_object_size(ranks)); /* the one that differs is there for each */
	for (uint64_t i = 0; i < totals.tensors; i++) {
		char file[CKPT_NAME_MAX + 1], hex[65], key[64];
		ckpt_node node = node_of(c, "tensors", i, file);
		const char *at = strstr(file, "@rank");
		size_t n, m = 0;
		autofree uint8_t *got = read_file(c, node, &n), *joined = NULL;

		if (!at) {
			joined = join_ranks(name, ranks, file, &m);
			ck_assert_ptr_nonnull(joined);
			ck_assert_uint_eq(n, m);
			ck_assert(!memcmp(got, joined, n));
			continue;
		}
		file[at - file] = 0;
		ck_assert_ptr_null(join_ranks(name, ranks, file, &m));
		(void)snprintf(key, sizeof(key), "__%s.metadata", at + 5);
		ck_assert_str_eq(
			sha256_hex(got, n, hex),
			string_of(json_object_get(
					  json_object_get(json_object_get(ranks, key), "tensors"),
					  file),
				  "sha256"));
	}
	ckpt_close(c);
}

START_LOOP_TEST(real_checkpoints_read_as_torch_reads_them, data_count("expected.json"))
{
	const char *name = data_name(_i);
	json_t *want;
	const char *format;

	want = load_expected(name);
	format = string_of(want, "format");
	if (!strcmp(format, "dcp") || !strcmp(format, "hf") || !strcmp(format, "hyperparallel") ||
	    !strncmp(format, "megatron", 8) || !strcmp(format, "torch.save") ||
	    !strcmp(format, "deepspeed") || !strcmp(format, "fsdp"))
		check_good(name, want);
	else if (!strcmp(format, "dcp-ranklocal"))
		check_ranks(name, want);
	else if (!strcmp(format, "error"))
		check_refused(name, want);
	else
		ck_abort_msg("format '%s' of %s is not known", format, name);
	json_decref(want);
}
END_TEST

START_TEST(there_are_real_checkpoints)
{
	char hex[65];

	ck_assert_str_eq(sha256_hex("abc", 3, hex),
			 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	ck_assert_msg(data_count("expected.json") > 30,
		      "%d checkpoints in %s; run from the repository root, or set TEST_DATA",
		      data_count("expected.json"), data_dir());
}
END_TEST

SUITE(ckpt_data, .seconds = 60)

/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/ocdbt.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "ocdbt_util.h"
#include "rng.h"
#include "suites.h"

#include <zstd.h>

CLEANUP_POINTER(node_freep, struct ocdbt_node, ocdbt_node_free)

static struct buf in = BUF_INIT(1 << 22), out = BUF_INIT(1 << 20);
static struct ckpt_err err;

static void teardown(void)
{
	buf_release(&in);
	buf_release(&out);
}

/* Prints a node into out: "key=value " and "key@file:base+offset+length ". */
static int show_node(const void *p, size_t n, const char *base)
{
	struct ocdbt_body b CLEANUP(ocdbt_body_release) = { 0 };
	struct ocdbt_node *node CLEANUP(node_freep) = NULL;
	struct ocdbt_entry x;
	int rc = ocdbt_unwrap(p, n, OCDBT_NODE, &b, &err);

	buf_restart(&out);
	buf_str(&out, "");
	if (!rc)
		rc = ocdbt_node_open(&b, base, strlen(base), &node, &err);
	if (rc)
		return rc;
	while ((rc = ocdbt_node_next(node, &x, &err)) > 0) {
		buf_add(&out, x.key, x.key_len);
		buf_printf(&out, ocdbt_node_height(node) ? "/%zu" : "", x.common);
		if (x.bytes) {
			buf_str(&out, "=");
			buf_add(&out, x.bytes, x.at.length);
		} else {
			REQUIRE(strlen(x.at.file->path) == x.at.file->len);
			REQUIRE(x.at.file->base <= x.at.file->len);
			buf_printf(&out, "@%s:%u+%llu+%llu", x.at.file->path, x.at.file->base,
				   (unsigned long long)x.at.offset,
				   (unsigned long long)x.at.length);
		}
		buf_str(&out, " ");
	}
	return rc;
}

static int show_manifest(const void *p, size_t n)
{
	struct ocdbt_body b CLEANUP(ocdbt_body_release) = { 0 };
	struct arena a CLEANUP(arena_release) = ARENA_INIT(1 << 20);
	struct ocdbt_manifest m;
	int rc = ocdbt_unwrap(p, n, OCDBT_MANIFEST, &b, &err);

	if (!rc)
		rc = ocdbt_manifest_read(&b, &a, &m, &err);
	buf_restart(&out);
	buf_str(&out, "");
	if (!rc && m.numbered)
		buf_str(&out, "numbered");
	else if (!rc && m.is_empty)
		buf_printf(&out, "%llu empty", (unsigned long long)m.generation);
	else if (!rc)
		buf_printf(&out, "%llu: height %u at %s:%u+%llu+%llu",
			   (unsigned long long)m.generation, m.height, m.root.file->path,
			   m.root.file->base, (unsigned long long)m.root.offset,
			   (unsigned long long)m.root.length);
	return rc;
}

static void expect(const char *base, const char *want)
{
	ck_assert_msg(!show_node(in.data, in.len, base), "%s", err.msg);
	ck_assert_str_eq(out.data, want);
}

static void expect_error(int code, const char *want)
{
	ck_assert_int_eq(show_node(in.data, in.len, "b/"), -code);
	ck_assert_msg(strstr(err.msg, want) != NULL, "%s", err.msg);
}

static const struct ocdbt_path one_file[] = { { 0, "d/abc", 0 } };
static const struct ocdbt_row leaf[] = {
	{ .rest = "a/.zarray", .text = "{}" },
	{ .shared = 2, .rest = "0.0", .offset = 7, .length = 300 },
	{ .shared = 4, .rest = "1", .text = "" },
	{ .rest = "b", .offset = 1000000, .length = 0 },
};

static void put_leaf(void)
{
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, leaf, ARRAY_LEN(leaf));
}

START_TEST(a_leaf_has_values_and_where_they_are)
{
	put_leaf();
	expect("", "a/.zarray={} a/0.0@d/abc:0+7+300 a/0.1= b@d/abc:0+1000000+0 ");
	expect("x/", "a/.zarray={} a/0.0@x/d/abc:2+7+300 a/0.1= b@x/d/abc:2+1000000+0 ");
}
END_TEST

START_TEST(an_interior_node_has_children)
{
	static const struct ocdbt_row rows[] = {
		{ .rest = "abc", .common = 2, .offset = 1, .length = 2 },
		{ .shared = 3, .rest = "d", .common = 4, .offset = 3, .length = 4 },
	};

	ocdbt_node(&in, 3, one_file, 1, rows, 2);
	expect("", "abc/2@d/abc:0+1+2 abcd/4@d/abc:0+3+4 ");
}
END_TEST

/* A path may share more than the base with the path before it: real stores have such paths. */
START_TEST(paths_share_bases_and_parts_of_names)
{
	static const struct ocdbt_path files[] = {
		{ 0, "p0/d/aa", 3 },
		{ 6, "b", 3 },
		{ 1, "1/d/aa", 3 },
		{ 0, "d/x", 0 },
	};
	static const struct ocdbt_row rows[] = {
		{ .rest = "1", .file = 0 },
		{ .rest = "2", .file = 1 },
		{ .rest = "3", .file = 2 },
		{ .rest = "4", .file = 3 },
	};

	ocdbt_node(&in, 0, files, 4, rows, 4);
	expect("", "1@p0/d/aa:3+0+0 2@p0/d/ab:3+0+0 3@p1/d/aa:3+0+0 4@d/x:0+0+0 ");
	expect("q/", "1@q/p0/d/aa:5+0+0 2@q/p0/d/ab:5+0+0 3@q/p1/d/aa:5+0+0 4@q/d/x:2+0+0 ");
}
END_TEST

START_TEST(zstd_frames_need_not_say_their_size)
{
	size_t n, at;
	autofree uint8_t *frame = NULL;
	struct buf body CLEANUP(buf_release) = BUF_INIT(1 << 20);

	buf_add(&body, "\0", 1);
	ocdbt_paths(&body, one_file, 1);
	ocdbt_rows(&body, 0, leaf, ARRAY_LEN(leaf));
	frame = zstd_pack(body.data, body.len, 0, &n);
	at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, true);
	buf_add(&in, frame, n);
	ocdbt_end(&in, at);
	expect("", "a/.zarray={} a/0.0@d/abc:0+7+300 a/0.1= b@d/abc:0+1000000+0 ");

	buf_restart(&in);
	at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, true);
	buf_add(&in, frame, n - 1);
	ocdbt_end(&in, at);
	expect_error(ERR_CORRUPT, "B+tree node: its zstd frame is cut off");

	buf_restart(&in);
	at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, true);
	buf_add(&in, frame, n);
	buf_add(&in, frame, n);
	ocdbt_end(&in, at);
	expect_error(ERR_CORRUPT, "there are bytes after its zstd frame");
}
END_TEST

START_TEST(a_manifest_says_where_the_root_is)
{
	static const struct ocdbt_path root = { 0, "p0/d/x", 3 }, none = { 0, "", 0 };

	ocdbt_manifest(&in, 0, 21, 2, &root, 100, 2000);
	ck_assert_msg(!show_manifest(in.data, in.len), "%s", err.msg);
	ck_assert_str_eq(out.data, "21: height 2 at p0/d/x:3+100+2000");
	buf_restart(&in);
	ocdbt_manifest(&in, 0, 5, 0, &none, UINT64_MAX, UINT64_MAX);
	ck_assert_msg(!show_manifest(in.data, in.len), "%s", err.msg);
	ck_assert_str_eq(out.data, "5 empty");
	buf_restart(&in);
	ocdbt_manifest(&in, 1, 0, 0, NULL, 0, 0);
	ck_assert_msg(!show_manifest(in.data, in.len), "%s", err.msg);
	ck_assert_str_eq(out.data, "numbered");
	buf_restart(&in);
	ocdbt_manifest(&in, 0, 5, 3, &none, UINT64_MAX, UINT64_MAX);
	ck_assert_int_eq(show_manifest(in.data, in.len), -ERR_CORRUPT);
	buf_restart(&in);
	ocdbt_manifest(&in, 2, 5, 3, &none, 0, 0);
	ck_assert_int_eq(show_manifest(in.data, in.len), -ERR_UNSUPPORTED);
}
END_TEST

START_TEST(the_envelope_is_checked)
{
	put_leaf();
	in.data[20] ^= 1;
	expect_error(ERR_CORRUPT, "B+tree node: the CRC-32C of its bytes is ");
	in.data[20] ^= 1;
	in.data[4]++;
	expect_error(ERR_CORRUPT, "it says that it has ");
	in.data[4]--;
	in.data[0]++;
	expect_error(ERR_CORRUPT, "it begins with 0ddb20de instead of 0cdb20de");
	in.data[0]--;
	in.data[13] = 2;
	ocdbt_seal((uint8_t *)in.data, in.len);
	expect_error(ERR_UNSUPPORTED, "version 0 with compression 2");
	in.len = 15;
	expect_error(ERR_CORRUPT, "it has 15 bytes, at least 16 are needed");
}
END_TEST

START_TEST(paths_that_lead_out_are_refused)
{
	static const char *const out_of_it[] = { "/etc/passwd", "..", "../x", "a/../../x", "a/.." };
	static const char *const inside[] = { "..a", "a..", "a/...", "a//b", "./a", "" };
	static const struct ocdbt_path joined = { 0, "./x", 0 };

	for (size_t i = 0; i < ARRAY_LEN(out_of_it); i++) {
		buf_restart(&in);
		ocdbt_node(&in, 0, &(struct ocdbt_path){ 0, out_of_it[i], 0 }, 1, leaf, 1);
		ck_assert_int_eq(show_node(in.data, in.len, ""), -ERR_CORRUPT);
		ck_assert_msg(strstr(err.msg, "is outside the checkpoint") != NULL, "%s", err.msg);
	}
	for (size_t i = 0; i < ARRAY_LEN(inside); i++) {
		buf_restart(&in);
		ocdbt_node(&in, 0, &(struct ocdbt_path){ 0, inside[i], 0 }, 1, leaf, 1);
		expect("", "a/.zarray={} ");
	}
	buf_restart(&in); /* leads out, though neither of its two parts does */
	ocdbt_node(&in, 0, &joined, 1, leaf, 1);
	ck_assert_int_eq(show_node(in.data, in.len, "a/."), -ERR_CORRUPT);
}
END_TEST

START_TEST(paths_that_contradict_those_before_them_are_refused)
{
	static char longest[65536];
	static const struct {
		struct ocdbt_path v[2];
		const char *says;
	} files[] = {
		{ { { 0, "d/a", 0 }, { 4, "b", 0 } },
		  "a data file shares more bytes with the path before it than that path has" },
		{ { { 0, "d/a", 4 }, { 0, "b", 0 } },
		  "the base of a data file is longer than its path" },
		{ { { 0, "p/x", 2 }, { 3, "y", 0 } },
		  "a data file shares a path with one of another base" },
		{ { { 0, "p/x", 0 }, { 3, "y", 2 } },
		  "a data file shares a path with one of another base" },
		{ { { 0, longest, 0 }, { 0, "b", 0 } },
		  "the path of a data file has more than 65535 bytes" },
	};

	memset(longest, 'x', sizeof(longest) - 1);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		buf_restart(&in);
		ocdbt_node(&in, 0, files[i].v, 2, leaf, 1);
		expect_error(ERR_CORRUPT, files[i].says);
	}
	/* Up to the end of both bases, they may share. */
	buf_restart(&in);
	ocdbt_node(&in, 0, (const struct ocdbt_path[]){ { 0, "p/x", 2 }, { 1, "q", 1 } }, 2, leaf,
		   1);
	expect("", "a/.zarray={} ");
}
END_TEST

START_TEST(keys_and_values_are_not_without_end)
{
	static char longest[65536], value[(1 << 20) + 2];
	const struct ocdbt_row keys[] = { { .rest = longest, .text = "" },
					  { .shared = 65535, .rest = "x", .text = "" } };
	const struct ocdbt_row values[] = { { .rest = "a", .text = value } };
	const struct ocdbt_row empty[] = { { .rest = "", .text = "v" } };

	memset(longest, 'x', sizeof(longest) - 1);
	memset(value, 'x', sizeof(value) - 1);
	ocdbt_node(&in, 0, one_file, 1, keys, 2);
	expect_error(ERR_CORRUPT, "a key has more than 65535 bytes");
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, values, 1);
	expect_error(ERR_CORRUPT, "a value in it has more than 1 MiB");
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, empty, 1);
	expect("", "=v ");
}
END_TEST

/* A manifest with n versions of these generations, at most 16; the root of the last is at (file,
 * offset). */
static void put_versions(const uint64_t *generations, size_t n, uint64_t file, uint64_t offset,
			 uint64_t length)
{
	size_t at;

	buf_restart(&in);
	at = ocdbt_begin(&in, OCDBT_MANIFEST_MAGIC, false);
	buf_add(&in, "0123456789abcdef\0", 17);
	buf_varint(&in, 1024);
	buf_varint(&in, 100000000);
	buf_add(&in, "\4", 1);
	buf_varint(&in, 1);
	buf_add(&in, "\0\0\0\0", 4);
	ocdbt_paths(&in, one_file, 1);
	buf_varint(&in, n);
	for (size_t i = 0; i < n; i++)
		buf_varint(&in, generations[i]);
	for (size_t i = 0; i < n; i++)
		buf_add(&in, "\0", 1);
	for (size_t i = 0; i < n; i++)
		buf_varint(&in, i + 1 < n ? 0 : file);
	for (size_t i = 0; i < n; i++)
		buf_varint(&in, i + 1 < n ? 0 : offset);
	for (size_t i = 0; i < n; i++)
		buf_varint(&in, i + 1 < n ? 0 : length);
	for (size_t i = 0; i < 3 * n; i++)
		buf_varint(&in, 0);
	for (size_t i = 0; i < n; i++)
		buf_add(&in, "\0\0\0\0\0\0\0\0", 8);
	buf_varint(&in, 0);
	ocdbt_end(&in, at);
}

START_TEST(the_last_of_several_versions_counts)
{
	static const struct {
		uint64_t generations[3];
		size_t n;
		uint64_t file, offset, length;
		const char *says; /* '?': an error */
	} v[] = {
		{ { 1, 2, 3 }, 3, 0, 7, 8, "3: height 0 at d/abc:0+7+8" },
		{ { 17, 18 }, 2, 0, 7, 8, "18: height 0 at d/abc:0+7+8" },
		{ { 1, 2 }, 2, 0, UINT64_MAX, UINT64_MAX, "2 empty" },
		{ { 2, 2 }, 2, 0, 7, 8, "?the generations of its versions do not increase" },
		{ { 3, 2 }, 2, 0, 7, 8, "?the generations of its versions do not increase" },
		{ { 0 }, 1, 0, 7, 8, "?the generations of its versions do not increase" },
		{ { 16, 17 }, 2, 0, 7, 8, "?it has more versions than its generation allows" },
		{ { 1 }, 1, 1, 7, 8, "?it names a data file that is not in its table" },
		{ { 1 }, 1, 0, UINT64_MAX, 8, "?it names bytes beyond 2^63" },
		{ { 1 },
		  1,
		  1,
		  UINT64_MAX,
		  UINT64_MAX,
		  "?a version is empty, but has a height or a file" },
		{ { 0 }, 0, 0, 0, 0, "?it has no versions, or too many" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_versions(v[i].generations, v[i].n, v[i].file, v[i].offset, v[i].length);
		if (*v[i].says == '?') {
			ck_assert_int_eq(show_manifest(in.data, in.len), -ERR_CORRUPT);
			ck_assert_msg(strstr(err.msg, v[i].says + 1) != NULL, "%s", err.msg);
		} else {
			ck_assert_msg(!show_manifest(in.data, in.len), "%s", err.msg);
			ck_assert_str_eq(out.data, v[i].says);
		}
	}
}
END_TEST

START_TEST(keys_increase)
{
	static const struct ocdbt_row same[] = { { .rest = "a", .text = "" },
						 { .shared = 1, .rest = "", .text = "" } };
	static const struct ocdbt_row less[] = { { .rest = "ab", .text = "" },
						 { .shared = 1, .rest = "a", .text = "" } };
	static const struct ocdbt_row more[] = { { .rest = "a", .text = "" },
						 { .shared = 2, .rest = "b", .text = "" } };
	static const struct ocdbt_row common[] = { { .rest = "a", .common = 2 } };

	ocdbt_node(&in, 0, one_file, 1, same, 2);
	expect_error(ERR_CORRUPT, "B+tree node, entry 2 of 2 ('a'): its keys do not increase");
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, less, 2);
	expect_error(ERR_CORRUPT, "its keys do not increase");
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, more, 2);
	expect_error(ERR_CORRUPT,
		     "a key shares more bytes with the key before it than that key has");
	buf_restart(&in);
	ocdbt_node(&in, 1, one_file, 1, common, 1);
	expect_error(ERR_CORRUPT, "the common prefix of a child's keys is longer");
}
END_TEST

START_TEST(ranges_are_possible)
{
	static const struct ocdbt_row far[] = { { .rest = "a", .offset = INT64_MAX, .length = 1 } };
	static const struct ocdbt_row file[] = { { .rest = "a", .file = 1 } };

	ocdbt_node(&in, 0, one_file, 1, far, 1);
	expect_error(ERR_CORRUPT, "entry 1 of 1 ('a'): it names bytes beyond 2^63");
	buf_restart(&in);
	ocdbt_node(&in, 0, one_file, 1, file, 1);
	expect_error(ERR_CORRUPT, "it names a data file that is not in its table");
}
END_TEST

/* A few bytes can announce a million entries, or files, or gigabytes. */
START_TEST(counts_are_bounded_by_the_bytes_that_are_left)
{
	static const uint64_t counts[] = { 0, 1 << 20, (1 << 20) + 1, UINT32_MAX, UINT64_MAX };

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		size_t at;

		buf_restart(&in);
		at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, false);
		buf_add(&in, "\0", 1);
		ocdbt_paths(&in, one_file, 1);
		buf_varint(&in, counts[i]);
		ocdbt_end(&in, at);
		expect_error(ERR_CORRUPT, "B+tree node: it says that it has ");
		buf_restart(&in);
		at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, false);
		buf_add(&in, "\0", 1);
		buf_varint(&in, counts[i]);
		ocdbt_end(&in, at);
		expect_error(ERR_CORRUPT, "B+tree node: it");
	}
}
END_TEST

/* Each path is the one before it and one more byte: two million bytes unfold to gigabytes. */
START_TEST(paths_that_unfold_are_bounded)
{
	enum { N = 500000 };
	size_t at = ocdbt_begin(&in, OCDBT_NODE_MAGIC, false);

	buf_add(&in, "\0", 1);
	buf_varint(&in, N);
	for (int i = 1; i < N; i++)
		buf_varint(&in, i < 60000 ? i : 60000);
	for (int i = 0; i < N; i++)
		buf_varint(&in, 1);
	for (int i = 0; i < N; i++)
		buf_varint(&in, 0);
	for (int i = 0; i < N; i++)
		buf_str(&in, "x");
	ocdbt_end(&in, at);
	ck_assert(!in.err);
	expect_error(EFBIG, "its table of data files takes more than 128 MiB");
}
END_TEST

/* Cut off anywhere, or with any one bit flipped, each time with a valid checksum. */
START_TEST(whatever_is_damaged_is_an_error_or_another_node)
{
	static const struct ocdbt_path root = { 0, "p0/d/x", 3 };
	struct mem m;

	for (int kind = 0; kind < 2; kind++) {
		buf_restart(&in);
		if (kind)
			put_leaf();
		else
			ocdbt_manifest(&in, 0, 21, 2, &root, 100, 2000);
		for (size_t n = 0; n < in.len; n++) {
			mem_init(&m, in.data, n);
			ocdbt_seal(m.p, n);
			REQUIRE((kind ? show_node(m.p, n, "") : show_manifest(m.p, n)) < 0);
			REQUIRE(err.code && *err.msg);
			mem_release(&m);
		}
		for (size_t bit = 0; bit < 8 * in.len; bit++) {
			int rc;

			mem_init(&m, in.data, in.len);
			m.p[bit / 8] ^= (uint8_t)(1 << bit % 8);
			rc = kind ? show_node(m.p, in.len, "") : show_manifest(m.p, in.len);
			REQUIRE(rc < 0); /* the sum is wrong */
			ocdbt_seal(m.p, in.len);
			err = (struct ckpt_err){ 0 };
			rc = kind ? show_node(m.p, in.len, "") : show_manifest(m.p, in.len);
			REQUIRE(rc ? err.code == -rc && *err.msg : !err.code);
			mem_release(&m);
		}
	}
}
END_TEST

SUITE(ocdbt, .teardown = teardown, .seconds = 60)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "data_util.h"
#include "dir_util.h"
#include "opts_util.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PARTS = 4096 };

struct parts {
	size_t n;
	uint64_t bytes;
	struct {
		char path[512];
		uint64_t off, len;
	} v[MAX_PARTS];
};

static struct ckpt *open_case(const char *name)
{
	struct ckpt_opts o = { .index = ":memory:" };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char path[512];

	(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data_dir(), name);
	ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
	return c;
}

static int add_part(void *arg, const struct ckpt_source *s)
{
	struct parts *p = arg;
	struct stat st;

	REQUIRE(p->n < MAX_PARTS);
	REQUIRE(s->path[0] == '/' && !stat(s->path, &st));
	REQUIRE(s->len && range_ok(s->off, s->len, (uint64_t)st.st_size));
	(void)snprintf(p->v[p->n].path, sizeof(p->v[0].path), "%s", s->path);
	p->v[p->n].off = s->off;
	p->v[p->n++].len = s->len;
	p->bytes += s->len;
	return 0;
}

static struct parts *parts_of(struct ckpt *c, ckpt_node node)
{
	struct parts *p = calloc(1, sizeof(*p));
	struct ckpt_err e = { 0 };

	REQUIRE(p);
	ck_assert_msg(!ckpt_sources(c, node, add_part, p, &e), "%s", e.msg);
	return p;
}

/* The bytes of all parts, one after another. */
static uint8_t *read_parts(const struct parts *p)
{
	uint8_t *b = malloc(p->bytes + 1), *to = b;

	REQUIRE(b);
	for (size_t i = 0; i < p->n; i++) {
		autoclose int fd = open(p->v[i].path, O_RDONLY | O_CLOEXEC);

		REQUIRE(fd >= 0 && !io_pread(fd, to, p->v[i].len, p->v[i].off));
		to += p->v[i].len;
	}
	return b;
}

/* Not cut, not cast, not compressed: the parts are the file. */
START_TEST(sources_of_a_whole_tensor_are_its_bytes)
{
	struct ckpt *c = open_case("plain");
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	ck_assert_uint_gt(t.tensors, 0);
	for (uint64_t i = 0; i < t.tensors; i++) {
		ckpt_node node = ckpt_tensor_node(c, i);
		autofree struct parts *p = parts_of(c, node);
		autofree uint8_t *want = read_parts(p), *got = malloc(p->bytes + 1);
		struct ckpt_file *f;
		struct ckpt_err e = { 0 };

		REQUIRE(got && !ckpt_file_open(c, node, &f, &e));
		ck_assert_uint_eq(p->bytes, ckpt_file_size(f));
		ck_assert_int_eq(ckpt_file_read(f, got, p->bytes, 0, &e), (int64_t)p->bytes);
		ck_assert_int_eq(memcmp(got, want, p->bytes), 0);
		ckpt_file_close(f);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(compressed_items_are_needed_whole)
{
	struct ckpt *c = open_case("mp4_zstd");
	autofree struct parts *all = parts_of(c, CKPT_ROOT);
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	ck_assert_uint_eq(all->n, t.files);
	ck_assert_uint_eq(all->bytes, t.stored_bytes);
	for (uint64_t i = 0; i < t.tensors; i++) {
		autofree struct parts *p = parts_of(c, ckpt_tensor_node(c, i));

		ck_assert_uint_gt(p->n, 0);
	}
	ckpt_close(c);
}
END_TEST

static int stop_at_once(void *arg, const struct ckpt_source *s)
{
	(void)s;
	++*(int *)arg;
	return 7;
}

START_TEST(what_each_returns_ends_it)
{
	struct ckpt *c = open_case("plain");
	struct ckpt_err e = { 0 };
	ckpt_node node;
	int calls = 0;

	ck_assert_int_eq(ckpt_sources(c, CKPT_ROOT, stop_at_once, &calls, &e), 7);
	ck_assert_int_eq(ckpt_sources(c, ckpt_tensor_node(c, 0), stop_at_once, &calls, &e), 7);
	ck_assert_int_eq(calls, 2);
	ck_assert_int_eq(ckpt_walk(c, "tensors", &node, &e), 0);
	ck_assert_int_eq(ckpt_sources(c, node, stop_at_once, &calls, &e), 0);
	ck_assert_int_eq(ckpt_walk(c, ".ckptfs/info.json", &node, &e), 0);
	ck_assert_int_eq(ckpt_sources(c, node, stop_at_once, &calls, &e), 0);
	ck_assert_int_eq(calls, 2);
	ckpt_close(c);
}
END_TEST

/* An array of a dtype that is not known is an object that is in no file; alone, it leaves a
 * checkpoint in whose index are no files at all. */
START_TEST(what_cannot_be_read_is_in_no_file)
{
	static const char unknown[] = "{\"zarr_format\": 2, \"shape\": [1], \"chunks\": [1], "
				      "\"dtype\": \"<f16\", \"compressor\": null, "
				      "\"filters\": null, \"order\": \"C\", "
				      "\"fill_value\": null}";
	struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct ckpt *c = NULL;
	struct ckpt_file *f = NULL;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	ckpt_node node;
	int calls = 0;

	dir_setup();
	REQUIRE(!mkdirat(dir_fd, "w", 0700));
	put_file(dir_fd, "w/.zarray", unknown, sizeof(unknown) - 1);
	put_file(dir_fd, "w/0", "0123456789abcdef", 16);
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	REQUIRE(!ckpt_walk(c, "objects/w", &node, &e));
	ck_assert_int_eq(ckpt_stat(c, node, &st, &e), 0);
	ck_assert_uint_eq(st.size, 0);
	ck_assert_int_eq(ckpt_file_open(c, node, &f, &e), -EIO);
	ck_assert_str_eq(e.msg, "object 'w' cannot be read: not supported: the dtype '<f16'");
	ck_assert_int_eq(ckpt_sources(c, node, stop_at_once, &calls, &e), 0);
	ck_assert_int_eq(calls, 0);
	ckpt_close(c);
	dir_teardown();
}
END_TEST

START_TEST(counters_tell_what_was_read)
{
	struct ckpt *c = open_case("plain");
	struct ckpt_counters a, b;
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };
	char buf[4];

	REQUIRE(!ckpt_file_open(c, ckpt_tensor_node(c, 0), &f, &e));
	ckpt_counters(c, &a);
	ck_assert_int_eq(ckpt_file_read(f, buf, 4, 0, &e), 4);
	ck_assert_int_eq(ckpt_file_read(f, buf, 3, 1, &e), 3);
	ckpt_counters(c, &b);
	ck_assert_uint_eq(b.source_reads - a.source_reads, 2);
	ck_assert_uint_eq(b.source_bytes - a.source_bytes, 7);
	ck_assert_uint_eq(b.copies - a.copies, 2);
	ck_assert_uint_eq(b.copied_bytes - a.copied_bytes, 7);
	ck_assert_uint_eq(b.faults, 0);
	ck_assert_uint_eq(b.cache_max_bytes, (uint64_t)256 << 20);
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

SUITE(ckpt_sources, .seconds = 60)

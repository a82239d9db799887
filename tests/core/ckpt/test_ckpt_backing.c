/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of the tree are backed by a real file: for all checkpoints of tests/data, compared
 * byte for byte. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "data_util.h"
#include "dir_util.h"
#include "opts_util.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one file ---- */

static uint8_t *bytes_of(struct ckpt_file *f)
{
	uint64_t n = ckpt_file_size(f);
	uint8_t *b = malloc(n + 1);
	struct ckpt_err e = { 0 };

	REQUIRE(b && ckpt_file_read(f, b, n, 0, &e) == (int64_t)n);
	return b;
}

static bool holds(int fd, const uint8_t *want, uint64_t n)
{
	autofree uint8_t *found = malloc(n + 1);
	struct stat st;

	REQUIRE(found && !fstat(fd, &st));
	return (uint64_t)st.st_size == n && !io_pread(fd, found, n, 0) && !memcmp(want, found, n);
}

struct same {
	const uint8_t *want;
	uint64_t size;
	bool found;
};

static int compare_source(void *arg, const struct ckpt_source *s)
{
	struct same *same = arg;
	autoclose int fd = open(s->path, O_RDONLY | O_CLOEXEC);

	REQUIRE(fd >= 0);
	same->found |= holds(fd, same->want, same->size);
	return 0;
}

struct count {
	unsigned real, made;
};

/* If a file is said to be a real file, it is one; if not, none of the files that it is made of has
 * its bytes. */
static void check_file(struct ckpt *c, ckpt_node node, bool object, struct count *count)
{
	autofree uint8_t *want = NULL;
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };
	autoclose int fd = -1;
	int rc;

	if (ckpt_file_open(c, node, &f, &e))
		return;
	want = bytes_of(f);
	rc = ckpt_file_backing(f, &fd, &e);
	ck_assert_msg(rc >= 0, "%s", e.msg);
	if (!rc) {
		struct ckpt_err why = { 0 };

		ck_assert(holds(fd, want, ckpt_file_size(f)));
		ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
		ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
		ck_assert(!ckpt_file_written(f, &why));
		ck_assert_int_eq(why.code, 0);
		count->real++;
	} else if (!object && ckpt_file_size(f)) {
		struct same same = { want, ckpt_file_size(f), false };

		ck_assert_int_eq(ckpt_sources(c, node, compare_source, &same, &e), 0);
		ck_assert(!same.found);
		count->made++;
	}
	ckpt_file_close(f);
}

static void walk(struct ckpt *c, ckpt_node at, bool objects, struct count *count)
{
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	ckpt_node node;

	for (uint64_t pos = 0; !ckpt_next(c, at, &pos, name, &node);) {
		ck_assert_int_eq(ckpt_type(c, node, &st, &e), 0);
		if (st.is_dir)
			walk(c, node, objects || !strcmp(name, "objects"), count);
		else if (!st.is_link)
			check_file(c, node, objects, count);
	}
}

static struct count walk_case(const char *path, const struct ckpt_opts *opts)
{
	struct count count = { 0 };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	if (open_typed(path, opts, &c, &e)) /* made to be refused */
		return count;
	walk(c, CKPT_ROOT, false, &count);
	ckpt_close(c);
	return count;
}

START_LOOP_TEST(what_is_a_real_file_has_its_bytes_and_no_other_file_has,
		data_count("expected.json"))
{
	const char *name = data_name(_i);
	struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct count count;
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data_dir(), name);
	count = walk_case(path, &o);
	if (!strcmp(name, "mcore_zarr")) /* each chunk is a file of nothing but elements */
		ck_assert_uint_gt(count.real, 0);
	if (!strcmp(name, "plain")) { /* every item has a header */
		ck_assert_uint_eq(count.real, 0);
		ck_assert_uint_gt(count.made, 0);
	}
}
END_TEST

/* ---- tensors ---- */

typedef int backing_fn(struct ckpt *c, uint64_t i, int *ret_fd, uint64_t *ret_off,
		       struct ckpt_err *e);

/* Tensors that a file holds as they are shown: it must have their bytes there. Returns how many
 * there are. */
static unsigned mapped(struct ckpt *c, uint64_t n, bool model, backing_fn *backing)
{
	unsigned found = 0;

	for (uint64_t i = 0; i < n; i++) {
		struct ckpt_tensor t;
		struct ckpt_err e = { 0 };
		uint64_t off = 77;
		autoclose int fd = -1;
		int rc = backing(c, i, &fd, &off, &e);

		model ? ckpt_model_tensor(c, i, &t) : ckpt_tensor(c, i, &t);
		ck_assert_msg(rc >= 0 || t.fault, "%s", e.msg);
		if (rc) {
			ck_assert(fd == -1 && off == 77);
			continue;
		}
		autofree uint8_t *want = malloc(t.bytes), *found_there = malloc(t.bytes);

		REQUIRE(want && found_there && t.bytes);
		rc = model ? ckpt_model_slice_read(c, i, &(struct ckpt_slice){ 0 }, want, &e)
			   : ckpt_slice_read(c, i, &(struct ckpt_slice){ 0 }, want, &e);
		ck_assert_msg(!rc, "%s", e.msg);
		ck_assert_int_eq(io_pread(fd, found_there, t.bytes, off), 0);
		ck_assert_mem_eq(found_there, want, t.bytes);
		ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
		found++;
	}
	return found;
}

START_LOOP_TEST(a_tensor_that_can_be_mapped_has_its_bytes_there, data_count("expected.json"))
{
	const char *name = data_name(_i);
	struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals totals;
	char path[4096];
	unsigned stored, model;

	(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data_dir(), name);
	if (open_typed(path, &o, &c, &e)) /* made to be refused */
		return;
	ckpt_totals(c, &totals);
	stored = mapped(c, totals.tensors, false, ckpt_tensor_backing);
	model = mapped(c, ckpt_model_tensors(c), true, ckpt_model_backing);
	if (!strcmp(name, "plain"))
		ck_assert(stored && model);
	if (!strcmp(name, "zstd"))
		ck_assert_uint_eq(stored, 0);
	ckpt_close(c);
}
END_TEST

START_TEST(what_is_converted_cannot_be_mapped)
{
	struct ckpt_opts o = { .index = ":memory:" },
			 cast = { .index = ":memory:", .dtype = "bf16" };
	struct ckpt *c = NULL, *converted = NULL;
	struct ckpt_err e = { 0 };
	char path[4096];
	unsigned found = 0;
	uint64_t off;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/plain/ckpt", data_dir());
	ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
	ck_assert_msg(!open_typed(path, &cast, &converted, &e), "%s", e.msg);
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_tensor t;

		ckpt_model_tensor(c, i, &t);
		if (strcmp(t.dtype, "float32") != 0 || ckpt_model_backing(c, i, &fd, &off, &e))
			continue;
		(void)close(fd);
		ck_assert_int_eq(ckpt_model_backing(converted, i, &fd, &off, &e), 1);
		found++;
	}
	ck_assert_uint_gt(found, 0);
	ck_assert_int_eq(ckpt_model_backing(c, 1 << 20, &fd, &off, &e), -EINVAL);
	ck_assert_int_eq(ckpt_tensor_backing(c, 1 << 20, &fd, &off, &e), -EINVAL);
	ckpt_close(converted);
	ckpt_close(c);
}
END_TEST

/* ---- assets, and what happens to them ---- */

static void setup(void)
{
	dir_setup();
	put_file(dir_fd, "tokenizer.json", "0123456789", 10);
}

static struct ckpt_file *open_asset(struct ckpt **ret_c)
{
	struct ckpt_opts o = { .index = ":memory:", .assets = dir };
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	char path[4096];

	(void)snprintf(path, sizeof(path), "%s/plain/ckpt", data_dir());
	ck_assert_msg(!open_typed(path, &o, ret_c, &e), "%s", e.msg);
	ck_assert_msg(!ckpt_file_open_path(*ret_c, "hf/tokenizer.json", &f, &e), "%s", e.msg);
	return f;
}

START_TEST(what_was_written_to_is_not_opened_any_more_and_said)
{
	struct ckpt *c;
	struct ckpt_file *f = open_asset(&c);
	struct ckpt_err e = { 0 };
	int fd = -1, again = -2;

	ck_assert_int_eq(ckpt_file_backing(f, &fd, &e), 0);
	put_file(dir_fd, "tokenizer.json", "01234567890", 11);
	ck_assert(ckpt_file_written(f, &e));
	ck_assert_ptr_nonnull(strstr(e.msg, "tokenizer.json' was written to"));
	ck_assert_int_eq(ckpt_file_backing(f, &again, &e), -EIO);
	ck_assert_int_eq(again, -2);
	(void)close(fd);
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

START_TEST(what_was_replaced_is_still_there_for_who_has_it)
{
	struct ckpt *c;
	struct ckpt_file *f = open_asset(&c);
	struct ckpt_err e = { 0 };
	int fd = -1, again = -2;

	ck_assert_int_eq(ckpt_file_backing(f, &fd, &e), 0);
	put_file(dir_fd, "new", "9876543210", 10);
	ck_assert_int_eq(renameat(dir_fd, "new", dir_fd, "tokenizer.json"), 0);
	ck_assert(holds(fd, (const uint8_t *)"0123456789", 10));
	ck_assert(!ckpt_file_written(f, &e));
	ck_assert_int_eq(ckpt_file_backing(f, &again, &e), -EIO);
	ck_assert_int_eq(unlinkat(dir_fd, "tokenizer.json", 0), 0);
	ck_assert(!ckpt_file_written(f, &e));
	ck_assert_int_eq(ckpt_file_backing(f, &again, &e), -ENOENT);
	ck_assert_int_eq(again, -2);
	(void)close(fd);
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

SUITE(ckpt_backing, .setup = setup, .teardown = dir_teardown, .seconds = 60)

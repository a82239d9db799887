/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "source/files.h"
#include "source/place.h"
#include "source/source.h"
#include "suites.h"
#include "tar_util.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct buf tar = BUF_INIT(1 << 22);

static int open_it(struct place **ret, char **ret_root, const char **ret_file, struct ckpt_err *e)
{
	char path[4400];

	put_file(dir_fd, "x.nemo", tar.data, tar.len);
	(void)snprintf(path, sizeof(path), "%s/x.nemo", dir);
	return place_open(path, NULL, ret, ret_root, ret_file, e);
}

static struct place *opened(void)
{
	struct place *p = NULL;
	struct ckpt_err e = { 0 };
	autofree char *root = NULL;
	const char *file = "";

	ck_assert_msg(!open_it(&p, &root, &file, &e), "%s", e.msg);
	ck_assert_ptr_null(file);
	ck_assert_str_eq(root + strlen(root) - 7, "/x.nemo");
	return p;
}

static void expect_error(int code, const char *want)
{
	struct place *p = NULL;
	struct ckpt_err e = { 0 };
	char *root = NULL;
	const char *file;

	ck_assert_int_eq(open_it(&p, &root, &file, &e), -code);
	ck_assert_msg(strstr(e.msg, want) != NULL, "%s", e.msg);
	ck_assert_ptr_null(p);
	ck_assert_ptr_null(root);
}

static int add_name(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	(void)e;
	buf_printf(arg, "%s%s ", name, kind == PLACE_DIR ? "/" : "");
	return 0;
}

static void expect_list(struct place *p, const char *path, const char *want)
{
	struct buf b = BUF_INIT(1000);
	struct ckpt_err e = { 0 };

	buf_str(&b, "");
	ck_assert_msg(!place_list(p, path, add_name, &b, &e), "%s", e.msg);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
}

static void expect_bytes(struct place *p, const char *path, const char *want)
{
	struct source *s CLEANUP(source_freep) = NULL;
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	char got[100];
	int64_t n;

	ck_assert_msg(!place_file(p, path, &s, &e), "%s", e.msg);
	n = source_read(s, got, sizeof(got), 0, &e);
	ck_assert_int_eq(n, (int64_t)strlen(want));
	ck_assert(!memcmp(got, want, strlen(want)));
	ck_assert_int_eq(source_read(s, got, 2, 1, &e), n > 2 ? 2 : n - 1);
	ck_assert_int_eq(source_read(s, got, 2, 1 << 20, &e), 0);
	ck_assert_int_eq(place_look(p, path, &seen, &e), 1);
	ck_assert_int_eq(seen.kind, PLACE_FILE);
	ck_assert_uint_eq(seen.size, strlen(want));
	ck_assert(place_id_equal(&seen.id, &s->seen.id));
	ck_assert(source_is_same(s));
}

static void teardown(void)
{
	buf_release(&tar);
	dir_teardown();
}

static void add_file(const char *name, const char *text)
{
	tar_add(&tar, name, '0', text, strlen(text));
}

START_TEST(members_are_files_and_directories)
{
	struct place *p, *in = NULL;
	struct place_seen seen;
	struct ckpt_err e;
	struct source *s;
	uint64_t at;

	tar_add(&tar, "./", '5', NULL, 0);
	add_file("./w/b/two", "2");
	add_file("./w/b.x", "dot");
	add_file("./config", "first");
	tar_add(&tar, "./empty", '5', NULL, 0);
	add_file("./w/a", "one");
	add_file("./config", "second");
	tar_add(&tar, "./link", '2', NULL, 0);
	tar_end(&tar);
	p = opened();
	expect_list(p, ".", "config empty/ w/ ");
	expect_list(p, "w", "a b/ b.x ");
	expect_list(p, "w/b", "two ");
	expect_list(p, "empty", "");
	expect_bytes(p, "config", "second"); /* the last one, as when it is unpacked */
	expect_bytes(p, "w/b/two", "2");
	ck_assert_int_eq(place_look(p, "w/b", &seen, &e), 1);
	ck_assert_int_eq(seen.kind, PLACE_DIR);
	ck_assert_int_eq(place_look(p, ".", &seen, &e), 1);
	ck_assert_int_eq(seen.kind, PLACE_DIR);
	ck_assert_int_eq(place_look(p, "link", &seen, &e), 0);
	ck_assert_int_eq(place_look(p, "w/bb", &seen, &e), 0);
	ck_assert_int_eq(place_file(p, "w", &s, &e), -EISDIR);
	ck_assert_int_eq(place_file(p, "../x.nemo", &s, &e), -ENOENT);
	ck_assert_int_eq(place_list(p, "config", add_name, NULL, &e), -ENOTDIR);
	ck_assert_int_eq(place_list(p, "none", add_name, NULL, &e), -ENOENT);
	ck_assert_int_eq(place_sub(p, "config", &in, &e), -ENOTDIR);
	ck_assert_int_eq(place_sub(p, "none", &in, &e), -ENOENT);
	REQUIRE(!place_sub(p, "w", &in, &e));
	ck_assert_str_eq(place_within(in, "a", &at) + strlen(dir), "/x.nemo");
	ck_assert(!memcmp(tar.data + at, "one", 3));
	ck_assert_ptr_null(place_within(in, "b", &at));
	place_free(p);
	expect_list(in, ".", "a b/ b.x ");
	expect_bytes(in, "b.x", "dot");
	expect_list(in, "b", "two ");
	place_free(in);
}
END_TEST

static void *map_often(void *arg)
{
	struct files *f = arg;

	for (int i = 0; i < 100; i++) {
		const uint8_t *p = i % 2 ? files_map(f, 0, 0, 3) : files_lend(f, 0, 0, 3);

		if (!p)
			continue;
		if (memcmp(p, "one", 3) != 0)
			return arg;
		if (i % 2)
			files_unmap(f, 0);
		else
			files_unlend(f, 0);
	}
	return NULL;
}

/* Under ThreadSanitizer it also proves that they share nothing that changes. */
START_TEST(threads_map_the_same_member)
{
	const struct stored_file sources[] = { { .path = "w/a", .min_size = 3 } };
	struct files *f = NULL;
	struct ckpt_err e = { 0 };
	pthread_t threads[4];
	struct place *p;
	char got[3];

	add_file("w/a", "one");
	tar_end(&tar);
	p = opened();
	REQUIRE(!files_new(p, sources, 1, &f, &e));
	REQUIRE(!files_allow_maps(f, 1 << 20, &e));
	REQUIRE(!files_read(f, 0, got, sizeof(got), 0, &e));
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		REQUIRE(!pthread_create(&threads[i], NULL, map_often, f));
	for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	files_free(f);
	place_free(p);
}
END_TEST

START_TEST(a_changed_archive_has_changed_members)
{
	struct place *p;
	struct place_seen before, now;
	struct source *f = NULL;
	struct ckpt_err e;

	add_file("a", "one");
	add_file("b", "two");
	tar_end(&tar);
	p = opened();
	REQUIRE(place_look(p, "a", &before, &e) == 1);
	REQUIRE(place_look(p, "b", &now, &e) == 1);
	ck_assert_int_eq(place_compare(p, &before.id, &now.id), PLACE_ANOTHER);
	ck_assert_int_eq(place_compare(p, &before.id, &before.id), PLACE_SAME);
	put_file(dir_fd, "x.nemo", "shorter", 7);
	ck_assert_int_eq(place_look(p, "a", &now, &e), -ESTALE);
	ck_assert_str_eq(e.msg, "'x.nemo' has changed since it was opened; open it again");
	ck_assert_int_eq(place_file(p, "a", &f, &e), -ESTALE);
	REQUIRE(!unlinkat(dir_fd, "x.nemo", 0));
	ck_assert_int_eq(place_look(p, "a", &now, &e), 0);
	place_free(p);
}
END_TEST

START_TEST(members_that_lead_elsewhere_are_refused)
{
	static const char *const names[] = { "../a", "/etc/passwd", "a/../../b", "a//b",
					     "./a/./b" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		tar.len = 0;
		add_file(names[i], "x");
		tar_end(&tar);
		expect_error(ERR_CORRUPT, "read 'x.nemo': a member of the archive: ");
	}
	tar.len = 0;
	add_file("a", "x");
	tar.len -= 100;
	tar_add(&tar, "b", '0', NULL, 0);
	expect_error(ERR_CORRUPT, "read 'x.nemo': the archive");
}
END_TEST

START_TEST(other_files_remain_files)
{
	struct place *p = NULL;
	struct ckpt_err e = { 0 };
	autofree char *root = NULL;
	const char *file = NULL;

	buf_str(&tar, "\x1f\x8b, as gzip begins");
	ck_assert_msg(!open_it(&p, &root, &file, &e), "%s", e.msg);
	ck_assert_str_eq(file, "x.nemo");
	place_free(p);
}
END_TEST

SUITE(archive, .setup = dir_setup, .teardown = teardown)

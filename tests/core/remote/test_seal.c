/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of this machine may be read after the seal has closed. What it allows of addresses is in
 * test_server.c. */
#include "remote/seal.h"

#include "base/cleanup.h"
#include "dir_util.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 64 };

static struct seal s;

static int open_dir(const char *path)
{
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	REQUIRE(fd >= 0);
	return fd;
}

/* names: each with a NUL behind it; len counts these. */
static void name_dir(const char *path, const char *names, size_t len)
{
	static struct wire_msg m;
	struct stat st;

	REQUIRE(!fstatat(dir_fd, path, &st, 0) && len <= WIRE_TEXT_MAX);
	m = (struct wire_msg){
		.head = { .n = { 0, 2, st.st_dev, st.st_ino }, .text = (uint32_t)len }, .fd = -1
	};
	memcpy(m.text, names, len);
	seal_take(&s, &m);
}

static void close_seal(void)
{
	static struct wire_msg m;

	m = (struct wire_msg){ .head = { .n = { 0, 1 }, .text = 5 }, .text = "none", .fd = -1 };
	seal_take(&s, &m);
}

static void setup(void)
{
	dir_setup();
	s = (struct seal){ 0 };
	REQUIRE(!mkdirat(dir_fd, "whole", 0700) && !mkdirat(dir_fd, "whole/in", 0700));
	REQUIRE(!mkdirat(dir_fd, "some", 0700) && !mkdirat(dir_fd, "some/in", 0700));
	REQUIRE(!mkdirat(dir_fd, "other", 0700));
}

static void teardown(void)
{
	for (size_t i = 0; i < s.n_dirs; i++)
		free(s.dirs[i].names);
	free(s.dirs);
	free(s.cache_dir);
	dir_teardown();
}

static const struct {
	const char *dir, *path;
	enum seal_use use;
	bool allowed;
} uses[] = {
	/* All that is beneath it. */
	{ "whole", "", SEAL_OPEN, true },
	{ "whole", "", SEAL_LIST, true },
	{ "whole", "x", SEAL_READ, true },
	{ "whole/in", "", SEAL_OPEN, true },
	{ "whole/in", "", SEAL_LIST, true },
	{ "whole/in", "x", SEAL_READ, true },
	/* x and yy. */
	{ "some", "", SEAL_OPEN, true },
	{ "some", "", SEAL_LIST, false },
	{ "some", "x", SEAL_LIST, false },
	{ "some", "x", SEAL_READ, true },
	{ "some", "yy", SEAL_READ, true },
	{ "some", "y", SEAL_READ, false },
	{ "some", "z", SEAL_READ, false },
	{ "some", "", SEAL_READ, false },
	{ "some", "in/x", SEAL_READ, false },
	{ "some/in", "", SEAL_OPEN, false },
	{ "some/in", "", SEAL_LIST, false },
	{ "some/in", "x", SEAL_READ, false },
	/* Neither named, nor beneath one that is. */
	{ "other", "", SEAL_OPEN, false },
	{ "other", "x", SEAL_READ, false },
	{ ".", "", SEAL_OPEN, false },
	{ ".", "", SEAL_LIST, false },
	{ ".", "whole/x", SEAL_READ, false },
	{ "/", "x", SEAL_READ, false },
};

START_TEST(only_what_was_named_is_read)
{
	name_dir("whole", "", 0);
	name_dir("some", "x\0yy", 5);
	for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
		autoclose int fd = open_dir(uses[i].dir);

		ck_assert(seal_allows_files(&s, fd, uses[i].use, uses[i].path));
	}
	close_seal();
	name_dir("other", "", 0); /* too late */
	for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
		autoclose int fd = open_dir(uses[i].dir);

		ck_assert_msg(seal_allows_files(&s, fd, uses[i].use, uses[i].path) ==
				      uses[i].allowed,
			      "%zu: '%s' in %s", i, uses[i].path, uses[i].dir);
	}
	ck_assert(!seal_allows_files(&s, -1, SEAL_READ, "x"));
}
END_TEST

START_TEST(a_directory_that_was_moved_away_is_no_longer_beneath)
{
	autoclose int fd = open_dir("whole/in");

	name_dir("whole", "", 0);
	close_seal();
	ck_assert(seal_allows_files(&s, fd, SEAL_READ, "x"));
	REQUIRE(!renameat(dir_fd, "whole/in", dir_fd, "in"));
	ck_assert(!seal_allows_files(&s, fd, SEAL_READ, "x"));
}
END_TEST

START_TEST(what_is_too_deep_is_refused)
{
	autoclose int at = open_dir("whole");

	name_dir("whole", "", 0);
	close_seal();
	for (int depth = 1; depth <= DEEPEST + 1; depth++) {
		int below;

		REQUIRE(!mkdirat(at, "d", 0700));
		below = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		REQUIRE(below >= 0);
		(void)close(at);
		at = below;
		ck_assert_msg(seal_allows_files(&s, at, SEAL_READ, "x") == (depth <= DEEPEST), "%d",
			      depth);
	}
}
END_TEST

/* A fetcher that begins later gets the same cache, of the same size. */
START_TEST(a_fetcher_begins_with_what_was_named)
{
	static struct wire_msg m;
	static const struct wire_msg last = { .head = { .n = { 0, 1, 7, 8, 9 }, .text = 6 },
					      .text = "/dir\0",
					      .fd = -1 };

	for (int i = 0; i < 2; i++) {
		m = (struct wire_msg){
			.head = { .kind = WIRE_HELLO, .n = { 5, 7, 8, 9 }, .text = 5 },
			.text = "/dir",
			.fd = -1
		};
		ck_assert(seal_allows(&s, &m));
		for (int n = 1; n < 4; n++) {
			m.head.n[n]--;
			ck_assert(seal_allows(&s, &m) == !i);
			m.head.n[n]++;
		}
		m.head.n[0] = m.head.n[4] = 1; /* its version, which is checked elsewhere */
		ck_assert(seal_allows(&s, &m));
		m.text[1] = 'e';
		ck_assert(seal_allows(&s, &m) == !i);
		seal_take(&s, &last);
	}
	ck_assert_uint_eq(s.sizes[2], 9);
}
END_TEST

SUITE(seal, .setup = setup, .teardown = teardown)

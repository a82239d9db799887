/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "fault.h"
#include "index/catalog_query.h"
#include "source/files.h"
#include "source/place.h"
#include "suites.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

static struct files *open_files(const struct stored_file *s, size_t n)
{
	struct files *f = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(files_new(place, s, n, &f, &e), 0);
	return f;
}

START_TEST(exactly_the_bytes_asked_for_are_read)
{
	const struct stored_file s[] = { { "a", 5, NULL },
					 { "sub/b", 3, NULL },
					 { "empty", 0, NULL } };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[8] = "";

	put_file(dir_fd, "a", "01234", 5);
	ck_assert_int_eq(mkdirat(dir_fd, "sub", 0700), 0);
	put_file(dir_fd, "sub/b", "xyz", 3);
	put_file(dir_fd, "empty", "", 0);
	f = open_files(s, 3);
	ck_assert_int_eq(files_read(f, 0, b, 5, 0, &e), 0);
	ck_assert_mem_eq(b, "01234", 5);
	ck_assert_int_eq(files_read(f, 1, b, 2, 1, &e), 0);
	ck_assert_mem_eq(b, "yz", 2);
	ck_assert_int_eq(files_read(f, 0, b, 0, 5, &e), 0);
	ck_assert_int_eq(e.code, 0);
	ck_assert_int_eq(files_read(f, 0, b, 2, 4, &e), -EIO);
	ck_assert_str_eq(e.msg, "read 'a', 2 bytes at 4: Input/output error");
	ck_assert_int_eq(files_read(f, 2, b, 1, 0, &e), -EIO);
	ck_assert_uint_eq(files_size(f, 0), 5);
	ck_assert_uint_eq(files_size(f, 2), 0);
	ck_assert_uint_eq(files_total(f), 8);
	files_free(f);
}
END_TEST

/* Among files, mapped or not, whether the caller has seen those or not. */
START_LOOP_TEST(bytes_in_memory_are_a_file_that_never_changes, 4)
{
	static const uint8_t bytes[] = { 'b', 0, 'd' };
	const struct stored_file s[] = { { "f", 2, NULL }, { "(memory)", 3, bytes } };
	struct files_seen seen[2] = { 0 };
	uint64_t counts[FILES_COUNTS] = { 0 };
	struct files *f = NULL;
	struct ckpt_err e = { 0 };
	const uint8_t *p;
	char b[4] = "";

	put_file(dir_fd, "f", "01", 2);
	ck_assert_int_eq(place_look(place, "f", &seen[0].seen, &e), 1);
	ck_assert_int_eq(_i & 1 ? files_new_seen(place, s, seen, 2, &f, &e)
				: files_new(place, s, 2, &f, &e),
			 0);
	if (_i & 2)
		ck_assert_int_eq(files_allow_maps(f, 1 << 20, &e), 0);
	ck_assert(!files_fault(f, 1, &e));
	ck_assert_uint_eq(files_size(f, 1), 3);
	ck_assert_uint_eq(files_total(f), 5);
	ck_assert_int_eq(files_read(f, 1, b, 3, 0, &e), 0);
	ck_assert_mem_eq(b, bytes, 3);
	ck_assert_int_eq(files_read(f, 1, b, 0, 3, &e), 0);
	ck_assert_int_eq(files_read(f, 1, b, 2, 2, &e), -EIO);
	ck_assert_int_eq(files_read(f, 1, b, 1, UINT64_MAX, &e), -EIO);
	p = files_map(f, 1, 1, 2);
	ck_assert_ptr_eq(p, _i & 2 ? bytes + 1 : NULL);
	if (p) {
		ck_assert_int_eq(files_check(f, 1, &e), 0);
		files_unmap(f, 1);
	}
	ck_assert_ptr_null(files_map(f, 1, 2, 2));
	p = files_lend(f, 1, 0, 3);
	ck_assert_ptr_eq(p, _i & 2 ? bytes : NULL);
	if (p)
		files_unlend(f, 1);
	ck_assert_ptr_eq(files_bring(f, 1, 0, 3), NULL);
	ck_assert(!files_want(f, 1, 0, 3));
	ck_assert_int_eq(files_open(f, 1, &e), -ENOTSUP);
	ck_assert(!files_written(f, 1));
	files_trim(f, 0);
	ck_assert_int_eq(files_read(f, 1, b, 1, 2, &e), 0);
	ck_assert_int_eq(b[0], 'd');
	files_add_counts(f, counts);
	ck_assert_uint_eq(counts[FILES_FAULTS], 2);
	files_free(f);
}
END_TEST

START_TEST(what_is_wrong_with_a_file_is_said)
{
	static const struct stored_file s[] = {
		{ "fine", 4, NULL },	  { "missing", 1, NULL }, { "short", 5, NULL },
		{ "directory", 0, NULL }, { "fifo", 1, NULL },	  { "inside", 4, NULL },
		{ "outside", 1, NULL },	  { "fine/x", 1, NULL },  { "dangling", 1, NULL },
	};
	static const char *const want[] = {
		NULL,
		"data file 'missing' is missing",
		"data file 'short' has 4 bytes, items in it reach up to 5",
		"data file 'directory' is not a regular file of the checkpoint, or is a link that "
		"leads out of it",
		"data file 'fifo' is not a regular file of the checkpoint, or is a link that leads "
		"out of it",
		NULL,
		"data file 'outside' is not a regular file of the checkpoint, or is a link that "
		"leads out of it",
		"data file 'fine/x': Not a directory",
		"data file 'dangling' is missing",
	};
	struct files *f;
	char b[4];

	put_file(dir_fd, "fine", "1234", 4);
	put_file(dir_fd, "short", "1234", 4);
	ck_assert_int_eq(mkdirat(dir_fd, "directory", 0700), 0);
	ck_assert_int_eq(mkfifoat(dir_fd, "fifo", 0600), 0);
	ck_assert_int_eq(symlinkat("fine", dir_fd, "inside"), 0);
	ck_assert_int_eq(symlinkat("/etc/passwd", dir_fd, "outside"), 0);
	ck_assert_int_eq(symlinkat("nothing", dir_fd, "dangling"), 0);
	f = open_files(s, ARRAY_LEN(s));
	for (uint32_t i = 0; i < ARRAY_LEN(s); i++) {
		struct ckpt_err e = { 0 };

		if (!has_openat2() &&
		    (!strcmp(s[i].path, "inside") || !strcmp(s[i].path, "dangling")))
			continue;
		ck_assert_int_eq(files_fault(f, i, &e), want[i] != NULL);
		ck_assert_str_eq(e.msg, want[i] ? want[i] : "");
		e = (struct ckpt_err){ 0 };
		ck_assert_int_eq(files_read(f, i, b, 1, 0, &e) != 0, want[i] != NULL);
		ck_assert_str_eq(e.msg, want[i] ? want[i] : "");
	}
	files_free(f);
}
END_TEST

/* ---- changed behind our back ---- */

static void cut(void)
{
	autofree char *path = NULL;

	ck_assert_int_gt(asprintf(&path, "%s/f", dir), 0);
	ck_assert_int_eq(truncate(path, 6), 0);
}

static void grow(void)
{
	put_file(dir_fd, "f", "0123456789+", 11);
}

static void overwrite(void)
{
	autoclose int fd = openat(dir_fd, "f", O_WRONLY | O_CLOEXEC);

	ck_assert_int_eq((int)pwrite(fd, "X", 1, 9), 1);
}

static void touch(void)
{
	const struct timespec t[2] = { { 1, 0 }, { 1, 0 } };

	ck_assert_int_eq(utimensat(dir_fd, "f", t, 0), 0);
}

/* Another file of the same size and time. */
static void replace(void)
{
	struct stat st;

	ck_assert_int_eq(fstatat(dir_fd, "f", &st, 0), 0);
	put_file(dir_fd, "g", "abcdefghij", 10);
	ck_assert_int_eq(
		utimensat(dir_fd, "g", (const struct timespec[]){ st.st_atim, st.st_mtim }, 0), 0);
	ck_assert_int_eq(renameat(dir_fd, "g", dir_fd, "f"), 0);
}

/* Overwrites the file, and restores its size and time. */
static void overwrite_in_secret(void)
{
	struct stat st;

	ck_assert_int_eq(fstatat(dir_fd, "f", &st, 0), 0);
	overwrite();
	ck_assert_int_eq(
		utimensat(dir_fd, "f", (const struct timespec[]){ st.st_atim, st.st_mtim }, 0), 0);
}

static void change_mode(void)
{
	ck_assert_int_eq(fchmodat(dir_fd, "f", 0640, 0), 0);
}

static void add_name(void)
{
	ck_assert_int_eq(linkat(dir_fd, "f", dir_fd, "link", 0), 0);
}

static void drop(void)
{
	ck_assert_int_eq(unlinkat(dir_fd, "f", 0), 0);
}

static void link_out(void)
{
	drop();
	ck_assert_int_eq(symlinkat("/etc/passwd", dir_fd, "f"), 0);
}

static const struct {
	void (*change)(void);
	bool keeps;	 /* a reader that has it open keeps the whole old file */
	const char *msg; /* begins so */
} changes[] = {
	{ cut, false, "'f' was changed after the checkpoint was opened" },
	{ grow, false, "'f' was changed after the checkpoint was opened" },
	{ overwrite, false, "'f' was changed after the checkpoint was opened" },
	{ touch, false, "'f' was changed after the checkpoint was opened" },
	{ replace, true, "'f' was changed after the checkpoint was opened" },
	{ overwrite_in_secret, false,
	  "'f' was changed after the checkpoint was opened: its ctime has changed (see "
	  "ignore_ctime)" },
	{ change_mode, false, "'f' was changed after the checkpoint was opened: its ctime has " },
	{ drop, true, "open 'f': No such file or directory" },
	{ link_out, true, "open 'f': refused, a link " },
};

START_LOOP_TEST(a_changed_file_never_gives_other_bytes, ARRAY_LEN(changes))
{
	const struct stored_file s[] = { { "f", 10, NULL } };

	for (int opened = 0; opened < 2; opened++) {
		struct ckpt_err e = { 0 };
		struct files *f;
		char b[4] = "";
		int rc;

		put_file(dir_fd, "f", "0123456789", 10);
		f = open_files(s, 1);
		if (opened)
			ck_assert_int_eq(files_read(f, 0, b, 4, 0, &e), 0);
		(void)usleep(20000); /* a file system's clock is a tick behind */
		changes[_i].change();
		rc = files_read(f, 0, b, 4, 2, &e);
		if (opened && changes[_i].keeps) {
			ck_assert_int_eq(rc, 0);
			ck_assert_mem_eq(b, "2345", 4);
		} else {
			ck_assert_int_lt(rc, 0);
			ck_assert_ptr_eq(strstr(e.msg, changes[_i].msg), e.msg);
		}
		files_free(f);
		(void)unlinkat(dir_fd, "f", 0);
	}
}
END_TEST

/* A file counts as changed only when a change was seen: the next read gives its bytes. */
START_TEST(a_file_whose_state_is_unknown_has_not_changed)
{
	const struct stored_file s[] = { { "f", 10, NULL } };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[4];

	put_file(dir_fd, "f", "0123456789", 10);
	f = open_files(s, 1);
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), 0);
	fault_on(FAULT_STAT, 1, 1);
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), -EIO);
	(void)fault_off();
	ck_assert_str_eq(e.msg, "cannot tell whether 'f' has changed since the checkpoint was "
				"opened: Input/output error");
	ck_assert(!files_changed(f));
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), 0);
	ck_assert_mem_eq(b, "2345", 4);
	files_free(f);
}
END_TEST

/* Making and removing links changes no bytes, and the file is watched as before. */
START_TEST(names_that_come_and_go_are_no_change)
{
	const struct stored_file s[] = { { "f", 10, NULL } };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[4];

	put_file(dir_fd, "f", "0123456789", 10);
	f = open_files(s, 1);
	for (int round = 0; round < 3; round++) {
		if (round == 2) /* opened anew */
			files_trim(f, 0);
		(void)usleep(20000);
		add_name();
		ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), 0);
		(void)usleep(20000);
		ck_assert_int_eq(unlinkat(dir_fd, "link", 0), 0);
		ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), 0);
		ck_assert_mem_eq(b, "2345", 4);
		ck_assert(!files_changed(f) && !files_written(f, 0));
	}
	(void)usleep(20000);
	overwrite_in_secret();
	ck_assert(files_written(f, 0));
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), -EIO);
	ck_assert(files_changed(f));
	files_free(f);
}
END_TEST

START_TEST(ctime_may_be_ignored)
{
	const struct stored_file s[] = { { "f", 10, NULL } };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[4];

	put_file(dir_fd, "f", "0123456789", 10);
	f = open_files(s, 1);
	files_ignore_ctime(f);
	(void)usleep(20000);
	change_mode();
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), 0);
	ck_assert(!files_written(f, 0));
	overwrite();
	ck_assert_int_eq(files_read(f, 0, b, 4, 2, &e), -EIO);
	ck_assert_str_eq(e.msg, "'f' was changed after the checkpoint was opened");
	files_free(f);
}
END_TEST

/* ---- many files ---- */

enum { MANY = 300 };
static char names[MANY][16];
static struct stored_file many[MANY];

static void make_many(void)
{
	for (uint32_t i = 0; i < MANY; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "f%u", i);
		put_file(dir_fd, names[i], &i, sizeof(i));
		many[i] = (struct stored_file){ names[i], sizeof(i), NULL };
	}
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Returns false if it is not allowed, as under valgrind. */
static bool allow_descriptors(rlim_t n)
{
	if (!setrlimit(RLIMIT_NOFILE, &(struct rlimit){ n, n }))
		return true;
	ck_assert_int_eq(errno, EPERM);
	(void)fprintf(stderr, "skipped: the limit of descriptors cannot be lowered\n");
	return false;
}

START_TEST(more_files_than_descriptors_can_be_read)
{
	struct rng r = rng_new();
	struct files *f;

	make_many();
	if (!allow_descriptors(100))
		return;
	f = open_files(many, MANY);
	for (int i = 0; i < 3000; i++) {
		uint32_t k = i < MANY ? (uint32_t)i : (uint32_t)rng_below(&r, MANY),
			 got = UINT32_MAX;
		struct ckpt_err e = { 0 };

		REQUIRE(!files_read(f, k, &got, sizeof(got), 0, &e));
		REQUIRE(got == k);
	}
	ck_assert_uint_le(open_descriptors(), 90);
	ck_assert_uint_ge(open_descriptors(), 60); /* it keeps those it may */
	files_free(f);
	ck_assert_uint_le(open_descriptors(), 20);
}
END_TEST

/* Those of another checkpoint that nobody reads are closed. */
START_TEST(a_checkpoint_gets_descriptors_that_another_has)
{
	struct files *a, *b;
	struct ckpt_err e = { 0 };
	uint32_t got;

	make_many();
	if (!allow_descriptors(60))
		return;
	a = open_files(many, MANY);
	b = open_files(many, MANY);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_int_eq(files_read(a, i, &got, sizeof(got), 0, &e), 0);
	while (dup(0) >= 0)
		;
	ck_assert_int_eq(files_read(b, 0, &got, sizeof(got), 0, &e), 0);
	files_free(a);
	ck_assert_int_eq(files_read(b, 1, &got, sizeof(got), 0, &e), 0);
	files_free(b);
}
END_TEST

/* Does this process have the file open? */
static bool is_open(const char *name)
{
	char want[4200], link[64], path[4200];

	(void)snprintf(want, sizeof(want), "%s/%s", dir, name);
	for (int fd = 0; fd < 200; fd++) {
		ssize_t n;

		(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, path, sizeof(path) - 1);
		if (n > 0 && (path[n] = 0, !strcmp(path, want)))
			return true;
	}
	return false;
}

START_TEST(the_longest_unused_descriptor_is_closed_first)
{
	uint32_t last = 0, got;
	struct files *f;
	struct ckpt_err e = { 0 };

	make_many();
	if (!allow_descriptors(100))
		return;
	f = open_files(many, MANY);
	/* Until the first that was opened, though used again and again, would be closed. */
	while (last < 90 && is_open("f1") == (last > 1)) {
		ck_assert_int_eq(files_read(f, last, &got, sizeof(got), 0, &e), 0);
		ck_assert_int_eq(files_read(f, 0, &got, sizeof(got), 0, &e), 0);
		last++;
	}
	ck_assert_uint_gt(last, 20);
	ck_assert_uint_lt(last, 90);
	ck_assert(is_open("f0"));
	ck_assert(is_open("f2"));
	files_free(f);
}
END_TEST

START_TEST(the_limit_of_descriptors_is_left_alone)
{
	struct rlimit l;
	struct files *f;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = 64;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
	f = open_files(NULL, 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &l), 0);
	ck_assert_uint_eq(l.rlim_cur, 64);
	files_free(f);
}
END_TEST

static void *read_many(void *arg)
{
	struct files *f = arg;
	struct rng r = { (uint64_t)(uintptr_t)&r };

	for (int i = 0; i < 3000; i++) {
		uint32_t k = (uint32_t)rng_below(&r, MANY), got = UINT32_MAX;
		struct ckpt_err e = { 0 };

		if (files_read(f, k, &got, sizeof(got), 0, &e) || got != k)
			return arg;
	}
	return NULL;
}

START_TEST(threads_share_few_descriptors)
{
	pthread_t threads[8];
	struct files *f;

	make_many();
	if (!allow_descriptors(200))
		return;
	f = open_files(many, MANY);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, read_many, f), 0);
	for (int i = 0; i < 8; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	files_free(f);
}
END_TEST

/* ---- faults ---- */

START_TEST(a_descriptor_that_comes_in_the_end_leaves_no_error)
{
	struct ckpt_err e = { 0 };
	struct files *f;
	uint32_t got;

	make_many();
	f = open_files(many, MANY);
	ck_assert_int_eq(files_read(f, 0, &got, sizeof(got), 0, &e), 0);
	fault_on(FAULT_OPEN, 1, 1);
	ck_assert_int_eq(files_read(f, 1, &got, sizeof(got), 0, &e), 0);
	ck_assert(fault_hit());
	fault_off();
	ck_assert_int_eq(e.code, 0);
	ck_assert_str_eq(e.msg, "");
	files_free(f);
}
END_TEST

START_TEST(a_file_that_has_become_shorter_has_changed)
{
	const struct stored_file s[] = { { "a", 5, NULL } };
	struct ckpt_err e = { 0 };
	struct files *f;
	char b[5];

	put_file(dir_fd, "a", "01234", 5);
	f = open_files(s, 1);
	put_file(dir_fd, "b", "012", 3);
	REQUIRE(!renameat(dir_fd, "b", dir_fd, "a"));
	ck_assert_int_eq(files_read(f, 0, b, 3, 2, &e), -EIO);
	ck_assert_str_eq(e.msg, "'a' was changed after the checkpoint was opened");
	ck_assert(files_changed(f));
	files_free(f);
}
END_TEST

/* Bit 0: the file is open; what happens to it: nothing, another name, other bytes, another file, it
 * is removed. */
START_LOOP_TEST(a_change_is_seen_without_a_read, 10)
{
	const struct stored_file s[] = { { "a", 5, NULL }, { "b", 5, NULL } };
	const bool open = _i & 1;
	const int what = _i / 2;
	struct ckpt_err e = { 0 };
	struct files *f;
	char b[5];

	put_file(dir_fd, "a", "01234", 5);
	put_file(dir_fd, "b", "01234", 5);
	f = open_files(s, 2);
	if (open)
		ck_assert_int_eq(files_read(f, 0, b, 5, 0, &e), 0);
	ck_assert_int_eq(files_look(f, 0, &e), 0);
	if (what == 1)
		REQUIRE(!linkat(dir_fd, "a", dir_fd, "another", 0));
	if (what == 2)
		put_file(dir_fd, "a", "56789", 5);
	if (what == 3)
		REQUIRE(!renameat(dir_fd, "b", dir_fd, "a"));
	if (what == 4)
		REQUIRE(!unlinkat(dir_fd, "a", 0));
	/* A removed file that is open has all its bytes. */
	if (what > 1 && !(open && what == 4)) {
		files_look_at_open(f);
		ck_assert_int_eq(files_changed(f), open && what == 2);
		if (!(open && what == 3)) { /* the open one is as it was */
			ck_assert_int_eq(files_look(f, 0, &e), -EIO);
			ck_assert_str_eq(e.msg, "'a' was changed after the checkpoint was opened");
			ck_assert(files_changed(f));
		}
	} else {
		ck_assert_msg(!files_look(f, 0, &e), "%s", e.msg);
		files_look_at_open(f);
		ck_assert(!files_changed(f));
	}
	files_free(f);
}
END_TEST

START_TEST(a_failing_read_is_told_with_its_place)
{
	const struct stored_file s[] = { { "a", 5, NULL } };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[5];

	put_file(dir_fd, "a", "01234", 5);
	f = open_files(s, 1);
	fault_on(FAULT_READ, 1, 1);
	ck_assert_int_eq(files_read(f, 0, b, 3, 1, &e), -EIO);
	ck_assert_str_eq(e.msg, "read 'a', 3 bytes at 1: Input/output error");
	ck_assert_int_eq(files_read(f, 0, b, 3, 1, &e), 0);
	(void)fault_off();
	files_free(f);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	const struct stored_file s[] = { { "a", 5, NULL } };

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct files *f = NULL;
		struct ckpt_err e = { 0 };
		int rc = files_new(place, s, 1, &f, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		files_free(f);
	}
}
END_TEST

START_TEST(reads_are_counted_and_those_that_fail)
{
	const struct stored_file s[] = { { "a", 5, NULL }, { "missing", 3, NULL } };
	uint64_t n[FILES_COUNTS] = { 100 };
	struct files *f;
	struct ckpt_err e = { 0 };
	char b[8];

	put_file(dir_fd, "a", "01234", 5);
	f = open_files(s, 2);
	ck_assert_int_eq(files_read(f, 0, b, 5, 0, &e), 0);
	ck_assert_int_eq(files_read(f, 0, b, 2, 1, &e), 0);
	ck_assert_int_ne(files_read(f, 0, b, 2, 4, &e), 0);
	ck_assert_int_ne(files_read(f, 1, b, 1, 0, &e), 0);
	files_add_counts(f, n);
	ck_assert_uint_eq(n[FILES_READS], 104);
	ck_assert_uint_eq(n[FILES_BYTES], 7);
	ck_assert_uint_eq(n[FILES_FAULTS], 2);
	ck_assert_uint_eq(n[FILES_MAPPED], 0);
	files_free(f);
}
END_TEST

SUITE(files, .setup = setup, .teardown = teardown, .seconds = 60)

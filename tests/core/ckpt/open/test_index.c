/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "ckpt/open/index.h"
#include "dcp_util.h"
#include "fault.h"
#include "index/catalog_query.h"
#include "opts_util.h"
#include "rng.h"
#include "scene_util.h"
#include "source/place.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* dir/ckpt is the checkpoint, dir/cache the user's cache directory. */
static char dir[4096], ckpt[4200], beside[4300], explicit_path[4200];
static int dir_fd = -1, ckpt_fd = -1;

static void setup(void)
{
	char cache[4200];

	dir_fd = new_dir(dir);
	(void)snprintf(ckpt, sizeof(ckpt), "%s/ckpt", dir);
	(void)snprintf(beside, sizeof(beside), "%s/.ckptfs-index.sqlite", ckpt);
	(void)snprintf(explicit_path, sizeof(explicit_path), "%s/x%%41?#.sqlite", dir);
	(void)snprintf(cache, sizeof(cache), "%s/cache", dir);
	REQUIRE(!setenv("XDG_CACHE_HOME", cache, 1) && !unsetenv("HOME"));
	REQUIRE(!mkdirat(dir_fd, "ckpt", 0755));
	ckpt_fd = openat(dir_fd, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(ckpt_fd >= 0);
}

static void teardown(void)
{
	(void)close(ckpt_fd);
	(void)close(dir_fd);
}

/* Tensors t0... of two chunks each; the second chunk's item is at `mark`, which tells versions
 * apart. */
static void put_metadata(const char *name, unsigned tensors, int64_t mark)
{
	struct dcp d;

	dcp_begin(&d, ckpt_fd);
	for (unsigned i = 0; i < tensors; i++) {
		static const uint64_t shape[] = { 4 }, boxes[] = { 0, 2, 2, 2 };
		char fqn[16];

		(void)snprintf(fqn, sizeof(fqn), "t%u", i);
		dcp_tensor(&d, fqn, strlen(fqn), "float32", 1, shape, 2, boxes);
		dcp_stored(&d, fqn, strlen(fqn), 1, boxes, "f", i, 10, 0);
		dcp_stored(&d, fqn, strlen(fqn), 1, boxes + 2, "f", mark, 10, 0);
	}
	dcp_end(&d, name);
}

/* The mark of a catalog whose chunk maps can all be read, or -1 if they cannot. */
static int64_t mark_of(struct catalog *c)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	int64_t mark = 0;

	for (size_t i = 0; i < n; i++) {
		autofree struct chunkmap *m = NULL;
		struct ckpt_err e = { 0 };

		if (catalog_load_map(c, &t[i], &m, &e) || m->count != 2)
			return -1;
		mark = (int64_t)m->locs[1].offset;
	}
	return mark;
}

struct opened {
	int rc;
	struct ckpt_err e;
	bool built;
	int64_t mark;
	char path[4400];
	char seal[33];
};

static bool needed;

static void open_index(struct opened *o, const char *where, bool rebuild)
{
	struct place *place CLEANUP(place_freep) = place_of(ckpt_fd);
	struct name_list files = { 0 };
	struct index_request rq = {
		.place = place, .root = ckpt, .where = where, .rebuild = rebuild, .needed = needed
	};
	struct catalog *c = NULL;
	char *path = NULL;

	*o = (struct opened){ .mark = -2 };
	o->rc = format_detect(place, NULL, &rq.format, &files, &o->e);
	rq.files = &files;
	if (!o->rc)
		o->rc = index_open(&rq, &c, &path, &o->built, &o->e);
	if (!o->rc) {
		o->mark = mark_of(c);
		(void)snprintf(o->path, sizeof(o->path), "%s", path);
		(void)snprintf(o->seal, sizeof(o->seal), "%s", catalog_seal(c));
		catalog_close(c);
	}
	free(path);
	name_list_release(&files);
}

static void expect(const char *where, bool built, int64_t mark, const char *path)
{
	struct opened o;

	open_index(&o, where, false);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	ck_assert_int_eq(o.built, built);
	ck_assert_int_eq(o.mark, mark);
	if (path)
		ck_assert_str_eq(o.path, path);
}

/* Entries of a directory but for . and .. */
static unsigned count_entries(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	for (const struct dirent *x; d && (x = readdir(d));)
		n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
	if (d)
		(void)closedir(d);
	return n;
}

static unsigned count_cache(void)
{
	char path[4300];

	(void)snprintf(path, sizeof(path), "%s/cache/ckptfs/index", dir);
	return count_entries(path);
}

/* ---- where it is ---- */

START_TEST(the_index_is_kept_where_it_is_asked_for)
{
	struct stat st;

	put_metadata(".metadata", 3, 100);
	expect(explicit_path, true, 100, explicit_path);
	expect(explicit_path, false, 100, explicit_path);
	ck_assert_int_eq(stat(explicit_path, &st), 0);
	expect(":memory:", true, 100, ":memory:");
	expect(":memory:", true, 100, ":memory:");
	ck_assert_uint_eq(count_entries(dir), 2); /* the checkpoint and it */
	ck_assert_uint_eq(count_entries(ckpt), 1);
}
END_TEST

START_TEST(by_default_it_is_in_the_users_cache)
{
	struct opened o;
	char want[4300];

	put_metadata(".metadata", 3, 100);
	open_index(&o, NULL, false);
	(void)snprintf(want, sizeof(want), "%s/cache/ckptfs/index/ckpt-", dir);
	ck_assert_int_eq(strncmp(o.path, want, strlen(want)), 0);
	ck_assert_uint_eq(strlen(o.path), strlen(want) + 16 + 7);
	ck_assert(o.built);
	expect(NULL, false, 100, o.path);
	ck_assert_uint_eq(count_cache(), 1);
	ck_assert_uint_eq(count_entries(ckpt), 1);
}
END_TEST

START_LOOP_TEST(without_xdg_it_is_below_home, 2)
{
	struct opened o;
	char want[4300];

	put_metadata(".metadata", 3, 100);
	ck_assert_int_eq(_i ? setenv("XDG_CACHE_HOME", "relative", 1) : unsetenv("XDG_CACHE_HOME"),
			 0);
	ck_assert_int_eq(setenv("HOME", dir, 1), 0);
	open_index(&o, NULL, false);
	(void)snprintf(want, sizeof(want), "%s/.cache/ckptfs/index/ckpt-", dir);
	ck_assert_int_eq(strncmp(o.path, want, strlen(want)), 0);
}
END_TEST

START_LOOP_TEST(where_nothing_can_be_written_it_is_in_memory, 8)
{
	put_metadata(".metadata", 3, 100);
	switch (_i) {
	case 0: /* no cache directory at all */
		ck_assert_int_eq(unsetenv("XDG_CACHE_HOME"), 0);
		break;
	case 1: /* below a file */
		ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/dev/null", 1), 0);
		break;
	case 2: /* a file system that makes no directories */
		ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/proc", 1), 0);
		break;
	case 3: /* somebody else's */
	case 4: /* in a directory of another user, who can exchange it */
		if (geteuid())
			return;
		ck_assert_int_eq(mkdirat(dir_fd, "cache", 0777), 0);
		ck_assert_int_eq(mkdirat(dir_fd, "cache/ckptfs", 0777), 0);
		ck_assert_int_eq(
			fchownat(dir_fd, _i == 3 ? "cache/ckptfs" : "cache", 65534, 65534, 0), 0);
		break;
	case 5: /* others may write in it */
	case 6: /* others may exchange it */
		ck_assert_int_eq(mkdirat(dir_fd, "cache", 0700), 0);
		ck_assert_int_eq(mkdirat(dir_fd, "cache/ckptfs", 0700), 0);
		ck_assert_int_eq(fchmodat(dir_fd, _i == 5 ? "cache/ckptfs" : "cache", 0777, 0), 0);
		break;
	default: /* others may exchange what a link leads to */
		ck_assert_int_eq(mkdirat(dir_fd, "all", 0700), 0);
		ck_assert_int_eq(mkdirat(dir_fd, "all/ours", 0700), 0);
		ck_assert_int_eq(fchmodat(dir_fd, "all", 0777, 0), 0);
		ck_assert_int_eq(mkdirat(dir_fd, "cache", 0700), 0);
		ck_assert_int_eq(symlinkat("../all/ours", dir_fd, "cache/ckptfs"), 0);
	}
	expect(NULL, true, 100, ":memory:");
	ck_assert_uint_eq(count_cache(), 0);
}
END_TEST

START_TEST(an_index_beside_the_checkpoint_is_used_and_renewed)
{
	put_metadata(".metadata", 3, 100);
	expect(beside, true, 100, beside);
	expect(NULL, false, 100, beside);
	put_metadata(".metadata", 3, 101);
	expect(NULL, true, 101, beside);
	ck_assert_uint_eq(count_cache(), 0);
	ck_assert_uint_eq(count_entries(ckpt), 2);
}
END_TEST

/* Gives up root's rights, with which it could write everywhere, until become_root. */
static void become_nobody(void)
{
	if (geteuid())
		return;
	REQUIRE(!chmod(getenv("TMPDIR"), 0711) && !chmod(dir, 0711));
	REQUIRE(!seteuid(65534));
}

static void become_root(void)
{
	REQUIRE(getuid() || !seteuid(0));
}

START_TEST(a_stale_index_beside_a_read_only_checkpoint_is_no_obstacle)
{
	char cache[4200];
	struct opened o;

	put_metadata(".metadata", 3, 100);
	expect(beside, true, 100, beside);
	put_metadata(".metadata", 3, 101);
	ck_assert_int_eq(fchmod(ckpt_fd, 0555), 0);
	ck_assert_int_eq(fchmodat(ckpt_fd, ".metadata", 0644, 0), 0);
	ck_assert_int_eq(chmod(beside, 0644), 0);
	(void)snprintf(cache, sizeof(cache), "%s/cache", dir);
	ck_assert_int_eq(mkdir(cache, 0777), 0);
	ck_assert_int_eq(chmod(cache, 01777), 0);
	become_nobody();
	open_index(&o, NULL, false);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	ck_assert(o.built);
	ck_assert_int_eq(o.mark, 101);
	ck_assert_int_eq(strncmp(o.path, cache, strlen(cache)), 0);
	expect(NULL, false, 101, o.path);
	ck_assert_int_eq(setenv("XDG_CACHE_HOME", "/proc", 1), 0);
	expect(NULL, true, 101, ":memory:");
	become_root();
	(void)fchmod(ckpt_fd, 0755);
}
END_TEST

/* A user who can write next to the checkpoint could place a link where our index will be
 * written. */
START_LOOP_TEST(in_a_directory_of_others_an_index_is_read_and_not_written, 3)
{
	struct stat before, after;
	struct opened o;

	put_metadata(".metadata", 3, 100);
	expect(beside, true, 100, beside);
	if (_i < 2)
		ck_assert_int_eq(fchmod(ckpt_fd, _i ? 0777 : 0775), 0);
	else if (geteuid() || fchown(ckpt_fd, 65534, 65534))
		return;
	expect(NULL, false, 100, beside);
	put_metadata(".metadata", 3, 101);
	ck_assert_int_eq(stat(beside, &before), 0);
	open_index(&o, NULL, false);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	ck_assert(o.built);
	ck_assert_int_eq(o.mark, 101);
	ck_assert_str_ne(o.path, beside);
	ck_assert_int_eq(stat(beside, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_assert_uint_eq(count_entries(ckpt), 2);
	ck_assert_uint_eq(count_cache(), 1);
}
END_TEST

START_TEST(an_index_asked_for_where_none_can_be_is_an_error)
{
	struct opened o;

	put_metadata(".metadata", 3, 100);
	open_index(&o, "/proc/nowhere/index", false);
	ck_assert_int_eq(o.rc, -ENOENT);
	ck_assert_str_eq(o.e.msg,
			 "write the chunk index '/proc/nowhere/index': No such file or directory");
	open_index(&o, dir, false);
	ck_assert_int_lt(o.rc, 0);
	ck_assert(o.e.msg[0]);
}
END_TEST

/* Whatever a checkpoint of unknown origin has in place of the index, opening neither hangs nor
 * fails. */
START_LOOP_TEST(other_things_in_place_of_the_index_do_no_harm, 5)
{
	put_metadata(".metadata", 3, 100);
	switch (_i) {
	case 0:
		ck_assert_int_eq(mkfifo(beside, 0600), 0);
		break;
	case 1:
		ck_assert_int_eq(mkdir(beside, 0700), 0);
		break;
	case 2:
		ck_assert_int_eq(symlink("/dev/zero", beside), 0);
		break;
	case 3:
		ck_assert_int_eq(symlink("nothing", beside), 0);
		break;
	default:
		ck_assert_int_eq(symlink(".ckptfs-index.sqlite", beside), 0);
	}
	expect(NULL, true, 100, NULL);
	expect(NULL, false, 100, NULL);
	ck_assert_uint_eq(count_cache(), 1);
}
END_TEST

/* ---- is it still true ---- */

static void age(const char *name)
{
	ck_assert_int_eq(
		utimensat(ckpt_fd, name, (const struct timespec[]){ { 1, 2 }, { 3, 4 } }, 0), 0);
}

START_TEST(a_replaced_metadata_file_means_building_again)
{
	struct stat st;
	size_t a, b;

	put_metadata(".metadata", 3, 100);
	expect(NULL, true, 100, NULL);
	ck_assert_int_eq(fstatat(ckpt_fd, ".metadata", &st, 0), 0);
	put_metadata(".metadata.new", 3, 101);
	free(get_file(ckpt_fd, ".metadata", &a));
	free(get_file(ckpt_fd, ".metadata.new", &b));
	ck_assert_uint_eq(a, b); /* the same size, and */
	ck_assert_int_eq(utimensat(ckpt_fd, ".metadata.new",
				   (const struct timespec[]){ st.st_atim, st.st_mtim }, 0),
			 0); /* the same time */
	ck_assert_int_eq(renameat(ckpt_fd, ".metadata.new", ckpt_fd, ".metadata"), 0);
	expect(NULL, true, 101, NULL);
	expect(NULL, false, 101, NULL);
	put_metadata(".metadata", 4, 102); /* in place, longer */
	expect(NULL, true, 102, NULL);
}
END_TEST

START_TEST(a_fresh_index_needs_no_look_into_the_metadata)
{
	uint64_t reads, fresh;
	struct stat st;

	put_metadata(".metadata", 3, 100);
	expect(NULL, true, 100, NULL);
	reads = fault_read_bytes();
	expect(NULL, false, 100, NULL);
	fresh = fault_read_bytes() - reads;
	age(".metadata");
	reads = fault_read_bytes();
	expect(NULL, false, 100, NULL);
	ck_assert_int_eq(fstatat(ckpt_fd, ".metadata", &st, 0), 0);
	/* the bytes of .metadata, to be hashed, and no others */
	ck_assert_uint_eq(fault_read_bytes() - reads, fresh + (uint64_t)st.st_size);
}
END_TEST

START_TEST(equal_bytes_mean_that_it_is_still_true)
{
	put_metadata(".metadata", 3, 100);
	expect(NULL, true, 100, NULL);
	age(".metadata");
	expect(NULL, false, 100, NULL);
	put_metadata(".metadata", 3, 100); /* saved again */
	expect(NULL, false, 100, NULL);
	ck_assert_int_eq(unlinkat(ckpt_fd, ".metadata", 0), 0);
	put_metadata(".metadata", 3, 100);
	expect(NULL, false, 100, NULL);
}
END_TEST

START_TEST(other_rank_files_mean_building_again)
{
	put_metadata("__0.metadata", 3, 100);
	expect(NULL, true, 100, NULL);
	put_metadata("__1.metadata", 3, 100);
	expect(NULL, true, 100, NULL);
	expect(NULL, false, 100, NULL);
	ck_assert_int_eq(unlinkat(ckpt_fd, "__0.metadata", 0), 0);
	expect(NULL, true, 100, NULL);
	ck_assert_int_eq(renameat(ckpt_fd, "__1.metadata", ckpt_fd, "__2.metadata"), 0);
	expect(NULL, true, 100, NULL);
	put_metadata(".metadata", 3, 102); /* wins over rank files */
	expect(NULL, true, 102, NULL);
	expect(NULL, false, 102, NULL);
}
END_TEST

START_TEST(rebuilding_is_done_when_asked_for)
{
	struct opened o;

	put_metadata(".metadata", 3, 100);
	expect(explicit_path, true, 100, NULL);
	open_index(&o, explicit_path, true);
	ck_assert(!o.rc && o.built);
	expect(explicit_path, false, 100, NULL);
	expect(NULL, true, 100, NULL);
	open_index(&o, NULL, true);
	ck_assert(!o.rc && o.built);
}
END_TEST

START_TEST(a_damaged_index_is_built_again_silently)
{
	struct rng r = rng_new();
	size_t n;
	autofree uint8_t *good = NULL;

	put_metadata(".metadata", 30, 100);
	expect(beside, true, 100, beside);
	good = get_file(ckpt_fd, ".ckptfs-index.sqlite", &n);
	for (int i = 0; i < 40; i++) {
		autofree uint8_t *bad = malloc(n);
		struct opened o;

		REQUIRE(bad);
		memcpy(bad, good, n);
		if (i % 4 == 0)
			random_bytes(&r, bad + rng_below(&r, n / 16384) * 16384, 16384);
		else if (i % 4 == 1)
			memset(bad, 0, 1 + rng_below(&r, n - 1));
		else if (i % 4 == 2)
			bad[rng_below(&r, 16384)] ^= 0xff;
		put_file(ckpt_fd, ".ckptfs-index.sqlite", bad, i % 4 == 3 ? rng_below(&r, n) : n);
		open_index(&o, NULL, false);
		ck_assert_msg(!o.rc, "%s", o.e.msg);
		/* Damage to a chunk map shows only when the map is read. */
		ck_assert(o.mark == 100 || (!o.built && o.mark == -1));
		ck_assert_str_eq(o.path, beside);
	}
	ck_assert_uint_eq(count_entries(ckpt), 2);
}
END_TEST

/* ---- several at once ---- */

/* Exit status of a child that opens: 0 found, 1 built, 2 wrong. */
static pid_t fork_opener(const char *where)
{
	pid_t pid = fork();

	if (!pid) {
		struct opened o;

		open_index(&o, where, false);
		_exit(o.rc || o.mark != 100 ? 2 : o.built);
	}
	REQUIRE(pid > 0);
	return pid;
}

static int wait_for(pid_t pid)
{
	int status = -1;

	REQUIRE(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_LOOP_TEST(of_processes_that_come_together_one_builds, 2)
{
	enum { N = 4 };

	put_metadata(".metadata", 2000, 100);
	for (int round = 0; round < 5; round++) {
		pid_t pids[N];
		int built = 0;

		(void)unlink(explicit_path);
		for (int i = 0; i < N; i++)
			pids[i] = fork_opener(_i ? NULL : explicit_path);
		for (int i = 0; i < N; i++) {
			int rc = wait_for(pids[i]);

			ck_assert_int_ge(rc, 0);
			ck_assert_int_lt(rc, 2);
			built += rc;
		}
		ck_assert_int_eq(built, !_i || !round);
	}
	ck_assert_uint_eq(count_entries(dir), 2); /* the checkpoint and the index or the cache */
	ck_assert_uint_eq(count_cache(), (unsigned)_i);
	ck_assert_uint_eq(count_entries(ckpt), 1);
}
END_TEST

START_TEST(a_lock_that_nobody_holds_is_taken)
{
	put_metadata(".metadata", 3, 100);
	put_file(ckpt_fd, ".ckptfs-index.sqlite.lock", "", 0);
	put_file(ckpt_fd, ".ckptfs-index.sqlite.tmp", (const char[200]){ 0 }, 200);
	expect(beside, true, 100, beside);
	ck_assert_uint_eq(count_entries(ckpt), 2);
}
END_TEST

enum thing { EMPTY, TEXT, ZEROS, OTHER_SQLITE, UNNUMBERED_SQLITE, FIFO };

static const struct {
	const char *name;
	enum thing thing;
	bool replaced;
} in_the_way[] = {
	{ "", EMPTY, true },
	{ "", TEXT, false },
	{ "", ZEROS, false },
	{ "", OTHER_SQLITE, false },
	{ "", UNNUMBERED_SQLITE, false },
	{ "", FIFO, false },
	{ ".tmp", EMPTY, true },
	{ ".tmp", TEXT, false },
	{ ".tmp", ZEROS, true },
	{ ".tmp", OTHER_SQLITE, false },
	{ ".tmp", UNNUMBERED_SQLITE, true },
	{ ".tmp", FIFO, false },
	{ ".lock", EMPTY, true },
	{ ".lock", TEXT, false },
	{ ".lock", FIFO, false },
};

/* A name that was meant for something else, such as that of a file of the checkpoint. */
START_LOOP_TEST(what_is_no_index_is_not_replaced, (int)ARRAY_LEN(in_the_way))
{
	static const char magic[] = "SQLite format 3";
	enum thing thing = in_the_way[_i].thing;
	char path[4400], bytes[200] = "", got[200];
	size_t len = thing == EMPTY ? 0 : thing == TEXT ? 9 : sizeof(bytes);
	struct opened o;
	struct stat st;

	put_metadata(".metadata", 3, 100);
	(void)snprintf(path, sizeof(path), "%s%s", explicit_path, in_the_way[_i].name);
	if (thing == TEXT || thing == OTHER_SQLITE)
		memset(bytes, 'x', sizeof(bytes));
	if (thing == OTHER_SQLITE || thing == UNNUMBERED_SQLITE)
		memcpy(bytes, magic, sizeof(magic));
	if (thing == FIFO)
		REQUIRE(!mkfifo(path, 0600));
	else
		put_file(AT_FDCWD, path, bytes, len);
	open_index(&o, explicit_path, _i % 2);
	if (in_the_way[_i].replaced) {
		ck_assert_msg(!o.rc && o.built, "%s", o.e.msg);
		return;
	}
	ck_assert_int_eq(o.rc, -EEXIST);
	ck_assert_msg(strstr(o.e.msg, path) && strstr(o.e.msg, "name another file"), "%s", o.e.msg);
	REQUIRE(!lstat(path, &st));
	ck_assert_int_eq(S_ISFIFO(st.st_mode), thing == FIFO);
	if (thing == FIFO)
		return;
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(st.st_size, (off_t)len);
	REQUIRE(read(fd, got, sizeof(got)) == (ssize_t)len);
	ck_assert_mem_eq(got, bytes, len);
}
END_TEST

/* Somebody else's checkpoint may contain such a file; it is opened all the same. */
START_TEST(a_checkpoint_with_a_file_in_the_locks_place_is_opened)
{
	char path[4400];
	struct opened o;
	struct stat st;

	put_metadata(".metadata", 3, 100);
	expect(beside, true, 100, beside);
	put_metadata(".metadata", 4, 200);
	(void)snprintf(path, sizeof(path), "%s.lock", beside);
	put_file(AT_FDCWD, path, "text", 4);
	open_index(&o, NULL, false);
	ck_assert_msg(!o.rc && o.mark == 200, "%s", o.e.msg);
	ck_assert(!stat(path, &st) && st.st_size == 4);
}
END_TEST

/* Neither the link nor what it leads to is replaced. */
START_TEST(a_link_is_not_replaced_by_an_index)
{
	struct opened o;
	struct stat st;

	put_metadata(".metadata", 3, 100);
	REQUIRE(!symlink("nothing", explicit_path));
	open_index(&o, explicit_path, false);
	ck_assert_int_eq(o.rc, -EEXIST);
	ck_assert(!lstat(explicit_path, &st) && S_ISLNK(st.st_mode));
}
END_TEST

START_LOOP_TEST(an_index_that_is_needed_is_not_built, 3)
{
	const char *const where[] = { NULL, explicit_path, ":memory:" };
	struct opened o;

	put_metadata(".metadata", 3, 100);
	needed = true;
	open_index(&o, where[_i], false);
	ck_assert_int_eq(o.rc, -ENODATA);
	ck_assert(strstr(o.e.msg, "has no current chunk index"));
	ck_assert_uint_eq(count_entries(ckpt), 1);
	needed = false;
	open_index(&o, where[_i], false);
	ck_assert(!o.rc && o.built);
	needed = true;
	open_index(&o, where[_i], false);
	ck_assert_int_eq(o.rc, _i == 2 ? -ENODATA : 0);
	ck_assert(o.rc || (!o.built && o.mark == 100));
	put_metadata(".metadata", 4, 200); /* it is not current any more */
	open_index(&o, where[_i], false);
	needed = false;
	ck_assert_int_eq(o.rc, -ENODATA);
}
END_TEST

/* A builder that takes its time: it holds the lock until it is killed. */
static pid_t fork_holder(const char *lock)
{
	pid_t pid = fork();

	if (!pid) {
		int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		if (fd >= 0 && !flock(fd, LOCK_EX))
			(void)pause();
		_exit(1);
	}
	REQUIRE(pid > 0);
	for (;;) { /* until it has it */
		autoclose int fd = open(lock, O_RDWR | O_CLOEXEC);

		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB))
			return pid;
		if (fd >= 0)
			(void)flock(fd, LOCK_UN);
		(void)usleep(1000);
	}
}

START_LOOP_TEST(a_builder_is_waited_for_until_it_ends_or_dies, 2)
{
	char lock[4400];
	pid_t holder, pid;

	put_metadata(".metadata", 3, 100);
	(void)snprintf(lock, sizeof(lock), "%s.lock", beside);
	holder = fork_holder(lock);
	pid = fork_opener(beside);
	(void)usleep(100000);
	ck_assert_int_eq(waitpid(pid, &(int){ 0 }, WNOHANG), 0);
	ck_assert_int_ne(access(beside, F_OK), 0);
	if (_i) /* a process that ends removes the name first */
		(void)unlink(lock);
	(void)kill(holder, SIGKILL);
	(void)wait_for(holder);
	ck_assert_int_eq(wait_for(pid), 1);
	ck_assert_uint_eq(count_entries(ckpt), 2);
}
END_TEST

START_LONG_TEST(a_builder_killed_at_any_moment_leaves_an_index_or_none)
{
	struct rng r = rng_new();
	unsigned killed = 0;
	struct opened o;
	uint64_t us = 20000;

	put_metadata(".metadata", 1500, 100);
	for (unsigned i = 0; i < rng_rounds(50, 12) || killed < 4; i++) {
		bool alive;
		pid_t pid;
		struct catalog *c = NULL;
		struct ckpt_err e = { 0 };

		(void)unlink(beside);
		pid = fork_opener(beside);
		(void)usleep((useconds_t)rng_below(&r, us));
		(void)kill(pid, SIGKILL);
		alive = wait_for(pid) < 0;
		killed += alive;
		us = alive ? us + us / 4 : us - us / 4; /* half of them die on any machine */
		if (!access(beside, F_OK)) {
			ck_assert_msg(!catalog_open(beside, &c, &e), "%s", e.msg);
			ck_assert_int_eq(mark_of(c), 100);
			catalog_close(c);
		}
		if (i % 5 == 0)
			expect(beside, access(beside, F_OK) != 0, 100, beside);
	}
	open_index(&o, beside, true);
	ck_assert(!o.rc && o.built && o.mark == 100);
	ck_assert_uint_eq(count_entries(ckpt), 2); /* no lock, no temporary file */
}
END_TEST

/* ---- damage behind an open checkpoint ---- */

enum { TENSORS = 30 };
static struct scene scenes[TENSORS];

static void put_checkpoint(uint64_t seed)
{
	struct rng r = { seed };
	struct choose c = choose_rng(&r);
	struct scene_opts o = {
		.max_dims = 3, .max_elements = 200, .element = 4, .tiling = TILE_CUTS
	};
	struct dcp d;

	dcp_begin(&d, ckpt_fd);
	for (int i = 0; i < TENSORS; i++) {
		char fqn[16];

		scene_make(&scenes[i], &c, &o);
		(void)snprintf(fqn, sizeof(fqn), "t%03d", i);
		dcp_scene(&d, fqn, strlen(fqn), &scenes[i], (unsigned)i, 0);
	}
	dcp_end(&d, ".metadata");
}

static void release_scenes(void)
{
	for (int i = 0; i < TENSORS; i++)
		scene_release(&scenes[i]);
}

/* Overwrite every page but the first. */
static void break_pages(const char *path)
{
	static const uint8_t junk[16384] = { 0xff, 0xff };
	autoclose int fd = open(path, O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0);
	for (off_t at = 16384; pread(fd, &(char){ 0 }, 1, at) == 1; at += 16384)
		REQUIRE(pwrite(fd, junk, sizeof(junk), at) == sizeof(junk));
}

static int read_tensor(struct ckpt *c, int i, struct ckpt_err *e)
{
	autofree uint8_t *out = malloc(scenes[i].bytes + 1);
	struct ckpt_file *f = NULL;
	char path[32];
	int64_t n;
	int rc;

	REQUIRE(out);
	(void)snprintf(path, sizeof(path), "tensors/t%03d", i);
	rc = ckpt_file_open_path(c, path, &f, e);
	if (rc)
		return rc;
	n = ckpt_file_read(f, out, scenes[i].bytes + 1, 0, e);
	ckpt_file_close(f);
	if (n < 0)
		return (int)n;
	REQUIRE((uint64_t)n == scenes[i].bytes && !memcmp(out, scenes[i].want, scenes[i].bytes));
	return 0;
}

START_TEST(an_index_damaged_while_open_is_renewed_unnoticed)
{
	struct ckpt_opts o = { .index = explicit_path, .maps = 1 };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct opened after;

	put_checkpoint(rng_new().state);
	ck_assert_msg(!open_typed(ckpt, &o, &c, &e), "%s", e.msg);
	break_pages(explicit_path);
	for (int i = 0; i < TENSORS; i++)
		ck_assert_msg(!read_tensor(c, i, &e), "%s", e.msg);
	ck_assert_int_eq(e.code, 0);
	open_index(&after, explicit_path, false);
	ck_assert(!after.rc && !after.built); /* the new one is on disk */
	ckpt_close(c);
	release_scenes();
}
END_TEST

START_TEST(where_the_new_index_cannot_be_written_memory_will_do)
{
	struct ckpt_opts o = { .index = explicit_path, .ignore_ctime = true };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	put_checkpoint(rng_new().state);
	ck_assert_int_eq(open_typed(ckpt, &o, &c, &e), 0);
	break_pages(explicit_path);
	ck_assert_int_eq(fchmodat(ckpt_fd, ".metadata", 0644, 0), 0);
	for (unsigned i = 0; i < DCP_FILES; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "__0_%u.distcp", i);
		REQUIRE(!fchmodat(ckpt_fd, name, 0644, 0) || errno == ENOENT);
	}
	ck_assert_int_eq(fchmod(dir_fd, 0555), 0);
	become_nobody();
	for (int i = 0; i < TENSORS; i++)
		ck_assert_msg(!read_tensor(c, i, &e), "%s", e.msg);
	become_root();
	(void)fchmod(dir_fd, 0755);
	ckpt_close(c);
	release_scenes();
}
END_TEST

START_TEST(an_index_damaged_while_the_checkpoint_changes_is_an_error)
{
	struct ckpt_opts o = { .index = explicit_path };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char want[400];

	uint64_t seed = rng_new().state;

	put_checkpoint(seed);
	while (!scenes[0].bytes) { /* reading no bytes needs no map */
		release_scenes();
		put_checkpoint(++seed);
	}
	ck_assert_int_eq(open_typed(ckpt, &o, &c, &e), 0);
	break_pages(explicit_path);
	release_scenes();
	put_checkpoint(seed + 1);
	ck_assert_int_eq(read_tensor(c, 0, &e), -ESTALE);
	(void)snprintf(want, sizeof(want),
		       "'tensors/t000': the chunk index '%.80s' is damaged, and a new one of the "
		       "checkpoint differs from it: open the checkpoint again, or remove the index "
		       "if that does not help",
		       explicit_path);
	ck_assert_str_eq(e.msg, want);
	ckpt_close(c);
	release_scenes();
}
END_TEST

SUITE(index, .setup = setup, .teardown = teardown, .seconds = 60)

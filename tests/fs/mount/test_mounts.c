/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's list of mounts, in a mount namespace of the test: FUSE mounts that nobody serves. A
 * mount is dead once its /dev/fuse is closed. Only root can make them.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "fault.h"
#include "suites.h"

#include "mount/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static bool can_mount; /* if false, tests end at once */

static void setup(void)
{
	dir_setup();
	can_mount = !access("/dev/fuse", R_OK | W_OK) && !unshare(CLONE_NEWNS) &&
		    !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

static const char *in_dir(const char *name)
{
	static char paths[4][4400];
	static unsigned n;
	char *path = paths[n++ % ARRAY_LEN(paths)];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

/* Returns the /dev/fuse that keeps it alive. */
static int mount_fuse(const char *source, const char *name)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[100];

	(void)mkdirat(dir_fd, name, 0755);
	(void)snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	REQUIRE(fd >= 0 &&
		!mount(source, in_dir(name), MOUNTS_TYPE, MS_NOSUID | MS_NODEV, options));
	return fd;
}

static void mount_tmpfs(const char *name)
{
	(void)mkdirat(dir_fd, name, 0755);
	REQUIRE(!mount("none", in_dir(name), "tmpfs", 0, NULL));
}

static struct mount_found must_find(const char *name)
{
	struct mount_found m = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_msg(!mounts_find(in_dir(name), &m, &e), "%s: %s", name, e.msg);
	return m;
}

START_TEST(mounts_are_found_by_path)
{
	struct mount_found m, below;
	struct ckpt_err e = { 0 };

	if (!can_mount)
		return;
	(void)mount_fuse("ckpt", "a b\\c\n");
	m = must_find("a b\\c\n"); /* as the kernel writes it: \040 \134 \012 */
	ck_assert_str_eq(m.type, MOUNTS_TYPE);
	ck_assert_uint_eq(m.major, 0);
	mkdirat(dir_fd, "d", 0755);
	ck_assert_int_eq(mounts_find(in_dir("d"), &m, &e), 1);
	ck_assert_int_eq(mounts_find(in_dir("a"), &m, &e), 1);
	mount_tmpfs("d");
	below = must_find("d");
	ck_assert_str_eq(below.type, "tmpfs");
	(void)mount_fuse("ckpt", "d"); /* the topmost counts */
	m = must_find("d");
	ck_assert_str_eq(m.type, MOUNTS_TYPE);
	ck_assert_uint_ne(m.id, below.id);
	ck_assert_int_eq(e.code, 0);
}
END_TEST

START_TEST(mounts_are_found_by_source)
{
	struct mount_found m, one;
	struct ckpt_err e = { 0 };

	if (!can_mount)
		return;
	ck_assert_int_eq(mounts_find_source("s3://b/k", &m, &e), 1);
	(void)mount_fuse("s3://b/k", "a");
	(void)mount_fuse("s3://b/kk", "b");
	REQUIRE(!mkdirat(dir_fd, "t", 0755) && !mount("s3://b/k", in_dir("t"), "tmpfs", 0, NULL));
	one = must_find("a");
	ck_assert_int_eq(mounts_find_source("s3://b/k", &m, &e), 0);
	ck_assert_uint_eq(m.id, one.id);
	ck_assert_int_eq(mounts_find_source("s3://b/k//", &m, &e), 0);
	ck_assert_uint_eq(m.id, one.id);
	ck_assert_int_eq(mounts_find_source("s3://b/j", &m, &e), 1);
	ck_assert_int_eq(mounts_find_source("s3://b/", &m, &e), 1);
	(void)mount_fuse("s3://b/k/", "c");
	ck_assert_int_eq(mounts_find_source("s3://b/k", &m, &e), -EINVAL);
	ck_assert_ptr_nonnull(strstr(e.msg, "'s3://b/k' is mounted on '"));
	ck_assert_ptr_nonnull(strstr(e.msg, ": name one of them"));
}
END_TEST

/* If the kernel does not say which connection a descriptor has, the mounts that were there before
 * decide. */
START_TEST(a_new_mount_is_told_from_old_ones)
{
	struct buf before = BUF_INIT(1 << 20), later = BUF_INIT(1 << 20), small = BUF_INIT(4);
	struct mount_found m = { 0 };
	struct ckpt_err e = { 0 };
	int fd;

	if (!can_mount)
		return;
	(void)mount_fuse("ckpt", "d");
	REQUIRE(!mounts_list(&before, &e));
	ck_assert_int_eq(mounts_find_new(in_dir("d"), -1, &before, &m, &e), 1);
	fd = mount_fuse("ckpt", "d");
	ck_assert_int_eq(mounts_find_new(in_dir("d"), -1, &before, &m, &e), 0);
	ck_assert_uint_eq(m.id, must_find("d").id);
	REQUIRE(!mounts_list(&later, &e));
	ck_assert_int_eq(mounts_find_new(in_dir("d"), -1, &later, &m, &e), 1);
	m = (struct mount_found){ 0 };
	/* If it does, the connection decides, whatever the list says; an older kernel has only the
	 * list. */
	ck_assert_int_ge(mounts_find_new(in_dir("d"), fd, &before, &m, &e), 0);
	ck_assert_uint_eq(m.id, must_find("d").id);
	ck_assert_int_eq(mounts_list(&small, &e), -EFBIG);
	buf_release(&before);
	buf_release(&later);
	buf_release(&small);
}
END_TEST

START_TEST(only_that_mount_is_removed)
{
	struct mount_found m, above;
	struct ckpt_err e = { 0 };
	int fd;

	if (!can_mount)
		return;
	/* after it was moved */
	REQUIRE(!mkdirat(dir_fd, "p", 0755));
	(void)mount_fuse("ckpt", "p/m");
	m = must_find("p/m");
	REQUIRE(!renameat(dir_fd, "p", dir_fd, "q"));
	ck_assert_int_eq(mounts_remove(&m, 0, &e), 0);
	ck_assert_int_eq(mounts_find(in_dir("q/m"), &m, &e), 1);
	/* after it has gone */
	ck_assert_int_eq(mounts_remove(&m, MNT_DETACH, &e), 0);
	ck_assert_msg(!e.code && !*e.msg, "success left an error: %s", e.msg);
	/* neither the mount on top of it, nor the one below it */
	mount_tmpfs("d");
	(void)mount_fuse("ckpt", "d");
	m = must_find("d");
	mount_tmpfs("d");
	above = must_find("d");
	ck_assert_int_eq(mounts_remove(&m, 0, &e), -EBUSY);
	ck_assert_ptr_nonnull(strstr(e.msg, "something else is mounted on it"));
	ck_assert_uint_eq(must_find("d").id, above.id);
	REQUIRE(!umount2(in_dir("d"), MNT_DETACH));
	ck_assert_int_eq(mounts_remove(&m, 0, &e), 0);
	ck_assert_str_eq(must_find("d").type, "tmpfs");
	/* one that is in use, only by detaching it */
	fd = open(in_dir("d"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	m = must_find("d");
	ck_assert_int_eq(mounts_remove(&m, 0, &e), -EBUSY);
	ck_assert_ptr_nonnull(strstr(e.msg, ": in use; 'umount -l' detaches it now"));
	ck_assert_int_eq(mounts_remove(&m, MNT_DETACH, &e), 0);
	ck_assert_int_eq(mounts_find(in_dir("d"), &m, &e), 1);
	(void)close(fd);
}
END_TEST

/* The kernel may give the numbers of a mount to the next one. */
START_TEST(a_mount_with_the_numbers_of_another_stays)
{
	struct mount_found gone = { 0 }, m = { 0 };
	struct ckpt_err e = { 0 };

	for (int tries = 0; can_mount && tries < 1000; tries++) { /* others may mount, too */
		(void)mount_fuse("ckpt", "d");
		gone = must_find("d");
		REQUIRE(!umount2(in_dir("d"), 0));
		(void)mount_fuse("ckpt", "other");
		m = must_find("other");
		if (m.id == gone.id && m.minor == gone.minor)
			break;
		REQUIRE(!umount2(in_dir("other"), 0));
	}
	if (!can_mount || m.id != gone.id)
		return;
	REQUIRE(!mounts_remove(&gone, MNT_DETACH, &e));
	ck_assert_uint_eq(must_find("other").id, m.id);
}
END_TEST

static void must_resolve(const char *path, const char *want)
{
	struct ckpt_err e = { 0 };
	autofree char *got = mounts_resolve(path, &e);

	ck_assert_msg(got && !strcmp(got, want), "%s: %s in place of %s: %s", path, got ? got : "",
		      want, e.msg);
}

START_TEST(paths_of_dead_mounts_are_resolved)
{
	char want[4400], real[4096];
	struct ckpt_err e = { 0 };

	if (!can_mount)
		return;
	REQUIRE(realpath(dir, real));
	(void)close(mount_fuse("ckpt", "dead"));
	(void)snprintf(want, sizeof(want), "%s/dead", real);
	must_resolve(in_dir("dead"), want);
	must_resolve(in_dir("dead///"), want);
	must_resolve(in_dir("./dead/"), want);
	REQUIRE(!symlinkat(".", dir_fd, "link"));
	must_resolve(in_dir("link/dead"), want);
	REQUIRE(!chdir(dir));
	must_resolve("dead", want);
	must_resolve("dead/", want);
	must_resolve(".", real);
	ck_assert_ptr_null(mounts_resolve("none", &e));
	ck_assert_int_eq(e.code, ENOENT);
	REQUIRE(mounts_is_dead(ENOTCONN) && mounts_is_dead(ECONNABORTED) && !mounts_is_dead(EIO) &&
		!mounts_is_dead(0));
}
END_TEST

START_TEST(what_fails_is_an_error)
{
	struct buf before = BUF_INIT(1 << 20);
	struct ckpt_err none = { 0 };
	struct mount_found there;

	if (!can_mount)
		return;
	REQUIRE(!mounts_list(&before, &none));
	(void)close(mount_fuse("ckpt", "d"));
	there = must_find("d");
	FAULT_LOOP(FAULT_ALLOC | FAULT_OPEN | FAULT_STAT | FAULT_READ)
	{
		struct mount_found m = { 0 };
		struct ckpt_err e = { 0 };
		int rc = mounts_find_new(in_dir("d"), -1, &before, &m, &e);
		autofree char *path = rc ? NULL : mounts_resolve(in_dir("d"), &e);

		(void)fault_off();
		ck_assert_msg((!rc && path && m.id == there.id) ||
				      (e.code && *e.msg && (rc < 0 || !path)),
			      "%s: %d: %s", fault_name(), rc, e.msg);
	}
	FAULT_LOOP(FAULT_ALLOC | FAULT_OPEN | FAULT_STAT | FAULT_READ)
	{
		struct ckpt_err e = { 0 };
		int rc = mounts_remove(&there, 0, &e);

		(void)fault_off();
		ck_assert_msg(!rc || (rc == -e.code && *e.msg), "%s: %d: %s", fault_name(), rc,
			      e.msg);
	}
	buf_release(&before);
}
END_TEST

SUITE(mounts, .setup = setup, .teardown = dir_teardown, .seconds = 30)

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "blob_util.h"
#include "fault.h"
#include "suites.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * A directory of its own for every test, `ckpt` below it as the checkpoint:
 *
 *	secret  ckpt/file  ckpt/sub/file  ckpt/sub/deep/file  ckpt/fifo  ckpt/lfs  ckpt/lfsless
 *	ckpt/inside -> sub/file   ckpt/indir -> sub   ckpt/loop -> loop
 *	ckpt/out -> ../secret     ckpt/outdir -> ..   ckpt/abs -> /etc/passwd
 */
#define LFS "version https://git-lfs.github.com/spec/v1\n"
static char root[4096];
static int ckpt = -1;

static void write_file(int dirfd, const char *name, const char *text)
{
	autoclose int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(io_write(fd, text, strlen(text)), 0);
}

static void setup(void)
{
	autoclose int dir = -1;

	(void)snprintf(root, sizeof(root), "%s/io-XXXXXX", getenv("TMPDIR"));
	ck_assert_ptr_nonnull(mkdtemp(root));
	dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(dir, 0);
	write_file(dir, "secret", "secret");
	ck_assert_int_eq(mkdirat(dir, "ckpt", 0700), 0);
	ckpt = openat(dir, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(ckpt, 0);
	ck_assert_int_eq(mkdirat(ckpt, "sub", 0700), 0);
	write_file(ckpt, "file", "content");
	write_file(ckpt, "sub/file", "deeper");
	ck_assert_int_eq(mkdirat(ckpt, "sub/deep", 0700), 0);
	write_file(ckpt, "sub/deep/file", "deepest");
	write_file(ckpt, "lfs", LFS "oid sha256:0123\nsize 5\n");
	write_file(ckpt, "lfsless", LFS);
	ck_assert_int_eq(mkfifoat(ckpt, "fifo", 0600), 0);
	ck_assert_int_eq(symlinkat("sub/file", ckpt, "inside"), 0);
	ck_assert_int_eq(symlinkat("sub", ckpt, "indir"), 0);
	ck_assert_int_eq(symlinkat("loop", ckpt, "loop"), 0);
	ck_assert_int_eq(symlinkat("../secret", ckpt, "out"), 0);
	ck_assert_int_eq(symlinkat("..", ckpt, "outdir"), 0);
	ck_assert_int_eq(symlinkat("/etc/passwd", ckpt, "abs"), 0);
}

static void teardown(void)
{
	(void)close(ckpt);
}

/* ---- reading and writing ---- */

START_TEST(pread_reads_all_or_says_that_the_file_ends)
{
	autoclose int fd = openat(ckpt, "file", O_RDONLY | O_CLOEXEC);
	char b[16] = "";

	ck_assert_int_eq(io_pread(fd, b, 7, 0), 0);
	ck_assert_mem_eq(b, "content", 7);
	ck_assert_int_eq(io_pread(fd, b, 4, 3), 0);
	ck_assert_mem_eq(b, "tent", 4);
	ck_assert_int_eq(io_pread(fd, b, 0, 7), 0);
	ck_assert_int_eq(io_pread(fd, b, 8, 0), -ENODATA);
	ck_assert_int_eq(io_pread(fd, b, 1, 7), -ENODATA);
	ck_assert_int_eq(io_pread(-1, b, 1, 0), -EBADF);
}
END_TEST

START_TEST(a_failing_read_is_its_error_number)
{
	autoclose int fd = openat(ckpt, "file", O_RDONLY | O_CLOEXEC);
	char b[7];

	fault_on(FAULT_READ, 1, 1);
	ck_assert_int_eq(io_pread(fd, b, 7, 0), -EIO);
	fault_on(FAULT_READ, 1, 1);
	ck_assert_int_eq(io_pread_some(fd, b, 7, 0), -EIO);
	(void)fault_off();
	ck_assert_int_eq(io_pread(fd, b, 7, 0), 0);
}
END_TEST

/* Not even for a moment: a process that waits for a reader of the FIFO would go on. */
START_TEST(what_is_no_regular_file_is_not_opened)
{
	static const char *const names[] = { "fifo", "sub" };
	autoclose int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	struct ckpt_err e = { 0 };
	struct inotify_event x;
	char path[4200];
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		(void)snprintf(path, sizeof(path), "%s/ckpt/%s", root, names[i]);
		REQUIRE(inotify_add_watch(watch, path, IN_OPEN) >= 0);
		ck_assert_int_eq(io_open_beneath(ckpt, names[i], &st, &e), -ERR_CORRUPT);
		ck_assert(strstr(e.msg, "not a regular file"));
	}
	ck_assert_int_eq(read(watch, &x, sizeof(x)), -1);
	ck_assert_int_eq(errno, EAGAIN);
}
END_TEST

/* What cannot be read is not taken for the file that a pointer stands for. */
START_TEST(a_pointer_that_cannot_be_read_is_no_file)
{
	struct stat st;
	struct ckpt_err e = { 0 };

	fault_on(FAULT_READ, 1, 1);
	ck_assert_int_eq(io_open_beneath(ckpt, "lfs", &st, &e), -EIO);
	(void)fault_off();
	ck_assert_str_eq(e.msg, "read 'lfs': Input/output error");
}
END_TEST

START_TEST(pread_some_reads_what_there_is)
{
	autoclose int fd = openat(ckpt, "file", O_RDONLY | O_CLOEXEC);
	char b[16];

	ck_assert_int_eq(io_pread_some(fd, b, sizeof(b), 0), 7);
	ck_assert_int_eq(io_pread_some(fd, b, 3, 0), 3);
	ck_assert_int_eq(io_pread_some(fd, b, sizeof(b), 5), 2);
	ck_assert_int_eq(io_pread_some(fd, b, sizeof(b), 7), 0);
	ck_assert_int_eq(io_pread_some(-1, b, 1, 0), -EBADF);
}
END_TEST

START_TEST(write_writes_all_or_says_why_not)
{
	autoclose int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

	ck_assert_int_ge(full, 0);
	ck_assert_int_eq(io_write(full, "x", 1), -ENOSPC);
	ck_assert_int_eq(io_write(full, "", 0), 0);
	ck_assert_int_eq(io_write(-1, "x", 1), -EBADF);
}
END_TEST

START_TEST(pwrite_writes_at_an_offset_and_nowhere_else)
{
	autoclose int fd = openat(ckpt, "file", O_RDWR | O_CLOEXEC);
	char got[16] = "";

	ck_assert_int_eq(io_pwrite(fd, "XY", 2, 3), 0);
	ck_assert_int_eq(io_pwrite(fd, "end", 3, 9), 0);
	ck_assert_int_eq(io_pwrite(fd, "", 0, 1 << 20), 0);
	ck_assert_int_eq(io_pread_some(fd, got, sizeof(got), 0), 12);
	ck_assert_mem_eq(got, "conXYnt\0\0end", 12);
	ck_assert_int_eq(io_pwrite(-1, "X", 1, 0), -EBADF);
}
END_TEST

START_TEST(times_are_nanoseconds)
{
	struct stat st = { .st_mtim = { 3, 4 }, .st_ctim = { 5, 6 } };

	ck_assert_uint_eq(io_mtime_ns(&st), 3000000004u);
	ck_assert_uint_eq(io_ctime_ns(&st), 5000000006u);
}
END_TEST

/* ---- opening ---- */

static const struct {
	bool link;		    /* on the way */
	const char *path, *content; /* content, or code and msg */
	int code;
	const char *msg;
} open_rows[] = {
	{ false, "file", "content", 0, NULL },
	{ false, "sub/file", "deeper", 0, NULL },
	{ false, "sub/deep/file", "deepest", 0, NULL },
	{ true, "inside", "deeper", 0, NULL },
	{ true, "indir/file", "deeper", 0, NULL },
	{ false, "missing", NULL, ENOENT, "open 'missing': No such file or directory" },
	{ false, "file/x", NULL, ENOTDIR, "open 'file/x': Not a directory" },
	{ false, "sub", NULL, EBADMSG, "open 'sub': not a regular file" },
	{ true, "indir", NULL, EBADMSG, "open 'indir': not a regular file" },
	{ false, "fifo", NULL, EBADMSG, "open 'fifo': not a regular file" },
	{ false, "lfs", NULL, EREMOTE,
	  "open 'lfs': it is a Git LFS pointer; the file itself has not been fetched: run 'git lfs "
	  "pull'" },
	{ false, "lfsless", LFS, 0, NULL },
	{ true, "out", NULL, EBADMSG, "open 'out': refused, a link leads out of the checkpoint" },
	{ true, "abs", NULL, EBADMSG, "open 'abs': refused, a link leads out of the checkpoint" },
	{ true, "loop", NULL, EBADMSG, "open 'loop': refused, a link leads out of the checkpoint" },
	{ true, "outdir/secret", NULL, EBADMSG,
	  "open 'outdir/secret': refused, a link leads out of the checkpoint" },
	{ true, "outdir/ckpt/file", NULL, EBADMSG,
	  "open 'outdir/ckpt/file': refused, a link leads out of the checkpoint" },
	{ false, "../secret", NULL, EBADMSG,
	  "file name '../secret' refused: an element of it is empty, '.' or '..'" },
	{ false, "sub/../file", NULL, EBADMSG,
	  "file name 'sub/../file' refused: an element of it is empty, '.' or '..'" },
	{ false, "/etc/passwd", NULL, EBADMSG, "file name '/etc/passwd' refused: absolute path" },
	{ false, "", NULL, EBADMSG, "file name of 0 bytes refused" },
};

static void check_refused_link(size_t i)
{
	struct ckpt_err e = { 0 };
	struct stat st = { .st_size = 42 };
	char want[200];

	(void)snprintf(want, sizeof(want),
		       "open '%s': refused, a link is in the path, and without openat2 (Linux 5.6) "
		       "links are not followed",
		       open_rows[i].path);
	ck_assert_int_eq(io_open_beneath(ckpt, open_rows[i].path, &st, &e), -EBADMSG);
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, want);
	ck_assert_int_eq(st.st_size, 42);
}

static void check_open(size_t i)
{
	struct ckpt_err e = { 0 };
	struct stat st = { .st_size = 42 };
	autoclose int fd = -1;
	char b[64] = "";

	if (open_rows[i].link && !has_openat2()) {
		check_refused_link(i);
		return;
	}
	fd = io_open_beneath(ckpt, open_rows[i].path, &st, &e);
	if (!open_rows[i].content) {
		ck_assert_int_eq(fd, -open_rows[i].code);
		ck_assert_int_eq(e.code, open_rows[i].code);
		ck_assert_str_eq(e.msg, open_rows[i].msg);
		ck_assert_int_eq(st.st_size, 42);
		return;
	}
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(e.code, 0);
	ck_assert_int_eq(st.st_size, (off_t)strlen(open_rows[i].content));
	ck_assert_int_eq(io_pread(fd, b, (size_t)st.st_size, 0), 0);
	ck_assert_str_eq(b, open_rows[i].content);
	ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

START_LOOP_TEST(only_regular_files_inside_are_opened, ARRAY_LEN(open_rows))
{
	check_open((size_t)_i);
}
END_TEST

/* From here on openat2 is "not implemented" in this process. */
static bool forbid_openat2(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { ARRAY_LEN(code), code };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

START_TEST(old_kernels_open_the_same_but_follow_no_link)
{
	const char *fork_mode = getenv("CK_FORK");

	if ((fork_mode && !strcmp(fork_mode, "no")) || !forbid_openat2()) {
		(void)fprintf(stderr, "skipped: old_kernels_open_the_same_but_follow_no_link\n");
		return;
	}
	ck_assert(!has_openat2());
	for (size_t i = 0; i < ARRAY_LEN(open_rows); i++)
		check_open(i);
}
END_TEST

/* ---- names ---- */

static const struct {
	const char *path;
	size_t n;
	const char *msg; /* NULL: fine */
} name_rows[] = {
	{ "__0_0.distcp", 12, NULL },
	{ "a/b/c", 5, NULL },
	{ "...", 3, NULL },
	{ "..a/b..", 7, NULL },
	{ ".hidden", 7, NULL },
	{ "sp ace\xc3\xa9", 8, NULL },
	{ "", 0, "file name of 0 bytes refused" },
	{ "/", 1, "file name '/' refused: absolute path" },
	{ "/a", 2, "file name '/a' refused: absolute path" },
	{ "a/", 2, "file name 'a/' refused: an element of it is empty, '.' or '..'" },
	{ "a//b", 4, "file name 'a//b' refused: an element of it is empty, '.' or '..'" },
	{ ".", 1, "file name '.' refused: an element of it is empty, '.' or '..'" },
	{ "./a", 3, "file name './a' refused: an element of it is empty, '.' or '..'" },
	{ "a/.", 3, "file name 'a/.' refused: an element of it is empty, '.' or '..'" },
	{ "..", 2, "file name '..' refused: an element of it is empty, '.' or '..'" },
	{ "a/..", 4, "file name 'a/..' refused: an element of it is empty, '.' or '..'" },
	{ "a/../../b", 9, "file name 'a/../../b' refused: an element of it is empty, '.' or '..'" },
	{ "a\nb", 3, "file name 'a?b' refused: it contains byte 0x0a" },
	{ "a\x7f", 2, "file name 'a?' refused: it contains byte 0x7f" },
	{ "a\0b", 3, "file name 'a' refused: it contains byte 0x00" },
};

START_LOOP_TEST(relative_names_are_checked_element_by_element, ARRAY_LEN(name_rows))
{
	struct ckpt_err e = { 0 };
	int rc = io_check_relative(name_rows[_i].path, name_rows[_i].n, &e);

	ck_assert_int_eq(rc, name_rows[_i].msg ? -EBADMSG : 0);
	ck_assert_str_eq(e.msg, name_rows[_i].msg ? name_rows[_i].msg : "");
}
END_TEST

START_TEST(names_longer_than_a_path_are_refused)
{
	char longer[4096];
	struct ckpt_err e = { 0 };

	memset(longer, 'a', sizeof(longer));
	ck_assert_int_eq(io_check_relative(longer, sizeof(longer) - 1, &e), 0);
	ck_assert_int_eq(io_check_relative(longer, sizeof(longer), &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "file name of 4096 bytes refused");
}
END_TEST

START_TEST(what_is_read_ends_with_a_nul)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(256 << 10);
	struct ckpt_err e;
	char path[4200];

	/* Bytes of an earlier use follow in the buffer. */
	ck_assert_ptr_nonnull(buf_room(&b, 100 << 10));
	memset(b.data, 'x', 100 << 10);
	write_file(ckpt, "token", "hf_secret");
	(void)snprintf(path, sizeof(path), "%s/ckpt/token", root);
	ck_assert_int_eq(io_read_file(path, &b, &e), 0);
	ck_assert_uint_eq(b.len, 9);
	ck_assert_str_eq((const char *)b.data, "hf_secret");
}
END_TEST

START_TEST(descriptors_from_one_on_are_closed)
{
	int first = dup(ckpt), second = dup(ckpt), status;
	pid_t pid = fork();

	if (!pid)
		_exit(io_close_from(second) || fcntl(first, F_GETFD) < 0 ||
		      fcntl(second, F_GETFD) >= 0);
	ck_assert_int_lt(first, second);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	(void)close(first);
	(void)close(second);
}
END_TEST

/* ---- directories ---- */

static void put_back(void *arg)
{
	autoclose int fd = openat(ckpt, arg, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	REQUIRE(fd >= 0);
}

/* On some file systems a file that is open gets another name. */
START_TEST(what_comes_back_is_not_removed_for_ever)
{
	struct ckpt_err e = { 0 };

	fault_on(FAULT_NAME, 1, UINT64_MAX);
	fault_act(put_back, (void *)(uintptr_t) "sub/.hidden");
	ck_assert_int_eq(io_remove(ckpt, "sub", &e), -ENOTEMPTY);
	(void)fault_off();
	ck_assert_str_eq(e.msg, "remove 'sub': Directory not empty");
	fault_act(NULL, NULL);
	ck_assert_int_eq(io_remove(ckpt, "sub", &e), 0);
}
END_TEST

static bool is_deep(int dirfd, const char *name)
{
	(void)dirfd;
	return !strcmp(name, "deep");
}

START_TEST(only_such_directories_are_removed_as_may_be)
{
	struct ckpt_err e = { 0 };
	struct stat st;

	ck_assert_int_eq(mkdirat(ckpt, "sub/more", 0700), 0);
	ck_assert_int_eq(io_remove_if(ckpt, "sub", is_deep, &e), -ENOTEMPTY);
	ck_assert_str_eq(e.msg, "'sub': remove 'more': Directory not empty");
	ck_assert_int_eq(unlinkat(ckpt, "sub/more", AT_REMOVEDIR), 0);
	ck_assert_int_eq(io_remove_if(ckpt, "sub", is_deep, &e), 0);
	ck_assert(fstatat(ckpt, "sub", &st, 0) && errno == ENOENT);
}
END_TEST

START_TEST(mkdirs_makes_what_is_missing_for_the_owner_only)
{
	char path[4200];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/ckpt/x/y/z", root);
	ck_assert_int_eq(io_mkdirs(path), 0);
	ck_assert_int_eq(io_mkdirs(path), 0);
	ck_assert_int_eq(fstatat(ckpt, "x/y/z", &st, 0), 0);
	ck_assert_int_eq(st.st_mode & 07777, 0700);
	(void)snprintf(path, sizeof(path), "%s/ckpt/x/w/", root);
	ck_assert_int_eq(io_mkdirs(path), 0);
	ck_assert_int_eq(fstatat(ckpt, "x/w", &st, 0), 0);
}
END_TEST

START_TEST(mkdirs_says_when_a_file_is_in_the_way)
{
	char path[4200];

	(void)snprintf(path, sizeof(path), "%s/ckpt/file", root);
	ck_assert_int_eq(io_mkdirs(path), -ENOTDIR);
	(void)snprintf(path, sizeof(path), "%s/ckpt/file/x", root);
	ck_assert_int_eq(io_mkdirs(path), -ENOTDIR);
	ck_assert_int_eq(io_mkdirs(""), -ENAMETOOLONG);
}
END_TEST

SUITE(io, .setup = setup, .teardown = teardown)

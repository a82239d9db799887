/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process can still do after it has given up its rights (fs/mount/sandbox.h). A child makes
 * each attempt inside the sandbox. tests/fs/test_sandbox.sh tries the same in a daemon that serves
 * readers.
 */
#include "base/checked.h"
#include "base/err.h"
#include "dir_util.h"
#include "fault.h"
#include "suites.h"

#include "mount/passthrough.h"
#include "mount/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
	KILLED = 1000 + SIGSYS,
	BAD = 255, /* something went wrong before the attempt */
	LANDLOCK_CREATE = 444,
	LANDLOCK_RESTRICT = 446,
	CACHESTAT = 451,
};

/* 0, the errno, or 1000 and the signal that ends it. */
typedef int attempt_fn(const void *arg);

static int outcome(attempt_fn *attempt, const void *arg)
{
	int status;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid)
		syscall(SYS_exit_group, attempt(arg));
	REQUIRE(waitpid(pid, &status, 0) == pid);
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int errno_of(long rc)
{
	return rc == -1 ? errno : 0;
}

/* ---- words ---- */

START_TEST(words_are_read)
{
	static const struct {
		const char *word;
		enum sandbox_mode mode;
	} rows[] = { { NULL, SANDBOX_AUTO },
		     { "auto", SANDBOX_AUTO },
		     { "on", SANDBOX_ON },
		     { "off", SANDBOX_OFF } };
	static const char *const bad[] = { "maybe", "", "o", "onn", "ON" };

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		enum sandbox_mode mode = 77;
		struct ckpt_err e = { 0 };

		if (SANITIZED && rows[i].mode == SANDBOX_ON) {
			ck_assert_int_eq(sandbox_parse(rows[i].word, &mode, &e), -ENOTSUP);
			ck_assert_str_eq(
				e.msg, "option 'sandbox': a build with sanitizers has no sandbox");
			continue;
		}
		ck_assert_int_eq(sandbox_parse(rows[i].word, &mode, &e), 0);
		ck_assert_int_eq(mode, SANITIZED ? SANDBOX_OFF : rows[i].mode);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		enum sandbox_mode mode = 77;
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(sandbox_parse(bad[i], &mode, &e), -EINVAL);
		ck_assert_ptr_nonnull(strstr(e.msg, "is not one of auto, on, off"));
		ck_assert_int_eq(mode, 77);
	}
}
END_TEST

/* ---- the filter of system calls ---- */

static bool enter_filter(bool uring, bool fetcher)
{
	struct ckpt_err e = { 0 };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !sandbox_filter_calls(uring, fetcher, &e);
}

enum { NOT_KILLED = -1 };

struct call {
	long number, a, b, c;
	int result; /* NOT_KILLED: any result of the kernel */
};

static int make_call(const void *arg)
{
	const struct call *c = arg;

	if (!enter_filter(false, false))
		return BAD;
	return errno_of(syscall(c->number, c->a, c->b, c->c, 0, 0, 0));
}

static void must_result(const struct call *c, size_t i, int got)
{
	if (c->result == NOT_KILLED)
		ck_assert_msg(got < 1000 && got != BAD, "row %zu, call %ld: %d", i, c->number, got);
	else
		ck_assert_msg(got == c->result, "row %zu, call %ld: %d", i, c->number, got);
}

#define FORBIDDEN(name, ...) \
	{ \
		SYS_##name, __VA_ARGS__, .result = KILLED \
	}
#define ALLOWED(name, ...) \
	{ \
		SYS_##name, __VA_ARGS__, .result = NOT_KILLED \
	}
#define GIVES(code, name, ...) \
	{ \
		SYS_##name, __VA_ARGS__, .result = code \
	}

static const struct call calls[] = {
	FORBIDDEN(execve, 0),
	FORBIDDEN(execveat, -1),
	FORBIDDEN(socket, AF_INET, SOCK_STREAM),
	FORBIDDEN(socket, AF_UNIX, SOCK_DGRAM),
	FORBIDDEN(socketpair, AF_UNIX, SOCK_DGRAM),
	FORBIDDEN(connect, -1),
	FORBIDDEN(bind, -1),
	FORBIDDEN(sendto, -1),
	FORBIDDEN(sendmsg, -1),
	FORBIDDEN(recvmsg, -1),
	FORBIDDEN(sendmmsg, -1),
	FORBIDDEN(ptrace, 0, 1),
	FORBIDDEN(process_vm_readv, 1),
	FORBIDDEN(process_vm_writev, 1),
	FORBIDDEN(kill, 0x7fffffff, SIGTERM),
	FORBIDDEN(tkill, 0x7fffffff, SIGTERM),
	FORBIDDEN(pidfd_open, 1),
	FORBIDDEN(pidfd_getfd, -1),
	FORBIDDEN(pidfd_send_signal, -1),
	FORBIDDEN(rt_sigqueueinfo, 0x7fffffff, SIGTERM),
	FORBIDDEN(mount, 0),
	FORBIDDEN(umount2, 0),
	FORBIDDEN(unshare, 0),
	FORBIDDEN(setns, -1),
	FORBIDDEN(chroot, 0),
	FORBIDDEN(pivot_root, 0),
	FORBIDDEN(open_tree, -1),
	FORBIDDEN(fsopen, 0),
	FORBIDDEN(fchmodat, -1),
	FORBIDDEN(fchownat, -1),
	FORBIDDEN(setuid, -1),
	FORBIDDEN(setgid, -1),
	FORBIDDEN(capset, 0),
	FORBIDDEN(bpf, -1),
	FORBIDDEN(io_uring_setup, 0),
	FORBIDDEN(io_uring_enter, -1),
	FORBIDDEN(io_uring_register, -1),
	FORBIDDEN(io_submit, 0),
	FORBIDDEN(open_by_handle_at, -1),
	FORBIDDEN(name_to_handle_at, -1),
	FORBIDDEN(symlinkat, 0, -1),
	FORBIDDEN(linkat, -1),
	FORBIDDEN(mknodat, -1),
	FORBIDDEN(truncate, 0),
	FORBIDDEN(fsetxattr, -1),
	FORBIDDEN(memfd_create, 0),
	FORBIDDEN(userfaultfd, -1),
	FORBIDDEN(pkey_mprotect, 0, 0, PROT_EXEC),
	FORBIDDEN(keyctl, -1),
	FORBIDDEN(perf_event_open, 0),
	FORBIDDEN(seccomp, -1),
	FORBIDDEN(landlock_restrict_self, -1),
	FORBIDDEN(personality, 0xffffffff),
	FORBIDDEN(timer_create, -1),
	FORBIDDEN(sethostname, 0, -1),
	FORBIDDEN(finit_module, -1),
	/* some uses of these */
	FORBIDDEN(mmap, 0, 4096, PROT_EXEC),
	FORBIDDEN(mmap, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC),
	GIVES(EINVAL, mmap, 0, 0, PROT_READ | PROT_WRITE),
	FORBIDDEN(mprotect, 0, 4096, PROT_READ | PROT_EXEC),
	GIVES(ENOMEM, mprotect, 0, 4096, PROT_READ | PROT_WRITE),
	FORBIDDEN(clone, SIGCHLD),
	FORBIDDEN(clone, CLONE_VM | CLONE_SIGHAND),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWNET),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWNS),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWUSER),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWPID),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWIPC),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWUTS),
	FORBIDDEN(clone, CLONE_THREAD | CLONE_NEWCGROUP),
	GIVES(EINVAL, clone, CLONE_THREAD),
	GIVES(ENOSYS, clone3, 0),
	FORBIDDEN(tgkill, 1, 1, 0),
	FORBIDDEN(prlimit64, 1, 0),
	GIVES(0, prlimit64, 0, 0),
	FORBIDDEN(prctl, PR_SET_DUMPABLE, 1),
	FORBIDDEN(prctl, PR_SET_NO_NEW_PRIVS, 1),
	GIVES(EFAULT, prctl, PR_SET_NAME, 0),
	ALLOWED(prctl, 0x53564d41, 0), /* PR_SET_VMA */
	FORBIDDEN(ioctl, -1, TIOCSTI),
	FORBIDDEN(ioctl, -1, FIOASYNC),
	GIVES(EBADF, ioctl, -1, TCGETS),
	GIVES(EBADF, ioctl, -1, (long)PASSTHROUGH_OPEN),
	GIVES(EBADF, ioctl, -1, (long)PASSTHROUGH_CLOSE),
	FORBIDDEN(fcntl, 0, F_NOTIFY, 0),
	FORBIDDEN(fcntl, 0, F_SETSIG, SIGUSR1),
	FORBIDDEN(fcntl, 0, F_SETOWN, 1),
	FORBIDDEN(fcntl, 0, F_SETFL, O_ASYNC),
	FORBIDDEN(fcntl, 0, F_SETFL, O_ASYNC | O_NONBLOCK),
	GIVES(EBADF, fcntl, -1, F_SETFL, O_NONBLOCK),
	GIVES(EPERM, fcntl, -1, F_SETOWN_EX, 0),
	GIVES(EBADF, fcntl, -1, F_DUPFD, 0),
	GIVES(EBADF, fcntl, -1, F_DUPFD_CLOEXEC, 0),
	GIVES(EBADF, fcntl, -1, F_GETFD, 0),
	GIVES(EBADF, fcntl, -1, F_SETFD, 0),
	GIVES(EBADF, fcntl, -1, F_GETFL, 0),
	GIVES(EBADF, fcntl, -1, F_GETLK, 0),
	GIVES(EBADF, fcntl, -1, F_SETLK, 0),
	GIVES(EBADF, fcntl, -1, F_SETLKW, 0),
	GIVES(EBADF, fcntl, -1, F_GETLEASE, 0),
	GIVES(EBADF, fcntl, -1, F_SETLEASE, 0),
	GIVES(EBADF, fcntl, -1, F_SETPIPE_SZ, 0),
	/* calls that SQLite makes on its new files */
	GIVES(EPERM, fchmod, -1, 0600),
	GIVES(EPERM, fchown, -1, -1),
	GIVES(EPERM, utimensat, -1, 0),
	/* calls that serving needs */
	GIVES(EBADF, read, -1),
	GIVES(EBADF, pread64, -1),
	GIVES(EBADF, write, -1),
	GIVES(EBADF, writev, -1),
	ALLOWED(splice, -1),
	GIVES(EBADF, lseek, -1),
	GIVES(EBADF, openat, -1, (long)"x"),
	GIVES(EBADF, fsync, -1),
	GIVES(EBADF, ftruncate, -1, 1),
	GIVES(EBADF, flock, -1, 1),
	GIVES(EBADF, getdents64, -1),
	GIVES(EFAULT, getcwd, 0, 100),
	ALLOWED(statx, -1),
	ALLOWED(futex, 0),
	ALLOWED(madvise, 0),
	ALLOWED(getrandom, 0),
	ALLOWED(epoll_pwait, -1),
	ALLOWED(close_range, 900, 901),
	ALLOWED(capget, 0),
	/* calls that are newer than the list */
	{ CACHESTAT, -1, .result = NOT_KILLED },
	{ CACHESTAT + 1, -1, .result = ENOSYS },
	{ 580, -1, .result = ENOSYS },
	{ 600, -1, .result = ENOSYS },
	{ 601, -1, .result = KILLED },
#if defined(__x86_64__)
	{ 0x40000000 + SYS_getpid, 0, .result = KILLED }, /* x32 */
#endif
};

START_FEW_TEST(some_calls_are_left, SANITIZED ? 0 : ARRAY_LEN(calls), ARRAY_LEN(calls))
{
	must_result(&calls[_i], (size_t)_i, outcome(make_call, &calls[_i]));
}
END_TEST

struct both {
	bool uring, fetcher;
	struct call call;
};

static int make_either(const void *arg)
{
	const struct both *b = arg;

	if (!enter_filter(b->uring, b->fetcher))
		return BAD;
	return errno_of(syscall(b->call.number, b->call.a, b->call.b, b->call.c, 0, 0, 0));
}

/* Each of the two flags allows what it is for, and nothing else. */
static const struct both eithers[] = {
	{ true, false, GIVES(EBADF, io_uring_enter, -1) },
	{ true, true, GIVES(EBADF, io_uring_enter, -1) },
	{ false, true, FORBIDDEN(io_uring_enter, -1) },
	{ true, true, FORBIDDEN(io_uring_setup, 0) },
	{ true, true, FORBIDDEN(io_uring_register, -1) },
	{ false, true, GIVES(EBADF, sendmsg, -1) },
	{ false, true, GIVES(EBADF, recvmsg, -1) },
	{ true, true, GIVES(EBADF, sendmsg, -1) },
	{ true, false, FORBIDDEN(sendmsg, -1) },
	{ true, false, FORBIDDEN(recvmsg, -1) },
	{ true, true, FORBIDDEN(sendto, -1) },
	{ true, true, FORBIDDEN(socket, AF_UNIX, SOCK_DGRAM) },
	{ true, true, FORBIDDEN(connect, -1) },
};

START_FEW_TEST(more_is_left_for_io_uring_and_fetching, SANITIZED ? 0 : ARRAY_LEN(eithers),
	       ARRAY_LEN(eithers))
{
	must_result(&eithers[_i].call, (size_t)_i, outcome(make_either, &eithers[_i]));
}
END_TEST

/* Calls that name this process, whose number is only known inside. */
static int make_own(const void *arg)
{
	const char *what = arg;
	int ends[2];

	if (pipe(ends) || !enter_filter(false, false))
		return BAD;
	if (!strcmp(what, "tgkill"))
		return errno_of(syscall(SYS_tgkill, getpid(), gettid(), 0));
	if (!strcmp(what, "tgkill of a thread elsewhere"))
		return errno_of(syscall(SYS_tgkill, getppid(), getppid(), 0));
	if (!strcmp(what, "F_SETOWN"))
		return errno_of(fcntl(ends[0], F_SETOWN, getpid()));
	if (!strcmp(what, "F_SETOWN of a group"))
		return errno_of(fcntl(ends[0], F_SETOWN, -getpid()));
	return errno_of(fcntl(ends[0], F_SETOWN, getppid()));
}

START_TEST(only_this_process_is_signalled)
{
	if (SANITIZED)
		return;
	ck_assert_int_eq(outcome(make_own, "tgkill"), 0);
	ck_assert_int_eq(outcome(make_own, "tgkill of a thread elsewhere"), KILLED);
	ck_assert_int_eq(outcome(make_own, "F_SETOWN"), 0);
	ck_assert_int_eq(outcome(make_own, "F_SETOWN of a group"), KILLED);
	ck_assert_int_eq(outcome(make_own, "F_SETOWN of another"), KILLED);
}
END_TEST

static void *commit_later(void *arg)
{
	char c;

	if (read(*(int *)arg, &c, 1) == 1)
		(void)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	return NULL;
}

static int let_thread(const void *arg)
{
	pthread_t t;
	int ends[2];

	(void)arg;
	if (pipe(ends) || pthread_create(&t, NULL, commit_later, &ends[0]) ||
	    !enter_filter(false, false) || write(ends[1], "x", 1) != 1)
		return BAD;
	(void)pthread_join(t, NULL);
	return 0;
}

static void *say_yes(void *arg)
{
	*(int *)arg = 1;
	return NULL;
}

static int start_thread(const void *arg)
{
	pthread_t t;
	int said = 0;

	(void)arg;
	if (!enter_filter(false, false) || pthread_create(&t, NULL, say_yes, &said))
		return BAD;
	(void)pthread_join(t, NULL);
	return said ? 0 : BAD;
}

/* The whole process ends, not the thread. */
START_TEST(threads_are_in_the_filter_too)
{
	if (SANITIZED)
		return;
	ck_assert_int_eq(outcome(let_thread, NULL), KILLED);
	ck_assert_int_eq(outcome(start_thread, NULL), 0);
}
END_TEST

/* ---- a kernel that lacks something ---- */

/* Makes calls number a and b fail; first >= 0: only with that first argument. */
static bool lack(long a, long b, int code, int first)
{
	struct sock_filter prog[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)a, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)b, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 0, first < 0 ? 0 : 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)code),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog f = { ARRAY_LEN(prog), prog };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f);
}

static const struct lacking {
	long a, b;
	int code, first;
	int result;
	const char *sentence;
	bool filter; /* sandbox_filter_calls, else sandbox_enter */
} lacks[] = {
	{ LANDLOCK_CREATE, LANDLOCK_CREATE, ENOSYS, -1, ENOTSUP, "this kernel has no Landlock",
	  false },
	{ LANDLOCK_CREATE, LANDLOCK_CREATE, EOPNOTSUPP, -1, ENOTSUP, "this kernel has no Landlock",
	  false },
	{ LANDLOCK_RESTRICT, LANDLOCK_RESTRICT, E2BIG, -1, E2BIG,
	  "Landlock: Argument list too long", false },
	{ SYS_capget, SYS_capget, EPERM, -1, EPERM, "capget: Operation not permitted", false },
	{ SYS_capset, SYS_capset, EPERM, -1, EPERM, "capset: Operation not permitted", false },
	{ SYS_prctl, SYS_prctl, EINVAL, PR_SET_NO_NEW_PRIVS, EINVAL,
	  "no_new_privs: Invalid argument", false },
	{ SYS_seccomp, SYS_seccomp, ENOSYS, -1, ENOTSUP,
	  "this kernel has no filter of system calls (seccomp, Linux 4.14)", true },
};

static int enter_without(const void *arg)
{
	const struct lacking *l = arg;
	struct sandbox s = SANDBOX_NONE;
	struct ckpt_err e = { 0 };
	int rc;

	if (!lack(l->a, l->b, l->code, l->first))
		return BAD;
	if (l->filter) {
		rc = sandbox_filter_calls(false, false, &e);
	} else {
		sandbox_prepare(&s);
		sandbox_allow_read(&s, "/");
		rc = sandbox_enter(&s, false, &e);
		sandbox_release(&s);
		if (s.rules >= 0)
			return BAD;
	}
	if (rc != -l->result || e.code != l->result || strcmp(e.msg, l->sentence) != 0) {
		(void)fprintf(stderr, "%d, %d: %s\n", rc, e.code, e.msg);
		return BAD;
	}
	return 0;
}

START_FEW_TEST(what_a_kernel_lacks_is_said, SANITIZED ? 0 : ARRAY_LEN(lacks), ARRAY_LEN(lacks))
{
	ck_assert_int_eq(outcome(enter_without, &lacks[_i]), 0);
}
END_TEST

/* Wherever memory runs out, there is no filter at all. */
static int filter_without_memory(const void *arg)
{
	struct ckpt_err e = { 0 };
	int rc = -ENOMEM;
	unsigned n;

	(void)arg;
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	for (n = 1; rc; n++) {
		e = (struct ckpt_err){ 0 };
		fault_on(FAULT_ALLOC, n, 1);
		rc = sandbox_filter_calls(true, true, &e);
		(void)fault_off();
		if (!rc)
			break;
		if (rc != -ENOMEM || e.code != ENOMEM || prctl(PR_GET_SECCOMP) ||
		    strcmp(e.msg, n == 1 ? "out of memory" : "seccomp: Cannot allocate memory") !=
			    0)
			return BAD;
	}
	return n > 200 ? 0 : 1;
}

START_TEST(without_memory_there_is_no_filter)
{
	if (!SANITIZED)
		ck_assert_int_eq(outcome(filter_without_memory, NULL), 0);
}
END_TEST

/* ---- paths ---- */

static int version(void)
{
	return (int)syscall(LANDLOCK_CREATE, NULL, 0, 1);
}

static struct sandbox inside;

static bool enter(bool backing)
{
	struct ckpt_err e = { 0 };

	return !sandbox_enter(&inside, backing, &e);
}

static void allow_some(void)
{
	char path[4200];

	sandbox_prepare(&inside);
	(void)snprintf(path, sizeof(path), "%s/read", dir);
	sandbox_allow_read(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/one", dir);
	sandbox_allow_read(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/list", dir);
	sandbox_allow_list(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/list/one", dir);
	sandbox_allow_read(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/write", dir);
	sandbox_allow_write(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/file", dir);
	sandbox_allow_write_file(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/none", dir);
	sandbox_allow_read(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/ckpt", dir);
	sandbox_allow_checkpoint(&inside, path);
	(void)snprintf(path, sizeof(path), "%s/swapped/etc", dir); /* it was a directory */
	sandbox_allow_checkpoint(&inside, path);
}

static void make_some(void)
{
	REQUIRE(!mkdirat(dir_fd, "read", 0777) && !mkdirat(dir_fd, "write", 0777) &&
		!mkdirat(dir_fd, "else", 0777) && !mkdirat(dir_fd, "read/below", 0777) &&
		!mkdirat(dir_fd, "write/below", 0777) && !mkdirat(dir_fd, "list", 0777) &&
		!mkdirat(dir_fd, "ckpt", 0777) && !symlinkat("/", dir_fd, "swapped"));
	put_file(dir_fd, "ckpt/x", "x", 1);
	put_file(dir_fd, "list/one", "x", 1);
	put_file(dir_fd, "list/other", "x", 1);
	put_file(dir_fd, "read/x", "x", 1);
	put_file(dir_fd, "read/below/x", "x", 1);
	put_file(dir_fd, "write/x", "x", 1);
	put_file(dir_fd, "else/x", "x", 1);
	put_file(dir_fd, "one", "x", 1);
	put_file(dir_fd, "file", "x", 1);
	put_file(dir_fd, "other", "x", 1);
	REQUIRE(!fchmodat(dir_fd, "read/x", 0777, 0));
}

enum what { READ, WRITE, LIST, MAKE, REMOVE, RENAME, CUT, MAKE_DIR, REMOVE_DIR, LINK, PIPE, RUN };

static const struct path_row {
	enum what what;
	const char *path, *to;
	int result, since; /* version of Landlock */
} paths[] = {
	{ READ, "read/x", NULL, 0, 1 },
	{ READ, "read/below/x", NULL, 0, 1 },
	{ LIST, "read", NULL, 0, 1 },
	{ LIST, "read/below", NULL, 0, 1 },
	{ WRITE, "read/x", NULL, EACCES, 1 },
	{ CUT, "read/x", NULL, EACCES, 3 },
	{ MAKE, "read/new", NULL, EACCES, 1 },
	{ REMOVE, "read/x", NULL, EACCES, 1 },
	{ RUN, "read/x", NULL, EACCES, 1 },
	{ LIST, "list", NULL, 0, 1 },
	{ READ, "list/one", NULL, 0, 1 },
	{ READ, "list/other", NULL, EACCES, 1 },
	{ WRITE, "list/other", NULL, EACCES, 1 },
	{ MAKE, "list/new", NULL, EACCES, 1 },
	{ READ, "one", NULL, 0, 1 },
	{ WRITE, "one", NULL, EACCES, 1 },
	{ CUT, "one", NULL, EACCES, 3 },
	{ CUT, "else/x", NULL, EACCES, 3 },
	{ READ, "else/x", NULL, EACCES, 1 },
	{ READ, "other", NULL, EACCES, 1 },
	{ WRITE, "other", NULL, EACCES, 1 },
	{ LIST, "else", NULL, EACCES, 1 },
	{ LIST, ".", NULL, EACCES, 1 },
	{ MAKE, "else/new", NULL, EACCES, 1 },
	{ REMOVE, "else/x", NULL, EACCES, 1 },
	{ READ, "ckpt/x", NULL, 0, 1 },
	{ WRITE, "ckpt/x", NULL, EACCES, 1 },
	{ READ, "/etc/passwd", NULL, EACCES, 1 },
	{ READ, "/proc/1/environ", NULL, EACCES, 1 },
	{ READ, "/proc/self/stat", NULL, 0, 1 },
	{ READ, "/dev/urandom", NULL, 0, 1 },
	{ WRITE, "/proc/sys/vm/overcommit_memory", NULL, EACCES, 1 },
	{ READ, "write/x", NULL, 0, 1 },
	{ WRITE, "write/x", NULL, 0, 1 },
	{ CUT, "write/x", NULL, 0, 1 },
	{ MAKE, "write/new", NULL, 0, 1 },
	{ REMOVE, "write/x", NULL, 0, 1 },
	{ LIST, "write", NULL, 0, 1 },
	{ RENAME, "write/x", "write/y", 0, 1 },
	{ RENAME, "write/x", "write/below/y", EXDEV, 1 },
	{ RENAME, "write/x", "else/y", EACCES, 1 },
	{ MAKE_DIR, "write/new", NULL, EACCES, 1 },
	{ REMOVE_DIR, "write/below", NULL, EACCES, 1 },
	{ LINK, "write/new", "x", EACCES, 1 },
	{ PIPE, "write/new", NULL, EACCES, 1 },
	{ READ, "file", NULL, 0, 1 },
	{ WRITE, "file", NULL, 0, 1 },
	{ CUT, "file", NULL, 0, 1 },
	{ REMOVE, "file", NULL, EACCES, 1 },
};

static int try_path(const void *arg)
{
	const struct path_row *p = arg;
	char *none[] = { NULL };
	int at = open(dir, O_PATH | O_CLOEXEC);

	allow_some();
	if (at < 0 || !enter(false))
		return BAD;
	switch (p->what) {
	case READ:
		return errno_of(openat(at, p->path, O_RDONLY));
	case WRITE:
		return errno_of(openat(at, p->path, O_WRONLY));
	case LIST:
		return errno_of(openat(at, p->path, O_RDONLY | O_DIRECTORY));
	case MAKE:
		return errno_of(openat(at, p->path, O_WRONLY | O_CREAT | O_EXCL, 0600));
	case REMOVE:
		return errno_of(unlinkat(at, p->path, 0));
	case RENAME:
		return errno_of(renameat(at, p->path, at, p->to));
	case CUT:
		return errno_of(openat(at, p->path, O_RDONLY | O_TRUNC)); /* not for writing */
	case MAKE_DIR:
		return errno_of(mkdirat(at, p->path, 0700));
	case REMOVE_DIR:
		return errno_of(unlinkat(at, p->path, AT_REMOVEDIR));
	case LINK:
		return errno_of(symlinkat(p->to, at, p->path));
	case PIPE:
		return errno_of(mkfifoat(at, p->path, 0600));
	case RUN:
		return errno_of(execveat(at, p->path, none, none, 0));
	}
	return BAD;
}

START_FEW_TEST(paths_are_those_allowed, SANITIZED ? 0 : ARRAY_LEN(paths), ARRAY_LEN(paths))
{
	const struct path_row *p = &paths[_i];

	if (version() < p->since)
		return;
	make_some();
	ck_assert_msg(outcome(try_path, p) == p->result, "%d of %s: not %d", (int)p->what, p->path,
		      p->result);
}
END_TEST

static int try_others(const void *arg)
{
	const char *what = arg;
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int s;

	allow_some();
	if (!enter(false))
		return BAD;
	if (!strcmp(what, "bind") || !strcmp(what, "connect")) {
		struct sockaddr in = { .sa_family = AF_INET, .sa_data = { 0, 9, 127, 0, 0, 1 } };

		s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		return errno_of(*what == 'b' ? bind(s, &in, 16) : connect(s, &in, 16));
	}
	if (!strcmp(what, "kill"))
		return errno_of(kill(getppid(), 0));
	(void)snprintf(to.sun_path + 1, sizeof(to.sun_path) - 1, "ckptfs-%d", (int)getppid());
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	return errno_of(connect(
		s, (struct sockaddr *)&to,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(to.sun_path + 1))));
}

START_TEST(others_are_out_of_reach)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int s;

	if (SANITIZED || version() < 4)
		return;
	make_some();
	ck_assert_int_eq(outcome(try_others, "bind"), EACCES);
	ck_assert_int_eq(outcome(try_others, "connect"), EACCES);
	if (version() < 6)
		return;
	(void)snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "ckptfs-%d", (int)getpid());
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	REQUIRE(!bind(s, (struct sockaddr *)&at,
		      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				  strlen(at.sun_path + 1))) &&
		!listen(s, 4));
	ck_assert_int_eq(outcome(try_others, "kill"), EPERM);
	ck_assert_int_eq(outcome(try_others, "abstract socket"), EPERM);
	(void)close(s);
}
END_TEST

/* A file may be sent requests for devices, a directory may not. */
static int ask_device(const void *arg)
{
	const char *path = arg;
	int fd, n;

	sandbox_prepare(&inside);
	if (*path == '+')
		sandbox_allow_write_file(&inside, ++path);
	else
		sandbox_allow_read(&inside, path);
	if (!enter(false))
		return BAD;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? BAD : errno_of(ioctl(fd, 0x5200 /* RNDGETENTCNT has direction bits */, &n));
}

START_TEST(devices_answer_if_they_are_written_to)
{
	if (SANITIZED || version() < 5)
		return;
	ck_assert_int_eq(outcome(ask_device, "/dev/random"), EACCES);
	ck_assert_int_ne(outcome(ask_device, "+/dev/random"), EACCES);
	ck_assert_int_ne(outcome(ask_device, "+/dev/random"), BAD);
}
END_TEST

/* ---- capabilities, and the rest ---- */

static bool has_capabilities(uint64_t want)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct v[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &head, v))
		return false;
	for (int c = 0; c <= 40; c++)
		if (prctl(PR_CAPBSET_READ, c, 0, 0, 0) == 1 ||
		    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, c, 0, 0) == 1)
			return false;
	for (size_t i = 0; i < 2; i++)
		if (v[i].permitted != (uint32_t)(want >> 32 * i) ||
		    v[i].effective != v[i].permitted || v[i].inheritable)
			return false;
	return true;
}

enum {
	OF_READING = 1 << CAP_DAC_READ_SEARCH | 1 << CAP_FOWNER | 1 << CAP_LEASE,
	OF_BACKING = OF_READING | 1 << CAP_SYS_ADMIN,
};

static bool rest_is_in_place(void)
{
	sigset_t blocked;

	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 &&
	       !pthread_sigmask(SIG_BLOCK, NULL, &blocked) && sigismember(&blocked, SIGIO) == 1 &&
	       sigismember(&blocked, SIGTERM) == 0;
}

static int look_at_rights(const void *arg)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct v[_LINUX_CAPABILITY_U32S_3];
	bool backing = *(const char *)arg == 'b';

	/* A capability that a program could inherit. */
	if (syscall(SYS_capget, &head, v))
		return BAD;
	v[0].inheritable |= 1 << CAP_DAC_READ_SEARCH;
	(void)syscall(SYS_capset, &head, v);
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0);
	sandbox_prepare(&inside);
	if (version() >= 1 && !enter(backing))
		return BAD;
	if (version() < 1 && enter(backing))
		return BAD;
	sandbox_release(&inside);
	sandbox_release(&inside);
	return has_capabilities(backing ? OF_BACKING : OF_READING) && rest_is_in_place() ? 0 : 1;
}

START_TEST(root_keeps_what_reading_takes)
{
	if (SANITIZED || getuid())
		return;
	ck_assert_int_eq(outcome(look_at_rights, "reading"), 0);
	ck_assert_int_eq(outcome(look_at_rights, "backing"), 0);
}
END_TEST

static void *wait_forever(void *arg)
{
	(void)arg;
	for (;;)
		(void)pause();
	return NULL;
}

/* If other threads keep their rights, that is reported, and all else is in place. */
static int enter_beside(const void *arg)
{
	struct ckpt_err e = { 0 };
	pthread_t t;

	(void)arg;
	allow_some();
	if (pthread_create(&t, NULL, wait_forever, NULL))
		return BAD;
	if (sandbox_enter(&inside, false, &e) != -EBUSY ||
	    strcmp(e.msg, "other threads are running already") != 0)
		return BAD;
	if (!rest_is_in_place() || (!getuid() && !has_capabilities(OF_READING)))
		return 1;
	return version() < 1 || (open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES) ? 0 : 2;
}

/* This waits five seconds for threads that have been joined. */
START_LONG_TEST(threads_that_run_are_found)
{
	if (!SANITIZED)
		ck_assert_int_eq(outcome(enter_beside, NULL), 0);
}
END_TEST

static void *end_soon(void *arg)
{
	(void)usleep(100000);
	return arg;
}

static int enter_after(const void *arg)
{
	pthread_t t;

	(void)arg;
	allow_some();
	if (pthread_create(&t, NULL, end_soon, NULL) || pthread_detach(t))
		return BAD;
	return enter(false) || version() < 1 ? 0 : 1;
}

START_TEST(threads_that_end_are_waited_for)
{
	if (!SANITIZED)
		ck_assert_int_eq(outcome(enter_after, NULL), 0);
}
END_TEST

static int enter_unseen(const void *arg)
{
	struct ckpt_err e = { 0 };
	int rc;

	(void)arg;
	sandbox_prepare(&inside);
	fault_on(FAULT_STAT, 1, 1);
	rc = sandbox_enter(&inside, false, &e);
	(void)fault_off();
	return rc == -EIO && !strcmp(e.msg, "'/proc/self/task': Input/output error") &&
			       rest_is_in_place()
		       ? 0
		       : 1;
}

START_TEST(threads_that_cannot_be_seen_are_said)
{
	if (!SANITIZED)
		ck_assert_int_eq(outcome(enter_unseen, NULL), 0);
}
END_TEST

/* If several things fail, the first message counts. */
static int enter_with_two_faults(const void *arg)
{
	struct ckpt_err e = { 0 };
	int rc;

	(void)arg;
	if (!lack(SYS_capset, LANDLOCK_RESTRICT, EPERM, -1))
		return BAD;
	sandbox_prepare(&inside);
	rc = sandbox_enter(&inside, false, &e);
	if (rc != -EPERM || strcmp(e.msg, "capset: Operation not permitted") != 0)
		return 1;
	e = (struct ckpt_err){ 0 };
	fault_on(FAULT_STAT, 1, 1);
	rc = sandbox_enter(&inside, false, &e);
	(void)fault_off();
	return rc == -EIO && !strcmp(e.msg, "'/proc/self/task': Input/output error") ? 0 : 2;
}

START_TEST(the_first_fault_is_said)
{
	if (!SANITIZED)
		ck_assert_int_eq(outcome(enter_with_two_faults, NULL), 0);
}
END_TEST

SUITE(sandbox, .setup = dir_setup, .teardown = dir_teardown, .seconds = 30)

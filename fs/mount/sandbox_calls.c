/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filter of system calls.
 *
 * The list is what this program, libfuse, SQLite and zstd call, and what a C library may call on
 * their behalf, now or in its next version. A call is not left out merely because it never occurred
 * in tests: nothing in this process has a use for it. Those after 451 (Linux 6.5) did not exist
 * when this was written, and are answered as by an older kernel: with ENOSYS, for which a C library
 * has a fallback.
 *
 * Arguments are checked where a call can do both harmless and harmful things. Paths cannot be
 * checked here; Landlock restricts those.
 */
#include "mount/sandbox.h"

#include "mount/passthrough.h"

#include "base/checked.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
	/* Not known to the libseccomp of Debian 11 or 12; the same numbers everywhere. */
	EPOLL_PWAIT2 = 441, /* Linux 5.11 */
	FUTEX_WAITV = 449,  /* Linux 5.16 */
	CACHESTAT = 451,    /* Linux 6.5 */
	CAN_KILL = 3,	    /* seccomp_api_get(3): SCMP_ACT_KILL_PROCESS, Linux 4.14 */
	LAST_NUMBER = 600,
	CALL_PR_SET_VMA = 0x53564d41, /* names of the allocator's memory */
	NEW_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
			 CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET,
};

/* isatty() of glibc 2.42 and later. <asm/termbits.h>, which defines it, conflicts with <termios.h>. */
#define CALL_TCGETS2 ((scmp_datum_t)0x802c542a)

static const int allowed[] = {
	/* files; fcntl is below */
	SCMP_SYS(close),
	SCMP_SYS(close_range),
	SCMP_SYS(read),
	SCMP_SYS(readv),
	SCMP_SYS(pread64),
	SCMP_SYS(preadv),
	SCMP_SYS(preadv2),
	SCMP_SYS(write),
	SCMP_SYS(writev),
	SCMP_SYS(pwrite64),
	SCMP_SYS(pwritev),
	SCMP_SYS(pwritev2),
	SCMP_SYS(lseek),
	SCMP_SYS(_llseek),
	SCMP_SYS(sendfile),
	SCMP_SYS(sendfile64),
	SCMP_SYS(copy_file_range),
	SCMP_SYS(splice),
	SCMP_SYS(vmsplice),
	SCMP_SYS(tee),
	SCMP_SYS(pipe),
	SCMP_SYS(pipe2),
	SCMP_SYS(dup),
	SCMP_SYS(dup2),
	SCMP_SYS(dup3),
	SCMP_SYS(flock),
	SCMP_SYS(fsync),
	SCMP_SYS(fdatasync),
	SCMP_SYS(ftruncate),
	SCMP_SYS(ftruncate64),
	SCMP_SYS(fallocate),
	SCMP_SYS(fadvise64),
	SCMP_SYS(fadvise64_64),
	SCMP_SYS(readahead),
	CACHESTAT,
	/* their names */
	SCMP_SYS(stat),
	SCMP_SYS(stat64),
	SCMP_SYS(lstat),
	SCMP_SYS(lstat64),
	SCMP_SYS(fstat),
	SCMP_SYS(fstat64),
	SCMP_SYS(newfstatat),
	SCMP_SYS(fstatat64),
	SCMP_SYS(statx),
	SCMP_SYS(statfs),
	SCMP_SYS(statfs64),
	SCMP_SYS(fstatfs),
	SCMP_SYS(fstatfs64),
	SCMP_SYS(access),
	SCMP_SYS(faccessat),
	SCMP_SYS(faccessat2),
	SCMP_SYS(readlink),
	SCMP_SYS(readlinkat),
	SCMP_SYS(getcwd),
	SCMP_SYS(getdents),
	SCMP_SYS(getdents64),
	SCMP_SYS(mkdir),
	SCMP_SYS(mkdirat),
	SCMP_SYS(rename),
	SCMP_SYS(renameat),
	SCMP_SYS(renameat2),
	SCMP_SYS(unlink),
	SCMP_SYS(unlinkat),
	SCMP_SYS(umask),
	/* memory; mmap and mprotect are below */
	SCMP_SYS(brk),
	SCMP_SYS(munmap),
	SCMP_SYS(mremap),
	SCMP_SYS(madvise),
	SCMP_SYS(mincore),
	SCMP_SYS(msync),
	SCMP_SYS(mlock),
	SCMP_SYS(munlock),
	SCMP_SYS(membarrier),
	/* threads; clone is below */
	SCMP_SYS(futex),
	SCMP_SYS(futex_time64),
	FUTEX_WAITV,
	SCMP_SYS(set_robust_list),
	SCMP_SYS(get_robust_list),
	SCMP_SYS(set_tid_address),
	SCMP_SYS(rseq),
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	SCMP_SYS(sched_yield),
	SCMP_SYS(sched_getaffinity),
	SCMP_SYS(sched_getparam),
	SCMP_SYS(sched_getscheduler),
	SCMP_SYS(getcpu),
	SCMP_SYS(wait4),
	SCMP_SYS(waitpid),
	SCMP_SYS(waitid),
	/* signals; tgkill is below */
	SCMP_SYS(rt_sigaction),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(rt_sigpending),
	SCMP_SYS(rt_sigsuspend),
	SCMP_SYS(rt_sigtimedwait),
	SCMP_SYS(rt_sigtimedwait_time64),
	SCMP_SYS(sigreturn),
	SCMP_SYS(sigaltstack),
	SCMP_SYS(restart_syscall),
	SCMP_SYS(pause),
	/* time and waiting */
	SCMP_SYS(nanosleep),
	SCMP_SYS(clock_nanosleep),
	SCMP_SYS(clock_nanosleep_time64),
	SCMP_SYS(clock_gettime),
	SCMP_SYS(clock_gettime64),
	SCMP_SYS(clock_getres),
	SCMP_SYS(clock_getres_time64),
	SCMP_SYS(gettimeofday),
	SCMP_SYS(time),
	SCMP_SYS(times),
	SCMP_SYS(poll),
	SCMP_SYS(ppoll),
	SCMP_SYS(ppoll_time64),
	SCMP_SYS(select),
	SCMP_SYS(pselect6),
	SCMP_SYS(pselect6_time64),
	SCMP_SYS(eventfd2),
	SCMP_SYS(epoll_create1),
	SCMP_SYS(epoll_ctl),
	SCMP_SYS(epoll_wait),
	SCMP_SYS(epoll_pwait),
	EPOLL_PWAIT2,
	/* identity and working directory */
	SCMP_SYS(getpid),
	SCMP_SYS(getppid),
	SCMP_SYS(gettid),
	SCMP_SYS(getpgrp),
	SCMP_SYS(getuid),
	SCMP_SYS(geteuid),
	SCMP_SYS(getgid),
	SCMP_SYS(getegid),
	SCMP_SYS(getuid32),
	SCMP_SYS(geteuid32),
	SCMP_SYS(getgid32),
	SCMP_SYS(getegid32),
	SCMP_SYS(uname),
	SCMP_SYS(sysinfo),
	SCMP_SYS(getrusage),
	SCMP_SYS(getrlimit),
	SCMP_SYS(ugetrlimit),
	SCMP_SYS(setrlimit),
	SCMP_SYS(getrandom),
	SCMP_SYS(getpriority),
	SCMP_SYS(capget),
};

/* Calls of SQLite, on files that it makes; it ignores the answer, EPERM. See also refuse_times. */
static const int refused[] = {
	SCMP_SYS(fchmod),
	SCMP_SYS(fchown),
	SCMP_SYS(fchown32),
};

/* Calls of which only some uses are harmless; entries with the same name are alternatives. */
static int allow_some(scmp_filter_ctx f)
{
	const scmp_datum_t self = (scmp_datum_t)getpid();
	const struct {
		int call;
		struct scmp_arg_cmp arg;
	} some[] = {
		{ SCMP_SYS(mmap), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0) },
		{ SCMP_SYS(mmap2), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0) },
		{ SCMP_SYS(mprotect), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0) },
		{ SCMP_SYS(clone),
		  SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD | NEW_NAMESPACES, CLONE_THREAD) },
		{ SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, self, 0) },
		{ SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0, 0) },
		{ SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME, 0) },
		{ SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_EQ, CALL_PR_SET_VMA, 0) },
		{ SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_EQ, PASSTHROUGH_OPEN, 0) },
		{ SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_EQ, PASSTHROUGH_CLOSE, 0) },
		{ SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_EQ, TCGETS, 0) },
		{ SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_EQ, CALL_TCGETS2, 0) },
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(some); i++)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, some[i].call, 1, some[i].arg);
	return rc;
}

/* A call that names the recipient of a signal may only name this process: see also
 * source/lease.h. */
static int allow_fcntl(scmp_filter_ctx f)
{
	static const int any_argument[] = {
		F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,    F_SETFD,	  F_GETFL,	F_GETLK,
		F_SETLK, F_SETLKW,	  F_GETLEASE, F_SETLEASE, F_SETPIPE_SZ, F_GET_SEALS
	};
	static const int calls[] = { SCMP_SYS(fcntl), SCMP_SYS(fcntl64) };
	int rc = 0;

	for (size_t c = 0; !rc && c < ARRAY_LEN(calls); c++) {
		for (size_t i = 0; !rc && i < ARRAY_LEN(any_argument); i++)
			rc = seccomp_rule_add(
				f, SCMP_ACT_ALLOW, calls[c], 1,
				SCMP_A1(SCMP_CMP_EQ, (scmp_datum_t)any_argument[i], 0));
		if (!rc)
			rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[c], 2,
					      SCMP_A1(SCMP_CMP_EQ, F_SETFL, 0),
					      SCMP_A2(SCMP_CMP_MASKED_EQ, O_ASYNC, 0));
		if (!rc)
			rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[c], 2,
					      SCMP_A1(SCMP_CMP_EQ, F_SETOWN, 0),
					      SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0));
		if (!rc)
			rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), calls[c], 1,
					      SCMP_A1(SCMP_CMP_EQ, F_SETOWN_EX, 0));
	}
	return rc;
}

/* truncating: also with O_TRUNC. openat2 has its flags in memory, which a filter cannot read. */
static int allow_open(scmp_filter_ctx f, bool truncating)
{
	const struct scmp_arg_cmp open_flags = SCMP_A1(SCMP_CMP_MASKED_EQ, O_TRUNC, 0),
				  openat_flags = SCMP_A2(SCMP_CMP_MASKED_EQ, O_TRUNC, 0);
	int rc;

	if (!truncating) {
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(open), 1, open_flags);
		return rc ? rc
			  : seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1, openat_flags);
	}
	rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(open), 0);
	if (!rc)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(openat), 0);
	return rc ? rc : seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(openat2), 0);
}

static int add_rules(scmp_filter_ctx f, bool truncating)
{
	int rc = allow_some(f);

	if (!rc)
		rc = allow_fcntl(f);
	if (!rc)
		rc = allow_open(f, truncating);
	for (size_t i = 0; !rc && i < ARRAY_LEN(allowed); i++)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, allowed[i], 0);
	for (size_t i = 0; !rc && i < ARRAY_LEN(refused); i++)
		rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
	return rc;
}

/* Calls that are answered as by an older kernel: newer ones, and clone3, whose flags are in memory,
 * which a filter cannot read. */
static int answer_newer(scmp_filter_ctx f)
{
	int rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);

	for (int call = CACHESTAT + 1; !rc && call <= LAST_NUMBER; call++)
		rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), call, 0);
	return rc;
}

static int refuse_times(scmp_filter_ctx f)
{
	return seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(utimensat), 0);
}

/* No call makes a socket or connects one: messages reach only the process at the other end of a
 * socket that is there already. */
static int allow_messages(scmp_filter_ctx f)
{
	int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(recvmsg), 0);

	if (!rc)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(sendmsg), 0);
	return rc;
}

/* otherwise: what happens to a call that is not on the list. Once added, rules are loaded by
 * load_filter. */
static int new_filter(uint32_t otherwise, bool truncating, scmp_filter_ctx *ret, struct ckpt_err *e)
{
	scmp_filter_ctx f = seccomp_init(otherwise);

	if (!f && seccomp_api_get() < CAN_KILL)
		return err_set(e, ENOTSUP,
			       "this kernel has no filter of system calls (seccomp, Linux 4.14)");
	if (!f)
		return err_nomem(e);
	(void)seccomp_attr_set(f, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	(void)seccomp_attr_set(f, SCMP_FLTATR_CTL_TSYNC, 1);
	/* Kernels before 5.16 otherwise slow the process down, as a precaution for programs that
	 * run foreign code. The filter is also searched as a tree, not as a list. */
	(void)seccomp_attr_set(f, SCMP_FLTATR_CTL_SSB, 1);
	(void)seccomp_attr_set(f, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	*ret = f;
	return add_rules(f, truncating);
}

static int load_filter(scmp_filter_ctx f, int rc, struct ckpt_err *e)
{
	if (!rc)
		rc = seccomp_load(f);
	seccomp_release(f);
	return rc ? err_sys(e, -rc, "seccomp") : 0;
}

int sandbox_filter_calls(bool uring, bool fetcher, struct ckpt_err *e)
{
	scmp_filter_ctx f = NULL;
	int rc = new_filter(SCMP_ACT_KILL_PROCESS, true, &f, e);

	if (!f)
		return rc;
	if (!rc)
		rc = answer_newer(f);
	if (!rc && uring)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(io_uring_enter), 0);
	if (!rc && fetcher)
		rc = allow_messages(f);
	if (!rc)
		rc = refuse_times(f);
	return load_filter(f, rc, e);
}

/* For a command that writes: the times of a file that is open, the same for a path refused. */
static int allow_writing(scmp_filter_ctx f)
{
	int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(utimensat), 1,
				  SCMP_A1(SCMP_CMP_EQ, 0, 0));

	if (!rc)
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(sync_file_range), 0);
	return rc ? rc : seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(symlinkat), 0);
}

int sandbox_filter_command(unsigned needs, struct ckpt_err *e)
{
	scmp_filter_ctx f = NULL;
	int rc = new_filter(SCMP_ACT_ERRNO(ENOSYS), needs & SANDBOX_TRUNCATES, &f, e);

	if (!f)
		return rc;
	if (!rc) /* the width of a terminal */
		rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
				      SCMP_A1(SCMP_CMP_EQ, TIOCGWINSZ, 0));
	if (!rc && needs & SANDBOX_FETCHES)
		rc = allow_messages(f);
	if (!rc)
		rc = needs & SANDBOX_WRITES ? allow_writing(f) : refuse_times(f);
	return load_filter(f, rc, e);
}

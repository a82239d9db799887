/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crime - what somebody would try who has taken over the daemon. Preloaded into it: at SIGUSR2 it
 * makes the call that $CRIME names, and if it lives to tell the errno it writes "errno N" into the
 * name of its thread, a place that needs no file.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long do_execve(void)
{
	char *none[] = { NULL };

	return execve("/nonexistent", none, none);
}

static long do_fork(void)
{
	long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (!pid)
		_exit(0);
	return pid;
}

static long do_mprotect(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return mprotect(p, 4096, PROT_READ | PROT_EXEC);
}

static long do_mmap(void)
{
	return mmap(NULL, 4096, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1
											     : 0;
}

static const char *file; /* $CRIME_FILE */

static const struct {
	const char *name;
	long (*call)(void);
	long number, a, b, c;
} crimes[] = {
	{ .name = "execve", .call = do_execve },
	{ .name = "fork", .call = do_fork },
	{ .name = "mmap_exec", .call = do_mmap },
	{ .name = "mprotect_exec", .call = do_mprotect },
	{ .name = "socket_inet", .number = SYS_socket, AF_INET, SOCK_STREAM, 0 },
	{ .name = "socket_unix_stream", .number = SYS_socket, AF_UNIX, SOCK_STREAM, 0 },
	{ .name = "ptrace", .number = SYS_ptrace, PTRACE_PEEKDATA, 1, 0 },
	{ .name = "process_vm_readv", .number = SYS_process_vm_readv, 1, 0, 0 },
	{ .name = "kill", .number = SYS_kill, 0x7fffffff, SIGTERM, 0 },
	{ .name = "tgkill_other", .number = SYS_tgkill, 0x7fffffff, 0x7fffffff, SIGTERM },
	{ .name = "mount", .number = SYS_mount, 0, 0, 0 },
	{ .name = "umount", .number = SYS_umount2, 0, 0, 0 },
	{ .name = "unshare", .number = SYS_unshare, 0, 0, 0 },
	{ .name = "setns", .number = SYS_setns, -1, 0, 0 },
	{ .name = "chroot", .number = SYS_chroot, 0, 0, 0 },
	{ .name = "chmod", .number = SYS_fchmodat, -1, 0, 0 },
	{ .name = "setuid", .number = SYS_setuid, -1, 0, 0 },
	{ .name = "bpf", .number = SYS_bpf, -1, 0, 0 },
	{ .name = "io_uring", .number = SYS_io_uring_setup, 0, 0, 0 },
	{ .name = "open_by_handle_at", .number = SYS_open_by_handle_at, -1, 0, 0 },
	{ .name = "symlinkat", .number = SYS_symlinkat, 0, -1, 0 },
	{ .name = "ioctl_tty", .number = SYS_ioctl, -1, TIOCSTI, 0 },
	{ .name = "prctl", .number = SYS_prctl, PR_SET_DUMPABLE, 9, 0 },
	{ .name = "later_call", .number = 580, 0, 0, 0 },
	{ .name = "setrlimit_other", .number = SYS_prlimit64, 0x7fffffff, 0, 0 },
};

static long commit(const char *name)
{
	if (!strcmp(name, "read_file"))
		return open(file, O_RDONLY);
	if (!strcmp(name, "write_file"))
		return open(file, O_WRONLY);
	if (!strcmp(name, "make_file"))
		return open(file, O_WRONLY | O_CREAT, 0600);
	if (!strcmp(name, "remove_file"))
		return unlink(file);
	if (!strcmp(name, "truncate_file"))
		return open(file, O_RDONLY | O_TRUNC);
	for (size_t i = 0; i < sizeof(crimes) / sizeof(crimes[0]); i++)
		if (!strcmp(name, crimes[i].name))
			return crimes[i].call ? crimes[i].call()
					      : syscall(crimes[i].number, crimes[i].a, crimes[i].b,
							crimes[i].c);
	abort();
}

static void on_signal(int sig)
{
	char told[16];

	(void)sig;
	errno = 0;
	if (commit(getenv("CRIME")) >= 0)
		errno = 0;
	(void)snprintf(told, sizeof(told), "errno %d", errno);
	(void)prctl(PR_SET_NAME, told);
}

static void __attribute__((constructor)) be_ready(void)
{
	file = getenv("CRIME_FILE");
	if (getenv("CRIME"))
		(void)signal(SIGUSR2, on_signal);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "unmounter.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Nothing of the daemon's is kept: not /dev/fuse, not the pipe of who waits for the mount, not its
 * terminal, not its directory. */
static void let_go(int pipe_end)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)setsid();
	if (chdir("/"))
		_exit(1);
	(void)signal(SIGINT, SIG_IGN);
	(void)signal(SIGTERM, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	(void)dup2(null, STDOUT_FILENO);
	(void)dup2(null, STDERR_FILENO);
	(void)dup2(pipe_end, STDIN_FILENO);
	closefrom(STDERR_FILENO + 1);
	(void)prctl(PR_SET_NAME, "ckptfs-umount");
}

static void __attribute__((noreturn)) unmount_when_asked(const char *target)
{
	ssize_t n;
	char c;

	do
		n = read(STDIN_FILENO, &c, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		_exit(0);
	if (umount2(target, MNT_DETACH | UMOUNT_NOFOLLOW)) /* a user's: fusermount3 is setuid */
		(void)execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", target,
			     (char *)NULL);
	_exit(0);
}

int unmounter_start(struct unmounter *u, const char *target, struct ckpt_err *e)
{
	int ends[2];
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return err_sys(e, errno, "pipe");
	pid = fork();
	if (pid == 0) {
		let_go(ends[0]);
		unmount_when_asked(target);
	}
	(void)close(ends[0]);
	if (pid < 0) {
		(void)close(ends[1]);
		return err_sys(e, errno, "fork");
	}
	*u = (struct unmounter){ .fd = ends[1], .pid = pid };
	return 0;
}

static int wait_for(struct unmounter *u)
{
	int status = 0;

	(void)close(steal_fd(&u->fd));
	while (waitpid(u->pid, &status, 0) < 0 && errno == EINTR)
		;
	return status ? -EIO : 0;
}

int unmounter_ask(struct unmounter *u)
{
	ssize_t n;

	do
		n = write(u->fd, "", 1);
	while (n < 0 && errno == EINTR);
	return wait_for(u) || n != 1 ? -EIO : 0;
}

void unmounter_release(struct unmounter *u)
{
	if (u->fd >= 0)
		(void)wait_for(u);
}

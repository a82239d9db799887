/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/child.h"

#include "base/err.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

bool child_take(int fd, int number)
{
	int rc;

	do
		rc = dup2(fd, number);
	while (rc < 0 && (errno == EBUSY || errno == EINTR));
	return rc >= 0;
}

static void let_go(int input, int output)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void)setsid();
	if (chdir("/"))
		_exit(1);
	(void)signal(SIGINT, SIG_IGN);
	(void)signal(SIGTERM, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	if (!child_take(output < 0 ? null : output, STDOUT_FILENO) ||
	    !child_take(null, STDERR_FILENO) || !child_take(input, STDIN_FILENO) ||
	    io_close_from(STDERR_FILENO + 1))
		_exit(1);
}

int child_start(const char *name, int input, int output, void (*run)(void *arg), void *arg,
		pid_t *ret, struct ckpt_err *e)
{
	pid_t pid = fork();

	if (pid < 0)
		return err_sys(e, errno, "fork");
	if (pid == 0) {
		let_go(input, output);
		(void)prctl(PR_SET_NAME, name);
		run(arg);
		_exit(0);
	}
	*ret = pid;
	return 0;
}

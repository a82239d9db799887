/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs - sharded checkpoints as ordinary read-only files.
 *
 * Prepares the process; program.h does the rest.
 */
#include "cmd/cmd.h"
#include "cmd/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * A caller may have closed them; a file that we open must not become our standard output. What is
 * written to standard output must not be lost without an error: /dev/null takes its number, but
 * nothing can be written to it.
 */
static bool have_standard_files(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) != fd)
			return false;
	return true;
}

/* A checkpoint may have a file for every item. */
static void use_all_descriptors(void)
{
	struct rlimit lim;

	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &lim);
	}
}

int main(int argc, char **argv)
{
	if (!have_standard_files())
		return STATUS_TROUBLE;
	use_all_descriptors();
	/* Beyond the limit on a file's size (ulimit -f) a write is then an error like any other. */
	(void)signal(SIGXFSZ, SIG_IGN);
	return program_run(argc, argv, true);
}

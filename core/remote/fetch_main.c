/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs-fetch - reads object stores for the process that starts it. See wire.h.
 *
 * It has the credentials, and parses what comes from the network. Nothing else does either: its
 * memory cannot be read or dumped, and it talks to one process, through a descriptor that it was
 * started with, until that is closed. It is not killed with its parent's thread (PDEATHSIG), because
 * a thread of a program may end long before the program closes its checkpoints.
 */
#include "remote/server.h"
#include "remote/wire.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Its own descriptors are 0 to 3. */
static int close_others(void)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0)
		return -1;
	for (int fd = 0; fd < WIRE_FD; fd++)
		if (null != fd && dup2(null, fd) < 0)
			return -1;
	return close_range(WIRE_FD + 1, ~0u, 0);
}

static void more_descriptors(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim))
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

int main(int argc, char **argv)
{
	const struct rlimit no_core = { 0, 0 };
	int type;
	socklen_t len = sizeof(type);

	(void)argv;
	if (argc > 1 || getsockopt(WIRE_FD, SOL_SOCKET, SO_TYPE, &type, &len) ||
	    type != SOCK_SEQPACKET) {
		(void)fprintf(stderr, "ckptfs-fetch: ckptfs starts it when it opens an address\n");
		return 2;
	}
	(void)prctl(PR_SET_DUMPABLE, 0);
	(void)setrlimit(RLIMIT_CORE, &no_core);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)umask(077);
	/* No child of a program that may wait for its own; and no terminal of which a key ends it
	 * before that program. */
	switch (fork()) {
	case -1:
		return 1;
	case 0:
		break;
	default:
		_exit(0);
	}
	(void)setsid();
	/* The command of credential_process would hold our end of the sockets, for as long as anything
	 * that it starts lives: nobody would see that we have ended. */
	if (close_others() || fcntl(WIRE_FD, F_SETFD, FD_CLOEXEC))
		return 1;
	more_descriptors();
	_exit(server_run(WIRE_FD) ? 1 : 0);
}

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

/* Leaves the directory that it was started in, whose file system could not be unmounted. Paths in
 * the environment are relative to it. 0, or -1. */
static int leave_directory(void)
{
	static const char *const names[] = {
		"AWS_CA_BUNDLE",
		"AWS_CONFIG_FILE",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_SHARED_CREDENTIALS_FILE",
		"AWS_WEB_IDENTITY_TOKEN_FILE",
		"CURL_CA_BUNDLE",
		"HF_HOME",
		"HF_TOKEN_PATH",
		"HOME",
		"SSL_CERT_FILE",
	};
	char here[4096];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *v = getenv(names[i]);
		char *path;
		int rc;

		if (!v || !*v || *v == '/' || *v == '~')
			continue;
		if (!getcwd(here, sizeof(here)) || asprintf(&path, "%s/%s", here, v) < 0)
			return -1;
		rc = setenv(names[i], path, 1);
		free(path);
		if (rc)
			return rc;
	}
	return chdir("/");
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
	if (close_others() || fcntl(WIRE_FD, F_SETFD, FD_CLOEXEC) || leave_directory())
		return 1;
	more_descriptors();
	_exit(server_run(WIRE_FD) ? 1 : 0);
}

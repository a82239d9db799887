/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs-fetch - reads object stores for the process that starts it. See wire.h.
 *
 * It has the credentials, and parses what comes from the network. Nothing else does either: its
 * memory cannot be read or dumped, and it talks to one process, through a descriptor that it was
 * started with, until that is closed. It is not killed with its parent's thread (PDEATHSIG),
 * because a thread of a program may end long before the program closes its checkpoints.
 *
 * What does all that is a child, the fetcher, and what is left here starts another one when it
 * dies: the process that reads may be confined, and cannot. One that dies soon is started again
 * later and later, so that a fetcher that cannot run costs nothing.
 */
#include "base/clock.h"
#include "base/io.h"
#include "base/text.h"
#include "remote/seal.h"
#include "remote/server.h"
#include "source/wire.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
	LONG_MS = 10000, /* a fetcher that has lived this long is started again at once */
	DELAY_MS = 20,	 /* the second and third that died sooner; then twice that, and so on */
	DELAY_MAX_MS = 10000,
};

/* Its own descriptors are 0 to 3. 0, or negative. */
static int close_others(void)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0)
		return -1;
	for (int fd = 0; fd < WIRE_FD; fd++)
		if (null != fd && dup2(null, fd) < 0)
			return -1;
	return io_close_from(WIRE_FD + 1);
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
		path = getcwd(here, sizeof(here)) ? text_format("%s/%s", here, v) : NULL;
		if (!path)
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

/* A fetcher, at one end of a pair of sockets. */
static void serve(int sock, const struct seal *seal)
{
	if (dup2(sock, WIRE_FD) < 0 || fcntl(WIRE_FD, F_SETFD, FD_CLOEXEC))
		_exit(1);
	(void)close(sock);
	_exit(server_run(WIRE_FD, seal) ? 1 : 0);
}

/* Starts a fetcher and sends its socket. *ret_life is at its end when the fetcher is. -1: it is not
 * possible now. */
static pid_t start_fetcher(const struct seal *seal, int *ret_life)
{
	struct wire_head h = { .kind = WIRE_FETCHER };
	int pair[2], life[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	if (pipe2(life, O_CLOEXEC)) {
		(void)close(pair[0]);
		(void)close(pair[1]);
		return -1;
	}
	pid = fork();
	if (!pid) {
		(void)close(pair[0]);
		(void)close(life[0]);
		serve(pair[1], seal);
	}
	(void)close(life[1]);
	(void)close(pair[1]);
	if (pid > 0) {
		*ret_life = life[0];
		(void)wire_send(WIRE_FD, &h, NULL, 0, pair[0]);
	} else
		(void)close(life[0]);
	(void)close(pair[0]);
	return pid;
}

/* Waits until `life` is at its end, or until a time. False: the other side has gone before that. */
static bool wait_until(int life, uint64_t until, pid_t pid, struct seal *seal)
{
	static struct wire_msg m;

	for (;;) {
		struct pollfd p[] = { { .fd = WIRE_FD, .events = POLLIN }, { .fd = life } };
		uint64_t now = clock_ns();
		int ms = life >= 0 ? -1 : now >= until ? 0 : (int)((until - now) / CLOCK_MS + 1);
		int n = poll(p, ARRAY_LEN(p), ms), rc;

		if (n < 0 && errno != EINTR)
			return false;
		if (!n || (n > 0 && p[1].revents))
			return true;
		if (n < 0 || !p[0].revents)
			continue;
		rc = wire_receive(WIRE_FD, &m);
		if (m.fd >= 0)
			(void)close(m.fd);
		if (rc <= 0)
			return false;
		if (m.head.kind == WIRE_SEAL)
			seal_take(seal, &m);
		if (m.head.kind == WIRE_END_IT && life >= 0)
			(void)kill(pid, SIGKILL);
	}
}

/* Until the other side is gone. Whatever the last fetcher has to finish it does without us. */
static void keep_one_running(void)
{
	static struct seal seal;
	uint64_t delay_ms = 0;

	for (;;) {
		uint64_t began = clock_ns(), lived_ms;
		int life = -1;
		pid_t pid = start_fetcher(&seal, &life);
		bool is_there = pid < 0 || wait_until(life, 0, pid, &seal);

		if (!is_there)
			return;
		if (pid > 0) {
			(void)close(life);
			(void)waitpid(pid, NULL, 0);
		}
		lived_ms = (clock_ns() - began) / CLOCK_MS;
		if (lived_ms > LONG_MS)
			delay_ms = 0;
		if (!wait_until(-1, clock_ns() + delay_ms * CLOCK_MS, 0, &seal))
			return;
		delay_ms = delay_ms ? min_u64(2 * delay_ms, DELAY_MAX_MS) : DELAY_MS;
	}
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
	(void)signal(SIGXFSZ, SIG_IGN); /* a cache that may not grow is like a full disk */
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
	/* The command of credential_process would hold our end of the sockets, for as long as
	 * anything that it starts lives: nobody would see that we have ended. */
	if (close_others() || fcntl(WIRE_FD, F_SETFD, FD_CLOEXEC) || leave_directory())
		return 1;
	more_descriptors();
	keep_one_running();
	_exit(0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Starting ckptfs-fetch: where it is installed, and a process that is not our child. */
#include "source/remote_link_internal.h"

#include "base/err.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#ifndef CKPTFS_LIBEXECDIR
#define CKPTFS_LIBEXECDIR "/usr/local/libexec/ckptfs"
#endif
#define PACKAGED "/usr/libexec/ckptfs/ckptfs-fetch"

int fetcher_find(char **ret, struct ckpt_err *e)
{
	const char *given = secure_getenv("CKPTFS_FETCH");
	char self[4096];
	ssize_t n;

	*ret = strdup(given && *given ? given : CKPTFS_LIBEXECDIR "/ckptfs-fetch");
	if (!*ret)
		return err_nomem(e);
	if ((given && *given) || !access(*ret, X_OK))
		return 0;
	n = readlink("/proc/self/exe", self, sizeof(self) - sizeof("ckptfs-fetch"));
	if (n <= 0)
		return 0;
	self[n] = 0;
	(void)snprintf(strrchr(self, '/') + 1, sizeof("ckptfs-fetch"), "ckptfs-fetch");
	if (access(self, X_OK)) {
		/* Where the Debian package installs it: libckpt may be from a wheel, without it. */
		if (access(PACKAGED, X_OK))
			return 0;
		(void)snprintf(self, sizeof(self), "%s", PACKAGED);
	}
	free(*ret);
	*ret = strdup(self);
	return *ret ? 0 : err_nomem(e);
}

int fetcher_spawn(const char *program, int sock, struct ckpt_err *e)
{
	extern char **environ;
	char name[] = "ckptfs-fetch", *argv[] = { name, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc, status;
	pid_t pid, got;

	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	if (posix_spawn_file_actions_init(&actions))
		return err_nomem(e);
	if (posix_spawnattr_init(&attr)) {
		(void)posix_spawn_file_actions_destroy(&actions);
		return err_nomem(e);
	}
	rc = posix_spawn_file_actions_adddup2(&actions, sock, WIRE_FD);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setsigdefault(&attr, &all);
	if (!rc)
		rc = posix_spawn(&pid, program, &actions, &attr, argv, environ);
	(void)posix_spawn_file_actions_destroy(&actions);
	(void)posix_spawnattr_destroy(&attr);
	if (rc)
		return err_sys(
			e, rc,
			"start '%s', which reads object stores (install ckptfs-fetch, or set "
			"CKPTFS_FETCH)",
			program);
	/* It goes on in a process that is not our child. */
	do
		got = waitpid(pid, &status, 0);
	while (got < 0 && errno == EINTR);
	if (got == pid && (!WIFEXITED(status) || WEXITSTATUS(status)))
		return err_set(e, EIO, "'%s' did not start: it ended with %s %d", program,
			       WIFEXITED(status) ? "status" : "signal",
			       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 0;
}

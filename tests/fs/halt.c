/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded, which makes a program send itself a signal in the middle of its work,
 * so that no test depends on being quick. HALT="MIN MAX N SIGNAL": just before its Nth write() or
 * pwrite() of MIN to MAX bytes.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_ullong calls;

static void count(size_t bytes)
{
	unsigned long long min, max, n;
	const char *how = getenv("HALT");
	int number;

	if (!how || sscanf(how, "%llu %llu %llu %d", &min, &max, &n, &number) != 4)
		abort();
	if (bytes >= min && bytes <= max && ++calls == n)
		(void)syscall(SYS_tgkill, getpid(), getpid(), number); /* kill() is forbidden */
}

ssize_t write(int fd, const void *data, size_t bytes)
{
	count(bytes);
	return syscall(SYS_write, fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	count(bytes);
	return syscall(SYS_pwrite64, fd, data, bytes, at);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded, which makes one call of a program fail: one that needs memory, a
 * descriptor, a process or a thread. FAIL="N" selects the Nth such call that the program itself
 * makes, counted in each process; calls of libraries never fail. FAILED is the path of a file to
 * which the name of each failed call is written.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOTES = 200 }; /* a descriptor that the program does not use */

static unsigned long fails_at;
static atomic_ulong calls;
static uintptr_t from, to; /* the program's code */

/* The first object is the program. */
static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
			from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			to = from + info->dlpi_phdr[i].p_memsz;
		}
	return 1;
}

__attribute__((constructor)) static void begin(void)
{
	const char *n = getenv("FAIL"), *path = getenv("FAILED");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

	(void)dl_iterate_phdr(find_program, NULL);
	if (n && fd >= 0 && dup3(fd, NOTES, O_CLOEXEC) >= 0)
		fails_at = strtoul(n, NULL, 10);
}

static bool fails(const char *name, const void *caller, int code)
{
	if (!fails_at || (uintptr_t)caller < from || (uintptr_t)caller >= to || ++calls != fails_at)
		return false;
	(void)!syscall(SYS_write, NOTES, name, strlen(name));
	(void)!syscall(SYS_write, NOTES, "\n", 1);
	errno = code;
	return true;
}

#define FAILS(name, code) fails(name, __builtin_return_address(0), code)

/* dlsym may itself allocate. So the allocator is called by its other names, which exist before any
 * library is loaded. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
	return FAILS("malloc", ENOMEM) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return FAILS("calloc", ENOMEM) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return FAILS("realloc", ENOMEM) ? NULL : __libc_realloc(p, n);
}

char *strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *copy = FAILS("strdup", ENOMEM) ? NULL : __libc_malloc(n);

	return copy ? memcpy(copy, s, n) : NULL;
}

#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int pipe2(int ends[2], int flags)
{
	return FAILS("pipe2", EMFILE) ? -1 : (int)syscall(SYS_pipe2, ends, flags);
}

int eventfd(unsigned n, int flags)
{
	return FAILS("eventfd", EMFILE) ? -1 : (int)syscall(SYS_eventfd2, n, flags);
}

pid_t fork(void)
{
	return FAILS("fork", EAGAIN) ? -1 : NEXT(pid_t, fork, void)();
}

int dup2(int fd, int to_fd)
{
	return FAILS("dup2", EBUSY) ? -1 : NEXT(int, dup2, int, int)(fd, to_fd);
}

FILE *fopen(const char *path, const char *mode)
{
	return FAILS("fopen", EMFILE) ? NULL
				      : NEXT(FILE *, fopen, const char *, const char *)(path, mode);
}

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	return FAILS("pthread_create", EAGAIN)
		       ? EAGAIN
		       : NEXT(int, pthread_create, pthread_t *, const pthread_attr_t *,
			      void *(*)(void *), void *)(ret, attr, run, arg);
}

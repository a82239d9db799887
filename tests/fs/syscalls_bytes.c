/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, copying, mapping. */
#include "syscalls.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- reading ---- */

/* Reads at places that are not the descriptor's; 4096 bytes must come from each of these. */
static void offsets(int fd)
{
	const int64_t size = tree.size, page = (int64_t)tree.page;

	IS(page, right(pread(fd, tree.room, tree.page, 0), 0));
	IS(page, right(pread(fd, tree.room, tree.page, 7), 7));
	IS(1, right(pread(fd, tree.room, tree.page, size - 1), size - 1));
	IS(0, pread(fd, tree.room, tree.page, size));
	IS(0, pread(fd, tree.room, tree.page, size + 1));
	IS(0, pread(fd, tree.room, tree.page, size * 2 / page * page));
	IS(0, pread(fd, tree.room, tree.page, (off_t)1 << 40));
	IS(0, pread(fd, tree.room, 0, 0));
	IS(0, pread(fd, tree.wild, 0, size + 5));
	IS(size, right(pread(fd, tree.room, (size_t)size, 0), 0));
	IS(size, right(pread(fd, tree.room, (size_t)size + tree.page, 0), 0));
	IS(-EINVAL, pread(fd, tree.room, 1, -1));
	IS(-EINVAL, pread(fd, tree.room, 1, INT64_MIN));
	IS(-EINVAL, pread(fd, tree.room, 1, INT64_MAX));
	IS(-EFAULT, pread(fd, tree.wild, tree.page, 0));
	IS(0, lseek(fd, 0, SEEK_SET));
	IS(10, right(read(fd, tree.room, 10), 0));
	IS(10, right(read(fd, tree.room, 10), 10));
	IS(20, lseek(fd, 0, SEEK_CUR));
	IS(size + 100, lseek(fd, 100, SEEK_END));
	IS(0, read(fd, tree.room, 10));
	IS(size - 5, lseek(fd, -105, SEEK_CUR));
	IS(5, right(read(fd, tree.room, 10), size - 5));
	IS(-EINVAL, lseek(fd, -1, SEEK_SET));
	IS(-EINVAL, lseek(fd, -size - 1, SEEK_END));
	IS(-EINVAL, lseek(fd, 0, 99));
	IS(0, lseek(fd, 0, SEEK_DATA));
	IS(100, lseek(fd, 100, SEEK_DATA));
	IS(size, lseek(fd, 0, SEEK_HOLE));
	IS(size, lseek(fd, size - 1, SEEK_HOLE));
	IS(-ENXIO, lseek(fd, size, SEEK_DATA));
	IS(-ENXIO, lseek(fd, size, SEEK_HOLE));
	IS(-ENXIO, lseek(fd, -1, SEEK_DATA));
}

/* More than there is, more than a call may return, and more than there can be. */
static void lengths(int fd)
{
	const volatile size_t all = SIZE_MAX; /* volatile: compilers know better */
	const size_t many = (size_t)3 << 30;
	void *much = mmap(NULL, many, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (much == MAP_FAILED)
		return; /* an address space with a limit */
	IS(tree.size, pread(fd, much, many, 0));
	IS(0, memcmp(much, tree.plain, (size_t)tree.size));
	IS(0, pread(fd, much, many, tree.size));
	IS(-EFAULT, pread(fd, much, all, 0));
	(void)munmap(much, many);
}

static void vectors(int fd)
{
	const volatile int less_than_none = -1;
	struct iovec v[IOV_MAX + 1];

	for (int i = 0; i <= IOV_MAX; i++)
		v[i] = (struct iovec){ tree.room + (size_t)i * 3, 3 };
	IS(0, preadv(fd, v, 0, 0));
	IS(3 * IOV_MAX, right(preadv(fd, v, IOV_MAX, 11), 11));
	IS(-EINVAL, preadv(fd, v, IOV_MAX + 1, 0));
	IS(-EINVAL, preadv(fd, v, less_than_none, 0));
	IS(-EINVAL, preadv(fd, v, 1, -1));
	v[1].iov_len = 0;
	v[2].iov_base = tree.room + 3;
	IS(6, right(preadv(fd, v, 3, 5), 5));
	IS(3, right(preadv(fd, v, 1, tree.size - 3), tree.size - 3));
	IS(1, right(preadv(fd, v, 1, tree.size - 1), tree.size - 1));
	v[0].iov_len = SIZE_MAX;
	IS(-EINVAL, preadv(fd, v, 2, 0));
	v[0].iov_len = 3;
	IS(3, right(preadv2(fd, v, 1, 9, 0), 9));
	IS(3, right(preadv2(fd, v, 1, 9, RWF_HIPRI), 9));
	IS(3, right(preadv2(fd, v, 1, 9, RWF_SYNC | RWF_DSYNC), 9));
	IS(-EOPNOTSUPP, preadv2(fd, v, 1, 9, 1 << 15));
	OURS(-EOPNOTSUPP, preadv2(fd, v, 1, 9, RWF_NOWAIT)); /* FUSE may always have to wait */
	IS(0, lseek(fd, 0, SEEK_SET));
	IS(3, right(preadv2(fd, v, 1, -1, 0), 0));
	IS(3, lseek(fd, 0, SEEK_CUR));
	IS(3, right(readv(fd, v, 1), 3));
}

static void reading(int flag)
{
	const int fd = must_open(A_FILE, O_RDONLY | flag), path = must_open(A_FILE, O_PATH);
	const int dir = must_open(A_DIR, O_RDONLY);

	offsets(fd);
	lengths(fd);
	vectors(fd);
	IS(-EISDIR, read(dir, tree.room, 1));
	IS(-EISDIR, pread(dir, tree.room, 0, 0));
	IS(-EBADF, read(path, tree.room, 1));
	(void)close(dir);
	(void)close(path);
	(void)close(fd);
}

/* Multiples of a block, for which alone O_DIRECT has to work. */
static void direct(void)
{
	const int fd = must_open(A_FILE, O_RDONLY | O_DIRECT);
	const int64_t last = tree.size / (int64_t)tree.page * (int64_t)tree.page;

	IS((int64_t)tree.page, right(pread(fd, tree.room, tree.page, 0), 0));
	IS((int64_t)tree.page,
	   right(pread(fd, tree.room, tree.page, 3 * (int64_t)tree.page), 3 * tree.page));
	IS(tree.size - last, right(pread(fd, tree.room, tree.page, last), last));
	IS(0, pread(fd, tree.room, tree.page, last + (int64_t)tree.page));
	IS(tree.size, right(pread(fd, tree.room, (size_t)last + tree.page, 0), 0));
	/* Here, nothing has to be a multiple of anything. */
	OURS(5, right(pread(fd, tree.room + 0, 5, 13), 13));
	(void)close(fd);
}

/* ---- out of it ---- */

static int same_as_plain(int fd)
{
	return pread(fd, tree.room, (size_t)tree.size, 0) == tree.size
		       ? memcmp(tree.room, tree.plain, (size_t)tree.size)
		       : 1;
}

static void copying(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), dir = must_open(A_DIR, O_RDONLY);
	char *name = NULL;
	off_t off = 0, end = tree.size;
	int out, p[2] = { -1, -1 };

	if (asprintf(&name, "%s/copy", tree.elsewhere) < 0 || pipe(p))
		exit(2);
	out = must_open(name, O_RDWR | O_CREAT | O_TRUNC);
	IS(tree.size, sendfile(out, fd, &off, (size_t)tree.size));
	IS(tree.size, off);
	IS(0, same_as_plain(out));
	IS(0, sendfile(out, fd, &end, 100));
	IS(-EINVAL, sendfile(out, fd, &(off_t){ -1 }, 100));
	IS(-EINVAL, sendfile(out, dir, NULL, 100));
	IS(0, sendfile(out, fd, NULL, 0));
	IS(-EXDEV, copy_file_range(fd, &(loff_t){ 0 }, out, &(loff_t){ 0 }, 4096, 0));
	IS(-EINVAL, copy_file_range(fd, &(loff_t){ 0 }, out, &(loff_t){ 0 }, 4096, 1 << 5));
	IS(-EISDIR, copy_file_range(dir, &(loff_t){ 0 }, out, &(loff_t){ 0 }, 4096, 0));
	IS(100, splice(fd, &(loff_t){ 17 }, p[1], NULL, 100, 0));
	IS(100, right(read(p[0], tree.room, 200), 17));
	IS(0, splice(fd, &(loff_t){ tree.size }, p[1], NULL, 100, SPLICE_F_NONBLOCK));
	IS(-EINVAL, splice(fd, &(loff_t){ -1 }, p[1], NULL, 100, 0));
	IS(-EINVAL, splice(fd, NULL, out, NULL, 100, 0)); /* no pipe */
	IS(-EINVAL, tee(fd, p[1], 100, 0));
	IS(-EXDEV, ioctl(out, FICLONE, fd));
	(void)unlink(name);
	(void)close(p[0]);
	(void)close(p[1]);
	(void)close(out);
	(void)close(dir);
	(void)close(fd);
	free(name);
}

/* ---- mappings ---- */

/* The signal that ends a child that does this, or 0. */
static int dies_of(void (*act)(void *), void *arg)
{
	int status = 0;
	pid_t child = fork();

	if (!child) {
		for (int s = 1; s < 32; s++) /* a sanitizer's handler */
			(void)signal(s, SIG_DFL);
		act(arg);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void look_at(void *p)
{
	(void)*(volatile char *)p;
}

static int64_t maps(int fd, size_t n, int prot, int how, off_t off)
{
	void *p = mmap(NULL, n, prot, how, fd, off);

	return p == MAP_FAILED ? -1 : munmap(p, n);
}

static void mapping_refused(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), dir = must_open(A_DIR, O_RDONLY);
	const int path = must_open(A_FILE, O_PATH);

	IS(0, maps(fd, tree.page, PROT_READ, MAP_SHARED, 0));
	IS(0, maps(fd, tree.page, PROT_READ, MAP_SHARED_VALIDATE, 0));
	IS(0, maps(fd, tree.page, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0));
	IS(0, maps(fd, tree.page, PROT_READ | PROT_EXEC, MAP_PRIVATE, 0));
	IS(0, maps(fd, tree.page, PROT_NONE, MAP_SHARED, 0));
	IS(0, maps(fd, tree.page, PROT_READ, MAP_SHARED | MAP_POPULATE, 0));
	IS(-EACCES, maps(fd, tree.page, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
	IS(-EACCES, maps(fd, tree.page, PROT_WRITE, MAP_SHARED_VALIDATE, 0));
	IS(-EOPNOTSUPP, maps(fd, tree.page, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, 0));
	IS(-EINVAL, maps(fd, tree.page, PROT_READ, MAP_SHARED, 1));
	IS(-EINVAL, maps(fd, 0, PROT_READ, MAP_SHARED, 0));
	IS(-EINVAL, maps(fd, tree.page, PROT_READ, 0, 0));
	IS(-EOVERFLOW, maps(fd, 2 * tree.page, PROT_READ, MAP_SHARED, -(off_t)tree.page));
	IS(-ENODEV, maps(dir, tree.page, PROT_READ, MAP_SHARED, 0));
	IS(-EBADF, maps(path, tree.page, PROT_READ, MAP_SHARED, 0));
	(void)close(path);
	(void)close(dir);
	(void)close(fd);
}

static void mapping(int how)
{
	const int fd = must_open(A_FILE, O_RDONLY);
	const size_t size = (size_t)tree.size, pages = (size + tree.page - 1) / tree.page;
	const size_t len = (pages + 1) * tree.page; /* one more than the file has */
	char *map = mmap(NULL, len, PROT_READ, how, fd, 0);
	unsigned char *resident = malloc(pages);

	(void)close(fd); /* the mapping stays */
	if (map == MAP_FAILED || !resident)
		exit(2);
	IS(0, memcmp(map, tree.plain, size));
	for (size_t i = size; i < pages * tree.page; i++)
		if (map[i])
			IS(0, map[i]); /* the page's rest is zero */
	IS(SIGBUS, dies_of(look_at, map + pages * tree.page));
	IS(0, dies_of(look_at, map + size - 1));
	IS(how == MAP_SHARED ? -EACCES : 0, mprotect(map, tree.page, PROT_READ | PROT_WRITE));
	IS(0, mprotect(map, len, PROT_READ));
	IS(0, madvise(map, len, MADV_SEQUENTIAL));
	IS(0, madvise(map, len, MADV_RANDOM));
	IS(0, madvise(map, len, MADV_WILLNEED));
	IS(0, madvise(map, len, MADV_DONTNEED));
	IS(0, madvise(map, size, MADV_POPULATE_READ));
	IS(-EFAULT, madvise(map, len, MADV_POPULATE_READ));
	IS(-EINVAL, madvise(map, len, 9999));
	IS(-EINVAL, madvise(map + 1, len - 1, MADV_NORMAL));
	IS(0, mincore(map, size, resident));
	IS(0, msync(map, len, MS_SYNC));
	IS(0, msync(map, len, MS_ASYNC | MS_INVALIDATE));
	IS(0, mlock(map, tree.page));
	IS(0, munlock(map, tree.page));
	IS(0, memcmp(map, tree.plain, size));
	IS(0, munmap(map + tree.page, tree.page));
	IS(SIGSEGV, dies_of(look_at, map + tree.page));
	IS(0, memcmp(map + 2 * tree.page, tree.plain + 2 * tree.page, size - 2 * tree.page));
	IS(0, munmap(map, len));
	free(resident);
}

static void mapping_grows(void)
{
	const int fd = must_open(A_FILE, O_RDONLY);
	char *map = mmap(NULL, tree.page, PROT_READ, MAP_SHARED, fd, 0);
	char *more = map == MAP_FAILED ? MAP_FAILED
				       : mremap(map, tree.page, 9 * tree.page, MREMAP_MAYMOVE);

	IS(true, more != MAP_FAILED);
	if (more != MAP_FAILED) {
		IS(0, memcmp(more, tree.plain, 9 * tree.page));
		IS(0, munmap(more, 9 * tree.page));
	}
	(void)close(fd);
}

/* What is written to a private mapping belongs to the process. */
static void mapping_private(void)
{
	const int fd = must_open(A_FILE, O_RDONLY);
	char *map = mmap(NULL, tree.page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	if (map == MAP_FAILED)
		exit(2);
	memset(map, 0x5a, tree.page);
	IS((int64_t)tree.page, right(pread(fd, tree.room, tree.page, 0), 0));
	IS(0, munmap(map, tree.page));
	(void)close(fd);
}

void check_bytes(void)
{
	reading(0);
	reading(O_SYNC | O_NONBLOCK | O_APPEND);
	direct();
	copying();
	mapping_refused();
	mapping(MAP_SHARED);
	mapping(MAP_PRIVATE);
	mapping_grows();
	mapping_private();
}

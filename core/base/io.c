/* SPDX-License-Identifier: Apache-2.0 */
#include "base/io.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5 */
#endif

int64_t io_pread_some(int fd, void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (char *)buf + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (int64_t)done;
}

int io_pread(int fd, void *buf, size_t len, uint64_t off)
{
	int64_t n = io_pread_some(fd, buf, len, off);

	if (n < 0)
		return (int)n;
	return (size_t)n == len ? 0 : -ENODATA;
}

int io_read_file(const char *path, struct buf *b, struct ckpt_err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : 1;

	while (n > 0 || (n < 0 && fd >= 0 && errno == EINTR)) {
		char *at = buf_room(b, 1 << 16);

		if (!at)
			break;
		n = read(fd, at, 1 << 16);
		if (n > 0)
			b->len += (size_t)n;
	}
	if (b->data) /* the NUL: buf_room put it behind the room, not behind what was read */
		((char *)b->data)[b->len] = 0;
	if (b->err)
		return buf_check(b, e, "'%s' has more than %zu bytes", path, b->max);
	return n < 0 ? err_sys(e, errno, "read '%s'", path) : 0;
}

/*
 * Bytes per write call. For a write of 4 MiB the page cache allocates pieces of that size, which
 * have not been used recently; in a virtual machine the host must first find memory for them.
 * Writing 2 GiB that way took 2 to 4 times the CPU and wall time of pieces of 1 MiB, which cost no
 * more than smaller ones.
 */
#define MAX_WRITE ((size_t)1 << 20)

int io_write(int fd, const void *buf, size_t len)
{
	while (len) {
		ssize_t n = write(fd, buf, len < MAX_WRITE ? len : MAX_WRITE);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		buf = (const char *)buf + n;
		len -= (size_t)n;
	}
	return 0;
}

int io_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		size_t want = len - done < MAX_WRITE ? len - done : MAX_WRITE;
		ssize_t n = pwrite(fd, (const char *)buf + done, want, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

int io_check_relative(const char *path, size_t len, struct ckpt_err *e)
{
	const char *p = path, *end = path + len;

	if (!len || len >= 4096)
		return err_set(e, ERR_CORRUPT, "file name of %zu bytes refused", len);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
			return err_set(e, ERR_CORRUPT,
				       "file name '%.*s' refused: it contains byte 0x%02x",
				       (int)len, path, (unsigned char)path[i]);
	if (*path == '/')
		return err_set(e, ERR_CORRUPT, "file name '%.*s' refused: absolute path", (int)len,
			       path);
	while (p <= end) {
		const char *slash = memchr(p, '/', (size_t)(end - p));
		size_t n = (size_t)((slash ? slash : end) - p);

		if (!n || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return err_set(
				e, ERR_CORRUPT,
				"file name '%.*s' refused: an element of it is empty, '.' or '..'",
				(int)len, path);
		p += n + 1;
	}
	return 0;
}

static bool is_link(int dirfd, const char *name)
{
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
}

/* For kernels before 5.6 and sandboxes without openat2: opens one element at a time and refuses all
 * links (ELOOP). */
static int open_by_element(int dirfd, const char *path, int flags)
{
	autoclose int dir = -1;

	for (;;) {
		const char *slash = strchr(path, '/');
		char name[256];
		int fd;

		if (!slash)
			return openat(dir < 0 ? dirfd : dir, path, flags | O_NOFOLLOW);
		if ((size_t)(slash - path) >= sizeof(name)) {
			errno = ENAMETOOLONG;
			return -1;
		}
		(void)snprintf(name, sizeof(name), "%.*s", (int)(slash - path), path);
		fd = openat(dir < 0 ? dirfd : dir, name,
			    O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0) {
			if (errno == ENOTDIR && is_link(dir < 0 ? dirfd : dir, name))
				errno = ELOOP;
			return -1;
		}
		if (dir >= 0)
			(void)close(dir);
		dir = fd;
		path = slash + 1;
	}
}

/* Pointers begin with this text and are shorter than 1024 bytes (git-lfs, docs/spec.md). */
int io_is_pointer(int fd, const struct stat *st)
{
	static const char begin[] = "version https://git-lfs.github.com/spec/v1\n";
	char got[sizeof(begin) - 1];
	int rc;

	if (st->st_size <= (off_t)sizeof(got) || st->st_size >= 1024)
		return 0;
	rc = io_pread(fd, got, sizeof(got), 0);
	if (rc)
		return rc == -ENODATA ? 0 : rc; /* it has just become shorter */
	return !memcmp(got, begin, sizeof(got));
}

/* Opens the path, whatever type of file it is. */
static int open_beneath(int dirfd, const char *path, int flags, struct ckpt_err *e)
{
	struct open_how how = { .flags = (uint64_t)flags,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
	bool links = true;
	int fd, rc = io_check_relative(path, strlen(path), e);

	if (rc)
		return rc;
	fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
		links = false;
		fd = open_by_element(dirfd, path, flags);
	}
	if (fd < 0 && (errno == EXDEV || errno == ELOOP))
		return err_set(
			e, ERR_CORRUPT, "open '%s': refused, %s", path,
			links ? "a link leads out of the checkpoint"
			      : "a link is in the path, and without openat2 (Linux 5.6) links "
				"are not followed");
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/* follow: links may lead anywhere. */
static int open_any(int dirfd, const char *path, int flags, bool follow, struct ckpt_err *e)
{
	int fd;

	if (!follow)
		return open_beneath(dirfd, path, flags, e);
	fd = openat(dirfd, path, flags);
	return fd < 0 ? err_sys(e, errno, "open '%s'", path) : fd;
}

/* Opening a FIFO wakes a process that waits to write to it, and opening a device may rewind a tape
 * or start a watchdog. So the type is determined with a descriptor that does not open the file. */
static int refuse_special(int dirfd, const char *path, bool follow, struct ckpt_err *e)
{
	autoclose int fd = open_any(dirfd, path, O_PATH | O_CLOEXEC, follow, e);
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return err_sys(e, errno, "stat '%s'", path);
	/* A link here is one that is not followed; opening it says so. */
	return S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)
		       ? 0
		       : err_set(e, ERR_CORRUPT, "open '%s': not a regular file", path);
}

static int open_file(int dirfd, const char *path, bool follow, struct stat *st, struct ckpt_err *e)
{
	/* O_NONBLOCK: a FIFO may have come meanwhile, and opening it must not block. */
	const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	autoclose int fd = -1;
	struct stat got;
	int rc = refuse_special(dirfd, path, follow, e);

	if (!rc)
		fd = rc = open_any(dirfd, path, flags, follow, e);
	if (rc < 0)
		return rc;
	if (fstat(fd, &got))
		return err_sys(e, errno, "stat '%s'", path);
	if (!S_ISREG(got.st_mode))
		return err_set(e, ERR_CORRUPT, "open '%s': not a regular file", path);
	rc = io_is_pointer(fd, &got);
	if (rc < 0)
		return err_sys(e, -rc, "read '%s'", path);
	if (rc)
		return err_set(e, EREMOTE, "open '%s': it is " IO_IS_POINTER, path);
	*st = got;
	return steal_fd(&fd);
}

int io_open_beneath(int dirfd, const char *path, struct stat *st, struct ckpt_err *e)
{
	return open_file(dirfd, path, false, st, e);
}

int io_open_named(int dirfd, const char *name, struct stat *st, struct ckpt_err *e)
{
	return open_file(dirfd, name, true, st, e);
}

int io_open_dir_beneath(int dirfd, const char *path, struct ckpt_err *e)
{
	return open_beneath(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, e);
}

DIR *io_open_dir(int dirfd, const char *name, int flags)
{
	autoclose int fd = openat(dirfd, name, flags | O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (d)
		(void)steal_fd(&fd);
	return d;
}

int io_next_entry(DIR *d, const struct dirent **ret, struct ckpt_err *e)
{
	errno = 0;
	do
		*ret = readdir(
			d); /* NOLINT(concurrency-mt-unsafe): only the caller uses this DIR */
	while (*ret && (!strcmp((*ret)->d_name, ".") || !strcmp((*ret)->d_name, "..")));
	if (*ret)
		return 1;
	return errno ? err_sys(e, errno, "list the directory") : 0;
}

int io_close_from(int first)
{
	const struct dirent *entry;
	struct ckpt_err ignored;
	int rc;

	if (!syscall(SYS_close_range, first, ~0u, 0))
		return 0;
	/* Linux before 5.9 */
	DIR *d CLEANUP(io_close_dir) = io_open_dir(AT_FDCWD, "/proc/self/fd", 0);
	if (!d)
		return -errno;
	while ((rc = io_next_entry(d, &entry, &ignored)) > 0) {
		int fd = (int)strtol(entry->d_name, NULL, 10);

		if (fd >= first && fd != dirfd(d))
			(void)close(fd);
	}
	return rc;
}

static int remove_within(int dirfd, const char *name, unsigned depth, io_may_remove_fn *may,
			 struct ckpt_err *e);

/* Number of entries removed, or a negative errno. */
static int64_t remove_entries(int parent, const char *name, unsigned depth, io_may_remove_fn *may,
			      struct ckpt_err *e)
{
	DIR *d CLEANUP(io_close_dir) = io_open_dir(parent, name, O_NOFOLLOW);
	const struct dirent *entry;
	int64_t n = 0;
	int rc = 1;

	if (!d)
		return err_sys(e, errno, "remove '%s'", name);
	while (rc > 0 && (rc = io_next_entry(d, &entry, e)) > 0) {
		if (remove_within(dirfd(d), entry->d_name, depth + 1, may, e))
			return err_wrap(e, "'%s'", name);
		n++;
	}
	return rc < 0 ? err_wrap(e, "'%s'", name) : n;
}

static int remove_within(int dirfd, const char *name, unsigned depth, io_may_remove_fn *may,
			 struct ckpt_err *e)
{
	enum { MAX_DEPTH = 64 };

	if (!unlinkat(dirfd, name, 0) || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM) /* POSIX allows EPERM for it */
		return err_sys(e, errno, "remove '%s'", name);
	if (depth == MAX_DEPTH)
		return err_set(e, ELOOP, "remove '%s': more than %d directories deep", name,
			       MAX_DEPTH);
	if (depth && may && !may(dirfd, name))
		return err_sys(e, ENOTEMPTY, "remove '%s'", name);
	for (int64_t before = INT64_MAX;;) {
		int64_t n = remove_entries(dirfd, name, depth, may, e);

		if (n < 0)
			return (int)n;
		if (!unlinkat(dirfd, name, AT_REMOVEDIR))
			return 0;
		/* Some file systems skip entries if others are removed during the listing. Some
		 * give a file that is open another name, again and again: sshfs, bindfs. */
		if ((errno != ENOTEMPTY && errno != EEXIST) || !n || n >= before)
			return err_sys(e, errno, "remove '%s'", name);
		before = n;
	}
}

int io_remove(int dirfd, const char *name, struct ckpt_err *e)
{
	return remove_within(dirfd, name, 0, NULL, e);
}

int io_remove_if(int dirfd, const char *name, io_may_remove_fn *may, struct ckpt_err *e)
{
	return remove_within(dirfd, name, 0, may, e);
}

int io_lock(int fd)
{
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK)
			return 1;
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

int io_mkdirs(const char *path)
{
	char tmp[4096];
	size_t n = strlen(path);
	struct stat st;

	if (!n || n >= sizeof(tmp))
		return -ENAMETOOLONG;
	memcpy(tmp, path, n + 1);
	for (size_t i = 1; i <= n; i++) {
		if (tmp[i] != '/' && tmp[i])
			continue;
		tmp[i] = 0;
		if (mkdir(tmp, 0700) && errno != EEXIST)
			return -errno;
		tmp[i] = path[i];
	}
	if (stat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

bool io_keeps_inodes(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) || st.f_type != IO_FUSE;
}

bool io_is_stacked(int fd)
{
	struct statfs st;

	return !fstatfs(fd, &st) && st.f_type == OVERLAYFS_SUPER_MAGIC;
}

int io_is_cached(int fd, uint64_t off, uint64_t len)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct {
		uint64_t off, len;
	} range = { off, len };
	struct {
		uint64_t cache, dirty, writeback, evicted, recently_evicted;
	} found = { 0 };

	if (syscall(SYS_cachestat, fd, &range, &found, 0))
		return -errno;
	return found.cache >= (off + len + page - 1) / page - off / page;
}

bool io_is_remote(int fd)
{
	static const uint32_t kinds[] = {
		NFS_SUPER_MAGIC,
		SMB_SUPER_MAGIC,
		0xff534d42 /* CIFS */,
		0xfe534d42 /* SMB 2 */,
		0x00c36400 /* Ceph */,
		IO_FUSE,
		V9FS_MAGIC,
		AFS_SUPER_MAGIC, /* OpenAFS */
		AFS_FS_MAGIC,	 /* kAFS, of the kernel */
		0x0bd00bd0 /* Lustre */,
		0x47504653 /* GPFS */,
		0x19830326 /* BeeGFS */,
		0x7461636f /* OCFS2 */,
		0x01161970 /* GFS2 */,
		0x20030528 /* OrangeFS */,
	};
	struct statfs st;

	if (fstatfs(fd, &st))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if ((uint32_t)st.f_type == kinds[i])
			return true;
	return false;
}

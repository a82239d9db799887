/* SPDX-License-Identifier: Apache-2.0 */
/* Paths, and what they lead to. */
#include "syscalls.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- opening ---- */

static void flags(void)
{
	const int x = getuid() ? EPERM : 0; /* O_NOATIME is the owner's, or root's */

	/*                         file  dir  link  nothing  below    slash    root */
	EACH(opens(p, O_RDONLY), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_DIRECTORY), ENOTDIR, 0, ENOTDIR, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_NOFOLLOW), 0, 0, ELOOP, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_PATH), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_PATH | O_NOFOLLOW), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_PATH | O_NOFOLLOW | O_DIRECTORY), ENOTDIR, 0, ENOTDIR, ENOENT, ENOTDIR,
	     ENOTDIR, 0)
	EACH(opens(p, O_NONBLOCK), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_SYNC), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_DSYNC | O_NOCTTY | O_LARGEFILE), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_EXCL), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	IS(0, opens(A_FILE, O_DIRECT));
	IS(0, opens(A_LINK, O_DIRECT | O_NOFOLLOW | O_PATH));
	IS(-x, opens(A_FILE, O_NOATIME));
	IS(-x, opens(A_DIR, O_NOATIME));
	/* Access mode 3, for ioctl() only, needs the rights to read and to write. */
	IS(-EROFS, opens(A_FILE, O_ACCMODE));
	IS(-ENOENT, opens("", O_RDONLY));
	IS(-EFAULT, opens(tree.wild, O_RDONLY));
}

static int opens2(const char *path, uint64_t flags, uint64_t resolve)
{
	struct open_how how = { .flags = flags, .resolve = resolve };
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

	return fd < 0 ? -1 : close(fd);
}

static void resolving(void)
{
	EACH(opens2(p, O_RDONLY, RESOLVE_BENEATH), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens2(p, O_RDONLY, RESOLVE_NO_SYMLINKS), 0, 0, ELOOP, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens2(p, O_RDONLY, RESOLVE_NO_XDEV), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens2(p, O_RDONLY, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS), 0, 0, 0, ENOENT, ENOTDIR,
	     ENOTDIR, 0)
	EACH(opens2(p, O_RDWR | O_CREAT, RESOLVE_CACHED), EAGAIN, EAGAIN, EAGAIN, EAGAIN, EAGAIN,
	     EAGAIN, EAGAIN)
	IS(-EXDEV, opens2("..", O_RDONLY, RESOLVE_BENEATH));
	IS(-EXDEV, opens2("..", O_RDONLY, RESOLVE_NO_XDEV));
	IS(-EXDEV, opens2("/", O_RDONLY, RESOLVE_BENEATH));
	IS(0, opens2("../tensors/t", O_RDONLY, RESOLVE_IN_ROOT));
	IS(0, opens2("/tensors/../../../tensors/t", O_RDONLY, RESOLVE_IN_ROOT));
	IS(-EINVAL, opens2(A_FILE, 1ull << 40, 0));
	IS(-EINVAL, opens2(A_FILE, O_RDONLY, 1ull << 40));
	IS(-EINVAL, opens2(A_FILE, O_RDONLY, RESOLVE_IN_ROOT | RESOLVE_BENEATH));
}

static int stays_at(const char *path, bool same)
{
	struct stat a, b;

	if (stat(path, &a) || stat(".", &b))
		return -1;
	return (a.st_dev == b.st_dev && a.st_ino == b.st_ino) == same ? 0 : 1;
}

/* A path of n bytes that leads to A_FILE through many "./". */
static int opens_long(size_t n)
{
	char path[PATH_MAX + 64];
	size_t len = strlen(A_FILE);

	for (size_t i = 0; i < n - len; i++)
		path[i] = i % 2 ? '/' : '.';
	if ((n - len) % 2)
		path[n - len - 1] = '/';
	memcpy(path + n - len, A_FILE, len + 1);
	return opens(path, O_RDONLY);
}

static void names(void)
{
	char name[NAME_MAX + 2], below[NAME_MAX + 16];

	memset(name, 'n', sizeof(name));
	name[NAME_MAX] = 0;
	(void)snprintf(below, sizeof(below), "tensors/%s", name);
	IS(-ENOENT, opens(below, O_RDONLY));
	IS(-EROFS, opens(below, O_CREAT | O_RDWR));
	IS(-EROFS, mkdir(below, 0755));
	IS(-EROFS, unlink(below));
	name[NAME_MAX] = 'n';
	(void)snprintf(below, sizeof(below), "tensors/%.256s", name);
	IS(-ENAMETOOLONG, opens(below, O_RDONLY));
	IS(-ENAMETOOLONG, opens(below, O_CREAT | O_RDWR));
	IS(-ENAMETOOLONG, mkdir(below, 0755));
	IS(-ENAMETOOLONG, access(below, F_OK));
	IS(0, opens_long(PATH_MAX - 1));
	IS(-ENAMETOOLONG, opens_long(PATH_MAX));
	IS(0, stays_at(".", true));
	IS(0, stays_at("tensors/..", true));
	IS(0, stays_at("tensors/../tensors/./..", true));
	IS(0, stays_at("..", false));
	IS(0, stays_at("../", false));
	IS(0, opens("tensors//t", O_RDONLY));
	IS(0, opens("tensors/", O_RDONLY));
	IS(0, opens("tensors/.", O_RDONLY));
	IS(-ENOTDIR, opens(A_FILE "/.", O_RDONLY));
	IS(-ENOTDIR, opens(A_FILE "/..", O_RDONLY));
	IS(-ENOTDIR, opens(A_LINK "/", O_RDONLY));
	IS(-ENOENT, opens("tensors/no/no", O_RDONLY));
	IS(-ENOENT, opens("TENSORS", O_RDONLY));
	IS(-ENOENT, opens("tensors/t ", O_RDONLY));
	IS(-ENOENT, opens("tensors/%74", O_RDONLY)); /* "t", which needs no escape */
	IS(-ENOENT, opens("tensors/\xff\n", O_RDONLY));
}

static void rights(void)
{
	const int user = getuid() ? EPERM : 0;

	EACH(access(p, F_OK), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(access(p, R_OK), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(access(p, W_OK), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(access(p, R_OK | W_OK), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(access(p, X_OK), EACCES, 0, EACCES, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(access(p, 8), EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL)
	EACH(syscall(SYS_faccessat2, AT_FDCWD, p, W_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW), EROFS,
	     EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(syscall(SYS_faccessat2, AT_FDCWD, p, R_OK, AT_EACCESS), 0, 0, 0, ENOENT, ENOTDIR,
	     ENOTDIR, 0)
	EACH(execve(p, (char *[]){ NULL }, NULL), EACCES, EACCES, EACCES, ENOENT, ENOTDIR, ENOTDIR,
	     EACCES)
	EACH(chdir(p) ? -1 : chdir(k == T_DIR ? ".." : "."), ENOTDIR, 0, ENOTDIR, ENOENT, ENOTDIR,
	     ENOTDIR, 0)
	IS(-ENOTDIR, chroot(A_FILE));
	if (user)
		IS(-EPERM, chroot(A_DIR));
}

/* ---- what a path and a descriptor are ---- */

static int has_mode(const char *path, mode_t mode)
{
	struct stat st;

	return lstat(path, &st) ? -1 : st.st_mode == mode ? 0 : (int)st.st_mode;
}

/* Asks statx, whose answer must agree with lstat's but for `but`. */
static int statx_of(const char *path, unsigned mask, struct statx *ret)
{
	memset(ret, 0, sizeof(*ret));
	return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, mask, ret);
}

static int stats_agree(const char *path)
{
	struct stat st;
	struct statx x;

	if (lstat(path, &st) || statx_of(path, STATX_BASIC_STATS, &x))
		return -1;
	return st.st_ino == x.stx_ino && st.st_size == (off_t)x.stx_size &&
			       st.st_mode == x.stx_mode && st.st_nlink == x.stx_nlink &&
			       st.st_blocks == (blkcnt_t)x.stx_blocks && st.st_uid == x.stx_uid &&
			       st.st_mtim.tv_sec == x.stx_mtime.tv_sec &&
			       st.st_mtim.tv_nsec == x.stx_mtime.tv_nsec
		       ? 0
		       : 1;
}

static int statx_mask(const char *path, unsigned mask)
{
	struct statx x;

	return statx_of(path, mask, &x) ? -1 : (int)(x.stx_mask & mask);
}

static int link_length(void)
{
	char target[PATH_MAX];
	struct stat st;
	ssize_t n = readlink(A_LINK, target, sizeof(target));

	return lstat(A_LINK, &st) || n < 0 ? -1 : st.st_size == n ? 0 : 1;
}

static void attributes(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), path = must_open(A_FILE, O_PATH);
	struct stat st;
	struct statx x;
	struct statvfs v = { 0 }, w = { 0 };
	char one[1];

	IS(0, has_mode(A_FILE, S_IFREG | 0444));
	IS(0, has_mode(A_DIR, S_IFDIR | 0555));
	IS(0, has_mode(A_LINK, S_IFLNK | 0777));
	IS(0, has_mode(".", S_IFDIR | 0555));
	EACH(fine(lstat(p, &st)), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(fine(statx(AT_FDCWD, p, 0, STATX_ALL, &x)), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	IS(0, stats_agree(A_FILE));
	IS(0, stats_agree(A_DIR));
	IS(0, stats_agree(A_LINK));
	IS(tree.size, fstat(fd, &st) ? -1 : st.st_size);
	IS(tree.size, fstat(path, &st) ? -1 : st.st_size);
	IS(tree.size, fstatat(fd, "", &st, AT_EMPTY_PATH) ? -1 : st.st_size);
	IS(1, fstat(fd, &st) ? -1 : (int64_t)st.st_nlink);
	IS(STATX_BASIC_STATS, statx_mask(A_FILE, STATX_BASIC_STATS));
	IS(STATX_SIZE, statx_mask(A_FILE, STATX_SIZE));
	OURS(0, statx_mask(A_FILE, STATX_BTIME)); /* nobody knows when it was born */
	IS(-EINVAL, statx(AT_FDCWD, A_FILE, 1 << 20, STATX_SIZE, &x));
	IS(-EINVAL, statx(AT_FDCWD, A_FILE, AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, 0, &x));
	IS(-EINVAL, statx(AT_FDCWD, A_FILE, 0, STATX__RESERVED, &x));
	IS(0, statx(AT_FDCWD, A_FILE, AT_STATX_FORCE_SYNC, STATX_SIZE, &x));
	IS(0, statx(AT_FDCWD, A_FILE, AT_STATX_DONT_SYNC, STATX_SIZE, &x));
	IS(-ENOENT, fstatat(fd, "", &st, 0));
	IS(0, statvfs(A_FILE, &v));
	IS(0, fstatvfs(fd, &w));
	IS(ST_RDONLY, v.f_flag & ST_RDONLY);
	IS(0, memcmp(&v, &w, sizeof(v)));
	IS(NAME_MAX, v.f_namemax);
	OURS(0, v.f_bfree + v.f_bavail + v.f_ffree); /* nothing can be added, so nothing is free */
	IS(0, link_length());
	EACH(fine(readlink(p, one, 1)), EINVAL, EINVAL, 0, ENOENT, ENOTDIR, ENOTDIR, EINVAL)
	IS(1, readlink(A_LINK, one, 1));
	IS(-EINVAL, readlink(A_LINK, one, 0));
	IS(-EFAULT, readlink(A_LINK, tree.wild, 100));
	(void)close(path);
	(void)close(fd);
}

static void xattrs(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), path = must_open(A_FILE, O_PATH);
	char value[512], names_of[4096], longest[XATTR_NAME_MAX + 2] = "user.";
	ssize_t n = getxattr(A_FILE, AN_ATTR, NULL, 0), all = listxattr(A_FILE, NULL, 0);

	IS(true, n > 0 && all > (ssize_t)sizeof(AN_ATTR));
	IS(n, getxattr(A_FILE, AN_ATTR, value, (size_t)n));
	IS(n, getxattr(A_FILE, AN_ATTR, value, sizeof(value)));
	IS(n, lgetxattr(A_FILE, AN_ATTR, value, sizeof(value)));
	IS(n, fgetxattr(fd, AN_ATTR, value, sizeof(value)));
	IS(n, fgetxattr(fd, AN_ATTR, NULL, 0));
	IS(-ERANGE, getxattr(A_FILE, AN_ATTR, value, (size_t)n - 1));
	IS(-ERANGE, fgetxattr(fd, AN_ATTR, value, 1));
	IS(-EBADF, fgetxattr(path, AN_ATTR, value, sizeof(value)));
	IS(all, listxattr(A_FILE, names_of, (size_t)all));
	IS(all, listxattr(A_FILE, names_of, sizeof(names_of)));
	IS(all, flistxattr(fd, names_of, sizeof(names_of)));
	IS(-ERANGE, listxattr(A_FILE, names_of, (size_t)all - 1));
	IS(-ERANGE, listxattr(A_FILE, names_of, 1));
	IS(-EBADF, flistxattr(path, names_of, sizeof(names_of)));
	IS(0, llistxattr(A_LINK, NULL, 0));
	EACH(fine(getxattr(p, "user.no", value, sizeof(value))), ENODATA, ENODATA, ENODATA, ENOENT,
	     ENOTDIR, ENOTDIR, ENODATA)
	EACH(fine(lgetxattr(p, "user.no", value, 0)), ENODATA, ENODATA, ENODATA, ENOENT, ENOTDIR,
	     ENOTDIR, ENODATA)
	IS(-ERANGE, getxattr(A_FILE, "", value, sizeof(value)));
	IS(-EOPNOTSUPP, getxattr(A_FILE, "nowhere.x", value, sizeof(value)));
	OURS(-EOPNOTSUPP, getxattr(A_FILE, "system.posix_acl_access", value, sizeof(value)));
	OURS(-EOPNOTSUPP, getxattr(A_FILE, "security.selinux", value, sizeof(value)));
	OURS(-ENODATA, getxattr(A_FILE, "user.", value, sizeof(value)));
	OURS(-ENODATA, getxattr(A_FILE, "user.ckptfs.", value, sizeof(value)));
	memset(longest + 5, 'x', sizeof(longest) - 6);
	IS(-ERANGE, getxattr(A_FILE, longest, value, sizeof(value)));
	longest[XATTR_NAME_MAX] = 0;
	IS(-ENODATA, getxattr(A_FILE, longest, value, sizeof(value)));
	(void)close(path);
	(void)close(fd);
}

/* ---- directories ---- */

static ssize_t getdents(int fd, size_t room)
{
	return syscall(SYS_getdents64, fd, tree.room, room);
}

/* A hash of all names of a directory, read through a buffer into which one entry just fits. */
static int64_t names_through(const char *path, size_t room)
{
	int fd = must_open(path, O_RDONLY | O_DIRECTORY);
	uint64_t sum = 0;
	ssize_t n;

	while ((n = getdents(fd, room)) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(tree.room + at);

			for (const char *c = d->d_name; *c; c++)
				sum = sum * 31 + (unsigned char)*c;
			sum = sum * 31 + d->d_type;
			at += d->d_reclen;
		}
	(void)close(fd);
	return n < 0 ? -1 : (int64_t)(sum >> 1);
}

/* Every entry is what lstat() says. */
static int entries_are_true(const char *path)
{
	DIR *d = opendir(path);
	const struct dirent *e;
	struct stat st;
	int wrong = d ? 0 : -1;

	while (d && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".."))
			continue; /* that of ROOT is on another file system */
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			wrong = -1;
		else if (st.st_ino != e->d_ino ||
			 (mode_t)DTTOIF(e->d_type) != (st.st_mode & S_IFMT))
			wrong++;
	}
	if (d)
		(void)closedir(d);
	return wrong;
}

/* Goes back to every position, from the last to the first, and must find the same name there. */
static int seeking_finds(const char *path)
{
	enum { MOST = 64 };
	DIR *d = opendir(path);
	char name[MOST][NAME_MAX + 1];
	long at[MOST];
	int n = 0, wrong = 0;
	const struct dirent *e;

	for (; d && n < MOST; n++) {
		at[n] = telldir(d);
		e = readdir(d);
		if (!e)
			break;
		memcpy(name[n], e->d_name, strlen(e->d_name) + 1);
	}
	for (int i = n - 1; i >= 0; i--) {
		seekdir(d, at[i]);
		e = readdir(d);
		wrong += !e || strcmp(e->d_name, name[i]) != 0;
	}
	if (!d)
		return -1;
	rewinddir(d);
	e = readdir(d);
	wrong += !e || strcmp(e->d_name, name[0]) != 0;
	(void)closedir(d);
	return wrong;
}

static void directories(void)
{
	static const char *const dirs[] = { ".", "tensors", "ranks", A_DIR, "hf" };
	const int fd = must_open("tensors", O_RDONLY), file = must_open(A_FILE, O_RDONLY);

	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++) {
		const char *p = dirs[i];
		const int64_t names_there = names_through(p, 4096);

		IS(names_there, names_through(p, 280));
		IS(names_there, names_through(p, 64));
		IS(names_there, names_through(p, (size_t)tree.size));
		IS(0, entries_are_true(p));
		IS(0, seeking_finds(p));
	}
	IS(-EINVAL, getdents(fd, 0));
	IS(-EINVAL, getdents(fd, 10));
	IS(true, getdents(fd, 24) > 0); /* "." alone */
	IS(0, lseek(fd, 0, SEEK_SET));
	IS(true, getdents(fd, 4096) > 0);
	IS(0, getdents(fd, 4096));
	OURS((int64_t)1 << 40, lseek(fd, (off_t)1 << 40, SEEK_SET));
	OURS(0, getdents(fd, 4096));
	OURS(INT64_MAX, lseek(fd, INT64_MAX, SEEK_SET));
	OURS(0, getdents(fd, 4096));
	IS(-EINVAL, lseek(fd, -1, SEEK_SET));
	IS(-ENOTDIR, getdents(file, 4096));
	(void)close(file);
	(void)close(fd);
}

/* ---- file handles, as NFS and backup programs use them ---- */

struct room {
	struct file_handle h;
	unsigned char more[MAX_HANDLE_SZ];
};

static int handle_of(const char *path, unsigned room, struct room *ret)
{
	int id;

	memset(ret, 0, sizeof(*ret));
	ret->h.handle_bytes = room;
	return name_to_handle_at(AT_FDCWD, path, &ret->h, &id, 0);
}

static int reopens(struct room *r, int how, const char *same_as)
{
	int here = must_open(".", O_RDONLY), fd = open_by_handle_at(here, &r->h, how);
	struct stat a, b;
	int rc = fd < 0 ? -errno : 0;

	(void)close(here);
	if (!rc && (fstat(fd, &a) || stat(same_as, &b) || a.st_ino != b.st_ino))
		rc = 1;
	if (fd >= 0)
		(void)close(fd);
	errno = rc < 0 ? -rc : 0;
	return rc < 0 ? -1 : rc;
}

static void handles(void)
{
	struct room r, garbled;
	uint64_t seed = 1;

	IS(-EOVERFLOW, handle_of(A_FILE, 0, &r));
	IS(true, r.h.handle_bytes > 0);
	IS(-EINVAL, handle_of(A_FILE, MAX_HANDLE_SZ + 1, &r));
	EACH(handle_of(p, MAX_HANDLE_SZ, &r), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	IS(0, handle_of(A_FILE, MAX_HANDLE_SZ, &r));
	if (!tree.root) {
		IS(-EPERM, reopens(&r, O_RDONLY, A_FILE));
		return;
	}
	IS(0, reopens(&r, O_RDONLY, A_FILE));
	IS(0, reopens(&r, O_PATH, A_FILE));
	IS(-EROFS, reopens(&r, O_RDWR, A_FILE));
	IS(-ENOTDIR, reopens(&r, O_DIRECTORY, A_FILE));
	for (int i = 0; i < 200; i++) { /* numbers that were never given to anybody */
		garbled = r;
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		memcpy(garbled.h.f_handle, &seed, sizeof(seed));
		OURS(-ESTALE, reopens(&garbled, O_RDONLY, A_FILE));
	}
	IS(0, handle_of(A_DIR, MAX_HANDLE_SZ, &r));
	IS(0, reopens(&r, O_RDONLY, A_DIR));
	IS(0, handle_of(".", MAX_HANDLE_SZ, &r));
	IS(0, reopens(&r, O_RDONLY, "."));
}

void check_names(void)
{
	flags();
	resolving();
	names();
	rights();
	attributes();
	xattrs();
	directories();
	handles();
}

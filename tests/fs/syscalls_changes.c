/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that would change something. */
#include "syscalls.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h> /* before linux/fs.h, whose macros have its names */
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include <linux/fs.h>

static void paths(void)
{
	const struct timespec when[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_OMIT } };
	const struct timespec omit[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } };
	uid_t me = getuid();

	/*                             file     dir     link   nothing  below   slash    root */
	EACH(opens(p, O_WRONLY), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(opens(p, O_RDWR), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(opens(p, O_RDONLY | O_TRUNC), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(opens(p, O_WRONLY | O_APPEND), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(opens(p, O_RDONLY | O_APPEND), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	EACH(opens(p, O_RDONLY | O_CREAT), 0, EISDIR, 0, EROFS, ENOTDIR, EISDIR, EISDIR)
	EACH(opens(p, O_RDWR | O_CREAT), EROFS, EISDIR, EROFS, EROFS, ENOTDIR, EISDIR, EISDIR)
	EACH(opens(p, O_WRONLY | O_CREAT | O_EXCL), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EISDIR,
	     EEXIST)
	EACH(opens(p, O_RDWR | O_TMPFILE), ENOTDIR, EROFS, ENOTDIR, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(creat(p, 0644), EROFS, EISDIR, EROFS, EROFS, ENOTDIR, EISDIR, EISDIR)
	EACH(mkdir(p, 0755), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(rmdir(p), EROFS, EROFS, EROFS, EROFS, ENOTDIR, EROFS, EINVAL)
	EACH(unlink(p), EROFS, EROFS, EROFS, EROFS, ENOTDIR, EROFS, EISDIR)
	EACH(symlink("t", p), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(mknod(p, S_IFREG | 0644, 0), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(mknod(p, S_IFIFO | 0644, 0), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(mknod(p, S_IFCHR | 0644, 259), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(chmod(p, 0777), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(chown(p, me, (gid_t)-1), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(lchown(p, me, (gid_t)-1), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(chown(p, (uid_t)-1, (gid_t)-1), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(utimensat(AT_FDCWD, p, NULL, 0), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(utimensat(AT_FDCWD, p, when, AT_SYMLINK_NOFOLLOW), EROFS, EROFS, EROFS, ENOENT,
	     ENOTDIR, ENOTDIR, EROFS)
	EACH(utimensat(AT_FDCWD, p, omit, 0), 0, 0, 0, 0, 0, 0, 0)
	EACH(utime(p, NULL), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(truncate(p, 0), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(truncate(p, tree.size), EROFS, EISDIR, EROFS, ENOENT, ENOTDIR, ENOTDIR, EISDIR)
	EACH(truncate(p, -1), EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL)
	EACH(setxattr(p, "user.x", "1", 1, 0), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(lsetxattr(p, "user.x", "1", 1, XATTR_CREATE), EROFS, EROFS, EROFS, ENOENT, ENOTDIR,
	     ENOTDIR, EROFS)
	EACH(removexattr(p, AN_ATTR), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(lremovexattr(p, AN_ATTR), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(setxattr(p, "trusted.x", "1", 1, 0), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR,
	     EROFS)
}

/* Calls with two paths, of which one or both are in ROOT. */
static void two_paths(void)
{
	const int out = must_open(tree.elsewhere, O_DIRECTORY | O_RDONLY);

	EACH(rename(p, "tensors/new"), EROFS, EROFS, EROFS, EROFS, ENOTDIR, EROFS, EBUSY)
	EACH(rename(A_FILE, p), EROFS, EROFS, EROFS, EROFS, ENOTDIR, EROFS, EBUSY)
	EACH(renameat(AT_FDCWD, p, out, "new"), EXDEV, EXDEV, EXDEV, EXDEV, ENOTDIR, EXDEV, EXDEV)
	EACH(renameat(out, "t", AT_FDCWD, p), EXDEV, EXDEV, EXDEV, EXDEV, ENOTDIR, EXDEV, EXDEV)
	EACH(renameat2(AT_FDCWD, A_FILE, AT_FDCWD, p, RENAME_NOREPLACE), EROFS, EROFS, EROFS, EROFS,
	     ENOTDIR, EROFS, EEXIST)
	EACH(renameat2(AT_FDCWD, A_FILE, AT_FDCWD, p, RENAME_EXCHANGE), EROFS, EROFS, EROFS, EROFS,
	     ENOTDIR, EROFS, EBUSY)
	IS(-EROFS, renameat2(AT_FDCWD, A_FILE, AT_FDCWD, "x", RENAME_WHITEOUT));
	IS(-EINVAL, renameat2(AT_FDCWD, A_FILE, AT_FDCWD, "x", 1u << 3));
	IS(-EINVAL, renameat2(AT_FDCWD, A_FILE, AT_FDCWD, "x", RENAME_NOREPLACE | RENAME_EXCHANGE));
	IS(-EINVAL, renameat2(AT_FDCWD, A_FILE, AT_FDCWD, "x", RENAME_WHITEOUT | RENAME_EXCHANGE));
	EACH(link(p, "tensors/new"), EROFS, EROFS, EROFS, ENOENT, ENOTDIR, ENOTDIR, EROFS)
	EACH(link(A_FILE, p), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST, EEXIST)
	EACH(linkat(AT_FDCWD, p, out, "new", 0), EXDEV, EXDEV, EXDEV, ENOENT, ENOTDIR, ENOTDIR,
	     EXDEV)
	EACH(linkat(out, "t", AT_FDCWD, p, 0), EEXIST, EEXIST, EEXIST, EROFS, ENOTDIR, EEXIST,
	     EEXIST)
	IS(-EROFS, linkat(AT_FDCWD, A_LINK, AT_FDCWD, "x", AT_SYMLINK_FOLLOW));
	(void)close(out);
}

/* Through a descriptor that is open for reading. */
static void descriptors(void)
{
	const struct timespec now[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_NOW } };
	const int fd = must_open(A_FILE, O_RDONLY), dir = must_open(A_DIR, O_RDONLY);
	char *source = NULL;
	int plain, p[2] = { -1, -1 };
	loff_t zero = 0;

	if (asprintf(&source, "%s/t", tree.elsewhere) < 0 || pipe(p))
		exit(2);
	plain = must_open(source, O_RDONLY);
	IS(-EBADF, write(fd, "x", 1));
	IS(-EBADF, write(fd, "x", 0));
	IS(-EBADF, pwrite(fd, "x", 1, 0));
	IS(-EBADF, pwritev2(fd, &(struct iovec){ tree.room, 1 }, 1, 0, RWF_APPEND));
	IS(-EBADF, write(dir, "x", 1));
	IS(-EINVAL, ftruncate(fd, 0));
	IS(-EINVAL, ftruncate(fd, tree.size));
	IS(-EINVAL, ftruncate(dir, 0));
	IS(-EBADF, fallocate(fd, 0, 0, 1));
	IS(-EBADF, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1));
	IS(-EBADF, fallocate(dir, 0, 0, 1));
	IS(EBADF, posix_fallocate(fd, 0, 1));
	IS(-EROFS, fchmod(fd, 0777));
	IS(-EROFS, fchmod(dir, 0777));
	IS(-EROFS, fchown(fd, getuid(), getgid()));
	IS(-EROFS, futimens(fd, now));
	IS(-EROFS, futimens(fd, NULL));
	IS(-EROFS, fsetxattr(fd, "user.x", "1", 1, 0));
	IS(-EROFS, fsetxattr(fd, AN_ATTR, "1", 1, XATTR_REPLACE));
	IS(-EINVAL, fsetxattr(fd, AN_ATTR, "1", 1, 99));
	IS(-EROFS, fremovexattr(dir, "user.x"));
	IS(-EBADF, copy_file_range(plain, &zero, fd, &zero, 4096, 0));
	IS(-EBADF, copy_file_range(fd, &zero, fd, &zero, 4096, 0));
	IS(-EBADF, sendfile(fd, plain, NULL, 1));
	IS(1, write(p[1], "x", 1));
	IS(-EBADF, splice(p[0], NULL, fd, NULL, 1, 0));
	IS(-EXDEV, ioctl(fd, FICLONE, plain));
	IS(-EROFS, mkdirat(dir, "x", 0755));
	IS(-EROFS, unlinkat(dir, "x", 0));
	IS(-EROFS, symlinkat("x", dir, "y"));
	IS(-ENOTDIR, mkdirat(fd, "x", 0755));
	(void)close(p[0]);
	(void)close(p[1]);
	(void)close(plain);
	(void)close(dir);
	(void)close(fd);
	free(source);
}

/* A writable file system, mounted on a directory of this one. */
static void mounted_over(void)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return; /* a container */
	IS(0, mount("over", A_DIR, "tmpfs", 0, "size=64k"));
	IS(0, mkdir(A_DIR "/x", 0755));
	IS(-EXDEV, rename(A_FILE, A_DIR "/t"));
	IS(-EXDEV, rename(A_DIR "/x", "tensors/x"));
	IS(-EXDEV, rename(A_DIR "/x", A_FILE));
	IS(-EXDEV, link(A_FILE, A_DIR "/t"));
	IS(-EROFS, rename(A_DIR, "tensors/x"));
	IS(-EROFS, rmdir(A_DIR));
	IS(0, symlink("../" A_FILE, A_DIR "/link"));
	IS(-EROFS, opens(A_DIR "/link", O_RDWR));
	IS(0, opens(A_DIR "/link", O_RDONLY));
	IS(0, umount(A_DIR));
	IS(-ENOENT, opens(A_DIR "/link", O_RDONLY));
	IS(0, mount(A_FILE, A_FILE, NULL, MS_BIND, NULL));
	IS(-EROFS, opens(A_FILE, O_RDWR));
	IS(0, umount(A_FILE));
}

void check_changes(void)
{
	paths();
	two_paths();
	descriptors();
	if (tree.root)
		mounted_over();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, waiting, watching, ioctl, advice. */
#include "syscalls.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

/* ---- locks and leases ---- */

static int lock(int fd, int cmd, short type)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5 };

	return fcntl(fd, cmd, &l);
}

/* The kind of lock that F_GETLK finds in the way. */
static int in_the_way(int fd, int cmd, short type)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_len = 100 };

	return fcntl(fd, cmd, &l) ? -1 : l.l_type;
}

static void locks(void)
{
	const int a = must_open(A_FILE, O_RDONLY), b = must_open(A_FILE, O_RDONLY);
	const int path = must_open(A_FILE, O_PATH), dir = must_open(A_DIR, O_RDONLY);

	IS(0, flock(a, LOCK_SH));
	IS(0, flock(b, LOCK_SH | LOCK_NB));
	IS(-EWOULDBLOCK, flock(b, LOCK_EX | LOCK_NB));
	IS(0, flock(a, LOCK_UN));
	IS(0, flock(b, LOCK_EX | LOCK_NB));
	IS(-EWOULDBLOCK, flock(a, LOCK_SH | LOCK_NB));
	IS(0, flock(b, LOCK_UN));
	IS(-EINVAL, flock(a, 0));
	IS(-EBADF, flock(path, LOCK_SH));
	IS(0, flock(dir, LOCK_EX | LOCK_NB));
	IS(0, lock(a, F_SETLK, F_RDLCK));
	IS(-EBADF, lock(a, F_SETLK, F_WRLCK));	      /* takes a descriptor to write */
	IS(F_UNLCK, in_the_way(b, F_GETLK, F_WRLCK)); /* one's own */
	IS(0, lock(a, F_SETLK, F_UNLCK));
	IS(0, lock(a, F_OFD_SETLK, F_RDLCK));
	IS(0, lock(b, F_OFD_SETLK, F_RDLCK));
	IS(F_RDLCK, in_the_way(b, F_OFD_GETLK, F_WRLCK));
	IS(F_UNLCK, in_the_way(b, F_OFD_GETLK, F_RDLCK));
	IS(-EBADF, lock(b, F_OFD_SETLK, F_WRLCK));
	IS(0, lock(a, F_OFD_SETLK, F_UNLCK));
	IS(0, lock(b, F_OFD_SETLK, F_UNLCK));
	IS(-EINVAL, lock(a, F_SETLK, 99));
	IS(F_UNLCK, fcntl(a, F_GETLEASE));
	IS(tree.root ? 0 : -EACCES, fcntl(a, F_SETLEASE, F_RDLCK)); /* the owner's, or root's */
	IS(tree.root ? F_RDLCK : F_UNLCK, fcntl(a, F_GETLEASE));
	IS(tree.root ? 0 : -EACCES, fcntl(a, F_SETLEASE, F_UNLCK));
	(void)close(dir);
	(void)close(path);
	(void)close(b);
	(void)close(a);
}

/* ---- waiting, watching, asking ---- */

static void waiting(void)
{
	const int fd = must_open(A_FILE, O_RDONLY | O_NONBLOCK), ep = epoll_create1(0);
	struct pollfd one = { .fd = fd, .events = POLLIN | POLLOUT | POLLPRI };
	struct epoll_event ev = { .events = EPOLLIN };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	IS(1, poll(&one, 1, 0));
	IS(POLLIN | POLLOUT, one.revents);
	IS(1, select(fd + 1, &set, NULL, NULL, &(struct timeval){ 0 }));
	/* EPERM elsewhere; FUSE's files can be polled, and are always ready. */
	OURS(0, epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
	OURS(1, epoll_wait(ep, &ev, 1, 0));
	(void)close(ep);
	(void)close(fd);
}

/* All events so far, as one mask. */
static int events_of(int in)
{
	char buf[4096] __attribute__((aligned(8)));
	ssize_t n = read(in, buf, sizeof(buf));
	uint32_t mask = 0;

	for (ssize_t at = 0; at < n;) {
		const struct inotify_event *e = (const void *)(buf + at);

		mask |= e->mask;
		at += (ssize_t)(sizeof(*e) + e->len);
	}
	return n < 0 ? -1 : (int)mask;
}

static void watching(void)
{
	const int in = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	int fd, fan;

	EACH(fine(inotify_add_watch(in, p, IN_ALL_EVENTS)), 0, 0, 0, ENOENT, ENOTDIR, ENOTDIR, 0)
	IS(-ENOTDIR, inotify_add_watch(in, A_FILE, IN_ALL_EVENTS | IN_ONLYDIR));
	IS(-EAGAIN, events_of(in));
	fd = must_open(A_FILE, O_RDONLY);
	IS(IN_OPEN, events_of(in));
	IS(10, read(fd, tree.room, 10));
	IS(IN_ACCESS, events_of(in));
	(void)close(fd);
	IS(IN_CLOSE_NOWRITE, events_of(in));
	IS(-EROFS, unlink(A_FILE));
	IS(-EROFS, chmod(A_FILE, 0));
	IS(-EAGAIN, events_of(in)); /* nothing has happened */
	(void)close(in);
	if (!tree.root)
		return;
	fan = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
	IS(0, fine(fan));
	IS(0, fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN | FAN_CLOSE, AT_FDCWD, A_FILE));
	IS(-ENOENT, fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "tensors/no"));
	(void)close(fan);
}

static void controls(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), dir = must_open(A_DIR, O_RDONLY);
	const int path = must_open(A_FILE, O_PATH);
	struct fiemap map = { .fm_length = ~0ull };
	struct termios term;
	int n = 0, block = 0;
	unsigned fl = 0;

	IS(0, ioctl(fd, FIONREAD, &n));
	IS(tree.size, n);
	IS(100, lseek(fd, 100, SEEK_SET));
	IS(0, ioctl(fd, FIONREAD, &n));
	IS(tree.size - 100, n);
	IS(0, ioctl(fd, FIGETBSZ, &n));
	IS(-ENOTTY, ioctl(fd, TCGETS, &term));
	IS(-ENOTTY, ioctl(fd, BLKGETSIZE64, &map));
	IS(-ENOTTY, ioctl(fd, 0x5678, 0));
	IS(-ENOTTY, ioctl(dir, 0x5678, 0));
	IS(-EBADF, ioctl(path, FIONREAD, &n));
	OURS(-ENOTTY, ioctl(fd, FS_IOC_GETFLAGS, &fl));
	OURS(-ENOTTY, ioctl(dir, FS_IOC_GETFLAGS, &fl));
	OURS(-EOPNOTSUPP, ioctl(fd, FS_IOC_FIEMAP, &map));
	OURS(tree.root ? 0 : -EPERM, ioctl(fd, FIBMAP, &block)); /* no block device, block 0 */
	IS(0, fcntl(fd, F_SETFL, O_NONBLOCK));
	IS(O_NONBLOCK, fcntl(fd, F_GETFL) & (O_NONBLOCK | O_ACCMODE | O_DIRECT));
	IS(0, fcntl(fd, F_SETFL, O_APPEND));
	IS(-EBADF, write(fd, "x", 1));
	(void)close(path);
	(void)close(dir);
	(void)close(fd);
}

/* Nothing is ever dirty, and advice has no effect on results. */
static void advice(void)
{
	static const int all[] = { POSIX_FADV_NORMAL,  POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM,
				   POSIX_FADV_NOREUSE, POSIX_FADV_WILLNEED,   POSIX_FADV_DONTNEED };
	const int fd = must_open(A_FILE, O_RDONLY), dir = must_open(A_DIR, O_RDONLY);
	const int path = must_open(A_FILE, O_PATH);

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		IS(0, posix_fadvise(fd, 0, 0, all[i]));
		IS(0, posix_fadvise(fd, tree.size + 5, tree.size, all[i]));
		IS(100, right(pread(fd, tree.room, 100, 5), 5));
	}
	IS(EINVAL, posix_fadvise(fd, 0, 0, 99));
	IS(EINVAL, posix_fadvise(fd, 0, -1, POSIX_FADV_NORMAL));
	IS(EBADF, posix_fadvise(path, 0, 0, POSIX_FADV_NORMAL));
	IS(0, readahead(fd, 0, (size_t)tree.size));
	IS(0, readahead(fd, tree.size * 2, 100));
	IS(-EINVAL, readahead(dir, 0, 100));
	IS(-EBADF, readahead(path, 0, 100));
	IS(tree.size, right(pread(fd, tree.room, (size_t)tree.size, 0), 0));
	IS(0, fsync(fd));
	IS(0, fdatasync(fd));
	IS(0, fsync(dir));
	IS(0, fdatasync(dir));
	IS(0, syncfs(fd));
	IS(0, sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	IS(-EINVAL, sync_file_range(fd, 0, -1, 0));
	IS(-EINVAL, sync_file_range(fd, 0, 0, 99));
	IS(-EBADF, fsync(path));
	(void)close(path);
	(void)close(dir);
	(void)close(fd);
}

/* A file of ROOT stays the same for a process that has it open, wherever that process goes. */
static void elsewhere(void)
{
	const int fd = must_open(A_FILE, O_RDONLY), root = must_open(".", O_PATH);

	IS(0, chdir("/"));
	IS(100, right(pread(fd, tree.room, 100, 1000), 1000));
	IS(0, fchdir(root));
	IS(0, faccessat(root, A_FILE, R_OK, 0));
	(void)close(root);
	(void)close(fd);
}

void check_control(void)
{
	locks();
	waiting();
	watching();
	controls();
	advice();
	elsewhere();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io - complete reads and writes, and safe access to untrusted directories.
 *
 * Threads: no shared state.
 */
#ifndef BASE_IO_H
#define BASE_IO_H

#include "base/cleanup.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Not in the headers of Debian 11. */
#ifndef SYS_openat2
#define SYS_openat2 437 /* Linux 5.6 */
#endif
#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9 */
#endif
enum { IO_FUSE = 0x65735546 }; /* type of a FUSE file system, in statfs(2) */

struct buf;
struct ckpt_err;

/* Reads exactly len bytes at off. 0, or -errno; -ENODATA if the file ends earlier. */
int io_pread(int fd, void *buf, size_t len, uint64_t off);
/* Reads as many bytes as there are, up to len: the count, or -errno. */
int64_t io_pread_some(int fd, void *buf, size_t len, uint64_t off);
/* Writes exactly len bytes at off: 0 or -errno. */
int io_pwrite(int fd, const void *buf, size_t len, uint64_t off);
/* 0 or -errno */
int io_write(int fd, const void *buf, size_t len);

/* Appends the whole file to *b, up to b's ceiling. For a file that the user named: links are
 * followed and any readable file is accepted. */
int io_read_file(const char *path, struct buf *b, struct ckpt_err *e);

/*
 * Opens the regular file `path` below dirfd for reading, without leaving the directory: no absolute
 * path, no "..", no symbolic link that points outside. *st describes the opened file. Returns the
 * descriptor (caller closes) or -errno with a sentence that names the path. EREMOTE: the file is a
 * pointer that Git LFS left in place of a file it has not fetched.
 */
int io_open_beneath(int dirfd, const char *path, struct stat *st, struct ckpt_err *e);
/* The same, but follows links wherever they lead: for a file that the user has named. */
int io_open_named(int dirfd, const char *name, struct stat *st, struct ckpt_err *e);
/* The same for a directory. */
int io_open_dir_beneath(int dirfd, const char *path, struct ckpt_err *e);
/* Is an open file such a pointer? 1, 0, or -errno: it cannot be read. */
int io_is_pointer(int fd, const struct stat *st);
#define IO_IS_POINTER "a Git LFS pointer; the file itself has not been fetched: run 'git lfs pull'"
/* Checks that path is a relative path without "..", "." or empty elements and without control
 * bytes. */
int io_check_relative(const char *path, size_t len, struct ckpt_err *e);

/*
 * Opens a directory for listing, with these flags in addition to the usual ones; NULL with errno.
 *
 *	DIR *d CLEANUP(io_close_dir) = io_open_dir(dirfd, "sub", O_NOFOLLOW);
 *
 *	while ((rc = io_next_entry(d, &entry, e)) > 0)
 */
DIR *io_open_dir(int dirfd, const char *name, int flags);
CLEANUP_POINTER(io_close_dir, DIR, closedir)
/* The next entry except "." and "..": 1 and *ret; 0 at the end; or a negative errno with a
 * sentence. */
int io_next_entry(DIR *d, const struct dirent **ret, struct ckpt_err *e);

/* Closes this descriptor and all larger ones, for a process with one thread. 0 or -errno. */
int io_close_from(int first);

/*
 * Removes the entry with that name in dirfd, and with a directory everything in it; links are not
 * followed. 0, also if it does not exist, or a negative errno with a sentence.
 */
int io_remove(int dirfd, const char *name, struct ckpt_err *e);
/* The same, but a directory inside it is removed only if `may` says so; any other is ENOTEMPTY. */
typedef bool io_may_remove_fn(int dirfd, const char *name);
int io_remove_if(int dirfd, const char *name, io_may_remove_fn *may, struct ckpt_err *e);

/*
 * Locks an open file for this process, and does not wait: 0, -EWOULDBLOCK or another -errno. 1: its
 * file system has no such locks, as Lustre and NFS do not if they are mounted without them.
 */
int io_lock(int fd);

/* mkdir -p; new directories have mode 0700. 0 or -errno. */
int io_mkdirs(const char *path);

/*
 * Does the file system of fd keep inode numbers? FUSE file systems may not: sshfs and others
 * renumber a file once the kernel has forgotten it, and at each mount. The ctime must then identify
 * the file.
 */
bool io_keeps_inodes(int fd);
/* Is fd on a stacked file system (overlayfs), whose files are cached as pages of the lower file? */
bool io_is_stacked(int fd);
/* Are these bytes, at least one, in the page cache? -errno: the kernel does not say, because it is
 * older than Linux 6.5 (ENOSYS), or because the file belongs to another user. */
int io_is_cached(int fd, uint64_t off, uint64_t len);
/* Is the file on remote storage, or on a disk that other machines use, too? Throughput may then
 * depend on the number of requests in flight. */
bool io_is_remote(int fd);

static inline uint64_t io_mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

static inline uint64_t io_ctime_ns(const struct stat *st)
{
	return (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec;
}

#endif

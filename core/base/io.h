/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io - whole reads and writes, and what is in an untrusted directory.
 *
 * Threads: no shared state.
 */
#ifndef BASE_IO_H
#define BASE_IO_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct buf;
struct ckpt_err;

/* Read exactly len bytes at off. 0, or -errno; -ENODATA when the file ends before. */
int io_pread(int fd, void *buf, size_t len, uint64_t off);
/* As many bytes as there are, up to len: the count, or -errno. */
int64_t io_pread_some(int fd, void *buf, size_t len, uint64_t off);
/* Write exactly len bytes at off: 0 or -errno. */
int io_pwrite(int fd, const void *buf, size_t len, uint64_t off);
/* 0 or -errno */
int io_write(int fd, const void *buf, size_t len);

/* Append the whole file to *b, as far as b's ceiling allows; a file that somebody named, so links
 * are followed and anything that can be read will do. */
int io_read_file(const char *path, struct buf *b, struct ckpt_err *e);

/*
 * Open the regular file `path` below dirfd for reading, never leaving the directory: no absolute
 * path, no "..", no symbolic link that points out. *st is the opened file's. Returns the
 * descriptor (caller closes) or -errno with a sentence that names the path. EREMOTE: what is there
 * is the pointer that Git LFS leaves where it has not fetched a file.
 */
int io_open_beneath(int dirfd, const char *path, struct stat *st, struct ckpt_err *e);
#define IO_IS_POINTER "a Git LFS pointer, the file itself is not here: run git lfs pull"
/* The same for a directory. */
int io_open_dir_beneath(int dirfd, const char *path, struct ckpt_err *e);
/* Is this a relative path without "..", "." or empty elements and without control bytes? */
int io_check_relative(const char *path, size_t len, struct ckpt_err *e);

/*
 * Is there something of that name, with links followed? 1 and what it is, 0 where it is not (nor
 * what a link leads to), or a negative errno with a sentence: what cannot be seen is not absent.
 */
int io_look(int dirfd, const char *path, struct stat *ret, struct ckpt_err *e);
/*
 * A directory to be listed, opened with these flags beside the usual ones; NULL and errno.
 *
 *	DIR *d CLEANUP(io_close_dir) = io_open_dir(dirfd, "sub", O_NOFOLLOW);
 *
 *	while ((rc = io_next_entry(d, &entry, e)) > 0)
 */
DIR *io_open_dir(int dirfd, const char *name, int flags);
void io_close_dir(DIR **d);
/* The next entry, "." and ".." left out: 1 and it, 0 at the end, or a negative errno with a
 * sentence. */
int io_next_entry(DIR *d, const struct dirent **ret, struct ckpt_err *e);

/*
 * Remove what has that name in dirfd, a directory with all that is in it; no link is followed. 0,
 * also where there is nothing, or a negative errno with a sentence.
 */
int io_remove(int dirfd, const char *name, struct ckpt_err *e);

/* mkdir -p with mode 0700 for what is created. 0 or -errno. */
int io_mkdirs(const char *path);

/*
 * Do files where fd lies keep their inode numbers? Not where a program serves the file system
 * (FUSE): sshfs and others number a file anew once the kernel has forgotten it, and at each mount.
 * The time of the last change to anything of a file (ctime) is then what tells it from another one.
 */
bool io_keeps_inodes(int fd);
/* Does fd lie on a file system over others (overlayfs), whose files have their pages there? */
bool io_is_stacked(int fd);

static inline uint64_t io_mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

static inline uint64_t io_ctime_ns(const struct stat *st)
{
	return (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec;
}

#endif

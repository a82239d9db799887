/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mounts - the kernel's list of mounts (/proc/self/mountinfo), read without touching a mount: a
 * daemon that is not serving yet, or has stopped, would never answer.
 *
 * Threads: no shared state except the working directory.
 */
#ifndef FS_MOUNT_MOUNTS_H
#define FS_MOUNT_MOUNTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;
struct ckpt_err;

#define MOUNTS_TYPE "fuse.ckptfs"

struct mount_found {
	unsigned id;	       /* of the mount, as long as it exists */
	unsigned major, minor; /* its device, as in /sys/class/bdi */
	char type[64];	       /* ours: MOUNTS_TYPE */
	/* The name of its mount point, and the directory that this is in: the next mount, anywhere,
	 * may get the same numbers as soon as this one is gone. */
	uint64_t dir_dev, dir_ino;
	char name[NAME_MAX + 1]; /* "": not known */
};

/* Decodes the "\040" that the kernel writes for a space in its lists of mounts, in place. */
void mounts_decode(char *s);

/* Finds the topmost mount at this absolute path: 0, 1 if there is none, or a negative errno. */
int mounts_find(const char *path, struct mount_found *ret, struct ckpt_err *e);

/* Finds the only mount of ckptfs whose source is this address: 0, 1 if there is none, or a negative
 * errno, with a sentence that names them if there are several. */
int mounts_find_source(const char *address, struct mount_found *ret, struct ckpt_err *e);

/* Appends all mounts as strings, so that a later one can be recognised. */
int mounts_list(struct buf *ret, struct ckpt_err *e);
/* Like mounts_find, but only for the mount of this FUSE device. Older kernels do not tell which
 * that is: then one that was not in the list, although the numbers of one that has gone may come
 * again. */
int mounts_find_new(const char *path, int fuse_fd, const struct buf *list, struct mount_found *ret,
		    struct ckpt_err *e);

/*
 * Unmounts this mount and no other, wherever a directory above it has been moved and whatever its
 * path refers to now. It is kept if something else is mounted on it. One that `mount --move` has
 * moved since it was found counts as gone. `flags`: those of umount2(2).
 * Changes the working directory. Returns 0, also if the mount is already gone, or a negative errno
 * with a sentence. Users other than root need fusermount3, which unmounts by path: if another mount
 * takes this one's place at that moment, it is unmounted if it is a FUSE mount of the same user.
 */
int mounts_remove(const struct mount_found *m, int flags, struct ckpt_err *e);

/* Does this errno of a call on a path in a mount mean that its daemon is dead? A call that waited
 * for the daemon when it died gets ECONNABORTED, each later one ENOTCONN. */
bool mounts_is_dead(int errnum);

/* The absolute path of a directory without symbolic links, even if it is a mount whose daemon is
 * dead. The caller frees it; NULL with *e set. */
char *mounts_resolve(const char *path, struct ckpt_err *e);

/* The file in which the kernel keeps the read-ahead size of this mount: a number, in KiB. */
enum { MOUNTS_BDI_MAX = 64 };
void mounts_bdi(const struct mount_found *m, char ret[static MOUNTS_BDI_MAX]);
/* Makes the kernel read ahead this many KiB at a time from this mount, if permitted (root). */
void mounts_read_ahead(const struct mount_found *m, unsigned kib);

#endif

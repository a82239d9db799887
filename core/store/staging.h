/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging - a directory that becomes a checkpoint all at once, or not at all.
 *
 *	DEST.partial         the checkpoint while it grows; it changes places with DEST when all
 *	                     of it is on disk
 *	DEST.partial.lock    says that DEST.partial is ours, locked (flock) as long as somebody saves
 *	DEST.partial.old     what was at DEST, for the moment between two renames, where the file
 *	                     system cannot exchange two directories (NFS, some FUSE)
 *
 *	staging_begin("run/step-100", true, &s, &e);
 *	staging_create(s, "__0_0.distcp", &fd, &e);    // write, fsync, close
 *	staging_sync(s, &e);
 *	staging_put(s, ".metadata", p, n, &e);
 *	staging_commit(s, &e);
 *	staging_end(s);
 *
 * A kill or a power failure at any moment leaves at DEST what was there before, or the new
 * checkpoint whole; where two renames are needed and it comes between them, DEST is missing until
 * the next staging_begin puts it back. What it leaves beside DEST is removed by the next save to the
 * same place. A DEST.partial that has no lock file of ours is somebody else's and is never touched:
 * the lock file is on disk before DEST.partial is made, and goes when DEST.partial has gone from the
 * disk.
 *
 * DEST may be a link to a directory, which is then the place; links inside what is removed are
 * removed, not followed. Files and directories get the permissions that umask says.
 *
 * Threads: one at a time for each struct staging, but staging_create and staging_put from any;
 * ranks have one each.
 */
#ifndef STORE_STAGING_H
#define STORE_STAGING_H

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;
struct staging;

/*
 * Could DEST be written? It is not there, or an empty directory; or, unless `over` is NULL, a
 * directory that holds nothing but a checkpoint and files of these names (the last one NULL), which
 * the new checkpoint has as well: what else it holds would be lost, and the error names it. Nothing
 * is changed. EEXIST, ENOTEMPTY (something would be lost), ENOTDIR,
 * EBUSY (a mount point, or /), and what the system says.
 */
int staging_check(const char *dest, const char *const *over, struct ckpt_err *e);
/* No such names: a checkpoint alone is replaced. */
extern const char *const staging_alone[];

/* The coordinator: check, lock (EBUSY: another process is saving there), repair and remove what a
 * killed save has left, make DEST.partial. over is borrowed until staging_end. */
int staging_begin(const char *dest, const char *const *over, struct staging **ret,
		  struct ckpt_err *e);
/* The other ranks, once the coordinator has begun: its directory. */
int staging_join(const char *dest, struct staging **ret, struct ckpt_err *e);

/* A new file of that name (one element, EINVAL) for writing: *ret_fd is the caller's to sync and
 * close. EEXIST where this save has made it before. */
int staging_create(struct staging *s, const char *name, int *ret_fd, struct ckpt_err *e);
/* A whole file, under a temporary name until it is on disk. */
int staging_put(struct staging *s, const char *name, const void *data, size_t len,
		struct ckpt_err *e);
/* Have the names of all files so far on disk. Every rank, when it has written its files. */
int staging_sync(struct staging *s, struct ckpt_err *e);

/*
 * The coordinator, when all ranks have synced: DEST becomes the new checkpoint, the old one is
 * removed. Fails with staging_check's errors where DEST has changed since. Where only the removal
 * fails, the sentence says that DEST is the new checkpoint.
 */
int staging_commit(struct staging *s, struct ckpt_err *e);
/* Close. The coordinator removes what has not been committed, so all ranks must have stopped. NULL
 * is fine. */
void staging_end(struct staging *s);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live - reads the .ckptfs/stats.json of a live mount.
 *
 * Threads: no shared state.
 */
#ifndef FS_MOUNT_LIVE_H
#define FS_MOUNT_LIVE_H

#include <stdbool.h>

struct buf;
struct ckpt_err;
struct jdoc;

/* Appends the stats.json of the mount at `root` to *ret. ENOENT: not a mount of this program. */
int live_read(const char *root, struct buf *ret, struct ckpt_err *e);
/* The same, parsed: an object, which must be released in any case. */
int live_load(const char *root, struct jdoc *ret, struct ckpt_err *e);

/* The mount point of the file system that contains an absolute path without links; the caller frees
 * it. NULL: out of memory, or it cannot be determined. */
char *live_root(const char *path);
/* Is the path, or what exists of it, in a mount of this or another program that uses FUSE? */
bool live_is_fuse(const char *path);

#endif

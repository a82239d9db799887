/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live - asking a mount that is being served: what its .ckptfs/stats.json says.
 *
 * Threads: no shared state.
 */
#ifndef FS_MOUNT_LIVE_H
#define FS_MOUNT_LIVE_H

struct buf;
struct ckpt_err;
struct jdoc;

/* Appended to *ret, of the mount at `root`. ENOENT: it is no mount of this program. */
int live_read(const char *root, struct buf *ret, struct ckpt_err *e);
/* The same, parsed: an object. To be released in any case. */
int live_load(const char *root, struct jdoc *ret, struct ckpt_err *e);

/* Where the file system is mounted that an absolute path without links lies in; the caller frees
 * it. NULL: out of memory, or it cannot be told. */
char *live_root(const char *path);

#endif

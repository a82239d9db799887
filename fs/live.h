/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live - asking a mount that is being served: what its .ckptfs/stats.json says.
 *
 * Threads: no shared state.
 */
#ifndef FS_LIVE_H
#define FS_LIVE_H

#include <jansson.h>

struct buf;
struct ckpt_err;

/* Appended to *ret, of the mount at `root`. ENOENT: it is no mount of this program. */
int live_read(const char *root, struct buf *ret, struct ckpt_err *e);
/* The same, parsed; the caller's. */
int live_load(const char *root, json_t **ret, struct ckpt_err *e);

/* Where the file system is mounted that an absolute path without links lies in; the caller frees
 * it. NULL: out of memory, or it cannot be told. */
char *live_root(const char *path);

#endif

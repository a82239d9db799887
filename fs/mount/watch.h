/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch - the operations of ops, counted; and .ckptfs/stats.json, which tells the numbers.
 *
 * That file can be opened but is not listed, as a snapshot directory is in other file systems: who
 * copies, archives or compares the whole tree means the checkpoint, and two looks at a live
 * number never agree. Like files of /proc it says that it is empty, and is read to its end; its
 * text is made when it is opened and again whenever somebody reads at offset 0. The kernel keeps
 * none of it.
 *
 * Threads: as ops.
 */
#ifndef FS_MOUNT_WATCH_H
#define FS_MOUNT_WATCH_H

#include <fuse_lowlevel.h>

#define WATCH_DIR  ".ckptfs"
#define WATCH_FILE "stats.json"

/* For fuse_session_new, with a struct fs as userdata. */
void watch_ops(struct fuse_lowlevel_ops *ret);

#endif

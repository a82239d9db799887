/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch - the operations of ops with counting; .ckptfs/stats.json, which shows the numbers; and
 * .ckptfs/log, which shows the last messages.
 *
 * These files can be opened but are not listed, like snapshot directories in other file systems:
 * programs that copy, archive or compare the whole tree want the checkpoint, and live numbers
 * differ on every read. Like files of /proc they have size 0 and are read to their end; the text is
 * generated on opening and again whenever it is read at offset 0. The kernel does not cache it.
 *
 * Threads: see ops.h.
 */
#ifndef FS_MOUNT_WATCH_H
#define FS_MOUNT_WATCH_H

#include <fuse_lowlevel.h>

#define WATCH_DIR  ".ckptfs"
#define WATCH_FILE "stats.json"
#define WATCH_LOG  "log"

/* For fuse_session_new, with a struct fs as userdata. */
void watch_ops(struct fuse_lowlevel_ops *ret);

#endif

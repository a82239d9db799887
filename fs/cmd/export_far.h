/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_far - exports to an object store: all files appear there at once, at the end, and an
 * export that was interrupted starts over.
 *
 * Threads: one call; it starts and ends threads of its own.
 */
#ifndef FS_CMD_EXPORT_FAR_H
#define FS_CMD_EXPORT_FAR_H

#include "cmd/export.h"

/* job->dest is an address; its request is not used. opts: as for ckpt_open. */
int export_far(const struct export_job *job, const char *const opts[], struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export - copies a file or directory of the tree to a real directory, in parallel; an export that
 * was interrupted at any moment can be resumed.
 *
 *	DEST.partial         the copy while it grows; renamed to DEST when all of it is on disk
 *	DEST.partial.state   which units of it are on disk, see export_state.h; removed at the end
 *
 * Threads: one call; it starts and ends threads of its own.
 */
#ifndef FS_CMD_EXPORT_H
#define FS_CMD_EXPORT_H

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;

enum { EXPORT_MAX_JOBS = 256 };

struct export_job {
	struct ckpt *c;
	struct ckpt_stat what;
	const char *dest;
	/* Bytes that identify PATH and the options, but not the contents of files named there: the
	 * export checks those itself. */
	const char *request;
	size_t request_len;
	size_t threads; /* 1 to EXPORT_MAX_JOBS */
	bool quiet;	/* no bar, and no message on resuming */
	/* Reports that the export resumes, or starts over and why; may be NULL. */
	void (*say)(void *arg, const char *what);
	void *say_arg;
	/* Called once an interrupted export could be resumed; may be NULL. */
	void (*begun)(void);
};

/*
 * A copy made from other bytes is not resumed: if the checkpoint, an asset, a recipe, a layout or
 * renaming rules have changed since, everything is written again. If they change during the export,
 * it fails.
 */
int export_run(const struct export_job *job, struct ckpt_err *e);

#endif

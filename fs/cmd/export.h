/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export - copying a file or directory of the tree to a real place: in parallel, and so that a run
 * that was cut short at any moment is taken up again.
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
	const char *request; /* PATH and options as bytes that identify them; not the contents
				of files that they name, which the export sees to */
	size_t request_len;
	size_t threads; /* 1 to EXPORT_MAX_JOBS */
	bool quiet;	/* no bar, and not a word when it goes on */
	/* That it goes on, or starts over, and why; may be NULL. */
	void (*say)(void *arg, const char *what);
	void *say_arg;
	/* From now on an interruption can be gone on after; may be NULL. */
	void (*begun)(void);
};

/*
 * What was made from other bytes is not gone on with: where the checkpoint, an asset, a recipe, a
 * layout or renaming rules have changed since, all of it is written again. Where they change while
 * it runs, it fails.
 */
int export_run(const struct export_job *job, struct ckpt_err *e);

#endif

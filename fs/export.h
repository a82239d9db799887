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
#ifndef FS_EXPORT_H
#define FS_EXPORT_H

#include "api/ckpt.h"

#include <stdbool.h>
#include <stddef.h>

struct ckpt_err;

enum { EXPORT_MAX_JOBS = 256 };

struct export_job {
	struct ckpt *c;
	struct ckpt_stat what;
	const char *dest;
	const char *request; /* PATH and options as bytes that identify them */
	size_t request_len;
	size_t threads; /* 1 to EXPORT_MAX_JOBS */
	bool quiet;	/* neither a bar nor a word */
};

int export_run(const struct export_job *job, struct ckpt_err *e);

#endif

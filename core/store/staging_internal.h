/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging_internal - the location of a checkpoint: its parent directory, and the names of its
 * neighbours. Private to core/store.
 *
 * Threads: plain values and system calls.
 */
#ifndef STORE_STAGING_INTERNAL_H
#define STORE_STAGING_INTERNAL_H

#include <limits.h>
#include <stdbool.h>

struct ckpt_err;

struct site {
	int parent;	     /* the directory that contains DEST */
	char path[PATH_MAX]; /* DEST, absolute and with links resolved: for messages */
	/* In parent: DEST and what may be next to it. */
	char name[NAME_MAX + 1], partial[NAME_MAX + 1], lock[NAME_MAX + 1], old[NAME_MAX + 1];
};

#define SITE_INIT \
	{ \
		.parent = -1 \
	}

int site_open(const char *dest, struct site *ret, struct ckpt_err *e);
void site_close(struct site *p);
/* Like staging_check. */
int site_check(const struct site *p, const char *const *over, struct ckpt_err *e);
/* Does a file with that name exist? If that cannot be determined, yes. */
bool site_has(const struct site *p, const char *name);
/* Removes the directory with that name, the files in it and the directories of zarr arrays, or
 * whatever else has the name. Fails with ENOTEMPTY if it contains other directories, because this
 * program never creates one there. */
int site_remove(const struct site *p, const char *name, struct ckpt_err *e);

#endif

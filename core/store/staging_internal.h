/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging_internal - the place of a checkpoint: its directory, and the names beside it. Private to
 * core/store.
 *
 * Threads: plain values and system calls.
 */
#ifndef STORE_STAGING_INTERNAL_H
#define STORE_STAGING_INTERNAL_H

#include <limits.h>
#include <stdbool.h>

struct ckpt_err;

struct site {
	int parent;	     /* the directory that holds DEST */
	char path[PATH_MAX]; /* DEST, absolute and without links: for messages */
	/* In parent: DEST and what may stand beside it. */
	char name[NAME_MAX + 1], partial[NAME_MAX + 1], lock[NAME_MAX + 1], old[NAME_MAX + 1];
};

#define SITE_INIT \
	{ \
		.parent = -1 \
	}

int site_open(const char *dest, struct site *ret, struct ckpt_err *e);
void site_close(struct site *p);
/* As staging_check. */
int site_check(const struct site *p, bool overwrite, struct ckpt_err *e);
/* Is there something of that name? Where that cannot be known, yes. */
bool site_has(const struct site *p, const char *name);
/* Remove the directory of that name with the files in it, or whatever else has the name. Fails
 * with ENOTEMPTY where a directory is in it: nothing of ours ever is. */
int site_remove(const struct site *p, const char *name, struct ckpt_err *e);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging - a directory that becomes a checkpoint all at once, or not at all.
 *
 *	DEST.partial         the checkpoint while it grows; it changes places with DEST when all of it is on disk
 *	DEST.partial.lock    says that DEST.partial is ours, locked (flock) as long as somebody saves
 *
 * A kill at any moment leaves at DEST what was there before, or the new checkpoint whole. What it
 * leaves beside DEST is removed by the next save to the same place.
 *
 * Threads: one at a time for each struct staging, but staging_create from any; ranks have one each.
 */
#ifndef STORE_STAGING_H
#define STORE_STAGING_H

#include <stdbool.h>
#include <stddef.h>

struct err;
struct staging;

/*
 * Could DEST be written? It is not there, or an empty directory, or with `overwrite` a directory
 * that holds nothing but a checkpoint and what belongs to it: what else it has would be lost, and
 * the error names it. Nothing is changed.
 */
int staging_check(const char *dest, bool overwrite, struct err *e);

/* The coordinator: check, lock (EBUSY: another process is saving there), remove what a killed save
 * has left, make DEST.partial. */
int staging_begin(const char *dest, bool overwrite, struct staging **ret, struct err *e);
/* The other ranks, once the coordinator has begun: its directory. */
int staging_join(const char *dest, struct staging **ret, struct err *e);

/* A new file of that name for writing: *ret_fd is the caller's to sync and close. */
int staging_create(struct staging *s, const char *name, int *ret_fd, struct err *e);
/* A whole file, under a temporary name until it is on disk. */
int staging_put(struct staging *s, const char *name, const void *data, size_t len, struct err *e);
/* Have the names of all files so far on disk. Every rank, when it has written its files. */
int staging_sync(struct staging *s, struct err *e);

/* The coordinator, when all ranks have synced: DEST becomes the new checkpoint, the old one is
 * removed. */
int staging_commit(struct staging *s, struct err *e);
/* Close. The coordinator removes what has not been committed, so all ranks must have stopped. NULL is fine. */
void staging_end(struct staging *s);

#endif

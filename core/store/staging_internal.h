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
#include <stddef.h>

struct ckpt_err;
struct far;
struct staging_how;
struct writing_file;

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

/* ---- the rules of what may be replaced, wherever it is ---- */

/* To what checkpoint does a file of this name belong? */
enum site_part {
	SITE_NOTHING,
	SITE_SHARED, /* any of these: */
	SITE_DCP,
	SITE_HYPERPARALLEL,
	SITE_SAFETENSORS,
	SITE_ZARR,
};
enum site_part site_part_of(const char *name);
/* The names of one directory are seen one after the other, at first with .of SITE_NOTHING. 1: the
 * file is part of a checkpoint; 0: it is not. ENOTEMPTY: it is of another kind of checkpoint than
 * those seen. */
struct site_seen {
	enum site_part of;
	char name[NAME_MAX + 1];
};
int site_see(struct site_seen *seen, const char *path, const char *name, enum site_part of,
	     struct ckpt_err *e);
/* Is it one of the two that only Megatron-core's metadata.json makes part of a checkpoint? */
bool site_is_megatron_name(const char *name);
/* Does a metadata.json say so? text: its beginning, of at most this many bytes. */
enum { SITE_MEGATRON_TEXT = 1024 };
bool site_is_megatron_text(const char *text, size_t len);
/* Is it what this program writes for a zarr array, other than its zarr.json? */
bool site_is_array_chunk(const char *name);
int site_refuse_existing(const char *path, struct ckpt_err *e);
int site_refuse_loss(const char *path, const char *name, struct ckpt_err *e);

/* ---- staging_far.c: a checkpoint in an object store; as the functions of staging.h ---- */

int far_check(const char *dest, const char *const *over, const struct staging_how *how,
	      struct ckpt_err *e);
int far_begin(const char *dest, const char *const *over, const struct staging_how *how,
	      struct far **ret, struct ckpt_err *e);
int far_join(const char *dest, struct far **ret, struct ckpt_err *e);
/* last: it appears after all that are not. */
int far_file(struct far *f, const char *name, bool last, struct writing_file **ret,
	     struct ckpt_err *e);
int far_commit(struct far *f, struct ckpt_err *e);
/* begun: f is from far_begin, and what is not committed is undone. */
void far_end(struct far *f, bool begun);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging - a directory that becomes a checkpoint all at once, or not at all.
 *
 *	DEST.partial         the checkpoint while it grows; it changes places with DEST when all
 *	                     of it is on disk
 *	DEST.partial.lock    marks DEST.partial as ours; locked (flock) as long as a save runs
 *	DEST.partial.old     what was at DEST, for the moment between two renames, where the file
 *	                     system cannot exchange two directories (NFS, some FUSE)
 *
 *	staging_begin("run/step-100", NULL, NULL, &s, &e);
 *	staging_open(s, "__0_0.distcp", &f, &e);       // staging_write, staging_finish
 *	staging_sync(s, &e);
 *	staging_put(s, ".metadata", p, n, &e);
 *	staging_commit(s, &e);
 *	staging_end(s);
 *
 * A kill or a power failure at any moment leaves at DEST either what was there before or the
 * complete new checkpoint. If it occurs between two renames, where these are needed, DEST is
 * missing until the next staging_begin puts it back. The next save to the same place removes what
 * is left beside DEST. A DEST.partial without a lock file of ours belongs to somebody else and is
 * never touched: the lock file is on disk before DEST.partial is made, and is removed once
 * DEST.partial has been removed from the disk.
 *
 * DEST may also be an address of an object store (s3://, gs://). Then nothing is visible before the
 * commit, which removes the files by which the old checkpoint is found, makes the new files appear,
 * and those of staging_put last, in the order of the calls (without any, the first file); see
 * remote/upload.h. Nothing is locked: another save to DEST at the same time fails if DEST is new,
 * and goes unnoticed if it is replaced. Only ranks of the coordinator's process can join.
 *
 * DEST may be a link to a directory, which is then replaced; links inside a directory that is
 * removed are removed, not followed. Files and directories get permissions according to umask.
 *
 * Threads: one at a time for each struct staging, except staging_open and staging_put, which any
 * may call; each rank has its own.
 */
#ifndef STORE_STAGING_H
#define STORE_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct place_options;
struct staging;
struct writing_file;

/* For DEST in an object store. NULL, or all NULL: as the environment says. */
struct staging_how {
	const struct place_options *place;
	/* Polled while waiting for the store; true: give up with ECANCELED. */
	bool (*stop)(void *arg);
	void *stop_arg;
	/* Uploads that could not be removed, one sentence; without it, nobody is told. */
	void (*warn)(void *arg, const char *what);
	void *warn_arg;
};

/*
 * Can DEST be written? It can if it does not exist or is an empty directory; or, unless `over` is
 * NULL, if it is a directory that holds only a checkpoint and files with these names
 * (NULL-terminated), which the new checkpoint also has. Anything else in it would be lost, and the
 * error names it. Nothing is changed. EEXIST, ENOTEMPTY (something would be lost), ENOTDIR, EBUSY
 * (a mount point, or /), and errors of the system.
 */
int staging_check(const char *dest, const char *const *over, const struct staging_how *how,
		  struct ckpt_err *e);
/* An empty list of names: only a checkpoint is replaced. */
extern const char *const staging_alone[];

/* For the coordinator: checks, locks (EBUSY: another save there is under way), repairs and removes
 * what a killed save has left, and makes DEST.partial. over and how are borrowed until staging_end.
 */
int staging_begin(const char *dest, const char *const *over, const struct staging_how *how,
		  struct staging **ret, struct ckpt_err *e);
/* For the other ranks, once the coordinator has begun: opens its directory. */
int staging_join(const char *dest, struct staging **ret, struct ckpt_err *e);

/* A file that is being written, from its beginning to its end. */
struct staging_file {
	int fd; /* -1: none */
	struct writing_file *far;
};

#define STAGING_FILE_INIT \
	{ \
		.fd = -1 \
	}

/* Creates a file for writing: NAME, or DIR/NAME in a directory that staging_dir has made (else
 * EINVAL). EEXIST if this save has already made it. */
int staging_open(struct staging *s, const char *name, struct staging_file *ret, struct ckpt_err *e);
/* Errors are the system's alone, or the store's: the caller names the file. */
int staging_write(struct staging_file *f, const void *p, size_t n, struct ckpt_err *e);
/* Lets the disk begin with these bytes, so that waiting for the end takes less time. */
void staging_hint(const struct staging_file *f, uint64_t off, uint64_t len);
/* All of it has been written: waits until it is on disk (in a store: until its last part is on its
 * way), and closes it. */
int staging_finish(struct staging_file *f, struct ckpt_err *e);
/* Closes a file that is not finished; nothing after staging_finish. */
void staging_drop(struct staging_file *f);
/* Writes a whole file, under a temporary name until it is on disk. */
int staging_put(struct staging *s, const char *name, const void *data, size_t len,
		struct ckpt_err *e);
/* Puts what failed in front of the message of writing a file: "write 'DEST.partial/NAME'". */
int staging_blame(const struct staging *s, const char *name, struct ckpt_err *e);
/* Makes a directory for files (one path element, else EINVAL); it may exist. */
int staging_dir(struct staging *s, const char *name, struct ckpt_err *e);
/* Syncs the names of all files in it to disk. */
int staging_sync_dir(struct staging *s, const char *name, struct ckpt_err *e);
/* Syncs the names of all files so far, except in directories, to disk. Every rank calls it when it
 * has written its files. */
int staging_sync(struct staging *s, struct ckpt_err *e);

/*
 * For the coordinator, when all ranks have synced: DEST becomes the new checkpoint, and the old one
 * is removed. Fails with staging_check's errors if DEST has changed since. If only the removal
 * fails, the sentence says that DEST is the new checkpoint.
 */
int staging_commit(struct staging *s, struct ckpt_err *e);
/* Closes. The coordinator removes anything uncommitted, so all ranks must have stopped. NULL is
 * fine. */
void staging_end(struct staging *s);

#endif

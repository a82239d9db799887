/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writing - files at an address of an object store, which appear all at once; through ckptfs-fetch.
 *
 *	rc = writing_open("s3://bucket/step-100", NULL, &w, &e);
 *	...                                             // look at writing_place(w)
 *	rc = writing_begin(w, true, &e);
 *	rc = writing_file(w, "__0_0.distcp", &f, &e);   // any number of files at a time
 *	rc = writing_add(f, p, n, &e);
 *	rc = writing_finish(f, &e);
 *	rc = writing_name(w, WRITING_LAST, ".metadata", &e);
 *	rc = writing_commit(w, &e);
 *	writing_close(w, left, sizeof(left));           // what is not committed is undone
 *
 * Bytes are collected in parts, in memory files that are passed to ckptfs-fetch. The first thousand
 * parts have 8 MiB each, the next 16, then 32, up to 512 MiB, so that a file may have 2.4 TiB. At
 * most WRITING_BYTES are on their way, besides a part for each open file; writing more waits. See
 * remote/upload.h for what happens in the store.
 *
 * Every wait ends within a tenth of a second once stop(stop_arg) says so, with ECANCELED.
 *
 * Threads: any, but each struct writing_file and the commit from one, after all files have been
 * finished.
 */
#ifndef SOURCE_WRITING_H
#define SOURCE_WRITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct place;
struct place_options;
struct writing;
struct writing_file;

#define WRITING_BYTES ((uint64_t)128 << 20)
#define WRITING_PART  ((uint64_t)8 << 20)

/* o may be NULL. Nothing is asked of the store yet, but credentials may be. */
int writing_open(const char *address, const struct place_options *o, struct writing **ret,
		 struct ckpt_err *e);
struct place *writing_place(struct writing *w);
const char *writing_address(const struct writing *w); /* canonical */
void writing_stop(struct writing *w, bool (*stop)(void *arg), void *stop_arg);

/* only_new: objects that exist are an error (EEXIST), and stay. ENOTSUP: the store cannot be
 * written to. */
int writing_begin(struct writing *w, bool only_new, struct ckpt_err *e);

int writing_file(struct writing *w, const char *path, struct writing_file **ret,
		 struct ckpt_err *e);
int writing_add(struct writing_file *f, const void *p, size_t n, struct ckpt_err *e);
/* Frees f in any case. */
int writing_finish(struct writing_file *f, struct ckpt_err *e);
void writing_drop(struct writing_file *f); /* of a file that is not finished; NULL is fine */

/* A file of known size in any order: parts from 1, all but the last of writing_part_size(size)
 * bytes. read(arg, off, ...) reads part of the file. */
uint64_t writing_part_size(uint64_t size);
uint32_t writing_number(struct writing *w); /* of another file */
int writing_part(struct writing *w, uint32_t file, const char *path, uint64_t size, unsigned number,
		 int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e),
		 void *arg, struct ckpt_err *e);

/* What the commit does with the names: see enum uploads_names. */
enum writing_names { WRITING_LAST, WRITING_REMOVED_FIRST, WRITING_REMOVED };
int writing_name(struct writing *w, enum writing_names which, const char *path, struct ckpt_err *e);
/* Waits until all parts are stored. */
int writing_flush(struct writing *w, struct ckpt_err *e);
int writing_commit(struct writing *w, struct ckpt_err *e);
/* Puts into `left` a sentence on what could not be undone, or "". w may be NULL. */
void writing_close(struct writing *w, char *left, size_t cap);

#endif

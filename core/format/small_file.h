/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_file - files of a checkpoint that are read whole, to parse or to fingerprint them.
 *
 * Threads: pure apart from the file system.
 */
#ifndef FORMAT_SMALL_FILE_H
#define FORMAT_SMALL_FILE_H

#include "source/place.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct catalog_writer;
struct ckpt_err;
struct digest;
struct jdoc;

/* A file as it was read: its bytes, and room for one more behind them. */
struct small_file {
	char *bytes;
	size_t len;
	struct place_seen seen;
};

static inline void small_file_release(struct small_file *file)
{
	free(file->bytes);
	file->bytes = NULL;
}

/* Reads a file of at most max bytes. Errors name the file, also below. EFBIG: it has more bytes;
 * EAGAIN: it changed meanwhile. */
int small_file_read(struct place *place, const char *name, size_t max, struct small_file *ret,
		    struct ckpt_err *e);
/* The JSON object or array in a file of at most max bytes. */
int small_file_json(struct place *place, const char *name, size_t max, struct jdoc *ret,
		    struct ckpt_err *e);
/*
 * Looks at what a file begins with, to tell what it is: at most cap bytes, and their number. 0 also
 * if there is no such file or it cannot be opened: then it is not one of ours. An error if the
 * storage fails, or without memory or descriptors, which says nothing about the file.
 */
int64_t small_file_begin(struct place *place, const char *name, void *head, size_t cap,
			 struct place_seen *ret_seen, struct ckpt_err *e);
/* The hash of the bytes of a file of any size. EAGAIN: it changed meanwhile. */
int small_file_hash(struct place *place, const char *name, struct digest *ret,
		    struct place_seen *ret_seen, struct ckpt_err *e);
/* Tells the catalog that the index depends on this file, with the hash of its bytes. Stores its
 * size in *ret_size, if not NULL. */
int small_file_fingerprint(struct place *place, const char *name, struct catalog_writer *w,
			   uint64_t *ret_size, struct ckpt_err *e);

#endif

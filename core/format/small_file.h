/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_file - files of a checkpoint that are read whole, to parse or to fingerprint them.
 *
 * Threads: pure apart from the file system.
 */
#ifndef FORMAT_SMALL_FILE_H
#define FORMAT_SMALL_FILE_H

#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct jdoc;
struct place;

/* The JSON object or array in a file of at most max bytes; errors name the file. */
int small_file_json(struct place *place, const char *name, size_t max, struct jdoc *ret,
		    struct ckpt_err *e);
/* Tells the catalog that the index depends on this file, with the hash of its bytes. Stores its
 * size in *ret_size, if not NULL. */
int small_file_fingerprint(struct place *place, const char *name, struct catalog_writer *w,
			   uint64_t *ret_size, struct ckpt_err *e);

#endif

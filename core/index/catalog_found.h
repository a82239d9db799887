/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_found - what was found inside items, kept for who opens the checkpoint next.
 *
 * Where a tensor's elements begin inside its items is known only by reading the beginning of each: of
 * ten thousand, that is what opening a model takes longest for. What has been found is put behind the
 * index, where SQLite's pages end, and holds as long as all data files have the identities which they
 * had then. While one of them was written to only just now, nothing is kept: its identity may not
 * tell the next change.
 *
 *	"ckptfnd1", bytes of the body, XXH3-64 of it; the body, numbers as LEB128:
 *	the index's seal; sources: count, each its place_id's length (0: it is not there) and bytes;
 *	tensors: count, each its number (rising), length and record, which are core/read's
 *
 * All of it is a hint: whatever is not as expected is as if it were not there, and records are checked
 * by who uses them. The descriptor that writes is opened at the start, since a sandbox may follow; only
 * to the file that the index was read from, if that is ours and has one name.
 *
 * Threads: any; new and free from one.
 */
#ifndef INDEX_CATALOG_FOUND_H
#define INDEX_CATALOG_FOUND_H

#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_found;
struct ckpt_err;
struct files;

/* path: where c may be written to, or NULL. c and files, which are those of its sources, are borrowed. */
int catalog_found_new(const struct catalog *c, const char *path, const struct files *files,
		      struct catalog_found **ret, struct ckpt_err *e);
void catalog_found_free(struct catalog_found *f); /* NULL is fine */

/* The record of tensor i, borrowed; NULL: there is none. */
const uint8_t *catalog_found_get(struct catalog_found *f, size_t i, size_t *ret_len);
/* A copy of a record that was made of the files as they are. */
void catalog_found_add(struct catalog_found *f, size_t i, const void *record, size_t len);
/* Put what is new behind the index, if that is possible; nothing else is affected if not. */
void catalog_found_keep(struct catalog_found *f);

#endif

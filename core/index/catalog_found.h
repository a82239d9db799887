/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_found - keeps what was found inside items for the next time the checkpoint is opened.
 *
 * Finding where a tensor's elements begin inside its items requires reading the beginning of each
 * item: with ten thousand items, this is the longest part of opening a model. What was found is
 * appended to the index, after SQLite's pages, and is valid as long as all data files keep their
 * identities. Nothing is kept if one of them was written to very recently: its identity may not
 * show the next change.
 *
 *	"ckptfnd1", bytes of the body, XXH3-64 of it; the body, numbers as LEB128:
 *	the index's seal; sources: count, each its place_id's length (0: it is not there) and bytes;
 *	tensors: count, each its number (rising), length and record, which are core/read's
 *
 * All of it is a hint: anything unexpected is ignored, and the users of records check them. The
 * descriptor for writing is opened at the start, since a sandbox may follow; it is opened only for
 * the file that the index was read from, if we own it and it has a single name.
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

/* path: the index file to append to, or NULL. c and files (the files of its sources) are
 * borrowed. */
int catalog_found_new(const struct catalog *c, const char *path, const struct files *files,
		      struct catalog_found **ret, struct ckpt_err *e);
void catalog_found_free(struct catalog_found *f); /* NULL is fine */

/* The record of tensor i, borrowed; NULL: there is none. */
const uint8_t *catalog_found_get(struct catalog_found *f, size_t i, size_t *ret_len);
/* Adds a copy of a record that describes the files as they are. */
void catalog_found_add(struct catalog_found *f, size_t i, const void *record, size_t len);
/* Appends new records to the index, if possible; failure has no other effect. */
void catalog_found_keep(struct catalog_found *f);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_file - a chunk index from anywhere, as SQLite is shown it.
 *
 * A SQLite file can ask for anything: a journal or a log beside it is rolled back or read, a page
 * may lead to itself, the schema may have a billion tables. So SQLite sees the file through a VFS
 * that has one file, opened once, without names, locks, writes or mappings; and the first page as
 * it was when it was checked: it has a schema of as many rows as ours, in no other page. Larger
 * rows than a page are refused while the schema is read. After that it is the caller who bounds
 * what is read: single values by the number of their row (a tree is at most 20 pages deep), whose
 * length is known first.
 *
 * Private to core/index. Threads: one at a time.
 */
#ifndef INDEX_CATALOG_FILE_H
#define INDEX_CATALOG_FILE_H

#include <sqlite3.h>
#include <stdint.h>

struct catalog_file;
struct ckpt_err;

/* Close the connection first, then the file. Not followed: a link in place of the file. */
int catalog_file_open(const char *path, struct catalog_file **ret, sqlite3 **ret_db,
		      struct ckpt_err *e);
void catalog_file_close(struct catalog_file *f); /* NULL is fine */

/* Bytes, when it was opened. */
uint64_t catalog_file_size(const struct catalog_file *f);
/* Its descriptor, borrowed, to read what SQLite does not. */
int catalog_file_fd(const struct catalog_file *f);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_file - presents a chunk index from an untrusted source to SQLite.
 *
 * A SQLite file can cause arbitrary work: a journal or log beside it is rolled back or read, a page
 * may refer to itself, the schema may have a billion tables. So SQLite sees the file through a VFS
 * that has one file, opened once, without names, locks, writes or mappings; and it sees the first
 * page as it was when it was checked: a schema with as many rows as ours, all in that page. Rows
 * larger than a page are refused while the schema is read. After that the caller bounds what is
 * read: single values by the number of their row (a tree is at most 20 pages deep), whose length is
 * known first.
 *
 * Private to core/index. Threads: one at a time.
 */
#ifndef INDEX_CATALOG_FILE_H
#define INDEX_CATALOG_FILE_H

#include <sqlite3.h>
#include <stdint.h>

struct catalog_file;
struct ckpt_err;

/* Close the connection first, then the file. A symbolic link in place of the file is not
 * followed. */
int catalog_file_open(const char *path, struct catalog_file **ret, sqlite3 **ret_db,
		      struct ckpt_err *e);
void catalog_file_close(struct catalog_file *f); /* NULL is fine */

/* The size in bytes when it was opened. */
uint64_t catalog_file_size(const struct catalog_file *f);
/* Its descriptor, borrowed, to read bytes that SQLite does not read. */
int catalog_file_fd(const struct catalog_file *f);

#endif

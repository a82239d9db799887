/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INDEX_CATALOG_INTERNAL_H
#define INDEX_CATALOG_INTERNAL_H

#include <sqlite3.h>

struct catalog;
struct ckpt_err;

/* Read a catalog from an open connection, which it takes over, also on failure. */
int catalog_from_db(sqlite3 *db, struct catalog **ret, struct ckpt_err *e);
/* The descriptor of the file that it is read from, borrowed; -1: it is in memory. */
int catalog_fd(const struct catalog *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INDEX_CATALOG_INTERNAL_H
#define INDEX_CATALOG_INTERNAL_H

#include <sqlite3.h>

struct catalog;
struct ckpt_err;

/* Reads a catalog from an open connection, and takes ownership of it, even on failure. */
int catalog_from_db(sqlite3 *db, struct catalog **ret, struct ckpt_err *e);
/* The descriptor of the catalog's file, borrowed; -1: the catalog is in memory. */
int catalog_fd(const struct catalog *c);

#endif

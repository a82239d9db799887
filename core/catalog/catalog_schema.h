/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_schema - the chunk index as a SQLite file: its tables, and the seal over them.
 *
 * Private to core/catalog. The tables are documented for users in ckptfs(1), THE CHUNK INDEX.
 *
 * SQLite notices only part of the damage a file can suffer (in a test, 77 % of the bit flips that
 * changed a row passed PRAGMA quick_check). So every value read is covered by a hash: those of
 * all tables but chunkmap by checkpoint.seal, a chunkmap row by its tensor's map_xxh64.
 *
 * Threads: pure.
 */
#ifndef CATALOG_CATALOG_SCHEMA_H
#define CATALOG_CATALOG_SCHEMA_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

struct err;

#define CATALOG_APPLICATION_ID 0x636b7066 /* "ckpf"; file(1) and sqlite3 show it */
#define CATALOG_VERSION 1                 /* user_version; any other is rebuilt */

extern const char *const catalog_schema[]; /* statements, NULL at the end */

/* Turn the connection's last error into *e. */
int sql_err(sqlite3 *db, struct err *e, const char *what);
int sql_exec(sqlite3 *db, const char *sql, struct err *e);
int sql_prepare(sqlite3 *db, const char *sql, sqlite3_stmt **ret, struct err *e);
void sql_finalizep(sqlite3_stmt **s);
#define autofinalize __attribute__((cleanup(sql_finalizep)))

/* The seal hashes each value with its length, in row order, columns as written. */
void seal_text(XXH3_state_t *s, const char *p, size_t n);
void seal_int(XXH3_state_t *s, int64_t v);
/* 32 hex digits. */
void seal_hex(XXH128_hash_t h, char out[static 33]);
uint64_t map_hash(const char *chunks, size_t n);

#endif

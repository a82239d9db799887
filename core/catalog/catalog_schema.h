/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_schema - the chunk index as a SQLite file: its tables, and the seal over them.
 *
 * Private to core/catalog. The tables are documented for users in ckptfs(1), THE CHUNK INDEX.
 *
 * The rows are for people. What the program itself reads at every start is `directory`: all
 * tensors, objects, files and encodings in one row, since 20,000 rows through SQL take longer than
 * everything else a mount does. Then chunkmap, a row per tensor, when that is first read.
 *
 * SQLite notices only part of the damage a file can suffer (in a test, 77 % of the bit flips that
 * changed a row passed PRAGMA quick_check). So both are covered by hashes: the directory by
 * checkpoint.seal, a chunk map by its entry in the directory.
 *
 * The directory's bytes: numbers as LEB128, texts as length + 1 (0: none), bytes, NUL;
 *	format, chunks,
 *	sources: count, each path, min_size
 *	encodings: count, each name
 *	tensors: count, each fqn, path (catalog_path.h), dtype, dimensions, shape..., bytes, chunks, state, fault,
 *	         map, map_xxh64, dimensions of the logical shape (0: none), it...
 *	objects: count, each fqn, path, source, offset, length, encoding, fault, text
 *
 * Threads: pure.
 */
#ifndef CATALOG_CATALOG_SCHEMA_H
#define CATALOG_CATALOG_SCHEMA_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

struct ckpt_err;

#define CATALOG_APPLICATION_ID 0x636b7066 /* "ckpf"; file(1) and sqlite3 show it */
#define CATALOG_VERSION	       5	  /* user_version; any other is rebuilt */

extern const char *const catalog_schema[]; /* statements, NULL at the end */

/* Turn the connection's last error into *e. */
int sql_err(sqlite3 *db, struct ckpt_err *e, const char *what);
int sql_exec(sqlite3 *db, const char *sql, struct ckpt_err *e);
int sql_prepare(sqlite3 *db, const char *sql, sqlite3_stmt **ret, struct ckpt_err *e);
void sql_finalizep(sqlite3_stmt **s);
#define autofinalize __attribute__((cleanup(sql_finalizep)))

/* 32 hex digits. */
void seal_hex(XXH128_hash_t h, char out[static 33]);
uint64_t map_hash(const char *chunks, size_t n);

#endif

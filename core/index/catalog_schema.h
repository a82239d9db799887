/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_schema - the chunk index as a SQLite file: its tables, and the seal over them.
 *
 * Private to core/index. The tables are documented for users in ckptfs(1), THE CHUNK INDEX.
 *
 * The directory is stored twice. The rows are for people. At every start the program itself reads
 * `directory`: all tensors, objects, files and encodings in one row. It reads chunkmap, one row per
 * tensor, when the tensor is first read. Values are fetched by the number of their row, never by a
 * loop over a table: the tables of an untrusted file may have no end.
 *
 * Neither can replace the other. Measured with 100,000 and 1,000,000 tensors:
 *
 *	opening the index from `directory`		0.03 s	0.33 s
 *	rows alone: fetching each by its number		0.2 s	4.4 s
 *	`directory` alone, as JSON that views take apart:
 *	  a query for one tensor by its name		0.22 s	2.2 s
 *	  the same with rows				0.0001 s
 *
 * The rows cost 28 % of the time to build an index of 1,000,000 tensors, and 205 of its 323 MB.
 *
 * SQLite notices only part of the damage a file can suffer (in a test, 77 % of the bit flips that
 * changed a row passed PRAGMA quick_check). So all of it is covered by hashes: the directory by
 * checkpoint.seal, a chunk map by its entry in the directory, the list of metadata files by eight
 * bytes at its end, the bytes of chunks in the index by their hash in the directory. A hash proves
 * that the bytes are whole, not that this program wrote them.
 *
 * The directory's bytes: numbers as LEB128, texts as length + 1 (0: none), bytes, NUL;
 *	format, chunks,
 *	sources: count, each path, min_size; of the one with an empty path, whose bytes are in a
 *	         row of their own, min_size of them, also their hash
 *	encodings: count, each name
 *	tensors: count, each fqn, path (catalog_path.h), dtype, dimensions, shape..., bytes, chunks,
 *	         state, fault, map, bytes of the map, map_xxh64, dimensions of the logical shape
 *	         (0: none), the logical shape...
 *	objects: count, each fqn, path, source, offset, length, encoding, fault, text
 * Tensors and objects are in natural order of their FQNs. The list of metadata files, in a row of
 * its own, since a copy of the checkpoint has other ids but the same seal:
 *	count, each name (in order of their bytes), size, id (place_id_hex, after a "?" if a later
 *	change may not show in it), xxh128 (or "");
 *	XXH3-64 of all that, eight bytes, low first
 *
 * Threads: pure.
 */
#ifndef INDEX_CATALOG_SCHEMA_H
#define INDEX_CATALOG_SCHEMA_H

#include "base/cleanup.h"

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

#define CATALOG_MAGIC	       "SQLite format 3" /* with its NUL */
#define CATALOG_APPLICATION_ID 0x636b7066	 /* "ckpf"; file(1) and sqlite3 show it */
#define CATALOG_APPLICATION_BYTES \
	{ \
		0x63, 0x6b, 0x70, 0x66 \
	}
#define CATALOG_VERSION	    14	  /* user_version; any other is rebuilt */
#define CATALOG_PAGE	    16384 /* bytes of a page of the file */
#define CATALOG_SCHEMA_ROWS 14	  /* catalog_schema, and an index for each UNIQUE */

#define CATALOG_MAX_DIRECTORY (256u << 20) /* bytes */
#define CATALOG_MAX_MAP	      (900u << 20) /* SQLite's own limit on a value is 10^9 bytes */

/* Ids in `directory`. */
enum { CATALOG_DIRECTORY_ROW = 1, CATALOG_METADATA_ROW = 2, CATALOG_INLINE_ROW = 3 };

extern const char *const catalog_schema[]; /* statements, NULL at the end */

int catalog_no_memory(struct ckpt_err *e);
/* Sets *e to the connection's last error. */
int sql_err(sqlite3 *db, struct ckpt_err *e, const char *what);
int sql_exec(sqlite3 *db, const char *sql, struct ckpt_err *e);
int sql_prepare(sqlite3 *db, const char *sql, sqlite3_stmt **ret, struct ckpt_err *e);
CLEANUP_POINTER(sql_finalizep, sqlite3_stmt, sqlite3_finalize)
#define autofinalize CLEANUP(sql_finalizep)

/* The hash of a chunk map, of the list of metadata files, and of the chunks in the index. */
uint64_t catalog_hash(const void *p, size_t n);
/* The minimum number of bytes for a chunk with n_dims dimensions in a map. */
size_t catalog_map_line(size_t n_dims);

#endif

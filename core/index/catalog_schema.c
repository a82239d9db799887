/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_schema.h"

#include "base/err.h"

#include <xxhash.h>

#include <string.h>

/*
 * All chunks of a tensor are one row, not one row each: tensors are looked up, written and hashed
 * as a whole, and 1.3 million rows would take as much time as parsing 230 MB of pickle. The row is
 * JSON so that sqlite3 alone can take it apart again: view `chunk` does.
 */
const char *const catalog_schema[] = {
	"CREATE TABLE checkpoint(\n"
	"  format TEXT NOT NULL, root TEXT NOT NULL, builder TEXT NOT NULL,\n"
	"  tensors INTEGER NOT NULL, objects INTEGER NOT NULL, chunks INTEGER NOT NULL,\n"
	"  bytes INTEGER NOT NULL, seal TEXT NOT NULL)",

	"CREATE TABLE metadata_file(\n"
	"  name TEXT PRIMARY KEY, size INTEGER NOT NULL, id TEXT NOT NULL,\n"
	"  xxh128 TEXT NOT NULL)",

	"CREATE TABLE source(\n"
	"  id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, min_size INTEGER NOT NULL)",

	"CREATE TABLE encoding(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",

	"CREATE TABLE tensor(\n"
	"  id INTEGER PRIMARY KEY, fqn TEXT NOT NULL UNIQUE, path TEXT,\n"
	"  dtype TEXT NOT NULL, shape TEXT NOT NULL, logical TEXT, bytes INTEGER NOT NULL,\n"
	"  chunks INTEGER NOT NULL, grid TEXT, state TEXT NOT NULL, fault TEXT, map INTEGER NOT "
	"NULL)",

	"CREATE TABLE object(\n"
	"  id INTEGER PRIMARY KEY, fqn TEXT NOT NULL UNIQUE, path TEXT,\n"
	"  source INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,\n"
	"  encoding INTEGER NOT NULL, fault TEXT, text TEXT)",

	"CREATE TABLE chunkmap(id INTEGER PRIMARY KEY, chunks TEXT NOT NULL)",

	"CREATE TABLE directory(id INTEGER PRIMARY KEY, data BLOB NOT NULL)",

	"CREATE VIEW chunk AS SELECT t.fqn AS fqn, j.key AS chunk,\n"
	"  json_extract(j.value, '$[0]') AS offsets, json_extract(j.value, '$[1]') AS sizes,\n"
	"  s.path AS path, json_extract(j.value, '$[3]') AS offset,\n"
	"  json_extract(j.value, '$[4]') AS length, e.name AS encoding\n"
	"FROM tensor t JOIN chunkmap m ON m.id = t.map JOIN json_each(m.chunks) j\n"
	"  JOIN source s ON s.id = json_extract(j.value, '$[2]')\n"
	"  JOIN encoding e ON e.id = json_extract(j.value, '$[5]')",
	NULL,
};

int catalog_no_memory(struct ckpt_err *e)
{
	return err_set(e, ENOMEM, "chunk index: out of memory");
}

/* SQLite has a code of its own for a full disk, but not for a quota. 0: not known. */
static int errno_of(sqlite3 *db, int rc)
{
	int why = 0;

	if (rc == SQLITE_CANTOPEN)
		return sqlite3_system_errno(db);
	/* sqlite3_system_errno is not set by a failing COMMIT. */
	if (rc != SQLITE_IOERR || sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &why))
		return 0;
	return why;
}

int sql_err(sqlite3 *db, struct ckpt_err *e, const char *what)
{
	const char *path = sqlite3_db_filename(db, "main");
	int rc = sqlite3_extended_errcode(db) & 0xff;
	int why = errno_of(db, rc);
	int code = rc == SQLITE_NOMEM	 ? ENOMEM
		   : rc == SQLITE_FULL	 ? ENOSPC
		   : rc == SQLITE_TOOBIG ? EFBIG
		   : rc == SQLITE_IOERR	 ? EIO
					 : ERR_CORRUPT;

	/* No path to add: it is in memory, or only read, or named already. */
	if (!path || *path != '/' || !strcmp(path, what))
		return why > 0 ? err_sys(e, why, "%s", what)
			       : err_set(e, code, "%s: %s", what, sqlite3_errmsg(db));
	return why > 0 ? err_sys(e, why, "%s '%s'", what, path)
		       : err_set(e, code, "%s '%s': %s", what, path, sqlite3_errmsg(db));
}

int sql_exec(sqlite3 *db, const char *sql, struct ckpt_err *e)
{
	return sqlite3_exec(db, sql, NULL, NULL, NULL) ? sql_err(db, e, "chunk index") : 0;
}

int sql_prepare(sqlite3 *db, const char *sql, sqlite3_stmt **ret, struct ckpt_err *e)
{
	return sqlite3_prepare_v2(db, sql, -1, ret, NULL) ? sql_err(db, e, "chunk index") : 0;
}

uint64_t catalog_hash(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

/* "[[0],[1],0,0,1,0]": a digit for each number, and what separates them. */
size_t catalog_map_line(size_t n_dims)
{
	return 4 * n_dims + 13;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_file.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "index/catalog_schema.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct catalog_file {
	sqlite3_vfs vfs;
	char name[32]; /* of the VFS */
	int fd;
	uint64_t size;
	uint8_t first[CATALOG_PAGE];
};

/* ---- the first page ---- */

/*
 * https://www.sqlite.org/fileformat2.html: the file's header, then that of the page, which is the
 * root of the schema's tree and has to be its only page.
 */
static int check_first(const struct catalog_file *f, struct ckpt_err *e)
{
	static const uint8_t magic[] = CATALOG_MAGIC, id[] = CATALOG_APPLICATION_BYTES,
			     version[] = { 0, 0, 0, CATALOG_VERSION },
			     form[] = { CATALOG_PAGE >> 8, 0, 1, 1, 0 }, zero[4] = { 0 },
			     utf8[] = { 0, 0, 0, 1 }, leaf[] = { 13 },
			     rows[] = { 0, CATALOG_SCHEMA_ROWS };
	static const struct {
		size_t at, len;
		const uint8_t *want;
		const char *msg;
	} parts[] = {
		{ 0, sizeof(magic), magic, "this is not a chunk index" },
		{ 68, sizeof(id), id, "this is not a chunk index" },
		{ 60, sizeof(version), version, "it is a chunk index of another version" },
		/* page size; no log; nothing at the end of pages */
		{ 16, sizeof(form), form, "chunk index is damaged: its header" },
		{ 52, sizeof(zero), zero, "chunk index is damaged: its header" }, /* vacuum */
		{ 56, sizeof(utf8), utf8, "chunk index is damaged: its header" },
		{ 100, sizeof(leaf), leaf, "the chunk index has other tables" },
		{ 103, sizeof(rows), rows, "the chunk index has other tables" },
	};

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (memcmp(f->first + parts[i].at, parts[i].want, parts[i].len) != 0)
			return err_set(e, ERR_CORRUPT, "%s", parts[i].msg);
	return 0;
}

/* ---- the file as SQLite sees it ---- */

struct open_file {
	sqlite3_file base;
	const struct catalog_file *f;
};

static int file_close(sqlite3_file *base)
{
	(void)base;
	return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *to, int len, sqlite3_int64 at)
{
	const struct catalog_file *f = ((struct open_file *)base)->f;
	uint64_t off = (uint64_t)at;
	size_t n = (size_t)len;
	int64_t got;

	if (off < sizeof(f->first)) { /* at most that page, since all pages have its size */
		if (!range_ok(off, n, sizeof(f->first)))
			return SQLITE_IOERR_READ;
		memcpy(to, f->first + off, n);
		return SQLITE_OK;
	}
	got = io_pread_some(f->fd, to, n, off);
	if (got < 0)
		return SQLITE_IOERR_READ;
	if ((size_t)got == n)
		return SQLITE_OK;
	memset((char *)to + got, 0, n - (size_t)got);
	return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *from, int len, sqlite3_int64 at)
{
	(void)base;
	(void)from;
	(void)len;
	(void)at;
	return SQLITE_READONLY;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
	(void)base;
	(void)size;
	return SQLITE_READONLY;
}

/* Sync, lock and unlock do nothing: the file is never written, see file_traits. */
static int file_nothing(sqlite3_file *base, int how)
{
	(void)base;
	(void)how;
	return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *ret)
{
	*ret = (sqlite3_int64)((struct open_file *)base)->f->size;
	return SQLITE_OK;
}

static int file_reserved(sqlite3_file *base, int *ret)
{
	(void)base;
	*ret = 0;
	return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
	(void)base;
	(void)op;
	(void)arg;
	return SQLITE_NOTFOUND;
}

static int file_sector(sqlite3_file *base)
{
	(void)base;
	return 4096;
}

/* A finished index is never written again: no locks are taken, and no journal is looked for. */
static int file_traits(sqlite3_file *base)
{
	(void)base;
	return SQLITE_IOCAP_IMMUTABLE;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *base, int flags,
		    int *ret_flags)
{
	static const sqlite3_io_methods methods = {
		.iVersion = 1,
		.xClose = file_close,
		.xRead = file_read,
		.xWrite = file_write,
		.xTruncate = file_truncate,
		.xSync = file_nothing,
		.xFileSize = file_size,
		.xLock = file_nothing,
		.xUnlock = file_nothing,
		.xCheckReservedLock = file_reserved,
		.xFileControl = file_control,
		.xSectorSize = file_sector,
		.xDeviceCharacteristics = file_traits,
	};
	struct open_file *o = (struct open_file *)base;

	(void)name;
	base->pMethods = NULL;
	if (!(flags & SQLITE_OPEN_MAIN_DB))
		return SQLITE_CANTOPEN;
	base->pMethods = &methods;
	o->f = vfs->pAppData;
	if (ret_flags)
		*ret_flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
	return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
	(void)vfs;
	(void)name;
	(void)sync;
	return SQLITE_IOERR_DELETE;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int how, int *ret)
{
	(void)vfs;
	(void)name;
	(void)how;
	*ret = 0; /* no journal, no log */
	return SQLITE_OK;
}

static int vfs_full_name(sqlite3_vfs *vfs, const char *name, int cap, char *ret)
{
	(void)vfs;
	return snprintf(ret, (size_t)cap, "%s", name) < cap ? SQLITE_OK : SQLITE_CANTOPEN;
}

/* ---- opening ---- */

static int open_file(struct catalog_file *f, const char *path, struct ckpt_err *e)
{
	struct stat st;
	int64_t n;

	/* O_NONBLOCK: opening a FIFO in its place must not block. */
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (f->fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (fstat(f->fd, &st))
		return err_sys(e, errno, "look at '%s'", path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, ERR_CORRUPT, "this is not a chunk index");
	f->size = (uint64_t)st.st_size;
	n = io_pread_some(f->fd, f->first, sizeof(f->first), 0); /* missing bytes are 0 */
	if (n < 0)
		return err_sys(e, (int)-n, "read '%s'", path);
	return check_first(f, e);
}

/* The VFS is registered with SQLite only while the file is opened. */
static int open_db(struct catalog_file *f, sqlite3 **ret, struct ckpt_err *e)
{
	sqlite3 *db = NULL;
	int rc;

	(void)snprintf(f->name, sizeof(f->name), "ckptfs-%p", (void *)f);
	f->vfs = (sqlite3_vfs){
		.iVersion = 1,
		.szOsFile = sizeof(struct open_file),
		.mxPathname = 64,
		.zName = f->name,
		.pAppData = f,
		.xOpen = vfs_open,
		.xDelete = vfs_delete,
		.xAccess = vfs_access,
		.xFullPathname = vfs_full_name,
	};
	if (sqlite3_vfs_register(&f->vfs, 0))
		return catalog_no_memory(e);
	rc = sqlite3_open_v2("index", &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, f->name);
	(void)sqlite3_vfs_unregister(&f->vfs);
	if (rc) {
		rc = db ? sql_err(db, e, "chunk index") : catalog_no_memory(e);
		(void)sqlite3_close(db);
		return rc;
	}
	*ret = db;
	return 0;
}

/* Allows only our own tables and views: a foreign trigger or view would be code. */
static int check_schema(sqlite3 *db, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	size_t i = 0;
	int rc = sql_prepare(db,
			     "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid",
			     &s, e),
	    step;

	if (rc)
		return rc;
	for (; (step = sqlite3_step(s)) == SQLITE_ROW; i++) {
		const char *sql = (const char *)sqlite3_column_text(s, 0);

		if (!catalog_schema[i] || !sql || strcmp(sql, catalog_schema[i]) != 0)
			return err_set(e, ERR_CORRUPT, "the chunk index has other tables");
	}
	if (step != SQLITE_DONE)
		return sql_err(db, e, "chunk index");
	return catalog_schema[i] ? err_set(e, ERR_CORRUPT, "chunk index lacks a table") : 0;
}

/* The first statement reads the schema, so limits on its contents are set before. What is long is
 * read as a blob, to which that of lengths does not apply. */
static int set_up(sqlite3 *db, struct ckpt_err *e)
{
	int rc;

	(void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	(void)sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
	(void)sqlite3_limit(db, SQLITE_LIMIT_LENGTH, CATALOG_PAGE);
	rc = sql_exec(db, "PRAGMA cell_size_check=ON; PRAGMA cache_size=-1024", e);
	return rc ? rc : check_schema(db, e);
}

int catalog_file_open(const char *path, struct catalog_file **ret, sqlite3 **ret_db,
		      struct ckpt_err *e)
{
	struct catalog_file *f = calloc(1, sizeof(*f));
	sqlite3 *db = NULL;
	int rc;

	if (!f)
		return catalog_no_memory(e);
	rc = open_file(f, path, e);
	if (!rc)
		rc = open_db(f, &db, e);
	if (!rc)
		rc = set_up(db, e);
	if (rc) {
		(void)sqlite3_close(db);
		catalog_file_close(f);
		return rc;
	}
	*ret = f;
	*ret_db = db;
	return 0;
}

void catalog_file_close(struct catalog_file *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		(void)close(f->fd);
	free(f);
}

uint64_t catalog_file_size(const struct catalog_file *f)
{
	return f->size;
}

int catalog_file_fd(const struct catalog_file *f)
{
	return f->fd;
}

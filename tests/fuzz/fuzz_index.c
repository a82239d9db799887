/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk index that somebody else made: two bytes of a length, that many of a directory, two bytes
 * of a length, that many of a chunk map, all under a seal that is right. What is left changes bytes
 * of the file, four for each: place and value. Opened, and every chunk map loaded.
 */
#include "base/bytes.h"
#include "base/err.h"
#include "catalog/catalog_query.h"
#include "catalog/catalog_schema.h"

#include <stdlib.h>
#include <string.h>

#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[128];

static void put_row(sqlite3 *db, const char *sql, const void *p, size_t n, bool text)
{
	sqlite3_stmt *s;

	require(!sqlite3_prepare_v2(db, sql, -1, &s, NULL));
	if (text)
		require(!sqlite3_bind_text(s, 1, p, (int)n, NULL));
	else
		require(!sqlite3_bind_blob(s, 1, p, (int)n, NULL));
	require(sqlite3_step(s) == SQLITE_DONE);
	(void)sqlite3_finalize(s);
}

/* An index like ours, but for what is in it. */
static void make(const uint8_t *directory, size_t len, const uint8_t *map, size_t n_map)
{
	char seal[33], sql[96];
	sqlite3 *db;

	require(!sqlite3_open(path, &db));
	require(!sqlite3_exec(db,
			      "PRAGMA page_size=512; PRAGMA journal_mode=OFF;"
			      "PRAGMA synchronous=OFF; BEGIN",
			      NULL, NULL, NULL));
	for (size_t i = 0; catalog_schema[i]; i++)
		require(!sqlite3_exec(db, catalog_schema[i], NULL, NULL, NULL));
	seal_hex(XXH3_128bits(directory, len), seal);
	put_row(db, "INSERT INTO checkpoint VALUES('dcp','/','x',0,0,0,0,?)", seal, 32, true);
	put_row(db, "INSERT INTO directory VALUES(1,?)", directory, len, false);
	put_row(db, "INSERT INTO chunkmap VALUES(1,?)", map, n_map, true);
	(void)snprintf(sql, sizeof(sql), "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
		       CATALOG_APPLICATION_ID, CATALOG_VERSION);
	require(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	require(!sqlite3_close(db));
}

/* Bytes of the file, wherever it has them. */
static void change(struct cursor *c)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;

	require(fd >= 0 && !fstat(fd, &st));
	for (int i = 0; i < 64 && c->end - c->p >= 4; i++) {
		uint32_t v = cursor_le32(c);

		require(pwrite(fd, (const char[]){ (char)(v >> 24) }, 1,
			       (off_t)((v & 0xffffff) % (uint64_t)st.st_size)) == 1);
	}
	(void)close(fd);
}

/* As many bytes as the number in front says, or all that are left. */
static const uint8_t *part(struct cursor *c, size_t *ret)
{
	size_t n = cursor_le16(c), left = (size_t)(c->end - c->p);

	*ret = n < left ? n : left;
	return cursor_take(c, *ret);
}

static void look_at(struct catalog *c)
{
	size_t n, n_encodings, n_sources, n_objects;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	const struct catalog_object *o = catalog_objects(c, &n_objects);
	struct ckpt_err e = { 0 };

	(void)catalog_encodings(c, &n_encodings);
	(void)catalog_sources(c, &n_sources);
	for (size_t i = 0; i < n; i++) {
		struct chunkmap *m = NULL;
		int rc = catalog_load_map(c, &t[i], &m, &e);

		require(rc ? rc < 0 && e.code == -rc && *e.msg : m != NULL);
		for (uint32_t k = 0; m && k < m->count; k++)
			require(m->locs[k].encoding < n_encodings && m->locs[k].file < n_sources);
		free(m);
	}
	for (size_t i = 0; i < n_objects; i++)
		require(o[i].fault || o[i].text ||
			(o[i].loc.file < n_sources && o[i].loc.encoding < n_encodings));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cursor in = cursor_of(data, size);
	const uint8_t *directory, *map;
	size_t len, n_map;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	int rc;

	directory = part(&in, &len);
	map = part(&in, &n_map);
	if (in.bad)
		return 0;
	scratch_make();
	scratch_empty();
	(void)snprintf(path, sizeof(path), "%s/index", scratch);
	make(directory, len, map, n_map);
	change(&in);
	rc = catalog_open(path, &c, &e);
	require(rc ? !c && rc < 0 && e.code == -rc && *e.msg : c && !e.code);
	if (c)
		look_at(c);
	catalog_close(c);
	return 0;
}

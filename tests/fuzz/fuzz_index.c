/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk index that somebody else made, with every hash right: the seal of the directory, the hash
 * of each map in it, that of the list of metadata files. The input has the values of the fields,
 * one after the other, so that a change of a byte changes one field and nothing else:
 *
 *	number	a byte; from 0xe0 on it stands for a number at a limit (odd[], below)
 *	either	0: the right value (the sum of the chunks, the length of a map...); else a number
 *	text	a number, 0 for none; then one byte less than that
 *
 * The rest changes bytes of the file: four bytes of input for each, its place and its value. The
 * index is opened, and every chunk map is loaded.
 *
 * Fuzzes: index/catalog_file index/catalog_query index/catalog_map index/catalog_path
 * index/catalog_schema
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/digest.h"
#include "base/err.h"
#include "index/catalog_query.h"
#include "index/catalog_schema.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_THINGS = 8 }; /* tensors, sources, chunks... that are really there */

static char path[128];

static uint64_t number(struct cursor *in)
{
	static const uint64_t odd[32] = {
		64,
		65,
		127,
		128,
		200,
		255,
		256,
		257,
		1000,
		16383,
		16384,
		65535,
		65536,
		1 << 20,
		INT32_MAX,
		1u << 31,
		UINT32_MAX,
		1ull << 32,
		(1ull << 32) + 1,
		(1ull << 32) + 2,
		1ull << 35,
		1ull << 60,
		1ull << 61,
		1ull << 62,
		INT64_MAX,
		INT64_MAX - 1,
		1ull << 63,
		UINT64_MAX / 2 + 2,
		UINT64_MAX,
		UINT64_MAX - 1,
		UINT64_MAX / 24,
		900 << 20,
	};
	const uint8_t *p = cursor_take(in, 1);

	return !p ? 0 : *p < 0xe0 ? *p : odd[*p - 0xe0];
}

static uint64_t either(struct cursor *in, uint64_t right)
{
	uint64_t v = number(in);

	return v ? v : right;
}

static void put(struct buf *b, uint64_t v)
{
	uint8_t bytes[10];

	buf_add(b, bytes, put_varint(bytes, v));
}

static void put_text(struct buf *b, struct cursor *in)
{
	uint64_t n = number(in);
	const uint8_t *p = n && n < 256 ? cursor_take(in, n - 1) : NULL;

	put(b, n);
	if (n && p) {
		buf_add(b, p, n - 1);
		buf_add(b, "", 1);
	}
}

/* Writes a count, which may not be the real one. Returns the real one. */
static unsigned put_count(struct buf *b, struct cursor *in)
{
	unsigned n = (unsigned)(number(in) % MAX_THINGS);

	put(b, either(in, n));
	return n;
}

/* A path: a head, and any number of numbers. */
static void put_path(struct buf *b, struct cursor *in)
{
	put(b, number(in));
	for (uint64_t n = number(in) % MAX_THINGS; n; n--)
		put(b, number(in));
}

static void put_list(struct buf *b, struct cursor *in, size_t n)
{
	buf_str(b, "[");
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)number(in));
	buf_str(b, "]");
}

/* The lines of chunks, or any text. */
static void make_map(struct buf *b, struct cursor *in, size_t n_dims, uint64_t chunks)
{
	uint64_t n = number(in);

	b->len = 0;
	if (n) {
		const uint8_t *p = cursor_take(in, n < 256 ? n : 0);

		buf_add(b, p ? (const char *)p : "", p && n < 256 ? n : 0);
		return;
	}
	buf_str(b, "[");
	for (uint64_t i = 0; i < chunks; i++) {
		buf_str(b, i ? ",\n[" : "[");
		put_list(b, in, n_dims);
		buf_str(b, ",");
		put_list(b, in, n_dims);
		for (int k = 0; k < 4; k++)
			buf_printf(b, ",%llu", (unsigned long long)number(in));
		buf_str(b, "]");
	}
	buf_str(b, "]");
}

static void put_row(sqlite3 *db, const char *sql, int64_t id, const void *p, size_t n, bool text)
{
	sqlite3_stmt *s;

	require(!sqlite3_prepare_v2(db, sql, -1, &s, NULL));
	require(!sqlite3_bind_int64(s, 1, id));
	if (text)
		require(!sqlite3_bind_text(s, 2, p, (int)n, NULL));
	else
		require(!sqlite3_bind_blob(s, 2, p, (int)n, NULL));
	require(sqlite3_step(s) == SQLITE_DONE);
	(void)sqlite3_finalize(s);
}

/* Writes a tensor, and the row of its map. Returns how many chunks it has. */
static uint64_t put_tensor(struct buf *b, struct cursor *in, sqlite3 *db, int64_t id)
{
	static struct buf map = BUF_INIT(1 << 20);
	uint64_t dtype, shape[CKPT_MAX_DIMS], bytes = 0, chunks, n;
	size_t n_dims;

	put_text(b, in);
	put_path(b, in);
	dtype = number(in);
	put(b, dtype);
	n_dims = (size_t)(number(in) % (CKPT_MAX_DIMS + 1));
	put(b, either(in, n_dims));
	for (size_t i = 0; i < n_dims; i++) {
		shape[i] = number(in);
		put(b, shape[i]);
	}
	if (dtype && dtype < CKPT_DTYPE_COUNT && box_volume(n_dims, shape, &bytes))
		bytes *= dtype_info((enum ckpt_dtype)dtype)->size;
	put(b, either(in, bytes));
	n = number(in) % MAX_THINGS;
	chunks = either(in, n);
	put(b, chunks);
	put(b, number(in)); /* state */
	put_text(b, in);    /* fault */
	make_map(&map, in, n_dims, n);
	put(b, either(in, (uint64_t)id));
	put(b, either(in, map.len));
	put(b, catalog_hash(map.data, map.len));
	put_row(db, "INSERT INTO chunkmap VALUES(?,?)", id, map.data, map.len, true);
	n_dims = (size_t)(number(in) % (CKPT_MAX_DIMS + 1));
	put(b, either(in, n_dims)); /* before flattening */
	for (size_t i = 0; i < n_dims; i++)
		put(b, number(in));
	return chunks;
}

static const char in_index[] = "chunks";

/* Writes all of a directory but the format and the sum of the chunks; returns that sum. */
static uint64_t put_directory(struct buf *b, struct cursor *in, sqlite3 *db)
{
	uint64_t chunks = 0;

	for (unsigned n = put_count(b, in); n; n--) {
		size_t at = b->len;

		put_text(b, in);
		if (b->len - at == 2) { /* empty: the index itself */
			put(b, either(in, sizeof(in_index)));
			put(b, either(in, catalog_hash(in_index, sizeof(in_index))));
		} else {
			put(b, number(in));
		}
	}
	for (unsigned n = put_count(b, in); n; n--)
		put_text(b, in);
	for (unsigned n = put_count(b, in), i = 0; i < n; i++)
		chunks += put_tensor(b, in, db, i);
	for (unsigned n = put_count(b, in); n; n--) {
		put_text(b, in);
		put_path(b, in);
		for (int k = 0; k < 4; k++)
			put(b, number(in));
		put_text(b, in);
		put_text(b, in);
	}
	return chunks;
}

static void put_metadata(struct buf *b, struct cursor *in)
{
	uint8_t hash[8];

	for (unsigned n = put_count(b, in); n; n--) {
		put_text(b, in);
		for (int k = 0; k < 4; k++)
			put(b, number(in));
		put_text(b, in);
	}
	(void)put_le(hash, catalog_hash(b->data, b->len), sizeof(hash));
	buf_add(b, hash, sizeof(hash));
}

static void make(struct cursor *in)
{
	struct buf rest = BUF_INIT(1 << 20), all = BUF_INIT(1 << 20), list = BUF_INIT(1 << 20);
	char seal[DIGEST_HEX], sql[160];
	struct digest sealed;
	uint64_t chunks;
	sqlite3 *db;

	require(!sqlite3_open(path, &db));
	(void)snprintf(
		sql, sizeof(sql),
		"PRAGMA page_size=%d; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN",
		CATALOG_PAGE);
	require(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	for (size_t i = 0; catalog_schema[i]; i++)
		require(!sqlite3_exec(db, catalog_schema[i], NULL, NULL, NULL));
	chunks = put_directory(&rest, in, db);
	put(&all, 4);
	buf_add(&all, "dcp", 4);
	put(&all, either(in, chunks));
	buf_add(&all, rest.data, rest.len);
	put_metadata(&list, in);
	require(!rest.err && !all.err && !list.err);
	sealed = digest_of(XXH3_128bits(all.data, all.len));
	digest_hex(&sealed, seal);
	put_row(db, "INSERT INTO checkpoint VALUES('dcp','/','x',0,0,0,?,?)", 0, seal, 32, true);
	put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_DIRECTORY_ROW, all.data, all.len,
		false);
	put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_METADATA_ROW, list.data, list.len,
		false);
	put_row(db, "INSERT INTO directory VALUES(?,?)", CATALOG_INLINE_ROW, in_index,
		sizeof(in_index), false);
	(void)snprintf(sql, sizeof(sql), "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
		       CATALOG_APPLICATION_ID, CATALOG_VERSION);
	require(!sqlite3_exec(db, sql, NULL, NULL, NULL));
	require(!sqlite3_close(db));
	buf_release(&rest);
	buf_release(&all);
	buf_release(&list);
}

/* Changes bytes of the file, wherever they are. */
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
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	int rc;

	scratch_make();
	scratch_empty();
	(void)snprintf(path, sizeof(path), "%s/index", scratch);
	make(&in);
	in.bad = false; /* fields that the input did not have were 0 */
	change(&in);
	rc = catalog_open(path, &c, &e);
	require(rc ? !c && rc < 0 && e.code == -rc && *e.msg : c && !e.code);
	if (c)
		look_at(c);
	catalog_close(c);
	return 0;
}

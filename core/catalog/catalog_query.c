/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog_query.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "catalog/catalog_internal.h"
#include "catalog/catalog_schema.h"
#include "model/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ARENA_BLOCK = 256 * 1024 };

struct block {
	struct block *next;
	size_t used, size;
	uint64_t data[];
};

struct catalog {
	pthread_mutex_t lock; /* db and select_map */
	sqlite3 *db;
	sqlite3_stmt *select_map;
	struct block *arena;
	struct catalog_tensor *tensors;
	struct catalog_object *objects;
	struct catalog_source *sources;
	struct catalog_metadata *metadata;
	const char **encodings;
	size_t n_tensors, n_objects, n_sources, n_metadata, n_encodings;
	uint64_t chunks;
	char seal[33];
};

static int damaged(struct err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "chunk index is damaged: %s", what);
}

/* ---- memory of the tables ---- */

static void *arena_alloc(struct catalog *c, size_t n)
{
	struct block *b = c->arena;
	void *p;

	n = (n + 7) & ~(size_t)7;
	if (!b || b->size - b->used < n) {
		size_t size = n > ARENA_BLOCK ? n : ARENA_BLOCK;

		b = malloc(sizeof(*b) + size);
		if (!b)
			return NULL;
		b->next = c->arena;
		b->used = 0;
		b->size = size;
		c->arena = b;
	}
	p = (char *)b->data + b->used;
	b->used += n;
	return p;
}

/* Text of a column, copied and hashed; NULL for SQL NULL, or with *rc set when out of memory. */
static const char *get_text(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, int col,
			    uint32_t *ret_len, int *rc)
{
	const char *p = (const char *)sqlite3_column_text(s, col);
	size_t n = (size_t)sqlite3_column_bytes(s, col);
	char *copy;

	seal_text(seal, p, n);
	if (ret_len)
		*ret_len = (uint32_t)n;
	if (!p)
		return NULL;
	copy = arena_alloc(c, n + 1);
	if (!copy) {
		*rc = -ENOMEM;
		return NULL;
	}
	memcpy(copy, p, n);
	copy[n] = 0;
	return copy;
}

static uint64_t get_int(XXH3_state_t *seal, sqlite3_stmt *s, int col)
{
	int64_t v = sqlite3_column_int64(s, col);

	seal_int(seal, v);
	return (uint64_t)v;
}

/* ---- the numbers in our own JSON ---- */

/*
 * The next number of text that this program wrote and a hash vouches for: brackets, commas and
 * line ends only separate. False at the end.
 */
static bool next_number(const char **p, const char *end, uint64_t *ret)
{
	const char *s = *p;
	uint64_t v = 0;

	while (s < end && (*s < '0' || *s > '9'))
		s++;
	if (s == end)
		return false;
	for (; s < end && *s >= '0' && *s <= '9'; s++)
		v = v * 10 + (uint64_t)(*s - '0');
	*p = s;
	*ret = v;
	return true;
}

/* ---- tables ---- */

/* Rows of a table whose ids must be 0, 1, 2... Calls row() for each. */
typedef int row_fn(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i, struct err *e);

static int each_row(struct catalog *c, XXH3_state_t *seal, const char *sql, size_t limit,
		    row_fn *row, size_t *ret_n, struct err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	size_t i = 0;
	int rc = sql_prepare(c->db, sql, &s, e), step;

	if (rc)
		return rc;
	while ((step = sqlite3_step(s)) == SQLITE_ROW) {
		if (i == limit)
			return damaged(e, "more rows than it counts");
		rc = row(c, seal, s, i++, e);
		if (rc == -ENOMEM)
			return err_set(e, ENOMEM, "chunk index: out of memory");
		if (rc)
			return rc;
	}
	if (step != SQLITE_DONE)
		return sql_err(c->db, e, "chunk index");
	*ret_n = i;
	return 0;
}

static int source_row(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i, struct err *e)
{
	struct catalog_source *r = &c->sources[i];
	int rc = 0;

	if (get_int(seal, s, 0) != i)
		return damaged(e, "source numbers");
	r->path = get_text(c, seal, s, 1, NULL, &rc);
	r->min_size = get_int(seal, s, 2);
	return rc ? rc : r->path ? 0 : damaged(e, "source without a path");
}

static int encoding_row(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i,
			struct err *e)
{
	int rc = 0;

	if (get_int(seal, s, 0) != i)
		return damaged(e, "encoding numbers");
	c->encodings[i] = get_text(c, seal, s, 1, NULL, &rc);
	return rc ? rc : c->encodings[i] ? 0 : damaged(e, "encoding without a name");
}

static int shape_of(struct catalog *c, const char *text, uint32_t len, struct catalog_tensor *t,
		    struct err *e)
{
	const char *p = text, *end = text + len;
	uint64_t v[MAX_DIMS], *shape;
	size_t n = 0;

	while (n < MAX_DIMS && next_number(&p, end, &v[n]))
		n++;
	shape = arena_alloc(c, n * sizeof(*v));
	if (!shape)
		return -ENOMEM;
	memcpy(shape, v, n * sizeof(*v));
	t->shape = shape;
	t->n_dims = (uint8_t)n;
	return next_number(&p, end, &v[0]) ? damaged(e, "shape") : 0;
}

static int tensor_row(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i, struct err *e)
{
	struct catalog_tensor *t = &c->tensors[i];
	const char *dtype, *shape, *state;
	uint32_t dtype_len, shape_len;
	int rc = 0;

	if (get_int(seal, s, 0) != i)
		return damaged(e, "tensor numbers");
	t->fqn = get_text(c, seal, s, 1, &t->fqn_len, &rc);
	/* These three are not kept as text: hash in place, no copy. */
	dtype = (const char *)sqlite3_column_text(s, 2);
	dtype_len = (uint32_t)sqlite3_column_bytes(s, 2);
	seal_text(seal, dtype, dtype_len);
	shape = (const char *)sqlite3_column_text(s, 3);
	shape_len = (uint32_t)sqlite3_column_bytes(s, 3);
	seal_text(seal, shape, shape_len);
	t->bytes = get_int(seal, s, 4);
	t->chunks = (uint32_t)get_int(seal, s, 5);
	seal_text(seal, (const char *)sqlite3_column_text(s, 6), (size_t)sqlite3_column_bytes(s, 6));
	state = (const char *)sqlite3_column_text(s, 7);
	seal_text(seal, state, (size_t)sqlite3_column_bytes(s, 7));
	if (rc || !t->fqn || !dtype || !shape || !state)
		return rc ? rc : damaged(e, "tensor without a name");
	t->state = !strcmp(state, "complete")      ? TENSOR_COMPLETE
		   : !strcmp(state, "overlapping") ? TENSOR_OVERLAPPING
						   : TENSOR_INCOMPLETE;
	t->fault = get_text(c, seal, s, 8, NULL, &rc);
	t->map = (int64_t)get_int(seal, s, 9);
	t->map_xxh64 = get_int(seal, s, 10);
	t->dtype = (uint8_t)dtype_by_name(dtype, dtype_len);
	if (!rc)
		rc = shape_of(c, shape, shape_len, t, e);
	return rc ? rc : t->dtype == DTYPE_NONE ? damaged(e, "dtype") : 0;
}

static int object_row(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i, struct err *e)
{
	struct catalog_object *o = &c->objects[i];
	int rc = 0;

	if (get_int(seal, s, 0) != i)
		return damaged(e, "object numbers");
	o->fqn = get_text(c, seal, s, 1, &o->fqn_len, &rc);
	o->loc.file = (uint32_t)get_int(seal, s, 2);
	o->loc.offset = get_int(seal, s, 3);
	o->loc.length = get_int(seal, s, 4);
	o->loc.encoding = (uint32_t)get_int(seal, s, 5);
	o->fault = get_text(c, seal, s, 6, NULL, &rc);
	if (rc || !o->fqn)
		return rc ? rc : damaged(e, "object without a name");
	if (!o->fault && (o->loc.file >= c->n_sources || o->loc.encoding >= c->n_encodings))
		return damaged(e, "object in no file");
	return 0;
}

static int metadata_row(struct catalog *c, XXH3_state_t *seal, sqlite3_stmt *s, size_t i,
			struct err *e)
{
	struct catalog_metadata *m = &c->metadata[i];
	const char *hash = (const char *)sqlite3_column_text(s, 5);
	const char *name = (const char *)sqlite3_column_text(s, 0);
	char *copy;

	(void)seal; /* see catalog_add_metadata */
	if (!name || !hash || strlen(hash) != 32)
		return damaged(e, "metadata file");
	copy = arena_alloc(c, strlen(name) + 1);
	if (!copy)
		return -ENOMEM;
	(void)stpcpy(copy, name);
	m->name = copy;
	m->size = (uint64_t)sqlite3_column_int64(s, 1);
	m->mtime_ns = (uint64_t)sqlite3_column_int64(s, 2);
	m->ctime_ns = (uint64_t)sqlite3_column_int64(s, 3);
	m->inode = (uint64_t)sqlite3_column_int64(s, 4);
	memcpy(m->hash, hash, 33);
	return 0;
}

/* ---- opening ---- */

static int check_schema(sqlite3 *db, struct err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	size_t i = 0;
	int rc = sql_prepare(db, "PRAGMA application_id", &s, e), step;

	if (rc)
		return rc;
	if (sqlite3_step(s) != SQLITE_ROW || sqlite3_column_int(s, 0) != CATALOG_APPLICATION_ID)
		return err_set(e, ERR_CORRUPT, "this is not a chunk index");
	(void)sqlite3_finalize(steal_ptr(&s));
	rc = sql_prepare(db, "PRAGMA user_version", &s, e);
	if (rc)
		return rc;
	if (sqlite3_step(s) != SQLITE_ROW || sqlite3_column_int(s, 0) != CATALOG_VERSION)
		return err_set(e, ERR_CORRUPT, "chunk index of another version");
	(void)sqlite3_finalize(steal_ptr(&s));
	/* Nothing but our own tables: a trigger or a view of somebody else's would be code. */
	rc = sql_prepare(db, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid", &s, e);
	if (rc)
		return rc;
	for (; (step = sqlite3_step(s)) == SQLITE_ROW; i++) {
		const char *sql = (const char *)sqlite3_column_text(s, 0);

		if (!catalog_schema[i] || !sql || strcmp(sql, catalog_schema[i]) != 0)
			return err_set(e, ERR_CORRUPT, "chunk index with other tables");
	}
	if (step != SQLITE_DONE)
		return sql_err(db, e, "chunk index");
	return catalog_schema[i] ? err_set(e, ERR_CORRUPT, "chunk index lacks a table") : 0;
}

static int count_rows(struct catalog *c, const char *sql, size_t *ret, struct err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	int rc = sql_prepare(c->db, sql, &s, e);

	if (rc)
		return rc;
	if (sqlite3_step(s) != SQLITE_ROW)
		return sql_err(c->db, e, "chunk index");
	*ret = (size_t)sqlite3_column_int64(s, 0);
	return 0;
}

static int check_seal(struct catalog *c, XXH3_state_t *seal, struct err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	const char *want, *format;
	int rc = sql_prepare(c->db, "SELECT format, tensors, objects, chunks, bytes, seal FROM checkpoint",
			     &s, e);

	if (rc)
		return rc;
	if (sqlite3_step(s) != SQLITE_ROW)
		return damaged(e, "no checkpoint row");
	format = (const char *)sqlite3_column_text(s, 0);
	seal_text(seal, format, (size_t)sqlite3_column_bytes(s, 0));
	for (int col = 1; col <= 4; col++)
		(void)get_int(seal, s, col);
	c->chunks = (uint64_t)sqlite3_column_int64(s, 3);
	seal_hex(XXH3_128bits_digest(seal), c->seal);
	want = (const char *)sqlite3_column_text(s, 5);
	return want && !strcmp(want, c->seal) ? 0 : damaged(e, "its seal does not match its rows");
}

static int read_tables(struct catalog *c, XXH3_state_t *seal, struct err *e)
{
	size_t tensors = 0, objects = 0, sources = 0, encodings = 0, metadata = 0;
	int rc = count_rows(c, "SELECT count(*) FROM tensor", &tensors, e);

	if (!rc)
		rc = count_rows(c, "SELECT count(*) FROM object", &objects, e);
	if (!rc)
		rc = count_rows(c, "SELECT count(*) FROM source", &sources, e);
	if (!rc)
		rc = count_rows(c, "SELECT count(*) FROM encoding", &encodings, e);
	if (!rc)
		rc = count_rows(c, "SELECT count(*) FROM metadata_file", &metadata, e);
	if (rc)
		return rc;
	c->tensors = calloc(tensors + 1, sizeof(*c->tensors));
	c->objects = calloc(objects + 1, sizeof(*c->objects));
	c->sources = calloc(sources + 1, sizeof(*c->sources));
	c->encodings = calloc(encodings + 1, sizeof(*c->encodings));
	c->metadata = calloc(metadata + 1, sizeof(*c->metadata));
	if (!c->tensors || !c->objects || !c->sources || !c->encodings || !c->metadata)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	rc = each_row(c, seal, "SELECT id, path, min_size FROM source ORDER BY id", sources,
		      source_row, &c->n_sources, e);
	if (!rc)
		rc = each_row(c, seal, "SELECT id, name FROM encoding ORDER BY id", encodings,
			      encoding_row, &c->n_encodings, e);
	if (!rc)
		rc = each_row(c, seal,
			      "SELECT id, fqn, dtype, shape, bytes, chunks, grid, state, fault, map,"
			      " map_xxh64 FROM tensor ORDER BY id",
			      tensors, tensor_row, &c->n_tensors, e);
	if (!rc)
		rc = each_row(c, seal,
			      "SELECT id, fqn, source, offset, length, encoding, fault FROM object"
			      " ORDER BY id",
			      objects, object_row, &c->n_objects, e);
	if (!rc)
		rc = each_row(c, seal,
			      "SELECT name, size, mtime_ns, ctime_ns, inode, xxh128 FROM metadata_file"
			      " ORDER BY name",
			      metadata, metadata_row, &c->n_metadata, e);
	return rc ? rc : check_seal(c, seal, e);
}

int catalog_from_db(sqlite3 *db, struct catalog **ret, struct err *e)
{
	struct catalog *c = calloc(1, sizeof(*c));
	XXH3_state_t *seal = XXH3_createState();
	int rc;

	if (!c || !seal) {
		(void)sqlite3_close(db);
		free(c);
		XXH3_freeState(seal);
		return err_set(e, ENOMEM, "chunk index: out of memory");
	}
	(void)pthread_mutex_init(&c->lock, NULL);
	c->db = db;
	(void)XXH3_128bits_reset(seal);
	rc = read_tables(c, seal, e);
	XXH3_freeState(seal);
	if (!rc)
		rc = sql_prepare(db, "SELECT chunks FROM chunkmap WHERE id=?", &c->select_map, e);
	if (rc) {
		catalog_close(c);
		return rc;
	}
	*ret = c;
	return 0;
}

/* "file:PATH?immutable=1": no locks, no journal, since a finished index is never written again. */
static char *immutable_uri(const char *path)
{
	char *uri = malloc(3 * strlen(path) + sizeof("file:?immutable=1")), *at;

	if (!uri)
		return NULL;
	at = stpcpy(uri, "file:");
	for (; *path; path++) {
		if (strchr("%?#", *path) || (unsigned char)*path < 0x20)
			at += snprintf(at, 4, "%%%02X", (unsigned char)*path);
		else
			*at++ = *path;
	}
	(void)stpcpy(at, "?immutable=1");
	return uri;
}

int catalog_open(const char *path, struct catalog **ret, struct err *e)
{
	autofree char *uri = immutable_uri(path);
	sqlite3 *db = NULL;
	int rc;

	if (!uri)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	if (sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, NULL)) {
		rc = db ? sql_err(db, e, path) : err_set(e, ENOMEM, "chunk index: out of memory");
		(void)sqlite3_close(db);
		return rc;
	}
	/* The file may come from anywhere. */
	(void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	rc = sql_exec(db, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA cache_size=-1024", e);
	if (!rc)
		rc = check_schema(db, e);
	if (rc) {
		(void)sqlite3_close(db);
		return rc;
	}
	return catalog_from_db(db, ret, e);
}

void catalog_close(struct catalog *c)
{
	if (!c)
		return;
	(void)sqlite3_finalize(c->select_map);
	(void)sqlite3_close(c->db);
	while (c->arena) {
		struct block *next = c->arena->next;

		free(c->arena);
		c->arena = next;
	}
	(void)pthread_mutex_destroy(&c->lock);
	free(c->tensors);
	free(c->objects);
	free(c->sources);
	free(c->metadata);
	free(c->encodings);
	free(c);
}

/* ---- chunk maps ---- */

static int map_from_text(const struct catalog *c, const struct catalog_tensor *t, const char *text,
			 size_t len, struct chunkmap **ret, struct err *e)
{
	const char *p = text, *end = text + len;
	size_t n = t->n_dims;
	autofree uint64_t *boxes = malloc((2 * n * t->chunks + 1) * sizeof(*boxes));
	autofree struct chunk_loc *locs = malloc((t->chunks + 1u) * sizeof(*locs));
	autofree struct chunkmap *m = NULL;
	uint64_t v[4];

	if (!boxes || !locs)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	for (uint32_t i = 0; i < t->chunks; i++) {
		uint64_t *box = boxes + i * 2 * n;
		bool ok = true;

		for (size_t k = 0; k < 2 * n; k++)
			ok &= next_number(&p, end, &box[k]);
		for (size_t k = 0; k < 4; k++)
			ok &= next_number(&p, end, &v[k]);
		/* The hash says that we wrote it; still nothing below may index out of bounds. */
		if (!ok || !box_inside(n, box, box + n, t->shape) || v[0] >= c->n_sources ||
		    v[3] >= c->n_encodings || v[1] > INT64_MAX || v[2] > INT64_MAX)
			return damaged(e, "chunk map");
		locs[i] = (struct chunk_loc){ .file = (uint32_t)v[0], .offset = v[1], .length = v[2],
					      .encoding = (uint32_t)v[3] };
	}
	m = chunkmap_new(n, t->shape, boxes, t->chunks);
	if (!m)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	memcpy(m->locs, locs, t->chunks * sizeof(*locs));
	*ret = steal_ptr(&m);
	return 0;
}

int catalog_load_map(struct catalog *c, const struct catalog_tensor *t, struct chunkmap **ret,
		     struct err *e)
{
	autofree char *copy = NULL;
	size_t len = 0;
	int rc = 0;

	{
		SCOPED_LOCK(&c->lock);
		const char *text;

		(void)sqlite3_bind_int64(c->select_map, 1, t->map);
		if (sqlite3_step(c->select_map) == SQLITE_ROW &&
		    (text = (const char *)sqlite3_column_text(c->select_map, 0))) {
			len = (size_t)sqlite3_column_bytes(c->select_map, 0);
			copy = malloc(len + 1);
			if (copy)
				memcpy(copy, text, len);
		} else {
			rc = sqlite3_errcode(c->db) == SQLITE_ROW || sqlite3_errcode(c->db) == SQLITE_DONE
				     ? damaged(e, "no chunk map")
				     : sql_err(c->db, e, "chunk index");
		}
		(void)sqlite3_reset(c->select_map);
	}
	if (rc)
		return rc;
	if (!copy)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	if (map_hash(copy, len) != t->map_xxh64)
		return damaged(e, "chunk map does not match its hash");
	return map_from_text(c, t, copy, len, ret, e);
}

/* ---- looking ---- */

const struct catalog_tensor *catalog_tensors(const struct catalog *c, size_t *ret_n)
{
	*ret_n = c->n_tensors;
	return c->tensors;
}

const struct catalog_object *catalog_objects(const struct catalog *c, size_t *ret_n)
{
	*ret_n = c->n_objects;
	return c->objects;
}

const struct catalog_source *catalog_sources(const struct catalog *c, size_t *ret_n)
{
	*ret_n = c->n_sources;
	return c->sources;
}

const struct catalog_metadata *catalog_metadata(const struct catalog *c, size_t *ret_n)
{
	*ret_n = c->n_metadata;
	return c->metadata;
}

const char *const *catalog_encodings(const struct catalog *c, size_t *ret_n)
{
	*ret_n = c->n_encodings;
	return (const char *const *)c->encodings;
}

uint64_t catalog_chunks(const struct catalog *c)
{
	return c->chunks;
}

const char *catalog_seal(const struct catalog *c)
{
	return c->seal;
}

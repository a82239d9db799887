/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog_query.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "catalog/catalog_internal.h"
#include "catalog/catalog_path.h"
#include "catalog/catalog_schema.h"
#include "model/flat.h"

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
	char *directory; /* its texts are used in place */
	struct catalog_tensor *tensors;
	struct catalog_object *objects;
	struct catalog_source *sources;
	struct catalog_metadata *metadata;
	const char **encodings;
	size_t n_tensors, n_objects, n_sources, n_metadata, n_encodings;
	uint64_t chunks;
	char seal[33];
};

static int damaged(struct ckpt_err *e, const char *what)
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

/* ---- the directory; its form is described in catalog_schema.h ---- */

/* A text of the directory, in place; NULL for none. */
static const char *get_text(struct cursor *d, uint32_t *ret_len)
{
	uint64_t n = cursor_varint(d);
	const char *p;

	if (ret_len)
		*ret_len = (uint32_t)(n ? n - 1 : 0);
	if (!n || n > UINT32_MAX)
		return NULL;
	p = (const char *)cursor_take(d, n);
	if (p && p[n - 1])
		d->bad = true;
	return p;
}

/* A count of things that take at least `each` bytes, and an array for them. */
static void *get_count(struct cursor *d, size_t each, size_t size, size_t *ret)
{
	uint64_t n = cursor_varint(d);

	if (d->bad || n > (uint64_t)(d->end - d->p) / each)
		d->bad = true;
	*ret = d->bad ? 0 : n;
	return calloc(*ret + 1, size);
}

static int get_names(struct catalog *c, struct cursor *d)
{
	c->sources = get_count(d, 2, sizeof(*c->sources), &c->n_sources);
	for (size_t i = 0; c->sources && i < c->n_sources; i++) {
		c->sources[i].path = get_text(d, NULL);
		c->sources[i].min_size = cursor_varint(d);
		d->bad |= !c->sources[i].path;
	}
	c->encodings = get_count(d, 1, sizeof(*c->encodings), &c->n_encodings);
	for (size_t i = 0; c->encodings && i < c->n_encodings; i++) {
		c->encodings[i] = get_text(d, NULL);
		d->bad |= !c->encodings[i];
	}
	return c->sources && c->encodings ? 0 : -ENOMEM;
}

/* The shape before flattening; t has the rest. */
static int get_logical(struct catalog *c, struct cursor *d, struct catalog_tensor *t)
{
	uint64_t n = cursor_varint(d), *shape;

	if (d->bad || !n)
		return 0;
	if (n + 1 != t->n_dims) {
		d->bad = true;
		return 0;
	}
	shape = arena_alloc(c, n * sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		shape[i] = cursor_varint(d);
	t->logical = shape;
	t->n_logical = (uint8_t)n;
	d->bad |= !flat_fits(n, shape, t->shape);
	return 0;
}

static int get_tensor(struct catalog *c, struct cursor *d, struct catalog_tensor *t)
{
	uint64_t dtype, n_dims, *shape, bytes;

	t->fqn = get_text(d, &t->fqn_len);
	t->path = catalog_path_read(d, t->fqn, t->fqn_len);
	t->top = catalog_path_top(t->path, t->fqn_len);
	dtype = cursor_varint(d);
	n_dims = cursor_varint(d);
	if (d->bad || !t->fqn || !dtype || dtype >= CKPT_DTYPE_COUNT || n_dims > CKPT_MAX_DIMS) {
		d->bad = true;
		return 0;
	}
	shape = arena_alloc(c, n_dims * sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	for (size_t i = 0; i < n_dims; i++)
		shape[i] = cursor_varint(d);
	t->dtype = (uint8_t)dtype;
	t->n_dims = (uint8_t)n_dims;
	t->shape = shape;
	t->bytes = cursor_varint(d);
	t->chunks = (uint32_t)cursor_varint(d);
	t->state = (uint8_t)cursor_varint(d);
	t->fault = get_text(d, NULL);
	t->map = (int64_t)cursor_varint(d);
	t->map_xxh64 = cursor_varint(d);
	/* A seal proves that the file is whole, not that we wrote it; planning relies on this. */
	d->bad |= !box_volume(n_dims, shape, &bytes) ||
		  ckd_mul(&bytes, bytes, dtype_info(t->dtype)->size) || bytes != t->bytes;
	return get_logical(c, d, t);
}

static void get_object(struct catalog *c, struct cursor *d, struct catalog_object *o)
{
	o->fqn = get_text(d, &o->fqn_len);
	o->path = catalog_path_read(d, o->fqn, o->fqn_len);
	o->top = catalog_path_top(o->path, o->fqn_len);
	o->loc.file = (uint32_t)cursor_varint(d);
	o->loc.offset = cursor_varint(d);
	o->loc.length = cursor_varint(d);
	o->loc.encoding = (uint32_t)cursor_varint(d);
	o->fault = get_text(d, NULL);
	o->text = get_text(d, &o->text_len);
	if (o->fault || o->text) /* it is in no file, whatever the numbers say */
		o->loc = (struct chunk_loc){ 0 };
	else
		d->bad |= o->loc.file >= c->n_sources || o->loc.encoding >= c->n_encodings;
	d->bad |= !o->fqn;
}

static int parse_directory(struct catalog *c, size_t len, struct ckpt_err *e)
{
	struct cursor d = cursor_of(c->directory, len);
	int rc;

	(void)get_text(&d, NULL); /* the format, there for the seal */
	c->chunks = cursor_varint(&d);
	rc = get_names(c, &d);
	c->tensors = get_count(&d, 12, sizeof(*c->tensors), &c->n_tensors);
	for (size_t i = 0; !rc && c->tensors && i < c->n_tensors && !d.bad; i++)
		rc = get_tensor(c, &d, &c->tensors[i]);
	c->objects = get_count(&d, 8, sizeof(*c->objects), &c->n_objects);
	for (size_t i = 0; c->objects && i < c->n_objects && !d.bad; i++)
		get_object(c, &d, &c->objects[i]);
	if (rc || !c->tensors || !c->objects)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	return d.bad || d.p != d.end ? damaged(e, "its directory") : 0;
}

static int read_directory(struct catalog *c, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	const char *want;
	const void *data;
	size_t len;
	int rc = sql_prepare(c->db, "SELECT seal, data FROM checkpoint, directory", &s, e), step;

	if (rc)
		return rc;
	step = sqlite3_step(s);
	if (step != SQLITE_ROW)
		return step == SQLITE_DONE ? damaged(e, "it has no directory")
					   : sql_err(c->db, e, "chunk index");
	data = sqlite3_column_blob(s, 1);
	len = (size_t)sqlite3_column_bytes(s, 1);
	if (!data || !len)
		return damaged(e, "its directory is empty");
	seal_hex(XXH3_128bits(data, len), c->seal);
	want = (const char *)sqlite3_column_text(s, 0);
	if (!want || strcmp(want, c->seal) != 0)
		return damaged(e, "its seal does not match its directory");
	c->directory = malloc(len);
	if (!c->directory)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	memcpy(c->directory, data, len);
	return parse_directory(c, len, e);
}

static int read_metadata_files(struct catalog *c, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	size_t cap = 0;
	int rc = sql_prepare(
		    c->db,
		    "SELECT name, size, mtime_ns, ctime_ns, inode, xxh128 FROM metadata_file"
		    " ORDER BY name",
		    &s, e),
	    step;

	if (rc)
		return rc;
	while ((step = sqlite3_step(s)) == SQLITE_ROW) {
		const char *name = (const char *)sqlite3_column_text(s, 0);
		const char *hash = (const char *)sqlite3_column_text(s, 5);
		struct catalog_metadata *m;
		char *copy;

		if (!name || !hash || (*hash && strlen(hash) != 32))
			return damaged(e, "its list of metadata files");
		if (c->n_metadata == cap) {
			cap = cap ? cap * 2 : 8;
			m = realloc(c->metadata, cap * sizeof(*m));
			if (!m)
				return err_set(e, ENOMEM, "chunk index: out of memory");
			c->metadata = m;
		}
		copy = arena_alloc(c, strlen(name) + 1);
		if (!copy)
			return err_set(e, ENOMEM, "chunk index: out of memory");
		(void)stpcpy(copy, name);
		m = &c->metadata[c->n_metadata++];
		m->name = copy;
		m->size = (uint64_t)sqlite3_column_int64(s, 1);
		m->mtime_ns = (uint64_t)sqlite3_column_int64(s, 2);
		m->ctime_ns = (uint64_t)sqlite3_column_int64(s, 3);
		m->inode = (uint64_t)sqlite3_column_int64(s, 4);
		memcpy(m->hash, hash, strlen(hash) + 1);
	}
	return step == SQLITE_DONE ? 0 : sql_err(c->db, e, "chunk index");
}

/* ---- opening ---- */

static int check_schema(sqlite3 *db, struct ckpt_err *e)
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
	rc = sql_prepare(db, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid",
			 &s, e);
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

int catalog_from_db(sqlite3 *db, struct catalog **ret, struct ckpt_err *e)
{
	struct catalog *c = calloc(1, sizeof(*c));
	int rc;

	if (!c) {
		(void)sqlite3_close(db);
		return err_set(e, ENOMEM, "chunk index: out of memory");
	}
	(void)pthread_mutex_init(&c->lock, NULL);
	c->db = db;
	rc = read_directory(c, e);
	if (!rc)
		rc = read_metadata_files(c, e);
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

int catalog_open(const char *path, struct catalog **ret, struct ckpt_err *e)
{
	autofree char *uri = immutable_uri(path);
	sqlite3 *db = NULL;
	int rc;

	if (!uri)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	if (sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX,
			    NULL)) {
		rc = db ? sql_err(db, e, path) : err_set(e, ENOMEM, "chunk index: out of memory");
		(void)sqlite3_close(db);
		return rc;
	}
	/* The file may come from anywhere. */
	(void)sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
	rc = sql_exec(
		db, "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA cache_size=-1024",
		e);
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
	free(c->directory);
	free(c->tensors);
	free(c->objects);
	free(c->sources);
	free(c->metadata);
	free(c->encodings);
	free(c);
}

/* ---- chunk maps ---- */

static int map_from_text(const struct catalog *c, const struct catalog_tensor *t, const char *text,
			 size_t len, struct chunkmap **ret, struct ckpt_err *e)
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
		locs[i] = (struct chunk_loc){ .file = (uint32_t)v[0],
					      .offset = v[1],
					      .length = v[2],
					      .encoding = (uint32_t)v[3] };
	}
	m = chunkmap_new(n, t->shape, boxes, t->chunks);
	if (!m)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	/* A grid covers its tensor by being one. Of other chunks the index only says so. */
	if (!m->counts && t->state != TENSOR_INCOMPLETE) {
		uint64_t hole_off[CKPT_MAX_DIMS], hole_len[CKPT_MAX_DIMS];
		size_t pair[2];

		switch (boxes_cover(n, t->shape, boxes, t->chunks, hole_off, hole_len, pair)) {
		case BOXES_COVER:
		case BOXES_OVERLAP:
			break;
		default:
			return damaged(e, "chunk map with a hole");
		}
	}
	memcpy(m->locs, locs, t->chunks * sizeof(*locs));
	*ret = steal_ptr(&m);
	return 0;
}

int catalog_load_map(struct catalog *c, const struct catalog_tensor *t, struct chunkmap **ret,
		     struct ckpt_err *e)
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
			rc = sqlite3_errcode(c->db) == SQLITE_ROW ||
					     sqlite3_errcode(c->db) == SQLITE_DONE
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

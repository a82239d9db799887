/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a chunk index: its directory is read, and becomes the tables of struct catalog. */
#include "index/catalog_query.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/search.h"
#include "base/text.h"
#include "index/catalog_build.h"
#include "index/catalog_file.h"
#include "index/catalog_internal.h"
#include "index/catalog_path.h"
#include "index/catalog_schema.h"
#include "model/box.h"
#include "model/flat.h"

#include <stdlib.h>
#include <string.h>

int catalog_damaged(struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "chunk index is damaged: %s", what);
}

/* ---- values of the file, by the number of their row ---- */

int catalog_no_value(struct catalog *c, const char *what, struct ckpt_err *e)
{
	return sqlite3_errcode(c->db) == SQLITE_ERROR ? catalog_damaged(e, what)
						      : sql_err(c->db, e, "chunk index");
}

/* Reads a value of at most max bytes, which cannot exceed the size of the file; the caller frees
 * it. Its length is checked before any of it is read. */
static int read_value(struct catalog *c, const char *table, const char *column, int64_t row,
		      size_t max, const char *what, char **ret, size_t *ret_len, struct ckpt_err *e)
{
	autofree char *p = NULL;
	sqlite3_blob *b = NULL;
	size_t len;
	int rc = 0;

	if (sqlite3_blob_open(c->db, "main", table, column, row, 0, &b))
		return catalog_no_value(c, what, e);
	len = (size_t)sqlite3_blob_bytes(b);
	if (c->file)
		max = min_u64(max, catalog_file_size(c->file));
	if (len > max)
		rc = catalog_damaged(e, what);
	else if (!(p = malloc(len ? len : 1)))
		rc = catalog_no_memory(e);
	else if (sqlite3_blob_read(b, p, (int)len, 0))
		rc = sql_err(c->db, e, "chunk index");
	(void)sqlite3_blob_close(b);
	if (rc)
		return rc;
	*ret = steal_ptr(&p);
	*ret_len = len;
	return 0;
}

/* ---- the directory; its form is described in catalog_schema.h ---- */

/* A text of the directory, in place; NULL for none. */
static const char *get_text(struct cursor *d, uint32_t *ret_len)
{
	uint32_t n = (uint32_t)cursor_varint_to(d, UINT32_MAX);
	const char *p = n ? (const char *)cursor_take(d, n) : NULL;

	*ret_len = p ? n - 1 : 0;
	if (p && p[n - 1])
		d->bad = true;
	return p;
}

/* A text that is a sentence or a name: it contains no NUL except at its end. */
static const char *get_str(struct cursor *d)
{
	uint32_t len;
	const char *p = get_text(d, &len);

	if (d->bad || (p && strlen(p) != len))
		d->bad = true;
	return d->bad ? NULL : p;
}

/* The same for a text that is shown to people and says what an untrusted file says. */
static const char *get_shown(struct catalog *c, struct cursor *d)
{
	const char *p = get_str(d);

	if (p)
		text_make_fit(c->directory + (p - c->directory));
	return p;
}

/* A count of things that take at least `each` bytes, and an array for them. */
static void *get_count(struct cursor *d, size_t each, size_t size, size_t *ret)
{
	size_t n = (size_t)cursor_varint_to(d, (size_t)(d->end - d->p) / each);

	*ret = n;
	return calloc(n ? n : 1, size);
}

/* Source i is the index itself. */
static void get_inline(struct catalog *c, struct cursor *d, size_t i)
{
	c->inline_xxh64 = cursor_varint(d);
	d->bad |= c->inline_source || c->sources[i].min_size > CATALOG_MAX_INLINE;
	c->inline_source = i + 1;
	c->sources[i].path = CATALOG_INLINE_PATH;
}

static int get_names(struct catalog *c, struct cursor *d)
{
	struct ckpt_err ignored;

	c->sources = get_count(d, 3, sizeof(*c->sources), &c->n_sources);
	for (size_t i = 0; c->sources && i < c->n_sources && !d->bad; i++) {
		struct stored_file *s = &c->sources[i];

		s->path = get_str(d);
		s->min_size = cursor_varint(d);
		if (s->path && !*s->path)
			get_inline(c, d, i);
		else
			d->bad |= !s->path || io_check_relative(s->path, strlen(s->path), &ignored);
	}
	c->encodings = get_count(d, 2, sizeof(*c->encodings), &c->n_encodings);
	for (size_t i = 0; c->encodings && i < c->n_encodings && !d->bad; i++) {
		c->encodings[i] = get_shown(c, d);
		d->bad |= !c->encodings[i];
	}
	return c->sources && c->encodings ? 0 : -ENOMEM;
}

/* The name of the tensor or object behind `last`. */
static const char *get_fqn(struct cursor *d, const char *last, uint32_t last_len, uint32_t *ret_len)
{
	const char *fqn = get_text(d, ret_len);

	d->bad |= !fqn || !text_is_utf8(fqn, *ret_len) ||
		  (last && text_natural_cmp(last, last_len, fqn, *ret_len) >= 0);
	return fqn;
}

static const uint64_t *get_shape(struct catalog *c, struct cursor *d, size_t n)
{
	static const uint64_t none[1];
	uint64_t *shape;

	if (!n)
		return none;
	shape = arena_array(&c->shapes, n, sizeof(*shape));
	for (size_t i = 0; shape && i < n; i++)
		shape[i] = cursor_varint(d);
	return shape;
}

/* Sums over the tensors. */
struct totals {
	uint64_t bytes, chunks, map_bytes;
};

/* Do the numbers fit together? Planning relies on it. */
static bool tensor_ok(const struct catalog_tensor *t, struct totals *sum)
{
	uint64_t bytes;

	return box_volume(t->n_dims, t->shape, &bytes) &&
	       !ckd_mul(&bytes, bytes, dtype_info(t->dtype)->size) && bytes == t->bytes &&
	       t->chunks <= t->map_bytes / catalog_map_line(t->n_dims) &&
	       (!t->n_logical || flat_fits(t->n_logical, t->logical, t->shape)) &&
	       !ckd_add(&sum->bytes, sum->bytes, t->bytes) && sum->bytes <= INT64_MAX &&
	       !ckd_add(&sum->chunks, sum->chunks, t->chunks) &&
	       !ckd_add(&sum->map_bytes, sum->map_bytes, t->map_bytes);
}

static int get_tensor(struct catalog *c, struct cursor *d, struct catalog_tensor *t,
		      struct totals *sum)
{
	const struct catalog_tensor *last = t == c->tensors ? NULL : t - 1;

	t->fqn = get_fqn(d, last ? last->fqn : NULL, last ? last->fqn_len : 0, &t->fqn_len);
	t->path = catalog_path_read(d, t->fqn, t->fqn_len);
	t->top = catalog_path_top(t->path, t->fqn_len);
	t->dtype = (uint8_t)cursor_varint_to(d, CKPT_DTYPE_COUNT - 1);
	t->n_dims = (uint8_t)cursor_varint_to(d, CKPT_MAX_DIMS);
	t->shape = get_shape(c, d, t->n_dims);
	t->bytes = cursor_varint(d);
	t->chunks = (uint32_t)cursor_varint_to(d, UINT32_MAX);
	t->state = (uint8_t)cursor_varint_to(d, TENSOR_OVERLAPPING);
	t->fault = get_shown(c, d);
	t->map = (int64_t)cursor_varint_to(d, INT64_MAX);
	t->map_bytes = (uint32_t)cursor_varint_to(d, CATALOG_MAX_MAP);
	t->map_xxh64 = cursor_varint(d);
	t->n_logical = (uint8_t)cursor_varint_to(d, t->n_dims ? t->n_dims - 1u : 0);
	t->logical = get_shape(c, d, t->n_logical);
	if (!t->shape || !t->logical)
		return -ENOMEM;
	d->bad |= !t->dtype || (t->n_logical && t->n_logical + 1 != t->n_dims);
	d->bad = d->bad || !tensor_ok(t, sum);
	return 0;
}

static void get_object(struct catalog *c, struct cursor *d, struct catalog_object *o)
{
	const struct catalog_object *last = o == c->objects ? NULL : o - 1;
	uint64_t end;

	o->fqn = get_fqn(d, last ? last->fqn : NULL, last ? last->fqn_len : 0, &o->fqn_len);
	o->path = catalog_path_read(d, o->fqn, o->fqn_len);
	o->top = catalog_path_top(o->path, o->fqn_len);
	o->loc.file = (uint32_t)cursor_varint_to(d, UINT32_MAX);
	o->loc.offset = cursor_varint(d);
	o->loc.length = cursor_varint(d);
	o->loc.encoding = (uint32_t)cursor_varint_to(d, UINT32_MAX);
	o->fault = get_shown(c, d);
	o->text = get_text(d, &o->text_len);
	if (o->fault || o->text) /* it is not in a file, so the numbers are ignored */
		o->loc = (struct chunk_loc){ 0 };
	else
		d->bad |= o->loc.file >= c->n_sources || o->loc.encoding >= c->n_encodings ||
			  ckd_add(&end, o->loc.offset, o->loc.length) ||
			  end > c->sources[o->loc.file].min_size;
}

static int parse_directory(struct catalog *c, size_t len, struct ckpt_err *e)
{
	struct cursor d = cursor_of(c->directory, len);
	struct totals sum = { 0 };
	uint64_t max = c->file ? catalog_file_size(c->file) : UINT64_MAX, chunks;
	int rc;

	(void)get_str(&d); /* the format, there for the seal */
	chunks = cursor_varint(&d);
	rc = get_names(c, &d);
	c->tensors = get_count(&d, 13, sizeof(*c->tensors), &c->n_tensors);
	for (size_t i = 0; !rc && c->tensors && i < c->n_tensors && !d.bad; i++) {
		c->tensors[i].row = (uint32_t)i;
		rc = get_tensor(c, &d, &c->tensors[i], &sum);
	}
	c->n_rows = c->n_all = c->n_tensors;
	c->objects = get_count(&d, 9, sizeof(*c->objects), &c->n_objects);
	for (size_t i = 0; !rc && c->objects && i < c->n_objects && !d.bad; i++)
		get_object(c, &d, &c->objects[i]);
	c->covered = calloc(c->n_tensors + 1, sizeof(*c->covered));
	if (rc || !c->tensors || !c->objects || !c->covered)
		return catalog_no_memory(e);
	/* All maps together are no longer than the file, so that reading each takes linear time. */
	return d.bad || d.p != d.end || sum.chunks != chunks || sum.map_bytes > max
		       ? catalog_damaged(e, "its directory")
		       : 0;
}

static int read_directory(struct catalog *c, struct ckpt_err *e)
{
	autofree char *want = NULL;
	struct digest seal;
	size_t len, want_len;
	int rc = read_value(c, "directory", "data", CATALOG_DIRECTORY_ROW, CATALOG_MAX_DIRECTORY,
			    "it has no directory", &c->directory, &len, e);

	if (!rc)
		rc = read_value(c, "checkpoint", "seal", 1, sizeof(c->seal) - 1, "it has no seal",
				&want, &want_len, e);
	if (rc)
		return rc;
	seal = digest_of(XXH3_128bits(c->directory, len));
	digest_hex(&seal, c->seal);
	if (!bytes_are(want, want_len, c->seal))
		return catalog_damaged(e, "its seal does not match its directory");
	return parse_directory(c, len, e);
}

/* The bytes of chunks in the index. */
static int read_inline(struct catalog *c, struct ckpt_err *e)
{
	struct stored_file *s = c->sources + c->inline_source - 1;
	size_t len;
	int rc;

	if (!c->inline_source)
		return 0;
	rc = read_value(c, "directory", "data", CATALOG_INLINE_ROW, (size_t)s->min_size,
			"it lacks its chunks", &c->bytes, &len, e);
	if (rc)
		return rc;
	if (len != s->min_size || catalog_hash(c->bytes, len) != c->inline_xxh64)
		return catalog_damaged(e, "its chunks do not match their hash");
	s->bytes = (const uint8_t *)c->bytes;
	return 0;
}

/* ---- the list of metadata files ---- */

static int parse_metadata(struct catalog *c, size_t len, struct ckpt_err *e)
{
	struct cursor d = cursor_of(c->metadata_list, len);

	c->metadata = get_count(&d, 7, sizeof(*c->metadata), &c->n_metadata);
	if (!c->metadata)
		return catalog_no_memory(e);
	for (size_t i = 0; i < c->n_metadata; i++) {
		struct catalog_metadata *m = &c->metadata[i];

		m->name = get_str(&d);
		m->size = cursor_varint(&d);
		m->id = get_str(&d);
		m->hash = get_str(&d);
		d.bad = d.bad || !m->name || !m->id || !m->hash ||
			(*m->hash && strlen(m->hash) != 32) ||
			(i && strcmp(m[-1].name, m->name) >= 0);
		if (d.bad)
			break;
		m->settled = *m->id != CATALOG_UNSETTLED;
		m->id += m->settled ? 0 : 1;
	}
	return d.bad || d.p != d.end ? catalog_damaged(e, "its list of metadata files") : 0;
}

static int read_metadata(struct catalog *c, struct ckpt_err *e)
{
	const char *what = "it has no list of metadata files";
	size_t len, tail = sizeof(uint64_t);
	int rc = read_value(c, "directory", "data", CATALOG_METADATA_ROW, CATALOG_MAX_DIRECTORY,
			    what, &c->metadata_list, &len, e);

	if (rc)
		return rc;
	if (len < tail ||
	    catalog_hash(c->metadata_list, len - tail) != load_le64(c->metadata_list + len - tail))
		return catalog_damaged(e, "its list of metadata files does not match its hash");
	return parse_metadata(c, len - tail, e);
}

/* ---- opening ---- */

/* db and file are the catalog's, also on failure. */
static int catalog_read(sqlite3 *db, struct catalog_file *file, struct catalog **ret,
			struct ckpt_err *e)
{
	struct catalog *c = calloc(1, sizeof(*c));
	int rc;

	if (!c) {
		(void)sqlite3_close(db);
		catalog_file_close(file);
		return catalog_no_memory(e);
	}
	(void)pthread_mutex_init(&c->lock, NULL);
	c->db = db;
	c->file = file;
	c->shapes = (struct arena)ARENA_INIT((size_t)16 * CATALOG_MAX_DIRECTORY);
	c->cover_work = BOXES_MAX_WORK;
	rc = read_directory(c, e);
	if (!rc)
		rc = read_inline(c, e);
	if (!rc)
		rc = read_metadata(c, e);
	if (rc) {
		catalog_close(c);
		return rc;
	}
	*ret = c;
	return 0;
}

int catalog_from_db(sqlite3 *db, struct catalog **ret, struct ckpt_err *e)
{
	return catalog_read(db, NULL, ret, e);
}

int catalog_open(const char *path, struct catalog **ret, struct ckpt_err *e)
{
	struct catalog_file *file = NULL;
	sqlite3 *db = NULL;
	int rc = catalog_file_open(path, &file, &db, e);

	return rc ? rc : catalog_read(db, file, ret, e);
}

int catalog_fd(const struct catalog *c)
{
	return c->file ? catalog_file_fd(c->file) : -1;
}

void catalog_close(struct catalog *c)
{
	if (!c)
		return;
	(void)sqlite3_blob_close(c->map);
	(void)sqlite3_close(c->db);
	catalog_file_close(c->file);
	(void)pthread_mutex_destroy(&c->lock);
	arena_release(&c->shapes);
	free(c->directory);
	free(c->metadata_list);
	free(c->bytes);
	free(c->tensors);
	free(c->covered);
	free(c->objects);
	free(c->sources);
	free(c->metadata);
	free(c->encodings);
	free(c);
}

/* ---- access ---- */

const struct catalog_tensor *catalog_tensors(const struct catalog *c, size_t *ret_n)
{
	if (ret_n)
		*ret_n = c->n_tensors;
	return c->tensors;
}

int64_t catalog_find_tensor(const struct catalog *c, const char *fqn, size_t len)
{
	const struct catalog_tensor *t = c->tensors;
	size_t at = PARTITION_POINT(i, c->n_tensors,
				    text_natural_cmp(t[i].fqn, t[i].fqn_len, fqn, len) < 0);

	return at < c->n_tensors && bytes_equal(t[at].fqn, t[at].fqn_len, fqn, len) ? (int64_t)at
										    : -1;
}

int64_t catalog_find_object(const struct catalog *c, const char *fqn, size_t len)
{
	const struct catalog_object *o = c->objects;
	size_t at = PARTITION_POINT(i, c->n_objects,
				    text_natural_cmp(o[i].fqn, o[i].fqn_len, fqn, len) < 0);

	return at < c->n_objects && bytes_equal(o[at].fqn, o[at].fqn_len, fqn, len) ? (int64_t)at
										    : -1;
}

void catalog_hide_object(struct catalog *c, size_t number)
{
	c->objects[number].hidden = true;
}

size_t catalog_all_tensors(const struct catalog *c)
{
	return c->n_all;
}

size_t catalog_rows(const struct catalog *c)
{
	return c->n_rows;
}

const struct catalog_object *catalog_objects(const struct catalog *c, size_t *ret_n)
{
	if (ret_n)
		*ret_n = c->n_objects;
	return c->objects;
}

const struct stored_file *catalog_sources(const struct catalog *c, size_t *ret_n)
{
	if (ret_n)
		*ret_n = c->n_sources;
	return c->sources;
}

const struct catalog_metadata *catalog_metadata(const struct catalog *c, size_t *ret_n)
{
	if (ret_n)
		*ret_n = c->n_metadata;
	return c->metadata;
}

const char *const *catalog_encodings(const struct catalog *c, size_t *ret_n)
{
	if (ret_n)
		*ret_n = c->n_encodings;
	return (const char *const *)c->encodings;
}

const char *catalog_seal(const struct catalog *c)
{
	return c->seal;
}

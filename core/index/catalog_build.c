/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_build.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "base/vec.h"
#include "index/catalog_internal.h"
#include "index/catalog_normal.h"
#include "index/catalog_path.h"
#include "index/catalog_query.h"
#include "index/catalog_schema.h"
#include "model/flat.h"
#include "parse/pickle_strings.h"
#include "source/place.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A tensor or object, kept until all are known and can be put in natural order. */
struct pending {
	const char *fqn;
	const char *shape, *logical, *grid; /* JSON of a tensor; the last two may be NULL */
	const char *fault;		    /* or NULL */
	const uint8_t *path;
	uint64_t *dims; /* shape, then logical */
	uint64_t bytes, map_xxh64;
	int64_t map;
	size_t map_bytes;
	struct chunk_loc loc; /* of an object; its text follows if the index stores it */
	const char *text;     /* or NULL */
	size_t text_len;
	uint32_t fqn_len, chunks;
	uint8_t dtype, n_dims, state; /* enum ckpt_dtype, dimensions, enum tensor_state */
	uint8_t n_logical;	      /* dimensions of the logical shape, 0: it has none */
};

struct pendings {
	struct pending **v;
	size_t n, cap;
};

struct catalog_writer {
	sqlite3 *db;
	sqlite3_stmt *insert_map;
	char *path, *tmp; /* NULL in memory */
	char *format, *root;
	struct pk_strings *sources, *encodings;
	uint64_t *min_size; /* of each source */
	size_t cap_sources;
	struct pendings tensors, objects;
	struct buf text, path_text;
	struct buf bytes; /* of chunks in the index */
	bool unwritable;  /* it could not be given its name */
	bool has_bytes;	  /* some chunk is there, if only an empty one */
	struct normal normal;
	uint64_t chunks, tensor_bytes;
	size_t text_bytes; /* of objects */
	int64_t maps;
	struct buf directory;
};

static const char builder[] = "ckptfs " CKPTFS_VERSION;

/* ---- names ---- */

static int add_name(struct pk_strings *t, const char *s, size_t len, uint32_t *ret,
		    struct ckpt_err *e)
{
	const struct pk_str *name = pk_intern(t, s, len);

	if (!name)
		return catalog_no_memory(e);
	*ret = name->id;
	return 0;
}

static int add_source(struct catalog_writer *w, const char *path, size_t len, uint32_t *ret,
		      struct ckpt_err *e)
{
	uint32_t known = pk_strings_count(w->sources);
	int rc;

	if (!VEC_ROOM(w->min_size, w->cap_sources, known + (size_t)1))
		return catalog_no_memory(e);
	rc = add_name(w->sources, path, len, ret, e);
	if (!rc && *ret == known)
		w->min_size[known] = 0;
	return rc;
}

int catalog_add_source(struct catalog_writer *w, const char *path, size_t len, uint32_t *ret,
		       struct ckpt_err *e)
{
	int rc = io_check_relative(path, len, e);

	return rc ? rc : add_source(w, path, len, ret, e);
}

int catalog_add_inline(struct catalog_writer *w, const void *bytes, size_t len,
		       struct chunk_loc *loc, struct ckpt_err *e)
{
	uint64_t at = w->bytes.len;
	int rc = add_source(w, "", 0, &loc->file, e); /* no file has this path */

	if (rc)
		return rc;
	if (len)
		buf_add(&w->bytes, bytes, len);
	if (w->bytes.err == ENOMEM)
		return catalog_no_memory(e);
	if (w->bytes.err)
		return err_set(e, EFBIG, "small chunks in the metadata are more than %zu MiB",
			       CATALOG_MAX_INLINE >> 20);
	w->has_bytes = true;
	loc->offset = at;
	loc->length = len;
	return 0;
}

int catalog_add_encoding(struct catalog_writer *w, const char *name, uint32_t *ret,
			 struct ckpt_err *e)
{
	return add_name(w->encodings, name, strlen(name), ret, e);
}

/* ---- opening ---- */

int catalog_writer_new(const char *path, const char *format, const char *root,
		       struct catalog_writer **ret, struct ckpt_err *e)
{
	struct catalog_writer *w = calloc(1, sizeof(*w));
	char begin[160];
	int rc;

	if (!w)
		return catalog_no_memory(e);
	w->text = w->path_text = (struct buf)BUF_INIT(CATALOG_MAX_MAP);
	w->directory = (struct buf)BUF_INIT(CATALOG_MAX_DIRECTORY);
	w->bytes = (struct buf)BUF_INIT(CATALOG_MAX_INLINE);
	w->format = strdup(format);
	w->root = strdup(root);
	w->sources = pk_strings_new(SIZE_MAX);
	w->encodings = pk_strings_new(SIZE_MAX);
	w->path = path ? strdup(path) : NULL;
	w->tmp = path ? text_format("%s" CATALOG_UNFINISHED, path) : NULL;
	if (!w->format || !w->root || !w->sources || !w->encodings ||
	    (path && (!w->path || !w->tmp))) {
		rc = catalog_no_memory(e);
		goto fail;
	}
	if (w->tmp)
		(void)unlink(w->tmp); /* left by a killed builder; the caller holds the lock */
	/* Without SQLite's locks, which not every file system has: nobody else knows this file. */
	if (sqlite3_open_v2(w->tmp ? w->tmp : ":memory:", &w->db,
			    SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
			    w->tmp ? "unix-none" : NULL)) {
		rc = w->db ? sql_err(w->db, e, w->tmp ? w->tmp : "chunk index")
			   : catalog_no_memory(e);
		goto fail;
	}
	(void)snprintf(begin, sizeof(begin),
		       "PRAGMA page_size=%d; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
		       "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-4096; BEGIN",
		       CATALOG_PAGE);
	rc = sql_exec(w->db, begin, e);
	for (size_t i = 0; !rc && catalog_schema[i]; i++)
		rc = sql_exec(w->db, catalog_schema[i], e);
	if (!rc)
		rc = sql_prepare(w->db, "INSERT INTO chunkmap VALUES(?,?)", &w->insert_map, e);
	if (rc)
		goto fail;
	*ret = w;
	return 0;
fail:
	catalog_writer_free(w);
	return rc;
}

static void pendings_release(struct pendings *p)
{
	for (size_t i = 0; i < p->n; i++)
		free(p->v[i]);
	free(p->v);
}

bool catalog_writer_unwritable(const struct catalog_writer *w)
{
	int rc = w->tmp && w->db ? sqlite3_errcode(w->db) & 0xff : SQLITE_OK;

	return w->unwritable || rc == SQLITE_IOERR || rc == SQLITE_FULL || rc == SQLITE_CANTOPEN;
}

void catalog_writer_free(struct catalog_writer *w)
{
	if (!w)
		return;
	(void)sqlite3_finalize(w->insert_map);
	(void)sqlite3_close(w->db);
	if (w->tmp)
		(void)unlink(w->tmp);
	pk_strings_free(w->sources);
	pk_strings_free(w->encodings);
	free(w->min_size);
	pendings_release(&w->tensors);
	pendings_release(&w->objects);
	normal_release(&w->normal);
	buf_release(&w->text);
	buf_release(&w->path_text);
	buf_release(&w->bytes);
	buf_release(&w->directory);
	free(w->path);
	free(w->tmp);
	free(w->format);
	free(w->root);
	free(w);
}

/* ---- rows ---- */

static int step_reset(struct catalog_writer *w, sqlite3_stmt *s, struct ckpt_err *e)
{
	int rc = sqlite3_step(s);

	(void)sqlite3_reset(s);
	return rc == SQLITE_DONE ? 0 : sql_err(w->db, e, "write chunk index");
}

static void bind_str(sqlite3_stmt *s, int col, const char *p)
{
	(void)sqlite3_bind_text(s, col, p, -1, SQLITE_STATIC);
}

/* ---- the directory; its form is described in catalog_schema.h ---- */

static void put_text(struct buf *b, const char *p, size_t n)
{
	buf_varint(b, p ? n + 1 : 0);
	if (p) {
		buf_add(b, p, n);
		buf_add(b, "", 1);
	}
}

static void put_str(struct buf *b, const char *p)
{
	put_text(b, p, p ? strlen(p) : 0);
}

int catalog_add_metadata(struct catalog_writer *w, const char *name, const struct place_seen *seen,
			 const struct digest *hash, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	char hex[DIGEST_HEX] = "", id[1 + PLACE_ID_HEX] = "";
	int rc = sql_prepare(w->db, "INSERT OR IGNORE INTO metadata_file VALUES(?,?,?,?)", &s, e);

	if (rc)
		return rc;
	if (hash)
		digest_hex(hash, hex);
	if (seen) {
		bool settled = place_is_settled(seen);

		*id = CATALOG_UNSETTLED;
		place_id_hex(&seen->id, id + !settled);
	}
	(void)sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
	(void)sqlite3_bind_int64(s, 2, (int64_t)(seen ? seen->size : CATALOG_MISSING));
	(void)sqlite3_bind_text(s, 3, id, -1, SQLITE_STATIC);
	(void)sqlite3_bind_text(s, 4, hex, -1, SQLITE_STATIC);
	return step_reset(w, s, e);
}

/* Adds a copy of *p, followed by its dimensions and strings, to the list. */
static int pending_add(struct pendings *list, const struct pending *p, struct ckpt_err *e)
{
	const char *const texts[] = { p->shape, p->logical, p->grid, p->fault };
	size_t dims = (size_t)p->n_dims + p->n_logical, path = catalog_path_size(p->path);
	size_t n = sizeof(*p) + dims * sizeof(*p->dims) + p->fqn_len + 1 + path + p->text_len;
	const char **slots[ARRAY_LEN(texts)];
	struct pending *copy;
	char *at;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		n += texts[i] ? strlen(texts[i]) + 1 : 0;
	copy = VEC_ROOM(list->v, list->cap, list->n + 1) ? malloc(n) : NULL;
	if (!copy)
		return catalog_no_memory(e);
	*copy = *p;
	copy->dims = (uint64_t *)(copy + 1);
	if (dims)
		memcpy(copy->dims, p->dims, dims * sizeof(*p->dims));
	at = (char *)(copy->dims + dims);
	memcpy(at, p->fqn, p->fqn_len);
	at[p->fqn_len] = 0;
	copy->fqn = at;
	at += p->fqn_len + 1;
	copy->path = memcpy(at, p->path, path);
	at += path;
	slots[0] = &copy->shape;
	slots[1] = &copy->logical;
	slots[2] = &copy->grid;
	slots[3] = &copy->fault;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		if (!texts[i])
			continue;
		*slots[i] = at;
		at = stpcpy(at, texts[i]) + 1;
	}
	if (p->text) {
		memcpy(at, p->text, p->text_len);
		copy->text = at;
	}
	list->v[list->n++] = copy;
	return 0;
}

static const uint8_t *path_or_unknown(const uint8_t *path)
{
	return path ? path : catalog_path_unknown;
}

static int check_fqn(const char *fqn, size_t len, struct ckpt_err *e)
{
	if (len > INT32_MAX / 2)
		return err_set(e, EFBIG, "FQN of %zu bytes", len);
	if (!text_is_utf8(fqn, len))
		return err_set(e, ERR_CORRUPT, "FQN '%.*s' is not UTF-8", (int)min_u64(len, 200),
			       fqn);
	return 0;
}

static void source_reach(struct catalog_writer *w, const struct chunk_loc *l)
{
	uint64_t *min_size = &w->min_size[l->file];

	*min_size = max_u64(*min_size, l->offset + l->length);
}

static char *add_number(char *p, uint64_t v)
{
	char digits[20];
	size_t n = 0;

	do
		digits[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*p++ = digits[--n];
	return p;
}

static char *add_numbers(char *p, const uint64_t *v, size_t n)
{
	*p++ = '[';
	for (size_t i = 0; i < n; i++) {
		if (i)
			*p++ = ',';
		p = add_number(p, v[i]);
	}
	*p++ = ']';
	return p;
}

/* The JSON of a chunk map, written by hand, because it is a tenth of the cost of building an
 * index. */
static void put_map(struct buf *b, size_t n, const struct normal *list)
{
	const size_t max_line = (2 * n + 4) * 21 + 16;

	b->len = 0;
	buf_str(b, "[");
	for (uint32_t i = 0; i < list->count; i++) {
		const uint64_t *box = list->boxes + i * 2 * n;
		const struct chunk_loc *l = &list->locs[i];
		const uint64_t loc[] = { l->file, l->offset, l->length, l->encoding };
		char *line = buf_room(b, max_line), *p = line;

		if (!line)
			return;
		if (i) {
			*p++ = ',';
			*p++ = '\n';
		}
		*p++ = '[';
		p = add_numbers(p, box, n);
		*p++ = ',';
		p = add_numbers(p, box + n, n);
		for (size_t k = 0; k < ARRAY_LEN(loc); k++) {
			*p++ = ',';
			p = add_number(p, loc[k]);
		}
		*p++ = ']';
		b->len += (size_t)(p - line);
	}
	buf_str(b, "]");
}

int catalog_add_tensor(struct catalog_writer *w, const struct tensor_chunks *t, struct ckpt_err *e)
{
	struct buf shape CLEANUP(buf_release) = BUF_INIT(CKPT_MAX_DIMS * 24);
	struct buf logical CLEANUP(buf_release) = BUF_INIT(CKPT_MAX_DIMS * 24);
	struct buf grid CLEANUP(buf_release) = BUF_INIT(CKPT_MAX_DIMS * 24);
	uint64_t dims[2 * CKPT_MAX_DIMS];
	struct pending p = { .fqn = t->fqn,
			     .fqn_len = (uint32_t)t->fqn_len,
			     .path = path_or_unknown(t->path),
			     .dtype = (uint8_t)t->dtype,
			     .dims = dims };
	int rc = check_fqn(t->fqn, t->fqn_len, e);

	if (!rc)
		rc = normal_make(&w->normal, t, &p.bytes, e);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < w->normal.count; i++)
		source_reach(w, &w->normal.locs[i]);
	put_map(&w->text, t->n_dims, &w->normal);
	buf_json_u64s(&shape, t->shape, t->n_dims);
	if (w->normal.is_grid)
		buf_json_u64s(&grid, w->normal.grid, t->n_dims);
	if (t->n_before && t->n_before + 1 == t->n_dims &&
	    flat_fits(t->n_before, t->before, t->shape)) {
		p.n_logical = (uint8_t)t->n_before;
		memcpy(dims + t->n_dims, t->before, t->n_before * sizeof(*dims));
		buf_json_u64s(&logical, t->before, t->n_before);
	}
	if (buf_check(&w->text, e, "tensor '%s': %u chunks are too many to index", t->fqn,
		      w->normal.count))
		return -e->code;
	if (shape.err || grid.err || logical.err)
		return catalog_no_memory(e);
	p.n_dims = (uint8_t)t->n_dims;
	if (t->n_dims)
		memcpy(dims, t->shape, t->n_dims * sizeof(*dims));
	p.map = w->maps++;
	p.map_bytes = w->text.len;
	p.map_xxh64 = catalog_hash(w->text.data, w->text.len);
	p.chunks = w->normal.count;
	p.shape = shape.data;
	p.logical = logical.data;
	p.grid = grid.data;
	p.state = (uint8_t)w->normal.state;
	p.fault = w->normal.fault[0] ? w->normal.fault : NULL;
	w->chunks += p.chunks;
	if (ckd_add(&w->tensor_bytes, w->tensor_bytes, p.bytes) || w->tensor_bytes > INT64_MAX)
		return err_set(e, ERR_CORRUPT, "the tensors' sizes add up to more than 2^63 bytes");
	(void)sqlite3_bind_int64(w->insert_map, 1, p.map);
	(void)sqlite3_bind_text(w->insert_map, 2, w->text.data, (int)w->text.len, SQLITE_STATIC);
	rc = step_reset(w, w->insert_map, e);
	return rc ? rc : pending_add(&w->tensors, &p, e);
}

int catalog_add_object(struct catalog_writer *w, const struct object_item *o, struct ckpt_err *e)
{
	struct pending p = { .fqn = o->fqn,
			     .fqn_len = (uint32_t)o->fqn_len,
			     .path = path_or_unknown(o->path),
			     .loc = o->loc,
			     .fault = o->fault };
	int rc = check_fqn(o->fqn, o->fqn_len, e);

	if (rc)
		return rc;
	if (!o->fault && o->loc.file != CATALOG_NO_FILE) {
		source_reach(w, &o->loc);
		return pending_add(&w->objects, &p, e);
	}
	p.loc = (struct chunk_loc){ 0 };
	if (o->text && o->text_len > CATALOG_MAX_TEXT - w->text_bytes)
		return err_set(e, EFBIG, "the objects' texts are more than %zu MiB",
			       CATALOG_MAX_TEXT >> 20);
	if (o->text) {
		p.text = o->text;
		p.text_len = o->text_len;
		w->text_bytes += o->text_len;
	} else {
		p.fault = o->fault ? o->fault : "it is listed but stored nowhere";
	}
	return pending_add(&w->objects, &p, e);
}

/* ---- finishing ---- */

static int by_fqn(const void *ap, const void *bp)
{
	const struct pending *a = *(const struct pending *const *)ap;
	const struct pending *b = *(const struct pending *const *)bp;

	return text_natural_cmp(a->fqn, a->fqn_len, b->fqn, b->fqn_len);
}

static int sort_and_check(struct pendings *p, const char *what, struct ckpt_err *e)
{
	if (p->n)
		qsort(p->v, p->n, sizeof(struct pending *), by_fqn);
	for (size_t i = 1; i < p->n; i++)
		if (!by_fqn(&p->v[i - 1], &p->v[i]))
			return err_set(e, ERR_CORRUPT, "two %s are called '%s'", what,
				       p->v[i]->fqn);
	return 0;
}

/* sizes: of sources; NULL for encodings */
static int put_names(struct catalog_writer *w, const struct pk_strings *t, const char *sql,
		     const uint64_t *sizes, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	int rc = sql_prepare(w->db, sql, &s, e);

	buf_varint(&w->directory, pk_strings_count(t));
	for (uint32_t i = 0; !rc && i < pk_strings_count(t); i++) {
		const char *name = pk_string(t, i)->data;

		put_str(&w->directory, name);
		(void)sqlite3_bind_int64(s, 1, i);
		bind_str(s, 2, name);
		if (sizes) {
			uint64_t size = *name ? sizes[i] : w->bytes.len;

			buf_varint(&w->directory, size);
			(void)sqlite3_bind_int64(s, 3, (int64_t)size);
			if (!*name)
				buf_varint(&w->directory,
					   catalog_hash(w->bytes.data, w->bytes.len));
		}
		rc = step_reset(w, s, e);
	}
	return rc;
}

/* Adds the path to the directory; returns it as JSON for the row, NULL if unknown. */
static const char *put_path(struct catalog_writer *w, const struct pending *p)
{
	struct catalog_steps steps = catalog_path_begin(p->path, p->fqn, p->fqn_len);
	struct buf *b = &w->path_text;
	struct catalog_step step;

	buf_add(&w->directory, p->path, catalog_path_size(p->path));
	if (!catalog_path_steps(p->path))
		return NULL;
	b->len = 0;
	while (catalog_path_next(&steps, &step)) {
		buf_str(b, b->len ? "," : "[");
		if (step.is_position)
			buf_u64(b, step.position);
		else
			buf_json_str(b, step.text, step.len);
	}
	buf_str(b, "]");
	return b->data;
}

/* The remaining fields of the directory. */
static void put_tensor(struct catalog_writer *w, const struct pending *p)
{
	buf_varint(&w->directory, p->dtype);
	buf_varint(&w->directory, p->n_dims);
	for (size_t d = 0; d < p->n_dims; d++)
		buf_varint(&w->directory, p->dims[d]);
	buf_varint(&w->directory, p->bytes);
	buf_varint(&w->directory, p->chunks);
	buf_varint(&w->directory, p->state);
	put_str(&w->directory, p->fault);
	buf_varint(&w->directory, (uint64_t)p->map);
	buf_varint(&w->directory, p->map_bytes);
	buf_varint(&w->directory, p->map_xxh64);
	buf_varint(&w->directory, p->n_logical);
	for (size_t d = 0; d < p->n_logical; d++)
		buf_varint(&w->directory, p->dims[p->n_dims + d]);
}

static int put_tensors(struct catalog_writer *w, struct ckpt_err *e)
{
	static const char *const state[] = { "complete", "incomplete", "overlapping" };
	autofinalize sqlite3_stmt *s = NULL;
	int rc = sort_and_check(&w->tensors, "tensors", e);

	if (!rc)
		rc = sql_prepare(w->db, "INSERT INTO tensor VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", &s,
				 e);
	buf_varint(&w->directory, w->tensors.n);
	for (size_t i = 0; !rc && i < w->tensors.n; i++) {
		const struct pending *p = w->tensors.v[i];

		put_text(&w->directory, p->fqn, p->fqn_len);
		bind_str(s, 3, put_path(w, p));
		put_tensor(w, p);
		(void)sqlite3_bind_int64(s, 1, (int64_t)i);
		(void)sqlite3_bind_text(s, 2, p->fqn, (int)p->fqn_len, SQLITE_STATIC);
		bind_str(s, 4, dtype_info(p->dtype)->name);
		bind_str(s, 5, p->shape);
		bind_str(s, 6, p->logical);
		(void)sqlite3_bind_int64(s, 7, (int64_t)p->bytes);
		(void)sqlite3_bind_int64(s, 8, p->chunks);
		bind_str(s, 9, p->grid);
		bind_str(s, 10, state[p->state]);
		bind_str(s, 11, p->fault);
		(void)sqlite3_bind_int64(s, 12, p->map);
		rc = step_reset(w, s, e);
	}
	return rc;
}

static int put_objects(struct catalog_writer *w, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	int rc = sort_and_check(&w->objects, "objects", e);

	if (!rc)
		rc = sql_prepare(w->db, "INSERT INTO object VALUES(?,?,?,?,?,?,?,?,?)", &s, e);
	buf_varint(&w->directory, w->objects.n);
	for (size_t i = 0; !rc && i < w->objects.n; i++) {
		const struct pending *p = w->objects.v[i];
		const uint64_t loc[] = { p->loc.file, p->loc.offset, p->loc.length,
					 p->loc.encoding };

		put_text(&w->directory, p->fqn, p->fqn_len);
		bind_str(s, 3, put_path(w, p));
		(void)sqlite3_bind_int64(s, 1, (int64_t)i);
		(void)sqlite3_bind_text(s, 2, p->fqn, (int)p->fqn_len, SQLITE_STATIC);
		for (int k = 0; k < 4; k++) {
			buf_varint(&w->directory, loc[k]);
			(void)sqlite3_bind_int64(s, 4 + k, (int64_t)loc[k]);
		}
		put_str(&w->directory, p->fault);
		bind_str(s, 8, p->fault);
		put_text(&w->directory, p->text, p->text_len);
		(void)sqlite3_bind_text(s, 9, p->text, (int)p->text_len, SQLITE_STATIC);
		rc = step_reset(w, s, e);
	}
	return rc;
}

static int put_value(struct catalog_writer *w, int row, const struct buf *b, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	int rc = sql_prepare(w->db, "INSERT INTO directory VALUES(?,?)", &s, e);

	if (rc)
		return rc;
	if (buf_check(b, e, "chunk index: its directory is too large") ||
	    buf_check(&w->path_text, e, "chunk index: a path is too large"))
		return -e->code;
	(void)sqlite3_bind_int(s, 1, row);
	(void)sqlite3_bind_blob(s, 2, b->len ? b->data : "", (int)b->len, SQLITE_STATIC);
	return step_reset(w, s, e);
}

/* The list of metadata files, from the human-readable rows. */
static int put_metadata(struct catalog_writer *w, struct ckpt_err *e)
{
	struct buf list CLEANUP(buf_release) = BUF_INIT(CATALOG_MAX_DIRECTORY);
	struct buf rows CLEANUP(buf_release) = BUF_INIT(CATALOG_MAX_DIRECTORY);
	autofinalize sqlite3_stmt *s = NULL;
	uint64_t n = 0;
	uint8_t hash[8];
	int rc = sql_prepare(
		    w->db, "SELECT name, size, id, xxh128 FROM metadata_file ORDER BY name", &s, e),
	    step;

	if (rc)
		return rc;
	for (; (step = sqlite3_step(s)) == SQLITE_ROW; n++) {
		const char *name = (const char *)sqlite3_column_text(s, 0);
		const char *hex = (const char *)sqlite3_column_text(s, 3);
		const char *id = (const char *)sqlite3_column_text(s, 2);

		if (!name || !id || !hex)
			return catalog_no_memory(e);
		put_str(&rows, name);
		buf_varint(&rows, (uint64_t)sqlite3_column_int64(s, 1));
		put_str(&rows, id);
		put_str(&rows, hex);
	}
	if (step != SQLITE_DONE)
		return sql_err(w->db, e, "write chunk index");
	buf_varint(&list, n);
	if (n)
		buf_add(&list, rows.data, rows.len);
	(void)put_le(hash, catalog_hash(list.data, list.len), sizeof(hash));
	buf_add(&list, hash, sizeof(hash));
	if (rows.err && !list.err)
		list.err = rows.err;
	return put_value(w, CATALOG_METADATA_ROW, &list, e);
}

static int put_checkpoint(struct catalog_writer *w, struct ckpt_err *e)
{
	autofinalize sqlite3_stmt *s = NULL;
	const struct buf *d = &w->directory;
	struct digest seal;
	char hex[DIGEST_HEX];
	int rc = put_value(w, CATALOG_DIRECTORY_ROW, d, e);

	if (!rc)
		rc = put_metadata(w, e);
	if (!rc && w->has_bytes)
		rc = put_value(w, CATALOG_INLINE_ROW, &w->bytes, e);
	if (!rc)
		rc = sql_prepare(w->db, "INSERT INTO checkpoint VALUES(?,?,?,?,?,?,?,?)", &s, e);
	if (rc)
		return rc;
	seal = digest_of(XXH3_128bits(d->data, d->len));
	digest_hex(&seal, hex);
	bind_str(s, 1, w->format);
	bind_str(s, 2, w->root);
	bind_str(s, 3, builder);
	(void)sqlite3_bind_int64(s, 4, (int64_t)w->tensors.n);
	(void)sqlite3_bind_int64(s, 5, (int64_t)w->objects.n);
	(void)sqlite3_bind_int64(s, 6, (int64_t)w->chunks);
	(void)sqlite3_bind_int64(s, 7, (int64_t)w->tensor_bytes);
	bind_str(s, 8, hex);
	return step_reset(w, s, e); /* row 1 */
}

/* Syncs the contents before renaming. The rename itself may be lost in a crash: the index is a
 * cache. */
static int publish(const char *tmp, const char *path, struct ckpt_err *e)
{
	autoclose int fd = open(tmp, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fsync(fd))
		return err_sys(e, errno, "sync '%s'", tmp);
	if (rename(tmp, path))
		return err_sys(e, errno, "rename '%s' to '%s'", tmp, path);
	return 0;
}

int catalog_writer_finish(struct catalog_writer *w, struct catalog **ret, struct ckpt_err *e)
{
	sqlite3 *db;
	int rc;

	(void)sqlite3_finalize(w->insert_map);
	w->insert_map = NULL;
	put_str(&w->directory, w->format);
	buf_varint(&w->directory, w->chunks);
	rc = put_names(w, w->sources, "INSERT INTO source VALUES(?,?,?)", w->min_size, e);
	if (!rc)
		rc = put_names(w, w->encodings, "INSERT INTO encoding VALUES(?,?)", NULL, e);
	if (!rc)
		rc = put_tensors(w, e);
	if (!rc)
		rc = put_objects(w, e);
	if (!rc)
		rc = put_checkpoint(w, e);
	if (!rc) {
		char sql[96];

		(void)snprintf(sql, sizeof(sql),
			       "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
			       CATALOG_APPLICATION_ID, CATALOG_VERSION);
		rc = sql_exec(w->db, sql, e);
	}
	if (rc)
		return rc;
	db = steal_ptr(&w->db);
	if (!w->tmp)
		return catalog_from_db(db, ret, e);
	w->unwritable = sqlite3_close(db);
	if (w->unwritable)
		return err_set(e, EIO, "close '%s'", w->tmp);
	rc = publish(w->tmp, w->path, e);
	w->unwritable = rc;
	return rc ? rc : catalog_open(w->path, ret, e);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "format/orbax/orbax_store.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/small_file.h"
#include "format/zarr/zarr_lost.h"
#include "index/catalog_build.h"
#include "model/box.h"
#include "parse/ocdbt.h"
#include "parse/pickle_strings.h"
#include "source/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MEMORY ((size_t)512 << 20) /* bytes for all keys and inline values */
#define MAX_LIVE   ((size_t)256 << 20) /* bytes of the nodes on the way to a leaf */
#define MAX_WORK   ((uint64_t)4 << 30) /* bytes of all nodes, decompressed */
#define MAX_PATHS  ((size_t)64 << 20)  /* bytes of the paths of all data files */

struct value {
	const char *key; /* no NUL */
	const uint8_t *bytes;
	const char *file;
	uint64_t offset, length;
	uint32_t key_len;
};

struct store {
	struct orbax_store o; /* first */
	struct catalog_writer *w;
	struct arena arena;
	struct pk_strings *paths;
	struct value *v; /* in the order of keys */
	size_t n, cap;
	/* While the tree is read: */
	uint64_t work;
	size_t live;
	struct source *file; /* the one read last, of this path */
	const struct pk_str *file_path;
};

CLEANUP_POINTER(node_freep, struct ocdbt_node, ocdbt_node_free)

static int no_room(struct ckpt_err *e)
{
	if (errno == ENOMEM)
		return err_nomem(e);
	return err_set(e, EFBIG, "its keys take more than %zu MiB of memory", MAX_MEMORY >> 20);
}

/* ---- files ---- */

/* The path in the place of one in the store, kept. */
static const struct pk_str *path_of(struct store *s, const char *name, struct ckpt_err *e)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s%s", s->o.top, name);
	const struct pk_str *r;

	if (n >= (int)sizeof(path)) {
		(void)err_set(e, ENAMETOOLONG, "a data file's path has %d bytes, '%.100s...'", n,
			      path);
		return NULL;
	}
	r = pk_intern(s->paths, path, (size_t)n);
	if (!r && errno == EFBIG)
		(void)err_set(e, EFBIG, "the paths of data files take more than %zu MiB",
			      MAX_PATHS >> 20);
	else if (!r)
		(void)err_nomem(e);
	return r;
}

/* The path of a file in a table, which is looked up once. */
static const struct pk_str *path_in_table(struct store *s, struct ocdbt_file *f, struct ckpt_err *e)
{
	if (!f->tag)
		f->tag = path_of(s, f->path, e);
	return f->tag;
}

static int open_file(struct store *s, const struct pk_str *path, struct ckpt_err *e)
{
	int rc;

	if (s->file && s->file_path == path)
		return 0;
	source_free(s->file);
	s->file = NULL;
	rc = place_file(s->o.s.place, path->data, &s->file, e);
	s->file_path = path;
	return rc ? rc : catalog_add_metadata(s->w, path->data, &s->file->seen, NULL, e);
}

/* The bytes of a node, which the caller frees. */
static int read_range(struct store *s, const struct pk_str *path, uint64_t offset, uint64_t length,
		      uint8_t **ret, struct ckpt_err *e)
{
	autofree uint8_t *p = NULL;
	int64_t n;

	if (open_file(s, path, e))
		return -e->code;
	if (!range_ok(offset, length, s->file->seen.size))
		return err_set(e, ERR_CORRUPT, "it needs %llu bytes at %llu, but the file has %llu",
			       (unsigned long long)length, (unsigned long long)offset,
			       (unsigned long long)s->file->seen.size);
	if (length > OCDBT_MAX_BODY)
		return err_set(e, EFBIG, "B+tree node: it has %llu bytes, more than %d MiB",
			       (unsigned long long)length, OCDBT_MAX_BODY >> 20);
	p = malloc((size_t)length + 1);
	if (!p)
		return err_nomem(e);
	n = source_read(s->file, p, (size_t)length, offset, e);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != length)
		return err_set(
			e, ERR_CORRUPT, "it needs %llu bytes at %llu, but only %lld are there",
			(unsigned long long)length, (unsigned long long)offset, (long long)n);
	*ret = steal_ptr(&p);
	return 0;
}

/* ---- the manifest ---- */

bool orbax_store_numbered(const char *name, uint64_t *ret)
{
	static const char prefix[] = "manifest.";
	const char *hex = name + sizeof(prefix) - 1;

	if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || strlen(hex) != 16 ||
	    strspn(hex, "0123456789abcdef") != 16)
		return false;
	*ret = strtoull(hex, NULL, 16);
	return true;
}

static int newest(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	uint64_t *best = arg, n;

	(void)kind;
	(void)e;
	if (orbax_store_numbered(name, &n) && n > *best)
		*best = n;
	return 0;
}

static int read_manifest(struct store *s, const char *name, struct ocdbt_manifest *ret,
			 struct ckpt_err *e)
{
	struct ocdbt_body body CLEANUP(ocdbt_body_release) = { 0 };
	const struct pk_str *path = path_of(s, name, e);
	struct source *file CLEANUP(source_freep) = NULL;
	autofree uint8_t *p = NULL;
	struct ckpt_err why;
	size_t size;
	int rc;

	if (!path)
		return -e->code;
	rc = place_file(s->o.s.place, path->data, &file, e);
	if (rc)
		return rc;
	if (file->seen.size > OCDBT_MAX_MANIFEST)
		return err_set(e, EFBIG, "'%s' has more than %d MiB", path->data,
			       OCDBT_MAX_MANIFEST >> 20);
	size = (size_t)file->seen.size;
	p = malloc(size + 1);
	if (!p)
		return err_nomem(e);
	if (source_read(file, p, size, 0, e) != (int64_t)size)
		return err_set(e, EAGAIN, "'%s' changed while it was read; is a save going on?",
			       path->data);
	rc = ocdbt_unwrap(p, size, OCDBT_MANIFEST, &body, &why);
	if (!rc)
		rc = ocdbt_manifest_read(&body, &s->arena, ret, &why);
	if (rc)
		return err_set(e, why.code, "'%s': %s", path->data, why.msg);
	return small_file_fingerprint(s->o.s.place, path->data, s->w, NULL, e);
}

/* In a store with numbered manifests manifest.ocdbt has the configuration only. */
static int find_root(struct store *s, struct ocdbt_manifest *m, struct ckpt_err *e)
{
	char dir[PATH_MAX], name[32];
	uint8_t uuid[sizeof(m->uuid)];
	size_t top = strlen(s->o.top);
	uint64_t best = 0;
	int rc = read_manifest(s, "manifest.ocdbt", m, e);

	if (rc || !m->numbered)
		return rc;
	memcpy(uuid, m->uuid, sizeof(uuid));
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(top ? top - 1 : 1), top ? s->o.top : ".");
	rc = place_list(s->o.s.place, dir, newest, &best, e);
	if (rc)
		return rc;
	if (!best)
		return err_set(e, ENOENT,
			       "'%smanifest.ocdbt' says that there is a manifest.NUMBER for each "
			       "version, but there is none: the checkpoint is not complete",
			       s->o.top);
	(void)snprintf(name, sizeof(name), "manifest.%016llx", (unsigned long long)best);
	rc = read_manifest(s, name, m, e);
	if (!rc &&
	    (m->numbered || m->generation != best || memcmp(uuid, m->uuid, sizeof(uuid)) != 0))
		rc = err_set(e, ERR_CORRUPT,
			     "'%s%s' does not belong to this store, or has another version than "
			     "its name says",
			     s->o.top, name);
	return rc;
}

/* ---- the tree ---- */

/* A node, and what is known of it from its parent. */
struct way {
	const struct pk_str *path;
	struct ocdbt_range at;
	unsigned height;
	const char
		*prefix; /* of all keys in it; then the rest of a key that is not above its first */
	size_t prefix_len, first_len;
};

static int add_value(struct store *s, const struct way *way, const struct ocdbt_entry *x,
		     struct ckpt_err *e)
{
	size_t len = way->prefix_len + x->key_len;
	struct value v = { .offset = x->at.offset, .length = x->at.length };
	const struct value *last = s->n ? &s->v[s->n - 1] : NULL;
	const struct pk_str *path;
	char *key;

	if (len > OCDBT_MAX_KEY)
		return err_set(e, ERR_CORRUPT, "a key has %zu bytes, more than %d", len,
			       OCDBT_MAX_KEY);
	key = arena_alloc(&s->arena, len);
	if (!key || !arena_charge(&s->arena, sizeof(v)))
		return no_room(e);
	memcpy(key, way->prefix, way->prefix_len);
	memcpy(key + way->prefix_len, x->key, x->key_len);
	if (last && bytes_compare(last->key, last->key_len, key, len) >= 0)
		return err_set(e, ERR_CORRUPT, "its key '%s' is not above '%s' before it",
			       FQN_TEXT(key, len), FQN_TEXT(last->key, last->key_len));
	v.key = key;
	v.key_len = (uint32_t)len;
	if (x->bytes) {
		v.bytes = arena_dup(&s->arena, x->bytes, (size_t)x->at.length);
		if (!v.bytes)
			return no_room(e);
	} else {
		path = path_in_table(s, x->at.file, e);
		if (!path)
			return -e->code;
		v.file = path->data;
	}
	if (!VEC_ROOM(s->v, s->cap, s->n + 1))
		return err_nomem(e);
	s->v[s->n++] = v;
	s->o.n_arrays += bytes_end(key, len, ".zarray") || bytes_end(key, len, "zarr.json");
	return 0;
}

static int read_node(struct store *s, const struct way *way, struct ckpt_err *e);

static int read_child(struct store *s, const struct way *way, const struct ocdbt_entry *x,
		      struct ckpt_err *e)
{
	size_t len = way->prefix_len + x->key_len;
	autofree char *first = malloc(len + 1);
	struct way child = { .path = path_in_table(s, x->at.file, e),
			     .at = x->at,
			     .height = way->height - 1,
			     .prefix = first,
			     .prefix_len = way->prefix_len + x->common,
			     .first_len = len };

	if (!first)
		return err_nomem(e);
	if (!child.path)
		return -e->code;
	memcpy(first, way->prefix, way->prefix_len);
	memcpy(first + way->prefix_len, x->key, x->key_len);
	return read_node(s, &child, e);
}

/* The entries of a node, whose first key is not below the one that its parent has of it. */
static int read_entries(struct store *s, const struct way *way, struct ocdbt_node *node,
			struct ckpt_err *e)
{
	struct ocdbt_entry x;
	bool is_first = true;
	int rc = 0;

	while (!rc && (rc = ocdbt_node_next(node, &x, e)) > 0) {
		if (is_first && bytes_compare(x.key, x.key_len, way->prefix + way->prefix_len,
					      way->first_len - way->prefix_len) < 0)
			return err_set(e, ERR_CORRUPT,
				       "B+tree node: its first key is below that of its parent");
		is_first = false;
		rc = way->height ? read_child(s, way, &x, e) : add_value(s, way, &x, e);
	}
	return rc;
}

/* Says where it is, unless that has been said of a node below it. */
static int in_node(const struct way *way, const struct ckpt_err *why, struct ckpt_err *e)
{
	char keys[160] = "";

	if (way->first_len)
		(void)snprintf(keys, sizeof(keys), ", keys from '%s' on",
			       FQN_TEXT(way->prefix, way->first_len));
	return err_set(e, why->code, "'%s' at byte %llu%s: %s", way->path->data,
		       (unsigned long long)way->at.offset, keys, why->msg);
}

static int open_node(struct store *s, const struct way *way, struct ocdbt_body *body,
		     struct ocdbt_node **ret, struct ckpt_err *e)
{
	const struct ocdbt_file *f = way->at.file;
	autofree uint8_t *p = NULL;
	int rc = read_range(s, way->path, way->at.offset, way->at.length, &p, e);

	if (!rc)
		rc = ocdbt_unwrap(p, (size_t)way->at.length, OCDBT_NODE, body, e);
	if (!rc && !body->owned) /* what is not compressed lies in what has been read */
		body->owned = steal_ptr(&p);
	if (!rc)
		rc = ocdbt_node_open(body, f->path, f->base, ret, e);
	if (!rc && ocdbt_node_height(*ret) != way->height)
		rc = err_set(e, ERR_CORRUPT, "B+tree node: its height is %u, and should be %u",
			     ocdbt_node_height(*ret), way->height);
	return rc;
}

static int read_node(struct store *s, const struct way *way, struct ckpt_err *e)
{
	struct ocdbt_body body CLEANUP(ocdbt_body_release) = { 0 };
	struct ocdbt_node *node CLEANUP(node_freep) = NULL;
	struct ckpt_err why = { 0 };
	size_t live;
	int rc = open_node(s, way, &body, &node, &why);

	if (rc)
		return in_node(way, &why, e);
	live = body.len + ocdbt_node_memory(node);
	s->live += live;
	s->work += live;
	if (s->work > MAX_WORK || (way->height && s->live > MAX_LIVE))
		return err_set(e, EFBIG,
			       "the nodes of the tree take more than %llu MiB, or %llu MiB at once",
			       (unsigned long long)MAX_WORK >> 20,
			       (unsigned long long)MAX_LIVE >> 20);
	rc = read_entries(s, way, node, &why);
	s->live -= live;
	if (rc && (!way->height || why.msg[0] != '\''))
		return in_node(way, &why, e);
	if (rc)
		*e = why;
	return rc;
}

/* ---- the store ---- */

static bool last_part_is(const struct value *v, const char *name)
{
	size_t n = strlen(name);

	return bytes_end(v->key, v->key_len, name) &&
	       (v->key_len == n || v->key[v->key_len - n - 1] == '/');
}

static struct zarr_value shown(const struct value *v)
{
	return (struct zarr_value){ v->bytes, v->file, v->offset, v->length, NULL };
}

/* In the order of strcmp: a key, and the first n bytes of another followed by `last`. */
static int compare_to(const struct value *v, const char *top, size_t n, const char *last)
{
	int c = bytes_compare(v->key, min_u64(v->key_len, n), top, n);

	return c ? c : bytes_compare(v->key + n, v->key_len - n, last, strlen(last));
}

/* Is there metadata of the array "NAME/", n bytes, or ""? */
static bool is_array(const struct store *s, const char *top, size_t n)
{
	static const char *const names[] = { ".zarray", "zarr.json" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t at = PARTITION_POINT(k, s->n, compare_to(&s->v[k], top, n, names[i]) < 0);

		if (at < s->n && !compare_to(&s->v[at], top, n, names[i]))
			return true;
	}
	return false;
}

/* The array of a chunk: "NAME/", of which *ret_n is the length. What follows it are numbers and
 * "c". */
static bool find_array(const struct store *s, const struct value *v, size_t *ret_n)
{
	size_t n = v->key_len;

	for (int depth = 0; n && depth <= CKPT_MAX_DIMS; depth++) {
		while (n && v->key[n - 1] != '/')
			n--;
		if (is_array(s, v->key, n)) {
			*ret_n = n;
			return true;
		}
		for (n -= n > 0; n && v->key[n - 1] != '/'; n--)
			if (v->key[n - 1] != 'c' && (v->key[n - 1] < '0' || v->key[n - 1] > '9'))
				return false;
	}
	return false;
}

/* Chunks of arrays that have no metadata; each array once. */
static int each_lost(const struct store *s, zarr_value_fn *fn, void *arg, struct ckpt_err *e)
{
	const struct value *last = NULL; /* a chunk, and how much of its key is "NAME/" */
	size_t last_n = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		const struct value *v = &s->v[i];
		struct buf key CLEANUP(buf_release) = BUF_INIT(OCDBT_MAX_KEY + 16);
		size_t n = zarr_lost_name(v->key, v->key_len);

		if (!n || (last && v->key_len > last_n && !memcmp(v->key, last->key, last_n)))
			continue;
		last = v;
		if (find_array(s, v, &last_n))
			continue;
		last_n = n + 1;
		buf_add(&key, v->key, n);
		buf_str(&key, "/.zarray");
		rc = key.err ? err_nomem(e) : fn(arg, key.data, key.len, NULL, e);
	}
	return rc;
}

static int each_array(struct zarr_store *z, zarr_value_fn *fn, void *arg, struct ckpt_err *e)
{
	const struct store *s = (const struct store *)(const void *)z;
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		const struct zarr_value v = shown(&s->v[i]);

		if (last_part_is(&s->v[i], ".zarray") || last_part_is(&s->v[i], "zarr.json"))
			rc = fn(arg, s->v[i].key, s->v[i].key_len, &v, e);
	}
	return rc ? rc : each_lost(s, fn, arg, e);
}

static int each_chunk(struct zarr_store *z, const char *prefix, size_t len, zarr_value_fn *fn,
		      void *arg, struct ckpt_err *e)
{
	const struct store *s = (const struct store *)(const void *)z;
	size_t i = PARTITION_POINT(k, s->n,
				   bytes_compare(s->v[k].key, s->v[k].key_len, prefix, len) < 0);
	int rc = 0;

	for (; !rc && i < s->n && s->v[i].key_len >= len &&
	       (!len || !memcmp(s->v[i].key, prefix, len));
	     i++) {
		const struct zarr_value v = shown(&s->v[i]);
		char next = s->v[i].key_len > len ? s->v[i].key[len] : 0;

		if (next == 'c' || (next >= '0' && next <= '9'))
			rc = fn(arg, s->v[i].key, s->v[i].key_len, &v, e);
	}
	return rc;
}

static const struct zarr_store_ops ops = { .arrays = each_array, .chunks = each_chunk };

static int count(void *arg, const char *key, size_t key_len, const struct zarr_value *v,
		 struct ckpt_err *e)
{
	size_t *n = arg;

	(void)key;
	(void)key_len;
	(void)v;
	(void)e;
	++*n;
	return 0;
}

static int read_tree(struct store *s, struct ckpt_err *e)
{
	struct ocdbt_manifest m;
	struct way root = { .prefix = "" };
	int rc = find_root(s, &m, e);

	if (rc || m.is_empty)
		return rc;
	root.path = path_in_table(s, m.root.file, e);
	root.at = m.root;
	root.height = m.height;
	return root.path ? read_node(s, &root, e) : -e->code;
}

int orbax_store_open(struct place *place, const char *top, struct catalog_writer *w,
		     struct orbax_store **ret, struct ckpt_err *e)
{
	struct store *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return err_nomem(e);
	s->o = (struct orbax_store){ .s = { &ops, place }, .top = top };
	s->w = w;
	s->arena = (struct arena)ARENA_INIT(MAX_MEMORY);
	s->paths = pk_strings_new(MAX_PATHS);
	rc = s->paths ? read_tree(s, e) : err_nomem(e);
	if (!rc && !s->o.n_arrays)
		rc = each_lost(s, count, &s->o.n_arrays, e);
	source_free(s->file);
	s->file = NULL;
	if (rc)
		orbax_store_free(&s->o);
	else
		*ret = &s->o;
	return rc;
}

void orbax_store_free(struct orbax_store *o)
{
	struct store *s = (struct store *)(void *)o;

	if (!s)
		return;
	arena_release(&s->arena);
	pk_strings_free(s->paths);
	free(s->v);
	free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/ocdbt.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/text.h"

#include <endian.h>
#include <zstd.h>

enum { HEAD = 12, CRC = 4, MAX_ARITY_LOG2 = 16 };

#define NO_ROOT UINT64_MAX /* offset and length of the root of an empty store */

static const struct {
	const char *name;
	uint32_t magic; /* big-endian in the file, unlike all else */
} kinds[] = {
	[OCDBT_MANIFEST] = { "OCDBT manifest", 0x0cdb3a2a },
	[OCDBT_NODE] = { "B+tree node", 0x0cdb20de },
};

/* ---- the envelope ---- */

static int bad(struct ckpt_err *e, enum ocdbt_kind kind, const char *what)
{
	return err_set(e, ERR_CORRUPT, "%s: %s", kinds[kind].name, what);
}

/* One frame to the end of the input, which need not say how much comes out of it. */
static int decompress(const uint8_t *p, size_t n, enum ocdbt_kind kind, struct ocdbt_body *ret,
		      struct ckpt_err *e)
{
	ZSTD_inBuffer in = { p, n, 0 };
	ZSTD_outBuffer out = { 0 };
	ZSTD_DCtx *ctx = ZSTD_createDCtx();
	size_t left = 1, cap = n < OCDBT_MAX_BODY / 4 ? 4 * n + 4096 : OCDBT_MAX_BODY;
	int rc = ctx ? 0 : err_nomem(e);

	while (!rc && left) {
		size_t in_before = in.pos, out_before = out.pos;
		void *grown = out.pos < out.size ? out.dst : realloc(out.dst, cap);

		if (!grown) {
			rc = err_nomem(e);
			break;
		}
		if (out.pos == out.size) {
			out.dst = grown;
			out.size = cap;
			cap = cap < OCDBT_MAX_BODY / 2 ? 2 * cap : OCDBT_MAX_BODY;
		}
		left = ZSTD_decompressStream(ctx, &out, &in);
		if (ZSTD_isError(left))
			rc = err_set(e, ERR_CORRUPT, "%s: zstd: %s", kinds[kind].name,
				     ZSTD_getErrorName(left));
		else if (left && out.pos == OCDBT_MAX_BODY)
			rc = err_set(e, EFBIG, "%s: it decompresses to more than %d MiB",
				     kinds[kind].name, OCDBT_MAX_BODY >> 20);
		else if (left && in.pos == in_before && out.pos == out_before)
			rc = bad(e, kind, "its zstd frame is cut off");
	}
	(void)ZSTD_freeDCtx(ctx);
	if (!rc && in.pos != in.size)
		rc = bad(e, kind, "there are bytes after its zstd frame");
	if (rc) {
		free(out.dst);
		return rc;
	}
	*ret = (struct ocdbt_body){ out.dst, out.pos, out.dst };
	return 0;
}

int ocdbt_unwrap(const uint8_t *p, size_t n, enum ocdbt_kind kind, struct ocdbt_body *ret,
		 struct ckpt_err *e)
{
	struct cursor c;
	uint64_t version, compression;
	uint32_t want, got;

	if (n < HEAD + CRC)
		return err_set(e, ERR_CORRUPT, "%s: it has %zu bytes, at least %d are needed",
			       kinds[kind].name, n, HEAD + CRC);
	if (htobe32(load_le32(p)) != htole32(kinds[kind].magic))
		return err_set(e, ERR_CORRUPT,
			       "%s: it begins with %02x%02x%02x%02x instead of %08x",
			       kinds[kind].name, p[0], p[1], p[2], p[3], kinds[kind].magic);
	if (load_le64(p + 4) != n)
		return err_set(e, ERR_CORRUPT, "%s: it says that it has %llu bytes, but has %zu",
			       kinds[kind].name, (unsigned long long)load_le64(p + 4), n);
	want = load_le32(p + n - CRC);
	got = crc32c(0, p, n - CRC);
	if (want != got)
		return err_set(e, ERR_CORRUPT,
			       "%s: the CRC-32C of its bytes is %08x, but %08x is stored",
			       kinds[kind].name, got, want);
	c = cursor_of(p + HEAD, n - HEAD - CRC);
	version = cursor_varint(&c);
	compression = cursor_varint(&c);
	if (c.bad)
		return bad(e, kind, "it ends within its header");
	if (version || compression > 1)
		return err_set(e, ERR_UNSUPPORTED,
			       "%s: version %llu with compression %llu; known are version 0 and "
			       "compression 0 (none) and 1 (zstd)",
			       kinds[kind].name, (unsigned long long)version,
			       (unsigned long long)compression);
	if (compression)
		return decompress(c.p, (size_t)(c.end - c.p), kind, ret, e);
	if (c.end - c.p > OCDBT_MAX_BODY)
		return err_set(e, EFBIG, "%s: it has more than %d MiB", kinds[kind].name,
			       OCDBT_MAX_BODY >> 20);
	*ret = (struct ocdbt_body){ c.p, (size_t)(c.end - c.p), NULL };
	return 0;
}

void ocdbt_body_release(struct ocdbt_body *b)
{
	free(b->owned);
	*b = (struct ocdbt_body){ 0 };
}

/* ---- columns ---- */

/* Steps over n numbers, each at most max; returns a cursor over them, and adds them up if asked
 * to. */
static struct cursor column(struct cursor *c, size_t n, uint64_t max, uint64_t *sum)
{
	struct cursor r = { .p = c->p, .end = c->end };

	if (n > (size_t)(c->end - c->p))
		c->bad = true;
	for (size_t i = 0; i < n && !c->bad; i++) {
		uint64_t v = cursor_varint_to(c, max);

		if (sum && ckd_add(sum, *sum, v))
			c->bad = true;
	}
	r.end = c->p;
	r.bad = c->bad;
	return r;
}

static struct cursor byte_column(struct cursor *c, size_t n)
{
	struct cursor r = { .p = c->p, .end = c->p };

	if (cursor_take(c, n))
		r.end = r.p + n;
	r.bad = c->bad;
	return r;
}

/* The next number of a column, whose numbers column() has checked. */
static uint64_t next_of(struct cursor *c)
{
	return cursor_varint(c);
}

/* ---- data files ---- */

/* Is it relative, without "..", and without a NUL? The empty path names nothing. */
static bool stays_inside(const char *path, size_t n)
{
	const char *end = path + n;

	if (memchr(path, 0, n) || (n && *path == '/'))
		return false;
	for (const char *s = path; s < end; s++) {
		const char *slash = memchr(s, '/', (size_t)(end - s)), *stop = slash ? slash : end;

		if (stop - s == 2 && s[0] == '.' && s[1] == '.')
			return false;
		s = stop;
	}
	return true;
}

struct data_files {
	struct ocdbt_file *v;
	size_t n;
};

static int no_room(enum ocdbt_kind kind, struct ckpt_err *e)
{
	if (errno == ENOMEM)
		return err_nomem(e);
	return err_set(e, EFBIG, "%s: its table of data files takes more than %d MiB",
		       kinds[kind].name, OCDBT_MAX_PATHS >> 20);
}

/*
 * Each path continues a prefix of the one before it. It consists of a base directory and, from
 * base_len on, a name in it; a prefix longer than the base covers a part of the name, too.
 */
static int read_files(struct cursor *c, enum ocdbt_kind kind, const char *outer, size_t outer_len,
		      struct arena *a, struct data_files *ret, struct ckpt_err *e)
{
	uint64_t n = cursor_varint(c), sum = 0;
	struct cursor prefix, suffix, base;
	const struct ocdbt_file *before = NULL;

	if (c->bad || n > (uint64_t)(c->end - c->p))
		return bad(e, kind, "its table of data files extends beyond its end");
	if (!n) {
		*ret = (struct data_files){ 0 };
		return 0;
	}
	prefix = column(c, (size_t)n - 1, OCDBT_MAX_KEY, NULL);
	suffix = column(c, (size_t)n, OCDBT_MAX_KEY, &sum);
	base = column(c, (size_t)n, OCDBT_MAX_KEY, NULL);
	if (c->bad || sum > (uint64_t)(c->end - c->p))
		return bad(e, kind, "its table of data files extends beyond its end");
	ret->n = (size_t)n;
	ret->v = arena_array(a, ret->n, sizeof(*ret->v));
	if (!ret->v)
		return no_room(kind, e);
	for (size_t i = 0; i < ret->n; i++) {
		size_t shared = i ? (size_t)next_of(&prefix) : 0, own = (size_t)next_of(&suffix);
		size_t own_base = (size_t)next_of(&base), len = outer_len + shared + own;
		size_t base_before = before ? before->base - outer_len : 0;
		char *path;

		if (before && shared > before->len - outer_len)
			return bad(e, kind,
				   "a data file shares more bytes with the path before it than "
				   "that path has");
		if (own_base > shared + own)
			return bad(e, kind, "the base of a data file is longer than its path");
		if (shared > min_u64(own_base, base_before) && own_base != base_before)
			return bad(e, kind, "a data file shares a path with one of another base");
		if (len > OCDBT_MAX_KEY)
			return bad(e, kind, "the path of a data file has more than 65535 bytes");
		path = arena_alloc(a, len + 1);
		if (!path)
			return no_room(kind, e);
		if (outer_len)
			memcpy(path, outer, outer_len);
		if (shared)
			memcpy(path + outer_len, before->path + outer_len, shared);
		if (own)
			memcpy(path + outer_len + shared, cursor_take(c, own), own);
		path[len] = 0;
		if (!stays_inside(path, len))
			return err_set(e, ERR_CORRUPT,
				       "%s: the data file '%s' is outside the checkpoint",
				       kinds[kind].name, FQN_TEXT(path, len));
		ret->v[i] = (struct ocdbt_file){ path, (uint32_t)len,
						 (uint32_t)(outer_len + own_base), NULL };
		before = &ret->v[i];
	}
	return 0;
}

/* The bytes of a node or value; NULL, or what is wrong with them. */
static const char *range_of(const struct data_files *f, uint64_t id, uint64_t offset,
			    uint64_t length, struct ocdbt_range *ret)
{
	uint64_t end;

	if (id >= f->n)
		return "it names a data file that is not in its table";
	if (ckd_add(&end, offset, length) || end > INT64_MAX)
		return "it names bytes beyond 2^63";
	*ret = (struct ocdbt_range){ &f->v[id], offset, length };
	return NULL;
}

/* ---- the manifest ---- */

/* Reads where the root of each version is; only the last one counts. */
static int read_versions(struct cursor *c, unsigned arity_log2, const struct data_files *f,
			 struct ocdbt_manifest *m, struct ckpt_err *e)
{
	uint64_t n = cursor_varint_to(c, (uint64_t)1 << arity_log2), generation = 0, last = 0;
	struct cursor generations, heights, ids, offsets, lengths;
	const char *wrong = NULL;

	if (c->bad || !n)
		return bad(e, OCDBT_MANIFEST, "it has no versions, or too many");
	generations = column(c, n, UINT64_MAX, NULL);
	heights = byte_column(c, n);
	ids = column(c, n, UINT64_MAX, NULL);
	offsets = column(c, n, UINT64_MAX, NULL);
	lengths = column(c, n, UINT64_MAX, NULL);
	for (int i = 0; i < 3; i++) /* statistics */
		(void)column(c, n, UINT64_MAX, NULL);
	(void)byte_column(c, n * 8); /* commit times */
	if (c->bad)
		return bad(e, OCDBT_MANIFEST, "its versions extend beyond its end");
	for (size_t i = 0; i < n && !wrong; i++) {
		uint64_t id = next_of(&ids), offset = next_of(&offsets), len = next_of(&lengths);

		last = generation;
		generation = next_of(&generations);
		m->height = *cursor_take(&heights, 1);
		m->is_empty = offset == NO_ROOT && len == NO_ROOT;
		if (generation <= last)
			wrong = "the generations of its versions do not increase";
		else if (!m->is_empty)
			wrong = range_of(f, id, offset, len, &m->root);
		else if (m->height || id >= f->n)
			wrong = "a version is empty, but has a height or a file";
	}
	if (!wrong && n > (generation - 1) % ((uint64_t)1 << arity_log2) + 1)
		wrong = "it has more versions than its generation allows";
	m->generation = generation;
	return wrong ? bad(e, OCDBT_MANIFEST, wrong) : 0;
}

/* Older versions, in nodes of their own, which nothing here reads. */
static int skip_version_nodes(struct cursor *c, unsigned arity_log2, struct ckpt_err *e)
{
	uint64_t n = cursor_varint_to(c, 63 / arity_log2);

	for (int i = 0; i < 5; i++) /* generation, file, offset, length, number of generations */
		(void)column(c, n, UINT64_MAX, NULL);
	(void)byte_column(c, n * 9); /* commit times and heights */
	return c->bad ? bad(e, OCDBT_MANIFEST, "its version nodes extend beyond its end") : 0;
}

int ocdbt_manifest_read(const struct ocdbt_body *b, struct arena *a, struct ocdbt_manifest *ret,
			struct ckpt_err *e)
{
	struct cursor c = cursor_of(b->bytes, b->len);
	const uint8_t *uuid = cursor_take(&c, sizeof(ret->uuid));
	struct data_files f = { 0 };
	const uint8_t *kind = cursor_take(&c, 1), *arity;
	uint64_t compression;
	int rc = 0;

	*ret = (struct ocdbt_manifest){ 0 };
	(void)cursor_varint(&c); /* max_inline_value_bytes */
	(void)cursor_varint(&c); /* max_decoded_node_bytes */
	arity = cursor_take(&c, 1);
	compression = cursor_varint(&c);
	if (compression == 1)
		(void)cursor_le32(&c); /* its level */
	if (c.bad)
		return bad(e, OCDBT_MANIFEST, "it ends within its configuration");
	if (*kind > 1 || compression > 1)
		return err_set(e, ERR_UNSUPPORTED,
			       "OCDBT manifest: kind %u with compression %llu is not known", *kind,
			       (unsigned long long)compression);
	if (!*arity || *arity > MAX_ARITY_LOG2)
		return bad(e, OCDBT_MANIFEST, "the arity of its version tree is impossible");
	memcpy(ret->uuid, uuid, sizeof(ret->uuid));
	ret->numbered = *kind == 1;
	if (!ret->numbered)
		rc = read_files(&c, OCDBT_MANIFEST, "", 0, a, &f, e);
	if (!rc && !ret->numbered)
		rc = read_versions(&c, *arity, &f, ret, e);
	if (!rc && !ret->numbered)
		rc = skip_version_nodes(&c, *arity, e);
	if (!rc && c.p != c.end)
		rc = bad(e, OCDBT_MANIFEST, "there are bytes after its last field");
	return rc;
}

/* ---- nodes ---- */

struct ocdbt_node {
	struct arena arena;
	struct data_files files;
	uint8_t height;
	size_t n, i; /* entries */
	/* What is left of each column: */
	struct cursor prefix, suffix, common, keys;
	struct cursor ids, offsets,
		lengths;	     /* in leaves, ids and offsets of indirect values only */
	struct cursor kinds, values; /* in leaves */
	size_t key_len;
	uint8_t key[OCDBT_MAX_KEY];
};

/* Keys, whose lengths come first. */
static void open_keys(struct ocdbt_node *node, struct cursor *c)
{
	uint64_t sum = 0;

	node->prefix = column(c, node->n - 1, OCDBT_MAX_KEY, NULL);
	node->suffix = column(c, node->n, OCDBT_MAX_KEY, &sum);
	if (node->height)
		node->common = column(c, node->n, OCDBT_MAX_KEY, NULL);
	if (sum > (uint64_t)(c->end - c->p))
		c->bad = true;
	node->keys = byte_column(c, c->bad ? 0 : (size_t)sum);
}

static const char *open_children(struct ocdbt_node *node, struct cursor *c)
{
	node->ids = column(c, node->n, UINT64_MAX, NULL);
	node->offsets = column(c, node->n, UINT64_MAX, NULL);
	node->lengths = column(c, node->n, UINT64_MAX, NULL);
	for (int i = 0; i < 3; i++) /* statistics */
		(void)column(c, node->n, UINT64_MAX, NULL);
	return c->bad ? "its children extend beyond its end" : NULL;
}

static const char *open_values(struct ocdbt_node *node, struct cursor *c)
{
	struct cursor lengths, kind_of;
	uint64_t in_node = 0;
	size_t indirect = 0;

	node->lengths = column(c, node->n, UINT64_MAX, NULL);
	node->kinds = byte_column(c, node->n);
	if (c->bad)
		return "its values extend beyond its end";
	lengths = node->lengths;
	kind_of = node->kinds;
	for (size_t i = 0; i < node->n; i++) {
		uint8_t kind = *cursor_take(&kind_of, 1);
		uint64_t len = next_of(&lengths);

		if (kind > 1)
			return "a value is of a kind that is not known";
		if (!kind && len > OCDBT_MAX_INLINE)
			return "a value in it has more than 1 MiB";
		indirect += kind;
		in_node += kind ? 0 : len;
	}
	node->ids = column(c, indirect, UINT64_MAX, NULL);
	node->offsets = column(c, indirect, UINT64_MAX, NULL);
	if (c->bad || in_node > (uint64_t)(c->end - c->p))
		return "its values extend beyond its end";
	node->values = byte_column(c, (size_t)in_node);
	return NULL;
}

static int open_node(struct ocdbt_node *node, const struct ocdbt_body *b, const char *base,
		     size_t base_len, struct ckpt_err *e)
{
	struct cursor c = cursor_of(b->bytes, b->len);
	const uint8_t *height = cursor_take(&c, 1);
	const char *wrong = NULL;
	uint64_t n;
	int rc;

	if (!height)
		return bad(e, OCDBT_NODE, "it is empty");
	node->height = *height;
	rc = read_files(&c, OCDBT_NODE, base, base_len, &node->arena, &node->files, e);
	if (rc)
		return rc;
	n = cursor_varint(&c);
	if (c.bad || !n || n > OCDBT_MAX_ENTRIES || n > (uint64_t)(c.end - c.p))
		return err_set(
			e, ERR_CORRUPT,
			"B+tree node: it says that it has %llu entries, but only %zu bytes follow",
			(unsigned long long)n, (size_t)(c.end - c.p));
	node->n = (size_t)n;
	open_keys(node, &c);
	if (c.bad)
		wrong = "its keys extend beyond its end";
	else
		wrong = node->height ? open_children(node, &c) : open_values(node, &c);
	if (!wrong && c.p != c.end)
		wrong = "there are bytes after its last field";
	return wrong ? bad(e, OCDBT_NODE, wrong) : 0;
}

int ocdbt_node_open(const struct ocdbt_body *b, const char *base, size_t base_len,
		    struct ocdbt_node **ret, struct ckpt_err *e)
{
	struct ocdbt_node *node = malloc(sizeof(*node));
	int rc;

	if (!node)
		return err_nomem(e);
	/* All but the key, which is written before it is read. */
	memset(node, 0, offsetof(struct ocdbt_node, key));
	node->arena = (struct arena)ARENA_INIT(OCDBT_MAX_PATHS);
	rc = open_node(node, b, base, base_len, e);
	if (rc)
		ocdbt_node_free(node);
	else
		*ret = node;
	return rc;
}

void ocdbt_node_free(struct ocdbt_node *node)
{
	if (node)
		arena_release(&node->arena);
	free(node);
}

uint8_t ocdbt_node_height(const struct ocdbt_node *node)
{
	return node->height;
}

size_t ocdbt_node_memory(const struct ocdbt_node *node)
{
	return sizeof(*node) + node->arena.bytes;
}

/* The next key into node->key; NULL, or what is wrong with it. */
static const char *next_key(struct ocdbt_node *node)
{
	size_t shared = node->i ? (size_t)next_of(&node->prefix) : 0;
	size_t own = (size_t)next_of(&node->suffix), before = node->key_len;
	const uint8_t *p = cursor_take(&node->keys, own);

	if (shared > before)
		return "a key shares more bytes with the key before it than that key has";
	if (shared + own > OCDBT_MAX_KEY)
		return "a key has more than 65535 bytes";
	if (node->i && bytes_compare(p, own, node->key + shared, before - shared) <= 0)
		return "its keys do not increase";
	if (own)
		memcpy(node->key + shared, p, own);
	node->key_len = shared + own;
	return NULL;
}

int ocdbt_node_next(struct ocdbt_node *node, struct ocdbt_entry *ret, struct ckpt_err *e)
{
	struct ocdbt_entry x = { .key = node->key };
	const char *wrong;

	if (node->i == node->n)
		return 0;
	wrong = next_key(node);
	node->i++;
	x.key_len = node->key_len;
	x.at.length = next_of(&node->lengths);
	if (node->height)
		x.common = (size_t)next_of(&node->common);
	if (!wrong && x.common > x.key_len)
		wrong = "the common prefix of a child's keys is longer than the first of them";
	if (!node->height && !*cursor_take(&node->kinds, 1))
		x.bytes = cursor_take(&node->values, x.at.length);
	else if (!wrong)
		wrong = range_of(&node->files, next_of(&node->ids), next_of(&node->offsets),
				 x.at.length, &x.at);
	if (wrong)
		return err_set(e, ERR_CORRUPT, "B+tree node, entry %zu of %zu ('%s'): %s", node->i,
			       node->n, FQN_TEXT((const char *)node->key, node->key_len), wrong);
	*ret = x;
	return 1;
}

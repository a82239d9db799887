/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/msgpack.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <stdio.h>

enum { WINDOW = 1 << 16 };

enum { EXT_ARRAY = 1, EXT_COMPLEX, EXT_SCALAR, EXT_TUPLE };

/* The bytes at `at` are taken a few at a time; what is skipped is not read. */
struct reader {
	const struct blob *blob;
	struct arena *arena;
	struct ckpt_err *e;
	uint64_t at, end; /* end: of the value that contains what is read, at most the blob's */
	uint64_t from;	  /* where the window begins in the blob */
	size_t n;	  /* bytes in it */
	uint8_t *window;
};

static int cut(struct reader *r, uint64_t need)
{
	return err_set(r->e, ERR_CORRUPT,
		       "msgpack: %llu bytes are needed at byte %llu, but %llu are left",
		       (unsigned long long)need, (unsigned long long)r->at,
		       (unsigned long long)(r->end - r->at));
}

static int no_room(struct reader *r)
{
	if (errno == ENOMEM)
		return err_nomem(r->e);
	return err_set(r->e, EFBIG, "msgpack: it has more values than can be kept in memory");
}

/* The next n <= WINDOW bytes, valid until the next call; NULL: an error. */
static const uint8_t *take(struct reader *r, size_t n)
{
	const uint8_t *p;

	if (n > r->end - r->at) {
		(void)cut(r, n);
		return NULL;
	}
	if (r->at < r->from || r->at + n > r->from + r->n) {
		size_t want = (size_t)min_u64(WINDOW, r->blob->size - r->at);
		int64_t got = r->blob->read(r->blob->arg, r->at, r->window, want, r->e);

		r->from = r->at;
		r->n = got < 0 ? 0 : (size_t)got;
		if (got >= 0 && r->n < n)
			(void)err_set(r->e, ERR_CORRUPT, "msgpack: the file ends at byte %llu",
				      (unsigned long long)r->at + r->n);
		if (r->n < n)
			return NULL;
	}
	p = r->window + (r->at - r->from);
	r->at += n;
	return p;
}

static int skip(struct reader *r, uint64_t n)
{
	if (n > r->end - r->at)
		return cut(r, n);
	r->at += n;
	return 0;
}

/* A big-endian number of n <= 8 bytes. */
static int number(struct reader *r, size_t n, uint64_t *ret)
{
	const uint8_t *p = take(r, n);

	*ret = 0;
	for (size_t i = 0; p && i < n; i++)
		*ret = *ret << 8 | p[i];
	return p ? 0 : -r->e->code;
}

static int read_value(struct reader *r, unsigned depth, struct msgpack *v);

/* ---- strings and bytes ---- */

static int read_text(struct reader *r, uint64_t len, struct msgpack *v)
{
	const uint8_t *p;

	v->kind = MSGPACK_BYTES;
	v->at = r->at;
	v->len = len;
	if (len > MSGPACK_MAX_TEXT)
		return skip(r, len);
	p = take(r, (size_t)len);
	if (!p)
		return -r->e->code;
	v->kind = MSGPACK_TEXT;
	v->text = arena_dup(r->arena, p, (size_t)len);
	return v->text ? 0 : no_room(r);
}

static int read_bytes(struct reader *r, uint64_t len, struct msgpack *v)
{
	v->kind = MSGPACK_BYTES;
	v->at = r->at;
	v->len = len;
	return skip(r, len);
}

/* ---- lists and maps ---- */

/* Moves the value, which is a key, into v->key. */
static int as_key(struct reader *r, const struct msgpack *k, struct msgpack *v)
{
	char digits[32];
	int n;

	if (k->kind == MSGPACK_TEXT) {
		v->key = k->text;
		v->key_len = (uint32_t)k->len;
		return 0;
	}
	if (k->kind != MSGPACK_INT)
		return err_set(r->e, ERR_UNSUPPORTED,
			       "msgpack: the key before byte %llu is neither a text nor a number",
			       (unsigned long long)r->at);
	n = snprintf(digits, sizeof(digits), "%lld", (long long)k->integer);
	v->key = arena_dup(r->arena, digits, (size_t)n);
	v->key_len = (uint32_t)n;
	return v->key ? 0 : no_room(r);
}

static int read_members(struct reader *r, enum msgpack_kind kind, uint64_t n, unsigned depth,
			struct msgpack *v)
{
	struct msgpack **to = &v->first;

	v->kind = kind;
	v->first = NULL;
	v->n = 0;
	if (depth >= MSGPACK_MAX_DEPTH)
		return err_set(r->e, EFBIG, "msgpack: values are nested more than %d deep",
			       MSGPACK_MAX_DEPTH);
	if (n > r->end - r->at)
		return cut(r, n); /* each member takes at least one byte */
	for (uint64_t i = 0; i < n; i++) {
		struct msgpack *m = arena_array(r->arena, 1, sizeof(*m)), key;
		int rc = m ? 0 : no_room(r);

		if (!rc && kind == MSGPACK_MAP) {
			rc = read_value(r, depth + 1, &key);
			if (!rc)
				rc = as_key(r, &key, m);
		}
		if (!rc)
			rc = read_value(r, depth + 1, m);
		if (rc)
			return rc;
		*to = m;
		to = &m->next;
		v->n++;
	}
	return 0;
}

/* ---- extensions ---- */

static int bad_array(struct reader *r, uint64_t at)
{
	return err_set(r->e, ERR_CORRUPT,
		       "msgpack: the array at byte %llu is not a shape, a dtype and bytes",
		       (unsigned long long)at);
}

/* [shape, dtype, bytes] */
static int make_array(struct reader *r, const struct msgpack *list, uint64_t at, struct msgpack *v)
{
	const struct msgpack *shape = list->kind == MSGPACK_LIST ? list->first : NULL;
	const struct msgpack *dtype = shape ? shape->next : NULL;
	const struct msgpack *bytes = dtype ? dtype->next : NULL;
	struct msgpack_array *a;

	if (!bytes || bytes->next || shape->kind != MSGPACK_LIST || dtype->kind != MSGPACK_TEXT ||
	    bytes->kind != MSGPACK_BYTES)
		return bad_array(r, at);
	if (shape->n > CKPT_MAX_DIMS)
		return err_set(r->e, ERR_UNSUPPORTED,
			       "msgpack: the array at byte %llu has %zu dimensions",
			       (unsigned long long)at, shape->n);
	a = arena_alloc(r->arena, sizeof(*a) + shape->n * sizeof(*a->shape));
	if (!a)
		return no_room(r);
	*a = (struct msgpack_array){ .dtype = dtype->text, .at = bytes->at, .len = bytes->len };
	for (const struct msgpack *d = shape->first; d; d = d->next) {
		if (d->kind != MSGPACK_INT || d->integer < 0)
			return bad_array(r, at);
		a->shape[a->n_dims++] = (uint64_t)d->integer;
	}
	v->kind = MSGPACK_ARRAY;
	v->array = a;
	return 0;
}

static int make_complex(struct reader *r, const struct msgpack *list, uint64_t at,
			struct msgpack *v)
{
	const struct msgpack *re = list->kind == MSGPACK_LIST ? list->first : NULL;
	const struct msgpack *im = re ? re->next : NULL;

	if (!im || im->next || re->kind != MSGPACK_REAL || im->kind != MSGPACK_REAL)
		return err_set(r->e, ERR_CORRUPT,
			       "msgpack: the complex number at byte %llu is not two numbers",
			       (unsigned long long)at);
	v->kind = MSGPACK_COMPLEX;
	v->real = re->real;
	v->imag = im->real;
	return 0;
}

/* The value that is the whole of an extension's len bytes. */
static int read_inside(struct reader *r, uint64_t len, unsigned depth, struct msgpack *ret)
{
	uint64_t end = r->end, at = r->at;
	int rc;

	r->end = at + len;
	rc = read_value(r, depth + 1, ret);
	if (!rc && r->at != r->end)
		rc = err_set(
			r->e, ERR_CORRUPT,
			"msgpack: the extension at byte %llu has %llu bytes, but %llu are used",
			(unsigned long long)at, (unsigned long long)len,
			(unsigned long long)(r->at - at));
	r->end = end;
	return rc;
}

static int read_extension(struct reader *r, uint64_t len, unsigned depth, struct msgpack *v)
{
	const uint8_t *type = take(r, 1);
	struct msgpack body = { 0 };
	uint64_t at = r->at;
	int code, rc;

	if (!type)
		return -r->e->code;
	code = *type;
	if (len > r->end - r->at)
		return cut(r, len);
	if (code < EXT_ARRAY || code > EXT_TUPLE) {
		v->kind = MSGPACK_OTHER;
		return skip(r, len);
	}
	if (depth >= MSGPACK_MAX_DEPTH)
		return err_set(r->e, EFBIG, "msgpack: values are nested more than %d deep",
			       MSGPACK_MAX_DEPTH);
	rc = read_inside(r, len, depth, &body);
	if (rc)
		return rc;
	if (code == EXT_ARRAY || code == EXT_SCALAR)
		return make_array(r, &body, at, v);
	if (code == EXT_COMPLEX)
		return make_complex(r, &body, at, v);
	v->kind = body.kind; /* a tuple is a list */
	v->first = body.first;
	v->n = body.n;
	return body.kind == MSGPACK_LIST
		       ? 0
		       : err_set(r->e, ERR_CORRUPT, "msgpack: the tuple at byte %llu is not a list",
				 (unsigned long long)at);
}

/* ---- values ---- */

static int read_integer(struct reader *r, size_t bytes, bool is_signed, struct msgpack *v)
{
	uint64_t u;
	int rc = number(r, bytes, &u);

	if (rc)
		return rc;
	if (is_signed && bytes < 8 && u >> (8 * bytes - 1))
		u |= UINT64_MAX << 8 * bytes;
	v->kind = !is_signed && u > INT64_MAX ? MSGPACK_UINT : MSGPACK_INT;
	v->integer = (int64_t)u;
	return 0;
}

static int read_real(struct reader *r, size_t bytes, struct msgpack *v)
{
	uint64_t u;
	int rc = number(r, bytes, &u);
	uint32_t half = (uint32_t)u;
	float f;

	v->kind = MSGPACK_REAL;
	v->imag = 0;
	memcpy(&f, &half, sizeof(f));
	memcpy(&v->real, &u, sizeof(v->real));
	if (bytes == 4)
		v->real = (double)f;
	return rc;
}

/* Values that begin with a byte from 0xc0 to 0xdf, except integers. */
static int read_marked(struct reader *r, unsigned mark, unsigned depth, struct msgpack *v)
{
	static const struct {
		uint8_t first, last, bytes; /* marks; bytes of the length after the first */
		enum msgpack_kind kind;	    /* OTHER: an extension */
	} sized[] = {
		{ 0xc4, 0xc6, 1, MSGPACK_BYTES }, { 0xc7, 0xc9, 1, MSGPACK_OTHER },
		{ 0xd9, 0xdb, 1, MSGPACK_TEXT },  { 0xdc, 0xdd, 2, MSGPACK_LIST },
		{ 0xde, 0xdf, 2, MSGPACK_MAP },
	};

	for (size_t i = 0; i < ARRAY_LEN(sized); i++) {
		uint64_t n;

		if (mark < sized[i].first || mark > sized[i].last)
			continue;
		if (number(r, (size_t)sized[i].bytes << (mark - sized[i].first), &n))
			return -r->e->code;
		if (sized[i].kind == MSGPACK_BYTES)
			return read_bytes(r, n, v);
		if (sized[i].kind == MSGPACK_TEXT)
			return read_text(r, n, v);
		return sized[i].kind == MSGPACK_OTHER ? read_extension(r, n, depth, v)
						      : read_members(r, sized[i].kind, n, depth, v);
	}
	if (mark >= 0xd4 && mark <= 0xd8)
		return read_extension(r, (uint64_t)1 << (mark - 0xd4), depth, v);
	v->kind = mark == 0xc0 ? MSGPACK_NIL : MSGPACK_BOOL;
	v->integer = mark == 0xc3;
	return mark == 0xc1 ? err_set(r->e, ERR_CORRUPT,
				      "msgpack: byte %llu is 0xc1, which has no meaning",
				      (unsigned long long)r->at - 1)
			    : 0;
}

static int read_value(struct reader *r, unsigned depth, struct msgpack *v)
{
	const uint8_t *p = take(r, 1);
	unsigned mark = p ? *p : 0;

	if (!p)
		return -r->e->code;
	if (mark < 0x80 || mark >= 0xe0) {
		v->kind = MSGPACK_INT;
		v->integer = (int8_t)mark;
		return 0;
	}
	if (mark < 0xa0)
		return read_members(r, mark < 0x90 ? MSGPACK_MAP : MSGPACK_LIST, mark & 15, depth,
				    v);
	if (mark < 0xc0)
		return read_text(r, mark & 31, v);
	if (mark == 0xca || mark == 0xcb)
		return read_real(r, mark == 0xca ? 4 : 8, v);
	if (mark >= 0xcc && mark <= 0xd3)
		return read_integer(r, (size_t)1 << (mark & 3), mark >= 0xd0, v);
	return read_marked(r, mark, depth, v);
}

int msgpack_read(const struct blob *b, struct arena *a, struct msgpack **ret, struct ckpt_err *e)
{
	autofree uint8_t *window = malloc(WINDOW);
	struct reader r = { .blob = b, .arena = a, .e = e, .end = b->size, .window = window };
	struct msgpack *root = arena_array(a, 1, sizeof(*root));
	int rc;

	if (!window || !root)
		return err_nomem(e);
	rc = read_value(&r, 0, root);
	if (!rc && r.at != r.end)
		rc = err_set(e, ERR_CORRUPT, "msgpack: the value ends at byte %llu of %llu",
			     (unsigned long long)r.at, (unsigned long long)r.end);
	if (!rc)
		*ret = root;
	return rc;
}

bool msgpack_begins(const void *p, size_t n)
{
	const uint8_t *b = p;
	size_t key;

	if (!n || ((b[0] & 0xf0) != 0x80 && b[0] != 0xde && b[0] != 0xdf) || b[0] == 0x80)
		return false;
	key = b[0] == 0xde ? 3 : b[0] == 0xdf ? 5 : 1;
	return key < n && ((b[key] >= 0xa0 && b[key] < 0xc0) || b[key] == 0xd9);
}

const struct msgpack *msgpack_get(const struct msgpack *v, const char *key)
{
	if (!v || v->kind != MSGPACK_MAP)
		return NULL;
	for (const struct msgpack *m = v->first; m; m = m->next)
		if (bytes_are(m->key, m->key_len, key))
			return m;
	return NULL;
}

bool msgpack_is_text(const struct msgpack *v, const char *text)
{
	return v && v->kind == MSGPACK_TEXT && bytes_are(v->text, (size_t)v->len, text);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/gguf.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_ALIGNMENT 32
#define FIRST_READ	  ((size_t)1 << 20) /* bytes; more is read if the head is longer */

void gguf_free(struct gguf_head *h)
{
	if (!h)
		return;
	free(h->keys);
	free(h->items);
	free(h->text);
	free(h);
}

CLEANUP_POINTER(gguf_freep, struct gguf_head, gguf_free)

bool gguf_is(const void *head, size_t len)
{
	return len >= 8 && bytes_begin(head, len, "GGUF");
}

static int wrong(struct ckpt_err *e, const char *name, size_t len, const char *what)
{
	return err_set(e, ERR_CORRUPT, "GGUF header: '%s': %s", FQN_TEXT(name, len), what);
}

/* ---- values ---- */

/* Bytes of a value of this type; 0: it does not have one size. */
static size_t size_of(enum gguf_type type)
{
	static const uint8_t sizes[] = {
		[GGUF_U8] = 1,	[GGUF_I8] = 1,	[GGUF_U16] = 2, [GGUF_I16] = 2,
		[GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
		[GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8
	};

	return sizes[type];
}

/* c->bad: the head ends here, as far as it has been read. */
static const char *take_str(struct cursor *c, size_t *ret_len)
{
	uint64_t len = cursor_le64(c);
	const uint8_t *p = len <= GGUF_READ_MAX ? cursor_take(c, (size_t)len) : NULL;

	c->bad |= !p;
	*ret_len = p ? (size_t)len : 0;
	return (const char *)p;
}

/* Steps over n values; names the key in errors. */
static int skip(struct cursor *c, uint32_t type, uint64_t n, unsigned depth,
		const struct gguf_key *k, struct ckpt_err *e)
{
	uint64_t bytes;
	int rc = 0;

	if (type > GGUF_F64)
		return err_set(e, ERR_CORRUPT, "GGUF header: '%s': there is no type %u of values",
			       FQN_TEXT(k->name, k->len), type);
	if (size_of((enum gguf_type)type)) {
		if (ckd_mul(&bytes, n, size_of((enum gguf_type)type)) || bytes > GGUF_READ_MAX)
			c->bad = true;
		else
			(void)cursor_take(c, (size_t)bytes);
		return 0;
	}
	for (uint64_t i = 0; !rc && i < n && !c->bad; i++) {
		size_t len;

		if (type == GGUF_STR) {
			(void)take_str(c, &len);
		} else if (depth == GGUF_READ_NESTED) {
			rc = wrong(e, k->name, k->len, "it has arrays in arrays in arrays");
		} else {
			uint32_t of = cursor_le32(c);
			uint64_t members = cursor_le64(c);

			if (!c->bad)
				rc = skip(c, of, members, depth + 1, k, e);
		}
	}
	return rc;
}

struct gguf_value gguf_take(const uint8_t **p, enum gguf_type type)
{
	struct gguf_value v = { .type = type, .p = *p, .len = size_of(type) };

	if (type == GGUF_STR) {
		v.len = (size_t)load_le64(*p);
		v.p += 8;
		*p += 8;
	} else if (type == GGUF_ARRAY) {
		enum gguf_type of;
		const uint8_t *at;
		uint64_t n;

		gguf_open_array(&v, &of, &n, &at);
		if (size_of(of))
			at += n * size_of(of);
		else
			for (uint64_t i = 0; i < n; i++)
				(void)gguf_take(&at, of);
		v.len = (size_t)(at - v.p);
	}
	*p += v.len;
	return v;
}

void gguf_open_array(const struct gguf_value *v, enum gguf_type *ret_type, uint64_t *ret_n,
		     const uint8_t **ret_p)
{
	*ret_type = (enum gguf_type)load_le32(v->p);
	*ret_n = load_le64(v->p + 4);
	*ret_p = v->p + 12;
}

const struct gguf_value *gguf_find(const struct gguf_head *h, const char *name)
{
	for (size_t i = 0; i < h->n_keys; i++)
		if (bytes_are(h->keys[i].name, h->keys[i].len, name))
			return &h->keys[i].value;
	return NULL;
}

bool gguf_number(const struct gguf_value *v, uint64_t *ret)
{
	bool is_signed = v && (v->type == GGUF_I8 || v->type == GGUF_I16 || v->type == GGUF_I32 ||
			       v->type == GGUF_I64);
	uint64_t n = 0;

	if (!v || v->type == GGUF_F32 || v->type == GGUF_F64 || v->type == GGUF_BOOL ||
	    !size_of(v->type))
		return false;
	for (size_t i = v->len; i-- > 0;)
		n = n << 8 | v->p[i];
	if (is_signed && v->p[v->len - 1] & 0x80)
		return false;
	*ret = n;
	return true;
}

/* ---- names ---- */

static int check_name(const char *name, size_t len, size_t most, const char *what,
		      struct ckpt_err *e)
{
	if (!len || len > most)
		return err_set(e, ERR_CORRUPT, "GGUF header: the name of a %s has %zu bytes", what,
			       len);
	if (memchr(name, 0, len) || !text_is_utf8(name, len))
		return err_set(e, ERR_CORRUPT, "GGUF header: the name of a %s, '%s', is not text",
			       what, FQN_TEXT(name, len));
	return 0;
}

struct name {
	const char *s;
	size_t len;
};

static int by_name(const void *ap, const void *bp)
{
	const struct name *a = ap, *b = bp;

	return bytes_compare(a->s, a->len, b->s, b->len);
}

/* v: n of them, which are sorted here. */
static int check_distinct(struct name *v, size_t n, const char *what, struct ckpt_err *e)
{
	if (n)
		qsort(v, n, sizeof(*v), by_name);
	for (size_t i = 1; i < n; i++)
		if (!by_name(&v[i - 1], &v[i]))
			return err_set(e, ERR_CORRUPT, "GGUF header: two %ss are named '%s'", what,
				       FQN_TEXT(v[i].s, v[i].len));
	return 0;
}

static int check_names(const struct gguf_head *h, struct ckpt_err *e)
{
	size_t most = h->n_keys > h->n_items ? h->n_keys : h->n_items;
	autofree struct name *v = calloc(most + 1, sizeof(*v));
	int rc;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < h->n_keys; i++)
		v[i] = (struct name){ h->keys[i].name, h->keys[i].len };
	rc = check_distinct(v, h->n_keys, "key", e);
	for (size_t i = 0; !rc && i < h->n_items; i++)
		v[i] = (struct name){ h->items[i].name, h->items[i].len };
	return rc ? rc : check_distinct(v, h->n_items, "tensor", e);
}

/* ---- the head ---- */

static int read_key(struct gguf_head *h, struct cursor *c, struct ckpt_err *e)
{
	struct gguf_key k = { 0 };
	uint32_t type;
	int rc;

	k.name = take_str(c, &k.len);
	type = cursor_le32(c);
	if (c->bad)
		return 0;
	rc = check_name(k.name, k.len, GGUF_READ_KEY, "key", e);
	if (rc)
		return rc;
	k.value = (struct gguf_value){ (enum gguf_type)type, c->p, 0 };
	rc = skip(c, type, 1, 0, &k, e);
	if (rc || c->bad)
		return rc;
	k.value.len = (size_t)(c->p - k.value.p);
	if (type == GGUF_STR) {
		k.value.p += 8;
		k.value.len -= 8;
	}
	if (!VEC_ROOM(h->keys, h->cap_keys, h->n_keys + 1))
		return err_nomem(e);
	h->keys[h->n_keys++] = k;
	return 0;
}

/* Sets the number of bytes. */
static int check_shape(struct gguf_item *t, struct ckpt_err *e)
{
	uint64_t n, columns = t->n_dims ? t->shape[t->n_dims - 1] : 1;

	if (columns % t->type->elements)
		return err_set(
			e, ERR_CORRUPT,
			"GGUF header: '%s' has rows of %llu elements, but blocks of %s have %u",
			FQN_TEXT(t->name, t->len), (unsigned long long)columns, t->type->name,
			t->type->elements);
	if (!box_volume(t->n_dims, t->shape, &n) ||
	    ckd_mul(&t->bytes, n / t->type->elements, t->type->bytes) || t->bytes > INT64_MAX)
		return wrong(e, t->name, t->len, "its shape is too large");
	return 0;
}

static int read_item(struct gguf_head *h, struct cursor *c, struct ckpt_err *e)
{
	struct gguf_item t = { 0 };
	uint32_t type;
	int rc;

	t.name = take_str(c, &t.len);
	t.n_dims = cursor_le32(c);
	if (c->bad)
		return 0;
	rc = check_name(t.name, t.len, GGUF_READ_NAME, "tensor", e);
	if (!rc && t.n_dims > GGUF_READ_DIMS)
		rc = err_set(e, ERR_CORRUPT, "GGUF header: '%s' has %u dimensions",
			     FQN_TEXT(t.name, t.len), t.n_dims);
	if (rc)
		return rc;
	for (size_t d = t.n_dims; d-- > 0;) /* innermost first */
		t.shape[d] = cursor_le64(c);
	type = cursor_le32(c);
	t.begin = cursor_le64(c);
	if (c->bad)
		return 0;
	t.type = ggml_info(type);
	if (!t.type)
		return err_set(e, ERR_UNSUPPORTED,
			       "GGUF header: '%s' is of ggml's type %u, which is not supported",
			       FQN_TEXT(t.name, t.len), type);
	rc = check_shape(&t, e);
	if (rc)
		return rc;
	if (!VEC_ROOM(h->items, h->cap_items, h->n_items + 1))
		return err_nomem(e);
	h->items[h->n_items++] = t;
	return 0;
}

static int check_version(const struct gguf_head *h, struct ckpt_err *e)
{
	if (h->version && !(h->version & 0xffff)) /* as gguf-py recognises it */
		return err_set(e, ERR_UNSUPPORTED,
			       "it is a GGUF of big-endian numbers, which is not supported; "
			       "gguf_convert_endian.py of gguf-py makes a little-endian one");
	if (h->version != 2 && h->version != 3)
		return err_set(
			e, ERR_UNSUPPORTED,
			"it is a GGUF of version %u, but only versions 2 and 3 are supported",
			h->version);
	return 0;
}

/* 1: the head is longer than these bytes. */
static int parse(struct gguf_head *h, size_t len, uint64_t *ret_len, struct ckpt_err *e)
{
	struct cursor c = cursor_of(h->text, len);
	uint64_t n_items, n_keys;
	int rc = 0;

	h->n_keys = h->n_items = 0;
	if (!gguf_is(h->text, len))
		return err_set(e, ERR_CORRUPT, "it does not begin like a GGUF");
	(void)cursor_take(&c, 4);
	h->version = cursor_le32(&c);
	rc = check_version(h, e);
	n_items = cursor_le64(&c);
	n_keys = cursor_le64(&c);
	if (!rc && !c.bad && (n_keys > GGUF_READ_KEYS || n_items > GGUF_READ_ITEMS))
		rc = err_set(e, EFBIG,
			     "GGUF header: %llu keys and %llu tensors, but at most %llu and %llu "
			     "are read",
			     (unsigned long long)n_keys, (unsigned long long)n_items,
			     (unsigned long long)GGUF_READ_KEYS,
			     (unsigned long long)GGUF_READ_ITEMS);
	for (uint64_t i = 0; !rc && !c.bad && i < n_keys; i++)
		rc = read_key(h, &c, e);
	for (uint64_t i = 0; !rc && !c.bad && i < n_items; i++)
		rc = read_item(h, &c, e);
	*ret_len = (uint64_t)(c.p - h->text);
	return rc ? rc : c.bad;
}

/* Reads until the head is complete. */
static int load(struct gguf_head *h, const struct blob *b, uint64_t *ret_len, struct ckpt_err *e)
{
	size_t have = 0;

	for (size_t want = FIRST_READ;; want = min_u64(want * 4, GGUF_READ_MAX)) {
		uint8_t *more = realloc(h->text, want);
		int64_t n;
		int rc;

		if (!more)
			return err_nomem(e);
		h->text = more;
		n = b->read(b->arg, have, h->text + have, want - have, e);
		if (n < 0)
			return (int)n;
		have += (size_t)n;
		rc = parse(h, have, ret_len, e);
		if (rc <= 0)
			return rc;
		if (have < want)
			return err_set(e, ERR_CORRUPT,
				       "GGUF header: it goes beyond the end of the file, which has "
				       "%zu bytes",
				       have);
		if (want == GGUF_READ_MAX)
			return err_set(e, EFBIG, "GGUF header: it has more than %zu bytes",
				       GGUF_READ_MAX);
	}
}

static int read_alignment(struct gguf_head *h, uint64_t len, struct ckpt_err *e)
{
	const struct gguf_value *v = gguf_find(h, "general.alignment");
	uint64_t n = DEFAULT_ALIGNMENT;

	if (v && (v->type != GGUF_U32 || !gguf_number(v, &n) || !n || n & (n - 1)))
		return err_set(e, ERR_CORRUPT,
			       "GGUF header: general.alignment is not a power of two (uint32)");
	h->alignment = (uint32_t)n;
	h->data = (len + n - 1) & ~(n - 1); /* cannot overflow: both are below 2^32 */
	return 0;
}

static int by_begin(const void *ap, const void *bp)
{
	const struct gguf_item *a = *(const struct gguf_item *const *)ap,
			       *b = *(const struct gguf_item *const *)bp;

	if (a->begin != b->begin)
		return a->begin < b->begin ? -1 : 1;
	return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int check_layout(const struct gguf_head *h, struct ckpt_err *e)
{
	autofree const struct gguf_item **v = calloc(h->n_items + 1, sizeof(*v));
	uint64_t end = 0, most = INT64_MAX - h->data;

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < h->n_items; i++)
		v[i] = &h->items[i];
	if (h->n_items)
		qsort(v, h->n_items, sizeof(*v), by_begin);
	for (size_t i = 0; i < h->n_items; i++) {
		const struct gguf_item *t = v[i];

		if (t->begin % h->alignment)
			return err_set(e, ERR_CORRUPT,
				       "GGUF header: '%s' begins at %llu, which is not a multiple "
				       "of general.alignment (%u)",
				       FQN_TEXT(t->name, t->len), (unsigned long long)t->begin,
				       h->alignment);
		if (!range_ok(t->begin, t->bytes, most))
			return wrong(e, t->name, t->len, "it ends beyond any file");
		if (t->bytes && t->begin < end)
			return wrong(e, t->name, t->len, "it overlaps the tensor before it");
		end = max_u64(end, t->begin + t->bytes);
	}
	return 0;
}

int gguf_read(const struct blob *b, struct gguf_head **ret, struct ckpt_err *e)
{
	CLEANUP(gguf_freep) struct gguf_head *h = calloc(1, sizeof(*h));
	uint64_t len = 0;
	int rc;

	if (!h)
		return err_nomem(e);
	rc = load(h, b, &len, e);
	if (!rc)
		rc = check_names(h, e);
	if (!rc)
		rc = read_alignment(h, len, e);
	if (!rc)
		rc = check_layout(h, e);
	if (rc)
		return rc;
	*ret = steal_ptr(&h);
	return 0;
}

uint64_t gguf_end(const struct gguf_head *h)
{
	uint64_t end = 0;

	for (size_t i = 0; i < h->n_items; i++)
		end = max_u64(end, h->items[i].begin + h->items[i].bytes);
	return h->data + end;
}

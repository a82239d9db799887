/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One function visits each kind of record, both to write and to read it.
 *
 * A message is flat: a header, numbers, records and texts. It is sent as one zstd frame, or
 * uncompressed if a frame would be longer, or so much shorter that decoding would take it for a
 * bomb.
 *
 *	header    6 words: kind and flags; numbers, words of records, bytes of texts; items, paths
 *	numbers   8 bytes each: offsets, lengths and shapes
 *	records   words of 4 bytes: items; paths, each followed by its steps; a save plan's storage
 *	          data, a text or NONE
 *	texts     bytes, each text followed by a NUL
 *
 * Everything is little-endian. A record refers to its texts by offset and length, and to its
 * numbers by the first of them; equal ones are mostly stored once.
 *
 *	index            text hint n-dims-or-NONE numbers
 *	save plan 'S'    type-and-properties index offset length shape
 *	load plan 'L'    type n-dims index-of-destination index-in-storage offset offset length
 *	results   'R'    index path key-or-NONE transform-or-NONE (offset, length)
 *	path             text n-steps, and for each step a key's text, or NONE and a position's number
 */
#include "save/plan_codec.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"

#include <string.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#define NONE UINT32_MAX

enum {
	N_HEADER = 6,	       /* an even number: what follows is aligned to 8 */
	IS_UNCHANGED = 1 << 8, /* of the header's first word */
	LEVEL = 1,	       /* of zstd */
	N_SEEN = 4096,	       /* entries to compare with; together they fit the CPU cache */
	MOST_DENSE = 1024,     /* maximum expansion of a frame: plans of models reach 10 to 100 */
};

/* A recently stored text or run of numbers; later ones replace it. */
struct seen {
	const struct buf *pool; /* NULL: none yet */
	size_t at, len;		/* bytes */
};

struct wire {
	const char *whole; /* what is being coded, for messages */
	const char *why;   /* the first error */
	int err;	   /* and its errno */
	bool reads;
	/* writing */
	struct buf words, numbers, text;
	struct seen *seen; /* N_SEEN, by hash */
	/* reading */
	struct cursor c; /* the words not read yet */
	const uint64_t *got_numbers;
	const char *got_text;
	uint32_t n_numbers, text_len;
	struct arena *a;
};

static void fail(struct wire *w, int err, const char *why)
{
	if (w->err)
		return;
	w->err = err;
	w->why = why;
	w->c.bad = true;
}

static void refuse(struct wire *w, const char *why)
{
	fail(w, w->reads ? ERR_CORRUPT : EINVAL, why);
}

static void *get_room(struct wire *w, size_t count, size_t size)
{
	void *p = w->err ? NULL : arena_array(w->a, count, size);

	if (!p)
		fail(w, ENOMEM, "out of memory");
	return p;
}

static size_t words_left(const struct wire *w)
{
	return w->c.bad ? 0 : (size_t)(w->c.end - w->c.p) / 4;
}

/* ---- words, texts, numbers ---- */

static void put_word(struct buf *b, uint64_t v)
{
	uint8_t *p = buf_room(b, 4);

	if (p)
		b->len += (size_t)(put_le(p, v, 4) - p);
}

static void visit_word(struct wire *w, uint32_t *v)
{
	if (!w->reads)
		put_word(&w->words, *v);
	else if (words_left(w))
		*v = cursor_le32(&w->c);
	else
		refuse(w, "its records end too early");
}

/* The thing's offset in its pool, in bytes; a new one is added, followed by `zeros` zero bytes. */
static uint32_t put_thing(struct wire *w, struct buf *pool, const void *p, size_t len, size_t zeros)
{
	struct seen *x = &w->seen[XXH3_64bits(len ? p : "", len) % N_SEEN];

	if (x->pool == pool && x->len == len && (!len || !memcmp(pool->data + x->at, p, len)))
		return (uint32_t)x->at;
	*x = (struct seen){ pool, pool->len, len };
	buf_add(pool, p, len);
	buf_add(pool, "", zeros);
	if (pool->err)
		x->pool = NULL;
	return (uint32_t)x->at;
}

/* *s may be NULL if it is optional. */
static void visit_text(struct wire *w, const char **s, uint32_t *len, bool is_optional)
{
	uint32_t at = NONE, n = 0;

	if (!w->reads && (*s || !is_optional)) {
		n = *len;
		at = put_thing(w, &w->text, *s, n, 1);
	}
	visit_word(w, &at);
	visit_word(w, &n);
	if (!w->reads || w->err || (is_optional && at == NONE && !n))
		return;
	if (!range_ok(at, n + 1ull, w->text_len) || w->got_text[(size_t)at + n]) {
		refuse(w, "a text outside the message's texts");
		return;
	}
	*s = w->got_text + at;
	*len = n;
}

/* NUL-terminated. */
static void visit_c_text(struct wire *w, const char **s, bool is_optional)
{
	size_t n = !w->reads && *s ? strlen(*s) : 0;
	uint32_t len = (uint32_t)n;

	if (n > UINT32_MAX)
		fail(w, EFBIG, "a path or transform of more than 4 GiB");
	visit_text(w, s, &len, is_optional);
	if (w->reads && len && memchr(*s, 0, len))
		refuse(w, "a NUL in a path or transform");
}

static void visit_numbers(struct wire *w, const uint64_t **v, size_t n)
{
	uint8_t le[CKPT_MAX_DIMS * 8], *p = le;
	uint32_t at = 0;

	for (size_t i = 0; !w->reads && i < n; i++)
		p = put_le(p, (*v)[i], 8);
	if (p > le)
		at = put_thing(w, &w->numbers, le, (size_t)(p - le), 0) / 8;
	visit_word(w, &at);
	if (w->reads && !range_ok(at, n, w->n_numbers))
		refuse(w, "an offset, length or shape outside the message's numbers");
	else if (w->reads && !w->err)
		*v = w->got_numbers + at;
}

/* ---- records ---- */

static void visit_index(struct wire *w, struct ckpt_meta_index *x)
{
	uint32_t hint = (uint32_t)x->hint, n = x->has_offset ? x->n_dims : NONE;

	if (!w->reads && (x->n_dims > CKPT_MAX_DIMS || (!x->has_offset && x->n_dims)))
		refuse(w, "an index of the wrong number of dimensions");
	visit_text(w, &x->fqn, &x->fqn_len, false);
	visit_word(w, &hint);
	visit_word(w, &n);
	if (hint > INT32_MAX && hint != NONE)
		refuse(w, "a hint below -1");
	if (n != NONE && n > CKPT_MAX_DIMS)
		refuse(w, "too many dimensions");
	x->hint = hint == NONE ? CKPT_META_NO_HINT : (int32_t)(hint & INT32_MAX);
	x->has_offset = n != NONE;
	x->n_dims = x->has_offset && !w->err ? (uint8_t)n : 0;
	visit_numbers(w, &x->offset, x->n_dims);
}

static uint32_t pack_props(const struct ckpt_tensor_props *p)
{
	return (uint32_t)p->dtype << 8 | (uint32_t)p->memory_format << 16 |
	       (uint32_t)p->requires_grad << 24 | (uint32_t)p->pin_memory << 25;
}

static struct ckpt_tensor_props get_props(struct wire *w, uint32_t v)
{
	struct ckpt_tensor_props p = { .dtype = (uint8_t)(v >> 8),
				       .memory_format = (uint8_t)(v >> 16),
				       .requires_grad = v >> 24 & 1,
				       .pin_memory = v >> 25 & 1 };

	if (p.dtype == CKPT_DTYPE_NONE || p.dtype >= CKPT_DTYPE_COUNT ||
	    p.memory_format > CKPT_MEMORY_PRESERVE || v >> 26)
		refuse(w, "properties that no tensor has");
	return p;
}

static void visit_write_item(struct wire *w, void *arg)
{
	struct ckpt_write_item *x = arg;
	bool is_tensor = x->type != CKPT_WRITE_BYTE_IO;
	uint32_t v = x->type | (is_tensor ? pack_props(&x->props) : 0);
	size_t n;

	visit_word(w, &v);
	x->type = (uint8_t)v;
	is_tensor = x->type != CKPT_WRITE_BYTE_IO;
	if (x->type > CKPT_WRITE_SHARD || (!is_tensor && v))
		refuse(w, "an unknown type");
	visit_index(w, &x->index);
	n = is_tensor ? x->index.n_dims : 0;
	visit_numbers(w, &x->chunk.off, n);
	visit_numbers(w, &x->chunk.len, n);
	visit_numbers(w, &x->size, n);
	if (w->reads && is_tensor)
		x->props = get_props(w, v);
}

static void visit_read_item(struct wire *w, void *arg)
{
	struct ckpt_read_item *x = arg;
	uint32_t type = x->type, n = x->n_dims;

	visit_word(w, &type);
	visit_word(w, &n);
	if (type > CKPT_READ_TENSOR)
		refuse(w, "an unknown type");
	if (n > CKPT_MAX_DIMS)
		refuse(w, "too many dimensions");
	visit_index(w, &x->dest);
	visit_index(w, &x->storage);
	if (x->dest.n_dims != (x->dest.has_offset ? n : 0) ||
	    x->storage.n_dims != (x->storage.has_offset ? n : 0))
		refuse(w, "an index of the wrong number of dimensions");
	if (w->err)
		return;
	x->type = (uint8_t)type;
	x->n_dims = (uint8_t)n;
	visit_numbers(w, &x->dest_off, n);
	visit_numbers(w, &x->storage_off, n);
	visit_numbers(w, &x->len, n);
}

static void visit_result(struct wire *w, void *arg)
{
	struct ckpt_write_result *x = arg;
	const uint64_t *range = (const uint64_t[]){ x->info.offset, x->info.length };

	if (!w->reads && !x->info.path)
		refuse(w, "no path");
	visit_index(w, &x->index);
	visit_c_text(w, &x->info.path, false);
	visit_text(w, &x->info.tensor_key, &x->info.tensor_key_len, true);
	visit_c_text(w, &x->info.transform, true);
	visit_numbers(w, &range, 2);
	x->info.offset = range[0];
	x->info.length = range[1];
}

static void visit_step(struct wire *w, struct ckpt_path_step *s)
{
	const uint64_t *position = &s->position;
	bool is_key = w->reads ? words_left(w) && load_le32(w->c.p) != NONE : s->key != NULL;
	uint32_t none = NONE;

	if (is_key) {
		visit_text(w, &s->key, &s->key_len, false);
		return;
	}
	visit_word(w, &none);
	visit_numbers(w, &position, 1);
	s->position = *position;
}

static void visit_path(struct wire *w, void *arg)
{
	struct ckpt_fqn_path *x = arg;
	struct ckpt_path_step *steps = NULL;

	visit_text(w, &x->fqn, &x->fqn_len, false);
	visit_word(w, &x->n_steps);
	if (w->reads && x->n_steps > words_left(w) / 2)
		refuse(w, "more steps than records");
	if (w->reads)
		x->steps = steps = get_room(w, x->n_steps, sizeof(*steps));
	for (size_t k = 0; k < x->n_steps && !w->err; k++) {
		struct ckpt_path_step s = x->steps[k];

		visit_step(w, &s);
		if (steps)
			steps[k] = s;
	}
}

/* ---- messages ---- */

static const struct record {
	const char *name;
	size_t size, words; /* bytes of a value, and the minimum words of a record */
	void (*visit)(struct wire *w, void *value);
} write_items = { "plan: item", sizeof(struct ckpt_write_item), 9, visit_write_item },
  read_items = { "plan: item", sizeof(struct ckpt_read_item), 15, visit_read_item },
  results = { "write result", sizeof(struct ckpt_write_result), 12, visit_result },
  paths = { "plan: path", sizeof(struct ckpt_fqn_path), 3, visit_path };

/* All kinds of message have the same parts; most use only items. */
struct message {
	char kind;
	bool unchanged;
	const struct record *type;
	const void *items;
	const struct ckpt_fqn_path *paths;
	size_t n_items, n_paths;
	const char *storage;
	uint32_t storage_len;
};

static int refused(const struct wire *w, struct ckpt_err *e)
{
	return err_set(e, w->err, "%s: %s", w->whole, w->why);
}

/* Writes n values, or reads as many into *values. */
static int visit_all(struct wire *w, const struct record *t, const void **values, size_t n,
		     struct ckpt_err *e)
{
	const char *from = *values;
	char *to = NULL;

	if (w->reads && n > words_left(w) / t->words)
		refuse(w, "more of them than records");
	if (w->reads)
		*values = to = get_room(w, n, t->size);
	if (w->err)
		return refused(w, e);
	for (size_t i = 0; i < n; i++) {
		union {
			struct ckpt_write_item w;
			struct ckpt_read_item r;
			struct ckpt_write_result res;
			struct ckpt_fqn_path path;
		} one = { 0 };

		if (from)
			memcpy(&one, from + i * t->size, t->size);
		t->visit(w, &one);
		if (w->err)
			return err_set(e, w->err, "%s %zu: %s", t->name, i, w->why);
		if (to)
			memcpy(to + i * t->size, &one, t->size);
	}
	return 0;
}

static int visit_parts(struct wire *w, struct message *m, struct ckpt_err *e)
{
	const void *p = m->paths;
	int rc = visit_all(w, m->type, &m->items, m->n_items, e);

	if (!rc)
		rc = visit_all(w, &paths, &p, m->n_paths, e);
	m->paths = p;
	if (!rc)
		visit_text(w, &m->storage, &m->storage_len, true);
	return rc;
}

static size_t most_of_frame(size_t len)
{
	size_t n;

	return ckd_mul(&n, len, (size_t)MOST_DENSE) ? SIZE_MAX : n;
}

/* Appends the flat bytes unchanged, or as a frame. */
static int put_flat(const struct buf *flat, struct buf *b)
{
	size_t room = ZSTD_compressBound(flat->len), len;
	autofree void *frame = malloc(room);

	if (!frame)
		return ENOMEM;
	len = ZSTD_compress(frame, room, flat->data, flat->len, LEVEL);
	if (ZSTD_isError(len)) /* no other error is possible */
		return ENOMEM;
	if (len < flat->len && flat->len <= most_of_frame(len))
		buf_add(b, frame, len);
	else
		buf_add(b, flat->data, flat->len);
	return b->err;
}

static int put_message(struct wire *w, const struct message *m, struct buf *b)
{
	const struct buf *const pools[] = { &w->numbers, &w->words, &w->text };
	struct buf flat = BUF_INIT(SIZE_MAX);
	int err = 0;

	put_word(&flat, (uint8_t)m->kind | (m->unchanged ? (uint32_t)IS_UNCHANGED : 0));
	put_word(&flat, w->numbers.len / 8);
	put_word(&flat, w->words.len / 4);
	put_word(&flat, w->text.len);
	put_word(&flat, m->n_items);
	put_word(&flat, m->n_paths);
	for (size_t i = 0; i < ARRAY_LEN(pools) && !err; i++) {
		err = pools[i]->err;
		buf_add(&flat, pools[i]->data, pools[i]->len);
	}
	err = err ? err : flat.err;
	err = err ? err : put_flat(&flat, b);
	buf_release(&flat);
	return err;
}

static int encode(struct message *m, struct buf *b, struct ckpt_err *e)
{
	autofree struct seen *seen = calloc(N_SEEN, sizeof(*seen));
	struct wire w = { .words = BUF_INIT(UINT32_MAX),
			  .numbers = BUF_INIT(UINT32_MAX),
			  .text = BUF_INIT(UINT32_MAX),
			  .seen = seen };
	bool fits = m->n_items <= UINT32_MAX && m->n_paths <= UINT32_MAX;
	int err = !fits ? EFBIG : !seen ? ENOMEM : 0, rc = 0;

	if (!err)
		rc = visit_parts(&w, m, e);
	if (!err && !rc)
		err = put_message(&w, m, b);
	buf_release(&w.words);
	buf_release(&w.numbers);
	buf_release(&w.text);
	return err ? err_set(e, err, "a plan's bytes: %s",
			     err == ENOMEM ? "out of memory" : "too many")
		   : rc;
}

/* Copies the contents of a frame, or of an uncompressed message, to the arena. */
static void get_flat(struct wire *w, const void *data, size_t len)
{
	unsigned long long size = len;
	bool is_frame = len >= 4 && load_le32(data) == ZSTD_MAGICNUMBER;
	size_t n = len;
	void *flat;

	if (is_frame) {
		size = ZSTD_getFrameContentSize(data, len); /* its errors are beyond any size */
		if (ZSTD_findFrameCompressedSize(data, len) != len || size > most_of_frame(len))
			refuse(w, "bytes that are not one zstd frame of a plan");
	}
	flat = get_room(w, size, 1);
	if (!flat)
		return;
	if (is_frame)
		n = ZSTD_decompress(flat, size, data, len);
	else if (len)
		memcpy(flat, data, len);
	if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
		fail(w, ENOMEM, "out of memory");
	else if (n != size)
		refuse(w, "a damaged zstd frame");
	else
		w->c = cursor_of(flat, n);
}

/* Reads the header and locates the parts. */
static void get_message(struct wire *w, struct message *m, const void *data, size_t len)
{
	uint32_t head[N_HEADER];
	uint64_t *numbers;

	get_flat(w, data, len);
	for (size_t i = 0; i < N_HEADER; i++) {
		if (!words_left(w))
			refuse(w, "fewer bytes than a header has");
		head[i] = cursor_le32(&w->c);
	}
	if (w->err)
		return;
	if ((head[0] & ~(uint32_t)IS_UNCHANGED) != (uint8_t)m->kind)
		refuse(w, "bytes of another kind");
	if ((size_t)(w->c.end - w->c.p) != head[1] * 8ull + head[2] * 4ull + head[3])
		refuse(w, "more or fewer bytes than its header says");
	if (w->err)
		return;
	numbers = (uint64_t *)(uintptr_t)w->c.p;
	for (size_t i = 0; i < head[1]; i++)
		numbers[i] = le64toh(numbers[i]);
	w->got_numbers = numbers;
	w->n_numbers = head[1];
	w->c = cursor_of(numbers + head[1], head[2] * 4ull);
	w->got_text = (const char *)w->c.end;
	w->text_len = head[3];
	m->unchanged = head[0] & IS_UNCHANGED;
	m->n_items = head[4];
	m->n_paths = head[5];
}

static int decode(struct message *m, const void *data, size_t len, struct arena *a,
		  struct ckpt_err *e)
{
	struct wire w = { .whole = m->kind == 'R' ? "write results" : "plan",
			  .reads = true,
			  .a = a };
	int rc;

	get_message(&w, m, data, len);
	if (w.err)
		return refused(&w, e);
	rc = visit_parts(&w, m, e);
	if (rc)
		return rc;
	if (words_left(&w))
		refuse(&w, "more records than its header says");
	return w.err ? refused(&w, e) : 0;
}

int save_plan_encode(const struct ckpt_save_plan *p, struct buf *b, struct ckpt_err *e)
{
	struct message m = { 'S',
			     p->unchanged,
			     &write_items,
			     p->items,
			     p->paths,
			     p->n_items,
			     p->n_paths,
			     p->storage_len ? p->storage : NULL,
			     (uint32_t)p->storage_len };

	if (p->storage_len > UINT32_MAX)
		return err_set(e, EFBIG, "a plan's bytes: too many");
	return encode(&m, b, e);
}

int save_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_save_plan *ret,
		     struct ckpt_err *e)
{
	struct message m = { .kind = 'S', .type = &write_items };
	int rc = decode(&m, data, len, a, e);

	if (!rc)
		*ret = (struct ckpt_save_plan){ m.items,
						m.n_items,
						m.paths,
						m.n_paths,
						m.storage_len ? m.storage : NULL,
						m.storage_len,
						m.unchanged };
	return rc;
}

int load_plan_encode(const struct ckpt_load_plan *p, struct buf *b, struct ckpt_err *e)
{
	struct message m = {
		.kind = 'L', .type = &read_items, .items = p->items, .n_items = p->n_items
	};

	return encode(&m, b, e);
}

int load_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_load_plan *ret,
		     struct ckpt_err *e)
{
	struct message m = { .kind = 'L', .type = &read_items };
	int rc = decode(&m, data, len, a, e);

	if (!rc)
		*ret = (struct ckpt_load_plan){ m.items, m.n_items };
	return rc;
}

int write_results_encode(const struct ckpt_write_result *v, size_t n, struct buf *b,
			 struct ckpt_err *e)
{
	struct message m = { .kind = 'R', .type = &results, .items = v, .n_items = n };

	return encode(&m, b, e);
}

int write_results_decode(const void *data, size_t len, struct arena *a,
			 const struct ckpt_write_result **ret, size_t *ret_n, struct ckpt_err *e)
{
	struct message m = { .kind = 'R', .type = &results };
	int rc = decode(&m, data, len, a, e);

	if (rc)
		return rc;
	*ret = m.items;
	*ret_n = m.n_items;
	return 0;
}

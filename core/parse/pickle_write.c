/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_write.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "parse/pickle_text.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BATCH = 1000 }; /* as CPython */

/* A string that has been written: its place in the output, and its number. */
struct pw_string {
	size_t at;
	uint32_t len, hash, memo;
	bool used;
};

void pw_begin(struct pickle_writer *w, struct buf *out, unsigned protocol, bool memoize)
{
	assert(protocol == 2 || protocol == 4);
	*w = (struct pickle_writer){ .out = out,
				     .memoize = memoize,
				     .protocol = (uint8_t)protocol };
	pw_op(w, OP_PROTO);
	buf_add(out, &w->protocol, 1);
}

int pw_end(struct pickle_writer *w)
{
	pw_op(w, OP_STOP);
	free(w->strings);
	w->strings = NULL;
	return -w->out->err;
}

/* An opcode and the low `width` bytes of its operand. */
static void put(struct pickle_writer *w, enum pk_op op, uint64_t v, size_t width)
{
	uint8_t *p = buf_room(w->out, 1 + width);

	if (!p)
		return;
	*p = (uint8_t)op;
	(void)put_le(p + 1, v, width);
	w->out->len += 1 + width;
}

void pw_op(struct pickle_writer *w, enum pk_op op)
{
	put(w, op, 0, 0);
}

void pw_bool(struct pickle_writer *w, bool v)
{
	pw_op(w, v ? OP_NEWTRUE : OP_NEWFALSE);
}

/* ---- numbers ---- */

/* LONG1: two's complement, little-endian. */
static void put_bytes(struct pickle_writer *w, const uint8_t *bytes, size_t width)
{
	uint8_t n = (uint8_t)width;

	pw_op(w, OP_LONG1);
	buf_add(w->out, &n, 1);
	buf_add(w->out, bytes, width);
}

/* A number from 2^63 on needs a ninth byte, 0. */
static void put_long(struct pickle_writer *w, uint64_t v, size_t width)
{
	uint8_t bytes[9];

	(void)put_le(bytes, v, width);
	put_bytes(w, bytes, width);
}

bool pw_digits(struct pickle_writer *w, const char *digits, size_t n)
{
	uint8_t bytes[PK_TEXT_LONG];
	size_t width;

	if (!pk_text_long(digits, n, bytes, &width) || !width)
		return false;
	put_bytes(w, bytes, width);
	return true;
}

void pw_uint(struct pickle_writer *w, uint64_t v)
{
	size_t width = 5;

	if (v <= UINT8_MAX) {
		put(w, OP_BININT1, v, 1);
	} else if (v <= UINT16_MAX) {
		put(w, OP_BININT2, v, 2);
	} else if (v <= INT32_MAX) {
		put(w, OP_BININT, v, 4);
	} else {
		while (width < 9 && v >> (8 * width - 1)) /* one bit for the sign */
			width++;
		put_long(w, v, width);
	}
}

void pw_int(struct pickle_writer *w, int64_t v)
{
	size_t width = 5;

	if (v >= 0) {
		pw_uint(w, (uint64_t)v);
	} else if (v >= INT32_MIN) {
		put(w, OP_BININT, (uint64_t)v, 4);
	} else {
		while (width < 8 && v < -((int64_t)1 << (8 * width - 1)))
			width++;
		put_long(w, (uint64_t)v, width);
	}
}

/* ---- the memo ---- */

uint32_t pw_memo(struct pickle_writer *w)
{
	uint32_t id = w->n_memo;

	if (!w->memoize)
		return 0;
	w->n_memo++;
	if (w->protocol >= 4)
		pw_op(w, OP_MEMOIZE);
	else if (id <= UINT8_MAX)
		put(w, OP_BINPUT, id, 1);
	else
		put(w, OP_LONG_BINPUT, id, 4);
	return id;
}

void pw_get(struct pickle_writer *w, uint32_t memo)
{
	if (memo <= UINT8_MAX)
		put(w, OP_BINGET, memo, 1);
	else
		put(w, OP_LONG_BINGET, memo, 4);
}

/* ---- strings ---- */

static bool grow(struct pickle_writer *w)
{
	size_t cap = w->cap ? w->cap * 2 : 256;
	struct pw_string *to = calloc(cap, sizeof(*to));

	if (!to)
		return false;
	for (size_t i = 0; i < w->cap; i++) {
		size_t at = w->strings[i].hash & (cap - 1);

		if (!w->strings[i].used)
			continue;
		while (to[at].used)
			at = (at + 1) & (cap - 1);
		to[at] = w->strings[i];
	}
	free(w->strings);
	w->strings = to;
	w->cap = cap;
	return true;
}

/* The string's slot in the table, or a free one for it. NULL: out of memory. */
static struct pw_string *place_of(struct pickle_writer *w, const char *s, size_t n)
{
	uint32_t hash = (uint32_t)XXH3_64bits(s, n);

	if (w->n_strings >= w->cap / 2 && !grow(w))
		return NULL;
	for (size_t at = hash;; at++) {
		struct pw_string *p = &w->strings[at & (w->cap - 1)];

		if (!p->used) {
			p->hash = hash;
			p->len = (uint32_t)n;
			return p;
		}
		if (p->hash == hash && p->len == n && !memcmp(w->out->data + p->at, s, n))
			return p;
	}
}

static void put_str(struct pickle_writer *w, const char *s, size_t n)
{
	if (w->protocol >= 4 && n <= UINT8_MAX)
		put(w, OP_SHORT_BINUNICODE, n, 1);
	else
		put(w, OP_BINUNICODE, n, 4);
	buf_add(w->out, s, n);
}

void pw_str(struct pickle_writer *w, const char *s, size_t n)
{
	struct pw_string *p = NULL;

	if (w->out->err)
		return;
	if (n > UINT32_MAX) {
		w->out->err = EFBIG;
		return;
	}
	if (w->memoize && !(p = place_of(w, s, n))) {
		w->out->err = ENOMEM;
		return;
	}
	if (p && p->used) {
		pw_get(w, p->memo);
		return;
	}
	put_str(w, s, n);
	if (!p || w->out->err)
		return;
	p->at = w->out->len - n;
	p->memo = pw_memo(w);
	p->used = true;
	w->n_strings++;
}

/* ---- globals ---- */

static void put_global(struct pickle_writer *w, const char *module, const char *name)
{
	if (w->protocol >= 4) {
		pw_str(w, module, strlen(module));
		pw_str(w, name, strlen(name));
		pw_op(w, OP_STACK_GLOBAL);
		return;
	}
	pw_op(w, OP_GLOBAL);
	buf_str(w->out, module);
	buf_str(w->out, "\n");
	buf_str(w->out, name);
	buf_str(w->out, "\n");
}

void pw_global(struct pickle_writer *w, const char *module, const char *name)
{
	uint32_t i = 0;

	while (i < w->n_globals &&
	       (strcmp(w->globals[i].name, name) != 0 || strcmp(w->globals[i].module, module) != 0))
		i++;
	if (i < w->n_globals) {
		pw_get(w, w->globals[i].memo);
		return;
	}
	put_global(w, module, name);
	if (!w->memoize)
		return;
	if (i < PW_MAX_GLOBALS) {
		w->globals[i].module = module;
		w->globals[i].name = name;
		w->globals[i].memo = w->n_memo;
		w->n_globals++;
	}
	(void)pw_memo(w);
}

/* ---- containers ---- */

void pw_tuple_begin(struct pickle_writer *w, size_t n)
{
	if (n > 3)
		pw_op(w, OP_MARK);
}

void pw_tuple_end(struct pickle_writer *w, size_t n)
{
	static const enum pk_op ops[] = { OP_EMPTY_TUPLE, OP_TUPLE1, OP_TUPLE2, OP_TUPLE3 };

	pw_op(w, n > 3 ? OP_TUPLE : ops[n]);
}

void pw_tuple_of(struct pickle_writer *w, const uint64_t *v, size_t n)
{
	pw_tuple_begin(w, n);
	for (size_t i = 0; i < n; i++)
		pw_uint(w, v[i]);
	pw_tuple_end(w, n);
}

void pw_batch(struct pickle_writer *w, enum pk_op more, size_t i)
{
	if (i % BATCH)
		return;
	if (i)
		pw_op(w, more);
	pw_op(w, OP_MARK);
}

void pw_batches_end(struct pickle_writer *w, enum pk_op more, size_t n)
{
	if (n)
		pw_op(w, more);
}

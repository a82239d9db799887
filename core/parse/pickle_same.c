/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_same.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/text.h"

#include <string.h>

enum {
	MAX_DEPTH = 100,
	/* Counts values and blocks of 64 bytes of their text. */
	MAX_WORK = 1 << 22,
};

struct comparison {
	uint64_t left; /* work */
	const char *why;
};

static enum pk_verdict compare(struct comparison *c, const struct pk_value *a,
			       const struct pk_value *b, unsigned depth);

static enum pk_verdict unknown(struct comparison *c, const char *why)
{
	c->why = why;
	return PK_UNKNOWN;
}

/* False if the budget is used up. */
static bool work(struct comparison *c, uint64_t n)
{
	bool ok = n < c->left;

	c->left -= ok ? n : c->left;
	return ok;
}

static enum pk_verdict bytes(struct comparison *c, const void *a, size_t an, const void *b,
			     size_t bn)
{
	if (an != bn)
		return PK_DIFFERENT;
	if (!work(c, an / 64))
		return unknown(c, "there is too much to compare");
	return an && memcmp(a, b, an) != 0 ? PK_DIFFERENT : PK_SAME;
}

/* ---- integers ---- */

/* Two's complement, low byte first, without redundant sign bytes. */
static size_t shortest(const struct pk_value *v, uint8_t small[static 8], const uint8_t **ret)
{
	size_t n = 8;

	*ret = small;
	if (v->type == PK_LONG) {
		*ret = (const uint8_t *)v->s->data;
		n = v->s->len;
	} else {
		for (size_t i = 0; i < 8; i++)
			small[i] = (uint8_t)((uint64_t)v->i >> (8 * i));
	}
	while (n > 1 && (*ret)[n - 1] == ((*ret)[n - 2] & 0x80 ? 0xff : 0))
		n--;
	return n;
}

static enum pk_verdict integers(struct comparison *c, const struct pk_value *a,
				const struct pk_value *b)
{
	uint8_t small_a[8], small_b[8];
	const uint8_t *pa, *pb;
	size_t an = shortest(a, small_a, &pa), bn = shortest(b, small_b, &pb);

	return bytes(c, pa, an, pb, bn);
}

static bool is_integer(const struct pk_value *v)
{
	return v->type == PK_INT || v->type == PK_LONG;
}

/* ---- containers ---- */

/* Compares n values on each side. */
static enum pk_verdict rows(struct comparison *c, const struct pk_value *a,
			    const struct pk_value *b, size_t n, unsigned depth)
{
	enum pk_verdict all = PK_SAME;

	for (size_t i = 0; i < n && all != PK_DIFFERENT; i++) {
		enum pk_verdict one = compare(c, &a[i], &b[i], depth + 1);

		all = one == PK_SAME ? all : one;
	}
	return all;
}

/* Is every key of a in b, with the same value? Both have as many. */
static enum pk_verdict within(struct comparison *c, const struct pk_node *a,
			      const struct pk_node *b, unsigned depth)
{
	enum pk_verdict all = PK_SAME;
	size_t k = 0; /* where the search continues: orders seldom differ much */

	for (size_t i = 0; i < a->len; i++) {
		enum pk_verdict found = PK_DIFFERENT;

		for (size_t tries = 0; found == PK_DIFFERENT && tries < b->len; tries++) {
			found = compare(c, &a->v[2 * i], &b->v[2 * k], depth + 1);
			if (found == PK_SAME)
				found = compare(c, &a->v[2 * i + 1], &b->v[2 * k + 1], depth + 1);
			k = (k + 1) % b->len;
		}
		if (found == PK_DIFFERENT)
			return PK_DIFFERENT;
		all = found == PK_SAME ? all : found;
	}
	return all;
}

static enum pk_verdict dicts(struct comparison *c, const struct pk_value *a,
			     const struct pk_value *b, unsigned depth)
{
	enum pk_verdict all;

	if (pk_len(a) != pk_len(b))
		return PK_DIFFERENT;
	all = within(c, a->n, b->n, depth);
	/* The other way too, because a key may be there twice. */
	return all == PK_SAME ? within(c, b->n, a->n, depth) : all;
}

/* ---- objects ---- */

/* Python 3 uses Python 2's names in protocol 2. */
static void modern(const struct pk_str *module, const char **ret, size_t *ret_len)
{
	static const char *const names[][2] = { { "__builtin__", "builtins" },
						{ "copy_reg", "copyreg" } };

	*ret = module->data;
	*ret_len = module->len;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (pk_str_is(module, names[i][0])) {
			*ret = names[i][1];
			*ret_len = strlen(*ret);
		}
}

static bool same_global(const struct pk_global *a, const struct pk_global *b)
{
	const char *m, *n;
	size_t m_len, n_len;

	modern(a->module, &m, &m_len);
	modern(b->module, &n, &n_len);
	return bytes_equal(m, m_len, n, n_len) &&
	       bytes_equal(a->name->data, a->name->len, b->name->data, b->name->len);
}

static bool is_set(const struct pk_value *v)
{
	return pk_is(v, NULL, "set") || pk_is(v, NULL, "frozenset");
}

static enum pk_verdict objects(struct comparison *c, const struct pk_value *a,
			       const struct pk_value *b, unsigned depth)
{
	const struct pk_value *x = &a->n->own[PK_CALLEE], *y = &b->n->own[PK_CALLEE];
	enum pk_verdict all;

	if (x->type != PK_GLOBAL || y->type != PK_GLOBAL || !same_global(x->g, y->g))
		return unknown(c,
			       "they are objects of different classes, or made in different ways");
	all = rows(c, &a->n->own[PK_ARGS], &b->n->own[PK_ARGS], PK_OBJECT_FIELDS - PK_ARGS, depth);
	if (all == PK_DIFFERENT && is_set(x)) /* sets have no order */
		return unknown(c, "sets are not compared");
	return all;
}

/* _codecs.encode(text, 'latin1'): bytes, before protocol 3. NULL: v is something else. */
static const struct pk_str *latin1(const struct pk_value *v)
{
	const struct pk_value *args = &v->n->own[PK_ARGS], *f = args->n ? args->n->own : NULL;
	bool is = pk_is(&v->n->own[PK_CALLEE], "_codecs", "encode") && args->type == PK_TUPLE &&
		  pk_len(args) == 2 && f[0].type == PK_STR && pk_is_text(&f[1], "latin1");

	return is ? f[0].s : NULL;
}

static enum pk_verdict text_and_bytes(struct comparison *c, const struct pk_str *text,
				      const struct pk_str *b)
{
	const char *s = text->data, *end = s + text->len;
	size_t n = 0;

	if (!work(c, text->len / 8))
		return unknown(c, "there is too much to compare");
	for (; s < end; n++)
		if (n == b->len || text_next(&s, end) != (uint8_t)b->data[n])
			return PK_DIFFERENT;
	return n == b->len ? PK_SAME : PK_DIFFERENT;
}

/* ---- all ---- */

static enum pk_verdict compare_types(struct comparison *c, const struct pk_value *a,
				     const struct pk_value *b)
{
	const struct pk_str *text;

	if (is_integer(a) && is_integer(b))
		return integers(c, a, b);
	if (a->type == PK_OBJECT && b->type == PK_BYTES && (text = latin1(a)))
		return text_and_bytes(c, text, b->s);
	if (b->type == PK_OBJECT && a->type == PK_BYTES && (text = latin1(b)))
		return text_and_bytes(c, text, a->s);
	if (a->type >= PK_OBJECT || b->type >= PK_OBJECT)
		return unknown(c, "one is an object, the other is not");
	return PK_DIFFERENT;
}

static enum pk_verdict compare(struct comparison *c, const struct pk_value *a,
			       const struct pk_value *b, unsigned depth)
{
	if (depth > MAX_DEPTH)
		return unknown(c, "they nest too deep");
	if (!work(c, 1))
		return unknown(c, "there is too much to compare");
	if (a->type == PK_OPAQUE || b->type == PK_OPAQUE)
		return unknown(c, "more than 1 MiB in one piece is not compared");
	if (a->type != b->type)
		return compare_types(c, a, b);
	switch (a->type) {
	case PK_NONE:
		return PK_SAME;
	case PK_BOOL:
	case PK_INT:
		return a->i == b->i ? PK_SAME : PK_DIFFERENT;
	case PK_LONG:
		return integers(c, a, b);
	case PK_FLOAT:
		return memcmp(&a->f, &b->f, sizeof(a->f)) != 0 ? PK_DIFFERENT : PK_SAME;
	case PK_STR:
	case PK_BYTES:
		return bytes(c, a->s->data, a->s->len, b->s->data, b->s->len);
	case PK_GLOBAL:
		return same_global(a->g, b->g) ? PK_SAME
					       : unknown(c, "they name different classes");
	case PK_TUPLE:
	case PK_LIST:
		if (pk_len(a) != pk_len(b))
			return PK_DIFFERENT;
		return pk_len(a) ? rows(c, a->n->v, b->n->v, pk_len(a), depth) : PK_SAME;
	case PK_DICT:
		return dicts(c, a, b, depth);
	case PK_OBJECT:
		return objects(c, a, b, depth);
	default:
		return unknown(c, "tensors in objects are not compared");
	}
}

enum pk_verdict pk_compare(const struct pk_value *a, const struct pk_value *b, const char **ret_why)
{
	struct comparison c = { .left = MAX_WORK };
	enum pk_verdict v = compare(&c, a, b, 0);

	if (v == PK_UNKNOWN)
		*ret_why = c.why;
	return v;
}

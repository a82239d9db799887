/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "parse/pickle_ops.h"
#include "parse/pickle_same.h"
#include "pickle_util.h"
#include "rng.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

static const struct pickle_opts opts = { .max_bytes = 64 << 20, .keep_long = true };

static struct pickle *load(const void *bytes, size_t n)
{
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(bytes, n, 0, &opts, &p, &e), "%s", e.msg);
	return p;
}

/* The verdict on a and b, which must be that on b and a, too. */
static enum pk_verdict verdict(const void *a, size_t an, const void *b, size_t bn,
			       const char **ret_why)
{
	struct pickle *p = load(a, an), *q = load(b, bn);
	struct pk_value x = pickle_root(p), y = pickle_root(q);
	const char *why = NULL;
	enum pk_verdict v = pk_compare(&x, &y, ret_why);

	ck_assert_int_eq(pk_compare(&y, &x, &why), v);
	ck_assert_int_eq(pk_compare(&x, &x, &why) == PK_DIFFERENT, 0);
	pickle_free(p);
	pickle_free(q);
	return v;
}

#define ROW(a, b, verdict) \
	{ \
		a, sizeof(a) - 1, b, sizeof(b) - 1, verdict, NULL \
	}
#define UNKNOWN(a, b, why) \
	{ \
		a, sizeof(a) - 1, b, sizeof(b) - 1, PK_UNKNOWN, why \
	}
static const char classes[] = "they are objects of different classes, or made in different ways";
static const char sets[] = "sets are not compared";
static const struct {
	const char *a;
	size_t an;
	const char *b;
	size_t bn;
	enum pk_verdict v;
	const char *why;
} rows[] = {
	/* one value in several forms */
	ROW("\x80\2K\7.", "\x80\5\x95\3\0\0\0\0\0\0\0K\7.", PK_SAME),
	ROW("K\7.", "J\7\0\0\0.", PK_SAME),
	ROW("M\1\1.", "I257\n.", PK_SAME),
	ROW("K\7.", "\x8a\1\7.", PK_SAME),
	ROW("K\7.", "\x8b\x09\0\0\0\7\0\0\0\0\0\0\0\0.", PK_SAME), /* longer than it need be */
	ROW("J\xff\xff\xff\xff.", "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xff.", PK_SAME),
	ROW("\x8a\x0a\0\0\0\0\0\0\0\0\1\0.", "\x8a\x09\0\0\0\0\0\0\0\0\1.", PK_SAME),
	ROW("U\1a.", "X\1\0\0\0a.", PK_SAME),
	ROW("\x8c\1a.", "\x8d\1\0\0\0\0\0\0\0a\x94.", PK_SAME),
	ROW("C\2\xff"
	    "a.",
	    "c_codecs\nencode\nX\3\0\0\0\xc3\xbf"
	    "aX\6\0\0\0latin1\x86R.",
	    PK_SAME),
	ROW("](K\1K\2e.", "]K\1aK\2a.", PK_SAME),
	ROW("](K\1K\2e.", "(K\1K\2l.", PK_SAME),
	ROW("K\1K\2K\3\x87.", "(K\1K\2K\3t.", PK_SAME),
	ROW("](U\1aU\1ae.", "](U\1aq\1h\1e.", PK_SAME), /* shared or not */
	ROW("}(U\1aK\1U\1bK\2u.", "}U\1bK\2sU\1aK\1s.", PK_SAME),
	ROW("}(K\1}K\2K\3sK\4K\5u.", "}(K\4K\5K\1}K\2K\3su.", PK_SAME),
	ROW("ccollections\nOrderedDict\n)R(U\1aK\1u.", "}U\1aK\1s.", PK_SAME),
	ROW("cm\nC\n)\x81}U\1aK\1sb.", "\x8c\1m\x8c\1C\x93)R}\x8c\1aK\1sb.", PK_SAME),
	ROW("c__builtin__\nint\n.", "cbuiltins\nint\n.", PK_SAME),
	ROW("c__builtin__\nrange\nK\1\x85R.", "cbuiltins\nrange\nK\1\x85R.", PK_SAME),
	ROW("cbuiltins\nset\n](K\1K\2e\x85R.", "cbuiltins\nset\n](K\1K\2e\x85R.", PK_SAME),
	ROW("G\x7f\xf8\0\0\0\0\0\0.", "G\x7f\xf8\0\0\0\0\0\0\x94.", PK_SAME),
	/* other values, if only just */
	ROW("N.", "\x89.", PK_DIFFERENT),
	ROW("\x88.", "\x89.", PK_DIFFERENT),
	ROW("\x88.", "K\1.", PK_DIFFERENT),
	ROW("K\1.", "G?\xf0\0\0\0\0\0\0.", PK_DIFFERENT),
	ROW("K\x80.", "\x8a\1\x80.", PK_DIFFERENT),
	ROW("\x8a\x09\0\0\0\0\0\0\0\0\1.", "\x8a\x09\0\0\0\0\0\0\0\0\2.", PK_DIFFERENT),
	ROW("\x8a\x09\0\0\0\0\0\0\0\0\1.", "\x8a\x08\0\0\0\0\0\0\0\1.", PK_DIFFERENT),
	ROW("\x8a\x09\0\0\0\0\0\0\0\x80\0.", "\x8a\x08\0\0\0\0\0\0\0\x80.", PK_DIFFERENT),
	ROW("G\0\0\0\0\0\0\0\0.", "G\x80\0\0\0\0\0\0\0.", PK_DIFFERENT),
	ROW("U\1a.", "U\1b.", PK_DIFFERENT),
	ROW("U\1a.", "U\2aa.", PK_DIFFERENT),
	ROW("U\1a.", "C\1a.", PK_DIFFERENT),
	ROW("U\0.", "N.", PK_DIFFERENT),
	ROW("C\1a.", "c_codecs\nencode\nX\1\0\0\0bX\6\0\0\0latin1\x86R.", PK_DIFFERENT),
	ROW("C\1a.", "c_codecs\nencode\nX\2\0\0\0aaX\6\0\0\0latin1\x86R.", PK_DIFFERENT),
	ROW("C\2ab.", "c_codecs\nencode\nX\1\0\0\0aX\6\0\0\0latin1\x86R.", PK_DIFFERENT),
	ROW("].", ").", PK_DIFFERENT),
	ROW("](K\1K\2e.", "](K\2K\1e.", PK_DIFFERENT),
	ROW("](K\1K\2e.", "]K\1a.", PK_DIFFERENT),
	ROW("}U\1aK\1s.", "}U\1aK\2s.", PK_DIFFERENT),
	ROW("}U\1aK\1s.", "}U\1bK\1s.", PK_DIFFERENT),
	ROW("}U\1aK\1s.", "}.", PK_DIFFERENT),
	ROW("}(U\1aK\1U\1bK\2u.", "}(U\1bK\1U\1aK\2u.", PK_DIFFERENT),
	ROW("}(U\1aK\1U\1aK\1u.", "}(U\1aK\1U\1bK\2u.", PK_DIFFERENT),
	ROW("cm\nC\n)\x81}U\1aK\1sb.", "cm\nC\n)\x81}U\1aK\2sb.", PK_DIFFERENT),
	ROW("cm\nC\n)\x81}b.", "cm\nC\n)\x81.", PK_DIFFERENT),
	ROW("cm\nC\n)\x81K\1a.", "cm\nC\n)\x81K\2a.", PK_DIFFERENT),
	ROW("cm\nC\nK\1\x85R.", "cm\nC\nK\2\x85R.", PK_DIFFERENT),
	/* what only its class knows, or was not kept; but a difference elsewhere still counts */
	UNKNOWN("cm\nC\n)\x81.", "cm\nD\n)\x81.", classes),
	UNKNOWN("cm\nC\n)\x81.", "cn\nC\n)\x81.", classes),
	UNKNOWN("cm\nC\n)\x81.", "K\1.", "one is an object, the other is not"),
	UNKNOWN("cm\nC\n.", "cn\nC\n.", "they name different classes"),
	UNKNOWN("\x8c\3m\0x\x8c\1C\x93.", "cm\nC\n.", "they name different classes"),
	ROW("\x8f(K\1\x90.", "\x8f(K\1\x90.", PK_SAME),
	UNKNOWN("\x8f(K\1\x90.", "\x8f(K\2\x90.", sets),
	UNKNOWN("(K\1\x91.", "(K\2\x91.", sets),
	UNKNOWN("K\1)R.", "K\1)R.", classes),
	UNKNOWN("cm\nC\n)R.", "K\1)R.", classes),
	/* almost what protocol 2 writes for bytes */
	UNKNOWN("C\1a.", "c_codecs\nencode\nX\1\0\0\0aX\4\0\0\0utf8\x86R.",
		"one is an object, the other is not"),
	UNKNOWN("C\1a.", "c_codecs\nencode\nX\1\0\0\0a\x85R.",
		"one is an object, the other is not"),
	UNKNOWN("C\1a.", "c_codecs\nencode\nK\1X\6\0\0\0latin1\x86R.",
		"one is an object, the other is not"),
	UNKNOWN("C\1a.", "c_codecs\nencode\nNR.", "one is an object, the other is not"),
	UNKNOWN("C\1a.", "c_codecs\nencode\n]R.", "one is an object, the other is not"),
	UNKNOWN("C\1a.", "cm\nC\n)R.", "one is an object, the other is not"),
	UNKNOWN("U\1a.", "cm\nC\n)R.", "one is an object, the other is not"),
	UNKNOWN("\x8f.", "cbuiltins\nset\n]\x85R.", sets),
	UNKNOWN("cbuiltins\nset\n](K\1K\2e\x85R.", "cbuiltins\nset\n](K\2K\1e\x85R.", sets),
	UNKNOWN("K\1Q.", "K\1Q.", "tensors in objects are not compared"),
	UNKNOWN("](\x8f(K\1\x90K\1e.", "](\x8f(K\2\x90K\1e.", sets),
	ROW("](\x8f(K\1\x90K\1e.", "](\x8f(K\2\x90K\2e.", PK_DIFFERENT),
};

START_LOOP_TEST(values_are_compared_and_not_their_pickles, ARRAY_LEN(rows))
{
	const char *why = NULL;

	ck_assert_int_eq(verdict(rows[_i].a, rows[_i].an, rows[_i].b, rows[_i].bn, &why),
			 rows[_i].v);
	if (rows[_i].v == PK_UNKNOWN)
		ck_assert_str_eq(why, rows[_i].why);
}
END_TEST

/* ---- random values ---- */

/* Draws a value from `shape`. Leaf number `change` gets another value. */
struct drawing {
	struct emit *m;
	struct rng shape, form; /* the value, and the way in which it is written */
	unsigned leaf, change;
};

static void draw(struct drawing *d, unsigned depth);

static void draw_leaf(struct drawing *d)
{
	int64_t v = (int64_t)(rng_u64(&d->shape) >> rng_below(&d->shape, 64));
	char text[24];

	v += d->leaf++ == d->change;
	if (rng_chance(&d->shape, 50)) {
		(void)snprintf(text, sizeof(text), "%lld", (long long)v);
		emit_str(d->m, text);
	} else if (rng_chance(&d->form, 50)) {
		emit_int(d->m, v);
	} else {
		emit_op(d->m, OP_INT);
		buf_printf(&d->m->b, "%lld\n", (long long)v);
	}
}

static void draw_dict(struct drawing *d, unsigned n, unsigned depth)
{
	struct rng begin = d->shape;
	unsigned leaf = d->leaf, turn = n ? (unsigned)rng_below(&d->form, n) : 0;

	/* In another order: the items are drawn twice, and each pass leaves some of them out. */
	emit_op(d->m, OP_EMPTY_DICT);
	for (unsigned pass = 0; pass < 2; pass++) {
		d->shape = begin;
		d->leaf = leaf;
		for (unsigned i = 0; i < n; i++) {
			struct emit dropped = EMIT_INIT(d->m->protocol, false), *m = d->m;
			bool now = (i < turn) == pass;

			d->m = now ? m : &dropped;
			emit_int(d->m, i);
			draw(d, depth + 1);
			emit_op(d->m, OP_SETITEM);
			d->m = m;
			buf_release(&dropped.b);
		}
	}
}

static void draw(struct drawing *d, unsigned depth)
{
	unsigned kind = depth < 4 ? (unsigned)rng_below(&d->shape, 5) : 4;
	unsigned n = (unsigned)rng_below(&d->shape, 5);

	switch (kind) {
	case 0:
	case 1:
		emit_op(d->m, OP_MARK);
		for (unsigned i = 0; i < n; i++)
			draw(d, depth + 1);
		emit_op(d->m, kind ? OP_LIST : OP_TUPLE);
		return;
	case 2:
		draw_dict(d, n, depth);
		return;
	case 3:
		emit_object(d->m, "m", "C");
		draw(d, depth + 1);
		emit_op(d->m, OP_BUILD);
		return;
	default:
		draw_leaf(d);
	}
}

static unsigned write(struct emit *m, struct rng shape, struct rng *form, unsigned change)
{
	struct drawing d = { .m = m, .shape = shape, .form = *form, .change = change };

	emit_proto(m);
	draw(&d, 0);
	emit_op(m, OP_STOP);
	*form = d.form;
	return d.leaf;
}

START_TEST(a_value_is_the_same_however_it_is_written_and_another_when_one_leaf_is)
{
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		struct rng shape = { rng_u64(&r) };
		struct emit a = EMIT_INIT(2 + i % 4, rng_chance(&r, 50));
		struct emit b = EMIT_INIT(2 + (int)rng_below(&r, 4), false);
		struct emit c = EMIT_INIT(2, false);
		const char *why = "";
		unsigned leaves = write(&a, shape, &r, UINT32_MAX);

		REQUIRE(write(&b, shape, &r, UINT32_MAX) == leaves && !a.b.err && !b.b.err);
		ck_assert_int_eq(verdict(a.b.data, a.b.len, b.b.data, b.b.len, &why), PK_SAME);
		if (leaves) {
			(void)write(&c, shape, &r, (unsigned)rng_below(&r, leaves));
			ck_assert_int_eq(verdict(a.b.data, a.b.len, c.b.data, c.b.len, &why),
					 PK_DIFFERENT);
		}
		buf_release(&a.b);
		buf_release(&b.b);
		buf_release(&c.b);
	}
}
END_TEST

/* ---- bounds ---- */

START_TEST(work_is_bounded_and_then_it_cannot_be_told)
{
	struct emit m = EMIT_INIT(4, false);
	const char *why = NULL;

	emit_op(&m, OP_EMPTY_LIST); /* 2^64 pairs */
	for (int i = 0; i < 64; i++)
		emit_bytes(&m, "2\x86", 2);
	emit_op(&m, OP_STOP);
	ck_assert_int_eq(verdict(m.b.data, m.b.len, m.b.data, m.b.len, &why), PK_UNKNOWN);
	ck_assert_str_eq(why, "there is too much to compare");
	m.b.len = 0;
	emit_ops(&m, OP_EMPTY_LIST, 200);
	emit_ops(&m, OP_APPEND, 199);
	emit_op(&m, OP_STOP);
	ck_assert_int_eq(verdict(m.b.data, m.b.len, m.b.data, m.b.len, &why), PK_UNKNOWN);
	ck_assert_str_eq(why, "they nest too deep");
	ck_assert_int_eq(verdict("]\x94h\0a.", 6, "]\x94h\0a.", 6, &why), PK_UNKNOWN);
	buf_release(&m.b);
}
END_TEST

/* 100,000 keys in reverse order would take 5 * 10^9 comparisons, if each were compared with all. */
START_TEST(large_dicts_in_one_order_are_compared_whole)
{
	enum { KEYS = 100000 };
	struct emit m[3] = { EMIT_INIT(2, false), EMIT_INIT(4, false), EMIT_INIT(4, false) };
	const char *why = NULL;

	for (size_t k = 0; k < 3; k++) {
		emit_bytes(&m[k], "}(", 2);
		for (int i = 0; i < KEYS; i++) {
			emit_int(&m[k], k == 2 ? KEYS - 1 - i : i);
			emit_int(&m[k], 0);
		}
		emit_bytes(&m[k], "u.", 2);
		REQUIRE(!m[k].b.err);
	}
	ck_assert_int_eq(verdict(m[0].b.data, m[0].b.len, m[1].b.data, m[1].b.len, &why), PK_SAME);
	ck_assert_int_eq(verdict(m[0].b.data, m[0].b.len, m[2].b.data, m[2].b.len, &why),
			 PK_UNKNOWN);
	ck_assert_str_eq(why, "there is too much to compare");
	for (size_t k = 0; k < 3; k++)
		buf_release(&m[k].b);
}
END_TEST

SUITE(pickle_same, .seconds = 60)

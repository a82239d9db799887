/* SPDX-License-Identifier: Apache-2.0 */
/* What well-formed pickles become. See also test_pickle_hooks.c and test_pickle_hostile.c. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "parse/pickle.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "rng.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pickle_opts plain = { .max_bytes = 1 << 20 };

/* ---- one opcode at a time ---- */

#define ROW(op, bytes, text) \
	{ \
		op, bytes, sizeof(bytes) - 1, text \
	}
static const struct {
	uint8_t op;
	const char *bytes;
	size_t n;
	const char *text;
} rows[] = {
	ROW(OP_STOP, "N.", "None"),
	ROW(OP_STOP, "K\1K\2.", "2"),
	ROW(OP_MARK, "K\1(K\2K\3tK\4\x87.", "(1, (2, 3), 4)"),
	ROW(OP_POP,
	    "K\1K\2"
	    "0.",
	    "1"),
	ROW(OP_POP, "K\1(0.", "1"), /* a mark on top is popped, too */
	ROW(OP_POP_MARK,
	    "K\1(K\2]K\3"
	    "1.",
	    "1"),
	ROW(OP_DUP, "]2\x86.", "([], [])"),
	ROW(OP_DUP, "]2K\1a\x86.", "([1], [1])"), /* one list, twice */
	ROW(OP_NONE, "N.", "None"),
	ROW(OP_NEWTRUE, "\x88.", "True"),
	ROW(OP_NEWFALSE, "\x89.", "False"),
	ROW(OP_BININT, "J\xfe\xff\xff\xff.", "-2"),
	ROW(OP_BININT, "J\xff\xff\xff\x7f.", "2147483647"),
	ROW(OP_BININT1, "K\xff.", "255"),
	ROW(OP_BININT2, "M\xfe\xff.", "65534"),
	ROW(OP_INT, "I140735678901234\n.", "140735678901234"),
	ROW(OP_INT, "I-2147483649\n.", "-2147483649"),
	ROW(OP_INT, "I9223372036854775807\n.", "9223372036854775807"),
	ROW(OP_INT, "I-9223372036854775808\n.", "-9223372036854775808"),
	ROW(OP_INT, "I0\nI01\nI00\n\x87.", "(0, True, False)"),
	/* protocols 0 and 1 */
	ROW(OP_FLOAT, "F0.5\nF1e-05\nF-inf\n\x87.", "(0.5, 1.0000000000000001e-05, -inf)"),
	ROW(OP_FLOAT, "F3\nFnan\n\x86.", "(3, nan)"),
	ROW(OP_LONG, "L0L\nL-0L\nL7\n\x87.", "(0, 0, 7)"),
	ROW(OP_LONG, "L-1L\nL-128L\nL-129L\n\x87.", "(-1, -128, -129)"),
	ROW(OP_LONG, "L9223372036854775807L\nL-9223372036854775808L\n\x86.",
	    "(9223372036854775807, -9223372036854775808)"),
	ROW(OP_LONG, "L9223372036854775808L\n.", "0x008000000000000000"),
	ROW(OP_LONG, "L-9223372036854775809L\n.", "0xff7fffffffffffffff"),
	ROW(OP_LONG, "L-2361183241434822606848L\n.", "0x800000000000000000"),
	ROW(OP_LONG, "L119547037146038801333356L\n.", "0x1950a86a20f9469cfc6c"),
	ROW(OP_STRING, "S'ab'\nS\"c'd\"\n\x86.", "('ab', 'c'd')"),
	ROW(OP_STRING, "S''\nS'\\\\\\'\\n\\x7f\\1\\0123\\q'\n\x86.",
	    "('', '\\'\\x0a\\x7f\\x01\\x0a3\\q')"),
	ROW(OP_STRING, "S'\\x7F\\xaB\\8\\777'\nS'\\18'\n\x86.", "('\\x7f\\xab\\8\\xff', '\\x018')"),
	ROW(OP_UNICODE, "Va\\\n.", "'a\\'"),
	ROW(OP_UNICODE, "V\nVa\\u00e9\xe9\\U0001f600\n\x86.",
	    "('', 'a\\xc3\\xa9\\xc3\\xa9\\xf0\\x9f\\x98\\x80')"),
	ROW(OP_UNICODE, "V\\u005cu0041\\u000a\\udc80\\\\u0041\\n\n.",
	    "'\\u0041\\x0a\\xed\\xb2\\x80\\\\u0041\\n'"),
	ROW(OP_PERSID, "P12 ab\n.", "&'12 ab'"),
	ROW(OP_PUT, "Np7\nK\1p07\n\x86g7\n\x86.", "((None, 1), 1)"),
	ROW(OP_GET, "(lp1\nK\5ap0\ng1\n\x86.", "([5], [5])"),
	ROW(OP_INST, "(im\nC\np0\n(K\1K\2im\nD\n\x86.", "(m.C(), m.D(1, 2))"),
	ROW(OP_INST, "(im\nC\n(dp1\nS'lr'\nF0.5\nsb.", "m.C()!{'lr': 0.5}"),
	ROW(OP_LONG1, "\x8a\0.", "0"),
	ROW(OP_LONG1, "\x8a\1\xff.", "-1"),
	ROW(OP_LONG1, "\x8a\2\0\x80.", "-32768"),
	ROW(OP_LONG1, "\x8a\5\0\0\0\0\1.", "4294967296"),
	ROW(OP_LONG1, "\x8a\7\xff\xff\xff\xff\xff\xff\xff.", "-1"),
	ROW(OP_LONG1, "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f.", "9223372036854775807"),
	ROW(OP_LONG1, "\x8a\x8\0\0\0\0\0\0\0\x80.", "-9223372036854775808"),
	ROW(OP_LONG1, "\x8a\x9\0\0\0\0\0\0\0\x80\0.", "0x008000000000000000"),
	ROW(OP_LONG4, "\x8b\2\0\0\0\xff\x7f.", "32767"),
	ROW(OP_LONG4, "\x8b\0\0\0\0.", "0"),
	ROW(OP_LONG4,
	    "\x8b\xa\0\0\0"
	    "0123456789.",
	    "0x39383736353433323130"),
	ROW(OP_BINFLOAT, "G?\xf8\0\0\0\0\0\0.", "1.5"),
	ROW(OP_BINFLOAT, "G\xff\xf0\0\0\0\0\0\0.", "-inf"),
	ROW(OP_BINSTRING, "T\3\0\0\0abc.", "'abc'"),
	ROW(OP_SHORT_BINSTRING, "U\3abc.", "'abc'"),
	ROW(OP_BINUNICODE, "X\3\0\0\0abc.", "'abc'"),
	ROW(OP_SHORT_BINUNICODE, "\x8c\3a\0c.", "'a\\x00c'"),
	ROW(OP_SHORT_BINUNICODE, "\x8c\0.", "''"),
	ROW(OP_SHORT_BINUNICODE, "\x8c\3\xed\xa0\x80.", "'\\xed\\xa0\\x80'"),
	ROW(OP_BINUNICODE8, "\x8d\3\0\0\0\0\0\0\0abc.", "'abc'"),
	ROW(OP_BINBYTES, "B\3\0\0\0a\0c.", "b'a\\x00c'"),
	ROW(OP_SHORT_BINBYTES, "C\1\xff.", "b'\\xff'"),
	ROW(OP_BINBYTES8, "\x8e\1\0\0\0\0\0\0\0x.", "b'x'"),
	ROW(OP_BYTEARRAY8, "\x96\1\0\0\0\0\0\0\0x.", "b'x'"),
	ROW(OP_EMPTY_TUPLE, ").", "()"),
	ROW(OP_TUPLE1, "K\1\x85.", "(1,)"),
	ROW(OP_TUPLE2, "K\1K\2\x86.", "(1, 2)"),
	ROW(OP_TUPLE3, "K\1K\2K\3\x87.", "(1, 2, 3)"),
	ROW(OP_TUPLE, "(K\1K\2K\3K\4t.", "(1, 2, 3, 4)"),
	ROW(OP_TUPLE, "(t.", "()"),
	ROW(OP_EMPTY_LIST, "].", "[]"),
	ROW(OP_APPEND, "]K\1aK\2a.", "[1, 2]"),
	ROW(OP_APPENDS, "](K\1K\2e(K\3e.", "[1, 2, 3]"),
	ROW(OP_APPENDS, "](e.", "[]"),
	ROW(OP_LIST, "(K\1K\2l.", "[1, 2]"),
	ROW(OP_LIST, "K\7(l\x86.", "(7, [])"),
	ROW(OP_EMPTY_DICT, "}.", "{}"),
	ROW(OP_SETITEM, "}K\1K\2sK\3K\4s.", "{1: 2, 3: 4}"),
	ROW(OP_SETITEMS, "}(K\1K\2u(K\3K\4K\5K\6u.", "{1: 2, 3: 4, 5: 6}"),
	ROW(OP_SETITEMS, "}(u.", "{}"),
	ROW(OP_DICT, "(K\1K\2d.", "{1: 2}"),
	ROW(OP_DICT, "(d.", "{}"),
	ROW(OP_EMPTY_SET, "\x8f.", "builtins.set()"),
	ROW(OP_ADDITEMS, "\x8f(K\1]\x90.", "builtins.set()+[1, []]"),
	ROW(OP_FROZENSET, "(K\1]\x91.", "builtins.frozenset()+[1, []]"),
	ROW(OP_GLOBAL, "cmod\nname\n.", "mod.name"),
	ROW(OP_GLOBAL, "c\n\n.", "."),
	ROW(OP_STACK_GLOBAL, "\x8c\3mod\x8c\4name\x93.", "mod.name"),
	ROW(OP_REDUCE, "cm\nf\nK\1K\2\x86R.", "m.f(1, 2)"),
	ROW(OP_REDUCE, "cm\nf\n]R.", "m.f(*[])"),
	ROW(OP_REDUCE, "K\7)R.", "7()"),
	ROW(OP_NEWOBJ, "cm\nC\n)\x81.", "m.C()"),
	ROW(OP_NEWOBJ_EX, "cm\nC\nK\1\x85}\x92.", "m.C(1)"),
	ROW(OP_OBJ, "N(cm\nC\no\x86.", "(None, m.C())"),
	ROW(OP_OBJ, "(cm\nC\nK\1K\2oq\1h\1\x86.", "(m.C(1, 2), m.C(1, 2))"),
	ROW(OP_BUILD, "cm\nC\n)\x81}\x8c\1aK\1sb.", "m.C()!{'a': 1}"),
	ROW(OP_BUILD, "cm\nC\n)\x81K\1b]b.", "m.C()![]"), /* the second state counts */
	ROW(OP_BUILD, "]]b.", "[]"),			  /* a state for something that has none */
	ROW(OP_BINPERSID, "\x8c\1xK\7\x86Q.", "&('x', 7)"),
	ROW(OP_BINPUT, "]q\0h\0\x86.", "([], [])"),
	ROW(OP_LONG_BINPUT, "]r\0\0\0\0h\0\x86.", "([], [])"),
	/* keys in any order, also stored twice; MEMOIZE takes the number of keys so far */
	ROW(0, "(]q\1K\7q\2h\1h\2t.", "([], 7, [], 7)"), /* cPickle begins with 1 */
	ROW(0, "(K\1q\7K\2q\3h\7h\3t.", "(1, 2, 1, 2)"),
	ROW(0, "(K\1r\xff\xff\xff\xffK\2q\0j\xff\xff\xff\xffh\0t.", "(1, 2, 1, 2)"),
	ROW(0, "(K\1q\0h\0K\2q\0h\0t.", "(1, 1, 2, 2)"),
	ROW(0, "(K\1q\1K\2\x94h\1t.", "(1, 2, 2)"),
	ROW(0, "(K\1q\5K\2\x94h\5h\1t.", "(1, 2, 1, 2)"),
	ROW(0, "(K\1q\5K\2\x94K\3q\5K\4\x94h\5h\1h\2t.", "(1, 2, 3, 4, 3, 2, 4)"),
	ROW(0, "(]q\5(K\1q\5l0h\5t.", "([], 1)"), /* the memory of what was there is freed */
	ROW(OP_MEMOIZE, "]\x94K\1\x94h\1h\0\x86.", "(1, [])"),
	ROW(OP_BINGET,
	    "K\7\x94"
	    "0h\0.",
	    "7"),
	ROW(OP_LONG_BINGET,
	    "K\7\x94"
	    "0j\0\0\0\0.",
	    "7"),
	ROW(OP_PROTO, "\x80\2N.", "None"),
	ROW(OP_PROTO, "\x80\5N.", "None"),
	ROW(OP_FRAME, "\x80\4\x95\2\0\0\0\0\0\0\0N.", "None"),
	ROW(OP_FRAME, "\x95\xff\xff\xff\xff\xff\xff\xff\xffN.",
	    "None"), /* the length is only a hint */
	/* callables whose result is data */
	ROW(0, "ctorch\nSize\n(K\1K\2t\x85R.", "(1, 2)"),
	ROW(0, "ctorch\nSize\n)\x85R.", "()"),
	ROW(0, "\x8c\5torch\x8c\4Size\x93K\3\x85\x85R.", "(3,)"),
	ROW(0, "ctorch\nSize\nK\3\x85\x85\x94Rh\0\x86.",
	    "((3,), ((3,),))"), /* the tuple of arguments is shared */
	ROW(0, "ctorch\nSize\nK\3\x85\x85\x94R0K\4\x85h\0\x86.", "((4,), ((3,),))"),
	ROW(0, "ctorch\nSize\n]\x85R.", "torch.Size([])"),
	ROW(0, "ctorch\nSize\nK\3\x85\x85\x81.", "torch.Size((3,))"), /* that is not a call */
	ROW(0, "cmine\nSize\n)\x85R.", "mine.Size(())"),
	ROW(0, "ccollections\nOrderedDict\n)R\x94(K\1K\2u.", "{1: 2}"),
	ROW(0, "ccollections\nOrderedDict\n]\x85R.", "{}"), /* Python 2 */
	ROW(0,
	    "ccollections\nOrderedDict\n](](K\1K\2eK\3]\x86"
	    "e\x85R(K\4K\5u.",
	    "{1: 2, 3: [], 4: 5}"),
	/* if the list is shared, the call stays as it is */
	ROW(0, "(ccollections\nOrderedDict\n]K\1K\2\x86\x61q\1\x85Rh\1t.",
	    "(collections.OrderedDict([(1, 2)]), [(1, 2)])"),
	ROW(0, "ccollections\nOrderedDict\n]K\1a\x85R.", "collections.OrderedDict([1])"),
	ROW(0,
	    "ccollections\nOrderedDict\n]K\1\x85"
	    "a\x85R.",
	    "collections.OrderedDict([(1,)])"),
	ROW(0, "ccollections\nOrderedDict\n](K\1K\2t\x86R.", "collections.OrderedDict([], (1, 2))"),
	ROW(0, "ccollections\nOrderedDict\nK\1\x85R.", "collections.OrderedDict(1)"),
	ROW(0, "cbuiltins\nset\n]\x85R.", "builtins.set([])"),
	ROW(0, "cbuiltins\nlist\n]\x85R.", "builtins.list([])"),
	/* items are kept for an object, not for an opaque value */
	ROW(0, "cm\nC\n)\x81(K\1K\2uK\3K\4s.", "m.C()+{1: 2, 3: 4}"),
	ROW(0, "cm\nC\n)\x81(K\1K\2eK\3a}b.", "m.C()!{}+[1, 2, 3]"),
	ROW(0, "cm\nC\n)\x81K\1a(K\1K\2u.", "m.C()+[1]"), /* nothing is both */
	ROW(0, "\x8f(K\1K\2u.", "builtins.set()+{1: 2}"),
	/* filled after it was stored */
	ROW(0, "]\x94(K\1h\0t0h\0K\2a.", "[2]"),
};

static void check_row(size_t i, size_t step)
{
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct buf b = BUF_INIT(1 << 20);
	struct pk_value root;

	ck_assert_msg(!load_bytes(rows[i].bytes, rows[i].n, step, &plain, &p, &e), "%s: %s",
		      rows[i].text, e.msg);
	ck_assert_int_eq(e.code, 0);
	root = pickle_root(p);
	print_value(&b, &root);
	ck_assert_str_eq(b.data, rows[i].text);
	ck_assert_uint_eq(pickle_end(p), rows[i].n);
	buf_release(&b);
	pickle_free(p);
}

START_LOOP_TEST(every_opcode_builds_its_value, ARRAY_LEN(rows))
{
	check_row((size_t)_i, 0);
}
END_TEST

START_LOOP_TEST(input_in_small_pieces_builds_the_same, ARRAY_LEN(rows))
{
	check_row((size_t)_i, 1);
	check_row((size_t)_i, 2);
	check_row((size_t)_i, 7);
}
END_TEST

START_LOOP_TEST(input_cut_anywhere_is_nodata_and_leaves_the_output, ARRAY_LEN(rows))
{
	static char untouched;

	for (size_t n = 0; n < rows[_i].n; n++)
		for (size_t step = 0; step < 4; step++) {
			struct pickle *p = (struct pickle *)(void *)&untouched;
			struct ckpt_err e = { 0 };
			char want[80];

			ck_assert_int_eq(load_bytes(rows[_i].bytes, n, step, &plain, &p, &e),
					 -ENODATA);
			ck_assert_int_eq(e.code, ENODATA);
			(void)snprintf(want, sizeof(want), "pickle ends too early, at byte %zu", n);
			ck_assert_str_eq(e.msg, want);
			ck_assert_ptr_eq(p, &untouched);
		}
}
END_TEST

START_TEST(rows_leave_no_opcode_out)
{
	static const char all[] =
		"(.012FGILNJKMPQRSTUVXabcdeghijlpqrostu}])BC"
		"\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93"
		"\x94\x95\x96";

	for (const char *op = all; *op; op++) {
		size_t i = 0;

		while (i < ARRAY_LEN(rows) && rows[i].op != (uint8_t)*op)
			i++;
		ck_assert_msg(i < ARRAY_LEN(rows), "opcode 0x%02x", (uint8_t)*op);
	}
}
END_TEST

START_TEST(what_follows_stop_is_not_read)
{
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(load_bytes("K\7.\xff\xff", 5, 0, &plain, &p, &e), 0);
	ck_assert_uint_eq(pickle_end(p), 3);
	ck_assert_int_eq(pickle_root(p).type, PK_INT);
	ck_assert_int_eq(pickle_root(p).i, 7);
	pickle_free(p);
	pickle_free(NULL);
}
END_TEST

START_TEST(a_dict_may_contain_itself)
{
	static const char bytes[] = "}\x94\x8c\1kh\0s.";
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;

	ck_assert_int_eq(load_bytes(bytes, sizeof(bytes) - 1, 0, &plain, &p, &e), 0);
	root = pickle_root(p);
	ck_assert_uint_eq(pk_len(&root), 1);
	ck_assert_int_eq(root.n->v[1].type, PK_DICT);
	ck_assert_ptr_eq(root.n->v[1].n, root.n);
	pickle_free(p);
}
END_TEST

/* ---- dropping ---- */

static const struct {
	const char *bytes, *text;
} drop_rows[] = {
	{ "cm\nf\n](K\1K\2e\x85R.", "?" },
	{ "cm\nC\n)\x81]b.", "?" },
	{ "cm\nC\n)}\x92.", "?" },
	{ "K\7)R.", "?" },
	{ "cm\nC\n.", "m.C" },
	{ "](cm\nC\n)\x81}b]e.", "[?, []]" },
	{ "\x8f.", "?" }, /* sets */
	{ "\x8f(K\1\x90.", "?" },
	{ "(K\1\x91.", "?" },
	{ "ctorch\nSize\nK\3\x85\x85R.", "(3,)" },
	{ "ccollections\nOrderedDict\n)R.", "{}" },
	{ "ccollections\nOrderedDict\n]\x85R.", "{}" },
	{ "ccollections\nOrderedDict\n]N\x85"
	  "a\x85R.",
	  "?" },
};

START_LOOP_TEST(drop_unknown_keeps_data_and_no_objects, ARRAY_LEN(drop_rows))
{
	struct pickle_opts opts = { .max_bytes = 1 << 20, .drop_unknown = true };
	struct buf b = BUF_INIT(1000);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;
	size_t n = strlen(drop_rows[_i].bytes);

	ck_assert_msg(!load_bytes(drop_rows[_i].bytes, n, 0, &opts, &p, &e), "%s", e.msg);
	root = pickle_root(p);
	print_value(&b, &root);
	ck_assert_str_eq(b.data, drop_rows[_i].text);
	buf_release(&b);
	pickle_free(p);
}
END_TEST

/* ---- memo ---- */

/* Stores and pops n values, then asks for them at random, twice. */
static void check_memo(struct rng *r, int protocol, uint32_t n, uint32_t n_gets)
{
	struct emit m = EMIT_INIT(protocol, false);
	uint32_t *asked = malloc(n_gets * sizeof(*asked));
	struct pickle_opts opts = { .max_bytes = 64 << 20 };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;

	emit_proto(&m);
	for (uint32_t i = 0; i < n; i++) {
		emit_int(&m, (int64_t)i * 3);
		emit_put(&m);
		emit_op(&m, OP_POP);
	}
	emit_op(&m, OP_MARK);
	for (uint32_t i = 0; i < n_gets; i++) {
		asked[i] = (uint32_t)rng_below(r, n);
		emit_get(&m, asked[i]);
	}
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
	root = pickle_root(p);
	ck_assert_uint_eq(pk_len(&root), n_gets);
	for (uint32_t i = 0; i < n_gets; i++)
		REQUIRE(root.n->v[i].i == (int64_t)asked[i] * 3);
	pickle_free(p);
	buf_release(&m.b);
	free(asked);
}

START_TEST(memo_of_any_size_gives_back_what_was_put)
{
	struct rng r = rng_new();

	for (int protocol = 2; protocol <= 5; protocol++) {
		check_memo(&r, protocol, 1, 3);
		check_memo(&r, protocol, 255, 600);
		check_memo(&r, protocol, 257, 600);
		check_memo(&r, protocol, 5000, 10);
		check_memo(&r, protocol, 5000, 6000);
		check_memo(&r, protocol, 200000, 1000);
	}
}
END_TEST

/* PUT, MEMOIZE and GET of few keys, near and far, compared with a memo that is a plain array. */
static void check_random_memo(struct rng *r, int64_t *want, size_t *n_want)
{
	static const uint32_t far[] = { 0x80000000, UINT32_MAX, UINT32_MAX - 1, 1000000 };
	struct {
		uint32_t key;
		int64_t value;
	} memo[2000];
	struct emit m = EMIT_INIT(2, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	size_t n = 0, spread = 1 + rng_below(r, 100), ops = rng_below(r, 1000);
	uint32_t next = (uint32_t)rng_below(r, 3);
	unsigned in_order = (unsigned)rng_below(r, 101);
	struct pk_value root;

	*n_want = 0;
	emit_op(&m, OP_MARK);
	for (size_t i = 0; i < ops; i++) {
		uint32_t key = rng_chance(r, in_order) ? next++
			       : rng_chance(r, 20)     ? far[rng_below(r, 4)]
						       : (uint32_t)rng_below(r, spread);
		size_t at = 0;

		if (n && rng_chance(r, 40)) {
			at = rng_below(r, n);
			emit_get(&m, memo[at].key);
			want[(*n_want)++] = memo[at].value;
			continue;
		}
		emit_int(&m, (int64_t)i);
		want[(*n_want)++] = (int64_t)i;
		if (rng_chance(r, 10)) {
			key = (uint32_t)n;
			emit_op(&m, OP_MEMOIZE);
		} else {
			emit_op(&m, key < 256 ? OP_BINPUT : OP_LONG_BINPUT);
			for (int k = 0; k < (key < 256 ? 1 : 4); k++)
				emit_op(&m, (uint8_t)(key >> (8 * k)));
		}
		while (at < n && memo[at].key != key)
			at++;
		memo[at].key = key;
		memo[at].value = (int64_t)i;
		n += at == n;
	}
	emit_bytes(&m, "t.", 2);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, rng_below(r, 3), &plain, &p, &e), "%s", e.msg);
	root = pickle_root(p);
	ck_assert_uint_eq(pk_len(&root), *n_want);
	for (size_t i = 0; i < *n_want; i++)
		REQUIRE(root.n->v[i].type == PK_INT && root.n->v[i].i == want[i]);
	pickle_free(p);
	buf_release(&m.b);
}

START_TEST(a_memo_is_a_dict_whatever_its_keys)
{
	static int64_t want[2000];
	struct rng r = rng_new();
	size_t n;

	for (int i = 0; i < 2000; i++)
		check_random_memo(&r, want, &n);
}
END_TEST

START_LOOP_TEST(protocols_and_memo_styles_agree, 4)
{
	struct emit a = EMIT_INIT(2 + _i, false), b = EMIT_INIT(5, true);
	struct buf at = BUF_INIT(1 << 20), bt = BUF_INIT(1 << 20);
	struct pickle *p = NULL, *q = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;

	a.memoize = true;
	emit_metadata(&a, 5, 3);
	emit_metadata(&b, 5, 3);
	ck_assert_msg(!load_bytes(a.b.data, a.b.len, 7, &plain, &p, &e), "%s", e.msg);
	ck_assert_msg(!load_bytes(b.b.data, b.b.len, 0, &plain, &q, &e), "%s", e.msg);
	root = pickle_root(p);
	print_value(&at, &root);
	root = pickle_root(q);
	print_value(&bt, &root);
	ck_assert_str_eq(at.data, bt.data);
	ck_assert_uint_gt(at.len, 1000);
	buf_release(&at);
	buf_release(&bt);
	buf_release(&a.b);
	buf_release(&b.b);
	pickle_free(p);
	pickle_free(q);
}
END_TEST

/* ---- looking ---- */

static struct pickle *load_text(const char *bytes, size_t n)
{
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(bytes, n, 0, &plain, &p, &e), "%s", e.msg);
	return p;
}

START_TEST(get_finds_the_last_of_equal_keys)
{
	static const char bytes[] = "}(\x8c\1aK\1\x8c\1bK\2\x8c\1aK\3\x8c\3a\0bK\4K\1K\5C\1cK\6u.";
	struct pickle *p = load_text(bytes, sizeof(bytes) - 1);
	struct pk_value root = pickle_root(p), number = { .type = PK_INT };

	ck_assert_uint_eq(pk_len(&root), 6);
	ck_assert_int_eq(pk_get(&root, "a")->i, 3);
	ck_assert_int_eq(pk_get(&root, "b")->i, 2);
	ck_assert_int_eq(pk_get_n(&root, "a\0b", 3)->i, 4);
	ck_assert_int_eq(pk_get_n(&root, "ax", 1)->i, 3);
	ck_assert_ptr_null(pk_get(&root, "c")); /* bytes are no str */
	ck_assert_ptr_null(pk_get(&root, ""));
	ck_assert_ptr_null(pk_get(&number, "a"));
	ck_assert_ptr_null(pk_get(NULL, "a"));
	ck_assert_uint_eq(pk_len(&number), 0);
	pickle_free(p);
}
END_TEST

/* ---- large dicts, which have an index ---- */

enum { BATCH = 100, BATCHES = 40 };

static const char *key_of(char ret[static 24], size_t i)
{
	(void)snprintf(ret, 24, "k%zu", i);
	return ret;
}

/* The first BATCH keys have the number of the last batch, others their own. */
static int look_while_it_grows(void *arg, struct pickle *p, struct pk_value *obj,
			       struct ckpt_err *e)
{
	size_t *batches = arg, n = ++*batches * BATCH;
	char key[24];

	(void)p;
	(void)e;
	for (size_t i = 0; i < n + 5; i++) {
		const struct pk_value *v = pk_attr(obj, key_of(key, i));

		ck_assert_int_eq(v != NULL, i < n);
		if (v)
			ck_assert_int_eq(v->i, (int64_t)(i < BATCH ? *batches : i));
	}
	return 0;
}

static int any_class(void *arg, const char *module, const char *name)
{
	(void)arg;
	(void)module;
	(void)name;
	return 1;
}

START_TEST(keys_of_a_large_dict_are_found_while_it_grows)
{
	static const struct pickle_hooks hooks = { .classify = any_class,
						   .built = look_while_it_grows };
	struct emit m = EMIT_INIT(4, false);
	size_t batches = 0;
	struct pickle_opts opts = { .hooks = &hooks, .arg = &batches, .max_bytes = 16 << 20 };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;
	char key[24];

	emit_proto(&m);
	emit_str(&m, "elsewhere");
	emit_op(&m, OP_POP);
	emit_op(&m, OP_EMPTY_DICT);
	emit_put(&m);
	for (size_t b = 0; b < BATCHES; b++) {
		emit_op(&m, OP_MARK);
		for (size_t i = 0; i < BATCH; i++) {
			emit_str(&m, key_of(key, b * BATCH + i));
			emit_int(&m, (int64_t)(b * BATCH + i));
			/* The first keys again, and what looks like keys. */
			emit_str(&m, key_of(key, i));
			emit_int(&m, (int64_t)b + 1);
			emit_bytes(&m, "C\2k0N", 5);
			emit_int(&m, (int64_t)i);
			emit_op(&m, OP_NONE);
		}
		emit_op(&m, OP_SETITEMS);
		emit_object(&m, "m", "C");
		emit_get(&m, 0);
		emit_op(&m, OP_BUILD);
		emit_op(&m, OP_POP);
	}
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
	ck_assert_uint_eq(batches, BATCHES);
	root = pickle_root(p);
	ck_assert_uint_eq(pk_len(&root), BATCHES * BATCH * 4);
	REQUIRE(!pk_get(&root, "elsewhere") && !pk_get(&root, "nowhere") && !pk_get(&root, ""));
	ck_assert_int_eq(pk_get(&root, "k0")->i, BATCHES);
	pickle_free(p);
	buf_release(&m.b);
}
END_TEST

/* A dict of N keys is looked into N times, found or not; if each were a search, it would take
 * hours. */
START_TEST(a_large_dict_may_be_looked_into_often)
{
	enum { MANY = 1 << 20 };
	struct emit m = EMIT_INIT(4, false);
	struct pickle_opts opts = { .max_bytes = 256 << 20 };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;
	size_t found = 0;
	char key[24];

	emit_proto(&m);
	emit_op(&m, OP_EMPTY_DICT);
	emit_op(&m, OP_MARK);
	for (size_t i = 0; i < MANY; i++) {
		emit_str(&m, key_of(key, i));
		emit_op(&m, OP_NONE);
	}
	emit_op(&m, OP_SETITEMS);
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
	root = pickle_root(p);
	for (size_t i = 0; i < 2 * (size_t)MANY; i++)
		found += pk_get(&root, key_of(key, i)) != NULL;
	ck_assert_uint_eq(found, MANY);
	pickle_free(p);
	buf_release(&m.b);
}
END_TEST

START_TEST(attributes_come_from_a_dict_or_a_tuple_that_begins_with_one)
{
	static const char dict[] = "cm\nC\n)\x81}\x8c\1aK\1sb.";
	static const char tuple[] = "cm\nC\n)\x81}\x8c\1aK\1s}\x86"
				    "b.";
	static const char none[] = "cm\nC\n)\x81N\x85"
				   "b.",
			  empty[] = "cm\nC\n)\x81)b.";
	struct pickle *p = load_text(dict, sizeof(dict) - 1);
	struct pk_value v = pickle_root(p), number = { .type = PK_INT };

	ck_assert_int_eq(pk_attr(&v, "a")->i, 1);
	ck_assert_ptr_null(pk_attr(&v, "b"));
	ck_assert_ptr_null(pk_attr(&number, "a"));
	ck_assert_ptr_null(pk_attr(NULL, "a"));
	pickle_free(p);
	p = load_text(tuple, sizeof(tuple) - 1);
	v = pickle_root(p);
	ck_assert_int_eq(pk_attr(&v, "a")->i, 1);
	pickle_free(p);
	p = load_text(none, sizeof(none) - 1);
	v = pickle_root(p);
	ck_assert_ptr_null(pk_attr(&v, "a"));
	pickle_free(p);
	p = load_text(empty, sizeof(empty) - 1);
	v = pickle_root(p);
	ck_assert_ptr_null(pk_attr(&v, "a"));
	pickle_free(p);
}
END_TEST

START_TEST(globals_are_compared_whole)
{
	static const char bytes[] = "\x8c\1m\x8c\3n\0x\x93\x8c\1m\x8c\1n\x93\x86.";
	struct pickle *p = load_text(bytes, sizeof(bytes) - 1);
	struct pk_value root = pickle_root(p), none = { .type = PK_NONE };
	const struct pk_value *with_nul = &root.n->own[0], *n = &root.n->own[1];

	ck_assert(pk_is(n, "m", "n"));
	ck_assert(pk_is(n, NULL, "n"));
	ck_assert(!pk_is(n, "x", "n"));
	ck_assert(!pk_is(n, "m", "nn"));
	ck_assert(!pk_is(&none, NULL, "n"));
	ck_assert(!pk_is(with_nul, NULL, "n"));
	pickle_free(p);
}
END_TEST

/* ---- strings ---- */

START_TEST(equal_strings_are_one_and_numbered_from_zero)
{
	struct pk_strings *t = pk_strings_new(1 << 20);
	const struct pk_str *a = pk_intern(t, "abc", 3), *b = pk_intern(t, "ab", 2);

	ck_assert_ptr_eq(pk_intern(t, "abcd", 3), a);
	ck_assert_uint_eq(a->id, 0);
	ck_assert_uint_eq(b->id, 1);
	ck_assert_uint_eq(pk_intern(t, "", 0)->id, 2);
	ck_assert_uint_eq(pk_intern(t, "a\0b", 3)->id, 3);
	ck_assert_uint_eq(pk_strings_count(t), 4);
	ck_assert_ptr_eq(pk_string(t, 1), b);
	ck_assert_str_eq(a->data, "abc");
	ck_assert_uint_eq(pk_string(t, 3)->len, 3);
	ck_assert_mem_eq(pk_string(t, 3)->data, "a\0b", 4); /* and a NUL */
	pk_strings_free(t);
	pk_strings_free(NULL);
}
END_TEST

START_TEST(many_strings_of_all_lengths_stay_apart)
{
	struct pk_strings *t = pk_strings_new((size_t)1 << 30);
	char *s = calloc(1, 200000);
	uint32_t count = 0;

	ck_assert_ptr_nonnull(s);
	for (size_t n = 0; n < 200000; n += 1 + n / 50) {
		REQUIRE(pk_intern(t, s, n)->id == count++);
		REQUIRE(pk_string(t, count - 1)->len == n);
	}
	for (uint32_t i = 0; i < 100000; i++) {
		memcpy(s, &i, sizeof(i));
		REQUIRE(pk_intern(t, s, 8)->id == (i ? count++ : pk_intern(t, s, 8)->id));
	}
	for (uint32_t i = 1; i < 100000; i++) {
		memcpy(s, &i, sizeof(i));
		REQUIRE(!memcmp(pk_intern(t, s, 8)->data, &i, sizeof(i)));
	}
	ck_assert_uint_eq(pk_strings_count(t), count);
	pk_strings_free(t);
	free(s);
}
END_TEST

START_TEST(strings_have_a_ceiling)
{
	struct pk_strings *t = pk_strings_new(256 << 10);
	const struct pk_str *first = pk_intern(t, "first", 5), *s = first;
	uint32_t i = 0;

	for (; s && i < 1000000; i++)
		s = pk_intern(t, (const char *)&i, sizeof(i));
	ck_assert_ptr_null(s);
	ck_assert_uint_gt(i, 4000);
	/* The limit counts 24 bytes for each string, and as many in the tables. */
	ck_assert_uint_lt(i, (256 << 10) / 40);
	ck_assert_ptr_eq(pk_intern(t, "first", 5), first);
	pk_strings_free(t);
}
END_TEST

START_TEST(a_shared_interner_outlives_its_pickles)
{
	struct pk_strings *t = pk_strings_new(1 << 20);
	struct pickle_opts opts = { .strings = t, .max_bytes = 1 << 20 };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	const struct pk_str *s;

	ck_assert_int_eq(load_bytes("\x8c\3abc.", 6, 0, &opts, &p, &e), 0);
	s = pickle_root(p).s;
	pickle_free(p);
	ck_assert_str_eq(s->data, "abc");
	ck_assert_int_eq(load_bytes("U\3abc.", 6, 0, &opts, &p, &e), 0);
	ck_assert_ptr_eq(pickle_root(p).s, s);
	pickle_free(p);
	ck_assert_uint_eq(pk_strings_count(t), 1);
	pk_strings_free(t);
}
END_TEST

/* A string of n bytes, behind length prefix op. */
static int load_long(uint8_t op, uint32_t n, size_t step, struct pickle **ret, struct ckpt_err *e)
{
	struct pickle_opts opts = { .max_bytes = 8 << 20 };
	char *bytes = calloc(1, n + 6u);
	int rc;

	REQUIRE(bytes);
	bytes[0] = (char)op;
	for (int i = 0; i < 4; i++)
		bytes[1 + i] = (char)(n >> (8 * i));
	bytes[n + 5u] = OP_STOP;
	rc = load_bytes(bytes, n + 6u, step, &opts, ret, e);
	free(bytes);
	return rc;
}

START_TEST(long_lines_of_text_are_kept_skipped_or_refused)
{
	const struct pickle_opts refuse = { .max_bytes = 1 << 23 };
	const struct pickle_opts keep = { .max_bytes = 1 << 23, .keep_long = true };
	const struct pickle_opts skip = { .max_bytes = 1 << 20, .keep_long = true };
	char *bytes = malloc(PK_MAX_STRING + 10);

	REQUIRE(bytes);
	for (size_t step = 0; step < 100000; step += 33333)
		for (size_t n = PK_MAX_STRING - 1; n <= PK_MAX_STRING + 1; n++) {
			struct pickle *p = NULL;
			struct ckpt_err e = { 0 };
			int rc;

			memset(bytes, '1', n + 1);
			bytes[0] = OP_UNICODE;
			memcpy(bytes + 1 + n, "\nK\7\x86.", 5);
			rc = load_bytes(bytes, n + 6, step, &refuse, &p, &e);
			if (n < PK_MAX_STRING) {
				ck_assert_msg(!rc, "%s", e.msg);
				ck_assert_uint_eq(pickle_root(p).n->v[0].s->len, n);
			} else {
				ck_assert_int_eq(rc, -EFBIG);
				ck_assert_int_eq(load_bytes(bytes, n + 6, step, &keep, &p, &e), 0);
				ck_assert_uint_eq(pickle_root(p).n->v[0].s->len, n);
				ck_assert_int_eq(pickle_root(p).n->v[1].i, 7);
				pickle_free(p);
				rc = load_bytes(bytes, n + 6, step, &skip, &p, &e);
				ck_assert_int_eq(rc, n > PK_MAX_STRING ? 0 : -EFBIG);
				if (rc)
					continue;
				ck_assert_int_eq(pickle_root(p).n->v[0].type, PK_OPAQUE);
			}
			ck_assert_int_eq(pickle_root(p).n->v[1].i, 7);
			pickle_free(p);
		}
	free(bytes);
}
END_TEST

/* A number may have 255 bytes, with its sign. */
START_TEST(numbers_as_text_have_all_digits_or_none)
{
	char bytes[1000];

	for (int digits = 1; digits < 700; digits++) {
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		enum pk_type want = digits < 19 ? PK_INT : digits < 614 ? PK_LONG : PK_OPAQUE;
		struct pk_value v;
		int n = 1 + digits % 2;

		memcpy(bytes, "L-", 2);
		memset(bytes + n, '9', (size_t)digits);
		memcpy(bytes + n + digits, "L\n.", 3);
		ck_assert_int_eq(load_bytes(bytes, (size_t)(n + digits + 3), 0, &plain, &p, &e), 0);
		v = pickle_root(p);
		if (digits != 614 && digits != 615)
			ck_assert_int_eq(v.type, want);
		if (v.type == PK_LONG) /* 10^d - 1 ends in d bits that are set; its negative in 1 */
			ck_assert_uint_eq((uint8_t)v.s->data[0], digits % 2 ? 1 : 0xff);
		pickle_free(p);
	}
}
END_TEST

START_TEST(long_text_is_refused_and_long_bytes_are_skipped)
{
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	for (size_t step = 0; step < 100000; step += 33333) {
		ck_assert_int_eq(load_long(OP_BINUNICODE, PK_MAX_STRING, step, &p, &e), 0);
		ck_assert_uint_eq(pickle_root(p).s->len, PK_MAX_STRING);
		pickle_free(p);
		ck_assert_int_eq(load_long(OP_BINBYTES, PK_MAX_STRING, step, &p, &e), 0);
		ck_assert_int_eq(pickle_root(p).type, PK_BYTES);
		pickle_free(p);
		ck_assert_int_eq(load_long(OP_BINBYTES, PK_MAX_STRING + 1, step, &p, &e), 0);
		ck_assert_int_eq(pickle_root(p).type, PK_OPAQUE);
		pickle_free(p);
		ck_assert_int_eq(load_long(OP_BINUNICODE, PK_MAX_STRING + 1, step, &p, &e), -EFBIG);
		ck_assert_str_eq(e.msg, "pickle: a string of 1048577 bytes is too long, at byte 5");
	}
}
END_TEST

START_LOOP_TEST(the_first_bytes_tell_the_module_of_the_outermost_object, 2)
{
	struct emit m = EMIT_INIT(_i ? 4 : 2, true);
	const char *module;
	size_t len = 0, whole;

	emit_proto(&m);
	if (_i)
		emit_bytes(&m, "\x95\0\0\0\0\0\0\0\0", 9); /* FRAME */
	whole = m.b.len + (_i ? 2 : 1) + 7 + !_i;	   /* end of its string or line */
	emit_object(&m, "a.b_c.d", "Name");
	for (size_t n = 0; n <= m.b.len; n++) {
		autofree char *exact = malloc(n ? n : 1);

		REQUIRE(exact);
		memcpy(exact, m.b.data, n);
		module = pickle_first_module(exact, n, &len);
		ck_assert_int_eq(module != NULL, n >= whole);
		ck_assert(!module || (len == 7 && !memcmp(module, "a.b_c.d", 7)));
	}
	ck_assert_ptr_null(pickle_first_module("\x80\4}\x94.", 5, &len));
	buf_release(&m.b);
}
END_TEST

SUITE(pickle, .seconds = 60)

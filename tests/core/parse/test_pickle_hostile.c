/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles that no pickler writes: each is refused with a message, in bounded time and memory. */
#include "base/checked.h"
#include "fault.h"
#include "parse/pickle.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "suites.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pickle_opts plain = { .max_bytes = 1 << 20 };

static void expect_error(const char *bytes, size_t n, int code, const char *msg)
{
	static char untouched;

	for (size_t step = 0; step < 3; step++) {
		struct pickle *p = (struct pickle *)(void *)&untouched;
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(load_bytes(bytes, n, step, &plain, &p, &e), -code);
		ck_assert_int_eq(e.code, code);
		ck_assert_str_eq(e.msg, msg);
		ck_assert_ptr_eq(p, &untouched);
	}
}

/* ---- what the first pass refuses ---- */

START_TEST(opcodes_outside_the_list_are_refused)
{
	static const char known[] =
		"(.012FGILNJKMPQRSTUVXabcdeghijlpqrostu}])BC"
		"\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93"
		"\x94\x95\x96";

	for (int op = 0; op < 256; op++) {
		const char bytes[] = { 'N', (char)op, 'N', '.' };
		char msg[200];

		if (op && strchr(known, op))
			continue;
		(void)snprintf(msg, sizeof(msg), "pickle: unknown opcode 0x%02x at byte 1", op);
		expect_error(bytes, sizeof(bytes), EBADMSG, msg);
	}
}
END_TEST

#define ROW(bytes, code, msg) \
	{ \
		bytes, sizeof(bytes) - 1, code, msg \
	}
static const struct {
	const char *bytes;
	size_t n;
	int code;
	const char *msg;
} rows[] = {
	ROW("", ENODATA, "pickle ends too early, at byte 0"),
	ROW("N", ENODATA, "pickle ends too early, at byte 1"),
	ROW("\x80\6N.", ENOTSUP, "pickle protocol 6 is not supported"),
	ROW(".", EBADMSG, "pickle: STOP without a value at byte 1"),
	ROW("N(.", EBADMSG, "pickle: STOP without a value at byte 3"),
	/* the memo */
	ROW("h\0.", EBADMSG, "pickle: memo entry 0, requested at byte 1, was never stored"),
	ROW("N\x94h\1.", EBADMSG, "pickle: memo entry 1, requested at byte 3, was never stored"),
	ROW("N\x94j\0\1\0\0.", EBADMSG,
	    "pickle: memo entry 256, requested at byte 3, was never stored"),
	ROW("N\x94j\xff\xff\xff\xff.", EBADMSG,
	    "pickle: memo entry 4294967295, requested at byte 3, was never stored"),
	ROW("h\0N\x94.", EBADMSG, "pickle: memo entry 0, requested at byte 1, was never stored"),
	ROW("Nq\1h\0.", EBADMSG, "pickle: memo entry 0, requested at byte 4, was never stored"),
	ROW("Nq\1h\2.", EBADMSG, "pickle: memo entry 2, requested at byte 4, was never stored"),
	ROW("Nr\0\0\0\x80Nq\5h\0.", EBADMSG,
	    "pickle: memo entry 0, requested at byte 10, was never stored"),
	ROW("h\5Nq\5.", EBADMSG, "pickle: memo entry 5, requested at byte 1, was never stored"),
	ROW("q\5Nq\1h\5.", EBADMSG, "pickle: stack underflow at byte 2"),
	ROW("\x94h\0.", EBADMSG, "pickle: stack underflow at byte 1"), /* nothing to store */
	ROW("N(\x94h\0.", EBADMSG, "pickle: stack underflow at byte 3"),
	/* numbers as text */
	ROW("I\n.", EBADMSG, "pickle: INT that is not a 64-bit number at byte 2"),
	ROW("I-\n.", EBADMSG, "pickle: INT that is not a 64-bit number at byte 3"),
	ROW("I1x\n.", EBADMSG, "pickle: INT that is not a 64-bit number at byte 4"),
	ROW("I9223372036854775808\n.", EBADMSG,
	    "pickle: INT that is not a 64-bit number at byte 21"),
	ROW("I-9223372036854775809\n.", EBADMSG,
	    "pickle: INT that is not a 64-bit number at byte 22"),
	ROW("F\n.", EBADMSG, "pickle: FLOAT that is not a number at byte 2"),
	ROW("F0x1p3\n.", EBADMSG, "pickle: FLOAT that is not a number at byte 7"),
	ROW("F1.5x\n.", EBADMSG, "pickle: FLOAT that is not a number at byte 6"),
	ROW("F1\0\n.", EBADMSG, "pickle: FLOAT that is not a number at byte 4"),
	ROW("F1111111111222222222233333333334444444444555555555566666666667777\n.", EBADMSG,
	    "pickle: FLOAT that is not a number at byte 66"),
	ROW("L\n.", EBADMSG, "pickle: LONG that is not a number at byte 2"),
	ROW("LL\n.", EBADMSG, "pickle: LONG that is not a number at byte 3"),
	ROW("L-L\n.", EBADMSG, "pickle: LONG that is not a number at byte 4"),
	ROW("L1LL\n.", EBADMSG, "pickle: LONG that is not a number at byte 5"),
	ROW("L12345678901234567890x\n.", EBADMSG, "pickle: LONG that is not a number at byte 23"),
	ROW("L1", ENODATA, "pickle ends too early, at byte 2"),
	/* strings as text */
	ROW("S\n.", EBADMSG, "pickle: string that is not quoted as Python quotes it at byte 2"),
	ROW("S'\n.", EBADMSG, "pickle: string that is not quoted as Python quotes it at byte 3"),
	ROW("S'a\"\n.", EBADMSG, "pickle: string that is not quoted as Python quotes it at byte 5"),
	ROW("S'\\'\n.", EBADMSG, "pickle: string that is not quoted as Python quotes it at byte 5"),
	ROW("S'\\x1'\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 7"),
	ROW("S'\\xz1'\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 8"),
	ROW("S'\\x1G'\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 8"),
	ROW("Saba\n.", EBADMSG, "pickle: string that is not quoted as Python quotes it at byte 5"),
	ROW("V\\u12@4\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 8"),
	ROW("V\\u123\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 7"),
	ROW("V\\U00110000\n.", EBADMSG,
	    "pickle: string that is not quoted as Python quotes it at byte 12"),
	ROW("Va", ENODATA, "pickle ends too early, at byte 2"),
	/* instances, memo keys */
	ROW("im\nC\n.", EBADMSG, "pickle: no mark at byte 1"),
	ROW("(im\n", ENODATA, "pickle ends too early, at byte 4"),
	ROW("Np\n.", EBADMSG, "pickle: memo key that is not a 32-bit number, before byte 3"),
	ROW("Np-1\n.", EBADMSG, "pickle: memo key that is not a 32-bit number, before byte 5"),
	ROW("Np4294967296\n.", EBADMSG,
	    "pickle: memo key that is not a 32-bit number, before byte 13"),
	ROW("Np4294967295\ng4294967294\n.", EBADMSG,
	    "pickle: memo entry 4294967294, requested at byte 25, was never stored"),
	ROW("p0\n.", EBADMSG, "pickle: STOP without a value at byte 4"),
	/* lengths */
	ROW("\x8d\0\0\0\0\0\0\0\x80.", EBADMSG,
	    "pickle: impossible length 9223372036854775808 at byte 9"),
	ROW("\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", EBADMSG,
	    "pickle: impossible length 18446744073709551615 at byte 9"),
	ROW("\x8b\0\0\0\x80.", EBADMSG, "pickle: impossible length 2147483648 at byte 5"),
	ROW("T\xff\xff\xff\xff.", EBADMSG, "pickle: impossible length 4294967295 at byte 5"),
	ROW("X\xff\xff\xff\xff.", ENODATA, "pickle ends too early, at byte 6"),
	ROW("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", ENODATA, "pickle ends too early, at byte 10"),
	/* containers */
	ROW("N(o.", EBADMSG, "pickle: stack underflow at byte 3"),
	ROW("}(K\1u.", EBADMSG, "pickle: SETITEMS with half a pair at byte 5"),
	ROW("(K\1d.", EBADMSG, "pickle: SETITEMS with half a pair at byte 4"),
	/* globals */
	ROW("K\1K\2\x93.", EBADMSG, "pickle: global whose name is not a string at byte 5"),
	ROW("\x8c\1mC\1n\x93.", EBADMSG, "pickle: global whose name is not a string at byte 7"),
};

START_LOOP_TEST(nonsense_is_refused_with_a_sentence, ARRAY_LEN(rows))
{
	expect_error(rows[_i].bytes, rows[_i].n, rows[_i].code, rows[_i].msg);
}
END_TEST

START_TEST(long_lines_are_refused)
{
	char bytes[2 * PK_MAX_LINE + 10];
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	memset(bytes, 'm', sizeof(bytes));
	bytes[0] = OP_GLOBAL;
	bytes[PK_MAX_LINE] = bytes[2 * PK_MAX_LINE] = '\n';
	bytes[2 * PK_MAX_LINE + 1] = OP_STOP;
	ck_assert_int_eq(load_bytes(bytes, sizeof(bytes), 0, &plain, &p, &e), 0);
	ck_assert_uint_eq(pickle_root(p).g->module->len, PK_MAX_LINE - 1);
	pickle_free(p);
	bytes[PK_MAX_LINE] = 'm';
	expect_error(bytes, sizeof(bytes), EBADMSG, "pickle: line at byte 1 is longer than 1024");
}
END_TEST

/* ---- the stack ---- */

/* Opcodes with their operands, and how many values each needs above the innermost mark. */
static const struct {
	const char *op;
	size_t needs;
} need_rows[] = {
	{ "0", 1 }, { "2", 1 },	   { "Q", 1 },	  { "\x85", 1 },  { "\x86", 2 }, { "\x87", 3 },
	{ "R", 2 }, { "\x81", 2 }, { "\x92", 3 }, { "b", 2 },	  { "\x93", 2 }, { "a", 2 },
	{ "s", 3 }, { "(e", 1 },   { "(u", 1 },	  { "(\x90", 1 },
};

START_LOOP_TEST(opcodes_that_find_too_little_are_refused, ARRAY_LEN(need_rows))
{
	for (size_t n = 0; n < need_rows[_i].needs; n++)
		for (int mark = 0; mark < 2; mark++) {
			struct buf b = BUF_INIT(100);
			char msg[64];

			/* What lies below a mark does not count. A mark on top may be popped. */
			if (mark)
				buf_str(&b, "NNNN(");
			if (mark && need_rows[_i].op[0] == '0') {
				buf_release(&b);
				continue;
			}
			for (size_t i = 0; i < n; i++)
				buf_str(&b, "N");
			buf_str(&b, need_rows[_i].op);
			(void)snprintf(msg, sizeof(msg), "pickle: stack underflow at byte %zu",
				       b.len);
			buf_str(&b, ".");
			expect_error(b.data, b.len, EBADMSG, msg);
			buf_release(&b);
		}
}
END_TEST

START_LOOP_TEST(opcodes_that_need_a_mark_say_so, 9)
{
	static const char ops[] = "tleud1o\x90\x91";
	char bytes[] = "NNNNx.";

	bytes[4] = ops[_i];
	expect_error(bytes, 6, EBADMSG, "pickle: no mark at byte 5");
}
END_TEST

/* ---- depth ---- */

struct deep_load {
	const struct emit *m;
	int rc;
	struct ckpt_err e;
};

static void *deep_thread(void *arg)
{
	struct deep_load *l = arg;
	struct pickle_opts opts = { .max_bytes = (size_t)1 << 30 };
	struct pickle *p = NULL;

	l->rc = load_bytes(l->m->b.data, l->m->b.len, 0, &opts, &p, &l->e);
	pickle_free(p);
	return NULL;
}

/* Loading a million levels must not need more than a C stack of 512 KiB. */
static void load_deep(const struct emit *m)
{
	struct deep_load l = { .m = m };
	pthread_attr_t attr;
	pthread_t thread;

	REQUIRE(!m->b.err);
	ck_assert_int_eq(pthread_attr_init(&attr), 0);
	ck_assert_int_eq(pthread_attr_setstacksize(&attr, 512 << 10), 0);
	ck_assert_int_eq(pthread_create(&thread, &attr, deep_thread, &l), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	(void)pthread_attr_destroy(&attr);
	ck_assert_msg(!l.rc, "%s", l.e.msg);
}

enum { DEEP = 1000000 };

START_TEST(a_million_nested_tuples_load_and_go)
{
	struct emit m = EMIT_INIT(4, false);

	emit_op(&m, OP_NONE);
	emit_ops(&m, OP_TUPLE1, DEEP);
	emit_op(&m, OP_STOP);
	load_deep(&m);
	m.b.len--;
	emit_ops(&m, OP_POP, 1); /* this time the machine frees it */
	emit_bytes(&m, "N.", 2);
	load_deep(&m);
	buf_release(&m.b);
}
END_TEST

START_TEST(a_million_nested_lists_load_and_go)
{
	struct emit m = EMIT_INIT(4, false);

	emit_ops(&m, OP_EMPTY_LIST, DEEP);
	emit_ops(&m, OP_APPEND, DEEP - 1);
	emit_bytes(&m, "0N.", 3);
	load_deep(&m);
	buf_release(&m.b);
}
END_TEST

START_TEST(a_million_nested_dicts_objects_and_marks_load_and_go)
{
	struct emit m = EMIT_INIT(4, false);

	for (size_t i = 0; i < DEEP / 4; i++)
		emit_bytes(&m, "}N", 2);
	emit_op(&m, OP_NONE);
	emit_ops(&m, OP_SETITEM, DEEP / 4);
	for (size_t i = 0; i < DEEP / 4; i++) /* each has the one before as its state */
		emit_bytes(&m, "K\1)\x81", 4);
	emit_ops(&m, OP_BUILD, DEEP / 4 - 1);
	emit_op(&m, OP_TUPLE2);
	for (size_t i = 0; i < DEEP / 4; i++)
		emit_bytes(&m, "(K\1", 3);
	emit_ops(&m, OP_TUPLE, DEEP / 4);
	emit_bytes(&m, "00N.", 4);
	load_deep(&m);
	buf_release(&m.b);
}
END_TEST

/* (x, x) of (x, x) of ...: 2^64 values in 64 nodes. */
START_TEST(doubling_references_cost_nothing)
{
	struct emit m = EMIT_INIT(4, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	emit_op(&m, OP_EMPTY_LIST);
	for (int i = 0; i < 64; i++)
		emit_bytes(&m, "2\x86", 2);
	emit_op(&m, OP_STOP);
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 0, &plain, &p, &e), 0);
	pickle_free(p);
	m.b.len--;
	emit_bytes(&m, "0N.", 3);
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 0, &plain, &p, &e), 0);
	pickle_free(p);
	buf_release(&m.b);
}
END_TEST

START_TEST(cycles_are_freed)
{
	static const char bytes[] = "]\x94h\0a0"	    /* a list in itself */
				    "K\1)\x81\x94h\1b0"	    /* an object as its own state */
				    "}\x94N]\x94h\2ash\3a0" /* a dict in a list in itself */
				    "N.";
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(bytes, sizeof(bytes) - 1, 0, &plain, &p, &e), "%s", e.msg);
	pickle_free(p);
}
END_TEST

/* ---- ceilings ---- */

static const struct {
	const char *what, *unit; /* unit is repeated */
	size_t n;
} growth_rows[] = {
	{ "stack", "N", 1 },	    { "marks", "(", 1 },      { "lists", "]0]", 3 },
	{ "one list", "N", 1 }, /* behind an EMPTY_LIST and a MARK */
	{ "objects", "N)\x81", 3 }, { "tuples", "N\x85", 2 }, { "memo", "]\x94", 2 },
};

START_LOOP_TEST(every_kind_of_growth_meets_the_ceiling, ARRAY_LEN(growth_rows))
{
	struct pickle_opts opts = { .max_bytes = 2 << 20 };
	struct emit m = EMIT_INIT(4, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	size_t times = 200000;

	if (_i == 3)
		emit_bytes(&m, "](", 2);
	for (size_t i = 0; i < times; i++)
		emit_bytes(&m, growth_rows[_i].unit, growth_rows[_i].n);
	if (_i == 3)
		emit_op(&m, OP_APPENDS);
	if (_i == 6)
		for (uint32_t i = 0; i < times; i++)
			emit_get(&m, i);
	emit_op(&m, OP_STOP);
	ck_assert_msg(load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e) == -EFBIG, "%s",
		      growth_rows[_i].what);
	ck_assert_int_eq(e.code, EFBIG);
	ck_assert_msg(!strncmp(e.msg, "pickle: needs more than 2 MiB of memory at byte ", 48), "%s",
		      e.msg);
	buf_release(&m.b);
}
END_TEST

/* Loads n entries with the keys i * step. */
static int load_keys(uint32_t n, uint32_t step, size_t max_bytes, struct ckpt_err *e)
{
	struct pickle_opts opts = { .max_bytes = max_bytes };
	struct emit m = EMIT_INIT(2, false);
	struct pickle *p = NULL;
	int rc;

	emit_op(&m, OP_NONE);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t key = i * step;

		emit_op(&m, OP_LONG_BINPUT);
		for (int k = 0; k < 4; k++)
			emit_op(&m, (uint8_t)(key >> (8 * k)));
	}
	emit_op(&m, OP_STOP);
	REQUIRE(!m.b.err);
	rc = load_bytes(m.b.data, m.b.len, 0, &opts, &p, e);
	pickle_free(p);
	buf_release(&m.b);
	return rc;
}

START_TEST(memo_keys_far_apart_cost_what_is_stored_and_meet_the_ceiling)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_keys(2, UINT32_MAX, 96 << 10, &e), "%s", e.msg);
	ck_assert_msg(!load_keys(1000, 0x10001, 96 << 10, &e), "%s", e.msg);
	ck_assert_int_eq(load_keys(200000, 0x10000 + 1, 2 << 20, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "pickle: 131072 memo entries that are not in order");
	ck_assert_msg(!load_keys(200000, 1, 96 << 10, &e), "%s", e.msg); /* in order: no room */
	ck_assert_msg(!load_keys(200000, 0, 96 << 10, &e), "%s", e.msg); /* the same key */
}
END_TEST

START_TEST(memory_is_used_again)
{
	static const char unit[] = "](NNNNe}(NNNNuN\x85\x87\x8c\1m\x8c\1n\x93)\x81(NNNtb]b00";
	struct pickle_opts opts = { .max_bytes = 64 << 10 };
	struct emit m = EMIT_INIT(4, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	for (int i = 0; i < 100000; i++)
		emit_bytes(&m, unit, sizeof(unit) - 1);
	emit_bytes(&m, "N.", 2);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
	pickle_free(p);
	buf_release(&m.b);
}
END_TEST

START_TEST(too_many_strings_are_refused)
{
	struct emit m = EMIT_INIT(4, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	char s[16];

	for (int i = 0; i < 100000; i++) {
		(void)snprintf(s, sizeof(s), "%d", i);
		emit_str(&m, s);
		emit_op(&m, OP_POP);
	}
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 0, &plain, &p, &e), -ENODATA);
	emit_bytes(&m, "N.", 2);
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 0, &plain, &p, &e), -EFBIG);
	ck_assert_msg(!strncmp(e.msg, "pickle: too many strings at byte ", 33), "%s", e.msg);
	buf_release(&m.b);
}
END_TEST

START_TEST(too_many_globals_are_refused_soon)
{
	struct pickle_opts opts = { .max_bytes = (size_t)1 << 30 };
	struct emit m = EMIT_INIT(2, false);
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	char name[16];

	for (int i = 0; i < 4096; i++) {
		(void)snprintf(name, sizeof(name), "n%d", i);
		emit_global(&m, "m", name);
		emit_op(&m, OP_POP);
	}
	emit_bytes(&m, "N.", 2);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
	pickle_free(p);
	m.b.len -= 2;
	emit_global(&m, "m", "n0"); /* known: no matter */
	emit_global(&m, "m", "one more");
	emit_op(&m, OP_STOP);
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), -EBADMSG);
	ck_assert_msg(!strncmp(e.msg, "pickle: too many different globals at byte ", 43), "%s",
		      e.msg);
	buf_release(&m.b);
}
END_TEST

static void fail_allocations(const struct pickle_input *in, bool hooks, int least)
{
	int failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct dcp_count count = { 0 };
		struct pickle_opts opts = { .max_bytes = 16 << 20,
					    .hooks = hooks ? &dcp_hooks : NULL,
					    .arg = &count,
					    .drop_unknown = hooks };
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		int rc = pickle_load(in, &opts, &p, &e);

		(void)fault_off();
		failed += !!rc;
		if (rc) /* the pool does not say why it has no more */
			REQUIRE(!p && e.code == -rc && e.msg[0] && (rc == -ENOMEM || rc == -EFBIG));
		pickle_free(p);
	}
	ck_assert_int_ge(failed, least);
}

START_TEST(running_out_of_memory_anywhere_is_a_clean_error)
{
	static const char *const firsts[] = { "\x8a\1\5.", "K\1.",    "I5\n.",	 "L5L\n.", "F5\n.",
					      "V5\n.",	   "S'5'\n.", "N.",	 "].",	   "}.",
					      ").",	   "(t.",     "ca\nb\n." };
	struct emit m = EMIT_INIT(4, true);
	struct feed f = { .step = 10000 };

	emit_metadata(&m, 30, 10);
	for (uint8_t i = 0; i < 100; i++) /* a table of keys, which grows */
		emit_bytes(&m, (uint8_t[]){ OP_BINPUT, (uint8_t)(200 - 2 * i) }, 2);
	emit_bytes(&m, "h\2", 2);
	emit_bytes(&m, "ccollections\nOrderedDict\n](](K\1K\2ee\x85R.", 38);
	REQUIRE(!m.b.err);
	f.bytes = (const uint8_t *)m.b.data;
	f.n = m.b.len;
	fail_allocations(&(struct pickle_input){ .mem = m.b.data, .mem_len = m.b.len }, false, 10);
	fail_allocations(&(struct pickle_input){ .read = feed_read, .arg = &f }, true, 10);
	buf_release(&m.b);
	for (size_t i = 0; i < ARRAY_LEN(firsts); i++) /* the stack is made for the first value */
		fail_allocations(
			&(struct pickle_input){ .mem = firsts[i], .mem_len = strlen(firsts[i]) },
			false, 2);
}
END_TEST

START_TEST(strings_out_of_memory_are_no_strings)
{
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct pk_strings *t = pk_strings_new(1 << 20);
		const struct pk_str *s = NULL;

		for (uint32_t i = 0; t && i < 1000; i++) { /* once more, after a failure */
			s = pk_intern(t, (const char *)&i, sizeof(i));
			REQUIRE(!s || (s->len == sizeof(i) && !memcmp(s->data, &i, sizeof(i))));
		}
		(void)fault_off();
		if (t)
			REQUIRE(s && pk_strings_count(t) >= 998);
		pk_strings_free(t);
	}
}
END_TEST

/* ---- input that fails or changes ---- */

struct ckpt_data {
	const char *first, *second; /* what each pass reads */
	size_t n;
	unsigned passes;
	int fail_at; /* number of the read that fails */
	int reads;
};

static int64_t source_read(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	struct ckpt_data *s = arg;
	const char *bytes;

	if (++s->reads == s->fail_at)
		return err_set(e, EIO, "read number %d", s->reads);
	if (!off)
		s->passes++;
	bytes = s->passes > 1 ? s->second : s->first;
	if (off >= s->n || !cap)
		return 0;
	*(char *)buf = bytes[off];
	return 1;
}

START_TEST(a_failing_read_is_passed_on)
{
	static const char bytes[] = "\x80\4](K\1X\3\0\0\0abccm\nC\ne.";

	for (int fail_at = 1; fail_at <= 2 * (int)(sizeof(bytes) - 1); fail_at++) {
		struct ckpt_data s = {
			.first = bytes, .second = bytes, .n = sizeof(bytes) - 1, .fail_at = fail_at
		};
		struct pickle_input in = { .read = source_read, .arg = &s };
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		char msg[32];

		ck_assert_int_eq(pickle_load(&in, &plain, &p, &e), -EIO);
		(void)snprintf(msg, sizeof(msg), "read number %d", fail_at);
		ck_assert_str_eq(e.msg, msg);
		ck_assert_ptr_null(p);
	}
}
END_TEST

/* The file is overwritten while it is read: there may be an error, or some value, but nothing
 * worse. */
START_TEST(input_that_changes_between_the_passes_does_no_harm)
{
	static const char first[] = "]\x94K\1\x94h\0h\1\x87\x8c\1m\x8c\1n\x93\x86.";

	for (size_t at = 0; at < sizeof(first) - 1; at++)
		for (int value = 0; value < 256; value++) {
			char second[sizeof(first)];
			struct ckpt_data s = { .first = first,
					       .second = second,
					       .n = sizeof(first) - 1 };
			struct pickle_input in = { .read = source_read, .arg = &s };
			struct pickle *p = NULL;
			struct ckpt_err e = { 0 };
			int rc;

			memcpy(second, first, sizeof(first));
			second[at] = (char)value;
			rc = pickle_load(&in, &plain, &p, &e);
			REQUIRE(rc ? e.code == -rc && e.msg[0] : p != NULL);
			pickle_free(p);
		}
}
END_TEST

START_TEST(memo_entries_asked_for_before_they_are_stored_are_refused)
{
	struct ckpt_data s = { .first = "K\1\x94K\2\x94h\1.",
			       .second = "h\1K\2\x94K\2\x94.",
			       .n = 9 };
	struct pickle_input in = { .read = source_read, .arg = &s };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(pickle_load(&in, &plain, &p, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "pickle: memo entry that was never stored at byte 2");
	s = (struct ckpt_data){ .first = "K\1\x94K\2\x94h\1.",
				.second = "K\1\x94K\2\x94h\0.",
				.n = 9 };
	ck_assert_int_eq(pickle_load(&in, &plain, &p, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "pickle: memo entry that was never stored at byte 8");
}
END_TEST

SUITE(pickle_hostile, .seconds = 60)

/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles, compared with the bytes that CPython's pickler writes, and read back by this program. */
#include "base/buf.h"
#include "base/checked.h"
#include "fault.h"
#include "parse/pickle_write.h"
#include "pickle_util.h"
#include "rng.h"
#include "suites.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct buf out;

static void setup(void)
{
	out = (struct buf)BUF_INIT(1 << 24);
}

static void teardown(void)
{
	buf_release(&out);
}

static void text(struct pickle_writer *w, const char *s)
{
	pw_str(w, s, strlen(s));
}

/* The pickle, loaded and printed by print_value. */
static char *read_back(void)
{
	struct pickle_opts opts = { .max_bytes = 1 << 28 };
	struct buf b = BUF_INIT(1 << 26);
	struct pickle *p;
	struct pk_value v;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(out.data, out.len, 0, &opts, &p, &e), "%s", e.msg);
	REQUIRE(pickle_end(p) == out.len);
	v = pickle_root(p);
	print_value(&b, &v);
	pickle_free(p);
	REQUIRE(!b.err);
	return b.data;
}

static void expect(const char *want)
{
	char *got = read_back();

	ck_assert_str_eq(got, want);
	free(got);
}

/* ---- numbers ---- */

/* pickle.dumps(v, 2)[2:-1] of CPython 3.11 */
static const struct {
	int64_t v;
	const char *bytes;
	size_t n;
} numbers[] = {
	{ 0, "K\x00", 2 },
	{ 255, "K\xff", 2 },
	{ 256, "M\x00\x01", 3 },
	{ 65535, "M\xff\xff", 3 },
	{ 65536, "J\x00\x00\x01\x00", 5 },
	{ INT32_MAX, "J\xff\xff\xff\x7f", 5 },
	{ (int64_t)INT32_MAX + 1, "\x8a\x05\x00\x00\x00\x80\x00", 7 },
	{ UINT32_MAX, "\x8a\x05\xff\xff\xff\xff\x00", 7 },
	{ ((int64_t)1 << 39) - 1, "\x8a\x05\xff\xff\xff\xff\x7f", 7 },
	{ (int64_t)1 << 39, "\x8a\x06\x00\x00\x00\x00\x80\x00", 8 },
	{ INT64_MAX, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", 10 },
	{ -1, "J\xff\xff\xff\xff", 5 },
	{ INT32_MIN, "J\x00\x00\x00\x80", 5 },
	{ (int64_t)INT32_MIN - 1, "\x8a\x05\xff\xff\xff\x7f\xff", 7 },
	{ -((int64_t)1 << 39), "\x8a\x05\x00\x00\x00\x00\x80", 7 },
	{ -((int64_t)1 << 39) - 1, "\x8a\x06\xff\xff\xff\xff\x7f\xff", 8 },
	{ INT64_MIN, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", 10 },
};

START_LOOP_TEST(numbers_are_as_short_as_pythons, ARRAY_LEN(numbers))
{
	struct pickle_writer w;

	pw_begin(&w, &out, 2, false);
	pw_int(&w, numbers[_i].v);
	ck_assert_int_eq(pw_end(&w), 0);
	ck_assert_uint_eq(out.len, 2 + numbers[_i].n + 1);
	ck_assert_mem_eq(out.data + 2, numbers[_i].bytes, numbers[_i].n);
}
END_TEST

START_TEST(numbers_beyond_63_bits_stay_positive)
{
	struct pickle_writer w;

	pw_begin(&w, &out, 4, true);
	pw_uint(&w, UINT64_MAX);
	ck_assert_int_eq(pw_end(&w), 0);
	ck_assert_uint_eq(out.len, 2 + 11 + 1);
	ck_assert_mem_eq(out.data + 2, "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", 11);
	expect("0x00ffffffffffffffff");
}
END_TEST

/* ---- strings, globals, the memo ---- */

START_LOOP_TEST(strings_of_any_length_and_content, 2)
{
	static const size_t lengths[] = { 0, 1, 255, 256, 70000 };
	char *s = malloc(70000);
	struct pickle_writer w;
	struct pickle_opts opts = { .max_bytes = 1 << 28 };
	struct pickle *p;
	struct pk_value v;
	struct ckpt_err e;

	REQUIRE(s);
	memset(s, 'x', 70000);
	memcpy(s, "\xed\xb2\x80\0", 4); /* a lone surrogate, and NUL */
	pw_begin(&w, &out, _i ? 4 : 2, true);
	pw_op(&w, OP_EMPTY_LIST);
	pw_op(&w, OP_MARK);
	for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
		pw_str(&w, s, lengths[i]);
	pw_op(&w, OP_APPENDS);
	ck_assert_int_eq(pw_end(&w), 0);
	ck_assert_int_eq(load_bytes(out.data, out.len, 0, &opts, &p, &e), 0);
	v = pickle_root(p);
	ck_assert_uint_eq(pk_len(&v), ARRAY_LEN(lengths));
	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		ck_assert_int_eq(v.n->v[i].type, PK_STR);
		ck_assert_uint_eq(v.n->v[i].s->len, lengths[i]);
		ck_assert(!memcmp(v.n->v[i].s->data, s, lengths[i]));
	}
	pickle_free(p);
	free(s);
}
END_TEST

START_TEST(what_repeats_is_written_once)
{
	static const char want[] = "\x80\x04]\x94(\x8c\x01"
				   "a\x94h\x01\x8c\x01m\x94h\x01\x93\x94h\x03h\x03"
				   "h\x00"
				   "e.";
	struct pickle_writer w;

	pw_begin(&w, &out, 4, true);
	pw_op(&w, OP_EMPTY_LIST);
	ck_assert_uint_eq(pw_memo(&w), 0);
	pw_op(&w, OP_MARK);
	text(&w, "a");
	text(&w, "a");
	for (int i = 0; i < 3; i++)
		pw_global(&w, "m", "a"); /* its name is that string */
	pw_get(&w, 0);
	pw_op(&w, OP_APPENDS);
	ck_assert_int_eq(pw_end(&w), 0);
	ck_assert_uint_eq(out.len, sizeof(want) - 1);
	ck_assert_mem_eq(out.data, want, sizeof(want) - 1);
}
END_TEST

START_TEST(without_a_memo_everything_is_written_out)
{
	static const char want[] = "\x80\x02](X\x01\0\0\0aX\x01\0\0\0acm\nn\ncm\nn\ne.";
	struct pickle_writer w;

	pw_begin(&w, &out, 2, false);
	pw_op(&w, OP_EMPTY_LIST);
	(void)pw_memo(&w);
	pw_op(&w, OP_MARK);
	text(&w, "a");
	text(&w, "a");
	pw_global(&w, "m", "n");
	pw_global(&w, "m", "n");
	pw_op(&w, OP_APPENDS);
	ck_assert_int_eq(pw_end(&w), 0);
	ck_assert_uint_eq(out.len, sizeof(want) - 1);
	ck_assert_mem_eq(out.data, want, sizeof(want) - 1);
}
END_TEST

START_LOOP_TEST(more_globals_than_are_remembered, 2)
{
	static char names[2 * PW_MAX_GLOBALS][8];
	struct buf want = BUF_INIT(1 << 16);
	struct pickle_writer w;

	pw_begin(&w, &out, _i ? 4 : 2, true);
	pw_op(&w, OP_EMPTY_LIST);
	pw_op(&w, OP_MARK);
	buf_str(&want, "[");
	for (size_t i = 0; i < 2 * ARRAY_LEN(names); i++) {
		char *name = names[i % ARRAY_LEN(names)];

		(void)snprintf(name, sizeof(names[0]), "c%zu", i % ARRAY_LEN(names));
		pw_global(&w, "m", name);
		buf_printf(&want, "%sm.%s", i ? ", " : "", name);
	}
	buf_str(&want, "]");
	pw_op(&w, OP_APPENDS);
	ck_assert_int_eq(pw_end(&w), 0);
	expect(want.data);
	buf_release(&want);
}
END_TEST

/* ---- batches ---- */

START_LOOP_TEST(batches_are_of_a_thousand, 6)
{
	static const size_t counts[] = { 0, 1, 999, 1000, 1001, 2500 };
	size_t n = counts[_i], ends = 0;
	struct buf want = BUF_INIT(1 << 20);
	struct pickle_writer w;

	pw_begin(&w, &out, 4, true);
	pw_op(&w, OP_EMPTY_DICT);
	buf_str(&want, "{");
	for (size_t i = 0; i < n; i++) {
		pw_batch(&w, OP_SETITEMS, i);
		pw_uint(&w, i % 256);
		pw_bool(&w, i % 2);
		buf_printf(&want, "%s%zu: %s", i ? ", " : "", i % 256, i % 2 ? "True" : "False");
	}
	pw_batches_end(&w, OP_SETITEMS, n);
	buf_str(&want, "}");
	ck_assert_int_eq(pw_end(&w), 0);
	expect(want.data);
	for (size_t i = 2; i < out.len; i += out.data[i] == OP_BININT1 ? 2 : 1)
		ends += out.data[i] == OP_SETITEMS;
	ck_assert_uint_eq(ends, (n + 999) / 1000);
	buf_release(&want);
}
END_TEST

/* ---- anything ---- */

static void random_value(struct rng *r, struct pickle_writer *w, struct buf *want, int depth)
{
	static const char *const words[] = { "a", "weight", "layers.0", "", "torch" };
	size_t n = rng_below(r, depth > 4 ? 1 : 6);
	int64_t v = (int64_t)(rng_u64(r) >> rng_below(r, 64));
	const char *s = words[rng_below(r, ARRAY_LEN(words))];

	switch (rng_below(r, 8)) {
	case 0:
		v = rng_chance(r, 50) ? v : -(v >> 1);
		pw_int(w, v);
		buf_printf(want, "%" PRId64, v);
		break;
	case 1:
		text(w, s);
		buf_printf(want, "'%s'", s);
		break;
	case 2:
		pw_global(w, "mod.ule", s[0] ? s : "x");
		buf_printf(want, "mod.ule.%s", s[0] ? s : "x");
		break;
	case 3:
		pw_tuple_begin(w, n);
		buf_str(want, "(");
		for (size_t i = 0; i < n; i++) {
			buf_str(want, i ? ", " : "");
			random_value(r, w, want, depth + 1);
		}
		pw_tuple_end(w, n);
		buf_str(want, n == 1 ? ",)" : ")");
		break;
	case 4:
		pw_op(w, OP_EMPTY_LIST);
		(void)pw_memo(w);
		buf_str(want, "[");
		for (size_t i = 0; i < n; i++) {
			pw_batch(w, OP_APPENDS, i);
			buf_str(want, i ? ", " : "");
			random_value(r, w, want, depth + 1);
		}
		pw_batches_end(w, OP_APPENDS, n);
		buf_str(want, "]");
		break;
	case 5:
		pw_global(w, "mod", "Class");
		pw_op(w, OP_EMPTY_TUPLE);
		pw_op(w, OP_NEWOBJ);
		pw_op(w, OP_EMPTY_DICT);
		pw_op(w, OP_MARK);
		text(w, "attr");
		buf_str(want, "mod.Class()!{'attr': ");
		random_value(r, w, want, depth + 1);
		pw_op(w, OP_SETITEMS);
		pw_op(w, OP_BUILD);
		buf_str(want, "}");
		break;
	case 6:
		pw_op(w, OP_NONE);
		buf_str(want, "None");
		break;
	default:
		pw_bool(w, v % 2);
		buf_str(want, v % 2 ? "True" : "False");
	}
}

START_TEST(whatever_is_written_is_read)
{
	struct rng r = rng_new();

	for (int round = 0; round < 300; round++) {
		struct buf want = BUF_INIT(1 << 24);
		struct pickle_writer w;

		out.len = 0;
		pw_begin(&w, &out, rng_chance(&r, 50) ? 4 : 2, rng_chance(&r, 70));
		random_value(&r, &w, &want, 0);
		REQUIRE(pw_end(&w) == 0);
		expect(want.data);
		buf_release(&want);
	}
}
END_TEST

/* Thousands of different strings, each written twice: memo numbers have one byte, or four. */
START_LOOP_TEST(many_strings, 2)
{
	enum { MANY = 20000 };
	struct buf want = BUF_INIT(1 << 22);
	struct pickle_writer w;
	char s[16];

	pw_begin(&w, &out, _i ? 4 : 2, true);
	pw_op(&w, OP_EMPTY_LIST);
	buf_str(&want, "[");
	for (size_t i = 0; i < (size_t)2 * MANY; i++) {
		size_t n = (size_t)snprintf(s, sizeof(s), "%zu", i % MANY);

		pw_batch(&w, OP_APPENDS, i);
		pw_str(&w, s, n);
		buf_printf(&want, "%s'%s'", i ? ", " : "", s);
	}
	pw_batches_end(&w, OP_APPENDS, (size_t)2 * MANY);
	buf_str(&want, "]");
	ck_assert_int_eq(pw_end(&w), 0);
	expect(want.data);
	buf_release(&want);
}
END_TEST

START_TEST(a_ceiling_is_an_error_at_the_end)
{
	struct pickle_writer w;

	out.max = 1000;
	pw_begin(&w, &out, 4, true);
	for (int i = 0; i < 1000; i++)
		pw_str(&w, (char[]){ (char)('a' + i % 20), (char)('a' + i / 20) }, 2);
	ck_assert_int_eq(pw_end(&w), -EFBIG);
	ck_assert_uint_le(out.len, 1000);
}
END_TEST

START_TEST(memory_that_is_refused_is_an_error)
{
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct pickle_writer w;
		char s[16];
		int rc;

		buf_release(&out);
		pw_begin(&w, &out, 4, true);
		for (int i = 0; i < 300; i++)
			pw_str(&w, s, (size_t)snprintf(s, sizeof(s), "name %d", i % 200));
		rc = pw_end(&w);
		fault_off();
		REQUIRE(rc == (fault_hit() ? -ENOMEM : 0));
	}
}
END_TEST

SUITE(pickle_write, .setup = setup, .teardown = teardown)

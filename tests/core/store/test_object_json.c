/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "fault.h"
#include "store/object_json.h"
#include "store/torch_item.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

#define BYTES(s)	  s, sizeof(s) - 1
#define ERROR(class, why) "{\"__class__\": \"" class "\", \"__error__\": \"" why "\"}\n"
static const struct {
	enum object_form form;
	bool wrap; /* in an archive */
	const char *p;
	size_t n;
	const char *text;
} rows[] = {
	{ OBJECT_TORCH, true, BYTES("\x80\2K\7."), "7\n" },
	{ OBJECT_PICKLE, false, BYTES("\x80\4(K\1K\2t."), "[1, 2]\n" },
	{ OBJECT_TORCH, false, BYTES("\x80\2K\7."), "7\n" }, /* Megatron-core's callers do */
	{ OBJECT_JSON, false, BYTES("{\"a\": 1}\n"), "{\"a\": 1}\n" },
	/* bytes stay bytes, even if they begin like a pickle */
	{ OBJECT_PICKLE, false, BYTES("raw"),
	  "{\"__class__\": \"builtins.bytes\", \"hex\": \"726177\"}\n" },
	{ OBJECT_PICKLE, false, BYTES(""), "{\"__class__\": \"builtins.bytes\", \"hex\": \"\"}\n" },
	{ OBJECT_PICKLE, false, BYTES("\x80\2K\7.a"),
	  "{\"__class__\": \"builtins.bytes\", \"hex\": \"80024b072e61\"}\n" },
	{ OBJECT_PICKLE, false, BYTES("\x80\2K"),
	  "{\"__class__\": \"builtins.bytes\", \"hex\": \"80024b\"}\n" },
	/* an archive whose pickle is not valid */
	{ OBJECT_TORCH, true, BYTES("\x80\2a."), ERROR("?", "pickle: stack underflow at byte 3") },
	/* a system call is only a name */
	{ OBJECT_TORCH, true, BYTES("\x80\2cos\nsystem\nX\2\0\0\0id\x85R."),
	  "{\"__class__\": \"os.system\", \"__args__\": [\"id\"]}\n" },
};

START_LOOP_TEST(every_form_has_a_text, (int)ARRAY_LEN(rows))
{
	struct buf made CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct buf text CLEANUP(buf_release) = BUF_INIT(OBJECT_JSON_ROOM);
	struct ckpt_err e = { 0 };

	if (rows[_i].wrap)
		ck_assert_int_eq(torch_item_wrap(rows[_i].p, rows[_i].n, &made, &e), 0);
	else
		buf_add(&made, rows[_i].p, rows[_i].n);
	ck_assert_int_eq(
		object_json(rows[_i].form, made.data ? made.data : "", made.len, &text, &e), 0);
	ck_assert_str_eq(text.data, rows[_i].text);
	/* The text is appended. */
	ck_assert_int_eq(
		object_json(rows[_i].form, made.data ? made.data : "", made.len, &text, &e), 0);
	ck_assert_uint_eq(text.len, 2 * strlen(rows[_i].text));
}
END_TEST

static void expect(const void *p, size_t n, const char *want)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(OBJECT_JSON_ROOM);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(object_json(OBJECT_PICKLE, p, n, &text, &e), 0);
	ck_assert_str_eq(text.data, want);
}

/* If the text would be too long, it says so, and names the class. */
START_LONG_TEST(too_much_is_one_sentence)
{
	enum { LONG = 5 << 20 };
	struct buf p CLEANUP(buf_release) = BUF_INIT(16 << 20);
	struct buf text CLEANUP(buf_release) = BUF_INIT(1000);

	buf_add(&p, "\x80\2N", 3);
	for (int i = 0; i < 60; i++) /* 2^60 values */
		buf_add(&p, "2\x86", 2);
	buf_str(&p, ".");
	expect(p.data, p.len, ERROR("builtins.tuple", "its text needs more than 8388608 bytes"));
	p.len = 0;
	buf_add(&p, "\x80\2", 2);
	for (int i = 0; i < 200; i++)
		buf_str(&p, "]");
	for (int i = 0; i < 199; i++)
		buf_str(&p, "a");
	buf_str(&p, ".");
	expect(p.data, p.len, ERROR("builtins.list", "it nests deeper than 100 levels"));
	p.len = 0;
	memset(buf_room(&p, LONG), 'x', LONG);
	p.len = LONG;
	expect(p.data, p.len, ERROR("builtins.bytes", "its text needs more than 8388608 bytes"));
	object_json_too_long(1ull << 40, &text);
	ck_assert_str_eq(text.data, ERROR("?", "it has 1099511627776 bytes, and is shown up to "
					       "67108864"));
}
END_TEST

/* The memory that a pickle takes is bounded, too: 2 bytes of it make a list. */
START_TEST(too_much_memory_is_one_sentence)
{
	enum { N = 4 << 20 };
	struct buf p CLEANUP(buf_release) = BUF_INIT(16 << 20);
	struct buf text CLEANUP(buf_release) = BUF_INIT(OBJECT_JSON_ROOM);
	struct ckpt_err e = { 0 };

	buf_add(&p, "\x80\2(", 3);
	for (int i = 0; i < N; i++)
		buf_add(&p, "]", 1);
	buf_add(&p, "l.", 2);
	ck_assert_int_eq(object_json(OBJECT_PICKLE, p.data, p.len, &text, &e), 0);
	ck_assert_ptr_nonnull(
		strstr(text.data, "{\"__class__\": \"?\", \"__error__\": \"pickle: "));
}
END_TEST

START_LOOP_TEST(without_memory_it_says_so, 2)
{
	struct buf item CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(torch_item_wrap(BYTES("\x80\2}X\1\0\0\0aK\7s."), &item, &e), 0);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct buf text = BUF_INIT(OBJECT_JSON_ROOM);
		struct ckpt_err why = { 0 };
		int rc = object_json(_i ? OBJECT_PICKLE : OBJECT_TORCH, _i ? "raw" : item.data,
				     _i ? 3 : item.len, &text, &why);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(why.code, -rc);
		buf_release(&text);
	}
}
END_TEST

SUITE(object_json, .seconds = 60)

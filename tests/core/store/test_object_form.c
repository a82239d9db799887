/* SPDX-License-Identifier: Apache-2.0 */
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "store/megatron_form.h"
#include "store/object_form.h"
#include "store/object_same.h"
#include "store/torch_item.h"

#include <stdlib.h>
#include <string.h>

static struct buf convert(enum object_form from, enum object_form to, const void *p, size_t n)
{
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	if (object_convert(from, to, p, n, &b, &e))
		ck_abort_msg("%s", e.msg);
	return b;
}

static void is(struct buf *b, const void *want, size_t n)
{
	ck_assert_uint_eq(b->len, n);
	ck_assert_mem_eq(b->data, want, n);
	buf_release(b);
}

/* The pickle in an archive, which has to be one. */
static struct buf pickle_in(struct buf archive)
{
	struct buf b = BUF_INIT(1 << 20);
	const void *p;
	struct ckpt_err e;
	size_t n;

	ck_assert_int_eq(torch_item_unwrap(archive.data, archive.len, &p, &n, &e), 1);
	buf_add(&b, p, n);
	buf_release(&archive);
	return b;
}

static const char seven[] = { (char)0x80, 2, 'K', 7, '.' };
static const char seven_4[] = { (char)0x80, 4, 'K', 7, '.' };
/* A tensor's storage, which needs the rest of an archive. */
static const char storage[] = { (char)0x80, 2, 'X', 1, 0, 0, 0, '0', 'Q', '.' };

START_TEST(the_same_form_is_the_same_bytes)
{
	static const enum object_form forms[] = { OBJECT_TORCH, OBJECT_PICKLE, OBJECT_JSON };
	struct buf b;

	for (size_t i = 0; i < 3; i++) {
		b = convert(forms[i], forms[i], "any\0thing", 9);
		is(&b, "any\0thing", 9);
	}
}
END_TEST

START_TEST(a_pickle_gets_an_archive_and_loses_it_again)
{
	struct buf a = convert(OBJECT_PICKLE, OBJECT_TORCH, seven_4, sizeof(seven_4));
	struct buf p = convert(OBJECT_TORCH, OBJECT_PICKLE, a.data, a.len);

	is(&p, seven_4, sizeof(seven_4));
	buf_release(&a);
}
END_TEST

START_TEST(what_is_no_whole_pickle_becomes_python_bytes)
{
	static const struct {
		const char *p;
		size_t n;
	} none[] = { { "", 0 },
		     { "raw", 3 },
		     { seven, sizeof(seven) - 1 },
		     { "\x80\x02K\x07.K\x07.", 8 }, /* two of them */
		     { storage, sizeof(storage) } };

	for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
		struct buf p =
			pickle_in(convert(OBJECT_PICKLE, OBJECT_TORCH, none[i].p, none[i].n));
		char want[64] = { (char)0x80, 4, (char)0x8e, (char)none[i].n };

		memcpy(want + 11, none[i].p, none[i].n);
		want[11 + none[i].n] = '.';
		is(&p, want, 12 + none[i].n);
	}
}
END_TEST

START_TEST(an_archive_with_tensors_stays_one)
{
	struct buf a = BUF_INIT(1 << 20);
	struct ckpt_err e;
	struct buf p;

	ck_assert(!torch_item_wrap(storage, sizeof(storage), &a, &e));
	p = convert(OBJECT_TORCH, OBJECT_PICKLE, a.data, a.len);
	is(&p, a.data, a.len);
	p = convert(OBJECT_PICKLE, OBJECT_TORCH, a.data, a.len);
	is(&p, a.data, a.len);
	buf_release(&a);
	p = convert(OBJECT_TORCH, OBJECT_PICKLE, "no archive", 10);
	is(&p, "no archive", 10);
}
END_TEST

static const struct {
	const char *json, *pickle;
	size_t len;
} values[] = {
#define PICKLE(s) "\x80\x02" s ".", sizeof(s) + 2
	{ "7\n", PICKLE("K\x07") },
	{ "-1", PICKLE("J\xff\xff\xff\xff") },
	{ "null", PICKLE("N") },
	{ "[true, false]", PICKLE("](\x88\x89"
				  "e") },
	{ "[]", PICKLE("]") },
	{ "{\"a\": {\"b\": []}}", PICKLE("}(X\x01\0\0\0a}(X\x01\0\0\0b]uu") },
	{ "0.5", PICKLE("G\x3f\xe0\0\0\0\0\0\0") },
	{ "\"x\\u0000y\"", PICKLE("X\x03\0\0\0x\0y") },
	{ "{\"__class__\": \"builtins.float\", \"value\": \"-inf\"}",
	  PICKLE("G\xff\xf0\0\0\0\0\0\0") },
	{ "[{\"__class__\": \"builtins.float\", \"value\": \"nan\"}]",
	  PICKLE("](G\x7f\xf8\0\0\0\0\0\0"
		 "e") },
	{ "18446744073709551616", PICKLE("\x8a\x09\0\0\0\0\0\0\0\0\1") },
	{ "[-1180591620717411303424]", PICKLE("](\x8a\x09\0\0\0\0\0\0\0\0\xc0"
					      "e") },
	{ "\"\\ud800\"", PICKLE("X\x03\0\0\0\xed\xa0\x80") },
	{ "{\"\\u0000\\udfff\": 1}", PICKLE("}(X\x04\0\0\0\0\xed\xbf\xbfK\1u") },
	{ "NaN\n", PICKLE("X\x03\0\0\0NaN") }, /* a text that is not JSON */
};

/* An archive that would not have stayed one is treated as bytes that look like one. */
START_TEST(bytes_that_are_an_archive_without_tensors_are_python_bytes)
{
	struct buf a = BUF_INIT(1 << 20);
	struct ckpt_err e;
	struct buf p;

	ck_assert(!torch_item_wrap(seven, sizeof(seven), &a, &e));
	p = pickle_in(convert(OBJECT_PICKLE, OBJECT_TORCH, a.data, a.len));
	ck_assert_uint_eq(p.len, a.len + 12);
	ck_assert_mem_eq(p.data + 11, a.data, a.len);
	buf_release(&p);
	buf_release(&a);
}
END_TEST

START_LOOP_TEST(json_becomes_the_value_it_reads_as, sizeof(values) / sizeof(*values))
{
	const char *json = values[_i].json;
	struct buf b = convert(OBJECT_JSON, OBJECT_PICKLE, json, strlen(json));

	is(&b, values[_i].pickle, values[_i].len);
	b = pickle_in(convert(OBJECT_JSON, OBJECT_TORCH, json, strlen(json)));
	is(&b, values[_i].pickle, values[_i].len);
}
END_TEST

START_TEST(a_thousand_and_one_elements_come_in_two_batches)
{
	struct buf json = BUF_INIT(1 << 20), b;
	size_t batches = 0;

	buf_str(&json, "[1");
	for (int i = 1; i < 1001; i++)
		buf_str(&json, ",1");
	buf_str(&json, "]");
	b = convert(OBJECT_JSON, OBJECT_PICKLE, json.data, json.len);
	for (size_t i = 0; i < b.len; i++)
		batches += b.data[i] == 'e' || b.data[i] == 'a';
	ck_assert_uint_eq(batches, 2);
	buf_release(&json);
	buf_release(&b);
}
END_TEST

START_TEST(ceilings_hold)
{
	struct buf deep = BUF_INIT(1 << 20), small = BUF_INIT(100);
	struct ckpt_err e;

	for (int i = 0; i < 200; i++)
		buf_str(&deep, "[");
	for (int i = 0; i < 200; i++)
		buf_str(&deep, "]");
	ck_assert_int_eq(object_convert(OBJECT_JSON, OBJECT_TORCH, deep.data, deep.len, &small, &e),
			 -ERR_UNSUPPORTED);
	ck_assert_str_eq(
		e.msg,
		"an object nests deeper than 100 levels, or has a number of more than 255 bytes");
	ck_assert_int_eq(
		object_convert(OBJECT_PICKLE, OBJECT_TORCH, seven, sizeof(seven), &small, &e),
		-EFBIG);
	buf_release(&deep);
	buf_release(&small);
}
END_TEST

/* ---- the same value in two forms ---- */

/* An object of that form with the pickle p; wrap: put into an archive, as torch does. */
static struct object_bytes make(enum object_form form, bool wrap, const void *p, size_t n,
				struct buf *b)
{
	struct ckpt_err e;

	if (wrap && torch_item_wrap(p, n, b, &e))
		ck_abort_msg("%s", e.msg);
	if (!wrap)
		buf_add(b, p, n);
	REQUIRE(!b->err);
	return (struct object_bytes){ form, b->data ? b->data : "", b->len };
}

#define BYTES(s) s, sizeof(s) - 1
static const struct {
	struct side {
		enum object_form form;
		bool wrap;
		const char *p;
		size_t n;
	} a, b;
	int same;
	const char *why;
} pairs[] = {
#define T(s) \
	{ \
		OBJECT_TORCH, true, BYTES(s) \
	}
#define OTHER(s) \
	{ \
		OBJECT_TORCH, false, BYTES(s) \
	}
#define P(s) \
	{ \
		OBJECT_PICKLE, false, BYTES(s) \
	}
#define J(s) \
	{ \
		OBJECT_JSON, false, BYTES(s) \
	}
	{ T("\x80\2K\7."), P("\x80\4K\7."), 1, NULL },
	{ T("\x80\2K\7."), T("\x80\4K\7."), 1, NULL },
	{ P("\x80\2K\7."), P("\x80\4K\7."), 1, NULL },
	{ T("\x80\2K\7."), P("\x80\4K\x08."), 0, NULL },
	{ T("\x80\2K\7."), T("\x80\2K\x08."), 0, NULL },
	{ T("\x80\2}X\1\0\0\0aK\1s."), J("{\"a\": 1}\n"), 1, NULL },
	{ P("\x80\2}X\1\0\0\0aK\1s."), J("{\"a\": 1}\n"), 1, NULL },
	{ P("\x80\2}X\1\0\0\0aK\1s."), J("{\"a\": 2}\n"), 0, NULL },
	{ J("{\"a\": 1}\n"), J("{\"a\": 2}\n"), 0, NULL },
	{ J("{\"a\": 1}\n"), J("{\"a\": 1}\n"), 1, NULL },
	/* beyond int64: a text and what it is converted to */
	{ J("18446744073709551616\n"), T("\x80\2\x8a\x09\0\0\0\0\0\0\0\0\1."), 1, NULL },
	{ J("18446744073709551616\n"), T("\x80\2X\x14\0\0\00018446744073709551616."), 0, NULL },
	/* bytes: as they are, or pickled by Python */
	{ P("raw"), T("\x80\4C\3raw."), 1, NULL },
	{ P("raw"), T("\x80\2c_codecs\nencode\nX\3\0\0\0rawX\6\0\0\0latin1\x86R."), 1, NULL },
	{ P("raw"), T("\x80\4C\3war."), 0, NULL },
	{ P("raw"), T("\x80\4X\3\0\0\0raw."), 0, NULL }, /* a string */
	{ P("raw"), OTHER("raw"), 1, NULL },
	{ P(""), T("\x80\4C\0."), 1, NULL },
	{ P("raw"), OTHER("war"), 0, NULL },
	{ P("\x80\2K\7.more"), T("\x80\4C\x9\x80\2K\7.more."), 1, NULL }, /* no whole pickle */
	{ P("\x80\2X\1\0\0\0000Q."), T("\x80\4C\x0a\x80\2X\1\0\0\0000Q.."), 1, NULL },
	/* values that cannot be compared */
	{ T("\x80\2X\1\0\0\0000Q."), T("\x80\4X\1\0\0\0000Q."), -ENOTSUP,
	  "tensors in objects are not compared" },
	{ T("\x80\4\x8f."), P("\x80\4\x8f\x94."), 1, NULL },
	{ T("\x80\4\x8f(K\1K\2\x90."), P("\x80\4\x8f(K\2K\1\x90."), -ENOTSUP,
	  "sets are not compared" },
	{ P("\x80\4K\7)R."), J("{\"__class__\": \"?\"}\n"), -ENOTSUP,
	  "a part of it has no text form" },
	{ J("[{\"__class__\": \"?\"}]\n"), J("[{\"__class__\": \"?\"}]\n"), -ENOTSUP,
	  "a part of it has no text form" },
};

START_LOOP_TEST(two_forms_of_one_value_are_the_same, (int)(sizeof(pairs) / sizeof(*pairs)))
{
	struct buf one = BUF_INIT(1 << 20), other = BUF_INIT(1 << 20);
	const struct side *a = &pairs[_i].a, *b = &pairs[_i].b;
	struct object_bytes x = make(a->form, a->wrap, a->p, a->n, &one);
	struct object_bytes y = make(b->form, b->wrap, b->p, b->n, &other);

	for (int turn = 0; turn < 2; turn++) {
		struct ckpt_err e = { 0 };
		int rc = object_same(turn ? &y : &x, turn ? &x : &y, &e);

		ck_assert_msg(rc == pairs[_i].same, "%d: %s", rc, e.msg);
		if (rc < 0)
			ck_assert_str_eq(e.msg, pairs[_i].why);
	}
	buf_release(&one);
	buf_release(&other);
}
END_TEST

/* Longer than strings of other pickles may be. */
START_TEST(what_one_form_becomes_in_the_other_is_the_same_however_long)
{
	enum { LONG = 3 << 20 };
	struct buf archive = BUF_INIT(16 << 20);
	char *raw = calloc(1, LONG);
	struct object_bytes x = { OBJECT_PICKLE, raw, LONG }, y = { .form = OBJECT_TORCH };
	struct ckpt_err e = { 0 };

	REQUIRE(raw);
	ck_assert_int_eq(object_convert(OBJECT_PICKLE, OBJECT_TORCH, raw, LONG, &archive, &e), 0);
	y.data = archive.data;
	y.len = archive.len;
	ck_assert_int_eq(object_same(&x, &y, &e), 1);
	ck_assert_int_eq(object_same(&y, &x, &e), 1);
	raw[LONG - 1] = 1;
	ck_assert_int_eq(object_same(&x, &y, &e), 0);
	buf_release(&archive);
	free(raw);
}
END_TEST

/* ---- lists of one ---- */

static void lists(enum object_form from, const void *p, size_t n, const char *want, size_t want_n)
{
	struct buf got = pickle_in(convert(from, OBJECT_LISTED, p, n));

	is(&got, want, want_n);
}

START_TEST(megatron_has_a_value_in_a_list)
{
	/* The memo and the frames of the value stay as they are. */
	static const char framed[] = "\x80\4\x95\3\0\0\0\0\0\0\0K\7.";
	static const char framed_list[] = "\x80\4]\x95\3\0\0\0\0\0\0\0K\7a.";
	struct buf archive = convert(OBJECT_PICKLE, OBJECT_TORCH, seven, sizeof(seven));

	lists(OBJECT_PICKLE, seven, sizeof(seven), "\x80\2]K\7a.", 7);
	lists(OBJECT_TORCH, archive.data, archive.len, "\x80\2]K\7a.", 7);
	lists(OBJECT_JSON, "7\n", 2, "\x80\2]K\7a.", 7);
	lists(OBJECT_PICKLE, framed, sizeof(framed) - 1, framed_list, sizeof(framed_list) - 1);
	lists(OBJECT_PICKLE, "raw", 3,
	      "\x80\4]\x8e\3\0\0\0\0\0\0\0raw"
	      "a.",
	      17);
	/* A storage in it needs the rest of its archive. */
	lists(OBJECT_PICKLE, storage, sizeof(storage),
	      "\x80\4]\x8e\12\0\0\0\0\0\0\0\x80\2X\1\0\0\0000Q.a.", 24);
	buf_release(&archive);
}
END_TEST

/* If memory runs out there is an error, never another form. */
START_LOOP_TEST(a_list_without_memory_is_a_clean_error, 3)
{
	static const char p[] = "\x80\2}(X\1\0\0\0aK\1X\1\0\0\0b](K\1K\2eu.";
	struct buf archive = convert(OBJECT_PICKLE, OBJECT_TORCH, p, sizeof(p) - 1);
	const struct object_bytes from[] = { { OBJECT_PICKLE, "raw", 3 },
					     { OBJECT_PICKLE, p, sizeof(p) - 1 },
					     { OBJECT_TORCH, archive.data, archive.len } };
	const struct object_bytes *x = &from[_i];
	struct buf want = convert(x->form, OBJECT_LISTED, x->data, x->len);
	int failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct buf b = BUF_INIT(1 << 20);
		struct ckpt_err e = { 0 };
		int rc = object_convert(x->form, OBJECT_LISTED, x->data, x->len, &b, &e);

		(void)fault_off();
		failed += rc < 0;
		if (rc) {
			ck_assert_msg(rc == -ENOMEM && e.code == ENOMEM && e.msg[0], "%s", e.msg);
		} else {
			ck_assert_uint_eq(b.len, want.len);
			ck_assert_mem_eq(b.data, want.data, want.len);
		}
		buf_release(&b);
	}
	ck_assert_int_gt(failed, 2);
	buf_release(&want);
	buf_release(&archive);
}
END_TEST

START_TEST(names_of_parts)
{
	static const char *const good[] = { "k/shard_0_1", "a.b_c/shard_0.12_2.13", "/shard_1_2" };
	static const char *const bad[] = { "",
					   "k",
					   "k/shard_0",
					   "k/shard_0_",
					   "k/shard__1",
					   "k/shard_0_1.",
					   "k/shard_0._1",
					   "k/shard_0_1x",
					   "k/l/shard_0_1",
					   "k/shard_a_1",
					   "shard_0_1",
					   "k/shard_.0_1" };

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		ck_assert_msg(megatron_is_part(good[i], strlen(good[i])), "%s", good[i]);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		ck_assert_msg(!megatron_is_part(bad[i], strlen(bad[i])), "%s", bad[i]);
	/* No byte beyond the end is looked at. */
	ck_assert(!megatron_is_part("k/shard_0_12", strlen("k/shard_0_")));
	ck_assert(megatron_is_part("k/shard_0_1_", strlen("k/shard_0_1")));
}
END_TEST

START_LOOP_TEST(comparing_without_memory_is_a_clean_error, 3)
{
	static const char p[] = "\x80\2}(X\1\0\0\0aK\1X\1\0\0\0b](K\1K\2eu.";
	static const char q[] = "\x80\4}(X\1\0\0\0aK\1X\1\0\0\0b](K\1K\2eu.";
	struct buf one = BUF_INIT(1 << 20);
	struct object_bytes x = make(OBJECT_TORCH, true, p, sizeof(p) - 1, &one);
	struct object_bytes y[] = { { OBJECT_PICKLE, q, sizeof(q) - 1 },
				    { OBJECT_PICKLE, "raw", 3 },
				    { OBJECT_JSON, "{\"a\": 1, \"b\": [1, 2]}\n", 22 } };
	int failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_err e = { 0 };
		int rc = object_same(&x, &y[_i], &e);

		(void)fault_off();
		failed += rc < 0;
		if (rc < 0) /* the pool does not say why it has no more */
			ck_assert_msg((rc == -ENOMEM || rc == -ENOTSUP) && e.code == -rc &&
					      e.msg[0],
				      "%d: %s", rc, e.msg);
		else
			ck_assert_int_eq(rc, _i != 1);
	}
	ck_assert_int_gt(failed, 3);
	buf_release(&one);
}
END_TEST

SUITE(object_form)

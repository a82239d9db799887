/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what is accepted, what it means, and how much memory it takes. The reference is jansson. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "fault.h"
#include "json_same.h"
#include "rng.h"
#include "suites.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#define TEXT(s) (s), sizeof(s) - 1

/* ---- the same as jansson's ---- */

static const struct {
	const char *text;
	size_t len;
} texts[] = {
	{ TEXT("") },
	{ TEXT(" ") },
	{ TEXT("{}") },
	{ TEXT("[]") },
	{ TEXT(" [ ] ") },
	{ TEXT("\t{\r\n}\n") },
	{ TEXT("\xef\xbb\xbf{}") },
	{ TEXT("\f[]") },
	{ TEXT("[] []") },
	{ TEXT("[]\0") },
	{ TEXT("\0[]") },
	{ TEXT("[\0]") },
	{ TEXT("null") },
	{ TEXT("\"a\"") },
	{ TEXT("12") },
	{ TEXT("-") },
	{ TEXT("[nul]") },
	{ TEXT("[nulll]") },
	{ TEXT("[True]") },
	{ TEXT("[true,false,null]") },
	{ TEXT("[NaN]") },
	{ TEXT("[Infinity]") },
	{ TEXT("[,]") },
	{ TEXT("[1,]") },
	{ TEXT("[1 2]") },
	{ TEXT("[1}") },
	{ TEXT("{1:2}") },
	{ TEXT("{\"a\"}") },
	{ TEXT("{\"a\":}") },
	{ TEXT("{\"a\":1,}") },
	{ TEXT("{\"a\":1 \"b\":2}") },
	{ TEXT("{\"a\":1]") },
	{ TEXT("{,}") },
	{ TEXT("{\"a\":{\"a\":{\"a\":[[],{}]}}}") },
	{ TEXT("{\"a\":1,\"b\":2,\"a\":3}") },
	{ TEXT("{\"a\":1,\"\\u0061\":3}") },
	{ TEXT("{\"\":1,\"\":3}") },
	{ TEXT("{\"\":1}") },
	{ TEXT("{\"a\":{\"b\":1},\"b\":{\"b\":1}}") },
	{ TEXT("[0,-0,1,-1,10,123456789]") },
	{ TEXT("[00]") },
	{ TEXT("[-01]") },
	{ TEXT("[+1]") },
	{ TEXT("[1.]") },
	{ TEXT("[.5]") },
	{ TEXT("[1.5,-0.0,0e0,1E5,1e+5,1e-5,1.25e2]") },
	{ TEXT("[1e]") },
	{ TEXT("[1e+]") },
	{ TEXT("[0x10]") },
	{ TEXT("[1a]") },
	{ TEXT("[9223372036854775807,-9223372036854775808]") },
	{ TEXT("[9223372036854775808]") },
	{ TEXT("[-9223372036854775809]") },
	{ TEXT("[18446744073709551616]") },
	{ TEXT("[99999999999999999999999999999999999999]") },
	{ TEXT("[1.7976931348623157e308,4.9e-324,1e-400]") },
	{ TEXT("[1e309]") },
	{ TEXT("[-1e999]") },
	{ TEXT("[0.1,0.30000000000000004,123456789012345678901234567890.0]") },
	{ TEXT("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]") },
	{ TEXT("[\"\\x\"]") },
	{ TEXT("[\"\\") },
	{ TEXT("[\"\\u") },
	{ TEXT("[\"\\u12") },
	{ TEXT("[\"\\u123g\"]") },
	{ TEXT("[\"\\u0041\\u00e9\\u20AC\\uffff\"]") },
	{ TEXT("[\"\\uD83D\\uDE00\"]") },
	{ TEXT("[\"\\uD83D\"]") },
	{ TEXT("[\"\\uD83D\\n\"]") },
	{ TEXT("[\"\\uD83D\\uD83D\"]") },
	{ TEXT("[\"\\uDE00\"]") },
	{ TEXT("[\"\\uDBFF\\uDFFF\"]") },
	{ TEXT("[\"a\\u0000b\"]") },
	{ TEXT("{\"a\\u0000b\":1}") },
	{ TEXT("[\"a\0b\"]") },
	{ TEXT("[\"a\nb\"]") },
	{ TEXT("[\"a\x1f\"]") },
	{ TEXT("[\"a\x7f\"]") },
	{ TEXT("[\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd \xef\xbf\xbf\"]") },
	{ TEXT("[\"\xed\xa0\x80\"]") },
	{ TEXT("[\"\xc0\x80\"]") },
	{ TEXT("[\"\xe0\x80\x80\"]") },
	{ TEXT("[\"\xf4\x90\x80\x80\"]") },
	{ TEXT("[\"\xf8\x88\x80\x80\x80\"]") },
	{ TEXT("[\"\xc3\"]") },
	{ TEXT("[\"\xe2\x82") },
	{ TEXT("[\"\x80\"]") },
	{ TEXT("[\xc3\xa9]") },
	{ TEXT("['a']") },
	{ TEXT("[/*a*/1]") },
	{ TEXT("{a:1}") },
};

START_LOOP_TEST(a_text_means_what_jansson_says, ARRAY_LEN(texts))
{
	for (unsigned flags = 0; flags < 4; flags++)
		ck_assert_msg(json_agrees(texts[_i].text, texts[_i].len, flags), "%s, flags %u",
			      texts[_i].text, flags);
}
END_TEST

START_TEST(a_text_that_ends_early_is_refused)
{
	static const char text[] =
		"{\"a\": [1, -2.5, true, null, \"\\u00e9\\n\xc3\xa9\"], \"b\": {}}";

	for (size_t n = 0; n < sizeof(text) - 1; n++)
		REQUIRE(json_agrees(text, n, 0));
	REQUIRE(json_agrees(text, sizeof(text) - 1, 0));
}
END_TEST

/* Mostly JSON. */
static size_t random_text(struct rng *r, char *out, size_t cap)
{
	static const char *const parts[] = {
		"{",	    "}",	   "[",	      "]",	",",	   ":",	      "\"a\"",
		"\"b\"",    "\"\"",	   "1",	      "-2",	"0.5",	   "1e3",     "true",
		"false",    "null",	   " ",	      "\n",	"\\",	   "\"",      "\\u00e9",
		"\xc3\xa9", "\\ud83d",	   "\\ude00", "\"a\":", "\"b\":1", "\"c\":[", "\"d\":{",
		"[1,2,3]",  "{\"x\":1}",   "01",      "-",	"e",	   ".",	      "\x80",
		"\\n",	    "\"\\u0000\"", "[[",      "]]",	"9e99",
	};
	size_t n = 0, steps = 1 + rng_below(r, 12);

	for (size_t i = 0; i < steps; i++) {
		const char *p = parts[rng_below(r, ARRAY_LEN(parts))];

		if (n + strlen(p) < cap)
			n += (size_t)snprintf(out + n, cap - n, "%s", p);
	}
	return n;
}

/* Valid JSON, so that values are compared; one byte may be made wrong later. */
static void random_value(struct rng *r, char *out, size_t *n, size_t cap, int depth)
{
	static const char *const scalars[] = { "null",	  "true", "0",	    "-12",
					       "3.25e-7", "\"\"", "\"ab\"", "\"\\t\\u20ac\"",
					       "[]",	  "{}",	  "1e300",  "123456789012345678" };
	size_t members = rng_below(r, 4);
	bool object = rng_below(r, 2);

	if (depth > 5 || rng_below(r, 3) == 0 || *n + 200 > cap) {
		*n += (size_t)snprintf(out + *n, cap - *n, "%s",
				       scalars[rng_below(r, ARRAY_LEN(scalars))]);
		return;
	}
	out[(*n)++] = object ? '{' : '[';
	for (size_t i = 0; i < members; i++) {
		*n += (size_t)snprintf(out + *n, cap - *n, i ? ", " : " ");
		if (object)
			*n += (size_t)snprintf(out + *n, cap - *n,
					       "\"k%u\" :", (unsigned)(i + rng_below(r, 12) / 11));
		random_value(r, out, n, cap, depth + 1);
	}
	out[(*n)++] = object ? '}' : ']';
}

START_LOOP_TEST(random_texts_mean_what_jansson_says, 10)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	char text[4000];

	for (int round = 0; round < 4000; round++) {
		size_t n = 0;

		if (round % 2) {
			n = random_text(&r, text, sizeof(text));
		} else {
			random_value(&r, text, &n, sizeof(text), 0);
			if (rng_below(&r, 2))
				text[rng_below(&r, n)] = (char)(1 + rng_below(&r, 255));
		}
		text[n] = 0;
		if (!json_agrees(text, n, (unsigned)rng_below(&r, 4)))
			ck_abort_msg("%s", text);
	}
}
END_TEST

/* ---- sentences ---- */

static const struct {
	const char *text, *message;
	size_t line, at;
} faults[] = {
	{ "", "'[' or '{' expected near end of file", 1, 0 },
	{ "x", "'[' or '{' expected near 'x'", 1, 0 },
	{ "{", "string or '}' expected near end of file", 1, 1 },
	{ "{\"a\":1,}", "string expected near '}'", 1, 7 },
	{ "{\"a\" 1}", "':' expected near '1'", 1, 5 },
	{ "{\"a\":1 \"b\"}", "'}' expected near '\"'", 1, 7 },
	{ "[\n1,\n2 true]", "']' expected near 'true'", 3, 7 },
	{ "[\n\n,]", "invalid token near ','", 3, 3 },
	{ "[abcdefghijklmnopqrstuvwxyz]", "invalid token near 'abcdefghijklmnopqrst'", 1, 1 },
	{ "[1.]", "invalid token near '1.'", 1, 1 },
	{ "[99999999999999999999]", "too big integer near '99999999999999999999'", 1, 1 },
	{ "[1e999]", "too big number near '1e999'", 1, 1 },
	{ "[\"abc", "premature end of input near end of file", 1, 5 },
	{ "[\"a\tb\"]", "control character 0x09 in a string", 1, 3 },
	{ "[\"a\x80\"]", "byte 0x80 is not UTF-8", 1, 3 },
	{ "[\"\\q\"]", "invalid escape near '\\'", 1, 2 },
	{ "[\"\\ud800\"]", "a lone surrogate near '\\'", 1, 2 },
	{ "[\"\\u0000\"]", "a NUL character in a string", 1, 8 },
	{ "{\n\"a\":1,\n\"a\":2}", "duplicate object key near '\"a\"'", 3, 15 },
	{ "[] x", "end of file expected near 'x'", 1, 3 },
};

START_LOOP_TEST(a_fault_has_a_place_and_a_sentence, ARRAY_LEN(faults))
{
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(jdoc_parse_copy(&d, faults[_i].text, strlen(faults[_i].text), 0, &e),
			 -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, faults[_i].message);
	ck_assert_uint_eq(d.line, faults[_i].line);
	ck_assert_uint_eq(d.at, faults[_i].at);
	ck_assert_ptr_null(jdoc_root(&d).d);
	jdoc_release(&d);
}
END_TEST

/* ---- flags ---- */

static struct jdoc parsed(const char *text, unsigned flags)
{
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_msg(!jdoc_parse_copy(&d, text, strlen(text), flags, &e), "%s", e.msg);
	return d;
}

START_TEST(big_integers_are_reals_where_that_is_asked_for)
{
	CLEANUP(jdoc_release)
	struct jdoc d =
		parsed("[1000000000000000019884624838656, -9223372036854775809, 7]", JDOC_BIG);
	struct jdoc none = { 0 };
	struct ckpt_err e = { 0 };
	char huge[402] = "[1";
	int64_t n;
	double x;

	ck_assert(!jval_int(jval_at(jdoc_root(&d), 0), &n));
	ck_assert(jval_number(jval_at(jdoc_root(&d), 0), &x) && x == 1e30);
	ck_assert(jval_number(jval_at(jdoc_root(&d), 1), &x) && x == -9223372036854775808.0);
	ck_assert(jval_int(jval_at(jdoc_root(&d), 2), &n) && n == 7);
	memset(huge + 2, '0', 398);
	huge[400] = ']';
	ck_assert_int_eq(jdoc_parse(&none, huge, 401, JDOC_BIG, &e), -ERR_CORRUPT);
}
END_TEST

START_TEST(keys_may_come_twice_where_that_is_asked_for)
{
	CLEANUP(jdoc_release) struct jdoc d = parsed("{\"a\": 1, \"a\": 2}", JDOC_DUPLICATES);

	ck_assert_uint_eq(jval_size(jdoc_root(&d)), 2);
}
END_TEST

START_TEST(values_follow_each_other_in_a_text)
{
	char text[] = " {\"a\": [1]} 12 \"b\", ]";
	static const size_t ends[] = { 11, 14, 18 };
	struct ckpt_err e = { 0 };
	struct jdoc d = { 0 };
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		ck_assert_int_eq(jdoc_parse(&d, text + at, sizeof(text) - 1 - at,
					    JDOC_ANY | JDOC_PREFIX, &e),
				 0);
		at += d.at;
		ck_assert_uint_eq(at, ends[i]);
	}
	ck_assert_str_eq(jval_str(jdoc_root(&d)), "b");
	ck_assert_int_eq(
		jdoc_parse(&d, text + at, sizeof(text) - 1 - at, JDOC_ANY | JDOC_PREFIX, &e),
		-ERR_CORRUPT);
	jdoc_release(&d);
}
END_TEST

START_TEST(the_locale_of_the_program_changes_nothing)
{
	CLEANUP(jdoc_release) struct jdoc d = parsed("[1.5]", 0);
	double x = 0;

	/* If the machine has no locale with a comma, this tests nothing. */
	(void)setlocale(LC_ALL, "de_DE.UTF-8");
	ck_assert(jval_number(jval_at(jdoc_root(&d), 0), &x) && x == 1.5);
	(void)setlocale(LC_ALL, "C");
}
END_TEST

/* ---- values ---- */

START_TEST(what_is_asked_of_no_value_is_no_value)
{
	CLEANUP(jdoc_release) struct jdoc d = parsed("{\"a\": [1, 2], \"b\": null}", 0);
	struct jval root = jdoc_root(&d), none = jval_get(root, "x");
	uint64_t v[2];
	size_t n;

	ck_assert(jval_is(none, J_NONE) && jval_is_null(none) && !jval_str(none));
	ck_assert(!jval_get(none, "a").d && !jval_at(none, 0).d && !jval_size(none));
	ck_assert(!jval_at(root, 0).d && !jval_get(jval_get(root, "a"), "a").d);
	ck_assert(!jval_at(jval_get(root, "a"), 2).d);
	ck_assert(jval_is_null(jval_get(root, "b")) && jval_get(root, "b").d);
	ck_assert(jval_u64s(jval_get(root, "a"), v, 2, &n) && n == 2 && v[1] == 2);
	ck_assert(!jval_u64s(jval_get(root, "a"), v, 1, &n) && !jval_u64s(root, v, 2, &n));
}
END_TEST

START_TEST(a_part_is_kept_without_the_rest)
{
	CLEANUP(jdoc_release)
	struct jdoc d = parsed(
		"{\"a\": [1, [], {\"x\": {}}], \"b\": {\"c\": [2, {\"d\": 3}], \"e\": []}}", 0);
	json_t *want = json_loads("{\"c\": [2, {\"d\": 3}], \"e\": []}", 0, NULL);

	jdoc_keep(&d, jval_get(jdoc_root(&d), "b"));
	ck_assert(json_same(jdoc_root(&d), want));
	json_decref(want);
	jdoc_keep(&d, jval_get(jdoc_root(&d), "c"));
	ck_assert_uint_eq(jval_size(jdoc_root(&d)), 2);
	jdoc_keep(&d, (struct jval){ 0 });
	ck_assert_ptr_null(jdoc_root(&d).d);
}
END_TEST

/* ---- bounds ---- */

static char *nested(size_t depth, const char *inner)
{
	char *text = malloc(2 * depth + strlen(inner) + 1);

	REQUIRE(text);
	memset(text, '[', depth);
	memcpy(text + depth, inner, strlen(inner));
	memset(text + depth + strlen(inner), ']', depth);
	text[2 * depth + strlen(inner)] = 0;
	return text;
}

START_TEST(values_nest_2048_deep_and_no_deeper)
{
	static const size_t depths[] = { 2046, 2047, 2048, 2049, 5000000 };

	for (size_t i = 0; i < ARRAY_LEN(depths); i++)
		for (int scalar = 0; scalar < 2; scalar++) {
			autofree char *text = nested(depths[i], scalar ? "1" : "");

			ck_assert(json_agrees(text, strlen(text), 0));
		}
}
END_TEST

START_TEST(a_key_that_comes_twice_is_found_among_many)
{
	enum { N = 100000 };
	autofree char *text = malloc(N * 16 + 40);
	size_t n = 0;
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };

	REQUIRE(text);
	for (unsigned i = 0; i < N; i++)
		n += (size_t)sprintf(text + n, "%s\"%08x\":1", i ? "," : "{", i * 2654435761u);
	(void)sprintf(text + n, "}");
	ck_assert_int_eq(jdoc_parse_copy(&d, text, n + 1, 0, &e), 0);
	jdoc_release(&d);
	(void)sprintf(text + n, ",\"%08x\":1}", 777 * 2654435761u);
	ck_assert_int_eq(jdoc_parse(&d, text, strlen(text), 0, &e), -ERR_CORRUPT);
}
END_TEST

/* What makes the most of its bytes: values of two bytes, keys, strings, blanks. */
static const struct {
	const char *first, *then, *last;
	int rc; /* of 52 million bytes */
} bombs[] = {
	{ "[", "0,", "0]", -EFBIG },	 { "[", "[],", "0]", 0 },
	{ "[", "{},", "0]", 0 },	 { "[", "\"\",", "0]", 0 },
	{ "[", "[[]],[],", "0]", 0 },	 { "[", "{\"\":0},", "0]", 0 },
	{ "[", "{\"\":{}},", "0]", 0 },	 { "[", "    ", "0]", 0 },
	{ "[\"", "\\u20ac", "\"]", 0 },	 { "[", "[", "", -ERR_CORRUPT },
	{ "[", "9", "]", -ERR_CORRUPT }, { "[0.", "9", "]", 0 },
	{ "[1e-", "9", "]", 0 },
};

START_FEW_TEST(memory_is_eight_bytes_a_value, ARRAY_LEN(bombs), 1)
{
	/* A text of 52 MB has more values than are allowed; most short runs try a smaller one. */
	const bool large = rng_turn((uint64_t)_i, 8);
	const size_t size = (large ? 52 : 5) * 1000 * 1000, unit = strlen(bombs[_i].then);
	const int want = large || bombs[_i].rc != -EFBIG ? bombs[_i].rc : 0;
	autofree char *text = malloc(size + 100);
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };
	size_t n = 0;
	int64_t before;
	int rc;

	REQUIRE(text);
	n = (size_t)sprintf(text, "%s", bombs[_i].first);
	for (; n < size; n += unit)
		memcpy(text + n, bombs[_i].then, unit);
	n += (size_t)sprintf(text + n, "%s", bombs[_i].last);
	before = fault_live();
	fault_peak_reset();
	rc = jdoc_parse(&d, text, n, 0, &e);
	ck_assert_msg(rc == want, "%d: %s", rc, e.msg);
	if (rc == -EFBIG)
		ck_assert_str_eq(e.msg, "more than 25165824 values");
	/* When the table grows there are two tables for a while, the old one half as long. */
	ck_assert_int_le(fault_peak() - before, (int64_t)(12 * JDOC_MAX_VALUES + 1000));
	if (!rc)
		ck_assert_int_le(fault_live() - before, (int64_t)(16 * d.n + 1000));
	jdoc_release(&d);
	ck_assert_int_eq(fault_live(), before);
}
END_TEST

START_TEST(many_keys_take_four_bytes_more_each)
{
	const size_t n = rng_rounds(4 * 1000 * 1000, 500 * 1000);
	autofree char *text = malloc(n * 12 + 10);
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };
	size_t len = 0;
	int64_t before;

	REQUIRE(text);
	for (size_t i = 0; i < n; i++)
		len += (size_t)sprintf(text + len, "%c\"%06zx\":0", i ? ',' : '{', i);
	text[len++] = '}';
	before = fault_live();
	fault_peak_reset();
	ck_assert_int_eq(jdoc_parse(&d, text, len, 0, &e), 0);
	ck_assert_uint_eq(d.n, 2 * n + 1);
	/* Each member takes two nodes; half of the table is unused; and the sort needs some. */
	ck_assert_int_le(fault_peak() - before, (int64_t)(n * (2 * 16 + 2 * 4)));
	jdoc_release(&d);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	char text[400];
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct jdoc d = { 0 };
		struct ckpt_err e = { 0 };
		size_t n = 0;
		int rc;

		for (unsigned i = 0; i < 20; i++)
			n += (size_t)snprintf(text + n, sizeof(text) - n,
					      "%s\"\\u00e9%u\":[%u,\"x\"]", i ? "," : "{", i, i);
		n += (size_t)snprintf(text + n, sizeof(text) - n, "}");
		rc = jdoc_parse_copy(&d, text, n, 0, &e);
		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		failed += rc != 0;
		jdoc_release(&d);
	}
	ck_assert_uint_ge(failed, 3);
}
END_TEST

SUITE(json, .seconds = 300)
